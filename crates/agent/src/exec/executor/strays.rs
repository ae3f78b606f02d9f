//! Processes that have left the proc's cgroups and its mark: whether they are still the proc's, and which of
//! them a stop or kill ends. `exec/scan/strays.rs` notes them.

use super::ProcExecutor;
use crate::exec::cgroup;
use crate::exec::procfs::{Id, Stat};
use crate::exec::scan::strays::{self, note};
use crate::exec::scan::tree::{self, Scan};
use crate::exec::spawn::run::Run;
use std::collections::HashSet;

impl ProcExecutor {
    /// Notes descendants of the proc that are in none of its cgroups.
    pub(super) fn note_strays(&mut self) {
        if self.groups.are_available() && !self.groups.is_empty() {
            note(self.strays.get_or_insert_default(), &self.groups.all());
        }
    }

    /// Notes strays of a command while it runs: what it does in another session it does before it ends.
    pub(super) fn note_strays_of(&mut self, run: &Run) {
        let Some(group) = run.group.clone() else { return };
        let shell = run.shell.clone();
        let has_ended = move || shell.exit().is_some();
        self.context.stray_watch.follow(self.strays.get_or_insert_default(), group, has_ended);
    }

    /// The strays that were seen.
    pub(super) fn strays(&self) -> Vec<Id> {
        self.strays.as_ref().map(|strays| strays::lock(strays).processes.clone()).unwrap_or_default()
    }

    /// Strays in a scan with their descendants, if nothing that the proc keeps running can need them.
    pub(super) fn left_strays(&self, scan: &Scan) -> HashSet<Id> {
        let Some(strays) = self.strays.as_ref().filter(|_| !self.is_at_work()) else {
            return HashSet::new();
        };
        let strays = strays::lock(strays);
        let has_entered = |stat: &Stat| {
            !strays.scopes.is_empty()
                && cgroup::scope_of(stat.id.pid).is_some_and(|scope| strays.scopes.contains(&scope))
        };
        let mut found = scan.all();
        found.retain(|stat| {
            (strays.processes.contains(&stat.id) || has_entered(stat))
                && !scan.is_anothers(stat, &self.mark)
                // The agent is a subreaper, so every stray is its descendant. A process elsewhere only has
                // the reused pid.
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

    pub(super) fn is_at_work(&self) -> bool {
        let is_there = |id: Id| {
            let is_it = |stat: Option<Stat>| stat.is_some_and(|stat| stat.id == id && stat.is_running());
            Stat::find(id.pid).map_or(true, is_it)
        };
        self.current().any(is_there) || self.runs().any(|run| !self.is_retired(run) && run.is_at_work())
    }
}
