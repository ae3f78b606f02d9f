//! `agent.json` in the data folder: written when the agent is ready, and read by `procfleet agent upgrade`.

use crate::exec;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = "agent.json";

/// One run of the agent program, from a start or a re-exec on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentLife {
    pub(crate) pid: u32,
    /// Distinguishes the process from a later one with the same pid.
    pub(crate) start_ticks: u64,
    pub(crate) version: String,
    /// The file that it was started from.
    pub(crate) program: PathBuf,
    /// When it was ready: a process that becomes its own successor keeps its pid and start time.
    pub(crate) ready_at_millis: u64,
    /// Number of procs that were resumed from the journal.
    pub(crate) procs: usize,
}

impl AgentLife {
    /// Writes the file atomically: readers see all of it or nothing.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let draft = folder.join(format!("{FILE}.new"));
        std::fs::write(&draft, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(draft, folder.join(FILE))
    }

    /// The agent that runs on this folder. `None`: there is none, or it is not ready yet.
    pub(crate) fn read(folder: &Path) -> Option<AgentLife> {
        let life: AgentLife = serde_json::from_slice(&std::fs::read(folder.join(FILE)).ok()?).ok()?;
        (exec::start_ticks(life.pid) == Some(life.start_ticks)).then_some(life)
    }
}
