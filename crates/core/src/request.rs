//! One accepted API call and the targets it names.

use crate::code::Code;
use crate::id::{AgentId, Host, ProcKey};
use crate::op::OpKind;
use crate::spec::Spec;
use serde::{Deserialize, Serialize};

/// One request, or one element of a multi request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub proc: ProcKey,
    pub kind: OpKind,
    /// `None`: use the spec that the agent has stored.
    pub spec: Option<Spec>,
    pub targets: Vec<Target>,
    /// `Some`: the request is rejected. Its ops get this outcome when the task is created and are never sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
}

/// The outcome of an element of a batch that is rejected while the others are carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: Code,
    pub reason: String,
}

impl Request {
    /// Whether both requests are equal apart from their targets.
    pub fn asks_the_same(&self, other: &Request) -> bool {
        (&self.proc, self.kind, &self.spec, &self.refused)
            == (&other.proc, other.kind, &other.spec, &other.refused)
    }
}

/// A target, as the caller named it; the key of the answer repeats that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Host(Host),
    /// A host as the first generation of the API names it: with a supplier, which only the answer's key
    /// shows.
    SupplierHost(Host, u32),
    Agent(AgentId),
    /// Neither a valid host nor a valid agent id, for example a host with an empty ip. Kept so that the
    /// result has the key that the caller expects.
    Unusable(UnusableTarget),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnusableTarget {
    /// As in the result key: `cloud:ip` as sent, or the agent id as sent.
    pub name: String,
    pub supplier: Option<u32>,
    /// Why it is invalid. Not stored.
    pub reason: String,
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
            Target::Unusable(UnusableTarget { name, supplier, .. }) => {
                let (supplier, no_cloud) = (supplier.unwrap_or_default(), ("", name.as_str()));
                let (cloud, ip) = name.split_once(':').unwrap_or(no_cloud);
                format!("{cloud}:{supplier}:{ip}:{proc}")
            }
        }
    }

    /// The key of JOB's results: `name:cloud:ip`. Callers split it from the right, because a name may contain
    /// colons. A proc outside JOB's namespace keeps its namespace in the key, so that two procs of one task
    /// have different keys.
    pub fn job_key(&self, proc: &ProcKey) -> String {
        match proc.namespace.as_str() {
            ProcKey::JOB_NAMESPACE => format!("{}:{self}", proc.name),
            _ => format!("{proc}:{self}"),
        }
    }

    /// The supplier that it names; 0 where it names none.
    pub fn supplier(&self) -> u32 {
        match self {
            Target::SupplierHost(_, supplier) => *supplier,
            Target::Unusable(unusable) => unusable.supplier.unwrap_or_default(),
            Target::Host(_) | Target::Agent(_) => 0,
        }
    }

    /// The host that it names, if it names one.
    pub fn host(&self) -> Option<Host> {
        match self {
            Target::Host(host) | Target::SupplierHost(host, _) => Some(*host),
            Target::Agent(_) | Target::Unusable(_) => None,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Host(host) | Target::SupplierHost(host, _) => host.fmt(f),
            Target::Agent(agent) => agent.fmt(f),
            Target::Unusable(unusable) => f.write_str(&unusable.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_api_has_its_own_keys() {
        let host: Host = "3:10.0.0.1".parse().expect("a host");
        let agent: AgentId = "a1".parse().expect("an agent");
        let gse = ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() };
        let job = ProcKey::of_job("C:\\gse\\nginx".to_owned());
        for (target, proc, second, first, of_job) in [
            (
                Target::Host(host),
                &gse,
                "3:10.0.0.1:web:nginx",
                "3:0:10.0.0.1:web:nginx",
                "web:nginx:3:10.0.0.1",
            ),
            (
                Target::SupplierHost(host, 2),
                &gse,
                "3:10.0.0.1:web:nginx",
                "3:2:10.0.0.1:web:nginx",
                "web:nginx:3:10.0.0.1",
            ),
            (Target::Agent(agent), &gse, "a1:web:nginx", "a1:web:nginx", "web:nginx:a1"),
            (
                Target::Host(host),
                &job,
                "3:10.0.0.1:job:C:\\gse\\nginx",
                "3:0:10.0.0.1:job:C:\\gse\\nginx",
                "C:\\gse\\nginx:3:10.0.0.1",
            ),
            (
                Target::Unusable(UnusableTarget {
                    name: "3:".to_owned(),
                    supplier: Some(2),
                    reason: String::new(),
                }),
                &gse,
                "3::web:nginx",
                "3:2::web:nginx",
                "web:nginx:3:",
            ),
        ] {
            let keys = (target.result_key(proc), target.first_generation_key(proc), target.job_key(proc));
            assert_eq!(keys, (second.to_owned(), first.to_owned(), of_job.to_owned()));
        }
    }
}
