//! Tools for end-to-end tests: the built program, calls to it, little programs to supervise, and waiting.
//!
//! It knows procfleet only from outside, as its users do: by its command line, its HTTP API, its files and
//! the processes that it starts. Tests state what they expect; if that fails, the functions here panic with
//! the program's own log.
//!
//! - [`Up`]: `procfleet up` in its own folder, which ends with all that it started, however the test ends;
//! - [`Client`]: HTTP calls; [`Outcome`]: how an op ended; [`connect_from`]: from another address;
//! - [`Proc`]: a proc with its own folder, and [`programs`] to supervise in it;
//! - [`Joined`]: an agent that runs apart from `up`; [`Stranger`]: a process that procfleet must not touch;
//! - [`Haproxy`], [`ConnectProxy`], [`SlowProxy`], [`FaultyProxy`]: proxies on the way to the server;
//!   [`DatabaseProxy`]: on its way to PostgreSQL;
//! - [`Disk`]: a small disk that can be filled; [`Fifo`]: a file that blocks its reader;
//! - [`need`]: requirements that not every machine meets;
//! - [`played_apart`]: a test in a separate process;
//! - [`fuzz`]: random changes of valid inputs;
//! - [`pattern`]: patterns for answers;
//! - [`schema_faults`]: checks an answer against the API document; [`Client`] does so for every answer;
//! - [`broken_invariants`]: what must hold in a PostgreSQL store at the end of a test;
//! - [`wait_for`]: the one way to wait.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test may fail with its output")]

mod apart;
mod client;
mod connect;
mod connect_proxy;
mod database_proxy;
mod disk;
mod faulty_proxy;
mod fifo;
pub mod fuzz;
mod haproxy;
mod invariants;
mod joined;
mod machine;
pub mod pattern;
mod postgres;
mod proc;
mod process;
mod program;
pub mod programs;
mod schema;
mod slow_proxy;
mod up;
mod wait;

pub use apart::played_apart;
pub use client::{Answer, Client, Outcome, Raw};
pub use connect::connect_from;
pub use connect_proxy::{ConnectProxy, ProxyManner};
pub use database_proxy::{CommitCut, DatabaseProxy, Listening};
pub use disk::{Disk, ReadOnly};
pub use faulty_proxy::{FaultyProxy, Way};
pub use fifo::{Fifo, HeldReader};
pub use haproxy::Haproxy;
pub use invariants::broken_invariants;
pub use joined::Joined;
pub use machine::{Need, has, need};
pub use postgres::{Cluster, PoolMode, Pooler};
pub use proc::{Op, Proc, Task};
pub use process::{
    Stranger, account, dead_pid, is_running, kill, kill_marked, pids_marked, remember, start_time, with_pid,
};
pub use program::{Finished, Program, Stdin};
pub use rustix::process::Signal;
pub use schema::{operation, schema_faults};
pub use slow_proxy::SlowProxy;
pub use up::Up;
pub use wait::{PATIENCE, ask_again, let_pass, wait_for, wait_until};
