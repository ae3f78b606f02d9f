//! Apps: the callers of the API, and their grants.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{hash, plain, unreadable};
use super::conditions::Conditions;
use super::fault::PgFault;
use crate::{AppChange, AppRow, AppTrust, GrantChange, NewApp, NewAudit, StoreError};
use procfleet_core::grants::{Dimension, Grants, StillGranted};
use tokio_postgres::Row;

/// The grants as two columns of [`grants`].
const GRANTS: &str = "ARRAY(SELECT dimension FROM grants WHERE app = code ORDER BY dimension, value), \
                      ARRAY(SELECT value FROM grants WHERE app = code ORDER BY dimension, value)";

impl PgStore {
    pub(crate) async fn create_app(&self, app: NewApp, audit: Option<NewAudit>) -> Result<(), StoreError> {
        let app = NewApp { code: plain(&app.code), ..app };
        self.write("creating an app", (app, audit), |tx, (app, audit)| {
            Box::pin(async move {
                let NewApp { code, secret_hash, trust, created_at } = app;
                let sql = "INSERT INTO apps (code, secret_hash, trusted, created_at) VALUES ($1, $2, $3, $4) \
                           ON CONFLICT DO NOTHING";
                let trusted = *trust == AppTrust::Users;
                if tx.execute(sql, &[code, &secret_hash.as_slice(), &trusted, created_at]).await? == 0 {
                    return Err(StoreError::Exists { what: "an app", key: code.clone() }.into());
                }
                if let Some(entry) = audit {
                    insert_audit(tx, entry).await?;
                }
                Ok(())
            })
        })
        .await
    }

    pub(crate) async fn app(&self, code: &str) -> Result<Option<AppRow>, StoreError> {
        let mut conditions = Conditions::default();
        conditions.equals("code", Some(plain(code)));
        Ok(self.app_rows("reading an app", &conditions).await?.pop())
    }

    pub(crate) async fn apps(&self) -> Result<Vec<AppRow>, StoreError> {
        self.app_rows("reading the apps", &Conditions::default()).await
    }

    pub(crate) async fn change_app(
        &self,
        code: &str,
        change: AppChange,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("changing an app", (plain(code), change, audit), |tx, (code, change, audit)| {
            Box::pin(async move {
                let changed = match change {
                    AppChange::Secret(hash) => {
                        let sql = "UPDATE apps SET secret_hash = $2 WHERE code = $1";
                        tx.execute(sql, &[code, &hash.as_slice()]).await?
                    }
                    // A disabled app keeps the time of its first disabling.
                    AppChange::Disable(at) => {
                        let sql = "UPDATE apps SET disabled_at = coalesce(disabled_at, $2) WHERE code = $1";
                        tx.execute(sql, &[code, at]).await?
                    }
                    AppChange::Enable => {
                        tx.execute("UPDATE apps SET disabled_at = NULL WHERE code = $1", &[code]).await?
                    }
                };
                if changed == 0 {
                    return Err(missing(code).into());
                }
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    pub(crate) async fn change_grants(
        &self,
        code: &str,
        change: GrantChange,
        audit: NewAudit,
    ) -> Result<Result<Grants, Vec<StillGranted>>, StoreError> {
        let arguments = (plain(code), change, audit);
        self.write("changing what an app may use", arguments, |tx, (code, change, audit)| {
            Box::pin(async move {
                let sql = "SELECT 1 FROM apps WHERE code = $1 FOR NO KEY UPDATE";
                if tx.execute(sql, &[code]).await? == 0 {
                    return Err(missing(code).into());
                }
                // A statement of its own, so that it sees what the last holder of the lock has committed.
                let sql = format!("SELECT {GRANTS} FROM apps WHERE code = $1");
                let before = grants(&tx.query_one(&sql, &[code]).await?, 0)?;
                let after = match change {
                    GrantChange::Grant(more) => before.with(more.clone()),
                    GrantChange::Revoke(less) => match before.without(less) {
                        Ok(after) => after,
                        Err(still) => return Ok(Err(still)),
                    },
                };
                let (dimensions, values): (Vec<_>, Vec<_>) =
                    after.words().into_iter().map(|(dimension, value)| (dimension.word(), plain(&value))).unzip();
                tx.execute("DELETE FROM grants WHERE app = $1", &[code]).await?;
                let sql = "INSERT INTO grants (app, dimension, value) \
                           SELECT $1, dimension, value FROM unnest($2::text[], $3::text[]) AS word (dimension, value)";
                tx.execute(sql, &[code, &dimensions, &values]).await?;
                insert_audit(tx, audit).await?;
                Ok(Ok(after))
            })
        })
        .await
    }

    async fn app_rows(
        &self,
        doing: &'static str,
        conditions: &Conditions,
    ) -> Result<Vec<AppRow>, StoreError> {
        let sql = format!(
            "SELECT code, secret_hash, trusted, created_at, disabled_at, {GRANTS} FROM apps {} ORDER BY code",
            conditions.filter()
        );
        let rows = self.prepared_rows(doing, &sql, conditions.values()).await?;
        self.converted(doing, &rows, |row| {
            Ok(AppRow {
                code: row.try_get(0)?,
                secret_hash: hash(row, 1)?,
                trust: if row.try_get(2)? { AppTrust::Users } else { AppTrust::Itself },
                created_at: row.try_get(3)?,
                disabled_at: row.try_get(4)?,
                grants: grants(row, 5)?,
            })
        })
    }
}

/// Grants in two columns: dimensions and values, in the same order.
fn grants(row: &Row, column: usize) -> Result<Grants, PgFault> {
    let (dimensions, values): (Vec<&str>, Vec<&str>) = (row.try_get(column)?, row.try_get(column + 1)?);
    let mut grants = Grants::default();
    for (dimension, value) in dimensions.into_iter().zip(values) {
        let dimension = Dimension::from_word(dimension)
            .ok_or_else(|| unreadable("a grant", &"its dimension is not known"))?;
        grants.add(dimension, value).map_err(|bad| unreadable("a grant", &bad))?;
    }
    Ok(grants)
}

fn missing(code: &str) -> StoreError {
    StoreError::Missing { what: "app", key: code.to_owned() }
}
