//! Users and their login tokens.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{natural, plain};
use super::conditions::{Conditions, Value};
use crate::{NewAudit, NewUserToken, StoreError, TokenHolder, UserChange, UserRow};
use procfleet_proto::link::token::hex;

/// Expired tokens are kept this long, so that their use can be refused with the reason.
const KEEP_EXPIRED: i64 = 7 * 86_400_000;

impl PgStore {
    pub(crate) async fn create_user(&self, name: &str, at: i64, audit: NewAudit) -> Result<(), StoreError> {
        self.write("creating a user", (plain(name), at, audit), |tx, (name, at, audit)| {
            Box::pin(async move {
                let sql = "INSERT INTO users (name, created_at) VALUES ($1, $2) ON CONFLICT DO NOTHING";
                if tx.execute(sql, &[name, at]).await? == 0 {
                    return Err(StoreError::Exists { what: "a user", key: name.clone() }.into());
                }
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    pub(crate) async fn user(&self, name: &str, now: i64) -> Result<Option<UserRow>, StoreError> {
        let mut conditions = Conditions::default();
        conditions.equals("name", Some(plain(name)));
        Ok(self.user_rows("reading a user", &conditions, now).await?.pop())
    }

    pub(crate) async fn users(&self, now: i64) -> Result<Vec<UserRow>, StoreError> {
        self.user_rows("reading the users", &Conditions::default(), now).await
    }

    pub(crate) async fn change_user(
        &self,
        name: &str,
        change: UserChange,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("changing a user", (plain(name), change, audit), |tx, (name, change, audit)| {
            Box::pin(async move {
                let found = match change {
                    // A disabled user keeps the time of its first disabling.
                    UserChange::Disable(at) => {
                        let sql = "UPDATE users SET disabled_at = coalesce(disabled_at, $2) WHERE name = $1";
                        tx.execute(sql, &[name, at]).await?
                    }
                    UserChange::Enable => {
                        tx.execute("UPDATE users SET disabled_at = NULL WHERE name = $1", &[name]).await?
                    }
                    UserChange::RevokeTokens => {
                        // A token that is created at the same time locks the user, too: it is deleted here,
                        // or created after this.
                        let sql = "SELECT 1 FROM users WHERE name = $1 FOR UPDATE";
                        let found = tx.execute(sql, &[name]).await?;
                        tx.execute("DELETE FROM user_tokens WHERE user_name = $1", &[name]).await?;
                        found
                    }
                };
                if found == 0 {
                    return Err(missing(name).into());
                }
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    pub(crate) async fn create_user_token(
        &self,
        token: NewUserToken,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        let token = NewUserToken { user: plain(&token.user), ..token };
        self.write("creating a user's token", (token, audit), |tx, (token, audit)| {
            Box::pin(async move {
                let NewUserToken { user, token_hash, created_at, expires_at } = token;
                let sql = "SELECT 1 FROM users WHERE name = $1 FOR KEY SHARE";
                if tx.execute(sql, &[user]).await? == 0 {
                    return Err(missing(user).into());
                }
                let sql = "DELETE FROM user_tokens WHERE user_name = $1 AND expires_at < $2";
                tx.execute(sql, &[user, &(created_at - KEEP_EXPIRED)]).await?;
                let sql = "INSERT INTO user_tokens (token_hash, user_name, created_at, expires_at) \
                           VALUES ($1, $2, $3, $4)";
                tx.execute(sql, &[&token_hash.as_slice(), user, created_at, expires_at]).await?;
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    pub(crate) async fn token_holder(
        &self,
        token_hash: [u8; 32],
        now: i64,
    ) -> Result<TokenHolder, StoreError> {
        const DOING: &str = "looking a token up";
        let sql = "SELECT name, disabled_at IS NOT NULL, expires_at <= ? \
                   FROM user_tokens JOIN users ON name = user_name WHERE token_hash = decode(?, 'hex')";
        let rows = self.rows(DOING, sql, &[Value::Int(now), Value::Text(hex(&token_hash))]).await?;
        let found = self.converted(DOING, &rows, |row| {
            let user = row.try_get(0)?;
            Ok(match (row.try_get(1)?, row.try_get(2)?) {
                (true, _) => TokenHolder::Disabled(user),
                (false, true) => TokenHolder::Expired(user),
                (false, false) => TokenHolder::Valid(user),
            })
        })?;
        Ok(found.into_iter().next().unwrap_or(TokenHolder::Unknown))
    }

    async fn user_rows(
        &self,
        doing: &'static str,
        conditions: &Conditions,
        now: i64,
    ) -> Result<Vec<UserRow>, StoreError> {
        let sql = format!(
            "SELECT name, created_at, disabled_at, \
             (SELECT count(*) FROM user_tokens WHERE user_name = name AND expires_at > ?) \
             FROM users {} ORDER BY name",
            conditions.filter()
        );
        let mut values = vec![Value::Int(now)];
        values.extend_from_slice(conditions.values());
        let rows = self.rows(doing, &sql, &values).await?;
        self.converted(doing, &rows, |row| {
            Ok(UserRow {
                name: row.try_get(0)?,
                created_at: row.try_get(1)?,
                disabled_at: row.try_get(2)?,
                tokens: natural(row.try_get(3)?),
            })
        })
    }
}

fn missing(name: &str) -> StoreError {
    StoreError::Missing { what: "user", key: name.to_owned() }
}
