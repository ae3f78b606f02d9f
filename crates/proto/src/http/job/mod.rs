//! JOB's process APIs: `operate_proc`, `operate_process`, `manage_proc`, `get_proc_result` and
//! `get_agent_status`.
//!
//! The same operations in another form: each element of `process_infos` becomes a proc of the namespace
//! [`ProcKey::JOB_NAMESPACE`](procfleet_core::id::ProcKey::JOB_NAMESPACE) and its spec. The three APIs that
//! create a task differ in the fields of an element and their defaults: see `info.rs`.

mod answer;
mod info;
mod permission;
mod scope;
mod script;

pub use answer::{JobAccepted, JobEnvelope, JobOpResult, JobResults, alive, results};
pub use permission::Permission;
pub use scope::{NamedScope, ScopeOf};

use super::batch::{NamedHost, ReadElement, host_targets, read_hosts, sort_out};
use super::fault::{Faults, Warnings};
use super::operate::{OP_TYPES, check_size, no_operation};
use super::read::{Reader, RequestBody};
use info::Info;
use procfleet_core::op::OpKind;
use procfleet_core::request::Request;

/// The operations of `manage_proc`.
pub const HOSTING: [i64; 2] = [1, 2];

/// The requests of a call, and its businesses.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub scope: NamedScope,
    pub requests: Vec<Request>,
    pub warnings: Warnings,
}

/// `operate_proc`: the commands are scripts beside the program, by their names.
pub fn operate_proc<'v>(body: impl Into<RequestBody<'v>>) -> Result<Operation, Faults> {
    operation(body.into(), read_op_type, |element, _, faults| info::with_scripts(element, faults))
}

/// `operate_process`: the commands are the caller's own.
pub fn operate_process<'v>(body: impl Into<RequestBody<'v>>) -> Result<Operation, Faults> {
    operation(body.into(), read_op_type, info::with_commands)
}

/// `manage_proc`: from now on the agent keeps a process in its wanted state, or leaves it alone.
pub fn manage_proc<'v>(body: impl Into<RequestBody<'v>>) -> Result<Operation, Faults> {
    operation(body.into(), read_hosting, info::to_be_hosted)
}

/// `get_proc_result`: the task id as text. Whether the task exists is checked later.
pub fn get_proc_result<'v>(body: impl Into<RequestBody<'v>>) -> Result<(NamedScope, String), Faults> {
    read_scoped(body.into(), |reader, faults| reader.required_text("bk_gse_taskid", 128, faults))
}

/// `get_agent_status`: the hosts in the order of the request.
pub fn get_agent_status<'v>(
    body: impl Into<RequestBody<'v>>,
) -> Result<(NamedScope, Vec<NamedHost>), Faults> {
    read_scoped(body.into(), |reader, faults| read_hosts(present(reader, "ip_list", faults), faults))
}

fn operation(
    body: RequestBody<'_>,
    read_kind: impl Fn(&Reader<'_>, &mut Faults) -> Option<OpKind>,
    read_info: impl Fn(&Reader<'_>, Option<OpKind>, &mut Faults) -> Info,
) -> Result<Operation, Faults> {
    const LIST: &str = "process_infos";
    let (scope, (requests, warnings)) = read_scoped(body, |reader, faults| {
        let kind = read_kind(reader, faults);
        let elements = present(reader, LIST, faults).into_iter();
        let elements = elements.map(|element| read_element(element, kind, &read_info)).collect();
        let requests = sort_out(elements, faults, |index| format!("{LIST}[{index}]"));
        (requests, faults.take_warnings())
    })?;
    Ok(Operation { scope, requests, warnings })
}

fn read_element(
    element: Result<Reader<'_>, Faults>,
    kind: Option<OpKind>,
    read_info: &impl Fn(&Reader<'_>, Option<OpKind>, &mut Faults) -> Info,
) -> ReadElement<Request> {
    let element = match element {
        Ok(element) => element,
        Err(own) => return (None, own),
    };
    let mut own = Faults::default();
    let Info { proc, spec } = read_info(&element, kind, &mut own);
    check_size(&spec, element.own_path().to_owned(), &mut own);
    let named = !spec.identity.proc_name.is_empty() || !spec.identity.index_key.is_empty();
    let targets = host_targets(present(&element, "ip_list", &mut own), &mut own);
    // An unknown operation is a fault of the call, so the kind does not matter here.
    let kind = kind.unwrap_or(OpKind::Query);
    let request = Request { proc, kind, spec: Some(spec), targets, refused: None };
    (named.then_some(request), own)
}

/// The scope of a call and its other fields, or all of its faults.
fn read_scoped<T>(
    body: RequestBody<'_>,
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
    let number = reader.choice("op_type", &OP_TYPES, faults)?;
    let kind = u64::try_from(number).ok().and_then(OpKind::from_op_type);
    if kind.is_none() {
        faults.add(reader.path("op_type"), no_operation(number));
    }
    kind
}

/// `manage_proc` has its own numbers.
fn read_hosting(reader: &Reader<'_>, faults: &mut Faults) -> Option<OpKind> {
    reader.require("op_type", faults);
    match reader.choice("op_type", &HOSTING, faults)? {
        1 => Some(OpKind::Host),
        2 => Some(OpKind::Unhost),
        number => {
            let reason = format!("{number} is no operation of manage_proc; there are 1 host and 2 unhost");
            faults.add(reader.path("op_type"), reason);
            None
        }
    }
}

/// The elements of a list that must not be empty.
fn present<'v>(reader: &Reader<'v>, field: &str, faults: &mut Faults) -> Vec<Result<Reader<'v>, Faults>> {
    reader.require(field, faults);
    if reader.is_empty_list(field) {
        faults.add(reader.path(field), "must not be empty");
    }
    reader.elements(field, faults)
}
