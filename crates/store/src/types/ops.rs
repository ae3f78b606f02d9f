//! Open ops and their outcomes.

use crate::ServerId;
use crate::clock::ClockReading;
use crate::types::RequestHead;
use procfleet_core::request::Target;
use procfleet_core::{AgentId, Epoch, OpId, Outcome, TaskId};
use std::sync::Arc;

/// Which open ops a server asks for. It gets those that it has to decide about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpScope {
    /// The ops of these tasks: of agents whose sessions are or were last at this server, and, with the lease
    /// [`Unheld`](crate::Lease::Unheld), of agents that no living server holds.
    Tasks(Vec<TaskId>),
    /// The ops of these agents, which have just connected to this server.
    Agents(Vec<AgentId>),
    /// All of them, for a server that starts, or begins to decide about the agents of another one.
    All,
}

/// A task that has ops without an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenTask {
    pub id: TaskId,
    /// How many.
    pub open: u64,
    pub cancelled: bool,
}

/// Whether an op may have been sent by a server that does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentBefore {
    No,
    Maybe,
}

/// Why an agent does not come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// Another agent has joined for its host.
    Retired,
    /// An administrator has revoked it, for this reason.
    Revoked(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct OpenOpRow {
    pub op: OpId,
    /// Shared by all ops of one request.
    pub request: Arc<RequestHead>,
    pub target: Target,
    pub agent: Option<AgentId>,
    pub accepted: ClockReading,
    pub start_by: i64,
    pub deadline: i64,
    /// Whether its task was cancelled.
    pub cancelled: bool,
    pub sent: SentBefore,
    /// The last session of its agent. `None`: it has no agent, or the store has one server only.
    pub epoch: Option<Epoch>,
    /// The server that has or had that session.
    pub holder: Option<ServerId>,
    /// `Some`: its agent does not come back. An embedded store says it for [`OpScope::All`] only.
    pub dismissal: Option<Dismissal>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub op: OpId,
    pub by: EndedBy,
    pub outcome: Outcome,
    pub at: i64,
}

/// Who says that an op has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The op's own agent.
    Agent(AgentId),
    /// A server, which has decided about an op of this agent and this last session of it. The decision holds
    /// only if the session is still the last one, and that server's to decide about. `None`: the op has no
    /// agent, or the store has one server only.
    Server(Option<(AgentId, Epoch)>),
}

impl EndedBy {
    pub fn agent(&self) -> Option<&AgentId> {
        match self {
            EndedBy::Agent(agent) => Some(agent),
            EndedBy::Server(_) => None,
        }
    }
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
    /// The decision of a server about an agent that has moved to another server since. The op is open.
    Superseded,
}
