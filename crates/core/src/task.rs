//! One accepted API call and the targets it names.

use crate::id::{AgentId, Host, ProcKey};
use crate::op::OpKind;
use crate::spec::Spec;
use serde::{Deserialize, Serialize};

/// What one request (or one element of a multi request) asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub proc: ProcKey,
    pub kind: OpKind,
    /// `None`: use what the agent has stored.
    pub spec: Option<Spec>,
    pub targets: Vec<Target>,
}

/// A place to act, as the caller named it: the answer's key repeats that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Host(Host),
    Agent(AgentId),
}

impl Target {
    /// The key of second-generation results: `cloud:ip:namespace:name` or `agent:namespace:name`.
    pub fn result_key(&self, proc: &ProcKey) -> String {
        format!("{self}:{proc}")
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Host(host) => host.fmt(f),
            Target::Agent(agent) => agent.fmt(f),
        }
    }
}
