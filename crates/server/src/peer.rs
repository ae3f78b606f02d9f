//! Addresses of callers. Traffic is counted per [`PeerNet`]: one IPv4 address, or one /64 of IPv6, which is
//! what one customer or host has. [`AddressBlock`]s restrict where callers may come from.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

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

/// Addresses with a common prefix: `10.0.0.0/8`, `2001:db8::/32`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressBlock {
    first: IpAddr,
    bits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an address or a block such as 10.0.0.0/8")]
pub struct BadBlock;

impl AddressBlock {
    pub fn contains(self, ip: IpAddr) -> bool {
        match (self.first, ip.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(ip)) => {
                (first.to_bits() ^ ip.to_bits()).checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(first), IpAddr::V6(ip)) => {
                (first.to_bits() ^ ip.to_bits()).checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl FromStr for AddressBlock {
    type Err = BadBlock;

    fn from_str(text: &str) -> Result<AddressBlock, BadBlock> {
        let (first, bits) = match text.split_once('/') {
            Some((first, bits)) => (first, Some(bits.parse().map_err(|_| BadBlock)?)),
            None => (text, None),
        };
        let first: IpAddr = first.parse().map_err(|_| BadBlock)?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        match bits.unwrap_or(most) {
            bits if bits <= most => Ok(AddressBlock { first, bits }),
            _ => Err(BadBlock),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_contains_the_addresses_with_its_prefix() {
        for (block, ip, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.6", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "::1", true),
            ("::1", "::1", true),
        ] {
            let found: AddressBlock = block.parse().expect(block);
            assert_eq!(found.contains(ip.parse().expect(ip)), inside, "{block} {ip}");
        }
        for bad in
            ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", "name", "10.0.0.0/8/8"]
        {
            assert_eq!(bad.parse::<AddressBlock>(), Err(BadBlock), "{bad}");
        }
    }

    #[test]
    fn ipv6_is_counted_by_its_64_and_mapped_ipv4_by_its_address() {
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
