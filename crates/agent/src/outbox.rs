//! Outcomes that the server has not acknowledged. The journal holds the same outcomes; this is the copy of
//! the link.

use procfleet_core::id::OpId;
use procfleet_core::op::Outcome;
use procfleet_proto::link::{BATCH, Report};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// An outcome that was sent and is not confirmed after this long is sent again.
const REPEAT: Duration = Duration::from_secs(10);
/// Maximum number of confirmations in a batch; each has less than 64 bytes.
const BATCH_TAKEN: usize = BATCH / 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
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
        self.changed.notify_one();
    }

    pub(crate) fn done(&self, op: OpId, outcome: Outcome) {
        let mut inner = self.lock();
        inner.taken.remove(&op);
        inner.done.insert(op, (outcome, None));
        self.changed.notify_one();
    }

    /// Sends the outcome of this op again. False: there is none, or it is acknowledged.
    pub(crate) fn repeat(&self, op: OpId) -> bool {
        let mut inner = self.lock();
        let Some((_, sent)) = inner.done.get_mut(&op) else { return false };
        *sent = None;
        self.changed.notify_one();
        true
    }

    pub(crate) fn confirmed(&self, ops: &[OpId]) {
        let mut inner = self.lock();
        for op in ops {
            inner.done.remove(op);
        }
    }

    /// A new session begins: everything is sent again.
    pub(crate) fn rewind(&self) {
        let mut inner = self.lock();
        inner.taken.clear();
        for (_, sent) in inner.done.values_mut() {
            *sent = None;
        }
        self.changed.notify_one();
    }

    /// The next batch to send; empty when there is nothing now.
    pub(crate) fn next_batch(&self, now: Instant) -> Vec<Report> {
        let mut inner = self.lock();
        let mut batch = Vec::new();
        while batch.len() < BATCH_TAKEN
            && let Some(op) = inner.taken.pop_first()
        {
            batch.push(Report::taken(op));
        }
        let mut bytes = batch.len() * 64;
        let due = inner
            .done
            .iter_mut()
            .filter(|(_, (_, sent))| sent.is_none_or(|at| now.duration_since(at) >= REPEAT));
        for (op, (outcome, sent)) in due {
            let report = Report::done(*op, outcome);
            bytes += report.size() + 8;
            if bytes > BATCH && !batch.is_empty() {
                break;
            }
            *sent = Some(now);
            batch.push(report);
        }
        batch
    }

    /// Returns when there may be something to send, or to send again.
    pub(crate) async fn changed(&self) {
        let _ = tokio::time::timeout(REPEAT, self.changed.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::code::Code;
    use procfleet_core::op::OpKind;

    fn op(number: u32) -> OpId {
        format!("20190813145456-8-{number}").parse().expect("an op id")
    }

    fn outcome(length: usize) -> Outcome {
        Outcome::without_agent(Code::PostCheck, "x".repeat(length), OpKind::Start)
    }

    fn ops(batch: &[Report]) -> Vec<OpId> {
        batch.iter().map(|report| report.op.parse().expect("an op id")).collect()
    }

    #[test]
    fn an_outcome_is_repeated_until_it_is_confirmed() {
        let outbox = Outbox::new(vec![(op(1), outcome(3))]);
        let now = Instant::now();
        assert_eq!(ops(&outbox.next_batch(now)), [op(1)]);
        assert!(outbox.next_batch(now).is_empty(), "not at once");
        assert_eq!(ops(&outbox.next_batch(now + REPEAT)), [op(1)]);
        outbox.rewind();
        assert_eq!(ops(&outbox.next_batch(now)), [op(1)], "a new session hears everything");
        outbox.confirmed(&[op(1)]);
        outbox.rewind();
        assert!(outbox.next_batch(now + REPEAT).is_empty());
    }

    #[test]
    fn an_outcome_that_is_asked_for_is_sent_again_at_once() {
        let outbox = Outbox::new(vec![(op(1), outcome(3))]);
        let now = Instant::now();
        assert_eq!(ops(&outbox.next_batch(now)), [op(1)]);
        assert!(outbox.repeat(op(1)) && !outbox.repeat(op(2)));
        assert_eq!(ops(&outbox.next_batch(now)), [op(1)]);
        outbox.confirmed(&[op(1)]);
        assert!(!outbox.repeat(op(1)));
    }

    #[test]
    fn a_finished_op_is_not_listed_as_accepted() {
        let outbox = Outbox::default();
        outbox.taken(op(1));
        outbox.done(op(1), outcome(3));
        let batch = outbox.next_batch(Instant::now());
        assert!(matches!(&batch[..], [report] if report.done.is_some()), "{batch:?}");
    }

    #[test]
    fn many_outcomes_go_in_several_batches() {
        for length in [3, 12_000] {
            let outbox = Outbox::new((0..100).map(|number| (op(number), outcome(length))).collect());
            (100..300).for_each(|number| outbox.taken(op(number)));
            let mut sent = 0;
            loop {
                let batch = outbox.next_batch(Instant::now());
                if batch.is_empty() {
                    break;
                }
                assert!(batch.len() == 1 || batch.iter().map(Report::size).sum::<usize>() <= BATCH);
                sent += batch.len();
            }
            assert_eq!(sent, 300);
        }
    }
}
