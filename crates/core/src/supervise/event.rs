//! Names and messages of events.

use super::limits::Excess;
use super::{Event, messages};
use crate::process::Exit;
use crate::spec::OnUnhealthy;
use std::fmt;

/// Whether an operator should act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Info,
    Warning,
}

impl Event {
    /// The names of all events.
    pub const KINDS: [&'static str; 13] = [
        "started",
        "unhealthy",
        "config_drift",
        "exited",
        "took_over",
        "restart_succeeded",
        "restart_failed",
        "gave_up",
        "command_failed",
        "run_failed",
        "run_missed",
        "over_limit",
        "group_over_limit",
    ];

    /// Its name for programs; it never changes.
    pub fn kind(&self) -> &'static str {
        match self {
            Event::Started { .. } => "started",
            Event::Unhealthy { .. } => "unhealthy",
            Event::ConfigDrift { .. } => "config_drift",
            Event::Exited { .. } => "exited",
            Event::TookOver { .. } => "took_over",
            Event::RestartSucceeded { .. } => "restart_succeeded",
            Event::RestartFailed { .. } => "restart_failed",
            Event::GaveUp { .. } => "gave_up",
            Event::CommandFailed { .. } => "command_failed",
            Event::RunFailed { .. } => "run_failed",
            Event::RunMissed { .. } => "run_missed",
            Event::OverLimit { .. } => "over_limit",
            Event::GroupOverLimit { .. } => "group_over_limit",
        }
    }

    pub fn severity(&self) -> Severity {
        match self {
            Event::Exited { exit: Exit::OutOfMemory | Exit::Dumped(_), .. } => Severity::Warning,
            Event::Started { .. }
            | Event::Exited { .. }
            | Event::TookOver { .. }
            | Event::RestartSucceeded { .. } => Severity::Info,
            Event::RestartFailed { .. }
            | Event::GaveUp { .. }
            | Event::CommandFailed { .. }
            | Event::Unhealthy { .. }
            | Event::ConfigDrift { .. }
            | Event::RunFailed { .. }
            | Event::RunMissed { .. }
            | Event::OverLimit { .. }
            | Event::GroupOverLimit { .. } => Severity::Warning,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Started { pid } => write!(f, "it was started as pid {pid}"),
            Event::Unhealthy { reason, then: OnUnhealthy::Tell } => write!(f, "it is unhealthy: {reason}"),
            Event::Unhealthy { reason, then: OnUnhealthy::Restart } => {
                write!(f, "it is unhealthy, and is ended and started again: {reason}")
            }
            Event::ConfigDrift { reason } => f.write_str(reason),
            Event::Exited { pid, exit } => write!(f, "pid {pid} {exit}"),
            Event::TookOver { pid, from: Some(from) } => write!(f, "pid {pid} took the place of pid {from}"),
            Event::TookOver { pid, from: None } => write!(f, "pid {pid} took its place"),
            Event::RestartSucceeded { pid } => write!(f, "it was started again as pid {pid}"),
            Event::RestartFailed { reason } => write!(f, "starting it again failed: {reason}"),
            Event::GaveUp { reason } => f.write_str(reason),
            Event::CommandFailed { command, op, exit, output } => {
                f.write_str(&messages::command_failed_later(command, *op, *exit, output))
            }
            Event::RunFailed { reason } => write!(f, "a scheduled run failed: {reason}"),
            Event::RunMissed { count: 1 } => f.write_str("a scheduled run was missed"),
            Event::OverLimit { pid, limits, samples } => {
                write!(f, "pid {pid} and what belongs to it used too much: {}", Excess { limits, samples })
            }
            Event::GroupOverLimit { pid, overuse } => {
                write!(f, "pid {pid} is ended because its namespace exceeded a limit: {overuse}")
            }
            Event::RunMissed { count } => write!(f, "{count} scheduled runs were missed"),
        }
    }
}
