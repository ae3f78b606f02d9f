//! The agent's identity: its key, which never leaves the host, and the certificate that the server issued.
//!
//! Joining writes four files. A later key and its certificate must change together, so they are in one file,
//! `RENEWED`, which takes precedence.

use procfleet_core::id::AgentId;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

const KEY: &str = "agent.key.der";
const CERTIFICATE: &str = "agent.cert.der";
const CA: &str = "ca.cert.der";
const NEXT_CA: &str = "ca.next.cert.der";
/// Written last: while it is missing, the agent has not joined.
const ID: &str = "agent.id";
const RENEWED: &str = "agent.renewed.json";

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{doing} {path}")]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{0} does not hold an agent id; remove the data folder's agent.id to join anew with a token")]
    Garbled(PathBuf),
    #[error(
        "{0} does not hold a key and certificates; remove the data folder's agent.id to join anew with a token"
    )]
    GarbledRenewal(PathBuf),
}

pub struct AgentIdentity {
    pub agent: AgentId,
    pub key: PrivateKeyDer<'static>,
    pub certificate: CertificateDer<'static>,
    /// The CAs that the server may use.
    pub cas: Vec<CertificateDer<'static>>,
}

/// The key stays out of logs.
impl std::fmt::Debug for AgentIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.agent)
    }
}

/// The present identity; the next connection uses it.
pub(crate) struct Credentials {
    folder: PathBuf,
    present: Mutex<Arc<AgentIdentity>>,
}

impl Credentials {
    pub(crate) fn new(folder: &Path, identity: AgentIdentity) -> Credentials {
        Credentials { folder: folder.to_owned(), present: Mutex::new(Arc::new(identity)) }
    }

    pub(crate) fn present(&self) -> Arc<AgentIdentity> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The new identity is durable when this returns, or the old one stays.
    pub(crate) fn replace(&self, identity: AgentIdentity) -> Result<(), IdentityError> {
        let renewed = RenewedFile {
            key: identity.key.secret_der().to_vec(),
            certificate: identity.certificate.to_vec(),
            cas: identity.cas.iter().map(|ca| ca.to_vec()).collect(),
        };
        let text = serde_json::to_vec(&renewed).expect("lists of numbers are JSON");
        write(&self.folder, RENEWED, &text)?;
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(identity);
        Ok(())
    }
}

/// The content of [`RENEWED`]; all of it DER.
#[derive(serde::Serialize, serde::Deserialize)]
struct RenewedFile {
    key: Vec<u8>,
    certificate: Vec<u8>,
    cas: Vec<Vec<u8>>,
}

impl AgentIdentity {
    /// `None`: the agent has not joined yet.
    pub(crate) fn load(folder: &Path) -> Result<Option<AgentIdentity>, IdentityError> {
        if !folder.join(ID).exists() {
            return Ok(None);
        }
        let id = String::from_utf8(read(folder, ID)?).unwrap_or_default();
        let agent = id.trim().parse().map_err(|_| IdentityError::Garbled(folder.join(ID)))?;
        if folder.join(RENEWED).exists() {
            let garbled = |_| IdentityError::GarbledRenewal(folder.join(RENEWED));
            let RenewedFile { key, certificate, cas } =
                serde_json::from_slice(&read(folder, RENEWED)?).map_err(garbled)?;
            return Ok(Some(AgentIdentity {
                agent,
                key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key)),
                certificate: CertificateDer::from(certificate),
                cas: cas.into_iter().map(CertificateDer::from).collect(),
            }));
        }
        let cas = [CA, NEXT_CA].iter().filter(|name| folder.join(name).exists());
        Ok(Some(AgentIdentity {
            agent,
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(read(folder, KEY)?)),
            certificate: CertificateDer::from(read(folder, CERTIFICATE)?),
            cas: cas.map(|name| Ok(CertificateDer::from(read(folder, name)?))).collect::<Result<_, _>>()?,
        }))
    }

    pub(crate) fn save(&self, folder: &Path) -> Result<(), IdentityError> {
        write(folder, KEY, self.key.secret_der())?;
        write(folder, CERTIFICATE, &self.certificate)?;
        for (name, ca) in [CA, NEXT_CA].iter().zip(&self.cas) {
            write(folder, name, ca)?;
        }
        // A renewed certificate of an earlier agent in this folder is not valid for this one.
        let renewed = folder.join(RENEWED);
        if renewed.exists() {
            std::fs::remove_file(&renewed).map_err(|source| IdentityError::File {
                doing: "removing",
                path: renewed,
                source,
            })?;
        }
        write(folder, ID, self.agent.as_str().as_bytes())
    }
}

fn read(folder: &Path, name: &str) -> Result<Vec<u8>, IdentityError> {
    let path = folder.join(name);
    std::fs::read(&path).map_err(|source| IdentityError::File { doing: "reading", path, source })
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), IdentityError> {
    let path = folder.join(name);
    procfleet_sqlite::replace_file(&path, bytes).map_err(|source| IdentityError::File {
        doing: "writing",
        path,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(agent: &str, mark: u8, cas: &[u8]) -> AgentIdentity {
        AgentIdentity {
            agent: agent.parse().expect("an id"),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(vec![mark, 1])),
            certificate: CertificateDer::from(vec![mark, 2]),
            cas: cas.iter().map(|ca| CertificateDer::from(vec![*ca])).collect(),
        }
    }

    #[track_caller]
    fn check(folder: &Path, expected: AgentIdentity) {
        let read = AgentIdentity::load(folder).expect("readable").expect("joined");
        let whole = |identity: &AgentIdentity| {
            let key = identity.key.secret_der().to_vec();
            (identity.agent.clone(), key, identity.certificate.clone(), identity.cas.clone())
        };
        assert_eq!(whole(&read), whole(&expected));
    }

    #[test]
    fn the_latest_identity_is_read_back_and_a_new_join_forgets_it() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let folder = folder.path();
        assert!(AgentIdentity::load(folder).expect("readable").is_none());
        identity("a1", 1, &[7]).save(folder).expect("saved");
        check(folder, identity("a1", 1, &[7]));
        let credentials = Credentials::new(folder, identity("a1", 1, &[7]));
        credentials.replace(identity("a1", 2, &[7, 8])).expect("replaced");
        assert_eq!(credentials.present().certificate.as_ref(), [2, 2]);
        check(folder, identity("a1", 2, &[7, 8]));
        // An incomplete temporary file is ignored.
        std::fs::write(folder.join("agent.renewed.json.new"), "{").expect("our own folder");
        check(folder, identity("a1", 2, &[7, 8]));
        identity("a2", 3, &[8, 9]).save(folder).expect("saved");
        check(folder, identity("a2", 3, &[8, 9]));
        std::fs::write(folder.join(RENEWED), "{").expect("our own folder");
        assert!(AgentIdentity::load(folder).is_err(), "half a file is not taken for an identity");
    }
}
