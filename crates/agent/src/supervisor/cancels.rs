//! Cancelled ops. The actors of their procs look here between two steps; the wake-up carries no data.

use procfleet_core::id::{OpId, ProcKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Debug, Default)]
pub(super) struct Cancels {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Number of procs with cancelled ops: nearly always 0, and then no lock is taken.
    procs: AtomicUsize,
    ops: Mutex<BTreeMap<ProcKey, BTreeSet<OpId>>>,
}

impl Cancels {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ProcKey, BTreeSet<OpId>>> {
        self.inner.ops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, key: &ProcKey, op: OpId) {
        let mut ops = self.lock();
        ops.entry(key.clone()).or_default().insert(op);
        self.inner.procs.store(ops.len(), Ordering::Release);
    }

    /// The cancelled ops of a proc. They stay until they are answered: an order may still be on its way to
    /// its actor.
    pub(super) fn of(&self, key: &ProcKey) -> Vec<OpId> {
        if self.inner.procs.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.lock().get(key).into_iter().flatten().copied().collect()
    }

    pub(super) fn done(&self, key: &ProcKey, op: OpId) {
        if self.inner.procs.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut ops = self.lock();
        if let Some(of_proc) = ops.get_mut(key) {
            of_proc.remove(&op);
            if of_proc.is_empty() {
                ops.remove(key);
            }
        }
        self.inner.procs.store(ops.len(), Ordering::Release);
    }
}
