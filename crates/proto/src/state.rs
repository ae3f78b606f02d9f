//! A proc's state as its agent pushes it and the server stores it.

use crate::http::native::ProcState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcReport {
    pub state: ProcState,
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
    #[serde(default)]
    pub version: String,
    /// `healthy`, `unhealthy: REASON`, or empty where nobody knows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub health: String,
}

impl ProcReport {
    /// A proc that is known by its name alone, and that nobody looks after for this reason.
    pub fn left_alone(note: String) -> ProcReport {
        ProcReport {
            state: ProcState::GaveUp,
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
            health: String::new(),
        }
    }
}
