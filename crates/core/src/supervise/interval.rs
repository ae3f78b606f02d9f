//! The schedule of a process with an interval: when it is due next, and how many due times have passed.

use crate::boot_time::BootTime;
use std::time::Duration;

/// The first due time after `now`, counted from the start of the last run; and the number of due times in
/// between, at which no run began.
pub(super) fn after(now: BootTime, last: BootTime, every: Duration) -> (BootTime, u32) {
    let step = millis(every);
    let passed = now.0.saturating_sub(last.0) / step;
    let next = last.0.saturating_add(step.saturating_mul(passed.saturating_add(1)));
    (BootTime(next), u32::try_from(passed).unwrap_or(u32::MAX))
}

/// How many times have passed from the one at `due` until now, that one included.
pub(super) fn passed(now: BootTime, due: BootTime, every: Duration) -> u32 {
    match now.0.checked_sub(due.0) {
        Some(late) => u32::try_from(late / millis(every)).unwrap_or(u32::MAX).saturating_add(1),
        None => 0,
    }
}

fn millis(every: Duration) -> u64 {
    u64::try_from(every.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_on_the_grid_of_the_last_beginning() {
        let rows = [
            // (now, last, every, next, missed)
            (1_000, 1_000, 10, 11_000, 0),
            (10_999, 1_000, 10, 11_000, 0),
            (11_000, 1_000, 10, 21_000, 1),
            (11_001, 1_000, 10, 21_000, 1),
            (35_000, 1_000, 10, 41_000, 3),
            // a clock that seems to go back does no harm
            (500, 1_000, 10, 11_000, 0),
        ];
        for (now, last, every, next, missed) in rows {
            let seen = after(BootTime(now), BootTime(last), Duration::from_secs(every));
            assert_eq!(seen, (BootTime(next), missed), "now {now}");
        }
        assert_eq!(after(BootTime(u64::MAX), BootTime(0), Duration::ZERO), (BootTime(u64::MAX), u32::MAX));
    }

    #[test]
    fn missed_runs_are_counted_from_the_first_due_time() {
        for (now, due, count) in [(999, 1_000, 0), (1_000, 1_000, 1), (10_999, 1_000, 1), (11_000, 1_000, 2)]
        {
            assert_eq!(passed(BootTime(now), BootTime(due), Duration::from_secs(10)), count, "now {now}");
        }
    }
}
