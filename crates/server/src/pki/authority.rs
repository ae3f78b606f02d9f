//! One CA: its key and certificate.

use super::{PkiError, valid_for_years};
use procfleet_proto::link::token::hex;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tokio_rustls::rustls::pki_types::CertificateDer;

const CA_YEARS: i32 = 30;

pub(super) struct Authority {
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) certificate: CertificateDer<'static>,
}

impl Authority {
    pub(super) fn new(key: KeyPair, certificate: CertificateDer<'static>) -> Result<Authority, PkiError> {
        Ok(Authority { issuer: Issuer::from_ca_cert_der(&certificate, key)?, certificate })
    }

    pub(super) fn generate() -> Result<Authority, PkiError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Each CA has its own name, so that a certificate shows which CA signed it.
        let name = format!("procfleet CA {}", hex(&crate::secret::random::<4>()));
        params.distinguished_name.push(DnType::CommonName, name);
        valid_for_years(&mut params, CA_YEARS);
        let certificate = params.self_signed(&key)?.der().clone();
        Authority::new(key, certificate)
    }

    /// The hash that join tokens pin.
    pub(super) fn pin(&self) -> [u8; 32] {
        crate::secret::hash(&self.certificate)
    }

    pub(super) fn key(&self) -> &KeyPair {
        self.issuer.key()
    }
}
