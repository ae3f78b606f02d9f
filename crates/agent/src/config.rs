//! What an agent is told at its start. Plain data, checked once.

use procfleet_proto::link::token::JoinToken;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Clone, Debug)]
pub struct Config {
    pub server: ServerAddress,
    /// Needed once, to join.
    pub token: Option<JoinToken>,
    pub data: PathBuf,
    /// The address that the host is known by; `None`: the one that the server sees.
    pub ip: Option<IpAddr>,
}

/// Where the server's agent link is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a server address: expected https://HOST[:PORT]")]
pub struct BadAddress;

const DEFAULT_PORT: u16 = 48668;

impl FromStr for ServerAddress {
    type Err = BadAddress;
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let rest = ["https://", "wss://"].iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let port = port.map_or(Ok(DEFAULT_PORT), str::parse).map_err(|_| BadAddress)?;
        if host.is_empty() || host.contains(['/', '@', ' ']) {
            return Err(BadAddress);
        }
        Ok(ServerAddress { host: host.to_owned(), port })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "https://[{}]:{}", self.host, self.port),
            false => write!(f, "https://{}:{}", self.host, self.port),
        }
    }
}

/// A folder that only its owner may enter.
pub(crate) fn make_private_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("https://a.example:1", "https://a.example:1"),
            ("wss://10.0.0.1", "https://10.0.0.1:48668"),
            ("10.0.0.1:5/", "https://10.0.0.1:5"),
            ("https://[::1]:7", "https://[::1]:7"),
        ] {
            assert_eq!(text.parse::<ServerAddress>().expect("a good address").to_string(), expected);
        }
        for text in ["", "https://", "a:b", "http://x:1", "a/b", "a b"] {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
    }
}
