//! Changes of the CA: a successor, and the retirement of the old CA.
//!
//! The store decides. A change is prepared (the files of a successor are written), committed together with
//! its audit record, and then adopted: the server uses it, and the files of a retired CA are replaced. After
//! a crash before the commit the next start discards the files of the successor; after a crash between commit
//! and files it replaces the files (`pki::Ca::open`).

use crate::durably::durably;
use crate::pki::{Ca, PkiError, PreparedCa};
use procfleet_store::{CaPins, NewAudit, Store, StoreError, TokensOfCa};
use std::sync::Arc;
use tokio::task::JoinError;
use tracing::error;

#[derive(Debug, thiserror::Error)]
pub enum CaChangeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("the server is ending")]
    Ending(#[from] JoinError),
}

/// Gives the CA a successor. `audit` creates the audit record. `None`: there is a successor already.
pub(crate) async fn rotate(
    store: Store,
    ca: Arc<Ca>,
    audit: impl FnOnce(CaPins) -> NewAudit + Send + 'static,
) -> Result<Option<CaPins>, CaChangeError> {
    change(store, ca, Ca::prepare_successor, TokensOfCa::Keep, audit).await
}

/// The successor replaces the CA, and join tokens that were created until `until` are revoked. `None`: there
/// is no successor.
pub(crate) async fn retire(
    store: Store,
    ca: Arc<Ca>,
    until: i64,
    audit: impl FnOnce(CaPins) -> NewAudit + Send + 'static,
) -> Result<Option<CaPins>, CaChangeError> {
    change(store, ca, Ca::prepare_retirement, TokensOfCa::RevokeUntil(until), audit).await
}

async fn change(
    store: Store,
    ca: Arc<Ca>,
    prepare: fn(&Ca) -> Result<Option<PreparedCa>, PkiError>,
    tokens: TokensOfCa,
    audit: impl FnOnce(CaPins) -> NewAudit + Send + 'static,
) -> Result<Option<CaPins>, CaChangeError> {
    durably(async move {
        let _one = ca.lock().await;
        let preparing = ca.clone();
        let Some(prepared) = tokio::task::spawn_blocking(move || prepare(&preparing)).await?? else {
            return Ok(None);
        };
        let pins = prepared.pins();
        store.change_ca(pins, tokens, Some(audit(pins))).await?;
        let adopting = ca.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || adopting.adopt(prepared)).await? {
            error!(
                error = &error as &dyn std::error::Error,
                "the CA has changed, but its key files could not be moved; the server goes on with the new CA, and the next \
                 start moves them. Check that the data folder can be written"
            );
        }
        Ok(Some(pins))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::CaStart;
    use procfleet_store::AuditFilter;
    use std::path::Path;
    use std::time::Duration;

    fn open(folder: &Path, decided: Option<CaPins>) -> Arc<Ca> {
        let life = Duration::from_secs(60);
        Arc::new(Ca::open(folder, life, CaStart::AfterHosts(0), decided).expect("a CA"))
    }

    fn record(action: &'static str) -> impl FnOnce(CaPins) -> NewAudit + Send + 'static {
        move |_| NewAudit::of_server(1, action, String::new(), String::new())
    }

    async fn actions(store: &Store) -> Vec<String> {
        let rows = store.list_audit(10, AuditFilter::default()).await.expect("no error").records;
        rows.into_iter().map(|row| row.entry.action).collect()
    }

    #[tokio::test]
    async fn a_change_is_in_the_store_with_its_audit_record() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let store = Store::open(&folder.path().join("server.db")).await.expect("a store");
        let ca = open(folder.path(), None);
        let rotated = rotate(store.clone(), ca.clone(), record("ca_rotate")).await.expect("rotated");
        assert_eq!((store.ca().await.expect("no error"), Some(ca.pins())), (rotated, rotated));
        assert_eq!(rotate(store.clone(), ca.clone(), record("ca_rotate")).await.expect("no error"), None);
        let retired = retire(store.clone(), ca.clone(), 1, record("ca_retire")).await.expect("retired");
        assert_eq!((store.ca().await.expect("no error"), Some(ca.pins())), (retired, retired));
        assert_eq!(retired.map(|pins| Some(pins.current)), rotated.map(|pins| pins.next));
        assert_eq!(retire(store.clone(), ca, 1, record("ca_retire")).await.expect("no error"), None);
        assert_eq!(actions(&store).await, ["ca_retire", "ca_rotate"]);
    }

    /// A store that takes no change leaves the CA as it was, in memory and after the next start.
    #[tokio::test]
    async fn a_change_that_cannot_be_recorded_does_not_hold() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let store = Store::open(&folder.path().join("server.db")).await.expect("a store");
        let ca = open(folder.path(), None);
        let before = ca.pins();
        store.clone().close().await.expect("closed");
        rotate(store, ca.clone(), record("ca_rotate")).await.expect_err("the store is closed");
        assert_eq!(ca.pins(), before);
        assert_eq!(open(folder.path(), Some(before)).pins(), before);
    }
}
