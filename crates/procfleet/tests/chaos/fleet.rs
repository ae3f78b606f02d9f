//! Some hundreds of simulated agents beside a real one, each a target of every task, while the server is
//! killed again and again.
//!
//! The simulated agents break their connections too, at each step of an op and without one. Their trace has a
//! line for each op that was carried out, reported and acknowledged.

use crate::dice::Dice;
use crate::history::{self, Runs, Sent};
use crate::table::Row;
use crate::world::{SERVER, World};
use crate::{Job, Part};
use procfleet_sim::{DelayRange, Drops, Fleet, FleetPlan, Script};
use procfleet_testkit::{PATIENCE, Proc, ask_again, wait_until};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const NAME: &str = "hundreds of hosts, and the server killed";
const FIRST_IP: [u8; 4] = [10, 9, 0, 1];
/// The server is not killed more often: each time, all of them come back.
const MOST_KILLS: u64 = 20;
/// How many tasks are sent between two kills.
const TASKS_EACH: usize = 3;
/// Latest time of a kill after the last task was accepted, in milliseconds.
const LATEST_MILLIS: u64 = 400;
/// Deadline for the server's confirmation that all reports are stored.
const CONFIRMED: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn jobs(seed: u64, rounds: u64, quick: bool) -> Vec<Job> {
    let (agents, kills) = (if quick { 150 } else { 400 }, rounds.min(MOST_KILLS));
    let play = move || play(seed, agents, kills);
    vec![Job { part: Part::Fleet, name: NAME.to_owned(), play: Box::new(play) }]
}

fn play(seed: u64, agents: usize, kills: u64) -> Row {
    let mut dice = Dice::new(seed, NAME);
    let mut world = World::start();
    let trace = world.folder().join("trace");
    let fleet = start(&world, seed, agents, &trace);
    wait_until(PATIENCE * 4, "all of the fleet are connected", || fleet.figures().connected == agents as u64);

    let simulated = (0..agents).map(|index| {
        let [a, b, ..] = FIRST_IP;
        let index = index + 1;
        format!("{a}.{b}.{}.{}", index / 256, index % 256)
    });
    let hosts: Vec<String> = world.addresses().into_iter().chain(simulated).collect();
    let wanted = TASKS_EACH * usize::try_from(kills + 1).unwrap_or_default();
    let (any, accepted) = (world.any.clone(), AtomicUsize::new(0));
    // One proc for each task: a simulated process that runs would not be started again.
    let procs: Vec<Proc> = (0..wanted).map(|number| world.proc(&format!("of-{number}"))).collect();
    let sent: Vec<Sent> = std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let send = |(number, proc): (usize, &Proc)| {
                let one = history::send(&any, proc, &hosts, &format!("fleet.{number}"), "");
                accepted.fetch_add(1, Ordering::SeqCst);
                one
            };
            procs.iter().enumerate().map(send).collect()
        });
        for kill in 1..=usize::try_from(kills).unwrap_or_default() {
            wait_until(PATIENCE * 4, "tasks are accepted", || {
                accepted.load(Ordering::SeqCst) >= (kill * TASKS_EACH).min(wanted)
            });
            let (began, time) = (Instant::now(), Duration::from_millis(dice.below(LATEST_MILLIS)));
            wait_until(PATIENCE, "its moment has come", || began.elapsed() >= time);
            world.kill(SERVER);
            world.start_side(SERVER, "");
        }
        caller.join().expect("a caller sends until it is heard")
    });
    world.wait_until_connected();

    let mut trouble = Vec::new();
    let verdict = history::judge(&world.any, &sent, || {
        let confirmed = ask_again(LOOK, CONFIRMED, || {
            let figures = fleet.figures();
            (figures.confirmed == figures.begun).then_some(())
        });
        let figures = fleet.figures();
        if confirmed.is_none() {
            trouble.push(format!("not all that was begun is confirmed: {figures}"));
        }
        // Dropping the fleet writes its trace to the end.
        drop(fleet);
        let mut runs = world.runs();
        let simulated = traced(&trace, &sent);
        let begun = usize::try_from(figures.begun).unwrap_or_default();
        if simulated.values().sum::<usize>() != begun {
            trouble.push(format!("{begun} were begun, and {} are traced", simulated.len()));
        }
        runs.extend(simulated);
        runs
    });
    let verdict = world.close(verdict);
    Row::played(NAME, kills, verdict, trouble)
}

fn start(world: &World, seed: u64, agents: usize, trace: &Path) -> Fleet {
    let drop = Drops {
        received_percent: 1.0,
        taken_percent: 1.0,
        reported_percent: 1.0,
        away_ms: DelayRange(0, 500),
        ..Drops::default()
    };
    let script = Script { take_ms: DelayRange(0, 300), drop, repeat_percent: 5.0, ..Script::default() };
    let plan = FleetPlan {
        servers: vec![format!("https://{}", world.servers[0].link).parse().expect("an address")],
        token: Some(world.token(agents).parse().expect("a token")),
        agents,
        first_ip: FIRST_IP.into(),
        own_addresses: false,
        data: world.folder().join("fleet"),
        script,
        seed,
        spread: Duration::ZERO,
        trace: Some(trace.to_owned()),
        threads: 1,
    };
    Fleet::start(plan).expect("a fleet")
}

/// The trace, as runs of the history.
fn traced(trace: &Path, sent: &[Sent]) -> Runs {
    let names: BTreeMap<String, (String, String)> =
        sent.iter().flat_map(|one| one.ops().map(|(op, ip)| (op, (one.word.clone(), ip.clone())))).collect();
    let text = std::fs::read_to_string(trace).expect("a trace");
    let mut runs = Runs::new();
    for op in text.lines().skip(1).filter_map(|line| line.split(',').next()) {
        let key = names.get(op).cloned().unwrap_or_else(|| (op.to_owned(), "nobody's".to_owned()));
        *runs.entry(key).or_default() += 1;
    }
    runs
}
