//! Two servers on one PostgreSQL database, of which one ends at a step of an op, as `kill -9` does it. The
//! other one carries on alone: every task that was accepted by then ends while the first server is dead. If
//! the dead server had the lease `unheld`, ops of unknown hosts end only after the takeover, 15 s later; with
//! `--quick` they are not waited for.

use crate::any_server::AnyServer;
use crate::dice::Dice;
use crate::history::{LAST_OUTCOME, Sent};
use crate::table::Row;
use crate::world::{AGENTS, Side, Workload, World};
use crate::{Job, Part};
use procfleet_failpoint::Point;
use procfleet_testkit::{Way, ask_again};
use std::collections::BTreeSet;
use std::time::Duration;

const SERVERS: usize = 2;
/// How often a point is passed at most before it ends the server.
const LATEST: u64 = 3;
/// Points of one game with `--quick`, in which each point is played once.
const TOGETHER: usize = 3;
/// A point is not played more often: each round may last until the takeover.
const MOST_ROUNDS: u64 = 10;
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn jobs(seed: u64, rounds: u64, quick: bool) -> Vec<Job> {
    let (together, rounds) = if quick { (TOGETHER, 1) } else { (1, rounds.min(MOST_ROUNDS)) };
    let has_ended: HasEnded = if quick { Sent::has_ended_on_hosts } else { Sent::has_ended };
    let is_of_server = |point: &Point| point.name().starts_with("server.");
    let points: Vec<Point> = Point::STEPS.into_iter().filter(is_of_server).collect();
    let job = |points: &[Point]| {
        let names: Vec<&str> = points.iter().map(|point| point.name()).collect();
        let (name, points) = (format!("one of {SERVERS} servers at {}", names.join(", ")), points.to_vec());
        let play = {
            let name = name.clone();
            move || Game::start(&name, seed, has_ended).play(&name, &points, rounds)
        };
        Job { part: Part::Replicas, name, play: Box::new(play) }
    };
    points.chunks(together).map(job).collect()
}

/// Whether the task has the outcomes that the game waits for.
type HasEnded = fn(&Sent, &AnyServer) -> bool;

/// Whether a server passes the point only if it has agents.
fn needs_agents(point: Point) -> bool {
    point >= Point::ServerOpSent
}

struct Game {
    dice: Dice,
    world: World,
    workload: Workload,
    has_ended: HasEnded,
    /// The server that its plan has ended.
    dead: Option<usize>,
    /// The words of tasks that have ended.
    ended: BTreeSet<String>,
    trouble: Vec<String>,
}

impl Game {
    fn start(name: &str, seed: u64, has_ended: HasEnded) -> Game {
        let world = World::with_servers(SERVERS, AGENTS);
        let workload = world.workload();
        let (dead, ended, trouble) = (None, BTreeSet::new(), Vec::new());
        Game { dice: Dice::new(seed, name), world, workload, has_ended, dead, ended, trouble }
    }

    fn play(mut self, name: &str, points: &[Point], rounds: u64) -> Row {
        let mut played = 0;
        for point in points {
            for _ in 0..rounds {
                if self.trouble.is_empty() {
                    self.round(*point);
                    played += 1;
                }
            }
        }
        if let Some(dead) = self.dead {
            self.world.kill(Side::Server(dead));
            self.world.start_server(dead);
        }
        let sent = self.workload.end();
        self.world.wait_until_connected();
        let verdict = self.world.judge(&sent);
        Row::played(name, played, verdict, self.trouble)
    }

    fn round(&mut self, point: Point) {
        let dies = self.dice.index(SERVERS);
        let other = SERVERS - 1 - dies;
        if self.dead == Some(other) {
            self.world.start_server(other);
        }
        let side = Side::Server(dies);
        self.world.kill(side);
        let plan = format!("{}=kill@{}", point.name(), 1 + self.dice.below(LATEST));
        self.world.start_side(side, &plan);
        self.dead = Some(dies);
        if needs_agents(point) {
            // Agents avoid a server that they have lost, as long as they reach another one.
            self.world.servers[other].proxy.set(Way::Cut);
        }
        let is_reached = self.world.wait_until_ended(side);
        self.world.servers[other].proxy.set(Way::Open);
        match is_reached {
            true => self.carry_on(other, &plan),
            false => self.trouble.push(format!("{plan} was not reached")),
        }
    }

    /// Asks only the server that is left, which has to find the tasks that the dead one had not announced.
    fn carry_on(&mut self, other: usize, plan: &str) {
        let (alone, has_ended) = (self.world.any.only(other), self.has_ended);
        for one in self.workload.sent() {
            if self.ended.contains(&one.word) {
                continue;
            }
            match ask_again(LOOK, LAST_OUTCOME, || has_ended(&one, &alone).then_some(())) {
                Some(()) => _ = self.ended.insert(one.word),
                None => self.trouble.push(format!("{plan}: {} has no outcome without that server", one.word)),
            }
        }
        if !self.world.is_running(Side::Server(other)) {
            self.trouble.push(format!("{plan}: the other server has ended, too"));
        }
    }
}
