//! Counters of the fleet. Every agent adds to them, and any thread may read them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Figures {
    pub agents: u64,
    pub connected: u64,
    /// Sessions that the server welcomed.
    pub sessions: u64,
    /// Failed attempts to connect.
    pub failures: u64,
    /// Sessions that the server refused.
    pub refusals: u64,
    /// Sessions that the server ended because it stops (drain).
    pub drained: u64,
    /// Connections that were broken because the script says so.
    pub drops: u64,
    /// Ops that were begun.
    pub begun: u64,
    /// Repeated ops, which were answered and not begun again.
    pub repeats: u64,
    /// Ops that ended.
    pub ended: u64,
    /// Ops whose outcome the server has confirmed.
    pub confirmed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct FleetCounters {
    pub(crate) connected: AtomicU64,
    pub(crate) sessions: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) drained: AtomicU64,
    pub(crate) drops: AtomicU64,
    pub(crate) begun: AtomicU64,
    pub(crate) repeats: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) confirmed: AtomicU64,
}

impl FleetCounters {
    pub(crate) fn read(&self, agents: u64) -> Figures {
        Figures {
            agents,
            connected: self.connected.load(Relaxed),
            sessions: self.sessions.load(Relaxed),
            failures: self.failures.load(Relaxed),
            refusals: self.refusals.load(Relaxed),
            drained: self.drained.load(Relaxed),
            drops: self.drops.load(Relaxed),
            begun: self.begun.load(Relaxed),
            repeats: self.repeats.load(Relaxed),
            ended: self.ended.load(Relaxed),
            confirmed: self.confirmed.load(Relaxed),
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

pub(crate) fn uncount(counter: &AtomicU64) {
    counter.fetch_sub(1, Relaxed);
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures {
            agents,
            connected,
            sessions,
            failures,
            refusals,
            drained,
            drops,
            begun,
            repeats,
            ended,
            confirmed,
        } = self;
        write!(
            f,
            "connected {connected} of {agents} (sessions {sessions}, failures {failures}, refused {refusals}, drained {drained}, dropped {drops}); \
             ops begun {begun}, ended {ended}, confirmed {confirmed}, repeats answered {repeats}"
        )
    }
}
