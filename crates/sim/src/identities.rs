//! The identities of the agents: one file with a line for each agent, so that a fleet can come back.
//!
//! A line is written when its agent has joined and never changes; a last line that a crash cut off is an
//! agent that has not joined yet.

use procfleet_agent::identity::AgentIdentity;
use procfleet_proto::link::token::hex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

const FILE: &str = "fleet.jsonl";

#[derive(Serialize, Deserialize)]
struct IdentityLine {
    ip: IpAddr,
    agent: String,
    key: String,
    certificate: String,
    ca: String,
}

pub(crate) struct Identities {
    known: Mutex<HashMap<IpAddr, AgentIdentity>>,
    file: Mutex<File>,
}

impl Identities {
    pub(crate) fn open(folder: &Path) -> io::Result<Identities> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let mut known = HashMap::new();
        for line in text.lines() {
            if let Some((ip, identity)) = read_line(line) {
                known.insert(ip, identity);
            }
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        Ok(Identities { known: Mutex::new(known), file: Mutex::new(file) })
    }

    /// Removes and returns the identity of an agent.
    pub(crate) fn take(&self, ip: IpAddr) -> Option<AgentIdentity> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&ip)
    }

    pub(crate) fn keep(&self, ip: IpAddr, identity: &AgentIdentity) -> io::Result<()> {
        let line = IdentityLine {
            ip,
            agent: identity.agent.to_string(),
            key: hex(identity.key.secret_der()),
            certificate: hex(&identity.certificate),
            ca: identity.cas.first().map(|ca| hex(ca)).unwrap_or_default(),
        };
        let mut text = serde_json::to_string(&line).expect("texts are JSON");
        text.push('\n');
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(text.as_bytes())
    }
}

fn read_line(line: &str) -> Option<(IpAddr, AgentIdentity)> {
    let line: IdentityLine = serde_json::from_str(line).ok()?;
    let identity = AgentIdentity {
        agent: line.agent.parse().ok()?,
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(unhex(&line.key)?)),
        certificate: CertificateDer::from(unhex(&line.certificate)?),
        cas: vec![CertificateDer::from(unhex(&line.ca)?)],
    };
    Some((line.ip, identity))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_again_and_a_truncated_line_is_skipped() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let ip = IpAddr::from([10, 0, 0, 1]);
        let identity = || AgentIdentity {
            agent: "020000000000".parse().expect("an id"),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(vec![1, 2, 255])),
            certificate: CertificateDer::from(vec![3]),
            cas: vec![CertificateDer::from(vec![4])],
        };
        let fleet = Identities::open(folder.path()).expect("a new one");
        assert!(fleet.take(ip).is_none());
        fleet.keep(ip, &identity()).expect("room");
        std::fs::OpenOptions::new()
            .append(true)
            .open(folder.path().join(FILE))
            .and_then(|mut file| file.write_all(br#"{"ip": "10.0.0.2", "agent": "02"#))
            .expect("room");
        let fleet = Identities::open(folder.path()).expect("the same");
        let known = fleet.take(ip).expect("it was kept");
        assert_eq!((known.agent, known.key.secret_der()), (identity().agent, &[1, 2, 255][..]));
        assert!(fleet.take([10, 0, 0, 2].into()).is_none());
        fleet.keep([10, 0, 0, 2].into(), &identity()).expect("room");
        assert!(Identities::open(folder.path()).expect("again").take([10, 0, 0, 2].into()).is_some());
    }
}
