//! The CA and its successor as files in the data folder, where the store is embedded.
//!
//! The files of the CA that the server presents are `ca.*`. Those of its successor, while there is one, are
//! `ca.next.*`. A certificate is written after its key and moved after it: a successor's certificate without
//! a key means that a move was interrupted, and the move is finished.

use super::authority::Authority;
use super::{PkiError, read, write_private};
use procfleet_store::CaPins;
use rcgen::KeyPair;
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::pki_types::CertificateDer;

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

/// Path of the private key of the current CA.
pub(super) fn key(folder: &Path) -> PathBuf {
    AuthoritySlot::Present.files(folder).0
}

/// `None`: there is no certificate.
pub(super) fn load(folder: &Path, slot: AuthoritySlot) -> Result<Option<Authority>, PkiError> {
    let (key, certificate) = slot.files(folder);
    if !certificate.exists() {
        return Ok(None);
    }
    // Without the parser's errors: details of a private key do not belong in a log.
    let pair = String::from_utf8(read(&key)?).ok().and_then(|text| KeyPair::from_pem(&text).ok());
    let reason = "it holds no private key in PEM";
    let pair = pair.ok_or(PkiError::Damaged { path: key, reason })?;
    let reason = "it holds no certificate of a CA";
    let authority = Authority::new(pair, CertificateDer::from(read(&certificate)?));
    authority.map(Some).map_err(|_| PkiError::Damaged { path: certificate, reason })
}

pub(super) fn make(folder: &Path, slot: AuthoritySlot) -> Result<Authority, PkiError> {
    let (key, certificate) = slot.files(folder);
    let authority = Authority::generate()?;
    // The certificate is written last: while it is missing, the CA does not exist yet.
    write_private(&key, authority.key().serialize_pem().as_bytes())?;
    write_private(&certificate, &authority.certificate)?;
    Ok(authority)
}

/// Adapts the files to the decision of the store: finishes a retirement, and discards a successor that was
/// never decided on. All other files are left alone.
pub(super) fn follow(folder: &Path, decided: CaPins) -> Result<(), PkiError> {
    let pin = |slot| Ok::<_, PkiError>(load(folder, slot)?.map(|authority| authority.pin()));
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

/// Writes the certificate of a CA whose key is in the store, for clients that trust it (`--ca`). Files of a
/// CA from before its key was in the store are left as they are: they belong together.
pub(super) fn publish(folder: &Path, current: &CertificateDer<'_>) -> Result<(), PkiError> {
    let path = certificate(folder);
    let is_written = || std::fs::read(&path).is_ok_and(|bytes| bytes == current.as_ref());
    if key(folder).exists() || is_written() { Ok(()) } else { write_private(&path, current) }
}

/// The pin of the certificate in a data folder, with or without its key. `None`: there is none.
pub(super) fn published_pin(folder: &Path) -> Result<Option<[u8; 32]>, PkiError> {
    let path = certificate(folder);
    match path.exists() {
        true => Ok(Some(crate::secret::hash(&read(&path)?))),
        false => Ok(None),
    }
}
