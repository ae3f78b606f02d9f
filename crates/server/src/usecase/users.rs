//! Users: the people for whom apps act, and the tokens that identify them. Only administrators manage them.

use super::support::store_fault::as_fault;
use super::{AppError, Caller, Services, audit};
use crate::login_service::LoginUnanswered;
use crate::secret;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::login_service::TokenVerdict;
use procfleet_proto::http::users::{CreateUser, CreateUserToken, UserToken, UserView};
use procfleet_store::{NewUserToken, StoreError, TokenHolder, UserChange, UserRow};

/// Maximum length of a token. A longer one is refused without a lookup.
const LONGEST_TOKEN: usize = 1_024;

pub async fn create(services: &Services, caller: &Caller, wanted: CreateUser) -> Result<UserView, AppError> {
    let record = audit::entry(services, caller, "user_create", &wanted.name, String::new());
    services.store.create_user(&wanted.name, record.at, record).await.map_err(as_fault)?;
    show(services, &wanted.name).await
}

pub async fn list(services: &Services) -> Result<Vec<UserView>, AppError> {
    Ok(services.store.users(services.clock.wall()).await?.into_iter().map(view).collect())
}

pub async fn create_token(
    services: &Services,
    caller: &Caller,
    name: &str,
    wanted: CreateUserToken,
) -> Result<UserToken, AppError> {
    if show(services, name).await?.disabled {
        return Err(
            Faults::one("name", format!("user {name} is disabled, and a token would open nothing")).into()
        );
    }
    let token = secret::random_text();
    let detail = format!("for {} s", wanted.ttl_secs);
    let record = audit::entry(services, caller, "user_token", name, detail);
    let expires_at = record.at + i64::try_from(wanted.ttl_secs).unwrap_or(i64::MAX / 1_000_000) * 1000;
    let new = NewUserToken {
        user: name.to_owned(),
        token_hash: secret::hash(token.as_bytes()),
        created_at: record.at,
        expires_at,
    };
    services.store.create_user_token(new, record).await.map_err(as_fault)?;
    Ok(UserToken { name: name.to_owned(), token, expires_at: expires_at / 1000 })
}

pub async fn disable(services: &Services, caller: &Caller, name: &str) -> Result<UserView, AppError> {
    let at = services.clock.wall();
    change(services, caller, "user_disable", name, UserChange::Disable(at)).await
}

pub async fn enable(services: &Services, caller: &Caller, name: &str) -> Result<UserView, AppError> {
    change(services, caller, "user_enable", name, UserChange::Enable).await
}

pub async fn revoke(services: &Services, caller: &Caller, name: &str) -> Result<UserView, AppError> {
    change(services, caller, "user_revoke", name, UserChange::RevokeTokens).await
}

/// Why a token does not identify a user. The text is for the caller.
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
    Unanswered(#[from] LoginUnanswered),
}

impl TokenRefusal {
    /// Whether a trusted app's `bk_username` counts instead: the token is unknown, has expired, or could not
    /// be checked. Not for a disabled user.
    pub fn allows_named_user(&self) -> bool {
        match self {
            TokenRefusal::Unknown
            | TokenRefusal::UnknownAnywhere
            | TokenRefusal::Expired(_)
            | TokenRefusal::Unanswered(_) => true,
            TokenRefusal::Disabled(_) => false,
        }
    }

    /// The user of the token, if known.
    pub fn user(&self) -> Option<&str> {
        match self {
            TokenRefusal::Expired(user) | TokenRefusal::Disabled(user) => Some(user),
            TokenRefusal::Unknown | TokenRefusal::UnknownAnywhere | TokenRefusal::Unanswered(_) => None,
        }
    }
}

/// The user of a token: one of ours, or one that the login service knows.
pub async fn of_token(services: &Services, token: &str) -> Result<Result<String, TokenRefusal>, AppError> {
    if token.len() > LONGEST_TOKEN {
        return Ok(Err(TokenRefusal::Unknown));
    }
    let now = services.clock.wall();
    match services.store.token_holder(secret::hash(token.as_bytes()), now).await? {
        TokenHolder::Valid(user) => return Ok(Ok(user)),
        TokenHolder::Expired(user) => return Ok(Err(TokenRefusal::Expired(user))),
        TokenHolder::Disabled(user) => return Ok(Err(TokenRefusal::Disabled(user))),
        TokenHolder::Unknown => {}
    }
    let Some(service) = &services.login_service else { return Ok(Err(TokenRefusal::Unknown)) };
    let user = match service.ask(token).await {
        Ok(TokenVerdict::User(user)) => user,
        Ok(TokenVerdict::NotLoggedIn) => return Ok(Err(TokenRefusal::UnknownAnywhere)),
        Err(unanswered) => return Ok(Err(unanswered.into())),
    };
    // A user who is disabled here is refused, even if the login service accepts the token.
    let disabled = services.store.user(&user, now).await?.is_some_and(|known| known.disabled_at.is_some());
    Ok(if disabled { Err(TokenRefusal::Disabled(user)) } else { Ok(user) })
}

async fn change(
    services: &Services,
    caller: &Caller,
    action: &'static str,
    name: &str,
    change: UserChange,
) -> Result<UserView, AppError> {
    let record = audit::entry(services, caller, action, name, String::new());
    services.store.change_user(name, change, record).await.map_err(as_fault)?;
    show(services, name).await
}

async fn show(services: &Services, name: &str) -> Result<UserView, AppError> {
    let missing = || as_fault(StoreError::Missing { what: "user", key: name.to_owned() });
    services.store.user(name, services.clock.wall()).await?.map(view).ok_or_else(missing)
}

fn view(row: UserRow) -> UserView {
    UserView {
        name: row.name,
        disabled: row.disabled_at.is_some(),
        created_at: row.created_at / 1000,
        tokens: row.tokens,
    }
}
