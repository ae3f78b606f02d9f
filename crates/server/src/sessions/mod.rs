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
mod session_end;

pub use asking::{AgentQuestions, AskError};
pub use budget::Budgets;
pub use clones::Clones;
pub use questions::{Questions, Unanswered};

use crate::clock::Clock;
use crate::dispatcher::Dispatcher;
use crate::events::EventNotifier;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::pki::Ca;
use crate::proxies::TrustedProxies;
use crate::refusal_log::RefusalLog;
use crate::workers::refusals::Refusals;
use procfleet_store::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Shared by all connections.
#[derive(Clone, Debug)]
pub struct Link {
    pub store: Store,
    pub dispatcher: Dispatcher,
    pub ca: Arc<Ca>,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    pub event_notifier: EventNotifier,
    pub questions: Questions,
    /// `None`: there are no other servers.
    pub peers: Option<Peers>,
    pub clones: Clones,
    pub budgets: Budgets,
    pub proxies: TrustedProxies,
    pub refusal_log: RefusalLog,
    pub refusals: Refusals,
    /// Retention of events: the server does not accept older ones.
    pub keep: Duration,
    /// Until this time agents that a restored store does not know are readmitted.
    pub readmit_until: Option<Instant>,
    pub stop: watch::Receiver<bool>,
}
