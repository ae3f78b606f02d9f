//! Client certificates that the link accepts: those of our CAs, also expired ones.
//!
//! An agent that was off for longer than the lifetime of its certificate must be able to ask for a new one,
//! which it can do only after the handshake. The session decides what an agent with an expired certificate
//! may do.

use std::sync::Arc;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, SignatureScheme,
};

#[derive(Debug)]
pub(super) struct AlsoExpired {
    pub(super) strict: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for AlsoExpired {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        match self.strict.verify_client_cert(end_entity, intermediates, now) {
            Err(TlsError::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            )) => {
                let end = super::validity(end_entity)
                    .and_then(|(_, end)| u64::try_from(end / 1000).ok())
                    .ok_or(TlsError::InvalidCertificate(CertificateError::BadEncoding))?;
                let last = UnixTime::since_unix_epoch(std::time::Duration::from_secs(end));
                self.strict.verify_client_cert(end_entity, intermediates, last)
            }
            other => other,
        }
    }

    fn client_auth_mandatory(&self) -> bool {
        self.strict.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.strict.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.strict.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.strict.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}
