//! Signals to the processes of a proc.
//!
//! Each signal goes through a pidfd that was checked against the known process, or to a cgroup of the proc.

use super::ProcExecutor;
use super::id_of;
use crate::exec::cgroup;
use crate::exec::procfs::Id;
use crate::exec::scan::tree::{self, Scan};
use crate::exec::spawn::run::Run;
use crate::exec::watch::children::Freshness;
use crate::exec::watch::pidfd;
use procfleet_core::process::{Found, Process};
use procfleet_core::spec::Detached;
use procfleet_core::supervise::{RunId, Signal};
use std::collections::HashSet;
use std::path::Path;

impl ProcExecutor {
    /// Kills a command and all that it has started.
    pub fn end_run(&mut self, run: RunId) {
        self.mark_changed();
        let nearby = self.nearby(None);
        let Some((_, run)) = self.runs.iter_mut().find(|(id, _)| *id == run) else { return };
        tracing::info!(proc = %self.key, pid = run.leader.pid, "killing a command and its descendants");
        if let Some(group) = &run.group {
            cgroup::kill(group);
            if !is_outside(run, group) {
                return;
            }
        }
        let members = |scan: &Scan| run.members(scan, &self.mark).into_iter().collect();
        tree::kill_all(&self.key, || nearby.scan(Freshness::Now), members);
    }

    /// Sends SIGTERM to a command and its descendants.
    pub fn term_run(&mut self, run: RunId) {
        self.mark_changed();
        let nearby = self.nearby(None);
        let Some((_, run)) = self.runs.iter_mut().find(|(id, _)| *id == run) else { return };
        tracing::info!(proc = %self.key, pid = run.leader.pid, "sending SIGTERM to a command and its descendants");
        if let Some(group) = &run.group {
            cgroup::signal(group, rustix::process::Signal::TERM);
            if !is_outside(run, group) {
                return;
            }
        }
        let scan = nearby.scan(Freshness::Now);
        let members = run.members(&scan, &self.mark);
        tree::signal_all(&scan, members, rustix::process::Signal::TERM);
    }

    /// Signals the process and its descendants. SIGKILL also reaches detached processes, unless the spec
    /// keeps them.
    pub fn signal(&mut self, process: Process, signal: Signal, detached: Detached) {
        let id = target_of(&process);
        tracing::info!(proc = %self.key, pid = process.pid, ?signal, "signalling a process and its descendants");
        self.mark_changed();
        let nearby = self.nearby(Some(id));
        match (signal, detached) {
            (Signal::Term | Signal::Other(_), _) => {
                let scan = nearby.scan(Freshness::AMomentAgo);
                self.note_session(id, &scan);
                let targets = self.tree_of(&scan, id, process.found);
                tree::signal_all(&scan, targets, raw(signal));
            }
            (Signal::Kill, Detached::End)
                if let Some(group) = self.groups.holding(id.pid)
                    && pidfd::open_exactly(id).is_ok() =>
            {
                cgroup::kill(group);
            }
            (Signal::Kill, detached) => {
                let targets = |scan: &Scan| {
                    let mut targets = self.tree_of(scan, id, process.found);
                    if detached == Detached::End {
                        targets.extend(scan.marked(&self.mark).iter().map(|stat| stat.id));
                    }
                    targets
                };
                tree::kill_all(&self.key, || nearby.scan(Freshness::Now), targets);
            }
        }
    }

    /// The process is an earlier generation of the program: its exit is reported, and it is left behind.
    pub fn retire(&mut self, process: Process) {
        self.watch(process);
        let id = id_of(&process);
        if !self.retired.contains(&id) {
            self.retired.push(id);
        }
    }

    /// Signals an earlier generation and its descendants, except `spare` and their descendants: a successor
    /// may be its child.
    pub fn signal_retired(&mut self, process: Process, signal: Signal, spare: &[Process]) {
        let id = target_of(&process);
        tracing::info!(proc = %self.key, pid = process.pid, ?signal, "signalling an earlier generation of the process");
        self.mark_changed();
        let scan = self.nearby(Some(id)).scan(Freshness::Now);
        self.note_session(id, &scan);
        let spared = scan.with_descendants(spare.iter().map(id_of));
        let mut targets = self.tree_of(&scan, id, Found::PidFile);
        targets.retain(|target| !spared.contains(target));
        tree::signal_all(&scan, targets, raw(signal));
    }

    /// Signals the process and nothing that it has started.
    pub fn signal_one(&mut self, process: Process, signal: Signal) {
        let id = target_of(&process);
        tracing::info!(proc = %self.key, pid = process.pid, ?signal, "signalling a process");
        self.mark_changed();
        if tree::is_protected(id.pid) {
            return;
        }
        if let Err(error) = pidfd::send(id, raw(signal)) {
            tracing::warn!(proc = %self.key, pid = id.pid, ?signal, %error, "cannot signal a process");
        }
    }

    /// The process, then its descendants, then its session.
    fn tree_of(&self, scan: &Scan, id: Id, found: Found) -> Vec<Id> {
        if !scan.may_be_signalled(id) {
            return Vec::new();
        }
        let mut targets = Vec::new();
        if scan.is_running(id) {
            targets.push(id);
        }
        targets.extend(scan.with_descendants([id]));
        targets.extend(scan.session_of(id).iter().map(|stat| stat.id));
        if let (Found::Foreground | Found::CommandChild | Found::Shell, Some(main)) =
            (found, scan.get(id.pid).filter(|stat| stat.id == id))
        {
            let mut marked = scan.marked(&self.mark);
            marked.retain(|stat| stat.session == main.session);
            targets.extend(marked.iter().map(|stat| stat.id));
        }
        let mut once = HashSet::new();
        targets.retain(|id| once.insert(*id));
        targets
    }
}

/// Whether the command runs outside the group that was made for it: the kernel did not accept it there, or it
/// was moved. Also true if the group cannot be read: the group did not help to signal the command then.
fn is_outside(run: &Run, group: &Path) -> bool {
    run.is_running() && !cgroup::pids_in(group).is_ok_and(|pids| pids.contains(&run.leader.pid))
}

/// The target of a signal. If the process has died and its pid was reused within the same clock tick, the
/// target matches no process.
fn target_of(process: &Process) -> Id {
    let id = id_of(process);
    match (process.evidence.serial, pidfd::open_confirmed(process)) {
        (Some(_), Err(rustix::io::Errno::SRCH)) => Id { start_ticks: u64::MAX, ..id },
        (Some(_) | None, _) => id,
    }
}

/// The signal as the kernel knows it.
pub(in crate::exec) fn raw(signal: Signal) -> rustix::process::Signal {
    match signal {
        Signal::Term => rustix::process::Signal::TERM,
        Signal::Kill => rustix::process::Signal::KILL,
        Signal::Other(signal) => rustix::process::Signal::from_named_raw(i32::from(signal.number()))
            .unwrap_or(rustix::process::Signal::TERM),
    }
}
