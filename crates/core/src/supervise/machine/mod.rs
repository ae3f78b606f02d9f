//! One match on (state, input); the picture stands in the module above, and each stage has a file of its own.

mod awaiting;
mod clearing;
mod ending;
mod health;
mod launching;
mod leaving;
mod observed;
mod orders;
mod queries;
mod reloading;
mod sampling;
mod turns;
mod upkeep;
mod vetting;

pub use vetting::group_refusal;

use super::limits::LimitStrain;
use super::policy::Streak;
use super::record::{Record, Rest, ScheduledRun};
use super::{
    Activity, Commit, Effect, Event, Hosting, Input, LookId, LookScope, RunId, Signal, Step, Write, words,
};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::id::{OpId, ProcKey};
use crate::op::{Content, OpKind, Order, Outcome, ProcStatus};
use crate::process::Process;
use crate::spec::{Detached, Kind, Spec};
use crate::supervise::job::{Job, Purpose, Running, Stage};
use health::CheckedProcess;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use turns::{Overlap, Since, Turn};

/// How many orders may wait for one proc. A caller that sends more is not waiting for answers.
const QUEUE_LIMIT: usize = 16;

/// One proc on one host. Everything that is decided about it is decided here.
#[derive(Clone, Debug)]
pub struct Machine {
    key: Arc<ProcKey>,
    /// `None`: a proc that nobody started or hosted here yet.
    spec: Option<Arc<Spec>>,
    hosting: Hosting,
    state: State,
    /// Each in its own place: the queue keeps its room, and it is nearly always empty.
    queue: VecDeque<Box<Order>>,
    /// Queries that wait for [`Machine::vetted`].
    queries: Vec<Order>,
    /// The order that may begin in this step: no process of another account is involved.
    vetted: Option<OpId>,
    streak: Streak,
    saved: Option<Record>,
    /// The run of a periodic process that is under way and that this life of the agent began.
    turn: Option<Turn>,
    /// The same, with what is to be remembered of it, and of a run that an earlier life began.
    run: Option<ScheduledRun>,
    /// When the next run is due that the one under way keeps from beginning.
    overlap: Overlap,
    /// When the wall clock was last asked for the next run.
    planned: BootTime,
    /// How its latest samples stand to its limits.
    strain: LimitStrain,
    /// What its `health_cmd` has led to.
    patient: Option<CheckedProcess>,
    /// Why the agent or the kernel ended it; empty once it runs stably again, or an order came.
    fault: String,
    /// What was wrong where it was looked for in vain; else empty.
    puzzle: String,
    /// The op that has acted last.
    begun: Option<OpId>,
    /// The op under way that nobody waits for any more. It is answered already.
    let_go: Option<OpId>,
    /// It ended without being stopped, or was never recognised: something of it may be left.
    untidy: bool,
    /// When a launch of the agent's last life began of which nobody knows what it has brought, as long as
    /// that may still come.
    unsure: Option<BootTime>,
    /// Its place among many restarts has been given, and is waited for.
    placed: bool,
    /// It has been up in this life of the agent, so its start does not take the agent down with it.
    survived: bool,
    /// Earlier generations of a program that has replaced itself, as long as they run.
    older: Vec<Process>,
    /// The last process, as long as there is no other: its workers may have outlived it, and bear its name.
    dead: Option<Process>,
    /// What the caller of the op under way is told although it succeeds; else empty.
    remark: String,
    serial: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Down(Rest),
    Up(Process),
    Busy(Box<Job>),
}

/// Whether a run that must end together with the process is still to be ended.
type Leftover = Option<RunId>;

impl Machine {
    /// A proc that this agent has never seen.
    pub fn new(key: impl Into<Arc<ProcKey>>) -> Machine {
        Machine {
            key: key.into(),
            spec: None,
            hosting: Hosting::Unhosted,
            state: State::Down(Rest::Idle),
            queue: VecDeque::new(),
            queries: Vec::new(),
            vetted: None,
            streak: Streak::default(),
            saved: None,
            turn: None,
            run: None,
            overlap: Overlap::Unknown,
            planned: BootTime(0),
            strain: LimitStrain::default(),
            patient: None,
            fault: String::new(),
            puzzle: String::new(),
            begun: None,
            let_go: None,
            untidy: false,
            unsure: None,
            placed: false,
            survived: false,
            older: Vec::new(),
            dead: None,
            remark: String::new(),
            serial: 0,
        }
    }

    /// A proc from the agent's last life. `interrupted` are the ops that had begun and have no outcome.
    pub fn recover(
        key: impl Into<Arc<ProcKey>>,
        record: Record,
        interrupted: Vec<(OpId, OpKind)>,
    ) -> (Machine, Step) {
        let mut machine = Machine {
            spec: Some(record.spec.clone()),
            hosting: record.hosting,
            streak: record.streak,
            saved: Some(record.clone()),
            fault: record.fault.clone(),
            // Nobody knows what was under way when the agent ended.
            untidy: true,
            unsure: launch_cut_off(&record, &interrupted),
            older: record.older.clone(),
            run: record.run,
            // If the process lives, the first look finds it.
            dead: record.process.or(record.dead),
            ..Machine::new(key)
        };
        let mut out = Step::default();
        out.effects.extend(record.older.iter().copied().map(Effect::Retire));
        let scope = match (record.spec.policy.kind.schedule(), &record.rest, record.process) {
            (None, _, last) => LookScope::Recovery { last: last.or(record.dead) },
            (Some(_), Rest::Begun { at }, None) => LookScope::Turn { last: None, since: Some(*at) },
            (Some(_), _, last) => LookScope::Turn { last, since: None },
        };
        let look = machine.look(scope, &record.spec, &mut out);
        machine.state = State::Busy(Box::new(Job {
            purpose: Purpose::Recover { interrupted },
            spec: record.spec,
            stage: Stage::Looking { look, launch: None },
        }));
        (machine, out)
    }

    /// Whoever has to do with it may share this.
    pub fn key(&self) -> &Arc<ProcKey> {
        &self.key
    }

    pub fn hosting(&self) -> Hosting {
        self.hosting
    }

    /// `isAuto` in status answers. A run-once proc counts as hosted while its command runs.
    pub fn is_hosted(&self) -> bool {
        self.is_hosted_in(&self.state)
    }

    fn is_hosted_in(&self, state: &State) -> bool {
        let runs_once = self.spec.as_ref().is_some_and(|spec| spec.policy.kind == Kind::Once)
            && matches!(state, State::Busy(job) if matches!(job.stage, Stage::Launching(_)));
        runs_once || self.hosting == Hosting::Hosted
    }

    pub fn spec(&self) -> Option<&Arc<Spec>> {
        self.spec.as_ref()
    }

    /// The live process, as far as it is known.
    pub fn process(&self) -> Option<Process> {
        match &self.state {
            State::Down(_) => None,
            State::Up(process) => Some(*process),
            State::Busy(job) => job.stage.process(),
        }
    }

    /// Why it is not as it should be; else empty.
    pub fn note(&self, now: BootTime) -> Cow<'_, str> {
        self.note_in(now, &self.state)
    }

    fn note_in<'a>(&'a self, now: BootTime, state: &'a State) -> Cow<'a, str> {
        match state {
            State::Down(Rest::GaveUp { reason }) => reason.into(),
            State::Down(Rest::Retry { at, why }) => words::starts_in(at.since(now), why).into(),
            State::Down(Rest::Idle) if self.fault.is_empty() => self.puzzle.as_str().into(),
            State::Busy(job) if let Stage::Awaiting(awaiting) = &job.stage => {
                words::start_cut_off(awaiting.command.pid).into()
            }
            State::Up(_) if self.fault.is_empty() && !self.older.is_empty() => {
                words::generations(&self.older).into()
            }
            State::Down(Rest::Idle | Rest::Due { .. } | Rest::Begun { .. })
            | State::Up(_)
            | State::Busy(_) => self.fault.as_str().into(),
        }
    }

    /// It is not running, and will not be started again without an order.
    pub fn has_given_up(&self) -> bool {
        matches!(self.state, State::Down(Rest::GaveUp { .. }))
    }

    /// An operation or a restart is under way.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, State::Busy(_))
    }

    /// What is under way, as people say it.
    pub fn activity(&self) -> Option<Activity> {
        match &self.state {
            State::Down(_) | State::Up(_) => None,
            State::Busy(job) => Some(job.activity()),
        }
    }

    /// Nothing here is worth remembering: no spec, nothing under way.
    pub fn is_blank(&self) -> bool {
        self.spec.is_none() && self.queue.is_empty() && self.queries.is_empty() && !self.is_busy()
    }

    /// When to tick at the latest.
    pub fn wake_at(&self) -> Option<BootTime> {
        let state = match &self.state {
            State::Down(Rest::Retry { at, .. }) => Some(*at),
            State::Down(Rest::Due { at }) => self.plans_again_at().into_iter().chain([*at]).min(),
            State::Down(Rest::Idle | Rest::GaveUp { .. } | Rest::Begun { .. }) => None,
            State::Up(_) => self.run_wakes_at(),
            State::Busy(job) => job.stage.wake_at(&job.spec),
        };
        state.into_iter().chain(self.queue.iter().map(|order| order.start_by)).min()
    }

    /// The effects of the last step happened this much later than the step was decided, because its writes
    /// took so long. Deadlines count from the effects: a process has its whole time to end after it was told
    /// to.
    pub fn delayed(&mut self, by: Duration) {
        if let State::Busy(job) = &mut self.state {
            job.stage.delay(by);
        }
    }

    pub fn step(&mut self, now: BootTime, input: Input) -> Step {
        let mut out = Step::default();
        self.survived |= matches!(self.state, State::Up(_));
        let upkeep = self.is_kept_up();
        self.unsure = self
            .unsure
            .filter(|since| self.spec.as_ref().is_some_and(|spec| now < *since + brings_within(spec)));
        if let Input::Exited { process, .. } = &input {
            self.older.retain(|older| !older.is(process));
        }
        let state = self.take();
        let input = self.turn_ended(&state, input, &mut out);
        self.state = match (state, input) {
            (state, Input::Order(order)) => self.admit(now, state, order, &mut out),
            (state, Input::Inspected { op, view }) => self.inspected(now, state, op, *view, &mut out),
            (state, Input::Health { process, health }) => self.heard(state, process, health),

            (State::Down(Rest::Retry { at, .. }), Input::Tick) if now >= at => {
                self.upkeep(now, "a restart was due".to_owned(), &mut out)
            }
            (State::Down(Rest::Due { at }), Input::Tick) if now >= at => self.due(now, at, &mut out),
            (State::Down(Rest::Due { .. }), Input::Tick)
                if self.plans_again_at().is_some_and(|again| now >= again) =>
            {
                self.schedule(now, Since::Now, &mut out)
            }
            (state, Input::Sampled { process, usage }) => self.sampled(now, state, process, usage, &mut out),
            (state, Input::Overused { process, overuse, past }) => {
                self.overused(now, state, process, *overuse, past, &mut out)
            }
            (State::Up(up), Input::Tick) if self.run_deadline().is_some_and(|deadline| now >= deadline) => {
                self.run_overdue(now, up, &mut out)
            }
            (State::Up(up), Input::Planned { plan, next }) if self.overlap == Overlap::Asked(plan) => {
                self.overlap_planned(now, next, &mut out);
                State::Up(up)
            }
            (State::Up(up), Input::Succeeded { old, process }) if up.is(&old) => {
                self.succeeded(up, process, &mut out)
            }
            (State::Down(rest), Input::Appeared { process }) => self.appeared(now, rest, process, &mut out),
            (State::Up(up), Input::Exited { process, exit }) if up.is(&process) => {
                self.exited(now, up, exit, &mut out)
            }

            (State::Busy(job), input) => self.advance(now, *job, input, &mut out),

            // Late answers to questions that no longer matter, and ticks that are not due.
            (
                state @ (State::Down(_) | State::Up(_)),
                Input::Tick
                | Input::Exited { .. }
                | Input::Sighted { .. }
                | Input::CommandEnded { .. }
                | Input::Planned { .. }
                | Input::Succeeded { .. }
                | Input::Appeared { .. }
                | Input::Placed { .. },
            ) => state,
        };
        self.expire(now, &mut out);
        self.proceed(now, &mut out);
        self.treat(now, &mut out);
        self.watch_run(now, &mut out);
        if let State::Up(_) = self.state {
            self.dead = None;
        }
        self.mark_begun(&mut out);
        self.save(&mut out);
        if upkeep && self.is_kept_up() && out.writes.iter().all(may_be_lost) {
            out.commit = Commit::Alongside;
        }
        out
    }

    // What all stages need.

    fn take(&mut self) -> State {
        mem::replace(&mut self.state, State::Down(Rest::Idle))
    }

    fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Makes sure that a launch by order does not meet what an earlier one left. The run of a periodic
    /// process may be meant to leave something.
    fn tidy(&mut self, spec: &Spec, out: &mut Step) {
        if self.untidy && spec.policy.kind.schedule().is_none() {
            self.sweep(spec, out);
        }
    }

    /// Kills what is left of dead processes, unless the spec says that it may stay.
    fn sweep(&mut self, spec: &Spec, out: &mut Step) {
        self.untidy = false;
        match spec.policy.detached {
            Detached::End => out.effects.push(Effect::Sweep(Signal::Kill)),
            // What is meant to stay does. But a launch that was cut off by the agent's end would be there
            // beside the next one.
            Detached::Keep => {
                out.effects.extend(self.unsure.take().map(Effect::ClearSince));
            }
        }
    }

    fn look_first(
        &mut self,
        scope: LookScope,
        purpose: Purpose,
        spec: Arc<Spec>,
        launch: Leftover,
        out: &mut Step,
    ) -> State {
        let look = self.look(scope, &spec, out);
        busy(purpose, spec, Stage::Looking { look, launch })
    }

    /// Where a proc that may be running is looked for.
    pub fn settled(&self) -> LookScope {
        self.dead.map_or(LookScope::Settled, |dead| LookScope::After { dead })
    }

    fn look(&mut self, scope: LookScope, spec: &Arc<Spec>, out: &mut Step) -> LookId {
        let look = LookId(self.serial());
        out.effects.push(Effect::Look { look, scope, spec: spec.clone() });
        look
    }

    fn run(
        &mut self,
        field: &'static str,
        command: &str,
        spec: &Arc<Spec>,
        now: BootTime,
        out: &mut Step,
    ) -> Running {
        let run = RunId(self.serial());
        out.effects.push(Effect::Run { run, command: command.to_owned(), spec: spec.clone() });
        Running { run, field, deadline: Some(now + spec.policy.op_timeout), timed_out: false }
    }

    fn answer(&self, op: OpId, code: Code, message: impl Into<String>, out: &mut Step) {
        if self.let_go == Some(op) {
            return;
        }
        let identity = self.spec.as_ref().map(|spec| spec.identity.clone()).unwrap_or_default();
        let content = Content::Control {
            hosted: self.hosting == Hosting::Hosted,
            proc_name: identity.proc_name,
            setup_path: identity.setup_path,
        };
        out.writes.push(Write::Done(op, Outcome::new(code, message, content)));
    }

    /// Answers an op that has succeeded, with what its caller should know all the same.
    fn succeed(&mut self, op: OpId, out: &mut Step) {
        let remark = mem::take(&mut self.remark);
        let message = if remark.is_empty() { words::SUCCESS.to_owned() } else { words::success_but(&remark) };
        self.answer(op, Code::Success, message, out);
    }

    fn answer_op(&self, purpose: &Purpose, code: Code, message: impl Into<String>, out: &mut Step) {
        if let Some((op, _)) = purpose.op() {
            self.answer(op, code, message, out);
        }
    }

    fn answer_query(&self, op: OpId, code: Code, message: String, status: ProcStatus, out: &mut Step) {
        let content = Content::Status(Box::new(status));
        out.writes.push(Write::Done(op, Outcome::new(code, message, content)));
    }

    /// An op has begun when it first acts: from then on it must not be repeated. One that has only looked may
    /// be: what a step does beside that look was done for the op before.
    fn mark_begun(&mut self, out: &mut Step) {
        let acts = out.effects.iter().any(|effect| match effect {
            Effect::Run { .. }
            | Effect::EndRun(_)
            | Effect::TermRun(_)
            | Effect::Signal { .. }
            | Effect::SignalOne { .. }
            | Effect::SignalRetired { .. }
            | Effect::Sweep(_)
            | Effect::ClearSince(_) => true,
            Effect::Look { .. }
            | Effect::Watch(_)
            | Effect::Retire(_)
            | Effect::Inspect { .. }
            | Effect::Vet { .. }
            | Effect::Plan { .. }
            | Effect::Place { .. } => false,
        });
        if let State::Busy(job) = &self.state
            && let Purpose::Op { op, .. } = job.purpose
            && acts
            && !matches!(job.stage, Stage::Looking { .. })
            && self.begun != Some(op)
        {
            self.begun = Some(op);
            out.writes.push(Write::Begun(op));
        }
    }

    /// A resident process that runs, waits to be started again, or is being started again, and not by
    /// anybody's order. As long as nobody knows whether the agent survives its start, each one must be
    /// counted before it is tried.
    fn is_kept_up(&self) -> bool {
        let resident = self.spec.as_ref().is_some_and(|spec| spec.policy.kind == Kind::Resident);
        resident
            && self.survived
            && match &self.state {
                State::Up(_) | State::Down(Rest::Retry { .. }) => true,
                State::Down(Rest::Idle | Rest::Due { .. } | Rest::Begun { .. } | Rest::GaveUp { .. }) => {
                    false
                }
                State::Busy(job) => matches!(job.purpose, Purpose::Upkeep { .. }),
            }
    }

    /// Remembers the proc if anything about it has changed.
    fn save(&mut self, out: &mut Step) {
        let Some(spec) = self.spec.clone() else { return };
        let rest = match &self.state {
            State::Down(rest) => rest.clone(),
            State::Up(_) => Rest::Idle,
            // A retry stays due until its launch has an end: a crash in between must not forget it. Nor does
            // an order that has only looked so far change what the proc waits for.
            State::Busy(job) => match (&job.purpose, &job.stage, &self.saved) {
                (Purpose::Upkeep { .. } | Purpose::Recover { .. }, _, Some(saved)) => saved.rest.clone(),
                (Purpose::Op { before, .. }, Stage::Looking { .. }, _) => before.rest.clone(),
                // A run that has begun is not begun again, even if nobody has seen it yet.
                (_, Stage::Launching(launch), _) if job.spec.policy.kind.schedule().is_some() => {
                    Rest::Begun { at: launch.began }
                }
                (Purpose::Turn, Stage::Planning { .. }, Some(saved)) => saved.rest.clone(),
                (
                    Purpose::Op { .. }
                    | Purpose::Upkeep { .. }
                    | Purpose::Limit { .. }
                    | Purpose::Turn
                    | Purpose::Recover { .. }
                    | Purpose::Aftermath,
                    _,
                    _,
                ) => Rest::Idle,
            },
        };
        let process = match (&self.state, &self.saved) {
            // Until the look is answered, what was known last is still the best guess.
            (State::Busy(job), Some(saved)) if matches!(job.purpose, Purpose::Recover { .. }) => {
                saved.process
            }
            (State::Busy(_) | State::Up(_) | State::Down(_), _) => self.process(),
        };
        let (fault, older) = (self.fault.clone(), self.older.clone());
        let (hosting, streak, run) = (self.hosting, self.streak, self.run);
        let dead = self.dead.filter(|_| process.is_none());
        let record = Record { spec, hosting, process, streak, rest, fault, older, run, dead };
        if self.saved.as_ref() != Some(&record) {
            self.saved = Some(record.clone());
            out.writes.push(Write::Record(Box::new(record)));
        }
    }
}

/// Whether the agent's next life finds out by itself what this says: that a process is gone, or that there is
/// another one. That it was given up, or what became of an op, nobody could see.
fn may_be_lost(write: &Write) -> bool {
    match write {
        Write::Record(_) => true,
        Write::Event(event) => !matches!(event, Event::GaveUp { .. }),
        Write::Forget | Write::Begun(_) | Write::Done(..) => false,
    }
}

/// Somebody who wants it ended gets in where others are turned away.
fn queue_limit(kind: OpKind) -> usize {
    match kind {
        OpKind::Stop | OpKind::Kill => 2 * QUEUE_LIMIT,
        OpKind::Start
        | OpKind::Query
        | OpKind::Host
        | OpKind::Unhost
        | OpKind::Restart
        | OpKind::Reload
        | OpKind::Register
        | OpKind::Update
        | OpKind::Unregister
        | OpKind::Group => QUEUE_LIMIT,
    }
}

fn busy(purpose: Purpose, spec: Arc<Spec>, stage: Stage) -> State {
    State::Busy(Box::new(Job { purpose, spec, stage }))
}

/// When the launch began that was under way when the agent ended, before its process was seen.
fn launch_cut_off(record: &Record, interrupted: &[(OpId, OpKind)]) -> Option<BootTime> {
    let began = record.streak.last_start.filter(|_| record.process.is_none())?;
    let launches =
        |(_, kind): &(OpId, OpKind)| matches!(kind, OpKind::Start | OpKind::Host | OpKind::Restart);
    let kept_up = record.hosting == Hosting::Hosted
        && match record.rest {
            Rest::Idle => true,
            Rest::Retry { at, .. } => began >= at,
            Rest::Due { .. } | Rest::Begun { .. } | Rest::GaveUp { .. } => false,
        };
    let resident = record.spec.policy.kind == Kind::Resident;
    (resident && (kept_up || interrupted.iter().any(launches))).then_some(began)
}

/// What a launch has not brought by then it does not bring.
fn brings_within(spec: &Spec) -> std::time::Duration {
    spec.policy.op_timeout + spec.policy.start_check
}

fn op_kind(purpose: &Purpose) -> OpKind {
    purpose.op().map_or(OpKind::Start, |(_, kind)| kind)
}

/// The command without which the order is pointless, whatever the process does.
fn missing_command(kind: OpKind, spec: &Spec) -> Option<&'static str> {
    let control = &spec.control;
    match kind {
        // What is hosted is started again when it ends, also if it runs now.
        OpKind::Start | OpKind::Host if control.start_cmd.is_empty() => Some("start_cmd"),
        OpKind::Restart if control.start_cmd.is_empty() && spec.policy.kind.schedule().is_some() => {
            Some("start_cmd")
        }
        OpKind::Restart if control.restart_cmd.is_empty() && control.start_cmd.is_empty() => {
            Some("restart_cmd and no start_cmd")
        }
        OpKind::Reload if control.reload_cmd.is_empty() && control.reload_signal.is_none() => {
            Some("reload_cmd")
        }
        OpKind::Start
        | OpKind::Stop
        | OpKind::Query
        | OpKind::Host
        | OpKind::Unhost
        | OpKind::Restart
        | OpKind::Reload
        | OpKind::Kill
        | OpKind::Register
        | OpKind::Update
        | OpKind::Unregister
        | OpKind::Group => None,
    }
}

fn unreachable_kind(kind: OpKind) -> State {
    unreachable!("{} is answered before a job is made of it", kind.verb())
}
