//! Waits for the end of processes, and reaps them.
//!
//! - `pidfd`: the only handles by which processes are signalled, waited for and reaped;
//! - `exits`: one epoll set with the pidfds of all watched processes;
//! - `children`: the agent's children and the orphans that it adopts as a subreaper;
//! - `oom`: tells OOM kills from other deaths by SIGKILL.

pub(super) mod children;
pub(super) mod exits;
pub(super) mod oom;
pub(super) mod pidfd;
