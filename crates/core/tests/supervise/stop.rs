//! How a stop or a kill ends, and when.

use crate::common::{Does, Term, spec};
use crate::given::{Given, Then, given, state};
use procfleet_core::OpKind;
use procfleet_core::process::Exit;
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
    // Both are on their way; the exit is told first.
    let process = world.machine.process().expect("it is up");
    world.feed(procfleet_core::supervise::Input::Exited { process, exit: Exit::Code(0) });
    world.die(Exit::Code(0));
    assert_eq!(world.outcome(op).code.number(), 0);
    world.run_for(60_000);
    assert_eq!((world.hosted(), state(&world), world.starts.len()), (false, Then::Down, 1));
}

/// The order is on the disk only after a while: the process has its whole time from the moment that it is signalled.
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
