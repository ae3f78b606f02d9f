//! Opens the CA of a store that keeps its private keys, sealed.
//!
//! ```text
//! the store has       | and the data folder         |
//! --------------------+-----------------------------+----------------------------------------------------
//! the sealed keys     | (is not looked at)          | opened; without the right seal key the start is refused
//! no sealed keys      | has key files of a CA       | sealed and stored; key files of an earlier server
//! no sealed keys      | has those of another CA     | refused, if hosts have joined with the recorded CA
//! no sealed keys      | has none, and no host joined| a new CA is made, sealed and stored
//! no sealed keys      | has none, but a certificate | refused: it is the folder of another fleet
//! no sealed keys      | has none, and hosts joined  | refused: the CA is lost
//! ```
//!
//! While nothing is sealed, the seal key is made if its file does not exist. All of it is a compare-and-swap:
//! of servers that start at once, one decides, and the others start over with the keys that it has stored.

use super::ca_opening::{CaOpening, CaStartError, SealStartError, replaced};
use crate::clock::Clock;
use crate::pki::{self, Ca, CaKeys, CaStart, PkiError};
use crate::seal::{self, FoundKeys, OpenFault, SealKeyId, Sealer};
use procfleet_proto::link::token::hex;
use procfleet_store::{CaChange, CaPins, CaRefusal, NewAudit, OldCa, Store, StoredCas};
use std::path::{Path, PathBuf};
use tracing::{info, warn};

/// How often the start is repeated because another server was faster.
const TRIES: u32 = 5;

pub(super) async fn open(store: &Store, clock: Clock, opening: CaOpening<'_>) -> Result<Ca, CaStartError> {
    let mut made = None;
    for _ in 0..TRIES {
        match attempt(store, clock, opening, &mut made).await {
            Ok(Some(ca)) => {
                warn_of_plain_keys(opening.folder, ca.pins());
                return Ok(ca);
            }
            Ok(None) => {}
            Err(error) => {
                discard_useless_key(&error, made);
                return Err(error);
            }
        }
    }
    Err(SealStartError::Unsettled.into())
}

/// `None`: another server was faster. `made`: the file of a seal key that this start has made.
async fn attempt(
    store: &Store,
    clock: Clock,
    opening: CaOpening<'_>,
    made: &mut Option<PathBuf>,
) -> Result<Option<Ca>, CaStartError> {
    let keys = seal_keys(&stored(store).await?, opening, made)?.complete().map_err(SealStartError::from)?;
    let ids = keys.ids().iter().map(SealKeyId::to_string).collect();
    // Before the CAs are read: what another server stores from now on is sealed under a key of this one.
    store.enter_seal_keys(&server_name(opening.folder), ids).await?;
    let stored = stored(store).await?;
    let sealer = Sealer::new(keys, stored.store);
    let (ca_keys, audit) = match decide(store, clock, opening, &sealer, &stored).await? {
        CaFound::InStore(ca_keys) => {
            info!(seal_key = %sealer.keys().first(), "the CA's private key in the store was opened");
            return Ok(Some(Ca::of_store(opening.folder, opening.life, sealer, ca_keys)?));
        }
        CaFound::ToStore(ca_keys, audit) => (ca_keys, audit),
    };
    let sealing = ca_keys.seal(&sealer);
    let key = sealing.key.clone();
    let (seen, to) = (stored.pins, ca_keys.pins());
    let change = CaChange { seen, to, sealing: Some(sealing), old: OldCa::Keep, audit };
    match store.change_ca(change).await? {
        Ok(()) => {
            info!(ca = hex(&to.current), seal_key = key, "the CA's private key is in the store, sealed");
            Ok(Some(Ca::of_store(opening.folder, opening.life, sealer, ca_keys)?))
        }
        Err(CaRefusal::Changed(_)) => Ok(None),
        Err(CaRefusal::NoKeyAt(servers)) => Err(SealStartError::NoKeyAt { key, servers }.into()),
        Err(CaRefusal::Needed { .. }) => unreachable!("nothing is retired here"),
    }
}

/// Reads the seal keys. Makes the first one if nothing needs it yet.
fn seal_keys(
    stored: &StoredCas,
    opening: CaOpening<'_>,
    made: &mut Option<PathBuf>,
) -> Result<FoundKeys, SealStartError> {
    let mut found = FoundKeys::read(opening.seal_keys)?;
    if (stored.cas.is_empty() || opening.beginning == CaStart::NewCa)
        && let Some(path) = found.make_first()?
    {
        warn!(
            path = %path.display(), seal_key = seal::listed(&found.ids()),
            "made the seal key, under which the CA's private key is stored in the database. Copy the file to every server and into \
             your backup: without it the CA is lost"
        );
        *made = Some(path);
    }
    match found.missing() {
        None => Ok(found),
        Some(path) => {
            let (path, needed, have) = (path.to_owned(), needed(stored), found.ids());
            match needed.iter().all(|id| have.contains(id)) {
                true => Err(SealStartError::Superfluous { path, needed, have }),
                false => Err(SealStartError::Missing { path, needed, have }),
            }
        }
    }
}

enum CaFound {
    InStore(CaKeys),
    /// The store must take it, with the audit record.
    ToStore(CaKeys, Option<NewAudit>),
}

async fn decide(
    store: &Store,
    clock: Clock,
    opening: CaOpening<'_>,
    sealer: &Sealer,
    stored: &StoredCas,
) -> Result<CaFound, CaStartError> {
    let CaOpening { folder, beginning, .. } = opening;
    let is_complete = |pins: &CaPins| {
        let has = |pin: &[u8; 32]| stored.cas.iter().any(|ca| ca.sha256 == *pin);
        has(&pins.current) && pins.next.as_ref().is_none_or(has)
    };
    if let Some(pins) = stored.pins.filter(is_complete) {
        return match (CaKeys::open(sealer, pins, &stored.cas), beginning) {
            (Ok(keys), CaStart::AfterHosts(_)) => Ok(CaFound::InStore(keys)),
            (Ok(_), CaStart::NewCa) => Err(SealStartError::NotLost.into()),
            (Err(PkiError::Sealed { ca, fault }), beginning) => match (fault, beginning) {
                (OpenFault::NoKey(_) | OpenFault::Altered | OpenFault::TooShort, CaStart::NewCa) => {
                    made_anew(clock, stored.pins)
                }
                (OpenFault::NoKey(_), CaStart::AfterHosts(_)) => {
                    let have = sealer.keys().ids();
                    Err(SealStartError::WrongKey { needed: needed(stored), have }.into())
                }
                (fault, _) => Err(SealStartError::Unusable { ca, fault }.into()),
            },
            (Err(error), _) => Err(error.into()),
        };
    }
    let trusted = if store.is_newly_restored().await? { None } else { stored.pins };
    let path = || folder.join("ca.cert.der");
    match (CaKeys::from_files(folder, trusted)?, beginning) {
        (Some(keys), CaStart::NewCa) => match stored.pins {
            Some(old) if old != keys.pins() => {
                let audit = replaced(clock, old, keys.pins());
                Ok(CaFound::ToStore(keys, Some(audit)))
            }
            Some(_) | None => Err(PkiError::NotLost { path: path() }.into()),
        },
        (Some(keys), CaStart::AfterHosts(hosts)) => {
            let pins = keys.pins();
            if let Some(recorded) = trusted.filter(|recorded| *recorded != pins && hosts > 0) {
                let (folder, found, recorded) = (folder.to_owned(), described(pins), described(recorded));
                return Err(SealStartError::OtherCa { folder, found, recorded, hosts }.into());
            }
            let audit = match stored.pins {
                Some(old) if old != pins => replaced(clock, old, pins),
                Some(_) | None => {
                    let detail = format!("sealed under seal key {}", sealer.keys().first());
                    NewAudit::of_server(clock.wall(), "ca_seal", hex(&pins.current), detail)
                }
            };
            Ok(CaFound::ToStore(keys, Some(audit)))
        }
        (None, CaStart::AfterHosts(hosts @ 1..)) => Err(PkiError::Lost { path: path(), hosts }.into()),
        (None, CaStart::AfterHosts(0)) => {
            refuse_folder_of_other_fleet(folder, stored.pins)?;
            made_anew(clock, stored.pins)
        }
        (None, CaStart::NewCa) => made_anew(clock, stored.pins),
    }
}

fn described(pins: CaPins) -> String {
    let current = hex(&pins.current);
    match pins.next {
        Some(next) => format!("{current} with the successor {}", hex(&next)),
        None => current,
    }
}

/// A server on another database than before would not know its agents, its apps and its tasks. The embedded
/// store does the same check (`missing_store` of the store).
fn refuse_folder_of_other_fleet(folder: &Path, pins: Option<CaPins>) -> Result<(), CaStartError> {
    let Some(published) = pki::published_pin(folder)? else { return Ok(()) };
    match pins.is_some_and(|pins| pins.current == published || pins.next == Some(published)) {
        true => Ok(()),
        false => {
            let (path, ca) = (folder.join("ca.cert.der"), hex(&published));
            Err(SealStartError::OtherFleet { path, ca }.into())
        }
    }
}

/// A new CA. There is an audit record if it replaces one.
fn made_anew(clock: Clock, old: Option<CaPins>) -> Result<CaFound, CaStartError> {
    let keys = CaKeys::generate()?;
    let audit = old.map(|old| {
        let (old, new) = (hex(&old.current), hex(&keys.pins().current));
        warn!(old, new, "a new CA replaces one whose private key is lost; every host must join again");
        let detail = format!("a new CA, because the key of {old} is lost");
        NewAudit::of_server(clock.wall(), "ca_replace", new, detail)
    });
    Ok(CaFound::ToStore(keys, audit))
}

async fn stored(store: &Store) -> Result<StoredCas, CaStartError> {
    Ok(store.stored_cas().await?.expect("an engine keeps keys of CAs always or never"))
}

/// The seal keys that the store needs.
fn needed(stored: &StoredCas) -> Vec<SealKeyId> {
    let mut ids: Vec<SealKeyId> =
        stored.cas.iter().filter_map(|ca| seal::key_of(&ca.sealed_key).ok()).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// The name of this server in messages to operators: its machine and data folder.
fn server_name(folder: &Path) -> String {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    format!("{machine}:{}", folder.display())
}

/// Removes the file of a seal key that this start has made, after a refusal which shows that nothing is
/// sealed under it: an operator would take it for the right one.
fn discard_useless_key(error: &CaStartError, made: Option<PathBuf>) {
    let is_useless = matches!(
        error,
        CaStartError::Seal(
            SealStartError::WrongKey { .. }
                | SealStartError::NotLost
                | SealStartError::NoKeyAt { .. }
                | SealStartError::OtherFleet { .. }
                | SealStartError::OtherCa { .. }
        ) | CaStartError::Pki(PkiError::Lost { .. } | PkiError::NotLost { .. })
    );
    if let (true, Some(path)) = (is_useless, made) {
        let removed = std::fs::remove_file(&path);
        let error = removed.err().map(tracing::field::display);
        warn!(path = %path.display(), error, "removing the seal key that was made: nothing is sealed under it");
    }
}

fn warn_of_plain_keys(folder: &Path, used: CaPins) {
    let path = folder.join("ca.key.pem");
    if !path.exists() {
        return;
    }
    let found = pki::published_pin(folder).ok().flatten();
    if found.is_some_and(|pin| pin == used.current || Some(pin) == used.next) {
        warn!(
            path = %path.display(),
            "the CA's private key is in the store, sealed; the key files in the data folder (ca.*) are not used. Move them to your \
             backup or remove them"
        );
    } else {
        warn!(
            path = %path.display(), found = found.map(|pin| hex(&pin)), used = hex(&used.current),
            "the key files in the data folder (ca.*) are those of another CA than the store's; they are not used, and the store does \
             not have their private key. Move them to a safe place, and remove them only if no host needs that CA"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::ca;
    use super::*;
    use crate::seal::{KeyFileFault, SEAL_KEY, SealKeyError};
    use procfleet_store::AuditFilter;
    use procfleet_testkit::Cluster;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    struct Fixture {
        store: Store,
        clock: Clock,
    }

    /// Where one of the servers has its data.
    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Place {
            Place(tempfile::tempdir().expect("a temp dir"))
        }

        fn key(&self) -> PathBuf {
            self.0.path().join(SEAL_KEY)
        }

        fn take_key_of(&self, other: &Place) {
            std::fs::copy(other.key(), self.key()).expect("our own folders");
        }

        /// Key files of a CA, as an embedded server makes them.
        fn make_files(&self) -> CaPins {
            let life = Duration::from_secs(60);
            Ca::open(self.0.path(), life, CaStart::AfterHosts(0), None).expect("a CA").pins()
        }
    }

    impl Fixture {
        async fn new() -> Fixture {
            let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
            let store = Store::connect(&url.parse().expect("a url")).await.expect("a store");
            let clock = Clock::start(store.enter_boot(None).await.expect("a boot"));
            Fixture { store, clock }
        }

        async fn start(&self, at: &Place) -> Result<Ca, CaStartError> {
            self.start_with(at, CaStart::AfterHosts(0), &[at.key()]).await
        }

        async fn start_with(
            &self,
            at: &Place,
            beginning: CaStart,
            seal_keys: &[PathBuf],
        ) -> Result<Ca, CaStartError> {
            let life = Duration::from_secs(60);
            let opening = CaOpening { folder: at.0.path(), life, beginning, seal_keys };
            ca::open(&self.store, self.clock, opening).await
        }

        async fn refused(&self, at: &Place) -> SealStartError {
            match self.start(at).await.map(|ca| ca.pins()) {
                Err(CaStartError::Seal(error)) => error,
                other => panic!("{other:?}"),
            }
        }

        async fn actions(&self) -> Vec<String> {
            let page = self.store.list_audit(100, AuditFilter::default()).await.expect("no error");
            page.records.into_iter().rev().map(|row| row.entry.action).collect()
        }

        async fn key_of_store(&self) -> SealKeyId {
            let stored = self.store.stored_cas().await.expect("no error").expect("keys");
            assert_eq!(stored.cas.len(), 1);
            seal::key_of(&stored.cas[0].sealed_key).expect("sealed")
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_first_start_makes_the_seal_key_and_others_need_it() {
        let fixture = Fixture::new().await;
        let (first, second) = (Place::new(), Place::new());
        let ca = fixture.start(&first).await.expect("the first start");
        let id = fixture.key_of_store().await;
        assert!(!first.0.path().join("ca.key.pem").exists(), "the private key is in the store only");
        let published = std::fs::read(first.0.path().join("ca.cert.der")).expect("the certificate is public");
        assert_eq!(crate::secret::hash(&published), ca.pin());
        assert_eq!(fixture.start(&first).await.expect("a restart").pins(), ca.pins());

        let error = fixture.refused(&second).await;
        let SealStartError::Missing { path, needed, have } = &error else { panic!("{error:?}") };
        assert_eq!(
            (path, needed.as_slice(), have.as_slice()),
            (&second.key(), [id].as_slice(), [].as_slice())
        );
        assert!(error.to_string().contains(&id.to_string()), "{error}");
        assert!(!second.key().exists(), "a key of its own would be of no use");

        let other = Place::new();
        Fixture::new().await.start(&other).await.expect("another store");
        second.take_key_of(&other);
        let error = fixture.refused(&second).await;
        let SealStartError::WrongKey { needed, have } = &error else { panic!("{error:?}") };
        assert_eq!(needed.as_slice(), [id]);
        assert!(have.len() == 1 && have[0] != id, "{have:?}");
        for named in [id, have[0]] {
            assert!(error.to_string().contains(&named.to_string()), "{error}");
        }
        assert!(second.key().exists(), "it was there before");

        second.take_key_of(&first);
        assert_eq!(fixture.start(&second).await.expect("with the key").pins(), ca.pins());
        std::fs::set_permissions(second.key(), std::fs::Permissions::from_mode(0o640)).expect("our own");
        let error = fixture.refused(&second).await;
        assert!(
            matches!(&error, SealStartError::Key(SealKeyError { fault: KeyFileFault::Open(0o640), .. })),
            "{error:?}"
        );
        assert_eq!(fixture.actions().await, [""; 0], "the first CA has no record, as in an embedded store");
        assert_eq!(fixture.store.seal_keys_of_servers().await.expect("no error").len(), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_missing_seal_key_that_nothing_is_sealed_under_is_to_be_left_out() {
        let fixture = Fixture::new().await;
        let place = Place::new();
        fixture.start(&place).await.expect("the first start");
        let (gone, id) = (place.0.path().join("gone.key"), fixture.key_of_store().await);
        for keys in [[place.key(), gone.clone()], [gone.clone(), place.key()]] {
            let refused = fixture.start_with(&place, CaStart::AfterHosts(0), &keys).await.map(|ca| ca.pins());
            let Err(CaStartError::Seal(error)) = refused else { panic!("{refused:?}") };
            let SealStartError::Superfluous { path, needed, have } = &error else { panic!("{error:?}") };
            assert_eq!((path, needed.as_slice(), have.as_slice()), (&gone, [id].as_slice(), [id].as_slice()));
            assert!(!error.to_string().contains("--new-ca"), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn key_files_of_an_earlier_server_are_sealed_with_a_record() {
        let fixture = Fixture::new().await;
        let place = Place::new();
        let pins = place.make_files();
        let change = CaChange { seen: None, to: pins, sealing: None, old: OldCa::Keep, audit: None };
        fixture.store.change_ca(change).await.expect("no error").expect("as store copy leaves it");
        let lost = fixture.start_with(&Place::new(), CaStart::AfterHosts(1), &[place.key()]).await;
        assert!(matches!(lost, Err(CaStartError::Pki(PkiError::Lost { hosts: 1, .. }))), "{lost:?}");
        assert!(!place.key().exists(), "nothing is sealed under it");
        let (keys, third) = ([place.key()], Place::new());
        let elsewhere = Place::new();
        let open = |at| fixture.start_with(at, CaStart::AfterHosts(1), &keys);
        assert_eq!(open(&place).await.expect("sealed").pins(), pins);
        assert_eq!(open(&place).await.expect("from the store").pins(), pins);
        assert_eq!(open(&third).await.expect("from another folder").pins(), pins);
        assert_eq!(fixture.actions().await, ["ca_seal"]);

        // Files of another CA do not count any more.
        assert_ne!(elsewhere.make_files(), pins);
        assert_eq!(open(&elsewhere).await.expect("the store decides").pins(), pins);
        assert_eq!(fixture.actions().await, ["ca_seal"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn key_files_of_another_ca_replace_that_of_joined_hosts_only_when_the_operator_says_so() {
        let fixture = Fixture::new().await;
        let (first, foreign) = (Place::new(), Place::new());
        let (known, other) = (first.make_files(), foreign.make_files());
        let change = CaChange { seen: None, to: known, sealing: None, old: OldCa::Keep, audit: None };
        fixture.store.change_ca(change).await.expect("no error").expect("as store copy leaves it");
        let keys = [foreign.key()];
        let open = |beginning| fixture.start_with(&foreign, beginning, &keys);
        let refused = open(CaStart::AfterHosts(1)).await.map(|ca| ca.pins());
        let Err(CaStartError::Seal(SealStartError::OtherCa { found, recorded, hosts: 1, .. })) = &refused
        else {
            panic!("{refused:?}")
        };
        assert_eq!((found, recorded), (&hex(&other.current), &hex(&known.current)));
        assert_eq!(fixture.store.ca().await.expect("no error"), Some(known));
        assert!(!foreign.key().exists(), "nothing is sealed under it");

        assert_eq!(open(CaStart::NewCa).await.expect("replaced").pins(), other);
        assert_eq!(fixture.actions().await, ["ca_replace"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_data_folder_of_a_fleet_begins_no_other_fleet_on_an_empty_store() {
        let place = Place::new();
        let known = Fixture::new().await.start(&place).await.expect("a fleet").pins();
        let certificate = place.0.path().join("ca.cert.der");
        let published = std::fs::read(&certificate).expect("published");
        let fixture = Fixture::new().await;
        for has_key in [true, false] {
            if !has_key {
                std::fs::remove_file(place.key()).expect("our own file");
            }
            let error = fixture.refused(&place).await;
            let SealStartError::OtherFleet { ca, .. } = &error else { panic!("{error:?}") };
            assert_eq!(*ca, hex(&known.current));
            assert_eq!(std::fs::read(&certificate).expect("still there"), published);
            assert_eq!(fixture.store.ca().await.expect("no error"), None);
            assert_eq!(place.key().exists(), has_key, "no seal key is made");
        }

        // The operator means it.
        let anew = Place::new();
        std::fs::copy(&certificate, anew.0.path().join("ca.cert.der")).expect("our own folders");
        fixture.start_with(&anew, CaStart::NewCa, &[anew.key()]).await.expect("a new fleet");
        let fixture = Fixture::new().await;
        std::fs::remove_file(&certificate).expect("our own file");
        fixture.start(&place).await.expect("a new fleet");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_servers_that_start_at_once_one_decides_on_the_seal_key() {
        for _ in 0..3 {
            let fixture = Fixture::new().await;
            let places = [Place::new(), Place::new(), Place::new()];
            let [a, b, c] = &places;
            let (a, b, c) = tokio::join!(fixture.start(a), fixture.start(b), fixture.start(c));
            let mut won = Vec::new();
            for (started, place) in [a, b, c].into_iter().zip(&places) {
                match started {
                    Ok(ca) => won.push((place, ca.pins())),
                    Err(CaStartError::Seal(
                        SealStartError::Missing { .. }
                        | SealStartError::WrongKey { .. }
                        | SealStartError::NoKeyAt { .. },
                    )) => assert!(!place.key().exists(), "its key is of no use"),
                    Err(other) => panic!("{other:?}"),
                }
            }
            let [(place, pins)] = won[..] else { panic!("{} servers have started", won.len()) };
            let mut missing = 0;
            for other in places.iter().filter(|other| !std::ptr::eq(*other, place)) {
                other.take_key_of(place);
                assert_eq!(fixture.start(other).await.expect("with the key").pins(), pins);
                missing += 1;
            }
            assert_eq!(missing, 2);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_ca_whose_seal_key_is_lost_is_replaced_only_when_the_operator_says_so() {
        let fixture = Fixture::new().await;
        let (first, second) = (Place::new(), Place::new());
        let lost = fixture.start(&first).await.expect("started").pins();
        let anew = |at: &Place| {
            let keys = [at.key()];
            let (fixture, at) = (&fixture, at.0.path().to_owned());
            async move {
                let life = Duration::from_secs(60);
                let opening = CaOpening { folder: &at, life, beginning: CaStart::NewCa, seal_keys: &keys };
                ca::open(&fixture.store, fixture.clock, opening).await.map(|ca| ca.pins())
            }
        };
        let refused = anew(&first).await;
        assert!(matches!(refused, Err(CaStartError::Seal(SealStartError::NotLost))), "{refused:?}");
        FoundKeys::read(&[second.key()]).expect("read").make_first().expect("made");
        let refused = anew(&second).await;
        let Err(CaStartError::Seal(SealStartError::NoKeyAt { servers, .. })) = &refused else {
            panic!("{refused:?}")
        };
        assert_eq!(servers.as_slice(), [server_name(first.0.path())], "the first server still runs");
        // Its row as if it had the key, too: a server that enters the store removes the rows of others.
        fixture.store.enter_seal_keys(&server_name(first.0.path()), key_ids(&second)).await.expect("entered");
        let replaced = anew(&second).await.expect("replaced");
        assert_ne!(replaced, lost);
        assert_eq!(fixture.start(&second).await.expect("a restart").pins(), replaced);
        assert_eq!(fixture.actions().await, ["ca_replace"]);
        let error = fixture.refused(&first).await;
        assert!(matches!(error, SealStartError::WrongKey { .. }), "{error:?}");
    }

    fn key_ids(at: &Place) -> Vec<String> {
        let found = FoundKeys::read(&[at.key()]).expect("a key");
        found.ids().iter().map(SealKeyId::to_string).collect()
    }

    /// Somebody who can write to the database cannot give a CA another key.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_sealed_key_that_was_moved_to_another_ca_is_not_used() {
        let fixture = Fixture::new().await;
        let place = Place::new();
        let ca = fixture.start(&place).await.expect("started");
        let prepared = ca.prepare_successor().expect("no error").expect("a successor");
        let (seen, to) = (Some(ca.pins()), prepared.pins());
        let mut stored = fixture.store.stored_cas().await.expect("no error").expect("keys");
        let mut sealing = prepared.sealing().cloned().expect("sealed");
        stored.cas.truncate(1);
        sealing.cas[0].sealed_key = stored.cas.remove(0).sealed_key;
        let change = CaChange { seen, to, sealing: Some(sealing), old: OldCa::Keep, audit: None };
        fixture.store.change_ca(change).await.expect("no error").expect("changed");
        let error = fixture.refused(&place).await;
        let SealStartError::Unusable { fault: OpenFault::Altered, .. } = error else { panic!("{error:?}") };
    }
}
