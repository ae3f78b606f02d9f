//! The agent's end and return.

use crate::common::{Does, Term, World, daemon, spec};
use crate::given::{Given, Then, given, seconds, state};
use procfleet_core::OpKind;
use procfleet_core::process::Exit;
use procfleet_core::supervise::{Event, Rest};
use std::time::Duration;

#[test]
fn an_interrupted_op_is_not_repeated_and_reports_the_state_found() {
    // (before, order, wait, alive afterwards, hosted afterwards)
    let rows = [
        (Given::Unknown, OpKind::Start, 500, true, false),
        (Given::Unknown, OpKind::Host, 500, true, true),
        (Given::UpHosted, OpKind::Stop, 10, true, false),
        (Given::UpUnhosted, OpKind::Restart, 10, true, false),
        (Given::UpHosted, OpKind::Reload, 10, true, true),
        (Given::UpHosted, OpKind::Kill, 10, true, false),
    ];
    for (before, kind, wait, alive, hosted) in rows {
        let row = format!("{} when {before:?}", kind.verb());
        let mut world = given(before);
        world.term = Term::Ignores;
        world.set("kill", Does::Hang);
        let mut spec = spec();
        spec.control.kill_cmd = "kill".to_owned();
        let op = world.send(kind, Some(spec));
        world.run_for(wait);
        let starts = world.starts.len();
        world.crash();
        let outcome = world.outcome(op);
        assert_eq!(outcome.code.number(), 805, "{row}");
        let seen = if alive { "the process is running now with pid" } else { "is not running now" };
        assert!(outcome.message.contains(seen), "{row}: {}", outcome.message);
        assert_eq!((world.starts.len(), world.hosted()), (starts, hosted), "{row}");
    }
    let mut world = World::new();
    let op = world.send(OpKind::Start, Some(spec()));
    world.run_for(500);
    let pid = world.main_pid().expect("it was started");
    world.die(Exit::Signal(9));
    world.crash();
    let outcome = world.outcome(op);
    assert!(outcome.message.contains("is not running now"), "{pid}: {}", outcome.message);
}

#[test]
fn a_death_while_the_agent_was_away_is_reported_once() {
    let deaths = |world: &World| {
        let told = world.events.iter().filter_map(|event| match event {
            Event::Exited { pid, exit: Exit::Unknown } => Some(*pid),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    for before in [Given::UpHosted, Given::UpUnhosted] {
        let mut world = given(before);
        world.run_for(20_000);
        world.set("start", daemon());
        world.crash_for(1_000);
        assert_eq!(deaths(&world), [], "{before:?}: it lives");
        let pid = world.main_pid().expect("it is up");
        world.kill_behind_the_agents_back();
        for _ in 0..3 {
            world.crash_for(10);
        }
        world.run_for(10_000);
        assert_eq!(deaths(&world), [pid], "{before:?}");
    }
    // An op that was under way may have been what ended it.
    let mut world = given(Given::UpHosted);
    world.set("stop", Does::Hang);
    let mut stopping = spec();
    stopping.control.stop_cmd = "stop".to_owned();
    let op = world.send(OpKind::Stop, Some(stopping));
    world.run_for(100);
    world.kill_behind_the_agents_back();
    world.crash_for(1_000);
    assert_eq!((world.outcome(op).code.number(), deaths(&world)), (805, vec![]));
}

#[test]
fn queued_orders_are_carried_out_after_a_crash() {
    let mut world = given(Given::Ending);
    let start = world.send(OpKind::Start, Some(spec()));
    world.crash_for(5_000);
    assert_eq!(world.outcome(start).code.number(), 0);
    assert_eq!((world.hosted(), state(&world), world.max_mains), (true, Then::Up, 1));
}

#[test]
fn the_process_is_supervised_again_after_a_restart_of_the_agent() {
    // Adopted.
    let mut world = given(Given::UpHosted);
    world.crash_for(100_000);
    world.run_for(10_000);
    assert_eq!((world.starts.len(), state(&world), world.hosted()), (1, Then::Up, true));
    world.die(Exit::Signal(9));
    world.run_for(10_000);
    assert_eq!((world.starts.len(), state(&world)), (2, Then::Up));

    // Died meanwhile: started again if it is hosted.
    for (before, starts, then) in [(Given::UpHosted, 2, Then::Up), (Given::UpUnhosted, 1, Then::Down)] {
        let mut world = given(before);
        world.run_for(20_000);
        world.set("start", daemon());
        let pid = world.main_pid();
        world.term = Term::Dies { after: 0 };
        world.kill_behind_the_agents_back();
        world.crash_for(1_000);
        world.run_for(10_000);
        assert_eq!((world.starts.len(), state(&world)), (starts, then), "{before:?}");
        assert_ne!(world.main_pid(), pid);
    }

    // Given up stays given up; a stopped one stays stopped.
    for (before, then) in [(Given::GaveUp, Then::GaveUp), (Given::Down, Then::Down)] {
        let mut world = given(before);
        let starts = world.starts.len();
        world.crash_for(100_000);
        world.run_for(100_000);
        assert_eq!((world.starts.len(), state(&world)), (starts, then), "{before:?}");
    }

    // A retry is still waited for, and is done at once if its time has passed.
    for (away, expected) in [(1_000, 10), (30_000, 32)] {
        let mut world = given(Given::UpHosted);
        world.die(Exit::Code(1));
        world.run_for(10);
        assert!(matches!(world.record.as_ref().map(|r| &r.rest), Some(Rest::Retry { .. })));
        world.crash_for(away);
        world.run_for(60_000);
        assert_eq!((seconds(&world), state(&world)), (vec![0, expected], Then::Up));
    }
}

#[test]
fn after_a_reboot_of_the_host() {
    for (before, starts, then) in
        [(Given::UpHosted, 2, Then::Up), (Given::UpUnhosted, 1, Then::Down), (Given::Down, 1, Then::Down)]
    {
        let mut world = given(before);
        world.reboot();
        world.run_for(60_000);
        assert_eq!((world.starts.len(), state(&world)), (starts, then), "{before:?}");
    }
    // A retry that was waited for is not forgotten.
    let mut world = given(Given::UpHosted);
    world.die(Exit::Code(1));
    world.run_for(10);
    world.reboot();
    world.run_for(5_000);
    assert_eq!((world.starts.len(), state(&world)), (2, Then::Up));
}

#[test]
fn a_stop_that_waits_for_the_agents_return_comes_before_a_restart() {
    let mut world = given(Given::UpHosted);
    world.run_for(20_000);
    world.look_delay = 20;
    world.kill_behind_the_agents_back();
    world.crash();
    let stop = world.order(OpKind::Stop, &spec());
    world.run_for(60_000);
    assert_eq!((stop.code.number(), world.starts.len(), world.hosted()), (829, 1, false));
}

#[test]
fn unregistering_forgets_the_proc_and_leaves_its_process() {
    for before in [Given::UpUnhosted, Given::UpHosted, Given::Launching] {
        let mut world = given(before);
        let outcome = world.order(OpKind::Unregister, &spec());
        assert_eq!((outcome.code.number(), world.hosted()), (0, false), "{before:?}");
        world.run_for(30_000);
        assert!(world.main_pid().is_some(), "{before:?}: the process goes on");
        assert!(world.machine.is_blank() && world.record.is_none(), "{before:?}: nothing is remembered");
        assert_eq!(world.order(OpKind::Start, &spec()).code.number(), 828, "{before:?}: it is found again");
    }
}

/// A start that takes the agent down with it would take it down for ever.
#[test]
fn restarts_that_the_agent_does_not_survive_are_counted() {
    for (away, lagging) in [(0, false), (500, false), (60_000, false), (0, true), (60_000, true)] {
        let mut spec = spec();
        spec.identity.pid_path.clear();
        let mut world = World::new().script("start", Does::Foreground { lives: None, code: 0 });
        world.lagging = lagging;
        world.send(OpKind::Host, Some(spec));
        for _ in 0..10 {
            let seen = world.starts.len();
            world.kill_behind_the_agents_back();
            world.crash_for(away);
            let limit = world.now + Duration::from_secs(60);
            while world.starts.len() == seen && world.now < limit {
                world.run_for(100);
            }
        }
        assert_eq!(world.starts.len(), 3, "away {away}: once by order and twice more (start_retries)");
        let note = world.note();
        assert!(note.starts_with("gave up after 2 restarts"), "away {away}: {note}");
    }
}

/// A start command that is at work when the agent comes back is neither the process nor run again.
#[test]
fn a_start_command_of_the_last_life_is_not_the_process() {
    // (behaviour, pid file, result)
    let rows = [
        (Does::Daemon { after: 5_000, file: Some(0), lives: None }, true, Then::Up),
        (Does::Daemon { after: 5_000, file: Some(1_000), lives: None }, true, Then::Up),
        (Does::Daemon { after: 5_000, file: None, lives: None }, false, Then::Up),
        (Does::Exit { after: 5_000, code: 0 }, true, Then::Down),
        (Does::Hang, true, Then::Down),
    ];
    for (does, file, then) in rows {
        let row = format!("{does:?}");
        let mut spec = spec();
        spec.policy.start_check = Duration::from_secs(8);
        if !file {
            spec.identity.pid_path.clear();
        }
        let mut world = World::new().script("start", does);
        let op = world.send(OpKind::Start, Some(spec.clone()));
        world.run_for(500);
        world.crash();
        let outcome = world.outcome(op);
        assert_eq!(outcome.code.number(), 805, "{row}");
        assert!(
            outcome.message.contains("is not running yet: its start command"),
            "{row}: {}",
            outcome.message
        );
        assert_eq!(world.machine.process(), None, "{row}");
        assert!(world.note().contains("the start command is still at work"), "{row}: {}", world.note());
        world.run_for(60_000);
        assert_eq!((state(&world), world.starts.len(), world.hosted()), (then, 1, false), "{row}");
    }
    // A stop does not wait for it.
    for kind in [OpKind::Stop, OpKind::Kill] {
        let mut spec = spec();
        spec.control.stop_cmd = "stop".to_owned();
        let mut world =
            World::new().script("start", Does::Daemon { after: 5_000, file: Some(0), lives: None });
        world.set("stop", Does::Hang);
        world.send(OpKind::Start, Some(spec.clone()));
        world.run_for(500);
        world.crash();
        assert_eq!(world.order(kind, &spec).code.number(), 0);
        world.run_for(60_000);
        assert_eq!((state(&world), world.mains(), world.hosted()), (Then::Down, 0, false));
    }
}

/// A look is no snapshot. Without a second one, a hosted process that is just beginning would be ended as a
/// leftover and started again.
#[test]
fn a_process_that_the_first_look_misses_is_not_started_again() {
    let rows = [
        (Given::Unknown, OpKind::Start, false),
        (Given::Unknown, OpKind::Host, true),
        (Given::UpHosted, OpKind::Restart, true),
    ];
    for (before, kind, hosted) in rows {
        for missed in [1, 3] {
            let row = format!("{} when {before:?}, {missed} missed", kind.verb());
            let mut world = given(before);
            let mut spec = spec();
            spec.policy.start_check = Duration::from_secs(8);
            let op = world.send(kind, Some(spec));
            // The command is at work when the agent ends, and has brought its process when the agent is back.
            world.run_for(50);
            let starts = world.starts.len();
            world.missed_looks.set(missed);
            world.crash_for(500);
            let pid = world.main_pid();
            assert!(pid.is_some(), "{row}: the command goes on without the agent");
            assert_eq!(world.outcome(op).code.number(), 805, "{row}");
            world.run_for(60_000);
            assert_eq!((state(&world), world.hosted()), (Then::Up, hosted), "{row}");
            assert_eq!((world.main_pid(), world.starts.len()), (pid, starts), "{row}");
        }
    }
    // A launch that has failed is tried again when the time for its check has passed.
    let mut world = World::new().script("start", Does::Exit { after: 100, code: 0 });
    world.send(OpKind::Host, Some(spec()));
    world.run_for(500);
    world.crash();
    world.run_for(1_000);
    assert_eq!(world.starts.len(), 1, "not before");
    assert!(world.note().contains("its process has not been found yet"), "{}", world.note());
    world.set("start", daemon());
    world.run_for(60_000);
    assert_eq!((state(&world), world.starts.len()), (Then::Up, 2));
}

/// Effects for the previous op do not mark the next op as begun.
#[test]
fn an_op_that_had_only_looked_is_carried_out_after_a_crash() {
    let mut world = World::new();
    world.look_delay = 20;
    let kill = world.send(OpKind::Kill, Some(spec()));
    let start = world.send(OpKind::Start, Some(spec()));
    world.run_for(20);
    assert_eq!((world.code(kill), world.code(start)), (Some(829), None));
    world.crash();
    assert_eq!(world.outcome(start).code.number(), 0);
    assert_eq!(world.starts.len(), 1);
}
