//! TLS to the server: the trusted certificates, and a transport for ureq, which does not support a custom
//! verifier.
//!
//! With a pin (from `admin.json`) the server must present a certificate with that SHA-256. If it is the
//! server's own certificate, the handshake proves its key and nothing else is checked. If it is the
//! certificate of procfleet's built-in CA, the server's certificate must be signed by that CA and have the
//! name that only servers have there, so a server may move. Without a pin the certificate must be signed by a
//! CA of `--ca`, or else by a CA of this system, and be valid for the host in the url. The CAs of this system
//! are in the file that `SSL_CERT_FILE` names, as for OpenSSL, or else in the first trust store found.

use crate::error::Error;
use procfleet_proto::link::token::hex;
use ring::digest::{SHA256, digest};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
    StreamOwned,
};
use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

/// The name inside the built-in CA that a server must prove.
const SERVER_NAME: &str = "procfleet-server";
/// Trust stores of Debian, Red Hat, SUSE and Alpine.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The trusted certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The CAs of this system. `Some`: the file that `SSL_CERT_FILE` names.
    System(Option<PathBuf>),
    /// The CAs in this file.
    Ca(PathBuf),
    /// The SHA-256 of the server's certificate or of its CA's.
    Pin([u8; 32]),
}

impl Trust {
    /// A pin as `admin.json` has it: 64 hexadecimal digits.
    pub(crate) fn pin(text: &str) -> Option<Trust> {
        let digits = text.as_bytes();
        let mut pin = [0; 32];
        if digits.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (byte, pair) in pin.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Trust::Pin(pin))
    }
}

/// Wraps connections to https URLs in TLS.
pub(crate) struct TlsConnector(Arc<ClientConfig>);

impl TlsConnector {
    pub(crate) fn new(trust: &Trust) -> Result<TlsConnector, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("ring knows TLS 1.2 and 1.3");
        let config = match trust {
            Trust::Pin(pin) => {
                let verifier = Arc::new(Pinned { pin: *pin, provider });
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            }
            Trust::Ca(file) => {
                builder.with_root_certificates(named_roots("--ca", file)?).with_no_client_auth()
            }
            Trust::System(Some(file)) => {
                builder.with_root_certificates(named_roots("SSL_CERT_FILE", file)?).with_no_client_auth()
            }
            Trust::System(None) => builder.with_root_certificates(system_roots()).with_no_client_auth(),
        };
        Ok(TlsConnector(Arc::new(config)))
    }
}

/// A system without a trust store trusts no CA, and the handshake fails.
fn system_roots() -> RootCertStore {
    let found = SYSTEM_ROOTS.iter().find_map(|file| roots(Path::new(file)).ok());
    found.unwrap_or_else(RootCertStore::empty)
}

/// The certificates of a file that was given by this flag or variable. If the file is unusable there is no
/// fallback: no other CAs than the named ones are trusted.
fn named_roots(given_by: &str, file: &Path) -> Result<RootCertStore, Error> {
    roots(file).map_err(|why| Error::Usage(format!("{given_by} {}: {why}", file.display())))
}

/// The certificates of a file: PEM, or one in DER, as the server keeps its CA's.
fn roots(file: &Path) -> Result<RootCertStore, String> {
    let bytes = std::fs::read(file).map_err(|fault| fault.to_string())?;
    let pem: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = match pem {
        Ok(certificates) if certificates.is_empty() => vec![CertificateDer::from(bytes)],
        Ok(certificates) => certificates,
        Err(fault) => return Err(format!("is not usable PEM: {fault}")),
    };
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(certificates) {
        (0, _) => Err("holds no certificate".to_owned()),
        _ => Ok(roots),
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConnector")
    }
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, TlsTransport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else { return Ok(None) };
        if !details.needs_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| ureq::Error::Tls("the host in the url is no name that a certificate can have"))?;
        let mut conn = ClientConnection::new(self.0.clone(), name)?;
        let mut sock = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        sock.set_timeout(details.timeout);
        conn.complete_io(&mut sock)?;
        let buffers =
            LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(TlsTransport { buffers, stream: StreamOwned { conn, sock } })))
    }
}

pub(crate) struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsTransport")
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        self.stream.write_all(&self.buffers.output()[..amount])?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Pinned {
    pin: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn is_it(&self, certificate: &CertificateDer<'_>) -> bool {
        digest(&SHA256, certificate).as_ref() == self.pin
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        if self.is_it(end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        let Some(ca) = intermediates.iter().find(|certificate| self.is_it(certificate)) else {
            return Err(TlsError::General(format!(
                "the server's certificate is not the one in admin.json (its sha256 is {})",
                hex(digest(&SHA256, end_entity).as_ref())
            )));
        };
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|fault| TlsError::General(fault.to_string()))?;
        let name = ServerName::try_from(SERVER_NAME).expect("a constant name is a good name");
        verifier.verify_server_cert(end_entity, intermediates, &name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
