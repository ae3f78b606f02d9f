//! procfleet's own API, for the CLI and the console.

use super::call::{Call, serve};
use super::error::CallError;
use crate::app::{App, AppError, agents, audit, procs, tasks, tokens};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use procfleet_core::id::Host;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::native::CreateToken;
use serde::Serialize;
use std::time::Duration;

/// The longest that a caller may wait for a task to change.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/api/v1/agents", read("agents", async |call: Call| Ok(agents::list(&call.app).await?)))
        .route("/api/v1/procs", read("procs", list_procs))
        .route(
            "/api/v1/tasks",
            read("tasks", async |call: Call| {
                let limit = limit(&call, 20)?;
                Ok(tasks::list(&call.app, limit).await?)
            }),
        )
        .route("/api/v1/tasks/{task}", read("task", show_task))
        .route(
            "/api/v1/audit",
            read("audit", async |call: Call| {
                let limit = limit(&call, 50)?;
                Ok(audit::list(&call.app, limit).await?)
            }),
        )
        .route(
            "/api/v1/tokens",
            post(|State(app): State<App>, request: Request| {
                serve(app, "token_create", request, create_token)
            }),
        )
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
            Box::pin(serve(app, api, request, act))
        },
    )
}

async fn list_procs(call: Call) -> Result<impl Serialize + Send + 'static, CallError> {
    let host = match text(&call, "host") {
        None => None,
        Some(host) => Some(host.parse::<Host>().map_err(|reason| fault("host", reason.to_string()))?),
    };
    Ok(procs::list(&call.app, text(&call, "namespace"), text(&call, "name"), host).await?)
}

async fn show_task(call: Call) -> Result<impl Serialize + Send + 'static, CallError> {
    let task = call.path.rsplit('/').next().unwrap_or_default().replace("%3A", ":").replace("%3a", ":");
    let wait = match text(&call, "wait_ms") {
        None => Duration::ZERO,
        Some(ms) => Duration::from_millis(ms.parse().map_err(|_| fault("wait_ms", "must be an integer"))?),
    };
    Ok(tasks::show(&call.app, &task, wait.min(LONGEST_WAIT)).await?)
}

async fn create_token(call: Call) -> Result<impl Serialize + Send + 'static, CallError> {
    let Call { app, caller, mut body, .. } = call;
    // The login may stand beside the request's own fields.
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|name, _| !name.starts_with("bk_app_") && name != "bk_username" && name != "bk_token");
    }
    let wanted: CreateToken = serde_json::from_value(body).map_err(|error| fault("", error.to_string()))?;
    tokens::create(&app, &caller, wanted).await.map_err(|error| match error {
        tokens::TokenError::Faults(faults) => CallError::Faults(faults),
        tokens::TokenError::Store(error) => CallError::App(AppError::Store(error)),
    })
}

fn text(call: &Call, field: &str) -> Option<String> {
    call.body.get(field)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn limit(call: &Call, default: u32) -> Result<u32, CallError> {
    match text(call, "limit") {
        None => Ok(default),
        Some(limit) => match limit.parse() {
            Ok(limit @ 1..=1_000) => Ok(limit),
            Ok(_) | Err(_) => Err(fault("limit", "must be an integer from 1 to 1000")),
        },
    }
}

fn fault(path: &str, reason: impl Into<String>) -> CallError {
    let mut faults = Faults::default();
    faults.add(path, reason);
    CallError::Faults(faults)
}
