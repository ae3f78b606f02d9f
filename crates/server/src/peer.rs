//! Whose traffic counts together: one IPv4 address, or one /64 of IPv6, which is what one customer or host has.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerNet(IpAddr);

impl From<IpAddr> for PeerNet {
    fn from(ip: IpAddr) -> PeerNet {
        match ip.to_canonical() {
            v4 @ IpAddr::V4(_) => PeerNet(v4),
            IpAddr::V6(v6) => PeerNet(IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)))),
        }
    }
}

impl fmt::Display for PeerNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(ip) => ip.fmt(f),
            IpAddr::V6(net) => write!(f, "{net}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_counts_by_its_64_and_mapped_ipv4_by_its_address() {
        for (ip, net) in [
            ("10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("::1", "::/64"),
        ] {
            assert_eq!(PeerNet::from(ip.parse::<IpAddr>().expect("an address")).to_string(), net, "{ip}");
        }
    }
}
