//! A proc's state as its agent pushes it and the server stores it.

use procfleet_core::health::HealthReport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcState {
    Running,
    Stopped,
    Starting,
    Stopping,
    /// By an operation, or by the agent itself.
    Restarting,
    Reloading,
    /// Something else is under way.
    Changing,
    /// Hosted, and given up after too many failed starts.
    GaveUp,
    /// The agent is newer than the reader and reports a state that the reader does not know.
    #[serde(other)]
    Unknown,
}

impl ProcState {
    /// In alphabetical order of their words.
    pub const ALL: [ProcState; 9] = [
        ProcState::Changing,
        ProcState::GaveUp,
        ProcState::Reloading,
        ProcState::Restarting,
        ProcState::Running,
        ProcState::Starting,
        ProcState::Stopped,
        ProcState::Stopping,
        ProcState::Unknown,
    ];

    /// As it is written in JSON.
    pub fn word(self) -> &'static str {
        match self {
            ProcState::Running => "running",
            ProcState::Stopped => "stopped",
            ProcState::Starting => "starting",
            ProcState::Stopping => "stopping",
            ProcState::Restarting => "restarting",
            ProcState::Reloading => "reloading",
            ProcState::Changing => "changing",
            ProcState::GaveUp => "gave_up",
            ProcState::Unknown => "unknown",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcReport {
    /// One of the states that every version knows; `doing` says more while it is `changing`.
    pub state: ProcState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doing: Option<Doing>,
    pub hosted: bool,
    pub pid: Option<u32>,
    #[serde(default)]
    pub note: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Seconds since 1970, UTC, by the host's clock; 0 where it never happened.
    #[serde(default)]
    pub registered_at: i64,
    #[serde(default)]
    pub started_at: i64,
    #[serde(default)]
    pub reported_at: i64,
    /// Per cent of the whole host, and open files, as last sampled.
    #[serde(default)]
    pub cpu_usage: f64,
    #[serde(default)]
    pub mem_usage: f64,
    #[serde(default)]
    pub fd: u64,
    /// The first line of `version_cmd`.
    #[serde(default)]
    pub version: String,
    /// The last answer of `health_cmd`: `healthy`, `healthy: OUTPUT`, `unhealthy: REASON`, or empty before
    /// the first.
    #[serde(default, skip_serializing_if = "HealthReport::is_unknown")]
    pub health: HealthReport,
    /// The OS account of the spec; empty where it is not known, as from agents of earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
}

/// The operation that is under way for a proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    Starting,
    Stopping,
    Restarting,
    Reloading,
    /// An operation that only a newer agent knows.
    #[serde(other)]
    Other,
}

impl ProcReport {
    /// The most specific state.
    pub fn state_now(&self) -> ProcState {
        match (self.state, self.doing) {
            (ProcState::Changing, Some(Doing::Starting)) => ProcState::Starting,
            (ProcState::Changing, Some(Doing::Stopping)) => ProcState::Stopping,
            (ProcState::Changing, Some(Doing::Restarting)) => ProcState::Restarting,
            (ProcState::Changing, Some(Doing::Reloading)) => ProcState::Reloading,
            (state, _) => state,
        }
    }

    /// The proc is not in its wanted state: given up, unhealthy, or with a note.
    pub fn is_failed(&self) -> bool {
        self.state == ProcState::GaveUp || self.health.unhealthy_reason().is_some() || !self.note.is_empty()
    }

    /// A proc that is known by its name alone and not supervised, with the reason.
    pub fn left_alone(note: String) -> ProcReport {
        ProcReport {
            state: ProcState::GaveUp,
            doing: None,
            hosted: false,
            pid: None,
            note,
            labels: BTreeMap::new(),
            registered_at: 0,
            started_at: 0,
            reported_at: 0,
            cpu_usage: 0.0,
            mem_usage: 0.0,
            fd: 0,
            version: String::new(),
            health: HealthReport::Unknown,
            user: String::new(),
        }
    }
}
