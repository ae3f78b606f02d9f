//! Who this agent is: its key, which never leaves the host, and the certificate that the server gave it.

use procfleet_core::id::AgentId;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

const KEY: &str = "agent.key.der";
const CERTIFICATE: &str = "agent.cert.der";
const CA: &str = "ca.cert.der";
/// Written last: while it is missing, the agent has not joined.
const ID: &str = "agent.id";

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
}

pub struct Identity {
    pub agent: AgentId,
    pub key: PrivateKeyDer<'static>,
    pub certificate: CertificateDer<'static>,
    pub ca: CertificateDer<'static>,
}

/// The key stays out of logs.
impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.agent)
    }
}

impl Identity {
    /// `None`: the agent has not joined yet.
    pub(crate) fn load(folder: &Path) -> Result<Option<Identity>, IdentityError> {
        if !folder.join(ID).exists() {
            return Ok(None);
        }
        let id = String::from_utf8(read(folder, ID)?).unwrap_or_default();
        let agent = id.trim().parse().map_err(|_| IdentityError::Garbled(folder.join(ID)))?;
        Ok(Some(Identity {
            agent,
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(read(folder, KEY)?)),
            certificate: CertificateDer::from(read(folder, CERTIFICATE)?),
            ca: CertificateDer::from(read(folder, CA)?),
        }))
    }

    pub(crate) fn save(&self, folder: &Path) -> Result<(), IdentityError> {
        write(folder, KEY, self.key.secret_der())?;
        write(folder, CERTIFICATE, &self.certificate)?;
        write(folder, CA, &self.ca)?;
        write(folder, ID, self.agent.as_str().as_bytes())
    }
}

fn read(folder: &Path, name: &str) -> Result<Vec<u8>, IdentityError> {
    let path = folder.join(name);
    std::fs::read(&path).map_err(|source| IdentityError::File { doing: "reading", path, source })
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), IdentityError> {
    let path = folder.join(name);
    let draft = folder.join(format!("{name}.new"));
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&draft, &path)
    };
    written().map_err(|source| IdentityError::File { doing: "writing", path, source })
}
