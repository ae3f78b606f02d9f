//! How a restart or a reload ends.

use crate::common::{Does, Term, World, spec};
use crate::given::{Given, Then, given, state};
use procfleet_core::OpKind;
use procfleet_core::op::Outcome;
use procfleet_core::process::Exit;
use procfleet_core::spec::Spec;
use procfleet_core::supervise::Signal;
use std::time::Duration;

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
        // it must live for another second, and so must a successor
        (Does::Exit { after: 50, code: 0 }, 0, 1_050),
        (Does::Exit { after: 50, code: 9 }, 65_535, 50),
        (Does::Replace { after: 50, file: Some(0), code: 0 }, 0, 1_050),
        (Does::Replace { after: 50, file: Some(990), code: 0 }, 0, 2_050),
        (Does::Replace { after: 50, file: None, code: 0 }, 836, 2_050),
        (Does::Hang, 822, 20_000),
        (Does::Unkillable, 822, 22_000),
        (Does::NotStarted, 122, 0),
        (Does::EndMain { after: 50, code: 0 }, 836, 2_060),
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
    let outcome = world.order(OpKind::Reload, &spec());
    assert_eq!((outcome.code.number(), state(&world)), (836, Then::Down), "{}", outcome.message);
    assert_eq!(world.order(OpKind::Reload, &spec()).code.number(), 829);
    // The process dies in the second after its reload, with and without a successor. The successor must not
    // die either.
    for (again, lives, code) in [(true, None, 0), (false, None, 836), (true, Some(500), 836)] {
        let mut world = given(Given::UpUnhosted);
        let op = world.send(OpKind::Reload, Some(spec()));
        world.run_for(500);
        assert_eq!(world.code(op), None);
        world.die(Exit::Code(1));
        if again {
            world.come_again_for(lives);
        }
        assert_eq!(world.outcome(op).code.number(), code, "{again} {lives:?}");
    }
}

/// Only the main process gets the signal, and must survive it for a second; a hand-over to a successor is
/// fine.
#[test]
fn how_a_reload_by_a_signal_ends() {
    let hup = "HUP".parse().expect("a signal");
    let mut spec = spec();
    spec.control.reload_cmd.clear();
    spec.control.reload_signal = Some(hup);
    let rows = [
        (Term::Ignores, 0, 1_000, "success"),
        (Term::Dies { after: 50 }, 836, 1_050, "reload process (it) failed"),
    ];
    for (on_reload, code, millis, says) in rows {
        let mut world = given(Given::UpHosted);
        world.on_reload = on_reload;
        let began = world.now;
        let outcome = world.order(OpKind::Reload, &spec);
        assert_eq!(outcome.code.number(), code, "{on_reload:?}: {}", outcome.message);
        assert!(outcome.message.contains(says), "{on_reload:?}: {}", outcome.message);
        assert_eq!(world.now.since(began), Duration::from_millis(millis), "{on_reload:?}");
        assert_eq!(world.signals, [Signal::Other(hup)], "{on_reload:?}");
        world.run_for(60_000);
        assert_eq!((state(&world), world.hosted(), world.max_mains), (Then::Up, true, 1), "{on_reload:?}");
    }
    let mut world = given(Given::UpHosted);
    world.on_reload = Term::Dies { after: 50 };
    let op = world.send(OpKind::Reload, Some(spec.clone()));
    world.run_for(60);
    world.come_again();
    assert_eq!(world.outcome(op).code.number(), 0, "it has a successor");
    // A command comes first.
    spec.control.reload_cmd = "reload".to_owned();
    let mut world = given(Given::UpHosted);
    assert_eq!(world.order(OpKind::Reload, &spec).code.number(), 0);
    assert_eq!(world.signals, []);
    // A kill does not wait for it.
    spec.control.reload_cmd.clear();
    let mut world = given(Given::UpHosted);
    let reload = world.send(OpKind::Reload, Some(spec.clone()));
    world.run_for(10);
    let kill = world.order(OpKind::Kill, &spec);
    assert_eq!((kill.code.number(), world.code(reload)), (0, Some(826)));
}
