//! Apps: the callers of the API, and their grants.

use super::audit::insert_audit;
use super::columns::{text, unreadable};
use super::{QueryFault, SqliteStore};
use crate::{AppChange, AppRow, AppTrust, GrantChange, NewApp, NewAudit, StoreError};
use procfleet_core::grants::{Dimension, Grants, StillGranted};
use rusqlite::{Connection, Row, params};

const COLUMNS: &str = "code, secret_hash, trusted, created_at, disabled_at";

impl SqliteStore {
    pub(crate) async fn create_app(&self, app: NewApp, audit: Option<NewAudit>) -> Result<(), StoreError> {
        self.write("creating an app", move |db| {
            let sql = "INSERT INTO apps (code, secret_hash, trusted, created_at) VALUES (?, ?, ?, ?) \
                       ON CONFLICT DO NOTHING";
            let values = params![app.code, app.secret_hash, app.trust == AppTrust::Users, app.created_at];
            if db.prepare_cached(sql)?.execute(values)? == 0 {
                return Err(StoreError::Exists { what: "an app", key: app.code }.into());
            }
            audit.iter().try_for_each(|entry| insert_audit(db, entry))
        })
        .await
    }

    pub(crate) async fn app(&self, code: &str) -> Result<Option<AppRow>, StoreError> {
        let code = code.to_owned();
        self.read("reading an app", move |db| {
            let sql = format!("SELECT {COLUMNS} FROM apps WHERE code = ?");
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query([code])?;
            rows.next()?.map(|row| record(db, row)).transpose()
        })
        .await
    }

    pub(crate) async fn apps(&self) -> Result<Vec<AppRow>, StoreError> {
        self.read("reading the apps", |db| {
            let sql = format!("SELECT {COLUMNS} FROM apps ORDER BY code");
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query([])?;
            let mut records = Vec::new();
            while let Some(row) = rows.next()? {
                records.push(record(db, row)?);
            }
            Ok(records)
        })
        .await
    }

    pub(crate) async fn change_app(
        &self,
        code: &str,
        change: AppChange,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        let code = code.to_owned();
        self.write("changing an app", move |db| {
            let changed = match change {
                AppChange::Secret(hash) => db
                    .prepare_cached("UPDATE apps SET secret_hash = ? WHERE code = ?")?
                    .execute(params![hash, code])?,
                // A disabled app keeps the time of its first disabling.
                AppChange::Disable(at) => db
                    .prepare_cached("UPDATE apps SET disabled_at = ifnull(disabled_at, ?) WHERE code = ?")?
                    .execute(params![at, code])?,
                AppChange::Enable => db
                    .prepare_cached("UPDATE apps SET disabled_at = NULL WHERE code = ?")?
                    .execute([&code])?,
            };
            if changed == 0 {
                return Err(StoreError::Missing { what: "app", key: code }.into());
            }
            insert_audit(db, &audit)
        })
        .await
    }

    pub(crate) async fn change_grants(
        &self,
        code: &str,
        change: GrantChange,
        audit: NewAudit,
    ) -> Result<Result<Grants, Vec<StillGranted>>, StoreError> {
        let code = code.to_owned();
        self.write("changing what an app may use", move |db| {
            if !db.prepare_cached("SELECT 1 FROM apps WHERE code = ?")?.exists([&code])? {
                return Err(StoreError::Missing { what: "app", key: code }.into());
            }
            let before = grants(db, &code)?;
            let after = match change {
                GrantChange::Grant(more) => before.with(more),
                GrantChange::Revoke(less) => match before.without(&less) {
                    Ok(after) => after,
                    Err(still) => return Ok(Err(still)),
                },
            };
            db.prepare_cached("DELETE FROM grants WHERE app = ?")?.execute([&code])?;
            let mut insert =
                db.prepare_cached("INSERT INTO grants (app, dimension, value) VALUES (?, ?, ?)")?;
            for (dimension, value) in after.words() {
                insert.execute([code.as_str(), dimension.word(), &value])?;
            }
            insert_audit(db, &audit)?;
            Ok(Ok(after))
        })
        .await
    }
}

fn record(db: &Connection, row: &Row<'_>) -> Result<AppRow, QueryFault> {
    let code: String = row.get(0)?;
    Ok(AppRow {
        grants: grants(db, &code)?,
        code,
        secret_hash: row.get(1)?,
        trust: if row.get(2)? { AppTrust::Users } else { AppTrust::Itself },
        created_at: row.get(3)?,
        disabled_at: row.get(4)?,
    })
}

fn grants(db: &Connection, code: &str) -> Result<Grants, QueryFault> {
    let mut statement = db.prepare_cached("SELECT dimension, value FROM grants WHERE app = ?")?;
    let mut rows = statement.query([code])?;
    let mut grants = Grants::default();
    while let Some(row) = rows.next()? {
        let dimension = Dimension::from_word(text(row, 0)?)
            .ok_or_else(|| unreadable("a grant", &"its dimension is not known"))?;
        grants.add(dimension, text(row, 1)?).map_err(|bad| unreadable("a grant", &bad))?;
    }
    Ok(grants)
}
