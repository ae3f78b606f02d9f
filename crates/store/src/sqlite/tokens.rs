//! Join tokens.

use super::audit::insert_audit;
use super::ca;
use super::columns::{small, unreadable};
use super::{QueryFault, SqliteStore};
use crate::types::Belonging;
use crate::{JoinTokenRefusal, NewAudit, NewToken, Replaces, StoreError, TokenRecord, TokenUse};
use procfleet_core::{BusinessId, CloudId};
use rusqlite::{Connection, OptionalExtension, Row, params};
use subtle::ConstantTimeEq;

impl SqliteStore {
    pub(crate) async fn create_token(&self, token: NewToken) -> Result<(), StoreError> {
        self.write("creating a join token", move |db| {
            ca::check_presented(db, token.ca)?;
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

    pub(crate) async fn tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
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

    pub(crate) async fn revoke_token(
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

/// Takes one use from a token that was checked.
pub(super) fn spend(db: &Connection, token: &TokenUse) -> Result<(), QueryFault> {
    db.prepare_cached("UPDATE tokens SET uses_left = uses_left - 1 WHERE id = ?")?.execute([&token.id])?;
    Ok(())
}
