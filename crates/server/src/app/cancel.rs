//! Cancels a task: what has not begun does not begin, and nobody waits for the rest any more.

use super::results::find;
use super::{App, AppError, Caller, audit, tasks};
use crate::keeper::Note;
use procfleet_proto::http::native::TaskRow;
use tracing::info;

/// Answers with the task as it is then; its open ops end soon after. One that has ended, or was cancelled
/// before, stays as it is.
pub async fn cancel(app: &App, caller: &Caller, task_text: &str) -> Result<TaskRow, AppError> {
    let (task, _) = find(app, caller, task_text).await?;
    let now = app.clock.wall();
    let detail = format!("{}: {} of {} were open", task.summary, task.counts.open, task.counts.total);
    let record = audit::entry(app, caller, "task_cancel", &task.id.to_string(), detail);
    let (store, keeper) = (app.store.clone(), app.keeper.clone());
    // In a task of its own: a caller that hangs up must not keep the keeper from hearing of it.
    let done = tokio::spawn(async move {
        let new = store.cancel_task(task.id, now, record).await?;
        if new {
            info!(task = %task.id, "task cancelled");
            keeper.tell(Note::Cancelled(task.id)).await;
        }
        Ok::<_, AppError>(())
    });
    done.await??;
    let (task, _) = find(app, caller, task_text).await?;
    Ok(tasks::row(&task))
}
