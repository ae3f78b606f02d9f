//! The boots in which a server has used this store.

use super::PgStore;
use crate::StoreError;
use crate::clock::BootNumber;

impl PgStore {
    pub(crate) async fn enter_boot(&self, id: Option<String>) -> Result<BootNumber, StoreError> {
        self.write("recording the boot", id, |tx, id| {
            Box::pin(async move {
                let last =
                    tx.query_opt("SELECT number, id FROM boots ORDER BY number DESC LIMIT 1", &[]).await?;
                if let Some(row) = last {
                    let last: &str = row.try_get(1)?;
                    if Some(last) == id.as_deref() {
                        return Ok(BootNumber(row.try_get(0)?));
                    }
                }
                let sql = "INSERT INTO boots (id) VALUES ($1) RETURNING number";
                let row = tx.query_one(sql, &[&id.as_deref().unwrap_or_default()]).await?;
                Ok(BootNumber(row.try_get(0)?))
            })
        })
        .await
    }
}
