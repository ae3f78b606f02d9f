//! procfleet's own API, below `/api/v1/`, which the CLI and the console use.
//!
//! Every answer is wrapped in the same envelope as GSE's: [`Envelope`].

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The frame of every reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    pub result: bool,
    pub code: u32,
    pub message: String,
    pub data: Option<T>,
    #[serde(default)]
    pub request_id: String,
}

/// `POST /api/v1/tokens`: a join token for new agents.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    #[serde(default)]
    pub bk_cloud_id: u32,
    /// How long the token can be used.
    pub ttl_secs: u64,
    /// How many agents may join with it.
    pub uses: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreatedToken {
    /// It is shown once; the server keeps only its hash.
    pub token: String,
    pub bk_cloud_id: u32,
    pub uses: u32,
    /// Seconds since 1970, UTC.
    pub expires_at: i64,
}

/// One row of `GET /api/v1/agents`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentRow {
    pub bk_agent_id: String,
    pub bk_cloud_id: u32,
    pub ip: String,
    pub version: String,
    pub connected: bool,
    /// When it last connected or disconnected; seconds since 1970, UTC.
    pub since: i64,
    pub enrolled_at: i64,
}

/// One row of `GET /api/v1/procs` (query: `namespace`, `name`, `host` as `CLOUD:IP`).
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Why it is not as it should be; else empty.
    pub note: String,
    /// Seconds since 1970, UTC; 0 where it never happened.
    pub started_at: i64,
    pub reported_at: i64,
    /// False: the agent is away, and the row is what it said last.
    pub fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcState {
    Running,
    Stopped,
    /// An operation or a restart is under way.
    Changing,
    /// Hosted, and started too often in vain.
    GaveUp,
}

/// One row of `GET /api/v1/tasks` (query: `limit`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskRow {
    pub task_id: String,
    pub created_at: i64,
    pub bk_app_code: String,
    pub bk_username: String,
    /// What it asks for, in words: `start web:nginx`.
    pub summary: String,
    pub counts: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub total: u64,
    pub open: u64,
    pub succeeded: u64,
    pub failed: u64,
}

/// `GET /api/v1/tasks/{task_id}` (query: `wait_ms`: answer when something changed, or after so long).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskView {
    #[serde(flatten)]
    pub task: TaskRow,
    pub ops: Vec<OpRow>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// The same JSON text as in `get_proc_operate_result_v2`; empty while open.
    pub content: String,
}

/// One row of `GET /api/v1/audit` (query: `limit`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditRow {
    pub at: i64,
    pub bk_app_code: String,
    pub bk_username: String,
    /// The caller's address.
    pub from: String,
    /// `operate_proc_v2`, `token_create`, ...
    pub action: String,
    /// What it was about: a task id, a token id.
    pub subject: String,
    pub code: u32,
    pub detail: String,
}
