//! How a stop or a kill ends, and when.

use crate::common::{Does, Term, spec};
use crate::given::{Given, Then, given, state};
use procfleet_core::OpKind;
use procfleet_core::process::Exit;
use procfleet_core::signal::SignalNumber;
use procfleet_core::spec::StopSignal;
use procfleet_core::supervise::{Input, ProcNotice, Signal};
use std::time::Duration;

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
    // Both are under way; the exit is reported first.
    let process = world.machine.process().expect("it is up");
    world.feed(Input::Notice(ProcNotice::Exited { process, exit: Exit::Code(0) }));
    world.die(Exit::Code(0));
    assert_eq!(world.outcome(op).code.number(), 0);
    world.run_for(60_000);
    assert_eq!((world.hosted(), state(&world), world.starts.len()), (false, Then::Down, 1));
}

/// The order is on the disk only after a while: the process has its whole time from the moment that it is
/// signalled.
#[test]
fn a_slow_disk_takes_no_time_from_the_process() {
    for (kind, term) in [
        (OpKind::Stop, Term::Dies { after: 2_900 }),
        (OpKind::Kill, Term::Ignores),
        (OpKind::Restart, Term::Dies { after: 2_900 }),
    ] {
        let mut world = given(Given::UpHosted);
        world.term = term;
        world.disk_delay = 20_000;
        let outcome = world.order(kind, &spec());
        assert_eq!(outcome.code.number(), 0, "{}: {}", kind.verb(), outcome.message);
    }
}

/// With a `kill_after` a stop or restart kills what does not end, and says so. A `kill_cmd` is still judged
/// by `stop_check`.
#[test]
fn a_process_that_does_not_exit_is_killed_if_the_spec_says_so() {
    let told =
        "success: pid 102 was still running 1 s (kill_after) after it was told to end, and had to be killed";
    let rows = [
        // (order, command, term, kill_after, code, takes, message)
        (OpKind::Stop, None, Term::Ignores, 1, 0, 1_000, told),
        (OpKind::Stop, Some(Does::EndMain { after: 50, code: 0 }), Term::Ignores, 1, 0, 1_050, told),
        (
            OpKind::Stop,
            Some(Does::Hang),
            Term::Ignores,
            1,
            0,
            21_000,
            "had to be killed; stop_cmd ran out of time",
        ),
        // Longer than stop_check, which does not count then.
        (OpKind::Stop, None, Term::Ignores, 10, 0, 10_000, "10 s (kill_after)"),
        (OpKind::Stop, None, Term::Dies { after: 500 }, 1, 0, 500, "success"),
        (OpKind::Restart, None, Term::Ignores, 1, 0, 3_100, told),
        (
            OpKind::Kill,
            Some(Does::EndMain { after: 50, code: 0 }),
            Term::Ignores,
            1,
            836,
            3_050,
            "kill process",
        ),
    ];
    for (kind, command, term, kill_after, code, millis, says) in rows {
        let row = format!("{} by {command:?} of one that {term:?}", kind.verb());
        let mut world = given(Given::UpHosted);
        world.term = term;
        let mut spec = spec();
        spec.policy.kill_after = Some(Duration::from_secs(kill_after));
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
        // The remark of this op does not appear in the next one.
        world.term = Term::Dies { after: 10 };
        spec.control.kill_cmd.clear();
        world.order(OpKind::Kill, &spec);
        assert_eq!(world.order(OpKind::Start, &spec).message, "success", "{row}");
    }
}

#[test]
fn a_stop_sends_the_signal_of_the_spec() {
    let quit = "QUIT".parse().expect("a signal");
    let mut spec = spec();
    spec.control.stop_signal = StopSignal(quit);
    let mut world = given(Given::UpHosted);
    assert_eq!(world.order(OpKind::Stop, &spec).code.number(), 0);
    assert_eq!(world.signals, [Signal::Other(quit)]);
    spec.control.stop_signal = StopSignal(SignalNumber::KILL);
    let mut world = given(Given::UpHosted);
    world.term = Term::Ignores;
    assert_eq!(world.order(OpKind::Stop, &spec).code.number(), 0);
    assert_eq!(world.signals, [Signal::Kill]);
}
