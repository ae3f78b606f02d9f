//! Lists tasks and shows one with its ops.

use super::results::result;
use super::{AppError, Caller, Page, Services, access};
use procfleet_core::grants::Rights;
use procfleet_core::id::TaskId;
use procfleet_proto::http::native::{Counts, OpRow, TaskRow, TaskView};
use procfleet_proto::http::query::{TaskQuery, TasksQuery};
use procfleet_store::{OpRecord, TaskFilter, TaskPage, TaskRecord};
use tokio::time::Instant;

/// One page of the caller's own tasks, the newest first; an administrator sees all.
pub async fn list(
    services: &Services,
    caller: &Caller,
    query: TasksQuery,
) -> Result<Page<Vec<TaskRow>>, AppError> {
    let TasksQuery { state, failed, since, after, limit } = query;
    let app = match *caller.rights {
        Rights::Administrator => None,
        Rights::Granted(_) => Some(caller.app.clone()),
    };
    let filter = TaskFilter { app, state, failed, since: since.map(|secs| secs.saturating_mul(1000)) };
    let page = services.store.list_tasks(filter, after, limit).await?;
    let next = page.next.map(|task| task.to_string());
    Ok(Page { data: page.tasks.iter().map(row).collect(), next, total: Some(page.total) })
}

/// A task with one page of its ops. With `wait` (long poll), returns as soon as the task has changed, or
/// after this time.
pub async fn show(
    services: &Services,
    caller: &Caller,
    task_text: &str,
    query: TaskQuery,
) -> Result<Page<TaskView>, AppError> {
    let no_task = || AppError::NoTask(task_text.to_owned());
    let id: TaskId = task_text.parse().map_err(|_| no_task())?;
    let until = Instant::now() + query.wait;
    let mut changed = services.dispatcher.changed();
    changed.mark_unchanged();
    let mut before: Option<Counts> = None;
    loop {
        // Without its ops, which may be many: they are read when there is something to answer.
        let task = services.store.task(id).await?;
        let task = task.filter(|task| access::may_read_tasks_of(caller, &task.app)).ok_or_else(no_task)?;
        let counts = row(&task).counts;
        let moved = before.is_some_and(|before| before != counts);
        before.get_or_insert(counts);
        let over = Instant::now() >= until;
        if counts.open == 0 || moved || over {
            let TaskQuery { ops, select, after, limit, wait: _ } = query;
            let page = services.store.task_page(id, ops, select, after, limit).await?;
            let TaskPage { task, ops, next, total } = page.ok_or_else(no_task)?;
            let ops = ops.iter().filter_map(|op| op_row(&task, op)).collect();
            let data = TaskView { ops, task: row(&task) };
            return Ok(Page { data, next: next.map(|index| index.to_string()), total: Some(total) });
        }
        // Whether an op ended or the time is up: the store is read again.
        let _ = tokio::time::timeout_at(until, changed.changed()).await;
    }
}

fn op_row(task: &TaskRecord, op: &OpRecord) -> Option<OpRow> {
    let head = task.requests.get(op.request as usize)?;
    let result = result(task, op)?;
    Some(OpRow {
        op_id: op.op.to_string(),
        key: op.target.result_key(&head.proc),
        kind: head.kind.verb().to_owned(),
        target: op.target.to_string(),
        namespace: head.proc.namespace.clone(),
        name: head.proc.name.clone(),
        error_code: result.error_code,
        error_msg: result.error_msg,
        content: result.content,
        late_at: op.late.as_ref().map_or(0, |late| late.at / 1000),
        late_code: op.late.as_ref().map_or(0, |late| late.code.number()),
        late_msg: op.late.as_ref().map(|late| late.message.clone()).unwrap_or_default(),
    })
}

pub(super) fn row(task: &TaskRecord) -> TaskRow {
    TaskRow {
        task_id: task.id.to_string(),
        created_at: task.created_at / 1000,
        bk_app_code: task.app.clone(),
        bk_username: task.username.clone(),
        summary: task.summary.clone(),
        counts: Counts {
            total: task.counts.total,
            open: task.counts.open,
            succeeded: task.counts.succeeded,
            failed: task.counts.failed,
        },
        cancelled_at: task.cancelled_at.unwrap_or_default() / 1000,
        retry_of: task.retry_of.map(|of| of.to_string()).unwrap_or_default(),
    }
}
