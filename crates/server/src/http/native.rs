//! procfleet's own API, for the CLI and the console: what every app may ask, each within its grants.

use super::call::{Call, Family, serve};
use super::error::CallError;
use crate::app::events::Question;
use crate::app::{App, agents, events, procs, tasks};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use procfleet_core::id::Host;
use procfleet_proto::http::fault::Faults;
use serde::Serialize;
use std::time::Duration;

/// The longest that a caller may wait for a task to change.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route(
            "/api/v1/agents",
            read("agents", async |call: Call| Ok(agents::list(&call.app, &call.caller).await?)),
        )
        .route("/api/v1/procs", read("procs", list_procs))
        .route(
            "/api/v1/tasks",
            read("tasks", async |call: Call| {
                let limit = limit(&call, 20)?;
                Ok(tasks::list(&call.app, &call.caller, limit).await?)
            }),
        )
        .route("/api/v1/tasks/{task}", read("task", show_task))
        .route("/api/v1/events", read("events", list_events))
}

fn read<T, F>(
    api: &'static str,
    act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
) -> MethodRouter<App>
where
    T: Serialize + Send + 'static,
    F: Future<Output = Result<T, CallError>> + Send + 'static,
{
    get(
        move |State(app): State<App>,
              request: Request|
              -> std::pin::Pin<Box<dyn Future<Output = Response> + Send>> {
            Box::pin(serve(app, Family::Gse, api, request, act))
        },
    )
}

async fn list_procs(call: Call) -> Result<impl Serialize + Send + 'static, CallError> {
    let host = host(&call)?;
    Ok(procs::list(&call.app, &call.caller, text(&call, "namespace"), text(&call, "name"), host).await?)
}

async fn show_task(call: Call) -> Result<impl Serialize + Send + 'static, CallError> {
    let task = call.path.rsplit('/').next().unwrap_or_default().replace("%3A", ":").replace("%3a", ":");
    Ok(tasks::show(&call.app, &call.caller, &task, wait(&call)?).await?)
}

async fn list_events(call: Call) -> Result<impl Serialize + Send + 'static, CallError> {
    let after = match text(&call, "after") {
        None => None,
        Some(after) => Some(after.parse().map_err(|_| fault("after", "must be an integer from 0 on"))?),
    };
    let question = Question {
        namespace: text(&call, "namespace"),
        name: text(&call, "name"),
        kind: text(&call, "kind"),
        host: host(&call)?,
        after,
        limit: limit(&call, 100)?,
        wait: wait(&call)?,
    };
    Ok(events::list(&call.app, &call.caller, question).await?)
}

fn host(call: &Call) -> Result<Option<Host>, CallError> {
    let host = text(call, "host").map(|host| host.parse::<Host>());
    host.transpose().map_err(|reason| fault("host", reason.to_string()))
}

fn wait(call: &Call) -> Result<Duration, CallError> {
    match text(call, "wait_ms").map(|ms| ms.parse()) {
        None => Ok(Duration::ZERO),
        Some(Ok(ms)) => Ok(Duration::from_millis(ms).min(LONGEST_WAIT)),
        Some(Err(_)) => Err(fault("wait_ms", "must be an integer")),
    }
}

pub(super) fn text(call: &Call, field: &str) -> Option<String> {
    call.body.get(field)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

pub(super) fn limit(call: &Call, default: u32) -> Result<u32, CallError> {
    match text(call, "limit") {
        None => Ok(default),
        Some(limit) => match limit.parse() {
            Ok(limit @ 1..=1_000) => Ok(limit),
            Ok(_) | Err(_) => Err(fault("limit", "must be an integer from 1 to 1000")),
        },
    }
}

pub(super) fn fault(path: &str, reason: impl Into<String>) -> CallError {
    let mut faults = Faults::default();
    faults.add(path, reason);
    CallError::Faults(faults)
}
