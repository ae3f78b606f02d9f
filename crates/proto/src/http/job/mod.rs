//! JOB's process APIs: `operate_proc`, `operate_process`, `manage_proc`, `get_proc_result` and `get_agent_status`.
//!
//! They are other words for the same operations: each element of `process_infos` becomes a proc of the namespace
//! [`ProcKey::JOB_NAMESPACE`](procfleet_core::id::ProcKey::JOB_NAMESPACE) and its spec. What the three that make a task
//! differ in is which fields an element has, and what stands for those that it leaves out: `info.rs`.

mod answer;
mod info;
mod scope;
mod script;

pub use answer::{Accepted, Envelope, JobResults, OpResult, alive, results};
pub use scope::{NamedScope, ScopeOf};

use super::fault::Faults;
use super::operate::{OP_TYPES, check_size, finish, no_operation, read_host};
use super::read::{Body, Reader};
use info::Info;
use procfleet_core::id::Host;
use procfleet_core::op::OpKind;
use procfleet_core::task::{Request, Target};

/// What `manage_proc` can be asked for.
pub const HOSTING: [i64; 2] = [1, 2];

/// What a call asks for, and which businesses it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub scope: NamedScope,
    pub requests: Vec<Request>,
}

/// `operate_proc`: the commands are scripts beside the program, by their names.
pub fn operate_proc<'v>(body: impl Into<Body<'v>>) -> Result<Operation, Faults> {
    operation(body.into(), read_op_type, |element, _, faults| info::with_scripts(element, faults))
}

/// `operate_process`: the commands are the caller's own.
pub fn operate_process<'v>(body: impl Into<Body<'v>>) -> Result<Operation, Faults> {
    operation(body.into(), read_op_type, info::with_commands)
}

/// `manage_proc`: from now on the agent keeps a process in its wanted state, or leaves it alone.
pub fn manage_proc<'v>(body: impl Into<Body<'v>>) -> Result<Operation, Faults> {
    operation(body.into(), read_hosting, info::to_be_hosted)
}

/// `get_proc_result`: the task id as text. Whether anybody issued it is not known here.
pub fn get_proc_result<'v>(body: impl Into<Body<'v>>) -> Result<(NamedScope, String), Faults> {
    read_scoped(body.into(), |reader, faults| reader.required_text("bk_gse_taskid", 128, faults))
}

/// `get_agent_status`: the hosts in the order of the request.
pub fn get_agent_status<'v>(body: impl Into<Body<'v>>) -> Result<(NamedScope, Vec<Host>), Faults> {
    read_scoped(body.into(), read_ip_list)
}

fn operation(
    body: Body<'_>,
    read_kind: impl Fn(&Reader<'_>, &mut Faults) -> Option<OpKind>,
    read_info: impl Fn(&Reader<'_>, Option<OpKind>, &mut Faults) -> Info,
) -> Result<Operation, Faults> {
    let (scope, requests) = read_scoped(body, |reader, faults| {
        let kind = read_kind(reader, faults);
        let requests = present(reader, "process_infos", faults).into_iter().map(|element| {
            let before = faults.list().len();
            let Info { proc, spec } = read_info(&element, kind, faults);
            check_size(&spec, element.place().to_owned(), faults);
            let mut targets: Vec<Target> =
                read_ip_list(&element, faults).into_iter().map(Target::Host).collect();
            if faults.list().len() > before {
                // Whether another asks for the same cannot be said of an element that does not say what it asks for.
                targets.clear();
            }
            // Which operation it is does not matter where it is not known: that was a fault.
            Request { proc, kind: kind.unwrap_or(OpKind::Query), spec: Some(spec), targets }
        });
        let requests = requests.collect();
        finish(requests, std::mem::take(faults), |place| format!("process_infos[{place}]")).unwrap_or_else(
            |all| {
                *faults = all;
                Vec::new()
            },
        )
    })?;
    Ok(Operation { scope, requests })
}

/// The scope of a call and what else it says, or all of its faults.
fn read_scoped<T>(
    body: Body<'_>,
    read: impl FnOnce(&Reader<'_>, &mut Faults) -> T,
) -> Result<(NamedScope, T), Faults> {
    let mut faults = Faults::default();
    let Some(reader) = Reader::root(body, &mut faults) else { return Err(faults) };
    let scope = scope::read(&reader, &mut faults);
    let rest = read(&reader, &mut faults);
    match scope {
        Some(scope) if faults.is_empty() => Ok((scope, rest)),
        Some(_) | None => Err(faults),
    }
}

fn read_op_type(reader: &Reader<'_>, faults: &mut Faults) -> Option<OpKind> {
    reader.require("op_type", faults);
    let number = reader.choice_or_text("op_type", &OP_TYPES, faults)?;
    let kind = u64::try_from(number).ok().and_then(OpKind::from_op_type);
    if kind.is_none() {
        faults.add(reader.path("op_type"), no_operation(number));
    }
    kind
}

/// `manage_proc` has numbers of its own.
fn read_hosting(reader: &Reader<'_>, faults: &mut Faults) -> Option<OpKind> {
    reader.require("op_type", faults);
    match reader.choice_or_text("op_type", &HOSTING, faults)? {
        1 => Some(OpKind::Host),
        2 => Some(OpKind::Unhost),
        number => {
            let reason = format!("{number} is no operation of manage_proc; there are 1 host and 2 unhost");
            faults.add(reader.path("op_type"), reason);
            None
        }
    }
}

fn read_ip_list(reader: &Reader<'_>, faults: &mut Faults) -> Vec<Host> {
    present(reader, "ip_list", faults).iter().filter_map(|host| read_host(host, faults)).collect()
}

/// The objects of a list that must have some.
fn present<'v>(reader: &Reader<'v>, field: &str, faults: &mut Faults) -> Vec<Reader<'v>> {
    reader.require(field, faults);
    if reader.is_empty_list(field) {
        faults.add(reader.path(field), "must not be empty");
    }
    reader.objects(field, faults)
}
