//! The built program from end to end: `procfleet up`, real processes, and callers as they are.
//!
//! Every test starts an `up` of its own and ends all that it started.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test may fail with its output")]

use procfleet_testkit::{Proc, Up};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

mod access;
mod accounts;
mod agent_itself;
mod agent_proxy;
mod agent_servers;
mod api_shape;
mod backups;
mod bad_input;
mod batches;
mod bursts;
mod cancel;
mod certificates;
mod changes;
mod cli;
mod containment;
mod crashes;
mod data_folder;
mod database;
mod deaths;
mod duplicates;
mod enrolment;
mod events;
mod excess;
mod exits;
mod failover;
mod faults;
mod first_generation;
mod fleet;
mod full_disk;
mod groups;
mod hang_ups;
mod hostile;
mod idempotency;
mod instances;
mod job;
mod kinds;
mod large_copy;
mod leftovers;
mod lifecycle;
mod limits;
mod lists;
mod logs;
mod lost_log;
mod lost_store;
mod many_hosts;
mod newer_agent;
mod newer_server;
mod operations;
mod operator;
mod periodic;
mod policy;
mod postgres;
mod proxies;
mod questions;
mod replaced_store;
mod retention;
mod seal;
mod selectors;
mod several_servers;
mod signals;
mod silence;
mod slow_link;
mod spec_fields;
mod start_check;
mod stopped_fleet;
mod stopped_server;
mod store_copy;
mod stranger;
mod task_state;
mod tls;
mod unauthenticated;
mod unknown;
mod upgrade;
mod users;

/// Checks several procs at the same time, for most of it is waiting.
#[track_caller]
fn at_once(procs: impl IntoIterator<Item = Proc>, check: impl Fn(&Proc) + Sync) {
    std::thread::scope(|scope| {
        for proc in procs {
            let check = &check;
            scope.spawn(move || check(&proc));
        }
    });
}

/// Repeats an attempt with longer and longer values of `start_check_secs` until it returns a result. An
/// attempt returns `None` if a loaded machine was too slow for the check.
#[track_caller]
fn with_longer_checks<T>(attempt: impl FnMut(u64) -> Option<T>) -> T {
    [5, 20, 60].into_iter().find_map(attempt).expect("an attempt that fits into start_check_secs 60")
}

fn up() -> Up {
    Up::start(env!("CARGO_BIN_EXE_procfleet"))
}

/// The program with a low RLIMIT_NOFILE.
fn with_few_files(folder: &Path, files: u32) -> PathBuf {
    let script = folder.join("procfleet");
    let program = env!("CARGO_BIN_EXE_procfleet");
    fs::write(&script, format!("#!/bin/sh\nulimit -n {files}\nexec {program} \"$@\"\n")).expect("a file");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("our own file");
    script
}
