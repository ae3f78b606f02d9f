//! A CA and its successor with their keys, on their way from files or the store into use.

use super::authority::Authority;
use super::files::{self, AuthoritySlot};
use super::{CurrentCa, PkiError};
use crate::seal::{OpenFault, Sealer};
use crate::secret;
use procfleet_proto::link::token::hex;
use procfleet_store::{CaPins, SealedCa, Sealing};
use rcgen::KeyPair;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::rustls::pki_types::CertificateDer;

pub struct CaKeys {
    pub(super) shown: Arc<Authority>,
    pub(super) next: Option<Arc<Authority>>,
}

impl CaKeys {
    /// A new CA.
    pub fn generate() -> Result<CaKeys, PkiError> {
        Ok(CaKeys { shown: Arc::new(Authority::generate()?), next: None })
    }

    /// Reads the files in a data folder and adapts them to the decision of the store, if there is one.
    /// `None`: there is no key.
    pub fn from_files(folder: &Path, decided: Option<CaPins>) -> Result<Option<CaKeys>, PkiError> {
        if !files::key(folder).exists() {
            return Ok(None);
        }
        files::finish_interrupted_move(folder)?;
        if let Some(decided) = decided {
            files::follow(folder, decided)?;
        }
        let Some(shown) = files::load(folder, AuthoritySlot::Present)? else { return Ok(None) };
        let next = files::load(folder, AuthoritySlot::Next)?;
        Ok(Some(CaKeys { shown: Arc::new(shown), next: next.map(Arc::new) }))
    }

    /// Opens the CAs that the pins name.
    pub fn open(sealer: &Sealer, pins: CaPins, stored: &[SealedCa]) -> Result<CaKeys, PkiError> {
        let open = |pin: [u8; 32]| {
            let failed = |fault| PkiError::Sealed { ca: hex(&pin), fault };
            let ca =
                stored.iter().find(|ca| ca.sha256 == pin).ok_or(PkiError::NotStored { ca: hex(&pin) })?;
            if secret::hash(&ca.certificate) != pin {
                return Err(failed(OpenFault::Altered));
            }
            let key = sealer.open_ca_key(pin, &ca.sealed_key).map_err(failed)?;
            let certificate = CertificateDer::from(ca.certificate.clone());
            Authority::new(KeyPair::try_from(key)?, certificate).map(Arc::new)
        };
        Ok(CaKeys { shown: open(pins.current)?, next: pins.next.map(open).transpose()? })
    }

    pub fn pins(&self) -> CaPins {
        CaPins { current: self.shown.pin(), next: self.next.as_ref().map(|next| next.pin()) }
    }

    /// Seals all keys under the first seal key.
    pub fn seal(&self, sealer: &Sealer) -> Sealing {
        sealing(sealer, std::iter::once(&self.shown).chain(&self.next))
    }

    pub(super) fn ready(self) -> Result<CurrentCa, PkiError> {
        CurrentCa::new(self.shown, self.next)
    }
}

impl std::fmt::Debug for CaKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CaKeys").field(&self.pins()).finish()
    }
}

pub(super) fn sealing<'a>(sealer: &Sealer, authorities: impl Iterator<Item = &'a Arc<Authority>>) -> Sealing {
    let cas = authorities.map(|authority| {
        let sha256 = authority.pin();
        SealedCa {
            sha256,
            certificate: authority.certificate.to_vec(),
            sealed_key: sealer.seal_ca_key(sha256, authority.key().serialized_der()),
        }
    });
    Sealing { key: sealer.keys().first().to_string(), cas: cas.collect() }
}
