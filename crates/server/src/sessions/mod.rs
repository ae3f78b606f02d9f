//! Connected agents: the link's port, enrolment, and one task per connection.
//!
//! A connection is a WebSocket over TLS. Who it is, its certificate says; what it may say, `connection`
//! checks. A session never touches ops: it hands reports to the dispatcher and writes what the dispatcher
//! gives it. What is asked of an agent and is no op goes through `questions`.

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
mod refusal_log;

pub use budget::Budgets;
pub use clones::Clones;
pub use listener::Link;
pub use questions::{Questions, Unanswered};
pub use refusal_log::RefusalLog;
