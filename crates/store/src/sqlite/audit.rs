//! The audit trail: actions and refused attempts.

use super::columns::{integer, natural, small};
use super::conditions::Conditions;
use super::{QueryFault, SqliteStore};
use crate::{AuditCount, AuditFilter, AuditPage, AuditRecord, NewAudit, StoreError};
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

impl SqliteStore {
    pub(crate) async fn audit(&self, entry: NewAudit) -> Result<(), StoreError> {
        self.write("writing the audit trail", move |db| insert_audit(db, &entry)).await
    }

    pub(crate) async fn count_audit(
        &self,
        rows: Vec<(NewAudit, AuditCount)>,
    ) -> Result<Vec<i64>, StoreError> {
        self.write("counting in the audit trail", move |db| {
            let sql = "UPDATE audit SET times = ?, last_at = ? WHERE id = ?";
            let mut update = db.prepare_cached(sql)?;
            let mut ids = Vec::with_capacity(rows.len());
            for (entry, count) in &rows {
                let id = match count.row {
                    Some(id) => id,
                    None => {
                        insert_audit(db, entry)?;
                        db.last_insert_rowid()
                    }
                };
                update.execute(params![integer(count.times), count.last_at, id])?;
                ids.push(id);
            }
            Ok(ids)
        })
        .await
    }

    pub(crate) async fn list_audit(&self, limit: u32, filter: AuditFilter) -> Result<AuditPage, StoreError> {
        self.read("reading the audit trail", move |db| {
            let mut conditions = Conditions::default();
            conditions.equals("app", filter.app);
            conditions.equals("action", filter.action);
            if filter.failed {
                conditions.always("code != 0");
            }
            if let Some(since) = filter.since {
                conditions.add("max(at, coalesce(last_at, at)) >= ?", [since]);
            }
            let sql = format!("SELECT count(*) FROM audit {}", conditions.sql());
            let total = db
                .prepare_cached(&sql)?
                .query_row(params_from_iter(conditions.values()), |row| row.get(0))?;
            let sql = format!(
                "SELECT id, at, app, username, origin, action, subject, code, detail, \
                 coalesce(times, 1), coalesce(last_at, at) FROM audit {} ORDER BY id DESC LIMIT ?",
                conditions.sql()
            );
            let values = conditions.into_values([Value::from(i64::from(limit))]);
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query(params_from_iter(values))?;
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
                let (times, last_at) = (natural(row.get(9)?), row.get(10)?);
                records.push(AuditRecord { id: natural(row.get(0)?), entry, times, last_at });
            }
            Ok(AuditPage { records, total: natural(total) })
        })
        .await
    }
}

pub(super) fn insert_audit(db: &Connection, entry: &NewAudit) -> Result<(), QueryFault> {
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
