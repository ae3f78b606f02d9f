//! How a start ends, and when.

use crate::common::{Does, World, daemon, spec};
use crate::given::{Given, Then, given, state};
use procfleet_core::OpKind;
use procfleet_core::op::{Content, Outcome};
use procfleet_core::process::Exit;
use procfleet_core::spec::{Kind, Spec};
use procfleet_core::supervise::Event;
use std::time::Duration;

/// A start of an unknown proc: code, duration, message.
pub(crate) fn check_start(does: Does, spec: &Spec, code: u32, millis: u64, says: &str) -> World {
    let mut world = World::new().script("start", does.clone());
    let began = world.now;
    let outcome = world.order(OpKind::Start, spec);
    assert_eq!(outcome.code.number(), code, "{does:?}: {}", outcome.message);
    assert_eq!(world.now.since(began), Duration::from_millis(millis), "{does:?}: {}", outcome.message);
    assert!(outcome.message.contains(says), "{does:?}: {}", outcome.message);
    assert_eq!(world.hosted(), code == 0, "{does:?}");
    world
}

#[test]
fn how_a_start_ends_and_when() {
    let spec = spec();
    let mut nameless = spec.clone();
    nameless.identity.pid_path.clear();
    let mut patient = nameless.clone();
    patient.policy.start_check = Duration::from_secs(30);
    let mut unchecked = spec.clone();
    unchecked.policy.start_check = Duration::ZERO;
    let mut once = nameless.clone();
    once.policy.kind = Kind::Once;
    let forever = Does::Foreground { lives: None, code: 0 };
    let daemon = |after, file, lives| Does::Daemon { after, file, lives };
    let rows = [
        (daemon(100, Some(0), None), &spec, 0, 2_100, "success"),
        (daemon(100, Some(1_500), None), &spec, 0, 3_675, "success"),
        (daemon(100, Some(0), None), &nameless, 0, 2_100, "success"),
        // the window begins with the first sight, or with the end of the command if that is later
        (daemon(100, Some(1_500), Some(2_500)), &spec, 836, 3_675, "exited with status 3"),
        (daemon(15_000, Some(0), None), &spec, 0, 17_000, "success"),
        (daemon(15_000, Some(0), Some(700)), &spec, 836, 17_000, "exited with status 3"),
        // without a pid file, a script at work is not the process that the spec names
        (daemon(15_000, Some(0), None), &nameless, 0, 17_000, "success"),
        (daemon(15_000, Some(0), Some(700)), &nameless, 836, 17_000, "exited with status 3"),
        // unless it is there for as long as a command may take
        (Does::Hang, &nameless, 0, 20_000, "success"),
        (forever.clone(), &nameless, 0, 2_025, "success"),
        // a program in the foreground that writes no pid file, recognised when a command would have run out
        // of time
        (forever.clone(), &spec, 0, 20_000, "success"),
        // the window is longer than a command may take
        (forever.clone(), &patient, 0, 30_025, "success"),
        (daemon(100, Some(0), None), &unchecked, 0, 1_100, "success"),
        (daemon(100, Some(0), Some(900)), &unchecked, 836, 1_100, "exited with status 3"),
        // failed
        (
            Does::Exit { after: 10, code: 7 },
            &spec,
            65_535,
            10,
            "[its last words] (start_cmd exited with status 7)",
        ),
        (Does::NotStarted, &spec, 122, 0, "start_cmd could not be run: no such user"),
        (Does::Foreground { lives: Some(70), code: 3 }, &nameless, 65_535, 70, "its last words"),
        // took too long
        (Does::Hang, &spec, 822, 20_000, "start_cmd did not end within 20 s"),
        (Does::Unkillable, &spec, 822, 23_000, "start_cmd did not end within 20 s"),
        // not alive: early if the command was the process, else at the end of the window
        (
            Does::Foreground { lives: Some(70), code: 0 },
            &nameless,
            836,
            145,
            "start_cmd was the process itself",
        ),
        (Does::Foreground { lives: Some(70), code: 0 }, &patient, 836, 145, "no process it runs from"),
        (Does::Exit { after: 10, code: 0 }, &spec, 836, 2_010, "pid file /run/it.pid does not exist"),
        (Does::Exit { after: 10, code: 0 }, &nameless, 836, 2_010, "no process it runs from"),
        (Does::Exit { after: 10, code: 0 }, &patient, 836, 30_010, "no process it runs from"),
        (daemon(100, Some(0), Some(500)), &spec, 836, 2_100, "exited with status 3"),
        (daemon(100, Some(0), Some(500)), &nameless, 836, 2_100, "exited with status 3"),
        // unrecognised processes are ended
        (daemon(100, None, None), &spec, 836, 2_125, "does not exist; output: [its last words]; pid 102"),
        (daemon(100, Some(5_000), None), &spec, 836, 2_125, "pid file /run/it.pid does not exist"),
    ];
    for (does, spec, code, millis, says) in rows {
        let world = check_start(does, spec, code, millis, says);
        assert_eq!(world.starts.len(), 1);
    }
    // run once: no check and no time limit; there is no polling meanwhile (the world would notice)
    let run = |after, code| Does::Exit { after, code };
    for (does, code, millis) in [
        (run(10, 0), 0, 10),
        (run(15_000, 0), 0, 15_000),
        (run(10, 1), 65_535, 10),
        (Does::Hang, 822, 20_000),
    ] {
        let mut world = World::new().script("start", does.clone());
        let began = world.now;
        let outcome = world.order(OpKind::Start, &once);
        assert_eq!(outcome.code.number(), code, "{does:?}");
        assert_eq!(world.now.since(began), Duration::from_millis(millis), "{does:?}");
        world.run_for(100_000);
        assert_eq!((world.starts.len(), state(&world)), (1, Then::Down), "{does:?}");
    }
}

/// A change of the pid within the window is not a failure and does not restart the window. At its end the
/// process must have been alive for a second.
#[test]
fn a_process_that_is_back_before_the_end_of_the_check_was_started() {
    let with_file = spec();
    let mut nameless = spec();
    nameless.identity.pid_path.clear();
    let forever = None;
    // (pause and life of each, code, takes)
    let rows = [
        (vec![(0, Some(500)), (0, forever)], 0, 2_100),
        (vec![(0, Some(100)), (100, Some(100)), (100, Some(100)), (100, forever)], 0, 2_100),
        (vec![(0, Some(300)), (400, forever)], 0, 2_100),
        // the last one appears in the last second, and gets one more second
        (vec![(0, Some(1_500)), (0, forever)], 0, 2_600),
        (vec![(0, Some(1_990)), (0, forever)], 0, 3_090),
        // it does not live through that second, and who comes after it is too late
        (vec![(0, Some(1_500)), (0, Some(900)), (0, forever)], 836, 2_525),
        // none is there at the end
        (vec![(0, Some(500)), (0, Some(500))], 836, 2_100),
        (vec![(0, Some(500)), (1_700, forever)], 836, 2_100),
        // the first sight of any begins the window
        (vec![(500, Some(200)), (100, forever)], 0, 2_675),
    ];
    for (lives, code, millis) in rows {
        let does = Does::Launcher { after: 100, lives };
        for spec in [&with_file, &nameless] {
            check_start(does.clone(), spec, code, millis, "");
        }
    }
}

/// A run-once proc is hosted while it runs, whether by start or by host, and not afterwards.
#[test]
fn a_run_once_proc_is_hosted_for_as_long_as_it_runs() {
    let mut once = spec();
    once.identity.pid_path.clear();
    once.policy.kind = Kind::Once;
    let told = |outcome: &Outcome| match outcome.content {
        Content::Control { hosted, .. } => hosted,
        Content::Status(_) => panic!("{outcome:?}"),
    };
    for kind in [OpKind::Start, OpKind::Host] {
        for (does, code) in [
            (Does::Exit { after: 10, code: 0 }, 0),
            (Does::Exit { after: 10, code: 1 }, 65_535),
            (Does::NotStarted, 122),
        ] {
            let mut world = World::new().script("start", does.clone());
            let outcome = world.order(kind, &once);
            let row = format!("{} {does:?}", kind.verb());
            assert_eq!(
                (outcome.code.number(), told(&outcome), world.hosted()),
                (code, false, false),
                "{row}"
            );
        }
    }
    let mut world = World::new().script("start", Does::Foreground { lives: Some(30_000), code: 0 });
    once.policy.op_timeout = Duration::from_secs(60);
    world.send(OpKind::Host, Some(once));
    world.run_for(10_000);
    assert!(world.machine.is_hosted());
    world.run_for(100_000);
    assert!(!world.machine.is_hosted() && !world.hosted() && state(&world) == Then::Down);
}

/// The window begins when the old process is gone and the new one was seen, or when the command has ended.
#[test]
fn how_long_a_restart_is_checked() {
    let mut spec = spec();
    spec.control.restart_cmd = "restart".to_owned();
    for (after, file, millis) in [(100, 0, 2_100), (15_000, 0, 17_000), (100, 1_500, 3_675)] {
        let mut world = World::new();
        world.order(OpKind::Start, &spec);
        world.set("restart", Does::Replace { after, file: Some(file), code: 0 });
        let began = world.now;
        assert_eq!(world.order(OpKind::Restart, &spec).code.number(), 0);
        assert_eq!(world.now.since(began), Duration::from_millis(millis));
    }
}

/// The time of a slow start command does not count as running time: a process that always dies early is given
/// up.
#[test]
fn a_slow_command_makes_no_stable_run() {
    let lives = Some(3_000);
    let mut world = World::new().script("start", Does::Daemon { after: 15_000, file: Some(0), lives });
    assert_eq!(world.order(OpKind::Start, &spec()).code.number(), 0);
    world.run_for(600_000);
    assert_eq!((state(&world), world.starts.len()), (Then::GaveUp, 3));
}

/// There is no look before `check_begin`: a process that dies by then may come back.
#[test]
fn when_a_launch_is_first_looked_at() {
    let daemon = |file, lives| Does::Daemon { after: 100, file, lives };
    let rows = [
        // (begin, check, command, comes again after, code, takes)
        (0, 2, daemon(Some(0), None), None, 0, 2_100),
        (1, 2, daemon(Some(0), None), None, 0, 2_100),
        // the check lasts until the later of the two, and the process must have been alive for a second
        (4, 2, daemon(Some(0), None), None, 0, 5_100),
        (4, 2, daemon(Some(3_000), None), None, 0, 5_100),
        (4, 2, daemon(Some(0), Some(500)), Some(2_000), 0, 5_100),
        (1, 3, daemon(Some(0), Some(500)), Some(800), 0, 3_100),
        // it did not come again
        (1, 3, daemon(Some(0), Some(500)), None, 836, 3_100),
        (4, 2, daemon(Some(0), Some(500)), None, 836, 4_100),
        (4, 2, daemon(None, None), None, 836, 4_125),
        (1, 4, daemon(Some(0), Some(2_000)), None, 836, 4_100),
        (1, 4, daemon(Some(0), Some(2_000)), Some(3_000), 0, 4_100),
        // a command that fails has failed
        (4, 2, Does::Exit { after: 10, code: 1 }, None, 65_535, 10),
    ];
    for (begin, check, does, again, code, millis) in rows {
        let row = format!("{does:?} with {begin} s and {check} s");
        let mut spec = spec();
        spec.policy.check_begin = Duration::from_secs(begin);
        spec.policy.start_check = Duration::from_secs(check);
        let mut world = World::new().script("start", does);
        let began = world.now;
        let op = world.send(OpKind::Start, Some(spec));
        if let Some(after) = again {
            world.run_for(after);
            world.come_again();
        }
        let outcome = world.outcome(op);
        assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
        assert_eq!(world.now.since(began), Duration::from_millis(millis), "{row}: {}", outcome.message);
    }
    // The command itself is the process.
    let mut foreground = spec();
    foreground.identity.pid_path.clear();
    foreground.policy.check_begin = Duration::from_secs(4);
    check_start(Does::Foreground { lives: None, code: 0 }, &foreground, 0, 5_000, "success");
    // A stop does not wait for it.
    let mut world = World::new();
    let mut patient = spec();
    patient.policy.check_begin = Duration::from_secs(10);
    let start = world.send(OpKind::Start, Some(patient.clone()));
    world.run_for(1_000);
    let stop = world.order(OpKind::Stop, &patient);
    assert_eq!((stop.code.number(), world.code(start), world.mains()), (0, Some(826), 0));
}

/// The events about commands that failed after their launch had succeeded.
fn late_failures(world: &World) -> Vec<(&str, Option<OpKind>, Exit)> {
    let failure = |event: &'_ Event| matches!(event, Event::CommandFailed { .. });
    let failures = world.events.iter().filter(|event| failure(event));
    failures
        .map(|event| match event {
            Event::CommandFailed { command, op, exit, output } => {
                assert_eq!(output, "its last words");
                (command.as_str(), *op, *exit)
            }
            _ => unreachable!("filtered above"),
        })
        .collect()
}

/// The op has been answered by then, so the failure is an event. If the process has ended too, its exit is
/// the event.
#[test]
fn a_command_that_fails_after_its_launch_has_succeeded_is_an_event() {
    let with_file = spec();
    let mut nameless = spec();
    nameless.identity.pid_path.clear();
    let failed = |code| vec![("start_cmd", Some(OpKind::Start), Exit::Code(code))];
    let rows = [
        (Does::Stays { after: 5_000, lives: None, code: 4 }, failed(4)),
        (Does::Stays { after: 5_000, lives: None, code: 0 }, vec![]),
        // the process has outlived the command by more than a second
        (Does::Stays { after: 5_000, lives: Some(6_500), code: 4 }, failed(4)),
        // the exit of the process, before or after that of the command, says it
        (Does::Stays { after: 5_000, lives: Some(5_500), code: 4 }, vec![]),
        (Does::Stays { after: 5_000, lives: Some(5_000), code: 4 }, vec![]),
        (Does::Stays { after: 5_500, lives: Some(5_000), code: 4 }, vec![]),
        // the command is the process
        (Does::Foreground { lives: Some(5_000), code: 4 }, vec![]),
    ];
    for (does, expected) in rows {
        for spec in [&with_file, &nameless] {
            if spec.identity.pid_path.is_empty() || !matches!(does, Does::Foreground { .. }) {
                let mut world = check_start(does.clone(), spec, 0, 2_025, "success");
                world.set("start", daemon());
                world.run_for(30_000);
                assert_eq!(late_failures(&world), expected, "{does:?}, {:?}", spec.identity.pid_path);
            }
        }
    }
}

#[test]
fn the_event_of_a_late_failure_names_command_and_operation() {
    let stays = Does::Stays { after: 5_000, lives: None, code: 4 };
    // A restart by order, with a command of its own and without one.
    for (restart_cmd, field) in [("restart", "restart_cmd"), ("", "start_cmd")] {
        let mut world = given(Given::Down);
        let mut spec = spec();
        restart_cmd.clone_into(&mut spec.control.restart_cmd);
        world.set("start", stays.clone());
        world.set("restart", stays.clone());
        assert_eq!(world.order(OpKind::Restart, &spec).code.number(), 0, "{field}");
        world.run_for(30_000);
        assert_eq!(late_failures(&world), [(field, Some(OpKind::Restart), Exit::Code(4))]);
    }
    // A restart by the agent.
    let mut world = given(Given::UpHosted);
    world.set("start", stays);
    world.run_for(60_000);
    world.die(Exit::Signal(11));
    world.run_for(30_000);
    assert_eq!(late_failures(&world), [("start_cmd", None, Exit::Code(4))]);
    let event = world.events.iter().find(|event| event.kind() == "command_failed").expect("the event");
    assert_eq!(
        event.to_string(),
        "start_cmd exited with status 4 after the agent had started the process again; output: [its last words]"
    );
}

/// The agent itself ends the command, or the failure happens before the order.
#[test]
fn a_command_that_is_ended_with_its_process_has_not_failed() {
    for kind in [OpKind::Stop, OpKind::Kill, OpKind::Restart] {
        for (stays, order_after, failures) in [(600_000, 5_000, 0), (2_500, 900, 1)] {
            let mut world = World::new().script("start", Does::Stays { after: stays, lives: None, code: 4 });
            assert_eq!(world.order(OpKind::Start, &spec()).code.number(), 0);
            world.run_for(order_after);
            world.set("start", daemon());
            assert_eq!(world.order(kind, &spec()).code.number(), 0, "{}", kind.verb());
            world.run_for(30_000);
            assert_eq!(late_failures(&world).len(), failures, "{} after {order_after}", kind.verb());
        }
    }
    // A reload leaves the command alone.
    let mut world = World::new().script("start", Does::Stays { after: 5_000, lives: None, code: 4 });
    world.order(OpKind::Start, &spec());
    assert_eq!(world.order(OpKind::Reload, &spec()).code.number(), 0);
    world.run_for(30_000);
    assert_eq!(late_failures(&world).len(), 1);
}
