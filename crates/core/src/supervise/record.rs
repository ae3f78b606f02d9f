//! The durable state of a proc.

use super::Hosting;
use super::policy::Streak;
use crate::boot_time::BootTime;
use crate::process::Process;
use crate::spec::Spec;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The state that a machine needs after a restart of the agent. Times and pids are invalid after a reboot of
/// the host; [`Record::after_reboot`] removes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub spec: Arc<Spec>,
    pub hosting: Hosting,
    pub process: Option<Process>,
    pub streak: Streak,
    pub rest: Rest,
    /// Why the agent ended the process, until it runs stably again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Earlier generations of a program that has replaced itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older: Vec<Process>,
    /// The run of a periodic process that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Box<ScheduledRun>>,
    /// The last process of a proc that is not running: workers that this process has left are not the
    /// process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead: Option<Process>,
}

/// A run of a periodic process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledRun {
    /// When it must have ended (`op_timeout`).
    pub deadline: BootTime,
    /// The number of missed runs that were reported, and when.
    pub missed: u32,
    pub told_at: Option<BootTime>,
}

/// The event that a stopped proc waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rest {
    /// Nothing is planned; an order may start it.
    Idle,
    /// A restart is due at `at`.
    Retry {
        at: BootTime,
        /// The reason of the wait, for people.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        why: String,
    },
    /// A scheduled run is due at `at`.
    Due { at: BootTime },
    /// A scheduled run began at `at`; its process was not seen yet.
    Begun { at: BootTime },
    /// Too many starts have failed; only `start` or `host` tries again.
    GaveUp { reason: String },
}

impl ScheduledRun {
    pub(super) fn until(deadline: BootTime) -> ScheduledRun {
        ScheduledRun { deadline, missed: 0, told_at: None }
    }
}

impl Record {
    #[must_use]
    pub fn after_reboot(self) -> Record {
        let rest = match self.rest {
            Rest::Retry { .. } | Rest::Due { .. } | Rest::Begun { .. } => Rest::Idle,
            rest @ (Rest::Idle | Rest::GaveUp { .. }) => rest,
        };
        let (process, streak, older) = (None, Streak::default(), Vec::new());
        Record { process, streak, rest, older, run: None, dead: None, ..self }
    }
}
