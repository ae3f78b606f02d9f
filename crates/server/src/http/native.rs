//! procfleet's own API, for the CLI and the console: what every app may ask, each within its grants.

use super::call::Call;
use super::error::CallError;
use super::routes::Routes;
use crate::app::{agents, cancel, events, procs, retry, tasks};
use procfleet_proto::http::events::EventsView;
use procfleet_proto::http::native::{AgentRow, ProcRow, TaskRow, TaskView};
use procfleet_proto::http::operate::Accepted;
use procfleet_proto::http::query::{self, ProcsQuery};

pub(super) fn routes() -> Routes {
    Routes::default()
        .get("agents", "/api/v1/agents", list_agents)
        .get("procs", "/api/v1/procs", list_procs)
        .get("tasks", "/api/v1/tasks", list_tasks)
        .get("task", "/api/v1/tasks/{task_id}", show_task)
        .post("task_cancel", "/api/v1/tasks/{task_id}/cancel", cancel_task)
        .post("task_retry", "/api/v1/tasks/{task_id}/retry", retry_task)
        .get("events", "/api/v1/events", list_events)
}

async fn list_agents(call: Call) -> Result<Vec<AgentRow>, CallError> {
    Ok(agents::list(&call.app, &call.caller).await?)
}

async fn list_procs(call: Call) -> Result<Vec<ProcRow>, CallError> {
    let ProcsQuery { namespace, name, host } = query::procs(&call.body)?;
    Ok(procs::list(&call.app, &call.caller, namespace, name, host).await?)
}

async fn list_tasks(call: Call) -> Result<Vec<TaskRow>, CallError> {
    Ok(tasks::list(&call.app, &call.caller, query::tasks(&call.body)?).await?)
}

async fn show_task(call: Call) -> Result<TaskView, CallError> {
    Ok(tasks::show(&call.app, &call.caller, &task(&call), query::task(&call.body)?).await?)
}

async fn cancel_task(call: Call) -> Result<TaskRow, CallError> {
    query::nothing(&call.body)?;
    Ok(cancel::cancel(&call.app, &call.caller, &task(&call)).await?)
}

async fn retry_task(call: Call) -> Result<Accepted, CallError> {
    query::nothing(&call.body)?;
    let task = retry::retry(&call.app, &call.caller, &task(&call)).await?;
    Ok(Accepted { task_id: task.to_string() })
}

/// The task that the path names. Of the characters of an id only the colon may be changed in a url.
fn task(call: &Call) -> String {
    call.path.split('/').nth(4).unwrap_or_default().replace("%3A", ":").replace("%3a", ":")
}

async fn list_events(call: Call) -> Result<EventsView, CallError> {
    Ok(events::list(&call.app, &call.caller, query::events(&call.body)?).await?)
}
