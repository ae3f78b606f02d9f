//! The part of procfleet's own API that is for administrators: apps, users, tokens, businesses, the audit trail.

use super::call::{Call, Family, serve};
use super::error::CallError;
use super::native::{fault, limit, text};
use crate::app::{App, access, apps, audit, businesses, tokens, users, webhooks};
use crate::store::AuditFilter;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use procfleet_proto::http::events::WebhookRow;
use procfleet_proto::http::manage;
use procfleet_proto::http::native::{AgentRow, AppSecret, AppView, AuditRow, BusinessRow, BusinessSetRow};
use procfleet_proto::http::native::{CreateToken, CreatedToken};
use procfleet_proto::http::users::{self as users_shape, UserToken, UserView};
use serde::Serialize;
use std::pin::Pin;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/api/v1/apps", get(only("app_list", list_apps)).post(only("app_create", create_app)))
        .route("/api/v1/apps/{code}", get(only("app_show", show_app)))
        .route("/api/v1/apps/{code}/rotate", post(only("app_rotate", rotate_app)))
        .route("/api/v1/apps/{code}/disable", post(only("app_disable", disable_app)))
        .route("/api/v1/apps/{code}/enable", post(only("app_enable", enable_app)))
        .route("/api/v1/apps/{code}/grant", post(only("app_grant", grant)))
        .route("/api/v1/apps/{code}/revoke", post(only("app_revoke", revoke)))
        .route("/api/v1/users", get(only("user_list", list_users)).post(only("user_create", create_user)))
        .route("/api/v1/users/{name}/token", post(only("user_token", create_user_token)))
        .route("/api/v1/users/{name}/disable", post(only("user_disable", disable_user)))
        .route("/api/v1/users/{name}/enable", post(only("user_enable", enable_user)))
        .route("/api/v1/users/{name}/revoke", post(only("user_revoke", revoke_user)))
        .route("/api/v1/tokens", post(only("token_create", create_token)))
        .route("/api/v1/agents/assign", post(only("agents_assign", assign_agents)))
        .route(
            "/api/v1/businesses",
            get(only("business_list", list_businesses)).post(only("business_create", create_business)),
        )
        .route(
            "/api/v1/business_sets",
            get(only("business_set_list", list_sets)).post(only("business_set_create", create_set)),
        )
        .route("/api/v1/audit", get(only("audit", list_audit)))
        .route(
            "/api/v1/webhooks",
            get(only("webhook_list", list_webhooks)).post(only("webhook_create", create_webhook)),
        )
        .route("/api/v1/webhooks/{id}/remove", post(only("webhook_remove", remove_webhook)))
}

type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Lets administrators through to `act`, and nobody else.
fn only<T, F>(
    api: &'static str,
    act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
) -> impl FnOnce(State<App>, Request) -> Answering + Clone + Send + Sync + 'static
where
    T: Serialize + Send + 'static,
    F: Future<Output = Result<T, CallError>> + Send + 'static,
{
    move |State(app): State<App>, request: Request| -> Answering {
        let act = move |call: Call| async move {
            access::administrators_only(&call.caller, api)?;
            act(call).await
        };
        Box::pin(serve(app, Family::Gse, api, request, act))
    }
}

async fn list_apps(call: Call) -> Result<Vec<AppView>, CallError> {
    Ok(apps::list(&call.app).await?)
}

async fn create_app(call: Call) -> Result<AppSecret, CallError> {
    Ok(apps::create(&call.app, &call.caller, manage::create_app(&call.body)?).await?)
}

async fn show_app(call: Call) -> Result<AppView, CallError> {
    Ok(apps::show(&call.app, code(&call)).await?)
}

async fn rotate_app(call: Call) -> Result<AppSecret, CallError> {
    Ok(apps::rotate(&call.app, &call.caller, code(&call)).await?)
}

async fn disable_app(call: Call) -> Result<AppView, CallError> {
    Ok(apps::disable(&call.app, &call.caller, code(&call)).await?)
}

async fn enable_app(call: Call) -> Result<AppView, CallError> {
    Ok(apps::enable(&call.app, &call.caller, code(&call)).await?)
}

async fn grant(call: Call) -> Result<AppView, CallError> {
    let more = manage::change_grants(&call.body)?;
    Ok(apps::grant(&call.app, &call.caller, code(&call), more).await?)
}

async fn revoke(call: Call) -> Result<AppView, CallError> {
    let less = manage::change_grants(&call.body)?;
    Ok(apps::revoke(&call.app, &call.caller, code(&call), less).await?)
}

/// What the path names. An app's code has no characters that a url would change.
fn code(call: &Call) -> &str {
    call.path.split('/').nth(4).unwrap_or_default()
}

async fn list_users(call: Call) -> Result<Vec<UserView>, CallError> {
    Ok(users::list(&call.app).await?)
}

async fn create_user(call: Call) -> Result<UserView, CallError> {
    Ok(users::create(&call.app, &call.caller, users_shape::create_user(&call.body)?).await?)
}

async fn create_user_token(call: Call) -> Result<UserToken, CallError> {
    let wanted = users_shape::create_user_token(&call.body)?;
    Ok(users::create_token(&call.app, &call.caller, &user(&call), wanted).await?)
}

async fn disable_user(call: Call) -> Result<UserView, CallError> {
    Ok(users::disable(&call.app, &call.caller, &user(&call)).await?)
}

async fn enable_user(call: Call) -> Result<UserView, CallError> {
    Ok(users::enable(&call.app, &call.caller, &user(&call)).await?)
}

async fn revoke_user(call: Call) -> Result<UserView, CallError> {
    Ok(users::revoke(&call.app, &call.caller, &user(&call)).await?)
}

/// The user that the path names. Of the characters of a name only the @ may be changed in a url.
fn user(call: &Call) -> String {
    code(call).replace("%40", "@")
}

async fn create_token(call: Call) -> Result<CreatedToken, CallError> {
    let Call { app, caller, mut body, .. } = call;
    // The login may stand beside the request's own fields.
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|name, _| !name.starts_with("bk_app_") && name != "bk_username" && name != "bk_token");
    }
    let wanted: CreateToken = serde_json::from_value(body).map_err(|error| fault("", error.to_string()))?;
    Ok(tokens::create(&app, &caller, wanted).await?)
}

async fn assign_agents(call: Call) -> Result<Vec<AgentRow>, CallError> {
    let (agents, to) = manage::assign_agents(&call.body)?;
    Ok(businesses::assign(&call.app, &call.caller, agents, to).await?)
}

async fn list_businesses(call: Call) -> Result<Vec<BusinessRow>, CallError> {
    Ok(businesses::list(&call.app).await?)
}

async fn create_business(call: Call) -> Result<BusinessRow, CallError> {
    Ok(businesses::create(&call.app, &call.caller, manage::create_business(&call.body)?).await?)
}

async fn list_sets(call: Call) -> Result<Vec<BusinessSetRow>, CallError> {
    Ok(businesses::list_sets(&call.app).await?)
}

async fn create_set(call: Call) -> Result<BusinessSetRow, CallError> {
    Ok(businesses::create_set(&call.app, &call.caller, manage::create_business_set(&call.body)?).await?)
}

async fn list_webhooks(call: Call) -> Result<Vec<WebhookRow>, CallError> {
    Ok(webhooks::list(&call.app).await?)
}

async fn create_webhook(call: Call) -> Result<WebhookRow, CallError> {
    Ok(webhooks::add(&call.app, &call.caller, manage::create_webhook(&call.body)?).await?)
}

async fn remove_webhook(call: Call) -> Result<Vec<WebhookRow>, CallError> {
    let id = code(&call).parse().map_err(|_| fault("id", "must be a webhook's number"))?;
    webhooks::remove(&call.app, &call.caller, id).await?;
    Ok(webhooks::list(&call.app).await?)
}

async fn list_audit(call: Call) -> Result<Vec<AuditRow>, CallError> {
    let filter = AuditFilter { app: text(&call, "app"), action: text(&call, "action") };
    Ok(audit::list(&call.app, limit(&call, 50)?, filter).await?)
}
