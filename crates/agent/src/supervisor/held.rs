//! Ops that an earlier agent process accepted and had not begun: they wait until the server sends them again.
//!
//! They may have been cancelled while the agent was away, and must not begin then. They are not reported as
//! accepted, so the server sends those that are still open. The others end at the time by which they should
//! have begun.

use procfleet_core::boot_time::BootTime;
use procfleet_core::id::{OpId, ProcKey};
use procfleet_core::op::Order;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By op. An op for several instances is stored in parts, each under the proc of its instance.
type Orders = BTreeMap<OpId, Vec<(ProcKey, Order)>>;

#[derive(Clone, Debug, Default)]
pub(super) struct HeldOrders {
    inner: Arc<Mutex<Orders>>,
}

impl HeldOrders {
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep(&self, key: &ProcKey, order: Order) {
        self.lock().entry(order.op.whole().0).or_default().push((key.clone(), order));
    }

    pub(super) fn has(&self, op: OpId) -> bool {
        self.lock().contains_key(&op)
    }

    /// The op may begin, or must be answered.
    pub(super) fn release(&self, op: OpId) -> Vec<(ProcKey, Order)> {
        self.lock().remove(&op).unwrap_or_default()
    }

    /// Ops that can no longer begin in time.
    pub(super) fn overdue(&self, now: BootTime) -> Vec<(ProcKey, Order)> {
        let mut orders = self.lock();
        let late = |parts: &Vec<(ProcKey, Order)>| parts.iter().any(|(_, order)| now >= order.start_by);
        let overdue: Vec<OpId> = orders.iter().filter(|(_, parts)| late(parts)).map(|(op, _)| *op).collect();
        overdue.iter().filter_map(|op| orders.remove(op)).flatten().collect()
    }

    /// When the first of them is overdue.
    pub(super) fn until(&self) -> Option<BootTime> {
        self.lock().values().flatten().map(|(_, order)| order.start_by).min()
    }
}
