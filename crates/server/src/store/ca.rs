//! Which CA holds. The row changes in the commit of its audit record; key files follow it.

use super::audit::insert_audit;
use super::{NewAudit, Store, StoreError};
use crate::pki::CaPins;
use rusqlite::{OptionalExtension, params};

/// The join tokens at a change of the CA. A token names the CA by which its agent knows the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokensOfCa {
    Keep,
    /// Tokens that were created until this time name the retired CA.
    RevokeUntil(i64),
}

impl Store {
    /// `None`: the store is from before it kept this, or new.
    pub async fn ca(&self) -> Result<Option<CaPins>, StoreError> {
        self.read("reading which CA holds", move |db| {
            let sql = "SELECT current, next FROM ca WHERE id = 1";
            let pins = |row: &rusqlite::Row<'_>| Ok(CaPins { current: row.get(0)?, next: row.get(1)? });
            Ok(db.prepare_cached(sql)?.query_row([], pins).optional()?)
        })
        .await
    }

    /// Decides which CA holds, with the audit record of the change.
    pub async fn change_ca(
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
