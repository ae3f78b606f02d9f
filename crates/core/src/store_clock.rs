//! The time of the store, as a server knows it between its looks.
//!
//! Servers that share a store keep times in the store's clock, and each server follows that clock by its own
//! boot-time clock. A store's clock may jump: somebody sets it, or a failover moves the database to a machine
//! with another clock. A jump must not change how long an op may still take, so it is not followed at once:
//!
//! ```text
//! sample within JUMP of the expectation ---> followed (the best of the last samples)
//! sample beyond it, three times in a row --> Jumped(by): the store's shift is corrected by one server,
//!                                            after which the samples fit again
//! still beyond it after ADOPT -------------> followed, because nobody corrects it
//! ```

use crate::boot_time::BootTime;
use std::collections::VecDeque;
use std::time::Duration;

/// A deviation beyond this is a jump, not drift.
pub const JUMP: Duration = Duration::from_secs(2);
/// How many samples in a row must agree on a jump.
const AGREE: usize = 3;
/// After this time a jump that nobody has corrected is followed.
const ADOPT: Duration = Duration::from_secs(60);
/// A sample whose round trip was longer says too little.
const LONGEST_TRIP: Duration = Duration::from_millis(250);
/// How many samples are kept; the one with the shortest round trip counts.
const KEPT: usize = 8;

/// One reading of the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    pub sent_at: BootTime,
    pub received_at: BootTime,
    /// Milliseconds since 1970, with the store's shift.
    pub store_ms: i64,
}

impl ClockSample {
    fn trip(&self) -> Duration {
        self.received_at.since(self.sent_at)
    }

    /// What is added to a boot time to get the store's time.
    fn offset(&self) -> i64 {
        let trip = i64::try_from(self.trip().as_millis()).unwrap_or(i64::MAX);
        let middle = i64::try_from(self.sent_at.0).unwrap_or(i64::MAX).saturating_add(trip / 2);
        self.store_ms.saturating_sub(middle)
    }
}

/// The meaning of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocked {
    /// It fits, or says too little.
    Fits,
    /// It does not fit, and is not followed for now.
    Odd,
    /// The store's clock has jumped by so many milliseconds: its shift wants correcting by their opposite.
    Jumped(i64),
    /// The jump was not corrected, and the clock is followed from now on.
    Adopted(i64),
}

/// A server's view of the store's clock.
#[derive(Clone, Debug, Default)]
pub struct StoreClock {
    /// Round trip in milliseconds, and offset.
    samples: VecDeque<(u128, i64)>,
    odd: Option<Odd>,
}

#[derive(Clone, Copy, Debug)]
struct Odd {
    since: BootTime,
    /// The jump that the last samples agree on.
    by: i64,
    times: usize,
}

impl StoreClock {
    /// What is added to a boot time to get the store's time. `None`: no sample yet.
    pub fn offset(&self) -> Option<i64> {
        self.samples.iter().min().map(|(_, offset)| *offset)
    }

    pub fn observe(&mut self, sample: ClockSample) -> Clocked {
        let jump = i64::try_from(JUMP.as_millis()).unwrap_or(i64::MAX);
        let Some(expected) = self.offset() else {
            self.keep(sample);
            return Clocked::Fits;
        };
        if sample.trip() > LONGEST_TRIP {
            return Clocked::Fits;
        }
        let by = sample.offset().saturating_sub(expected);
        if by.abs() <= jump {
            self.odd = None;
            self.keep(sample);
            return Clocked::Fits;
        }
        let odd = match self.odd {
            Some(odd) if by.saturating_sub(odd.by).abs() <= jump => Odd { times: odd.times + 1, by, ..odd },
            _ => Odd { since: sample.received_at, by, times: 1 },
        };
        self.odd = Some(odd);
        if sample.received_at.since(odd.since) >= ADOPT {
            self.samples.clear();
            self.odd = None;
            self.keep(sample);
            return Clocked::Adopted(by);
        }
        if odd.times >= AGREE { Clocked::Jumped(by) } else { Clocked::Odd }
    }

    fn keep(&mut self, sample: ClockSample) {
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back((sample.trip().as_millis(), sample.offset()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_700_000_000_000;
    const HOUR: i64 = 3_600_000;

    fn sample(sent_at: u64, trip: u64, ahead: i64) -> ClockSample {
        let (sent_at, received_at) = (BootTime(sent_at), BootTime(sent_at + trip));
        let middle = i64::try_from(sent_at.0 + trip / 2).expect("small");
        ClockSample { sent_at, received_at, store_ms: START + middle + ahead }
    }

    #[test]
    fn the_sample_with_the_shortest_round_trip_counts() {
        let mut clock = StoreClock::default();
        assert_eq!(clock.offset(), None);
        for (at, trip, ahead) in [(0, 40, 20), (500, 4, 1), (1_000, 200, -90)] {
            assert_eq!(clock.observe(sample(at, trip, ahead)), Clocked::Fits);
        }
        assert_eq!(clock.offset(), Some(START + 1));
        // Old samples leave, so drift is followed.
        for n in 0..8 {
            clock.observe(sample(2_000 + n * 500, 6, 30));
        }
        assert_eq!(clock.offset(), Some(START + 30));
    }

    #[test]
    fn a_jump_is_not_followed_and_is_reported_after_three_samples() {
        for by in [HOUR, -HOUR] {
            let mut clock = StoreClock::default();
            clock.observe(sample(0, 2, 0));
            assert_eq!(clock.observe(sample(500, 2, by)), Clocked::Odd);
            assert_eq!(clock.observe(sample(1_000, 2, by)), Clocked::Odd);
            assert_eq!(clock.observe(sample(1_500, 2, by)), Clocked::Jumped(by));
            assert_eq!(clock.offset(), Some(START));
            // Another server has corrected the shift.
            assert_eq!(clock.observe(sample(2_000, 2, 0)), Clocked::Fits);
            assert_eq!(clock.observe(sample(2_500, 2, by)), Clocked::Odd);
        }
    }

    #[test]
    fn a_jump_that_nobody_corrects_is_followed_after_a_minute() {
        let mut clock = StoreClock::default();
        clock.observe(sample(0, 2, 0));
        let mut last = Clocked::Fits;
        for n in 1..=122 {
            last = clock.observe(sample(n * 500, 2, HOUR));
            if last == Clocked::Adopted(HOUR) {
                break;
            }
        }
        assert_eq!(last, Clocked::Adopted(HOUR));
        assert_eq!(clock.offset(), Some(START + HOUR));
    }

    #[test]
    fn a_slow_sample_says_nothing() {
        let mut clock = StoreClock::default();
        clock.observe(sample(0, 2, 0));
        assert_eq!(clock.observe(sample(500, 900, HOUR)), Clocked::Fits);
        assert_eq!(clock.offset(), Some(START));
    }
}
