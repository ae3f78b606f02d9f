//! Periodic procs against a simulated host: when they run, what each operation does to them, and what
//! survives the agent.

mod common;

use common::{Does, Term, World, spec};
use procfleet_core::process::Exit;
use procfleet_core::spec::{Kind, Schedule, Spec};
use procfleet_core::supervise::{Event, Rest, Signal};
use procfleet_core::{Content, OpKind};
use std::time::Duration;

/// Every ten seconds.
fn every() -> Spec {
    let mut spec = spec();
    spec.policy.kind = Kind::Periodic(Schedule::Every(Duration::from_secs(10)));
    spec.policy.op_timeout = Duration::from_secs(3_600);
    spec
}

/// At each whole minute of the simulated wall clock; the world begins 20 s before one.
fn by_the_clock() -> Spec {
    let mut spec = spec();
    spec.policy.kind = Kind::Periodic(Schedule::Cron("60000".to_owned()));
    spec.policy.op_timeout = Duration::from_secs(3_600);
    spec
}

fn lasts(millis: u64) -> Does {
    Does::Exit { after: millis, code: 0 }
}

/// When each run began, in seconds from the beginning of the world.
fn seconds(world: &World) -> Vec<u64> {
    world.starts.iter().map(|(at, _)| (at.0 - 1_000_000) / 1_000).collect()
}

fn missed(world: &World) -> Vec<u32> {
    let count = |event: &Event| match event {
        Event::RunMissed { count } => Some(*count),
        _ => None,
    };
    world.events.iter().filter_map(count).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Given {
    Unknown,
    /// Known, neither hosted nor running.
    Idle,
    /// Hosted, between two runs.
    Waiting,
    RunUnhosted,
    RunHosted,
    /// A start whose run has not been checked for long enough.
    Starting,
    /// A rule that this host cannot follow.
    GaveUp,
}

/// Where it goes from there.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// The run continues.
    Runs,
    /// It has run again and ended well, by the order or by its schedule.
    Ran,
    /// No process runs, and no command was run.
    Rests,
}

fn given(given: Given) -> World {
    let mut world = World::new().script("start", lasts(5_000));
    match given {
        Given::Unknown => {}
        Given::Idle => {
            world.order(OpKind::Register, &every());
        }
        Given::Waiting => {
            world.order(OpKind::Host, &every());
            world.run_for(6_000);
        }
        Given::RunHosted | Given::RunUnhosted => {
            world.set("start", Does::Hang);
            world.order(OpKind::Start, &every());
            world.set("start", lasts(5_000));
            if given == Given::RunUnhosted {
                world.order(OpKind::Unhost, &every());
            }
        }
        Given::Starting => {
            world.send(OpKind::Start, Some(every()));
            world.run_for(1_000);
        }
        Given::GaveUp => {
            let mut spec = every();
            spec.policy.kind = Kind::Periodic(Schedule::Cron("nonsense".to_owned()));
            world.order(OpKind::Host, &spec);
            world.run_for(1);
            assert!(world.note().contains("cannot be followed: a bad rule"), "{}", world.note());
        }
    }
    world
}

#[test]
fn every_operation_in_every_state() {
    use Given::{GaveUp, Idle, RunHosted, RunUnhosted, Starting, Unknown, Waiting};
    use OpKind::{Host, Kill, Query, Register, Reload, Restart, Start, Stop, Unhost, Update};
    const H: bool = true;
    const U: bool = false;
    let rows = [
        (Unknown, Start, 0, H, Then::Ran),
        (Unknown, Host, 0, H, Then::Ran),
        (Unknown, Restart, 0, U, Then::Ran),
        (Unknown, Stop, 829, U, Then::Rests),
        (Unknown, Kill, 829, U, Then::Rests),
        (Unknown, Reload, 829, U, Then::Rests),
        (Unknown, Unhost, 0, U, Then::Rests),
        (Unknown, Query, 0, U, Then::Rests),
        (Unknown, Register, 0, U, Then::Rests),
        (Unknown, Update, 0, U, Then::Rests),
        (Idle, Start, 0, H, Then::Ran),
        (Idle, Host, 0, H, Then::Ran),
        (Idle, Restart, 0, U, Then::Ran),
        (Idle, Stop, 829, U, Then::Rests),
        (Idle, Kill, 829, U, Then::Rests),
        (Idle, Reload, 829, U, Then::Rests),
        (Idle, Unhost, 0, U, Then::Rests),
        (Idle, Query, 0, U, Then::Rests),
        (Idle, Register, 850, U, Then::Rests),
        (Idle, Update, 0, U, Then::Rests),
        (Waiting, Start, 0, H, Then::Ran),
        (Waiting, Host, 0, H, Then::Ran),
        (Waiting, Restart, 0, H, Then::Ran),
        (Waiting, Stop, 0, U, Then::Rests),
        (Waiting, Kill, 0, U, Then::Rests),
        (Waiting, Reload, 829, H, Then::Ran),
        (Waiting, Unhost, 0, U, Then::Rests),
        (Waiting, Query, 0, H, Then::Ran),
        (Waiting, Register, 850, H, Then::Ran),
        (Waiting, Update, 0, H, Then::Ran),
        (RunHosted, Start, 828, H, Then::Runs),
        (RunHosted, Host, 0, H, Then::Runs),
        (RunHosted, Restart, 0, H, Then::Ran),
        (RunHosted, Stop, 0, U, Then::Rests),
        (RunHosted, Kill, 0, U, Then::Rests),
        (RunHosted, Reload, 0, H, Then::Runs),
        (RunHosted, Unhost, 0, U, Then::Runs),
        (RunHosted, Query, 0, H, Then::Runs),
        (RunHosted, Register, 850, H, Then::Runs),
        (RunHosted, Update, 0, H, Then::Runs),
        (RunUnhosted, Start, 828, U, Then::Runs),
        (RunUnhosted, Host, 0, H, Then::Runs),
        (RunUnhosted, Restart, 0, U, Then::Ran),
        (RunUnhosted, Stop, 0, U, Then::Rests),
        (RunUnhosted, Kill, 0, U, Then::Rests),
        (RunUnhosted, Reload, 0, U, Then::Runs),
        (RunUnhosted, Unhost, 0, U, Then::Runs),
        (RunUnhosted, Query, 0, U, Then::Runs),
        (RunUnhosted, Register, 850, U, Then::Runs),
        (RunUnhosted, Update, 0, U, Then::Runs),
        // these wait for the check, or overtake it
        (Starting, Start, 828, H, Then::Ran),
        (Starting, Host, 0, H, Then::Ran),
        (Starting, Restart, 0, H, Then::Ran),
        (Starting, Stop, 0, U, Then::Rests),
        (Starting, Kill, 0, U, Then::Rests),
        (Starting, Reload, 0, H, Then::Ran),
        (Starting, Unhost, 0, U, Then::Rests),
        (Starting, Query, 0, H, Then::Ran),
        (Starting, Register, 850, H, Then::Ran),
        (Starting, Update, 0, H, Then::Ran),
        (GaveUp, Start, 0, H, Then::Ran),
        (GaveUp, Host, 0, H, Then::Ran),
        (GaveUp, Restart, 0, H, Then::Ran),
        (GaveUp, Stop, 0, U, Then::Rests),
        (GaveUp, Kill, 0, U, Then::Rests),
        (GaveUp, Reload, 829, H, Then::Rests),
        (GaveUp, Unhost, 0, U, Then::Rests),
        (GaveUp, Query, 0, H, Then::Rests),
        (GaveUp, Register, 850, H, Then::Rests),
        (GaveUp, Update, 0, H, Then::Ran),
    ];
    for (before, kind, code, hosted, then) in rows {
        let row = format!("{} when {before:?}", kind.verb());
        let mut world = given(before);
        let starts = world.starts.len();
        let outcome = world.order(kind, &every());
        assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
        if let Content::Control { hosted: told, .. } = outcome.content {
            assert_eq!(told, hosted, "{row}");
        }
        world.run_for(30_000);
        let seen = match (world.main_pid(), world.starts.len() > starts) {
            (Some(_), false) => Then::Runs,
            (_, true) => Then::Ran,
            (None, false) => Then::Rests,
        };
        assert_eq!((world.hosted(), seen), (hosted, then), "{row}");
        assert!(world.max_mains <= 1, "{row}");
        assert!(world.open_ops().is_empty(), "{row}");
        assert!(!world.machine.is_busy(), "{row}");
    }
}

#[test]
fn an_interval_counts_from_the_start_of_the_last_run() {
    for (command, runs, counts) in [
        // a short run changes nothing
        (lasts(100), vec![0, 10, 20, 30, 40], vec![]),
        (lasts(9_999), vec![0, 10, 20, 30, 40], vec![]),
        // a run that is due during another run is missed, and not made up for
        (lasts(10_000), vec![0, 20, 40], vec![1, 1]),
        (lasts(25_000), vec![0, 30], vec![1, 1, 1]),
        // a failure changes nothing about the next
        (Does::Exit { after: 100, code: 3 }, vec![0, 10, 20, 30, 40], vec![]),
        (Does::NotStarted, vec![0, 10, 20, 30, 40], vec![]),
    ] {
        let row = format!("{command:?}");
        let failures = if matches!(command, Does::NotStarted | Does::Exit { code: 3, .. }) { 5 } else { 0 };
        let mut world = World::new().script("start", command);
        assert_eq!(world.order(OpKind::Host, &every()).code.number(), 0, "{row}");
        world.run_for(45_000);
        assert_eq!((seconds(&world), missed(&world)), (runs, counts), "{row}");
        let failed = world.events.iter().filter(|event| matches!(event, Event::RunFailed { .. })).count();
        assert_eq!(failed, failures, "{row}: {:?}", world.events);
        assert!(world.hosted() && world.note().is_empty(), "{row}");
        assert!(!world.events.iter().any(|event| matches!(event, Event::GaveUp { .. })), "{row}");
    }
    let mut world = World::new().script("start", Does::Exit { after: 100, code: 3 });
    world.order(OpKind::Host, &every());
    world.run_for(1_000);
    let reason =
        "Script exit code non-zero. Error message: [its last words] (start_cmd exited with status 3)";
    assert_eq!(world.events, [Event::RunFailed { reason: reason.to_owned() }]);
}

/// One hung run does not block the schedule: it is ended at `op_timeout`, and the next begins on time.
#[test]
fn a_run_that_takes_longer_than_op_timeout_is_ended_and_reported() {
    let mut spec = every();
    spec.policy.op_timeout = Duration::from_secs(4);
    let told = "start_cmd did not end within 4 s (op_timeout) and was ended with all it started; output: [its last words]";
    for order in [OpKind::Host, OpKind::Start] {
        let mut world = World::new().script("start", Does::Hang);
        world.order(order, &spec);
        world.run_for(25_000);
        assert_eq!((seconds(&world), missed(&world)), (vec![0, 10, 20], vec![]), "{order:?}");
        let failed: Vec<String> = world
            .events
            .iter()
            .filter_map(|event| match event {
                Event::RunFailed { reason } => Some(reason.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(failed, [told; 3], "{order:?}");
        assert_eq!((world.mains(), world.max_mains, world.hosted()), (0, 1, true), "{order:?}");
    }
    // A start that is still being checked then says so.
    spec.policy.start_check = Duration::from_secs(60);
    let mut world = World::new().script("start", Does::Hang);
    let began = world.now;
    let outcome = world.order(OpKind::Start, &spec);
    assert_eq!((outcome.code.number(), world.now.since(began).as_secs()), (822, 4), "{}", outcome.message);
    // Of a run that an earlier life of the agent began, the time is known, too.
    for rule in [every(), by_the_clock()] {
        let mut world = World::new().script("start", Does::Hang);
        let spec = Spec {
            policy: procfleet_core::spec::Policy { op_timeout: Duration::from_secs(30), ..rule.policy },
            ..spec.clone()
        };
        world.order(OpKind::Host, &spec);
        world.run_for(25_000);
        let began = world.starts[0].0;
        world.crash();
        let left = Duration::from_secs(29).saturating_sub(world.now.since(began));
        world.run_for(u64::try_from(left.as_millis()).expect("a few seconds"));
        assert_eq!((world.mains(), world.starts.len()), (1, 1), "not early");
        world.run_for(1_500);
        let told = world.events.iter().filter(|event| event.kind() == "run_failed").count();
        assert_eq!((world.starts[0].0, told), (began, 1), "{:?}", world.events);
    }
    // A run that cannot be killed is reported, and tried again.
    let mut world = World::new().script("start", Does::Unkillable);
    spec.policy.start_check = Duration::from_secs(1);
    world.order(OpKind::Host, &spec);
    world.run_for(300_000);
    let told =
        world.events.iter().filter(|event| event.to_string().contains("was killed and is still there"));
    assert!((2..6).contains(&told.count()), "{:?}", world.events);
    assert_eq!(world.starts.len(), 1, "two runs never overlap");
}

/// An operator who waits for a backup must know at once that it did not begin.
#[test]
fn a_missed_run_is_reported_when_it_is_missed() {
    let mut world = World::new().script("start", Does::Hang);
    world.order(OpKind::Host, &every());
    world.run_for(9_900);
    assert_eq!(missed(&world), Vec::<u32>::new(), "nothing is due yet");
    world.run_for(200);
    assert_eq!(missed(&world), [1]);
    // Then once a minute, with the number of runs that were missed since.
    world.run_for(59_000);
    assert_eq!(missed(&world), [1]);
    world.run_for(1_000);
    assert_eq!(missed(&world), [1, 6]);
    // A reported run is not reported again, even after a restart of the agent; an unhosted proc has no
    // schedule.
    world.crash();
    world.run_for(1_000);
    world.die(Exit::Code(0));
    world.run_for(100);
    assert_eq!(missed(&world), [1, 6]);
    let mut world = given(Given::RunUnhosted);
    world.run_for(60_000);
    assert_eq!(missed(&world), Vec::<u32>::new());

    let mut world = World::new().script("start", lasts(130_000));
    world.order(OpKind::Host, &by_the_clock());
    world.run_for(79_000);
    assert_eq!((world.starts.len(), missed(&world)), (1, vec![]));
    world.run_for(2_000);
    assert_eq!(missed(&world), [1]);
}

#[test]
fn how_a_start_ends_and_when() {
    let rows = [
        (lasts(100), 0, 100, "success"),
        // it continues as the process
        (lasts(60_000), 0, 2_000, "success"),
        (Does::Hang, 0, 2_000, "success"),
        (
            Does::Exit { after: 500, code: 3 },
            65_535,
            500,
            "[its last words] (start_cmd exited with status 3)",
        ),
        (Does::NotStarted, 122, 0, "start_cmd could not be run: no such user"),
    ];
    for (command, code, millis, says) in rows {
        let row = format!("{command:?}");
        let mut world = World::new().script("start", command);
        let began = world.now;
        let outcome = world.order(OpKind::Start, &every());
        assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
        assert!(outcome.message.contains(says), "{row}: {}", outcome.message);
        assert_eq!(world.now.since(began), Duration::from_millis(millis), "{row}");
        assert_eq!(world.hosted(), code == 0, "{row}");
        assert_eq!(world.machine.process().map(|process| process.pid), world.main_pid(), "{row}");
        world.run_for(60_000);
        // The next one is counted from this one.
        let next = world.starts.get(1).map(|(at, _)| at.since(began).as_millis() % 10_000);
        assert_eq!(next.unwrap_or(0), 0, "{row}");
        assert_eq!(world.starts.len() > 1, code == 0 && says == "success" && millis == 100, "{row}");
        assert!(world.max_mains <= 1, "{row}");
    }
}

#[test]
fn a_rule_is_followed_by_the_wall_clock() {
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &by_the_clock());
    world.run_for(150_000);
    assert_eq!(seconds(&world), [20, 80, 140], "not at once, but when it matches");
    assert_eq!(missed(&world), Vec::<u32>::new());

    // It is asked again at least every minute, so that a clock that was set is noticed.
    let mut hourly = by_the_clock();
    hourly.policy.kind = Kind::Periodic(Schedule::Cron("3600000".to_owned()));
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &hourly);
    world.run_for(600_000);
    assert!((10..=12).contains(&world.plans), "{}", world.plans);
    assert!(world.starts.is_empty());
    // It would be due at 3,600,000 by the wall clock, that is at 2,600 s; the clock is set forward by an hour
    // and back.
    world.wall_ahead = 1_900_000;
    world.run_for(60_000);
    world.run_for(60_000);
    assert_eq!(seconds(&world), [700]);

    // During a longer run the due runs are missed.
    let mut world = World::new().script("start", lasts(130_000));
    world.order(OpKind::Host, &by_the_clock());
    world.run_for(300_000);
    assert_eq!((seconds(&world), missed(&world)), (vec![20, 200], vec![1, 1, 1]));
}

#[test]
fn hosting_a_hosted_proc_replaces_its_schedule_and_starts_no_early_run() {
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &every());
    world.run_for(5_000);
    assert_eq!(world.order(OpKind::Host, &every()).code.number(), 0);
    world.run_for(10_000);
    assert_eq!(seconds(&world), [0, 10]);
    let mut slower = every();
    slower.policy.kind = Kind::Periodic(Schedule::Every(Duration::from_secs(30)));
    world.order(OpKind::Host, &slower);
    world.run_for(60_000);
    assert_eq!(seconds(&world), [0, 10, 40, 70]);
    // A shorter one is due at once if its time has passed.
    world.order(OpKind::Update, &every());
    world.run_for(12_000);
    assert_eq!(seconds(&world), [0, 10, 40, 70, 80]);
    world.order(OpKind::Host, &by_the_clock());
    world.run_for(60_000);
    assert_eq!(seconds(&world), [0, 10, 40, 70, 80, 140]);
}

/// A proc whose kind changes is supervised by its new kind.
#[test]
fn a_proc_may_change_its_kind() {
    // A formerly periodic proc is kept alive.
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &every());
    world.run_for(5_000);
    world.set("start", common::daemon());
    world.order(OpKind::Update, &spec());
    world.run_for(20_000);
    assert_eq!((world.mains(), world.starts.len(), world.hosted()), (1, 2, true));
    // The reverse: the process keeps running, and when it exits the schedule begins.
    world.order(OpKind::Update, &every());
    world.run_for(20_000);
    assert_eq!((world.mains(), world.starts.len()), (1, 2));
    world.set("start", lasts(100));
    world.die(Exit::Code(0));
    world.run_for(21_000);
    assert_eq!((world.mains(), world.starts.len() > 3, world.max_mains), (0, true, 1));
}

#[test]
fn a_stop_or_kill_ends_the_run_and_the_schedule() {
    for (kind, term, code, signals) in [
        (OpKind::Stop, Term::Dies { after: 200 }, 0, vec![Signal::Term]),
        (OpKind::Stop, Term::Ignores, 836, vec![Signal::Term]),
        (OpKind::Kill, Term::Ignores, 0, vec![Signal::Kill]),
    ] {
        let row = format!("{} of one that {term:?}", kind.verb());
        let mut world = World::new().script("start", lasts(60_000));
        world.term = term;
        world.order(OpKind::Host, &every());
        world.run_for(1_000);
        let outcome = world.order(kind, &every());
        assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
        assert_eq!((world.hosted(), world.mains()), (code != 0, usize::from(code != 0)), "{row}");
        assert_eq!(world.signals, signals, "{row}");
        // A run that was ended has not failed.
        assert_eq!(world.events, [], "{row}");
        world.run_for(100_000);
        // A proc that could not be stopped keeps its schedule.
        assert_eq!(seconds(&world), if code == 0 { vec![0] } else { vec![0, 70] }, "{row}");
    }
}

#[test]
fn a_reload_during_which_the_run_ends() {
    let mut world = World::new().script("start", lasts(10_500)).script("reload", lasts(1_000));
    world.order(OpKind::Host, &every());
    world.run_for(10_000);
    let outcome = world.order(OpKind::Reload, &every());
    assert_eq!(outcome.code.number(), 836, "{}", outcome.message);
    assert!(outcome.message.contains("the run has ended meanwhile"), "{}", outcome.message);
    world.run_for(10_000);
    assert_eq!((seconds(&world), missed(&world)), (vec![0, 20], vec![1]));
}

// ---- the agent's end and return ----

#[test]
fn a_run_is_taken_up_again_and_not_repeated() {
    for (lasts_for, away, runs) in [
        // still running on the return, and for a while after it
        (25_000, 10_000, vec![0, 30]),
        // it ended meanwhile, and nothing was due
        (5_000, 8_000, vec![0, 10, 20, 30]),
    ] {
        let mut world = World::new().script("start", lasts(lasts_for));
        world.order(OpKind::Host, &every());
        world.run_for(1_000);
        world.crash_for(away);
        world.run_for(34_000 - away);
        assert_eq!((seconds(&world), world.max_mains), (runs, 1), "{lasts_for}");
    }
    // The exit is reported as far as it is known.
    let mut world = World::new().script("start", Does::Exit { after: 5_000, code: 3 });
    world.order(OpKind::Host, &every());
    world.run_for(1_000);
    world.crash();
    world.run_for(5_000);
    assert!(matches!(world.events.as_slice(), [Event::RunFailed { .. }]), "{:?}", world.events);
}

/// Between the write and the command, and between the command and the first sight of it.
#[test]
fn a_crash_at_any_point_begins_nothing_twice() {
    for delay in [0, 20] {
        let mut world = World::new().script("start", lasts(8_000));
        world.order(OpKind::Host, &every());
        world.run_for(9_500);
        world.look_delay = delay;
        world.set("start", lasts(15_000));
        if delay == 0 {
            world.fail_next_effects = true;
        }
        world.run_for(510);
        if delay > 0 {
            assert_eq!(world.starts.len(), 2);
            assert!(matches!(world.record.as_ref().map(|r| &r.rest), Some(Rest::Begun { .. })));
            world.crash();
        }
        world.look_delay = 0;
        world.run_for(25_000);
        // The run that was lost in the crash is not made up for: it may have begun.
        let expected = if delay == 0 { vec![0, 20] } else { vec![0, 10, 30] };
        assert_eq!((seconds(&world), world.max_mains), (expected, 1), "look delay {delay}");
    }
}

#[test]
fn runs_that_were_due_while_the_agent_was_away_are_missed() {
    // With an interval: once and at once, and the interval counts from there.
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &every());
    world.run_for(5_000);
    world.crash_for(32_000);
    world.run_for(15_000);
    assert_eq!((seconds(&world), missed(&world)), (vec![0, 37, 47], vec![3]));
    // No run was due.
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &every());
    world.run_for(5_000);
    world.crash_for(2_000);
    world.run_for(5_000);
    assert_eq!((seconds(&world), missed(&world)), (vec![0, 10], vec![]));
    // A rule is followed the next time that it matches.
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &by_the_clock());
    world.run_for(30_000);
    world.crash_for(120_000);
    world.run_for(60_000);
    assert_eq!((seconds(&world), missed(&world)), (vec![20, 200], vec![2]));
}

#[test]
fn a_reboot_of_the_host_recomputes_the_schedule() {
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &every());
    world.run_for(5_000);
    world.reboot();
    let began = world.now;
    world.run_for(15_000);
    let since: Vec<u64> = world.starts[1..].iter().map(|(at, _)| at.since(began).as_secs()).collect();
    assert_eq!((since, missed(&world)), (vec![0, 10], vec![]));
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &by_the_clock());
    world.reboot();
    world.run_for(56_000);
    assert_eq!((world.starts.len(), missed(&world)), (1, vec![]));
}

#[test]
fn a_late_run_takes_place_once_or_waits_for_the_crontab_rule() {
    // The host was suspended: the clock advanced without a tick.
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &every());
    world.run_for(5_000);
    world.now += Duration::from_secs(40);
    world.run_for(10_000);
    assert_eq!((seconds(&world), missed(&world)), (vec![0, 45, 55], vec![3]));
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &by_the_clock());
    world.run_for(5_000);
    world.now += Duration::from_secs(100);
    world.run_for(40_000);
    assert_eq!((seconds(&world), missed(&world)), (vec![140], vec![2]));
}

#[test]
fn a_query_says_that_it_waits() {
    let mut world = given(Given::Waiting);
    let outcome = world.order(OpKind::Query, &every());
    let Content::Status(status) = outcome.content else { panic!("a query answers with a status") };
    assert_eq!(
        (status.note.as_str(), status.hosted, status.instance),
        ("waiting for its next run", true, None)
    );
    assert!(world.note().is_empty(), "and there is nothing to complain about");
}

/// Processes that a run left are not taken for a run, and are not killed.
#[test]
fn processes_that_a_run_leaves_are_left_alone() {
    let mut world = World::new().script("start", lasts(100));
    world.order(OpKind::Host, &every());
    world.run_for(5_000);
    world.leave_behind();
    world.crash();
    world.run_for(20_000);
    assert_eq!((world.starts.len(), world.mains()), (3, 1));
}
