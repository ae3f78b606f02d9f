//! The built-in CA: made on the first start, it signs the link's own certificate and each agent's.
//!
//! Keys are PEM files in the data folder, readable by the owner only. Agents do not check the server's address but
//! its name inside this CA, so a server may move.

use procfleet_core::id::AgentId;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};
use tokio_rustls::rustls::server::WebPkiClientVerifier;

/// The name that agents expect in the server's certificate.
pub const SERVER_NAME: &str = "procfleet-server";
const CA_YEARS: i32 = 30;
const LEAF_YEARS: i32 = 10;

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("{doing} {path}")]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("making or reading a certificate of the built-in CA")]
    Certificate(#[from] rcgen::Error),
    #[error("preparing TLS for the agent link")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the certificate request cannot be used")]
    Request(#[source] rcgen::Error),
}

/// The CA's key and certificate.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ca")
    }
}

impl Ca {
    /// Reads the CA from `folder`, or makes it there.
    pub fn open(folder: &Path) -> Result<Ca, PkiError> {
        let (key_path, cert_path) = (folder.join("ca.key.pem"), folder.join("ca.cert.der"));
        if !cert_path.exists() {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new(Vec::new())?;
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            params.distinguished_name.push(DnType::CommonName, "procfleet CA");
            valid_for(&mut params, CA_YEARS);
            let certificate = params.self_signed(&key)?;
            // The certificate is written last: while it is missing, the CA does not exist yet.
            write_private(&key_path, key.serialize_pem().as_bytes())?;
            write_private(&cert_path, certificate.der())?;
        }
        let key = KeyPair::from_pem(&read_text(&key_path)?)?;
        let certificate = CertificateDer::from(read(&cert_path)?);
        Ok(Ca { issuer: Issuer::from_ca_cert_der(&certificate, key)?, certificate })
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// What join tokens pin.
    pub fn pin(&self) -> [u8; 32] {
        crate::secret::hash(&self.certificate)
    }

    /// A certificate for an agent's own key. Only the key is taken from the request: who the agent is, we say.
    pub fn sign_agent(&self, request: &[u8], agent: &AgentId) -> Result<CertificateDer<'static>, PkiError> {
        let request = CertificateSigningRequestDer::from(request);
        let mut csr = CertificateSigningRequestParams::from_der(&request).map_err(PkiError::Request)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, agent.as_str());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        valid_for(&mut params, LEAF_YEARS);
        csr.params = params;
        Ok(csr.signed_by(&self.issuer)?.der().clone())
    }

    /// TLS for the link. A client without a certificate gets as far as enrolment; one of another CA gets nowhere.
    pub fn link_tls(&self) -> Result<Arc<rustls::ServerConfig>, PkiError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, SERVER_NAME);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        valid_for(&mut params, LEAF_YEARS);
        let leaf = params.signed_by(&key, &self.issuer)?.der().clone();
        let tls = |error: rustls::Error| PkiError::Tls(Box::new(error));

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(tls)?;
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| PkiError::Tls(Box::new(error)))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(tls)?
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![leaf, self.certificate.clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )
            .map_err(tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Whom a certificate of ours names.
pub fn agent_of(certificate: &CertificateDer<'_>) -> Option<AgentId> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    parsed.subject().iter_common_name().next()?.as_str().ok()?.parse().ok()
}

fn valid_for(params: &mut CertificateParams, years: i32) {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let (year, month) =
        (i32::from(today.year()), u8::try_from(today.month()).expect("a month has one digit or two"));
    // From the first of the month before, so that a host whose clock is a little behind does not refuse it.
    let (from_year, from_month) = if month == 1 { (year - 1, 12) } else { (year, month - 1) };
    params.not_before = rcgen::date_time_ymd(from_year, from_month, 1);
    params.not_after = rcgen::date_time_ymd(year + years, month, 1);
}

fn read(path: &Path) -> Result<Vec<u8>, PkiError> {
    std::fs::read(path).map_err(|source| PkiError::File { doing: "reading", path: path.to_owned(), source })
}

fn read_text(path: &Path) -> Result<String, PkiError> {
    std::fs::read_to_string(path).map_err(|source| PkiError::File {
        doing: "reading",
        path: path.to_owned(),
        source,
    })
}

/// Writes a file that only its owner may read, whole or not at all.
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
