//! Open ops and their outcomes.

use crate::clock::ClockReading;
use procfleet_core::grants::GrantScope;
use procfleet_core::request::Target;
use procfleet_core::{AgentId, OpId, OpKind, Outcome, ProcKey, Spec};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub struct OpenOpRow {
    pub op: OpId,
    pub kind: OpKind,
    pub proc: ProcKey,
    /// Shared by all ops of one request.
    pub spec: Option<Arc<Spec>>,
    /// The OS accounts that its app may use.
    pub accounts: GrantScope<String>,
    pub target: Target,
    pub agent: Option<AgentId>,
    pub accepted: ClockReading,
    pub start_by: i64,
    pub deadline: i64,
    /// Whether its task was cancelled.
    pub cancelled: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub op: OpId,
    /// The reporter: the op's own agent, or the server (`None`).
    pub agent: Option<AgentId>,
    pub outcome: Outcome,
    pub at: i64,
}

/// The effect of a [`Finished`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Now,
    /// It had an outcome, and keeps it.
    Already,
    /// The server had ended it without its agent, and it keeps that outcome; what the agent says is kept
    /// beside it.
    Late,
    Unknown,
    /// The op belongs to another agent.
    NotYours,
}
