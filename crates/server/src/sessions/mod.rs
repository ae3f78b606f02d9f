//! Connected agents: the link's port, enrolment, and one task per connection.
//!
//! A connection is a WebSocket over TLS. The certificate identifies the agent; `connection` checks what it
//! sends. A session never touches ops: it hands reports to the dispatcher and writes the messages that the
//! dispatcher queues. Questions to an agent that are not ops (logs, specs) go through `questions`; `asking`
//! finds the server that holds the agent's session, and `peer_questions` answers other servers.

mod asking;
mod budget;
mod certificates;
mod clones;
mod connection;
mod enroll;
mod handshake_limiter;
mod intake;
mod listener;
mod peer_questions;
mod questions;
mod readmission;

pub use asking::{AgentQuestions, AskError};
pub use budget::Budgets;
pub use clones::Clones;
pub use listener::Link;
pub use questions::{Questions, Unanswered};
