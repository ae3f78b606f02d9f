//! Leftovers of processes: which are kept and which are killed.

use crate::common::{Does, Term, World, daemon, spec};
use crate::given::{Then, state};
use procfleet_core::process::Exit;
use procfleet_core::spec::{Detached, Instances, Kind};
use procfleet_core::supervise::Signal;
use procfleet_core::{Code, OpKind};
use std::time::Duration;

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
fn detached_descendants_are_kept_if_the_spec_says_so() {
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

/// There is no sweep with `detached: keep`, so the process of an interrupted start could run beside the next
/// one.
#[test]
fn processes_of_an_interrupted_start_do_not_run_beside_the_next_one() {
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
        // The command is still at work when the agent comes back; its daemon is there, and the pid file comes
        // late.
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
fn leftovers_of_a_crash_are_ended_before_the_restart() {
    let mut world = World::new();
    world.leaves = Some(Term::Ignores);
    assert_eq!(world.order(OpKind::Start, &spec()).code, Code::Success);
    world.run_for(20_000);
    world.die(Exit::Signal(9));
    world.run_for(20_000);
    assert_eq!((world.mains(), world.left()), (1, 1), "only the new one's own");
}

/// Without a pid file only the run of a process tells it from a worker that its dead master has left.
#[test]
fn a_worker_is_not_taken_for_its_dead_master() {
    let rows = [(true, true), (true, false), (false, true), (false, false)];
    for ((hosted, away), detached) in
        rows.into_iter().flat_map(|row| [(row, Detached::End), (row, Detached::Keep)])
    {
        let row = format!("hosted {hosted}, the agent was away {away}, {detached:?}");
        let mut spec = spec();
        spec.identity.pid_path.clear();
        spec.policy.detached = detached;
        let mut world = World::new();
        (world.leaves, world.leaves_namesakes) = (Some(Term::Ignores), true);
        assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success, "{row}");
        if !hosted {
            world.order(OpKind::Unhost, &spec);
        }
        world.run_for(20_000);
        let (master, workers) = (world.main_pid(), world.left_pids());
        if away {
            world.kill_behind_the_agents_back();
            // The agent comes back twice: it must remember whose workers these are.
            world.crash_for(1_000);
            world.crash_for(1_000);
        } else {
            world.die(Exit::Signal(9));
        }
        world.run_for(20_000);
        assert_eq!(world.mains(), usize::from(hosted), "{row}");
        if !hosted {
            assert_eq!(world.left_pids(), workers, "{row}: nobody ends what is left of an unhosted process");
            assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success, "{row}");
        }
        assert!(world.main_pid() != master && world.starts.len() == 2, "{row}");
        // The same after a stop with `detached: keep`.
        assert_eq!(world.order(OpKind::Stop, &spec).code, Code::Success, "{row}");
        assert_eq!(world.left() > 0, detached == Detached::Keep, "{row}");
        world.crash_for(1_000);
        assert_eq!(world.order(OpKind::Stop, &spec).code, Code::NotRunning, "{row}");
        assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success, "{row}");
    }
}

#[test]
fn a_once_proc_that_daemonizes_is_supervised() {
    let mut spec = spec();
    spec.policy.kind = Kind::Once;
    let world = || {
        let mut world = World::new().script("start", daemon());
        world.once_leaves = true;
        world
    };
    for (kind, pid_file) in [(OpKind::Stop, true), (OpKind::Kill, true), (OpKind::Stop, false)] {
        let mut spec = spec.clone();
        if !pid_file {
            spec.identity.pid_path.clear();
        }
        let mut world = world();
        assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success);
        world.run_for(1_000);
        assert_eq!(world.machine.process().map(|process| process.pid), world.main_pid(), "{kind:?}");
        assert_eq!(world.order(OpKind::Start, &spec).code, Code::AlreadyRunning);
        world.crash_for(1_000);
        assert!(world.machine.process().is_some(), "the agent that comes back knows it");
        assert_eq!((world.order(kind, &spec).code, world.mains()), (Code::Success, 0));
        // A proc that exits by itself is not restarted.
        assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success);
        world.run_for(1_000);
        world.die(Exit::Signal(9));
        world.run_for(60_000);
        assert_eq!((world.machine.process(), world.starts.len()), (None, 2), "{kind:?}");
    }
    spec.policy.detached = Detached::Keep;
    let mut world = world();
    assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success);
    world.run_for(1_000);
    assert_eq!((world.machine.process(), world.mains()), (None, 1), "what is to be kept is not looked after");
}

/// Of several instances, a command that knows one pid file ends whichever has written it.
#[test]
fn an_instance_that_a_command_has_missed_is_ended() {
    for (kind, term, secs) in [
        (OpKind::Stop, Term::Dies { after: 0 }, 1),
        (OpKind::Stop, Term::Ignores, 2),
        (OpKind::Kill, Term::Ignores, 1),
    ] {
        let mut spec = spec();
        (spec.control.stop_cmd, spec.control.kill_cmd) = ("stop".to_owned(), "stop".to_owned());
        spec.policy.stop_check = Duration::from_secs(2);
        let mut world = World::new().script("stop", Does::Exit { after: 0, code: 1 });
        world.term = term;
        assert_eq!(world.order(OpKind::Start, &spec).code, Code::Success);
        assert_eq!(world.order(kind, &spec).code, Code::PostCheck, "there is one, and the command knows it");
        spec.instances = Instances(3);
        let began = world.now;
        assert_eq!((world.order(kind, &spec).code, world.mains()), (Code::Success, 0), "{kind:?} {term:?}");
        assert_eq!(world.now.since(began).as_secs(), secs, "{kind:?} {term:?}");
    }
}

#[test]
fn a_running_stop_command_may_end_the_descendants_itself() {
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

/// The processes of a failed start are ended before its outcome, or named in it and supervised.
#[test]
fn a_failed_start_leaves_nothing_unknown() {
    let unnamed = Does::Daemon { after: 100, file: None, lives: None };
    let late = Does::Launcher { after: 100, lives: vec![(0, Some(500)), (5_000, None)] };
    for (does, op, detached) in [
        (unnamed.clone(), OpKind::Start, Detached::End),
        (unnamed.clone(), OpKind::Start, Detached::Keep),
        (unnamed.clone(), OpKind::Restart, Detached::End),
        (late.clone(), OpKind::Start, Detached::End),
        (late, OpKind::Start, Detached::Keep),
    ] {
        for term in [Term::Dies { after: 10 }, Term::Ignores] {
            let row = format!("{does:?} {op:?} {detached:?} {term:?}");
            let mut spec = spec();
            spec.policy.detached = detached;
            let mut world = World::new().script("start", does.clone());
            world.term = term;
            let outcome = world.order(op, &spec);
            assert_eq!(outcome.code.number(), 836, "{row}: {}", outcome.message);
            assert_eq!(outcome.message.contains("was ended"), does == unnamed, "{row}: {}", outcome.message);
            assert_eq!((world.mains(), state(&world)), (0, Then::Down), "{row}");
            world.run_for(60_000);
            assert_eq!((world.mains(), world.left(), world.hosted()), (0, 0, false), "{row}");
        }
    }
    // A restart by the agent itself leaves nothing either.
    let mut world = World::new();
    world.order(OpKind::Start, &spec());
    world.run_for(60_000);
    world.set("start", unnamed);
    world.die(Exit::Code(1));
    world.run_for(4_000);
    assert_eq!((world.mains(), world.starts.len()), (0, 2));
    // A process that cannot be ended is named, and the status shows it.
    let mut world = World::new().script("start", Does::Unkillable);
    let outcome = world.order(OpKind::Start, &spec());
    let pid = world.machine.process().expect("it is known").pid;
    assert_eq!(outcome.code.number(), 822);
    assert!(outcome.message.ends_with(&format!("; pid {pid} is running")), "{}", outcome.message);
}

/// A stop does not wait for the cleanup of a failed start, and the start is answered with its failure.
#[test]
fn a_stop_supersedes_the_cleanup_of_a_failed_start() {
    let mut world = World::new().script("start", Does::Daemon { after: 100, file: None, lives: None });
    world.term = Term::Ignores;
    let start = world.send(OpKind::Start, Some(spec()));
    world.run_for(2_500);
    assert_eq!(world.code(start), None, "it is told to end");
    let kill = world.order(OpKind::Kill, &spec());
    assert_eq!((kill.code.number(), world.code(start), world.mains()), (0, Some(836), 0));
}
