//! Batches: lists of requests and of targets, each element of which is validated on its own.
//!
//! An invalid element is rejected under its own result key and does not affect the other elements. Real
//! callers need this: bscp sends the same process twice in one call on purpose, and gsekit sends a host with
//! an empty ip in a batch of 1,000. A call is rejected as a whole, with every fault, only if no element of
//! the list is valid.

use super::fault::Faults;
use super::read::Reader;
use procfleet_core::code::Code;
use procfleet_core::id::{AgentId, CloudId, Host};
use procfleet_core::request::{Refusal, Request, Target, UnusableTarget};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// Maximum length of a namespace, a name or a host in a result key.
pub(super) const LONGEST_NAME: usize = 256;
/// Maximum number of ops of one call, and of targets of one query.
pub const MOST_OPS: usize = 100_000;

/// Whether hosts are named with a `bk_supplier_id`, as the first generation of the API does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppliers {
    None,
    Optional,
    Required,
}

/// A host as the caller named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedHost {
    pub ip: String,
    pub cloud: u32,
    /// `cloud:ip`, as in keys.
    pub name: String,
    /// `None`: the address is invalid, so no such host exists.
    pub host: Option<Host>,
}

impl NamedHost {
    pub(super) fn read(reader: &Reader<'_>, faults: &mut Faults) -> NamedHost {
        let host = read_host(reader, faults);
        match host {
            Some(host) => NamedHost {
                ip: host.ip.to_string(),
                cloud: host.cloud.0,
                name: host.to_string(),
                host: Some(host),
            },
            None => {
                let (ip, cloud) = (reader.shown("ip"), reader.shown("bk_cloud_id"));
                let name = format!("{cloud}:{ip}");
                NamedHost { ip, cloud: cloud.parse().unwrap_or_default(), name, host: None }
            }
        }
    }
}

/// One parsed element and its faults. `None`: the element names no process or host.
pub(super) type ReadElement<T> = (Option<T>, Faults);

/// Returns every element that can be named, valid or not. The faults of invalid elements are added to the
/// call as warnings, or as faults if no element is valid.
pub(super) fn settle<T>(read: Vec<ReadElement<T>>, faults: &mut Faults) -> Vec<T> {
    let nothing = read.iter().all(|(_, own)| !own.is_empty());
    let mut kept = Vec::with_capacity(read.len());
    for (element, own) in read {
        match nothing {
            true => faults.absorb(own),
            false => faults.absorb_as_warnings(&own),
        }
        kept.extend(element);
    }
    kept
}

/// `hosts: [{ip, bk_cloud_id}]`, or such a list of another name.
pub(super) fn read_hosts(elements: Vec<Result<Reader<'_>, Faults>>, faults: &mut Faults) -> Vec<NamedHost> {
    let read = |element: Result<Reader<'_>, Faults>| match element {
        Err(own) => (None, own),
        Ok(reader) => {
            let mut own = Faults::default();
            (Some(NamedHost::read(&reader, &mut own)), own)
        }
    };
    settle(elements.into_iter().map(read).collect(), faults)
}

/// `agent_id_list`, which takes precedence, or `hosts`.
pub(super) fn read_targets(reader: &Reader<'_>, suppliers: Suppliers, faults: &mut Faults) -> Vec<Target> {
    let agents = reader.each_text("agent_id_list", faults);
    if !agents.is_empty() {
        return settle(agents.into_iter().map(read_agent).collect(), faults);
    }
    reader.require_one(&["hosts", "agent_id_list"], faults);
    let read = |element: Result<Reader<'_>, Faults>| match element {
        Err(own) => (None, own),
        Ok(host) => read_target(&host, suppliers),
    };
    settle(reader.elements("hosts", faults).into_iter().map(read).collect(), faults)
}

/// The targets of a query, each once: a repeated one has the same answer, and repeating a large answer would
/// take memory without a bound.
pub(super) fn read_query_targets(
    reader: &Reader<'_>,
    suppliers: Suppliers,
    faults: &mut Faults,
) -> Vec<Target> {
    let mut targets = read_targets(reader, suppliers, faults);
    let mut known = HashSet::new();
    targets.retain(|target| known.insert(target.clone()));
    if targets.len() > MOST_OPS {
        let by_agent = !reader.each_text("agent_id_list", &mut Faults::default()).is_empty();
        let field = if by_agent { "agent_id_list" } else { "hosts" };
        let reason = format!("names {} targets, at most {MOST_OPS} are allowed in one call", targets.len());
        faults.add(reader.path(field), reason);
    }
    targets
}

/// `ip_list`, as JOB calls it.
pub(super) fn host_targets(elements: Vec<Result<Reader<'_>, Faults>>, faults: &mut Faults) -> Vec<Target> {
    let read = |element: Result<Reader<'_>, Faults>| match element {
        Err(own) => (None, own),
        Ok(host) => read_target(&host, Suppliers::None),
    };
    settle(elements.into_iter().map(read).collect(), faults)
}

fn read_agent((path, text): (String, Result<&str, String>)) -> ReadElement<Target> {
    let mut own = Faults::default();
    let target = match text.map(|text| (text, text.parse::<AgentId>())) {
        Err(reason) => {
            own.add(path, reason);
            None
        }
        Ok((_, Ok(agent))) => Some(Target::Agent(agent)),
        Ok((name, Err(reason))) => {
            own.add_bad_target(path, reason.to_string());
            unusable(name.to_owned(), None, &own)
        }
    };
    (target, own)
}

fn read_target(reader: &Reader<'_>, suppliers: Suppliers) -> ReadElement<Target> {
    let mut own = Faults::default();
    if suppliers == Suppliers::Required {
        reader.require("bk_supplier_id", &mut own);
    }
    let supplier = match suppliers {
        Suppliers::None => None,
        Suppliers::Optional | Suppliers::Required => {
            reader.integer("bk_supplier_id", 0..=i64::from(u32::MAX), &mut own)
        }
    };
    let supplier = supplier.and_then(|id| u32::try_from(id).ok());
    let NamedHost { name, host, .. } = NamedHost::read(reader, &mut own);
    let target = match (host, supplier) {
        _ if !own.is_empty() => unusable(name, supplier, &own),
        (Some(host), Some(supplier)) => Some(Target::SupplierHost(host, supplier)),
        (Some(host), None) => Some(Target::Host(host)),
        (None, _) => None,
    };
    (target, own)
}

/// `None`: the name is too long or has control characters, so it cannot be part of a result key.
fn unusable(name: String, supplier: Option<u32>, own: &Faults) -> Option<Target> {
    let usable = name.chars().count() <= LONGEST_NAME && !name.chars().any(char::is_control);
    usable.then(|| Target::Unusable(UnusableTarget { name, supplier, reason: own.to_string() }))
}

/// Reads one host. An invalid address is a `BadTarget` fault: callers know it as 117, "no such agent".
pub(super) fn read_host(host: &Reader<'_>, faults: &mut Faults) -> Option<Host> {
    let mut own = Faults::default();
    let text = host.required_text("ip", 45, &mut own);
    let ip = text.parse().ok().filter(|_| own.is_empty());
    match own.list() {
        [] if ip.is_none() => {
            faults.add_bad_target(host.path("ip"), format!("{text:?} is not an IP address"))
        }
        [fault] if text.is_empty() && host.is_text("ip") => {
            faults.add_bad_target(fault.path.clone(), fault.reason.to_string());
        }
        _ => faults.absorb(own),
    }
    host.require("bk_cloud_id", faults);
    let cloud = host.integer("bk_cloud_id", 0..=i64::from(u32::MAX), faults);
    Some(Host { cloud: CloudId(u32::try_from(cloud?).ok()?), ip: ip? })
}

/// Checks all requests together: duplicate result keys and the number of ops.
///
/// A host that appears twice in one request is one op, and so is the same request in two elements. Two
/// different requests with one result key share one answer, so the later one is rejected with 811 and never
/// carried out.
pub(super) fn finish(
    requests: Vec<Request>,
    faults: &mut Faults,
    path: impl Fn(usize) -> String,
) -> Vec<Request> {
    let mut owners: HashMap<String, usize> = HashMap::new();
    let mut kept: Vec<Request> = Vec::with_capacity(requests.len());
    let mut refused = Vec::new();
    for (index, mut request) in requests.into_iter().enumerate() {
        let mut clashes: Vec<(usize, Target)> = Vec::new();
        let targets = std::mem::take(&mut request.targets);
        for target in targets {
            match owners.entry(target.result_key(&request.proc)) {
                Entry::Vacant(free) => {
                    free.insert(index);
                    request.targets.push(target);
                }
                Entry::Occupied(taken) if *taken.get() == index => {}
                Entry::Occupied(taken) if kept[*taken.get()].asks_the_same(&request) => {}
                Entry::Occupied(taken) => clashes.push((*taken.get(), target)),
            }
        }
        if let Some((owner, target)) = clashes.first() {
            let (key, other) = (target.result_key(&request.proc), kept[*owner].kind.verb());
            let reason = format!(
                "refused: {} of the same call asks for {key} too ({other}), and alone is carried out; one key has one \
                 answer, so send this one in a call of its own",
                path(*owner)
            );
            faults.warn(path(index), reason.clone());
            let targets = clashes.into_iter().map(|(_, target)| target).collect();
            let refusal = Some(Refusal { code: Code::BadRequest, reason });
            refused.push(Request {
                targets,
                refused: request.refused.clone().or(refusal),
                ..request.clone()
            });
        }
        kept.push(request);
    }
    kept.append(&mut refused);
    kept.retain(|request| !request.targets.is_empty());
    let total: usize = kept.iter().map(|request| request.targets.len()).sum();
    if total > MOST_OPS {
        faults.add("", format!("asks for {total} operations, at most {MOST_OPS} are allowed in one call"));
    }
    kept
}

/// Turns parsed elements into requests; invalid ones become rejected requests. If no element is valid, all
/// faults are added to the call.
pub(super) fn sort_out(
    elements: Vec<ReadElement<Request>>,
    faults: &mut Faults,
    path: impl Fn(usize) -> String,
) -> Vec<Request> {
    let nothing = elements.iter().all(|(_, own)| !own.is_empty());
    let mut requests = Vec::with_capacity(elements.len());
    for (element, own) in elements {
        match (nothing, element) {
            (true, _) => faults.absorb(own),
            (false, element) => {
                faults.absorb_as_warnings(&own);
                let refused = (!own.is_empty()).then(|| own.refusal());
                // An element without a proc has no result key; it keeps its index so that messages name the
                // right one.
                let request = element.map(|request| Request { refused, ..request });
                requests.push(request);
            }
        }
    }
    let indexes: Vec<usize> = requests
        .iter()
        .enumerate()
        .filter(|(_, request)| request.is_some())
        .map(|(index, _)| index)
        .collect();
    finish(requests.into_iter().flatten().collect(), faults, |index| path(indexes[index]))
}
