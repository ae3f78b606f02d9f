//! A simulated host for one machine: fake processes, a fake clock, a journal that survives crashes.
//!
//! The behaviour of each command is data ([`Does`]). Everything is deterministic: the clock moves only to the
//! machine's `wake_at` or to the next event in the world, and events of the world are reported first.

#![allow(dead_code, unreachable_pub, clippy::allow_attributes, reason = "each test file uses its own part")]

use procfleet_core::groups::{Overuse, Pool};
use procfleet_core::op::Order;
use procfleet_core::process::{Absence, Cause, Evidence, Exit, Found, Process, Sighting};
use procfleet_core::spec::{Detached, Kind, Policy, Spec};
use procfleet_core::stagger::{StaggerCause, StaggerReason};
use procfleet_core::supervise::{
    CommandEnd, Commit, Effect, EffectAnswer, Event, Health, Hosting, Input, Leader, LimitHistory, LookId,
    LookScope, Machine, Next, OtherAccount, ProcNotice, Record, RunId, Signal, Step, Usage, View, Write,
};
use procfleet_core::{BootTime, Code, Content, OpId, OpKind, Outcome, ProcKey, TaskId};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub const PID_PATH: &str = "/run/it.pid";

/// The behaviour of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Does {
    /// Nothing, and ends.
    Exit { after: u64, code: i32 },
    /// Leaves a daemon behind and ends well. `file`: how long after that the pid file is written.
    Daemon { after: u64, file: Option<u64>, lives: Option<u64> },
    /// Leaves a launcher behind and ends well. The launcher starts one process after the other: the pause
    /// before each, and how long it lives.
    Launcher { after: u64, lives: Vec<(u64, Option<u64>)> },
    /// Starts the process at once, stays at work beside it, and ends.
    Stays { after: u64, lives: Option<u64>, code: i32 },
    /// Is the process.
    Foreground { lives: Option<u64>, code: i32 },
    /// Never ends by itself.
    Hang,
    /// Not even EndRun ends it.
    Unkillable,
    /// Ends the main process, in the way of SIGTERM.
    EndMain { after: u64, code: i32 },
    /// Kills the main process with its descendants, and starts another one.
    Replace { after: u64, file: Option<u64>, code: i32 },
    /// Never begins.
    NotStarted,
}

/// The reaction of the main process to SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Term {
    Dies { after: u64 },
    Ignores,
}

#[derive(Clone, Debug)]
struct Live {
    process: Process,
    role: Role,
    run: Serial,
    watched: bool,
    /// An earlier generation.
    retired: bool,
    /// It belongs to a command that starts something.
    starts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Main,
    Shell,
    /// The command is the process.
    Both,
    /// The descendants of the process, and the detached ones.
    Left,
}

impl Role {
    fn is_main(self) -> bool {
        matches!(self, Role::Main | Role::Both)
    }
}

/// A run across all lives of the agent.
type Serial = u64;

#[derive(Clone, Debug)]
enum Happening {
    ShellDone { run: Serial, shell: u32, does: Does },
    WriteFile { pid: u32 },
    Comes { launcher: u32, run: Serial, lives: Option<u64> },
    Dies { pid: u32, exit: Exit },
    Tell { life: u32, input: Input },
    Answer { life: u32, look: LookId, scope: LookScope, spec: Arc<Spec> },
}

#[derive(Debug)]
pub struct World {
    pub machine: Machine,
    pub now: BootTime,
    pub scripts: HashMap<String, Does>,
    pub term: Term,
    /// The reaction to `reload_signal`.
    pub on_reload: Term,
    /// The detached descendants of each process: their reaction to SIGTERM.
    pub leaves: Option<Term>,
    /// Detached descendants have the name of the process, like workers.
    pub leaves_namesakes: bool,
    /// The command of what runs once may go into the background.
    pub once_leaves: bool,
    /// How long an answer to a look takes.
    pub look_delay: u64,
    /// The number of looks after a crash that find nothing, because the command ends and its process begins
    /// while they are under way.
    pub missed_looks: Cell<u32>,
    pub fail_next_effects: bool,
    /// The disk is slow or full: writes are durable only when a step requires it.
    pub lagging: bool,
    /// How long the disk takes for what must be durable before the effects.
    pub disk_delay: u64,
    /// The writes that a crash would lose.
    behind: Vec<Write>,
    /// The offset of the wall clock from the machine's clock, in milliseconds.
    pub wall_ahead: u64,
    /// How often the wall clock was asked.
    pub plans: u32,
    /// The delay of the staggered start after a restart of the agent.
    pub start_delay: u64,
    /// The delay of a staggered restart that is due together with others.
    pub restart_delay: u64,
    /// Commands do not take longer than their spec can bear.
    pub only_fair: bool,
    pub max_mains: usize,
    pub done: Vec<(OpId, Outcome)>,
    pub events: Vec<Event>,
    /// Every start or restart command, and when it was run.
    pub starts: Vec<(BootTime, String)>,
    pub signals: Vec<Signal>,
    pub sweeps: Vec<Signal>,
    pub record: Option<Record>,
    pub accepted: BTreeMap<OpId, Order>,
    /// The OS accounts that the app of the orders may use, and the account of every process.
    pub accounts: procfleet_core::grants::GrantScope<String>,
    pub owner: String,
    verdicts: VecDeque<(OpId, Option<OtherAccount>)>,
    begun: Vec<OpId>,
    live: Vec<Live>,
    pid_file: Option<u32>,
    agenda: BTreeMap<(BootTime, u64), Happening>,
    answers: VecDeque<Input>,
    runs: HashMap<RunId, Serial>,
    /// The runs that have brought a process: a command that outlives it is a leftover.
    had_main: Vec<Serial>,
    /// The last thing that was completed was a stop or kill.
    stopped: bool,
    /// The command that was run last is to start something.
    starting: bool,
    /// How many ticks in a row were followed by the same wake-up.
    idle_ticks: u32,
    life: u32,
    serial: u64,
    next_pid: u32,
    next_op: u32,
}

pub fn spec() -> Spec {
    let mut spec = Spec {
        policy: Policy {
            start_check: Duration::from_secs(2),
            stop_check: Duration::from_secs(3),
            start_retries: 2,
            start_interval: Duration::from_secs(10),
            op_timeout: Duration::from_secs(20),
            ..Policy::default()
        },
        ..Spec::default()
    };
    spec.identity.proc_name = "it".to_owned();
    spec.identity.setup_path = "/srv/it".to_owned();
    spec.identity.pid_path = PID_PATH.to_owned();
    spec.control.start_cmd = "start".to_owned();
    spec.control.reload_cmd = "reload".to_owned();
    spec
}

pub fn daemon() -> Does {
    Does::Daemon { after: 100, file: Some(0), lives: None }
}

pub fn op(index: u32) -> OpId {
    OpId { task: TaskId { stamp: 20_260_101_000_000, number: 1 }, index }
}

fn key() -> ProcKey {
    ProcKey { namespace: "test".to_owned(), name: "it".to_owned() }
}

impl World {
    pub fn new() -> World {
        let scripts = [
            ("start", daemon()),
            ("stop", Does::EndMain { after: 50, code: 0 }),
            ("kill", Does::EndMain { after: 50, code: 0 }),
            ("restart", Does::Replace { after: 100, file: Some(0), code: 0 }),
            ("reload", Does::Exit { after: 50, code: 0 }),
        ];
        World {
            machine: Machine::new(key()),
            now: BootTime(1_000_000),
            scripts: scripts.into_iter().map(|(name, does)| (name.to_owned(), does)).collect(),
            term: Term::Dies { after: 10 },
            on_reload: Term::Ignores,
            leaves: None,
            leaves_namesakes: false,
            once_leaves: false,
            look_delay: 0,
            missed_looks: Cell::new(0),
            fail_next_effects: false,
            lagging: false,
            disk_delay: 0,
            behind: Vec::new(),
            wall_ahead: 0,
            plans: 0,
            start_delay: 0,
            restart_delay: 0,
            only_fair: false,
            max_mains: 0,
            done: Vec::new(),
            events: Vec::new(),
            starts: Vec::new(),
            signals: Vec::new(),
            sweeps: Vec::new(),
            record: None,
            accepted: BTreeMap::new(),
            accounts: procfleet_core::grants::GrantScope::All,
            owner: String::new(),
            verdicts: VecDeque::new(),
            begun: Vec::new(),
            live: Vec::new(),
            pid_file: None,
            agenda: BTreeMap::new(),
            answers: VecDeque::new(),
            runs: HashMap::new(),
            had_main: Vec::new(),
            stopped: false,
            starting: false,
            idle_ticks: 0,
            life: 0,
            serial: 0,
            next_pid: 100,
            next_op: 0,
        }
    }

    pub fn script(mut self, command: &str, does: Does) -> World {
        self.scripts.insert(command.to_owned(), does);
        self
    }

    pub fn set(&mut self, command: &str, does: Does) {
        self.scripts.insert(command.to_owned(), does);
    }

    // ---- actions of a test ----

    /// Gives an order and returns at once.
    pub fn send(&mut self, kind: OpKind, spec: Option<Spec>) -> OpId {
        self.send_by(kind, spec, BootTime(self.now.0 + 3_600_000))
    }

    pub fn send_by(&mut self, kind: OpKind, spec: Option<Spec>, start_by: BootTime) -> OpId {
        self.next_op += 1;
        let accounts = self.accounts.clone();
        let order = Order { op: op(self.next_op), kind, spec, start_by, accounts };
        self.accepted.insert(order.op, order.clone());
        let id = order.op;
        self.feed(Input::Order(Box::new(order)));
        id
    }

    /// Gives an order and waits for its outcome.
    pub fn order(&mut self, kind: OpKind, spec: &Spec) -> Outcome {
        let op = self.send(kind, Some(spec.clone()));
        self.outcome(op)
    }

    /// Waits for an outcome.
    pub fn outcome(&mut self, op: OpId) -> Outcome {
        let limit = self.now + Duration::from_secs(600);
        while self.now < limit {
            if let Some((_, outcome)) = self.done.iter().find(|(id, _)| *id == op) {
                return outcome.clone();
            }
            if !self.advance(limit) {
                break;
            }
        }
        panic!("{op} has no outcome: {:#?}", self.machine)
    }

    pub fn code(&self, op: OpId) -> Option<u32> {
        self.done.iter().find(|(id, _)| *id == op).map(|(_, outcome)| outcome.code.number())
    }

    pub fn run_for(&mut self, millis: u64) {
        let limit = self.now + Duration::from_millis(millis);
        while self.advance(limit) {}
        self.now = limit;
    }

    /// The main process ends by itself.
    pub fn die(&mut self, exit: Exit) {
        if let Some(pid) = self.main_pid() {
            self.end(pid, exit);
            self.settle();
        }
    }

    /// The main process ends, and the agent will not live to hear of it.
    pub fn kill_behind_the_agents_back(&mut self) {
        self.live.retain(|live| !live.role.is_main());
    }

    /// The process that samples are taken of.
    fn sampled(&self) -> Option<Process> {
        self.machine.limited_process().or(self.machine.process())
    }

    /// A sample of the main process with this usage.
    pub fn sample(&mut self, usage: Usage) {
        if let Some(process) = self.sampled() {
            self.feed(Input::Notice(ProcNotice::Sampled { process, usage }));
        }
    }

    /// The result of `health_cmd` changes.
    pub fn health(&mut self, health: Health) {
        if let Some(process) = self.machine.process() {
            self.feed(Input::Notice(ProcNotice::Health { process, health }));
        }
    }

    /// Its namespace uses too much, and it is its turn.
    pub fn overuse(&mut self, past: LimitHistory) {
        if let Some(process) = self.sampled() {
            let overuse = Overuse {
                group: "g".to_owned(),
                pool: Pool::Mem,
                limit: 10.0,
                sums: vec![12.0; 3],
                victims: vec!["it".to_owned()],
            };
            self.feed(Input::Notice(ProcNotice::Overused { process, overuse: Box::new(overuse), past }));
        }
    }

    /// The process comes again by itself, and writes its pid file.
    pub fn come_again(&mut self) {
        self.come_again_for(None);
    }

    /// Like [`World::come_again`], after this time.
    pub fn come_again_for(&mut self, lives: Option<u64>) {
        self.serial += 1;
        let run = self.serial;
        self.daemonise(run, Some(0), lives);
    }

    /// A process that an earlier command started keeps running.
    pub fn leave_behind(&mut self) {
        self.max_mains = 0;
        self.serial += 1;
        let run = self.serial;
        self.spawn(Role::Main, run);
    }

    /// The agent dies and comes back.
    pub fn crash(&mut self) {
        self.crash_for(0);
    }

    pub fn crash_for(&mut self, millis: u64) {
        self.life += 1;
        self.answers.clear();
        self.behind.clear();
        self.runs.clear();
        self.live.iter_mut().for_each(|live| live.watched = false);
        self.fail_next_effects = false;
        let limit = self.now + Duration::from_millis(millis);
        while let Some((at, happening)) = self.next_happening(limit) {
            self.now = self.now.max(at);
            self.happen(happening);
        }
        self.now = limit;
        let open = |world: &World, op: &OpId| !world.done.iter().any(|(id, _)| id == op);
        let interrupted: Vec<(OpId, OpKind)> =
            self.begun.iter().filter(|op| open(self, op)).map(|op| (*op, self.accepted[op].kind)).collect();
        let waiting: Vec<Order> = self
            .accepted
            .values()
            .filter(|order| open(self, &order.op) && !self.begun.contains(&order.op))
            .cloned()
            .collect();
        match self.record.clone() {
            Some(record) => {
                let (machine, step) = Machine::recover(key(), record, interrupted);
                self.machine = machine;
                self.carry_out(step);
            }
            None => {
                self.machine = Machine::new(key());
                for (op, kind) in interrupted {
                    self.finish(op, Outcome::without_status(Code::Interrupted, "lost", kind));
                }
            }
        }
        self.settle();
        for order in waiting {
            self.feed(Input::Order(Box::new(order)));
        }
    }

    /// A reboot of the host: every process is gone and the clock starts at zero.
    pub fn reboot(&mut self) {
        self.live.clear();
        self.agenda.clear();
        self.pid_file = None;
        self.now = BootTime(5_000);
        self.record = self.record.take().map(Record::after_reboot);
        self.crash();
    }

    /// Cancels the op. False: the machine does not know it.
    pub fn cancel(&mut self, op: OpId) -> bool {
        let step = self.machine.cancel(op);
        let known = step.is_some();
        self.carry_out(step.unwrap_or_default());
        self.settle();
        known
    }

    pub fn feed(&mut self, input: Input) {
        self.step(input);
        self.settle();
    }

    // ---- queries of a test ----

    pub fn main_pid(&self) -> Option<u32> {
        self.live.iter().find(|live| live.role.is_main()).map(|live| live.process.pid)
    }

    /// The youngest process, as its pid file names it.
    pub fn youngest(&self) -> Process {
        let live = self.live.iter().max_by_key(|live| live.process.pid).expect("something runs");
        Process { found: Found::PidFile, ..live.process }
    }

    /// How long the main process has been alive, in milliseconds.
    pub fn main_age(&self) -> Option<u64> {
        let main = self.live.iter().find(|live| live.role.is_main())?;
        Some(self.now.0 - main.process.start_ticks * 10)
    }

    pub fn mains(&self) -> usize {
        self.live.iter().filter(|live| live.role.is_main()).count()
    }

    /// The descendants of processes, and the detached ones.
    pub fn left_pids(&self) -> Vec<u32> {
        self.live.iter().filter(|live| live.role == Role::Left).map(|live| live.process.pid).collect()
    }

    pub fn left(&self) -> usize {
        self.left_pids().len()
    }

    pub fn note(&self) -> String {
        self.machine.note(self.now).into_owned()
    }

    pub fn hosted(&self) -> bool {
        self.machine.hosting() == Hosting::Hosted
    }

    pub fn open_ops(&self) -> Vec<OpId> {
        self.accepted.keys().filter(|op| !self.done.iter().any(|(id, _)| id == *op)).copied().collect()
    }

    // ---- time ----

    /// Moves to the next event, not beyond `limit`. False: there is none until then.
    pub fn advance(&mut self, limit: BootTime) -> bool {
        let wake = self.machine.wake_at().map(|at| at.max(self.now));
        let first = self.agenda.keys().next().map(|(at, _)| *at);
        match (first, wake) {
            // Inputs first: an exit that has happened must win over the deadline that it just met.
            (Some(at), wake) if at <= limit && wake.is_none_or(|wake| at <= wake) => {
                let (_, happening) = self.agenda.pop_first().expect("it was there");
                self.now = self.now.max(at);
                self.happen(happening);
            }
            (_, Some(wake)) if wake <= limit => {
                self.now = wake;
                let before = (self.life, self.machine.wake_at());
                self.step(Input::Tick);
                let after = (self.life, self.machine.wake_at());
                // One stage's deadline may by chance be the next one's beginning; but not again and again.
                self.idle_ticks = if after == before { self.idle_ticks + 1 } else { 0 };
                assert!(self.idle_ticks < 3, "busy loop: {:#?}", self.machine);
            }
            (_, _) => return false,
        }
        self.settle();
        true
    }

    fn next_happening(&mut self, limit: BootTime) -> Option<(BootTime, Happening)> {
        let first = self.agenda.first_entry().filter(|entry| entry.key().0 <= limit)?;
        Some((first.key().0, first.remove()))
    }

    fn settle(&mut self) {
        while let Some(answer) = self.answers.pop_front() {
            self.step(answer);
        }
    }

    fn later(&mut self, millis: u64, happening: Happening) {
        self.serial += 1;
        self.agenda.insert((BootTime(self.now.0 + millis), self.serial), happening);
    }

    // ---- the machine's side ----

    fn step(&mut self, input: Input) {
        let step = self.machine.step(self.now, input);
        self.carry_out(step);
        while let Some((op, other)) = self.verdicts.pop_front() {
            let step = self.machine.vetted(self.now, op, other);
            self.carry_out(step);
        }
    }

    fn carry_out(&mut self, step: Step) {
        let waits = step.commit == Commit::First && !step.writes.is_empty();
        let delay = Duration::from_millis(if waits { self.disk_delay } else { 0 });
        self.now += delay;
        self.behind.extend(step.writes);
        if step.commit == Commit::First || !self.lagging {
            self.commit();
        }
        if self.fail_next_effects && !step.effects.is_empty() {
            return self.crash();
        }
        for effect in step.effects {
            self.act(effect);
        }
        self.machine.delayed(delay);
    }

    fn commit(&mut self) {
        for write in std::mem::take(&mut self.behind) {
            match write {
                Write::Record(record) => self.record = Some(*record),
                Write::Forget => self.record = None,
                Write::Begun(op) => {
                    assert!(!self.begun.contains(&op), "{op} begun twice");
                    self.begun.push(op);
                    if matches!(self.accepted[&op].kind, OpKind::Start | OpKind::Host | OpKind::Restart) {
                        self.stopped = false;
                    }
                }
                Write::Done(op, outcome) => self.finish(op, outcome),
                Write::Event(event) => self.events.push(event),
            }
        }
    }

    fn finish(&mut self, op: OpId, outcome: Outcome) {
        assert!(!self.done.iter().any(|(id, _)| *id == op), "{op} done twice");
        let order = self.accepted.get(&op).expect("an op that was accepted");
        if matches!(order.kind, OpKind::Stop | OpKind::Kill)
            && matches!(outcome.code, Code::Success | Code::NotRunning)
        {
            self.stopped = true;
            let whole =
                |spec: &Spec| spec.policy.kind == Kind::Resident && spec.policy.detached == Detached::End;
            let spec = order.spec.as_ref().or(self.machine.spec().map(std::sync::Arc::as_ref));
            if outcome.code == Code::Success && spec.is_some_and(whole) {
                assert_eq!(
                    self.leftovers(),
                    [],
                    "left behind by a {}: {:#?}",
                    order.kind.verb(),
                    self.machine
                );
            }
            if let Content::Control { hosted, .. } = outcome.content {
                assert!(!hosted, "hosted after a {}", order.kind.verb());
            }
        }
        // Hosting what runs already needs no act, and is wanted all the same.
        if matches!(order.kind, OpKind::Start | OpKind::Host | OpKind::Restart)
            && outcome.code == Code::Success
        {
            self.stopped = false;
        }
        self.done.push((op, outcome));
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Look { look, scope, spec } if self.look_delay == 0 => {
                let sighting = self.look(scope, &spec);
                self.answers.push_back(Input::Answer(EffectAnswer::Sighted { look, sighting }));
            }
            Effect::Look { look, scope, spec } => {
                let life = self.life;
                self.later(self.look_delay, Happening::Answer { life, look, scope, spec });
            }
            Effect::Watch(process) => match self.live.iter_mut().find(|live| live.process.is(&process)) {
                Some(live) => (live.watched, live.retired) = (true, false),
                None => {
                    let input = Input::Notice(ProcNotice::Exited { process, exit: Exit::Unknown });
                    self.later(0, Happening::Tell { life: self.life, input });
                }
            },
            Effect::Run { run, command, spec } => self.run(run, command, &spec),
            Effect::EndRun(run) => {
                let Some(serial) = self.runs.get(&run).copied() else { return };
                let pids: Vec<u32> =
                    self.live.iter().filter(|live| live.run == serial).map(|live| live.process.pid).collect();
                if !self.is_unkillable(serial) {
                    pids.into_iter().for_each(|pid| self.end(pid, Exit::Signal(9)));
                }
            }
            Effect::TermRun(run) => {
                let Some(serial) = self.runs.get(&run).copied() else { return };
                let members = self.live.iter().filter(|live| live.run == serial);
                let pids: Vec<u32> = members.map(|live| live.process.pid).collect();
                if !self.is_unkillable(serial) {
                    pids.into_iter().for_each(|pid| self.terminate(pid));
                }
            }
            Effect::Retire(process) => {
                self.act(Effect::Watch(process));
                self.live.iter_mut().filter(|live| live.process.is(&process)).for_each(|live| {
                    live.retired = true;
                });
            }
            Effect::SignalRetired { process, signal, .. } => match signal {
                Signal::Term | Signal::Other(_) => self.terminate(process.pid),
                Signal::Kill => self.end(process.pid, Exit::Signal(9)),
            },
            Effect::SignalOne { process, signal } => {
                self.signals.push(signal);
                if let Term::Dies { after } = self.on_reload {
                    let exit = Exit::Signal(1);
                    self.later(after, Happening::Dies { pid: process.pid, exit });
                }
            }
            Effect::Signal { process, signal, detached } => {
                self.signals.push(signal);
                match signal {
                    Signal::Term | Signal::Other(_) => self.terminate(process.pid),
                    Signal::Kill => {
                        let reached = |live: &&Live| detached == Detached::End || live.role != Role::Left;
                        let pids: Vec<u32> =
                            self.live.iter().filter(reached).map(|live| live.process.pid).collect();
                        pids.into_iter().for_each(|pid| self.end(pid, Exit::Signal(9)));
                    }
                }
            }
            Effect::Sweep(Signal::Kill) => {
                self.sweeps.push(Signal::Kill);
                self.leftovers().into_iter().for_each(|pid| self.end(pid, Exit::Signal(9)));
            }
            Effect::Sweep(signal @ (Signal::Term | Signal::Other(_))) => {
                self.sweeps.push(signal);
                if let Some(Term::Dies { after }) = self.leaves {
                    let exit = Exit::Signal(15);
                    self.leftovers()
                        .into_iter()
                        .for_each(|pid| self.later(after, Happening::Dies { pid, exit }));
                }
            }
            Effect::ClearSince(since) => {
                let brought = |live: &&Live| !live.watched && live.process.start_ticks >= since.0 / 10;
                let pids: Vec<u32> = self.live.iter().filter(brought).map(|live| live.process.pid).collect();
                pids.into_iter().for_each(|pid| self.end(pid, Exit::Signal(9)));
            }
            Effect::Stagger { plan, reason } => {
                let (delay, cause) = match reason {
                    StaggerReason::AgentRestart => (self.start_delay, StaggerCause::Boot),
                    StaggerReason::Retry => (self.restart_delay, StaggerCause::Simultaneous),
                };
                let at = BootTime(self.now.0 + delay);
                self.answers.push_back(Input::Answer(EffectAnswer::Staggered { plan, at, cause }));
            }
            Effect::Plan { plan, rule, since } => {
                self.plans += 1;
                let next = self.next_time(&rule, since);
                self.answers.push_back(Input::Answer(EffectAnswer::Planned { plan, next }));
            }
            Effect::Vet { op, process, scope, spec, accounts } => {
                let seen = match process {
                    Some(process) => Some(process.pid),
                    None => match self.look(scope, &spec) {
                        Sighting::Running(process) => Some(process.pid),
                        Sighting::Absent(_) => None,
                    },
                };
                let user = self.owner.clone();
                let other = seen.filter(|_| !accounts.contains(&user)).map(|pid| OtherAccount { pid, user });
                self.verdicts.push_back((op, other));
            }
            Effect::Inspect { op, process, scope, spec } => {
                let known = process.filter(|process| self.live.iter().any(|live| live.process.is(process)));
                let sighting = match known {
                    Some(process) => Sighting::Running(process),
                    None => self.look(scope, &spec),
                };
                let view = View {
                    sighting,
                    instance: None,
                    registered_at: 0,
                    started_at: 0,
                    reported_at: 0,
                    version: String::new(),
                    health: Default::default(),
                    utc_offset_secs: 0,
                };
                self.answers.push_back(Input::Answer(EffectAnswer::Inspected { op, view: Box::new(view) }));
            }
        }
    }

    /// In this world a rule is a number: it matches at each multiple of that many milliseconds of wall-clock
    /// time.
    fn next_time(&self, rule: &str, since: Option<BootTime>) -> Next {
        let Ok(step) = rule.parse::<u64>() else { return Next::Never { reason: "a bad rule".to_owned() } };
        let wall = |moment: BootTime| moment.0 + self.wall_ahead;
        let passed = |moment| wall(moment) / step;
        let missed = since.map_or(0, |since| passed(self.now) - passed(since).min(passed(self.now)));
        let at = BootTime((passed(self.now) + 1) * step - self.wall_ahead);
        Next::At { at, missed: u32::try_from(missed).expect("a small number") }
    }

    fn run(&mut self, run: RunId, command: String, spec: &Spec) {
        assert!(!command.is_empty(), "an empty command was run");
        let quick = u64::try_from(spec.policy.start_check.as_millis() / 2).unwrap_or(u64::MAX);
        let starts = command.starts_with("start");
        let does = match (self.scripts[&command].clone(), spec.policy.kind.clone()) {
            // The command of a periodic process is the process.
            (Does::Daemon { after, .. }, Kind::Periodic(_)) => {
                Does::Foreground { lives: Some(after), code: 0 }
            }
            (Does::Exit { after, code }, Kind::Periodic(_)) if starts => {
                Does::Foreground { lives: Some(after), code }
            }
            (Does::Hang, Kind::Periodic(_)) if starts => Does::Foreground { lives: None, code: 0 },
            (Does::Replace { after, code, .. }, Kind::Periodic(_)) => Does::EndMain { after, code },
            (Does::Daemon { after, .. }, Kind::Once) if !self.once_leaves => Does::Exit { after, code: 0 },
            (Does::Replace { after, code, .. }, Kind::Once) => Does::Exit { after, code },
            // Without a pid file, a start command that is slower than the check looks like a foreground
            // process, and a stop or restart command would find nothing to end. That is the spec's fault.
            (Does::Daemon { after, file, lives }, Kind::Resident)
                if self.only_fair && spec.identity.pid_path.is_empty() =>
            {
                Does::Daemon { after: after.min(quick), file, lives }
            }
            (Does::Replace { after, file, code }, Kind::Resident)
                if self.only_fair && spec.identity.pid_path.is_empty() =>
            {
                Does::Replace { after: after.min(quick), file, code }
            }
            (does, Kind::Once | Kind::Resident | Kind::Periodic(_)) => does,
        };
        self.starting = command.starts_with("start") || command.starts_with("restart");
        if self.starting {
            assert!(!self.stopped, "{command} was run although the proc was stopped: {:#?}", self.machine);
            self.starts.push((self.now, command));
        }
        let life = self.life;
        if does == Does::NotStarted {
            let end = CommandEnd::NotStarted { code: Code::InvalidUser, reason: "no such user".to_owned() };
            return self.later(
                0,
                Happening::Tell { life, input: Input::Answer(EffectAnswer::CommandEnded { run, end }) },
            );
        }
        self.serial += 1;
        let serial = self.serial;
        self.runs.insert(run, serial);
        let role = if matches!(does, Does::Foreground { .. }) { Role::Both } else { Role::Shell };
        let shell = self.spawn(role, serial);
        match does {
            Does::Exit { after, .. }
            | Does::Daemon { after, .. }
            | Does::Launcher { after, .. }
            | Does::EndMain { after, .. }
            | Does::Replace { after, .. } => {
                self.later(after, Happening::ShellDone { run: serial, shell, does });
            }
            Does::Stays { after, lives, .. } => {
                self.daemonise(serial, Some(0), lives);
                self.later(after, Happening::ShellDone { run: serial, shell, does });
            }
            Does::Foreground { lives: Some(lives), code } => {
                self.later(lives, Happening::Dies { pid: shell, exit: Exit::Code(code) });
            }
            Does::Foreground { lives: None, .. } | Does::Hang | Does::NotStarted => {}
            Does::Unkillable => {
                self.live.iter_mut().filter(|live| live.process.pid == shell).for_each(|live| {
                    live.process.start_ticks = UNKILLABLE;
                });
            }
        }
    }

    // ---- the processes' side ----

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tell { life, input } if life == self.life => self.step(input),
            Happening::Answer { life, look, scope, spec } if life == self.life => {
                let sighting = self.look(scope, &spec);
                self.step(Input::Answer(EffectAnswer::Sighted { look, sighting }));
            }
            Happening::Tell { .. } | Happening::Answer { .. } => {}
            Happening::WriteFile { pid } if self.is_live(pid) => self.pid_file = Some(pid),
            Happening::Dies { pid, exit } if self.is_live(pid) => self.end(pid, exit),
            Happening::ShellDone { run, shell, does } if self.is_live(shell) => {
                self.work(run, &does);
                let code = match does {
                    Does::Exit { code, .. }
                    | Does::EndMain { code, .. }
                    | Does::Replace { code, .. }
                    | Does::Stays { code, .. } => code,
                    Does::Daemon { .. }
                    | Does::Launcher { .. }
                    | Does::Foreground { .. }
                    | Does::Hang
                    | Does::Unkillable
                    | Does::NotStarted => 0,
                };
                self.end(shell, Exit::Code(code));
            }
            Happening::Comes { launcher, run, lives } if self.is_live(launcher) => {
                self.daemonise(run, Some(0), lives);
            }
            Happening::WriteFile { .. }
            | Happening::Dies { .. }
            | Happening::ShellDone { .. }
            | Happening::Comes { .. } => {}
        }
    }

    fn work(&mut self, run: Serial, does: &Does) {
        match *does {
            Does::Daemon { file, lives, .. } => self.daemonise(run, file, lives),
            Does::Launcher { ref lives, .. } => {
                let launcher = self.spawn(Role::Left, run);
                let mut at = 0;
                for (pause, lives) in lives.iter().copied() {
                    self.later(at + pause, Happening::Comes { launcher, run, lives });
                    at += pause + lives.unwrap_or(0);
                }
            }
            Does::EndMain { .. } => {
                if let Some(pid) = self.main_pid() {
                    self.terminate(pid);
                }
            }
            Does::Replace { code: 0, file, .. } => {
                // Such a script finds a start command of the agent's last life, too.
                let others: Vec<u32> =
                    self.live.iter().filter(|live| live.run != run).map(|live| live.process.pid).collect();
                others.into_iter().for_each(|pid| self.end(pid, Exit::Signal(15)));
                self.daemonise(run, file, None);
            }
            Does::Exit { .. }
            | Does::Stays { .. }
            | Does::Foreground { .. }
            | Does::Hang
            | Does::Unkillable
            | Does::Replace { .. }
            | Does::NotStarted => {}
        }
    }

    fn daemonise(&mut self, run: Serial, file: Option<u64>, lives: Option<u64>) {
        let pid = self.spawn(Role::Main, run);
        match file {
            Some(0) => self.pid_file = Some(pid),
            Some(wait) => self.later(wait, Happening::WriteFile { pid }),
            None => {}
        }
        if let Some(lives) = lives {
            self.later(lives, Happening::Dies { pid, exit: Exit::Code(3) });
        }
    }

    fn spawn(&mut self, role: Role, run: Serial) -> u32 {
        self.next_pid += 1;
        let process = Process {
            pid: self.next_pid,
            start_ticks: self.now.0 / 10,
            found: Found::Name,
            evidence: Evidence { run: (run + 1).try_into().ok(), ..Evidence::default() },
        };
        let starts = self.starting || role.is_main();
        self.had_main.extend(role.is_main().then_some(run));
        self.live.push(Live { process, role, run, watched: false, retired: false, starts });
        if self.leaves.is_some() && role.is_main() {
            self.next_pid += 1;
            let process = Process { pid: self.next_pid, ..process };
            let role = Role::Left;
            self.live.push(Live { process, role, run, watched: false, retired: false, starts });
        }
        self.max_mains = self.max_mains.max(self.mains());
        process.pid
    }

    pub fn is_live(&self, pid: u32) -> bool {
        self.live.iter().any(|live| live.process.pid == pid)
    }

    /// Processes that belong to no watched process and to no running command.
    fn leftovers(&self) -> Vec<u32> {
        let has_main = |run| self.live.iter().any(|live| live.run == run && live.role.is_main());
        let at_work = |live: &&Live| {
            matches!(live.role, Role::Shell | Role::Both)
                && self.runs.values().any(|run| *run == live.run)
                && (!self.had_main.contains(&live.run) || has_main(live.run))
        };
        let kept: Vec<Serial> = self
            .live
            .iter()
            .filter(|live| !live.retired && (live.watched || at_work(live)))
            .map(|live| live.run)
            .collect();
        let is_left = |live: &&Live| live.retired || !kept.contains(&live.run);
        self.live.iter().filter(is_left).map(|live| live.process.pid).collect()
    }

    fn is_unkillable(&self, run: Serial) -> bool {
        self.live.iter().any(|live| live.run == run && live.process.start_ticks == UNKILLABLE)
    }

    fn terminate(&mut self, pid: u32) {
        match self.term {
            Term::Dies { after } => self.later(after, Happening::Dies { pid, exit: Exit::Signal(15) }),
            Term::Ignores => {}
        }
    }

    /// A process exits; its watcher, or the waiter of its command, is notified.
    fn end(&mut self, pid: u32, exit: Exit) {
        let Some(place) = self.live.iter().position(|live| live.process.pid == pid) else { return };
        if self.live[place].process.start_ticks == UNKILLABLE {
            return;
        }
        let Live { process, role, run, watched, .. } = self.live.remove(place);
        let life = self.life;
        let known = self.runs.iter().find(|(_, serial)| **serial == run).map(|(id, _)| *id);
        if let (Some(run), true) = (known, matches!(role, Role::Shell | Role::Both)) {
            let end = CommandEnd::Exited { exit, output: "its last words".to_owned() };
            self.later(
                0,
                Happening::Tell { life, input: Input::Answer(EffectAnswer::CommandEnded { run, end }) },
            );
        }
        if watched {
            self.later(
                0,
                Happening::Tell { life, input: Input::Notice(ProcNotice::Exited { process, exit }) },
            );
        }
    }

    fn look(&self, scope: LookScope, spec: &Spec) -> Sighting {
        match scope {
            LookScope::Settled => self.settled(spec, None),
            LookScope::After { dead } => self.settled(spec, Some(dead)),
            LookScope::Launch { run, leader } => self.launched(run, leader, spec),
            LookScope::Run(run) => {
                let serial = self.runs.get(&run);
                let at_work = |role| matches!(role, Role::Shell | Role::Both);
                let shell = |live: &&Live| Some(&live.run) == serial && at_work(live.role);
                match self.live.iter().find(shell) {
                    Some(live) => self.running(live.process.pid, Found::Foreground),
                    None => Sighting::Absent(Absence { cause: Cause::NoRun, hopeless: true }),
                }
            }
            LookScope::Leftovers => match self.leftovers().first() {
                Some(pid) => self.running(*pid, Found::Name),
                None => Sighting::Absent(Absence { cause: Cause::NoRun, hopeless: true }),
            },
            LookScope::ScheduledRun { last, since } => {
                let known = last.filter(|last| self.live.iter().any(|live| live.process.is(last)));
                let began = |live: &&Live| {
                    live.role == Role::Both
                        && since.is_some_and(|since| live.process.start_ticks >= since.0 / 10)
                };
                match (known, self.live.iter().find(began)) {
                    (Some(known), _) => Sighting::Running(known),
                    (None, Some(live)) => self.running(live.process.pid, Found::Name),
                    (None, None) => Sighting::Absent(Absence { cause: Cause::NoRun, hopeless: true }),
                }
            }
            LookScope::Recovery { .. } if self.missed_looks.get() > 0 => {
                self.missed_looks.set(self.missed_looks.get() - 1);
                Sighting::Absent(Absence { cause: no_such_name(), hopeless: true })
            }
            LookScope::Recovery { last } => {
                let seen = |process: &Process| self.live.iter().any(|live| live.process.is(process));
                if let Some(last) = last.filter(seen) {
                    return Sighting::Running(last);
                }
                let by_file = self.settled(spec, last);
                // While a start command runs, its pid file decides; stop and reload commands do not count.
                let command = |live: &&Live| live.starts && matches!(live.role, Role::Shell | Role::Both);
                let is_process = |live: &Live| live.role == Role::Both && spec.identity.pid_path.is_empty();
                match (by_file, self.live.iter().find(command), self.main_pid()) {
                    (Sighting::Running(process), _, _) => Sighting::Running(process),
                    (_, Some(command), _) if !is_process(command) => {
                        self.running(command.process.pid, Found::Shell)
                    }
                    (_, _, Some(pid)) => self.running(pid, Found::Name),
                    (absent, _, None) => absent,
                }
            }
        }
    }

    /// Leftovers of runs up to that of the dead process are not the process.
    fn settled(&self, spec: &Spec, dead: Option<Process>) -> Sighting {
        let is_left = |live: &Live| dead.is_some_and(|dead| live.process.evidence.run <= dead.evidence.run);
        let is_named = |live: &&Live| {
            live.role.is_main() || (self.leaves_namesakes && live.role == Role::Left && !is_left(live))
        };
        let by_name = || self.live.iter().find(is_named).map(|live| live.process.pid);
        match self.by_file(spec) {
            Some(Ok(pid)) => self.running(pid, Found::PidFile),
            Some(Err(cause)) => Sighting::Absent(Absence { cause, hopeless: true }),
            None => match by_name() {
                Some(pid) => self.running(pid, Found::Name),
                None => Sighting::Absent(Absence { cause: no_such_name(), hopeless: true }),
            },
        }
    }

    /// Here only a process beside its command has a name by which to find it among a run's members. Else the
    /// pid file counts, or the command itself.
    fn launched(&self, run: RunId, leader: Leader, spec: &Spec) -> Sighting {
        let cause = match self.by_file(spec) {
            Some(Ok(pid)) => return self.running(pid, Found::PidFile),
            Some(Err(cause)) => Some(cause),
            None => None,
        };
        let serial = self.runs.get(&run);
        let is_member = |live: &&Live| Some(&live.run) == serial && live.role != Role::Left;
        let members: Vec<&Live> = self.live.iter().filter(is_member).collect();
        let shell = members.iter().find(|live| live.role != Role::Main);
        let any = match leader {
            Leader::Accept => members.first(),
            Leader::AcceptNamed | Leader::Refuse => None,
        };
        if let (Leader::AcceptNamed, Some(both)) =
            (leader, members.iter().find(|live| live.role == Role::Both))
        {
            return self.running(both.process.pid, Found::Foreground);
        }
        let child = members.iter().find(|live| live.role == Role::Main && cause.is_none());
        if let (Some(_), Some(child)) = (shell, child) {
            return self.running(child.process.pid, Found::CommandChild);
        }
        match (shell.filter(|_| cause.is_none() || leader == Leader::Accept), any) {
            (Some(shell), _) => self.running(shell.process.pid, at_work(shell.role)),
            (None, Some(member)) => self.running(member.process.pid, Found::Name),
            (None, None) => match child {
                Some(main) => self.running(main.process.pid, Found::Name),
                None => Sighting::Absent(Absence {
                    cause: cause.unwrap_or_else(no_such_name),
                    hopeless: members.is_empty(),
                }),
            },
        }
    }

    fn by_file(&self, spec: &Spec) -> Option<Result<u32, Cause>> {
        let path = spec.identity.pid_path.clone();
        (!path.is_empty()).then(|| match self.pid_file {
            None => Err(Cause::NoPidFile { path }),
            Some(pid) if self.is_live(pid) => Ok(pid),
            Some(pid) => Err(Cause::DeadPid { path, pid }),
        })
    }

    fn running(&self, pid: u32, found: Found) -> Sighting {
        let live = self.live.iter().find(|live| live.process.pid == pid).expect("a live process");
        Sighting::Running(Process { found, ..live.process })
    }
}

/// How a command that is at work is found.
fn at_work(role: Role) -> Found {
    match role {
        Role::Shell => Found::Shell,
        Role::Main | Role::Both | Role::Left => Found::Foreground,
    }
}

const UNKILLABLE: u64 = u64::MAX;

fn no_such_name() -> Cause {
    Cause::NoSuchName { proc_name: "it".to_owned(), setup_path: "/srv/it".to_owned() }
}
