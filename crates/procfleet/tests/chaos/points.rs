//! Server and agent, each ended at every step of an op, as `kill -9` does it.

use crate::dice::Dice;
use crate::table::Row;
use crate::world::{AGENTS, SERVER, Side, World};
use crate::{Job, Part};
use procfleet_failpoint::Point;

/// How often a point is passed at most before it ends the program.
const LATEST: u64 = 3;

pub(crate) fn jobs(seed: u64, rounds: u64) -> Vec<Job> {
    let job = |point: Point| {
        let play = move || play(point, seed, rounds);
        Job { part: Part::Points, name: point.name().to_owned(), play: Box::new(play) }
    };
    Point::STEPS.into_iter().map(job).collect()
}

fn play(point: Point, seed: u64, rounds: u64) -> Row {
    let mut dice = Dice::new(seed, point.name());
    let mut world = World::with_agents(AGENTS);
    let workload = world.workload();
    let (mut played, mut trouble) = (0, Vec::new());
    let is_server = point.name().starts_with("server.");
    let mut ended: Option<Side> = None;
    for round in 0..rounds {
        let side = if is_server { SERVER } else { Side::Agent(dice.index(AGENTS)) };
        if let Some(other) = ended.filter(|ended| *ended != side) {
            world.start_side(other, "");
        }
        world.kill(side);
        let plan = format!("{}=kill@{}", point.name(), 1 + dice.below(LATEST));
        world.start_side(side, &plan);
        ended = Some(side);
        if !world.wait_until_ended(side) {
            trouble.push(format!("round {round}: {plan} was not reached"));
            break;
        }
        played += 1;
    }
    if let Some(side) = ended {
        world.kill(side);
        world.start_side(side, "");
    }
    let sent = workload.end();
    world.wait_until_connected();
    let verdict = world.judge(&sent);
    Row::played(point.name(), played, verdict, trouble)
}
