//! One run of a command: its shell, how that ended, and what it has started.

use super::output::{self, Output};
use super::pidfd;
use super::procfs::{Id, Stat};
use super::spawn::{Launch, NotStarted};
use super::tree::{Scan, Session};
use procfleet_core::process::{Exit, Found, Process};
use procfleet_core::supervise::CommandEnd;
use rustix::fd::BorrowedFd;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Run {
    /// The shell, which leads the run's session.
    pub(super) leader: Id,
    pub(super) command: String,
    output: Option<PathBuf>,
    /// `None` until the shell has ended.
    exit: watch::Receiver<Option<Exit>>,
    /// The process that it was started for, once it was seen.
    main: Option<Id>,
    session: Session,
    /// Its cgroup.
    pub(super) group: Option<PathBuf>,
    /// Those that the last scan found. They stay members even if they leave the session and their parents.
    known: HashSet<Id>,
}

impl Run {
    /// Starts the command. The future ends with it, and must be awaited, for it reaps the shell.
    pub(super) fn start(
        launch: Launch,
        output: Output,
        group: Option<BorrowedFd<'_>>,
    ) -> Result<(Run, impl Future<Output = CommandEnd> + use<>), NotStarted> {
        let command = launch.command().to_owned();
        let (path, log) = match &output {
            Output::Own { path, .. } => (Some(path.clone()), None),
            Output::Log { live, from, .. } => (None, Some((live.clone(), *from))),
            Output::Nowhere => (None, None),
        };
        let (pid, pidfd) = launch.start(output, group)?;
        // Until it is reaped the pid is the child's own, so this cannot be another process's.
        let leader = Id { pid, start_ticks: Stat::read(pid).map_or(0, |stat| stat.id.start_ticks) };
        let (tell, exit) = watch::channel(None);
        let output = path.clone();
        let end = async move {
            pidfd::gone(&pidfd).await;
            let exit = pidfd::exit(&pidfd, leader).await;
            tell.send_replace(Some(exit));
            let output = match (path, log) {
                (Some(path), _) => output::tail(&path),
                (None, Some((live, from))) => live.tail(from),
                (None, None) => String::new(),
            };
            CommandEnd::Exited { exit, output }
        };
        let run = Run {
            leader,
            command,
            output,
            exit,
            main: None,
            session: Session::Open,
            group: None,
            known: HashSet::new(),
        };
        Ok((run, end))
    }

    pub(super) fn in_group(self, group: Option<PathBuf>) -> Run {
        Run { group, ..self }
    }

    /// How the shell ended, when it has.
    pub(super) fn exit(&self) -> impl Future<Output = Exit> + use<> {
        let mut exit = self.exit.clone();
        async move {
            match exit.wait_for(Option::is_some).await.map(|exit| *exit) {
                Ok(exit) => exit.unwrap_or(Exit::Unknown),
                // The one that would have told is gone, and so is everybody who would listen.
                Err(_) => std::future::pending().await,
            }
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.exit.borrow().is_some()
    }

    /// Whether the session may still have members, so that its number is its own.
    pub(super) fn has_session(&self) -> bool {
        self.session == Session::Open
    }

    pub(super) fn writes_to(&self, path: &Path) -> bool {
        !self.has_ended() && self.output.as_deref() == Some(path)
    }

    /// The process that the command was started for.
    pub(super) fn saw_main(&mut self, process: Process) {
        if process.found == Found::Foreground {
            self.main = Some(Id { pid: process.pid, start_ticks: process.start_ticks });
        }
    }

    /// Whether the command is still at work: its shell runs, and so does what it was started for.
    pub(super) fn goes_on(&self, scan: &Scan) -> bool {
        scan.is_running(self.leader) && self.main.is_none_or(|main| scan.is_running(main))
    }

    /// As [`Run::goes_on`], by a look of its own.
    pub(super) fn is_at_work(&self) -> bool {
        let runs = |id: Id| Stat::read(id.pid).is_some_and(|stat| stat.id == id && stat.is_running());
        !self.has_ended() && runs(self.leader) && self.main.is_none_or(runs)
    }

    /// All that the command has started and that is running, the shell included.
    pub(super) fn members(&mut self, scan: &Scan, mark: &str) -> HashSet<Id> {
        let members = scan.run_members(self.leader, self.session, &self.known, mark);
        if members.is_empty() && self.has_ended() {
            self.session = Session::Over;
        }
        self.known.clone_from(&members);
        members
    }
}
