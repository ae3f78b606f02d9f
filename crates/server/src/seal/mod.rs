//! Seals private keys that are kept in the store, under keys that are not (ADR 24).
//!
//! All servers of a store share the seal keys, which are files. The first key seals, all of them open: to
//! replace a key, the servers are started with the new and the old one, and everything is sealed again.

mod envelope;
mod key_file;

pub use envelope::{OpenFault, SealKeyId};
pub use key_file::KeyFileFault;

use crate::secret;
use envelope::{SealContext, SealKey};
use procfleet_store::StoreId;
use std::path::{Path, PathBuf};

/// The seal key in the data folder, if the operator names no other.
pub const SEAL_KEY: &str = "seal.key";

/// The purpose of the private key of a CA, in its context. It is stored: never change it.
const CA_KEY: &str = "ca-key";

#[derive(Debug, thiserror::Error)]
#[error("{} is not used as a seal key", path.display())]
pub struct SealKeyError {
    pub path: PathBuf,
    #[source]
    pub fault: KeyFileFault,
}

/// The seal keys of this server. There is at least one.
pub struct SealKeys {
    keys: Vec<SealKey>,
}

/// The files of the seal keys as far as they exist.
#[derive(Debug)]
pub struct FoundKeys {
    keys: Vec<(PathBuf, Option<SealKey>)>,
}

/// Seals and opens the private keys of the CAs of one store.
#[derive(Debug)]
pub struct Sealer {
    keys: SealKeys,
    store: StoreId,
}

impl FoundKeys {
    /// Reads the files. One that exists and cannot be used is an error.
    pub fn read(paths: &[PathBuf]) -> Result<FoundKeys, SealKeyError> {
        let keys = paths.iter().map(|path| match key_file::read(path) {
            Ok(key) => Ok((path.clone(), Some(key))),
            Err(KeyFileFault::Missing) => Ok((path.clone(), None)),
            Err(fault) => Err(SealKeyError { path: path.clone(), fault }),
        });
        Ok(FoundKeys { keys: keys.collect::<Result<_, _>>()? })
    }

    pub fn ids(&self) -> Vec<SealKeyId> {
        self.keys.iter().filter_map(|(_, key)| Some(key.as_ref()?.id)).collect()
    }

    /// The first file that does not exist.
    pub fn missing(&self) -> Option<&Path> {
        self.keys.iter().find(|(_, key)| key.is_none()).map(|(path, _)| path.as_path())
    }

    /// Creates the first file if it does not exist. Returns its path if so.
    pub fn make_first(&mut self) -> Result<Option<PathBuf>, SealKeyError> {
        let Some((path, key @ None)) = self.keys.first_mut() else { return Ok(None) };
        let made = key_file::make(path).map_err(|fault| SealKeyError { path: path.clone(), fault })?;
        *key = Some(made);
        Ok(Some(path.clone()))
    }

    /// All keys, if all files exist.
    pub fn complete(self) -> Result<SealKeys, SealKeyError> {
        let keys = self.keys.into_iter().map(|(path, key)| match key {
            Some(key) => Ok(key),
            None => Err(SealKeyError { path, fault: KeyFileFault::Missing }),
        });
        Ok(SealKeys { keys: keys.collect::<Result<_, _>>()? })
    }
}

impl SealKeys {
    /// The key that seals.
    pub fn first(&self) -> SealKeyId {
        self.sealing().id
    }

    pub fn ids(&self) -> Vec<SealKeyId> {
        self.keys.iter().map(|key| key.id).collect()
    }

    fn sealing(&self) -> &SealKey {
        self.keys.first().expect("a server has a seal key at least")
    }
}

impl Sealer {
    pub fn new(keys: SealKeys, store: StoreId) -> Sealer {
        Sealer { keys, store }
    }

    pub fn keys(&self) -> &SealKeys {
        &self.keys
    }

    /// Seals the private key of the CA whose certificate has this SHA-256.
    pub fn seal_ca_key(&self, ca: [u8; 32], key: &[u8]) -> Vec<u8> {
        envelope::seal(self.keys.sealing(), secret::random(), self.of_ca(ca), key)
    }

    pub fn open_ca_key(&self, ca: [u8; 32], sealed: &[u8]) -> Result<Vec<u8>, OpenFault> {
        envelope::open(&self.keys.keys, self.of_ca(ca), sealed)
    }

    fn of_ca(&self, ca: [u8; 32]) -> SealContext<'static> {
        SealContext { store: self.store, purpose: CA_KEY, ca }
    }
}

/// The key under which a value is sealed.
pub fn key_of(sealed: &[u8]) -> Result<SealKeyId, OpenFault> {
    envelope::key_id(sealed)
}

/// Key ids for a message.
pub fn listed(ids: &[SealKeyId]) -> String {
    match ids {
        [] => "none".to_owned(),
        ids => ids.iter().map(SealKeyId::to_string).collect::<Vec<String>>().join(", "),
    }
}

// Keys stay out of logs.

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SealKey").field(&self.id).finish()
    }
}

impl std::fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SealKeys").field(&self.ids()).finish()
    }
}
