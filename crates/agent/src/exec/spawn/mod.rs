//! Starts commands.
//!
//! - `command`: a command with its account, folder and environment, ready to be started;
//! - `argv`: decides whether a command needs a shell;
//! - `fork`: `clone3` and what the child does before `execve`;
//! - `run`: one started command, its shell and its members.

mod argv;
pub(super) mod command;
pub(super) mod fork;
pub(super) mod run;
