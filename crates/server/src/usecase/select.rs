//! Which hosts and procs a request means at one moment. What is sent afterwards is sent to these, whatever
//! changes meanwhile.

use super::{AppError, Caller, Services};
use crate::store::{AgentRecord, FoundTarget, ProcFilter};
use procfleet_core::id::{AgentId, Host, ProcKey};
use procfleet_core::request::{Request, Target};
use procfleet_core::select::{Candidate, Term, glob, means};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::operate::{MOST_OPS, OperateTargets, Selected};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The hosts, in the order of their addresses: those of the caller's businesses that may come in at all, here
/// or away. A term that means none of them is a fault.
pub async fn hosts(services: &Services, caller: &Caller, terms: &[Term]) -> Result<Vec<Host>, AppError> {
    let agents = usable(services, caller).await?;
    let mut hosts: Vec<Host> =
        agents.iter().filter(|agent| means(terms, &candidate(agent))).map(|agent| agent.host).collect();
    let mut faults = Faults::default();
    for (place, term) in terms.iter().enumerate() {
        if !agents.iter().any(|agent| term.matches(&candidate(agent))) {
            let reason = format!("{term} means none of the {} agents that the app may use", agents.len());
            faults.add(format!("select[{place}]"), reason);
        }
    }
    if faults.is_empty() && hosts.is_empty() {
        faults.add(
            "select",
            "each of its terms means some agent, but no agent is meant by all of them together",
        );
    }
    hosts.sort_unstable();
    if faults.is_empty() { Ok(hosts) } else { Err(faults.into()) }
}

/// A request for each proc that is meant, with its targets.
///
/// A name means that proc on the hosts that were named or selected, whether they know it or not; without any,
/// on every host that is known to have it. A glob means the procs that are known there.
pub async fn requests(
    services: &Services,
    caller: &Caller,
    asked: Selected,
) -> Result<Vec<Request>, AppError> {
    let Selected { request, names, places, .. } = asked;
    let targets = match places {
        OperateTargets::Select(terms) => {
            Some(hosts(services, caller, &terms).await?.into_iter().map(Target::Host).collect())
        }
        OperateTargets::Targets(targets) => Some(targets),
        OperateTargets::WhereItIs => None,
    };
    let patterns: Vec<(String, &str)> = std::iter::once(("meta.name".to_owned(), request.proc.name.as_str()))
        .chain(names.iter().enumerate().map(|(place, name)| (format!("names[{place}]"), name.as_str())))
        .collect();
    let needs_known = targets.is_none() || patterns.iter().any(|(_, pattern)| is_glob(pattern));
    let known = match needs_known {
        true => {
            KnownProcs::read(services, caller, &request.proc.namespace, &patterns, targets.as_deref()).await?
        }
        false => KnownProcs::default(),
    };
    let mut meant: BTreeMap<String, BTreeSet<Target>> = BTreeMap::new();
    let mut faults = Faults::default();
    for (path, pattern) in patterns {
        match &targets {
            Some(targets) if !is_glob(pattern) => {
                meant.entry(pattern.to_owned()).or_default().extend(targets.iter().cloned());
            }
            Some(_) | None => match known.matching(&request.proc.namespace, pattern) {
                Ok(found) => {
                    for (name, targets) in found {
                        meant.entry(name).or_default().extend(targets);
                    }
                }
                Err(reason) => faults.add(path, reason),
            },
        }
    }
    let ops: usize = meant.values().map(BTreeSet::len).sum();
    if ops > MOST_OPS {
        faults.add("", format!("means {ops} operations, at most {MOST_OPS} are allowed in one call"));
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let of = |(name, targets): (String, BTreeSet<Target>)| Request {
        proc: ProcKey { namespace: request.proc.namespace.clone(), name },
        targets: targets.into_iter().collect(),
        ..request.clone()
    };
    Ok(meant.into_iter().map(of).collect())
}

/// The procs of a namespace that are known where a request may go.
#[derive(Default)]
struct KnownProcs {
    /// By name.
    procs: BTreeMap<String, BTreeSet<Target>>,
    /// Further instances of these. An operation on the whole proc is one on all of its instances.
    parts: BTreeMap<String, BTreeSet<Target>>,
    /// The only agent that the caller may use, if there is one and no place was named.
    only: Option<Target>,
    agents: usize,
}

impl KnownProcs {
    /// `within`: only at these targets, as they were named.
    async fn read(
        services: &Services,
        caller: &Caller,
        namespace: &str,
        patterns: &[(String, &str)],
        within: Option<&[Target]>,
    ) -> Result<KnownProcs, AppError> {
        let agents = usable(services, caller).await?;
        let places: HashMap<AgentId, Target> = match within {
            None => agents.iter().map(|agent| (agent.agent.clone(), Target::Host(agent.host))).collect(),
            Some(targets) => {
                let found = services.store.resolve_within(targets, caller.rights.businesses()).await?;
                let agents = found.into_iter().map(FoundTarget::agent);
                agents.zip(targets).filter_map(|(agent, target)| Some((agent?, target.clone()))).collect()
            }
        };
        let name = match patterns {
            [(_, only)] if !is_glob(only) => Some((*only).to_owned()),
            _ => None,
        };
        let filter = ProcFilter { namespace: Some(namespace.to_owned()), name, agent: None };
        let procs = services.store.procs(filter).await?;
        let all: BTreeSet<(&AgentId, &str)> =
            procs.iter().map(|(agent, record)| (agent, record.proc.name.as_str())).collect();
        let mut known = KnownProcs { agents: agents.len(), ..KnownProcs::default() };
        for (agent, record) in &procs {
            let Some(target) = places.get(agent) else { continue };
            let (whole, number) = record.proc.whole();
            let is_part = number > 1 && all.contains(&(agent, whole.name.as_str()));
            let list = if is_part { &mut known.parts } else { &mut known.procs };
            list.entry(record.proc.name.clone()).or_default().insert(target.clone());
        }
        if let (None, [only]) = (within, agents.as_slice()) {
            known.only = Some(Target::Host(only.host));
        }
        Ok(known)
    }

    fn matching(&self, namespace: &str, pattern: &str) -> Result<Vec<(String, BTreeSet<Target>)>, String> {
        if is_glob(pattern) {
            let parts = self.parts.iter().filter(|_| pattern.contains('#'));
            let found = self.procs.iter().chain(parts).filter(|(name, _)| glob(pattern, name));
            let found: Vec<_> = found.map(|(name, targets)| (name.clone(), targets.clone())).collect();
            return match found.is_empty() {
                true => Err(format!("{pattern:?} matches no known process of namespace {namespace}")),
                false => Ok(found),
            };
        }
        let known = self.procs.get(pattern).or_else(|| self.parts.get(pattern));
        let targets = match (known, &self.only, self.agents) {
            (Some(targets), _, _) => targets.clone(),
            // There is no other place to choose.
            (None, Some(only), _) => BTreeSet::from([only.clone()]),
            (None, None, 0) => {
                let how = "make a join token for one, or ask for a grant of its business";
                return Err(format!("no agent has joined that the app may use: {how}"));
            }
            (None, None, agents) => {
                let where_not = format!("none of the {agents} agents that the app may use");
                return Err(format!("{where_not} is known to have {namespace}:{pattern}; name the hosts"));
            }
        };
        Ok(vec![(pattern.to_owned(), targets)])
    }
}

fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

/// Those of the caller's businesses that may come in at all.
async fn usable(services: &Services, caller: &Caller) -> Result<Vec<AgentRecord>, AppError> {
    let mut agents = services.store.agents().await?;
    agents.retain(|agent| agent.revoked.is_none() && caller.rights.businesses().allows(&agent.business));
    Ok(agents)
}

pub(super) fn candidate(agent: &AgentRecord) -> Candidate<'_> {
    Candidate { host: agent.host, agent: &agent.agent, labels: &agent.labels }
}
