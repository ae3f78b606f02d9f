//! Join tokens.

use super::agents::permit;
use super::audit::insert_audit;
use super::columns::{small, unreadable};
use super::{NewAudit, QueryFault, Store, StoreError};
use procfleet_core::{BusinessId, CloudId, Host};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::fmt;
use std::net::IpAddr;
use subtle::ConstantTimeEq;

/// A join token for new agents.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    pub id: String,
    pub secret_hash: [u8; 32],
    /// The cloud area of its agents.
    pub cloud: CloudId,
    /// The business of its agents, until they are assigned to another.
    pub business: BusinessId,
    pub created_at: i64,
    pub expires_at: i64,
    pub uses: u32,
    pub replaces: Replaces,
    /// Written together with the token.
    pub audit: Option<NewAudit>,
}

/// Which existing agent of a host a token may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// An agent that was revoked, has never connected, or has been away for a day.
    LostAgents,
    AnyAgent,
}

/// A token without its secret, for administrators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    pub id: String,
    pub cloud: CloudId,
    pub business: BusinessId,
    pub created_at: i64,
    pub expires_at: i64,
    pub uses_left: u32,
    pub replaces: Replaces,
    pub revoked_at: Option<i64>,
}

/// A token that an agent presents.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenUse {
    pub id: String,
    pub secret_hash: [u8; 32],
}

/// The reason is sent to the host that presents the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinTokenRefusal {
    /// No such token, or the secret is wrong.
    #[error("the token is not known here")]
    Unknown,
    #[error("the token has expired")]
    Expired,
    #[error("the token has been used as often as it may")]
    UsedUp,
    #[error("the token was revoked")]
    Revoked,
    /// The agent of the host is healthy, and the token may have leaked.
    #[error(
        "host {0} has an agent that is connected, or was within the last day; only a token that was made with --replace \
         (procfleet token create --replace) lets another take its place"
    )]
    HostInUse(Host),
    /// The host has an agent of another business.
    #[error("the host belongs to business {0}, and the token is for another; use a token for that business")]
    HostOf(BusinessId),
}

/// Cloud area and business of a token's agents.
pub(super) struct Belonging {
    pub(super) cloud: CloudId,
    pub(super) business: BusinessId,
    pub(super) replaces: Replaces,
}

impl Store {
    pub async fn create_token(&self, token: NewToken) -> Result<(), StoreError> {
        self.write("creating a join token", move |db| {
            let sql = "INSERT INTO tokens (id, secret_hash, cloud_id, business_id, created_at, expires_at, uses_left, \
                       replaces) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
            let values = params![
                token.id,
                token.secret_hash,
                token.cloud.0,
                token.business.0,
                token.created_at,
                token.expires_at,
                token.uses,
                token.replaces == Replaces::AnyAgent
            ];
            if db.prepare_cached(sql)?.execute(values)? == 0 {
                return Err(StoreError::Exists { what: "a join token", key: token.id }.into());
            }
            token.audit.iter().try_for_each(|entry| insert_audit(db, entry))
        })
        .await
    }

    /// Why an agent at this address cannot join with this token now. `None`: it can.
    pub async fn join_refusal(
        &self,
        token: TokenUse,
        ip: IpAddr,
        now: i64,
    ) -> Result<Option<JoinTokenRefusal>, StoreError> {
        self.read("checking a join token", move |db| {
            Ok(match check(db, &token, now)? {
                Ok(belonging) => permit(db, &belonging, ip, now)?.err(),
                Err(refusal) => Some(refusal),
            })
        })
        .await
    }

    /// Newest first. Tokens that expired long ago are deleted.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
        self.read("reading join tokens", |db| {
            let mut statement = db.prepare_cached(&format!("{SELECT} ORDER BY created_at DESC, id"))?;
            let mut rows = statement.query([])?;
            let mut tokens = Vec::new();
            while let Some(row) = rows.next()? {
                tokens.push(record(row)?);
            }
            Ok(tokens)
        })
        .await
    }

    /// Revokes a token. Idempotent. `None`: there is no such token.
    pub async fn revoke_token(
        &self,
        id: String,
        at: i64,
        audit: NewAudit,
    ) -> Result<Option<TokenRecord>, StoreError> {
        self.write("revoking a join token", move |db| {
            let sql = "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL";
            if db.prepare_cached(sql)?.execute(params![at, id])? > 0 {
                insert_audit(db, &audit)?;
            }
            let mut statement = db.prepare_cached(&format!("{SELECT} WHERE id = ?"))?;
            let mut rows = statement.query([&id])?;
            rows.next()?.map(record).transpose()
        })
        .await
    }
}

const SELECT: &str =
    "SELECT id, cloud_id, business_id, created_at, expires_at, uses_left, replaces, revoked_at FROM tokens";

fn record(row: &Row<'_>) -> Result<TokenRecord, QueryFault> {
    Ok(TokenRecord {
        id: row.get(0)?,
        cloud: CloudId(small("a cloud id", row.get(1)?)?),
        business: BusinessId(small("a business", row.get(2)?)?),
        created_at: row.get(3)?,
        expires_at: row.get(4)?,
        uses_left: small("a token's uses", row.get(5)?)?,
        replaces: replaces(row.get(6)?),
        revoked_at: row.get(7)?,
    })
}

fn replaces(any: bool) -> Replaces {
    if any { Replaces::AnyAgent } else { Replaces::LostAgents }
}

/// Checks a token without using it.
pub(super) fn check(
    db: &Connection,
    token: &TokenUse,
    now: i64,
) -> Result<Result<Belonging, JoinTokenRefusal>, QueryFault> {
    let sql = "SELECT secret_hash, revoked_at IS NOT NULL FROM tokens WHERE id = ?";
    let found: Option<(Vec<u8>, bool)> =
        db.prepare_cached(sql)?.query_row([&token.id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((hash, revoked)) = found else {
        return Ok(Err(JoinTokenRefusal::Unknown));
    };
    if hash.len() != token.secret_hash.len() {
        return Err(unreadable("a token's hash", &format_args!("it has {} bytes", hash.len())));
    }
    // The secret first: a wrong one reveals nothing else about the token.
    if !bool::from(hash.ct_eq(&token.secret_hash)) {
        return Ok(Err(JoinTokenRefusal::Unknown));
    }
    if revoked {
        return Ok(Err(JoinTokenRefusal::Revoked));
    }
    let mut statement = db.prepare_cached(&format!("{SELECT} WHERE id = ?"))?;
    let mut rows = statement.query([&token.id])?;
    let Some(found) = rows.next()?.map(record).transpose()? else {
        return Ok(Err(JoinTokenRefusal::Unknown));
    };
    if found.expires_at <= now {
        return Ok(Err(JoinTokenRefusal::Expired));
    }
    if found.uses_left == 0 {
        return Ok(Err(JoinTokenRefusal::UsedUp));
    }
    let TokenRecord { cloud, business, replaces, .. } = found;
    Ok(Ok(Belonging { cloud, business, replaces }))
}

// The hashes stay out of logs: they allow an offline attack on the secrets.

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewToken {
            id,
            secret_hash: _,
            cloud,
            business,
            created_at,
            expires_at,
            uses,
            replaces,
            audit: _,
        } = self;
        f.debug_struct("NewToken")
            .field("id", id)
            .field("cloud", cloud)
            .field("business", business)
            .field("created_at", created_at)
            .field("expires_at", expires_at)
            .field("uses", uses)
            .field("replaces", replaces)
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
pub(super) fn spend(db: &Connection, token: &TokenUse) -> Result<(), QueryFault> {
    db.prepare_cached("UPDATE tokens SET uses_left = uses_left - 1 WHERE id = ?")?.execute([&token.id])?;
    Ok(())
}
