//! The one writer of ops.
//!
//! The dispatcher knows every op without an outcome and every connected agent. Whatever happens (a new task,
//! a connect, a report, a deadline), it asks [`dispatch::decide`] about the ops concerned and does what it
//! says: give the op to a session, wait, or write the outcome. It loads its ops from the store, so a start
//! after a crash is no special case.
//!
//! Outcomes are written in batches, one transaction each, and acknowledged only after the commit. If the
//! store refuses, the batch is kept and tried again: agents repeat what was not acknowledged, and nothing is
//! lost.

#[cfg(test)]
mod tests;

use crate::backlog::{Backlog, Load};
use crate::clock::{Clock, ClockReading};
use crate::metrics::Metrics;
use crate::sessions::{CutReason, LastHeard, Presences, SessionSender, Undelivered};
use crate::store::{Applied, Finished, OpenOpRow, Store, StoreError};
use procfleet_core::boot_time::BootTime;
use procfleet_core::dispatch::{
    self, CANCEL_GRACE, CancelStep, Cancelling, Decision, OpProgress, OpenOp, Presence, RESTART_GRACE, WINDOW,
};
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{AgentId, Epoch, OpId, ProcKey, TaskId};
use procfleet_core::op::Outcome;
use procfleet_core::spec::Spec;
use procfleet_failpoint::{Point, hit};
use procfleet_program::Parts;
use procfleet_proto::link::{Ack, Cancel, Drain, Op, Refused, server_message::Body};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

/// How many notes may wait. Reports come in batches, so this is far more than one round of a large fleet; a
/// session that finds it full waits, and so does its agent.
const NOTES: usize = 4_096;
/// How many outcomes are written in one transaction.
const BATCH: usize = 2_000;
/// How many bytes of reports may wait to be written. Beyond that sessions do not read on, so that a storm of
/// results, or a disk that takes none, queues on the agents.
const REPORT_BYTES: usize = 32 << 20;
/// Tables of up to so many entries are not worth shrinking.
const SMALL_TABLE: usize = 4_096;
/// More ops that end together than this share a line in the log.
const LINES: usize = 32;
/// On an orderly end agents come back after this, plus a random part of a spread: so much for each of them,
/// which a server of two cores can welcome, within bounds.
const COME_BACK: Duration = Duration::from_millis(500);
const SPREAD_EACH: Duration = Duration::from_millis(2);
const SPREAD: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// How soon a write that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// No sleep is longer, for what sleeps does not notice how long the machine was suspended.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Stands for the sessions of a server that is no more. Those of the store begin with 1.
const NO_SESSION: Epoch = Epoch(0);

/// What is said of an agent whose host another one has joined for.
pub const RETIRED: &str = "was retired: another agent has joined for its host";

/// What is said of an agent that an administrator has revoked for this reason.
pub fn revoked(why: &str) -> String {
    match why {
        "" => "was revoked; only a new token lets its host in again".to_owned(),
        why => format!("was revoked ({why}); only a new token lets its host in again"),
    }
}

/// Something happened.
#[derive(Debug)]
pub enum DispatcherMessage {
    /// Durable already; the dispatcher reads it from the store.
    TaskCreated(TaskId),
    /// Durably: nobody waits for its ops any more.
    Cancelled(TaskId),
    Connected {
        agent: AgentId,
        epoch: Epoch,
        sender: SessionSender,
        /// What the agent has in its journal already.
        taken: Vec<OpId>,
        heard: LastHeard,
        knows: Knows,
    },
    Gone {
        agent: AgentId,
        epoch: Epoch,
    },
    /// It was retired or revoked, durably, and will not come back: its session ends, and so do its ops.
    Dismissed {
        agent: AgentId,
        /// What goes on after "its agent".
        reason: String,
    },
    Reports {
        agent: AgentId,
        epoch: Epoch,
        reports: Vec<(OpId, Option<Outcome>)>,
        /// Their room among all that wait; see [`Dispatcher::report`].
        room: Option<OwnedSemaphorePermit>,
    },
    Stop(oneshot::Sender<()>),
}

/// What not every version of the agent knows.
#[derive(Clone, Copy, Debug)]
pub struct Knows {
    /// It can be told that an op was cancelled.
    pub cancels: bool,
    /// It changes single fields of a stored spec.
    pub changes: bool,
    /// It refuses ops that are about other OS accounts than their app may use.
    pub limits_accounts: bool,
}

/// How the rest of the server speaks to the dispatcher.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    notes: mpsc::Sender<DispatcherMessage>,
    changed: watch::Receiver<u64>,
    room: Arc<Semaphore>,
}

impl Dispatcher {
    /// Loads the open ops and starts to work on them.
    pub async fn start(
        parts: &mut Parts,
        store: Store,
        clock: Clock,
        presences: Presences,
        metrics: Arc<Metrics>,
        backlog: Backlog,
    ) -> Result<Dispatcher, StoreError> {
        let (dispatcher, work) =
            Dispatcher::prepare(store, clock, presences, metrics, backlog, RESTART_GRACE).await?;
        parts.spawn("the dispatcher of ops", work);
        Ok(dispatcher)
    }

    /// The dispatcher and its task. `grace`: how long nothing is said about agents that have not come back
    /// yet.
    async fn prepare(
        store: Store,
        clock: Clock,
        presences: Presences,
        metrics: Arc<Metrics>,
        backlog: Backlog,
        grace: Duration,
    ) -> Result<(Dispatcher, impl Future<Output = ()> + Send + 'static), StoreError> {
        let (notes, inbox) = mpsc::channel(NOTES);
        let (changes, changed) = watch::channel(0);
        let mut work = Work {
            store,
            clock,
            presences,
            metrics,
            backlog,
            changes,
            ops: HashMap::new(),
            by_agent: HashMap::new(),
            sessions: HashMap::new(),
            back_by: HashMap::new(),
            dismissed: HashMap::new(),
            verdicts_from: clock.now() + grace,
            timers: BTreeSet::new(),
            dirty: BTreeSet::new(),
            finished: Vec::new(),
            unread: Vec::new(),
            rooms: Vec::new(),
            retry_at: None,
        };
        work.load().await?;
        Ok((Dispatcher { notes, changed, room: Arc::new(Semaphore::new(REPORT_BYTES)) }, work.run(inbox)))
    }

    /// What an agent has reported, in a message of `size` bytes. Waits while too much is waiting already.
    pub async fn report(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        reports: Vec<(OpId, Option<Outcome>)>,
        size: usize,
    ) -> bool {
        let size = u32::try_from(size.min(REPORT_BYTES)).unwrap_or(u32::MAX);
        // It is never closed.
        let room = Arc::clone(&self.room).acquire_many_owned(size).await.ok();
        self.send(DispatcherMessage::Reports { agent: agent.clone(), epoch, reports, room }).await
    }

    /// Waits while too much is waiting already. False: the dispatcher has ended.
    pub async fn send(&self, note: DispatcherMessage) -> bool {
        self.notes.send(note).await.is_ok()
    }

    /// Changes whenever an op got an outcome.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// Tells all agents to leave and ends.
    pub async fn stop(&self) {
        let (done, ended) = oneshot::channel();
        if self.send(DispatcherMessage::Stop(done)).await {
            let _ = ended.await;
        }
    }
}

struct Work {
    store: Store,
    clock: Clock,
    presences: Presences,
    metrics: Arc<Metrics>,
    /// Told when ops end, so that there is room for others.
    backlog: Backlog,
    changes: watch::Sender<u64>,
    /// Boxed: a table of whole entries would be the largest thing in memory, and twice while it grows.
    ops: HashMap<OpId, Box<Entry>>,
    by_agent: HashMap<AgentId, BTreeSet<OpId>>,
    sessions: HashMap<AgentId, Session>,
    /// Until when an agent that is away may come back.
    back_by: HashMap<AgentId, BootTime>,
    /// Those that will never come back, and why.
    dismissed: HashMap<AgentId, String>,
    /// Until when one that was not here since our own start may: nobody knows yet whether it is away.
    verdicts_from: BootTime,
    timers: BTreeSet<(BootTime, OpId)>,
    /// Ops to decide about.
    dirty: BTreeSet<OpId>,
    finished: Vec<Finished>,
    /// Tasks that the store would not show; they are asked for again.
    unread: Vec<TaskId>,
    /// Given back when the reports that they are for are written.
    rooms: Vec<OwnedSemaphorePermit>,
    retry_at: Option<BootTime>,
}

struct Entry {
    open: OpenOp,
    proc: ProcKey,
    spec: Option<Arc<[u8]>>,
    /// It changes single fields of a stored spec.
    changes: bool,
    accounts: GrantScope<String>,
    target: String,
    agent: Option<AgentId>,
    /// `Some`: nobody waits for it any more.
    cancelling: Option<Cancelling>,
    wake: Option<BootTime>,
}

struct Session {
    epoch: Epoch,
    sender: SessionSender,
    knows: Knows,
    /// Sent and not confirmed.
    unconfirmed: usize,
    /// To be sent when there is room again.
    backlog: VecDeque<OpId>,
}

impl Work {
    async fn load(&mut self) -> Result<(), StoreError> {
        let open = self.store.open_ops().await?;
        let mut present_until = HashMap::new();
        for agent in self.store.agents().await? {
            // `None`: until our predecessor ended.
            let gone = ClockReading { wall: agent.changed_at, mark: agent.changed_mark };
            present_until.insert(agent.agent.clone(), (!agent.connected).then_some(gone));
            if let Some(revocation) = agent.revoked {
                self.dismissed.insert(agent.agent, revoked(&revocation.why));
            }
        }
        for agent in open.iter().filter_map(|row| row.agent.as_ref()) {
            if !present_until.contains_key(agent) {
                self.dismissed.insert(agent.clone(), RETIRED.to_owned());
            }
        }
        let mut specs: HashMap<TaskId, BTreeMap<*const Spec, usize>> = HashMap::new();
        for row in &open {
            let sizes = specs.entry(row.op.task).or_default();
            if let Some(spec) = &row.spec {
                sizes.entry(Arc::as_ptr(spec)).or_insert_with(|| text_of(spec).len());
            }
        }
        for (task, ops) in count_by_task(&open) {
            let bytes = specs.get(&task).map_or(0, |sizes| sizes.values().sum());
            self.backlog.restore(task, Load { ops, bytes });
        }
        if !open.is_empty() {
            info!(ops = open.len(), "open ops taken up again");
        }
        // What was sent is not written down. An agent that was there after the op may have it, and even its
        // outcome, so nothing may be said of the op before the agent or the deadline does.
        self.add(open, |row| {
            let until = row.agent.as_ref().and_then(|agent| present_until.get(agent));
            match until.is_some_and(|until| until.is_none_or(|gone| !gone.is_before(row.accepted))) {
                true => OpProgress::Sent(NO_SESSION),
                false => OpProgress::Waiting,
            }
        });
        Ok(())
    }

    async fn run(mut self, mut inbox: mpsc::Receiver<DispatcherMessage>) {
        let mut notes = Vec::new();
        // What was loaded has no timers yet, and nobody may ever send a note about it.
        self.settle().await;
        loop {
            let wake =
                self.wake_at().map(|moment| self.clock.instant_of(moment).min(Instant::now() + LOOK_AGAIN));
            tokio::select! {
                // Notes first: an outcome that has arrived must win over the deadline that it just met.
                biased;
                count = inbox.recv_many(&mut notes, BATCH) => if count == 0 { return },
                () = sleep_until(wake) => {}
            }
            let mut stop = None;
            for note in notes.drain(..) {
                match note {
                    DispatcherMessage::Stop(done) => stop = Some(done),
                    note => self.take(note),
                }
            }
            if self.retry_at.is_none_or(|at| self.clock.now() >= at) {
                self.retry_at = None;
                self.read_tasks().await;
            }
            self.settle().await;
            if let Some(done) = stop {
                self.leave();
                let _ = done.send(());
                return;
            }
        }
    }

    fn wake_at(&self) -> Option<BootTime> {
        let timer = self.timers.first().map(|(moment, _)| *moment);
        timer.into_iter().chain(self.retry_at).min()
    }

    fn take(&mut self, note: DispatcherMessage) {
        match note {
            DispatcherMessage::TaskCreated(task) => self.unread.push(task),
            DispatcherMessage::Cancelled(task) => {
                for (op, entry) in self.ops.iter_mut().filter(|(op, _)| op.task == task) {
                    entry.cancelling.get_or_insert(Cancelling::Due);
                    self.dirty.insert(*op);
                }
            }
            DispatcherMessage::Connected { agent, epoch, sender: outbox, taken, heard, knows } => {
                if self.connected(agent.clone(), epoch, outbox, taken, knows) {
                    self.presences.insert(agent, heard);
                }
            }
            DispatcherMessage::Gone { agent, epoch } => {
                if self.sessions.get(&agent).is_some_and(|session| session.epoch == epoch) {
                    self.gone(&agent);
                }
            }
            DispatcherMessage::Dismissed { agent, reason } => self.dismiss(agent, reason),
            DispatcherMessage::Reports { agent, epoch, reports, room } => {
                self.rooms.extend(room);
                for (op, outcome) in reports {
                    self.reported(&agent, epoch, op, outcome);
                }
            }
            DispatcherMessage::Stop(_) => unreachable!("the loop keeps it back"),
        }
    }

    /// The ops of all tasks that have come, in one look at the store.
    async fn read_tasks(&mut self) {
        if self.unread.is_empty() {
            return;
        }
        match self.store.tasks_ops(self.unread.clone()).await {
            Ok(rows) => {
                hit(Point::ServerKeeperRead);
                let open = count_by_task(&rows);
                for task in std::mem::take(&mut self.unread) {
                    self.backlog.opened(task, open.get(&task).copied().unwrap_or_default());
                }
                self.add(rows, |_| OpProgress::Waiting);
            }
            Err(error) => {
                let tasks = self.unread.len();
                error!(
                    tasks,
                    error = &error as &dyn std::error::Error,
                    "reading new tasks failed; it is tried again"
                );
                self.retry_at = Some(self.clock.now() + RETRY);
            }
        }
    }

    fn add(&mut self, rows: Vec<OpenOpRow>, progress: impl Fn(&OpenOpRow) -> OpProgress) {
        // One text per request, however many targets it has.
        let mut texts: HashMap<*const Spec, Arc<[u8]>> = HashMap::new();
        for row in rows {
            let spec = row
                .spec
                .as_ref()
                .map(|spec| texts.entry(Arc::as_ptr(spec)).or_insert_with(|| text_of(spec).into()).clone());
            if let Some(agent) = &row.agent {
                self.by_agent.entry(agent.clone()).or_default().insert(row.op);
            }
            let open = OpenOp {
                kind: row.kind,
                accepted: self.clock.moment_of(row.accepted.wall, row.accepted),
                start_by: self.clock.moment_of(row.start_by, row.accepted),
                deadline: self.clock.moment_of(row.deadline, row.accepted),
                progress: progress(&row),
            };
            let target = row.target.to_string();
            let cancelling = row.cancelled.then_some(Cancelling::Due);
            let changes = row.spec.as_ref().is_some_and(|spec| !spec.change.is_empty());
            let (proc, agent, accounts) = (row.proc, row.agent, row.accounts);
            let entry = Entry { open, proc, spec, changes, accounts, target, agent, cancelling, wake: None };
            self.ops.insert(row.op, Box::new(entry));
            self.dirty.insert(row.op);
        }
    }

    /// False: the session is not wanted.
    fn connected(
        &mut self,
        agent: AgentId,
        epoch: Epoch,
        sender: SessionSender,
        taken: Vec<OpId>,
        knows: Knows,
    ) -> bool {
        if self.sessions.get(&agent).is_some_and(|session| session.epoch > epoch) {
            sender.cut(CutReason::Replaced);
            return false;
        }
        // It was let in a moment before it was dismissed.
        if let Some(reason) = self.dismissed.get(&agent) {
            let _ = sender.try_send(refusal(&agent, reason));
            return false;
        }
        let ended = taken.iter().filter(|op| !self.ops.contains_key(op)).map(OpId::to_string);
        let ended: Vec<String> = if knows.cancels { ended.collect() } else { Vec::new() };
        if !ended.is_empty() {
            // They ended here while it was away. What it has not begun, it must not begin now.
            let _ = sender.try_send(Body::Cancel(Cancel { ops: ended }));
        }
        let session = Session { epoch, sender, knows, unconfirmed: 0, backlog: VecDeque::new() };
        if let Some(older) = self.sessions.insert(agent.clone(), session) {
            older.sender.cut(CutReason::Replaced);
        }
        self.back_by.remove(&agent);
        for op in taken {
            if let Some(entry) = self.ops.get_mut(&op).filter(|entry| entry.agent.as_ref() == Some(&agent)) {
                entry.open.progress = OpProgress::Taken(epoch);
            }
        }
        self.reconsider(&agent);
        true
    }

    fn dismiss(&mut self, agent: AgentId, reason: String) {
        if let Some(session) = self.sessions.remove(&agent) {
            // Dropping the outbox ends the connection when this is sent.
            let _ = session.sender.try_send(refusal(&agent, &reason));
            self.presences.remove(&agent);
        }
        self.back_by.remove(&agent);
        self.reconsider(&agent);
        self.dismissed.insert(agent, reason);
    }

    /// Its session has ended. Returns what was left of it.
    fn gone(&mut self, agent: &AgentId) -> Option<Session> {
        let session = self.sessions.remove(agent);
        self.presences.remove(agent);
        self.back_by.insert(agent.clone(), self.clock.now() + dispatch::RECONNECT_GRACE);
        self.reconsider(agent);
        session
    }

    /// Ends its session at once. It may come back, and hears everything again.
    fn cut(&mut self, agent: &AgentId, reason: CutReason) {
        if let Some(session) = self.gone(agent) {
            warn!(%agent, %reason, "an agent was cut off");
            session.sender.cut(reason);
        }
    }

    fn reconsider(&mut self, agent: &AgentId) {
        self.dirty.extend(self.by_agent.get(agent).into_iter().flatten());
    }

    fn reported(&mut self, agent: &AgentId, epoch: Epoch, op: OpId, outcome: Option<Outcome>) {
        if let Some(entry) = self.ops.get_mut(&op).filter(|entry| entry.agent.as_ref() == Some(agent)) {
            let unconfirmed = entry.open.progress == OpProgress::Sent(epoch);
            entry.open.progress = OpProgress::Taken(epoch);
            if unconfirmed {
                self.give_place(agent, epoch);
            }
        }
        if let Some(outcome) = outcome {
            self.finished.push(Finished { op, agent: Some(agent.clone()), outcome, at: self.clock.wall() });
        }
    }

    /// Decides about every op that is due, until nothing more follows from it.
    async fn settle(&mut self) {
        loop {
            self.decide_due();
            self.commit().await;
            // An op that ended may have made room for another.
            if self.dirty.is_empty() {
                break;
            }
        }
        self.metrics.open_ops.set(i64::try_from(self.ops.len()).unwrap_or(i64::MAX));
        self.shrink();
    }

    /// Tables keep the size that a burst gave them. Shrunk when an eighth of it is in use, so that shrinking
    /// costs less than the ops did.
    fn shrink(&mut self) {
        if self.ops.capacity() > SMALL_TABLE.max(8 * self.ops.len()) {
            self.ops.shrink_to(2 * self.ops.len());
        }
        if self.finished.capacity() > SMALL_TABLE.max(8 * self.finished.len()) {
            self.finished.shrink_to(2 * self.finished.len());
        }
    }

    /// An op no longer counts among those that the agent has yet to confirm: the next one may be sent.
    fn give_place(&mut self, agent: &AgentId, epoch: Epoch) {
        let Some(session) = self.sessions.get_mut(agent).filter(|session| session.epoch == epoch) else {
            return;
        };
        session.unconfirmed = session.unconfirmed.saturating_sub(1);
        // Some that wait have ended meanwhile: a place given to one of them would be lost.
        while let Some(op) = session.backlog.pop_front() {
            if self.ops.contains_key(&op) {
                self.dirty.insert(op);
                return;
            }
        }
    }

    fn decide_due(&mut self) {
        let now = self.clock.now();
        while let Some((moment, op)) = self.timers.first().copied().filter(|(moment, _)| *moment <= now) {
            self.timers.remove(&(moment, op));
            if self.ops.get(&op).is_some_and(|entry| entry.wake == Some(moment)) {
                self.dirty.insert(op);
            }
        }
        for op in std::mem::take(&mut self.dirty) {
            self.decide(now, op);
        }
    }

    fn decide(&mut self, now: BootTime, op: OpId) {
        let Some(entry) = self.ops.get(&op) else { return };
        if let Some(reason) = entry.agent.as_ref().and_then(|agent| self.dismissed.get(agent)) {
            let outcome = dispatch::dismissed(&entry.open, &entry.target, reason);
            self.finished.push(Finished { op, agent: None, outcome, at: self.clock.wall() });
            return self.wake(op, now + RETRY);
        }
        let presence = match &entry.agent {
            None => Presence::Unknown,
            Some(agent) => match self.sessions.get(agent) {
                Some(session) => Presence::Connected(session.epoch),
                None => {
                    Presence::Away { back_by: self.back_by.get(agent).copied().unwrap_or(self.verdicts_from) }
                }
            },
        };
        if let Some(cancelling) = entry.cancelling {
            return self.cancel(now, op, presence, cancelling);
        }
        match dispatch::decide(now, &entry.open, presence, &entry.target) {
            Decision::Send => self.send(now, op),
            Decision::Wait { until } => self.wake(op, until),
            Decision::End(outcome) => {
                self.finished.push(Finished { op, agent: None, outcome, at: self.clock.wall() });
                // Until it is written, do not decide again.
                self.wake(op, now + RETRY);
            }
        }
    }

    fn cancel(&mut self, now: BootTime, op: OpId, presence: Presence, cancelling: Cancelling) {
        let Some(entry) = self.ops.get_mut(&op) else { return };
        let session = entry.agent.as_ref().and_then(|agent| self.sessions.get(agent));
        let cancelling = match session {
            Some(session) if !session.knows.cancels => Cancelling::Deaf,
            _ => cancelling,
        };
        let wake = match dispatch::cancel(now, &entry.open, presence, cancelling, &entry.target) {
            CancelStep::Wait { until } => until,
            CancelStep::Ask => {
                if let Some(session) = session {
                    // One that could not be told ends with its grace, as one that does not answer.
                    let _ = session.sender.try_send(Body::Cancel(Cancel { ops: vec![op.to_string()] }));
                    let until = now + CANCEL_GRACE;
                    entry.cancelling = Some(Cancelling::Asked { epoch: session.epoch, until });
                }
                now + CANCEL_GRACE
            }
            CancelStep::End(outcome) => {
                self.finished.push(Finished { op, agent: None, outcome, at: self.clock.wall() });
                now + RETRY
            }
        };
        self.wake(op, wake);
    }

    fn send(&mut self, now: BootTime, op: OpId) {
        let Some(entry) = self.ops.get_mut(&op) else { return };
        let Some(session) = entry.agent.as_ref().and_then(|agent| self.sessions.get_mut(agent)) else {
            return;
        };
        let until = match entry.open.progress {
            OpProgress::Waiting => entry.open.start_by,
            OpProgress::Sent(_) | OpProgress::Taken(_) => entry.open.deadline,
        };
        if !entry.accounts.is_all() && !session.knows.limits_accounts {
            let ended = dispatch::unchecked(&entry.open, &entry.target);
            let wake = if ended.is_some() { now + RETRY } else { until };
            let at = self.clock.wall();
            self.finished.extend(ended.map(|outcome| Finished { op, agent: None, outcome, at }));
            return self.wake(op, wake);
        }
        if session.unconfirmed >= WINDOW {
            session.backlog.push_back(op);
            return self.wake(op, until);
        }
        if entry.changes && !session.knows.changes {
            let outcome = dispatch::cannot_change(&entry.open, &entry.target);
            self.finished.push(Finished { op, agent: None, outcome, at: self.clock.wall() });
            return self.wake(op, now + RETRY);
        }
        let within = entry.open.start_by.since(now);
        let (kind, spec) = (entry.open.kind, entry.spec.as_deref());
        let order = Op::new(op, session.epoch, &entry.proc, kind, within, spec, &entry.accounts);
        match session.sender.try_send(Body::Op(order)) {
            Ok(()) => {}
            // It will be said that the session is gone.
            Err(Undelivered::Ended) => return self.wake(op, until),
            Err(Undelivered::Full) => {
                let agent = entry.agent.clone();
                self.wake(op, until);
                return agent.iter().for_each(|agent| self.cut(agent, CutReason::Slow));
            }
        }
        session.unconfirmed += 1;
        entry.open.progress = OpProgress::Sent(session.epoch);
        self.metrics.sent.inc();
        let deadline = entry.open.deadline;
        self.wake(op, deadline);
    }

    fn wake(&mut self, op: OpId, at: BootTime) {
        if let Some(entry) = self.ops.get_mut(&op) {
            if let Some(old) = entry.wake.replace(at) {
                self.timers.remove(&(old, op));
            }
            self.timers.insert((at, op));
        }
    }

    /// Writes the outcomes and acknowledges them.
    async fn commit(&mut self) {
        while self.retry_at.is_none() && !self.finished.is_empty() {
            let batch: Vec<Finished> = self.finished.iter().take(BATCH).cloned().collect();
            hit(Point::ServerReportUnwritten);
            let applied = match self.store.finish_ops(batch.clone()).await {
                Ok(applied) => applied,
                Err(error) => {
                    error!(
                        error = &error as &dyn std::error::Error,
                        "writing outcomes failed; they are kept and tried again"
                    );
                    self.retry_at = Some(self.clock.now() + RETRY);
                    return;
                }
            };
            hit(Point::ServerReportCommitted);
            self.finished.drain(..batch.len());
            self.acknowledge(batch, applied);
            self.changes.send_modify(|generation| *generation += 1);
        }
        if self.finished.is_empty() {
            self.rooms.clear();
        }
    }

    fn acknowledge(&mut self, batch: Vec<Finished>, applied: Vec<Applied>) {
        let mut acks: HashMap<AgentId, Vec<String>> = HashMap::new();
        let one_by_one = batch.len() <= LINES;
        let (mut ended, mut liars) = (0, BTreeSet::new());
        let mut ended_of: HashMap<TaskId, usize> = HashMap::new();
        for (finished, applied) in batch.into_iter().zip(applied) {
            let op = finished.op;
            match applied {
                Applied::Now => {
                    self.metrics.outcome(finished.outcome.code);
                    ended += 1;
                    match one_by_one {
                        true => info!(%op, code = finished.outcome.code.number(), "op ended"),
                        false => debug!(%op, code = finished.outcome.code.number(), "op ended"),
                    }
                }
                Applied::Already => {}
                Applied::Late => {
                    self.metrics.late_reports.inc();
                    let code = finished.outcome.code.number();
                    info!(%op, code, "a late report was kept; the op keeps the outcome that it had");
                }
                // Acknowledged all the same: repeating it would not help anybody.
                Applied::Unknown => warn!(%op, "a report for an op that nobody gave out"),
                Applied::NotYours => {
                    warn!(%op, agent = ?finished.agent, "a report for another agent's op was refused");
                    liars.extend(finished.agent);
                    continue;
                }
            }
            if self.forget(op) {
                *ended_of.entry(op.task).or_default() += 1;
            }
            if let Some(agent) = finished.agent {
                acks.entry(agent).or_default().push(op.to_string());
            }
        }
        for (task, ops) in ended_of {
            self.backlog.ended(task, ops);
        }
        if ended > 0 && !one_by_one {
            info!(ops = ended, "ops ended");
        }
        for agent in liars {
            self.cut(&agent, CutReason::NotItsOwn);
        }
        for (agent, ops) in acks {
            // A lost acknowledgement is repaired by the agent's next report.
            let Some(session) = self.sessions.get(&agent) else { continue };
            let full = ops.chunks(500).any(|ops| {
                session.sender.try_send(Body::Ack(Ack { ops: ops.to_vec() })) == Err(Undelivered::Full)
            });
            if full {
                self.cut(&agent, CutReason::Slow);
            }
        }
    }

    /// False: it was not known any more.
    fn forget(&mut self, op: OpId) -> bool {
        let Some(entry) = self.ops.remove(&op) else { return false };
        if let Some(wake) = entry.wake {
            self.timers.remove(&(wake, op));
        }
        let Some(agent) = entry.agent else { return true };
        if let Some(ops) = self.by_agent.get_mut(&agent) {
            ops.remove(&op);
            if ops.is_empty() {
                self.by_agent.remove(&agent);
            }
        }
        // An agent that could not take it will not confirm it any more.
        if let OpProgress::Sent(epoch) = entry.open.progress {
            self.give_place(&agent, epoch);
        }
        true
    }

    fn leave(&mut self) {
        let sessions = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX);
        let spread = SPREAD_EACH.saturating_mul(sessions).clamp(SPREAD.0, SPREAD.1);
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let drain = Drain { after_ms: millis(COME_BACK), spread_ms: millis(spread) };
        for session in self.sessions.values() {
            let _ = session.sender.try_send(Body::Drain(drain.clone()));
        }
        self.sessions.clear();
    }
}

fn count_by_task(rows: &[OpenOpRow]) -> HashMap<TaskId, usize> {
    let mut ops = HashMap::new();
    for row in rows {
        *ops.entry(row.op.task).or_default() += 1;
    }
    ops
}

fn text_of(spec: &Spec) -> Vec<u8> {
    serde_json::to_vec(spec).expect("a spec is always JSON")
}

fn refusal(agent: &AgentId, reason: &str) -> Body {
    Body::Refused(Refused { reason: format!("agent {agent} {reason}") })
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
