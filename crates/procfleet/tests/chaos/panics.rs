//! A panic at every step of an op and in every worker of the server: the program ends with 70, or goes on
//! where only a request or a session was lost.

use crate::dice::Dice;
use crate::table::Row;
use crate::world::{AGENTS, SERVER, Side, World};
use crate::{Job, Part};
use procfleet_failpoint::Point;

/// How often a point is passed at most before it panics.
const LATEST: u64 = 3;
/// Rounds of other games for one round of these: `points` has played the ends of programs already.
const SELDOM: u64 = 20;
/// The exit code after a panic.
const PANICKED: i32 = 70;

/// Whether the panic costs one request or session, and not the program.
fn is_contained(point: Point) -> bool {
    matches!(
        point,
        Point::ServerRequestRead | Point::ServerOpSent | Point::ServerReportReceived | Point::ServerAckSent
    )
}

pub(crate) fn jobs(seed: u64, rounds: u64) -> Vec<Job> {
    let job = |point: Point| {
        let name = format!("panic at {}", point.name());
        let play = {
            let name = name.clone();
            move || play(point, &name, seed, rounds.div_ceil(SELDOM))
        };
        Job { part: Part::Panics, name, play: Box::new(play) }
    };
    Point::STEPS.into_iter().chain(Point::WORKERS).map(job).collect()
}

fn play(point: Point, name: &str, seed: u64, rounds: u64) -> Row {
    let mut dice = Dice::new(seed, name);
    let mut world = World::with_agents(AGENTS);
    let workload = world.workload();
    let (mut played, mut trouble) = (0, Vec::new());
    let is_server = point.name().starts_with("server.");
    for round in 0..rounds {
        let side = if is_server { SERVER } else { Side::Agent(dice.index(AGENTS)) };
        world.kill(side);
        // Workers pass their points at the start, and then perhaps not for an hour.
        let latest = if Point::WORKERS.contains(&point) { 1 } else { LATEST };
        let plan = format!("{}=panic@{}", point.name(), 1 + dice.below(latest));
        world.start_side(side, &plan);
        let fault = match is_contained(point) {
            true => go_on(&mut world, side),
            false => end(&mut world, side),
        };
        trouble.extend(fault.map(|fault| format!("round {round}: {plan}: {fault}")));
        played += 1;
        world.kill(side);
        world.start_side(side, "");
    }
    let sent = workload.end();
    world.wait_until_connected();
    let verdict = world.judge(&sent);
    Row::played(name, played, verdict, trouble)
}

/// The faults of a program that should have ended.
fn end(world: &mut World, side: Side) -> Option<String> {
    if !world.wait_until_ended(side) {
        return Some("the program went on".to_owned());
    }
    let (code, said) = (world.exit_code(side), world.said(side));
    let is_told = said.contains("panicked: the program exits with status 70");
    (code != Some(PANICKED) || !is_told).then(|| format!("it ended with {code:?} and said {said}"))
}

/// The faults of a program that should have gone on.
fn go_on(world: &mut World, side: Side) -> Option<String> {
    if !world.wait_until_said(side, "panicked: this request or session was aborted") {
        return Some("nothing panicked".to_owned());
    }
    world.wait_until_connected();
    if !world.is_running(side) {
        return Some("the program ended".to_owned());
    }
    let metrics = world.client.page("/metrics").text;
    let is_counted = metrics.lines().any(|line| line == "procfleet_panics_total 1");
    (!is_counted).then(|| format!("the panic is not counted: {metrics}"))
}
