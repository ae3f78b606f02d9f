//! A tunnel through an HTTP proxy (CONNECT, RFC 9110 section 9.3.6): the proxy's URL, the request and the
//! reply. Pure: the caller moves the bytes.
//!
//! The proxy resolves the name of the target, so a host without DNS can use it. Messages name the proxy
//! without its user and password.

use std::fmt;
use std::str::FromStr;

/// Maximum size of the head of the proxy's reply.
pub const LONGEST_REPLY: usize = 8 * 1024;

/// `http://[USER:PASSWORD@]HOST:PORT`
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    /// A name or an address, that of IPv6 in brackets.
    host: String,
    port: u16,
    login: Option<ProxyLogin>,
}

#[derive(Clone, PartialEq, Eq)]
struct ProxyLogin {
    user: Vec<u8>,
    password: Vec<u8>,
}

/// The message does not quote the URL, which may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected http://HOST:PORT or http://USER:PASSWORD@HOST:PORT: {0}")]
pub struct BadProxyUrl(&'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunnelRefusal {
    #[error("the proxy wants a user and a password (407); give http://USER:PASSWORD@HOST:PORT")]
    LoginNeeded,
    #[error("the proxy refuses its user or password (407)")]
    LoginRefused,
    #[error("the proxy does not allow a tunnel to the server's port ({0}); allow CONNECT to it")]
    Forbidden(u16),
    #[error("the proxy cannot reach the server ({0})")]
    Unreachable(u16),
    #[error("the proxy refuses a tunnel ({0})")]
    Status(u16),
    #[error("what listens there does not answer as an HTTP proxy")]
    NotHttp,
    #[error("the proxy's reply is longer than {LONGEST_REPLY} bytes")]
    TooLong,
}

impl FromStr for ProxyUrl {
    type Err = BadProxyUrl;

    fn from_str(text: &str) -> Result<ProxyUrl, BadProxyUrl> {
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(BadProxyUrl("only http proxies are supported")),
            None => return Err(BadProxyUrl("it does not begin with http://")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        // The last @ ends the login: curl accepts a password with an @ inside, too.
        let (login, address) = match rest.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, rest),
        };
        let (host, port) = address.rsplit_once(':').ok_or(BadProxyUrl("the port is missing"))?;
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_number && *port > 0);
        let port = port.ok_or(BadProxyUrl("the port is not a number from 1 to 65535"))?;
        if !is_host(host) {
            return Err(BadProxyUrl("the host is not a name or an address (IPv6 in brackets)"));
        }
        let login = login.map(|login| {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            match (percent_decoded(user), percent_decoded(password)) {
                (Some(user), Some(password)) if !user.contains(&b':') => Ok(ProxyLogin { user, password }),
                (Some(_), Some(_)) => Err(BadProxyUrl("a user has no colon")),
                (None, _) | (_, None) => Err(BadProxyUrl("a % is not followed by two hexadecimal digits")),
            }
        });
        Ok(ProxyUrl { host: host.to_owned(), port, login: login.transpose()? })
    }
}

fn is_host(host: &str) -> bool {
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match inside {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.bytes().all(is_part)
        }
    }
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    Some(decoded)
}

impl fmt::Display for ProxyUrl {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for ProxyUrl {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ProxyUrl {
    /// Whether the URL has a user, and perhaps a password.
    pub fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// Where to connect: `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The request for a tunnel to `HOST:PORT`.
    pub fn request(&self, target: &str) -> Vec<u8> {
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(ProxyLogin { user, password }) = &self.login {
            let login = base64(&[user.as_slice(), b":", password].concat());
            request.push_str(&format!("Proxy-Authorization: Basic {login}\r\n"));
        }
        request.push_str("\r\n");
        request.into_bytes()
    }

    /// Reads the beginning of the proxy's reply. `Some`: the tunnel is open, and the reply ends after so many
    /// bytes; the bytes after it are the target's. `None`: more of the reply must be read.
    pub fn read_reply(&self, bytes: &[u8]) -> Result<Option<usize>, TunnelRefusal> {
        const BEGINNING: &[u8] = b"HTTP/1.";
        let common = bytes.len().min(BEGINNING.len());
        if bytes[..common] != BEGINNING[..common] {
            return Err(TunnelRefusal::NotHttp);
        }
        // A lone LF ends a line, too (RFC 9112, section 2.2).
        let after =
            |end: &[u8]| bytes.windows(end.len()).position(|part| part == end).map(|at| at + end.len());
        match [after(b"\r\n\r\n"), after(b"\n\n")].into_iter().flatten().min() {
            Some(end) if end <= LONGEST_REPLY => self.judge(&bytes[..end]).map(|()| Some(end)),
            Some(_) => Err(TunnelRefusal::TooLong),
            None if bytes.len() >= LONGEST_REPLY => Err(TunnelRefusal::TooLong),
            None => Ok(None),
        }
    }

    fn judge(&self, head: &[u8]) -> Result<(), TunnelRefusal> {
        // HTTP/1.1 200 …
        let status = match head.get(8..13) {
            Some([b' ', digits @ .., b' ' | b'\r' | b'\n']) if digits.iter().all(u8::is_ascii_digit) => {
                digits.iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0'))
            }
            Some(_) | None => return Err(TunnelRefusal::NotHttp),
        };
        match (status, &self.login) {
            (200..=299, _) => Ok(()),
            (407, None) => Err(TunnelRefusal::LoginNeeded),
            (407, Some(_)) => Err(TunnelRefusal::LoginRefused),
            (403 | 405, _) => Err(TunnelRefusal::Forbidden(status)),
            (502..=504, _) => Err(TunnelRefusal::Unreachable(status)),
            (other, _) => Err(TunnelRefusal::Status(other)),
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let number =
            part.iter().chain([0; 2].iter()).take(3).fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        for place in 0..4 {
            let digit = DIGITS[number >> (18 - 6 * place) & 0x3f];
            text.push(if place <= part.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_rfcs_examples() {
        let rows = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (bytes, text) in rows {
            assert_eq!(base64(bytes.as_bytes()), text, "{bytes}");
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
