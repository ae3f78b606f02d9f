//! Procs that the agent or the kernel ends because of their usage or health, against a simulated host: how
//! they are ended, what follows, and the staggered starts after a boot.

mod common;

use common::{Does, Term, World, daemon, spec};
use procfleet_core::OpKind;
use procfleet_core::process::Exit;
use procfleet_core::spec::{Kind, LimitSamples, OnUnhealthy, Schedule, Spec};
use procfleet_core::supervise::{Event, Health, LimitHistory, Signal, Usage};
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
fn how_a_process_above_its_limits_is_ended_and_restarted() {
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
fn a_short_peak_above_a_limit_is_ignored() {
    let mut world = up(&limited());
    for usage in [over(), over(), Usage::default(), over(), over()] {
        world.run_for(5_000);
        world.sample(usage);
    }
    assert_eq!((world.events.len(), world.starts.len()), (0, 1));
    // Without a limit there is no overuse.
    let mut world = up(&spec());
    strain(&mut world);
    assert_eq!((world.events.len(), world.starts.len()), (0, 1));
}

/// Hosting is both: that it is started again, and that its limits hold. Operators unhost a process to work on
/// it by hand.
#[test]
fn a_process_that_is_not_hosted_is_left_alone() {
    let mut world = up(&limited());
    world.order(OpKind::Unhost, &limited());
    let pid = world.main_pid();
    strain(&mut world);
    world.overuse(LimitHistory::OnceWithin);
    world.send(OpKind::Reload, Some(limited()));
    strain(&mut world);
    assert_eq!((world.main_pid(), world.starts.len(), kinds(&world)), (pid, 1, vec![]));
    assert_eq!((world.note().as_str(), &world.signals), ("", &vec![]));
    // Usage during the time without supervision does not count.
    world.sample(over());
    world.sample(over());
    world.order(OpKind::Host, &limited());
    world.sample(over());
    assert_eq!(kinds(&world), [""; 0]);
    strain(&mut world);
    world.run_for(5_000);
    assert_eq!((kinds(&world), world.starts.len()), (vec!["over_limit", "restart_succeeded"], 2));
    // A restart leaves hosting as it was.
    let mut slow = limited();
    slow.policy.start_check = Duration::from_secs(60);
    let mut world = up(&slow);
    world.order(OpKind::Unhost, &slow);
    let restart = world.send(OpKind::Restart, Some(slow));
    world.run_for(1_000);
    strain(&mut world);
    assert_eq!((world.outcome(restart).code.number(), kinds(&world)), (0, vec!["started"]));
}

const TOO_MUCH: &str = "used too much: cpu 80.0, 80.0, 80.0 % (limit 50)";

/// Its check may be long, and a process that is over from its beginning is not to wait for its end.
#[test]
fn a_start_that_is_ended_by_a_limit_says_so() {
    let foreground = || Does::Foreground { lives: None, code: 0 };
    for (kind, does, pid_file) in [
        (OpKind::Start, daemon(), true),
        (OpKind::Start, foreground(), false),
        // The shell of a command that may be the process.
        (OpKind::Start, Does::Hang, false),
        (OpKind::Host, daemon(), true),
        (OpKind::Restart, daemon(), true),
    ] {
        let row = format!("{} of {does:?}", kind.verb());
        let mut spec = limited();
        spec.policy.start_check = Duration::from_secs(60);
        if !pid_file {
            spec.identity.pid_path.clear();
        }
        let mut world = if kind == OpKind::Restart { up(&spec) } else { World::new() };
        world.set("start", does);
        let op = world.send(kind, Some(spec.clone()));
        world.run_for(1_000);
        let starts = world.starts.len();
        strain(&mut world);
        let outcome = world.outcome(op);
        assert_eq!(outcome.code.number(), 836, "{row}: {}", outcome.message);
        let begins =
            format!("{} process (it) failed, for post-check status not alive: it was ended", kind.verb());
        assert!(outcome.message.starts_with(&begins), "{row}: {}", outcome.message);
        assert!(outcome.message.ends_with(TOO_MUCH), "{row}: {}", outcome.message);
        assert_eq!((world.mains(), kinds(&world).last()), (0, Some(&"over_limit")), "{row}");
        world.run_for(60_000);
        // A hosted proc is restarted by its policy; a failed start has not hosted the proc.
        let comes_back = kind != OpKind::Start;
        assert_eq!((world.hosted(), world.starts.len() > starts), (comes_back, comes_back), "{row}");
        assert!(world.max_mains <= 1, "{row}");
    }
}

#[test]
fn limits_apply_to_once_procs() {
    let mut spec = limited();
    spec.policy.kind = Kind::Once;
    spec.policy.op_timeout = Duration::from_secs(600);
    let lasts = || Does::Exit { after: 300_000, code: 0 };
    for (kind, term, signals) in [
        (OpKind::Start, Term::Dies { after: 200 }, vec![Signal::Term]),
        (OpKind::Start, Term::Ignores, vec![Signal::Term, Signal::Kill]),
        (OpKind::Host, Term::Dies { after: 200 }, vec![Signal::Term]),
    ] {
        let row = format!("{} of one that {term:?}", kind.verb());
        let mut world = World::new().script("start", lasts());
        world.term = term;
        let op = world.send(kind, Some(spec.clone()));
        assert!(world.machine.process().is_some(), "{row}: its run is its process");
        strain(&mut world);
        let outcome = world.outcome(op);
        assert_eq!(outcome.code.number(), 836, "{row}: {}", outcome.message);
        assert!(outcome.message.ends_with(TOO_MUCH), "{row}: {}", outcome.message);
        assert_eq!((kinds(&world), world.signals.clone()), (vec!["over_limit"], signals), "{row}");
        world.run_for(60_000);
        assert_eq!((world.starts.len(), world.machine.process()), (1, None), "{row}: nobody starts it again");
        assert!(world.note().ends_with(TOO_MUCH), "{row}: {}", world.note());
    }
    // A run within its limits runs to its end, and a run that hangs is ended at op_timeout.
    let mut world = World::new().script("start", lasts());
    let op = world.send(OpKind::Start, Some(spec.clone()));
    world.run_for(5_000);
    world.sample(Usage::default());
    assert_eq!((world.outcome(op).code.number(), world.machine.process()), (0, None));
    spec.policy.op_timeout = Duration::from_secs(20);
    let outcome = World::new().script("start", Does::Hang).order(OpKind::Start, &spec);
    assert_eq!(outcome.code.number(), 822, "{}", outcome.message);
    // The run is limited after the agent's return, too.
    let mut world = World::new().script("start", lasts());
    world.send(OpKind::Start, Some(spec));
    world.run_for(1_000);
    world.crash();
    strain(&mut world);
    world.run_for(10_000);
    assert_eq!((kinds(&world), world.machine.process()), (vec!["over_limit"], None));
}

#[test]
fn a_reload_does_not_keep_a_process_from_its_limits() {
    let mut world = up(&limited());
    world.set("reload", Does::Hang);
    let op = world.send(OpKind::Reload, Some(limited()));
    strain(&mut world);
    let outcome = world.outcome(op);
    assert_eq!(outcome.code.number(), 836, "{}", outcome.message);
    assert!(outcome.message.starts_with("reload process (it) failed"), "{}", outcome.message);
    world.run_for(5_000);
    assert_eq!((kinds(&world), world.mains()), (vec!["over_limit", "restart_succeeded"], 1));
    // So with a group.
    let mut world = up(&limited());
    world.set("reload", Does::Hang);
    let op = world.send(OpKind::Reload, Some(limited()));
    world.overuse(LimitHistory::OnceWithin);
    assert_eq!(world.outcome(op).code.number(), 836);
}

/// A stop does not wait for an end because of a limit, and the order is answered once.
#[test]
fn a_start_that_a_limit_ends_can_be_overtaken_and_cancelled() {
    let mut spec = limited();
    spec.policy.start_check = Duration::from_secs(60);
    for cancels in [false, true] {
        let mut world = World::new();
        world.term = Term::Dies { after: 2_000 };
        let start = world.send(OpKind::Start, Some(spec.clone()));
        world.run_for(1_000);
        strain(&mut world);
        if cancels {
            assert!(world.cancel(start));
        }
        let stop = world.order(OpKind::Stop, &spec);
        assert_eq!((stop.code.number(), world.code(start)), (0, Some(826)), "{}", stop.message);
        world.run_for(60_000);
        assert_eq!((world.mains(), world.starts.len(), world.hosted()), (0, 1, false));
    }
}

/// It counts as a death: too often in a row, and the agent gives up.
#[test]
fn a_process_that_exceeds_its_limits_repeatedly_is_given_up() {
    let mut spec = limited();
    spec.policy.start_interval = Duration::from_secs(120);
    let mut world = up(&spec);
    for _ in 0..3 {
        strain(&mut world);
        world.run_for(100_000);
    }
    assert_eq!((world.starts.len(), world.mains()), (3, 0), "{:?}", kinds(&world));
    assert!(world.machine.has_given_up());
    let note = world.note();
    assert!(note.starts_with("gave up after 2 restarts") && note.contains("used too much"), "{note}");
}

/// Sampling takes longer than `start_interval`, but a run that was never within its limits was no stable one.
#[test]
fn a_process_that_exceeds_its_limits_from_its_start_is_not_restarted_for_ever() {
    let mut world = World::new();
    world.order(OpKind::Host, &limited());
    for _ in 0..8 {
        strain(&mut world);
        world.run_for(5_000);
    }
    assert_eq!((world.starts.len(), world.mains()), (3, 0), "{:?}", kinds(&world));
    assert!(world.machine.has_given_up());
    // A process that is within its limits at first is restarted: each of its runs was stable.
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
        // A start waits for the restart by the agent.
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
fn a_process_that_cannot_be_killed_is_tried_again() {
    let mut world = World::new().script("start", Does::Unkillable);
    let mut spec = limited();
    spec.policy.kind = Kind::Periodic(Schedule::Every(Duration::from_secs(3_600)));
    spec.policy.op_timeout = Duration::from_secs(3_600);
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

/// Before its first limits a process may use what it likes, so its stable life counts.
#[test]
fn a_process_that_gets_limits_after_a_stable_life_is_not_given_up() {
    let mut world = up(&spec());
    for _ in 0..4 {
        assert_eq!(world.order(OpKind::Update, &spec()).code.number(), 0);
        world.run_for(60_000);
        world.sample(over());
        assert_eq!(world.order(OpKind::Update, &limited()).code.number(), 0);
        strain(&mut world);
        world.run_for(5_000);
    }
    assert_eq!((world.starts.len(), world.machine.has_given_up()), (5, false), "{:?}", kinds(&world));
}

// ---- the whole namespace uses too much ----

#[test]
fn a_victim_of_its_group_is_ended_as_by_its_own_limit() {
    for stop_cmd in ["stop", ""] {
        let mut spec = spec();
        spec.control.stop_cmd = stop_cmd.to_owned();
        let mut world = up(&spec);
        world.term = Term::Ignores;
        world.overuse(LimitHistory::OnceWithin);
        assert_eq!(kinds(&world), ["group_over_limit"]);
        // While it is ended, further verdicts change nothing.
        world.overuse(LimitHistory::OnceWithin);
        world.run_for(10_000);
        let killed = world.signals.last() == Some(&Signal::Kill);
        assert_eq!((killed, world.mains(), world.starts.len()), (true, 1, 2));
        let note = "it was ended: pid 102 is ended because its namespace exceeded a limit: mem 12.00, 12.00, 12.00 % together \
                    (limit 10 of group g); ended in this order: it";
        assert_eq!(world.note(), note);
        assert_eq!(world.max_mains, 1);
    }
}

/// Its coming back breaks the pool each time, so it comes back more and more slowly and in the end not at
/// all.
#[test]
fn a_victim_whose_return_breaks_the_pool_is_given_up() {
    let mut world = up(&spec());
    for _ in 0..6 {
        world.overuse(LimitHistory::AlwaysOver);
        world.run_for(60_000);
    }
    assert_eq!((world.starts.len(), world.machine.has_given_up()), (3, true), "{:?}", kinds(&world));
    let mut world = up(&spec());
    for _ in 0..6 {
        world.run_for(60_000);
        world.overuse(LimitHistory::OnceWithin);
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
    Health::Unhealthy { reason: "no answer".to_owned() }
}

fn treated() -> Spec {
    let mut spec = spec();
    spec.policy.on_unhealthy = OnUnhealthy::Restart;
    spec
}

#[test]
fn an_unhealthy_process_is_reported_and_restarted_if_the_spec_says_so() {
    for (spec, hosted, again) in [
        (spec(), true, false),
        (treated(), true, true),
        // The process would not be restarted.
        (treated(), false, false),
    ] {
        let mut world = up(&spec);
        if !hosted {
            world.order(OpKind::Unhost, &spec);
        }
        world.health(Health::Healthy);
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
fn an_unhealthy_process_is_handled_after_the_running_operation() {
    let mut world = up(&treated());
    world.health(Health::Healthy);
    world.send(OpKind::Reload, Some(treated()));
    assert!(world.machine.is_busy());
    world.health(ill());
    assert_eq!(kinds(&world), [""; 0]);
    world.run_for(10_000);
    assert_eq!((kinds(&world), world.starts.len()), (vec!["unhealthy", "restart_succeeded"], 2));
    // There is no reaction if the operation has solved the problem.
    let mut world = up(&treated());
    world.send(OpKind::Reload, Some(treated()));
    world.health(ill());
    world.health(Health::Healthy);
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
fn a_process_that_was_never_healthy_is_given_up() {
    let mut world = up(&treated());
    for _ in 0..6 {
        world.run_for(60_000);
        world.health(ill());
        world.run_for(60_000);
    }
    assert_eq!((world.starts.len(), world.machine.has_given_up()), (3, true), "{:?}", kinds(&world));
    assert!(
        world.note().contains("it was unhealthy: no answer; to retry, send start or host"),
        "{}",
        world.note()
    );
    // A process that is healthy in between is restarted each time.
    let mut world = up(&treated());
    for _ in 0..6 {
        world.run_for(60_000);
        world.health(Health::Healthy);
        world.health(ill());
        world.run_for(5_000);
    }
    assert_eq!((world.starts.len(), world.mains()), (7, 1));
}

// ---- the kernel ----

#[test]
fn the_status_names_the_oom_killer() {
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

// ---- many at once ----

/// Procs that failed together are due together: their restarts are staggered once, and orders are not.
#[test]
fn a_restart_that_is_due_with_many_others_is_staggered() {
    let mut world = up(&spec());
    world.restart_delay = 3_000;
    world.set("start", Does::Exit { after: 10, code: 1 });
    let died = world.now;
    world.die(Exit::Code(1));
    world.run_for(10_100);
    let note = world.note();
    assert_eq!(note, "starts in 3 s: many are to be started again at this moment");
    world.run_for(60_000);
    let seconds: Vec<u64> = world.starts[1..].iter().map(|(at, _)| at.since(died).as_secs()).collect();
    assert_eq!(seconds, [0, 13], "at once after a stable life, then after the interval and its place");
    assert!(world.machine.has_given_up());
    let mut world = up(&spec());
    world.restart_delay = 60_000;
    world.set("start", Does::Exit { after: 10, code: 1 });
    world.die(Exit::Code(1));
    world.run_for(12_000);
    world.set("start", daemon());
    assert_eq!(world.order(OpKind::Start, &spec()).code.number(), 0);
    assert_eq!((world.starts.len(), world.mains()), (3, 1));
}

// ---- after a boot ----

#[test]
fn after_a_boot_restarts_are_staggered_and_orders_are_not() {
    let mut world = up(&spec());
    world.start_delay = 3_000;
    world.reboot();
    let began = world.now;
    assert_eq!((world.mains(), world.note().as_str()), (0, "starts in 3 s: the host has just booted"));
    world.run_for(2_900);
    assert_eq!((world.starts.len(), world.note().as_str()), (1, "starts in 1 s: the host has just booted"));
    world.run_for(1_000);
    assert_eq!(world.starts[1].0.since(began), Duration::from_secs(3));
    // The process was started by hand meanwhile: it is adopted.
    let mut world = up(&spec());
    world.start_delay = 3_000;
    world.reboot();
    world.come_again();
    world.run_for(10_000);
    assert_eq!((world.starts.len(), world.mains(), world.machine.process().is_some()), (1, 1, true));
    // The agent dies while it waits.
    let mut world = up(&spec());
    world.start_delay = 3_000;
    world.reboot();
    world.run_for(1_000);
    world.crash();
    world.run_for(10_000);
    assert_eq!((world.starts.len(), world.mains()), (2, 1));
    for (kind, starts) in [(OpKind::Start, 2), (OpKind::Host, 2), (OpKind::Stop, 1), (OpKind::Unhost, 1)] {
        let mut world = up(&spec());
        world.start_delay = 20_000;
        world.reboot();
        let began = world.now;
        world.order(kind, &spec());
        assert!(world.now.since(began) < Duration::from_secs(3), "{kind:?} does not wait");
        world.run_for(60_000);
        assert_eq!(world.starts.len(), starts, "{kind:?}");
    }
}

#[test]
fn starts_of_periodic_and_once_procs_are_not_staggered() {
    let every = Kind::Periodic(Schedule::Every(Duration::from_secs(60)));
    for (kind, starts) in [(every, 2), (Kind::Once, 1)] {
        let mut spec = spec();
        spec.policy.kind = kind.clone();
        let mut world = World::new();
        world.order(OpKind::Host, &spec);
        world.run_for(100);
        world.start_delay = 3_600_000;
        world.reboot();
        world.run_for(1_000);
        assert_eq!(world.starts.len(), starts, "{kind:?}");
    }
}
