//! Where processes write to.
//!
//! - `command_output`: the file of a command's output, and its tail;
//! - `proc_log`: the log of a proc over all its runs; `log_path`: a log in a folder that the spec names;
//! - `rotate`: keeps a log within its size while processes write to it;
//! - `log_accounts`: which OS account wrote which part of a log; `file_id`: which file a log is.

pub(super) mod command_output;
mod file_id;
mod log_accounts;
mod log_path;
pub(super) mod proc_log;
pub(super) mod rotate;

use proc_log::LiveLog;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a command writes to.
#[derive(Debug)]
pub(in crate::exec) enum CommandOutput {
    /// A file of this run's own.
    Own { path: PathBuf, file: File },
    /// The proc's log, from this offset on.
    Log { live: Arc<LiveLog>, file: File, from: u64 },
    /// No file could be created; the output is lost.
    Nowhere,
}
