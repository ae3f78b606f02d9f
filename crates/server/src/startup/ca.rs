//! Opens the CA as the store has decided on it.

use crate::clock::Clock;
use crate::pki::{Ca, CaStart, PkiError};
use procfleet_proto::link::token::hex;
use procfleet_store::{NewAudit, Store, StoreError, TokensOfCa};
use std::path::Path;
use std::time::Duration;
use tracing::warn;

#[derive(Debug, thiserror::Error)]
pub enum CaStartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pki(#[from] PkiError),
}

/// Opens the CA. Its files follow the store's row, except where the row cannot be right: in a store that was
/// restored from a backup, after --new-ca, and where other key files were put in place. Then the row follows
/// the files, with an audit record.
pub async fn open(
    store: &Store,
    clock: Clock,
    folder: &Path,
    life: Duration,
    beginning: CaStart,
) -> Result<Ca, CaStartError> {
    let decided = store.ca().await?;
    let trusted = if store.is_newly_restored().await? { None } else { decided };
    let ca = Ca::open(folder, life, beginning, trusted)?;
    let pins = ca.pins();
    if decided != Some(pins) {
        let audit = decided.map(|old| {
            let (old, new) = (hex(&old.current), hex(&pins.current));
            warn!(old, new, "the key files of the CA are not those that the store knows; the files are used");
            let detail = format!("the key files are used; the store knew {old}");
            NewAudit::of_server(clock.wall(), "ca_replace", new, detail)
        });
        store.change_ca(pins, TokensOfCa::Keep, audit).await?;
    }
    store.name_first_ca(ca.pin()).await?;
    Ok(ca)
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_store::AuditFilter;

    const LIFE: Duration = Duration::from_secs(60);

    async fn start(store: &Store, clock: Clock, folder: &Path) -> Ca {
        open(store, clock, folder, LIFE, CaStart::AfterHosts(0)).await.expect("a CA")
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
        let prepared = ca.prepare_successor().expect("no error").expect("a successor");
        store.change_ca(prepared.pins(), TokensOfCa::Keep, None).await.expect("committed");
        ca.adopt(prepared).expect("adopted");
        let decided = ca.prepare_retirement().expect("no error").expect("a successor").pins();
        store.change_ca(decided, TokensOfCa::Keep, None).await.expect("committed");
        assert_eq!(start(&store, clock, folder.path()).await.pins(), decided);
        assert_eq!(store.ca().await.expect("no error"), Some(decided));
        assert!(store.list_audit(9, AuditFilter::default()).await.expect("no error").records.is_empty());
    }
}
