//! Several servers on one PostgreSQL database, with agents that know all of them and callers that call any of
//! them. Servers, agents, the ways between them and the database are ended, stopped or cut off at random
//! moments. Some faults last until others have come.

use crate::database::SharedDatabase;
use crate::dice::Dice;
use crate::table::Row;
use crate::world::{AGENTS, Side, World};
use crate::{Job, Part, replica_clocks, replica_points};
use procfleet_testkit::{FaultyProxy, Op, PATIENCE, Proc, Signal, Way, kill, programs, wait_until};
use std::time::{Duration, Instant};

/// Longest time between two faults, in milliseconds.
const LATEST_MILLIS: u64 = 1_500;
/// Longest time of most faults, in milliseconds.
const SHORT_MILLIS: u64 = 2_500;
/// Range of the time of a few: others declare a server dead after 15 s.
const LONG_MILLIS: (u64, u64) = (16_000, 22_000);
/// One of so many faults is a long one.
const LONG: u64 = 6;

pub(crate) fn jobs(seed: u64, rounds: u64, servers: usize, quick: bool) -> Vec<Job> {
    if servers < 2 {
        return Vec::new();
    }
    let name = format!("{servers} servers on PostgreSQL");
    let play = {
        let name = name.clone();
        move || Game::start(&name, seed, servers, quick).play(&name, rounds)
    };
    let mut jobs = vec![Job { part: Part::Replicas, name, play: Box::new(play) }];
    jobs.extend(replica_points::jobs(seed, rounds, quick));
    jobs.extend(replica_clocks::jobs(quick));
    jobs
}

/// A fault that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Stopped(Side),
    /// Agents have no connection to this server, or a bad one.
    Link(usize),
    /// This server has no connection to the database, or a silent one.
    Database(usize),
    /// The database refuses connections.
    NoDatabase,
}

struct Game {
    dice: Dice,
    world: World,
    servers: usize,
    quick: bool,
    /// The faults of now, and when they end.
    faults: Vec<(Fault, Instant)>,
}

impl Game {
    fn start(name: &str, seed: u64, servers: usize, quick: bool) -> Game {
        let mut world = World::with_servers(servers, AGENTS);
        // Its exits are events, which all servers number together.
        let dies_often = dies_often(&world);
        world.operate_aside(&dies_often, Op::Start);
        Game { dice: Dice::new(seed, name), world, servers, quick, faults: Vec::new() }
    }

    fn play(mut self, name: &str, rounds: u64) -> Row {
        let workload = self.world.workload();
        for _ in 0..rounds {
            let until = Instant::now() + Duration::from_millis(self.dice.below(LATEST_MILLIS));
            wait_until(PATIENCE, "its moment has come", || Instant::now() >= until);
            self.heal(Instant::now());
            self.start_ended();
            self.fault();
        }
        let last = self.faults.iter().map(|(_, until)| *until).max().unwrap_or_else(Instant::now);
        wait_until(PATIENCE, "the last fault is over", || Instant::now() >= last);
        self.heal(last);
        // Callers do not give up, and there may be no server left.
        wait_until(PATIENCE * 2, "all servers run", || self.start_ended());
        let sent = workload.end();
        self.world.wait_until_connected();
        let dies_often = dies_often(&self.world);
        self.world.operate_aside(&dies_often, Op::Stop);
        let verdict = self.world.judge(&sent);
        Row::played(name, rounds, verdict, Vec::new())
    }

    fn fault(&mut self) {
        let (agent, server) = (self.dice.index(AGENTS), self.dice.index(self.servers));
        match self.dice.below(12) {
            0 | 1 => self.again(&[Side::Agent(agent)]),
            2 | 3 => self.again(&[Side::Server(server)]),
            4 => {
                // All servers at the same moment.
                let all: Vec<Side> = (0..self.servers).map(Side::Server).collect();
                self.again(&all);
            }
            5 => self.stop(Side::Server(server)),
            6 => self.stop(Side::Agent(agent)),
            7 | 8 => {
                let ways = [Way::Cut, Way::Stalled, Way::Lossy];
                self.world.servers[server].proxy.set(ways[self.dice.index(ways.len())]);
                self.lasts(Fault::Link(server));
            }
            9 | 10 => {
                let ways = [Way::Cut, Way::Stalled];
                let way = ways[self.dice.index(ways.len())];
                self.database_of(server).set(way);
                self.lasts(Fault::Database(server));
            }
            _ => {
                self.database().shut_out();
                self.lasts(Fault::NoDatabase);
            }
        }
    }

    /// Kills them all, and starts them again. A server finds its database, or does not start.
    fn again(&mut self, sides: &[Side]) {
        sides.iter().for_each(|side| self.world.kill(*side));
        for side in sides {
            self.faults.retain(|(fault, _)| *fault != Fault::Stopped(*side));
            if let Side::Server(index) = side {
                self.database_of(*index).set(Way::Open);
            }
            self.world.start_side(*side, "");
        }
    }

    fn stop(&mut self, side: Side) {
        if self.world.is_running(side) {
            kill(self.world.pid(side), Signal::STOP);
            self.lasts(Fault::Stopped(side));
        }
    }

    /// Puts the fault into the list, in place of an older one of its kind.
    fn lasts(&mut self, fault: Fault) {
        let (shortest, longest) = LONG_MILLIS;
        let millis = match !self.quick && self.dice.below(LONG) == 0 {
            true => shortest + self.dice.below(longest - shortest),
            false => self.dice.below(SHORT_MILLIS),
        };
        self.faults.retain(|(other, _)| *other != fault);
        self.faults.push((fault, Instant::now() + Duration::from_millis(millis)));
    }

    /// Ends the faults whose time is over.
    fn heal(&mut self, now: Instant) {
        let (over, others): (Vec<_>, Vec<_>) = self.faults.drain(..).partition(|(_, until)| *until <= now);
        self.faults = others;
        for (fault, _) in over {
            match fault {
                Fault::Stopped(side) => kill(self.world.pid(side), Signal::CONT),
                Fault::Link(server) => self.world.servers[server].proxy.set(Way::Open),
                Fault::Database(server) => self.database_of(server).set(Way::Open),
                Fault::NoDatabase => self.database().let_in(),
            }
        }
    }

    /// Starts the servers that have ended because they could not find their database. Says whether all run.
    fn start_ended(&mut self) -> bool {
        let servers = (0..self.servers).map(Side::Server);
        let ended: Vec<Side> = servers.filter(|side| !self.world.is_running(*side)).collect();
        ended.iter().for_each(|side| self.world.start_side(*side, ""));
        ended.is_empty()
    }

    fn database_of(&self, server: usize) -> &FaultyProxy {
        self.world.servers[server].database.as_ref().expect("they share a database")
    }

    fn database(&self) -> &SharedDatabase {
        self.world.database.as_ref().expect("they share a database")
    }
}

/// A hosted proc whose process dies soon after the check of each start.
fn dies_often(world: &World) -> Proc {
    world.own_proc("dies-often").starts(&format!("exec ./{} 2", programs::NAME))
}
