//! `exec` against real processes: what it starts, what it finds, what it ends and what it leaves alone.

mod identity;
mod leftovers;
mod log;
mod look;
mod ours;
mod probe;
mod run;
mod scheduled_run;
mod signal;
mod support;
mod usage;
mod watch;
