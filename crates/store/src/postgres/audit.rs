//! The audit trail: actions and refused attempts.

use super::PgStore;
use super::columns::{count, integer, natural, plain, small};
use super::conditions::{Conditions, Value};
use super::fault::PgFault;
use crate::{AuditCount, AuditFilter, AuditPage, AuditRecord, NewAudit, StoreError};
use deadpool_postgres::Transaction;
use tokio_postgres::Row;

impl PgStore {
    pub(crate) async fn audit(&self, entry: NewAudit) -> Result<(), StoreError> {
        self.write("writing the audit trail", entry, |tx, entry| {
            Box::pin(async move { insert_audit(tx, entry).await.map(|_| ()) })
        })
        .await
    }

    pub(crate) async fn count_audit(
        &self,
        rows: Vec<(NewAudit, AuditCount)>,
    ) -> Result<Vec<i64>, StoreError> {
        self.write("counting in the audit trail", rows, |tx, rows| {
            Box::pin(async move {
                let update =
                    tx.prepare_cached("UPDATE audit SET times = $1, last_at = $2 WHERE id = $3").await?;
                let mut ids = Vec::with_capacity(rows.len());
                for (entry, count) in rows {
                    let id = match count.row {
                        Some(id) => id,
                        None => insert_audit(tx, entry).await?,
                    };
                    tx.execute(&update, &[&integer(count.times), &count.last_at, &id]).await?;
                    ids.push(id);
                }
                Ok(ids)
            })
        })
        .await
    }

    pub(crate) async fn list_audit(&self, limit: u32, filter: AuditFilter) -> Result<AuditPage, StoreError> {
        self.read("reading the audit trail", (limit, filter), |tx, (limit, filter)| {
            Box::pin(async move {
                let conditions = conditions(filter);
                let sql = format!("SELECT count(*) FROM audit {}", conditions.filter());
                let total = count(&PgStore::rows_in(tx, &sql, conditions.values()).await?)?;
                let sql = format!(
                    "SELECT id, at, app, username, origin, action, subject, code, detail, \
                     coalesce(times, 1), coalesce(last_at, at) FROM audit {} ORDER BY id DESC LIMIT ?",
                    conditions.filter()
                );
                let values = conditions.into_values([Value::Int(i64::from(*limit))]);
                let rows = PgStore::rows_in(tx, &sql, &values).await?;
                let records = rows.iter().map(record).collect::<Result<_, _>>()?;
                Ok(AuditPage { records, total })
            })
        })
        .await
    }
}

fn conditions(filter: &AuditFilter) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.equals("app", filter.app.clone());
    conditions.equals("action", filter.action.clone());
    if filter.failed {
        conditions.always("code != 0");
    }
    if let Some(since) = filter.since {
        conditions.add("greatest(at, coalesce(last_at, at)) >= ?", [since]);
    }
    conditions
}

fn record(row: &Row) -> Result<AuditRecord, PgFault> {
    let entry = NewAudit {
        at: row.try_get(1)?,
        app: row.try_get(2)?,
        username: row.try_get(3)?,
        origin: row.try_get(4)?,
        action: row.try_get(5)?,
        subject: row.try_get(6)?,
        code: small("an error code", row.try_get(7)?)?,
        detail: row.try_get(8)?,
    };
    let (times, last_at) = (natural(row.try_get(9)?), row.try_get(10)?);
    Ok(AuditRecord { id: natural(row.try_get(0)?), entry, times, last_at })
}

/// Returns the id of the new row.
pub(super) async fn insert_audit(tx: &Transaction<'_>, entry: &NewAudit) -> Result<i64, PgFault> {
    let sql = "INSERT INTO audit (at, app, username, origin, action, subject, code, detail) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id";
    let statement = tx.prepare_cached(sql).await?;
    let code = i64::from(entry.code);
    let texts = [&entry.app, &entry.username, &entry.origin, &entry.action, &entry.subject, &entry.detail];
    let [app, username, origin, action, subject, detail] = texts.map(|text| plain(text));
    let row = tx
        .query_one(&statement, &[&entry.at, &app, &username, &origin, &action, &subject, &code, &detail])
        .await?;
    Ok(row.try_get(0)?)
}
