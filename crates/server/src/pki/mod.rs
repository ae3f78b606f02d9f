//! The built-in CA: created on the first start, it signs the link's own certificate and the certificate of
//! each agent.
//!
//! With the embedded store, keys are PEM files in the data folder, readable by the owner only. With a store
//! that several servers use, they are in the store, sealed. Agents check the name in the server's
//! certificate, not its address, so a server may move.
//!
//! A CA that is to be replaced gets a successor. From then on both are trusted: the successor signs agents'
//! certificates, and the server still presents a certificate of the old CA, because an agent that was away
//! knows no other. An agent with a certificate of the successor trusts both. When all agents have one, the
//! old CA is retired, and the server presents a certificate of the successor.
//!
//! The store decides which CA and which successor are valid ([`CaPins`]). `ca_change` makes the changes and
//! follows those of other servers. Key files follow the store, and [`Ca::open`] repairs them after a crash
//! between a file and the commit.

mod authority;
mod clients;
mod files;
mod keys;
mod servers;

pub use keys::CaKeys;
pub use servers::{ExpectedServer, RunCertificate, server_of};

use crate::seal::{OpenFault, Sealer};
use authority::Authority;
use files::AuthoritySlot;
use procfleet_core::id::AgentId;
use procfleet_store::{CaPins, SealedCa, Sealing};
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, KeyPair,
    KeyUsagePurpose,
};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName,
};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tracing::warn;

/// The name that agents expect in the server's certificate.
pub const SERVER_NAME: &str = "procfleet-server";
const SERVER_YEARS: i32 = 10;
/// How long before its creation the validity of an agent's certificate begins: the clock of the server may be
/// set back a little.
const CLOCK_SLACK: Duration = Duration::from_secs(3_600);

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("{doing} {path}")]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path} is gone, and hosts have joined (now {hosts}) with this CA. Restore it and its key from the last backup. Without a \
         backup, start once with --new-ca: every host must join again then"
    )]
    Lost { path: PathBuf, hosts: u64 },
    #[error(
        "{} cannot be used: {reason}. Restore it from the last backup. Without a backup, move the key and the certificate \
         of this CA away and start once with --new-ca: every host must join again then",
        path.display()
    )]
    Damaged { path: PathBuf, reason: &'static str },
    #[error("--new-ca was given, but no CA was lost: {path} exists. Start without --new-ca")]
    NotLost { path: PathBuf },
    #[error("opening the sealed key of CA {ca}")]
    Sealed {
        ca: String,
        #[source]
        fault: OpenFault,
    },
    #[error("the store has no key of CA {ca}")]
    NotStored { ca: String },
    #[error("making or reading a certificate of the built-in CA")]
    Certificate(#[from] rcgen::Error),
    #[error("preparing TLS for the agent link")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the certificate request cannot be used")]
    Request(#[source] rcgen::Error),
}

/// How to start without a CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaStart {
    /// This many hosts have joined with an earlier CA. 0: the first start, which creates a CA.
    AfterHosts(u64),
    /// The operator passed --new-ca.
    NewCa,
}

/// A change of the CA that is prepared and not in effect yet.
pub struct PreparedCa {
    then: CurrentCa,
    /// The sealed keys that the store does not have yet.
    sealing: Option<Sealing>,
}

/// Where the private keys are kept.
#[derive(Debug)]
enum KeyStorage {
    /// Files in the data folder.
    Files,
    /// The store, sealed. The data folder has a copy of the certificate.
    Store(Sealer),
}

/// The CA, and its successor while there is one.
pub struct Ca {
    folder: PathBuf,
    /// Lifetime of agents' certificates.
    life: Duration,
    keys: KeyStorage,
    present: RwLock<Arc<CurrentCa>>,
    changing: Mutex<()>,
    changes: watch::Sender<u64>,
    wake_up: Notify,
}

/// The state between two changes.
struct CurrentCa {
    shown: Arc<Authority>,
    next: Option<Arc<Authority>>,
    tls: Arc<rustls::ServerConfig>,
}

/// A certificate for an agent; times in milliseconds since 1970.
#[derive(Clone, Debug)]
pub struct Signed {
    pub certificate: CertificateDer<'static>,
    /// The SHA-256 of the certificate of the CA that signed this one.
    pub ca: [u8; 32],
    pub issued_at: i64,
    pub expires_at: i64,
}

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ca")
    }
}

impl Ca {
    /// Reads the CA from `folder`, or creates it there as `beginning` says. `life`: the lifetime of agents'
    /// certificates. `decided`: the decision of the store, if there is one; the files are adapted to it.
    pub fn open(
        folder: &Path,
        life: Duration,
        beginning: CaStart,
        decided: Option<CaPins>,
    ) -> Result<Ca, PkiError> {
        files::finish_interrupted_move(folder)?;
        if let Some(decided) = decided {
            files::follow(folder, decided)?;
        }
        let path = files::certificate(folder);
        let shown = match (files::load(folder, AuthoritySlot::Present)?, beginning) {
            (Some(_), CaStart::NewCa) => return Err(PkiError::NotLost { path }),
            (Some(authority), CaStart::AfterHosts(_)) => authority,
            (None, CaStart::AfterHosts(hosts)) if hosts > 0 => return Err(PkiError::Lost { path, hosts }),
            (None, CaStart::AfterHosts(_) | CaStart::NewCa) => files::make(folder, AuthoritySlot::Present)?,
        };
        let next = files::load(folder, AuthoritySlot::Next)?;
        let present = CurrentCa::new(Arc::new(shown), next.map(Arc::new))?;
        Ok(Ca::new(folder, life, KeyStorage::Files, present))
    }

    /// A CA whose keys are in the store, where `sealer` has sealed them.
    pub fn of_store(folder: &Path, life: Duration, sealer: Sealer, keys: CaKeys) -> Result<Ca, PkiError> {
        let present = keys.ready()?;
        if let Err(error) = files::publish(folder, &present.shown.certificate) {
            warn!(
                error = &error as &dyn std::error::Error,
                "the CA's certificate could not be copied to the data folder, for clients that trust it; the server goes on"
            );
        }
        Ok(Ca::new(folder, life, KeyStorage::Store(sealer), present))
    }

    fn new(folder: &Path, life: Duration, keys: KeyStorage, present: CurrentCa) -> Ca {
        Ca {
            folder: folder.to_owned(),
            life,
            keys,
            present: RwLock::new(Arc::new(present)),
            changing: Mutex::new(()),
            changes: watch::Sender::new(0),
            wake_up: Notify::new(),
        }
    }

    fn present(&self) -> Arc<CurrentCa> {
        self.present.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The CA whose certificate the server presents.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.present().shown.certificate.clone()
    }

    /// All CAs that agents must trust, beginning with the one that the server presents.
    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        let present = self.present();
        let authorities = std::iter::once(&present.shown).chain(&present.next);
        authorities.map(|authority| authority.certificate.clone()).collect()
    }

    /// The hash that join tokens pin.
    pub fn pin(&self) -> [u8; 32] {
        self.present().shown.pin()
    }

    /// The pin of the successor, while there is one.
    pub fn next_pin(&self) -> Option<[u8; 32]> {
        self.present().next.as_ref().map(|next| next.pin())
    }

    /// Lifetime of agents' certificates.
    pub fn life(&self) -> Duration {
        self.life
    }

    /// Changes when a CA is added or retired.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The pins of the CA and its successor that this server uses now.
    pub fn pins(&self) -> CaPins {
        self.present().pins()
    }

    /// Held from the preparation of a change until it is in effect, so that there is one change at a time.
    pub async fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    /// Another server may have changed the CA: look at the store now. Carries no data.
    pub fn wake(&self) {
        self.wake_up.notify_one();
    }

    /// Returns after [`Ca::wake`]. For one waiter.
    pub async fn woken(&self) {
        self.wake_up.notified().await;
    }

    /// Opens the keys in the store. `None`: the keys are files.
    pub fn sealer(&self) -> Option<&Sealer> {
        match &self.keys {
            KeyStorage::Files => None,
            KeyStorage::Store(sealer) => Some(sealer),
        }
    }

    /// Makes a successor, which is not used before [`Ca::adopt`]. `None`: there is one already.
    pub fn prepare_successor(&self) -> Result<Option<PreparedCa>, PkiError> {
        let present = self.present();
        if present.next.is_some() {
            return Ok(None);
        }
        let (next, sealing) = match &self.keys {
            KeyStorage::Files => {
                // An earlier attempt may have left files that the store never decided on.
                files::discard_successor(&self.folder)?;
                (Arc::new(files::make(&self.folder, AuthoritySlot::Next)?), None)
            }
            KeyStorage::Store(sealer) => {
                let next = Arc::new(Authority::generate()?);
                let sealing = keys::sealing(sealer, std::iter::once(&next));
                (next, Some(sealing))
            }
        };
        let then = CurrentCa::new(present.shown.clone(), Some(next))?;
        Ok(Some(PreparedCa { then, sealing }))
    }

    /// The state after the CA is retired. Changes nothing. `None`: there is no successor.
    pub fn prepare_retirement(&self) -> Result<Option<PreparedCa>, PkiError> {
        let Some(next) = self.present().next.clone() else { return Ok(None) };
        Ok(Some(PreparedCa { then: CurrentCa::new(next, None)?, sealing: None }))
    }

    /// The state that another server has stored. `None`: the keys are files.
    pub fn prepare_stored(&self, pins: CaPins, stored: &[SealedCa]) -> Result<Option<PreparedCa>, PkiError> {
        let Some(sealer) = self.sealer() else { return Ok(None) };
        let then = CaKeys::open(sealer, pins, stored)?.ready()?;
        Ok(Some(PreparedCa { then, sealing: None }))
    }

    /// All keys, sealed again under the first seal key. `None`: the keys are files.
    pub fn reseal(&self) -> Option<Sealing> {
        let present = self.present();
        let authorities = std::iter::once(&present.shown).chain(&present.next);
        Some(keys::sealing(self.sealer()?, authorities))
    }

    /// Puts the decision of the store into effect. If the files cannot be changed, the next start repairs
    /// them.
    pub fn adopt(&self, prepared: PreparedCa) -> Result<(), PkiError> {
        let (pins, certificate) = (prepared.pins(), prepared.then.shown.certificate.clone());
        *self.present.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(prepared.then);
        self.changes.send_modify(|generation| *generation += 1);
        match &self.keys {
            KeyStorage::Files => files::follow(&self.folder, pins),
            KeyStorage::Store(_) => files::publish(&self.folder, &certificate),
        }
    }

    /// A certificate for an agent's own key. Only the key is taken from the request; the server sets the
    /// identity.
    pub fn sign_agent(&self, request: &[u8], agent: &AgentId, now: i64) -> Result<Signed, PkiError> {
        let request = CertificateSigningRequestDer::from(request);
        let mut csr = CertificateSigningRequestParams::from_der(&request).map_err(PkiError::Request)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, agent.as_str());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let now = Duration::from_millis(u64::try_from(now).unwrap_or_default());
        // Certificates have a resolution of one second.
        let end = Duration::from_secs((now + self.life).as_secs());
        params.not_before = epoch + now.saturating_sub(CLOCK_SLACK);
        params.not_after = epoch + end;
        csr.params = params;
        let present = self.present();
        let by = present.next.as_ref().unwrap_or(&present.shown);
        Ok(Signed {
            certificate: csr.signed_by(&by.issuer)?.der().clone(),
            ca: by.pin(),
            issued_at: millis(now),
            expires_at: millis(end),
        })
    }

    /// A certificate for the API's port, followed by that of its CA, and its key.
    pub fn sign_api(
        &self,
        names: &[String],
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), PkiError> {
        let present = self.present();
        let key = KeyPair::generate()?;
        let leaf = sign_server(&present.shown, names, &key)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok((vec![leaf, present.shown.certificate.clone()], key))
    }

    /// The current TLS configuration of the link. A client without a certificate can only enrol; a client
    /// with a certificate of another CA is refused.
    pub fn link_tls(&self) -> Arc<rustls::ServerConfig> {
        self.present().tls.clone()
    }
}

impl PreparedCa {
    /// The pins that the store must record.
    pub fn pins(&self) -> CaPins {
        self.then.pins()
    }

    /// The sealed keys that the store must take.
    pub fn sealing(&self) -> Option<&Sealing> {
        self.sealing.as_ref()
    }
}

impl std::fmt::Debug for PreparedCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PreparedCa").field(&self.pins()).finish()
    }
}

impl CurrentCa {
    fn pins(&self) -> CaPins {
        CaPins { current: self.shown.pin(), next: self.next.as_ref().map(|next| next.pin()) }
    }

    fn new(shown: Arc<Authority>, next: Option<Arc<Authority>>) -> Result<CurrentCa, PkiError> {
        let tls = link_tls(&shown, next.as_deref())?;
        Ok(CurrentCa { shown, next, tls })
    }
}

/// The pin of the CA whose certificate is in a data folder. `None`: no server has used the folder.
pub fn published_pin(folder: &Path) -> Result<Option<[u8; 32]>, PkiError> {
    files::published_pin(folder)
}

fn sign_server(by: &Authority, names: &[String], key: &KeyPair) -> Result<CertificateDer<'static>, PkiError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, SERVER_NAME);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    valid_for_years(&mut params, SERVER_YEARS);
    Ok(params.signed_by(key, &by.issuer)?.der().clone())
}

fn link_tls(shown: &Authority, next: Option<&Authority>) -> Result<Arc<rustls::ServerConfig>, PkiError> {
    let key = KeyPair::generate()?;
    let leaf = sign_server(shown, &[SERVER_NAME.to_owned()], &key)?;
    let tls = |error: rustls::Error| PkiError::Tls(Box::new(error));

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    for authority in std::iter::once(shown).chain(next) {
        roots.add(authority.certificate.clone()).map_err(tls)?;
    }
    let strict = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| PkiError::Tls(Box::new(error)))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(tls)?
        .with_client_cert_verifier(Arc::new(clients::ClientVerifierIgnoringExpiry { strict }))
        .with_single_cert(
            vec![leaf, shown.certificate.clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )
        .map_err(tls)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Sessions last for weeks and are never resumed; tickets would cost two messages and some memory per
    // handshake.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// Whether a certificate can be issued for this text: a host name or an address.
pub fn is_certificate_name(text: &str) -> bool {
    ServerName::try_from(text).is_ok()
}

/// The agent that a certificate of ours names. `None`: it is a server's, for example.
pub fn agent_of(certificate: &CertificateDer<'_>) -> Option<AgentId> {
    // The name of a server reads as an agent's id, too.
    if server_of(certificate).is_some() {
        return None;
    }
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    parsed.subject().iter_common_name().next()?.as_str().ok()?.parse().ok()
}

/// The validity period of a certificate, in milliseconds since 1970.
pub fn validity(certificate: &CertificateDer<'_>) -> Option<(i64, i64)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let validity = parsed.validity();
    Some((
        validity.not_before.timestamp().checked_mul(1000)?,
        validity.not_after.timestamp().checked_mul(1000)?,
    ))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn valid_for_years(params: &mut CertificateParams, years: i32) {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let (year, month) =
        (i32::from(today.year()), u8::try_from(today.month()).expect("a month has one digit or two"));
    // From the first day of the previous month, so that a host whose clock is a little behind does not refuse
    // it.
    let (from_year, from_month) = if month == 1 { (year - 1, 12) } else { (year, month - 1) };
    params.not_before = rcgen::date_time_ymd(from_year, from_month, 1);
    params.not_after = rcgen::date_time_ymd(year + years, month, 1);
}

fn read(path: &Path) -> Result<Vec<u8>, PkiError> {
    std::fs::read(path).map_err(|source| PkiError::File { doing: "reading", path: path.to_owned(), source })
}

/// Writes a file that only its owner may read, atomically.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), PkiError> {
    let write = || -> io::Result<()> {
        let draft = path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&draft, path)
    };
    write().map_err(|source| PkiError::File { doing: "writing", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(60);

    fn request() -> Vec<u8> {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(Vec::new()).expect("no names");
        params.serialize_request(&key).expect("a request").der().to_vec()
    }

    fn open(folder: &Path, decided: Option<CaPins>) -> Ca {
        Ca::open(folder, LIFE, CaStart::AfterHosts(0), decided).expect("a CA")
    }

    #[test]
    fn a_successor_signs_at_once_and_replaces_the_ca_that_is_retired() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let agent: AgentId = "a1".parse().expect("an id");
        let ca = open(folder.path(), None);
        let first = ca.pin();
        let signed = ca.sign_agent(&request(), &agent, 1_700_000_000_123).expect("signed");
        assert_eq!(
            (signed.ca, signed.issued_at, signed.expires_at),
            (first, 1_700_000_000_123, 1_700_000_060_000)
        );
        let until = validity(&signed.certificate).map(|(_, until)| until);
        assert_eq!(until, Some(signed.expires_at));
        assert_eq!(agent_of(&signed.certificate), Some(agent.clone()));
        assert!(ca.prepare_retirement().expect("no error").is_none(), "there is no successor");

        let prepared = ca.prepare_successor().expect("no error").expect("a successor");
        let pins = prepared.pins();
        ca.adopt(prepared).expect("adopted");
        assert!(ca.prepare_successor().expect("no error").is_none(), "one successor at a time");
        let second = ca.next_pin().expect("a successor");
        assert_eq!(
            (ca.pin(), ca.certificates().len()),
            (first, 2),
            "the old CA is shown until it is retired"
        );
        assert_eq!(ca.sign_agent(&request(), &agent, 0).expect("signed").ca, second);

        let ca = open(folder.path(), Some(pins));
        assert_eq!((ca.pin(), ca.next_pin()), (first, Some(second)), "a restart changes nothing");
        let prepared = ca.prepare_retirement().expect("no error").expect("a successor");
        let pins = prepared.pins();
        ca.adopt(prepared).expect("adopted");
        assert_eq!((ca.pin(), ca.next_pin(), ca.certificates().len()), (second, None, 1));
        let ca = open(folder.path(), Some(pins));
        assert_eq!((ca.pin(), ca.next_pin()), (second, None));
    }

    #[test]
    fn files_of_a_successor_that_was_not_decided_on_are_discarded_at_the_start() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let ca = open(folder.path(), None);
        let decided = ca.pins();
        ca.prepare_successor().expect("no error").expect("a successor");
        let ca = open(folder.path(), Some(decided));
        assert_eq!(ca.pins(), decided);
        assert!(!folder.path().join("ca.next.cert.der").exists());
        let prepared = ca.prepare_successor().expect("no error").expect("another successor");
        ca.adopt(prepared).expect("adopted");
    }

    /// The key is moved before the certificate; the server may end before, in between or after.
    #[test]
    fn files_of_a_retirement_that_was_decided_on_are_moved_at_the_start() {
        for moved in [&[][..], &["key.pem"], &["key.pem", "cert.der"]] {
            let folder = tempfile::tempdir().expect("a temp dir");
            let ca = open(folder.path(), None);
            let prepared = ca.prepare_successor().expect("no error").expect("a successor");
            ca.adopt(prepared).expect("adopted");
            let decided = ca.prepare_retirement().expect("no error").expect("a successor").pins();
            for file in moved {
                let path = |name: &str| folder.path().join(format!("{name}.{file}"));
                std::fs::rename(path("ca.next"), path("ca")).expect("our own folder");
            }
            let ca = open(folder.path(), Some(decided));
            assert_eq!(ca.pins(), decided, "{moved:?}");
            ca.sign_agent(&request(), &"a1".parse().expect("an id"), 0).expect("key and certificate fit");
        }
    }
}
