//! [`ProcExecutor`]: makes, finds, watches and signals the processes of one proc.
//!
//! - `run`: starts a command;
//! - `look`: looks for the process and its successor;
//! - `watch`: reports the ends of processes;
//! - `strays`: processes that have left the proc's cgroups;
//! - `sessions`: without cgroups, processes in the sessions of dead processes;
//! - `signal`, `sweep`: signal processes, and end what dead runs have left;
//! - `vet`: whether a process runs under another account than the caller may use.
//!
//! Dropping a `ProcExecutor` stops its waiting and ends no process: managed processes outlive the agent.

mod look;
mod run;
mod sessions;
mod signal;
mod strays;
mod sweep;
mod vet;
mod watch;

use crate::exec::cgroup::ProcCgroups;
use crate::exec::context::ExecContext;
use crate::exec::measure::inspect::CpuSample;
use crate::exec::output::command_output::Outputs;
use crate::exec::output::proc_log::ProcLog;
use crate::exec::procfs::Id;
use crate::exec::scan::proc_mark::ProcMark;
use crate::exec::scan::strays::Strays;
use crate::exec::spawn::run::Run;
use crate::exec::watch::exits::OwnedTask;
use crate::exec::watch::{children, pidfd};
use crate::inbox::Inputs;
use procfleet_core::ProcKey;
use procfleet_core::process::Process;
use procfleet_core::supervise::RunId;
use sessions::LedSessions;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use watch::ExitWatch;

/// Number of ended runs that are kept, to recognise processes that they left behind.
const ENDED_RUNS_KEPT: usize = 4;

/// Everything that makes, finds, watches or signals the processes of one proc.
#[derive(Debug)]
pub struct ProcExecutor {
    context: Arc<ExecContext>,
    key: Arc<ProcKey>,
    mark: ProcMark,
    inputs: Inputs,
    outputs: Outputs,
    groups: ProcCgroups,
    proc_log: Arc<ProcLog>,
    /// The oldest first.
    runs: Vec<(RunId, Box<Run>)>,
    watches: Vec<(Id, ExitWatch)>,
    /// The last CPU sample. Boxed, because only queries take one.
    sample: Option<Box<CpuSample>>,
    /// Earlier generations of the program. They are watched, but a sweep treats them as leftovers.
    retired: Vec<Id>,
    /// Something of the proc was seen outside its cgroups.
    escaped: bool,
    /// Shared with `StrayWatch`, which looks for them while a command runs.
    strays: Option<Arc<Mutex<Strays>>>,
    /// `None` where its processes are in cgroups.
    sessions: Option<Arc<LedSessions>>,
    note: String,
    /// The shell of a start command that was found in place of the process after a restart of the agent.
    shell: Option<Id>,
    /// Time of the last event or action, a [`BootTime`](procfleet_core::BootTime) in milliseconds.
    changed_at: Arc<AtomicU64>,
    /// Inputs on their way to the actor.
    sending: Vec<OwnedTask>,
}

impl ProcExecutor {
    pub fn new(context: Arc<ExecContext>, key: impl Into<Arc<ProcKey>>, inputs: Inputs) -> ProcExecutor {
        let key = key.into();
        let log = context.proc_logs.of(&key);
        ProcExecutor {
            mark: context.proc_mark(&key),
            groups: context.groups.of(log.stem().clone()),
            context,
            key,
            inputs,
            outputs: Outputs::default(),
            proc_log: log,
            runs: Vec::new(),
            watches: Vec::new(),
            sample: None,
            retired: Vec::new(),
            escaped: false,
            strays: None,
            sessions: None,
            note: String::new(),
            shell: None,
            changed_at: Arc::default(),
            sending: Vec::new(),
        }
    }

    /// Invalidates earlier scans: something has happened to the proc.
    fn mark_changed(&self) {
        self.changed_at.store(self.context.now().0, Ordering::Relaxed);
    }

    fn runs(&self) -> impl Iterator<Item = &Run> + Clone {
        self.runs.iter().map(|(_, run)| &**run)
    }

    /// Watched processes that have no successor.
    fn current(&self) -> impl Iterator<Item = Id> {
        self.watched().filter(|id| !self.retired.contains(id))
    }

    /// Whether the process that it was started for has a successor.
    fn is_retired(&self, run: &Run) -> bool {
        run.is_for(&self.retired)
    }

    fn watched(&self) -> impl Iterator<Item = Id> {
        self.watches.iter().filter(|(_, watch)| !watch.is_over()).map(|(id, _)| *id)
    }

    /// Drops finished watches, tasks and runs.
    fn tidy(&mut self) {
        self.sending.retain(|task| !task.is_finished());
        self.watches.retain(|(_, watch)| !watch.is_over());
        self.retired.retain(|id| self.watches.iter().any(|(watched, _)| watched == id));
        self.context.reap_orphaned_commands();
        let ended = self.runs().filter(|run| run.has_ended()).count();
        let mut surplus = ended.saturating_sub(ENDED_RUNS_KEPT);
        self.runs.retain(|(_, run)| {
            let stays = surplus == 0 || !run.has_ended();
            surplus -= usize::from(!stays);
            stays
        });
    }
}

impl Drop for ProcExecutor {
    /// Children that are still running are handed to the context, which reaps them.
    fn drop(&mut self) {
        for run in self.runs().filter(|run| !run.has_ended()) {
            if let Ok(pidfd) = pidfd::open_exactly(run.leader) {
                self.context.adopt(run.leader.pid, pidfd);
            }
            children::let_go(run.leader.pid);
        }
        self.watched().for_each(|id| children::let_go(id.pid));
        self.context.groups.give_back(&mut self.groups);
    }
}

fn id_of(process: &Process) -> Id {
    Id { pid: process.pid, start_ticks: process.start_ticks }
}
