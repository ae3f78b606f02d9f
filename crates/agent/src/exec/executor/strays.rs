//! Processes that have left the proc's cgroups and its mark: `su -` clears the environment, and where each
//! session has a cgroup, it leaves that of the run.
//!
//! They are noted while they descend from a process in a cgroup of the proc, together with the cgroup that
//! they have entered. An orphan in that cgroup that has come to the agent is one of them, too, even if it was
//! never seen below the proc. A process that leaves both between two looks is not found, and neither is one
//! that an earlier agent process had noted.

use super::ProcExecutor;
use crate::exec::cgroup;
use crate::exec::procfs::{Id, Stat};
use crate::exec::scan::tree::{self, Scan};
use std::collections::HashSet;

#[derive(Debug, Default)]
pub(super) struct Strays {
    processes: Vec<Id>,
    /// The cgroups that they have entered, as the kernel writes them.
    groups: Vec<String>,
}

impl ProcExecutor {
    /// Notes descendants of the proc that are in none of its cgroups.
    pub(super) fn note_strays(&mut self) {
        if !self.groups.are_made() || self.groups.is_empty() {
            return;
        }
        let found = tree::outside(&self.groups.all());
        if found.is_empty() {
            return;
        }
        let strays = self.strays.get_or_insert_default();
        strays.processes.retain(|id| Stat::read(id.pid).is_some_and(|stat| stat.id == *id));
        for stat in found {
            let group = cgroup::foreign_group(stat.id.pid).filter(|group| !strays.groups.contains(group));
            strays.groups.extend(group);
            if !strays.processes.contains(&stat.id) {
                strays.processes.push(stat.id);
            }
        }
    }

    /// The strays that were seen.
    pub(super) fn strays(&self) -> Vec<Id> {
        self.strays.as_ref().map(|strays| strays.processes.clone()).unwrap_or_default()
    }

    /// Strays in a scan with their descendants, if nothing that the proc keeps running can need them.
    pub(super) fn left_strays(&self, scan: &Scan) -> HashSet<Id> {
        let Some(strays) = self.strays.as_ref().filter(|_| !self.is_at_work()) else {
            return HashSet::new();
        };
        let has_entered = |stat: &Stat| {
            !strays.groups.is_empty()
                && cgroup::foreign_group(stat.id.pid).is_some_and(|group| strays.groups.contains(&group))
        };
        let mut found = scan.all();
        found.retain(|stat| {
            (strays.processes.contains(&stat.id) || has_entered(stat))
                && !scan.is_anothers(stat, &self.mark)
                // The agent adopts orphans, so a process elsewhere has only got a number.
                && tree::is_below_us(stat)
        });
        scan.with_descendants(found.iter().map(|stat| stat.id))
    }

    /// No stray is left, and the next run makes others.
    pub(super) fn forget_strays(&mut self) {
        if self.strays.is_some() && !self.is_at_work() {
            self.strays = None;
        }
    }

    fn is_at_work(&self) -> bool {
        let is_there = |id: Id| {
            let is_it = |stat: Option<Stat>| stat.is_some_and(|stat| stat.id == id && stat.is_running());
            Stat::find(id.pid).map_or(true, is_it)
        };
        self.current().any(is_there) || self.runs().any(|run| !self.is_retired(run) && run.is_at_work())
    }
}
