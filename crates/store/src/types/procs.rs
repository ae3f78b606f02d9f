//! The last report of each agent about its procs. The status is JSON that the store does not read.

use procfleet_core::{AgentId, Host, ProcKey};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcRecord {
    pub proc: ProcKey,
    /// Grows with every change on the agent. Records older than the stored one are ignored.
    pub revision: u64,
    /// JSON.
    pub status: String,
    pub listing: ProcListing,
}

/// The parts of a status that lists are ordered and filtered by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcListing {
    pub state: String,
    /// Seconds since 1970, UTC; 0 where it never happened.
    pub started_at: i64,
    /// The proc gave up, is unhealthy or has a note (`ProcReport::is_failed`).
    pub failed: bool,
}

/// Some of a namespace's procs, with the hosts that they are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcPage {
    /// Of the whole namespace.
    pub count: u64,
    pub procs: Vec<(AgentId, Host, ProcRecord)>,
}
