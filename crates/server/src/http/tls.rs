//! TLS for the API's port: a certificate and a key from files, or a certificate of the built-in CA.
//!
//! Files are loaded again when they change (checked every few seconds) and on SIGHUP. A pair that cannot be
//! used is refused with the reason: at the start the program ends, later the error is logged and the pair
//! before it stays in use. A certificate of the built-in CA is made at each start, and when another CA
//! replaces it.

use crate::config::TlsSource;
use crate::pki::{self, Ca, PkiError, SERVER_NAME};
use crate::secret;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tracing::{error, info};

/// How often the files are checked.
const EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("reading {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not usable: {reason}")]
    Unusable { path: PathBuf, reason: String },
    #[error("the certificate in {path} has expired")]
    Expired { path: PathBuf },
    #[error("making a certificate of the built-in CA for the API")]
    Ca(#[from] PkiError),
    #[error("preparing TLS for the API")]
    Prepare(#[source] rustls::Error),
}

/// The certificate that the port presents, and its source.
#[derive(Clone, Debug)]
pub(crate) struct ApiTls {
    acceptor: Acceptor,
    shown: Arc<CurrentCertificate>,
    source: CertificateSource,
    /// State of the files before they were loaded, so that no change is missed.
    seen: Option<Vec<Seen>>,
}

#[derive(Clone, Debug)]
enum CertificateSource {
    Files { certificate: PathBuf, key: PathBuf },
    BuiltIn { ca: Arc<Ca>, names: Vec<String> },
}

#[derive(Clone)]
struct Acceptor(TlsAcceptor);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

/// The certificate for the next handshake.
#[derive(Debug)]
struct CurrentCertificate(RwLock<Pair>);

#[derive(Clone, Debug)]
struct Pair {
    certified: Arc<CertifiedKey>,
    /// The hash that clients may pin: the SHA-256 of the certificate, or of that of the built-in CA.
    pin: [u8; 32],
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.get().certified)
    }
}

impl CurrentCertificate {
    fn get(&self) -> Pair {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ApiTls {
    /// `listens`: the address of the port.
    pub(crate) fn open(source: TlsSource, ca: &Arc<Ca>, listens: IpAddr) -> Result<ApiTls, TlsError> {
        let source = match source {
            TlsSource::Files { certificate, key } => CertificateSource::Files { certificate, key },
            TlsSource::BuiltIn { mut names } => {
                names.extend(["localhost", "127.0.0.1", "::1", SERVER_NAME].map(str::to_owned));
                if !listens.is_unspecified() {
                    names.push(listens.to_string());
                }
                names.sort();
                names.dedup();
                CertificateSource::BuiltIn { ca: ca.clone(), names }
            }
        };
        let seen = source.look();
        let shown = Arc::new(CurrentCertificate(RwLock::new(source.load()?)));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Prepare)?
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = Acceptor(TlsAcceptor::from(Arc::new(config)));
        Ok(ApiTls { acceptor, shown, source, seen })
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor.0
    }

    /// The hash that clients may pin now.
    pub(crate) fn pin(&self) -> [u8; 32] {
        self.shown.get().pin
    }

    /// Watches the files, or the CA, until the server stops. `changed` gets the new hash that clients may
    /// pin. The SIGHUP handler is installed when the call returns, not only when the future runs.
    pub(crate) fn follow(
        self,
        mut stop: watch::Receiver<bool>,
        changed: impl Fn([u8; 32]),
    ) -> impl Future<Output = ()> {
        let mut wake = ReloadCause::of(&self.source, self.seen.clone());
        async move {
            loop {
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => return,
                    () = wake.next(&self.source) => {}
                }
                match self.source.load() {
                    Ok(pair) => {
                        let pin = pair.pin;
                        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = pair;
                        info!("the API's certificate was replaced");
                        changed(pin);
                    }
                    Err(error) => error!(
                        error = &error as &dyn std::error::Error,
                        "the API's new certificate cannot be used; the one before stays in use. Install a usable certificate and key"
                    ),
                }
            }
        }
    }
}

/// Waits for a reason to load again.
enum ReloadCause {
    Files { seen: Option<Vec<Seen>>, hangup: Option<tokio::signal::unix::Signal> },
    Ca(watch::Receiver<u64>),
}

/// Metadata of a file: device, inode, mtime and size.
type Seen = (u64, u64, i64, i64, u64);

impl ReloadCause {
    fn of(source: &CertificateSource, seen: Option<Vec<Seen>>) -> ReloadCause {
        match source {
            CertificateSource::Files { .. } => {
                ReloadCause::Files { seen, hangup: signal(SignalKind::hangup()).ok() }
            }
            CertificateSource::BuiltIn { ca, .. } => ReloadCause::Ca(ca.changes()),
        }
    }

    async fn next(&mut self, source: &CertificateSource) {
        match self {
            ReloadCause::Ca(changes) => {
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            ReloadCause::Files { seen, hangup } => loop {
                let signalled = async {
                    match hangup {
                        Some(hangup) => _ = hangup.recv().await,
                        None => std::future::pending().await,
                    }
                };
                let signalled = tokio::time::timeout(EVERY, signalled).await.is_ok();
                let now = source.look();
                // While one of the files is missing, it is being replaced.
                if signalled || (now.is_some() && now != *seen) {
                    *seen = now;
                    return;
                }
            },
        }
    }
}

impl CertificateSource {
    fn look(&self) -> Option<Vec<Seen>> {
        let CertificateSource::Files { certificate, key } = self else { return None };
        let seen = |path: &PathBuf| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.dev(), about.ino(), about.mtime(), about.mtime_nsec(), about.len()))
        };
        Some(vec![seen(certificate)?, seen(key)?])
    }

    fn load(&self) -> Result<Pair, TlsError> {
        match self {
            CertificateSource::Files { certificate, key } => load_files(certificate, key),
            CertificateSource::BuiltIn { ca, names } => {
                let (chain, key) = ca.sign_api(names)?;
                let pin = chain.last().map(|ca| secret::hash(ca)).expect("the chain ends with its CA");
                let certified = certify(chain, key).map_err(TlsError::Prepare)?;
                Ok(Pair { certified, pin })
            }
        }
    }
}

fn load_files(certificate_path: &Path, key_path: &Path) -> Result<Pair, TlsError> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|source| TlsError::File { path: path.to_owned(), source });
    let unusable = |path: &Path, reason: String| TlsError::Unusable { path: path.to_owned(), reason };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(&read(certificate_path)?).collect();
    let chain = chain.map_err(|error| unusable(certificate_path, error.to_string()))?;
    let Some(leaf) = chain.first() else {
        return Err(unusable(certificate_path, "it holds no certificate in PEM".to_owned()));
    };
    let (_, until) = pki::validity(leaf)
        .ok_or_else(|| unusable(certificate_path, "its certificate cannot be read".to_owned()))?;
    if until <= jiff::Timestamp::now().as_millisecond() {
        return Err(TlsError::Expired { path: certificate_path.to_owned() });
    }
    // Without the parser's error: details of a private key do not belong in a log.
    let key = PrivateKeyDer::from_pem_slice(&read(key_path)?)
        .map_err(|_| unusable(key_path, "it holds no private key in PEM".to_owned()))?;
    let pin = secret::hash(leaf);
    let certified = certify(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            unusable(key_path, format!("it is not the key of {}", certificate_path.display()))
        }
        error => unusable(key_path, error.to_string()),
    })?;
    Ok(Pair { certified, pin })
}

fn certify(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, rustls::Error> {
    CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider()).map(Arc::new)
}
