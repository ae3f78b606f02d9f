//! The boots in which a server has worked with this store.

use super::{Store, StoreError};
use crate::clock::BootNumber;
use rusqlite::OptionalExtension;

impl Store {
    /// The number of the boot that the kernel calls so: that of the last server, or a new one. `None`: nobody
    /// knows which boot this is, and it is taken for a new one.
    pub async fn enter_boot(&self, id: Option<String>) -> Result<BootNumber, StoreError> {
        self.write("noting the boot", move |db| {
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
}
