//! Tasks and their ops, as they are created and read.

use super::NewAudit;
use crate::clock::ClockMark;
use procfleet_core::grants::GrantScope;
use procfleet_core::request::Target;
use procfleet_core::{AgentId, BusinessId, Code, OpId, OpKind, Outcome, ProcKey, Spec, TaskId};
use procfleet_proto::http::query::TaskProgress;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One request of a task. Its targets are ops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestHead {
    pub proc: ProcKey,
    pub kind: OpKind,
    /// `None`: use what the agent has stored.
    pub spec: Option<Arc<Spec>>,
    /// The OS accounts that the app might use when the task was made. Absent in tasks of earlier versions:
    /// all accounts.
    #[serde(default = "GrantScope::all", skip_serializing_if = "GrantScope::is_all")]
    pub accounts: GrantScope<String>,
    /// The businesses that the call named, so that a retry stays within them. Absent in tasks of earlier
    /// versions: all businesses.
    #[serde(default = "GrantScope::all", skip_serializing_if = "GrantScope::is_all")]
    pub within: GrantScope<BusinessId>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewTask {
    pub stamp: u64,
    pub created_at: i64,
    /// The same time on the boot-time clock, which cannot be set.
    pub mark: Option<ClockMark>,
    pub app: String,
    pub username: String,
    pub summary: String,
    pub requests: Vec<RequestHead>,
    /// An op's index is its index here.
    pub ops: Vec<NewOp>,
    /// The task whose failed ops it tries again.
    pub retry_of: Option<TaskId>,
    /// Written together with the task; an empty subject becomes the task's id.
    pub audit: Option<NewAudit>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewOp {
    /// The index of its request in `requests`.
    pub request: u32,
    pub target: Target,
    pub agent: Option<AgentId>,
    pub start_by: i64,
    pub deadline: i64,
    /// `Some`: it was decided without its host, has ended when it is made, and is never sent.
    pub ended: Option<Box<Outcome>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TaskRecord {
    pub id: TaskId,
    pub created_at: i64,
    pub app: String,
    pub username: String,
    pub summary: String,
    pub requests: Vec<RequestHead>,
    pub counts: TaskCounts,
    pub cancelled_at: Option<i64>,
    pub retry_of: Option<TaskId>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    pub total: u64,
    pub open: u64,
    pub succeeded: u64,
    pub failed: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OpRecord {
    pub op: OpId,
    pub request: u32,
    pub target: Target,
    pub agent: Option<AgentId>,
    pub outcome: Option<Outcome>,
    pub ended_at: Option<i64>,
    /// The agent's outcome, if it came after the server's.
    pub late: Option<LateReport>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LateReport {
    pub code: Code,
    pub message: String,
    pub at: i64,
}

/// Which tasks. `None` is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    pub app: Option<String>,
    pub state: Option<TaskProgress>,
    /// Only tasks in which an op failed.
    pub failed: bool,
    /// Only tasks that were made at this time or later.
    pub since: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TaskListPage {
    pub tasks: Vec<TaskRecord>,
    /// `None`: this is the last page.
    pub next: Option<TaskId>,
    /// Of all pages.
    pub total: u64,
}

/// A task with one page of its ops.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskPage {
    pub task: TaskRecord,
    pub ops: Vec<OpRecord>,
    /// The index of the last op of this page; `None`: there are no more.
    pub next: Option<u32>,
    /// How many ops there are on all pages.
    pub total: u64,
}
