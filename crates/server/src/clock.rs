//! The server's two clocks: one that never jumps, for decisions, and the one that people read.
//!
//! What is stored is wall time, since a monotonic clock means nothing to the next process; it is turned into a
//! [`Moment`] once, when it is loaded.

use jiff::Timestamp;
use procfleet_core::moment::Moment;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

/// Milliseconds since 1970, UTC.
pub type WallMs = i64;

impl Clock {
    pub fn start() -> Clock {
        Clock { origin: Instant::now() }
    }

    pub fn now(&self) -> Moment {
        // Not from zero, so that a moment shortly before the start can be written down.
        Moment(1_000_000_000) + self.origin.elapsed()
    }

    pub fn wall(&self) -> WallMs {
        Timestamp::now().as_millisecond()
    }

    /// `YYYYMMDDHHMMSS` in UTC, as task ids show it.
    pub fn stamp(&self) -> u64 {
        Timestamp::now().strftime("%Y%m%d%H%M%S").to_string().parse().expect("fourteen digits are a number")
    }

    pub fn moment_of(&self, wall: WallMs) -> Moment {
        let ahead = wall - self.wall();
        let distance = Duration::from_millis(ahead.unsigned_abs());
        if ahead >= 0 { self.now() + distance } else { self.now() - distance }
    }

    /// The real-time instant of a moment, for sleeping until it.
    pub fn instant_of(&self, moment: Moment) -> tokio::time::Instant {
        tokio::time::Instant::now() + moment.since(self.now())
    }
}
