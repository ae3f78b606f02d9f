//! The resources that a process uses, as sampled.

use crate::spec::Resource;
use serde::{Deserialize, Serialize};

/// Usage of a process with its children at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Per cent of the whole host.
    pub cpu: f64,
    pub mem: f64,
    /// Open files.
    pub fd: u64,
}

impl Usage {
    pub(crate) fn is_over(&self, limits: &Resource) -> bool {
        limits.cpu.is_some_and(|limit| self.cpu > limit)
            || limits.mem.is_some_and(|limit| self.mem > limit)
            || limits.fd.is_some_and(|limit| self.fd > limit)
    }
}

/// Whether a process has ever kept within its limits. If it never has, its start counts as failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitHistory {
    #[default]
    AlwaysOver,
    OnceWithin,
}
