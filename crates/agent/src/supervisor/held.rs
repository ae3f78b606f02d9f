//! Ops of the agent's last life that had not begun: they wait until the server has said again that they are
//! wanted.
//!
//! While the agent was away they may have been cancelled, and then they must not begin any more. The server
//! is not told that they were taken, so it sends again those that are still open. Those that it does not send
//! end when they should have begun at the latest.

use procfleet_core::boot_time::BootTime;
use procfleet_core::id::{OpId, ProcKey};
use procfleet_core::op::Order;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By op; one for several instances is there in parts, each for the proc of its instance.
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

    /// The op is wanted, or must be answered.
    pub(super) fn release(&self, op: OpId) -> Vec<(ProcKey, Order)> {
        self.lock().remove(&op).unwrap_or_default()
    }

    /// Those that can no longer begin in time.
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
