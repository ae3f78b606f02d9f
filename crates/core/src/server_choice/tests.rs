//! Stories of an agent and its servers, and the servers that it may choose next.

use super::*;
use std::collections::BTreeMap;

const DRAWS: u32 = 1_200;

fn addresses(names: &str) -> Vec<ServerAddress> {
    names.split_whitespace().map(|name| name.parse().expect("a name")).collect()
}

fn server(name: &str) -> ServerAddress {
    name.parse().expect("a name")
}

/// Random numbers that are spread evenly.
fn draws() -> impl Iterator<Item = Draw> {
    let step = u32::MAX / DRAWS;
    (0..DRAWS).map(move |number| Draw(number * step + step / 2))
}

struct Told {
    choice: ServerChoice,
    now: BootTime,
}

/// Tells a story: `a failed`, `a lost`, `a refused`, `a renewed`, `a welcomed`, `a drained` (5 to 8 s), `a
/// elsewhere` (the same, to another server), `list a b`, and `5 s` that pass. All jitter has its full length.
fn told(configured: &str, listed: &str, story: &str) -> Told {
    let mut choice = ServerChoice::new(addresses(configured), addresses(listed));
    let mut now = BootTime(1_000_000);
    let drained = |next| {
        let (after, spread) = (Duration::from_secs(5), Duration::from_secs(3));
        LinkResult::Drained { after, spread, next }
    };
    for step in story.split(", ").filter(|step| !step.is_empty()) {
        let (first, rest) = step.split_once(' ').expect("two words");
        let mut ended = |result| choice.ended(&server(first), result, now, Draw(u32::MAX));
        match rest {
            "failed" => ended(LinkResult::Failed),
            "lost" => ended(LinkResult::Lost),
            "refused" => ended(LinkResult::Refused),
            "renewed" => ended(LinkResult::Renewed),
            "drained" => ended(drained(DrainedTo::AnyServer)),
            "elsewhere" => ended(drained(DrainedTo::AnotherServer)),
            "welcomed" => choice.welcomed(&server(first)),
            "s" => now += Duration::from_secs(first.parse().expect("seconds")),
            list => {
                assert_eq!(first, "list", "{step}");
                choice.replace(addresses(list));
            }
        }
    }
    Told { choice, now }
}

/// After the story, the agent chooses among the expected servers, each equally often, and waits this many
/// milliseconds.
#[track_caller]
fn check(configured: &str, listed: &str, story: &str, expected: &str, wait: u64) {
    let Told { choice, now } = told(configured, listed, story);
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for draw in draws() {
        let next = choice.next(now, draw);
        assert_eq!(next.wait, Duration::from_millis(wait), "{story}: {next:?}");
        *counts.entry(next.server.host).or_default() += 1;
    }
    let names: Vec<&str> = counts.keys().map(String::as_str).collect();
    assert_eq!(names.join(" "), expected, "{story}");
    let fair = DRAWS / u32::try_from(names.len()).expect("a few");
    assert!(counts.values().all(|count| count.abs_diff(fair) <= 1), "{story}: {counts:?}");
}

#[test]
fn the_choice_is_uniform_among_servers_that_have_not_failed_lately() {
    check("a b c", "", "", "a b c", 0);
    check("a b c", "", "a failed", "b c", 0);
    check("a b c", "", "a failed, b failed", "c", 0);
    check("a b c", "", "a failed, 59 s", "b c", 0);
    check("a b c", "", "a failed, 60 s", "a b c", 0);
    check("a b c", "", "a failed, a welcomed", "a b c", 0);
    check("a b c", "", "a failed, b welcomed", "b c", 0);
    check("a b c", "", "a renewed", "a b c", 0);
}

#[test]
fn servers_of_the_command_line_are_the_last_resort() {
    check("x", "a b", "", "a b", 0);
    check("x", "a b", "a failed", "b", 0);
    check("x y", "a b", "a failed, b failed", "x y", 0);
    check("x", "a b", "a failed, b failed, 60 s", "x", 0);
    check("x a", "a b", "b failed", "a", 0);
    check("x a", "a b", "b failed, a failed", "x", 0);
    // A list that has just arrived.
    check("x", "", "x welcomed, list a b", "a b", 0);
    check("x", "a b", "a welcomed, list b c, a lost", "b c", 2_000);
    // The memory of servers that stay in the list is kept.
    check("x", "a b", "a failed, list a c", "c", 0);
    // A server that was removed, and only then fails, is no longer known.
    check("x", "a b", "list b, a failed", "b", 0);
}

/// As an agent behind a TCP proxy sees them: `x` is the proxy.
#[test]
fn listed_servers_that_have_failed_come_after_those_of_the_command_line() {
    check("x", "a b", "a failed, b failed", "x", 0);
    check("x", "a b", "a failed, b failed, x welcomed, 60 s", "x", 0);
    check("x", "a b", "a failed, b failed, x welcomed, 60 s, a welcomed", "a", 0);
    check("x", "a b", "a failed, b failed, 60 s, x failed", "a b", 0);
    check("x", "a b", "a failed, 60 s", "b", 0);
}

#[test]
fn each_server_has_its_own_back_off_up_to_10_s_if_there_are_several() {
    check("a b", "", "a failed, b failed", "a b", 2_000);
    check("a b", "", "a failed, 1 s, b failed", "a", 1_000);
    check("a b", "", "a failed, 1 s, b failed, 5 s", "a b", 0);
    check("a b", "", "a failed, a failed, b failed", "b", 2_000);
    check("a b", "", "a failed, a failed, b failed, b failed", "a b", 4_000);
    check("a b", "", "a failed, a failed, a failed, b failed, b failed, b failed", "a b", 8_000);
    let both = "a failed, b failed, ".repeat(20);
    check("a b", "", both.trim_end_matches(", "), "a b", 10_000);
    // One server and a last resort are several, too.
    check("x", "a", &"a failed, x failed, ".repeat(20), "a x", 10_000);
    // A welcome ends the back-off of its server.
    check("a b", "", &format!("{both}a welcomed, a failed"), "a", 2_000);
}

#[test]
fn a_single_server_has_a_back_off_up_to_60_s() {
    for (failures, wait) in [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 60), (50, 60)] {
        check("a", "", &"a failed, ".repeat(failures), "a", wait * 1_000);
        check("a", "a", &"a failed, ".repeat(failures), "a", wait * 1_000);
    }
    check("a", "", "a failed, a failed, a welcomed, a failed", "a", 2_000);
}

#[test]
fn a_lost_session_is_followed_by_a_short_pause_and_another_server() {
    check("a b c", "", "a welcomed, a lost", "b c", 2_000);
    check("a b c", "", "a welcomed, a lost, b failed", "c", 0);
    check("a", "", "a welcomed, a lost", "a", 1_000);
    // All of them welcome the agent, and close the session again.
    let flapping = "a welcomed, a lost, b welcomed, b lost, ".repeat(9);
    check("a b", "", flapping.trim_end_matches(", "), "a b", 2_000);
}

#[test]
fn a_refusal_is_followed_by_the_long_back_off_also_with_several_servers() {
    check("a", "", "a refused", "a", 2_000);
    check("a b c", "", "a refused", "b c", 2_000);
    check("a b c", "", "a refused, b refused, c refused", "a b c", 8_000);
    let refused = "a refused, b refused, 30 s, ".repeat(20);
    check("a b", "", &format!("{refused}a refused"), "a b", 60_000);
    check("a b", "", &format!("{refused}a welcomed, b refused"), "a", 2_000);
}

#[test]
fn a_drained_agent_honours_the_pause_and_avoids_the_server_if_told_so() {
    check("a b c", "", "a welcomed, a drained", "a b c", 8_000);
    check("a b c", "", "a welcomed, a elsewhere", "b c", 8_000);
    check("a b c", "", "a welcomed, a elsewhere, 8 s", "b c", 0);
    check("a b c", "", "a welcomed, a elsewhere, 59 s", "b c", 0);
    check("a b c", "", "a welcomed, a elsewhere, 60 s", "a b c", 0);
    // There is no other server.
    check("a", "", "a welcomed, a elsewhere", "a", 8_000);
    check("a b", "", "b failed, a welcomed, a elsewhere, 9 s", "a b", 0);
}

#[test]
fn an_empty_list_never_replaces_a_good_one() {
    let mut choice = ServerChoice::new(addresses("x"), Vec::new());
    assert!(!choice.replace(Vec::new()));
    assert!(choice.replace(addresses("a b")));
    assert!(!choice.replace(addresses("b a")), "the order says nothing");
    assert!(!choice.replace(Vec::new()));
    assert!(choice.replace(addresses("a")));
    assert_eq!(choice.next(BootTime(0), Draw(0)).server, server("a"));
    // The same servers as on the command line, but from now on by the servers' word.
    assert!(choice.replace(addresses("x")));
}

#[test]
fn jitter_is_full() {
    let mut choice = ServerChoice::new(addresses("a b"), Vec::new());
    let mut waits = Vec::new();
    for draw in draws() {
        choice.welcomed(&server("a"));
        choice.ended(&server("a"), LinkResult::Lost, BootTime(0), draw);
        waits.push(choice.next(BootTime(0), draw).wait);
    }
    assert!(waits.is_sorted() && waits.iter().all(|wait| *wait <= SPREAD), "{waits:?}");
    let later = waits.iter().filter(|wait| **wait > SPREAD / 2).count();
    assert!((590..610).contains(&later), "{later} of {DRAWS} in the second half");
    assert_eq!([0, u32::MAX].map(|draw| Draw(draw).part_of(SPREAD)), [Duration::ZERO, SPREAD]);
}

#[test]
fn every_order_of_joining_is_equally_likely() {
    let mut orders: BTreeMap<String, u32> = BTreeMap::new();
    for first in draws().step_by(20) {
        for second in draws().step_by(20) {
            let mut numbers = [first, second].into_iter();
            let order = shuffled(&addresses("a b c"), || numbers.next().expect("two suffice"));
            let names: String = order.iter().map(|server| server.host.as_str()).collect();
            *orders.entry(names).or_default() += 1;
        }
    }
    assert_eq!(orders.len(), 6, "{orders:?}");
    assert!(orders.values().all(|count| *count == 600), "{orders:?}");
}
