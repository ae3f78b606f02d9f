//! The PROXY protocol, version 2: the first bytes of a connection from a proxy name the peer behind the
//! proxy (<https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt>, section 2.2).
//!
//! ```text
//! 0           12                    13       14       16
//! | signature | version and command | family | length | addresses, then TLVs (skipped) |
//! ```
//!
//! Pure: the caller reads [`FIXED`] bytes, then exactly [`FixedPart::rest`] bytes, so that nothing of what
//! follows the header is consumed. Version 1 (text) is not supported: its end can only be found by searching.

use std::net::{IpAddr, SocketAddr};

/// Size of the part that every header has.
pub const FIXED: usize = 16;
/// Maximum size of a header. Proxies send 28 to 52 bytes, and some hundred more with TLVs.
pub const LONGEST: usize = 4 * 1024;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The peer that a header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxiedPeer {
    /// LOCAL: the proxy opened the connection for itself, for example a health check.
    Proxy,
    /// AF_UNSPEC: the proxy does not know the peer's address.
    Unknown,
    Address(SocketAddr),
}

/// The first [`FIXED`] bytes of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedPart {
    addresses: Addresses,
    rest: usize,
}

/// The meaning of the bytes after the fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    Ignored(ProxiedPeer),
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProxyHeader {
    #[error("it does not begin with the signature of version 2 (haproxy: send-proxy-v2)")]
    Signature,
    #[error("its version is {0}, and only version 2 is supported")]
    Version(u8),
    #[error("its command {0} is unknown")]
    Command(u8),
    #[error("its address family and protocol {0:#04x} is not TCP over IPv4 or IPv6")]
    Family(u8),
    #[error("its {0} bytes are more than {LONGEST}")]
    TooLong(usize),
    #[error("its {0} bytes are too few for its addresses")]
    TooShort(usize),
}

impl BadProxyHeader {
    /// A short name, for a metric's label.
    pub fn reason(self) -> &'static str {
        match self {
            BadProxyHeader::Signature => "signature",
            BadProxyHeader::Version(_) => "version",
            BadProxyHeader::Command(_) => "command",
            BadProxyHeader::Family(_) => "family",
            BadProxyHeader::TooLong(_) => "too_long",
            BadProxyHeader::TooShort(_) => "too_short",
        }
    }
}

impl FixedPart {
    pub fn read(bytes: &[u8; FIXED]) -> Result<FixedPart, BadProxyHeader> {
        let [signature @ .., version_and_command, family, high, low] = bytes;
        if *signature != SIGNATURE {
            return Err(BadProxyHeader::Signature);
        }
        if version_and_command >> 4 != 2 {
            return Err(BadProxyHeader::Version(version_and_command >> 4));
        }
        let addresses = match (version_and_command & 0xf, family) {
            // The family of a LOCAL header has no meaning.
            (0, _) => Addresses::Ignored(ProxiedPeer::Proxy),
            (1, 0x00) => Addresses::Ignored(ProxiedPeer::Unknown),
            (1, 0x11) => Addresses::V4,
            (1, 0x21) => Addresses::V6,
            (1, other) => return Err(BadProxyHeader::Family(*other)),
            (other, _) => return Err(BadProxyHeader::Command(other)),
        };
        let rest = usize::from(u16::from_be_bytes([*high, *low]));
        match rest {
            rest if FIXED + rest > LONGEST => Err(BadProxyHeader::TooLong(FIXED + rest)),
            rest if rest < addresses.size() => Err(BadProxyHeader::TooShort(FIXED + rest)),
            rest => Ok(FixedPart { addresses, rest }),
        }
    }

    /// Number of bytes between the fixed part and the end of the header.
    pub fn rest(self) -> usize {
        self.rest
    }

    /// The peer that the rest of the header names.
    pub fn peer(self, rest: &[u8]) -> Result<ProxiedPeer, BadProxyHeader> {
        let too_short = BadProxyHeader::TooShort(FIXED + rest.len());
        if rest.len() != self.rest {
            return Err(too_short);
        }
        let (ip, ports): (IpAddr, _) = match self.addresses {
            Addresses::Ignored(peer) => return Ok(peer),
            Addresses::V4 => (rest.first_chunk::<4>().copied().ok_or(too_short)?.into(), 8),
            Addresses::V6 => (rest.first_chunk::<16>().copied().ok_or(too_short)?.into(), 32),
        };
        let port = rest.get(ports..).and_then(|ports| ports.first_chunk()).copied().ok_or(too_short)?;
        Ok(ProxiedPeer::Address(SocketAddr::new(ip.to_canonical(), u16::from_be_bytes(port))))
    }
}

impl Addresses {
    /// Source, destination, and both ports.
    fn size(self) -> usize {
        match self {
            Addresses::Ignored(_) => 0,
            Addresses::V4 => 2 * 4 + 2 * 2,
            Addresses::V6 => 2 * 16 + 2 * 2,
        }
    }
}
