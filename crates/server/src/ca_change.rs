//! Changes of the CA: a successor, the retirement of the old CA, and changes that another server has made.
//!
//! The store decides, by a compare-and-swap on the pins. A change is prepared (a successor and its files, or
//! its sealed key), committed together with its audit record, and then adopted: the server uses it, and the
//! files of a retired CA are replaced. After a crash before the commit the next start discards the files of
//! the successor; after a crash between commit and files it replaces the files (`pki::Ca::open`).
//!
//! A server that loses the compare-and-swap first adopts the committed CA, and then decides again.

use crate::durably::durably;
use crate::pki::{Ca, PkiError, PreparedCa};
use crate::seal;
use procfleet_store::{
    CaChange, CaPins, CaRefusal, NewAudit, OldCa, Sealing, Store, StoreError, StoredCas, Wake,
};
use std::sync::Arc;
use tokio::task::JoinError;
use tracing::{error, info};

/// How often a change is tried that loses against changes of other servers.
const TRIES: u32 = 5;

#[derive(Debug, thiserror::Error)]
pub enum CaChangeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("the server is ending")]
    Ending(#[from] JoinError),
    /// So many agents and join tokens need the CA.
    #[error("{agents} agents and {tokens} join tokens need the CA")]
    Needed { agents: u64, tokens: u64 },
    #[error("these servers cannot open seal key {key}: {}", servers.join(", "))]
    NoKeyAt { key: String, servers: Vec<String> },
    #[error(
        "other servers changed the CA during all {tries} attempts; nothing was changed by this server, try again",
        tries = TRIES
    )]
    Unsettled,
}

/// Gives the CA `of` a successor. `audit` creates the audit record. `None`: there is a successor already, or
/// another CA.
pub(crate) async fn rotate(
    store: Store,
    ca: Arc<Ca>,
    of: [u8; 32],
    audit: impl Fn(CaPins) -> NewAudit + Send + Sync + 'static,
) -> Result<Option<CaPins>, CaChangeError> {
    change(store, ca, of, Ca::prepare_successor, OldCa::Keep, audit).await
}

/// The successor replaces the CA `of`; `old` says how. `None`: it has no successor, or was replaced already.
pub(crate) async fn retire(
    store: Store,
    ca: Arc<Ca>,
    of: [u8; 32],
    old: OldCa,
    audit: impl Fn(CaPins) -> NewAudit + Send + Sync + 'static,
) -> Result<Option<CaPins>, CaChangeError> {
    change(store, ca, of, Ca::prepare_retirement, old, audit).await
}

async fn change(
    store: Store,
    ca: Arc<Ca>,
    of: [u8; 32],
    prepare: fn(&Ca) -> Result<Option<PreparedCa>, PkiError>,
    old: OldCa,
    audit: impl Fn(CaPins) -> NewAudit + Send + Sync + 'static,
) -> Result<Option<CaPins>, CaChangeError> {
    durably(async move {
        let _one = ca.lock().await;
        for _ in 0..TRIES {
            if ca.pin() != of {
                return Ok(None);
            }
            let preparing = ca.clone();
            let Some(prepared) = tokio::task::spawn_blocking(move || prepare(&preparing)).await?? else {
                return Ok(None);
            };
            let (seen, pins) = (Some(ca.pins()), prepared.pins());
            let sealing = prepared.sealing().cloned();
            let change = CaChange { seen, to: pins, sealing, old, audit: Some(audit(pins)) };
            match commit(&store, change).await? {
                Committed::Yes => {
                    adopt(&ca, prepared).await?;
                    return Ok(Some(pins));
                }
                Committed::OthersWere => follow(&store, &ca).await?,
            }
        }
        Err(CaChangeError::Unsettled)
    })
    .await
}

/// Seals the keys in the store again that are sealed under another key than this server's first. Returns how
/// many. `None`: the keys are files.
pub(crate) async fn reseal(
    store: Store,
    ca: Arc<Ca>,
    audit: impl Fn(u64) -> NewAudit + Send + Sync + 'static,
) -> Result<Option<u64>, CaChangeError> {
    durably(async move {
        let _one = ca.lock().await;
        for _ in 0..TRIES {
            follow(&store, &ca).await?;
            let (Some(stored), Some(Sealing { key, mut cas })) = (store.stored_cas().await?, ca.reseal())
            else {
                return Ok(None);
            };
            let others = under_other_keys(&stored, &key);
            cas.retain(|ca| others.iter().any(|(sha256, _)| *sha256 == ca.sha256));
            if cas.is_empty() {
                return Ok(Some(0));
            }
            let (pins, count) = (ca.pins(), cas.len() as u64);
            let sealing = Some(Sealing { key, cas });
            let change =
                CaChange { seen: Some(pins), to: pins, sealing, old: OldCa::Keep, audit: Some(audit(count)) };
            if let Committed::Yes = commit(&store, change).await? {
                return Ok(Some(count));
            }
        }
        Err(CaChangeError::Unsettled)
    })
    .await
}

/// The stored CAs that are not sealed under this key, each with the id of its key.
pub(crate) fn under_other_keys(stored: &StoredCas, key: &str) -> Vec<([u8; 32], String)> {
    let with_keys = stored.cas.iter().map(|ca| {
        let id = seal::key_of(&ca.sealed_key);
        (ca.sha256, id.map_or_else(|fault| format!("unknown ({fault})"), |id| id.to_string()))
    });
    with_keys.filter(|(_, id)| id != key).collect()
}

/// Adopts the CA of the store, if another server has changed it. Cheap if none has.
pub(crate) async fn catch_up(store: &Store, ca: &Arc<Ca>) -> Result<(), CaChangeError> {
    // The store first: a change of this server is in the store before it is in memory.
    if store.ca().await? == Some(ca.pins()) {
        return Ok(());
    }
    let (store, ca) = (store.clone(), ca.clone());
    durably(async move {
        let _one = ca.lock().await;
        follow(&store, &ca).await
    })
    .await
}

/// As [`catch_up`], for a caller that holds the lock. Key files have no other server that could change them.
async fn follow(store: &Store, ca: &Arc<Ca>) -> Result<(), CaChangeError> {
    let Some(StoredCas { pins: Some(pins), cas, .. }) = store.stored_cas().await? else { return Ok(()) };
    if pins == ca.pins() {
        return Ok(());
    }
    let opening = ca.clone();
    let prepared = tokio::task::spawn_blocking(move || opening.prepare_stored(pins, &cas)).await??;
    if let Some(prepared) = prepared {
        info!(?prepared, "another server has changed the CA; this server uses it from now on");
        adopt(ca, prepared).await?;
    }
    Ok(())
}

async fn adopt(ca: &Arc<Ca>, prepared: PreparedCa) -> Result<(), CaChangeError> {
    let adopting = ca.clone();
    if let Err(error) = tokio::task::spawn_blocking(move || adopting.adopt(prepared)).await? {
        error!(
            error = &error as &dyn std::error::Error,
            "the CA has changed, but its files could not be written; the server goes on with the new CA, and the next \
             start writes them. Check that the data folder can be written"
        );
    }
    Ok(())
}

enum Committed {
    Yes,
    /// Another server's change was committed first.
    OthersWere,
}

async fn commit(store: &Store, change: CaChange) -> Result<Committed, CaChangeError> {
    let key = change.sealing.as_ref().map(|sealing| sealing.key.clone()).unwrap_or_default();
    match store.change_ca(change).await? {
        Ok(()) => {
            store.membership().wake_others(Wake::Ca);
            Ok(Committed::Yes)
        }
        Err(CaRefusal::Changed(_)) => Ok(Committed::OthersWere),
        Err(CaRefusal::Needed { agents, tokens }) => Err(CaChangeError::Needed { agents, tokens }),
        Err(CaRefusal::NoKeyAt(servers)) => Err(CaChangeError::NoKeyAt { key, servers }),
    }
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

    fn record(action: &'static str) -> impl Fn(CaPins) -> NewAudit + Send + Sync + 'static {
        move |_| NewAudit::of_server(1, action, String::new(), String::new())
    }

    fn first_ca(ca: &Ca) -> CaChange {
        CaChange { seen: None, to: ca.pins(), sealing: None, old: OldCa::Keep, audit: None }
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
        let first = ca.pin();
        store.change_ca(first_ca(&ca)).await.expect("no error").expect("as at the first start");
        let rotating = || rotate(store.clone(), ca.clone(), first, record("ca_rotate"));
        let rotated = rotating().await.expect("rotated");
        assert_eq!((store.ca().await.expect("no error"), Some(ca.pins())), (rotated, rotated));
        assert_eq!(rotating().await.expect("no error"), None);
        let old = OldCa::RetireIfUnneeded { at: 1 };
        let retiring = || retire(store.clone(), ca.clone(), first, old, record("ca_retire"));
        let retired = retiring().await.expect("retired");
        assert_eq!((store.ca().await.expect("no error"), Some(ca.pins())), (retired, retired));
        assert_eq!(retired.map(|pins| Some(pins.current)), rotated.map(|pins| pins.next));
        assert_eq!(retiring().await.expect("no error"), None);
        assert_eq!(rotating().await.expect("no error"), None, "its CA is gone");
        assert_eq!(actions(&store).await, ["ca_retire", "ca_rotate"]);
    }

    /// A store that takes no change leaves the CA as it was, in memory and after the next start.
    #[tokio::test]
    async fn a_change_that_cannot_be_recorded_does_not_hold() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let store = Store::open(&folder.path().join("server.db")).await.expect("a store");
        let ca = open(folder.path(), None);
        let before = ca.pins();
        store.change_ca(first_ca(&ca)).await.expect("no error").expect("as at the first start");
        store.clone().close().await.expect("closed");
        rotate(store, ca.clone(), ca.pin(), record("ca_rotate")).await.expect_err("the store is closed");
        assert_eq!(ca.pins(), before);
        assert_eq!(open(folder.path(), Some(before)).pins(), before);
    }

    /// Servers that share a store in PostgreSQL, each with its own data folder and CA in memory.
    mod several_servers {
        use super::*;
        use crate::clock::Clock;
        use crate::pki::CaStart;
        use crate::startup::ca::open;
        use crate::startup::ca_opening::CaOpening;
        use crate::workers::ca_follower::CaFollower;
        use procfleet_store::{CertificateRecord, JoiningAgent, NewToken, Replaces, TokenUse};
        use procfleet_testkit::{Cluster, PATIENCE};
        use std::path::PathBuf;
        use tempfile::TempDir;
        use tokio::sync::watch;

        struct Servers {
            store: Store,
            clock: Clock,
            folder: TempDir,
        }

        impl Servers {
            async fn new() -> Servers {
                let url =
                    tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
                let store = Store::connect(&url.parse().expect("a url")).await.expect("a store");
                let clock = Clock::start(store.enter_boot(None).await.expect("a boot"));
                Servers { store, clock, folder: tempfile::tempdir().expect("a temp dir") }
            }

            fn key(&self, name: &str) -> PathBuf {
                self.folder.path().join(name)
            }

            /// A server with these seal keys. The first server makes its key.
            async fn start(&self, name: &str, keys: &[&str]) -> Arc<Ca> {
                let folder = self.folder.path().join(name);
                std::fs::create_dir_all(&folder).expect("our own folder");
                let keys: Vec<PathBuf> = keys.iter().map(|key| self.key(key)).collect();
                let opening = CaOpening {
                    folder: &folder,
                    life: Duration::from_secs(60),
                    beginning: CaStart::AfterHosts(0),
                    seal_keys: &keys,
                };
                Arc::new(open(&self.store, self.clock, opening).await.expect("a CA"))
            }

            async fn rotate(&self, ca: &Arc<Ca>) -> Result<Option<CaPins>, CaChangeError> {
                rotate(self.store.clone(), ca.clone(), ca.pin(), record("ca_rotate")).await
            }

            async fn retire(&self, ca: &Arc<Ca>) -> Result<Option<CaPins>, CaChangeError> {
                let (old, store) = (OldCa::Retire { at: 1 }, self.store.clone());
                retire(store, ca.clone(), ca.pin(), old, record("ca_retire")).await
            }

            async fn reseal(&self, ca: &Arc<Ca>) -> Result<Option<u64>, CaChangeError> {
                let audit = |_| NewAudit::of_server(1, "ca_reseal", String::new(), String::new());
                reseal(self.store.clone(), ca.clone(), audit).await
            }
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_change_by_another_server_is_followed_when_it_is_woken() {
            let servers = Servers::new().await;
            let (a, b) = (servers.start("a", &["key"]).await, servers.start("b", &["key"]).await);
            assert_eq!(a.pins(), b.pins());
            let (stop, stopped) = watch::channel(false);
            let follower = CaFollower { store: servers.store.clone(), ca: b.clone(), stop: stopped };
            let follower = tokio::spawn(follower.run());
            let mut changes = b.changes();
            let mut follows = async |expected: Option<CaPins>| {
                b.wake();
                tokio::time::timeout(PATIENCE, changes.changed()).await.expect("followed").expect("it lives");
                assert_eq!(Some(b.pins()), expected);
            };
            let rotated = servers.rotate(&a).await.expect("rotated");
            follows(rotated).await;
            assert_eq!(b.certificates(), a.certificates());
            let retired = servers.retire(&a).await.expect("retired");
            follows(retired).await;
            // The other way round, and without being woken: the follower looks by itself.
            let rotated = servers.rotate(&b).await.expect("rotated");
            catch_up(&servers.store, &a).await.expect("caught up");
            assert_eq!(Some(a.pins()), rotated);
            let retired = servers.retire(&a).await.expect("retired");
            tokio::time::timeout(PATIENCE, changes.wait_for(|_| Some(b.pins()) == retired))
                .await
                .expect("followed")
                .expect("it lives");
            stop.send(true).expect("it listens");
            follower.await.expect("no panic");
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn servers_that_change_the_ca_at_once_agree() {
            let servers = Servers::new().await;
            let (a, b) = (servers.start("a", &["key"]).await, servers.start("b", &["key"]).await);
            for round in 1..4 {
                let (one, other) = tokio::join!(servers.rotate(&a), servers.rotate(&b));
                let made = [one.expect("no error"), other.expect("no error")];
                assert_eq!(made.iter().flatten().count(), 1, "one of them has made the successor: {made:?}");
                let now = servers.store.ca().await.expect("no error");
                assert_eq!(made.into_iter().flatten().next(), now);
                for ca in [&a, &b] {
                    catch_up(&servers.store, ca).await.expect("caught up");
                    assert_eq!(Some(ca.pins()), now);
                }
                let (one, other) = tokio::join!(servers.retire(&a), servers.retire(&b));
                let made = [one.expect("no error"), other.expect("no error")];
                assert_eq!(made.iter().flatten().count(), 1, "{made:?}");
                for ca in [&a, &b] {
                    catch_up(&servers.store, ca).await.expect("caught up");
                    assert_eq!(Some(ca.pins().current), now.and_then(|pins| pins.next));
                }
                let records = actions(&servers.store).await;
                assert_eq!(records.len().min(10), (2 * round).min(10), "each change has one record");
            }
        }

        /// The server that signs has not heard of the change yet.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_certificate_of_a_server_that_is_behind_is_refused_until_it_has_caught_up() {
            let servers = Servers::new().await;
            let (a, b) = (servers.start("a", &["key"]).await, servers.start("b", &["key"]).await);
            let token = NewToken {
                id: "t".to_owned(),
                secret_hash: [7; 32],
                ca: Some(a.pin()),
                cloud: procfleet_core::CloudId(0),
                business: procfleet_core::BusinessId::DEFAULT,
                created_at: 0,
                expires_at: 1_000,
                uses: 9,
                replaces: Replaces::LostAgents,
                audit: None,
            };
            servers.store.create_token(token).await.expect("a token");
            servers.rotate(&a).await.expect("rotated").expect("a successor");
            let join = async |ca: &Ca, name: &str, last: u8| {
                let key = rcgen::KeyPair::generate().expect("a key");
                let request = rcgen::CertificateParams::new(Vec::new()).expect("no names");
                let request = request.serialize_request(&key).expect("a request");
                let agent: procfleet_core::AgentId = name.parse().expect("an id");
                let signed = ca.sign_agent(request.der(), &agent, 1).expect("signed");
                let certificate = CertificateRecord {
                    sha256: crate::secret::hash(&signed.certificate),
                    ca: Some(signed.ca),
                    issued_at: None,
                    expires_at: None,
                };
                let ip = [10, 0, 0, last].into();
                let joining = JoiningAgent { agent, ip, certificate, version: String::new(), from: ip };
                let token = TokenUse { id: "t".to_owned(), secret_hash: [7; 32] };
                servers.store.join(token, joining, 1).await
            };
            let refused = join(&b, "behind", 1).await;
            assert!(matches!(refused, Err(StoreError::CaChanged)), "{refused:?}");
            catch_up(&servers.store, &b).await.expect("caught up");
            join(&b, "behind", 1).await.expect("no error").expect("joined");
            join(&a, "ahead", 2).await.expect("no error").expect("joined");
            assert_eq!(servers.store.agents_of_ca(a.pins().signing()).await.expect("no error"), 2);
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_seal_key_is_replaced_when_every_server_has_the_new_one() {
            let servers = Servers::new().await;
            let first = servers.start("a", &["old"]).await;
            // As openssl rand -hex 32 would make it.
            let digits = procfleet_proto::link::token::hex(&[5; 32]);
            std::fs::write(servers.key("new"), digits).expect("our own file");
            use std::os::unix::fs::PermissionsExt;
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(servers.key("new"), private).expect("our own file");

            let (a, b) = (servers.start("a", &["new", "old"]).await, servers.start("b", &["old"]).await);
            assert_eq!((a.pins(), b.pins()), (first.pins(), first.pins()));
            for refused in [servers.reseal(&a).await.map(|_| ()), servers.rotate(&a).await.map(|_| ())] {
                let Err(CaChangeError::NoKeyAt { servers, .. }) = &refused else { panic!("{refused:?}") };
                assert!(servers.len() == 1 && servers[0].ends_with("/b"), "{servers:?}");
            }
            assert_eq!(servers.reseal(&b).await.expect("no error"), Some(0), "all is under its key");
            let rotated = servers.rotate(&b).await.expect("rotated");

            let b = servers.start("b", &["old", "new"]).await;
            assert_eq!(
                servers.reseal(&a).await.expect("resealed"),
                Some(2),
                "with the successor, unknown to it"
            );
            assert_eq!(Some(a.pins()), rotated);
            assert_eq!(servers.reseal(&a).await.expect("no error"), Some(0));
            assert_eq!(actions(&servers.store).await, ["ca_reseal", "ca_rotate"]);
            let stored = servers.store.stored_cas().await.expect("no error").expect("keys");
            let new = a.sealer().expect("sealed").keys().first().to_string();
            assert_eq!((stored.cas.len(), under_other_keys(&stored, &new)), (2, Vec::new()));
            catch_up(&servers.store, &b).await.expect("caught up");
            assert_eq!(servers.start("c", &["new"]).await.pins(), b.pins(), "without the old key");
        }
    }
}
