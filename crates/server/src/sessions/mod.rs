//! Connected agents: the link's port, enrolment, and one task per connection.
//!
//! A connection is a WebSocket over TLS. The certificate identifies the agent; `connection` checks what it
//! sends. A session never touches ops: it hands reports to the dispatcher and writes the messages that the
//! dispatcher queues. Questions to an agent that are not ops (logs, specs) go through `questions`.

mod budget;
mod certificates;
mod clones;
mod connection;
mod enroll;
mod handshake_limiter;
mod intake;
mod listener;
mod questions;
mod readmission;

pub use budget::Budgets;
pub use clones::Clones;
pub use listener::Link;
pub use questions::{Questions, Unanswered};
