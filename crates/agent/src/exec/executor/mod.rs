//! [`ProcExecutor`]: makes, finds, watches and signals the processes of one proc.
//!
//! Dropping a `ProcExecutor` stops its waiting and ends no process: managed processes outlive the agent.

mod signal;
mod vet;

use crate::exec::cgroup::{self, ProcGroups};
use crate::exec::context::ExecContext;
use crate::exec::find::{self, NotYet, Whom, pid_file_names_another};
use crate::exec::output::command_output::{self, CommandOutput, Outputs};
use crate::exec::output::proc_log::{OpenedLog, ProcLog};
use crate::exec::procfs::{Id, Stat};
use crate::exec::scan::inspect::{self, CpuSample};
use crate::exec::scan::tree::{self, Scan};
use crate::exec::spawn::command::{NotStarted, PreparedCommand};
use crate::exec::spawn::run::{Run, RunShell};
use crate::exec::watch::children::{self, Freshness};
use crate::exec::watch::exits::ExitSubscription;
use crate::exec::watch::{oom, pidfd};
use crate::inbox::Inputs;
use procfleet_core::op::Instance;
use procfleet_core::process::{Absence, Cause, Evidence, Exit, Found, Process};
use procfleet_core::spec::{Control, Identity};
use procfleet_core::supervise::{CommandEnd, Input, LookScope, RunId, Signal};
use procfleet_core::{BootTime, ProcKey, Sighting, Spec};
use procfleet_failpoint::{Point, hit};
use rustix::fd::AsFd;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinHandle;

/// How many ended runs are remembered, so that what they left can still be told to be theirs.
const ENDED_RUNS_KEPT: usize = 4;

/// Everything that makes, finds, watches or signals the processes of one proc.
#[derive(Debug)]
pub struct ProcExecutor {
    context: Arc<ExecContext>,
    key: Arc<ProcKey>,
    mark: String,
    inputs: Inputs,
    outputs: Outputs,
    groups: ProcGroups,
    proc_log: Arc<ProcLog>,
    /// The oldest first.
    runs: Vec<(RunId, Box<Run>)>,
    watches: Vec<(Id, ExitWatch)>,
    /// What the last inspection saw.
    sample: Option<CpuSample>,
    /// Earlier generations of the program, which are watched and are left behind all the same.
    retired: Vec<Id>,
    /// Something of the proc was seen outside its cgroups.
    escaped: bool,
    note: String,
    /// Found in place of the process when the agent came back: the shell of its command, which had not begun
    /// it yet.
    shell: Option<Id>,
    /// When the proc last did something, or had something done to it: a [`Moment`] in milliseconds.
    stirred: Arc<AtomicU64>,
}

/// How the end of a process comes to be known.
#[derive(Debug)]
enum ExitWatch {
    /// It is a run's shell, and who takes that one's ending tells.
    Shell(RunShell),
    Pidfd(ExitSubscription),
    /// Something ran out, and it is polled.
    Polled(JoinHandle<()>),
}

impl ExitWatch {
    /// Whether its end has been told.
    fn is_over(&self) -> bool {
        match self {
            ExitWatch::Shell(shell) => shell.watched().is_none(),
            ExitWatch::Pidfd(waiting) => waiting.is_over(),
            ExitWatch::Polled(task) => task.is_finished(),
        }
    }
}

impl Drop for ExitWatch {
    fn drop(&mut self) {
        if let ExitWatch::Polled(task) = self {
            task.abort();
        }
    }
}

impl ProcExecutor {
    pub fn new(context: Arc<ExecContext>, key: impl Into<Arc<ProcKey>>, inputs: Inputs) -> ProcExecutor {
        let key = key.into();
        let sink = context.sinks.of(&key);
        ProcExecutor {
            mark: context.mark(&key),
            groups: context.groups.of(command_output::stem(&key)),
            context,
            key,
            inputs,
            outputs: Outputs::default(),
            proc_log: sink,
            runs: Vec::new(),
            watches: Vec::new(),
            sample: None,
            retired: Vec::new(),
            escaped: false,
            note: String::new(),
            shell: None,
            stirred: Arc::default(),
        }
    }

    /// Starts a command. Its end comes as [`Input::CommandEnded`], also when it could not even begin.
    pub fn run(&mut self, run: RunId, command: &str, spec: &Spec) {
        self.tidy();
        self.stir();
        let launch = self.context.prepare(&self.key, &self.mark, command, spec);
        let started = launch.and_then(|launch| {
            let output = self.output(run, &launch, spec);
            let began = self.context.now();
            let group = self.groups.make(began, run.0);
            let started = Run::start(launch, began, output, group.as_ref().map(|(_, open)| open.as_fd()));
            let group = group.map(|(group, _)| group);
            if let (Err(_), Some(group)) = (&started, &group) {
                self.groups.forget_if_empty(group);
            }
            started.map(|(run, pidfd, ending)| (run.in_group(group.map(Arc::from)), pidfd, ending))
        });
        match started {
            Ok((mut started, pidfd, ending)) => {
                hit(Point::AgentProcessSpawned);
                tracing::info!(key = %self.key, run = run.0, pid = started.leader.pid, "command started");
                let (group, shell, tell) = (started.group.clone(), started.shell.clone(), self.teller());
                let host = self.context.clone();
                started.waiting = Some(self.context.exits.when_gone(pidfd, async move |pidfd| {
                    let end = ending.take(pidfd).await;
                    let exit = shell.exit().unwrap_or(Exit::Unknown);
                    tell.send(Input::CommandEnded { run, end }).await;
                    if let Some(process) = shell.watched() {
                        tell.exited(process, exit).await;
                        shell.is_told();
                    }
                    group.iter().for_each(|group| host.groups.command_ended(group));
                }));
                // One is all that most procs have for long.
                self.runs.reserve_exact(1);
                self.runs.push((run, Box::new(started)));
            }
            Err(NotStarted { code, reason }) => {
                tracing::info!(key = %self.key, run = run.0, %reason, "command could not be started");
                self.tell(Input::CommandEnded { run, end: CommandEnd::NotStarted { code, reason } });
            }
        }
    }

    /// Looks whether the process is running.
    pub fn look(&mut self, scope: LookScope, spec: &Spec) -> Sighting {
        if scope == LookScope::Leftovers {
            return self.look_for_leftovers();
        }
        let sessions: Vec<Id> = self.runs().filter(|run| run.has_session()).map(|run| run.leader).collect();
        let nearby = self.nearby(None);
        let own: Vec<Id> = sessions.iter().copied().chain(self.current()).collect();
        let probes = self.context.probes();
        let identity = &spec.identity;
        let (mark, group) = (&*self.mark, self.groups.name());
        let dead = match scope {
            LookScope::After { dead } => Some(dead),
            LookScope::Recovery { last } => last,
            LookScope::Settled
            | LookScope::Launch { .. }
            | LookScope::Run(_)
            | LookScope::Leftovers
            | LookScope::Turn { .. } => None,
        };
        let since = self.context.opened_at;
        let (sessions, own, probes) = (&*sessions, &*own, &*probes);
        let whom = Whom { mark, group, identity, sessions, own, probes, dead, since };
        let glimpse = || self.context.glimpse(BootTime(self.stirred.load(Ordering::Relaxed)));
        let sighting = match scope {
            LookScope::Settled | LookScope::After { .. } => find::settled(whom, glimpse),
            LookScope::Recovery { last } => find::recovered(whom, last, &spec.control, glimpse),
            LookScope::Leftovers => unreachable!("it was answered above"),
            LookScope::Run(run) => {
                find::leader(self.runs.iter().find(|(id, _)| *id == run).map(|(_, run)| &**run))
            }
            LookScope::Turn { last, since } => {
                find::turn(whom, last, since.map(|since| self.context.ticks_at(since)))
            }
            LookScope::Launch { run, leader } => match self.runs.iter_mut().find(|(id, _)| *id == run) {
                Some((_, run)) => {
                    let scan = || nearby.scan(Freshness::AMomentAgo);
                    match find::launched(whom, run, leader, scan, glimpse) {
                        Sighting::Running(process) => {
                            run.saw_main(process);
                            Sighting::Running(run.brought(process))
                        }
                        absent @ Sighting::Absent(_) => absent,
                    }
                }
                // It never began, so it has started nothing.
                None => find::settled(whom, glimpse),
            },
        };
        if let (LookScope::Recovery { last }, Sighting::Running(process)) = (scope, &sighting) {
            self.shell = (!last.is_some_and(|last| last.is(process))).then(|| id_of(process));
        }
        if let Sighting::Running(process) = &sighting {
            self.proc_log.belongs_to(id_of(process), spec, &self.key, &self.context.sinks);
        }
        sighting
    }

    /// The process that the pid file names now, if it is another one of this proc: a program that replaces
    /// itself says so there, and may go on beside its successor for a while.
    pub fn successor(&mut self, process: &Process, spec: &Spec) -> Option<Process> {
        if self.shell == Some(id_of(process)) {
            let found = self.below_shell(id_of(process), spec);
            // Of no use any more, unless the shell has still not begun what it is there for.
            self.shell = self.shell.filter(|_| found.is_err());
            return found.ok().flatten();
        }
        let Identity { pid_path, user, .. } = &spec.identity;
        if pid_path.is_empty() || !pid_file_names_another(pid_path, user, process.pid) {
            return None;
        }
        match self.look(LookScope::Settled, spec) {
            Sighting::Running(other) => (!other.is(process)).then_some(other),
            Sighting::Absent(_) => None,
        }
    }

    /// The process that the shell of its command has begun, if it is one; an error: not yet.
    fn below_shell(&self, shell: Id, spec: &Spec) -> Result<Option<Process>, NotYet> {
        let Control { start_cmd, restart_cmd, .. } = &spec.control;
        let scan = Scan::near(&[shell], Freshness::Now).unwrap_or_else(Scan::take);
        find::below_shell(shell, &[start_cmd, restart_cmd], &spec.identity, &scan)
    }

    /// Reports the end of this process as [`Input::Exited`]; at once if it is gone already. Watching twice is
    /// once.
    pub fn watch(&mut self, process: Process) {
        self.tidy();
        let id = id_of(&process);
        self.retired.retain(|retired| *retired != id);
        if self.watches.iter().any(|(watched, _)| *watched == id) {
            return;
        }
        oom::watch(id);
        let tell = self.teller();
        let watch = match self.runs().find(|run| run.leader == id).map(|run| run.shell.clone()) {
            Some(shell) => match shell.is_watched_as(process) {
                None => ExitWatch::Shell(shell),
                Some(exit) => {
                    self.stir();
                    return self.tell(Input::Exited { process, exit });
                }
            },
            None => {
                let kept = children::keep(id.pid);
                let ended = async move |exit| {
                    if kept {
                        children::let_go(id.pid);
                    }
                    tell.exited(process, exit).await;
                };
                match pidfd::open_confirmed(&process) {
                    Ok(pidfd) => ExitWatch::Pidfd(self.context.exits.when_gone(pidfd, async move |pidfd| {
                        ended(pidfd::exit(&pidfd, id).await).await;
                    })),
                    Err(error) => ExitWatch::Polled(tokio::spawn(async move {
                        ended(pidfd::polled(process, error).await).await;
                    })),
                }
            }
        };
        // One is all that most procs ever have.
        self.watches.reserve_exact(1);
        self.watches.push((id, watch));
    }

    /// Ends what dead runs have left behind. A run goes on as long as its shell does, unless the process that
    /// it was started for is gone or has a successor; and a process that is being watched is not left behind,
    /// unless it has one.
    pub fn sweep(&mut self, signal: Signal) {
        self.stir();
        for group in self.left_groups() {
            match signal {
                Signal::Kill => cgroup::kill(&group),
                Signal::Term | Signal::Other(_) => cgroup::signal(&group, signal::raw(signal)),
            }
        }
        if self.are_all_in_groups() && !self.escaped && !self.has_escaped() {
            return;
        }
        let nearby = self.nearby_ungrouped(None);
        let mut left = 0;
        let targets = |scan: &Scan| {
            let found = self.left_in(scan);
            left = scan.marked(&self.mark).len() - found.len();
            found
        };
        match signal {
            Signal::Term | Signal::Other(_) => {
                let scan = nearby.scan(Freshness::Now);
                let found = self.left_in(&scan);
                tree::signal_all(&scan, found, signal::raw(signal));
            }
            Signal::Kill => {
                tree::kill_all(|| nearby.scan(Freshness::Now), targets);
                if left == 0 {
                    self.context.inherits_no_more(&self.mark);
                }
            }
        }
    }

    /// Kills what a launch has brought that began then and was cut off by the end of an earlier life of the
    /// agent.
    pub fn clear_since(&mut self, since: BootTime) {
        self.stir();
        let since = self.context.ticks_at(since);
        let grouped: HashSet<u32> =
            self.groups.all().iter().flat_map(|group| cgroup::pids_in(group)).collect();
        let own: HashSet<Id> = self.watched().chain(self.runs.iter().map(|(_, run)| run.leader)).collect();
        tracing::info!(key = %self.key, "ending what a start that was cut off has brought");
        tree::kill_all(Scan::take, |scan| {
            let is_ours = |stat: &&Stat| grouped.contains(&stat.id.pid);
            let mut ours: Vec<Id> = scan.all().into_iter().filter(is_ours).map(|stat| stat.id).collect();
            ours.extend(scan.marked(&self.mark).iter().map(|stat| stat.id));
            // What stays goes on with all below it, however young.
            let stays = |id: &Id| id.start_ticks < since || own.contains(id);
            let staying = scan.with_descendants(ours.iter().copied().filter(stays));
            ours.retain(|id| !staying.contains(id));
            ours
        });
    }

    /// Something of the proc that a sweep would end.
    fn look_for_leftovers(&mut self) -> Sighting {
        let grouped = self.left_groups().iter().flat_map(|group| cgroup::pids_in(group)).find_map(Stat::read);
        let found = grouped.map(|stat| stat.id).or_else(|| {
            let scan = match self.are_all_in_groups() {
                true => Scan::near(&[], Freshness::AMomentAgo)?,
                false => self.nearby_ungrouped(None).scan(Freshness::Now),
            };
            let found = self.left_in(&scan).first().copied();
            self.escaped = found.is_some();
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

    /// Whether something was moved out of its group, as by `su` where sessions have groups: it has come to
    /// the agent.
    fn has_escaped(&mut self) -> bool {
        Scan::near(&[], Freshness::Now).is_some_and(|scan| !self.left_in(&scan).is_empty())
    }

    /// The groups of this proc in which only leftovers are.
    fn left_groups(&mut self) -> Vec<PathBuf> {
        self.context.groups.hand_over(&mut self.groups);
        if self.groups.is_empty() {
            return Vec::new();
        }
        let at_work = self.runs().filter(|run| !self.is_retired(run) && run.is_at_work());
        let kept: HashSet<u32> =
            self.current().map(|id| id.pid).chain(at_work.map(|run| run.leader.pid)).collect();
        let left = self.groups.left(|pid| kept.contains(&pid));
        if self.groups.is_empty() {
            self.context.groups.is_idle(&self.groups);
        }
        left
    }

    /// Those that bear the mark, are in no group and belong to nothing that goes on.
    fn left_in(&mut self, scan: &Scan) -> Vec<Id> {
        let current: Vec<Id> =
            self.watches.iter().map(|(id, _)| *id).filter(|id| !self.retired.contains(id)).collect();
        let mut kept: HashSet<Id> = scan.with_descendants(current);
        let retired = &self.retired;
        let goes_on = |run: &&mut Box<Run>| run.goes_on(scan) && !run.is_for(retired);
        for run in self.runs.iter_mut().map(|(_, run)| run).filter(goes_on) {
            kept.extend(run.members(scan, &self.mark));
        }
        // What is in a group stays or goes with it.
        let grouped: HashSet<u32> =
            self.groups.all().iter().flat_map(|group| cgroup::pids_in(group)).collect();
        let is_left = |id: &Id| !kept.contains(id) && !grouped.contains(&id.pid);
        scan.marked(&self.mark).iter().map(|stat| stat.id).filter(is_left).collect()
    }

    /// Whether all that was ever started for this proc is in a cgroup, as far as it was left there.
    fn are_all_in_groups(&self) -> bool {
        self.groups.are_made() && !self.context.has_inherited(&self.mark)
    }

    /// Describes a process. `None` when it is gone.
    pub fn inspect(&mut self, process: &Process) -> Option<Instance> {
        inspect::inspect(&self.context, id_of(process), &mut self.sample)
    }

    /// Something has happened to the proc: what was seen before is out of date.
    fn stir(&self) {
        self.stirred.store(self.context.now().0, Ordering::Relaxed);
    }

    fn runs(&self) -> impl Iterator<Item = &Run> + Clone {
        self.runs.iter().map(|(_, run)| &**run)
    }

    /// Those of the watched that have no successor.
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

    /// Where what belongs to this proc is to be looked for.
    fn nearby(&self, target: Option<Id>) -> Nearby {
        if !self.are_all_in_groups() {
            return self.nearby_ungrouped(target);
        }
        let leaders = self.runs().filter(|run| !run.has_ended()).map(|run| run.leader);
        Nearby::Within {
            groups: self.groups.all(),
            own: self.watched().chain(leaders).chain(target).collect(),
        }
    }

    fn nearby_ungrouped(&self, target: Option<Id>) -> Nearby {
        let leaders = self.runs().map(|run| run.leader);
        // What is left of a dead stranger may be anywhere.
        let is_lost =
            |id: &Id| !leaders.clone().any(|leader| leader == *id) && pidfd::open_exactly(*id).is_err();
        if self.context.has_inherited(&self.mark) || target.as_ref().is_some_and(is_lost) {
            return Nearby::Everywhere;
        }
        Nearby::Below(
            self.watched()
                .chain(leaders.clone())
                .chain(target)
                .collect::<HashSet<Id>>()
                .into_iter()
                .collect(),
        )
    }

    /// The proc's log, for what is to become the process; else a file of the run's own. Nothing that is wrong
    /// with either keeps a process from being started.
    fn output(&mut self, run: RunId, launch: &PreparedCommand, spec: &Spec) -> CommandOutput {
        let Control { start_cmd, restart_cmd, .. } = &spec.control;
        if [start_cmd, restart_cmd].iter().any(|command| *command == launch.command()) {
            self.note.clear();
            let (opened, wrong) = self.proc_log.open(&self.context.sinks, spec, &self.key, launch.account());
            if let Some(reason) = wrong {
                tracing::warn!(key = %self.key, run = run.0, %reason, "no log: the output goes to the agent's folder");
                self.note = format!("{reason}; its output is in the agent's folder");
            }
            match opened {
                Ok(OpenedLog { live, file, from }) => return CommandOutput::Log { live, file, from },
                Err(error) => {
                    tracing::warn!(key = %self.key, run = run.0, %error, "no log: the output goes to a file of its own");
                }
            }
        }
        let in_use = |path: &Path| self.runs.iter().any(|(_, run)| run.writes_to(path));
        match self.outputs.create(self.proc_log.folder(), run, self.context.wall_millis(), in_use) {
            Ok((path, file)) => {
                self.proc_log.also_keeps(path.clone());
                CommandOutput::Own { path, file }
            }
            Err(error) => {
                tracing::warn!(key = %self.key, run = run.0, %error, "no file for a command's output: it will be lost");
                CommandOutput::Nowhere
            }
        }
    }

    /// What is wrong with where the process writes to; else empty.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// The proc is not remembered any more.
    pub fn forget_output(&self) {
        self.proc_log.forget();
    }

    fn tell(&self, input: Input) {
        let tell = self.teller();
        tokio::spawn(async move { tell.send(input).await });
    }

    fn teller(&self) -> InputSender {
        InputSender {
            inputs: self.inputs.clone(),
            context: self.context.clone(),
            stirred: self.stirred.clone(),
        }
    }

    /// Forgets what is over.
    fn tidy(&mut self) {
        self.watches.retain(|(_, watch)| !watch.is_over());
        self.retired.retain(|id| self.watches.iter().any(|(watched, _)| watched == id));
        self.context.reap_strays();
        let ended = self.runs().filter(|run| run.has_ended()).count();
        let mut surplus = ended.saturating_sub(ENDED_RUNS_KEPT);
        self.runs.retain(|(_, run)| {
            let stays = surplus == 0 || !run.has_ended();
            surplus -= usize::from(!stays);
            stays
        });
    }
}

/// Says what has happened to the one whom it concerns.
struct InputSender {
    inputs: Inputs,
    context: Arc<ExecContext>,
    stirred: Arc<AtomicU64>,
}

impl InputSender {
    async fn exited(&self, process: Process, exit: Exit) {
        self.stirred.store(self.context.now().0, Ordering::Relaxed);
        self.send(Input::Exited { process, exit }).await;
    }

    async fn send(&self, input: Input) {
        // Nobody listens any more only when the actor is gone, and then nobody needs to know.
        let _ = self.inputs.send(Box::new(input)).await;
    }
}

/// Where what belongs to a proc is to be looked for.
enum Nearby {
    /// Below these processes of it, and among the orphans that came to the agent.
    Below(Vec<Id>),
    /// In its cgroups, and below these processes of it.
    Within {
        groups: Vec<PathBuf>,
        own: Vec<Id>,
    },
    Everywhere,
}

impl Nearby {
    fn scan(&self, freshness: Freshness) -> Scan {
        match self {
            Nearby::Below(own) => Scan::near(own, freshness).unwrap_or_else(Scan::take),
            Nearby::Within { groups, own } => Scan::within(groups, own),
            Nearby::Everywhere => Scan::take(),
        }
    }
}

impl Drop for ProcExecutor {
    /// Children that are still running go to the host, which reaps them one day.
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
