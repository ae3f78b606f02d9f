//! Answers of JOB's APIs: the envelope, results, and the connection state of agents.

use super::permission::Permission;
use crate::http::agents::{AgentAlive, AgentView, alive_row};
use crate::http::batch::NamedHost;
use crate::http::content::{self, OpContext, Rendered};
use crate::http::keyed::Keyed;
use crate::http::result::OpResult as GseResult;
use procfleet_core::code::Code;
use procfleet_core::id::{Host, ProcKey};
use procfleet_core::op::Outcome;
use schemars::JsonSchema;
use serde::Serialize;

/// The frame of every reply.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "JobAnswer_{T}")]
pub struct JobEnvelope<T> {
    pub result: bool,
    pub code: u32,
    /// Empty on success, unless single elements were refused.
    pub message: String,
    pub data: Option<T>,
    /// The missing grants of a call that was denied, else `null`.
    pub permission: Option<Permission>,
    pub request_id: String,
}

/// The `data` of calls that create a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct JobAccepted {
    pub bk_gse_taskid: String,
}

/// An object, and not a text as with GSE; without fields while the op is open.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum JobContent {
    Rendered(Box<Rendered>),
    Nothing(Nothing),
}

/// `{}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Nothing {}

/// One value of `get_proc_result`'s `result`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "JobOpResult")]
pub struct JobOpResult {
    pub content: JobContent,
    pub error_code: u32,
    pub error_msg: String,
}

impl JobOpResult {
    pub fn new(about: OpContext<'_>, outcome: Option<&Outcome>) -> JobOpResult {
        let Some(outcome) = outcome else {
            let GseResult { error_code, error_msg, .. } = GseResult::handling();
            return JobOpResult { content: JobContent::Nothing(Nothing {}), error_code, error_msg };
        };
        let content = if about.kind.has_content() {
            JobContent::Rendered(Box::new(content(about, outcome)))
        } else {
            JobContent::Nothing(Nothing {})
        };
        JobOpResult { content, error_code: outcome.code.number(), error_msg: outcome.message.clone() }
    }
}

/// The `data` of `get_proc_result`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct JobResults {
    /// 115 while any op is open.
    pub status: u32,
    pub result: Keyed<JobOpResult>,
}

pub fn results(results: impl IntoIterator<Item = (String, JobOpResult)>) -> JobResults {
    let mut status = Code::Success;
    let results = results.into_iter().inspect(|(_, result)| {
        if result.error_code == Code::Handling.number() {
            status = Code::Handling;
        }
    });
    let result = results.collect();
    JobResults { status: status.number(), result }
}

/// The `data` of `get_agent_status`, in the order of the hosts, also for unknown ones.
pub fn alive(hosts: &[NamedHost], find: impl Fn(&Host) -> Option<AgentView>) -> Vec<AgentAlive> {
    hosts.iter().map(|named| alive_row(named, &find)).collect()
}

/// As in GSE, but with the name of the program and the additional field of JOB's document.
fn content(about: OpContext<'_>, outcome: &Outcome) -> Rendered {
    let program = about.spec.map(|spec| &spec.identity.proc_name).filter(|name| !name.is_empty());
    let namespace = about.proc.namespace.clone();
    let shown = program.map(|name| ProcKey { namespace, name: name.clone() });
    let mut content =
        content::render(OpContext { proc: shown.as_ref().unwrap_or(about.proc), ..about }, outcome);
    if let Rendered::Status(status) = &mut content {
        let instances = status.process.iter_mut().flat_map(|process| &mut process.instance);
        instances.for_each(|instance| instance.free_vmem = Some("0".to_owned()));
    }
    content
}
