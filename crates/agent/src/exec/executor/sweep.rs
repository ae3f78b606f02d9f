//! Ends processes that dead runs of the proc have left behind.

use super::{ProcExecutor, signal};
use crate::exec::cgroup;
use crate::exec::procfs::{Id, Stat};
use crate::exec::scan::tree::{self, Scan};
use crate::exec::spawn::run::Run;
use crate::exec::watch::children::Freshness;
use procfleet_core::process::{Absence, Cause, Evidence, Found, Process};
use procfleet_core::supervise::Signal;
use procfleet_core::{BootTime, Sighting};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

impl ProcExecutor {
    /// Ends processes that dead runs have left behind. A run is dead when its shell has exited, or when its
    /// process has exited or has a successor. A watched process without a successor is never left behind.
    pub fn sweep(&mut self, signal: Signal) {
        self.mark_changed();
        for group in self.left_groups() {
            match signal {
                Signal::Kill => cgroup::kill(&group),
                Signal::Term | Signal::Other(_) => cgroup::signal(&group, signal::raw(signal)),
            }
        }
        if self.are_all_in_groups() && !self.escaped && !self.has_escaped() {
            return;
        }
        let (nearby, key) = (self.nearby_ungrouped(None), self.key.clone());
        let mut left = 0;
        let targets = |scan: &Scan| {
            let found = self.left_in(scan);
            left = scan.marked(&self.mark).iter().filter(|stat| !found.contains(&stat.id)).count();
            found
        };
        match signal {
            Signal::Term | Signal::Other(_) => {
                let scan = nearby.scan(Freshness::Now);
                let found = self.left_in(&scan);
                tree::signal_all(&scan, found, signal::raw(signal));
            }
            Signal::Kill => {
                tree::kill_all(&key, || nearby.scan(Freshness::Now), targets);
                if left == 0 {
                    self.context.forget_inherited(&self.mark);
                }
            }
        }
    }

    /// Kills the processes of a launch that an earlier agent process began at `since` and did not finish.
    pub fn clear_since(&mut self, since: BootTime) {
        self.mark_changed();
        let since = self.context.ticks_at(since);
        let grouped = self.groups.pids().unwrap_or_default();
        let own: HashSet<Id> = self.watched().chain(self.runs.iter().map(|(_, run)| run.leader)).collect();
        tracing::info!(proc = %self.key, "killing processes of an interrupted start");
        tree::kill_all(&self.key, Scan::take, |scan| {
            let is_ours = |stat: &&Stat| grouped.contains(&stat.id.pid);
            let mut ours: Vec<Id> = scan.all().into_iter().filter(is_ours).map(|stat| stat.id).collect();
            ours.extend(scan.marked(&self.mark).iter().map(|stat| stat.id));
            // A process that stays keeps its descendants, however young.
            let stays = |id: &Id| id.start_ticks < since || own.contains(id);
            let staying = scan.with_descendants(ours.iter().copied().filter(stays));
            ours.retain(|id| !staying.contains(id));
            ours
        });
    }

    /// Something of the proc that a sweep would end.
    pub(super) fn look_for_leftovers(&mut self) -> Sighting {
        let left = self.left_groups();
        let grouped = left.iter().flat_map(|group| cgroup::pids_in(group).unwrap_or_default());
        let found = grouped.into_iter().find_map(Stat::read).map(|stat| stat.id);
        let found = found.or_else(|| {
            let scan = match self.are_all_in_groups() {
                true => Scan::near(&self.strays(), Freshness::Now)?,
                false => self.nearby_ungrouped(None).scan(Freshness::Now),
            };
            let found = self.left_in(&scan).first().copied();
            self.escaped = found.is_some();
            let found = found.or_else(|| self.suspected(&scan));
            if found.is_none() {
                self.forget_strays();
            }
            found
        });
        match found {
            Some(Id { pid, start_ticks }) => Sighting::Running(Process {
                pid,
                start_ticks,
                found: Found::Name,
                evidence: Evidence::default(),
            }),
            None => Sighting::Absent(Absence { cause: Cause::NoRun, hopeless: true }),
        }
    }

    /// The leader of a run that may have left processes, if the scan or a cgroup could not be read
    /// completely. An incomplete scan must not let a stop succeed.
    fn suspected(&self, scan: &Scan) -> Option<Id> {
        let is_unknown = scan.is_partial() || self.groups.pids().is_err();
        let last = || self.runs().last().map(|run| run.leader);
        let retired = || self.retired.first().copied();
        is_unknown.then(|| last().or_else(retired)).flatten()
    }

    /// Whether a process was moved out of its cgroup (`su` does that where each session has a cgroup) and is
    /// now a descendant of the agent.
    fn has_escaped(&mut self) -> bool {
        Scan::near(&self.strays(), Freshness::Now).is_some_and(|scan| !self.left_in(&scan).is_empty())
    }

    /// The groups of this proc in which only leftovers are.
    pub(super) fn left_groups(&mut self) -> Vec<Arc<Path>> {
        self.context.groups.hand_over(&mut self.groups);
        if self.groups.is_empty() {
            return Vec::new();
        }
        let at_work = self.runs().filter(|run| !self.is_retired(run) && run.is_at_work());
        let kept: HashSet<u32> =
            self.current().map(|id| id.pid).chain(at_work.map(|run| run.leader.pid)).collect();
        let left = self.groups.left(|pid| kept.contains(&pid));
        if self.groups.is_empty() {
            self.context.groups.mark_idle(&self.groups);
        }
        left
    }

    /// Processes with the proc's environment mark, strays, and members of the sessions of dead processes,
    /// that are in no cgroup and belong to no living run. Empty while the cgroups or the scan are incomplete:
    /// a process that is not known to be a leftover must not be killed.
    pub(super) fn left_in(&mut self, scan: &Scan) -> Vec<Id> {
        // Processes in a cgroup are handled with the cgroup.
        let Ok(grouped) = self.groups.pids() else { return Vec::new() };
        if scan.is_partial() {
            return Vec::new();
        }
        let current: Vec<Id> =
            self.watches.iter().map(|(id, _)| *id).filter(|id| !self.retired.contains(id)).collect();
        let mut kept: HashSet<Id> = scan.with_descendants(current);
        let retired = &self.retired;
        let is_alive = |run: &&mut Box<Run>| run.is_alive(scan) && !run.is_for(retired);
        for run in self.runs.iter_mut().map(|(_, run)| run).filter(is_alive) {
            kept.extend(run.members(scan, &self.mark));
        }
        let is_left = |id: &Id| !kept.contains(id) && !grouped.contains(&id.pid);
        let mut left: Vec<Id> = scan.marked(&self.mark).iter().map(|stat| stat.id).collect();
        left.extend(self.left_strays(scan));
        // The command around a dead process may be about to exit, too.
        let leaders: Vec<Id> = self.runs().filter(|run| !run.has_ended()).map(|run| run.leader).collect();
        leaders.into_iter().for_each(|leader| self.note_session(leader, scan));
        left.extend(self.left_in_sessions(scan));
        let mut once = HashSet::new();
        left.retain(|id| is_left(id) && once.insert(*id));
        left
    }

    /// Whether all that was ever started for this proc is in a cgroup, as far as it was left there.
    pub(super) fn are_all_in_groups(&self) -> bool {
        self.groups.are_available() && !self.context.has_inherited(&self.mark)
    }
}
