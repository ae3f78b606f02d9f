//! Procs that are ended by the agent, or by the kernel, for what they use or say, against a simulated host: how they are ended, what
//! comes then, and when what is to be started after a boot is started.

mod common;

use common::{Does, Term, World, daemon, spec};
use procfleet_core::process::Exit;
use procfleet_core::spec::{Kind, LimitSamples, OnUnhealthy, Schedule, Spec};
use procfleet_core::supervise::{Event, Health, Past, Signal, Usage};
use procfleet_core::{Content, OpKind};
use std::time::Duration;

fn limited() -> Spec {
    let mut spec = spec();
    spec.resource.cpu = Some(50.0);
    spec.resource.mem = Some(20.0);
    spec
}

fn over() -> Usage {
    Usage { cpu: 80.0, mem: 5.0, fd: 3 }
}

fn up(spec: &Spec) -> World {
    let mut world = World::new();
    assert_eq!(world.order(OpKind::Start, spec).code.number(), 0);
    world.run_for(20_000);
    world.sample(Usage::default());
    // That it was started is not of interest here.
    world.events.clear();
    world
}

/// Three samples in a row, five seconds apart.
fn strain(world: &mut World) {
    for _ in 0..3 {
        world.run_for(5_000);
        world.sample(over());
    }
}

fn kinds(world: &World) -> Vec<&'static str> {
    world.events.iter().map(Event::kind).collect()
}

#[test]
fn how_it_is_ended_and_comes_back() {
    struct Row {
        stop_cmd: Option<Does>,
        term: Term,
        signals: Vec<Signal>,
        millis: u64,
    }
    let dies = Term::Dies { after: 200 };
    let row = |stop_cmd, term, signals, millis| Row { stop_cmd, term, signals, millis };
    let script = Does::EndMain { after: 50, code: 0 };
    for Row { stop_cmd, term, signals, millis } in [
        row(None, dies, vec![Signal::Term], 200),
        row(None, Term::Ignores, vec![Signal::Term, Signal::Kill], 3_000),
        row(Some(script.clone()), dies, vec![], 250),
        row(Some(script), Term::Ignores, vec![Signal::Kill], 3_050),
        // a stop_cmd that does nothing, takes for ever, or cannot be run
        row(Some(Does::Exit { after: 50, code: 0 }), dies, vec![Signal::Kill], 3_050),
        row(Some(Does::Hang), dies, vec![Signal::Kill], 23_000),
        row(Some(Does::NotStarted), dies, vec![Signal::Term], 200),
    ] {
        let name = format!("{stop_cmd:?} of one that {term:?}");
        let mut spec = limited();
        if let Some(does) = &stop_cmd {
            spec.control.stop_cmd = "stop".to_owned();
            assert!(*does != Does::Unkillable);
        }
        let mut world = up(&spec);
        world.term = term;
        world.set("stop", stop_cmd.unwrap_or(Does::NotStarted));
        let old = world.main_pid();
        strain(&mut world);
        assert_eq!(kinds(&world), ["over_limit"], "{name}");
        assert!(world.machine.is_busy(), "{name}");
        let began = world.now;
        world.run_for(millis + 100);
        assert_eq!((world.signals.clone(), world.starts.len()), (signals, 2), "{name}");
        assert_eq!(world.starts[1].0.since(began), Duration::from_millis(millis), "{name}");
        let note =
            "it was ended: pid 102 and what belongs to it used too much: cpu 80.0, 80.0, 80.0 % (limit 50)";
        assert_eq!(world.note(), note, "{name}");
        world.run_for(5_000);
        assert!(world.main_pid().is_some() && world.main_pid() != old && world.hosted(), "{name}");
        assert_eq!(kinds(&world), ["over_limit", "restart_succeeded"], "{name}");
        assert!(!world.machine.has_given_up(), "{name}");
        // The reason stands until it runs stably again.
        world.sample(Usage::default());
        assert_eq!(world.note(), note, "{name}");
        world.run_for(10_000);
        world.sample(Usage::default());
        assert_eq!(world.note(), "", "{name}");
        assert_eq!(world.max_mains, 1, "{name}");
    }
}

#[test]
fn a_peak_is_no_habit() {
    let mut world = up(&limited());
    for usage in [over(), over(), Usage::default(), over(), over()] {
        world.run_for(5_000);
        world.sample(usage);
    }
    assert_eq!((world.events.len(), world.starts.len()), (0, 1));
    // And without a limit nothing is too much.
    let mut world = up(&spec());
    strain(&mut world);
    assert_eq!((world.events.len(), world.starts.len()), (0, 1));
}

#[test]
fn what_is_not_hosted_stays_down_and_says_why() {
    let mut world = up(&limited());
    world.order(OpKind::Unhost, &limited());
    strain(&mut world);
    world.run_for(60_000);
    assert_eq!((world.mains(), world.starts.len(), world.hosted()), (0, 1, false));
    assert!(world.note().contains("used too much"), "{}", world.note());
    assert!(!world.machine.has_given_up());
    // It survives the agent, and is told by a query.
    world.crash();
    let Content::Status(status) = world.order(OpKind::Query, &limited()).content else {
        panic!("a query answers with a status")
    };
    assert!(status.note.contains("used too much"), "{}", status.note);
    // An order begins anew.
    world.order(OpKind::Start, &limited());
    assert_eq!(world.note(), "");
}

/// It counts as a death: too often in a row, and the agent gives up.
#[test]
fn one_that_is_over_again_and_again_is_given_up() {
    let mut spec = limited();
    spec.policy.start_interval = Duration::from_secs(120);
    let mut world = up(&spec);
    // The second pause is twice as long.
    for then in [100_000, 260_000, 100_000] {
        strain(&mut world);
        world.run_for(then);
    }
    assert_eq!((world.starts.len(), world.mains()), (3, 0), "{:?}", kinds(&world));
    assert!(world.machine.has_given_up());
    let note = world.note();
    assert!(note.starts_with("gave up after 2 restarts") && note.contains("used too much"), "{note}");
}

/// Sampling takes longer than `start_interval`, but a run that was never within its limits was no stable one.
#[test]
fn one_that_is_over_from_its_beginning_does_not_come_back_for_ever() {
    let mut world = World::new();
    world.order(OpKind::Host, &limited());
    for _ in 0..8 {
        strain(&mut world);
        world.run_for(5_000);
    }
    assert_eq!((world.starts.len(), world.mains()), (3, 0), "{:?}", kinds(&world));
    assert!(world.machine.has_given_up());
    // One that keeps within them at first does: each of its runs was a stable one.
    let mut world = up(&limited());
    for _ in 0..8 {
        world.run_for(5_000);
        world.sample(Usage::default());
        strain(&mut world);
        world.run_for(5_000);
    }
    assert_eq!((world.starts.len(), world.mains()), (9, 1), "{:?}", kinds(&world));
}

#[test]
fn orders_during_the_ending_are_as_during_a_restart() {
    for (kind, then_up) in
        [(OpKind::Stop, false), (OpKind::Kill, false), (OpKind::Start, true), (OpKind::Restart, true)]
    {
        let row = kind.verb();
        let mut world = up(&limited());
        world.term = Term::Dies { after: 1_000 };
        strain(&mut world);
        world.run_for(500);
        let outcome = world.order(kind, &limited());
        // A start waits for the one that comes back by itself.
        let code = if kind == OpKind::Start { 828 } else { 0 };
        assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
        world.run_for(60_000);
        assert_eq!((world.mains() == 1, world.hosted()), (then_up, then_up), "{row}");
        assert_eq!((world.max_mains, world.open_ops().len()), (1, 0), "{row}");
        if !then_up {
            assert_eq!(world.note(), "", "{row}: it is as somebody wanted it");
        }
    }
}

/// A process that cannot be killed is not given up, and is tried again.
#[test]
fn one_that_cannot_be_killed_is_tried_again() {
    let mut world = World::new().script("start", Does::Unkillable);
    let mut spec = limited();
    spec.policy.kind = Kind::Periodic(Schedule::Every(Duration::from_secs(3_600)));
    world.order(OpKind::Start, &spec);
    for _ in 0..2 {
        strain(&mut world);
        world.run_for(20_000);
        assert!(!world.machine.is_busy() && world.machine.process().is_some());
    }
    assert_eq!(kinds(&world), ["started", "over_limit", "over_limit"]);
}

#[test]
fn a_run_that_uses_too_much_is_ended_and_the_next_comes_when_it_is_due() {
    let mut spec = limited();
    spec.policy.kind = Kind::Periodic(Schedule::Every(Duration::from_secs(60)));
    let mut world = World::new().script("start", Does::Hang);
    world.order(OpKind::Host, &spec);
    let began = world.now;
    strain(&mut world);
    world.run_for(1_000);
    assert_eq!((world.mains(), kinds(&world)), (0, vec!["over_limit"]));
    assert!(world.note().contains("used too much"));
    world.run_for(60_000);
    let starts: Vec<u64> = world.starts.iter().map(|(at, _)| at.since(began).as_secs()).collect();
    assert_eq!((starts, world.mains()), (vec![0, 60], 1));
}

#[test]
fn a_crash_in_the_middle_leaves_no_second_process() {
    let mut world = up(&limited());
    world.term = Term::Dies { after: 1_000 };
    strain(&mut world);
    world.run_for(500);
    world.set("start", daemon());
    world.crash();
    world.run_for(30_000);
    assert_eq!((world.mains(), world.max_mains, world.hosted()), (1, 1, true));
}

#[test]
fn how_many_samples_make_an_overuse_is_a_setting() {
    for (samples, ended) in [(1, true), (3, true), (4, false)] {
        let mut spec = limited();
        spec.policy.limit_samples = LimitSamples(samples);
        let mut world = up(&spec);
        strain(&mut world);
        assert_eq!(!world.events.is_empty(), ended, "{samples}");
    }
}

// ---- the whole namespace uses too much ----

#[test]
fn a_victim_of_its_group_is_ended_as_by_its_own_limit() {
    for (stop_cmd, hosted) in [("stop", true), ("", true), ("", false)] {
        let mut spec = spec();
        spec.control.stop_cmd = stop_cmd.to_owned();
        let mut world = up(&spec);
        if !hosted {
            world.order(OpKind::Unhost, &spec);
        }
        world.term = Term::Ignores;
        world.overuse(Past::OnceWithin);
        assert_eq!(kinds(&world), ["group_over_limit"]);
        // While it is ended, further verdicts change nothing.
        world.overuse(Past::OnceWithin);
        world.run_for(10_000);
        let killed = world.signals.last() == Some(&Signal::Kill);
        assert_eq!((killed, world.mains() == 1, world.starts.len()), (true, hosted, 1 + usize::from(hosted)));
        let note = "it was ended: pid 102 is ended, for its namespace used too much: mem 12.00, 12.00, 12.00 % together \
                    (limit 10 of group g); ended in this order: it";
        assert_eq!(world.note(), note);
        assert_eq!(world.max_mains, 1);
    }
}

/// Its coming back breaks the pool each time, so it comes back more and more slowly and in the end not at all.
#[test]
fn a_victim_whose_return_breaks_the_pool_is_given_up() {
    let mut world = up(&spec());
    for _ in 0..6 {
        world.overuse(Past::AlwaysOver);
        world.run_for(60_000);
    }
    assert_eq!((world.starts.len(), world.machine.has_given_up()), (3, true), "{:?}", kinds(&world));
    let mut world = up(&spec());
    for _ in 0..6 {
        world.run_for(60_000);
        world.overuse(Past::OnceWithin);
        world.run_for(100);
    }
    assert_eq!(
        (world.starts.len(), world.machine.has_given_up()),
        (7, false),
        "each of its lives was stable"
    );
}

// ---- illness ----

fn ill() -> Health {
    Health::Ill { reason: "no answer".to_owned() }
}

fn treated() -> Spec {
    let mut spec = spec();
    spec.policy.on_unhealthy = OnUnhealthy::Restart;
    spec
}

#[test]
fn an_ill_process_is_told_and_started_again_where_that_is_wanted() {
    for (spec, hosted, again) in [
        (spec(), true, false),
        (treated(), true, true),
        // Nobody would start it again.
        (treated(), false, false),
    ] {
        let mut world = up(&spec);
        if !hosted {
            world.order(OpKind::Unhost, &spec);
        }
        world.health(Health::Well);
        world.health(ill());
        let then = if again { OnUnhealthy::Restart } else { OnUnhealthy::Tell };
        assert_eq!(world.events, [Event::Unhealthy { reason: "no answer".to_owned(), then }]);
        world.run_for(5_000);
        let expected: &[&str] = if again { &["unhealthy", "restart_succeeded"] } else { &["unhealthy"] };
        assert_eq!((kinds(&world).as_slice(), world.mains()), (expected, 1));
        assert_eq!(world.starts.len(), 1 + usize::from(again));
        let note = if again { "it was ended: it was unhealthy: no answer" } else { "" };
        assert_eq!(world.note(), note);
        // The successor is another process: it is well until something else is known.
        world.run_for(60_000);
        assert_eq!(world.starts.len(), 1 + usize::from(again));
    }
}

#[test]
fn an_illness_waits_for_the_end_of_an_operation() {
    let mut world = up(&treated());
    world.health(Health::Well);
    world.send(OpKind::Reload, Some(treated()));
    assert!(world.machine.is_busy());
    world.health(ill());
    assert_eq!(kinds(&world), [""; 0]);
    world.run_for(10_000);
    assert_eq!((kinds(&world), world.starts.len()), (vec!["unhealthy", "restart_succeeded"], 2));
    // What the operation has cured is not treated.
    let mut world = up(&treated());
    world.send(OpKind::Reload, Some(treated()));
    world.health(ill());
    world.health(Health::Well);
    world.run_for(10_000);
    assert_eq!((kinds(&world).len(), world.starts.len()), (0, 1));
    let mut world = up(&treated());
    world.send(OpKind::Restart, Some(treated()));
    world.health(ill());
    world.run_for(20_000);
    assert_eq!((kinds(&world), world.starts.len()), (vec!["started"], 2), "the ill one is gone");
}

/// A `health_cmd` that can never succeed does not restart a process for ever.
#[test]
fn one_that_was_never_well_is_given_up() {
    let mut world = up(&treated());
    for _ in 0..6 {
        world.run_for(60_000);
        world.health(ill());
        world.run_for(60_000);
    }
    assert_eq!((world.starts.len(), world.machine.has_given_up()), (3, true), "{:?}", kinds(&world));
    assert!(
        world.note().contains("it was unhealthy: no answer; start or host begins anew"),
        "{}",
        world.note()
    );
    // One that is well in between is cured each time.
    let mut world = up(&treated());
    for _ in 0..6 {
        world.run_for(60_000);
        world.health(Health::Well);
        world.health(ill());
        world.run_for(5_000);
    }
    assert_eq!((world.starts.len(), world.mains()), (7, 1));
}

// ---- the kernel ----

#[test]
fn one_that_the_kernel_ended_for_want_of_memory_says_so() {
    let mut world = up(&spec());
    world.die(Exit::OutOfMemory);
    world.run_for(1);
    let told = "pid 102 was killed by the kernel: out of memory";
    assert_eq!(world.events[0].to_string(), told);
    world.run_for(5_000);
    assert_eq!((world.mains(), world.note().as_str()), (1, told), "until it runs stably again");
    world.run_for(20_000);
    world.sample(Usage::default());
    assert_eq!(world.note(), "");
    let mut world = up(&spec());
    world.order(OpKind::Unhost, &spec());
    world.die(Exit::OutOfMemory);
    world.run_for(5_000);
    assert_eq!(world.note(), told);
}

// ---- after a boot ----

#[test]
fn after_a_boot_each_waits_for_its_place_but_no_order_does() {
    let mut world = up(&spec());
    world.place_delay = 3_000;
    world.reboot();
    let began = world.now;
    assert_eq!((world.mains(), world.note().as_str()), (0, "starts in 3 s: the host has just booted"));
    world.run_for(2_900);
    assert_eq!((world.starts.len(), world.note().as_str()), (1, "starts in 1 s: the host has just booted"));
    world.run_for(1_000);
    assert_eq!(world.starts[1].0.since(began), Duration::from_secs(3));
    // Somebody else has started it meanwhile: it is taken up.
    let mut world = up(&spec());
    world.place_delay = 3_000;
    world.reboot();
    world.come_again();
    world.run_for(10_000);
    assert_eq!((world.starts.len(), world.mains(), world.machine.process().is_some()), (1, 1, true));
    // The agent dies while it waits.
    let mut world = up(&spec());
    world.place_delay = 3_000;
    world.reboot();
    world.run_for(1_000);
    world.crash();
    world.run_for(10_000);
    assert_eq!((world.starts.len(), world.mains()), (2, 1));
    for (kind, starts) in [(OpKind::Start, 2), (OpKind::Host, 2), (OpKind::Stop, 1), (OpKind::Unhost, 1)] {
        let mut world = up(&spec());
        world.place_delay = 20_000;
        world.reboot();
        let began = world.now;
        world.order(kind, &spec());
        assert!(world.now.since(began) < Duration::from_secs(3), "{kind:?} does not wait");
        world.run_for(60_000);
        assert_eq!(world.starts.len(), starts, "{kind:?}");
    }
}

#[test]
fn what_keeps_a_schedule_or_runs_once_has_no_place() {
    let every = Kind::Periodic(Schedule::Every(Duration::from_secs(60)));
    for (kind, starts) in [(every, 2), (Kind::Once, 1)] {
        let mut spec = spec();
        spec.policy.kind = kind.clone();
        let mut world = World::new();
        world.order(OpKind::Host, &spec);
        world.run_for(100);
        world.place_delay = 3_600_000;
        world.reboot();
        world.run_for(1_000);
        assert_eq!(world.starts.len(), starts, "{kind:?}");
    }
}
