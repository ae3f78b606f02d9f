//! Bounds the memory for large request bodies, in total and for each sender.
//!
//! A body takes its share before it is read and releases it when its call is answered. A body without a share
//! waits, and so does its sender, because the body is not read (back-pressure). No holder gets more than two
//! thirds, so that stalled bodies of one holder do not block others. While a body waits, another that arrives
//! slower than `SLOWEST` is cut for it.

use super::error::CallError;
use crate::peer::PeerNet;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

/// How long a body waits for its share.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often a waiting body checks for one that is too slow.
const EVERY: Duration = Duration::from_millis(250);
/// The pace of a body counts after this time.
const GRACE: Duration = Duration::from_secs(2);
/// Minimum pace in bytes per second, while other bodies wait.
const SLOWEST: f64 = 64.0 * 1024.0;

/// The account of a body: its app, or, before a login is known, its address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum BodyHolder {
    App(String),
    Peer(PeerNet),
}

#[derive(Clone, Debug)]
pub(super) struct BodyBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    held: Mutex<HeldBodies>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct HeldBodies {
    next: u64,
    bytes: usize,
    by_holder: HashMap<BodyHolder, usize>,
    by_number: HashMap<u64, HeldBody>,
}

#[derive(Debug)]
struct HeldBody {
    holder: BodyHolder,
    bytes: usize,
    since: Instant,
    received: usize,
    progress: BodyProgress,
    cut: watch::Sender<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyProgress {
    Reading,
    /// Read completely, or cut.
    Ended,
}

/// The share of one body, released on drop.
#[derive(Debug)]
pub(super) struct BodyShare {
    number: u64,
    budget: Arc<Inner>,
    cut: watch::Receiver<bool>,
}

impl BodyBudget {
    pub(super) fn new(most: usize) -> BodyBudget {
        BodyBudget(Arc::new(Inner { most, held: Mutex::default(), freed: Notify::new() }))
    }

    /// Waits for a share.
    pub(super) async fn take(&self, holder: BodyHolder, bytes: usize) -> Result<BodyShare, CallError> {
        let give_up = Instant::now() + TIMEOUT;
        loop {
            let freed = self.0.freed.notified();
            tokio::pin!(freed);
            // No release is missed after this.
            freed.as_mut().enable();
            if let Some(share) = self.take_now(&holder, bytes) {
                return Ok(share);
            }
            let now = Instant::now();
            if now >= give_up {
                return Err(CallError::Crowded);
            }
            let _ = timeout_at(give_up.min(now + EVERY), freed).await;
        }
    }

    /// Takes a share, or cuts a body that is too slow, whose share will be released soon.
    fn take_now(&self, holder: &BodyHolder, bytes: usize) -> Option<BodyShare> {
        let mut held = self.0.lock();
        let own = held.by_holder.get(holder).copied().unwrap_or_default();
        let fits_own = own + bytes <= self.0.most / 3 * 2;
        if fits_own && held.bytes + bytes <= self.0.most {
            return Some(self.insert(&mut held, holder.clone(), bytes));
        }
        let now = Instant::now();
        let slow = held.by_number.values_mut().filter(|body| body.progress == BodyProgress::Reading);
        let slow = slow.filter(|body| fits_own || body.holder == *holder);
        let slow = slow.filter(|body| now.duration_since(body.since) >= GRACE && body.pace(now) < SLOWEST);
        if let Some(body) = slow.min_by(|one, other| one.pace(now).total_cmp(&other.pace(now))) {
            body.progress = BodyProgress::Ended;
            body.cut.send_replace(true);
        }
        None
    }

    fn insert(&self, held: &mut HeldBodies, holder: BodyHolder, bytes: usize) -> BodyShare {
        let (cut, cut_seen) = watch::channel(false);
        let number = held.next;
        held.next += 1;
        held.bytes += bytes;
        *held.by_holder.entry(holder.clone()).or_default() += bytes;
        let body = HeldBody {
            holder,
            bytes,
            since: Instant::now(),
            received: 0,
            progress: BodyProgress::Reading,
            cut,
        };
        held.by_number.insert(number, body);
        BodyShare { number, budget: self.0.clone(), cut: cut_seen }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, HeldBodies> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldBody {
    fn pace(&self, now: Instant) -> f64 {
        self.received as f64 / now.duration_since(self.since).as_secs_f64()
    }
}

impl BodyShare {
    pub(super) fn received(&self, bytes: usize) {
        self.change(|body| body.received += bytes);
    }

    /// The body is complete and cannot be cut any more.
    pub(super) fn complete(&self) {
        self.change(|body| body.progress = BodyProgress::Ended);
    }

    /// Returns when the body is cut because it arrives too slowly.
    pub(super) async fn cut(&self) {
        let mut cut = self.cut.clone();
        if cut.wait_for(|cut| *cut).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut HeldBody)) {
        if let Some(body) = self.budget.lock().by_number.get_mut(&self.number) {
            change(body);
        }
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        let mut held = self.budget.lock();
        if let Some(body) = held.by_number.remove(&self.number) {
            held.bytes -= body.bytes;
            if let Some(own) = held.by_holder.get_mut(&body.holder) {
                *own -= body.bytes;
                if *own == 0 {
                    held.by_holder.remove(&body.holder);
                }
            }
        }
        drop(held);
        self.budget.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(code: &str) -> BodyHolder {
        BodyHolder::App(code.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn one_holder_does_not_block_others() {
        let budget = BodyBudget::new(9);
        let first = budget.take(app("a"), 6).await.expect("a share");
        let began = Instant::now();
        let other = budget.take(app("b"), 3).await.expect("its third is free");
        assert_eq!(began.elapsed(), Duration::ZERO);
        drop((first, other));
        assert!(budget.0.lock().by_holder.is_empty() && budget.0.lock().bytes == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_is_cut_for_the_next_and_a_complete_one_is_not() {
        let budget = BodyBudget::new(9);
        let stalled = budget.take(app("a"), 6).await.expect("a share");
        let next = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take(app("a"), 6).await }
        });
        stalled.cut().await;
        drop(stalled);
        let next = next.await.expect("no panic").expect("a share");
        next.complete();
        let crowded = budget.take(app("a"), 6).await;
        assert!(matches!(crowded, Err(CallError::Crowded)), "{crowded:?}");
        assert!(!*next.cut.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_fast_enough_keeps_its_share() {
        let budget = BodyBudget::new(9);
        let fast = budget.take(app("a"), 6).await.expect("a share");
        fast.received(64 * 1024 * 40);
        let crowded = budget.take(app("a"), 6).await;
        assert!(matches!(crowded, Err(CallError::Crowded)), "{crowded:?}");
        assert!(!*fast.cut.borrow());
    }
}
