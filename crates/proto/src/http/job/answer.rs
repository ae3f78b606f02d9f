//! What JOB's APIs answer: the envelope, results, and which agents are there.

use crate::http::agents::AgentView;
use crate::http::content;
use crate::http::result::{About, OpResult as GseResult};
use procfleet_core::code::Code;
use procfleet_core::id::{Host, ProcKey};
use procfleet_core::op::{OpKind, Outcome};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The frame of every reply.
#[derive(Clone, Debug, Serialize)]
pub struct Envelope<T> {
    pub result: bool,
    pub code: u32,
    /// Empty on success.
    pub message: String,
    pub data: Option<T>,
    /// Always `null`: what was not allowed stands in the message.
    pub permission: (),
    pub request_id: String,
}

/// One value of `get_proc_result`'s `result`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpResult {
    /// An object, and not a text as with GSE; without fields while the op is open.
    pub content: Value,
    pub error_code: u32,
    pub error_msg: String,
}

impl OpResult {
    pub fn new(about: About<'_>, outcome: Option<&Outcome>) -> OpResult {
        let Some(outcome) = outcome else {
            let GseResult { error_code, error_msg, .. } = GseResult::handling();
            return OpResult { content: json!({}), error_code, error_msg };
        };
        let content = match about.kind {
            // GSE's own, whose content is empty there too.
            OpKind::Register | OpKind::Update | OpKind::Unregister | OpKind::Group => json!({}),
            OpKind::Start
            | OpKind::Stop
            | OpKind::Query
            | OpKind::Host
            | OpKind::Unhost
            | OpKind::Restart
            | OpKind::Reload
            | OpKind::Kill => content(about, outcome),
        };
        OpResult { content, error_code: outcome.code.number(), error_msg: outcome.message.clone() }
    }
}

/// The `data` of `get_proc_result`.
pub fn results(results: impl IntoIterator<Item = (String, OpResult)>) -> Value {
    let mut status = Code::Success;
    let results = results.into_iter().map(|(key, result)| {
        if result.error_code == Code::Handling.number() {
            status = Code::Handling;
        }
        (key, json!(result))
    });
    let results: Map<String, Value> = results.collect();
    json!({"status": status.number(), "result": results})
}

/// The `data` of `get_agent_status`, in the order of the hosts, also for unknown ones.
pub fn alive(hosts: &[Host], find: impl Fn(&Host) -> Option<AgentView>) -> Value {
    let row = |host: &Host| {
        json!({
            "bk_cloud_id": host.cloud.0,
            "ip": host.ip.to_string(),
            "bk_agent_alive": u8::from(find(host).is_some_and(|agent| agent.connected)),
        })
    };
    hosts.iter().map(row).collect()
}

/// As GSE's, but a process is called by the name of its program, and has the one field more that JOB's document shows.
fn content(about: About<'_>, outcome: &Outcome) -> Value {
    let program = about.spec.map(|spec| &spec.identity.proc_name).filter(|name| !name.is_empty());
    let namespace = about.proc.namespace.clone();
    let shown = program.map(|name| ProcKey { namespace, name: name.clone() });
    let mut content = content::render(About { proc: shown.as_ref().unwrap_or(about.proc), ..about }, outcome);
    // Looked up and not indexed, for an index would make what is not there.
    for process in content.get_mut("process").and_then(Value::as_array_mut).into_iter().flatten() {
        for instance in process.get_mut("instance").and_then(Value::as_array_mut).into_iter().flatten() {
            // It is not measured here; its callers parse the text all the same.
            instance["freeVMem"] = json!("0");
        }
    }
    content
}
