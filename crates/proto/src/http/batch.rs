//! Lists of which each element is read for itself: an odd one is refused alone, under the key that its caller looks for.
//!
//! Real callers depend on it: one names the same process twice in a call on purpose, and another sends a host without an address
//! among a thousand good ones. Only where nothing of a list can be used is the call as a whole refused, with every fault.

use super::fault::Faults;
use super::operate::{LONGEST_NAME, MOST_OPS, Suppliers};
use super::read::Reader;
use procfleet_core::code::Code;
use procfleet_core::id::{AgentId, CloudId, Host};
use procfleet_core::task::{Refusal, Request, Target, UnusableTarget};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A host as the caller named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedHost {
    pub ip: String,
    pub cloud: u32,
    /// `cloud:ip`, as in keys.
    pub name: String,
    /// `None`: there cannot be such a host.
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

/// What was read of an element. `None`: not even what it is about.
pub(super) type Read<T> = (Option<T>, Faults);

/// Those that are fine, and those that are not but can be named. If none is fine, all their faults are the call's; else they are
/// warnings.
pub(super) fn settle<T>(read: Vec<Read<T>>, faults: &mut Faults) -> Vec<T> {
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

/// `agent_id_list`, which wins, or `hosts`.
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

/// `ip_list`, as JOB calls it.
pub(super) fn host_targets(elements: Vec<Result<Reader<'_>, Faults>>, faults: &mut Faults) -> Vec<Target> {
    let read = |element: Result<Reader<'_>, Faults>| match element {
        Err(own) => (None, own),
        Ok(host) => read_target(&host, Suppliers::None),
    };
    settle(elements.into_iter().map(read).collect(), faults)
}

fn read_agent((path, text): (String, Result<&str, String>)) -> Read<Target> {
    let mut own = Faults::default();
    let target = match text.map(|text| (text, text.parse::<AgentId>())) {
        Err(reason) => {
            own.add(path, reason);
            None
        }
        Ok((_, Ok(agent))) => Some(Target::Agent(agent)),
        Ok((name, Err(reason))) => {
            own.add_no_place(path, reason.to_string());
            unusable(name.to_owned(), None, &own)
        }
    };
    (target, own)
}

fn read_target(reader: &Reader<'_>, suppliers: Suppliers) -> Read<Target> {
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

/// `None`: such a name is no part of a key.
fn unusable(name: String, supplier: Option<u32>, own: &Faults) -> Option<Target> {
    let usable = name.chars().count() <= LONGEST_NAME && !name.chars().any(char::is_control);
    usable.then(|| Target::Unusable(UnusableTarget { name, supplier, reason: own.to_string() }))
}

/// Names one host; what is wrong with its address is a place that there cannot be.
pub(super) fn read_host(host: &Reader<'_>, faults: &mut Faults) -> Option<Host> {
    let mut own = Faults::default();
    let text = host.required_text("ip", 45, &mut own);
    let ip = text.parse().ok().filter(|_| own.is_empty());
    match own.list() {
        [] if ip.is_none() => faults.add_no_place(host.path("ip"), format!("{text:?} is not an IP address")),
        [fault] if text.is_empty() && host.is_text("ip") => {
            faults.add_no_place(fault.path.clone(), fault.reason.to_string());
        }
        _ => faults.absorb(own),
    }
    host.require("bk_cloud_id", faults);
    let cloud = host.integer("bk_cloud_id", 0..=i64::from(u32::MAX), faults);
    Some(Host { cloud: CloudId(u32::try_from(cloud?).ok()?), ip: ip? })
}

/// What shows only when all requests are read: two for one key, or too many ops.
///
/// A host that is named twice in one request is meant once, and so is the same request in two elements. Two different requests
/// would have one answer between them: the later one is refused, and the answer says so as soon as the first has ended.
pub(super) fn finish(
    requests: Vec<Request>,
    faults: &mut Faults,
    path: impl Fn(usize) -> String,
) -> Vec<Request> {
    let mut owners: HashMap<String, usize> = HashMap::new();
    let mut kept: Vec<Request> = Vec::with_capacity(requests.len());
    let mut refused = Vec::new();
    for (place, mut request) in requests.into_iter().enumerate() {
        let mut clashes: Vec<(usize, Target)> = Vec::new();
        let targets = std::mem::take(&mut request.targets);
        for target in targets {
            match owners.entry(target.result_key(&request.proc)) {
                Entry::Vacant(free) => {
                    free.insert(place);
                    request.targets.push(target);
                }
                Entry::Occupied(taken) if *taken.get() == place => {}
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
            faults.warn(path(place), reason.clone());
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

/// The elements of a call, each read for itself. If nothing of any can be carried out, the faults of all are the call's.
pub(super) fn sort_out(
    elements: Vec<Read<Request>>,
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
                // One that does not say what it is about has no key to be answered under, and its place must not be lost.
                let request = element.map(|request| Request { refused, ..request });
                requests.push(request);
            }
        }
    }
    let places: Vec<usize> = requests
        .iter()
        .enumerate()
        .filter(|(_, request)| request.is_some())
        .map(|(place, _)| place)
        .collect();
    finish(requests.into_iter().flatten().collect(), faults, |place| path(places[place]))
}
