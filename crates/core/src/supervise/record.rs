//! What is remembered of a proc while the agent is away.

use super::Hosting;
use super::policy::Streak;
use crate::boot_time::BootTime;
use crate::process::Process;
use crate::spec::Spec;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Everything a machine needs to take its proc up again. Times and pids mean nothing after a reboot of the
/// host; [`Record::after_reboot`] takes them out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub spec: Arc<Spec>,
    pub hosting: Hosting,
    pub process: Option<Process>,
    pub streak: Streak,
    pub rest: Rest,
    /// Why the agent ended it, until it runs stably again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fault: String,
    /// Earlier generations of a program that has replaced itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older: Vec<Process>,
    /// The run of a periodic process that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<ScheduledRun>,
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
    /// How many runs that were due meanwhile have been told as missed, and when that was.
    pub missed: u32,
    pub told_at: Option<BootTime>,
}

/// What a proc that is not running waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rest {
    /// For an order.
    Idle,
    /// To be started again.
    Retry {
        at: BootTime,
        /// What it waits for, for people.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        why: String,
    },
    /// For its next scheduled run.
    Due { at: BootTime },
    /// For what becomes of a scheduled run that began then and was not seen yet.
    Begun { at: BootTime },
    /// For `start` or `host`: it was started too often in vain.
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
