//! Limits the handshakes under way: peers between their first packet and the check of their hello.
//!
//! Anybody can open a connection and send nothing (slow-loris). So the server waits for each peer for a
//! limited time, which is longer for a peer that has sent something. Only the time in which the server waits
//! for the peer counts: after the end of a server, when thousands of agents connect to a busy one, evicting
//! those that it has kept waiting would throw away its own work, and they would come again.
//!
//! When all slots are taken, a newer peer evicts one whose time is over: of the address with the most slots,
//! the peer whose time was over first. A peer without a slot waits in the kernel's accept queue.

use crate::peer::PeerNet;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long the server waits for a peer at least: for one that has sent nothing, and for one that has.
const SILENT: Duration = Duration::from_millis(500);
const ACTIVE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct HandshakeLimiter {
    most: usize,
    taken: Mutex<TakenSlots>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct TakenSlots {
    next: u64,
    /// Ordered by age, because numbers only grow. The address changes when the PROXY header is read.
    by_number: BTreeMap<u64, (PeerNet, Arc<SlotState>)>,
}

#[derive(Debug)]
struct SlotState {
    waiting: Mutex<PeerTime>,
    has_sent_data: AtomicBool,
    is_evicted: AtomicBool,
    evicted: Notify,
}

/// How long the server has waited for the peer.
#[derive(Debug)]
struct PeerTime {
    before: Duration,
    /// `None`: the server is at work for the peer.
    since: Option<Instant>,
}

/// Another peer has taken the slot.
#[derive(Debug)]
pub(super) struct Evicted;

/// A slot, free again when the last holder drops it.
#[derive(Debug)]
pub(super) struct HandshakeSlot {
    number: u64,
    slot: Arc<SlotState>,
    limiter: Arc<HandshakeLimiter>,
}

impl HandshakeLimiter {
    pub(super) fn new(most: usize) -> Arc<HandshakeLimiter> {
        Arc::new(HandshakeLimiter { most, taken: Mutex::default(), freed: Notify::new() })
    }

    /// Waits for a slot, and evicts another peer where that is due. Dropping the future takes no slot.
    pub(super) async fn take(self: &Arc<Self>, net: PeerNet) -> HandshakeSlot {
        loop {
            let freed = self.freed.notified();
            let wait = {
                let mut taken = self.lock();
                if taken.by_number.len() < self.most {
                    return self.add_slot(&mut taken, net);
                }
                match self.most_expendable(&taken, Instant::now()) {
                    Expendable::Now(number) => {
                        if let Some((_, slot)) = taken.by_number.remove(&number) {
                            slot.evict();
                        }
                        return self.add_slot(&mut taken, net);
                    }
                    Expendable::Later(at) => at,
                }
            };
            // Look again, whether a slot was freed or the minimum time of a peer is over.
            let _ = tokio::time::timeout_at(wait, freed).await;
        }
    }

    fn add_slot(self: &Arc<Self>, taken: &mut TakenSlots, net: PeerNet) -> HandshakeSlot {
        let slot = Arc::new(SlotState {
            waiting: Mutex::new(PeerTime { before: Duration::ZERO, since: Some(Instant::now()) }),
            has_sent_data: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
            evicted: Notify::new(),
        });
        taken.next += 1;
        taken.by_number.insert(taken.next, (net, slot.clone()));
        HandshakeSlot { number: taken.next, slot, limiter: self.clone() }
    }

    fn most_expendable(&self, taken: &TakenSlots, now: Instant) -> Expendable {
        let mut slots: HashMap<PeerNet, usize> = HashMap::new();
        for (net, _) in taken.by_number.values() {
            *slots.entry(*net).or_default() += 1;
        }
        let due = taken.by_number.iter();
        let due = due.filter_map(|(number, (net, slot))| Some((slot.kept_until()?, *number, *net)));
        let up = due.clone().filter(|(until, ..)| *until <= now);
        let most = up.max_by_key(|(until, number, net)| (slots.get(net), Reverse((*until, *number))));
        match (most, due.map(|(until, ..)| until).min()) {
            (Some((_, number, _)), _) => Expendable::Now(number),
            (None, next) => Expendable::Later(next.unwrap_or(now + SILENT)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TakenSlots> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Expendable {
    Now(u64),
    Later(Instant),
}

impl SlotState {
    /// `None`: as long as the server is at work.
    fn kept_until(&self) -> Option<Instant> {
        let limit = if self.has_sent_data.load(Ordering::Relaxed) { ACTIVE } else { SILENT };
        let waiting = self.waiting();
        Some(waiting.since? + limit.saturating_sub(waiting.before))
    }

    fn begin_work(&self) {
        let mut waiting = self.waiting();
        if let Some(since) = waiting.since.take() {
            waiting.before += since.elapsed();
        }
    }

    fn begin_wait(&self) {
        self.waiting().since = Some(Instant::now());
    }

    fn waiting(&self) -> MutexGuard<'_, PeerTime> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Release);
        self.evicted.notify_waiters();
    }
}

impl HandshakeSlot {
    /// Records that the peer has sent something valid.
    pub(super) fn mark_sent_data(&self) {
        self.slot.has_sent_data.store(true, Ordering::Relaxed);
    }

    /// Counts the slot for the address behind a proxy instead of the proxy's.
    pub(super) fn count_for(&self, net: PeerNet) {
        if let Some((counted, _)) = self.limiter.lock().by_number.get_mut(&self.number) {
            *counted = net;
        }
    }

    /// Runs a future that waits for nothing but the peer, unless the slot is evicted meanwhile.
    pub(super) async fn wait_for<F: Future>(&self, peer: F) -> Result<F::Output, Evicted> {
        let mut peer = pin!(peer);
        let peer = poll_fn(|context| {
            self.slot.begin_work();
            let polled = peer.as_mut().poll(context);
            if polled.is_pending() {
                self.slot.begin_wait();
            }
            polled
        });
        tokio::select! {
            biased;
            () = self.evicted() => Err(Evicted),
            done = peer => Ok(done),
        }
    }

    async fn evicted(&self) {
        loop {
            // Created before the check, so that an eviction in between is not missed.
            let evicted = self.slot.evicted.notified();
            if self.slot.is_evicted.load(Ordering::Acquire) {
                return;
            }
            evicted.await;
        }
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        if self.limiter.lock().by_number.remove(&self.number).is_some() {
            self.limiter.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(last: u8) -> PeerNet {
        std::net::IpAddr::from([10, 0, 0, last]).into()
    }

    async fn is_evicted(slot: &HandshakeSlot) -> bool {
        tokio::time::timeout(Duration::ZERO, slot.evicted()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_silent_peer_is_evicted_and_one_that_has_sent_data_keeps_its_slot_longer() {
        let limiter = HandshakeLimiter::new(3);
        let (first, second, third) =
            (limiter.take(net(1)).await, limiter.take(net(1)).await, limiter.take(net(1)).await);
        first.mark_sent_data();
        let began = Instant::now();
        let fourth = limiter.take(net(1)).await;
        assert_eq!(began.elapsed(), SILENT, "each peer has its minimum time");
        assert!(is_evicted(&second).await && !is_evicted(&first).await && !is_evicted(&third).await);
        fourth.mark_sent_data();
        third.mark_sent_data();
        let fifth = limiter.take(net(1)).await;
        assert_eq!(began.elapsed(), ACTIVE);
        assert!(is_evicted(&first).await && !is_evicted(&third).await && !is_evicted(&fourth).await);
        drop((first, second, third, fourth, fifth));
        assert_eq!(limiter.lock().by_number.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn only_time_in_which_the_server_waits_for_the_peer_counts() {
        let limiter = HandshakeLimiter::new(1);
        let first = limiter.take(net(1)).await;
        first.mark_sent_data();
        let pause = |time| async move { first.wait_for(tokio::time::sleep(time)).await.map(|()| first) };
        let first = pause(ACTIVE / 2).await.expect("nobody else is there");
        // The server is at work, for longer than a peer may take.
        tokio::time::advance(ACTIVE * 5).await;
        let next = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.take(net(2)).await }
        });
        tokio::time::advance(ACTIVE).await;
        let began = Instant::now();
        first.wait_for(std::future::pending::<()>()).await.expect_err("the peer has had its time");
        assert_eq!(began.elapsed(), ACTIVE / 2, "both waits count");
        drop((first, next.await.expect("no panic")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_freed_slot_is_taken_at_once() {
        let limiter = HandshakeLimiter::new(1);
        let first = limiter.take(net(1)).await;
        let began = Instant::now();
        let next = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.take(net(1)).await }
        });
        tokio::task::yield_now().await;
        drop(first);
        let next = next.await.expect("no panic");
        assert!(began.elapsed() < SILENT && !is_evicted(&next).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_counts_for_the_address_behind_a_proxy() {
        let limiter = HandshakeLimiter::new(5);
        let (agents, flood) = ([limiter.take(net(9)).await, limiter.take(net(9)).await], net(2));
        agents[0].count_for(net(3));
        agents[1].count_for(net(4));
        let (first, second) = (limiter.take(net(9)).await, limiter.take(net(9)).await);
        first.count_for(flood);
        second.count_for(flood);
        let silent = limiter.take(net(9)).await;
        tokio::time::advance(ACTIVE).await;
        let next = limiter.take(net(9)).await;
        assert!(is_evicted(&first).await, "of the address with the most slots, behind the same proxy");
        for other in [&agents[0], &agents[1], &second, &silent] {
            assert!(!is_evicted(other).await);
        }
        first.count_for(net(7));
        drop((agents, first, second, silent, next));
        assert_eq!(limiter.lock().by_number.len(), 0, "an evicted slot does not come back");
    }

    #[tokio::test(start_paused = true)]
    async fn the_address_with_the_most_slots_loses_one_whose_time_is_over() {
        let limiter = HandshakeLimiter::new(3);
        let other = limiter.take(net(2)).await;
        let (first, second) = (limiter.take(net(1)).await, limiter.take(net(1)).await);
        tokio::time::advance(ACTIVE).await;
        let third = limiter.take(net(1)).await;
        assert!(is_evicted(&first).await && !is_evicted(&other).await && !is_evicted(&second).await);
        let fourth = limiter.take(net(3)).await;
        assert!(is_evicted(&second).await && !is_evicted(&other).await);
        drop((third, fourth));
    }
}
