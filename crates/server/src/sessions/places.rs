//! Who may be on the way in: so many peers at once between their first packet and their hello.
//!
//! Anybody can open a connection and say nothing. When all places are taken, the oldest peer that has said nothing yet loses its
//! place to a newer one; where all have spoken, the oldest of them. Each keeps it for a moment at least, so that a flood of new
//! connections does not push out an agent that only needs its turn on a busy core. Whoever finds no place waits in the kernel's
//! queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a place is kept in any case, by a peer that has said nothing and by one that has.
const SILENT: Duration = Duration::from_millis(250);
const SPEAKING: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// By age, for numbers grow.
    by_number: BTreeMap<u64, Arc<Seat>>,
}

#[derive(Debug)]
struct Seat {
    since: Instant,
    has_spoken: AtomicBool,
    is_lost: AtomicBool,
    lost: Notify,
}

/// It is free again when the last holder drops it.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    seat: Arc<Seat>,
    places: Arc<Places>,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Places> {
        Arc::new(Places { most, taken: Mutex::default(), freed: Notify::new() })
    }

    /// Waits until there is one, and takes it from another where that is due. Dropping the future takes nothing.
    pub(super) async fn take(self: &Arc<Self>) -> Place {
        loop {
            let freed = self.freed.notified();
            let wait = {
                let mut taken = self.lock();
                if taken.by_number.len() < self.most {
                    return self.seat(&mut taken);
                }
                match self.most_expendable(&taken, Instant::now()) {
                    Expendable::Now(number) => {
                        if let Some(seat) = taken.by_number.remove(&number) {
                            seat.lose();
                        }
                        return self.seat(&mut taken);
                    }
                    Expendable::Later(at) => at,
                }
            };
            // Whether one was freed or somebody's time is up: it is looked at again.
            let _ = tokio::time::timeout_at(wait, freed).await;
        }
    }

    fn seat(self: &Arc<Self>, taken: &mut Taken) -> Place {
        let seat = Arc::new(Seat {
            since: Instant::now(),
            has_spoken: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            lost: Notify::new(),
        });
        taken.next += 1;
        taken.by_number.insert(taken.next, seat.clone());
        Place { number: taken.next, seat, places: self.clone() }
    }

    fn most_expendable(&self, taken: &Taken, now: Instant) -> Expendable {
        let silent = taken.by_number.iter().find(|(_, seat)| !seat.has_spoken.load(Ordering::Relaxed));
        let silent = silent.map(|(number, seat)| (seat.since + SILENT, *number));
        let speaking =
            taken.by_number.first_key_value().map(|(number, seat)| (seat.since + SPEAKING, *number));
        match silent.into_iter().chain(speaking).min() {
            Some((at, number)) if at <= now => Expendable::Now(number),
            Some((at, _)) => Expendable::Later(at),
            None => Expendable::Later(now + SILENT),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Expendable {
    Now(u64),
    Later(Instant),
}

impl Seat {
    fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        self.lost.notify_waiters();
    }
}

impl Place {
    /// The peer has sent something that makes sense.
    pub(super) fn has_spoken(&self) {
        self.seat.has_spoken.store(true, Ordering::Relaxed);
    }

    /// Returns when another has taken it.
    pub(super) async fn lost(&self) {
        loop {
            // Made before the look, so that a loss in between is not missed.
            let lost = self.seat.lost.notified();
            if self.seat.is_lost.load(Ordering::Acquire) {
                return;
            }
            lost.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.places.lock().by_number.remove(&self.number).is_some() {
            self.places.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_lost(place: &Place) -> bool {
        tokio::time::timeout(Duration::ZERO, place.lost()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_silent_peer_gives_way_and_one_that_speaks_keeps_its_place_for_longer() {
        let places = Places::new(3);
        let (first, second, third) = (places.take().await, places.take().await, places.take().await);
        first.has_spoken();
        let began = Instant::now();
        let fourth = places.take().await;
        assert_eq!(began.elapsed(), SILENT, "each has its moment");
        assert!(is_lost(&second).await && !is_lost(&first).await && !is_lost(&third).await);
        fourth.has_spoken();
        third.has_spoken();
        let fifth = places.take().await;
        assert_eq!(began.elapsed(), SPEAKING);
        assert!(is_lost(&first).await && !is_lost(&third).await && !is_lost(&fourth).await);
        drop((first, second, third, fourth, fifth));
        assert_eq!(places.lock().by_number.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_given_back_is_taken_at_once() {
        let places = Places::new(1);
        let first = places.take().await;
        let began = Instant::now();
        let next = tokio::spawn({
            let places = places.clone();
            async move { places.take().await }
        });
        tokio::task::yield_now().await;
        drop(first);
        let next = next.await.expect("it gets it");
        assert!(began.elapsed() < SILENT && !is_lost(&next).await);
    }
}
