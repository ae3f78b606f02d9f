//! procfleet's own API, for the CLI and the console: the calls that every app may make within its grants.

use super::call::{Call, Reply};
use super::error::CallError;
use super::idempotency;
use super::routes::Routes;
use crate::usecase::support::access;
use crate::usecase::{Page, agents, cancel, events, logs, operate, procs, retry, select, specs, tasks};
use procfleet_core::grants::GrantScope;
use procfleet_core::request::Target;
use procfleet_proto::http::events::EventsView;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::logs::{self as logs_shape, LogsView};
use procfleet_proto::http::native::{
    AgentRow, MeantProc, OperateAnswer, ProcRow, SpecView, TaskRow, TaskView,
};
use procfleet_proto::http::operate::{self as operate_shape, Sending, TaskAccepted};
use procfleet_proto::http::query;
use std::collections::BTreeSet;

pub(super) fn routes() -> Routes {
    Routes::default()
        .list("agents", "/api/v1/agents", list_agents)
        .post_with_warnings("operate", "/api/v1/operate", operate_selected)
        .list("procs", "/api/v1/procs", list_procs)
        .list("tasks", "/api/v1/tasks", list_tasks)
        .list("task", "/api/v1/tasks/{task_id}", show_task)
        .post("task_cancel", "/api/v1/tasks/{task_id}/cancel", cancel_task)
        .post("task_retry", "/api/v1/tasks/{task_id}/retry", retry_task)
        .list("events", "/api/v1/events", list_events)
        .get("spec", "/api/v1/specs", show_spec)
        .get("logs", "/api/v1/logs", read_log)
}

async fn list_agents(call: Call) -> Result<Page<Vec<AgentRow>>, CallError> {
    Ok(agents::list(&call.services, &call.caller, query::agents(&call.body)?).await?)
}

/// Operates processes on the hosts that are named, selected, or known to have them. A dry run only lists
/// them.
async fn operate_selected(call: Call) -> Result<Reply<OperateAnswer>, CallError> {
    let Call { api, services, caller, body, headers, .. } = call;
    let (asked, key) = Faults::of_both(operate_shape::operate_selected(&body), idempotency::key(&headers))?;
    access::permit(&caller, std::slice::from_ref(&asked.request), &GrantScope::All)?;
    let (sending, warnings) = (asked.sending, asked.warnings.clone());
    let requests = select::requests(&services, &caller, asked).await?;
    let procs = requests.iter().map(|request| MeantProc {
        namespace: request.proc.namespace.clone(),
        name: request.proc.name.clone(),
        hosts: request.targets.iter().map(ToString::to_string).collect(),
    });
    let procs: Vec<MeantProc> = procs.collect();
    let hosts: BTreeSet<&Target> = requests.iter().flat_map(|request| &request.targets).collect();
    let hosts: Vec<String> = hosts.into_iter().map(ToString::to_string).collect();
    let task_id = match sending {
        Sending::DryRun => String::new(),
        Sending::ForReal => {
            operate::submit(&services, &caller, api, requests, &GrantScope::All, key).await?.to_string()
        }
    };
    let data = OperateAnswer { task_id, count: hosts.len() as u64, hosts, procs };
    Ok(Reply { warnings, ..Reply::from(data) })
}

async fn list_procs(call: Call) -> Result<Page<Vec<ProcRow>>, CallError> {
    Ok(procs::list(&call.services, &call.caller, query::procs(&call.body)?).await?)
}

async fn list_tasks(call: Call) -> Result<Page<Vec<TaskRow>>, CallError> {
    Ok(tasks::list(&call.services, &call.caller, query::tasks(&call.body)?).await?)
}

async fn show_task(call: Call) -> Result<Page<TaskView>, CallError> {
    Ok(tasks::show(&call.services, &call.caller, &call.named, query::task(&call.body)?).await?)
}

async fn cancel_task(call: Call) -> Result<TaskRow, CallError> {
    query::nothing(&call.body)?;
    Ok(cancel::cancel(&call.services, &call.caller, &call.named).await?)
}

async fn retry_task(call: Call) -> Result<TaskAccepted, CallError> {
    let ((), key) = Faults::of_both(query::nothing(&call.body), idempotency::key(&call.headers))?;
    let task = retry::retry(&call.services, &call.caller, &call.named, key).await?;
    Ok(TaskAccepted { task_id: task.to_string() })
}

async fn list_events(call: Call) -> Result<Page<EventsView>, CallError> {
    Ok(events::list(&call.services, &call.caller, query::events(&call.body)?).await?)
}

async fn show_spec(call: Call) -> Result<SpecView, CallError> {
    Ok(specs::show(&call.services, &call.caller, logs_shape::spec(&call.body)?).await?)
}

async fn read_log(call: Call) -> Result<LogsView, CallError> {
    Ok(logs::read(&call.services, &call.caller, logs_shape::logs(&call.body)?).await?)
}
