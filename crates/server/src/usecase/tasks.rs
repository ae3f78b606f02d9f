//! Tasks as people look at them.

use super::results::{find, result};
use super::{AppError, Caller, Services};
use crate::store::TaskRecord;
use procfleet_core::grants::Rights;
use procfleet_proto::http::native::{Counts, OpRow, TaskRow, TaskView};
use std::time::Duration;
use tokio::time::Instant;

/// The caller's own; an administrator sees all.
pub async fn list(services: &Services, caller: &Caller, limit: u32) -> Result<Vec<TaskRow>, AppError> {
    let tasks = match *caller.rights {
        Rights::Administrator => services.store.tasks(limit).await?,
        Rights::Granted(_) => services.store.tasks_of(&caller.app, limit).await?,
    };
    Ok(tasks.iter().map(row).collect())
}

/// With `wait`, answers as soon as the task has moved on, or after so long.
pub async fn show(
    services: &Services,
    caller: &Caller,
    task_text: &str,
    wait: Duration,
) -> Result<TaskView, AppError> {
    let until = Instant::now() + wait;
    let mut changed = services.dispatcher.changed();
    changed.mark_unchanged();
    let mut before: Option<Counts> = None;
    loop {
        let (task, ops) = find(services, caller, task_text).await?;
        let counts = row(&task).counts;
        let moved = before.is_some_and(|before| before != counts);
        before.get_or_insert(counts);
        let over = Instant::now() >= until;
        if counts.open == 0 || moved || over {
            let view = ops.iter().filter_map(|op| {
                let head = task.requests.get(op.request as usize)?;
                let result = result(&task, op)?;
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
            });
            return Ok(TaskView { ops: view.collect(), task: row(&task) });
        }
        // Whether an op ended or the time is up: the store is read again.
        let _ = tokio::time::timeout_at(until, changed.changed()).await;
    }
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
