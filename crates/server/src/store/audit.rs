//! The audit trail: actions and refused attempts.

use super::columns::{integer, natural, small};
use super::conditions::Conditions;
use super::{QueryFault, Store, StoreError};
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

/// An action, or a refused attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NewAudit {
    pub at: i64,
    pub app: String,
    pub username: String,
    /// The caller's address.
    pub origin: String,
    pub action: String,
    /// The object of the action, such as a task id or a token id. Empty for a new task, whose id is filled
    /// in.
    pub subject: String,
    pub code: u32,
    pub detail: String,
}

impl NewAudit {
    /// Something that the server does by itself.
    pub fn of_server(at: i64, action: &str, subject: String, detail: String) -> NewAudit {
        let (app, action) = ("procfleet-server".to_owned(), action.to_owned());
        NewAudit { at, app, action, subject, detail, ..NewAudit::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub id: u64,
    pub entry: NewAudit,
    pub times: u64,
    pub last_at: i64,
}

/// A counter of equal refusals. `row`: the row that has it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditCount {
    pub row: Option<i64>,
    pub times: u64,
    pub last_at: i64,
}

/// `None` is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub app: Option<String>,
    pub action: Option<String>,
    /// Only what was refused or denied.
    pub failed: bool,
    /// Only what was done, or done again, at this time or later.
    pub since: Option<i64>,
}

impl Store {
    pub async fn audit(&self, entry: NewAudit) -> Result<(), StoreError> {
        self.write("writing the audit trail", move |db| insert_audit(db, &entry)).await
    }

    /// Inserts or updates counters. Returns their rows in the same order.
    pub async fn count_audit(&self, rows: Vec<(NewAudit, AuditCount)>) -> Result<Vec<i64>, StoreError> {
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

    /// Newest first.
    pub async fn audit_rows(&self, limit: u32, filter: AuditFilter) -> Result<Vec<AuditRecord>, StoreError> {
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
            Ok(records)
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
