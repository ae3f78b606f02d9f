//! Checks whether an op of an app that is limited to accounts would touch a process of another account.

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
    /// A process of the proc that runs under none of these accounts: its main process, or a leftover of
    /// earlier runs that an op would end. Descendants of the main process are not checked.
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
        let pids = found.map(|process| process.pid).into_iter().chain(self.leftovers(found));
        user::other_than(accounts, pids.collect())
    }

    /// All processes that a sweep would end, except this process and its descendants.
    fn leftovers(&mut self, but: Option<Process>) -> Vec<u32> {
        let but = but.map(|process| id_of(&process));
        let groups = self.left_groups().into_iter().map(|group| cgroup::pids_in(&group).unwrap_or_default());
        let mut pids: Vec<u32> =
            groups.filter(|pids| but.is_none_or(|but| !pids.contains(&but.pid))).flatten().collect();
        let scan = match self.are_all_in_groups() {
            true => Scan::near(&self.strays(), Freshness::Now),
            false => Some(self.nearby_ungrouped(None).scan(Freshness::Now)),
        };
        if let Some(scan) = scan {
            let spared = scan.with_descendants(but);
            pids.extend(self.left_in(&scan).iter().filter(|id| !spared.contains(id)).map(|id| id.pid));
        }
        pids
    }
}
