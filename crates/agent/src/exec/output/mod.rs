//! Where processes write to.
//!
//! - `command_output`: the file of a command's output, and its tail;
//! - `proc_log`: the log of a proc over all its runs; `log_path`: a log in a folder that the spec names;
//! - `rotate`: keeps a log within its size while processes write to it;
//! - `log_accounts`: which OS account wrote which part of a log;
//! - `read`: answers queries for log lines.

pub(super) mod command_output;
mod log_accounts;
mod log_path;
pub(super) mod proc_log;
pub(super) mod read;
pub(super) mod rotate;
