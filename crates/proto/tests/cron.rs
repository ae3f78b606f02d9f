//! Crontab rules: their syntax, and when they match, including changes of daylight-saving time.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use procfleet_proto::cron::CronRule;

/// Central Europe: forward at 02:00 on the last Sunday of March, back at 03:00 on the last Sunday of October.
fn berlin() -> TimeZone {
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone")
}

fn at(utc: &str) -> Zoned {
    utc.parse::<Timestamp>().expect("a time").to_zoned(berlin())
}

#[test]
fn valid_and_invalid_rules() {
    for good in [
        "* * * * *",
        "*/5 * * * *",
        "0 2 * * *",
        "30 0 2 * * *",
        " 0  0 1,15 * MON-FRI ",
        "0 0 29 2 *",
        "0 0 29 2 +MON",
        "0 0 L * *",
        "@daily",
        "@hourly",
        "@weekly",
        "@monthly",
        "@yearly",
        "@annually",
        "@DAILY",
    ] {
        assert!(CronRule::parse(good).is_ok(), "{good}: {:?}", CronRule::parse(good));
    }
    for (bad, why) in [
        ("", "has 0 fields, must have five"),
        ("* * * *", "has 4 fields"),
        ("* * * * * * 2027", "has 7 fields"),
        ("every minute", "has 2 fields"),
        ("61 * * * *", "\"61 * * * *\" is no rule: "),
        ("* 24 * * *", "is no rule"),
        ("* * 0 * *", "is no rule"),
        ("* * * 13 *", "is no rule"),
        ("*/0 * * * *", "is no rule"),
        ("a b c d e", "illegal character"),
        ("5-1 * * * *", "is no rule"),
        ("@reboot", "\"@reboot\" is no rule; there are @hourly"),
        ("@daily 5", "is no rule"),
        ("0 0 30 2 *", "never matches"),
        ("0 0 31 4 *", "never matches"),
    ] {
        let reason = CronRule::parse(bad).expect_err(bad).to_string();
        assert!(reason.contains(why), "{bad}: {reason}");
    }
}

#[test]
fn when_a_rule_matches_next() {
    let rows = [
        // (rule, after, next), all in UTC; Central Europe is one or two hours ahead
        ("0 2 * * *", "2027-01-10T00:59:59Z", "2027-01-10T01:00:00Z"),
        ("0 2 * * *", "2027-01-10T01:00:00Z", "2027-01-11T01:00:00Z"),
        ("0 2 * * *", "2027-01-10T01:00:00.5Z", "2027-01-11T01:00:00Z"),
        ("* * * * *", "2027-01-10T01:00:00.999Z", "2027-01-10T01:01:00Z"),
        ("*/20 * * * * *", "2027-01-10T01:00:19.5Z", "2027-01-10T01:00:20Z"),
        ("@hourly", "2027-01-10T01:30:00Z", "2027-01-10T02:00:00Z"),
        ("0 9 * * 1", "2027-01-10T12:00:00Z", "2027-01-11T08:00:00Z"),
        // 02:30 does not exist on 28 March 2027: it is at the end of the gap, once
        ("30 2 * * *", "2027-03-27T12:00:00Z", "2027-03-28T01:00:00Z"),
        ("30 2 * * *", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"),
        // a daily rule keeps its wall-clock time
        ("0 12 * * *", "2027-03-27T11:00:00Z", "2027-03-28T10:00:00Z"),
        ("0 12 * * *", "2027-10-30T10:00:00Z", "2027-10-31T11:00:00Z"),
        // 02:30 comes twice on 31 October 2027, and counts once
        ("30 2 * * *", "2027-10-30T12:00:00Z", "2027-10-31T00:30:00Z"),
        ("30 2 * * *", "2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"),
        // a rule that repeats within the hour matches in both
        ("*/30 * * * *", "2027-10-31T00:30:00Z", "2027-10-31T01:00:00Z"),
        ("*/30 * * * *", "2027-10-31T01:00:00Z", "2027-10-31T01:30:00Z"),
        ("*/30 * * * *", "2027-10-31T01:30:00Z", "2027-10-31T02:00:00Z"),
        ("*/30 * * * *", "2027-03-28T00:30:00Z", "2027-03-28T01:00:00Z"),
    ];
    for (rule, after, next) in rows {
        let parsed = CronRule::parse(rule).expect(rule);
        let seen = parsed.next_after(&at(after)).map(|time| time.timestamp().to_string());
        assert_eq!(seen.as_deref(), Some(next), "{rule} after {after}");
    }
}
