//! One match on (state, input); the picture stands in the module above.

use super::job::{
    Before, EndPhase, Ended, Ending, Job, LOOK_EVERY, Launch, Overdue, Purpose, Review, Running, Stage,
};
use super::policy::{Fall, Streak, Verdict};
use super::record::{Record, Rest};
use super::{
    CommandEnd, Effect, Event, Hosting, Input, Leader, LookId, RunId, Scope, Signal, Step, View, Write, words,
};
use crate::code::Code;
use crate::id::{OpId, ProcKey};
use crate::moment::Moment;
use crate::op::{Content, OpKind, Order, Outcome, ProcStatus};
use crate::process::{Absence, Exit, Found, Process, Sighting};
use crate::spec::{Kind, Spec};
use std::collections::VecDeque;
use std::mem;

/// How many orders may wait for one proc. A caller that sends more is not waiting for answers.
const QUEUE_LIMIT: usize = 16;

/// One proc on one host. Everything that is decided about it is decided here.
#[derive(Clone, Debug)]
pub struct Machine {
    key: ProcKey,
    /// `None`: a proc that nobody started or hosted here yet.
    spec: Option<Spec>,
    hosting: Hosting,
    state: State,
    queue: VecDeque<Order>,
    streak: Streak,
    saved: Option<Record>,
    /// It ended without being stopped, or was never recognised: something of it may be left.
    untidy: bool,
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
    pub fn new(key: ProcKey) -> Machine {
        Machine {
            key,
            spec: None,
            hosting: Hosting::Unhosted,
            state: State::Down(Rest::Idle),
            queue: VecDeque::new(),
            streak: Streak::default(),
            saved: None,
            untidy: false,
            serial: 0,
        }
    }

    /// A proc from the agent's last life. `interrupted` are the ops that had begun and have no outcome.
    pub fn recover(key: ProcKey, record: Record, interrupted: Vec<(OpId, OpKind)>) -> (Machine, Step) {
        let mut machine = Machine {
            spec: Some(record.spec.clone()),
            hosting: record.hosting,
            streak: record.streak,
            saved: Some(record.clone()),
            // Nobody knows what was under way when the agent ended.
            untidy: true,
            ..Machine::new(key)
        };
        let mut out = Step::default();
        let scope = Scope::Recovery { last: record.process };
        let look = machine.look(scope, &record.spec, &mut out);
        machine.state = State::Busy(Box::new(Job {
            purpose: Purpose::Recover { interrupted },
            spec: record.spec,
            stage: Stage::Looking { look, launch: None },
        }));
        (machine, out)
    }

    pub fn key(&self) -> &ProcKey {
        &self.key
    }

    pub fn hosting(&self) -> Hosting {
        self.hosting
    }

    pub fn spec(&self) -> Option<&Spec> {
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

    /// Why it is not running although it should be; else empty.
    pub fn note(&self) -> &str {
        match &self.state {
            State::Down(Rest::GaveUp { reason }) => reason,
            State::Down(Rest::Idle | Rest::Retry { .. }) | State::Up(_) | State::Busy(_) => "",
        }
    }

    /// An operation or a restart is under way.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, State::Busy(_))
    }

    /// Nothing here is worth remembering: no spec, nothing under way.
    pub fn is_blank(&self) -> bool {
        self.spec.is_none() && self.queue.is_empty() && !self.is_busy()
    }

    /// When to tick at the latest.
    pub fn wake_at(&self) -> Option<Moment> {
        let state = match &self.state {
            State::Down(Rest::Retry { at }) => Some(*at),
            State::Down(Rest::Idle | Rest::GaveUp { .. }) | State::Up(_) => None,
            State::Busy(job) => job.stage.wake_at(&job.spec),
        };
        state.into_iter().chain(self.queue.iter().map(|order| order.start_by)).min()
    }

    pub fn step(&mut self, now: Moment, input: Input) -> Step {
        let mut out = Step::default();
        let state = self.take();
        self.state = match (state, input) {
            (state, Input::Order(order)) => self.admit(now, state, *order, &mut out),
            (state, Input::Inspected { op, view }) => self.inspected(state, op, view, &mut out),

            (State::Down(Rest::Retry { at }), Input::Tick) if now >= at => {
                self.upkeep("a restart was due".to_owned(), &mut out)
            }
            (State::Up(up), Input::Exited { process, exit }) if up.is(&process) => {
                self.exited(now, up, exit, &mut out)
            }

            (State::Busy(job), input) => self.advance(now, *job, input, &mut out),

            // Late answers to questions that no longer matter, and ticks that are not due.
            (
                state @ (State::Down(_) | State::Up(_)),
                Input::Tick | Input::Exited { .. } | Input::Sighted { .. } | Input::CommandEnded { .. },
            ) => state,
        };
        self.expire(now, &mut out);
        self.proceed(now, &mut out);
        self.save(&mut out);
        out
    }

    // ---- orders ----

    fn admit(&mut self, now: Moment, state: State, order: Order, out: &mut Step) -> State {
        if order.kind == OpKind::Query {
            self.inspect(&state, &order, out);
        } else if self.queue.len() >= QUEUE_LIMIT {
            let message = words::queue_full(order.kind, QUEUE_LIMIT);
            self.answer(order.op, Code::Busy, message, out);
        } else if now >= order.start_by {
            self.answer(order.op, Code::Timeout, words::expired(order.kind), out);
        } else {
            self.queue.push_back(order);
        }
        state
    }

    fn expire(&mut self, now: Moment, out: &mut Step) {
        let (due, queue): (VecDeque<_>, _) =
            mem::take(&mut self.queue).into_iter().partition(|o| now >= o.start_by);
        self.queue = queue;
        for order in due {
            self.answer(order.op, Code::Timeout, words::expired(order.kind), out);
        }
    }

    /// Takes up what waits: the next order when there is no job, or one that does not wait for the job's end.
    fn proceed(&mut self, now: Moment, out: &mut Step) {
        loop {
            match self.take() {
                State::Busy(job) => match self.queue.iter().position(|o| job.yields_to(o.kind)) {
                    Some(place) => self.state = self.overtake(now, *job, place, out),
                    None => {
                        self.state = State::Busy(job);
                        return;
                    }
                },
                state => match self.queue.pop_front() {
                    Some(order) => self.state = self.begin(now, state, order, out),
                    None => {
                        self.state = state;
                        return;
                    }
                },
            }
        }
    }

    fn begin(&mut self, now: Moment, state: State, order: Order, out: &mut Step) -> State {
        let Order { op, kind, spec, .. } = order;
        if kind == OpKind::Unhost {
            self.hosting = Hosting::Unhosted;
            self.answer(op, Code::Success, words::SUCCESS, out);
            return match state {
                State::Down(_) => State::Down(Rest::Idle),
                state @ (State::Up(_) | State::Busy(_)) => state,
            };
        }
        let Some(spec) = spec.or_else(|| self.spec.clone()) else {
            self.answer(op, Code::NoSpec, words::no_spec(kind), out);
            return state;
        };
        if let Some(field) = missing_command(kind, &spec) {
            self.answer(op, Code::NoCommand, words::no_command(kind, field), out);
            return state;
        }
        out.writes.push(Write::Begun(op));
        let rest = match &state {
            State::Down(rest) => rest.clone(),
            State::Up(_) | State::Busy(_) => Rest::Idle,
        };
        let purpose = Purpose::Op { op, kind, before: Before { hosting: self.hosting, rest } };
        match state {
            State::Up(process) => self.found(now, purpose, spec, process, None, out),
            State::Down(_) | State::Busy(_) => self.look_first(Scope::Settled, purpose, spec, None, out),
        }
    }

    /// A stop does not wait for a launch, nor a kill for a stop. What is overtaken is answered, and what was launched
    /// so far is ended.
    fn overtake(&mut self, now: Moment, job: Job, place: usize, out: &mut Step) -> State {
        let order = self.queue.remove(place).expect("place is a position in the queue");
        let ahead: Vec<Order> = self.queue.drain(..place).collect();
        let hosting = match &job.purpose {
            // It has ended hosting already.
            Purpose::Op { kind: OpKind::Stop, before, .. } => before.hosting,
            Purpose::Op { .. } | Purpose::Upkeep { .. } | Purpose::Recover { .. } => self.hosting,
        };
        self.answer_op(
            &job.purpose,
            Code::Cancelled,
            words::overtaken(op_kind(&job.purpose), order.kind),
            out,
        );
        for passed in ahead {
            self.answer(passed.op, Code::Cancelled, words::overtaken(passed.kind, order.kind), out);
        }
        out.writes.push(Write::Begun(order.op));
        let rest = self.saved.as_ref().map_or(Rest::Idle, |record| record.rest.clone());
        let purpose = Purpose::Op { op: order.op, kind: order.kind, before: Before { hosting, rest } };
        let spec = order.spec.unwrap_or_else(|| job.spec.clone());
        match job.stage {
            Stage::Looking { .. } | Stage::Reviewing(_) => {
                self.look_first(Scope::Settled, purpose, spec, None, out)
            }
            Stage::Launching(launch) => self.overtake_launch(now, purpose, spec, launch, out),
            Stage::Ending(mut ending) if order.kind == OpKind::Stop => {
                // What the restart began is just what the stop would do, so it goes on; only its time begins anew.
                self.hosting = Hosting::Unhosted;
                if let EndPhase::Vanish { until } = &mut ending.phase {
                    *until = now + job.spec.policy.stop_check;
                }
                busy(purpose, job.spec, Stage::Ending(ending))
            }
            Stage::Ending(Ending { process, phase, gone, launch, .. }) => {
                if let EndPhase::Command(command) = phase {
                    out.effects.push(Effect::EndRun(command.run));
                }
                match gone {
                    true => self.look_first(Scope::Settled, purpose, spec, launch, out),
                    false => self.found(now, purpose, spec, process, launch, out),
                }
            }
            Stage::Reloading { command, process, gone } => {
                out.effects.push(Effect::EndRun(command.run));
                match gone {
                    true => self.look_first(Scope::Settled, purpose, spec, None, out),
                    false => self.found(now, purpose, spec, process, None, out),
                }
            }
        }
    }

    fn overtake_launch(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        launch: Launch,
        out: &mut Step,
    ) -> State {
        let run = launch.command.run;
        let leftover = launch.ended.is_none().then_some(run);
        match (launch.seen, launch.old) {
            (Some(process), _) => self.found(now, purpose, spec, process, leftover, out),
            // The process is not the run's, so the run can end at once, before it brings a second one.
            (None, Some(old)) => {
                out.effects.push(Effect::EndRun(run));
                self.found(now, purpose, spec, old, None, out)
            }
            (None, None) => {
                let scope = Scope::Launch { run, leader: Leader::Accept };
                self.look_first(scope, purpose, spec, leftover, out)
            }
        }
    }

    // ---- jobs ----

    fn advance(&mut self, now: Moment, job: Job, input: Input, out: &mut Step) -> State {
        let Job { purpose, spec, stage } = job;
        match (stage, input) {
            (Stage::Looking { look, launch }, Input::Sighted { look: answered, sighting })
                if look == answered =>
            {
                match sighting {
                    Sighting::Running(process) => {
                        out.effects.push(Effect::Watch(process));
                        self.found(now, purpose, spec, process, launch, out)
                    }
                    Sighting::Absent(absence) => self.missing(now, purpose, spec, absence, launch, out),
                }
            }
            (Stage::Launching(launch), input) => self.launching(now, purpose, spec, launch, input, out),
            (Stage::Ending(ending), input) => self.ending(now, purpose, spec, ending, input, out),
            (Stage::Reloading { command, process, gone }, input) => {
                self.reloading(now, purpose, spec, command, process, gone, input, out)
            }
            (Stage::Reviewing(review), input) => self.reviewing(now, purpose, spec, review, input, out),
            (
                stage @ Stage::Looking { .. },
                Input::Tick
                | Input::Exited { .. }
                | Input::Sighted { .. }
                | Input::CommandEnded { .. }
                | Input::Order(_)
                | Input::Inspected { .. },
            ) => busy(purpose, spec, stage),
        }
    }

    /// The process is running: what does that mean for this purpose?
    fn found(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        process: Process,
        launch: Leftover,
        out: &mut Step,
    ) -> State {
        match purpose {
            Purpose::Op { op, kind, before } => match kind {
                OpKind::Start => {
                    // Nothing is run and nothing replaced; but a proc that was unknown is known from now on.
                    let message = words::already_running(&spec, &self.key.name);
                    self.spec.get_or_insert(spec);
                    self.answer(op, Code::AlreadyRunning, message, out);
                    State::Up(process)
                }
                OpKind::Host => {
                    self.spec = Some(spec);
                    self.hosting = Hosting::Hosted;
                    self.streak.forgive();
                    self.answer(op, Code::Success, words::SUCCESS, out);
                    State::Up(process)
                }
                OpKind::Restart => {
                    self.spec = Some(spec.clone());
                    let purpose = Purpose::Op { op, kind, before };
                    if spec.control.restart_cmd.is_empty() {
                        self.end(now, purpose, spec, process, launch, out)
                    } else {
                        self.launch(now, purpose, spec, Some(process), out)
                    }
                }
                OpKind::Stop | OpKind::Kill => {
                    // Hosting ends first, and durably: whatever happens from here on, nobody starts it again.
                    self.hosting = Hosting::Unhosted;
                    self.end(now, Purpose::Op { op, kind, before }, spec, process, launch, out)
                }
                OpKind::Reload => {
                    let command = self.run("reload_cmd", &spec.control.reload_cmd, &spec, now, out);
                    busy(
                        Purpose::Op { op, kind, before },
                        spec,
                        Stage::Reloading { command, process, gone: false },
                    )
                }
                OpKind::Query | OpKind::Unhost => unreachable_kind(kind),
            },
            Purpose::Upkeep { .. } => State::Up(process),
            Purpose::Recover { interrupted } => {
                self.interrupted(interrupted, Some(process.pid), out);
                State::Up(process)
            }
        }
    }

    /// The process is not running: what does that mean for this purpose?
    fn missing(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        absence: Absence,
        launch: Leftover,
        out: &mut Step,
    ) -> State {
        match purpose {
            Purpose::Op { op, kind, before } => match kind {
                OpKind::Host if spec.control.start_cmd.is_empty() => {
                    self.answer(op, Code::NoCommand, words::no_command(kind, "start_cmd"), out);
                    State::Down(before.rest)
                }
                OpKind::Start | OpKind::Host | OpKind::Restart => {
                    if kind == OpKind::Host {
                        self.hosting = Hosting::Hosted;
                    }
                    self.streak.forgive();
                    self.tidy(&spec, out);
                    self.launch(now, Purpose::Op { op, kind, before }, spec, None, out)
                }
                OpKind::Stop | OpKind::Kill => {
                    self.hosting = Hosting::Unhosted;
                    if kind == OpKind::Kill && spec.control.kill_cmd.is_empty() {
                        // What was never recognised as the process is part of its tree too.
                        self.sweep(out);
                    }
                    match launch {
                        Some(run) => {
                            out.effects.push(Effect::EndRun(run));
                            self.answer(op, Code::Success, words::SUCCESS, out);
                        }
                        None => {
                            let message = words::not_running(kind, &spec, &self.key.name, &absence.cause);
                            self.answer(op, Code::NotRunning, message, out);
                        }
                    }
                    State::Down(Rest::Idle)
                }
                OpKind::Reload => {
                    let message = words::not_running(kind, &spec, &self.key.name, &absence.cause);
                    self.answer(op, Code::NotRunning, message, out);
                    State::Down(before.rest)
                }
                OpKind::Query | OpKind::Unhost => unreachable_kind(kind),
            },
            Purpose::Upkeep { last } => self.revive(now, &last, out),
            Purpose::Recover { interrupted } => {
                self.interrupted(interrupted, None, out);
                match self.saved.as_ref().map(|record| record.rest.clone()) {
                    Some(rest @ Rest::GaveUp { .. }) => State::Down(rest),
                    Some(rest @ Rest::Retry { .. }) if self.hosting == Hosting::Hosted => State::Down(rest),
                    Some(Rest::Idle | Rest::Retry { .. }) | None => {
                        self.rest(now, Fall::Died, "it ended while the agent was away", out)
                    }
                }
            }
        }
    }

    fn interrupted(&mut self, ops: Vec<(OpId, OpKind)>, pid: Option<u32>, out: &mut Step) {
        for (op, kind) in ops {
            self.answer(op, Code::Interrupted, words::interrupted(kind, pid), out);
        }
    }

    // ---- launching ----

    fn launch(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        old: Option<Process>,
        out: &mut Step,
    ) -> State {
        let (field, command) = match &purpose {
            Purpose::Op { kind: OpKind::Restart, .. } if !spec.control.restart_cmd.is_empty() => {
                ("restart_cmd", spec.control.restart_cmd.clone())
            }
            Purpose::Op { .. } | Purpose::Upkeep { .. } | Purpose::Recover { .. } => {
                ("start_cmd", spec.control.start_cmd.clone())
            }
        };
        self.spec = Some(spec.clone());
        self.streak.last_start = Some(now);
        let mut launch = Launch {
            command: self.run(field, &command, &spec, now, out),
            began: now,
            ended: None,
            old,
            seen: None,
            died: None,
            missing: None,
            looking: None,
            next_look: now,
        };
        launch.await_foreground(now, &spec);
        busy(purpose, spec, Stage::Launching(launch))
    }

    fn launching(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        mut launch: Launch,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::CommandEnded { run, end } if run == launch.command.run => {
                return self.launched(now, purpose, spec, launch, end, out);
            }
            Input::Sighted { look, sighting } if launch.looking == Some(look) => {
                launch.looking = None;
                launch.next_look = now + LOOK_EVERY;
                match sighting {
                    Sighting::Running(process) => {
                        out.effects.push(Effect::Watch(process));
                        launch.seen = Some(process);
                        launch.missing = None;
                    }
                    Sighting::Absent(absence) => launch.missing = Some(absence),
                }
            }
            Input::Exited { process, exit } => {
                if launch.seen.is_some_and(|seen| seen.is(&process)) {
                    launch.seen = None;
                    launch.next_look = now;
                    let expected = launch.old.is_some_and(|old| old.is(&process));
                    if !expected {
                        launch.died = Some((process, exit));
                        // One more look: it may have handed over to a successor.
                        launch.missing = None;
                    }
                }
                if launch.old.is_some_and(|old| old.is(&process)) {
                    launch.old = None;
                    if launch.ended.is_none() {
                        launch.await_foreground(now, &spec);
                    }
                }
            }
            Input::Tick
            | Input::CommandEnded { .. }
            | Input::Sighted { .. }
            | Input::Order(_)
            | Input::Inspected { .. } => {}
        }
        self.check_launch(now, purpose, spec, launch, out)
    }

    /// The command of a launch ended, or never began.
    fn launched(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        mut launch: Launch,
        end: CommandEnd,
        out: &mut Step,
    ) -> State {
        let field = launch.command.field;
        match end {
            CommandEnd::NotStarted { code, reason } => {
                let message = format!("{field} could not be run: {reason}");
                self.launch_failed(now, purpose, launch, code, message, out)
            }
            CommandEnd::Exited { output, .. } if launch.command.timed_out => {
                let message = words::command_timeout(field, spec.policy.op_timeout, &output);
                self.launch_failed(now, purpose, launch, Code::CommandTimeout, message, out)
            }
            CommandEnd::Exited { exit: Exit::Code(0), output } => {
                if spec.policy.kind == Kind::Once {
                    return self.ran_once(purpose, launch.old, out);
                }
                launch.ended = Some(Ended { at: now, output });
                launch.next_look = now;
                launch.missing = None;
                self.check_launch(now, purpose, spec, launch, out)
            }
            CommandEnd::Exited { exit, output } => {
                let message = words::command_failed(field, exit, &output);
                self.launch_failed(now, purpose, launch, Code::CommandFailed, message, out)
            }
        }
    }

    /// Where does the launch stand?
    fn check_launch(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        mut launch: Launch,
        out: &mut Step,
    ) -> State {
        let check_until = launch.check_until(&spec);
        let resident = spec.policy.kind == Kind::Resident;
        match (&launch.ended, launch.seen) {
            (_, Some(process)) if now >= check_until => return self.launch_succeeded(purpose, process, out),
            (_, Some(_)) => {}
            (Some(ended), None) => {
                // It is given up when the window is over; or at once when it is certain that nothing will come;
                // but never without a look.
                let settled = launch
                    .missing
                    .as_ref()
                    .is_some_and(|m| m.hopeless || launch.died.is_some() || now >= check_until);
                if settled && launch.looking.is_none() {
                    let output = ended.output.clone();
                    return self.not_alive(now, purpose, spec, launch, &output, out);
                }
            }
            (None, None) => {
                let looked = launch.missing.is_some() || launch.old.is_some() || !resident;
                if now >= launch.command.deadline && (looked || launch.command.timed_out) {
                    match launch.command.overdue(now) {
                        Overdue::No => {}
                        Overdue::End => out.effects.push(Effect::EndRun(launch.command.run)),
                        Overdue::Abandon => {
                            let message =
                                words::command_timeout(launch.command.field, spec.policy.op_timeout, "");
                            return self.launch_failed(
                                now,
                                purpose,
                                launch,
                                Code::CommandTimeout,
                                message,
                                out,
                            );
                        }
                    }
                }
            }
        }
        if launch.look_at(&spec).is_some_and(|at| now >= at) {
            let scope = Scope::Launch { run: launch.command.run, leader: Leader::Refuse };
            launch.looking = Some(self.look(scope, &spec, out));
        }
        busy(purpose, spec, Stage::Launching(launch))
    }

    fn launch_succeeded(&mut self, purpose: Purpose, process: Process, out: &mut Step) -> State {
        match purpose {
            Purpose::Op { op, kind, .. } => {
                // A restart leaves hosting as it was.
                if matches!(kind, OpKind::Start | OpKind::Host) {
                    self.hosting = Hosting::Hosted;
                }
                self.answer(op, Code::Success, words::SUCCESS, out);
            }
            Purpose::Upkeep { .. } | Purpose::Recover { .. } => {
                out.writes.push(Write::Event(Event::RestartSucceeded { pid: process.pid }));
            }
        }
        State::Up(process)
    }

    fn ran_once(&mut self, purpose: Purpose, old: Option<Process>, out: &mut Step) -> State {
        if let Purpose::Op { op, .. } = purpose {
            self.answer(op, Code::Success, words::SUCCESS, out);
        }
        // A restart_cmd may have left alone what was running.
        old.map_or(State::Down(Rest::Idle), State::Up)
    }

    fn not_alive(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        launch: Launch,
        output: &str,
        out: &mut Step,
    ) -> State {
        let missing = launch.missing.as_ref().map(|absence| absence.cause.to_string());
        let why = match launch.died {
            Some((process, exit)) => format!("pid {} {exit}", process.pid),
            None => missing.unwrap_or_else(|| "it did not appear".to_owned()),
        };
        let kind = match &purpose {
            Purpose::Op { kind, .. } => *kind,
            Purpose::Upkeep { .. } | Purpose::Recover { .. } => OpKind::Start,
        };
        let message = words::post_check(kind, &spec, &self.key.name, &why, output);
        self.launch_failed(now, purpose, launch, Code::PostCheck, message, out)
    }

    fn launch_failed(
        &mut self,
        now: Moment,
        purpose: Purpose,
        launch: Launch,
        code: Code,
        message: String,
        out: &mut Step,
    ) -> State {
        match purpose {
            Purpose::Op { op, .. } => self.answer(op, code, message.clone(), out),
            Purpose::Upkeep { .. } | Purpose::Recover { .. } => {
                out.writes.push(Write::Event(Event::RestartFailed { reason: message.clone() }));
            }
        }
        // A restart_cmd that failed may have left the old process alone.
        match launch.seen.or(launch.old) {
            Some(process) => State::Up(process),
            None => self.rest(now, Fall::NotStarted, &message, out),
        }
    }

    // ---- ending ----

    fn end(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        process: Process,
        launch: Leftover,
        out: &mut Step,
    ) -> State {
        let kill = matches!(purpose, Purpose::Op { kind: OpKind::Kill, .. });
        let (field, command) = match kill {
            true => ("kill_cmd", spec.control.kill_cmd.clone()),
            false => ("stop_cmd", spec.control.stop_cmd.clone()),
        };
        let phase = if command.is_empty() {
            let signal = if kill { Signal::Kill } else { Signal::Term };
            out.effects.push(Effect::Signal { process, signal });
            EndPhase::Vanish { until: now + spec.policy.stop_check }
        } else {
            EndPhase::Command(self.run(field, &command, &spec, now, out))
        };
        busy(
            purpose,
            spec,
            Stage::Ending(Ending { process, phase, gone: false, note: String::new(), launch }),
        )
    }

    fn ending(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        mut ending: Ending,
        input: Input,
        out: &mut Step,
    ) -> State {
        match (&mut ending.phase, input) {
            (_, Input::Exited { process, .. }) if ending.process.is(&process) => ending.gone = true,
            (EndPhase::Command(command), Input::CommandEnded { run, end }) if command.run == run => {
                let field = command.field;
                match end {
                    // Without the command, the process that is gone is still as it was asked to be.
                    CommandEnd::NotStarted { code, reason } if !ending.gone => {
                        let message = format!("{field} could not be run: {reason}");
                        return self.end_failed(purpose, ending, code, message, out);
                    }
                    CommandEnd::NotStarted { .. } | CommandEnd::Exited { .. } => {}
                }
                ending.note = words::command_note(field, (!command.timed_out).then_some(&end));
                ending.phase = EndPhase::Vanish { until: now + spec.policy.stop_check };
            }
            (EndPhase::Command(command), Input::Tick) => match command.overdue(now) {
                Overdue::No => {}
                Overdue::End => out.effects.push(Effect::EndRun(command.run)),
                Overdue::Abandon => {
                    ending.note = words::command_note(command.field, None);
                    ending.phase = EndPhase::Vanish { until: now + spec.policy.stop_check };
                }
            },
            // Anything else only makes the clock below look again.
            (EndPhase::Command(_) | EndPhase::Vanish { .. }, _) => {}
        }
        match ending.phase {
            // While the command runs, the process being gone is not the end: the command must not outlive the
            // stop and hit what is started next.
            EndPhase::Command(_) => {}
            EndPhase::Vanish { .. } if ending.gone => return self.ended(now, purpose, spec, ending, out),
            EndPhase::Vanish { until } if now >= until => {
                let kind = op_kind(&purpose);
                let message = words::still_alive(
                    kind,
                    &spec,
                    &self.key.name,
                    ending.process.pid,
                    spec.policy.stop_check,
                    &ending.note,
                );
                return self.end_failed(purpose, ending, Code::PostCheck, message, out);
            }
            EndPhase::Vanish { .. } => {}
        }
        busy(purpose, spec, Stage::Ending(ending))
    }

    fn ended(&mut self, now: Moment, purpose: Purpose, spec: Spec, ending: Ending, out: &mut Step) -> State {
        if let Some(run) = ending.launch {
            out.effects.push(Effect::EndRun(run));
        }
        // A command that was taken for the process may have left the real one behind.
        self.untidy |= ending.process.found == Found::Foreground;
        match purpose {
            Purpose::Op { kind: OpKind::Restart, .. } => {
                self.streak.forgive();
                self.tidy(&spec, out);
                self.launch(now, purpose, spec, None, out)
            }
            Purpose::Op { op, .. } => {
                self.answer(op, Code::Success, words::SUCCESS, out);
                State::Down(Rest::Idle)
            }
            Purpose::Upkeep { .. } | Purpose::Recover { .. } => {
                self.rest(now, Fall::Died, "it was ended", out)
            }
        }
    }

    fn end_failed(
        &mut self,
        purpose: Purpose,
        ending: Ending,
        code: Code,
        message: String,
        out: &mut Step,
    ) -> State {
        if let Purpose::Op { op, before, .. } = purpose {
            self.hosting = before.hosting;
            self.answer(op, code, message, out);
        }
        State::Up(ending.process)
    }

    // ---- reloading ----

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one stage, taken apart by the caller's match"
    )]
    fn reloading(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        mut command: Running,
        process: Process,
        mut gone: bool,
        input: Input,
        out: &mut Step,
    ) -> State {
        let mut ended = None;
        match input {
            Input::Exited { process: dead, .. } if process.is(&dead) => gone = true,
            Input::CommandEnded { run, end } if run == command.run => ended = Some(end),
            Input::Tick => match command.overdue(now) {
                Overdue::No => {}
                Overdue::End => out.effects.push(Effect::EndRun(command.run)),
                Overdue::Abandon => {
                    ended = Some(CommandEnd::Exited { exit: Exit::Unknown, output: String::new() })
                }
            },
            Input::Exited { .. }
            | Input::CommandEnded { .. }
            | Input::Sighted { .. }
            | Input::Order(_)
            | Input::Inspected { .. } => {}
        }
        let (code, message) = match ended {
            None => return busy(purpose, spec, Stage::Reloading { command, process, gone }),
            Some(CommandEnd::NotStarted { code, reason }) => {
                (code, format!("reload_cmd could not be run: {reason}"))
            }
            Some(CommandEnd::Exited { output, .. }) if command.timed_out => {
                (Code::CommandTimeout, words::command_timeout("reload_cmd", spec.policy.op_timeout, &output))
            }
            Some(CommandEnd::Exited { exit: Exit::Code(0), output }) => {
                if !gone {
                    // Most programs keep their process; one that hands over says so in its pid file.
                    self.answer_op(&purpose, Code::Success, words::SUCCESS, out);
                    return State::Up(process);
                }
                let until = command.deadline.min(now + spec.policy.start_check);
                let review = Review { looking: None, next_look: now, until, output };
                return self.reviewing(now, purpose, spec, review, Input::Tick, out);
            }
            Some(CommandEnd::Exited { exit, output }) => {
                (Code::CommandFailed, words::command_failed("reload_cmd", exit, &output))
            }
        };
        self.answer_op(&purpose, code, message.clone(), out);
        if gone { self.upkeep(message, out) } else { State::Up(process) }
    }

    fn reviewing(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Spec,
        mut review: Review,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::Sighted { look, sighting } if review.looking == Some(look) => match sighting {
                Sighting::Running(process) => {
                    out.effects.push(Effect::Watch(process));
                    self.answer_op(&purpose, Code::Success, words::SUCCESS, out);
                    return State::Up(process);
                }
                Sighting::Absent(absence) if now >= review.until => {
                    let why = absence.cause.to_string();
                    let kind = op_kind(&purpose);
                    let message = words::post_check(kind, &spec, &self.key.name, &why, &review.output);
                    self.answer_op(&purpose, Code::PostCheck, message.clone(), out);
                    return self.rest(now, Fall::Died, &message, out);
                }
                Sighting::Absent(_) => {
                    review.looking = None;
                    review.next_look = now + LOOK_EVERY;
                }
            },
            Input::Tick
            | Input::Exited { .. }
            | Input::Sighted { .. }
            | Input::CommandEnded { .. }
            | Input::Order(_)
            | Input::Inspected { .. } => {}
        }
        if review.looking.is_none() && now >= review.next_look {
            review.looking = Some(self.look(Scope::Settled, &spec, out));
        }
        busy(purpose, spec, Stage::Reviewing(review))
    }

    // ---- keeping it alive ----

    fn exited(&mut self, now: Moment, process: Process, exit: Exit, out: &mut Step) -> State {
        out.writes.push(Write::Event(Event::Exited { pid: process.pid, exit }));
        let last = format!("pid {} {exit}", process.pid);
        match (process.found, exit) {
            // The command itself was the process: there is nobody else to look for.
            (Found::Foreground, exit) if exit != Exit::Code(0) => self.revive(now, &last, out),
            // It may have been replaced by itself: a new process under the same pid file; or it was a slow start
            // command that left the real one behind and ended well.
            (Found::Foreground | Found::PidFile | Found::Name, _) => self.upkeep(last, out),
        }
    }

    /// Look whether it is there, and start it again if not and if it is hosted.
    fn upkeep(&mut self, last: String, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Down(Rest::Idle) };
        let look = self.look(Scope::Settled, &spec, out);
        busy(Purpose::Upkeep { last }, spec, Stage::Looking { look, launch: None })
    }

    /// It is certainly not running. A restart that was waited for and is due is done now; else the policy decides.
    fn revive(&mut self, now: Moment, last: &str, out: &mut Step) -> State {
        match self.saved.as_ref().map(|record| &record.rest) {
            Some(Rest::Retry { at }) if now >= *at && self.hosting == Hosting::Hosted => {
                self.relaunch(now, last.to_owned(), out)
            }
            _ => self.rest(now, Fall::Died, last, out),
        }
    }

    /// Where a proc that is not running goes from here.
    fn rest(&mut self, now: Moment, fall: Fall, last: &str, out: &mut Step) -> State {
        self.untidy = true;
        let Some(spec) = self.spec.clone().filter(|_| self.hosting == Hosting::Hosted) else {
            return State::Down(Rest::Idle);
        };
        if spec.policy.kind == Kind::Once {
            return State::Down(Rest::Idle);
        }
        if spec.control.start_cmd.is_empty() {
            return self.give_up(format!("{last}; the spec has no start_cmd to start it again"), out);
        }
        match self.streak.fell(now, fall, &spec.policy) {
            Verdict::Now => self.relaunch(now, last.to_owned(), out),
            Verdict::At(at) => State::Down(Rest::Retry { at }),
            Verdict::GiveUp => {
                let reason = words::gave_up(self.streak.restarts, last);
                self.give_up(reason, out)
            }
        }
    }

    fn relaunch(&mut self, now: Moment, last: String, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Down(Rest::Idle) };
        let ends = |order: &Order| matches!(order.kind, OpKind::Stop | OpKind::Kill) && now < order.start_by;
        if self.queue.iter().any(ends) {
            // Somebody who wants it ended waits already. The retry is for the case that it comes to nothing.
            return State::Down(Rest::Retry { at: now });
        }
        self.sweep(out);
        self.launch(now, Purpose::Upkeep { last }, spec, None, out)
    }

    fn give_up(&mut self, reason: String, out: &mut Step) -> State {
        out.writes.push(Write::Event(Event::GaveUp { reason: reason.clone() }));
        State::Down(Rest::GaveUp { reason })
    }

    // ---- queries ----

    fn inspect(&mut self, state: &State, order: &Order, out: &mut Step) {
        let Some(spec) = self.spec.clone().or_else(|| order.spec.clone()) else {
            return self.answer_query(
                order.op,
                Code::NoSpec,
                words::no_spec(OpKind::Query),
                ProcStatus::default(),
                out,
            );
        };
        let identity = &spec.identity;
        if identity.pid_path.is_empty() && (identity.proc_name.is_empty() || identity.setup_path.is_empty()) {
            return self.answer_query(
                order.op,
                Code::NoSpec,
                words::no_identity(),
                ProcStatus::default(),
                out,
            );
        }
        let process = match state {
            State::Up(process) => Some(*process),
            State::Busy(job) => job.stage.process(),
            State::Down(_) => None,
        };
        out.effects.push(Effect::Inspect { op: order.op, process, spec });
    }

    fn inspected(&mut self, state: State, op: OpId, view: View, out: &mut Step) -> State {
        let note = match &state {
            State::Down(Rest::GaveUp { reason }) => reason.clone(),
            State::Down(Rest::Idle | Rest::Retry { .. }) | State::Up(_) | State::Busy(_) => {
                match &view.sighting {
                    Sighting::Absent(absence) => absence.cause.to_string(),
                    Sighting::Running(_) => String::new(),
                }
            }
        };
        let status = ProcStatus {
            hosted: self.hosting == Hosting::Hosted,
            note,
            instance: view.instance,
            registered_at: view.registered_at,
            started_at: view.started_at,
            reported_at: view.reported_at,
            utc_offset_secs: view.utc_offset_secs,
        };
        self.answer_query(op, Code::Success, words::SUCCESS.to_owned(), status, out);
        match (state, view.sighting) {
            // Somebody started it without us: it is known from now on, and a restart that was waiting is off.
            (State::Down(_), Sighting::Running(process)) if self.spec.is_some() => {
                out.effects.push(Effect::Watch(process));
                State::Up(process)
            }
            (state, _) => state,
        }
    }

    // ---- small things ----

    fn take(&mut self) -> State {
        mem::replace(&mut self.state, State::Down(Rest::Idle))
    }

    fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Makes sure that a launch by order does not meet what an earlier one left. Running once may be meant to leave
    /// something.
    fn tidy(&mut self, spec: &Spec, out: &mut Step) {
        if self.untidy && spec.policy.kind == Kind::Resident {
            self.sweep(out);
        }
    }

    fn sweep(&mut self, out: &mut Step) {
        self.untidy = false;
        out.effects.push(Effect::Sweep);
    }

    fn look_first(
        &mut self,
        scope: Scope,
        purpose: Purpose,
        spec: Spec,
        launch: Leftover,
        out: &mut Step,
    ) -> State {
        let look = self.look(scope, &spec, out);
        busy(purpose, spec, Stage::Looking { look, launch })
    }

    fn look(&mut self, scope: Scope, spec: &Spec, out: &mut Step) -> LookId {
        let look = LookId(self.serial());
        out.effects.push(Effect::Look { look, scope, spec: spec.clone() });
        look
    }

    fn run(
        &mut self,
        field: &'static str,
        command: &str,
        spec: &Spec,
        now: Moment,
        out: &mut Step,
    ) -> Running {
        let run = RunId(self.serial());
        out.effects.push(Effect::Run { run, command: command.to_owned(), spec: spec.clone() });
        Running { run, field, deadline: now + spec.policy.op_timeout, timed_out: false }
    }

    fn answer(&self, op: OpId, code: Code, message: impl Into<String>, out: &mut Step) {
        let identity = self.spec.as_ref().map(|spec| spec.identity.clone()).unwrap_or_default();
        let content = Content::Control {
            hosted: self.hosting == Hosting::Hosted,
            proc_name: identity.proc_name,
            setup_path: identity.setup_path,
        };
        out.writes.push(Write::Done(op, Outcome::new(code, message, content)));
    }

    fn answer_op(&self, purpose: &Purpose, code: Code, message: impl Into<String>, out: &mut Step) {
        if let Purpose::Op { op, .. } = purpose {
            self.answer(*op, code, message, out);
        }
    }

    fn answer_query(&self, op: OpId, code: Code, message: String, status: ProcStatus, out: &mut Step) {
        let content = Content::Status(Box::new(status));
        out.writes.push(Write::Done(op, Outcome::new(code, message, content)));
    }

    /// Remembers the proc if anything about it has changed.
    fn save(&mut self, out: &mut Step) {
        let Some(spec) = self.spec.clone() else { return };
        let rest = match &self.state {
            State::Down(rest) => rest.clone(),
            State::Up(_) => Rest::Idle,
            // A retry stays due until its launch has an end: a crash in between must not forget it. Nor does an
            // order that has only looked so far change what the proc waits for.
            State::Busy(job) => match (&job.purpose, &job.stage, &self.saved) {
                (Purpose::Upkeep { .. } | Purpose::Recover { .. }, _, Some(saved)) => saved.rest.clone(),
                (Purpose::Op { before, .. }, Stage::Looking { .. }, _) => before.rest.clone(),
                (Purpose::Op { .. } | Purpose::Upkeep { .. } | Purpose::Recover { .. }, _, _) => Rest::Idle,
            },
        };
        let process = match (&self.state, &self.saved) {
            // Until the look is answered, what was known last is still the best guess.
            (State::Busy(job), Some(saved)) if matches!(job.purpose, Purpose::Recover { .. }) => {
                saved.process
            }
            (State::Busy(_) | State::Up(_) | State::Down(_), _) => self.process(),
        };
        let record = Record { spec, hosting: self.hosting, process, streak: self.streak, rest };
        if self.saved.as_ref() != Some(&record) {
            self.saved = Some(record.clone());
            out.writes.push(Write::Record(Box::new(record)));
        }
    }
}

fn busy(purpose: Purpose, spec: Spec, stage: Stage) -> State {
    State::Busy(Box::new(Job { purpose, spec, stage }))
}

fn op_kind(purpose: &Purpose) -> OpKind {
    match purpose {
        Purpose::Op { kind, .. } => *kind,
        Purpose::Upkeep { .. } | Purpose::Recover { .. } => OpKind::Start,
    }
}

/// The command without which the order is pointless, whatever the process does.
fn missing_command(kind: OpKind, spec: &Spec) -> Option<&'static str> {
    let control = &spec.control;
    match kind {
        OpKind::Start if control.start_cmd.is_empty() => Some("start_cmd"),
        OpKind::Restart if control.restart_cmd.is_empty() && control.start_cmd.is_empty() => {
            Some("restart_cmd and no start_cmd")
        }
        OpKind::Reload if control.reload_cmd.is_empty() => Some("reload_cmd"),
        OpKind::Start
        | OpKind::Stop
        | OpKind::Query
        | OpKind::Host
        | OpKind::Unhost
        | OpKind::Restart
        | OpKind::Reload
        | OpKind::Kill => None,
    }
}

fn unreachable_kind(kind: OpKind) -> State {
    unreachable!("{} is answered before a job is made of it", kind.verb())
}
