//! procfleet's own API, below `/api/v1/`, which the CLI and the console use.
//!
//! Every answer is wrapped in the same envelope as GSE's: [`Envelope`].

pub use crate::state::ProcState;
use procfleet_core::health::HealthReport;
use procfleet_core::id::BusinessId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The header that tells a denied call from a refused login, which has the same code. The value is
/// [`REFUSAL_GRANT`]; a refused login has no such header.
pub const REFUSAL_HEADER: &str = "x-procfleet-refusal";
pub const REFUSAL_GRANT: &str = "grant";

/// The frame of every reply.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Answer_{T}")]
pub struct Envelope<T> {
    pub result: bool,
    pub code: u32,
    pub message: String,
    pub data: Option<T>,
    #[serde(default)]
    pub request_id: String,
}

/// The frame of a reply whose `data` is, or has, one page of a longer list.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PageAnswer_{T}")]
pub struct PageEnvelope<T> {
    pub result: bool,
    pub code: u32,
    pub message: String,
    pub data: Option<T>,
    /// The cursor of the next page (`after`); `None`: this is the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The number of rows of all pages; `None`: the server is of a version that does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(default)]
    pub request_id: String,
}

/// `POST /api/v1/tokens`: a join token for new agents.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    #[serde(default)]
    pub bk_cloud_id: u32,
    /// The business that the agents will belong to.
    #[serde(default = "default_business")]
    pub bk_biz_id: u32,
    /// How long the token can be used.
    pub ttl_secs: u64,
    /// How many agents may join with it.
    pub uses: u32,
    /// An agent that joins may replace one that is connected or was within the last day.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
}

fn default_business() -> u32 {
    BusinessId::DEFAULT.0
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct CreatedToken {
    /// It is shown once; the server keeps only its hash.
    pub token: String,
    pub bk_cloud_id: u32,
    pub bk_biz_id: u32,
    pub uses: u32,
    /// An agent that joins may replace one that is connected or was within the last day.
    #[serde(default)]
    pub replace: bool,
    /// Seconds since 1970, UTC.
    pub expires_at: i64,
    /// The port of the agents' link; `None`: the server's version does not report it.
    #[serde(default)]
    pub link_port: Option<u16>,
}

/// One row of `GET /api/v1/tokens`, and the answer to a revocation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TokenRow {
    /// The public part of the token.
    pub id: String,
    pub bk_cloud_id: u32,
    pub bk_biz_id: u32,
    /// Seconds since 1970, UTC.
    pub created_at: i64,
    pub expires_at: i64,
    pub uses_left: u32,
    pub replace: bool,
    /// `usable`, `used_up`, `expired` or `revoked`.
    pub state: String,
}

/// One row of `GET /api/v1/agents`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AgentRow {
    pub bk_agent_id: String,
    pub bk_cloud_id: u32,
    pub ip: String,
    pub version: String,
    /// The containment of the agent: `cgroup` or `tree`; empty if the agent has not reported it.
    #[serde(default)]
    pub containment: String,
    pub connected: bool,
    /// When it last connected or disconnected; seconds since 1970, UTC.
    pub since: i64,
    /// Time of the last message, heartbeats included; seconds since 1970, UTC.
    #[serde(default)]
    pub heard_at: i64,
    pub enrolled_at: i64,
    /// The business that it belongs to.
    pub bk_biz_id: u32,
    pub bk_biz_name: String,
    /// When the agent's certificate expires; seconds since 1970, UTC; 0 if unknown.
    #[serde(default)]
    pub certificate_expires_at: i64,
    /// When it was revoked; 0: it was not.
    #[serde(default)]
    pub revoked_at: i64,
    #[serde(default)]
    pub revoked_why: String,
    /// Labels of the host, set by operators.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// The answer to `POST /api/v1/operate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperateAnswer {
    /// Empty after a dry run.
    pub task_id: String,
    /// Number of selected hosts.
    pub count: u64,
    /// The hosts, as `CLOUD:IP`, or as agent ids where the caller named those.
    pub hosts: Vec<String>,
    /// The processes, each with its hosts. Servers of the first version omit them.
    #[serde(default)]
    pub procs: Vec<MeantProc>,
}

/// A process of an operation, and its hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeantProc {
    pub namespace: String,
    pub name: String,
    pub hosts: Vec<String>,
}

/// The answer to `GET /api/v1/specs` (query: `namespace`, `name`, `host` as `CLOUD:IP` or `agent`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpecView {
    pub bk_agent_id: String,
    pub bk_cloud_id: u32,
    pub ip: String,
    pub meta: SpecMeta,
    /// As `spec` in `operate_proc_v2`.
    pub spec: serde_json::Value,
}

/// `meta` of a request about the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpecMeta {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

/// `POST /api/v1/agents/label`; answered with the agents' rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelAgents {
    /// Agent ids, or hosts as `CLOUD:IP`.
    pub agents: Vec<String>,
    pub set: BTreeMap<String, String>,
    pub remove: Vec<String>,
}

/// `GET /api/v1/ca`, and the answer to calls that change the CA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaView {
    /// The SHA-256 of the CA's certificate, which join tokens pin.
    pub sha256: String,
    /// That of its successor, while there is one.
    pub next_sha256: Option<String>,
    /// How many agents use a certificate of the CA, and not of its successor.
    pub agents: u64,
    /// How many join tokens can still be used; they pin the CA, and not its successor.
    pub tokens: u64,
    /// Lifetime of an agent's certificate.
    pub agent_certificate_secs: u64,
    /// How the private keys are sealed in the store. `None`: they are files in the data folder.
    #[serde(default)]
    pub seal: Option<CaSeal>,
}

/// How the private keys of the CAs are sealed in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaSeal {
    /// The id of the key under which this server seals.
    pub key: String,
    /// How many private keys are sealed under another key.
    pub under_other_keys: u64,
    /// The ids of those other keys.
    pub other_keys: Vec<String>,
    /// The servers that cannot open what is sealed under `key`.
    pub servers_without_key: Vec<String>,
}

/// `POST /api/v1/agents/revoke`; answered with the agents' rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeAgents {
    /// Agent ids, or hosts as `CLOUD:IP`.
    pub agents: Vec<String>,
    pub reason: String,
}

/// One row of `GET /api/v1/procs`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProcRow {
    pub bk_agent_id: String,
    pub bk_cloud_id: u32,
    pub ip: String,
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub state: ProcState,
    pub hosted: bool,
    pub pid: Option<u32>,
    /// Why the proc is not in its wanted state; else empty.
    pub note: String,
    /// The first line of the last output of `version_cmd`; empty if there is none.
    #[serde(default)]
    pub version: String,
    /// The last answer of `health_cmd`: `healthy`, `healthy: OUTPUT`, `unhealthy: REASON`, or empty before
    /// the first.
    #[serde(default)]
    #[schemars(with = "String")]
    pub health: HealthReport,
    /// Seconds since 1970, UTC; 0 where it never happened.
    pub started_at: i64,
    /// Time of the agent's last message.
    pub reported_at: i64,
    /// False: the agent is offline, and the row is its last report.
    pub fresh: bool,
}

/// One row of `GET /api/v1/tasks`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskRow {
    pub task_id: String,
    pub created_at: i64,
    pub bk_app_code: String,
    pub bk_username: String,
    /// The request in words: `start web:nginx`.
    pub summary: String,
    pub counts: Counts,
    /// When it was cancelled; seconds since 1970, UTC; 0: it was not.
    #[serde(default)]
    pub cancelled_at: i64,
    /// The task whose failed operations it tries again; else empty.
    #[serde(default)]
    pub retry_of: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    pub total: u64,
    pub open: u64,
    pub succeeded: u64,
    pub failed: u64,
}

/// `GET /api/v1/tasks/{task_id}`: the task, and one page of its ops.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskView {
    #[serde(flatten)]
    pub task: TaskRow,
    pub ops: Vec<OpRow>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OpRow {
    pub op_id: String,
    /// As in `get_proc_operate_result_v2`.
    pub key: String,
    /// The verb: `start`, `stop`, ...
    pub kind: String,
    /// `CLOUD:IP` or the agent id, as the caller named it.
    pub target: String,
    pub namespace: String,
    pub name: String,
    /// 115 while it is open.
    pub error_code: u32,
    pub error_msg: String,
    /// The JSON text of `get_proc_operate_result_v2`; empty while open.
    pub content: String,
    /// When the agent reported the op after the server had ended it: seconds since 1970, UTC; 0: never.
    #[serde(default)]
    pub late_at: i64,
    /// The late report of the agent. The outcome does not change.
    #[serde(default)]
    pub late_code: u32,
    #[serde(default)]
    pub late_msg: String,
}

/// One row of `GET /api/v1/audit`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AuditRow {
    pub at: i64,
    pub bk_app_code: String,
    pub bk_username: String,
    /// The caller's address.
    pub from: String,
    /// `operate_proc_v2`, `token_create`, ...
    pub action: String,
    /// The subject: a task id, a token id.
    pub subject: String,
    pub code: u32,
    pub detail: String,
    /// How often the same was refused within an hour.
    #[serde(default = "once")]
    pub times: u64,
    #[serde(default)]
    pub last_at: i64,
}

fn once() -> u64 {
    1
}

/// `POST /api/v1/apps`: a new caller of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateApp {
    pub code: String,
    /// Whether it may name the user that it acts for (`bk_username`).
    #[serde(default)]
    pub trusted: bool,
}

/// The answer to `POST /api/v1/apps` and `POST /api/v1/apps/{code}/rotate`.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct AppSecret {
    pub code: String,
    /// It is shown once; the server keeps only its hash.
    pub secret: String,
    pub trusted: bool,
}

/// One row of `GET /api/v1/apps`; the answer to `GET /api/v1/apps/{code}` and to calls that change an app.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AppView {
    pub code: String,
    pub trusted: bool,
    /// The app has every grant and manages the other apps.
    pub administrator: bool,
    pub disabled: bool,
    /// Seconds since 1970, UTC.
    pub created_at: i64,
    pub grants: GrantLists,
}

/// The grants of an app; `*` is everything of its list. In `POST /api/v1/apps/{code}/grant` and `…/revoke`:
/// the grants to add or remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrantLists {
    pub businesses: Vec<String>,
    /// Exact, or with a `*` at the end.
    pub namespaces: Vec<String>,
    /// The verbs: `start`, `stop`, `query`, ...
    pub ops: Vec<String>,
    /// OS accounts on the hosts.
    pub accounts: Vec<String>,
}

/// One row of `GET /api/v1/businesses`, and the body of `POST`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BusinessRow {
    pub bk_biz_id: u32,
    pub bk_biz_name: String,
}

/// One row of `GET /api/v1/business_sets`, and the body of `POST`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BusinessSetRow {
    pub bk_biz_set_id: u32,
    pub bk_biz_set_name: String,
    pub bk_biz_ids: Vec<u32>,
}

/// `POST /api/v1/agents/assign`; answered with the agents' rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignAgents {
    /// Agent ids, or hosts as `CLOUD:IP`.
    pub agents: Vec<String>,
    pub bk_biz_id: u32,
}

// Secrets stay out of logs.

impl fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreatedToken").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

impl fmt::Debug for AppSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppSecret").field("code", &self.code).finish_non_exhaustive()
    }
}
