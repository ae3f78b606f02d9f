//! Why processes cannot be supervised on this host, and why a command was not started.

use procfleet_core::Code;
use std::io;
use std::path::PathBuf;

/// Errors that prevent the agent from supervising processes on this host.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("making the folder for output {}", folder.display())]
    OutputFolder { folder: PathBuf, source: io::Error },
    #[error("there are no cgroups for processes on this host: {reason}")]
    NoCgroups { reason: String },
    #[error("reading {file}, without which processes cannot be told apart")]
    Proc { file: &'static str, source: io::Error },
}

/// Why a command could not be started, for the caller who wrote the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotStarted {
    pub(super) code: Code,
    pub(super) reason: String,
}

impl NotStarted {
    pub(super) fn new(code: Code, reason: impl Into<String>) -> NotStarted {
        NotStarted { code, reason: reason.into() }
    }
}
