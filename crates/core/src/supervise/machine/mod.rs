//! The transition function: one match on (state, input). The picture is in the parent module, and each stage
//! has its own file.

mod awaiting;
mod clearing;
mod command_at_work;
mod ending;
mod health;
mod launching;
mod leaving;
mod observed;
mod orders;
mod queries;
mod rare;
mod reloading;
mod sampling;
mod schedule;
mod upkeep;
mod vetting;

pub use vetting::group_refusal;

use super::policy::Streak;
use super::record::{Record, Rest};
use super::{
    Activity, Commit, Effect, EffectAnswer, Event, Hosting, Input, LookId, LookScope, ProcNotice, RunId,
    Signal, Step, Write, messages,
};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::id::{OpId, ProcKey};
use crate::op::{Content, OpKind, Order, Outcome, ProcStatus};
use crate::process::Process;
use crate::spec::{Detached, Kind, Spec};
use crate::supervise::job::{Job, Purpose, Running, Stage};
use rare::RareBox;
use schedule::{Overlap, Since};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// How many orders may wait for one proc. A caller that sends more is not waiting for answers.
const QUEUE_LIMIT: usize = 16;

/// One proc on one host. All decisions about it are made here.
///
/// An agent has one for each proc, so fields that most procs do not need are in a box (`rare`).
#[derive(Clone, Debug)]
pub struct Machine {
    key: Arc<ProcKey>,
    /// `None`: the proc was never started, hosted or registered here.
    spec: Option<Arc<Spec>>,
    hosting: Hosting,
    state: State,
    /// Boxed because the queue keeps its capacity and is nearly always empty.
    queue: VecDeque<Box<Order>>,
    streak: Streak,
    /// The stored record, during a step and while a job is under way. Otherwise [`Machine::record`] is equal
    /// to it.
    saved: Option<Box<Record>>,
    /// The last op that has acted.
    begun: Option<OpId>,
    /// The process exited without a stop, or was never recognised, so there may be leftovers.
    may_have_leftovers: bool,
    /// The time of its staggered restart has been assigned.
    has_start_slot: bool,
    /// The process has run since the agent started, so its start does not crash the agent.
    ran_in_this_life: bool,
    rare: RareBox,
    serial: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Down(Rest),
    Up(Process),
    Busy(Box<Job>),
}

/// The run of a superseded launch, which must end with the process.
type OvertakenRun = Option<RunId>;

impl Machine {
    /// A proc that this agent has never seen.
    pub fn new(key: impl Into<Arc<ProcKey>>) -> Machine {
        Machine {
            key: key.into(),
            spec: None,
            hosting: Hosting::Unhosted,
            state: State::Down(Rest::Idle),
            queue: VecDeque::new(),
            streak: Streak::default(),
            saved: None,
            begun: None,
            may_have_leftovers: false,
            has_start_slot: false,
            ran_in_this_life: false,
            rare: RareBox::default(),
            serial: 0,
        }
    }

    /// A proc from the journal, after a restart of the agent. `interrupted` are the ops that had begun and
    /// have no outcome.
    pub fn recover(
        key: impl Into<Arc<ProcKey>>,
        record: Record,
        interrupted: Vec<(OpId, OpKind)>,
    ) -> (Machine, Step) {
        let mut machine = Machine {
            spec: Some(record.spec.clone()),
            hosting: record.hosting,
            streak: record.streak,
            saved: Some(Box::new(record.clone())),
            // An unknown operation may have been under way when the agent exited.
            may_have_leftovers: true,
            ..Machine::new(key)
        };
        machine.rare.fault.clone_from(&record.fault);
        machine.rare.interrupted_launch = launch_cut_off(&record, &interrupted);
        machine.rare.older.clone_from(&record.older);
        machine.rare.run.clone_from(&record.run);
        // If the process lives, the first look finds it.
        machine.rare.dead = record.process.or(record.dead);
        let mut out = Step::default();
        out.effects.extend(record.older.iter().copied().map(Effect::Retire));
        let scope = match (record.spec.policy.kind.schedule(), &record.rest, record.process) {
            (None, _, last) => LookScope::Recovery { last: last.or(record.dead) },
            (Some(_), Rest::Begun { at }, None) => LookScope::ScheduledRun { last: None, since: Some(*at) },
            (Some(_), _, last) => LookScope::ScheduledRun { last, since: None },
        };
        let look = machine.look(scope, &record.spec, &mut out);
        machine.state = State::Busy(Box::new(Job {
            purpose: Purpose::Recover { interrupted },
            spec: record.spec,
            stage: Stage::Looking { look, launch: None },
        }));
        (machine, out)
    }

    /// Shared, to save memory.
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

    /// Why the proc is not in its wanted state; else empty.
    pub fn note(&self, now: BootTime) -> Cow<'_, str> {
        self.note_in(now, &self.state)
    }

    fn note_in<'a>(&'a self, now: BootTime, state: &'a State) -> Cow<'a, str> {
        match state {
            State::Down(Rest::GaveUp { reason }) => reason.into(),
            State::Down(Rest::Retry { at, why }) => messages::starts_in(at.since(now), why).into(),
            State::Down(Rest::Idle) if self.rare.fault.is_none() => {
                self.rare.odd_absence.as_deref().unwrap_or_default().into()
            }
            State::Busy(job) if let Stage::Awaiting(awaiting) = &job.stage => {
                messages::start_cut_off(awaiting.command.map(|command| command.pid)).into()
            }
            State::Up(_) if self.rare.fault.is_none() && !self.rare.older.is_empty() => {
                messages::generations(&self.rare.older).into()
            }
            State::Down(Rest::Idle | Rest::Due { .. } | Rest::Begun { .. })
            | State::Up(_)
            | State::Busy(_) => self.rare.fault.as_deref().unwrap_or_default().into(),
        }
    }

    /// The proc is not running, and is not restarted without an order.
    pub fn has_given_up(&self) -> bool {
        matches!(self.state, State::Down(Rest::GaveUp { .. }))
    }

    /// An operation or a restart is under way.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, State::Busy(_))
    }

    /// The activity that is shown to users.
    pub fn activity(&self) -> Option<Activity> {
        match &self.state {
            State::Down(_) | State::Up(_) => None,
            State::Busy(job) => Some(job.activity()),
        }
    }

    /// The machine has no state: no spec, and no order.
    pub fn is_blank(&self) -> bool {
        self.spec.is_none() && self.queue.is_empty() && self.rare.queries.is_empty() && !self.is_busy()
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
        let command = self.rare.command_at_work.as_ref().and_then(|command| command.wakes_at());
        state.into_iter().chain(command).chain(self.queue.iter().map(|order| order.start_by)).min()
    }

    /// The effects of the last step happened this much later than its decision, because its writes took this
    /// long. Deadlines count from the effects, so that a process has its full time to exit.
    pub fn delayed(&mut self, by: Duration) {
        if let State::Busy(job) = &mut self.state {
            job.stage.delay(by);
        }
    }

    /// The transition function. Returns the writes and effects of this input.
    pub fn step(&mut self, now: BootTime, input: Input) -> Step {
        let mut out = Step::default();
        self.recall();
        self.ran_in_this_life |= matches!(self.state, State::Up(_));
        let upkeep = self.is_kept_up();
        self.rare.interrupted_launch = self
            .rare
            .interrupted_launch
            .filter(|since| self.spec.as_ref().is_some_and(|spec| now < *since + brings_within(spec)));
        if let Input::Notice(ProcNotice::Exited { process, .. }) = &input {
            self.rare.older.retain(|older| !older.is(process));
        }
        self.observe_command(now, &input);
        let state = self.take();
        let input = self.run_ended(&state, input, &mut out);
        self.state = match (state, input) {
            (state, Input::Order(order)) => self.admit(now, state, order, &mut out),
            (state, Input::Answer(EffectAnswer::Inspected { op, view })) => {
                self.inspected(now, state, op, *view, &mut out)
            }
            (state, Input::Notice(ProcNotice::Health { process, health })) => {
                self.health_changed(state, process, health)
            }

            (State::Down(Rest::Retry { at, .. }), Input::Tick) if now >= at => {
                self.upkeep(now, "a restart was due".to_owned(), &mut out)
            }
            (State::Down(Rest::Due { at }), Input::Tick) if now >= at => self.due(now, at, &mut out),
            (State::Down(Rest::Due { .. }), Input::Tick)
                if self.plans_again_at().is_some_and(|again| now >= again) =>
            {
                self.schedule(now, Since::Now, &mut out)
            }
            (state, Input::Notice(ProcNotice::Sampled { process, usage })) => {
                self.sampled(now, state, process, usage, &mut out)
            }
            (state, Input::Notice(ProcNotice::Overused { process, overuse, past })) => {
                self.overused(now, state, process, *overuse, past, &mut out)
            }
            (State::Up(up), Input::Tick) if self.run_deadline().is_some_and(|deadline| now >= deadline) => {
                self.run_overdue(now, up, &mut out)
            }
            (State::Up(up), Input::Answer(EffectAnswer::Planned { plan, next }))
                if self.rare.overlap == Overlap::Asked(plan) =>
            {
                self.overlap_planned(now, next, &mut out);
                State::Up(up)
            }
            (State::Up(up), Input::Notice(ProcNotice::Replaced { old, process })) if up.is(&old) => {
                self.replaced(up, process, &mut out)
            }
            (State::Down(rest), Input::Notice(ProcNotice::Appeared { process })) => {
                self.appeared(now, rest, process, &mut out)
            }
            (State::Up(up), Input::Notice(ProcNotice::Exited { process, exit })) if up.is(&process) => {
                self.exited(now, up, exit, &mut out)
            }

            (State::Busy(job), input) => self.advance(now, *job, input, &mut out),

            // Late answers to questions that no longer matter, and ticks that are not due.
            (state @ (State::Down(_) | State::Up(_)), Input::Tick | Input::Answer(_) | Input::Notice(_)) => {
                state
            }
        };
        self.expire(now, &mut out);
        self.proceed(now, &mut out);
        self.react_to_unhealthy(now, &mut out);
        self.watch_run(now, &mut out);
        self.report_command_failure(now, &mut out);
        if let State::Up(_) = self.state {
            self.rare.dead = None;
        }
        self.write_begun(&mut out);
        self.save(&mut out);
        if upkeep && self.is_kept_up() && out.writes.iter().all(may_be_lost) {
            out.commit = Commit::Alongside;
        }
        out
    }

    // Helpers of all stages.

    fn take(&mut self) -> State {
        mem::replace(&mut self.state, State::Down(Rest::Idle))
    }

    fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Removes leftovers of an earlier launch before a launch by order. A run of a periodic process may leave
    /// processes on purpose.
    fn tidy(&mut self, spec: &Spec, out: &mut Step) {
        if self.may_have_leftovers && spec.policy.kind.schedule().is_none() {
            self.sweep(spec, out);
        }
    }

    /// Kills leftovers of dead processes, unless the spec keeps them.
    fn sweep(&mut self, spec: &Spec, out: &mut Step) {
        self.may_have_leftovers = false;
        match spec.policy.detached {
            Detached::End => out.effects.push(Effect::Sweep(Signal::Kill)),
            // Only the processes of an interrupted launch are killed: they would run beside those of the next
            // one.
            Detached::Keep => {
                out.effects.extend(self.rare.interrupted_launch.take().map(Effect::ClearSince));
            }
        }
    }

    fn look_first(
        &mut self,
        scope: LookScope,
        purpose: Purpose,
        spec: Arc<Spec>,
        launch: OvertakenRun,
        out: &mut Step,
    ) -> State {
        let look = self.look(scope, &spec, out);
        busy(purpose, spec, Stage::Looking { look, launch })
    }

    /// Where to look for a proc that may be running.
    pub fn settled(&self) -> LookScope {
        self.rare.dead.map_or(LookScope::Settled, |dead| LookScope::After { dead })
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
        if self.rare.cancelled_op == Some(op) {
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

    /// Answers an op that has succeeded, with the note if there is one.
    fn answer_success(&mut self, op: OpId, out: &mut Step) {
        let success_note = self.rare.success_note.take();
        let message =
            success_note.map_or_else(|| messages::SUCCESS.to_owned(), |note| messages::success_but(&note));
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

    /// An op has begun when it first acts; it must not be repeated after that. An op that has only looked may
    /// be repeated: other effects of that step belong to the previous op.
    fn write_begun(&mut self, out: &mut Step) {
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
            | Effect::Stagger { .. } => false,
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

    /// A resident process that runs, waits for a restart, or is being restarted without an order. Until the
    /// process has run once under this agent, each start must be counted durably before it is tried, because
    /// it may crash the agent.
    fn is_kept_up(&self) -> bool {
        let resident = self.spec.as_ref().is_some_and(|spec| spec.policy.kind == Kind::Resident);
        resident
            && self.ran_in_this_life
            && match &self.state {
                State::Up(_) | State::Down(Rest::Retry { .. }) => true,
                State::Down(Rest::Idle | Rest::Due { .. } | Rest::Begun { .. } | Rest::GaveUp { .. }) => {
                    false
                }
                State::Busy(job) => matches!(job.purpose, Purpose::Upkeep { .. }),
            }
    }

    /// Called before each step: the record of a proc without a job is not kept between steps.
    fn recall(&mut self) {
        if !self.is_busy() {
            self.saved = self.record().map(Box::new);
        }
    }

    /// Called after each step: writes the record of the proc if it has changed.
    fn save(&mut self, out: &mut Step) {
        let record = self.record().map(Box::new);
        if let Some(record) = record.as_ref().filter(|record| self.saved.as_ref() != Some(record)) {
            out.writes.push(Write::Record(record.clone()));
        }
        self.saved = record.filter(|_| self.is_busy());
        self.rare.tidy();
    }

    /// The durable state; `None` for a proc that is not registered.
    fn record(&self) -> Option<Record> {
        let spec = self.spec.clone()?;
        let rest = match &self.state {
            State::Down(rest) => rest.clone(),
            State::Up(_) => Rest::Idle,
            // A retry stays due until its launch has ended, so that a crash in between does not lose it. An
            // order that has only looked does not change it either.
            State::Busy(job) => match (&job.purpose, &job.stage, &self.saved) {
                (Purpose::Upkeep { .. } | Purpose::Recover { .. }, _, Some(saved)) => saved.rest.clone(),
                (Purpose::Op { before, .. }, Stage::Looking { .. }, _) => before.rest.clone(),
                // A run that has begun is not begun again, even if it was not seen yet.
                (_, Stage::Launching(launch), _) if job.spec.policy.kind.schedule().is_some() => {
                    Rest::Begun { at: launch.began }
                }
                (Purpose::ScheduledRun, Stage::Planning { .. }, Some(saved)) => saved.rest.clone(),
                (
                    Purpose::Op { .. }
                    | Purpose::Upkeep { .. }
                    | Purpose::Enforce { .. }
                    | Purpose::ScheduledRun
                    | Purpose::Recover { .. }
                    | Purpose::Aftermath,
                    _,
                    _,
                ) => Rest::Idle,
            },
        };
        let process = match (&self.state, &self.saved) {
            // Until the look is answered, the last known process is the best guess.
            (State::Busy(job), Some(saved)) if matches!(job.purpose, Purpose::Recover { .. }) => {
                saved.process
            }
            (State::Busy(_) | State::Up(_) | State::Down(_), _) => self.process(),
        };
        let (fault, older) = (self.rare.fault.clone(), self.rare.older.clone());
        let (hosting, streak, run) = (self.hosting, self.streak, self.rare.run.clone());
        let dead = self.rare.dead.filter(|_| process.is_none());
        Some(Record { spec, hosting, process, streak, rest, fault, older, run, dead })
    }
}

/// Whether a restarted agent can reconstruct this write by looking at the host: that a process is gone, or
/// that there is another one. Giving up, the failure of a command and the outcome of an op cannot be
/// reconstructed.
fn may_be_lost(write: &Write) -> bool {
    match write {
        Write::Record(_) => true,
        Write::Event(event) => !matches!(event, Event::GaveUp { .. } | Event::CommandFailed { .. }),
        Write::Forget | Write::Begun(_) | Write::Done(..) => false,
    }
}

/// A stop or kill is accepted when the queue is full for other operations.
fn queue_limit(kind: OpKind) -> usize {
    if kind.ends_process() { 2 * QUEUE_LIMIT } else { QUEUE_LIMIT }
}

fn busy(purpose: Purpose, spec: Arc<Spec>, stage: Stage) -> State {
    State::Busy(Box::new(Job { purpose, spec, stage }))
}

/// When the launch began that a restart of the agent interrupted before its process was seen.
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

/// The latest time at which the process of a launch can appear.
fn brings_within(spec: &Spec) -> std::time::Duration {
    spec.policy.op_timeout + spec.policy.start_check
}

fn op_kind(purpose: &Purpose) -> OpKind {
    purpose.op().map_or(OpKind::Start, |(_, kind)| kind)
}

/// The command that the order needs and that the spec does not have.
fn missing_command(kind: OpKind, spec: &Spec) -> Option<&'static str> {
    let control = &spec.control;
    match kind {
        // A hosted process is restarted when it exits, so the command is needed even if it runs now.
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
