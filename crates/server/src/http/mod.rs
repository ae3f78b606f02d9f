//! HTTP: paths, bodies, logins and envelopes. A thin layer: it reads each call, passes it to a use case, and
//! answers.

mod admin;
mod body;
mod body_budget;
mod call;
mod connections;
pub mod document;
mod error;
mod family;
mod gse;
mod idempotency;
mod job;
mod login;
mod native;
mod parsed_size;
pub(crate) mod port;
mod requests;
mod routes;
mod throttle;
pub(crate) mod tls;

pub use self::tls::TlsError;

use self::routes::Routes;
use crate::usecase::Services;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use procfleet_proto::http::document::AnswerEntry;

const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All routes of the API's port.
pub fn router(services: Services) -> Router {
    let limits = axum::Extension(call::Limits::new());
    let router = routes().router.method_not_allowed_fallback(call::wrong_native_method);
    router.fallback(call::no_such_api).layer(limits).with_state(services)
}

fn routes() -> Routes {
    Routes::default()
        .merge(gse::routes())
        .merge(job::routes())
        .merge(native::routes())
        .merge(admin::routes())
        .merge(document::routes())
        .page("healthz", "/healthz", AnswerEntry::Text("text/plain; charset=utf-8"), get(healthz))
        .page("readyz", "/readyz", AnswerEntry::Text("text/plain; charset=utf-8"), get(readyz))
        .page("metrics", "/metrics", AnswerEntry::Text(METRICS), get(metrics))
}

/// Liveness: the process answers.
async fn healthz() -> impl IntoResponse {
    "ok\n"
}

/// Readiness: the store accepts changes.
async fn readyz(State(services): State<Services>) -> impl IntoResponse {
    match services.store.refuses_changes().await {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("the store takes no changes: {reason}\n")),
    }
}

async fn metrics(State(services): State<Services>) -> impl IntoResponse {
    services.metrics.set_store_clock_jumps(services.store.membership().clock_jumps());
    ([(header::CONTENT_TYPE, METRICS)], services.metrics.text())
}
