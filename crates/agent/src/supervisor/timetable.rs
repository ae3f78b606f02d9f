//! Computes when a crontab rule matches next, on the boot-time clock.
//!
//! The rule follows the wall clock, which may be set at any time. Each result is therefore valid for a while
//! only, and the caller asks again.

use jiff::{SignedDuration, Timestamp, Zoned};
use procfleet_core::boot_time::BootTime;
use procfleet_core::supervise::Next;
use procfleet_proto::cron::CronRule;

/// Maximum number of missed times that are counted.
const MOST_MISSED: u32 = 1_000;
/// A clock that is set back by less than this repeats no run: that is a correction. A clock that is set back
/// further is followed.
const CORRECTION: SignedDuration = SignedDuration::from_secs(60);

/// Both clocks at one time. The wall clock is read first, so that a computed boot time is never too early.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    pub(super) wall: Zoned,
    pub(super) moment: BootTime,
}

#[derive(Debug, Default)]
pub(super) struct Timetable {
    /// The last result.
    planned: Option<(BootTime, Timestamp)>,
}

impl Timetable {
    pub(super) fn next(&mut self, rule: &str, since: Option<BootTime>, clocks: &Clocks) -> Next {
        let rule = match CronRule::parse(rule) {
            Ok(rule) => rule,
            Err(reason) => return Next::Never { reason: format!("the rule {reason}") },
        };
        let now = &clocks.wall;
        let used = self.planned.filter(|(at, _)| *at <= clocks.moment).map(|(_, time)| time);
        let used = used.filter(|used| used.duration_since(now.timestamp()) <= CORRECTION);
        let after = |time: Timestamp| {
            let time = used.map_or(time, |used| used.max(time));
            time.to_zoned(now.time_zone().clone())
        };
        let Some(next) = rule.next_after(&after(now.timestamp())) else {
            return Next::Never { reason: "the rule has no next time".to_owned() };
        };
        let missed = since.map_or(0, |since| {
            let ago = SignedDuration::try_from(clocks.moment.since(since)).unwrap_or(SignedDuration::MAX);
            let from = now.timestamp().checked_sub(ago).unwrap_or(Timestamp::MIN);
            count(&rule, after(from), now)
        });
        let wait = next.timestamp().duration_since(now.timestamp());
        // Rounds up the wait, and adds the millisecond that the boot time may have lost.
        let millis = u64::try_from(wait.as_millis()).unwrap_or(0).saturating_add(2);
        let at = BootTime(clocks.moment.0.saturating_add(millis));
        self.planned = Some((at, next.timestamp()));
        Next::At { at, missed }
    }
}

/// Number of matches after `from` and until `now`.
fn count(rule: &CronRule, mut from: Zoned, now: &Zoned) -> u32 {
    for count in 0..MOST_MISSED {
        match rule.next_after(&from) {
            Some(next) if next <= *now => from = next,
            Some(_) | None => return count,
        }
    }
    MOST_MISSED
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;

    /// Central Europe, where clocks change on the last Sundays of March and October.
    fn berlin(utc: &str) -> Zoned {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        utc.parse::<Timestamp>().expect("a time").to_zoned(zone)
    }

    fn clocks(utc: &str, moment: u64) -> Clocks {
        Clocks { wall: berlin(utc), moment: BootTime(moment) }
    }

    /// Seconds from one time to the next.
    fn wait(rule: &str, utc: &str) -> u64 {
        match Timetable::default().next(rule, None, &clocks(utc, 0)) {
            Next::At { at, .. } => at.0 / 1_000,
            Next::Never { reason } => panic!("{rule}: {reason}"),
        }
    }

    #[test]
    fn a_day_is_not_always_a_day_long() {
        const HOUR: u64 = 3_600;
        assert_eq!(wait("0 12 * * *", "2027-01-10T11:00:00Z"), 24 * HOUR);
        assert_eq!(wait("0 12 * * *", "2027-03-27T11:00:00Z"), 23 * HOUR, "the clock goes forward");
        assert_eq!(wait("0 12 * * *", "2027-10-30T10:00:00Z"), 25 * HOUR, "the clock goes back");
        assert_eq!(
            wait("30 2 * * *", "2027-10-31T00:30:00Z"),
            25 * HOUR,
            "a time that comes twice counts once"
        );
    }

    /// `TZ=Asia/Shanghai` is looked up in the same way.
    #[test]
    fn a_rule_follows_a_zone_that_is_known_by_name() {
        let zone = TimeZone::get("Asia/Shanghai").expect("tzdata is installed");
        let wall = "2027-01-10T11:00:00Z".parse::<Timestamp>().expect("a time").to_zoned(zone);
        let clocks = Clocks { wall, moment: BootTime(0) };
        let next = Timetable::default().next("0 20 * * *", None, &clocks);
        assert_eq!(next, Next::At { at: BootTime(3_600_002), missed: 0 });
    }

    #[test]
    fn a_run_is_never_planned_too_early() {
        // The wall clock shows 11:59:59.9995, and the boot time has lost almost a millisecond.
        let next = Timetable::default().next("* * * * *", None, &clocks("2027-01-10T11:59:59.9995Z", 7_000));
        assert_eq!(next, Next::At { at: BootTime(7_002), missed: 0 });
    }

    #[test]
    fn a_clock_that_is_corrected_repeats_nothing_and_one_that_is_set_is_followed() {
        for (after, wait) in [
            // as it was
            ("2027-01-10T12:00:00.010Z", 59_990),
            // corrected by half a second, and by almost a minute, just after a run
            ("2027-01-10T11:59:59.5Z", 60_500),
            ("2027-01-10T11:59:01Z", 119_000),
            // set back and forward
            ("2027-01-10T10:59:59.5Z", 500),
            ("2027-01-10T13:59:59.5Z", 500),
        ] {
            let mut timetable = Timetable::default();
            let first = timetable.next("* * * * *", None, &clocks("2027-01-10T11:59:58Z", 0));
            assert_eq!(first, Next::At { at: BootTime(2_002), missed: 0 });
            let next = timetable.next("* * * * *", None, &clocks(after, 2_002));
            assert_eq!(next, Next::At { at: BootTime(2_002 + wait + 2), missed: 0 }, "{after}");
        }
    }

    #[test]
    fn missed_runs_are_counted_up_to_a_limit() {
        let missed = |rule: &str, ago: u64| {
            let now = clocks("2027-01-10T12:00:30Z", 10_000_000);
            match Timetable::default().next(rule, Some(BootTime(10_000_000 - ago)), &now) {
                Next::At { missed, .. } => missed,
                Next::Never { reason } => panic!("{reason}"),
            }
        };
        assert_eq!(missed("* * * * *", 29_000), 0);
        assert_eq!(missed("* * * * *", 31_000), 1);
        assert_eq!(missed("* * * * *", 600_000), 10);
        assert_eq!(missed("* * * * * *", 9_000_000), 1_000);
    }

    #[test]
    fn a_rule_that_cannot_be_read_says_why() {
        let next = Timetable::default().next("* * *", None, &clocks("2027-01-10T12:00:00Z", 0));
        let Next::Never { reason } = next else { panic!("{next:?}") };
        assert!(reason.starts_with("the rule has 3 fields"), "{reason}");
    }
}
