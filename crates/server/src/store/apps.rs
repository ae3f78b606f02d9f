//! Who may call, who may join, and what was done: apps, join tokens, the audit trail, settings.

use super::columns::{small, unreadable};
use super::{Fault, Store, StoreError};
use procfleet_core::CloudId;
use rusqlite::{Connection, OptionalExtension, params};
use std::fmt;
use subtle::ConstantTimeEq;

/// A caller of the API.
#[derive(Clone, PartialEq, Eq)]
pub struct AppRow {
    pub code: String,
    pub secret_hash: [u8; 32],
    pub disabled_at: Option<i64>,
}

/// A join token for new agents.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    pub id: String,
    pub secret_hash: [u8; 32],
    /// The cloud area that its agents belong to.
    pub cloud: CloudId,
    pub created_at: i64,
    pub expires_at: i64,
    pub uses: u32,
}

/// A token as an agent shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenUse {
    pub id: String,
    pub secret_hash: [u8; 32],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRefusal {
    /// No such token, or the secret is wrong.
    Unknown,
    Expired,
    UsedUp,
}

/// Something that somebody did, or tried to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewAudit {
    pub at: i64,
    pub app: String,
    pub username: String,
    /// The caller's address.
    pub origin: String,
    pub action: String,
    /// What it was about: a task id, a token id. Empty in a new task's: its id is filled in.
    pub subject: String,
    pub code: u32,
    pub detail: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub id: u64,
    pub entry: NewAudit,
}

impl Store {
    pub async fn create_app(&self, code: &str, secret_hash: [u8; 32], at: i64) -> Result<(), StoreError> {
        let code = code.to_owned();
        self.write("creating an app", move |db| {
            let sql =
                "INSERT INTO apps (code, secret_hash, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
            match db.prepare_cached(sql)?.execute(params![code, secret_hash, at])? {
                0 => Err(StoreError::Exists { what: "an app", key: code }.into()),
                _ => Ok(()),
            }
        })
        .await
    }

    pub async fn app(&self, code: &str) -> Result<Option<AppRow>, StoreError> {
        let code = code.to_owned();
        self.read("reading an app", move |db| {
            let sql = "SELECT code, secret_hash, disabled_at FROM apps WHERE code = ?";
            let row = |row: &rusqlite::Row<'_>| {
                Ok(AppRow { code: row.get(0)?, secret_hash: row.get(1)?, disabled_at: row.get(2)? })
            };
            Ok(db.prepare_cached(sql)?.query_row([code], row).optional()?)
        })
        .await
    }

    pub async fn create_token(&self, token: NewToken) -> Result<(), StoreError> {
        self.write("creating a join token", move |db| {
            let sql = "INSERT INTO tokens (id, secret_hash, cloud_id, created_at, expires_at, uses_left) \
                       VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
            let values = params![
                token.id,
                token.secret_hash,
                token.cloud.0,
                token.created_at,
                token.expires_at,
                token.uses
            ];
            match db.prepare_cached(sql)?.execute(values)? {
                0 => Err(StoreError::Exists { what: "a join token", key: token.id }.into()),
                _ => Ok(()),
            }
        })
        .await
    }

    pub async fn audit(&self, entry: NewAudit) -> Result<(), StoreError> {
        self.write("writing the audit trail", move |db| insert_audit(db, &entry)).await
    }

    /// Newest first.
    pub async fn audit_rows(&self, limit: u32) -> Result<Vec<AuditRecord>, StoreError> {
        self.read("reading the audit trail", move |db| {
            let sql = "SELECT id, at, app, username, origin, action, subject, code, detail FROM audit \
                       ORDER BY id DESC LIMIT ?";
            let mut statement = db.prepare_cached(sql)?;
            let mut rows = statement.query([limit])?;
            let mut records = Vec::new();
            while let Some(row) = rows.next()? {
                let entry = NewAudit {
                    at: row.get(1)?,
                    app: row.get(2)?,
                    username: row.get(3)?,
                    origin: row.get(4)?,
                    action: row.get(5)?,
                    subject: row.get(6)?,
                    code: small("an error code", row.get(7)?)?,
                    detail: row.get(8)?,
                };
                records.push(AuditRecord { id: super::columns::natural(row.get(0)?), entry });
            }
            Ok(records)
        })
        .await
    }

    pub async fn setting(&self, key: &str) -> Result<Option<String>, StoreError> {
        let key = key.to_owned();
        self.read("reading a setting", move |db| {
            let sql = "SELECT value FROM settings WHERE key = ?";
            Ok(db.prepare_cached(sql)?.query_row([key], |row| row.get(0)).optional()?)
        })
        .await
    }

    /// Returns the value that holds: `value`, or the one that was there before.
    pub async fn put_setting_if_absent(&self, key: &str, value: &str) -> Result<String, StoreError> {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.write("writing a setting", move |db| {
            let insert = "INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING";
            db.prepare_cached(insert)?.execute([&key, &value])?;
            let select = "SELECT value FROM settings WHERE key = ?";
            Ok(db.prepare_cached(select)?.query_row([key], |row| row.get(0))?)
        })
        .await
    }
}

/// Takes one use of the token. The caller's savepoint gives it back if what follows fails.
pub(super) fn spend(
    db: &Connection,
    token: &TokenUse,
    now: i64,
) -> Result<Result<CloudId, TokenRefusal>, Fault> {
    let sql = "SELECT secret_hash, cloud_id, expires_at, uses_left FROM tokens WHERE id = ?";
    let found: Option<(Vec<u8>, i64, i64, i64)> = db
        .prepare_cached(sql)?
        .query_row([&token.id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let Some((hash, cloud, expires_at, uses_left)) = found else { return Ok(Err(TokenRefusal::Unknown)) };
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
    db.prepare_cached("UPDATE tokens SET uses_left = uses_left - 1 WHERE id = ?")?.execute([&token.id])?;
    Ok(Ok(CloudId(small("a cloud id", cloud)?)))
}

pub(super) fn insert_audit(db: &Connection, entry: &NewAudit) -> Result<(), Fault> {
    let sql = "INSERT INTO audit (at, app, username, origin, action, subject, code, detail) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    db.prepare_cached(sql)?.execute(params![
        entry.at,
        entry.app,
        entry.username,
        entry.origin,
        entry.action,
        entry.subject,
        entry.code,
        entry.detail
    ])?;
    Ok(())
}

// The hashes stay out of logs: whoever has one can try secrets against it at leisure.

impl fmt::Debug for AppRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AppRow { code, secret_hash: _, disabled_at } = self;
        f.debug_struct("AppRow").field("code", code).field("disabled_at", disabled_at).finish_non_exhaustive()
    }
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewToken { id, secret_hash: _, cloud, created_at, expires_at, uses } = self;
        f.debug_struct("NewToken")
            .field("id", id)
            .field("cloud", cloud)
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
