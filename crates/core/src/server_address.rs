//! The address of a server's agent link, as operators write it and as servers announce it.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The port of the link, if an address names none.
const DEFAULT_PORT: u16 = 48668;
/// The longest name that DNS can resolve.
const LONGEST_HOST: usize = 253;
/// How much of an address that is not understood is repeated in a message.
const LONGEST_QUOTE: usize = 100;

/// Host and port. An IPv6 address has no brackets here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerAddress {
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    #[error("not a server address: expected https://HOST[:PORT]")]
    Form,
    #[error("not a server address: the link is https")]
    Scheme,
    #[error("not a server address: the port must be a number from 1 to 65535")]
    Port,
    #[error("not a server address: a host is a name, an IPv4 address, or an IPv6 address in brackets")]
    Host,
}

/// Every address of a list that is not understood, with its reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BadAddresses(pub Vec<(String, BadAddress)>);

impl fmt::Display for BadAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (text, reason)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{text:?} is {reason}")?;
        }
        Ok(())
    }
}

impl ServerAddress {
    /// Reads a list. Repetitions are left out, and all faults are named at once.
    pub fn read_all<'a>(
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<ServerAddress>, BadAddresses> {
        let (good, bad) = ServerAddress::read_each(texts);
        if bad.is_empty() { Ok(good) } else { Err(BadAddresses(bad)) }
    }

    /// The good addresses of a list without repetitions, and the others with their reasons.
    pub fn read_each<'a>(
        texts: impl IntoIterator<Item = &'a str>,
    ) -> (Vec<ServerAddress>, Vec<(String, BadAddress)>) {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for text in texts {
            match text.trim().parse::<ServerAddress>() {
                Ok(address) if good.contains(&address) => {}
                Ok(address) => good.push(address),
                Err(reason) => bad.push((quotable(text), reason)),
            }
        }
        (good, bad)
    }

    /// `HOST:PORT`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Shortened, and without what may be a password.
fn quotable(text: &str) -> String {
    let text = match text.rsplit_once('@') {
        Some((_, host)) => format!("***@{host}"),
        None => text.to_owned(),
    };
    text.chars().take(LONGEST_QUOTE).collect()
}

impl FromStr for ServerAddress {
    type Err = BadAddress;
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let rest = match text.split_once("://") {
            Some(("https" | "wss", rest)) => rest,
            Some(_) => return Err(BadAddress::Scheme),
            None => text,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.is_empty() || rest.contains(['/', '@', '?', '#', ' ']) {
            return Err(BadAddress::Form);
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(v6) => {
                let (host, rest) = v6.split_once(']').ok_or(BadAddress::Form)?;
                if !is_ipv6(host) {
                    return Err(BadAddress::Host);
                }
                match (rest, rest.strip_prefix(':')) {
                    ("", _) => (host, None),
                    (_, Some(port)) => (host, Some(port)),
                    (_, None) => return Err(BadAddress::Form),
                }
            }
            None => {
                let (host, port) =
                    rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
                if !is_name(host) {
                    return Err(BadAddress::Host);
                }
                (host, port)
            }
        };
        let port = port.map_or(Ok(DEFAULT_PORT), str::parse).map_err(|_| BadAddress::Port)?;
        if port == 0 {
            return Err(BadAddress::Port);
        }
        Ok(ServerAddress { host: host.to_owned(), port })
    }
}

/// A name or an IPv4 address. The characters are limited because a host becomes part of a request to a proxy.
fn is_name(host: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=LONGEST_HOST).contains(&host.len()) && host.bytes().all(is_part)
}

/// An IPv6 address, with a zone or without.
fn is_ipv6(host: &str) -> bool {
    let (address, zone) = host.split_once('%').map_or((host, None), |(address, zone)| (address, Some(zone)));
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_name)
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.authority())
    }
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
            ("[fe80::1%eth0]", "https://[fe80::1%eth0]:48668"),
            ("server_1", "https://server_1:48668"),
        ] {
            assert_eq!(text.parse::<ServerAddress>().expect("a good address").to_string(), expected);
        }
        let long = "a".repeat(254);
        for (text, reason) in [
            ("", BadAddress::Form),
            ("https://", BadAddress::Form),
            ("a/b", BadAddress::Form),
            ("a b", BadAddress::Form),
            ("https://user@a", BadAddress::Form),
            ("[::1", BadAddress::Form),
            ("[::1]7", BadAddress::Form),
            ("http://x:1", BadAddress::Scheme),
            ("a:b", BadAddress::Port),
            ("a:0", BadAddress::Port),
            ("a:65536", BadAddress::Port),
            ("[::1]:", BadAddress::Port),
            (":5", BadAddress::Host),
            ("[10.0.0.1]", BadAddress::Host),
            ("a\r\nHost: b", BadAddress::Form),
            ("a\r\nb", BadAddress::Host),
            ("主机", BadAddress::Host),
            (&long, BadAddress::Host),
        ] {
            assert_eq!(text.parse::<ServerAddress>(), Err(reason), "{text:?}");
        }
    }

    #[test]
    fn all_faults_of_a_list_are_named_at_once_and_no_password() {
        let read = |list: &str| ServerAddress::read_all(list.split(','));
        let good = read("https://a:1, b ,https://a:1").expect("good addresses");
        assert_eq!(
            good.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["https://a:1", "https://b:48668"]
        );
        let faults =
            read("http://x,https://ok,a:b,https://me:secret@h").expect_err("three faults").to_string();
        assert_eq!(
            faults,
            "\"http://x\" is not a server address: the link is https; \
             \"a:b\" is not a server address: the port must be a number from 1 to 65535; \
             \"***@h\" is not a server address: expected https://HOST[:PORT]"
        );
    }
}
