//! Users: the people that apps act for, and the tokens that say who they are. Only administrators manage
//! them.

use super::apps::as_fault;
use super::{App, AppError, Caller, audit};
use crate::login_service::Unanswered;
use crate::secret;
use crate::store::{NewUserToken, StoreError, TokenHolder, UserChange, UserRow};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::login_service::Verdict;
use procfleet_proto::http::users::{CreateUser, CreateUserToken, UserToken, UserView};

/// No token is longer; what is longer is not looked up, and nobody is asked about it.
const LONGEST_TOKEN: usize = 1_024;

pub async fn create(app: &App, caller: &Caller, wanted: CreateUser) -> Result<UserView, AppError> {
    let record = audit::entry(app, caller, "user_create", &wanted.name, String::new());
    app.store.create_user(&wanted.name, record.at, record).await.map_err(as_fault)?;
    show(app, &wanted.name).await
}

pub async fn list(app: &App) -> Result<Vec<UserView>, AppError> {
    Ok(app.store.users(app.clock.wall()).await?.into_iter().map(view).collect())
}

pub async fn create_token(
    app: &App,
    caller: &Caller,
    name: &str,
    wanted: CreateUserToken,
) -> Result<UserToken, AppError> {
    if show(app, name).await?.disabled {
        let mut faults = Faults::default();
        faults.add("name", format!("user {name} is disabled, and a token would open nothing"));
        return Err(faults.into());
    }
    let token = secret::random_text();
    let detail = format!("for {} s", wanted.ttl_secs);
    let record = audit::entry(app, caller, "user_token", name, detail);
    let expires_at = record.at + i64::try_from(wanted.ttl_secs).unwrap_or(i64::MAX / 1_000_000) * 1000;
    let new = NewUserToken {
        user: name.to_owned(),
        token_hash: secret::hash(token.as_bytes()),
        created_at: record.at,
        expires_at,
    };
    app.store.create_user_token(new, record).await.map_err(as_fault)?;
    Ok(UserToken { name: name.to_owned(), token, expires_at: expires_at / 1000 })
}

pub async fn disable(app: &App, caller: &Caller, name: &str) -> Result<UserView, AppError> {
    let at = app.clock.wall();
    change(app, caller, "user_disable", name, UserChange::Disable(at)).await
}

pub async fn enable(app: &App, caller: &Caller, name: &str) -> Result<UserView, AppError> {
    change(app, caller, "user_enable", name, UserChange::Enable).await
}

pub async fn revoke(app: &App, caller: &Caller, name: &str) -> Result<UserView, AppError> {
    change(app, caller, "user_revoke", name, UserChange::RevokeTokens).await
}

/// Why a token says nothing about its bearer. The reason is meant for whoever sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    #[error("bk_token is not known here")]
    Unknown,
    #[error("bk_token is not known here, nor does the login service know it")]
    UnknownAnywhere,
    #[error("bk_token has expired")]
    Expired(String),
    #[error("the user of this bk_token is disabled")]
    Disabled(String),
    #[error("bk_token cannot be checked: {0}")]
    Unanswered(#[from] Unanswered),
}

impl TokenRefusal {
    /// Whether the token only says nothing. A token of a disabled user says that this user stays out.
    pub fn is_stale(&self) -> bool {
        match self {
            TokenRefusal::Unknown
            | TokenRefusal::UnknownAnywhere
            | TokenRefusal::Expired(_)
            | TokenRefusal::Unanswered(_) => true,
            TokenRefusal::Disabled(_) => false,
        }
    }

    /// Whose token it was, as far as that is known.
    pub fn user(&self) -> Option<&str> {
        match self {
            TokenRefusal::Expired(user) | TokenRefusal::Disabled(user) => Some(user),
            TokenRefusal::Unknown | TokenRefusal::UnknownAnywhere | TokenRefusal::Unanswered(_) => None,
        }
    }
}

/// The user whose token this is: one of ours, or one that the login service knows.
pub async fn of_token(app: &App, token: &str) -> Result<Result<String, TokenRefusal>, AppError> {
    if token.len() > LONGEST_TOKEN {
        return Ok(Err(TokenRefusal::Unknown));
    }
    let now = app.clock.wall();
    match app.store.token_holder(secret::hash(token.as_bytes()), now).await? {
        TokenHolder::Valid(user) => return Ok(Ok(user)),
        TokenHolder::Expired(user) => return Ok(Err(TokenRefusal::Expired(user))),
        TokenHolder::Disabled(user) => return Ok(Err(TokenRefusal::Disabled(user))),
        TokenHolder::Unknown => {}
    }
    let Some(service) = &app.login_service else { return Ok(Err(TokenRefusal::Unknown)) };
    let user = match service.ask(token).await {
        Ok(Verdict::User(user)) => user,
        Ok(Verdict::NotLoggedIn) => return Ok(Err(TokenRefusal::UnknownAnywhere)),
        Err(unanswered) => return Ok(Err(unanswered.into())),
    };
    // Who is disabled here stays out, whoever else knows it.
    let disabled = app.store.user(&user, now).await?.is_some_and(|known| known.disabled_at.is_some());
    Ok(if disabled { Err(TokenRefusal::Disabled(user)) } else { Ok(user) })
}

async fn change(
    app: &App,
    caller: &Caller,
    action: &'static str,
    name: &str,
    change: UserChange,
) -> Result<UserView, AppError> {
    let record = audit::entry(app, caller, action, name, String::new());
    app.store.change_user(name, change, record).await.map_err(as_fault)?;
    show(app, name).await
}

async fn show(app: &App, name: &str) -> Result<UserView, AppError> {
    let missing = || as_fault(StoreError::Missing { what: "user", key: name.to_owned() });
    app.store.user(name, app.clock.wall()).await?.map(view).ok_or_else(missing)
}

fn view(row: UserRow) -> UserView {
    UserView {
        name: row.name,
        disabled: row.disabled_at.is_some(),
        created_at: row.created_at / 1000,
        tokens: row.tokens,
    }
}
