//! Join tokens.

use super::{App, AppError, Caller, audit};
use crate::secret;
use crate::store::NewToken;
use procfleet_core::id::{BusinessId, CloudId};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::native::{CreateToken, CreatedToken};
use procfleet_proto::link::token::JoinToken;

/// The bounds of a token were looked at when it was asked for.
pub async fn create(app: &App, caller: &Caller, wanted: CreateToken) -> Result<CreatedToken, AppError> {
    let mut faults = Faults::default();
    let business = BusinessId(wanted.bk_biz_id);
    let businesses = app.store.businesses().await?;
    if businesses.iter().all(|known| known.id != business) {
        faults.add("bk_biz_id", format!("there is no business {business}"));
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let token = JoinToken { id: secret::random(), secret: secret::random(), ca_pin: app.ca.pin() };
    let now = app.clock.wall();
    let expires_at = now + i64::try_from(wanted.ttl_secs).unwrap_or(i64::MAX / 1_000_000) * 1000;
    let detail = format!("cloud area {}, business {business}, {} uses", wanted.bk_cloud_id, wanted.uses);
    app.store
        .create_token(NewToken {
            id: token.public_id(),
            secret_hash: secret::hash(&token.secret),
            cloud: CloudId(wanted.bk_cloud_id),
            business,
            created_at: now,
            expires_at,
            uses: wanted.uses,
            audit: Some(audit::entry(app, caller, "token_create", &token.public_id(), detail)),
        })
        .await?;
    Ok(CreatedToken {
        token: token.to_string(),
        bk_cloud_id: wanted.bk_cloud_id,
        bk_biz_id: wanted.bk_biz_id,
        uses: wanted.uses,
        expires_at: expires_at / 1000,
    })
}
