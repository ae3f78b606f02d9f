//! The process groups of each namespace, as the agents report them.

use procfleet_core::spec::ProcessGroup;

#[derive(Clone, Debug, PartialEq)]
pub struct GroupsRecord {
    pub namespace: String,
    /// Grows with every change on the agent. Reports older than the stored one are ignored.
    pub revision: u64,
    /// Empty: the namespace has no groups.
    pub groups: Vec<ProcessGroup>,
}
