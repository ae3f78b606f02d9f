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
    /// A host as the first generation of the API names it: with a supplier, which only the answer's key shows.
    SupplierHost(Host, u32),
    Agent(AgentId),
}

impl Target {
    /// The key of second-generation results: `cloud:ip:namespace:name` or `agent:namespace:name`.
    pub fn result_key(&self, proc: &ProcKey) -> String {
        format!("{self}:{proc}")
    }

    /// The key of first-generation results: `cloud:supplier:ip:namespace:name`.
    pub fn first_generation_key(&self, proc: &ProcKey) -> String {
        match self {
            Target::Host(host) => format!("{}:0:{}:{proc}", host.cloud, host.ip),
            Target::SupplierHost(host, supplier) => format!("{}:{supplier}:{}:{proc}", host.cloud, host.ip),
            Target::Agent(agent) => format!("{agent}:{proc}"),
        }
    }

    /// The host that it names, if it names one.
    pub fn host(&self) -> Option<Host> {
        match self {
            Target::Host(host) | Target::SupplierHost(host, _) => Some(*host),
            Target::Agent(_) => None,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Host(host) | Target::SupplierHost(host, _) => host.fmt(f),
            Target::Agent(agent) => agent.fmt(f),
        }
    }
}
