//! Resolves the hosts and procs of a request. The task is sent to these, whatever changes afterwards.

use super::support::size::json_bytes;
use super::{AppError, Caller, Services};
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{AgentId, Host, ProcKey};
use procfleet_core::request::{Request, Target};
use procfleet_core::select::{Term, glob};
use procfleet_core::spec::Spec;
use procfleet_proto::http::batch::MOST_OPS;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::operate::{OperateTargets, Selected, is_glob};
use procfleet_store::{AgentFilter, FoundTarget, ProcFilter};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Terms of one read. Each may read all agents, and the other reads of the store wait for a free connection.
const TERMS_OF_A_READ: usize = 16;
/// Maximum bytes of the specs of one call, counted for each of its procs: each proc has its own copy.
const LARGEST_COPIES: usize = 64 << 20;

/// The selected hosts of the caller's businesses that are not revoked, connected or not, ordered by address.
/// A term that selects none is a fault.
pub async fn hosts(services: &Services, caller: &Caller, terms: &[Term]) -> Result<Vec<Host>, AppError> {
    let usable = AgentFilter::usable(caller.rights.businesses());
    let mut faults = Faults::default();
    let mut unmatched = Vec::new();
    for (part, terms) in terms.chunks(TERMS_OF_A_READ).enumerate() {
        let without = services.store.terms_without_agents(usable.clone(), terms.to_vec()).await?;
        unmatched.extend(without.into_iter().map(|index| part * TERMS_OF_A_READ + index));
    }
    if !unmatched.is_empty() {
        let agents = services.store.count_agents(usable.clone()).await?;
        for index in unmatched {
            let term = &terms[index];
            let reason = format!("{term} means none of the {agents} agents that the app may use");
            faults.add(format!("select[{index}]"), reason);
        }
    }
    let selected = AgentFilter { select: terms.to_vec(), ..usable };
    // One row above the limit is enough to refuse the request.
    let hosts = services.store.hosts_of_agents(selected, MOST_OPS + 1).await?;
    if faults.is_empty() && hosts.is_empty() {
        faults.add(
            "select",
            "each of its terms means some agent, but no agent is meant by all of them together",
        );
    }
    if faults.is_empty() { Ok(hosts) } else { Err(faults.into()) }
}

/// A request for each selected proc, with its targets.
///
/// A name selects that proc on the named or selected hosts, whether they know it or not; without hosts, on
/// every host that is known to have it. A glob selects the procs that are known there.
pub async fn requests(
    services: &Services,
    caller: &Caller,
    asked: Selected,
) -> Result<Vec<Request>, AppError> {
    let Selected { request, names, targets, .. } = asked;
    let targets = match targets {
        OperateTargets::Select(terms) => {
            Some(hosts(services, caller, &terms).await?.into_iter().map(Target::Host).collect())
        }
        OperateTargets::Targets(targets) => Some(targets),
        OperateTargets::HostsOfProc => None,
    };
    let mut seen = HashSet::new();
    let patterns: Vec<(String, &str)> = std::iter::once(("meta.name".to_owned(), request.proc.name.as_str()))
        .chain(names.iter().enumerate().map(|(index, name)| (format!("names[{index}]"), name.as_str())))
        .filter(|(_, pattern)| seen.insert(*pattern))
        .collect();
    let needs_known = targets.is_none() || patterns.iter().any(|(_, pattern)| is_glob(pattern));
    let known = match needs_known {
        true => {
            KnownProcs::read(services, caller, &request.proc.namespace, &patterns, targets.as_deref()).await?
        }
        false => KnownProcs::default(),
    };
    let mut meant = MeantProcs::default();
    let mut faults = Faults::default();
    for (path, pattern) in patterns {
        match &targets {
            Some(targets) if !is_glob(pattern) => meant.add(pattern.to_owned(), targets.iter().cloned()),
            Some(_) | None => match known.matching(&request.proc.namespace, pattern) {
                Ok(found) => found.into_iter().for_each(|(name, targets)| meant.add(name, targets)),
                Err(reason) => faults.add(path, reason),
            },
        }
        // Not after the loop: a few names and hosts can mean more than fits into memory.
        if meant.ops > MOST_OPS {
            faults.add("", format!("means more than {MOST_OPS} operations, which is the most in one call"));
            break;
        }
    }
    let meant = meant.procs;
    let bytes = request.spec.as_ref().map_or(0, json_bytes);
    if bytes.saturating_mul(meant.len()) > LARGEST_COPIES {
        let reason = format!(
            "has {bytes} bytes and is sent for {} processes, of which each has a copy: at most {} MiB are allowed \
             in one call. Send fewer processes in each call",
            meant.len(),
            LARGEST_COPIES >> 20
        );
        faults.add("spec", reason);
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let of = |(name, targets): (String, BTreeSet<Target>)| {
        let proc = ProcKey { namespace: request.proc.namespace.clone(), name };
        let spec = request.spec.clone().map(|spec| named_as(spec, &request.proc.name, &proc));
        Request { proc, spec, targets: targets.into_iter().collect(), ..request.clone() }
    };
    Ok(meant.into_iter().map(of).collect())
}

/// The spec of one proc among several. A client that changes single fields fills in the first name as the
/// `proc_name` for hosts that do not know the proc; each of the others gets its own name there.
fn named_as(mut spec: Spec, first: &str, proc: &ProcKey) -> Spec {
    let is_filled_in = !spec.change.is_empty() && !spec.change.iter().any(|field| field == "proc_name");
    if is_filled_in && spec.identity.proc_name == first {
        spec.identity.proc_name = proc.whole().0.name;
    }
    spec
}

/// The procs that a call means, and their targets.
#[derive(Default)]
struct MeantProcs {
    procs: BTreeMap<String, BTreeSet<Target>>,
    /// The number of targets of all procs.
    ops: usize,
}

impl MeantProcs {
    fn add(&mut self, name: String, targets: impl IntoIterator<Item = Target>) {
        let own = self.procs.entry(name).or_default();
        let before = own.len();
        own.extend(targets);
        self.ops += own.len() - before;
    }
}

/// The procs of a namespace that are known where a request may go.
#[derive(Default)]
struct KnownProcs {
    /// By name.
    procs: BTreeMap<String, BTreeSet<Target>>,
    /// Further instances of these procs. An operation on the whole proc includes all of its instances.
    parts: BTreeMap<String, BTreeSet<Target>>,
    /// The only agent that the caller may use, if there is exactly one and no target was named.
    only: Option<Target>,
    agents: u64,
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
        let usable = AgentFilter::usable(caller.rights.businesses());
        let named: Option<HashMap<AgentId, Target>> = match within {
            None => None,
            Some(targets) => {
                let found = services.store.resolve_within(targets, caller.rights.businesses()).await?;
                let agents = found.into_iter().map(FoundTarget::agent);
                Some(
                    agents
                        .zip(targets)
                        .filter_map(|(agent, target)| Some((agent?, target.clone())))
                        .collect(),
                )
            }
        };
        let mut known = KnownProcs {
            agents: services.store.count_agents(usable.clone()).await?,
            ..KnownProcs::default()
        };
        let mut found: BTreeMap<(AgentId, String), Host> = BTreeMap::new();
        // On given hosts only globs are looked for: a name is operated there, known or not.
        for (_, pattern) in patterns.iter().filter(|(_, pattern)| within.is_none() || is_glob(pattern)) {
            let among = named.as_ref().map(|named| named.keys().cloned().collect());
            let filter = ProcFilter {
                // A revoked agent is selected only by its name.
                agents: match among {
                    None => usable.clone(),
                    Some(_) => AgentFilter { among, ..AgentFilter::of(caller.rights.businesses()) },
                },
                within: GrantScope::All,
                namespace: Some(namespace.to_owned()),
                name: Some((*pattern).to_owned()),
                ..ProcFilter::default()
            };
            // One more than may be used is enough to be refused.
            let procs = services.store.find_procs(filter, MOST_OPS + 1).await?;
            found.extend(procs.into_iter().map(|(agent, host, name)| ((agent, name), host)));
        }
        let proc = |name: &str| ProcKey { namespace: namespace.to_owned(), name: name.to_owned() };
        let wholes = found.keys().filter_map(|(agent, name)| {
            let (whole, number) = proc(name).whole();
            (number > 1).then(|| (agent.clone(), whole))
        });
        let wholes = services.store.known_procs(wholes.collect()).await?;
        for ((agent, name), host) in found {
            let target = match &named {
                None => Target::Host(host),
                Some(named) => match named.get(&agent) {
                    Some(target) => target.clone(),
                    None => continue,
                },
            };
            let (whole, number) = proc(&name).whole();
            let is_part = number > 1 && wholes.contains(&(agent, whole));
            let list = if is_part { &mut known.parts } else { &mut known.procs };
            list.entry(name).or_default().insert(target);
        }
        if within.is_none() && known.agents == 1 {
            let only = services.store.hosts_of_agents(usable, 1).await?;
            known.only = only.first().copied().map(Target::Host);
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
            // There is only one agent to choose.
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
