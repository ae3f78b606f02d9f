//! The `content` of a result, in GSE 2's shape.
//!
//! Callers parse it even on failure and count its elements, so there is always exactly one `value`, or one
//! `process` with one `instance`, unless the spec itself asks for several.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use procfleet_core::id::{AgentId, ProcKey};
use procfleet_core::op::{Content, Instance, OpKind, Outcome, ProcStatus};
use procfleet_core::request::Target;
use procfleet_core::spec::{JobFacts, Spec};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

/// The properties of an op that its result needs.
#[derive(Clone, Copy, Debug)]
pub struct OpContext<'a> {
    pub proc: &'a ProcKey,
    pub kind: OpKind,
    pub spec: Option<&'a Spec>,
    pub target: &'a Target,
    pub agent: Option<&'a AgentId>,
}

/// The content of a result.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Rendered {
    Control(ControlContent),
    Status(StatusContent),
}

/// The content of an operation that controls a process.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ControlContent {
    pub value: [ControlValue; 1],
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlValue {
    pub proc_name: String,
    pub setup_path: String,
    #[serde(rename = "funcID")]
    pub func_id: String,
    #[serde(rename = "instanceID")]
    pub instance_id: String,
    pub result: String,
    pub is_auto: bool,
}

/// The content of a query.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct StatusContent {
    pub ip: String,
    pub bk_agent_id: String,
    pub utctime: String,
    pub utctime2: String,
    pub timezone: i32,
    pub process: [StatusProcess; 1],
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct StatusProcess {
    pub procname: String,
    pub instance: Vec<StatusInstance>,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusInstance {
    pub cmdline: String,
    pub process_name: String,
    pub version: String,
    pub health: String,
    pub is_auto: bool,
    pub cpu_usage: f64,
    pub cpu_usage_ave: f64,
    pub phy_mem_usage: f64,
    pub use_phy_mem: u64,
    pub disk_size: i64,
    pub pid: i64,
    pub start_time: String,
    pub stat: String,
    pub utime: String,
    pub stime: String,
    pub thread_count: u64,
    pub elapsed_time: u64,
    #[serde(rename = "register_time")]
    pub register_time: i64,
    #[serde(rename = "last_start_time")]
    pub last_start_time: i64,
    #[serde(rename = "report_time")]
    pub report_time: i64,
    /// Part of JOB's document. It is not measured, but callers parse the text.
    #[serde(rename = "freeVMem", skip_serializing_if = "Option::is_none")]
    pub free_vmem: Option<String>,
}

/// In GSE the content is a JSON text inside a result.
pub(super) fn text_schema(generator: &mut SchemaGenerator) -> Schema {
    let inner = generator.subschema_for::<Rendered>();
    json_schema!({"type": "string", "contentMediaType": "application/json", "contentSchema": inner})
}

pub fn render(about: OpContext<'_>, outcome: &Outcome) -> Rendered {
    match &outcome.content {
        Content::Control { hosted, proc_name, setup_path } => {
            // The value that the caller sent, because the caller expects it back; otherwise the value that
            // the agent used.
            let (sent, none) = (about.spec, JobFacts::default());
            let job = sent.map_or(&none, |spec| &spec.job);
            let (proc_name, setup_path) =
                sent.map_or((proc_name, setup_path), |s| (&s.identity.proc_name, &s.identity.setup_path));
            let value = ControlValue {
                proc_name: proc_name.clone(),
                setup_path: setup_path.clone(),
                func_id: job.func_id.clone(),
                instance_id: job.instance_id.clone(),
                result: outcome.message.clone(),
                is_auto: *hosted,
            };
            Rendered::Control(ControlContent { value: [value] })
        }
        Content::Status(status) => Rendered::Status(self::status(about, status)),
    }
}

/// As GSE writes it.
pub(super) fn text(about: OpContext<'_>, outcome: &Outcome) -> String {
    serde_json::to_string(&render(about, outcome)).expect("texts and numbers are JSON")
}

fn status(about: OpContext<'_>, status: &ProcStatus) -> StatusContent {
    let zone = Offset::from_seconds(status.utc_offset_secs).unwrap_or(Offset::UTC);
    let seen = std::iter::once(&status.instance).chain(&status.more);
    let process = StatusProcess {
        procname: about.proc.name.clone(),
        instance: seen.map(|seen| instance(about, status, seen.as_ref(), zone)).collect(),
    };
    StatusContent {
        ip: about.target.host().map(|host| host.ip.to_string()).unwrap_or_default(),
        bk_agent_id: about.agent.map_or_else(String::new, ToString::to_string),
        utctime: clock(status.reported_at, zone, "%Y-%m-%d %H:%M:%S"),
        utctime2: clock(status.reported_at, Offset::UTC, "%Y-%m-%d %H:%M:%S"),
        timezone: status.utc_offset_secs / 3600,
        process: [process],
    }
}

fn instance(
    about: OpContext<'_>,
    status: &ProcStatus,
    seen: Option<&Instance>,
    zone: Offset,
) -> StatusInstance {
    let stopped = Instance::default();
    let i = seen.unwrap_or(&stopped);
    StatusInstance {
        cmdline: i.command_line.clone(),
        process_name: about.proc.name.clone(),
        version: status.version.clone(),
        health: status.health.to_string(),
        is_auto: status.hosted,
        cpu_usage: rounded(i.cpu_now),
        cpu_usage_ave: rounded(i.cpu_average),
        phy_mem_usage: rounded(i.memory_percent),
        use_phy_mem: i.memory_kib,
        disk_size: -1,
        // Callers disagree about 0; all of them take -1 for stopped.
        pid: seen.map_or(-1, |i| i64::from(i.pid)),
        start_time: seen.map_or_else(String::new, |i| clock(i.began_at, zone, "%a %b %e %H:%M:%S %Y")),
        stat: i.state.clone(),
        utime: i.user_ticks.to_string(),
        stime: i.system_ticks.to_string(),
        thread_count: i.threads,
        elapsed_time: i.elapsed_secs,
        register_time: status.registered_at,
        last_start_time: status.started_at,
        report_time: status.reported_at,
        free_vmem: None,
    }
}

/// Empty for a time of 0.
fn clock(seconds: i64, zone: Offset, format: &str) -> String {
    match Timestamp::from_second(seconds) {
        Ok(at) if seconds != 0 => at.to_zoned(TimeZone::fixed(zone)).strftime(format).to_string(),
        Ok(_) | Err(_) => String::new(),
    }
}

fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
