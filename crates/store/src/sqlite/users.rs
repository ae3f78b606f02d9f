//! Users and their login tokens.

use super::audit::insert_audit;
use super::columns::natural;
use super::{QueryFault, SqliteStore};
use crate::{NewAudit, NewUserToken, StoreError, TokenHolder, UserChange, UserRow};
use rusqlite::{Connection, OptionalExtension, params};

/// Expired tokens are kept this long, so that their use can be refused with the reason.
const KEEP_EXPIRED: i64 = 7 * 86_400_000;

impl SqliteStore {
    pub(crate) async fn create_user(&self, name: &str, at: i64, audit: NewAudit) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.write("creating a user", move |db| {
            let sql = "INSERT INTO users (name, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING";
            if db.prepare_cached(sql)?.execute(params![name, at])? == 0 {
                return Err(StoreError::Exists { what: "a user", key: name }.into());
            }
            insert_audit(db, &audit)
        })
        .await
    }

    pub(crate) async fn user(&self, name: &str, now: i64) -> Result<Option<UserRow>, StoreError> {
        let name = name.to_owned();
        self.read("reading a user", move |db| Ok(rows(db, Some(&name), now)?.pop())).await
    }

    pub(crate) async fn users(&self, now: i64) -> Result<Vec<UserRow>, StoreError> {
        self.read("reading the users", move |db| rows(db, None, now)).await
    }

    pub(crate) async fn change_user(
        &self,
        name: &str,
        change: UserChange,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.write("changing a user", move |db| {
            require(db, &name)?;
            match change {
                // A disabled user keeps the time of its first disabling.
                UserChange::Disable(at) => db
                    .prepare_cached("UPDATE users SET disabled_at = ifnull(disabled_at, ?) WHERE name = ?")?
                    .execute(params![at, name])?,
                UserChange::Enable => db
                    .prepare_cached("UPDATE users SET disabled_at = NULL WHERE name = ?")?
                    .execute([&name])?,
                UserChange::RevokeTokens => {
                    db.prepare_cached("DELETE FROM user_tokens WHERE user = ?")?.execute([&name])?
                }
            };
            insert_audit(db, &audit)
        })
        .await
    }

    pub(crate) async fn create_user_token(
        &self,
        token: NewUserToken,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("creating a user's token", move |db| {
            require(db, &token.user)?;
            db.prepare_cached("DELETE FROM user_tokens WHERE user = ? AND expires_at < ?")?
                .execute(params![token.user, token.created_at - KEEP_EXPIRED])?;
            let sql =
                "INSERT INTO user_tokens (token_hash, user, created_at, expires_at) VALUES (?, ?, ?, ?)";
            db.prepare_cached(sql)?.execute(params![
                token.token_hash,
                token.user,
                token.created_at,
                token.expires_at
            ])?;
            insert_audit(db, &audit)
        })
        .await
    }

    pub(crate) async fn token_holder(
        &self,
        token_hash: [u8; 32],
        now: i64,
    ) -> Result<TokenHolder, StoreError> {
        self.read("looking a token up", move |db| {
            let sql = "SELECT name, disabled_at IS NOT NULL, expires_at <= ?2 \
                       FROM user_tokens JOIN users ON name = user WHERE token_hash = ?1";
            let found: Option<(String, bool, bool)> = db
                .prepare_cached(sql)?
                .query_row(params![token_hash, now], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .optional()?;
            Ok(match found {
                None => TokenHolder::Unknown,
                Some((user, true, _)) => TokenHolder::Disabled(user),
                Some((user, false, true)) => TokenHolder::Expired(user),
                Some((user, false, false)) => TokenHolder::Valid(user),
            })
        })
        .await
    }
}

fn require(db: &Connection, name: &str) -> Result<(), QueryFault> {
    match db.prepare_cached("SELECT 1 FROM users WHERE name = ?")?.exists([name])? {
        true => Ok(()),
        false => Err(StoreError::Missing { what: "user", key: name.to_owned() }.into()),
    }
}

fn rows(db: &Connection, name: Option<&str>, now: i64) -> Result<Vec<UserRow>, QueryFault> {
    let sql = "SELECT name, created_at, disabled_at, \
               (SELECT count(*) FROM user_tokens WHERE user = name AND expires_at > ?2) \
               FROM users WHERE ?1 IS NULL OR name = ?1 ORDER BY name";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![name, now])?;
    let mut users = Vec::new();
    while let Some(row) = rows.next()? {
        users.push(UserRow {
            name: row.get(0)?,
            created_at: row.get(1)?,
            disabled_at: row.get(2)?,
            tokens: natural(row.get(3)?),
        });
    }
    Ok(users)
}
