//! The actor of one proc: feeds its state machine, journals each step, and then carries out its effects.

use super::absent::AbsentProcs;
use super::cancels::Cancels;
use super::full_disk::FullDisk;
use super::journal_writer::JournalWriter;
use super::open::OpenOps;
use super::probes::{LastAnswer, ProbePace, ProbeReadiness, Probes};
use super::sampler::{Follow, Pooled, SampleInterest, Sampler};
use super::timetable::{Clocks, Timetable};
use crate::exec::{self, ExecContext, ProcExecutor};
use crate::hosting_file::HostingFile;
use crate::inbox::{Inbox, Inputs};
use crate::journal::{EventProc, Journal};
use crate::outbox::Outbox;
use crate::states::StateReports;
use procfleet_core::id::{OpId, ProcKey};
use procfleet_core::op::{Content, Order, Outcome};
use procfleet_core::process::{Process, Sighting};
use procfleet_core::spec::{Kind, Resource, Spec};
use procfleet_core::stagger::{RestartStagger, StaggerCause, StaggerReason, StartStagger};
use procfleet_core::supervise::{
    Activity, Commit, Effect, EffectAnswer, Event, Input, LookScope, Machine, OtherAccount, ProcNotice, Step,
    Usage, View, Write,
};
use procfleet_failpoint::{Point, hit};
use procfleet_proto::http::native::ProcState;
use procfleet_proto::state::{Doing, ProcReport};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::info;

/// State that all actors share.
#[derive(Debug)]
pub(super) struct ActorShared {
    pub(super) context: Arc<ExecContext>,
    pub(super) journal: Journal,
    pub(super) outbox: Outbox,
    pub(super) states: StateReports,
    pub(super) hosting: HostingFile,
    pub(super) open: OpenOps,
    pub(super) cancels: Cancels,
    pub(super) sampler: Sampler,
    pub(super) absent: AbsentProcs,
    /// Intervals of health checks.
    pub(super) pace: ProbePace,
    pub(super) full_disk: FullDisk,
    /// Staggers starts after the agent has come back.
    pub(super) start_stagger: Arc<Mutex<StartStagger>>,
    /// Staggers restarts that are due at about the same time.
    pub(super) restart_stagger: Mutex<RestartStagger>,
}

impl ActorShared {
    /// An outcome that is durable.
    pub(super) fn done(&self, op: OpId, outcome: Outcome) {
        if let Some((op, outcome)) = self.open.done(op, outcome) {
            self.outbox.done(op, outcome);
        }
    }
}

/// A sample of a running process.
struct ProcessSample {
    process: Process,
    /// Seconds since 1970.
    began_at: i64,
    usage: Usage,
}

pub(super) struct Actor {
    machine: Machine,
    executor: ProcExecutor,
    inbox: Inbox,
    shared: Arc<ActorShared>,
    journal_writer: JournalWriter,
    registered_at: i64,
    /// The last sample of the present process.
    sample: Option<ProcessSample>,
    /// The spec by which `AbsentProcs` looks for the process; `None` while the proc has one.
    absent: Option<Arc<Spec>>,
    /// Boxed, because only crontab rules need it.
    timetable: Option<Box<Timetable>>,
    /// Results of effects; handled before inputs from outside.
    answers: VecDeque<Input>,
    /// Answers to [`Effect::Vet`], which come before all others.
    verdicts: VecDeque<(OpId, Option<OtherAccount>)>,
    probes: Probes,
    /// The probe results at the last event, if there was one.
    reported: Option<Box<LastAnswer>>,
}

impl Actor {
    pub(super) fn new(
        machine: Machine,
        shared: Arc<ActorShared>,
        (inputs, inbox): (Inputs, Inbox),
        registered_at: i64,
    ) -> Actor {
        let executor = ProcExecutor::new(shared.context.clone(), machine.key().clone(), inputs);
        let probes =
            Probes::new(shared.context.clone(), machine.key().clone(), shared.pace, registered_at != 0);
        let journal_writer = JournalWriter::new(shared.journal.clone(), machine.key().clone());
        Actor {
            machine,
            executor,
            inbox,
            shared,
            journal_writer,
            registered_at,
            sample: None,
            absent: None,
            timetable: None,
            answers: VecDeque::new(),
            verdicts: VecDeque::new(),
            probes,
            reported: None,
        }
    }

    /// Ends when there is nothing left to supervise, and returns the orders that arrived too late.
    pub(super) async fn run(
        // Boxed, as is `first`: a future stores each argument twice, as given and as a local.
        mut self: Box<Self>,
        first: Box<Step>,
    ) -> (Arc<ProcKey>, Vec<Order>) {
        // A task has space for its largest await. All but the next input, which is nearly always awaited, are
        // therefore boxed while they last.
        Box::pin(self.carry_out(*first)).await;
        loop {
            let Some(input) = self.next_input().await else {
                Box::pin(self.journal_writer.settle()).await;
                return (self.machine.key().clone(), Vec::new());
            };
            match &*input {
                Input::Order(order) => self.shared.hosting.ordered(self.machine.key(), order.kind),
                Input::Notice(ProcNotice::Sampled { process, usage }) => self.record_sample(process, *usage),
                Input::Tick | Input::Answer(_) | Input::Notice(_) => {}
            }
            let step = self.machine.step(self.shared.context.now(), *input);
            Box::pin(self.carry_out(step)).await;
            while let Some((op, other)) = self.verdicts.pop_front() {
                let step = self.machine.vetted(self.shared.context.now(), op, other);
                Box::pin(self.carry_out(step)).await;
            }
            if self.answers.is_empty() {
                Box::pin(self.check_cancels()).await;
            }
            if self.machine.is_blank() && self.answers.is_empty() && self.inbox.is_empty() {
                self.inbox.close();
                Box::pin(self.journal_writer.settle()).await;
                self.shared.hosting.forget(self.machine.key());
                let mut late = Vec::new();
                while let Some(input) = self.inbox.try_recv() {
                    if let Input::Order(order) = *input {
                        late.push(*order);
                    }
                }
                return (self.machine.key().clone(), late);
            }
        }
    }

    /// The next input for the machine; `None` when the actor must end. Inputs are boxed and have their own
    /// function, because a task has space for each local variable of the function that awaits.
    async fn next_input(&mut self) -> Option<Box<Input>> {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Some(Box::new(answer));
            }
            match self.next().await {
                ActorWork::Input(input) => {
                    if let Some(input) = self.admit(input) {
                        return Some(input);
                    }
                }
                ActorWork::Written => {}
                ActorWork::Probed => {
                    Box::pin(self.handle_probe_results()).await;
                    self.publish();
                }
                ActorWork::End => return None,
            }
        }
    }

    /// The input that the machine gets for an input from outside, if any.
    fn admit(&mut self, input: Box<Input>) -> Option<Box<Input>> {
        if matches!(*input, Input::Notice(ProcNotice::Appeared { .. })) {
            return self.appeared().map(Box::new);
        }
        match self.succession_before(&input) {
            // The order applies to the successor.
            Some(succeeded) => {
                self.answers.push_back(*input);
                Some(Box::new(succeeded))
            }
            None => Some(input),
        }
    }

    /// Called between two steps, when no effect waits for its result: a running op has begun by then.
    async fn check_cancels(&mut self) {
        for op in self.shared.cancels.of(self.machine.key()) {
            if let Some(step) = self.machine.cancel(op) {
                self.carry_out(step).await;
            }
        }
    }

    async fn next(&mut self) -> ActorWork {
        // Frees the capacity that a burst left.
        self.answers.shrink_to(0);
        let now = self.shared.context.now();
        // Boxed: a proc that runs well waits for neither.
        let sleep = self.machine.wake_at().map(|wake| Box::pin(tokio::time::sleep(wake.since(now))));
        let next = tokio::select! {
            // Writes first, because inputs may never end. Then inputs, which report the agent's end before
            // any other: nothing new begins then. An exit must win over the deadline that it just met.
            biased;
            () = self.journal_writer.progress() => Some(ActorWork::Written),
            input = self.inbox.recv() => Some(input.map_or(ActorWork::End, ActorWork::Input)),
            () = if_any(sleep) => None,
            () = if_any(self.probes.changed()) => Some(ActorWork::Probed),
        };
        match next {
            Some(next) => next,
            None => {
                ActorWork::Input(just_arrived(&mut self.inbox).await.unwrap_or_else(|| Box::new(Input::Tick)))
            }
        }
    }

    /// Turns changed probe results into events. The machine decides about health.
    async fn handle_probe_results(&mut self) {
        let (seen, reported) = (self.probes.seen(), self.reported.take().unwrap_or_default());
        if let Some((process, health)) = seen.health_change_since(&reported) {
            self.answers.push_back(Input::Notice(ProcNotice::Health { process, health }));
        }
        let drifted = (seen.note != reported.note && !seen.note.is_empty()).then(|| seen.note.clone());
        let writes: Vec<Write> =
            drifted.map(|reason| Write::Event(Event::ConfigDrift { reason })).into_iter().collect();
        self.reported = Some(Box::new(seen));
        self.journal_writer.write_later(&writes, self.known()).await;
    }

    /// A sample of the process and its tree, for the machine and then for readers.
    fn record_sample(&mut self, process: &Process, usage: Usage) {
        if let Some(sample) = self.sample.as_mut().filter(|sample| sample.process.is(process)) {
            sample.usage = usage;
        }
        if let Some(successor) = self.successor_of(process) {
            self.answers.push_back(Input::Notice(ProcNotice::Replaced { old: *process, process: successor }));
        }
    }

    /// An order may arrive before the next sample would show that the program has replaced itself.
    fn succession_before(&mut self, input: &Input) -> Option<Input> {
        let old = self.machine.process().filter(|_| matches!(input, Input::Order(_)))?;
        self.successor_of(&old).map(|process| Input::Notice(ProcNotice::Replaced { old, process }))
    }

    /// A program that replaces itself writes its new pid to its pid file. A recovered process may be only the
    /// shell of its command.
    fn successor_of(&mut self, process: &Process) -> Option<Process> {
        let spec = self.machine.spec().filter(|_| !self.machine.is_busy())?;
        self.executor.successor(process, spec)
    }

    /// Verifies a candidate of `AbsentProcs` with a look.
    fn appeared(&mut self) -> Option<Input> {
        let is_down = !self.machine.is_busy() && self.machine.process().is_none();
        let spec = self.machine.spec().filter(|_| is_down)?;
        match self.executor.look(self.machine.settled(), spec) {
            Sighting::Running(process) => Some(Input::Notice(ProcNotice::Appeared { process })),
            Sighting::Absent(_) => None,
        }
    }

    async fn carry_out(&mut self, step: Step) {
        let Step { mut writes, effects, commit } = step;
        self.annotate(&mut writes);
        let (unwritten, writes) = self.shared.full_disk.answers_of_unjournalled(writes);
        if !unwritten.is_empty() {
            self.announce(unwritten);
        }
        match commit {
            // Nothing to write, and no need to wait for earlier deferred writes.
            Commit::First if writes.is_empty() => {
                self.announce(writes);
                effects.into_iter().for_each(|effect| self.act(effect));
            }
            Commit::First => {
                let decided = self.shared.context.now();
                pass(&writes, Point::AgentBegunUnwritten, Point::AgentOutcomeUnwritten);
                self.journal_writer.write(&writes, self.known()).await;
                pass(&writes, Point::AgentBegunWritten, Point::AgentOutcomeWritten);
                self.announce(writes);
                effects.into_iter().for_each(|effect| self.act(effect));
                self.machine.delayed(self.shared.context.now().since(decided));
            }
            Commit::Alongside => {
                // Effects first: the process is urgent.
                effects.into_iter().for_each(|effect| self.act(effect));
                self.journal_writer.write_later(&writes, self.known()).await;
                self.announce(writes);
            }
        }
    }

    /// Publishes the results of a step.
    fn announce(&mut self, writes: Vec<Write>) {
        let key = self.machine.key().clone();
        if !writes.contains(&Write::Forget) {
            // Before the outcome: a caller that has the outcome must see the new state.
            self.publish();
        }
        for write in writes {
            match write {
                Write::Done(op, outcome) => {
                    info!(%op, proc = %key, code = outcome.code.number(), message = %outcome.message, "op done");
                    self.shared.cancels.done(&key, op);
                    self.shared.done(op, outcome);
                }
                Write::Record(_) => {
                    if self.registered_at == 0 {
                        self.registered_at = jiff::Timestamp::now().as_second();
                    }
                }
                Write::Forget => {
                    self.registered_at = 0;
                    self.probes.forget();
                    self.shared.sampler.follow(&key, None);
                    self.absent = None;
                    self.shared.absent.set(&key, None);
                    self.executor.forget_output();
                    self.shared.hosting.forget(&key);
                    self.shared.states.forget(&key);
                }
                // The journal writer has logged it.
                Write::Event(_) | Write::Begun(_) => {}
            }
        }
    }

    /// The proc's identity in its events.
    fn known(&self) -> EventProc {
        let spec = self.machine.spec();
        EventProc {
            report_id: spec.and_then(|spec| spec.report_id).unwrap_or_default(),
            proc_name: spec.map(|spec| spec.identity.proc_name.clone()).unwrap_or_default(),
            user: spec.map(|spec| spec.identity.user.clone()).unwrap_or_default(),
        }
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Look { look, scope, spec } => {
                let sighting = self.executor.look(scope, &spec);
                self.answers.push_back(Input::Answer(EffectAnswer::Sighted { look, sighting }));
            }
            Effect::Watch(process) => self.executor.watch(process),
            Effect::Run { run, command, spec } => self.executor.run(run, &command, &spec),
            Effect::EndRun(run) => self.executor.end_run(run),
            Effect::TermRun(run) => self.executor.term_run(run),
            Effect::SignalOne { process, signal } => self.executor.signal_one(process, signal),
            Effect::Retire(process) => self.executor.retire(process),
            Effect::SignalRetired { process, signal, spare } => {
                self.executor.signal_retired(process, signal, &spare);
            }
            Effect::Signal { process, signal, detached } => self.executor.signal(process, signal, detached),
            Effect::Sweep(signal) => self.executor.sweep(signal),
            Effect::ClearSince(since) => self.executor.clear_since(since),
            Effect::Stagger { plan, reason } => {
                let (now, key) = (self.shared.context.now(), self.machine.key());
                let (at, cause) = match reason {
                    StaggerReason::AgentRestart => {
                        let mut stagger =
                            self.shared.start_stagger.lock().unwrap_or_else(PoisonError::into_inner);
                        (stagger.next_slot(now, key), stagger.cause())
                    }
                    StaggerReason::Retry => {
                        let mut stagger =
                            self.shared.restart_stagger.lock().unwrap_or_else(PoisonError::into_inner);
                        (stagger.next_slot(now, key), StaggerCause::Simultaneous)
                    }
                };
                self.answers.push_back(Input::Answer(EffectAnswer::Staggered { plan, at, cause }));
            }
            Effect::Plan { plan, rule, since } => {
                let wall = jiff::Zoned::now();
                let clocks = Clocks { wall, moment: self.shared.context.now() };
                let next = self.timetable.get_or_insert_default().next(&rule, since, &clocks);
                self.answers.push_back(Input::Answer(EffectAnswer::Planned { plan, next }));
            }
            Effect::Vet { op, process, scope, spec, accounts } => {
                let other = self.executor.other_account(process, scope, &spec, &accounts);
                self.verdicts.push_back((op, other));
            }
            Effect::Inspect { op, process, scope, spec } => {
                let view = self.inspect(process, scope, &spec);
                self.answers.push_back(Input::Answer(EffectAnswer::Inspected { op, view: Box::new(view) }));
            }
        }
    }

    fn inspect(&mut self, process: Option<Process>, scope: LookScope, spec: &Spec) -> View {
        let known = process.and_then(|process| Some((process, self.executor.inspect(&process)?)));
        let (sighting, instance) = match known {
            Some((process, instance)) => (Sighting::Running(process), Some(instance)),
            None => match self.executor.look(scope, spec) {
                Sighting::Running(process) => (Sighting::Running(process), self.executor.inspect(&process)),
                absent @ Sighting::Absent(_) => (absent, None),
            },
        };
        let now = jiff::Zoned::now();
        self.probes.look_at_files();
        let seen = self.probes.seen();
        View {
            started_at: instance.as_ref().map_or(0, |instance| instance.began_at),
            sighting,
            instance,
            registered_at: self.registered_at,
            reported_at: now.timestamp().as_second(),
            version: seen.version,
            health: seen.health,
            utc_offset_secs: now.offset().seconds(),
        }
    }

    /// Adds problems beside the process to outcomes; the machine does not know them.
    fn annotate(&self, writes: &mut [Write]) {
        let started = writes.iter().any(|write| matches!(write, Write::Event(Event::Started { .. })));
        for write in writes {
            match write {
                Write::Done(_, Outcome { content: Content::Status(status), .. }) => {
                    status.note = joined(&status.note, &self.side_notes());
                }
                Write::Done(_, Outcome { content: Content::Control { .. }, message, .. })
                    if started && !self.executor.note().is_empty() =>
                {
                    message.push_str("; warning: ");
                    message.push_str(self.executor.note());
                }
                Write::Done(..) | Write::Record(_) | Write::Forget | Write::Event(_) | Write::Begun(_) => {}
            }
        }
    }

    /// Problems beside the process: files and probes, output, disk.
    fn side_notes(&self) -> String {
        joined(&joined(&self.probes.seen().note, self.executor.note()), self.shared.full_disk.note())
    }

    /// Publishes the proc's state if it has changed.
    fn publish(&mut self) {
        let Some(spec) = self.machine.spec() else { return };
        let labels = spec.labels.clone();
        let process = self.machine.process();
        let readiness = match (self.machine.is_busy(), process) {
            (true, _) => ProbeReadiness::Changing,
            (false, Some(process)) => ProbeReadiness::Running(process),
            (false, None) => ProbeReadiness::Down,
        };
        self.probes.update(spec, readiness);
        self.shared.hosting.keep(self.machine.key(), spec, self.machine.hosting());
        let seen = self.probes.seen();
        if self.sample.as_ref().map(|sample| sample.process) != process {
            self.sample = process.and_then(|process| {
                let (began_at, usage) = exec::sample_once(&self.shared.context, &process)?;
                Some(ProcessSample { process, began_at, usage })
            });
        }
        let limited = self.machine.limited_process();
        let has_limits = limited.is_some() && spec.resource != Resource::default();
        let interest = match (has_limits, self.machine.note(self.shared.context.now()).is_empty()) {
            (true, _) => SampleInterest::Limits,
            // The next samples show whether the noted problem is over.
            (false, false) => SampleInterest::Each,
            (false, true) => SampleInterest::Changes,
        };
        let pooled = if limited.is_some() { Pooled::Yes } else { Pooled::No };
        let follow =
            limited.or(process).map(|process| Follow { process, spec: spec.clone(), interest, pooled });
        self.shared.sampler.follow(self.machine.key(), follow);
        let resident = spec.policy.kind == Kind::Resident;
        let absent = (resident && process.is_none() && !self.machine.is_busy()).then(|| spec.clone());
        if self.absent.as_ref().map(Arc::as_ptr) != absent.as_ref().map(Arc::as_ptr) {
            self.shared.absent.set(self.machine.key(), absent.clone());
            self.absent = absent;
        }
        let sample = self.sample.as_ref();
        let report = ProcReport {
            state: match (process, self.machine.is_busy(), self.machine.has_given_up()) {
                (_, true, _) => ProcState::Changing,
                (Some(_), false, _) => ProcState::Running,
                (None, false, false) => ProcState::Stopped,
                (None, false, true) => ProcState::GaveUp,
            },
            doing: self.machine.activity().and_then(|activity| match activity {
                Activity::Starting => Some(Doing::Starting),
                Activity::Stopping => Some(Doing::Stopping),
                Activity::Restarting => Some(Doing::Restarting),
                Activity::Reloading => Some(Doing::Reloading),
                Activity::Other => None,
            }),
            hosted: self.machine.is_hosted(),
            pid: process.map(|process| process.pid),
            note: joined(&self.machine.note(self.shared.context.now()), &self.side_notes()),
            labels,
            registered_at: self.registered_at,
            started_at: sample.map_or(0, |sample| sample.began_at),
            reported_at: jiff::Timestamp::now().as_second(),
            cpu_usage: sample.map_or(0.0, |sample| round(sample.usage.cpu)),
            mem_usage: sample.map_or(0.0, |sample| round(sample.usage.mem)),
            fd: sample.map_or(0, |sample| sample.usage.fd),
            version: seen.version,
            health: seen.health,
            user: spec.identity.user.clone(),
        };
        self.shared.states.publish(self.machine.key(), report);
    }
}

/// The next work of an actor.
enum ActorWork {
    Input(Box<Input>),
    /// A deferred write is durable.
    Written,
    /// A probe result has changed.
    Probed,
    End,
}

/// Joins two notes.
fn joined(one: &str, other: &str) -> String {
    if one.is_empty() || other.is_empty() { format!("{one}{other}") } else { format!("{one}; {other}") }
}

/// Rounds, so that only noticeable changes are published.
fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// Fail points at the beginning and end of an op.
fn pass(writes: &[Write], begins: Point, ends: Point) {
    for write in writes {
        match write {
            Write::Begun(_) => hit(begins),
            Write::Done(_, _) => hit(ends),
            Write::Record(_) | Write::Forget | Write::Event(_) => {}
        }
    }
}

/// Waits for the future; for ever if there is none.
async fn if_any<F: Future<Output = ()>>(waiting: Option<Pin<Box<F>>>) {
    match waiting {
        Some(waiting) => waiting.await,
        None => std::future::pending().await,
    }
}

/// Inputs that are ready but were not delivered yet. They are handled before a deadline, because the agent
/// itself may have been late. Each hop from the kernel to here takes one poll.
async fn just_arrived(inbox: &mut Inbox) -> Option<Box<Input>> {
    for _ in 0..4 {
        tokio::task::yield_now().await;
        if let Some(input) = inbox.try_recv() {
            return Some(input);
        }
    }
    None
}
