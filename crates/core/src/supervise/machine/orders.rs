//! Admission of orders: the queue, and orders that supersede the job under way.

use super::ending::{has_end_command, vanishes_within};
use super::vetting::Vet;
use super::{Machine, State, busy, missing_command, op_kind, queue_limit};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::id::OpId;
use crate::op::{OpKind, Order};
use crate::process::{Absence, Cause, Found};
use crate::spec::{Kind, Spec};
use crate::supervise::job::{Before, Clearing, EndPhase, Ending, Job, Launch, LaunchFailure, Purpose, Stage};
use crate::supervise::policy::Streak;
use crate::supervise::record::Rest;
use crate::supervise::{Effect, Hosting, Leader, LookScope, Step, Write, messages};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

impl Machine {
    /// Answers a query, refuses the order, or puts it into the queue. [`Machine::proceed`] begins it.
    pub(super) fn admit(&mut self, now: BootTime, state: State, order: Box<Order>, out: &mut Step) -> State {
        if order.kind == OpKind::Query {
            if !self.vet_query(&state, &order, out) {
                self.inspect(&state, &order, out);
            }
        } else if self.refuses_at_once(&state, &order, out) {
            // Refused and answered: a spec names an account that the app may not use, so vetting the process
            // is unnecessary.
        } else if self.queue.len() >= queue_limit(order.kind) {
            let message = messages::queue_full(order.kind, self.queue.len());
            self.answer(order.op, Code::Busy, message, out);
        } else if now >= order.start_by {
            self.answer(order.op, Code::Timeout, messages::came_late(order.kind), out);
        } else {
            self.queue.push_back(order);
        }
        state
    }

    /// Cancels an op. An op that has not begun does not begin. An op that is under way continues, and only
    /// its answer is given now. `None`: there is no such op here.
    pub fn cancel(&mut self, op: OpId) -> Option<Step> {
        let mut out = Step::default();
        if let Some(index) = self.queue.iter().position(|order| order.op == op) {
            let order = self.queue.remove(index).expect("the index is in the queue");
            self.answer(op, Code::Cancelled, messages::cancelled(order.kind), &mut out);
            return Some(out);
        }
        match &self.state {
            State::Busy(job) => match job.purpose.op() {
                Some((under_way, kind)) if under_way == op && self.rare.cancelled_op != Some(op) => {
                    self.answer(op, Code::Cancelled, messages::cancelled_under_way(kind), &mut out);
                    self.rare.cancelled_op = Some(op);
                    Some(out)
                }
                Some(_) | None => None,
            },
            State::Down(_) | State::Up(_) => None,
        }
    }

    /// Answers the orders in the queue that can no longer begin in time.
    pub(super) fn expire(&mut self, now: BootTime, out: &mut Step) {
        let (due, queue): (VecDeque<_>, _) =
            mem::take(&mut self.queue).into_iter().partition(|o| now >= o.start_by);
        self.queue = queue;
        for order in due {
            self.answer(order.op, Code::Timeout, messages::expired(order.kind), out);
        }
    }

    /// Starts the next order if there is no job, or an order that supersedes the job.
    pub(super) fn proceed(&mut self, now: BootTime, out: &mut Step) {
        loop {
            let state = self.take();
            let next = match &state {
                State::Busy(job) => self.queue.iter().position(|o| job.yields_to(o.kind)),
                State::Down(_) | State::Up(_) => (!self.queue.is_empty()).then_some(0),
            };
            let vet = next.map(|index| (index, self.vet(index, &state, out)));
            self.state = match (vet, state) {
                (None | Some((_, Vet::Asked)), state) => {
                    self.state = state;
                    return;
                }
                (Some((_, Vet::Refused)), state) => state,
                (Some((index, Vet::Passed)), State::Busy(job)) => self.overtake(now, *job, index, out),
                (Some((_, Vet::Passed)), state) => match self.queue.pop_front() {
                    // A stop or kill in the queue would supersede this order at once.
                    Some(order)
                        if launches(order.kind)
                            && let Some(by) = self.end_that_waits() =>
                    {
                        self.answer(order.op, Code::Cancelled, messages::overtaken(order.kind, by), out);
                        state
                    }
                    Some(order) => self.begin(now, state, *order, out),
                    None => state,
                },
            };
        }
    }

    /// The spec of an order as a shared copy. Most orders repeat the known spec.
    fn shared(&self, spec: Spec) -> Arc<Spec> {
        self.spec.as_ref().filter(|known| ***known == spec).cloned().unwrap_or_else(|| Arc::new(spec))
    }

    /// A stop or kill in the queue. An order that is not vetted yet may be refused, so it supersedes nothing.
    fn end_that_waits(&self) -> Option<OpKind> {
        let sure = self.queue.iter().filter(|order| order.accounts.is_all());
        sure.map(|order| order.kind).find(|kind| matches!(kind, OpKind::Stop | OpKind::Kill))
    }

    /// Begins an order. A known process leads to [`Machine::found`], an unknown one to a look first.
    pub(super) fn begin(&mut self, now: BootTime, state: State, order: Order, out: &mut Step) -> State {
        let Order { op, kind, spec, .. } = order;
        if kind == OpKind::Unhost {
            self.hosting = Hosting::Unhosted;
            self.answer(op, Code::Success, messages::SUCCESS, out);
            return match state {
                State::Down(_) => State::Down(Rest::Idle),
                state @ (State::Up(_) | State::Busy(_)) => state,
            };
        }
        if kind == OpKind::Unregister {
            return self.forget(op, state, out);
        }
        if kind == OpKind::Group {
            self.answer(op, Code::UnknownOp, messages::not_of_a_proc(kind), out);
            return state;
        }
        if kind == OpKind::Register && self.spec.is_some() {
            self.answer(op, Code::AlreadyRegistered, messages::ALREADY_REGISTERED, out);
            return state;
        }
        let Some(spec) = spec.map(|spec| self.shared(spec)).or_else(|| self.spec.clone()) else {
            self.answer(op, Code::NoSpec, messages::no_spec(kind), out);
            return state;
        };
        // The spec of an update or restart is stored, so for a hosted proc it must have what host asks for.
        let stays_hosted =
            matches!(kind, OpKind::Update | OpKind::Restart) && self.hosting == Hosting::Hosted;
        let missing = missing_command(kind, &spec)
            .or_else(|| missing_command(OpKind::Host, &spec).filter(|_| stays_hosted));
        if let Some(field) = missing {
            self.answer(op, Code::NoCommand, messages::no_command(kind, field), out);
            return state;
        }
        self.rare.success_note = None;
        if launches(kind) || matches!(kind, OpKind::Stop | OpKind::Kill) {
            // The order resets the fault.
            self.rare.fault = None;
        }
        let rest = match &state {
            State::Down(rest) => rest.clone(),
            State::Up(_) | State::Busy(_) => Rest::Idle,
        };
        let purpose = Purpose::Op { op, kind, before: Before { hosting: self.hosting, rest } };
        if !matches!(state, State::Up(_)) && self.runs_by_schedule(kind, &spec) {
            // A run of a periodic proc would be known.
            let absence = Absence { cause: Cause::NoRun, hopeless: true };
            return self.missing(now, purpose, spec, absence, None, out);
        }
        // An unknown proc may have been unregistered while its process kept running.
        let scope = match self.spec {
            Some(_) => self.settled(),
            None => LookScope::Recovery { last: None },
        };
        match state {
            State::Up(process) => self.found(now, purpose, spec, process, None, out),
            State::Down(_) | State::Busy(_) => self.look_first(scope, purpose, spec, None, out),
        }
    }

    /// Whether the order is for a periodic proc. A stop, kill or reload follows the stored spec.
    fn runs_by_schedule(&self, kind: OpKind, spec: &Spec) -> bool {
        match kind {
            OpKind::Stop | OpKind::Kill | OpKind::Reload => self.spec.as_deref().unwrap_or(spec),
            OpKind::Start
            | OpKind::Query
            | OpKind::Host
            | OpKind::Unhost
            | OpKind::Restart
            | OpKind::Register
            | OpKind::Update
            | OpKind::Unregister
            | OpKind::Group => spec,
        }
        .policy
        .kind
        .schedule()
        .is_some()
    }

    /// Deletes the record of the proc; the process keeps running.
    fn forget(&mut self, op: OpId, state: State, out: &mut Step) -> State {
        if self.spec.is_none() {
            self.answer(op, Code::NotRunning, messages::not_registered(&self.key.name), out);
            return state;
        }
        self.hosting = Hosting::Unhosted;
        self.answer(op, Code::Success, messages::SUCCESS, out);
        (self.spec, self.saved, self.streak) = (None, None, Streak::default());
        (self.rare.own_run, self.rare.run) = (None, None);
        self.rare.fault = None;
        out.writes.push(Write::Forget);
        State::Down(Rest::Idle)
    }

    /// A stop supersedes a launch, and a kill supersedes a stop. The superseded op is answered, and its
    /// processes are ended.
    pub(super) fn overtake(&mut self, now: BootTime, job: Job, index: usize, out: &mut Step) -> State {
        let order = self.queue.remove(index).expect("the index is in the queue");
        let ahead: Vec<Box<Order>> = self.queue.drain(..index).collect();
        let hosting = match &job.purpose {
            // The stop has ended hosting already.
            Purpose::Op { kind: OpKind::Stop, before, .. } => before.hosting,
            Purpose::Op { .. }
            | Purpose::Upkeep { .. }
            | Purpose::Enforce { .. }
            | Purpose::ScheduledRun
            | Purpose::Recover { .. }
            | Purpose::Aftermath => self.hosting,
        };
        match &job.stage {
            // The launch had failed before the order came.
            Stage::Clearing(Clearing { failure: Some(LaunchFailure { code, message, .. }), .. }) => {
                self.answer_op(&job.purpose, *code, message.clone(), out);
            }
            _ => {
                let message = messages::overtaken(op_kind(&job.purpose), order.kind);
                self.answer_op(&job.purpose, Code::Cancelled, message, out);
            }
        }
        self.rare.fault = None;
        self.rare.success_note = None;
        for passed in ahead {
            self.answer(passed.op, Code::Cancelled, messages::overtaken(passed.kind, order.kind), out);
        }
        let rest = self.saved.as_ref().map_or(Rest::Idle, |record| record.rest.clone());
        let purpose = Purpose::Op { op: order.op, kind: order.kind, before: Before { hosting, rest } };
        let spec = order.spec.map_or_else(|| job.spec.clone(), |spec| self.shared(spec));
        match job.stage {
            Stage::Looking { launch, .. } => self.look_first(self.settled(), purpose, spec, launch, out),
            Stage::Clearing(clearing) => {
                self.look_first(self.settled(), purpose, spec, Some(clearing.run), out)
            }
            Stage::Reviewing(_) | Stage::Planning { .. } => {
                self.look_first(self.settled(), purpose, spec, None, out)
            }
            Stage::Awaiting(awaiting) => self.overtake_awaiting(now, purpose, job.spec, &awaiting, out),
            Stage::Leaving(leaving) => self.overtake_leaving(now, purpose, job.spec, leaving, out),
            Stage::Launching(launch) => self.overtake_launch(now, purpose, spec, launch, out),
            Stage::Ending(mut ending) if order.kind == OpKind::Stop => {
                // The stop part of the restart is what the stop would do, so it continues with a new
                // deadline.
                self.hosting = Hosting::Unhosted;
                match &mut ending.phase {
                    EndPhase::Command(_) => {}
                    EndPhase::Vanish { until } | EndPhase::Killed { until } => {
                        *until = now + vanishes_within(&purpose, &job.spec);
                    }
                }
                busy(purpose, job.spec, Stage::Ending(ending))
            }
            Stage::Ending(Ending { process, phase, gone, launch, .. }) => {
                if let EndPhase::Command(command) = phase {
                    out.effects.push(Effect::EndRun(command.run));
                }
                match gone {
                    true => self.look_first(self.settled(), purpose, spec, launch, out),
                    false => self.found(now, purpose, spec, process, launch, out),
                }
            }
            Stage::Surviving(survival) => self.found(now, purpose, spec, survival.process, None, out),
            Stage::Reloading { command, process, gone } => {
                out.effects.push(Effect::EndRun(command.run));
                match gone {
                    true => self.look_first(self.settled(), purpose, spec, None, out),
                    false => self.found(now, purpose, spec, process, None, out),
                }
            }
        }
    }

    /// A superseded start does not continue: its command is ended with all its descendants. A stop command
    /// runs only afterwards and only if a process is still there, because a start command at work may hold a
    /// lock that the stop command needs. Without a stop command, a recognised process is first stopped like
    /// any other.
    pub(super) fn overtake_launch(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        launch: Launch,
        out: &mut Step,
    ) -> State {
        let run = launch.command.run;
        let leftover = launch.ended.is_none().then_some(run);
        match (launch.process(), launch.old) {
            // A run may leave processes on purpose.
            (Some(process), _) if self.rare.own_run.is_some() => {
                self.found(now, purpose, spec, process, None, out)
            }
            (Some(process), _)
                if leftover.is_some()
                    && (process.found != Found::Foreground || launch.is_child)
                    && spec.policy.kind == Kind::Resident
                    && has_end_command(&purpose, &spec) =>
            {
                self.hosting = Hosting::Unhosted;
                self.clear(now, purpose, spec, run, out)
            }
            (Some(process), _) => self.found(now, purpose, spec, process, leftover, out),
            // The process is not the run's, so the run can end at once, before it brings a second one.
            (None, Some(old)) => {
                out.effects.push(Effect::EndRun(run));
                self.found(now, purpose, spec, old, None, out)
            }
            // A stop_cmd would find nothing to stop.
            (None, None) if spec.policy.kind == Kind::Resident => {
                self.hosting = Hosting::Unhosted;
                self.clear(now, purpose, spec, run, out)
            }
            // The process of a proc of kind `once` is its command.
            (None, None) => {
                let scope = LookScope::Launch { run, leader: Leader::Accept };
                self.look_first(scope, purpose, spec, leftover, out)
            }
        }
    }
}

fn launches(kind: OpKind) -> bool {
    matches!(kind, OpKind::Start | OpKind::Host | OpKind::Restart)
}
