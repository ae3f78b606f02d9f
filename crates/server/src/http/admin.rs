//! The part of procfleet's own API that is for administrators: apps, users, tokens, businesses, servers, the
//! audit trail.

use super::call::Call;
use super::error::CallError;
use super::routes::{Acting, Routes};
use crate::usecase::ca::{self, Force};
use crate::usecase::support::access;
use crate::usecase::{Page, agents, apps, audit, businesses, servers, tokens, users, webhooks};
use procfleet_proto::http::events::WebhookRow;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::manage;
use procfleet_proto::http::native::{
    AgentRow, AppSecret, AppView, AuditRow, BusinessRow, BusinessSetRow, CaView, CreatedToken, TokenRow,
};
use procfleet_proto::http::query::{self, AuditQuery};
use procfleet_proto::http::servers::{self as servers_shape, ServerRow};
use procfleet_proto::http::users::{self as users_shape, UserToken, UserView};
use procfleet_store::AuditFilter;

pub(super) fn routes() -> Routes {
    Routes::default()
        .get("app_list", "/api/v1/apps", admin_only(list_apps))
        .post("app_create", "/api/v1/apps", admin_only(create_app))
        .get("app_show", "/api/v1/apps/{code}", admin_only(show_app))
        .post("app_rotate", "/api/v1/apps/{code}/rotate", admin_only(rotate_app))
        .post("app_disable", "/api/v1/apps/{code}/disable", admin_only(disable_app))
        .post("app_enable", "/api/v1/apps/{code}/enable", admin_only(enable_app))
        .post("app_grant", "/api/v1/apps/{code}/grant", admin_only(grant))
        .post("app_revoke", "/api/v1/apps/{code}/revoke", admin_only(revoke))
        .get("user_list", "/api/v1/users", admin_only(list_users))
        .post("user_create", "/api/v1/users", admin_only(create_user))
        .post("user_token", "/api/v1/users/{name}/token", admin_only(create_user_token))
        .post("user_disable", "/api/v1/users/{name}/disable", admin_only(disable_user))
        .post("user_enable", "/api/v1/users/{name}/enable", admin_only(enable_user))
        .post("user_revoke", "/api/v1/users/{name}/revoke", admin_only(revoke_user))
        .get("token_list", "/api/v1/tokens", admin_only(list_tokens))
        .post("token_revoke", "/api/v1/tokens/{id}/revoke", admin_only(revoke_token))
        .post("token_create", "/api/v1/tokens", admin_only(create_token))
        .post("agents_assign", "/api/v1/agents/assign", admin_only(assign_agents))
        .post("agents_revoke", "/api/v1/agents/revoke", admin_only(revoke_agents))
        .post("agents_forget", "/api/v1/agents/forget", admin_only(forget_agents))
        .post("agents_label", "/api/v1/agents/label", admin_only(label_agents))
        .get("ca_show", "/api/v1/ca", admin_only(show_ca))
        .post("ca_rotate", "/api/v1/ca/rotate", admin_only(rotate_ca))
        .post("ca_retire", "/api/v1/ca/retire", admin_only(retire_ca))
        .post("ca_reseal", "/api/v1/ca/reseal", admin_only(reseal_ca))
        .get("server_list", "/api/v1/servers", admin_only(list_servers))
        .post("server_drain", "/api/v1/servers/drain", admin_only(drain_server))
        .get("business_list", "/api/v1/businesses", admin_only(list_businesses))
        .post("business_create", "/api/v1/businesses", admin_only(create_business))
        .get("business_set_list", "/api/v1/business_sets", admin_only(list_sets))
        .post("business_set_create", "/api/v1/business_sets", admin_only(create_set))
        .list("audit", "/api/v1/audit", admin_only(list_audit))
        .get("webhook_list", "/api/v1/webhooks", admin_only(list_webhooks))
        .post("webhook_create", "/api/v1/webhooks", admin_only(create_webhook))
        .post("webhook_remove", "/api/v1/webhooks/{id}/remove", admin_only(remove_webhook))
}

/// Lets only administrators through to `act`.
fn admin_only<T, F>(
    act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
) -> impl FnOnce(Call) -> Acting<T> + Clone + Send + Sync + 'static
where
    T: Send + 'static,
    F: Future<Output = Result<T, CallError>> + Send + 'static,
{
    move |call: Call| {
        Box::pin(async move {
            access::administrators_only(&call.caller, call.api)?;
            act(call).await
        })
    }
}

async fn list_apps(call: Call) -> Result<Vec<AppView>, CallError> {
    Ok(apps::list(&call.services).await?)
}

async fn create_app(call: Call) -> Result<AppSecret, CallError> {
    Ok(apps::create(&call.services, &call.caller, manage::create_app(&call.body)?).await?)
}

async fn show_app(call: Call) -> Result<AppView, CallError> {
    Ok(apps::show(&call.services, &call.named).await?)
}

async fn rotate_app(call: Call) -> Result<AppSecret, CallError> {
    Ok(apps::rotate(&call.services, &call.caller, &call.named).await?)
}

async fn disable_app(call: Call) -> Result<AppView, CallError> {
    Ok(apps::disable(&call.services, &call.caller, &call.named).await?)
}

async fn enable_app(call: Call) -> Result<AppView, CallError> {
    Ok(apps::enable(&call.services, &call.caller, &call.named).await?)
}

async fn grant(call: Call) -> Result<AppView, CallError> {
    let more = manage::change_grants(&call.body)?;
    Ok(apps::grant(&call.services, &call.caller, &call.named, more).await?)
}

async fn revoke(call: Call) -> Result<AppView, CallError> {
    let less = manage::change_grants(&call.body)?;
    Ok(apps::revoke(&call.services, &call.caller, &call.named, less).await?)
}

async fn list_users(call: Call) -> Result<Vec<UserView>, CallError> {
    Ok(users::list(&call.services).await?)
}

async fn create_user(call: Call) -> Result<UserView, CallError> {
    Ok(users::create(&call.services, &call.caller, users_shape::create_user(&call.body)?).await?)
}

async fn create_user_token(call: Call) -> Result<UserToken, CallError> {
    let wanted = users_shape::create_user_token(&call.body)?;
    Ok(users::create_token(&call.services, &call.caller, &call.named, wanted).await?)
}

async fn disable_user(call: Call) -> Result<UserView, CallError> {
    Ok(users::disable(&call.services, &call.caller, &call.named).await?)
}

async fn enable_user(call: Call) -> Result<UserView, CallError> {
    Ok(users::enable(&call.services, &call.caller, &call.named).await?)
}

async fn revoke_user(call: Call) -> Result<UserView, CallError> {
    Ok(users::revoke(&call.services, &call.caller, &call.named).await?)
}

async fn create_token(call: Call) -> Result<CreatedToken, CallError> {
    Ok(tokens::create(&call.services, &call.caller, manage::create_token(&call.body)?).await?)
}

async fn list_tokens(call: Call) -> Result<Vec<TokenRow>, CallError> {
    Ok(tokens::list(&call.services).await?)
}

async fn revoke_token(call: Call) -> Result<TokenRow, CallError> {
    Ok(tokens::revoke(&call.services, &call.caller, &call.named).await?)
}

async fn assign_agents(call: Call) -> Result<Vec<AgentRow>, CallError> {
    let (agents, to) = manage::assign_agents(&call.body)?;
    Ok(businesses::assign(&call.services, &call.caller, agents, to).await?)
}

async fn revoke_agents(call: Call) -> Result<Vec<AgentRow>, CallError> {
    let (named, why) = manage::revoke_agents(&call.body)?;
    Ok(agents::revoke(&call.services, &call.caller, named, why).await?)
}

async fn forget_agents(call: Call) -> Result<Vec<AgentRow>, CallError> {
    Ok(agents::forget(&call.services, &call.caller, manage::forget_agents(&call.body)?).await?)
}

async fn label_agents(call: Call) -> Result<Vec<AgentRow>, CallError> {
    Ok(agents::label(&call.services, &call.caller, manage::label_agents(&call.body)?).await?)
}

async fn show_ca(call: Call) -> Result<CaView, CallError> {
    Ok(ca::show(&call.services).await?)
}

async fn rotate_ca(call: Call) -> Result<CaView, CallError> {
    Ok(ca::rotate(&call.services, &call.caller).await?)
}

async fn retire_ca(call: Call) -> Result<CaView, CallError> {
    let force = if manage::retire_ca(&call.body)? { Force::Yes } else { Force::No };
    Ok(ca::retire(&call.services, &call.caller, force).await?)
}

async fn reseal_ca(call: Call) -> Result<CaView, CallError> {
    Ok(ca::reseal(&call.services, &call.caller).await?)
}

async fn list_servers(call: Call) -> Result<Vec<ServerRow>, CallError> {
    Ok(servers::list(&call.services).await?)
}

async fn drain_server(call: Call) -> Result<Vec<ServerRow>, CallError> {
    let wanted = servers_shape::drain_server(&call.body)?;
    Ok(servers::drain(&call.services, &call.caller, wanted).await?)
}

async fn list_businesses(call: Call) -> Result<Vec<BusinessRow>, CallError> {
    Ok(businesses::list(&call.services).await?)
}

async fn create_business(call: Call) -> Result<BusinessRow, CallError> {
    Ok(businesses::create(&call.services, &call.caller, manage::create_business(&call.body)?).await?)
}

async fn list_sets(call: Call) -> Result<Vec<BusinessSetRow>, CallError> {
    Ok(businesses::list_sets(&call.services).await?)
}

async fn create_set(call: Call) -> Result<BusinessSetRow, CallError> {
    Ok(businesses::create_set(&call.services, &call.caller, manage::create_business_set(&call.body)?).await?)
}

async fn list_webhooks(call: Call) -> Result<Vec<WebhookRow>, CallError> {
    Ok(webhooks::list(&call.services).await?)
}

async fn create_webhook(call: Call) -> Result<WebhookRow, CallError> {
    Ok(webhooks::add(&call.services, &call.caller, manage::create_webhook(&call.body)?).await?)
}

async fn remove_webhook(call: Call) -> Result<Vec<WebhookRow>, CallError> {
    let id = call.named.parse().map_err(|_| Faults::one("id", "must be a webhook's number"))?;
    webhooks::remove(&call.services, &call.caller, id).await?;
    Ok(webhooks::list(&call.services).await?)
}

async fn list_audit(call: Call) -> Result<Page<Vec<AuditRow>>, CallError> {
    let AuditQuery { limit, app, action, failed, since } = query::audit(&call.body)?;
    let since = since.map(|secs| secs.saturating_mul(1000));
    let filter = AuditFilter { app, action, failed, since };
    Ok(audit::list(&call.services, limit, filter).await?)
}
