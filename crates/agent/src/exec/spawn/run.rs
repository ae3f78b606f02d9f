//! One run of a command: its shell, the exit of the shell, and its member processes.

use crate::exec::error::NotStarted;
use crate::exec::output::proc_log::LiveLog;
use crate::exec::output::{CommandOutput, command_output};
use crate::exec::procfs::{Id, Stat};
use crate::exec::scan::proc_mark::ProcMark;
use crate::exec::scan::tree::{Scan, SessionState};
use crate::exec::spawn::command::PreparedCommand;
use crate::exec::watch::exits::ExitSubscription;
use crate::exec::watch::pidfd;
use procfleet_core::BootTime;
use procfleet_core::process::{Exit, Process};
use procfleet_core::supervise::CommandEnd;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::HashSet;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(in crate::exec) struct Run {
    /// The shell, which leads the run's session.
    pub(in crate::exec) leader: Id,
    pub(in crate::exec) command: String,
    began: BootTime,
    output: Option<PathBuf>,
    pub(in crate::exec) shell: RunShell,
    /// `Some` while the exit of the shell is awaited.
    pub(in crate::exec) waiting: Option<ExitSubscription>,
    /// The process that it was started for, once it was seen.
    main: Option<Id>,
    session: SessionState,
    /// The cgroup of the run.
    pub(in crate::exec) group: Option<Arc<Path>>,
    /// The command itself was seen to be a program of the proc's name.
    pub(in crate::exec) is_program: bool,
    /// Members at the last scan. They stay members even if they leave the session and their parents.
    known: Vec<Id>,
}

impl Run {
    /// Starts the command. When the shell behind the pidfd has exited, call `ShellReaper::reap`: it reaps the
    /// shell.
    pub(in crate::exec) fn start(
        launch: PreparedCommand,
        began: BootTime,
        output: CommandOutput,
        group: Option<BorrowedFd<'_>>,
    ) -> Result<(Run, OwnedFd, ShellReaper), NotStarted> {
        let command = launch.command().to_owned();
        let (path, source) = match &output {
            CommandOutput::Own { path, .. } => (Some(path.clone()), OutputSource::File(path.clone())),
            CommandOutput::Log { live, from, .. } => (None, OutputSource::Log(live.clone(), *from)),
            CommandOutput::Nowhere => (None, OutputSource::Nothing),
        };
        let (pid, pidfd) = launch.beginning_at(began).start(output, group)?;
        // Until it is reaped the pid is the child's own, so this cannot be another process's.
        let leader = Id { pid, start_ticks: Stat::read(pid).map_or(0, |stat| stat.id.start_ticks) };
        let shell = RunShell::default();
        let ending = ShellReaper { leader, output: source, shell: shell.clone() };
        let run = Run {
            leader,
            command,
            began,
            output: path,
            shell,
            waiting: None,
            main: None,
            session: SessionState::Open,
            group: None,
            is_program: false,
            known: Vec::new(),
        };
        Ok((run, pidfd, ending))
    }

    pub(in crate::exec) fn in_group(self, group: Option<Arc<Path>>) -> Run {
        Run { group, ..self }
    }

    pub(in crate::exec) fn has_ended(&self) -> bool {
        self.shell.exit().is_some()
    }

    /// Whether the session may still have members, so that its number is its own.
    pub(in crate::exec) fn has_session(&self) -> bool {
        self.session == SessionState::Open
    }

    pub(in crate::exec) fn writes_to(&self, path: &Path) -> bool {
        !self.has_ended() && self.output.as_deref() == Some(path)
    }

    /// Adds the start of this run to the evidence of a process. A process that overwrote its environment does
    /// not show it.
    pub(in crate::exec) fn brought(&self, process: Process) -> Process {
        let mut process = process;
        if process.evidence.run.is_none() && process.start_ticks >= self.leader.start_ticks {
            process.evidence.run = NonZeroU64::new(self.began.0);
        }
        process
    }

    /// The process that the command was started for. A command that outlives it is a leftover of the proc.
    pub(in crate::exec) fn saw_main(&mut self, process: Process) {
        self.main = Some(Id { pid: process.pid, start_ticks: process.start_ticks });
    }

    /// Whether it was started for one of these, or is one itself.
    pub(in crate::exec) fn is_for(&self, processes: &[Id]) -> bool {
        processes.contains(&self.leader) || self.main.is_some_and(|main| processes.contains(&main))
    }

    /// Whether the shell of the command runs, and the process that it was started for.
    pub(in crate::exec) fn is_alive(&self, scan: &Scan) -> bool {
        scan.is_running(self.leader) && self.main.is_none_or(|main| scan.is_running(main))
    }

    /// As [`Run::is_alive`], with its own scan. A process that cannot be looked at counts as running: else it
    /// would be killed as a leftover.
    pub(in crate::exec) fn is_at_work(&self) -> bool {
        let runs = |id: Id| {
            let is_it = |stat: Option<Stat>| stat.is_some_and(|stat| stat.id == id && stat.is_running());
            Stat::find(id.pid).map_or(true, is_it)
        };
        !self.has_ended() && runs(self.leader) && self.main.is_none_or(runs)
    }

    /// Whether the command itself runs.
    pub(in crate::exec) fn is_running(&self) -> bool {
        let is_it = |stat: Stat| stat.id == self.leader && stat.is_running();
        !self.has_ended() && Stat::read(self.leader.pid).is_some_and(is_it)
    }

    /// All that the command has started and that is running, the shell included.
    pub(in crate::exec) fn members(&mut self, scan: &Scan, mark: &ProcMark) -> HashSet<Id> {
        let members = scan.run_members(self.leader, self.session, &self.known, mark);
        if members.is_empty() && self.has_ended() {
            self.session = SessionState::Over;
        }
        // Most runs have one member, for which a set takes five times the memory.
        self.known.clear();
        self.known.reserve_exact(members.len());
        self.known.extend(&members);
        self.known.shrink_to_fit();
        members
    }
}

/// The exit of a run's shell, shared by all that need it: the status can be read only once.
#[derive(Clone, Debug, Default)]
pub(in crate::exec) struct RunShell(Arc<Mutex<RunLife>>);

#[derive(Debug, Default)]
struct RunLife {
    /// `None` while it runs.
    exit: Option<Exit>,
    /// The shell is the process of its proc, and its exit is also reported as the exit of the process.
    watched: Option<Process>,
}

impl RunShell {
    fn lock(&self) -> MutexGuard<'_, RunLife> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exit of the shell. `None` while it runs.
    pub(in crate::exec) fn exit(&self) -> Option<Exit> {
        self.lock().exit
    }

    /// The shell is this process: its exit will be reported for the process too. Returns the exit if the
    /// shell has been reaped already.
    pub(in crate::exec) fn watch_as(&self, process: Process) -> Option<Exit> {
        let mut life = self.lock();
        if life.exit.is_none() {
            life.watched = Some(process);
        }
        life.exit
    }

    /// From now on, the exit of the shell is not reported as the exit of a process.
    pub(in crate::exec) fn end_watch(&self) {
        self.lock().watched = None;
    }

    /// The process that it is watched as.
    pub(in crate::exec) fn watched(&self) -> Option<Process> {
        self.lock().watched
    }

    /// The exit of the watched process was reported.
    pub(in crate::exec) fn set_reported(&self) {
        self.lock().watched = None;
    }
}

/// Reaps the shell and collects its output.
#[derive(Debug)]
pub(in crate::exec) struct ShellReaper {
    leader: Id,
    output: OutputSource,
    shell: RunShell,
}

/// The file or log that holds the output.
#[derive(Debug)]
enum OutputSource {
    File(PathBuf),
    Log(Arc<LiveLog>, u64),
    Nothing,
}

impl ShellReaper {
    /// Reaps the shell, which is gone.
    pub(in crate::exec) async fn reap(self, pidfd: OwnedFd) -> CommandEnd {
        let exit = pidfd::exit(&pidfd, self.leader).await;
        self.shell.lock().exit = Some(exit);
        let output = match self.output {
            OutputSource::File(path) => command_output::tail(&path),
            OutputSource::Log(live, from) => live.tail(from),
            OutputSource::Nothing => String::new(),
        };
        CommandEnd::Exited { exit, output }
    }
}
