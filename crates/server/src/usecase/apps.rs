//! Apps: the callers of the API, their secrets and their grants. Only administrators manage them.

use super::support::store_fault::as_fault;
use super::{AppError, Caller, Services, audit, businesses};
use crate::secret;
use crate::startup::setup::ADMIN;
use procfleet_core::grants::{GrantScope, Grants};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::manage::grant_lists;
use procfleet_proto::http::native::{AppSecret, AppView, CreateApp};
use procfleet_store::{AppChange, AppRow, AppTrust, GrantChange, NewApp, StoreError};

pub async fn create(services: &Services, caller: &Caller, wanted: CreateApp) -> Result<AppSecret, AppError> {
    let secret = secret::random_text();
    let trust = if wanted.trusted { AppTrust::Users } else { AppTrust::Itself };
    let new = NewApp {
        code: wanted.code.clone(),
        secret_hash: secret::hash(secret.as_bytes()),
        trust,
        created_at: services.clock.wall(),
    };
    let detail = if wanted.trusted { "trusted to name users" } else { "" };
    let record = audit::entry(services, caller, "app_create", &wanted.code, detail.to_owned());
    services.store.create_app(new, Some(record)).await.map_err(as_fault)?;
    Ok(AppSecret { code: wanted.code, secret, trusted: wanted.trusted })
}

pub async fn list(services: &Services) -> Result<Vec<AppView>, AppError> {
    Ok(services.store.apps().await?.into_iter().map(view).collect())
}

pub async fn show(services: &Services, code: &str) -> Result<AppView, AppError> {
    find(services, code).await.map(view)
}

pub async fn rotate(services: &Services, caller: &Caller, code: &str) -> Result<AppSecret, AppError> {
    built_in(code, "its secret stands in admin.json")?;
    let secret = secret::random_text();
    let change = AppChange::Secret(secret::hash(secret.as_bytes()));
    let record = audit::entry(services, caller, "app_rotate", code, String::new());
    services.store.change_app(code, change, record).await.map_err(as_fault)?;
    let trusted = find(services, code).await?.trust == AppTrust::Users;
    Ok(AppSecret { code: code.to_owned(), secret, trusted })
}

pub async fn disable(services: &Services, caller: &Caller, code: &str) -> Result<AppView, AppError> {
    built_in(code, "it cannot be disabled")?;
    let record = audit::entry(services, caller, "app_disable", code, String::new());
    services.store.change_app(code, AppChange::Disable(record.at), record).await.map_err(as_fault)?;
    show(services, code).await
}

pub async fn enable(services: &Services, caller: &Caller, code: &str) -> Result<AppView, AppError> {
    built_in(code, "it is never disabled")?;
    let record = audit::entry(services, caller, "app_enable", code, String::new());
    services.store.change_app(code, AppChange::Enable, record).await.map_err(as_fault)?;
    show(services, code).await
}

pub async fn grant(
    services: &Services,
    caller: &Caller,
    code: &str,
    more: Grants,
) -> Result<AppView, AppError> {
    if let GrantScope::Only(named) = &more.businesses {
        businesses::require(services, named.iter().map(|id| ("businesses".to_owned(), *id))).await?;
    }
    change(services, caller, "app_grant", code, GrantChange::Grant(more)).await
}

pub async fn revoke(
    services: &Services,
    caller: &Caller,
    code: &str,
    less: Grants,
) -> Result<AppView, AppError> {
    change(services, caller, "app_revoke", code, GrantChange::Revoke(less)).await
}

async fn change(
    services: &Services,
    caller: &Caller,
    action: &'static str,
    code: &str,
    change: GrantChange,
) -> Result<AppView, AppError> {
    built_in(code, "it has every grant, always")?;
    let (GrantChange::Grant(named) | GrantChange::Revoke(named)) = &change;
    let words: Vec<String> = named.words().iter().map(|(dim, text)| format!("{dim} {text}")).collect();
    let record = audit::entry(services, caller, action, code, words.join(", "));
    match services.store.change_grants(code, change, record).await.map_err(as_fault)? {
        Ok(_) => show(services, code).await,
        Err(still) => {
            let mut faults = Faults::default();
            still.iter().for_each(|still| faults.add("", still.to_string()));
            Err(faults.into())
        }
    }
}

async fn find(services: &Services, code: &str) -> Result<AppRow, AppError> {
    let missing = || as_fault(StoreError::Missing { what: "app", key: code.to_owned() });
    services.store.app(code).await?.ok_or_else(missing)
}

fn built_in(code: &str, reason: &str) -> Result<(), AppError> {
    if code != ADMIN {
        return Ok(());
    }
    Err(Faults::one("code", format!("{ADMIN} is built in: {reason}")).into())
}

fn view(row: AppRow) -> AppView {
    let administrator = row.code == ADMIN;
    let grants = if administrator { Grants::everything() } else { row.grants };
    AppView {
        code: row.code,
        trusted: row.trust == AppTrust::Users,
        administrator,
        disabled: row.disabled_at.is_some(),
        created_at: row.created_at / 1000,
        grants: grant_lists(&grants),
    }
}
