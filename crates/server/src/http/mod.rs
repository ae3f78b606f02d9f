//! HTTP: paths, bodies, logins and envelopes. Thin: each call is read, handed to `app`, and answered.

mod admin;
mod body;
mod call;
mod error;
mod gse;
mod idempotency;
mod job;
mod login;
mod native;
pub(crate) mod port;

use crate::app::App;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

/// Everything that the API's port serves.
pub fn router(app: App) -> Router {
    Router::new()
        .merge(gse::routes())
        .merge(job::routes())
        .merge(native::routes())
        .merge(admin::routes())
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(call::no_such_api)
        .layer(axum::Extension(body::Room::new()))
        .with_state(app)
}

/// The process is there.
async fn healthz() -> impl IntoResponse {
    "ok\n"
}

/// It can do its work: the store answers.
async fn readyz(State(app): State<App>) -> impl IntoResponse {
    match app.store.setting("ready").await {
        Ok(_) => (StatusCode::OK, "ready\n".to_owned()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("the store does not answer: {error}\n")),
    }
}

async fn metrics(State(app): State<App>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.text())
}
