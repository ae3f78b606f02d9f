//! Join tokens.

use super::{AppError, Caller, Services, audit};
use crate::ca_change;
use crate::secret;
use procfleet_core::id::{BusinessId, CloudId};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::native::{CreateToken, CreatedToken, TokenRow};
use procfleet_proto::link::token::JoinToken;
use procfleet_store::{NewToken, Replaces, StoreError, TokenRecord};

/// The limits of a token were checked when the request was parsed.
pub async fn create(
    services: &Services,
    caller: &Caller,
    wanted: CreateToken,
) -> Result<CreatedToken, AppError> {
    let mut faults = Faults::default();
    let business = BusinessId(wanted.bk_biz_id);
    let businesses = services.store.businesses().await?;
    if businesses.iter().all(|known| known.id != business) {
        faults.add("bk_biz_id", format!("there is no business {business}"));
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    // Another server may have retired the CA that this one presents.
    ca_change::catch_up(&services.store, &services.ca).await?;
    let token = JoinToken { id: secret::random(), secret: secret::random(), ca_pin: services.ca.pin() };
    let now = services.clock.wall();
    let expires_at = now + i64::try_from(wanted.ttl_secs).unwrap_or(i64::MAX / 1_000_000) * 1000;
    let mut detail = format!("cloud area {}, business {business}, {} uses", wanted.bk_cloud_id, wanted.uses);
    if wanted.replace {
        detail.push_str(", may replace agents that are connected");
    }
    services
        .store
        .create_token(NewToken {
            id: token.public_id(),
            secret_hash: secret::hash(&token.secret),
            ca: Some(token.ca_pin),
            cloud: CloudId(wanted.bk_cloud_id),
            business,
            created_at: now,
            expires_at,
            uses: wanted.uses,
            replaces: if wanted.replace { Replaces::AnyAgent } else { Replaces::LostAgents },
            audit: Some(audit::entry(services, caller, "token_create", &token.public_id(), detail)),
        })
        .await
        .map_err(|error| match error {
            StoreError::CaChanged => {
                Faults::one("", "the CA changed at this moment; nothing was created, try again").into()
            }
            error => AppError::from(error),
        })?;
    Ok(CreatedToken {
        token: token.to_string(),
        bk_cloud_id: wanted.bk_cloud_id,
        bk_biz_id: wanted.bk_biz_id,
        uses: wanted.uses,
        replace: wanted.replace,
        expires_at: expires_at / 1000,
        link_port: Some(services.link_port),
    })
}

pub async fn list(services: &Services) -> Result<Vec<TokenRow>, AppError> {
    let now = services.clock.wall();
    Ok(services.store.tokens().await?.into_iter().map(|token| row(token, now)).collect())
}

/// The token can no longer be used to join; agents that have joined stay.
pub async fn revoke(services: &Services, caller: &Caller, id: &str) -> Result<TokenRow, AppError> {
    let now = services.clock.wall();
    let record = audit::entry(services, caller, "token_revoke", id, String::new());
    match services.store.revoke_token(id.to_owned(), now, record).await? {
        Some(token) => Ok(row(token, now)),
        None => Err(Faults::one("id", format!("there is no join token {id:?}")).into()),
    }
}

fn row(token: TokenRecord, now: i64) -> TokenRow {
    let state = match token {
        TokenRecord { revoked_at: Some(_), .. } => "revoked",
        TokenRecord { expires_at, .. } if expires_at <= now => "expired",
        TokenRecord { uses_left: 0, .. } => "used_up",
        _ => "usable",
    };
    TokenRow {
        id: token.id,
        bk_cloud_id: token.cloud.0,
        bk_biz_id: token.business.0,
        created_at: token.created_at / 1000,
        expires_at: token.expires_at / 1000,
        uses_left: token.uses_left,
        replace: token.replaces == Replaces::AnyAgent,
        state: state.to_owned(),
    }
}
