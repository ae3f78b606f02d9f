//! Reads which processes run on the host, and which of them are ours.
//!
//! - `tree`: a snapshot of processes with parents, sessions and descendants;
//! - `identify`, `origin`, `proc_mark`: whether a process belongs to a proc;
//! - `neighbour`: whether it belongs to another agent on the same host.

pub(super) mod identify;
pub(super) mod neighbour;
pub(super) mod origin;
pub(super) mod proc_mark;
pub(super) mod tree;
