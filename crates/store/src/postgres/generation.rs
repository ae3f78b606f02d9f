//! Generations: number ranges that a restored backup does not share with the lost store.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{integer, natural};
use super::conditions::Value;
use super::fault::PgFault;
use crate::{NewAudit, StoreError};

impl PgStore {
    pub(crate) async fn is_newly_restored(&self) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM generations WHERE began_at IS NULL LIMIT 1";
        Ok(!self.rows("reading the generations", sql, &[]).await?.is_empty())
    }

    pub(crate) async fn generation_began(&self, at: i64, audit: NewAudit) -> Result<(), StoreError> {
        self.write("recording a new generation", (at, audit), |tx, (at, audit)| {
            Box::pin(async move {
                tx.execute("UPDATE generations SET began_at = $1 WHERE began_at IS NULL", &[at]).await?;
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    pub(crate) async fn event_lost_at(&self, number: u64) -> Result<Option<i64>, StoreError> {
        const DOING: &str = "reading the generations";
        let sql = "SELECT coalesce(began_at, 0) FROM generations WHERE events_before < ? AND ? < events_from \
                   ORDER BY number LIMIT 1";
        let number = Value::Int(integer(number));
        let rows = self.rows(DOING, sql, &[number.clone(), number]).await?;
        Ok(self.converted(DOING, &rows, |row| Ok(row.try_get(0)?))?.pop())
    }

    pub(crate) async fn newest_event_number(&self) -> Result<u64, StoreError> {
        const DOING: &str = "reading the newest event number";
        let rows = self.rows(DOING, "SELECT last FROM event_counter WHERE id = 1", &[]).await?;
        let last = |row: &tokio_postgres::Row| -> Result<u64, PgFault> { Ok(natural(row.try_get(0)?)) };
        Ok(self.converted(DOING, &rows, last)?.pop().unwrap_or(0))
    }
}
