//! Server, agent and the connection between them, each ended, stopped or broken at random moments.

use crate::dice::Dice;
use crate::table::Row;
use crate::world::{AGENTS, SERVER, Side, World};
use crate::{Job, Part};
use procfleet_testkit::{PATIENCE, Signal, Way, kill, wait_until};
use std::time::{Duration, Instant};

/// Longest time between two faults, in milliseconds.
const LATEST_MILLIS: u64 = 400;

pub(crate) fn jobs(seed: u64, rounds: u64) -> Vec<Job> {
    let play = move || play(seed, rounds);
    vec![Job { part: Part::Random, name: "random".to_owned(), play: Box::new(play) }]
}

fn play(seed: u64, rounds: u64) -> Row {
    let mut dice = Dice::new(seed, "random");
    let mut world = World::with_agents(AGENTS);
    let workload = world.workload();
    for _ in 0..rounds {
        for_a_while(&mut dice);
        match dice.below(6) {
            0 | 1 => again(&mut world, Side::Agent(dice.index(AGENTS))),
            2 => again(&mut world, SERVER),
            3 => {
                // All at the same moment, as when the power fails.
                let agents = (0..AGENTS).map(Side::Agent);
                agents.clone().for_each(|agent| world.kill(agent));
                again(&mut world, SERVER);
                agents.for_each(|agent| world.start_side(agent, ""));
            }
            4 => {
                let way = if dice.below(2) == 0 { Way::Cut } else { Way::Lossy };
                world.servers[0].proxy.set(way);
                for_a_while(&mut dice);
                world.servers[0].proxy.set(Way::Open);
            }
            _ => {
                let agent = Side::Agent(dice.index(AGENTS));
                let side = if dice.below(2) == 0 { SERVER } else { agent };
                kill(world.pid(side), Signal::STOP);
                for_a_while(&mut dice);
                kill(world.pid(side), Signal::CONT);
            }
        }
    }
    let sent = workload.end();
    world.wait_until_connected();
    let verdict = world.judge(&sent);
    Row::played("random", rounds, verdict, Vec::new())
}

fn again(world: &mut World, side: Side) {
    world.kill(side);
    world.start_side(side, "");
}

fn for_a_while(dice: &mut Dice) {
    let (began, time) = (Instant::now(), Duration::from_millis(dice.below(LATEST_MILLIS)));
    wait_until(PATIENCE, "its moment has come", || began.elapsed() >= time);
}
