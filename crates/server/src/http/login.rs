//! Authentication of callers. An app that is unknown, disabled or has the wrong secret gets the same answer,
//! and the attempt is counted in the audit log. So is the attempt of an app that names a user without being
//! trusted to, or sends an invalid token.
//!
//! A user's token (`bk_token`) identifies the user, so the app need not be trusted; a name in the same call
//! must match it. If the token is no longer valid, the name counts if the app is trusted: one of the two must
//! be valid.

use super::body;
use super::error::CallError;
use crate::secret;
use crate::startup::setup::ADMIN;
use crate::usecase::{Caller, Services, users};
use crate::workers::refusals::RefusalSource;
use axum::http::HeaderMap;
use procfleet_core::code::Code;
use procfleet_core::grants::Rights;
use procfleet_proto::http::login::{HEADER, Login};
use procfleet_store::{AppTrust, NewAudit};
use std::net::IpAddr;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The login in the header, which can be checked before the body is read; it takes precedence.
pub(super) fn in_header(headers: &HeaderMap) -> Result<Option<Login>, CallError> {
    let header = headers.get(HEADER).map(|value| Login::from_header(value.as_bytes()));
    header.transpose().map_err(|bad| CallError::NoLogin(bad.to_string()))
}

/// The login in the query, where BlueKing's SDK puts it in a GET. Proxies may log a query; this server does
/// not.
pub(super) fn in_query(query: &str) -> Result<Option<Login>, CallError> {
    let login = Login::from_query(body::query_parameters(query));
    let login = login.map_err(|bad| CallError::NoLogin(bad.to_string()))?;
    Ok(Some(login).filter(|login| !login.app_code.is_empty()))
}

pub(super) async fn check(
    services: &Services,
    api: &'static str,
    login: Login,
    from: IpAddr,
) -> Result<Caller, CallError> {
    if login.app_code.is_empty() || login.app_secret.is_empty() {
        let reason = "bk_app_code and bk_app_secret are required, in the X-Bkapi-Authorization header, in the body or in the query of \
                      a GET";
        return Err(CallError::NoLogin(reason.to_owned()));
    }
    if login.app_code == ADMIN && !services.admin_from.is_empty() {
        // Checked before the secret, so that the answer does not reveal whether the secret is correct.
        if !services.admin_from.iter().any(|block| block.contains(from)) {
            let reason = "the administrator's app may not be used from this address (--admin-from)";
            refuse(services, api, &login, from, Code::AppDenied, reason).await;
            return Err(CallError::AppDenied(reason.to_owned()));
        }
    }
    let record = services.store.app(&login.app_code).await.map_err(|error| CallError::App(error.into()))?;
    let given = secret::hash(login.app_secret.as_bytes());
    let known =
        record.filter(|record| record.disabled_at.is_none() && bool::from(record.secret_hash.ct_eq(&given)));
    let Some(record) = known else {
        refuse(services, api, &login, from, Code::AppDenied, "wrong bk_app_code or bk_app_secret").await;
        return Err(CallError::AppDenied("bk_app_code or bk_app_secret is wrong".to_owned()));
    };
    let username = user(services, api, &login, record.trust, from).await?;
    let rights = match login.app_code.as_str() {
        ADMIN => Rights::Administrator,
        _ => Rights::Granted(record.grants),
    };
    Ok(Caller { app: login.app_code, username, from, rights: Arc::new(rights) })
}

/// The user of a call; empty: the app itself.
async fn user(
    services: &Services,
    api: &'static str,
    login: &Login,
    trust: AppTrust,
    from: IpAddr,
) -> Result<String, CallError> {
    if !login.token.is_empty() {
        let user = match users::of_token(services, &login.token).await? {
            Ok(user) => user,
            Err(refusal)
                if trust == AppTrust::Users && !login.username.is_empty() && refusal.allows_named_user() =>
            {
                return Ok(login.username.clone());
            }
            Err(refusal) => {
                let named = refusal.user().unwrap_or(&login.username).to_owned();
                let login = Login { username: named, ..login.clone() };
                refuse(services, api, &login, from, Code::UserDenied, &refusal.to_string()).await;
                return Err(CallError::UserDenied(refusal.to_string()));
            }
        };
        if !login.username.is_empty() && login.username != user {
            let reason = "bk_username is not the user of bk_token; leave it out, the token says who it is";
            refuse(services, api, login, from, Code::UserDenied, "bk_username is not the user of bk_token")
                .await;
            return Err(CallError::UserDenied(reason.to_owned()));
        }
        return Ok(user);
    }
    if !login.username.is_empty() && trust == AppTrust::Itself {
        let reason = format!(
            "app {:?} is not trusted to name a user; leave bk_username out, and it acts as itself, or send the user's \
             bk_token",
            login.app_code
        );
        refuse(services, api, login, from, Code::UserDenied, "not trusted to name a user").await;
        return Err(CallError::UserDenied(reason));
    }
    Ok(login.username.clone())
}

async fn refuse(
    services: &Services,
    api: &'static str,
    login: &Login,
    from: IpAddr,
    code: Code,
    detail: &str,
) {
    let record = NewAudit {
        at: services.clock.wall(),
        app: login.app_code.clone(),
        username: login.username.clone(),
        origin: from.to_string(),
        action: api.to_owned(),
        subject: String::new(),
        code: code.external(),
        detail: detail.to_owned(),
    };
    services.refusals.record(RefusalSource::Peer(from.into()), record).await;
}
