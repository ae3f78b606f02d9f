//! Looking for the process of the proc, and for its successor.

use super::{ProcExecutor, id_of};
use crate::exec::find::{self, NotRecognisedYet, SearchFor, pid_file_names_another};
use crate::exec::measure::inspect;
use crate::exec::procfs::Id;
use crate::exec::scan::tree::Scan;
use crate::exec::watch::children::Freshness;
use crate::exec::watch::pidfd;
use procfleet_core::op::Instance;
use procfleet_core::process::Process;
use procfleet_core::spec::{Control, Identity};
use procfleet_core::supervise::LookScope;
use procfleet_core::{BootTime, Sighting, Spec};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ProcExecutor {
    /// Looks whether the process is running.
    pub fn look(&mut self, scope: LookScope, spec: &Spec) -> Sighting {
        self.mark.set_account(&spec.identity.user);
        if scope == LookScope::Leftovers {
            return self.look_for_leftovers();
        }
        if let LookScope::Launch { .. } = scope {
            self.note_strays();
        }
        let sessions: Vec<Id> = self.runs().filter(|run| run.has_session()).map(|run| run.leader).collect();
        let nearby = self.nearby(None);
        let own: Vec<Id> = sessions.iter().copied().chain(self.current()).collect();
        let probes = self.context.probes();
        let identity = &spec.identity;
        let (mark, group) = (&self.mark, self.groups.name());
        let dead = match scope {
            LookScope::After { dead } => Some(dead),
            LookScope::Recovery { last } => last,
            LookScope::Settled
            | LookScope::Launch { .. }
            | LookScope::Run(_)
            | LookScope::Leftovers
            | LookScope::ScheduledRun { .. } => None,
        };
        let since = self.context.opened_at;
        let (sessions, own, probes) = (&*sessions, &*own, &*probes);
        let wanted = SearchFor { mark, group, identity, sessions, own, probes, dead, since };
        let recent_scan = || self.context.recent_scan(BootTime(self.changed_at.load(Ordering::Relaxed)));
        let sighting = match scope {
            LookScope::Settled | LookScope::After { .. } => find::settled(wanted, recent_scan),
            LookScope::Recovery { last } => find::recovered(wanted, last, &spec.control, recent_scan),
            LookScope::Leftovers => unreachable!("it was answered above"),
            LookScope::Run(run) => {
                find::leader(self.runs.iter().find(|(id, _)| *id == run).map(|(_, run)| &**run))
            }
            LookScope::ScheduledRun { last, since } => {
                find::scheduled_run(wanted, last, since.map(|since| self.context.ticks_at(since)))
            }
            LookScope::Launch { run, leader } => match self.runs.iter_mut().find(|(id, _)| *id == run) {
                Some((_, run)) => {
                    let scan = || nearby.scan(Freshness::AMomentAgo);
                    match find::launched(wanted, run, leader, scan, recent_scan) {
                        Sighting::Running(process) => {
                            run.saw_main(process);
                            Sighting::Running(run.brought(process))
                        }
                        absent @ Sighting::Absent(_) => absent,
                    }
                }
                // The run never began, so it has no descendants.
                None => find::settled(wanted, recent_scan),
            },
        };
        if let (LookScope::Launch { run, .. }, Sighting::Running(process)) = (scope, &sighting) {
            self.stop_watching_shell(run, id_of(process));
        }
        if let (LookScope::Recovery { last }, Sighting::Running(process)) = (scope, &sighting) {
            self.shell = (!last.is_some_and(|last| last.is(process))).then(|| id_of(process));
        }
        if let Sighting::Running(process) = &sighting {
            self.proc_log.belongs_to(id_of(process), spec, &self.key, &self.context.proc_logs);
        }
        find::disclosed(sighting, &spec.identity)
    }

    /// The process that the pid file names now, if it is another process of this proc. A program that
    /// replaces itself writes its new pid there, and both may run for a while.
    pub fn successor(&mut self, process: &Process, spec: &Spec) -> Option<Process> {
        if self.shell == Some(id_of(process)) {
            let found = self.below_shell(id_of(process), spec);
            // Keep the shell only while it has not started its process.
            self.shell = self.shell.filter(|_| found.is_err());
            return found.ok().flatten();
        }
        let Identity { pid_path, .. } = &spec.identity;
        if pid_path.is_empty() || !pid_file_names_another(pid_path, process.pid) {
            return None;
        }
        match self.look(LookScope::Settled, spec) {
            Sighting::Running(other) => (!other.is(process)).then_some(other),
            Sighting::Absent(_) => None,
        }
    }

    /// The process that the shell of the command has started. `Err`: the shell has not started it yet.
    fn below_shell(&self, shell: Id, spec: &Spec) -> Result<Option<Process>, NotRecognisedYet> {
        let Control { start_cmd, restart_cmd, .. } = &spec.control;
        let scan = Scan::near(&[shell], Freshness::Now).unwrap_or_else(Scan::take);
        find::below_shell(shell, &[start_cmd, restart_cmd], &spec.identity, &scan)
    }

    /// Describes a process. `None` when it is gone.
    pub fn inspect(&mut self, process: &Process) -> Option<Instance> {
        inspect::inspect(&self.context, id_of(process), &mut self.sample)
    }

    /// Where to scan for processes of this proc.
    pub(super) fn nearby(&self, target: Option<Id>) -> Nearby {
        if !self.are_all_in_groups() {
            return self.nearby_ungrouped(target);
        }
        let leaders = self.runs().filter(|run| !run.has_ended()).map(|run| run.leader);
        Nearby::Within {
            groups: self.groups.all(),
            own: self.watched().chain(leaders).chain(target).collect(),
        }
    }

    pub(super) fn nearby_ungrouped(&self, target: Option<Id>) -> Nearby {
        let leaders = self.runs().map(|run| run.leader);
        // Descendants of a dead process that the agent did not start may be anywhere.
        let is_lost =
            |id: &Id| !leaders.clone().any(|leader| leader == *id) && pidfd::open_exactly(*id).is_err();
        if self.context.has_inherited(&self.mark) || target.as_ref().is_some_and(is_lost) {
            return Nearby::Everywhere;
        }
        Nearby::Below(
            self.watched()
                .chain(leaders.clone())
                .chain(target)
                .chain(self.strays())
                .collect::<HashSet<Id>>()
                .into_iter()
                .collect(),
        )
    }
}

/// Where to scan for processes of a proc.
pub(super) enum Nearby {
    /// Below these processes of it, and among the orphans that came to the agent.
    Below(Vec<Id>),
    /// In its cgroups, and below these processes of it.
    Within {
        groups: Vec<Arc<Path>>,
        own: Vec<Id>,
    },
    Everywhere,
}

impl Nearby {
    pub(super) fn scan(&self, freshness: Freshness) -> Scan {
        match self {
            Nearby::Below(own) => Scan::near(own, freshness).unwrap_or_else(Scan::take),
            Nearby::Within { groups, own } => Scan::within(groups, own),
            Nearby::Everywhere => Scan::take(),
        }
    }
}
