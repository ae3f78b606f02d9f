//! The dispatcher's loop: takes messages, then decides and commits until nothing is due.

use super::cluster::Cluster;
use super::commit::BATCH;
use super::sessions::NewSession;
use super::{DispatcherMessage, Work};
use crate::backlog::Backlog;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::presences::Presences;
use procfleet_core::dispatch::Cancelling;
use procfleet_core::id::TaskId;
use procfleet_store::{Store, StoreError, Wake};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Tables of up to this many entries are not worth shrinking.
const SMALL_TABLE: usize = 4_096;
/// Longest sleep: tokio's timers do not count the time that the machine is suspended.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

impl Work {
    /// Loads the open ops of the store. `grace`: how long agents may take to reconnect before they count as
    /// away.
    pub(super) async fn load(
        store: Store,
        clock: Clock,
        presences: Presences,
        metrics: Arc<Metrics>,
        backlog: Backlog,
        changes: watch::Sender<u64>,
        grace: Duration,
    ) -> Result<Work, StoreError> {
        let mut work = Work {
            cluster: Cluster::of(&store),
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
            report_permits: Vec::new(),
            retry_at: None,
        };
        work.load_open_ops().await?;
        Ok(work)
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<DispatcherMessage>) {
        let mut messages = Vec::new();
        // Loaded ops have no timers yet, and possibly no message about them will ever arrive.
        self.settle().await;
        loop {
            let wake =
                self.wake_at().map(|moment| self.clock.instant_of(moment).min(Instant::now() + LOOK_AGAIN));
            tokio::select! {
                // Messages first: an outcome that has arrived in time must win over its deadline.
                biased;
                count = inbox.recv_many(&mut messages, BATCH) => if count == 0 { return },
                () = self.cluster.changed() => {}
                () = sleep_until(wake) => {}
            }
            let mut stop = None;
            for message in messages.drain(..) {
                match message {
                    DispatcherMessage::Stop(done) => stop = Some(done),
                    message => self.take(message),
                }
            }
            if self.retry_at.is_none_or(|at| self.clock.now() >= at) {
                self.retry_at = None;
                self.follow_cluster().await;
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

    pub(super) fn take(&mut self, message: DispatcherMessage) {
        match message {
            DispatcherMessage::TaskCreated(task) => {
                self.cluster.announce(Wake::Task(task));
                self.unread.push(task);
            }
            DispatcherMessage::Cancelled(task) => {
                self.cluster.announce(Wake::Cancelled);
                self.cancelled(task);
            }
            DispatcherMessage::Woken(wake) => self.woken(wake),
            DispatcherMessage::Connected { agent, term, epoch, sender, taken, heard, capabilities } => {
                let session = NewSession { agent, term, epoch, sender, taken, heard, capabilities };
                match self.cluster.is_shared() {
                    // The ops of the agent are read from the store first.
                    true => self.cluster.connecting.push(session),
                    false => self.admit(session),
                }
            }
            DispatcherMessage::Gone { agent, epoch } => {
                self.cluster.connecting.retain(|session| session.agent != agent || session.epoch != epoch);
                match self.sessions.get(&agent).map(|session| session.epoch) {
                    Some(known) if known == epoch => {
                        self.gone(&agent);
                    }
                    Some(_) => {}
                    None => self.cluster.left(agent),
                }
            }
            DispatcherMessage::CutOff => self.cut_off(),
            DispatcherMessage::Dismissed { agent, reason } => {
                self.cluster.announce(Wake::Dismissed);
                self.dismiss(agent, reason);
            }
            DispatcherMessage::Reports { agent, epoch, reports, permit } => {
                self.report_permits.extend(permit);
                for (op, outcome) in reports {
                    self.reported(&agent, epoch, op, outcome);
                }
            }
            DispatcherMessage::Stop(_) => unreachable!("`run` handles it"),
        }
    }

    /// The task was cancelled.
    pub(super) fn cancelled(&mut self, task: TaskId) {
        for (op, entry) in self.ops.iter_mut().filter(|(op, _)| op.task == task) {
            entry.cancelling.get_or_insert(Cancelling::Due);
            self.dirty.insert(*op);
        }
    }

    /// Decides about every op that is due, until no decision causes another.
    pub(super) async fn settle(&mut self) {
        loop {
            let may_act = self.cluster.may_act();
            if may_act {
                self.decide_due();
            }
            self.commit().await;
            // An op that ended may let another be sent.
            if self.dirty.is_empty() || !may_act {
                break;
            }
        }
        self.metrics.open_ops.set(i64::try_from(self.ops.len()).unwrap_or(i64::MAX));
        self.cluster.set_load(self.sessions.len(), self.ops.len());
        self.shrink();
    }

    /// Returns memory after a burst. Tables shrink only when less than an eighth is in use, so that the cost
    /// of shrinking stays below the cost of the ops.
    pub(super) fn shrink(&mut self) {
        if self.ops.capacity() > SMALL_TABLE.max(8 * self.ops.len()) {
            self.ops.shrink_to(2 * self.ops.len());
        }
        if self.finished.capacity() > SMALL_TABLE.max(8 * self.finished.len()) {
            self.finished.shrink_to(2 * self.finished.len());
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
