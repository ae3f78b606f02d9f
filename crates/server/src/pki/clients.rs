//! Client certificates that the link accepts: those of our CAs, whatever the server's own clock says.
//!
//! An agent that was off for longer than the lifetime of its certificate must be able to ask for a new one,
//! which it can do only after the handshake. The session decides what an agent with an expired certificate
//! may do, by the store's time. A certificate that is not valid yet was issued by a server whose clock is
//! right, or by this server before its clock was set back.

use std::sync::Arc;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, SignatureScheme,
};

#[derive(Debug)]
pub(super) struct ClientVerifierIgnoringExpiry {
    pub(super) strict: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for ClientVerifierIgnoringExpiry {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        match self.strict.verify_client_cert(end_entity, intermediates, now) {
            Err(TlsError::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
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

#[cfg(test)]
mod tests {
    use super::super::{Ca, CaStart};
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::time::Duration;
    use tokio_rustls::rustls::RootCertStore;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::server::WebPkiClientVerifier;

    const HOUR: i64 = 3_600_000;

    fn open(folder: &std::path::Path) -> Ca {
        Ca::open(folder, Duration::from_secs(86_400), CaStart::AfterHosts(0), None).expect("a CA")
    }

    fn verifier(ca: &Ca) -> ClientVerifierIgnoringExpiry {
        let mut roots = RootCertStore::empty();
        ca.certificates().into_iter().for_each(|ca| roots.add(ca).expect("a CA"));
        let provider = Arc::new(ring::default_provider());
        let strict = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        ClientVerifierIgnoringExpiry { strict: strict.expect("a verifier") }
    }

    #[test]
    fn the_clock_of_the_server_does_not_matter() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temp dir"));
        let [own, other] = [0, 1].map(|index| open(folders[index].path()));
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(Vec::new()).expect("no names");
        let request = params.serialize_request(&key).expect("a request");
        let agent = "a1".parse().expect("an id");
        let now = jiff::Timestamp::now().as_millisecond();
        // Hours from the certificate's issue to the time of the server's clock.
        for passed in [-48, -2, 0, 12, 48] {
            let issued = now - passed * HOUR;
            for (ca, is_accepted) in [(&own, true), (&other, false)] {
                let signed = ca.sign_agent(request.der(), &agent, issued).expect("signed");
                let verified = verifier(&own).verify_client_cert(&signed.certificate, &[], UnixTime::now());
                assert_eq!(verified.is_ok(), is_accepted, "{passed} hours: {:?}", verified.err());
            }
        }
    }
}
