//! Limits the connections to the API's port. Peers that have not logged in give way to newer ones.
//!
//! While a slot is free, everybody gets one. When all are taken, the address with the most connections that have not logged in
//! loses the oldest of them. So an address that opens connections and does not use them pushes out its own, and neither callers that
//! have logged in nor other addresses. Where all have logged in, a newcomer waits in the kernel's queue.

use crate::peer::PeerNet;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    most: usize,
    slots: Mutex<Slots>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Slots {
    next: u64,
    /// By age, for numbers grow.
    by_number: BTreeMap<u64, Arc<Slot>>,
}

#[derive(Debug)]
struct Slot {
    net: PeerNet,
    has_logged_in: AtomicBool,
    evicted: watch::Sender<bool>,
}

/// A slot, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    number: u64,
    slot: Arc<Slot>,
    limiter: Arc<ConnectionLimiter>,
}

/// What a call knows of the connection that it came by.
#[derive(Clone, Debug)]
pub(super) struct Connection(Arc<Slot>);

impl ConnectionLimiter {
    pub(super) fn new(most: usize) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter { most, slots: Mutex::default(), freed: Notify::new() })
    }

    /// Waits for a slot, and takes it from another where that is due. Dropping the future takes nothing.
    pub(super) async fn admit(self: &Arc<Self>, net: PeerNet) -> Admitted {
        loop {
            let freed = self.freed.notified();
            if let Some(admitted) = self.admit_now(net) {
                return admitted;
            }
            freed.await;
        }
    }

    fn admit_now(self: &Arc<Self>, net: PeerNet) -> Option<Admitted> {
        let mut slots = self.lock();
        if slots.by_number.len() >= self.most {
            let number = slots.most_expendable()?;
            if let Some(slot) = slots.by_number.remove(&number) {
                slot.evicted.send_replace(true);
            }
        }
        let slot =
            Arc::new(Slot { net, has_logged_in: AtomicBool::new(false), evicted: watch::Sender::new(false) });
        let number = slots.next;
        slots.next += 1;
        slots.by_number.insert(number, slot.clone());
        Some(Admitted { number, slot, limiter: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn most_expendable(&self) -> Option<u64> {
        let mut strangers: HashMap<PeerNet, (usize, u64)> = HashMap::new();
        for (number, slot) in &self.by_number {
            if !slot.has_logged_in.load(Ordering::Relaxed) {
                strangers.entry(slot.net).or_insert((0, *number)).0 += 1;
            }
        }
        // Of two addresses with as many, the one whose oldest is older.
        let most = strangers.into_values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)));
        most.map(|(_, oldest)| oldest)
    }
}

impl Admitted {
    pub(super) fn connection(&self) -> Connection {
        Connection(self.slot.clone())
    }

    /// Returns when another peer has taken the slot.
    pub(super) async fn evicted(&self) {
        let mut evicted = self.slot.evicted.subscribe();
        // The sender is in our own slot, so this cannot fail.
        let _ = evicted.wait_for(|evicted| *evicted).await;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.limiter.lock().by_number.remove(&self.number).is_some() {
            self.limiter.freed.notify_one();
        }
    }
}

impl Connection {
    pub(super) fn logged_in(&self) {
        self.0.has_logged_in.store(true, Ordering::Relaxed);
    }

    /// A later login by it was wrong: whoever it is now, it is not known.
    pub(super) fn login_refused(&self) {
        self.0.has_logged_in.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use std::time::Duration;

    fn net(ip: &str) -> PeerNet {
        ip.parse::<IpAddr>().expect("an address").into()
    }

    async fn is_evicted(admitted: &Admitted) -> bool {
        tokio::time::timeout(Duration::ZERO, admitted.evicted()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_address_with_most_strangers_loses_its_oldest() {
        let limiter = ConnectionLimiter::new(4);
        let other = limiter.admit(net("10.0.0.1")).await;
        let known = limiter.admit(net("10.0.0.2")).await;
        known.connection().logged_in();
        let (first, second) = (limiter.admit(net("10.0.0.2")).await, limiter.admit(net("10.0.0.2")).await);
        let third = limiter.admit(net("10.0.0.2")).await;
        assert!(is_evicted(&first).await && !is_evicted(&second).await);
        let fourth = limiter.admit(net("10.0.0.3")).await;
        assert!(is_evicted(&second).await && !is_evicted(&other).await && !is_evicted(&known).await);
        drop((first, second, third, fourth, other, known));
        assert_eq!(limiter.lock().by_number.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_have_logged_in_a_newcomer_waits() {
        let limiter = ConnectionLimiter::new(1);
        let known = limiter.admit(net("10.0.0.1")).await;
        known.connection().logged_in();
        let waiting = tokio::time::timeout(Duration::from_secs(60), limiter.admit(net("10.0.0.2"))).await;
        assert!(waiting.is_err(), "it is not pushed out");
        known.connection().login_refused();
        limiter.admit(net("10.0.0.2")).await;
        assert!(is_evicted(&known).await);
    }
}
