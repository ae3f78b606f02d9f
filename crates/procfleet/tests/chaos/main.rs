//! Chaos: server, agents and connections end, break or hang at named points and at random while a workload
//! runs; afterwards the whole history is checked. `scripts/chaos` runs it, docs/bench/chaos.md describes how
//! to read the result.
//!
//! - `world`: servers and agents that can be killed, and the ways between them (testkit's `FaultyProxy`);
//!   `any_server`: how they are called; `database`: the PostgreSQL database that several servers share;
//! - `history`: the tasks that were sent, and the checks of them;
//! - `overtake`, `short_lived`: callers of the workload that stop slow starts, and that start short-lived
//!   daemons;
//! - `points`, `panics`, `random`, `faults`, `fleet`, `replicas`: the faults; `flood`: an agent that sends
//!   too much; `preload`: wall clocks and disks that go wrong;
//! - `replica_points`, `replica_clocks`: games of several servers with a fault of one kind;
//! - `table`: the printed rows.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test may fail with its output")]

mod any_server;
mod database;
mod dice;
mod faults;
mod fleet;
mod flood;
mod history;
mod overtake;
mod panics;
mod points;
mod preload;
mod random;
mod replica_clocks;
mod replica_points;
mod replicas;
mod short_lived;
mod table;
mod world;

use clap::{Parser, ValueEnum};
use std::process::ExitCode;
use std::sync::Mutex;
use table::Row;

/// Ends, breaks and stops procfleet while it works, and checks that nothing was lost, run twice or left
/// without an outcome
#[derive(Parser)]
#[command(name = "scripts/chaos")]
struct Args {
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often each point and the random game are played, and a fleet's server is killed (20 times at most)
    #[arg(long, default_value_t = 200)]
    rounds: u64,
    /// Only this part
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Only points and faults whose names contain this
    #[arg(long, default_value = "")]
    named: String,
    /// How many servers share a PostgreSQL database in the first game of several servers; 1 leaves all of
    /// these games out
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    /// Faults last seconds instead of up to a minute
    #[arg(long)]
    quick: bool,
    /// How many are played at the same time: most of it is waiting
    #[arg(long, default_value_t = 6)]
    jobs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Points,
    Panics,
    Random,
    Faults,
    Fleet,
    Replicas,
}

/// Something to play, and the row that it makes.
struct Job {
    part: Part,
    name: String,
    play: Box<dyn FnOnce() -> Row + Send>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut jobs = points::jobs(args.seed, args.rounds);
    jobs.extend(panics::jobs(args.seed, args.rounds));
    jobs.extend(random::jobs(args.seed, args.rounds));
    jobs.extend(fleet::jobs(args.seed, args.rounds, args.quick));
    jobs.extend(faults::jobs(args.seed, args.quick));
    jobs.extend(replicas::jobs(args.seed, args.rounds, args.replicas, args.quick));
    jobs.retain(|job| args.only.is_empty() || args.only.contains(&job.part));
    jobs.retain(|job| job.name.contains(&args.named));
    println!("scripts/chaos --seed {} --rounds {}: {} games", args.seed, args.rounds, jobs.len());
    let order: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
    jobs.reverse();
    let (jobs, rows) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                loop {
                    let Some(job) = jobs.lock().expect("nobody panics with it").pop() else { return };
                    let (name, play) = (job.name, job.play);
                    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
                    let row = played.unwrap_or_else(|_| Row::broken_off(&name));
                    eprintln!("{}", row.line());
                    rows.lock().expect("nobody panics with it").push(row);
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("all have ended");
    rows.sort_by_key(|row| order.iter().position(|name| *name == row.name));
    println!("\n{}", table::text(&rows));
    let failed: Vec<&Row> = rows.iter().filter(|row| !row.is_well()).collect();
    // scripts/flakes reads these lines.
    failed.iter().for_each(|row| println!("failed game: {}", row.name));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
