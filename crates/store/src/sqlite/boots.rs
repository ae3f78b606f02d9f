//! The boots in which a server has used this store.

use super::SqliteStore;
use crate::StoreError;
use crate::clock::BootNumber;
use rusqlite::OptionalExtension;

impl SqliteStore {
    pub(crate) async fn enter_boot(&self, id: Option<String>) -> Result<BootNumber, StoreError> {
        self.write("recording the boot", move |db| {
            let last = "SELECT number, id FROM boots ORDER BY number DESC LIMIT 1";
            let last: Option<(i64, String)> =
                db.query_row(last, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            if let Some((number, last)) = last
                && Some(&last) == id.as_ref()
            {
                return Ok(BootNumber(number));
            }
            db.execute("INSERT INTO boots (id) VALUES (?)", [id.unwrap_or_default()])?;
            Ok(BootNumber(db.last_insert_rowid()))
        })
        .await
    }

    /// Reads a row, to see whether the store can be read.
    pub(super) async fn probe_read(&self) -> Result<(), StoreError> {
        self.read("trying a read", |db| {
            db.prepare_cached("SELECT 1 FROM boots LIMIT 1")?.exists([])?;
            Ok(())
        })
        .await
    }

    /// Writes a row without changing it, to see whether the store can be written.
    pub(super) async fn probe_write(&self) -> Result<(), StoreError> {
        self.write("trying a change", |db| {
            let sql = "UPDATE boots SET id = id WHERE number = (SELECT max(number) FROM boots)";
            db.prepare_cached(sql)?.execute([])?;
            Ok(())
        })
        .await
    }
}
