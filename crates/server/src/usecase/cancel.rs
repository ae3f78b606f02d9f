//! Cancels a task: ops that have not begun are not started, and the server stops waiting for the others.

use super::results::find;
use super::{AppError, Caller, Services, audit, tasks};
use crate::dispatcher::DispatcherMessage;
use crate::durably::durably;
use procfleet_proto::http::native::TaskRow;
use tracing::info;

/// Returns the task after the cancellation; its open ops end soon after. Idempotent: a task that has ended,
/// or was cancelled before, is not changed.
pub async fn cancel(services: &Services, caller: &Caller, task_text: &str) -> Result<TaskRow, AppError> {
    let (task, _) = find(services, caller, task_text).await?;
    let now = services.clock.wall();
    let detail = format!("{}: {} of {} were open", task.summary, task.counts.open, task.counts.total);
    let record = audit::entry(services, caller, "task_cancel", &task.id.to_string(), detail);
    let (store, dispatcher) = (services.store.clone(), services.dispatcher.clone());
    durably(async move {
        let new = store.cancel_task(task.id, now, record).await?;
        if new {
            info!(task = %task.id, "task cancelled");
            dispatcher.send(DispatcherMessage::Cancelled(task.id)).await;
        }
        Ok::<_, AppError>(())
    })
    .await?;
    let (task, _) = find(services, caller, task_text).await?;
    Ok(tasks::row(&task))
}
