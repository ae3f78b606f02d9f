//! Deletes old rows.
//!
//! The row of a task and its keys are deleted in slices, and from then on the task is unknown. Its ops and
//! outcomes go with the partitions of its day, once no task of that day is left: dropping a table costs
//! nothing for each row and leaves nothing to vacuum.

use super::PgStore;
use super::columns::natural;
use super::fault::PgFault;
use super::partitions;
use crate::{Deleted, Slice, StoreError};
use deadpool_postgres::Transaction;

impl PgStore {
    pub(crate) async fn delete_tasks(&self, before: i64, slice: Slice) -> Result<Deleted, StoreError> {
        let deleted = self
            .write("deleting old tasks", (before, slice), |tx, (before, slice)| {
                Box::pin(delete_slice(tx, *before, i64::from(slice.tasks)))
            })
            .await?;
        if !deleted.more {
            self.drop_days(before).await?;
        }
        Ok(deleted)
    }

    /// Drops the partitions of days before this time that have no tasks left. Nobody waits for that: if a
    /// transaction uses them for long, the next call goes on.
    async fn drop_days(&self, before: i64) -> Result<(), StoreError> {
        const DOING: &str = "dropping the ops of old tasks";
        let end = partitions::day_of(partitions::base(before));
        let days = self.read(DOING, (), |tx, ()| Box::pin(partitions::days(tx))).await?;
        for day in days.into_iter().filter(|day| *day < end) {
            let unused = self.read(DOING, day, |tx, day| Box::pin(partitions::unused(tx, *day))).await?;
            for (table, state) in unused.unwrap_or_default() {
                let detached = async { Ok(partitions::detach(&self.inner, table, day, state).await) };
                match self.answered(DOING, detached).await? {
                    Ok(()) => {}
                    Err(fault) if fault.is_timeout() => {
                        tracing::info!(
                            table,
                            day,
                            "cannot detach an old partition because a transaction still uses it; trying again at the next retention run"
                        );
                        return Ok(());
                    }
                    Err(fault) => return Err(fault.during(DOING)),
                }
            }
            self.write(DOING, day, |tx, day| Box::pin(partitions::drop_detached(tx, *day))).await?;
        }
        Ok(())
    }

    pub(crate) async fn delete_events(&self, before: i64, most: u32) -> Result<u64, StoreError> {
        self.delete("deleting old events", EVENTS, before, most).await
    }

    pub(crate) async fn delete_audit(&self, before: i64, most: u32) -> Result<u64, StoreError> {
        self.delete("deleting old audit records", AUDIT, before, most).await
    }

    pub(crate) async fn delete_tokens(&self, before: i64, most: u32) -> Result<u64, StoreError> {
        self.delete("deleting old join tokens", TOKENS, before, most).await
    }

    async fn delete(
        &self,
        doing: &'static str,
        sql: &'static str,
        before: i64,
        most: u32,
    ) -> Result<u64, StoreError> {
        self.write(doing, (sql, before, i64::from(most)), |tx, (sql, before, most)| {
            Box::pin(async move {
                let statement = tx.prepare_cached(sql).await?;
                Ok(tx.execute(&statement, &[before, most]).await?)
            })
        })
        .await
    }
}

const EVENTS: &str = "DELETE FROM events WHERE number IN \
                      (SELECT number FROM events WHERE received_at < $1 ORDER BY received_at LIMIT $2)";
const AUDIT: &str = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < $1 ORDER BY at LIMIT $2)";
const TOKENS: &str = "DELETE FROM tokens WHERE id IN (SELECT id FROM tokens WHERE expires_at < $1 LIMIT $2)";

async fn delete_slice(tx: &Transaction<'_>, before: i64, most: i64) -> Result<Deleted, PgFault> {
    let sql = "WITH old AS MATERIALIZED (SELECT number, total FROM tasks WHERE NOT is_open AND created_at < $1 \
                  ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED), \
               keys AS (DELETE FROM idempotency_keys WHERE task IN (SELECT number FROM old)), \
               ids AS (DELETE FROM request_ids WHERE task IN (SELECT number FROM old)), \
               gone AS (DELETE FROM tasks WHERE number IN (SELECT number FROM old)) \
               SELECT count(*), coalesce(sum(total), 0)::bigint FROM old";
    let statement = tx.prepare_cached(sql).await?;
    let row = tx.query_one(&statement, &[&before, &most]).await?;
    let (tasks, ops): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let sql = "SELECT EXISTS (SELECT 1 FROM tasks WHERE NOT is_open AND created_at < $1)";
    let statement = tx.prepare_cached(sql).await?;
    let more = tx.query_one(&statement, &[&before]).await?.try_get(0)?;
    Ok(Deleted { tasks: natural(tasks), ops: natural(ops), more })
}
