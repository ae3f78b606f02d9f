//! The agents that are connected to this server, and when each was last heard.

use crate::clock::WallMs;
use crate::metrics::Metrics;
use procfleet_core::id::AgentId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// When the last message of an agent arrived, heartbeats included, in wall time. Kept in memory, because the
/// session updates it for every message; stored when the session ends.
#[derive(Clone, Debug)]
pub struct LastHeard(Arc<AtomicI64>);

impl LastHeard {
    pub fn at(now: WallMs) -> LastHeard {
        LastHeard(Arc::new(AtomicI64::new(now)))
    }

    pub(crate) fn set(&self, now: WallMs) {
        self.0.store(now, Ordering::Relaxed);
    }

    pub fn get(&self) -> WallMs {
        self.0.load(Ordering::Relaxed)
    }
}

/// The agents that are connected to this server now. Only the dispatcher writes it.
#[derive(Clone, Debug)]
pub struct Presences {
    agents: Arc<RwLock<HashMap<AgentId, LastHeard>>>,
    metrics: Arc<Metrics>,
}

impl Presences {
    pub fn new(metrics: Arc<Metrics>) -> Presences {
        Presences { agents: Arc::default(), metrics }
    }

    pub fn contains(&self, agent: &AgentId) -> bool {
        self.agents.read().unwrap_or_else(PoisonError::into_inner).contains_key(agent)
    }

    /// When a connected agent was last heard.
    pub fn last_heard(&self, agent: &AgentId) -> Option<WallMs> {
        self.agents.read().unwrap_or_else(PoisonError::into_inner).get(agent).map(LastHeard::get)
    }

    /// The connected agents with the time that each was last heard. In memory, and as large as the fleet: for
    /// ordering by that time only.
    pub fn all_heard(&self) -> Vec<(WallMs, AgentId)> {
        let agents = self.agents.read().unwrap_or_else(PoisonError::into_inner);
        agents.iter().map(|(agent, heard)| (heard.get(), agent.clone())).collect()
    }

    pub(crate) fn insert(&self, agent: AgentId, heard: LastHeard) {
        match self.agents.write().unwrap_or_else(PoisonError::into_inner).entry(agent) {
            Entry::Occupied(mut known) => drop(known.insert(heard)),
            Entry::Vacant(new) => {
                new.insert(heard);
                self.metrics.agents.inc();
            }
        }
    }

    pub(crate) fn remove(&self, agent: &AgentId) {
        if self.agents.write().unwrap_or_else(PoisonError::into_inner).remove(agent).is_some() {
            self.metrics.agents.dec();
        }
    }
}
