//! Numbers and hosts in the form in which both engines store and order them.

use procfleet_core::Host;
use std::net::IpAddr;

/// Neither engine has a number above `i64::MAX`. Only a number that a peer made up is larger. It becomes
/// `i64::MAX`, which keeps the order and equals no number in use.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A host as a text that is ordered as people order hosts: 10.0.0.2 before 10.0.0.10, IPv4 before IPv6.
pub(crate) fn host_order(host: Host) -> String {
    format!("{:08x}{}", host.cloud.0, address_order(host.ip))
}

/// The part of [`host_order`] after the [`CLOUD_ORDER`] first characters.
pub(crate) fn address_order(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => format!("4{:08x}", ip.to_bits()),
        IpAddr::V6(ip) => format!("6{:032x}", ip.to_bits()),
    }
}

pub(crate) const CLOUD_ORDER: usize = 8;
