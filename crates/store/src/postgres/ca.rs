//! Which CA holds. The row changes in the commit of its audit record; key files follow it.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{hash, hash_if_any};
use crate::{CaPins, NewAudit, StoreError, TokensOfCa};

impl PgStore {
    pub(crate) async fn ca(&self) -> Result<Option<CaPins>, StoreError> {
        const DOING: &str = "reading which CA holds";
        let rows = self.rows(DOING, "SELECT current, next FROM ca WHERE id = 1", &[]).await?;
        let mut pins = self.converted(DOING, &rows, |row| {
            Ok(CaPins { current: hash(row, 0)?, next: hash_if_any(row, 1)? })
        })?;
        Ok(pins.pop())
    }

    pub(crate) async fn change_ca(
        &self,
        to: CaPins,
        tokens: TokensOfCa,
        audit: Option<NewAudit>,
    ) -> Result<(), StoreError> {
        self.write("changing the CA", (to, tokens, audit), |tx, (to, tokens, audit)| {
            Box::pin(async move {
                let sql = "INSERT INTO ca (id, current, next) VALUES (1, $1, $2) \
                           ON CONFLICT (id) DO UPDATE SET current = excluded.current, next = excluded.next";
                let statement = tx.prepare_cached(sql).await?;
                let next = to.next.as_ref().map(<[u8; 32]>::as_slice);
                tx.execute(&statement, &[&to.current.as_slice(), &next]).await?;
                if let TokensOfCa::RevokeUntil(at) = tokens {
                    let sql =
                        "UPDATE tokens SET revoked_at = $1 WHERE created_at <= $1 AND revoked_at IS NULL";
                    let statement = tx.prepare_cached(sql).await?;
                    tx.execute(&statement, &[at]).await?;
                }
                if let Some(entry) = audit {
                    insert_audit(tx, entry).await?;
                }
                Ok(())
            })
        })
        .await
    }
}
