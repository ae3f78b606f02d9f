//! Which CA holds. The row changes in the commit of its audit record; key files follow it.

use super::audit::insert_audit;
use super::columns::natural;
use super::{QueryFault, SqliteStore};
use crate::{CaChange, CaPins, CaRefusal, CertificateRecord, OldCa, StoreError, StoredCas};
use rusqlite::{Connection, OptionalExtension, params};

impl SqliteStore {
    pub(crate) async fn ca(&self) -> Result<Option<CaPins>, StoreError> {
        self.read("reading which CA holds", pins).await
    }

    /// The keys are files in the data folder, which one server uses.
    pub(crate) async fn stored_cas(&self) -> Result<Option<StoredCas>, StoreError> {
        Ok(None)
    }

    pub(crate) async fn change_ca(&self, change: CaChange) -> Result<Result<(), CaRefusal>, StoreError> {
        self.write("changing the CA", move |db| {
            if change.sealing.is_some() {
                let reason = "the embedded store keeps no keys; they are files in the data folder".to_owned();
                return Err(QueryFault::Unwritable { what: "a CA's sealed key", reason });
            }
            let found = pins(db)?;
            if found != change.seen {
                return Ok(Err(CaRefusal::Changed(found)));
            }
            if let (OldCa::RetireIfUnneeded { at }, Some(CaPins { current, .. })) = (change.old, found) {
                let agents = count_agents(db, current)?;
                let tokens = count_usable_tokens(db, at)?;
                if agents + tokens > 0 {
                    return Ok(Err(CaRefusal::Needed { agents, tokens }));
                }
            }
            let sql = "INSERT OR REPLACE INTO ca (id, current, next) VALUES (1, ?, ?)";
            db.prepare_cached(sql)?.execute(params![change.to.current, change.to.next])?;
            match change.old {
                OldCa::Keep => {}
                // Every token in the store names the retired CA.
                OldCa::RetireIfUnneeded { at } | OldCa::Retire { at } => {
                    let sql = "UPDATE tokens SET revoked_at = ? WHERE revoked_at IS NULL";
                    db.prepare_cached(sql)?.execute([at])?;
                }
            }
            change.audit.iter().try_for_each(|audit| insert_audit(db, audit))?;
            Ok(Ok(()))
        })
        .await
    }

    pub(crate) async fn enter_seal_keys(&self, _server: &str, _keys: Vec<String>) -> Result<(), StoreError> {
        Ok(())
    }

    pub(crate) async fn seal_keys_of_servers(&self) -> Result<Vec<(String, Vec<String>)>, StoreError> {
        Ok(Vec::new())
    }
}

fn pins(db: &Connection) -> Result<Option<CaPins>, QueryFault> {
    let sql = "SELECT current, next FROM ca WHERE id = 1";
    let pins = |row: &rusqlite::Row<'_>| Ok(CaPins { current: row.get(0)?, next: row.get(1)? });
    Ok(db.prepare_cached(sql)?.query_row([], pins).optional()?)
}

/// A certificate is given out only if the CA that signs now has signed it: an agent that takes up another one
/// could be refused after the next retirement.
pub(super) fn check_signing(db: &Connection, certificate: &CertificateRecord) -> Result<(), QueryFault> {
    let Some(signed_by) = certificate.ca else { return Ok(()) };
    match pins(db)? {
        Some(pins) if pins.signing() != signed_by => Err(StoreError::CaChanged.into()),
        Some(_) | None => Ok(()),
    }
}

/// As [`check_signing`], for a join token, which names the CA that the server presents.
pub(super) fn check_presented(db: &Connection, named: Option<[u8; 32]>) -> Result<(), QueryFault> {
    let Some(named) = named else { return Ok(()) };
    match pins(db)? {
        Some(pins) if pins.current != named => Err(StoreError::CaChanged.into()),
        Some(_) | None => Ok(()),
    }
}

/// Number of agents that may connect and use a certificate of this CA.
pub(super) fn count_agents(db: &Connection, ca: [u8; 32]) -> Result<u64, QueryFault> {
    let sql = "SELECT count(*) FROM agents \
               WHERE certificate_ca = ? AND retired_at IS NULL AND revoked_at IS NULL";
    Ok(natural(db.prepare_cached(sql)?.query_row([ca], |row| row.get(0))?))
}

pub(super) fn count_usable_tokens(db: &Connection, now: i64) -> Result<u64, QueryFault> {
    let sql = "SELECT count(*) FROM tokens WHERE expires_at > ? AND uses_left > 0 AND revoked_at IS NULL";
    Ok(natural(db.prepare_cached(sql)?.query_row([now], |row| row.get(0))?))
}
