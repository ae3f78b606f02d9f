//! The server's two clocks: the boot-time clock, which never jumps, for decisions, and the wall clock, for
//! people.
//!
//! A [`BootTime`] is a time on the kernel's boot-time clock: setting the wall clock does not change it, and
//! the next server of the same boot continues with it. Stored times have the readings of both clocks, so that
//! a server that starts after the wall clock was set still knows how long ago they were. Only times from
//! another boot, or from another machine, are computed by wall time.
//!
//! Servers that share a store use the store's time as their wall time, so that their own wall clocks do not
//! matter, and store no boot times: those of another machine would mean nothing.

use jiff::Timestamp;
use procfleet_core::boot_time::BootTime;
use procfleet_store::Membership;
use procfleet_store::clock::{BootNumber, ClockMark, ClockReading, WallMs, boot_now};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    boot: BootNumber,
    /// `Some`: the store has other servers, and its time counts. Kept for ever, so that the clock can be
    /// copied.
    shared: Option<&'static Membership>,
}

impl Clock {
    pub fn start(boot: BootNumber) -> Clock {
        Clock { boot, shared: None }
    }

    /// The clock of a server that shares its store.
    pub fn of_store(membership: &Membership) -> Clock {
        Clock { boot: BootNumber(0), shared: Some(Box::leak(Box::new(membership.clone()))) }
    }

    pub fn now(&self) -> BootTime {
        boot_now()
    }

    pub fn wall(&self) -> WallMs {
        match self.shared.and_then(Membership::store_offset) {
            Some(offset) => WallMs::try_from(boot_now().0).unwrap_or(WallMs::MAX).saturating_add(offset),
            None => Timestamp::now().as_millisecond(),
        }
    }

    pub fn reading(&self) -> ClockReading {
        let mark = self.shared.is_none().then(|| ClockMark { boot: self.boot, moment: self.now() });
        ClockReading { wall: self.wall(), mark }
    }

    /// `YYYYMMDDHHMMSS` in UTC, as task ids show it.
    pub fn stamp(&self) -> u64 {
        let now = Timestamp::from_millisecond(self.wall()).unwrap_or_default();
        now.strftime("%Y%m%d%H%M%S").to_string().parse().expect("fourteen digits are a number")
    }

    /// The boot time of a wall time that was computed from `reading`.
    pub fn moment_of(&self, wall: WallMs, reading: ClockReading) -> BootTime {
        let (from, at) = match reading.mark.filter(|mark| mark.boot == self.boot) {
            Some(mark) => (mark.moment, reading.wall),
            // The reading lies in the past. If the wall clock says otherwise, it was set back, which must not
            // make anything wait longer than it would have waited from the start.
            None => (self.now(), self.wall().max(reading.wall)),
        };
        let distance = Duration::from_millis(wall.abs_diff(at));
        if wall >= at { from + distance } else { from - distance }
    }

    /// The tokio instant of a boot time, for sleeping until it.
    pub fn instant_of(&self, moment: BootTime) -> tokio::time::Instant {
        tokio::time::Instant::now() + moment.since(self.now())
    }
}

/// The kernel's id of the current boot. `None`: it cannot be read.
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: WallMs = 3_600_000;
    const BOOT: BootTime = BootTime(1_000_000_000);

    fn check(reading: ClockReading, wall: WallMs, ahead: WallMs) {
        let clock = Clock::start(BootNumber(2));
        let now = clock.now();
        let moment = clock.moment_of(wall, reading);
        let found = i64::try_from(moment.0).expect("it fits") - i64::try_from(now.0).expect("it fits");
        // Reading the clocks takes some time itself.
        assert!((ahead - 2_000..=ahead + 2_000).contains(&found), "{reading:?}: {found} instead of {ahead}");
    }

    #[test]
    fn within_a_boot_setting_the_wall_clock_has_no_effect() {
        let clock = Clock::start(BootNumber(2));
        let wall = clock.wall();
        let ten_seconds_ago =
            Some(ClockMark { boot: BootNumber(2), moment: clock.now() - Duration::from_secs(10) });
        for set in [-HOUR, 0, HOUR] {
            // The wall clock was ahead by this many milliseconds when it was read.
            let reading = ClockReading { wall: wall - 10_000 + set, mark: ten_seconds_ago };
            check(reading, reading.wall, -10_000);
            check(reading, reading.wall + 60_000, 50_000);
        }
    }

    #[test]
    fn a_reading_of_another_boot_is_converted_by_the_wall_clock() {
        let clock = Clock::start(BootNumber(2));
        let wall = clock.wall();
        for mark in [None, Some(ClockMark { boot: BootNumber(1), moment: BOOT })] {
            let ago = ClockReading { wall: wall - 10_000, mark };
            check(ago, wall - 10_000, -10_000);
            check(ago, wall + 50_000, 50_000);
            // The wall clock was set back since: a reading an hour ahead was made now at the latest.
            let ahead = ClockReading { wall: wall + HOUR, mark };
            check(ahead, wall + HOUR + 60_000, 60_000);
        }
    }
}
