//! A few values that hold for the whole server.

use super::{Store, StoreError};
use rusqlite::OptionalExtension;

impl Store {
    pub async fn setting(&self, key: &str) -> Result<Option<String>, StoreError> {
        let key = key.to_owned();
        self.read("reading a setting", move |db| {
            let sql = "SELECT value FROM settings WHERE key = ?";
            Ok(db.prepare_cached(sql)?.query_row([key], |row| row.get(0)).optional()?)
        })
        .await
    }

    /// A change that means nothing, to see whether changes are taken.
    pub(super) async fn touch(&self) -> Result<(), StoreError> {
        self.write("trying a change", |db| {
            db.prepare_cached("INSERT OR REPLACE INTO settings (key, value) VALUES ('ready', '')")?
                .execute([])?;
            Ok(())
        })
        .await
    }

    /// Returns the value that holds: `value`, or the one that was there before.
    pub async fn put_setting_if_absent(&self, key: &str, value: &str) -> Result<String, StoreError> {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.write("writing a setting", move |db| {
            let insert = "INSERT INTO settings (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING";
            db.prepare_cached(insert)?.execute([&key, &value])?;
            let select = "SELECT value FROM settings WHERE key = ?";
            Ok(db.prepare_cached(select)?.query_row([key], |row| row.get(0))?)
        })
        .await
    }
}
