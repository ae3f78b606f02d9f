//! Reads which processes run on the host, and which of them are ours.
//!
//! - `tree`: a snapshot of processes with parents, sessions and descendants;
//! - `strays`: processes that have left the cgroups of their proc;
//! - `identify`, `origin`, `proc_mark`: whether a process belongs to a proc;
//! - `recent`: the last scan of all processes, shared for a moment;
//! - `neighbour`: whether it belongs to another agent on the same host.

pub(super) mod identify;
pub(super) mod neighbour;
pub(super) mod origin;
pub(super) mod proc_mark;
pub(super) mod recent;
pub(super) mod strays;
pub(super) mod tree;
