//! Join tokens: made once, and spent by agents.

use super::audit::insert_audit;
use super::columns::{small, unreadable};
use super::{Fault, NewAudit, Store, StoreError};
use procfleet_core::{BusinessId, CloudId};
use rusqlite::{Connection, OptionalExtension, params};
use std::fmt;
use subtle::ConstantTimeEq;

/// A join token for new agents.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    pub id: String,
    pub secret_hash: [u8; 32],
    /// The cloud area that its agents belong to.
    pub cloud: CloudId,
    /// The business that they belong to until somebody assigns them to another.
    pub business: BusinessId,
    pub created_at: i64,
    pub expires_at: i64,
    pub uses: u32,
    /// Written together with the token.
    pub audit: Option<NewAudit>,
}

/// A token as an agent shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenUse {
    pub id: String,
    pub secret_hash: [u8; 32],
}

/// The reason is meant for whoever shows the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// No such token, or the secret is wrong.
    #[error("the token is not known here")]
    Unknown,
    #[error("the token has expired")]
    Expired,
    #[error("the token has been used as often as it may")]
    UsedUp,
    /// The host has an agent, and that one belongs to another business than the token's.
    #[error("the host belongs to business {0}, and the token is for another; use a token for that business")]
    HostOf(BusinessId),
}

/// Where the agents of a token belong.
pub(super) struct Belonging {
    pub(super) cloud: CloudId,
    pub(super) business: BusinessId,
}

impl Store {
    pub async fn create_token(&self, token: NewToken) -> Result<(), StoreError> {
        self.write("creating a join token", move |db| {
            let sql = "INSERT INTO tokens (id, secret_hash, cloud_id, business_id, created_at, expires_at, uses_left) \
                       VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
            let values = params![
                token.id,
                token.secret_hash,
                token.cloud.0,
                token.business.0,
                token.created_at,
                token.expires_at,
                token.uses
            ];
            if db.prepare_cached(sql)?.execute(values)? == 0 {
                return Err(StoreError::Exists { what: "a join token", key: token.id }.into());
            }
            token.audit.iter().try_for_each(|entry| insert_audit(db, entry))
        })
        .await
    }
}

/// Takes one use of the token. The caller's savepoint gives it back if what follows fails.
pub(super) fn check(
    db: &Connection,
    token: &TokenUse,
    now: i64,
) -> Result<Result<Belonging, TokenRefusal>, Fault> {
    let sql = "SELECT secret_hash, cloud_id, business_id, expires_at, uses_left FROM tokens WHERE id = ?";
    let found: Option<(Vec<u8>, i64, i64, i64, i64)> = db
        .prepare_cached(sql)?
        .query_row([&token.id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))
        .optional()?;
    let Some((hash, cloud, business, expires_at, uses_left)) = found else {
        return Ok(Err(TokenRefusal::Unknown));
    };
    if hash.len() != token.secret_hash.len() {
        return Err(unreadable("a token's hash", &format_args!("it has {} bytes", hash.len())));
    }
    // The secret first: who does not know it learns nothing else about the token.
    if !bool::from(hash.ct_eq(&token.secret_hash)) {
        return Ok(Err(TokenRefusal::Unknown));
    }
    if expires_at <= now {
        return Ok(Err(TokenRefusal::Expired));
    }
    if uses_left <= 0 {
        return Ok(Err(TokenRefusal::UsedUp));
    }
    Ok(Ok(Belonging {
        cloud: CloudId(small("a cloud id", cloud)?),
        business: BusinessId(small("a business", business)?),
    }))
}

// The hashes stay out of logs: whoever has one can try secrets against it at leisure.

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewToken { id, secret_hash: _, cloud, business, created_at, expires_at, uses, audit: _ } = self;
        f.debug_struct("NewToken")
            .field("id", id)
            .field("cloud", cloud)
            .field("business", business)
            .field("created_at", created_at)
            .field("expires_at", expires_at)
            .field("uses", uses)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenUse { id, secret_hash: _ } = self;
        f.debug_struct("TokenUse").field("id", id).finish_non_exhaustive()
    }
}

/// Takes one use from a token that was checked.
pub(super) fn spend(db: &Connection, token: &TokenUse) -> Result<(), Fault> {
    db.prepare_cached("UPDATE tokens SET uses_left = uses_left - 1 WHERE id = ?")?.execute([&token.id])?;
    Ok(())
}
