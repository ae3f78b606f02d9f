//! Outcomes that the server has not acknowledged. The journal holds the same outcomes; this is the copy of
//! the link.

use procfleet_core::id::OpId;
use procfleet_core::op::{Content, Outcome};
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

    /// A new session begins: all outcomes are sent again. Pending "taken" reports are dropped: the hello
    /// names the taken ops, and an op that the server sends again is reported again.
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
            let report = report_of(*op, outcome);
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

/// Larger reports are shortened, so that each fits a frame and the server's limit on an outcome's content.
const LARGEST: usize = 48 * 1024;
/// Bytes of a shortened outcome's message, of its note, and of all of its command lines. JSON needs up to six
/// bytes for one of the latter two.
const SHORT_MESSAGE: usize = 4 * 1024;
const SHORT_TEXT: usize = 1024;

fn report_of(op: OpId, outcome: &Outcome) -> Report {
    let report = Report::done(op, outcome);
    if report.size() <= LARGEST { report } else { Report::done(op, &shortened(outcome)) }
}

fn shortened(outcome: &Outcome) -> Outcome {
    let Outcome { code, mut message, mut content } = outcome.clone();
    cut(&mut message, SHORT_MESSAGE);
    match &mut content {
        Content::Control { proc_name, setup_path, .. } => {
            cut(proc_name, SHORT_TEXT);
            cut(setup_path, SHORT_TEXT);
        }
        Content::Status(status) => {
            cut(&mut status.note, SHORT_TEXT);
            let shown = SHORT_TEXT / (1 + status.more.len());
            for instance in status.instance.iter_mut().chain(status.more.iter_mut().flatten()) {
                cut(&mut instance.command_line, shown);
            }
        }
    }
    Outcome { code, message, content }
}

fn cut(text: &mut String, longest: usize) {
    const ELLIPSIS: &str = "…";
    if text.len() > longest {
        text.truncate(text.floor_char_boundary(longest.saturating_sub(ELLIPSIS.len())));
        text.push_str(ELLIPSIS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::code::Code;
    use procfleet_core::op::{Instance, OpKind, ProcStatus};

    fn op(number: u32) -> OpId {
        format!("20190813145456-8-{number}").parse().expect("an op id")
    }

    fn outcome(length: usize) -> Outcome {
        Outcome::without_status(Code::PostCheck, "x".repeat(length), OpKind::Start)
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

    /// Its texts are within their limits, but each control character has six bytes in JSON.
    #[test]
    fn an_outcome_that_exceeds_a_frame_is_shortened() {
        let control = || "\u{1}".repeat(5 * 1024);
        let instance = || Some(Instance { command_line: control(), ..Instance::default() });
        let status = ProcStatus {
            note: control(),
            instance: instance(),
            more: (0..63).map(|_| instance()).collect(),
            ..ProcStatus::default()
        };
        let controlled =
            Content::Control { hosted: true, proc_name: "p".to_owned(), setup_path: "\u{1}".repeat(4_096) };
        for content in [Content::Status(Box::new(status)), controlled] {
            let outcome = Outcome::new(Code::PostCheck, "m".repeat(30 * 1024), content);
            let outbox = Outbox::new(vec![(op(1), outcome.clone())]);
            let report = outbox.next_batch(Instant::now()).pop().expect("a report");
            assert!(report.size() <= LARGEST, "{}", report.size());
            let (_, sent) = report.try_into().expect("our own form");
            let sent: Outcome = sent.expect("an outcome");
            assert!(sent.message.ends_with('…') && sent.code == outcome.code, "{}", sent.message);
            assert_eq!(outbox.lock().done[&op(1)].0, outcome, "the whole outcome is kept");
        }
        let small = outcome(LARGEST / 2);
        let (_, sent) = report_of(op(1), &small).try_into().expect("our own form");
        assert_eq!(sent, Some(small));
    }
}
