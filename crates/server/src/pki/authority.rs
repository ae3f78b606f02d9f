//! One CA: its key and certificate, as files in the data folder.
//!
//! The files of the CA that the server presents are `ca.*`. Those of its successor, while there is one, are
//! `ca.next.*`. A certificate is written after its key and moved after it: a successor's certificate without
//! a key means that a move was interrupted, and the move is finished.

use super::{PkiError, read, read_text, valid_for_years, write_private};
use procfleet_proto::link::token::hex;
use procfleet_store::CaPins;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::pki_types::CertificateDer;

const CA_YEARS: i32 = 30;

pub(super) struct Authority {
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) certificate: CertificateDer<'static>,
}

/// The current CA or its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthoritySlot {
    Present,
    Next,
}

impl AuthoritySlot {
    fn files(self, folder: &Path) -> (PathBuf, PathBuf) {
        let name = match self {
            AuthoritySlot::Present => "ca",
            AuthoritySlot::Next => "ca.next",
        };
        (folder.join(format!("{name}.key.pem")), folder.join(format!("{name}.cert.der")))
    }
}

/// Path of the certificate of the current CA.
pub(super) fn certificate(folder: &Path) -> PathBuf {
    AuthoritySlot::Present.files(folder).1
}

impl Authority {
    /// `None`: there is no certificate.
    pub(super) fn read(folder: &Path, slot: AuthoritySlot) -> Result<Option<Authority>, PkiError> {
        let (key, certificate) = slot.files(folder);
        if !certificate.exists() {
            return Ok(None);
        }
        let key = KeyPair::from_pem(&read_text(&key)?)?;
        let certificate = CertificateDer::from(read(&certificate)?);
        Ok(Some(Authority { issuer: Issuer::from_ca_cert_der(&certificate, key)?, certificate }))
    }

    pub(super) fn make(folder: &Path, slot: AuthoritySlot) -> Result<Authority, PkiError> {
        let (key_path, certificate_path) = slot.files(folder);
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Each CA has its own name, so that a certificate shows which CA signed it.
        let name = format!("procfleet CA {}", hex(&crate::secret::random::<4>()));
        params.distinguished_name.push(DnType::CommonName, name);
        valid_for_years(&mut params, CA_YEARS);
        let certificate = params.self_signed(&key)?.der().clone();
        // The certificate is written last: while it is missing, the CA does not exist yet.
        write_private(&key_path, key.serialize_pem().as_bytes())?;
        write_private(&certificate_path, &certificate)?;
        Ok(Authority { issuer: Issuer::from_ca_cert_der(&certificate, key)?, certificate })
    }

    /// The hash that join tokens pin.
    pub(super) fn pin(&self) -> [u8; 32] {
        crate::secret::hash(&self.certificate)
    }
}

/// Adapts the files to the decision of the store: finishes a retirement, and discards a successor that was
/// never decided on. All other files are left alone.
pub(super) fn follow(folder: &Path, decided: CaPins) -> Result<(), PkiError> {
    let pin = |slot| Ok::<_, PkiError>(Authority::read(folder, slot)?.map(|authority| authority.pin()));
    let (current, next) = (pin(AuthoritySlot::Present)?, pin(AuthoritySlot::Next)?);
    if next == Some(decided.current) {
        return succeed(folder);
    }
    match current == Some(decided.current) && next.is_some() && decided.next.is_none() {
        true => discard_successor(folder),
        false => Ok(()),
    }
}

/// Removes the files of a successor, the certificate first: without it there is no successor.
pub(super) fn discard_successor(folder: &Path) -> Result<(), PkiError> {
    let (key, certificate) = AuthoritySlot::Next.files(folder);
    for path in [certificate, key] {
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(PkiError::File { doing: "removing", path, source });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// The successor replaces the current CA, whose key is deleted by that.
fn succeed(folder: &Path) -> Result<(), PkiError> {
    let (old, new) = (AuthoritySlot::Present.files(folder), AuthoritySlot::Next.files(folder));
    for (from, to) in [(new.0, old.0), (new.1, old.1)] {
        if from.exists() {
            std::fs::rename(&from, &to).map_err(|source| PkiError::File {
                doing: "moving",
                path: from,
                source,
            })?;
        }
    }
    Ok(())
}

/// Finishes a move that was interrupted.
pub(super) fn finish_interrupted_move(folder: &Path) -> Result<(), PkiError> {
    let (key, certificate) = AuthoritySlot::Next.files(folder);
    if certificate.exists() && !key.exists() { succeed(folder) } else { Ok(()) }
}
