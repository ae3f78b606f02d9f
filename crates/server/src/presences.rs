//! The agents that are or were connected to this life of the server, and when each was last heard.

use crate::metrics::Metrics;
use procfleet_core::boot_time::BootTime;
use procfleet_core::id::AgentId;
use procfleet_store::clock::WallMs;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// When an agent was last heard in its session. Kept in memory, because the session updates it for every
/// message.
#[derive(Clone, Debug)]
pub struct LastHeard(Arc<HeardTimes>);

#[derive(Debug)]
struct HeardTimes {
    /// When the last message arrived, heartbeats included, in wall time. Stored when the session ends.
    heard: AtomicI64,
    /// When states of the agent were last stored, by the boot-time clock; 0: not in this session.
    states_stored: AtomicU64,
}

impl LastHeard {
    pub fn at(now: WallMs) -> LastHeard {
        LastHeard(Arc::new(HeardTimes { heard: AtomicI64::new(now), states_stored: AtomicU64::new(0) }))
    }

    pub(crate) fn set(&self, now: WallMs) {
        self.0.heard.store(now, Ordering::Relaxed);
    }

    pub fn get(&self) -> WallMs {
        self.0.heard.load(Ordering::Relaxed)
    }

    pub(crate) fn states_stored(&self, now: BootTime) {
        self.0.states_stored.store(now.0, Ordering::Relaxed);
    }

    fn states_stored_at(&self) -> BootTime {
        BootTime(self.0.states_stored.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
enum LinkState {
    Connected(LastHeard),
    Away(EndedSession),
}

/// The end of an agent's last session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedSession {
    pub since: WallMs,
    pub heard_at: WallMs,
}

/// The agents that are connected to this server now, and those that were. Only the dispatcher writes it.
///
/// An agent that has left stays here as away: the store learns of the end of its session later, and a reader
/// may have read the agent's record before that. Away agents are as many as the store knows at most.
#[derive(Clone, Debug)]
pub struct Presences {
    agents: Arc<RwLock<HashMap<AgentId, LinkState>>>,
    metrics: Arc<Metrics>,
}

impl Presences {
    pub fn new(metrics: Arc<Metrics>) -> Presences {
        Presences { agents: Arc::default(), metrics }
    }

    pub fn contains(&self, agent: &AgentId) -> bool {
        matches!(self.read().get(agent), Some(LinkState::Connected(_)))
    }

    /// When the agent was last heard. `None`: it has had no session in this life of the server.
    pub fn last_heard(&self, agent: &AgentId) -> Option<WallMs> {
        self.read().get(agent).map(|presence| match presence {
            LinkState::Connected(heard) => heard.get(),
            LinkState::Away(absence) => absence.heard_at,
        })
    }

    /// Whether states of its session were stored after this time.
    pub(crate) fn has_stored_since(&self, agent: &AgentId, time: BootTime) -> bool {
        match self.read().get(agent) {
            Some(LinkState::Connected(heard)) => heard.states_stored_at() > time,
            Some(LinkState::Away(_)) | None => false,
        }
    }

    /// The end of its last session. `None`: it is connected, or has had no session in this life of the
    /// server.
    pub fn absence(&self, agent: &AgentId) -> Option<EndedSession> {
        match self.read().get(agent) {
            Some(LinkState::Away(absence)) => Some(*absence),
            Some(LinkState::Connected(_)) | None => None,
        }
    }

    /// The connected agents with the time of their last messages. In memory, and as large as the fleet: for
    /// ordering by that time only.
    pub fn all_heard(&self) -> Vec<(WallMs, AgentId)> {
        let heard = |(agent, presence): (&AgentId, &LinkState)| match presence {
            LinkState::Connected(heard) => Some((heard.get(), agent.clone())),
            LinkState::Away(_) => None,
        };
        self.read().iter().filter_map(heard).collect()
    }

    pub(crate) fn insert(&self, agent: AgentId, heard: LastHeard) {
        let before = self.write().insert(agent, LinkState::Connected(heard));
        if !matches!(before, Some(LinkState::Connected(_))) {
            self.metrics.agents.inc();
        }
    }

    /// The agent's session has ended. Does nothing if it has none.
    pub(crate) fn leave(&self, agent: &AgentId, since: WallMs) {
        if let Some(presence) = self.write().get_mut(agent)
            && let LinkState::Connected(heard) = presence
        {
            *presence = LinkState::Away(EndedSession { since, heard_at: heard.get() });
            self.metrics.agents.dec();
        }
    }

    /// Forgets an agent that has left and does not come back.
    pub(crate) fn forget(&self, agent: &AgentId) {
        if let Entry::Occupied(known) = self.write().entry(agent.clone())
            && let LinkState::Away(_) = known.get()
        {
            known.remove();
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<AgentId, LinkState>> {
        self.agents.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<AgentId, LinkState>> {
        self.agents.write().unwrap_or_else(PoisonError::into_inner)
    }
}
