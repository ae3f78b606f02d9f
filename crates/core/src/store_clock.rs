//! The time of the store, as a server knows it between its looks.
//!
//! Servers that share a store keep times in the store's clock, and each server follows that clock by its own
//! boot-time clock. A store's clock may jump: somebody sets it, or a failover moves the database to a machine
//! with another clock. A jump must not change how long an op may still take, so it is not followed at once:
//!
//! ```text
//! sample within JUMP of the expectation ---> followed (the best of the last samples)
//! deviation equals a change of the shift --> followed, except by the server that corrects: this server
//!                                            started between a jump and its correction
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
    /// The store's shift: the correction of all jumps until now.
    pub shift_ms: i64,
}

impl ClockSample {
    fn trip(&self) -> Duration {
        self.received_at.since(self.sent_at)
    }

    /// Offset that is added to a boot time to get the store's time.
    fn offset(&self) -> i64 {
        let trip = i64::try_from(self.trip().as_millis()).unwrap_or(i64::MAX);
        let middle = i64::try_from(self.sent_at.0).unwrap_or(i64::MAX).saturating_add(trip / 2);
        self.store_ms.saturating_sub(middle)
    }
}

/// The meaning of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocked {
    /// The sample fits, or took too long to tell.
    Fits,
    /// The sample does not fit, and is not followed for now.
    Odd,
    /// The store's clock has jumped by this many milliseconds, which are to be subtracted from its shift.
    Jumped(i64),
    /// The jump was not corrected, and the clock is followed from now on.
    Adopted(i64),
}

/// Whether a server corrects a jump of the store's clock or follows the correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockRole {
    /// Changes the store's shift, which no other server does.
    Corrects,
    Follows,
}

/// A server's view of the store's clock.
#[derive(Clone, Debug, Default)]
pub struct StoreClock {
    /// Round trip in milliseconds, and offset.
    samples: VecDeque<(u128, i64)>,
    /// The shift in the last of the samples.
    shift_ms: i64,
    odd: Option<Odd>,
    jumps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Odd {
    since: BootTime,
    /// The jump that the last samples agree on.
    by: i64,
    times: usize,
}

impl StoreClock {
    /// Offset that is added to a boot time to get the store's time. `None`: no sample yet.
    pub fn offset(&self) -> Option<i64> {
        self.samples.iter().min().map(|(_, offset)| *offset)
    }

    /// How often the store's clock has jumped.
    pub fn jumps(&self) -> u64 {
        self.jumps
    }

    pub fn observe(&mut self, sample: ClockSample, role: ClockRole) -> Clocked {
        let jump = i64::try_from(JUMP.as_millis()).unwrap_or(i64::MAX);
        let Some(expected) = self.offset() else {
            self.keep(sample);
            return Clocked::Fits;
        };
        if sample.trip() > LONGEST_TRIP {
            return Clocked::Fits;
        }
        let by = sample.offset().saturating_sub(expected);
        let corrected = sample.shift_ms.saturating_sub(self.shift_ms);
        let is_correction = by.abs() > jump && by.saturating_sub(corrected).abs() <= jump;
        let is_followed = is_correction && role == ClockRole::Follows;
        if is_followed {
            self.samples.clear();
        }
        if is_followed || by.abs() <= jump {
            self.odd = None;
            self.keep(sample);
            return Clocked::Fits;
        }
        let odd = match self.odd {
            Some(odd) if by.saturating_sub(odd.by).abs() <= jump => Odd { times: odd.times + 1, by, ..odd },
            _ => Odd { since: sample.received_at, by, times: 1 },
        };
        self.odd = Some(odd);
        if odd.times == AGREE {
            self.jumps += 1;
        }
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
        self.shift_ms = sample.shift_ms;
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
        ClockSample { sent_at, received_at, store_ms: START + middle + ahead, shift_ms: 0 }
    }

    fn follow(clock: &mut StoreClock, sample: ClockSample) -> Clocked {
        clock.observe(sample, ClockRole::Follows)
    }

    fn shifted(sent_at: u64, ahead: i64, shift_ms: i64) -> ClockSample {
        ClockSample { shift_ms, ..sample(sent_at, 2, ahead) }
    }

    #[test]
    fn the_sample_with_the_shortest_round_trip_counts() {
        let mut clock = StoreClock::default();
        assert_eq!(clock.offset(), None);
        for (at, trip, ahead) in [(0, 40, 20), (500, 4, 1), (1_000, 200, -90)] {
            assert_eq!(follow(&mut clock, sample(at, trip, ahead)), Clocked::Fits);
        }
        assert_eq!(clock.offset(), Some(START + 1));
        // Old samples leave, so drift is followed.
        for n in 0..8 {
            follow(&mut clock, sample(2_000 + n * 500, 6, 30));
        }
        assert_eq!(clock.offset(), Some(START + 30));
    }

    #[test]
    fn a_jump_is_not_followed_and_is_reported_after_three_samples() {
        for by in [HOUR, -HOUR] {
            let mut clock = StoreClock::default();
            follow(&mut clock, sample(0, 2, 0));
            assert_eq!(follow(&mut clock, sample(500, 2, by)), Clocked::Odd);
            assert_eq!(follow(&mut clock, sample(1_000, 2, by)), Clocked::Odd);
            assert_eq!(clock.jumps(), 0);
            assert_eq!(follow(&mut clock, sample(1_500, 2, by)), Clocked::Jumped(by));
            assert_eq!(clock.offset(), Some(START));
            // Another server has corrected the shift.
            assert_eq!(follow(&mut clock, shifted(2_000, 0, -by)), Clocked::Fits);
            assert_eq!(follow(&mut clock, shifted(2_500, by, -by)), Clocked::Odd);
            assert_eq!(clock.jumps(), 1);
        }
    }

    #[test]
    fn a_server_that_begins_between_a_jump_and_its_correction_follows_the_correction() {
        for by in [HOUR, -HOUR] {
            let mut clock = StoreClock::default();
            follow(&mut clock, shifted(0, by, 0));
            // A slow sample says nothing, and does not hide the correction from the next one.
            assert_eq!(
                follow(&mut clock, ClockSample { shift_ms: -by, ..sample(500, 900, 0) }),
                Clocked::Fits
            );
            assert_eq!(clock.offset(), Some(START + by));
            assert_eq!(follow(&mut clock, shifted(1_500, 0, -by)), Clocked::Fits);
            assert_eq!((clock.offset(), clock.jumps()), (Some(START), 0));
            // The server that corrects has changed the shift itself.
            let mut clock = StoreClock::default();
            clock.observe(shifted(0, by, 0), ClockRole::Corrects);
            assert_eq!(clock.observe(shifted(500, 0, -by), ClockRole::Corrects), Clocked::Odd);
            assert_eq!(clock.offset(), Some(START + by));
        }
    }

    #[test]
    fn a_jump_after_a_correction_is_not_followed() {
        for by in [HOUR, -HOUR] {
            let mut clock = StoreClock::default();
            follow(&mut clock, shifted(0, by, 0));
            follow(&mut clock, shifted(500, 0, -by));
            assert_eq!(follow(&mut clock, shifted(2_000, by, -by)), Clocked::Odd);
            assert_eq!(clock.offset(), Some(START));
        }
    }

    #[test]
    fn a_jump_that_nobody_corrects_is_followed_after_a_minute() {
        let mut clock = StoreClock::default();
        follow(&mut clock, sample(0, 2, 0));
        let mut last = Clocked::Fits;
        for n in 1..=122 {
            last = follow(&mut clock, sample(n * 500, 2, HOUR));
            if last == Clocked::Adopted(HOUR) {
                break;
            }
        }
        assert_eq!(last, Clocked::Adopted(HOUR));
        assert_eq!(clock.offset(), Some(START + HOUR));
        assert_eq!(clock.jumps(), 1, "each jump counts once");
    }

    #[test]
    fn a_slow_sample_says_nothing() {
        let mut clock = StoreClock::default();
        follow(&mut clock, sample(0, 2, 0));
        assert_eq!(follow(&mut clock, sample(500, 900, HOUR)), Clocked::Fits);
        assert_eq!(clock.offset(), Some(START));
    }
}
