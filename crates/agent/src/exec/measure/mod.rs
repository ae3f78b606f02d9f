//! Measures the CPU, memory and open files that processes use.
//!
//! - `inspect`: one process, as people see it;
//! - `usage`: a process and its tree, for all procs with one scan.

pub(super) mod inspect;
pub(super) mod usage;
