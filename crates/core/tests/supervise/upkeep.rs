//! Keeping it alive.

use crate::common::{Does, World, daemon, spec};
use crate::given::{Given, Then, given, seconds, state};
use crate::start::check_start;
use procfleet_core::OpKind;
use procfleet_core::process::{Exit, Found, Process};
use procfleet_core::spec::{Detached, RestartPause};
use procfleet_core::supervise::{Event, Input, ProcNotice};
use std::time::Duration;

#[test]
fn when_a_hosted_process_is_started_again() {
    // The process dies in its check each time: it is restarted start_interval after its last start, at most
    // start_retries times.
    let mut world = given(Given::UpHosted);
    world.set("start", Does::Daemon { after: 100, file: Some(0), lives: Some(500) });
    world.run_for(1_000);
    world.die(Exit::Signal(9));
    world.run_for(5_000);
    let note = world.note();
    assert_eq!(note, "starts in 2 s: restart 1 of 2; pid 102 was ended by signal 9");
    world.run_for(120_000);
    assert_eq!(seconds(&world), [0, 10, 20]);
    assert_eq!(state(&world), Then::GaveUp);
    assert!(matches!(world.events.last(), Some(Event::GaveUp { .. })));
    assert!(world.note().starts_with("gave up after 2 restarts"), "{}", world.note());

    // Its spec may ask for pauses that grow: after start_interval, then after twice that and a little more.
    let mut patient = spec();
    patient.policy.restart_pause = RestartPause::Growing;
    let mut world = World::new();
    world.order(OpKind::Start, &patient);
    world.set("start", Does::Daemon { after: 100, file: Some(0), lives: Some(500) });
    world.die(Exit::Signal(9));
    world.run_for(120_000);
    assert_eq!((seconds(&world), state(&world)), (vec![0, 10, 32], Then::GaveUp));

    // A life that is longer than start_interval and shorter than 10 s is not stable: it counts, and is
    // followed at once.
    let mut hasty = spec();
    hasty.policy.start_interval = Duration::from_secs(1);
    let mut world =
        World::new().script("start", Does::Daemon { after: 100, file: Some(0), lives: Some(4_000) });
    world.order(OpKind::Start, &hasty);
    world.run_for(120_000);
    assert_eq!((seconds(&world), state(&world)), (vec![0, 4, 8], Then::GaveUp));

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

    // A launch that takes long to fail does not count as a stable run.
    let mut world = given(Given::UpHosted);
    world.set("start", Does::Hang);
    world.run_for(20_000);
    world.die(Exit::Signal(9));
    world.run_for(300_000);
    assert_eq!((state(&world), world.starts.len()), (Then::GaveUp, 3));
}

/// The writes of an upkeep may be lost by a crash: a restarted agent finds the same by a look.
#[test]
fn a_restart_that_was_not_journalled_is_detected_and_not_repeated() {
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
    // An event that was written in time is not reported again.
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
fn a_process_that_is_not_hosted_is_left_alone() {
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
    // A start command that is slower than op_timeout is taken for the process, until it leaves the real one
    // behind.
    let mut nameless = spec();
    nameless.identity.pid_path.clear();
    let slow = Does::Daemon { after: 25_000, file: None, lives: None };
    let mut world = check_start(slow, &nameless, 0, 20_000, "success");
    world.run_for(60_000);
    assert_eq!((world.starts.len(), state(&world), world.hosted()), (1, Then::Up, true));
}

/// Like nginx: the new process writes the pid file while the old one still runs, and the exit of the old one
/// is not a death.
#[test]
fn a_successor_is_supervised_and_the_exit_of_the_old_process_is_not_a_death() {
    let mut world = given(Given::UpHosted);
    let old = world.machine.process().expect("it runs");
    world.come_again();
    let new = Process { pid: old.pid + 1, found: Found::PidFile, ..old };
    let took_over = Event::TookOver { pid: new.pid, from: Some(old.pid) };
    world.feed(Input::Notice(ProcNotice::Replaced { old: new, process: old }));
    assert_eq!(world.machine.process(), Some(old), "an answer about another");
    world.feed(Input::Notice(ProcNotice::Replaced { old, process: new }));
    assert_eq!(world.machine.process(), Some(new));
    assert!(world.events.contains(&took_over), "{:?}", world.events);
    world.feed(Input::Notice(ProcNotice::Exited { process: old, exit: Exit::Code(0) }));
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
fn unrecognised_processes_are_killed_before_the_next_start() {
    let never = Does::Daemon { after: 100, file: None, lives: None };
    let mut world = check_start(never, &spec(), 836, 2_125, "does not exist");
    assert_eq!(world.mains(), 0);
    // It has escaped.
    world.leave_behind();
    world.set("start", daemon());
    assert_eq!(world.order(OpKind::Start, &spec()).code.number(), 0);
    assert_eq!((world.mains(), world.max_mains), (1, 1));

    // A kill ends it, too, although no process is found.
    let never = Does::Daemon { after: 100, file: None, lives: None };
    let mut world = check_start(never, &spec(), 836, 2_125, "does not exist");
    world.leave_behind();
    assert_eq!(world.order(OpKind::Kill, &spec()).code.number(), 829);
    assert_eq!(world.mains(), 0);
}

/// The old process of a program that has replaced itself is known until it ends, and ends with the new one.
#[test]
fn an_earlier_generation_is_noted_and_ended_with_the_process() {
    for (kind, detached) in [OpKind::Stop, OpKind::Kill, OpKind::Restart]
        .into_iter()
        .flat_map(|kind| [Detached::End, Detached::Keep].map(|detached| (kind, detached)))
    {
        let row = format!("{} with {detached:?}", kind.verb());
        let mut spec = spec();
        spec.policy.detached = detached;
        let mut world = World::new();
        world.order(OpKind::Start, &spec);
        let old = world.machine.process().expect("it runs");
        world.come_again();
        let new = world.youngest();
        world.feed(Input::Notice(ProcNotice::Replaced { old, process: new }));
        assert_eq!(world.note(), format!("pid {}, whose place it took, is still running", old.pid), "{row}");
        world.crash();
        assert!(world.note().contains("is still running"), "{row}: {}", world.note());
        assert_eq!(world.order(kind, &spec).code.number(), 0, "{row}");
        world.run_for(60_000);
        assert_eq!(world.mains(), usize::from(kind == OpKind::Restart), "{row}");
        assert_eq!(world.note(), "", "{row}");
    }
    // It ends by itself.
    let mut world = given(Given::UpHosted);
    let old = world.machine.process().expect("it runs");
    world.come_again();
    let new = world.youngest();
    world.feed(Input::Notice(ProcNotice::Replaced { old, process: new }));
    world.feed(Input::Notice(ProcNotice::Exited { process: old, exit: Exit::Code(0) }));
    assert_eq!(world.note(), "");
}

/// The process is started by hand after a stop, after giving up, or during the wait for a restart.
#[test]
fn a_process_that_was_started_by_hand_is_known() {
    for (before, hosted) in [(Given::Down, false), (Given::GaveUp, true)] {
        let mut world = given(before);
        world.come_again();
        let process = world.youngest();
        world.feed(Input::Notice(ProcNotice::Appeared { process }));
        assert_eq!((state(&world), world.hosted()), (Then::Up, hosted), "{before:?}");
        assert_eq!(
            world.events.last(),
            Some(&Event::TookOver { pid: process.pid, from: None }),
            "{before:?}"
        );
        assert_eq!(world.order(OpKind::Start, &spec()).code.number(), 828, "{before:?}");
        assert_eq!(world.order(OpKind::Stop, &spec()).code.number(), 0, "{before:?}");
        assert_eq!(world.mains(), 0, "{before:?}");
    }
    let mut world = given(Given::UpHosted);
    world.die(Exit::Code(1));
    world.run_for(10);
    world.come_again();
    world.feed(Input::Notice(ProcNotice::Appeared { process: world.youngest() }));
    world.run_for(60_000);
    assert_eq!((state(&world), world.starts.len(), world.max_mains), (Then::Up, 1, 1));
    // A known process, a process of an unknown proc and a run of a periodic proc are not adopted.
    let known = world.machine.process().expect("it is up");
    world.feed(Input::Notice(ProcNotice::Appeared { process: Process { pid: 999, ..known } }));
    assert_eq!(world.machine.process(), Some(known));
    let mut unknown = World::new();
    unknown.feed(Input::Notice(ProcNotice::Appeared { process: known }));
    assert!(unknown.machine.is_blank());
}
