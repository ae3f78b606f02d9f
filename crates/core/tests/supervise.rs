//! The supervision machine against a simulated host: what each operation does in each state.

mod common;

use common::{Does, Term, World, daemon, spec};
use procfleet_core::op::Outcome;
use procfleet_core::process::{Exit, Found, Process};
use procfleet_core::spec::{Detached, Kind, Spec};
use procfleet_core::supervise::{Event, Input, Rest, Signal};
use procfleet_core::{Code, Content, Moment, OpKind};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Given {
    Unknown,
    Down,
    UpUnhosted,
    UpHosted,
    GaveUp,
    Launching,
    Ending,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Up,
    Down,
    GaveUp,
}

fn given(given: Given) -> World {
    let mut world = World::new();
    match given {
        Given::Unknown => {}
        Given::Down => {
            world.order(OpKind::Start, &spec());
            world.order(OpKind::Stop, &spec());
        }
        Given::UpUnhosted => {
            world.order(OpKind::Start, &spec());
            world.order(OpKind::Unhost, &spec());
        }
        Given::UpHosted => {
            world.order(OpKind::Start, &spec());
        }
        Given::GaveUp => {
            world.set("start", Does::Exit { after: 10, code: 1 });
            world.order(OpKind::Host, &spec());
            world.run_for(60_000);
            assert!(!world.note().is_empty(), "it has given up");
            world.set("start", daemon());
        }
        Given::Launching => {
            world.send(OpKind::Start, Some(spec()));
            world.run_for(500);
        }
        Given::Ending => {
            world.term = Term::Dies { after: 1_000 };
            world.order(OpKind::Start, &spec());
            world.send(OpKind::Stop, Some(spec()));
            world.run_for(500);
        }
    }
    world
}

fn state(world: &World) -> Then {
    assert!(!world.machine.is_busy());
    assert_eq!(world.machine.process().map(|process| process.pid), world.main_pid());
    match (world.main_pid(), world.note().as_str()) {
        (Some(_), _) => Then::Up,
        (None, "") => Then::Down,
        (None, _) => Then::GaveUp,
    }
}

#[test]
fn every_operation_in_every_state() {
    use Given::{Down, Ending, GaveUp, Launching, Unknown, UpHosted, UpUnhosted};
    use OpKind::{
        Group, Host, Kill, Query, Register, Reload, Restart, Start, Stop, Unhost, Unregister, Update,
    };
    const H: bool = true;
    const U: bool = false;
    let rows = [
        // legal: something is done
        (Unknown, Start, 0, H, Then::Up),
        (Unknown, Host, 0, H, Then::Up),
        (Unknown, Restart, 0, U, Then::Up),
        (Unknown, Query, 0, U, Then::Down),
        (Down, Start, 0, H, Then::Up),
        (Down, Host, 0, H, Then::Up),
        (Down, Restart, 0, U, Then::Up),
        (Down, Query, 0, U, Then::Down),
        (UpUnhosted, Stop, 0, U, Then::Down),
        (UpUnhosted, Query, 0, U, Then::Up),
        (UpUnhosted, Host, 0, H, Then::Up),
        (UpUnhosted, Restart, 0, U, Then::Up),
        (UpUnhosted, Reload, 0, U, Then::Up),
        (UpUnhosted, Kill, 0, U, Then::Down),
        (UpHosted, Stop, 0, U, Then::Down),
        (UpHosted, Query, 0, H, Then::Up),
        (UpHosted, Unhost, 0, U, Then::Up),
        (UpHosted, Restart, 0, H, Then::Up),
        (UpHosted, Reload, 0, H, Then::Up),
        (UpHosted, Kill, 0, U, Then::Down),
        (GaveUp, Start, 0, H, Then::Up),
        (GaveUp, Host, 0, H, Then::Up),
        (GaveUp, Restart, 0, H, Then::Up),
        (GaveUp, Query, 0, H, Then::GaveUp),
        (GaveUp, Unhost, 0, U, Then::Down),
        // these wait for the launch, or overtake it
        (Launching, Stop, 0, U, Then::Down),
        (Launching, Query, 0, H, Then::Up),
        (Launching, Host, 0, H, Then::Up),
        (Launching, Unhost, 0, U, Then::Up),
        (Launching, Restart, 0, H, Then::Up),
        (Launching, Reload, 0, H, Then::Up),
        (Launching, Kill, 0, U, Then::Down),
        // these wait for the stop, or overtake it
        (Ending, Start, 0, H, Then::Up),
        (Ending, Query, 0, U, Then::Down),
        (Ending, Host, 0, H, Then::Up),
        (Ending, Unhost, 0, U, Then::Down),
        (Ending, Restart, 0, U, Then::Up),
        (Ending, Kill, 0, U, Then::Down),
        // already so
        (Unknown, Stop, 829, U, Then::Down),
        (Unknown, Unhost, 0, U, Then::Down),
        (Unknown, Reload, 829, U, Then::Down),
        (Unknown, Kill, 829, U, Then::Down),
        (Down, Stop, 829, U, Then::Down),
        (Down, Unhost, 0, U, Then::Down),
        (Down, Reload, 829, U, Then::Down),
        (Down, Kill, 829, U, Then::Down),
        (UpUnhosted, Start, 828, U, Then::Up),
        (UpUnhosted, Unhost, 0, U, Then::Up),
        (UpHosted, Start, 828, H, Then::Up),
        (UpHosted, Host, 0, H, Then::Up),
        (GaveUp, Stop, 829, U, Then::Down),
        (GaveUp, Reload, 829, H, Then::GaveUp),
        (GaveUp, Kill, 829, U, Then::Down),
        (Launching, Start, 828, H, Then::Up),
        (Ending, Stop, 829, U, Then::Down),
        (Ending, Reload, 829, U, Then::Down),
        // what is known of it, and nothing else
        (Unknown, Register, 0, U, Then::Down),
        (Down, Register, 850, U, Then::Down),
        (UpUnhosted, Register, 850, U, Then::Up),
        (UpHosted, Register, 850, H, Then::Up),
        (GaveUp, Register, 850, H, Then::GaveUp),
        (Launching, Register, 850, H, Then::Up),
        (Ending, Register, 850, U, Then::Down),
        (Unknown, Update, 0, U, Then::Down),
        (Down, Update, 0, U, Then::Down),
        (UpUnhosted, Update, 0, U, Then::Up),
        (UpHosted, Update, 0, H, Then::Up),
        (GaveUp, Update, 0, H, Then::GaveUp),
        (Launching, Update, 0, H, Then::Up),
        (Ending, Update, 0, U, Then::Down),
        // about a namespace: whoever looks after one proc has no part in it
        (Unknown, Group, 832, U, Then::Down),
        (Down, Group, 832, U, Then::Down),
        (UpUnhosted, Group, 832, U, Then::Up),
        (UpHosted, Group, 832, H, Then::Up),
        (GaveUp, Group, 832, H, Then::GaveUp),
        (Launching, Group, 832, H, Then::Up),
        (Ending, Group, 832, U, Then::Down),
        (Unknown, Unregister, 829, U, Then::Down),
        (Down, Unregister, 0, U, Then::Down),
        (GaveUp, Unregister, 0, U, Then::Down),
        (Ending, Unregister, 0, U, Then::Down),
    ];
    // Unregistering what runs leaves a process that nobody knows: it has a test of its own.
    assert_eq!(rows.len(), 7 * OpKind::ALL.len() - 3);
    for (before, kind, code, hosted, then) in rows {
        let row = format!("{} when {before:?}", kind.verb());
        let mut world = given(before);
        let outcome = world.order(kind, &spec());
        world.run_for(30_000);
        assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
        assert_eq!(world.hosted(), hosted, "{row}");
        assert_eq!(state(&world), then, "{row}");
        assert!(world.max_mains <= 1, "{row}");
        assert!(world.open_ops().is_empty(), "{row}");
        if let Content::Control { hosted: told, .. } = outcome.content {
            assert_eq!(told, hosted, "{row}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut bare = spec();
    bare.control.start_cmd.clear();
    bare.control.reload_cmd.clear();
    let rows = [
        // no spec anywhere
        (OpKind::Start, None, 801),
        (OpKind::Stop, None, 801),
        (OpKind::Query, None, 801),
        (OpKind::Host, None, 801),
        (OpKind::Restart, None, 801),
        (OpKind::Reload, None, 801),
        (OpKind::Kill, None, 801),
        // no command
        (OpKind::Start, Some(bare.clone()), 827),
        (OpKind::Host, Some(bare.clone()), 827),
        (OpKind::Restart, Some(bare.clone()), 827),
        (OpKind::Reload, Some(bare), 827),
        // nothing to find it by
        (OpKind::Query, Some(Spec::default()), 801),
    ];
    for (kind, spec, code) in rows {
        let mut world = World::new();
        let op = world.send(kind, spec);
        let outcome = world.outcome(op);
        assert_eq!(outcome.code.number(), code, "{}: {}", kind.verb(), outcome.message);
        assert!(world.machine.is_blank(), "{}", kind.verb());
        assert!(world.starts.is_empty() && !world.hosted(), "{}", kind.verb());
    }
}

/// A start of an unknown proc: code, how long it took, what the message says.
fn check_start(does: Does, spec: &Spec, code: u32, millis: u64, says: &str) -> World {
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
        (daemon(100, Some(1_500), None), &spec, 0, 2_100, "success"),
        (daemon(100, Some(0), None), &nameless, 0, 2_100, "success"),
        (forever.clone(), &nameless, 0, 2_000, "success"),
        // the window is longer than a command may take
        (forever.clone(), &patient, 0, 30_000, "success"),
        (daemon(100, Some(0), None), &unchecked, 0, 100, "success"),
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
        (forever, &spec, 822, 20_000, "its last words"),
        (Does::Unkillable, &spec, 822, 22_000, "start_cmd did not end within 20 s"),
        // not alive: at once when nothing can come, else at the end of the window
        (Does::Exit { after: 10, code: 0 }, &spec, 836, 60, "pid file /run/it.pid does not exist"),
        (Does::Foreground { lives: Some(70), code: 0 }, &nameless, 836, 120, "no process it runs from"),
        (daemon(100, Some(0), Some(500)), &spec, 836, 600, "exited with status 3"),
        (daemon(100, None, None), &spec, 836, 2_100, "does not exist; output: [its last words]"),
        (daemon(100, Some(5_000), None), &spec, 836, 2_100, "pid file /run/it.pid does not exist"),
    ];
    for (does, spec, code, millis, says) in rows {
        let world = check_start(does, spec, code, millis, says);
        assert_eq!(world.starts.len(), 1);
    }
    // run once: no check, and it may take its time; nothing polls meanwhile (the world would notice)
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

/// Before `check_begin` nobody looks: what dies by then may come again.
#[test]
fn when_a_launch_is_first_looked_at() {
    let daemon = |file, lives| Does::Daemon { after: 100, file, lives };
    let rows = [
        // (begin, check, command, comes again after, code, takes)
        (0, 2, daemon(Some(0), None), None, 0, 2_100),
        (1, 2, daemon(Some(0), None), None, 0, 2_100),
        // the check lasts until the later of the two
        (4, 2, daemon(Some(0), None), None, 0, 4_100),
        (4, 2, daemon(Some(3_000), None), None, 0, 4_100),
        (4, 2, daemon(Some(0), Some(500)), Some(2_000), 0, 4_100),
        (1, 3, daemon(Some(0), Some(500)), Some(800), 0, 3_100),
        // it did not come again: certain at the first looks, or at the end
        (1, 3, daemon(Some(0), Some(500)), None, 836, 1_150),
        (4, 2, daemon(Some(0), Some(500)), None, 836, 4_100),
        (4, 2, daemon(None, None), None, 836, 4_100),
        // after the beginning a death counts at once
        (1, 4, daemon(Some(0), Some(2_000)), None, 836, 2_100),
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
    check_start(Does::Foreground { lives: None, code: 0 }, &foreground, 0, 4_000, "success");
    // A stop does not wait for it.
    let mut world = World::new();
    let mut patient = spec();
    patient.policy.check_begin = Duration::from_secs(10);
    let start = world.send(OpKind::Start, Some(patient.clone()));
    world.run_for(1_000);
    let stop = world.order(OpKind::Stop, &patient);
    assert_eq!((stop.code.number(), world.code(start), world.mains()), (0, Some(826), 0));
}

struct End {
    kind: OpKind,
    command: Option<Does>,
    term: Term,
    code: u32,
    millis: u64,
    says: &'static str,
}

#[test]
fn how_a_stop_or_kill_ends_and_when() {
    let dies = Term::Dies { after: 200 };
    let end = |kind, command, term, code, millis, says| End { kind, command, term, code, millis, says };
    let (stop, kill) = (OpKind::Stop, OpKind::Kill);
    let script = |code| Some(Does::EndMain { after: 50, code });
    let rows = [
        end(stop, None, dies, 0, 200, "success"),
        end(stop, script(0), dies, 0, 250, "success"),
        end(stop, script(1), dies, 0, 250, "success"),
        end(
            stop,
            None,
            Term::Ignores,
            836,
            3_000,
            "stop process (it) failed, for post-check status still alive",
        ),
        end(
            stop,
            script(4),
            Term::Ignores,
            836,
            3_050,
            "stop_cmd exited with status 4; output: [its last words]",
        ),
        end(stop, Some(Does::Hang), dies, 836, 23_000, "stop_cmd ran out of time"),
        end(stop, Some(Does::Unkillable), dies, 836, 25_000, "stop_cmd ran out of time"),
        end(stop, Some(Does::NotStarted), dies, 122, 0, "stop_cmd could not be run: no such user"),
        end(kill, None, Term::Ignores, 0, 0, "success"),
        end(kill, script(0), dies, 0, 250, "success"),
        end(kill, script(0), Term::Ignores, 836, 3_050, "kill process (it) failed"),
    ];
    for End { kind, command, term, code, millis, says } in rows {
        let row = format!("{} by {command:?} of one that {term:?}", kind.verb());
        let mut world = given(Given::UpHosted);
        world.term = term;
        let mut spec = spec();
        if let Some(does) = command {
            let field = match kind {
                OpKind::Kill => &mut spec.control.kill_cmd,
                _ => &mut spec.control.stop_cmd,
            };
            kind.verb().clone_into(field);
            world.set(kind.verb(), does);
        }
        let began = world.now;
        let outcome = world.order(kind, &spec);
        assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
        assert!(outcome.message.contains(says), "{row}: {}", outcome.message);
        assert_eq!(world.now.since(began), Duration::from_millis(millis), "{row}");
        // A stop that failed leaves hosting as it was.
        assert_eq!(world.hosted(), code != 0, "{row}");
        assert_eq!(world.machine.process().is_some(), code != 0, "{row}");
        world.run_for(60_000);
        assert_eq!(world.starts.len(), 1, "{row}");
    }
}

#[test]
fn a_stop_command_that_cannot_run_does_not_spoil_a_death_that_came_first() {
    let mut world = given(Given::UpHosted);
    let mut spec = spec();
    spec.control.stop_cmd = "stop".to_owned();
    world.set("stop", Does::NotStarted);
    let op = world.send(OpKind::Stop, Some(spec));
    // Both are on their way; the exit is told first.
    let process = world.machine.process().expect("it is up");
    world.feed(procfleet_core::supervise::Input::Exited { process, exit: Exit::Code(0) });
    world.die(Exit::Code(0));
    assert_eq!(world.outcome(op).code.number(), 0);
    world.run_for(60_000);
    assert_eq!((world.hosted(), state(&world), world.starts.len()), (false, Then::Down, 1));
}

#[test]
fn a_stop_or_kill_overtakes_what_would_launch() {
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

#[test]
fn a_cancelled_op_is_answered_once_and_what_it_began_goes_on() {
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
    let soon = Moment(world.now.0 + 100);
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

// ---- restart and reload ----

fn restartable() -> Spec {
    let mut spec = spec();
    spec.control.restart_cmd = "restart".to_owned();
    spec
}

fn check_restart(spec: &Spec, restart: Does, code: u32, replaced: bool) -> Outcome {
    let mut world = given(Given::UpHosted);
    let row = format!("{restart:?}");
    world.set("restart", restart);
    let old = world.main_pid();
    let outcome = world.order(OpKind::Restart, spec);
    assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
    assert_eq!(world.main_pid() != old, replaced, "{row}");
    world.run_for(60_000);
    assert_eq!((state(&world), world.max_mains, world.hosted()), (Then::Up, 1, true), "{row}");
    outcome
}

#[test]
fn how_a_restart_ends() {
    let replace = |after, file, code| Does::Replace { after, file, code };
    check_restart(&spec(), Does::Hang, 0, true);
    check_restart(&restartable(), replace(100, Some(0), 0), 0, true);
    check_restart(&restartable(), replace(100, Some(500), 0), 0, true);
    // It takes longer than the start check to end the old one, which is not mistaken for the new one.
    check_restart(&restartable(), replace(15_000, Some(0), 0), 0, true);
    // The old one is left alone: the restart failed, but nothing is started beside it.
    check_restart(&restartable(), replace(100, None, 5), 65_535, false);
    check_restart(&restartable(), Does::Hang, 822, false);
    check_restart(&restartable(), Does::NotStarted, 122, false);
    // A program that restarts in place keeps its process.
    check_restart(&restartable(), Does::Exit { after: 100, code: 0 }, 0, false);
    let failed = check_restart(&restartable(), Does::EndMain { after: 100, code: 0 }, 836, true);
    assert!(failed.message.starts_with("restart process (it) failed"), "{}", failed.message);
}

#[test]
fn a_stop_during_a_restart_command_ends_the_old_process() {
    let mut world = World::new();
    let mut spec = restartable();
    spec.identity.pid_path.clear();
    world.order(OpKind::Start, &spec);
    world.set("restart", Does::Replace { after: 5_000, file: None, code: 0 });
    let restart = world.send(OpKind::Restart, Some(spec.clone()));
    world.run_for(3_000);
    let stop = world.order(OpKind::Stop, &spec);
    assert_eq!((stop.code.number(), world.code(restart)), (0, Some(826)));
    world.run_for(60_000);
    assert_eq!((world.mains(), state(&world), world.hosted()), (0, Then::Down, false));
}

#[test]
fn how_a_reload_ends() {
    let rows = [
        (Does::Exit { after: 50, code: 0 }, 0, 50),
        (Does::Exit { after: 50, code: 9 }, 65_535, 50),
        (Does::Replace { after: 50, file: Some(0), code: 0 }, 0, 50),
        (Does::Replace { after: 50, file: Some(990), code: 0 }, 0, 1_050),
        (Does::Replace { after: 50, file: None, code: 0 }, 836, 2_050),
        (Does::Hang, 822, 20_000),
        (Does::Unkillable, 822, 22_000),
        (Does::NotStarted, 122, 0),
        (Does::EndMain { after: 50, code: 0 }, 0, 50),
    ];
    for (does, code, millis) in rows {
        let row = format!("{does:?}");
        let mut world = given(Given::UpHosted);
        world.set("reload", does);
        let began = world.now;
        let outcome = world.order(OpKind::Reload, &spec());
        assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
        assert_eq!(world.now.since(began), Duration::from_millis(millis), "{row}");
        world.run_for(60_000);
        assert_eq!((state(&world), world.hosted(), world.max_mains), (Then::Up, true, 1), "{row}");
    }
    let mut world = given(Given::UpUnhosted);
    world.term = Term::Dies { after: 0 };
    world.set("reload", Does::EndMain { after: 50, code: 0 });
    let began = world.now;
    world.order(OpKind::Reload, &spec());
    assert_eq!(world.now.since(began), Duration::from_millis(50));
}

// ---- keeping it alive ----

fn seconds(world: &World) -> Vec<u64> {
    let first = world.starts[0].0;
    world.starts.iter().map(|(at, _)| at.since(first).as_secs()).collect()
}

#[test]
fn when_a_hosted_process_is_started_again() {
    // It dies in its check each time: started again after start_interval, then after twice that and a little more, and so on,
    // start_retries times, and no more.
    let mut world = given(Given::UpHosted);
    world.set("start", Does::Daemon { after: 100, file: Some(0), lives: Some(500) });
    world.run_for(1_000);
    world.die(Exit::Signal(9));
    world.run_for(5_000);
    let note = world.note();
    assert_eq!(note, "starts in 2 s: restart 1 of 2; pid 102 was ended by signal 9");
    world.run_for(120_000);
    assert_eq!(seconds(&world), [0, 10, 32]);
    assert_eq!(state(&world), Then::GaveUp);
    assert!(matches!(world.events.last(), Some(Event::GaveUp { .. })));
    assert!(world.note().starts_with("gave up after 2 restarts"), "{}", world.note());

    // A long life is followed at once, however often.
    let mut world = given(Given::UpHosted);
    for _ in 0..5 {
        world.run_for(20_000);
        let began = world.now;
        world.die(Exit::Signal(9));
        world.run_for(3_000);
        assert_eq!(world.starts.last().map(|(at, _)| *at), Some(began));
    }
    assert_eq!(state(&world), Then::Up);
    assert!(world.events.contains(&Event::RestartSucceeded { pid: world.main_pid().expect("it is up") }));

    // A launch that takes long to fail is no long life.
    let mut world = given(Given::UpHosted);
    world.set("start", Does::Hang);
    world.run_for(20_000);
    world.die(Exit::Signal(9));
    world.run_for(300_000);
    assert_eq!((state(&world), world.starts.len()), (Then::GaveUp, 3));
}

/// What an upkeep writes may be lost by a crash. Whoever comes back finds the same by looking.
#[test]
fn a_restart_that_was_not_written_down_is_found_out_and_not_repeated() {
    for pid_file in [true, false] {
        for (lives, runs) in [(true, true), (false, true), (true, false)] {
            let mut spec = spec();
            if !pid_file {
                spec.identity.pid_path.clear();
            }
            let foreground = Does::Foreground { lives: None, code: 0 };
            let mut world = World::new().script("start", if pid_file { daemon() } else { foreground });
            world.order(OpKind::Start, &spec);
            world.run_for(20_000);
            let before = world.main_pid().expect("it is up");
            world.lagging = true;
            world.die(Exit::Signal(9));
            world.run_for(1);
            assert_eq!(world.starts.len(), 2, "it is started again at once, whatever the disk does");
            assert!(!world.events.contains(&Event::Exited { pid: before, exit: Exit::Signal(9) }), "not yet");
            world.run_for(if runs { 10_000 } else { 0 });
            if !lives {
                world.kill_behind_the_agents_back();
            }
            world.crash();
            world.lagging = false;
            let row = format!("pid file {pid_file}, lives {lives}, runs {runs}");
            world.run_for(60_000);
            assert_eq!((state(&world), world.mains()), (Then::Up, 1), "{row}");
            assert_eq!(world.starts.len(), if lives { 2 } else { 3 }, "{row}");
            let told = world
                .events
                .iter()
                .filter(|event| matches!(event, Event::Exited { pid, .. } if *pid == before));
            assert_eq!(told.count(), 1, "{row}: its death is told once");
        }
    }
    // What was written in time is not told again.
    let mut world = given(Given::UpHosted);
    world.run_for(20_000);
    world.lagging = true;
    world.die(Exit::Signal(9));
    world.run_for(10_000);
    world.order(OpKind::Stop, &spec());
    world.crash();
    assert_eq!((state(&world), world.hosted()), (Then::Down, false));
    let told = |kind: &str| world.events.iter().filter(|event| event.kind() == kind).count();
    assert_eq!((told("exited"), told("restart_succeeded")), (1, 1), "{:?}", world.events);
}

#[test]
fn a_stable_run_clears_the_count() {
    let mut world = given(Given::UpHosted);
    for _ in 0..4 {
        world.die(Exit::Code(1));
        world.run_for(30_000);
        world.die(Exit::Code(1));
        world.run_for(2_500);
        assert_eq!(state(&world), Then::Up);
    }
    assert!(!world.events.iter().any(|event| matches!(event, Event::GaveUp { .. })));
}

#[test]
fn what_is_not_hosted_is_left_alone() {
    let mut world = given(Given::UpUnhosted);
    world.die(Exit::Signal(9));
    world.run_for(60_000);
    assert_eq!((world.starts.len(), state(&world)), (1, Then::Down));
}

#[test]
fn a_process_that_replaced_itself_is_followed() {
    // By its pid file.
    let mut world = given(Given::UpHosted);
    world.set("reload", Does::Replace { after: 50, file: Some(0), code: 0 });
    let old = world.main_pid();
    world.order(OpKind::Reload, &spec());
    world.run_for(60_000);
    assert_ne!(world.main_pid(), old);
    assert_eq!((world.starts.len(), state(&world)), (1, Then::Up));
    // A start command that is slower than its check is taken for the process, until it leaves the real one behind.
    let mut nameless = spec();
    nameless.identity.pid_path.clear();
    let slow = Does::Daemon { after: 15_000, file: None, lives: None };
    let mut world = check_start(slow, &nameless, 0, 2_000, "success");
    world.run_for(60_000);
    assert_eq!((world.starts.len(), state(&world), world.hosted()), (1, Then::Up, true));
}

/// As nginx does it: the new process writes the pid file while the old one goes on, and the old one's end is no death.
#[test]
fn a_process_that_hands_over_is_followed_and_its_end_is_no_death() {
    let mut world = given(Given::UpHosted);
    let old = world.machine.process().expect("it runs");
    world.come_again();
    let new = Process { pid: old.pid + 1, found: Found::PidFile, ..old };
    let took_over = Event::TookOver { pid: new.pid, from: Some(old.pid) };
    world.feed(Input::Succeeded { old: new, process: old });
    assert_eq!(world.machine.process(), Some(old), "an answer about another");
    world.feed(Input::Succeeded { old, process: new });
    assert_eq!(world.machine.process(), Some(new));
    assert!(world.events.contains(&took_over), "{:?}", world.events);
    world.feed(Input::Exited { process: old, exit: Exit::Code(0) });
    assert_eq!((world.machine.process(), world.starts.len()), (Some(new), 1));
    assert!(!world.events.iter().any(|event| matches!(event, Event::Exited { .. })));
}

#[test]
fn an_order_that_finds_nothing_to_do_does_not_disturb_a_retry() {
    let mut world = given(Given::UpHosted);
    world.die(Exit::Code(1));
    world.run_for(1);
    for _ in 0..5 {
        assert_eq!(world.order(OpKind::Reload, &spec()).code.number(), 829);
    }
    world.run_for(30_000);
    assert_eq!((seconds(&world), state(&world)), (vec![0, 10], Then::Up));
}

#[test]
fn what_was_not_recognised_is_swept_away_before_the_next_start() {
    let never = Does::Daemon { after: 100, file: None, lives: None };
    let mut world = check_start(never, &spec(), 836, 2_100, "does not exist");
    assert_eq!(world.mains(), 1);
    world.set("start", daemon());
    assert_eq!(world.order(OpKind::Start, &spec()).code.number(), 0);
    assert_eq!((world.mains(), world.max_mains), (1, 1));

    // A kill ends it as well, although there is no process to be found.
    let never = Does::Daemon { after: 100, file: None, lives: None };
    let mut world = check_start(never, &spec(), 836, 2_100, "does not exist");
    assert_eq!(world.order(OpKind::Kill, &spec()).code.number(), 829);
    assert_eq!(world.mains(), 0);
}

// ---- the agent's end and return ----

#[test]
fn an_interrupted_op_is_not_repeated_and_says_what_was_seen() {
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
fn a_death_while_the_agent_was_away_is_told_once() {
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
fn what_waits_is_carried_out_after_a_crash() {
    let mut world = given(Given::Ending);
    let start = world.send(OpKind::Start, Some(spec()));
    world.crash_for(5_000);
    assert_eq!(world.outcome(start).code.number(), 0);
    assert_eq!((world.hosted(), state(&world), world.max_mains), (true, Then::Up, 1));
}

#[test]
fn what_is_found_when_the_agent_comes_back() {
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

#[test]
fn a_stop_leaves_nothing_behind() {
    let kinds = [OpKind::Stop, OpKind::Kill, OpKind::Restart];
    for (kind, leaves) in
        kinds.iter().flat_map(|kind| [Term::Dies { after: 100 }, Term::Ignores].map(|leaves| (*kind, leaves)))
    {
        let mut world = World::new();
        world.leaves = Some(leaves);
        assert_eq!(world.order(OpKind::Start, &spec()).code, Code::Success);
        assert_eq!(world.left(), 1);
        world.leaves = world.leaves.filter(|_| kind != OpKind::Restart);
        let first = world.left_pids();
        let began = world.now;
        assert_eq!(world.order(kind, &spec()).code, Code::Success, "{kind:?}");
        assert!(first.iter().all(|pid| !world.left_pids().contains(pid)), "{kind:?} {leaves:?}");
        let patient = kind == OpKind::Stop && leaves == Term::Ignores;
        assert_eq!(world.now.since(began) > Duration::from_secs(2), patient || kind == OpKind::Restart);
    }
}

#[test]
fn what_is_detached_may_be_kept() {
    for kind in [OpKind::Stop, OpKind::Kill, OpKind::Restart] {
        let mut spec = spec();
        spec.policy.detached = Detached::Keep;
        let mut world = World::new();
        world.leaves = Some(Term::Ignores);
        assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success);
        let first = world.left_pids();
        assert_eq!(world.order(kind, &spec).code, Code::Success);
        assert!(first.iter().all(|pid| world.left_pids().contains(pid)), "{kind:?}");
        assert_eq!(world.sweeps, [], "{kind:?}");
    }
    let mut spec = spec();
    spec.policy.detached = Detached::Keep;
    let mut world = World::new();
    world.leaves = Some(Term::Ignores);
    assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success);
    world.run_for(20_000);
    world.die(Exit::Signal(9));
    world.run_for(20_000);
    assert_eq!((world.mains(), world.left()), (1, 2), "after a crash too");
}

/// Nobody sweeps where what is detached is kept, and so a start that was cut off could come up beside the next one.
#[test]
fn what_a_start_that_was_cut_off_brings_does_not_stay_beside_the_next() {
    for kind in [OpKind::Stop, OpKind::Kill, OpKind::Restart] {
        let mut spec = spec();
        spec.policy.detached = Detached::Keep;
        let mut world = World::new();
        world.leaves = Some(Term::Ignores);
        assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success);
        assert_eq!(world.order(OpKind::Stop, &spec).code, Code::Success);
        let kept = world.left_pids();
        world.leaves = None;
        world.run_for(1_000);
        // The command is still at work when the agent comes back; its daemon is there, and the pid file comes late.
        world.set("start", Does::Exit { after: 10_000, code: 0 });
        world.send(OpKind::Start, Some(spec.clone()));
        world.run_for(500);
        world.crash();
        world.leave_behind();
        world.set("start", daemon());
        assert_eq!(world.order(kind, &spec).code, Code::Success, "{kind:?}");
        assert_eq!(world.mains(), usize::from(kind == OpKind::Restart), "{kind:?}");
        assert_eq!(world.left_pids(), kept, "{kind:?}");
        // It was for that launch alone.
        world.leaves = Some(Term::Ignores);
        assert_eq!(world.order(OpKind::Restart, &spec).code, Code::Success);
        world.run_for(60_000);
        let kept = world.left_pids();
        world.die(Exit::Signal(9));
        world.run_for(20_000);
        assert!(kept.iter().all(|pid| world.left_pids().contains(pid)), "{kind:?}");
    }
}

#[test]
fn what_a_crash_left_is_ended_before_the_restart() {
    let mut world = World::new();
    world.leaves = Some(Term::Ignores);
    assert_eq!(world.order(OpKind::Start, &spec()).code, Code::Success);
    world.run_for(20_000);
    world.die(Exit::Signal(9));
    world.run_for(20_000);
    assert_eq!((world.mains(), world.left()), (1, 1), "only the new one's own");
}

#[test]
fn a_stop_command_at_work_is_given_the_time_to_end_the_rest_itself() {
    let mut spec = spec();
    spec.control.stop_cmd = "stop".to_owned();
    let mut world = World::new().script("stop", Does::EndMain { after: 1_000, code: 0 });
    world.leaves = Some(Term::Dies { after: 100 });
    assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success);
    let stop = world.send(OpKind::Stop, Some(spec));
    world.run_for(500);
    world.die(Exit::Code(0));
    world.run_for(400);
    assert_eq!(world.sweeps, []);
    assert_eq!(world.outcome(stop).code, Code::Success);
    assert_eq!(world.sweeps, [Signal::Term]);
}
