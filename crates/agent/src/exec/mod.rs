//! Everything that makes, finds, watches or signals processes. Nothing else in procfleet does.
//!
//! # Theory of operation
//!
//! Each proc has one [`ProcExecutor`], owned by its actor; all share one [`ExecContext`]. The actor calls the
//! executor, and later events come back as an [`Input`](procfleet_core::supervise::Input) in the actor's
//! inbox.
//!
//! | module | purpose |
//! |---|---|
//! | `executor` | the processes of one proc: run, look, watch, signal, sweep |
//! | `spawn` | starts a command in a session and a cgroup of its own, as its OS account |
//! | `watch` | waits for the end of processes, by pidfd; children, orphans and OOM kills |
//! | `scan` | reads which processes there are and whose they are |
//! | `measure` | reads what processes use |
//! | `find` | looks for the process of a proc |
//! | `output` | output files and logs: where a command writes, rotation |
//! | `read_log` | answers queries for log lines |
//! | `probe` | short commands that ask about a proc (`version_cmd`, `health_cmd`) |
//! | `cgroup` | the cgroups of this agent's procs |
//! | `user` | OS accounts |
//! | `shell` | the interpreters of commands |
//! | `procfs` | parsers for `/proc` |
//! | `context` | what all executors share |
//!
//! - A command runs directly, or through `/bin/sh -c` or PowerShell, in its own session, and writes to a
//!   file. Its environment carries the proc's key, which all of its descendants inherit.
//! - A process is a pid and a start time. Every signal, wait and reap goes through a pidfd that was checked
//!   against both, so a recycled pid is never touched.
//! - One task sleeps on the pidfds of all processes. A command's shell may be the process at the same time:
//!   the code that reaps it reports both ends, because a status can be read only once.

mod cgroup;
mod context;
mod error;
mod executor;
mod find;
mod measure;
mod output;
mod probe;
mod procfs;
mod read_log;
mod scan;
mod shell;
mod spawn;
mod user;
mod watch;

pub use cgroup::Containment;
pub use context::ExecContext;
pub use error::ExecError;
pub use executor::ProcExecutor;
pub use find::appear::StartedByHand;
pub use find::pid_file_names_another;
pub use measure::usage::{Meter, UsageScan, sample_once};
pub use output::proc_log::Start;
pub use output::rotate::Rotation;
pub use probe::{Probed, Prober, end_old_probes};
pub use procfs::start_ticks;
pub use read_log::{LogExcerpt, LogQuestion};
pub use spawn::fork::raise_nofile_limit;
pub(crate) use spawn::fork::restore_nofile_limit;
pub use user::{NotOpened, open_as};
