//! Reads which processes run on the host, what they use, and which of them are ours.
//!
//! - `tree`: a snapshot of processes with parents, sessions and descendants;
//! - `identify`, `origin`, `proc_mark`: whether a process belongs to a proc;
//! - `neighbour`: whether it belongs to another agent on the same host;
//! - `inspect`, `usage`: CPU, memory and open files.

pub(super) mod identify;
pub(super) mod inspect;
pub(super) mod neighbour;
pub(super) mod origin;
pub(super) mod proc_mark;
pub(super) mod tree;
pub(super) mod usage;
