//! Opens the CA as the store has decided on it.

use super::ca_opening::{CaOpening, CaStartError, replaced};
use super::sealed_ca;
use crate::clock::Clock;
use crate::pki::Ca;
use procfleet_store::{CaChange, CaRefusal, OldCa, Store};

/// Opens the CA: from the store if it keeps keys, else from files.
pub async fn open(store: &Store, clock: Clock, opening: CaOpening<'_>) -> Result<Ca, CaStartError> {
    let ca = match store.stored_cas().await? {
        Some(_) => sealed_ca::open(store, clock, opening).await?,
        None => open_files(store, clock, opening).await?,
    };
    store.backfill_certificate_ca(ca.pin()).await?;
    Ok(ca)
}

/// The files follow the store's row, except where the row cannot be right: in a store that was restored from
/// a backup, after --new-ca, and where other key files were put in place. Then the row follows the files,
/// with an audit record.
async fn open_files(store: &Store, clock: Clock, opening: CaOpening<'_>) -> Result<Ca, CaStartError> {
    let decided = store.ca().await?;
    let trusted = if store.is_newly_restored().await? { None } else { decided };
    let ca = Ca::open(opening.folder, opening.life, opening.beginning, trusted)?;
    let pins = ca.pins();
    if decided != Some(pins) {
        let audit = decided.map(|old| replaced(clock, old, pins));
        let change = CaChange { seen: decided, to: pins, sealing: None, old: OldCa::Keep, audit };
        match store.change_ca(change).await? {
            Ok(()) => {}
            Err(CaRefusal::Changed(_) | CaRefusal::Needed { .. } | CaRefusal::NoKeyAt(_)) => {
                unreachable!("one server uses an embedded store, and nothing is retired or sealed here")
            }
        }
    }
    Ok(ca)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::CaStart;
    use procfleet_store::{AuditFilter, CaPins};
    use std::path::Path;
    use std::time::Duration;

    const LIFE: Duration = Duration::from_secs(60);

    async fn start(store: &Store, clock: Clock, folder: &Path) -> Ca {
        let opening = CaOpening { folder, life: LIFE, beginning: CaStart::AfterHosts(0), seal_keys: &[] };
        open(store, clock, opening).await.expect("a CA")
    }

    #[tokio::test]
    async fn the_row_is_written_at_the_first_start_and_corrected_with_a_record_where_files_were_replaced() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let store = Store::open(&folder.path().join("server.db")).await.expect("a store");
        let clock = Clock::start(store.enter_boot(None).await.expect("a boot"));
        let first = start(&store, clock, folder.path()).await.pins();
        assert_eq!(store.ca().await.expect("no error"), Some(first));
        assert_eq!(start(&store, clock, folder.path()).await.pins(), first);
        assert!(store.list_audit(9, AuditFilter::default()).await.expect("no error").records.is_empty());

        let other = tempfile::tempdir().expect("a temp dir");
        let replaced = Ca::open(other.path(), LIFE, CaStart::AfterHosts(0), None).expect("a CA").pins();
        for file in ["ca.key.pem", "ca.cert.der"] {
            std::fs::copy(other.path().join(file), folder.path().join(file)).expect("our own folder");
        }
        assert_eq!(start(&store, clock, folder.path()).await.pins(), replaced);
        assert_eq!(store.ca().await.expect("no error"), Some(replaced));
        let audit = store.list_audit(9, AuditFilter::default()).await.expect("no error").records;
        let audit: Vec<(&str, &str)> =
            audit.iter().map(|row| (row.entry.app.as_str(), row.entry.action.as_str())).collect();
        assert_eq!(audit, [("procfleet-server", "ca_replace")]);
    }

    /// The commit holds and the files were not moved: the server ended in between.
    #[tokio::test]
    async fn a_retirement_that_was_committed_is_finished_at_the_start() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let store = Store::open(&folder.path().join("server.db")).await.expect("a store");
        let clock = Clock::start(store.enter_boot(None).await.expect("a boot"));
        let ca = start(&store, clock, folder.path()).await;
        let commit = async |to: CaPins| {
            let seen = Some(ca.pins());
            let change = CaChange { seen, to, sealing: None, old: OldCa::Keep, audit: None };
            store.change_ca(change).await.expect("no error").expect("committed");
        };
        let prepared = ca.prepare_successor().expect("no error").expect("a successor");
        commit(prepared.pins()).await;
        ca.adopt(prepared).expect("adopted");
        let decided = ca.prepare_retirement().expect("no error").expect("a successor").pins();
        commit(decided).await;
        assert_eq!(start(&store, clock, folder.path()).await.pins(), decided);
        assert_eq!(store.ca().await.expect("no error"), Some(decided));
        assert!(store.list_audit(9, AuditFilter::default()).await.expect("no error").records.is_empty());
    }
}
