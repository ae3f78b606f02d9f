//! Orders that wait, overtake one another, or are cancelled.

use crate::common::{Does, PID_PATH, Term, World, spec};
use crate::given::{Given, Then, given, state};
use procfleet_core::id::OpId;
use procfleet_core::supervise::Signal;
use procfleet_core::{BootTime, OpKind};
use std::time::Duration;

#[test]
fn a_stop_or_kill_supersedes_a_launch() {
    for kind in [OpKind::Stop, OpKind::Kill] {
        for first in [OpKind::Start, OpKind::Host, OpKind::Restart] {
            // before the look is answered, while the command runs, and during the check
            for (delay, wait, code) in [(20, 10, 829), (0, 50, 0), (0, 1_000, 0)] {
                let row = format!("{} overtakes {} after {wait} ms", kind.verb(), first.verb());
                let mut world = World::new();
                world.look_delay = delay;
                let launch = world.send(first, Some(spec()));
                world.run_for(wait);
                let waits = world.send(OpKind::Reload, Some(spec()));
                let end = world.order(kind, &spec());
                assert_eq!(end.code.number(), code, "{row}: {}", end.message);
                assert_eq!(world.code(launch), Some(826), "{row}");
                assert_eq!(world.code(waits), Some(826), "{row}");
                world.run_for(60_000);
                assert_eq!((world.hosted(), state(&world), world.mains()), (false, Then::Down, 0), "{row}");
                assert_eq!(world.starts.len(), usize::from(delay == 0), "{row}");
            }
        }
    }
}

/// The command and its descendants are ended; a stop_cmd would have no process to stop.
#[test]
fn a_start_that_was_overtaken_does_not_go_on() {
    let starts = [
        Does::Daemon { after: 10_000, file: Some(0), lives: None },
        Does::Daemon { after: 100, file: Some(10_000), lives: None },
        Does::Replace { after: 10_000, file: Some(0), code: 0 },
        Does::Hang,
    ];
    for (kind, start) in
        [OpKind::Stop, OpKind::Kill].into_iter().flat_map(|kind| starts.clone().map(|start| (kind, start)))
    {
        for first in [OpKind::Start, OpKind::Host, OpKind::Restart] {
            let row = format!("{} overtakes {} by {start:?}", kind.verb(), first.verb());
            let mut spec = spec();
            spec.control.stop_cmd = "stop".to_owned();
            spec.control.kill_cmd = "kill".to_owned();
            let mut world = World::new().script("start", start.clone());
            world.set("stop", Does::Hang);
            world.set("kill", Does::Hang);
            let launch = world.send(first, Some(spec.clone()));
            world.run_for(1_000);
            let began = world.now;
            let end = world.order(kind, &spec);
            assert_eq!((end.code.number(), world.code(launch)), (0, Some(826)), "{row}: {}", end.message);
            assert!(world.now.since(began) < Duration::from_secs(2), "{row}: no command was run");
            world.run_for(60_000);
            assert_eq!((world.hosted(), state(&world), world.mains()), (false, Then::Down, 0), "{row}");
        }
    }
    // A command that stays at work beside its process is ended with it, however the process was found.
    for (kind, pid_path) in [OpKind::Stop, OpKind::Kill]
        .into_iter()
        .flat_map(|kind| [PID_PATH, ""].map(|pid_path| (kind, pid_path)))
    {
        let row = format!("{} of a process beside its command, {pid_path:?}", kind.verb());
        let mut spec = spec();
        pid_path.clone_into(&mut spec.identity.pid_path);
        spec.control.stop_cmd = "stop".to_owned();
        spec.control.kill_cmd = "kill".to_owned();
        let mut world = World::new().script("start", Does::Stays { after: 600_000, lives: None, code: 0 });
        world.set("stop", Does::Hang);
        world.set("kill", Does::Hang);
        let launch = world.send(OpKind::Start, Some(spec.clone()));
        world.run_for(1_000);
        let began = world.now;
        let end = world.order(kind, &spec);
        assert_eq!((end.code.number(), world.code(launch)), (0, Some(826)), "{row}: {}", end.message);
        assert!(world.now.since(began) < Duration::from_secs(2), "{row}: no command was run");
        assert_eq!((world.hosted(), state(&world), world.mains()), (false, Then::Down, 0), "{row}");
    }
    // A process that ignores SIGTERM is killed.
    let mut world = World::new().script("start", Does::Hang);
    world.term = Term::Ignores;
    let launch = world.send(OpKind::Start, Some(spec()));
    world.run_for(1_000);
    let stop = world.order(OpKind::Stop, &spec());
    assert_eq!((stop.code.number(), world.code(launch), world.mains()), (0, Some(826), 0));
}

/// Processes that are not ended with the overtaken command are stopped like any other. The stop command ends
/// nothing here, so its exit status is in the outcome.
#[test]
fn stop_cmd_runs_if_a_process_is_there_after_an_overtaken_launch() {
    for kind in [OpKind::Stop, OpKind::Kill] {
        let mut spec = spec();
        spec.policy.start_check = Duration::from_secs(600);
        spec.control.stop_cmd = "stop".to_owned();
        spec.control.kill_cmd = "kill".to_owned();
        spec.control.restart_cmd = "restart".to_owned();
        let overtaken = |mut world: World, launch: OpId, row: &str| {
            let row = format!("{} of {row}", kind.verb());
            for command in ["stop", "kill"] {
                world.set(command, Does::Exit { after: 50, code: 4 });
            }
            let end = world.order(kind, &spec);
            assert_eq!((end.code.number(), world.code(launch)), (836, Some(826)), "{row}: {}", end.message);
            let says = format!("{}_cmd exited with status 4", kind.verb());
            assert!(end.message.contains(&says), "{row}: {}", end.message);
            assert_eq!(world.mains(), 1, "{row}");
        };
        let mut world = World::new();
        let launch = world.send(OpKind::Start, Some(spec.clone()));
        world.run_for(1_000);
        overtaken(world, launch, "a process whose command has ended");

        let mut world = given(Given::UpHosted);
        world.set("restart", Does::Replace { after: 600_000, file: Some(0), code: 0 });
        let launch = world.send(OpKind::Restart, Some(spec.clone()));
        world.run_for(1_000);
        overtaken(world, launch, "the old process beside restart_cmd");

        let mut world = World::new().script("start", Does::Hang);
        let launch = world.send(OpKind::Start, Some(spec.clone()));
        world.run_for(1_000);
        world.come_again();
        overtaken(world, launch, "a process that the command did not start");
    }
}

/// A process that was recognised while its command runs is stopped like any other, and the command is ended
/// in any case.
#[test]
fn a_recognised_process_of_an_overtaken_start_does_not_stay() {
    let mut spec = spec();
    spec.identity.pid_path.clear();
    spec.control.stop_cmd = "stop".to_owned();
    let mut world = World::new().script("start", Does::Foreground { lives: None, code: 0 });
    world.set("stop", Does::Exit { after: 50, code: 0 });
    let launch = world.send(OpKind::Start, Some(spec.clone()));
    world.run_for(1_000);
    let stop = world.order(OpKind::Stop, &spec);
    assert_eq!((stop.code.number(), world.code(launch)), (0, Some(826)), "{}", stop.message);
    world.run_for(60_000);
    assert_eq!((world.hosted(), state(&world), world.mains()), (false, Then::Down, 0));
}

#[test]
fn a_cancelled_op_is_answered_once_and_its_processes_continue() {
    for (first, wait) in
        [(OpKind::Start, 50), (OpKind::Start, 1_000), (OpKind::Host, 50), (OpKind::Restart, 50)]
    {
        let row = format!("{} cancelled after {wait} ms", first.verb());
        let mut world = World::new();
        let launch = world.send(first, Some(spec()));
        world.run_for(wait);
        let waits = world.send(OpKind::Reload, Some(spec()));
        assert!(world.cancel(waits), "{row}");
        assert_eq!((world.code(waits), world.code(launch)), (Some(826), None), "{row}");
        assert!(world.cancel(launch), "{row}");
        assert_eq!(world.code(launch), Some(826), "{row}");
        assert!(!world.cancel(launch) && !world.cancel(waits), "{row}: answered once");
        world.run_for(60_000);
        assert_eq!((state(&world), world.mains(), world.starts.len()), (Then::Up, 1, 1), "{row}");
        assert_eq!(world.hosted(), first != OpKind::Restart, "{row}");
        assert_eq!(
            (world.code(launch), world.code(waits)),
            (Some(826), Some(826)),
            "{row}: the first stands"
        );
        assert!(world.open_ops().is_empty(), "{row}");
        // The machine is as good as before.
        assert_eq!(world.order(OpKind::Stop, &spec()).code.number(), 0, "{row}");
    }
}

#[test]
fn a_stop_overtakes_a_restart_that_still_ends_the_process() {
    let mut world = given(Given::UpHosted);
    world.term = Term::Dies { after: 1_000 };
    let restart = world.send(OpKind::Restart, Some(spec()));
    world.run_for(500);
    let stop = world.order(OpKind::Stop, &spec());
    assert_eq!((stop.code.number(), world.code(restart)), (0, Some(826)));
    world.run_for(60_000);
    assert_eq!((world.hosted(), world.starts.len(), state(&world)), (false, 1, Then::Down));
    assert_eq!(world.signals, [Signal::Term]);
}

#[test]
fn a_kill_does_not_wait_for_a_stop_or_a_reload() {
    for (command, first) in [("", OpKind::Stop), ("stop", OpKind::Stop), ("", OpKind::Reload)] {
        let row = format!("{} by {command:?}", first.verb());
        let mut world = given(Given::UpHosted);
        world.term = Term::Ignores;
        world.set("stop", Does::Hang);
        world.set("reload", Does::Hang);
        let mut spec = spec();
        command.clone_into(&mut spec.control.stop_cmd);
        let slow = world.send(first, Some(spec.clone()));
        world.run_for(500);
        let began = world.now;
        let kill = world.order(OpKind::Kill, &spec);
        assert_eq!((kill.code.number(), world.code(slow)), (0, Some(826)), "{row}");
        assert_eq!(world.now, began, "{row}");
        world.run_for(60_000);
        assert_eq!((world.hosted(), state(&world)), (false, Then::Down), "{row}");
    }
}

#[test]
fn a_kill_that_overtook_a_stop_and_failed_leaves_hosting_as_it_was_before_both() {
    let mut world = given(Given::UpHosted);
    world.term = Term::Ignores;
    let mut spec = spec();
    spec.control.kill_cmd = "kill".to_owned();
    world.send(OpKind::Stop, Some(spec.clone()));
    world.run_for(500);
    let kill = world.order(OpKind::Kill, &spec);
    assert_eq!((kill.code.number(), world.hosted(), state(&world)), (836, true, Then::Up));
}

#[test]
fn too_many_orders_and_orders_that_waited_too_long() {
    let mut world = given(Given::Ending);
    let ops: Vec<_> = (0..17).map(|_| world.send(OpKind::Unhost, None)).collect();
    assert_eq!(world.code(ops[16]), Some(802));
    assert_eq!(world.code(ops[15]), None);
    world.run_for(10_000);
    assert!(ops[..16].iter().all(|op| world.code(*op) == Some(0)));

    let mut world = given(Given::Ending);
    let soon = BootTime(world.now.0 + 100);
    let op = world.send_by(OpKind::Start, Some(spec()), soon);
    let late = world.send_by(OpKind::Start, Some(spec()), world.now);
    assert_eq!(world.code(late), Some(120));
    assert!(
        world.outcome(late).message.contains("the host was so busy"),
        "no other operation had kept it waiting"
    );
    world.run_for(99);
    assert_eq!(world.code(op), None);
    world.run_for(1);
    assert_eq!(world.code(op), Some(120));
    assert!(world.outcome(op).message.contains("other operations on the process"));
    world.run_for(10_000);
    assert_eq!(state(&world), Then::Down);
}
