//! The ops that are in the journal without an outcome, as the server knows them.
//!
//! An op that concerns several instances is carried out in parts, each by the actor of its instance. It is
//! open until all of them have ended, and then it has one outcome.

use crate::journal::OpParts;
use procfleet_core::id::OpId;
use procfleet_core::op::Outcome;
use procfleet_core::parts;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
pub(super) struct OpenOps {
    /// Without parts: it is carried out as a whole.
    inner: Arc<Mutex<BTreeMap<OpId, OpParts>>>,
    /// Notified when an op has ended.
    ended: Arc<Notify>,
}

impl OpenOps {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<OpId, OpParts>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ops without their parts.
    pub(super) fn all(&self) -> Vec<OpId> {
        self.lock().keys().copied().collect()
    }

    pub(super) fn has(&self, op: OpId) -> bool {
        self.lock().contains_key(&op)
    }

    /// Returns when no op is open.
    pub(super) async fn none(&self) {
        loop {
            let ended = self.ended.notified();
            if self.lock().is_empty() {
                return;
            }
            ended.await;
        }
    }

    /// Returns when an op has ended and no op was open for the quiet time after it.
    pub(super) async fn burst(&self, quiet: Duration) {
        self.ended.notified().await;
        loop {
            tokio::time::sleep(quiet).await;
            if self.lock().is_empty() {
                return;
            }
        }
    }

    /// Registers an op, or a part of one, before its actor gets it.
    pub(super) fn begin(&self, op: OpId) {
        let (whole, instance) = op.whole();
        let mut inner = self.lock();
        let parts = inner.entry(whole).or_default();
        parts.extend(instance.map(|instance| (instance, None)));
    }

    /// An op of an earlier agent process, of which some parts have ended.
    pub(super) fn resume(&self, op: OpId, parts: OpParts) {
        self.lock().insert(op, parts);
    }

    /// The outcome of an op or of a part is durable. Returns the op that has ended with it and its outcome;
    /// `None` while other parts are open.
    pub(super) fn done(&self, op: OpId, outcome: Outcome) -> Option<(OpId, Outcome)> {
        let (whole, instance) = op.whole();
        let mut inner = self.lock();
        let Some(instance) = instance else {
            inner.remove(&op);
            self.ended.notify_waiters();
            return Some((op, outcome));
        };
        let parts = inner.get_mut(&whole)?;
        // The first outcome counts, as in the journal.
        parts.entry(instance).or_default().get_or_insert(outcome);
        let ended: Option<BTreeMap<u32, Outcome>> =
            parts.iter().map(|(instance, outcome)| Some((*instance, outcome.clone()?))).collect();
        let merged = parts::merge(&ended?)?;
        inner.remove(&whole);
        self.ended.notify_waiters();
        Some((whole, merged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::code::Code;
    use procfleet_core::op::OpKind;

    #[test]
    fn an_op_in_parts_ends_once_and_with_the_last_of_them() {
        let op = |text: &str| text.parse::<OpId>().expect("an op id");
        let outcome = |code| Outcome::without_status(code, "said", OpKind::Stop);
        let (one, many) = (op("20190813145456-8-0"), op("20190813145456-8-1"));
        let open = OpenOps::default();
        for begun in [one, many.part(1), many.part(2)] {
            open.begin(begun);
        }
        assert_eq!(open.all(), [one, many], "the server knows nothing of parts");
        assert_eq!(open.done(many.part(2), outcome(Code::NotRunning)), None);
        assert_eq!(open.done(many.part(2), outcome(Code::PostCheck)), None, "the first stands");
        assert_eq!(open.done(one, outcome(Code::Success)), Some((one, outcome(Code::Success))));
        assert_eq!(open.all(), [many]);
        assert_eq!(open.done(many.part(1), outcome(Code::Success)), Some((many, outcome(Code::Success))));
        assert_eq!(open.done(many.part(1), outcome(Code::Success)), None, "once");
        assert!(open.all().is_empty());

        open.resume(many, OpParts::from([(1, None), (2, Some(outcome(Code::PostCheck)))]));
        let (ended, said) = open.done(many.part(1), outcome(Code::Success)).expect("it was the last");
        assert_eq!((ended, said.code, said.message.as_str()), (many, Code::PostCheck, "instance 2: said"));
    }
}
