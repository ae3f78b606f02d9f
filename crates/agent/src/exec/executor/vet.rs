//! Whether a process of another account has to do with an op whose app is limited to accounts.

use super::ProcExecutor;
use super::id_of;
use crate::exec::cgroup;
use crate::exec::scan::tree::Scan;
use crate::exec::user;
use crate::exec::watch::children::Freshness;
use crate::exec::watch::pidfd;
use procfleet_core::supervise::{LookScope, OtherAccount};
use procfleet_core::{Process, Sighting, Spec};
use std::collections::BTreeSet;

impl ProcExecutor {
    /// Something of the proc that runs as none of these accounts: its process, or without one what it has
    /// left.
    pub fn other_account(
        &mut self,
        process: Option<Process>,
        scope: LookScope,
        spec: &Spec,
        accounts: &BTreeSet<String>,
    ) -> Option<OtherAccount> {
        let alive = process.filter(|process| pidfd::open_exactly(id_of(process)).is_ok());
        let found = alive.or_else(|| match self.look(scope, spec) {
            Sighting::Running(process) => Some(process),
            Sighting::Absent(_) => None,
        });
        let pids = match found {
            Some(process) => vec![process.pid],
            None => self.leftovers(),
        };
        user::other_than(accounts, pids)
    }

    /// All that a sweep would end.
    fn leftovers(&mut self) -> Vec<u32> {
        let grouped = self.left_groups();
        let mut pids: Vec<u32> = grouped.iter().flat_map(|group| cgroup::pids_in(group)).collect();
        let scan = match self.are_all_in_groups() {
            true => Scan::near(&[], Freshness::Now),
            false => Some(self.nearby_ungrouped(None).scan(Freshness::Now)),
        };
        if let Some(scan) = scan {
            pids.extend(self.left_in(&scan).iter().map(|id| id.pid));
        }
        pids
    }
}
