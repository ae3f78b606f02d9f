//! What processes use: CPU, memory and open files.
//!
//! - `inspect`: one process, as people see it;
//! - `usage`: a process and its tree, for all procs with one scan.

pub(super) mod inspect;
pub(super) mod usage;
