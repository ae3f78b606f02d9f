//! Which CA holds. The row changes in the commit of its audit record; key files follow it.

use super::SqliteStore;
use super::audit::insert_audit;
use crate::{CaPins, NewAudit, StoreError, TokensOfCa};
use rusqlite::{OptionalExtension, params};

impl SqliteStore {
    pub(crate) async fn ca(&self) -> Result<Option<CaPins>, StoreError> {
        self.read("reading which CA holds", move |db| {
            let sql = "SELECT current, next FROM ca WHERE id = 1";
            let pins = |row: &rusqlite::Row<'_>| Ok(CaPins { current: row.get(0)?, next: row.get(1)? });
            Ok(db.prepare_cached(sql)?.query_row([], pins).optional()?)
        })
        .await
    }

    pub(crate) async fn change_ca(
        &self,
        to: CaPins,
        tokens: TokensOfCa,
        audit: Option<NewAudit>,
    ) -> Result<(), StoreError> {
        self.write("changing the CA", move |db| {
            let sql = "INSERT OR REPLACE INTO ca (id, current, next) VALUES (1, ?, ?)";
            db.prepare_cached(sql)?.execute(params![to.current, to.next])?;
            if let TokensOfCa::RevokeUntil(at) = tokens {
                let sql = "UPDATE tokens SET revoked_at = ?1 WHERE created_at <= ?1 AND revoked_at IS NULL";
                db.prepare_cached(sql)?.execute([at])?;
            }
            audit.iter().try_for_each(|audit| insert_audit(db, audit))
        })
        .await
    }
}
