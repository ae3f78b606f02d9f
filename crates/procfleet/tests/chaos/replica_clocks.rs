//! Three servers whose clocks are an hour apart, on a PostgreSQL database whose own clock is set while one op
//! is under way and another one waits for a host that is away. No outcome changes, and no lease moves.

use crate::database::SharedDatabase;
use crate::faults::{ABSENCE, NO_AGENT, TIMEOUT};
use crate::history::{self, Sent};
use crate::preload::{HOUR, WallClock};
use crate::table::Row;
use crate::world::{AGENTS, LONG_OP_TIMEOUT, Side, World, folder};
use crate::{Job, Part};
use procfleet_testkit::{Cluster, PATIENCE, Proc, ask_again, programs, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use tempfile::TempDir;

/// Seconds that the clock of each server is ahead.
const SERVERS: [i64; 3] = [-HOUR, 0, HOUR];
/// Seconds that the database's clock is ahead, one after the other.
static STEPS: [i64; 4] = [HOUR, 0, -HOUR, 0];
const QUICK_STEPS: usize = 2;
/// The store's time may be off by this many milliseconds: a smaller deviation counts as drift.
const DRIFT: i64 = 2_000;
const BEFORE: usize = 6;
const AFTER: usize = 12;
const LOOK: Duration = Duration::from_millis(50);
const NAME: &str = "servers an hour apart, and the database's clock is set";
const SUCCESS: u64 = 0;
const METRIC: &str = "procfleet_store_clock_jumps_total";
/// Log line of the server that corrects the store's time.
const JUMPED: &str = "the database's clock has jumped; the store's time goes on as before";

pub(crate) fn jobs(quick: bool) -> Vec<Job> {
    let steps = if quick { &STEPS[..QUICK_STEPS] } else { &STEPS[..] };
    vec![Job { part: Part::Replicas, name: NAME.to_owned(), play: Box::new(move || play(steps)) }]
}

fn play(steps: &[i64]) -> Row {
    let clocks = open_folder();
    let environments = SERVERS.iter().enumerate().map(|(index, off)| {
        let clock = WallClock::new(clocks.path(), &format!("server-{index}"));
        clock.set(*off);
        clock.environment()
    });
    let environments = environments.collect();
    let clock = WallClock::new(clocks.path(), "database");
    let cluster = Cluster::own_with(&[], &clock.environment());
    let mut world = World::on_database(SharedDatabase::of_own(cluster), environments, AGENTS);
    world.op_timeout = LONG_OP_TIMEOUT;
    let mut trouble = Vec::from_iter(wrong_clocks(&mut world));
    let addresses = world.addresses();
    let (present, away) = addresses.split_at(AGENTS - 1);
    world.kill(Side::Agent(AGENTS - 1));
    let workload = world.workload_on(present);
    workload.wait_for(BEFORE);
    let before = members(&world);
    let (mut long, mut waiting) = (Vec::new(), Vec::new());
    for (number, off) in steps.iter().enumerate() {
        let ops = OpenOps::send(&world, number, &present[..1], away);
        clock.set(*off);
        let mut faults = Vec::from_iter(missed_jump(&mut world, number + 1, *off));
        ops.proc.open_gate(&ops.gate);
        faults.extend(wrong_outcome(&world, &ops.long, SUCCESS));
        let now = members(&world);
        if now != before {
            faults.push(format!("servers and leases were {before}, and are {now}"));
        }
        trouble.extend(faults.into_iter().map(|fault| format!("set to {off} s: {fault}")));
        wait_for_beats(&world);
        long.push(ops.long);
        waiting.push(ops.waiting);
    }
    workload.wait_for(AFTER);
    let mut sent = workload.end();
    // Agents have a minute to come back after the start of a server.
    trouble.extend(waiting.iter().filter_map(|one| wrong_outcome(&world, one, NO_AGENT)));
    sent.extend(long.into_iter().chain(waiting));
    world.start_side(Side::Agent(AGENTS - 1), "");
    world.wait_until_connected();
    let verdict = world.judge(&sent);
    let mut row = Row::played(NAME, steps.len() as u64, verdict, trouble);
    row.must_not_end_with(TIMEOUT);
    row
}

/// An op that has begun, and one that waits for a host that is away.
struct OpenOps {
    proc: Proc,
    gate: String,
    long: Sent,
    waiting: Sent,
}

impl OpenOps {
    fn send(world: &World, number: usize, present: &[String], away: &[String]) -> OpenOps {
        let (word, gate) = (format!("long.{number}"), format!("gate-{number}"));
        let proc = world.proc(&format!("long-{number}"));
        let long = history::send(&world.any, &proc, present, &word, &format!("; {}", programs::gate(&gate)));
        let has_begun = || proc.read("log").lines().any(|line| line.split(' ').next() == Some(word.as_str()));
        wait_until(PATIENCE, "the op has begun", has_begun);
        let absent = world.proc(&format!("absent-{number}"));
        let waiting = history::send(&world.any, &absent, away, &format!("absent.{number}"), "");
        OpenOps { proc, gate, long, waiting }
    }
}

/// Waits for the outcome, and returns it if it is another one than expected.
fn wrong_outcome(world: &World, one: &Sent, expected: u64) -> Option<String> {
    let has_ended = || one.has_ended(&world.any).then_some(());
    let code = ask_again(LOOK, ABSENCE, || has_ended().and_then(|()| one.code(&world.any)));
    (code != Some(expected)).then(|| format!("{} ended with {code:?}", one.word))
}

/// Waits until each server has looked at the database's clock once more.
fn wait_for_beats(world: &World) {
    let beats = || -> Vec<i64> {
        let sql = "SELECT beat FROM beats JOIN servers ON id = server WHERE state = 'up' ORDER BY id";
        database(world).psql(sql).lines().map(|beat| beat.parse().expect("a number")).collect()
    };
    let before = beats();
    wait_until(PATIENCE, "each server has looked again", || {
        beats().iter().zip(&before).all(|(now, before)| *now > before + 1)
    });
}

/// PostgreSQL runs as another account, and reads the clock's library and file.
fn open_folder() -> TempDir {
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("our own folder");
    folder
}

fn database(world: &World) -> &SharedDatabase {
    world.database.as_ref().expect("they share a database")
}

/// The servers that are up, and the holder of each lease.
fn members(world: &World) -> String {
    let servers = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM servers WHERE state = 'up'";
    let leases = "SELECT string_agg(concat_ws(' ', name, server, term), ', ' ORDER BY name) FROM leases";
    database(world).psql(&format!("SELECT ({servers}) || '; ' || ({leases})"))
}

/// Compares the clocks of the servers by the first lines of their logs.
fn wrong_clocks(world: &mut World) -> Option<String> {
    let seconds = [0, 1, 2].map(|server| {
        let log = world.said(Side::Server(server));
        let stamp = log.split_whitespace().next().expect("a log");
        database(world).number(&format!("SELECT extract(epoch FROM '{stamp}'::timestamptz)::bigint"))
    });
    let is_wrong = seconds.windows(2).any(|pair| pair[1] - pair[0] < HOUR / 2);
    is_wrong.then(|| format!("the servers' clocks are not an hour apart: {seconds:?}"))
}

/// Waits until a server has logged, counted and corrected this jump, which is one of so many. Returns what is
/// missing.
fn missed_jump(world: &mut World, jumps: usize, off: i64) -> Option<String> {
    let mut seen = || {
        let logged = [0, 1, 2].map(|server| world.said(Side::Server(server)).matches(JUMPED).count());
        let teller = logged.iter().position(|count| *count > 0).unwrap_or_default();
        let page = world.page(teller, "/metrics");
        let counted = page.lines().find_map(|line| line.strip_prefix(METRIC)?.trim().parse::<usize>().ok());
        (logged.iter().sum::<usize>(), counted, database(world).number("SELECT shift_ms FROM store_clock"))
    };
    let is_right = |(logged, counted, shift): &(usize, Option<usize>, i64)| {
        // A correction that fails is tried and logged again, and the jump counts once.
        *logged >= jumps && *counted == Some(jumps) && (shift + off * 1_000).abs() < DRIFT
    };
    match ask_again(LOOK, PATIENCE, || Some(seen()).filter(is_right)) {
        Some(_) => None,
        None => Some(format!("after jump {jumps}: logged, counted and shift of the store are {:?}", seen())),
    }
}
