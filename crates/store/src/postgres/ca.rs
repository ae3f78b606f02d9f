//! Which CA holds, and the CAs with their sealed keys. All of it changes in the commit of its audit record.
//!
//! A change locks the row of the pins for itself; a unit that gives out a certificate or a join token locks
//! it FOR SHARE before all other rows. So each of them is committed before the change, which sees it, or
//! compares with the pins after the change.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{hash, hash_if_any, natural, plain, unreadable};
use super::fault::PgFault;
use crate::{
    CaChange, CaPins, CaRefusal, CertificateRecord, OldCa, SealedCa, StoreError, StoreId, StoredCas,
};
use deadpool_postgres::Transaction;
use tokio_postgres::Row;

impl PgStore {
    pub(crate) async fn ca(&self) -> Result<Option<CaPins>, StoreError> {
        const DOING: &str = "reading which CA holds";
        let rows = self.rows(DOING, "SELECT current, next FROM ca WHERE id = 1", &[]).await?;
        Ok(self.converted(DOING, &rows, pins)?.pop())
    }

    pub(crate) async fn stored_cas(&self) -> Result<Option<StoredCas>, StoreError> {
        const DOING: &str = "reading the CAs";
        // One statement, so that pins and CAs belong together.
        let sql = "SELECT identity.store, current, next, sha256, certificate, sealed_key FROM identity \
                   LEFT JOIN ca ON ca.id = 1 LEFT JOIN ca_keys ON sha256 IN (current, next) \
                   WHERE identity.id = 1 ORDER BY sha256";
        let rows = self.rows(DOING, sql, &[]).await?;
        let failed = |fault: PgFault| fault.during(DOING);
        let Some(first) = rows.first() else {
            let reason = "the row is missing";
            return Err(failed(unreadable("its identity", &reason)));
        };
        let (store, pins) = head(first).map_err(failed)?;
        let cas = self.converted(DOING, &rows, sealed_ca)?;
        Ok(Some(StoredCas { store, pins, cas: cas.into_iter().flatten().collect() }))
    }

    pub(crate) async fn change_ca(&self, change: CaChange) -> Result<Result<(), CaRefusal>, StoreError> {
        self.write("changing the CA", change, |tx, change| Box::pin(make_change(tx, change))).await
    }

    pub(crate) async fn enter_seal_keys(&self, server: &str, keys: Vec<String>) -> Result<(), StoreError> {
        let arguments = (plain(server), keys, self.membership().run());
        self.write("recording the seal keys of a server", arguments, |tx, (server, keys, run)| {
            Box::pin(async move {
                // Waits for a change under way, whose sealed keys this server reads next.
                lock_pins(tx, PinLock::Share).await?;
                let sql = "INSERT INTO server_seal_keys (server, keys, run) VALUES ($1, $2, $3) \
                           ON CONFLICT (server) DO UPDATE SET keys = excluded.keys, run = excluded.run";
                let statement = tx.prepare_cached(sql).await?;
                tx.execute(&statement, &[server, keys, &run.0]).await?;
                Ok(())
            })
        })
        .await
    }

    pub(crate) async fn seal_keys_of_servers(&self) -> Result<Vec<(String, Vec<String>)>, StoreError> {
        const DOING: &str = "reading the seal keys of the servers";
        let rows = self.rows(DOING, SEAL_KEYS, &[]).await?;
        self.converted(DOING, &rows, seal_keys)
    }
}

/// Of living servers.
const SEAL_KEYS: &str = "SELECT server, keys FROM server_seal_keys \
                         WHERE run IN (SELECT id FROM servers WHERE state = 'up') ORDER BY server";

async fn make_change(tx: &Transaction<'_>, change: &CaChange) -> Result<Result<(), CaRefusal>, PgFault> {
    let CaChange { seen, to, sealing, old, audit } = change;
    let found = lock_pins(tx, PinLock::Change).await?;
    if found != *seen {
        return Ok(Err(CaRefusal::Changed(found)));
    }
    // While nothing is sealed, other servers are only starting: the first one decides on the key.
    let statement = tx.prepare_cached("SELECT EXISTS (SELECT 1 FROM ca_keys)").await?;
    let is_sealed = tx.query_one(&statement, &[]).await?.try_get(0)?;
    if let (Some(sealing), true) = (sealing, is_sealed) {
        let statement = tx.prepare_cached(SEAL_KEYS).await?;
        let servers = tx.query(&statement, &[]).await?;
        let servers: Vec<(String, Vec<String>)> = servers.iter().map(seal_keys).collect::<Result<_, _>>()?;
        let without = servers.into_iter().filter(|(_, keys)| !keys.contains(&sealing.key));
        let without: Vec<String> = without.map(|(server, _)| server).collect();
        if !without.is_empty() {
            return Ok(Err(CaRefusal::NoKeyAt(without)));
        }
    }
    if let (OldCa::RetireIfUnneeded { at }, Some(CaPins { current, .. })) = (old, found) {
        let (agents, tokens) = count_needing(tx, &current, *at).await?;
        if agents + tokens > 0 {
            return Ok(Err(CaRefusal::Needed { agents, tokens }));
        }
    }
    let next = to.next.as_ref().map(<[u8; 32]>::as_slice);
    // Of two servers that make the first CA at once, one violates the key, is repeated, and finds the row.
    let sql = match found {
        None => "INSERT INTO ca (id, current, next) VALUES (1, $1, $2)",
        Some(_) => "UPDATE ca SET current = $1, next = $2 WHERE id = 1",
    };
    let statement = tx.prepare_cached(sql).await?;
    tx.execute(&statement, &[&to.current.as_slice(), &next]).await?;
    for SealedCa { sha256, certificate, sealed_key } in sealing.iter().flat_map(|sealing| &sealing.cas) {
        let sql = "INSERT INTO ca_keys (sha256, certificate, sealed_key) VALUES ($1, $2, $3) \
                   ON CONFLICT (sha256) DO UPDATE SET sealed_key = excluded.sealed_key";
        let statement = tx.prepare_cached(sql).await?;
        tx.execute(&statement, &[&sha256.as_slice(), certificate, sealed_key]).await?;
    }
    let sql = "DELETE FROM ca_keys WHERE sha256 != $1 AND sha256 IS DISTINCT FROM $2";
    let statement = tx.prepare_cached(sql).await?;
    tx.execute(&statement, &[&to.current.as_slice(), &next]).await?;
    match old {
        OldCa::Keep => {}
        // Every token in the store names the retired CA.
        OldCa::RetireIfUnneeded { at } | OldCa::Retire { at } => {
            let sql = "UPDATE tokens SET revoked_at = $1 WHERE revoked_at IS NULL";
            let statement = tx.prepare_cached(sql).await?;
            tx.execute(&statement, &[at]).await?;
        }
    }
    if let Some(entry) = audit {
        insert_audit(tx, entry).await?;
    }
    Ok(Ok(()))
}

/// The agents and join tokens that need the CA that is presented.
async fn count_needing(tx: &Transaction<'_>, ca: &[u8; 32], now: i64) -> Result<(u64, u64), PgFault> {
    let sql = "SELECT (SELECT count(*) FROM agents \
                   WHERE certificate_ca = $1 AND retired_at IS NULL AND revoked_at IS NULL), \
               (SELECT count(*) FROM tokens WHERE expires_at > $2 AND uses_left > 0 AND revoked_at IS NULL)";
    let statement = tx.prepare_cached(sql).await?;
    let row = tx.query_one(&statement, &[&ca.as_slice(), &now]).await?;
    Ok((natural(row.try_get(0)?), natural(row.try_get(1)?)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PinLock {
    Share,
    Change,
}

async fn lock_pins(tx: &Transaction<'_>, lock: PinLock) -> Result<Option<CaPins>, PgFault> {
    let sql = match lock {
        PinLock::Share => "SELECT current, next FROM ca WHERE id = 1 FOR SHARE",
        PinLock::Change => "SELECT current, next FROM ca WHERE id = 1 FOR UPDATE",
    };
    let statement = tx.prepare_cached(sql).await?;
    tx.query_opt(&statement, &[]).await?.as_ref().map(pins).transpose()
}

/// A certificate is given out only if the CA that signs now has signed it: an agent that takes up another one
/// could be refused after the next retirement. The pins stay until the commit.
pub(super) async fn check_signing(
    tx: &Transaction<'_>,
    certificate: &CertificateRecord,
) -> Result<(), PgFault> {
    let Some(signed_by) = certificate.ca else { return Ok(()) };
    match lock_pins(tx, PinLock::Share).await? {
        Some(pins) if pins.signing() != signed_by => Err(StoreError::CaChanged.into()),
        Some(_) | None => Ok(()),
    }
}

/// As [`check_signing`], for a join token, which names the CA that servers present.
pub(super) async fn check_presented(tx: &Transaction<'_>, named: Option<[u8; 32]>) -> Result<(), PgFault> {
    let Some(named) = named else { return Ok(()) };
    match lock_pins(tx, PinLock::Share).await? {
        Some(pins) if pins.current != named => Err(StoreError::CaChanged.into()),
        Some(_) | None => Ok(()),
    }
}

fn pins(row: &Row) -> Result<CaPins, PgFault> {
    Ok(CaPins { current: hash(row, 0)?, next: hash_if_any(row, 1)? })
}

/// Columns of `stored_cas`: identity, current, next.
fn head(row: &Row) -> Result<(StoreId, Option<CaPins>), PgFault> {
    let id: &[u8] = row.try_get(0)?;
    let id = id.try_into().map_err(|_| unreadable("its identity", &"it does not have 16 bytes"))?;
    let pins = match hash_if_any(row, 1)? {
        Some(current) => Some(CaPins { current, next: hash_if_any(row, 2)? }),
        None => None,
    };
    Ok((StoreId(id), pins))
}

/// Columns of `stored_cas`: sha256, certificate, sealed key, from the fourth on. `None`: there is no CA.
fn sealed_ca(row: &Row) -> Result<Option<SealedCa>, PgFault> {
    let Some(sha256) = hash_if_any(row, 3)? else { return Ok(None) };
    Ok(Some(SealedCa { sha256, certificate: row.try_get(4)?, sealed_key: row.try_get(5)? }))
}

fn seal_keys(row: &Row) -> Result<(String, Vec<String>), PgFault> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}
