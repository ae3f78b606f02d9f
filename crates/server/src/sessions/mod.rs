//! Connected agents: the link's port, enrolment, and one task per connection.
//!
//! A connection is a WebSocket over TLS. Who it is, its certificate says; what it may say, `connection` checks. A
//! session never touches ops: it hands reports to the keeper and writes what the keeper gives it. What is asked of an agent and is
//! no op goes through `questions`.

mod certificates;
mod connection;
mod enroll;
mod listener;
mod questions;

pub use listener::{Link, LinkError};
pub use questions::{Questions, Unanswered};

use crate::metrics::Metrics;
use procfleet_core::id::AgentId;
use procfleet_proto::link::server_message::Body;
use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::mpsc;

/// What the keeper writes into. Dropping it ends the connection.
pub type Outbox = mpsc::Sender<Body>;

/// Which agents are connected to this server, now. The keeper writes it; everybody may read.
#[derive(Clone, Debug)]
pub struct Presences {
    agents: Arc<RwLock<HashSet<AgentId>>>,
    metrics: Arc<Metrics>,
}

impl Presences {
    pub fn new(metrics: Arc<Metrics>) -> Presences {
        Presences { agents: Arc::default(), metrics }
    }

    pub fn contains(&self, agent: &AgentId) -> bool {
        self.agents.read().unwrap_or_else(PoisonError::into_inner).contains(agent)
    }

    pub(crate) fn insert(&self, agent: AgentId) {
        if self.agents.write().unwrap_or_else(PoisonError::into_inner).insert(agent) {
            self.metrics.agents.inc();
        }
    }

    pub(crate) fn remove(&self, agent: &AgentId) {
        if self.agents.write().unwrap_or_else(PoisonError::into_inner).remove(agent) {
            self.metrics.agents.dec();
        }
    }
}
