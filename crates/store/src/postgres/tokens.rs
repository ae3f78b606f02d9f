//! Join tokens.

use super::PgStore;
use super::audit::insert_audit;
use super::ca;
use super::columns::{business, hash, plain, small};
use super::fault::PgFault;
use crate::types::Belonging;
use crate::{JoinTokenRefusal, NewAudit, NewToken, Replaces, StoreError, TokenRecord, TokenUse};
use deadpool_postgres::Transaction;
use procfleet_core::CloudId;
use subtle::ConstantTimeEq;
use tokio_postgres::Row;

impl PgStore {
    pub(crate) async fn create_token(&self, token: NewToken) -> Result<(), StoreError> {
        self.write("creating a join token", token, |tx, token| {
            Box::pin(async move {
                ca::check_presented(tx, token.ca).await?;
                let sql = "INSERT INTO tokens (id, secret_hash, cloud_id, business_id, created_at, expires_at, \
                           uses_left, replaces) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
                let statement = tx.prepare_cached(sql).await?;
                let inserted = tx
                    .execute(
                        &statement,
                        &[
                            &plain(&token.id),
                            &token.secret_hash.as_slice(),
                            &i64::from(token.cloud.0),
                            &i64::from(token.business.0),
                            &token.created_at,
                            &token.expires_at,
                            &i64::from(token.uses),
                            &(token.replaces == Replaces::AnyAgent),
                        ],
                    )
                    .await?;
                if inserted == 0 {
                    return Err(StoreError::Exists { what: "a join token", key: token.id.clone() }.into());
                }
                if let Some(entry) = &token.audit {
                    insert_audit(tx, entry).await?;
                }
                Ok(())
            })
        })
        .await
    }

    pub(crate) async fn tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
        const DOING: &str = "reading join tokens";
        let sql = format!("SELECT {COLUMNS} FROM tokens ORDER BY created_at DESC, id");
        let rows = self.rows(DOING, &sql, &[]).await?;
        self.converted(DOING, &rows, record)
    }

    pub(crate) async fn revoke_token(
        &self,
        id: String,
        at: i64,
        audit: NewAudit,
    ) -> Result<Option<TokenRecord>, StoreError> {
        self.write("revoking a join token", (plain(&id), at, audit), |tx, (id, at, audit)| {
            Box::pin(async move {
                let sql = format!(
                    "UPDATE tokens SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING {COLUMNS}"
                );
                let statement = tx.prepare_cached(&sql).await?;
                if let Some(row) = tx.query_opt(&statement, &[id, at]).await? {
                    insert_audit(tx, audit).await?;
                    return record(&row).map(Some);
                }
                let statement =
                    tx.prepare_cached(&format!("SELECT {COLUMNS} FROM tokens WHERE id = $1")).await?;
                let row = tx.query_opt(&statement, &[id]).await?;
                row.as_ref().map(record).transpose()
            })
        })
        .await
    }
}

const COLUMNS: &str =
    "id, cloud_id, business_id, created_at, expires_at, uses_left, replaces, revoked_at, secret_hash";

/// Reads [`COLUMNS`] without the last.
fn record(row: &Row) -> Result<TokenRecord, PgFault> {
    Ok(TokenRecord {
        id: row.try_get(0)?,
        cloud: CloudId(small("a cloud id", row.try_get(1)?)?),
        business: business(row.try_get(2)?)?,
        created_at: row.try_get(3)?,
        expires_at: row.try_get(4)?,
        uses_left: small("a token's uses", row.try_get(5)?)?,
        replaces: if row.try_get(6)? { Replaces::AnyAgent } else { Replaces::LostAgents },
        revoked_at: row.try_get(7)?,
    })
}

/// Locks a token and checks it. Units that use the same token take turns.
pub(super) async fn lock(
    tx: &Transaction<'_>,
    token: &TokenUse,
    now: i64,
) -> Result<Result<Belonging, JoinTokenRefusal>, PgFault> {
    let sql = format!("SELECT {COLUMNS} FROM tokens WHERE id = $1 FOR UPDATE");
    let statement = tx.prepare_cached(&sql).await?;
    match tx.query_opt(&statement, &[&plain(&token.id)]).await? {
        Some(row) => check(&row, token, now),
        None => Ok(Err(JoinTokenRefusal::Unknown)),
    }
}

/// Checks a token, which is a row with [`COLUMNS`], without using it.
pub(super) fn check(
    row: &Row,
    token: &TokenUse,
    now: i64,
) -> Result<Result<Belonging, JoinTokenRefusal>, PgFault> {
    // The secret first: a wrong one reveals nothing else about the token.
    if !bool::from(hash(row, 8)?.ct_eq(&token.secret_hash)) {
        return Ok(Err(JoinTokenRefusal::Unknown));
    }
    let TokenRecord { cloud, business, expires_at, uses_left, replaces, revoked_at, .. } = record(row)?;
    if revoked_at.is_some() {
        return Ok(Err(JoinTokenRefusal::Revoked));
    }
    if expires_at <= now {
        return Ok(Err(JoinTokenRefusal::Expired));
    }
    if uses_left == 0 {
        return Ok(Err(JoinTokenRefusal::UsedUp));
    }
    Ok(Ok(Belonging { cloud, business, replaces }))
}

/// Takes one use from a token that this unit has locked and checked.
pub(super) async fn spend(tx: &Transaction<'_>, token: &TokenUse) -> Result<(), PgFault> {
    let statement = tx.prepare_cached("UPDATE tokens SET uses_left = uses_left - 1 WHERE id = $1").await?;
    tx.execute(&statement, &[&plain(&token.id)]).await?;
    Ok(())
}
