//! Times that are stored: wall time for people, and a point on the boot-time clock, which never jumps, for
//! decisions.

use procfleet_core::boot_time::BootTime;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Not zero, so that a time before the boot can be represented.
const BOOT: BootTime = BootTime(1_000_000_000);

/// The kernel's boot-time clock. Setting the wall clock does not change it, and it counts while the machine
/// is suspended.
pub fn boot_now() -> BootTime {
    let now = clock_gettime(ClockId::Boottime);
    let (secs, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0));
    BOOT + Duration::new(secs, nanos)
}

/// Milliseconds since 1970, UTC.
pub type WallMs = i64;

/// The number of a boot, in the order in which the store has seen them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootNumber(pub i64);

/// A time that can be compared with those of other boots: the later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockMark {
    pub boot: BootNumber,
    pub moment: BootTime,
}

/// Both clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    pub wall: WallMs,
    /// `None`: it was stored by a version that recorded wall time only.
    pub mark: Option<ClockMark>,
}

impl ClockReading {
    pub fn earlier_by(self, time: Duration) -> ClockReading {
        let millis = WallMs::try_from(time.as_millis()).unwrap_or(WallMs::MAX);
        let mark = self.mark.map(|mark| ClockMark { moment: mark.moment - time, ..mark });
        ClockReading { wall: self.wall.saturating_sub(millis), mark }
    }

    pub fn is_before(self, other: ClockReading) -> bool {
        match (self.mark, other.mark) {
            (Some(one), Some(other)) => one < other,
            _ => self.wall < other.wall,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: WallMs = 3_600_000;

    #[test]
    fn readings_are_in_the_order_in_which_they_were_made() {
        let mark =
            |boot: i64, millis: u64| Some(ClockMark { boot: BootNumber(boot), moment: BootTime(millis) });
        let reading = |wall: WallMs, mark: Option<ClockMark>| ClockReading { wall, mark };
        for (one, other, before) in [
            (reading(HOUR, mark(1, 5)), reading(0, mark(1, 6)), true),
            (reading(HOUR, mark(1, 500)), reading(0, mark(2, 6)), true),
            (reading(0, mark(2, 6)), reading(HOUR, mark(1, 500)), false),
            (reading(1, None), reading(2, mark(1, 1)), true),
            (reading(3, mark(1, 1)), reading(2, None), false),
            (reading(1, mark(1, 1)), reading(1, mark(1, 1)), false),
        ] {
            assert_eq!(one.is_before(other), before, "{one:?} {other:?}");
        }
    }
}
