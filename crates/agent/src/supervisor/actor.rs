//! One proc: feeds its machine, makes durable what it says, and then does it.

use super::open::OpenOps;
use super::probes::{Pace, Probes, Seen, Standing};
use super::timetable::{Clocks, Timetable};
use crate::exec::{Hands, Host};
use crate::hosting_file::HostingFile;
use crate::journal::{Journal, Known};
use crate::outbox::Outbox;
use crate::states::States;
use procfleet_core::id::{OpId, ProcKey};
use procfleet_core::moment::Moment;
use procfleet_core::op::{Content, Order, Outcome};
use procfleet_core::process::{Process, Sighting};
use procfleet_core::spec::{Resource, Spec};
use procfleet_core::supervise::{
    Effect, Event, Hosting, Input, Machine, Scope, Severity, Step, Usage, View, Write,
};
use procfleet_proto::http::native::ProcState;
use procfleet_proto::state::ProcReport;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

/// What all actors share.
#[derive(Clone, Debug)]
pub(super) struct Around {
    pub(super) host: Arc<Host>,
    pub(super) journal: Journal,
    pub(super) outbox: Outbox,
    pub(super) states: States,
    pub(super) hosting: HostingFile,
    pub(super) open: OpenOps,
    /// True: the agent is ending. Actors look at it between two steps only.
    pub(super) stopped: watch::Receiver<bool>,
}

impl Around {
    /// An outcome that is durable.
    pub(super) fn done(&self, op: OpId, outcome: Outcome) {
        if let Some((op, outcome)) = self.open.done(op, outcome) {
            self.outbox.done(op, outcome);
        }
    }
}

/// A running process at one moment.
struct Sample {
    process: Process,
    taken: Moment,
    /// Seconds since 1970.
    began_at: i64,
    usage: Usage,
}

/// How often a running process is looked at, and one that has limits. All look at the same time, for one look at the
/// host's processes serves all of them.
const SAMPLE_EVERY: Duration = Duration::from_secs(15);
const SAMPLE_LIMITED_EVERY: Duration = Duration::from_secs(5);

pub(super) struct Actor {
    machine: Machine,
    hands: Hands,
    around: Around,
    registered_at: i64,
    /// The present process, as it was last looked at.
    sample: Option<Sample>,
    published: Option<ProcReport>,
    timetable: Timetable,
    /// Answers to what a step asked for, which come before anything from outside.
    answers: VecDeque<Input>,
    probes: Probes,
    /// What the probes had said when events were last made of it.
    told: Seen,
}

impl Actor {
    pub(super) fn new(
        machine: Machine,
        around: Around,
        inputs: mpsc::Sender<Input>,
        registered_at: i64,
    ) -> Actor {
        let hands = Hands::new(around.host.clone(), machine.key().clone(), inputs);
        let probes =
            Probes::new(around.host.clone(), machine.key().clone(), Pace::default(), registered_at != 0);
        Actor {
            machine,
            hands,
            around,
            registered_at,
            sample: None,
            published: None,
            timetable: Timetable::default(),
            answers: VecDeque::new(),
            probes,
            told: Seen::default(),
        }
    }

    /// Ends when there is nothing left to look after, with the orders that came too late for it.
    pub(super) async fn run(
        mut self,
        first: Step,
        mut inbox: mpsc::Receiver<Input>,
    ) -> (ProcKey, Vec<Order>) {
        self.carry_out(first).await;
        loop {
            let input = match self.answers.pop_front() {
                Some(answer) => answer,
                None => match self.next(&mut inbox).await {
                    Next::Input(input) => *input,
                    Next::Sample => match self.sample_again() {
                        Some(input) => input,
                        None => continue,
                    },
                    Next::Probed => {
                        self.tell_of_probes().await;
                        self.publish();
                        continue;
                    }
                    Next::End => return (self.machine.key().clone(), Vec::new()),
                },
            };
            if let Input::Order(order) = &input {
                self.around.hosting.ordered(self.machine.key(), order.kind);
            }
            let step = self.machine.step(self.around.host.now(), input);
            self.carry_out(step).await;
            if self.machine.is_blank() && self.answers.is_empty() && inbox.is_empty() {
                inbox.close();
                self.around.hosting.forget(self.machine.key());
                let mut late = Vec::new();
                while let Ok(input) = inbox.try_recv() {
                    if let Input::Order(order) = input {
                        late.push(*order);
                    }
                }
                return (self.machine.key().clone(), late);
            }
        }
    }

    async fn next(&mut self, inbox: &mut mpsc::Receiver<Input>) -> Next {
        let now = self.around.host.now();
        let sample = self.sample.as_ref().map(|sample| self.samples_after(sample.taken));
        let wake = self.machine.wake_at().into_iter().chain(sample).min();
        let next = tokio::select! {
            // The end of the agent first: nothing new is begun then. Then inputs: an exit that has happened must win
            // over the deadline that it just met.
            biased;
            _ = self.around.stopped.wait_for(|stopped| *stopped) => Some(Next::End),
            input = inbox.recv() => Some(input.map_or(Next::End, |input| Next::Input(Box::new(input)))),
            () = sleep(wake.map(|wake| wake.since(now))) => {
                (wake != self.machine.wake_at()).then_some(Next::Sample)
            }
            () = self.probes.changed() => Some(Next::Probed),
        };
        match next {
            Some(next) => next,
            None => Next::Input(Box::new(just_arrived(inbox).await.unwrap_or(Input::Tick))),
        }
    }

    /// What is wrong beside its life becomes an event when it begins to be so.
    async fn tell_of_probes(&mut self) {
        let seen = self.probes.seen();
        let illness = |seen: &Seen| seen.health.strip_prefix("unhealthy: ").map(str::to_owned);
        let ill = illness(&seen).filter(|_| illness(&self.told).is_none());
        let drifted = (seen.note != self.told.note && !seen.note.is_empty()).then(|| seen.note.clone());
        let events = ill
            .map(|reason| Event::Unhealthy { reason })
            .into_iter()
            .chain(drifted.map(|reason| Event::ConfigDrift { reason }));
        let writes: Vec<Write> = events.map(Write::Event).collect();
        self.told = seen;
        self.around.journal.write(self.machine.key(), &writes, &self.known()).await;
        for write in writes {
            if let Write::Event(event) = write {
                log_event(self.machine.key(), &event);
            }
        }
    }

    /// The next moment at which all processes of the host are sampled.
    fn samples_after(&self, taken: Moment) -> Moment {
        let limited = self.machine.spec().is_some_and(|spec| spec.resource != Resource::default());
        let every = if limited { SAMPLE_LIMITED_EVERY } else { SAMPLE_EVERY };
        let step = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        Moment((taken.0 / step).saturating_add(1).saturating_mul(step))
    }

    /// Samples the process with all that belongs to it. `None`: there is nothing to say of it.
    fn sample_again(&mut self) -> Option<Input> {
        let process = self.machine.process();
        self.sample = process.and_then(|process| self.sample_of(process));
        let usage = process.and_then(|process| self.hands.usage(&process));
        if let (Some(sample), Some(usage)) = (&mut self.sample, usage) {
            sample.usage = usage;
        }
        self.publish();
        Some(Input::Sampled { process: process?, usage: usage? })
    }

    /// A process that has just begun, as it is itself: nothing can belong to it yet that is worth a look at all others.
    fn sample_of(&mut self, process: Process) -> Option<Sample> {
        let seen = self.hands.inspect(&process)?;
        let fd = self.hands.open_files(&process);
        let taken = self.around.host.now();
        let usage = Usage { cpu: seen.cpu_now, mem: seen.memory_percent, fd };
        Some(Sample { process, taken, began_at: seen.began_at, usage })
    }

    async fn carry_out(&mut self, step: Step) {
        let Step { mut writes, effects } = step;
        let key = self.machine.key().clone();
        self.annotate(&mut writes);
        self.around.journal.write(&key, &writes, &self.known()).await;
        if !writes.contains(&Write::Forget) {
            // Before the outcome: who has been told that it runs should not see a list that says otherwise.
            self.publish();
        }
        for write in writes {
            match write {
                Write::Done(op, outcome) => {
                    info!(%op, proc = %key, code = outcome.code.number(), message = %outcome.message, "op done");
                    self.around.done(op, outcome);
                }
                Write::Event(event) => log_event(&key, &event),
                Write::Record(_) => {
                    if self.registered_at == 0 {
                        self.registered_at = jiff::Timestamp::now().as_second();
                    }
                }
                Write::Forget => {
                    self.registered_at = 0;
                    self.published = None;
                    self.probes.forget();
                    self.around.hosting.forget(&key);
                    self.around.states.forget(&key);
                }
                Write::Begun(_) => {}
            }
        }
        for effect in effects {
            self.act(effect);
        }
    }

    /// What the readers of this proc's events know it by.
    fn known(&self) -> Known {
        let spec = self.machine.spec();
        Known {
            report_id: spec.and_then(|spec| spec.report_id).unwrap_or_default(),
            proc_name: spec.map(|spec| spec.identity.proc_name.clone()).unwrap_or_default(),
        }
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Look { look, scope, spec } => {
                let sighting = self.hands.look(scope, &spec);
                self.answers.push_back(Input::Sighted { look, sighting });
            }
            Effect::Watch(process) => self.hands.watch(process),
            Effect::Run { run, command, spec } => self.hands.run(run, &command, &spec),
            Effect::EndRun(run) => self.hands.end_run(run),
            Effect::Signal { process, signal } => self.hands.signal(process, signal),
            Effect::Sweep => self.hands.sweep(),
            Effect::Plan { plan, rule, since } => {
                let wall = jiff::Zoned::now();
                let clocks = Clocks { wall, moment: self.around.host.now() };
                let next = self.timetable.next(&rule, since, &clocks);
                self.answers.push_back(Input::Planned { plan, next });
            }
            Effect::Inspect { op, process, scope, spec } => {
                let view = self.inspect(process, scope, &spec);
                self.answers.push_back(Input::Inspected { op, view: Box::new(view) });
            }
        }
    }

    fn inspect(&mut self, process: Option<Process>, scope: Scope, spec: &Spec) -> View {
        let known = process.and_then(|process| Some((process, self.hands.inspect(&process)?)));
        let (sighting, instance) = match known {
            Some((process, instance)) => (Sighting::Running(process), Some(instance)),
            None => match self.hands.look(scope, spec) {
                Sighting::Running(process) => (Sighting::Running(process), self.hands.inspect(&process)),
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

    /// The machine does not know what is wrong beside the process.
    fn annotate(&self, writes: &mut [Write]) {
        for write in writes {
            if let Write::Done(_, Outcome { content: Content::Status(status), .. }) = write {
                status.note = joined(&status.note, &joined(&self.probes.seen().note, self.hands.note()));
            }
        }
    }

    /// Tells the server's readers what the proc looks like, if that has changed.
    fn publish(&mut self) {
        let Some(spec) = self.machine.spec() else { return };
        let labels = spec.labels.clone();
        let process = self.machine.process();
        let standing = match (self.machine.is_busy(), process) {
            (true, _) => Standing::Changing,
            (false, Some(process)) => Standing::Running(process),
            (false, None) => Standing::Down,
        };
        self.probes.tend(spec, standing);
        self.around.hosting.keep(self.machine.key(), spec, self.machine.hosting());
        let seen = self.probes.seen();
        if self.sample.as_ref().map(|sample| sample.process) != process {
            self.sample = process.and_then(|process| self.sample_of(process));
        }
        let sample = self.sample.as_ref();
        let mut report = ProcReport {
            state: match (process, self.machine.is_busy(), self.machine.has_given_up()) {
                (_, true, _) => ProcState::Changing,
                (Some(_), false, _) => ProcState::Running,
                (None, false, false) => ProcState::Stopped,
                (None, false, true) => ProcState::GaveUp,
            },
            hosted: self.machine.hosting() == Hosting::Hosted,
            pid: process.map(|process| process.pid),
            note: joined(self.machine.note(), &joined(&seen.note, self.hands.note())),
            labels,
            registered_at: self.registered_at,
            started_at: sample.map_or(0, |sample| sample.began_at),
            reported_at: self.published.as_ref().map_or(0, |published| published.reported_at),
            cpu_usage: sample.map_or(0.0, |sample| round(sample.usage.cpu)),
            mem_usage: sample.map_or(0.0, |sample| round(sample.usage.mem)),
            fd: sample.map_or(0, |sample| sample.usage.fd),
            version: seen.version,
            health: seen.health,
        };
        if self.published.as_ref() != Some(&report) {
            report.reported_at = jiff::Timestamp::now().as_second();
            self.around.states.publish(self.machine.key(), report.clone());
            self.published = Some(report);
        }
    }
}

/// What an actor has to do next.
enum Next {
    Input(Box<Input>),
    Sample,
    /// Something else is known of its version or health.
    Probed,
    End,
}

/// Two notes in one.
fn joined(one: &str, other: &str) -> String {
    if one.is_empty() || other.is_empty() { format!("{one}{other}") } else { format!("{one}; {other}") }
}

/// So that a change worth telling is one that people would notice.
fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

async fn sleep(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

/// What has happened and was not heard of yet, for the agent had no time: whoever was to tell gets a chance before a deadline
/// is held against the process. Each hop from the kernel to here takes one round.
async fn just_arrived(inbox: &mut mpsc::Receiver<Input>) -> Option<Input> {
    for _ in 0..4 {
        tokio::task::yield_now().await;
        if let Ok(input) = inbox.try_recv() {
            return Some(input);
        }
    }
    None
}

fn log_event(key: &ProcKey, event: &Event) {
    match event.severity() {
        Severity::Info => info!(proc = %key, kind = event.kind(), %event, "event"),
        Severity::Warning => warn!(proc = %key, kind = event.kind(), %event, "event"),
    }
}
