//! Limits the connections to the API's port. Peers that have not logged in are evicted for newer ones.
//!
//! While a slot is free, every peer gets one, up to a quarter of all slots for peers of one address that have
//! not logged in. An address beyond its quarter loses its oldest connection without a login. When all slots
//! are taken, the address with the most connections without a login loses the oldest of them. So an address
//! that opens connections and does not use them evicts only its own, and neither callers that have logged in
//! nor other addresses. If all have logged in, a new connection waits in the kernel's accept queue.
//!
//! The number of large request heads is bounded, too, per address and in total: a head is buffered before its
//! sender is authenticated.

use crate::peer::PeerNet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// Maximum number of large heads that are buffered at once, in total and of one address.
const LARGE_HEADS: usize = 256;
const LARGE_HEADS_OF_ONE: usize = 64;
/// Peers of one address without a login get at most one slot in this many.
const UNAUTHENTICATED_PART: usize = 4;

#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    most: usize,
    slots: Mutex<Slots>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Slots {
    next: u64,
    by_number: BTreeMap<u64, TakenSlot>,
    /// Connections without a login. The smallest number is the oldest.
    unauthenticated: HashMap<PeerNet, BTreeSet<u64>>,
    large_heads: HashMap<PeerNet, BTreeSet<u64>>,
}

#[derive(Debug)]
struct TakenSlot {
    /// The address that the connection counts for. It changes when the PROXY header is read.
    net: PeerNet,
    slot: Arc<Slot>,
}

#[derive(Debug)]
struct Slot {
    number: u64,
    has_logged_in: AtomicBool,
    has_large_head: AtomicBool,
    evicted: watch::Sender<bool>,
}

/// A slot, released on drop.
#[derive(Debug)]
pub(super) struct Admitted(ConnectionInfo);

/// The connection of a call.
#[derive(Clone, Debug)]
pub(super) struct ConnectionInfo {
    slot: Arc<Slot>,
    limiter: Arc<ConnectionLimiter>,
}

impl ConnectionLimiter {
    pub(super) fn new(most: usize) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter { most, slots: Mutex::default(), freed: Notify::new() })
    }

    /// Waits for a slot, and evicts another peer where that is due. Dropping the future takes no slot.
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
        slots.make_room_for(net, self.most);
        if slots.by_number.len() >= self.most {
            let number = slots.most_expendable()?;
            slots.evict(number);
        }
        let number = slots.next;
        slots.next += 1;
        let slot = Arc::new(Slot {
            number,
            has_logged_in: AtomicBool::new(false),
            has_large_head: AtomicBool::new(false),
            evicted: watch::Sender::new(false),
        });
        slots.by_number.insert(number, TakenSlot { net, slot: slot.clone() });
        slots.unauthenticated.entry(net).or_default().insert(number);
        Some(Admitted(ConnectionInfo { slot, limiter: self.clone() }))
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn net(&self, number: u64) -> Option<PeerNet> {
        self.by_number.get(&number).map(|taken| taken.net)
    }

    /// Evicts the oldest connection without a login of an address that has its quarter of all slots.
    fn make_room_for(&mut self, net: PeerNet, most: usize) {
        let own = self.unauthenticated.get(&net).filter(|own| own.len() >= most / UNAUTHENTICATED_PART);
        if let Some(oldest) = own.and_then(|own| own.first().copied()) {
            self.evict(oldest);
        }
    }

    fn most_expendable(&self) -> Option<u64> {
        // Of two addresses with the same number, the one with the older connection.
        let most =
            self.unauthenticated.values().max_by_key(|own| (own.len(), std::cmp::Reverse(own.first())));
        most.and_then(|own| own.first().copied())
    }

    fn evict(&mut self, number: u64) {
        if let Some(slot) = self.remove(number) {
            slot.evicted.send_replace(true);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Slot>> {
        let TakenSlot { net, slot } = self.by_number.remove(&number)?;
        remove_from(&mut self.unauthenticated, net, number);
        remove_from(&mut self.large_heads, net, number);
        Some(slot)
    }
}

fn remove_from(sets: &mut HashMap<PeerNet, BTreeSet<u64>>, net: PeerNet, number: u64) {
    if let Some(own) = sets.get_mut(&net) {
        own.remove(&number);
        if own.is_empty() {
            sets.remove(&net);
        }
    }
}

impl Admitted {
    pub(super) fn connection(&self) -> ConnectionInfo {
        self.0.clone()
    }

    /// Counts the connection for the address behind a proxy instead of the proxy's. No login has been checked
    /// yet, and no head been read.
    pub(super) fn count_for(&self, net: PeerNet) {
        let ConnectionInfo { slot, limiter } = &self.0;
        let mut slots = limiter.lock();
        let Some(before) = slots.net(slot.number).filter(|before| *before != net) else { return };
        slots.make_room_for(net, limiter.most);
        remove_from(&mut slots.unauthenticated, before, slot.number);
        slots.unauthenticated.entry(net).or_default().insert(slot.number);
        slots.by_number.insert(slot.number, TakenSlot { net, slot: slot.clone() });
    }

    /// Returns when another peer has taken the slot.
    pub(super) async fn evicted(&self) {
        let mut evicted = self.0.slot.evicted.subscribe();
        // The sender is in our own slot, so this cannot fail.
        let _ = evicted.wait_for(|evicted| *evicted).await;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let ConnectionInfo { slot, limiter } = &self.0;
        if limiter.lock().remove(slot.number).is_some() {
            limiter.freed.notify_one();
        }
    }
}

impl ConnectionInfo {
    pub(super) fn logged_in(&self) {
        if !self.slot.has_logged_in.swap(true, Ordering::Relaxed) {
            let mut slots = self.limiter.lock();
            if let Some(net) = slots.net(self.slot.number) {
                remove_from(&mut slots.unauthenticated, net, self.slot.number);
            }
        }
    }

    /// A later login over this connection was wrong: the peer counts as unauthenticated again.
    pub(super) fn login_refused(&self) {
        if self.slot.has_logged_in.swap(false, Ordering::Relaxed) {
            let mut slots = self.limiter.lock();
            if let Some(net) = slots.net(self.slot.number) {
                slots.unauthenticated.entry(net).or_default().insert(self.slot.number);
            }
        }
    }

    /// Asks to buffer a head of more than the usual size. False: there are too many of them, and the
    /// connection must end.
    pub(super) fn admits_large_head(&self) -> bool {
        if self.slot.has_large_head.load(Ordering::Relaxed) {
            return true;
        }
        let mut slots = self.limiter.lock();
        let Some(net) = slots.net(self.slot.number) else { return false };
        let all: usize = slots.large_heads.values().map(BTreeSet::len).sum();
        let own = slots.large_heads.get(&net).map_or(0, BTreeSet::len);
        if all >= LARGE_HEADS || own >= LARGE_HEADS_OF_ONE {
            return false;
        }
        slots.large_heads.entry(net).or_default().insert(self.slot.number);
        self.slot.has_large_head.store(true, Ordering::Relaxed);
        true
    }

    /// The head is complete, and its call is answered.
    pub(super) fn head_ended(&self) {
        if self.slot.has_large_head.swap(false, Ordering::Relaxed) {
            let mut slots = self.limiter.lock();
            if let Some(net) = slots.net(self.slot.number) {
                remove_from(&mut slots.large_heads, net, self.slot.number);
            }
        }
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

    async fn admit_many(limiter: &Arc<ConnectionLimiter>, ip: &str, count: usize) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        for _ in 0..count {
            admitted.push(limiter.admit(net(ip)).await);
        }
        admitted
    }

    #[tokio::test(start_paused = true)]
    async fn the_address_with_most_unauthenticated_connections_loses_its_oldest() {
        let limiter = ConnectionLimiter::new(12);
        let known = limiter.admit(net("10.0.0.2")).await;
        known.connection().logged_in();
        let others = admit_many(&limiter, "10.0.0.1", 2).await;
        let most = admit_many(&limiter, "10.0.0.2", 3).await;
        let (third, fourth) =
            (admit_many(&limiter, "10.0.0.3", 3).await, admit_many(&limiter, "10.0.0.4", 3).await);
        let newcomer = limiter.admit(net("10.0.0.5")).await;
        assert!(is_evicted(&most[0]).await && !is_evicted(&most[1]).await && !is_evicted(&known).await);
        assert!(!is_evicted(&others[0]).await && !is_evicted(&third[0]).await);
        drop((known, others, most, third, fourth, newcomer));
        let slots = limiter.lock();
        assert!(slots.by_number.is_empty() && slots.unauthenticated.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_a_quarter_of_the_slots_before_its_logins() {
        let limiter = ConnectionLimiter::new(12);
        let own = admit_many(&limiter, "10.0.0.1", 3).await;
        own[0].connection().logged_in();
        let more = limiter.admit(net("10.0.0.1")).await;
        assert!(!is_evicted(&own[1]).await, "a connection with a login does not count");
        let too_many = limiter.admit(net("10.0.0.1")).await;
        assert!(is_evicted(&own[1]).await && !is_evicted(&own[0]).await && !is_evicted(&own[2]).await);
        own[0].connection().login_refused();
        let one_more = limiter.admit(net("10.0.0.1")).await;
        assert!(is_evicted(&own[0]).await, "after a wrong login it counts again");
        drop((own, more, too_many, one_more));
        assert!(limiter.lock().unauthenticated.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn if_all_have_logged_in_a_new_connection_waits() {
        let limiter = ConnectionLimiter::new(4);
        let known = admit_many(&limiter, "10.0.0.1", 1).await;
        known[0].connection().logged_in();
        let others = [
            limiter.admit(net("10.0.0.2")).await,
            limiter.admit(net("10.0.0.3")).await,
            limiter.admit(net("10.0.0.4")).await,
        ];
        others.iter().for_each(|other| other.connection().logged_in());
        let waiting = tokio::time::timeout(Duration::from_secs(60), limiter.admit(net("10.0.0.5"))).await;
        assert!(waiting.is_err(), "no connection is evicted for it");
        known[0].connection().login_refused();
        limiter.admit(net("10.0.0.5")).await;
        assert!(is_evicted(&known[0]).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_counts_for_the_address_behind_a_proxy() {
        let limiter = ConnectionLimiter::new(12);
        // More than the quarter of one address, of which each has read its header before the next comes.
        let mut many = Vec::new();
        for last in 0..8 {
            let admitted = limiter.admit(net("10.0.0.9")).await;
            admitted.count_for(net(&format!("192.0.2.{last}")));
            many.push(admitted);
        }
        for admitted in &many {
            assert!(!is_evicted(admitted).await, "the proxy's address has no quarter to share");
        }
        // One address behind the proxy has its quarter, the same as without a proxy.
        let own = admit_many(&limiter, "10.0.0.9", 3).await;
        own.iter().for_each(|admitted| admitted.count_for(net("192.0.2.99")));
        let fourth = limiter.admit(net("10.0.0.9")).await;
        fourth.count_for(net("192.0.2.99"));
        assert!(is_evicted(&own[0]).await && !is_evicted(&own[1]).await && !is_evicted(&many[0]).await);
        fourth.connection().logged_in();
        assert_eq!(limiter.lock().unauthenticated[&net("192.0.2.99")].len(), 2);
        assert!(fourth.connection().admits_large_head());
        assert_eq!(limiter.lock().large_heads[&net("192.0.2.99")].len(), 1);
        // A header that comes after the eviction changes nothing.
        own[0].count_for(net("192.0.2.5"));
        drop(many);
        // Connections that send no header count for the proxy.
        let silent = admit_many(&limiter, "10.0.0.9", 4).await;
        assert!(is_evicted(&silent[0]).await && !is_evicted(&silent[1]).await);
        drop((own, fourth, silent));
        let slots = limiter.lock();
        assert!(
            slots.by_number.is_empty() && slots.unauthenticated.is_empty() && slots.large_heads.is_empty()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn large_heads_are_bounded_by_address_and_free_when_they_end() {
        let limiter = ConnectionLimiter::new(4_096);
        let own = admit_many(&limiter, "10.0.0.1", LARGE_HEADS_OF_ONE + 1).await;
        let (last, first) = own.split_last().expect("there are some");
        assert!(first.iter().all(|admitted| admitted.connection().admits_large_head()));
        assert!(
            first.iter().all(|admitted| admitted.connection().admits_large_head()),
            "each head counts once"
        );
        assert!(!last.connection().admits_large_head());
        assert!(limiter.admit(net("10.0.0.2")).await.connection().admits_large_head());
        first[0].connection().head_ended();
        assert!(last.connection().admits_large_head());
        drop(own);
        assert!(limiter.lock().large_heads.is_empty());
    }
}
