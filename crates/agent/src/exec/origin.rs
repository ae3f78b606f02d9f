//! Who started a process, as far as the kernel can tell: by the mark in its environment, else by its cgroup.
//!
//! A process that wrote over its environment has no mark any more, but it is still in the cgroup of the run that started it.

use super::cgroup;
use super::identify::{self, Mark};
use super::procfs;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A run of this proc, by this agent.
    Ours,
    /// Another proc. `None`: a probe, or its name cannot be told.
    AnotherProcs(Option<String>),
    /// Nothing tells: what the process runs must.
    Unknown,
}

/// Who started the process with this pid. `mark` and `group` are those of the proc that asks.
pub(super) fn of(pid: u32, mark: &str, group: &str) -> Origin {
    let value = procfs::mark(pid);
    match Mark::told(value.as_deref(), mark) {
        Mark::Ours => Origin::Ours,
        Mark::AnotherProcs => Origin::AnotherProcs(value.and_then(|value| identify::owner(&value, mark))),
        Mark::Missing => {
            let instance = mark.split_once('/').map_or(mark, |(instance, _)| instance);
            match cgroup::held_by(pid) {
                Some(holder) if holder.instance == instance && holder.proc == group => Origin::Ours,
                Some(holder) if holder.instance == instance => Origin::AnotherProcs(Some(holder.shown())),
                Some(_) | None => Origin::Unknown,
            }
        }
    }
}
