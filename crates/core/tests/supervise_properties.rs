//! Properties of the supervision machine for any sequence of inputs.
//!
//! The world itself checks on every step that no op is begun or answered twice, that nothing that was stopped
//! is started without an order, and that a tick is never followed by the same wake-up.

mod common;

use common::{Does, Term, World, op, spec};
use procfleet_core::groups::{Overuse, Pool};
use procfleet_core::op::Outcome;
use procfleet_core::process::{Absence, Cause, Evidence, Exit, Found, Process, Sighting};
use procfleet_core::spec::{Detached, Kind, LEAST_LIFE, OnUnhealthy, Schedule, Spec};
use procfleet_core::stagger;
use procfleet_core::supervise::{
    CommandEnd, EffectAnswer, Health, Input, LimitHistory, LookId, Machine, Next, PlanId, ProcNotice, Record,
    RunId, Step, Usage, View, Write,
};
use procfleet_core::{BootTime, OpId, OpKind, ProcKey};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Act {
    Order {
        kind: OpKind,
        shape: Shape,
        patience: u64,
    },
    OrderWithoutSpec(OpKind),
    Wait(u64),
    Die(Exit),
    Script(&'static str, Does),
    Term(Term),
    /// From now on each process starts something that leaves it.
    Leaves(Option<Term>),
    LookDelay(u64),
    /// The wall clock is set.
    Clock(u64),
    /// A number of consecutive samples with this usage.
    Sample(usize, f64),
    Health(Health),
    /// Its namespace uses too much.
    Overuse(LimitHistory),
    /// The delay of the staggered start after a restart of the agent.
    PlaceDelay(u64),
    Crash {
        away: u64,
    },
    /// The next step's writes are durable and its effects never happen.
    CrashBeforeEffects,
    /// From now on what may be lost by a crash is lost by it, or not.
    Lag(bool),
    /// Inputs that no effect asked for.
    Garbage(Input),
}

fn arb_exit() -> impl Strategy<Value = Exit> {
    prop_oneof![
        (0..3).prop_map(Exit::Code),
        Just(Exit::Signal(9)),
        Just(Exit::Dumped(11)),
        Just(Exit::OutOfMemory),
        Just(Exit::Unknown)
    ]
}

fn arb_health() -> impl Strategy<Value = Health> {
    prop_oneof![1 => Just(Health::Healthy), 2 => Just(Health::Unhealthy { reason: "no answer".to_owned() })]
}

fn arb_past() -> impl Strategy<Value = LimitHistory> {
    prop_oneof![Just(LimitHistory::AlwaysOver), Just(LimitHistory::OnceWithin)]
}

fn arb_kind() -> impl Strategy<Value = OpKind> {
    // An unregistered process keeps running unsupervised, so a later start may be a second one.
    let known = OpKind::ALL.into_iter().filter(|kind| *kind != OpKind::Unregister);
    proptest::sample::select(known.collect::<Vec<_>>())
}

/// A spec in short, so that a failing case can be read.
#[derive(Clone, Debug)]
struct Shape {
    pid_file: bool,
    /// Whether there is a command for stop, restart and kill.
    commands: [bool; 3],
    kind: Kind,
    retries: u32,
    interval: u64,
    check: u64,
    begin: u64,
    limited: bool,
    on_unhealthy: OnUnhealthy,
    detached: Detached,
    kill_after: Option<u64>,
}

impl Shape {
    fn spec(self) -> Spec {
        let mut spec = spec();
        if !self.pid_file {
            spec.identity.pid_path.clear();
        }
        let control = &mut spec.control;
        let fields = [
            (&mut control.stop_cmd, "stop"),
            (&mut control.restart_cmd, "restart"),
            (&mut control.kill_cmd, "kill"),
        ];
        for ((field, name), _) in fields.into_iter().zip(self.commands).filter(|(_, has)| *has) {
            name.clone_into(field);
        }
        spec.policy.kind = self.kind.clone();
        spec.policy.start_retries = self.retries;
        spec.policy.start_interval = Duration::from_secs(self.interval);
        spec.policy.start_check = Duration::from_secs(self.check);
        spec.resource.cpu = self.limited.then_some(50.0);
        spec.policy.check_begin = Duration::from_secs(self.begin);
        spec.policy.op_timeout = Duration::from_secs(4);
        spec.policy.on_unhealthy = self.on_unhealthy;
        spec.policy.detached = self.detached;
        spec.policy.kill_after = self.kill_after.map(Duration::from_secs);
        spec
    }
}

fn arb_shape() -> impl Strategy<Value = Shape> {
    let every = (1..20u64).prop_map(|secs| Kind::Periodic(Schedule::Every(Duration::from_secs(secs))));
    let cron = proptest::sample::select(vec!["1000", "7000", "60000", "200000", "never"])
        .prop_map(|rule| Kind::Periodic(Schedule::Cron(rule.to_owned())));
    let kind = prop_oneof![7 => Just(Kind::Resident), 1 => Just(Kind::Once), 2 => every, 2 => cron];
    let begin = prop_oneof![3 => Just(0), 1 => 1..8u64];
    let on_unhealthy = prop_oneof![Just(OnUnhealthy::Tell), Just(OnUnhealthy::Restart)];
    let detached = prop_oneof![3 => Just(Detached::End), 1 => Just(Detached::Keep)];
    let times = (0..4u32, 1..12u64, 1..6u64, begin, option::weighted(0.3, 1..5u64));
    (any::<bool>(), any::<[bool; 3]>(), kind, times, any::<bool>(), on_unhealthy, detached).prop_map(
        |(pid_file, commands, kind, times, limited, on_unhealthy, detached)| {
            let (retries, interval, check, begin, kill_after) = times;
            Shape {
                kill_after,
                pid_file,
                commands,
                kind,
                retries,
                interval,
                check,
                begin,
                limited,
                on_unhealthy,
                detached,
            }
        },
    )
}

fn arb_start() -> impl Strategy<Value = Does> {
    let file = option::weighted(0.8, 0..4_000u64);
    let life = || option::weighted(0.5, 1..30_000u64);
    prop_oneof![
        4 => (1..6_000u64, file, life()).prop_map(|(after, file, lives)| Does::Daemon { after, file, lives }),
        2 => (life(), 0..2i32).prop_map(|(lives, code)| Does::Foreground { lives, code }),
        1 => (1..6_000u64, 0..2i32).prop_map(|(after, code)| Does::Exit { after, code }),
        1 => Just(Does::Hang),
        1 => Just(Does::NotStarted),
    ]
}

fn arb_end_script() -> impl Strategy<Value = Does> {
    prop_oneof![
        4 => (1..6_000u64, 0..2i32).prop_map(|(after, code)| Does::EndMain { after, code }),
        1 => (1..6_000u64, 0..2i32).prop_map(|(after, code)| Does::Exit { after, code }),
        1 => Just(Does::Hang),
        1 => Just(Does::Unkillable),
        1 => Just(Does::NotStarted),
    ]
}

fn arb_replace_script() -> impl Strategy<Value = Does> {
    let replace = (1..6_000u64, option::of(0..3_000u64), 0..2i32)
        .prop_map(|(after, file, code)| Does::Replace { after, file, code });
    prop_oneof![1 => replace, 1 => arb_end_script()]
}

fn arb_script() -> impl Strategy<Value = Act> {
    let named = |names: [&'static str; 2]| proptest::sample::select(names.to_vec());
    prop_oneof![
        arb_start().prop_map(|does| Act::Script("start", does)),
        (named(["stop", "kill"]), arb_end_script()).prop_map(|(name, does)| Act::Script(name, does)),
        (named(["restart", "reload"]), arb_replace_script()).prop_map(|(name, does)| Act::Script(name, does)),
    ]
}

fn arb_process() -> impl Strategy<Value = Process> {
    (100..110u32, 0..3u64).prop_map(|(pid, start_ticks)| Process {
        pid,
        start_ticks,
        found: Found::Name,
        evidence: Evidence::default(),
    })
}

fn arb_sighting() -> impl Strategy<Value = Sighting> {
    prop_oneof![
        arb_process().prop_map(Sighting::Running),
        any::<bool>().prop_map(|hopeless| Sighting::Absent(Absence { cause: Cause::NoIdentity, hopeless })),
    ]
}

fn arb_end() -> impl Strategy<Value = CommandEnd> {
    arb_exit().prop_map(|exit| CommandEnd::Exited { exit, output: String::new() })
}

/// Answers to effects of an earlier agent, and news of unknown processes.
fn arb_garbage() -> impl Strategy<Value = Input> {
    const OTHER: u64 = 1 << 40;
    prop_oneof![
        (0..9u64, arb_sighting()).prop_map(|(n, sighting)| Input::Answer(EffectAnswer::Sighted {
            look: LookId(OTHER + n),
            sighting
        })),
        (0..9u64, arb_end())
            .prop_map(|(n, end)| Input::Answer(EffectAnswer::CommandEnded { run: RunId(OTHER + n), end })),
        (arb_process(), arb_exit())
            .prop_map(|(process, exit)| Input::Notice(ProcNotice::Exited { process, exit })),
        (arb_process(), arb_health())
            .prop_map(|(process, health)| Input::Notice(ProcNotice::Health { process, health })),
        (arb_process(), arb_past()).prop_map(|(process, past)| overused(process, past)),
        (arb_process()).prop_map(|process| Input::Notice(ProcNotice::Replaced {
            old: Process { pid: 99, ..process },
            process
        })),
        (0..9u64).prop_map(|n| staggered(OTHER + n, BootTime(n))),
        Just(Input::Tick),
    ]
}

fn overused(process: Process, past: LimitHistory) -> Input {
    let (sums, victims) = (vec![11.0; 3], vec!["it".to_owned()]);
    let overuse = Overuse { group: "g".to_owned(), pool: Pool::Cpu, limit: 10.0, sums, victims };
    Input::Notice(ProcNotice::Overused { process, overuse: Box::new(overuse), past })
}

fn staggered(plan: u64, at: BootTime) -> Input {
    Input::Answer(EffectAnswer::Staggered {
        plan: PlanId(plan),
        at,
        cause: stagger::StaggerCause::AgentRestart,
    })
}

fn arb_act() -> impl Strategy<Value = Act> {
    let order = (arb_kind(), arb_shape(), prop_oneof![4 => Just(3_600_000), 1 => 0..10_000u64])
        .prop_map(|(kind, shape, patience)| Act::Order { kind, shape, patience });
    prop_oneof![
        8 => order,
        3 => arb_kind().prop_map(Act::OrderWithoutSpec),
        6 => prop_oneof![0..100u64, 0..3_000u64, 0..40_000u64].prop_map(Act::Wait),
        2 => arb_exit().prop_map(Act::Die),
        3 => arb_script(),
        1 => prop_oneof![Just(Term::Ignores), (0..5_000u64).prop_map(|after| Term::Dies { after })]
            .prop_map(Act::Term),
        1 => option::of(prop_oneof![Just(Term::Ignores), (0..5_000u64).prop_map(|after| Term::Dies { after })])
            .prop_map(Act::Leaves),
        1 => (0..50u64).prop_map(Act::LookDelay),
        1 => (0..300_000u64).prop_map(Act::Clock),
        1 => (1..4usize, prop_oneof![Just(10.0), Just(90.0)]).prop_map(|(n, cpu)| Act::Sample(n, cpu)),
        1 => arb_health().prop_map(Act::Health),
        1 => arb_past().prop_map(Act::Overuse),
        1 => (0..30_000u64).prop_map(Act::PlaceDelay),
        1 => prop_oneof![Just(0), 0..20_000u64].prop_map(|away| Act::Crash { away }),
        1 => Just(Act::CrashBeforeEffects),
        1 => any::<bool>().prop_map(Act::Lag),
        2 => arb_garbage().prop_map(Act::Garbage),
    ]
}

/// `like` says what stays the same: a proc that changes its nature in the middle is another proc.
fn play(like: Shape, acts: Vec<Act>) -> World {
    let mut world = World::new();
    world.only_fair = true;
    for act in acts {
        match act {
            Act::Order { kind, shape, patience } => {
                let start_by = BootTime(world.now.0 + patience);
                let shape = Shape {
                    pid_file: like.pid_file,
                    kind: like.kind.clone(),
                    detached: like.detached,
                    ..shape
                };
                world.send_by(kind, Some(shape.spec()), start_by);
            }
            Act::OrderWithoutSpec(kind) => {
                world.send(kind, None);
            }
            Act::Wait(millis) => world.run_for(millis),
            Act::Die(exit) => world.die(exit),
            Act::Script(command, does) => world.set(command, does),
            Act::Term(term) => world.term = term,
            Act::Leaves(leaves) => world.leaves = leaves,
            Act::LookDelay(delay) => world.look_delay = delay,
            Act::Clock(ahead) => world.wall_ahead = ahead,
            Act::Sample(times, cpu) => {
                (0..times).for_each(|_| world.sample(Usage { cpu, ..Usage::default() }));
            }
            Act::Health(health) => world.health(health),
            Act::Overuse(past) => world.overuse(past),
            Act::PlaceDelay(delay) => (world.start_delay, world.restart_delay) = (delay, delay / 2),
            Act::Crash { away } => world.crash_for(away),
            Act::CrashBeforeEffects => world.fail_next_effects = true,
            Act::Lag(lagging) => world.lagging = lagging,
            Act::Garbage(input) => world.feed(input),
        }
        // A kept process may be the process itself, if a command was taken for it.
        let whole = like.detached == Detached::End;
        assert!(!whole || world.max_mains <= 1, "two processes at once: {:#?}", world.machine);
    }
    world
}

proptest! {
    // About five seconds in debug.
    #![proptest_config(ProptestConfig::with_cases(8_000))]

    #[test]
    fn nothing_is_lost_run_twice_or_brought_back(like in arb_shape(), acts in vec(arb_act(), 1..40)) {
        let whole = like.detached == Detached::End;
        let crashes = acts.iter().any(|act| matches!(act, Act::Crash { .. } | Act::CrashBeforeEffects));
        let mut world = play(like, acts);
        // Liveness: sixteen orders of at most 4 + 2 + 3 + 4 + 2 + 7 seconds each, and the answers to looks.
        world.run_for(600_000);
        world.look_delay = 0;
        world.run_for(1_000);
        prop_assert_eq!(world.open_ops(), vec![], "{:#?}", world.machine);
        prop_assert!(!whole || world.max_mains <= 1);
        // The machine knows every main process, whatever failed. After a crash a scan of the host may have to
        // find it.
        let resident = world.machine.spec().is_some_and(|spec| spec.policy.kind == Kind::Resident);
        if whole && resident && !crashes && !world.machine.is_busy() {
            let known = world.machine.process().is_some();
            prop_assert!(known || world.mains() == 0, "unknown: {:#?}", world.machine);
        }
        // A scheduled proc waits for its time, runs, or has a note with the reason.
        let scheduled = world.machine.spec().is_some_and(|spec| spec.policy.kind.schedule().is_some());
        if scheduled && world.hosted() {
            let waits = world.machine.wake_at().is_some() || world.machine.process().is_some();
            prop_assert!(waits || !world.note().is_empty(), "{:#?}", world.machine);
        }
    }

    /// Whatever the world says, even if it contradicts itself.
    #[test]
    fn no_sequence_of_odd_inputs_breaks_an_invariant(inputs in vec((0..3_000u64, arb_odd()), 1..60)) {
        let mut odd = Odd::new();
        for (wait, input) in inputs {
            odd.now += Duration::from_millis(wait);
            odd.feed(input)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// A process that dies is restarted, but not for ever: start_interval after its last start unless its run
    /// was stable, and at most start_retries times in a row, for every kind and wherever the agent crashes in
    /// between.
    #[test]
    fn a_crash_loop_is_slow_and_has_an_end(
        shape in arb_shape(),
        lives in vec((prop_oneof![3 => 1..2_000u64, 1 => 2_000..60_000u64], any::<bool>()), 1..12),
    ) {
        let mut spec = shape.spec();
        spec.resource = Default::default();
        let (policy, resident) = (spec.policy.clone(), spec.policy.kind == Kind::Resident);
        let longest = lives.iter().map(|(life, _)| *life).max().unwrap_or_default();
        let crashes = lives.iter().any(|(_, crash)| *crash);
        let mut world = World::new();
        world.send(OpKind::Host, Some(spec));
        for (life, crash) in lives {
            world.set("start", Does::Daemon { after: 100, file: Some(0), lives: Some(life) });
            world.run_for(life + 5_000);
            if crash {
                world.crash();
            }
        }
        // Longer than all pauses together.
        world.run_for(if resident { 3_600_000 } else { 60_000 });
        if resident {
            let mut in_a_row = 0;
            for pair in world.starts.windows(2) {
                let gap = pair[1].0.since(pair[0].0);
                let stable = gap > policy.stable_after();
                in_a_row = if stable { 0 } else { in_a_row + 1 };
                prop_assert!(gap >= policy.start_interval, "{gap:?} {:?}", world.starts);
                // A pause is as long as it was sent, each time: a start takes 100 ms.
                let most = policy.start_interval.max(Duration::from_millis(longest));
                prop_assert!(crashes || gap <= most + Duration::from_secs(1), "{gap:?} {:?}", world.starts);
                prop_assert!(in_a_row <= policy.start_retries, "{:?}", world.starts);
            }
            prop_assert!(world.machine.has_given_up() || world.mains() == 1, "{:#?}", world.machine);
        }
        if policy.kind == Kind::Once {
            prop_assert_eq!(world.starts.len(), 1);
        }
        prop_assert!(world.max_mains <= 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Limits apply in every stage except while a process is being ended, and never to a resident process
    /// that is not hosted.
    #[test]
    fn limits_apply_to_hosted_procs_and_to_runs(
        shape in arb_shape(),
        start in arb_start(),
        orders in vec((arb_kind(), 0..8_000u64), 1..6),
    ) {
        let spec = Shape { limited: true, ..shape }.spec();
        let resident = spec.policy.kind == Kind::Resident;
        let mut world = World::new().script("start", start);
        world.only_fair = true;
        for (kind, wait) in orders {
            world.send(kind, Some(spec.clone()));
            world.run_for(wait);
            let (limited, process) = (world.machine.limited_process(), world.machine.process());
            if !world.machine.is_busy() {
                let expected = process.filter(|_| world.hosted() || !resident);
                prop_assert!(limited == expected || !resident && !world.hosted(), "{:#?}", world.machine);
            }
            let over = |world: &World| world.events.iter().filter(|event| event.kind() == "over_limit").count();
            let before = over(&world);
            (0..3).for_each(|_| world.sample(Usage { cpu: 90.0, ..Usage::default() }));
            prop_assert_eq!(over(&world) - before, usize::from(limited.is_some()), "{:#?}", world.machine);
            if let Some(limited) = limited {
                world.run_for(60_000);
                prop_assert!(!world.is_live(limited.pid), "{:#?}", world.machine);
            }
        }
        world.run_for(600_000);
        prop_assert_eq!(world.open_ops(), vec![]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A start succeeds if and only if a process is alive at the end of its window and has been for a second,
    /// whatever processes came and went before. The outcome comes neither early nor much too late.
    #[test]
    fn a_start_is_judged_by_the_process_at_the_end_of_its_check(
        shape in arb_shape(),
        after in 1..3_900u64,
        lives in vec((0..2_500u64, prop_oneof![3 => (1..2_500u64).prop_map(Some), 1 => Just(None)]), 1..5),
        look_delay in prop_oneof![3 => Just(0), 1 => 0..50u64],
    ) {
        let mut spec = shape.spec();
        spec.policy.kind = Kind::Resident;
        let (window, least) = (spec.policy.launch_check(), LEAST_LIFE);
        // Without a pid file, a command that is still at work at the end of the check counts as the process.
        let quick = u64::try_from(spec.policy.start_check.as_millis() / 2).expect("a few seconds");
        let after = if spec.identity.pid_path.is_empty() { after.min(quick) } else { after };
        let mut world = World::new().script("start", Does::Launcher { after, lives });
        world.look_delay = look_delay;
        let ended = world.now + Duration::from_millis(after);
        let outcome = world.order(OpKind::Start, &spec);
        let age = world.main_age();
        // Looks are up to 200 ms apart, and their answers take up to 50 ms.
        let unseen = Duration::from_millis(300);
        let has_lived = |for_so_long: Duration| age.is_some_and(|age| u128::from(age) >= for_so_long.as_millis());
        let earliest = ended + window;
        let latest = earliest + spec.policy.sight_check() + least + unseen;
        prop_assert!((earliest..=latest).contains(&world.now), "{:?} {outcome:?}", world.now.since(ended));
        match outcome.code.number() {
            // A start time has ticks of 10 ms.
            0 => prop_assert!(has_lived(least - Duration::from_millis(10)), "{age:?}"),
            836 => prop_assert!(!has_lived(least + unseen), "{age:?} {outcome:?}"),
            other => prop_assert!(false, "{other}: {outcome:?}"),
        }
    }
}

#[derive(Clone, Debug)]
enum OddInput {
    Order(OpKind, Option<Shape>, u64),
    Sighted(u64, Sighting),
    Ended(u64, CommandEnd),
    Exited(Process, Exit),
    Planned(u64, Next),
    Sampled(Process, f64),
    Health(Process, Health),
    Overused(Process, LimitHistory),
    Appeared(Process),
    Staggered(u64, u64),
    Tick,
    Wake,
    Recover,
}

/// Ids near those in use; answers that are valid, stale or invented.
fn arb_odd() -> impl Strategy<Value = OddInput> {
    prop_oneof![
        4 => (arb_kind(), option::of(arb_shape()), 0..20_000u64)
            .prop_map(|(kind, shape, patience)| OddInput::Order(kind, shape, patience)),
        6 => (0..3u64, arb_sighting()).prop_map(|(back, sighting)| OddInput::Sighted(back, sighting)),
        4 => (0..3u64, arb_end()).prop_map(|(back, end)| OddInput::Ended(back, end)),
        2 => (arb_process(), arb_exit()).prop_map(|(process, exit)| OddInput::Exited(process, exit)),
        2 => (0..3u64, arb_next()).prop_map(|(back, next)| OddInput::Planned(back, next)),
        2 => (arb_process(), 0.0..100.0).prop_map(|(process, cpu)| OddInput::Sampled(process, cpu)),
        1 => (arb_process(), arb_health()).prop_map(|(process, health)| OddInput::Health(process, health)),
        1 => (arb_process(), arb_past()).prop_map(|(process, past)| OddInput::Overused(process, past)),
        1 => arb_process().prop_map(OddInput::Appeared),
        2 => (0..3u64, 0..200_000u64).prop_map(|(back, at)| OddInput::Staggered(back, at)),
        1 => Just(OddInput::Tick),
        4 => Just(OddInput::Wake),
        1 => Just(OddInput::Recover),
    ]
}

fn arb_next() -> impl Strategy<Value = Next> {
    prop_oneof![
        4 => (0..200_000u64, 0..3u32).prop_map(|(at, missed)| Next::At { at: BootTime(at), missed }),
        1 => Just(Next::Never { reason: String::new() }),
    ]
}

struct Odd {
    machine: Machine,
    now: BootTime,
    record: Option<Record>,
    /// The newest id that was asked with.
    newest: u64,
    orders: u32,
    begun: Vec<(OpId, OpKind)>,
    kinds: Vec<(OpId, OpKind)>,
    done: Vec<OpId>,
}

impl Odd {
    fn new() -> Odd {
        Odd {
            machine: Machine::new(key()),
            now: BootTime(1_000),
            record: None,
            newest: 0,
            orders: 0,
            begun: Vec::new(),
            kinds: Vec::new(),
            done: Vec::new(),
        }
    }

    fn feed(&mut self, input: OddInput) -> Result<(), TestCaseError> {
        let input = match input {
            OddInput::Order(kind, shape, patience) => {
                self.orders += 1;
                let order = procfleet_core::op::Order {
                    op: op(self.orders),
                    kind,
                    spec: shape.map(Shape::spec),
                    start_by: BootTime(self.now.0 + patience),
                    accounts: procfleet_core::grants::GrantScope::All,
                };
                self.kinds.push((order.op, kind));
                Input::Order(Box::new(order))
            }
            OddInput::Sighted(back, sighting) => Input::Answer(EffectAnswer::Sighted {
                look: LookId(self.newest.saturating_sub(back)),
                sighting,
            }),
            OddInput::Ended(back, end) => Input::Answer(EffectAnswer::CommandEnded {
                run: RunId(self.newest.saturating_sub(back)),
                end,
            }),
            OddInput::Exited(process, exit) => Input::Notice(ProcNotice::Exited { process, exit }),
            OddInput::Sampled(process, cpu) => {
                Input::Notice(ProcNotice::Sampled { process, usage: Usage { cpu, ..Usage::default() } })
            }
            OddInput::Planned(back, next) => {
                Input::Answer(EffectAnswer::Planned { plan: PlanId(self.newest.saturating_sub(back)), next })
            }
            OddInput::Health(process, health) => Input::Notice(ProcNotice::Health { process, health }),
            OddInput::Overused(process, past) => overused(process, past),
            OddInput::Appeared(process) => Input::Notice(ProcNotice::Appeared { process }),
            OddInput::Staggered(back, at) => staggered(self.newest.saturating_sub(back), BootTime(at)),
            OddInput::Tick => Input::Tick,
            OddInput::Wake => return self.wake(),
            OddInput::Recover => {
                let Some(record) = self.record.clone() else { return Ok(()) };
                let open = self.begun.iter().filter(|(op, _)| !self.done.contains(op)).copied().collect();
                let (machine, step) = Machine::recover(key(), record, open);
                // Queued orders do not matter here.
                self.machine = machine;
                self.newest = 0;
                return self.take(step);
            }
        };
        let step = self.machine.step(self.now, input);
        self.take(step)
    }

    /// A tick when it is due does something, for else it would be due again at once.
    fn wake(&mut self) -> Result<(), TestCaseError> {
        let Some(wake) = self.machine.wake_at() else { return Ok(()) };
        self.now = self.now.max(wake);
        // One stage's deadline may by chance be the next one's beginning; but not again and again.
        for _ in 0..3 {
            let step = self.machine.step(self.now, Input::Tick);
            self.take(step)?;
            if self.machine.wake_at() != Some(wake) {
                return Ok(());
            }
        }
        prop_assert!(false, "busy loop: {:#?}", &self.machine);
        Ok(())
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        for write in step.writes {
            match write {
                Write::Record(record) => self.record = Some(*record),
                Write::Forget => self.record = None,
                Write::Begun(op) => {
                    let kind = self.kinds.iter().find(|(id, _)| *id == op).expect("an order").1;
                    prop_assert!(!self.begun.iter().any(|(id, _)| *id == op));
                    self.begun.push((op, kind));
                }
                Write::Done(op, Outcome { .. }) => {
                    prop_assert!(!self.done.contains(&op), "{} done twice", op);
                    self.done.push(op);
                }
                Write::Event(_) => {}
            }
        }
        for effect in step.effects {
            use procfleet_core::supervise::Effect;
            match effect {
                Effect::Look { look: LookId(id), .. }
                | Effect::Run { run: RunId(id), .. }
                | Effect::Plan { plan: PlanId(id), .. }
                | Effect::Stagger { plan: PlanId(id), .. } => {
                    self.newest = self.newest.max(id);
                }
                Effect::Inspect { op, process, .. } => {
                    let sighting = match process {
                        Some(process) => Sighting::Running(process),
                        None => Sighting::Absent(Absence { cause: Cause::NoIdentity, hopeless: true }),
                    };
                    let view = View {
                        sighting,
                        instance: None,
                        registered_at: 0,
                        started_at: 0,
                        reported_at: 0,
                        version: String::new(),
                        health: Default::default(),
                        utc_offset_secs: 0,
                    };
                    let step = self
                        .machine
                        .step(self.now, Input::Answer(EffectAnswer::Inspected { op, view: Box::new(view) }));
                    self.take(step)?;
                }
                Effect::Vet { .. } => unreachable!("no order is limited to accounts"),
                Effect::Watch(_)
                | Effect::EndRun(_)
                | Effect::TermRun(_)
                | Effect::SignalOne { .. }
                | Effect::Retire(_)
                | Effect::SignalRetired { .. }
                | Effect::Signal { .. }
                | Effect::Sweep(_)
                | Effect::ClearSince(_) => {}
            }
        }
        Ok(())
    }
}

fn key() -> ProcKey {
    ProcKey { namespace: "test".to_owned(), name: "odd".to_owned() }
}
