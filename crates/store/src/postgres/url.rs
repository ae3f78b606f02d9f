//! `postgres://…`: where the store is, and how its connections are secured.
//!
//! The parameters mean what libpq's mean. tokio-postgres does not know `sslmode=verify-…`, `sslrootcert` and
//! `target_session_attrs=primary`, so these are taken out of the URL here.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(super) type Connector = MakeRustlsConnect;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A parsed URL of a PostgreSQL store.
#[derive(Clone, PartialEq)]
pub struct StoreUrl {
    config: Box<Config>,
    tls: Tls,
    /// For messages: without the password.
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tls {
    None,
    /// The chain, and the name only with `verify-full`.
    Verify {
        roots: PathBuf,
        name: NameCheck,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameCheck {
    Checked,
    Ignored,
}

/// Why a URL cannot be used. It names the parameter.
#[derive(Debug, thiserror::Error)]
pub enum UrlFault {
    #[error("it does not begin with postgres:// or postgresql://")]
    Scheme,
    #[error("{0}")]
    Syntax(String),
    #[error(
        "sslmode={0}: use disable, verify-ca or verify-full; procfleet never sends the database's password over a connection that anybody may answer"
    )]
    SslMode(String),
    #[error(
        "sslmode is missing and {0} is not this machine: use sslmode=verify-full&sslrootcert=FILE, or sslmode=disable on a network that nobody else can reach"
    )]
    SslModeMissing(String),
    #[error("sslmode={0} needs sslrootcert=FILE, the certificates of the CAs that may sign the database's")]
    NoRoots(String),
    #[error(
        "sslrootcert=system is not supported: name the file with the CAs of the system (Debian: /etc/ssl/certs/ca-certificates.crt)"
    )]
    SystemRoots,
    #[error("sslrootcert={}: {reason}", path.display())]
    Roots { path: PathBuf, reason: String },
    #[error("{0} is not supported here")]
    Parameter(String),
}

impl FromStr for StoreUrl {
    type Err = UrlFault;

    fn from_str(text: &str) -> Result<StoreUrl, UrlFault> {
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(UrlFault::Scheme);
        }
        let (main, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut mode, mut roots) = (None, None);
        let mut rest: Vec<String> = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match (key, value) {
                ("sslmode", value) => mode = Some(value.to_owned()),
                ("sslrootcert", "system") => return Err(UrlFault::SystemRoots),
                ("sslrootcert", value) => roots = Some(PathBuf::from(decoded(value)?)),
                ("target_session_attrs", "primary") => {
                    rest.push("target_session_attrs=read-write".to_owned())
                }
                ("sslcert" | "sslkey" | "sslpassword" | "service" | "passfile", _) => {
                    return Err(UrlFault::Parameter(key.to_owned()));
                }
                _ => rest.push(parameter.to_owned()),
            }
        }
        let plain = if rest.is_empty() { main.to_owned() } else { format!("{main}?{}", rest.join("&")) };
        let mut config: Config = plain
            .parse()
            .map_err(|error: tokio_postgres::Error| UrlFault::Syntax(super::fault::chain(&error)))?;
        let tls = tls(mode.as_deref(), roots, &config)?;
        config.ssl_mode(if tls == Tls::None { SslMode::Disable } else { SslMode::Require });
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("procfleet");
        }
        if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            // Several hosts are a primary and its standbys.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
            config.load_balance_hosts(LoadBalanceHosts::Disable);
        }
        config
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(5))
            .keepalives_interval(Duration::from_secs(3));
        config.keepalives_retries(3).tcp_user_timeout(Duration::from_secs(15));
        let name = name(&config);
        Ok(StoreUrl { config: Box::new(config), tls, name })
    }
}

impl StoreUrl {
    /// For messages and logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn connector(&self) -> Result<Connector, UrlFault> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring has the default protocol versions");
        let config = match &self.tls {
            // Never used: sslmode=disable sends no TLS request.
            Tls::None => builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
            Tls::Verify { roots: path, name } => {
                let roots = Arc::new(read_roots(path)?);
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(|error| UrlFault::Roots { path: path.clone(), reason: error.to_string() })?;
                let verifier = Arc::new(ChainVerifier { verifier, name: *name });
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            }
        };
        Ok(MakeRustlsConnect::new(config))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreUrl").field("name", &self.name).field("tls", &self.tls).finish_non_exhaustive()
    }
}

fn tls(mode: Option<&str>, roots: Option<PathBuf>, config: &Config) -> Result<Tls, UrlFault> {
    let verify = |mode: &str, name| match roots.clone() {
        Some(roots) => Ok(Tls::Verify { roots, name }),
        None => Err(UrlFault::NoRoots(mode.to_owned())),
    };
    match mode {
        Some("disable") => Ok(Tls::None),
        Some("verify-full") => verify("verify-full", NameCheck::Checked),
        Some("verify-ca") => verify("verify-ca", NameCheck::Ignored),
        // As libpq: with root certificates, `require` is verify-ca.
        Some("require") if roots.is_some() => verify("require", NameCheck::Ignored),
        Some(other) => Err(UrlFault::SslMode(other.to_owned())),
        None => match config.get_hosts().iter().find(|host| !is_local(host)) {
            Some(Host::Tcp(name)) => Err(UrlFault::SslModeMissing(name.clone())),
            Some(Host::Unix(_)) | None => Ok(Tls::None),
        },
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }
    }
}

fn read_roots(path: &Path) -> Result<RootCertStore, UrlFault> {
    let failed = |reason: String| UrlFault::Roots { path: path.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        roots.add(certificate).map_err(|error| failed(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(failed("it has no certificate in PEM form".to_owned())),
        false => Ok(roots),
    }
}

/// `%2F` and the like.
fn decoded(text: &str) -> Result<String, UrlFault> {
    let bad = || UrlFault::Syntax(format!("{text} has a malformed % sequence"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next().ok_or_else(bad)?, rest.next().ok_or_else(bad)?];
        let digits = std::str::from_utf8(&digits).map_err(|_| bad())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

fn name(config: &Config) -> String {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate().map(|(index, host)| {
        let host = match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        match ports.get(index).or(ports.first()) {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    });
    let hosts = hosts.collect::<Vec<_>>().join(",");
    format!("postgres://{hosts}/{}", config.get_dbname().or(config.get_user()).unwrap_or_default())
}

/// Verifies the chain, and the name unless it is ignored.
#[derive(Debug)]
struct ChainVerifier {
    verifier: Arc<WebPkiServerVerifier>,
    name: NameCheck,
}

impl ServerCertVerifier for ChainVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified =
            self.verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match (verified, self.name) {
            // The chain is verified before the name.
            (
                Err(rustls::Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                )),
                NameCheck::Ignored,
            ) => Ok(ServerCertVerified::assertion()),
            (verified, NameCheck::Checked | NameCheck::Ignored) => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_mean_what_they_mean_to_libpq() {
        let check = |text: &str, expected: &str| {
            let found = match text.parse::<StoreUrl>() {
                Ok(url) => format!(
                    "{} {:?} {:?}",
                    url.name,
                    url.config.get_ssl_mode(),
                    url.config.get_target_session_attrs()
                ),
                Err(fault) => fault.to_string(),
            };
            assert!(found.starts_with(expected), "{text}: {found}");
        };
        check("mysql://db/x", "it does not begin with postgres://");
        check("postgres://p:secret@127.0.0.1/fleet", "postgres://127.0.0.1:5432/fleet Disable Any");
        check("postgres://p@localhost:5433/fleet", "postgres://localhost:5433/fleet Disable Any");
        check("postgres://p@%2Frun%2Fpostgresql/fleet", "postgres:///run/postgresql:5432/fleet Disable Any");
        check("postgres://p@db1/fleet", "sslmode is missing and db1 is not this machine");
        check("postgres://p@db1/fleet?sslmode=prefer", "sslmode=prefer: use");
        check("postgres://p@db1/fleet?sslmode=require", "sslmode=require: use");
        check("postgres://p@db1/fleet?sslmode=require&sslrootcert=x", "postgres://db1:5432/fleet Require");
        check("postgres://p@db1/fleet?sslmode=verify-full", "sslmode=verify-full needs sslrootcert");
        check(
            "postgres://p@db1/fleet?sslmode=verify-full&sslrootcert=system",
            "sslrootcert=system is not supported: name",
        );
        check("postgres://p@db1/fleet?sslmode=disable", "postgres://db1:5432/fleet Disable Any");
        check(
            "postgres://p@db1,db2/fleet?sslmode=disable",
            "postgres://db1:5432,db2:5432/fleet Disable ReadWrite",
        );
        check(
            "postgres://p@db1/fleet?sslmode=disable&target_session_attrs=primary",
            "postgres://db1:5432/fleet Disable ReadWrite",
        );
        check("postgres://p@db1/fleet?sslkey=x", "sslkey is not supported here");
        check("postgres://p@db1/fleet?sslmode=verify-ca&sslrootcert=%zz", "%zz has a malformed % sequence");
    }

    #[test]
    fn a_password_is_not_in_the_debug_output() {
        let url: StoreUrl = "postgres://p:secret@127.0.0.1/fleet".parse().expect("a url");
        assert!(!format!("{url:?}").contains("secret"));
    }
}
