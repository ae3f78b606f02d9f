//! The results of a task's ops: exactly the requested keys, from the first moment on.

use super::{AppError, Caller, Services, access};
use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{AgentId, BusinessId, TaskId};
use procfleet_core::op::OpKind;
use procfleet_core::request::Target;
use procfleet_program::panics;
use procfleet_proto::http::content::OpContext;
use procfleet_proto::http::job::{self, JobResults};
use procfleet_proto::http::result::{OpResult, Results};
use procfleet_store::{OpRecord, RequestHead, TaskRecord};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

/// The generation of GSE's API that asks. Each has its own result keys, whichever API created the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStyle {
    First,
    Second,
}

/// The data of `get_proc_operate_result` and `get_proc_operate_result_v2`.
pub async fn by_key(
    services: &Services,
    caller: &Caller,
    task_text: &str,
    style: KeyStyle,
) -> Result<Results, AppError> {
    let (task, ops) = find(services, caller, task_text).await?;
    let hosts = hosts_of_agents(services, &task, &ops).await?;
    let rendered = panics::block_for_request(move || {
        let key = |op: &OpRecord, head: &RequestHead| match style {
            KeyStyle::First => op.target.first_generation_key(&head.proc),
            KeyStyle::Second => op.target.result_key(&head.proc),
        };
        let results = one_for_each_key(&task, &ops, key).into_iter().map(|(key, head, op)| {
            let host = op.agent.as_ref().and_then(|agent| hosts.get(agent));
            let about = OpContext { target: host.unwrap_or(&op.target), ..about(head, op) };
            (key, OpResult::new(about, op.outcome.as_ref()))
        });
        results.collect()
    });
    Ok(rendered.await?)
}

/// The data of JOB's `get_proc_result`. The businesses in the call are checked against the grants, but do not
/// filter tasks: the caller sees its own tasks.
pub async fn by_job_key(
    services: &Services,
    caller: &Caller,
    task_text: &str,
    within: &GrantScope<BusinessId>,
) -> Result<JobResults, AppError> {
    access::permit(caller, &[], within)?;
    let (task, ops) = find(services, caller, task_text).await?;
    let rendered = panics::block_for_request(move || {
        let key = |op: &OpRecord, head: &RequestHead| op.target.job_key(&head.proc);
        let results = one_for_each_key(&task, &ops, key).into_iter();
        job::results(
            results.map(|(key, head, op)| (key, job::JobOpResult::new(about(head, op), op.outcome.as_ref()))),
        )
    });
    Ok(rendered.await?)
}

/// One row per result key, in the order of the ops. Two ops share a key if the API rejected the later one;
/// the answer is then the open op, else the failed one, because a success would be read as the success of
/// both requests.
fn one_for_each_key<'a>(
    task: &'a TaskRecord,
    ops: &'a [OpRecord],
    key: impl Fn(&OpRecord, &RequestHead) -> String,
) -> Vec<(String, &'a RequestHead, &'a OpRecord)> {
    let gravity = |op: &OpRecord| match op.outcome.as_ref().map(|outcome| outcome.code) {
        Some(Code::Success) => 0,
        Some(_) => 1,
        None => 2,
    };
    let mut indexes: HashMap<String, usize> = HashMap::with_capacity(ops.len());
    let mut rows: Vec<(String, &RequestHead, &OpRecord)> = Vec::with_capacity(ops.len());
    for op in ops {
        let Some(head) = task.requests.get(op.request as usize) else { continue };
        let key = key(op, head);
        match indexes.entry(key.clone()) {
            Entry::Vacant(free) => {
                free.insert(rows.len());
                rows.push((key, head, op));
            }
            Entry::Occupied(taken) => {
                let row = &mut rows[*taken.get()];
                if gravity(op) > gravity(row.2) {
                    (row.1, row.2) = (head, op);
                }
            }
        }
    }
    rows
}

/// A task of another app is reported as unknown, like one that does not exist.
pub(super) async fn find(
    services: &Services,
    caller: &Caller,
    task_text: &str,
) -> Result<(TaskRecord, Vec<OpRecord>), AppError> {
    let no_task = || AppError::NoTask(task_text.to_owned());
    let task: TaskId = task_text.parse().map_err(|_| no_task())?;
    let found = services.store.task_results(task).await?;
    found.filter(|(task, _)| access::may_read_tasks_of(caller, &task.app)).ok_or_else(no_task)
}

/// The hosts of agents that a query named by id: its content includes the host's address.
async fn hosts_of_agents(
    services: &Services,
    task: &TaskRecord,
    ops: &[OpRecord],
) -> Result<HashMap<AgentId, Target>, AppError> {
    let asks = task.requests.iter().any(|head| head.kind == OpKind::Query);
    if !asks || ops.iter().all(|op| op.target.host().is_some()) {
        return Ok(HashMap::new());
    }
    let asked: BTreeSet<AgentId> = ops.iter().filter_map(|op| op.agent.clone()).collect();
    let agents = services.store.agents_with(asked.into_iter().collect()).await?;
    Ok(agents.into_iter().map(|(agent, record)| (agent, Target::Host(record.host))).collect())
}

pub(super) fn result(task: &TaskRecord, op: &OpRecord) -> Option<OpResult> {
    let head = task.requests.get(op.request as usize)?;
    Some(OpResult::new(about(head, op), op.outcome.as_ref()))
}

fn about<'a>(head: &'a RequestHead, op: &'a OpRecord) -> OpContext<'a> {
    OpContext {
        proc: &head.proc,
        kind: head.kind,
        spec: head.spec.as_deref(),
        target: &op.target,
        agent: op.agent.as_ref(),
    }
}
