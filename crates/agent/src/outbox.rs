//! What the server has to be told and has not confirmed. The journal holds the same outcomes; this is the copy that the
//! link works on.

use procfleet_core::id::OpId;
use procfleet_core::op::Outcome;
use procfleet_proto::link::Report;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// An outcome that was sent and is not confirmed after this long is sent again.
const REPEAT: Duration = Duration::from_secs(10);
/// A batch stays well below the largest frame: one report may have some 8 KiB.
const BATCH: usize = 6;

#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    inner: Arc<Mutex<Inner>>,
    news: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the journal, not begun or not done: the server may stop resending them.
    taken: BTreeSet<OpId>,
    done: BTreeMap<OpId, (Outcome, Option<Instant>)>,
}

impl Outbox {
    pub(crate) fn new(unacknowledged: Vec<(OpId, Outcome)>) -> Outbox {
        let outbox = Outbox::default();
        outbox.lock().done = unacknowledged.into_iter().map(|(op, outcome)| (op, (outcome, None))).collect();
        outbox
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn taken(&self, op: OpId) {
        self.lock().taken.insert(op);
        self.news.notify_one();
    }

    pub(crate) fn done(&self, op: OpId, outcome: Outcome) {
        let mut inner = self.lock();
        inner.taken.remove(&op);
        inner.done.insert(op, (outcome, None));
        self.news.notify_one();
    }

    pub(crate) fn confirmed(&self, ops: &[OpId]) {
        let mut inner = self.lock();
        for op in ops {
            inner.done.remove(op);
        }
    }

    /// A new session begins: everything is to be said again.
    pub(crate) fn rewind(&self) {
        let mut inner = self.lock();
        inner.taken.clear();
        for (_, sent) in inner.done.values_mut() {
            *sent = None;
        }
        self.news.notify_one();
    }

    /// The next batch to send; empty when there is nothing to say now.
    pub(crate) fn next_batch(&self, now: Instant) -> Vec<Report> {
        let mut inner = self.lock();
        let mut batch: Vec<Report> =
            std::mem::take(&mut inner.taken).into_iter().map(Report::taken).collect();
        let due = inner
            .done
            .iter_mut()
            .filter(|(_, (_, sent))| sent.is_none_or(|at| now.duration_since(at) >= REPEAT));
        for (op, (outcome, sent)) in due.take(BATCH) {
            *sent = Some(now);
            batch.push(Report::done(*op, outcome));
        }
        batch
    }

    /// Returns when there may be something to send.
    pub(crate) async fn news(&self) {
        let _ = tokio::time::timeout(REPEAT, self.news.notified()).await;
    }
}
