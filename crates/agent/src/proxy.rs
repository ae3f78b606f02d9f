//! The way to a server through an HTTP proxy: CONNECT (RFC 9110, section 9.3.6).
//!
//! The proxy resolves the server's name and forwards bytes. TLS is between agent and server as without a
//! proxy, so the proxy can neither read nor change anything. Only `--proxy` names a proxy: the variables of
//! other programs (`HTTPS_PROXY`, …) are ignored.

use procfleet_core::server_address::{BadAddress, ServerAddress};
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long the proxy may take to accept the connection, to connect to the server, and to say so.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the proxy's answer.
const LONGEST_ANSWER: usize = 8 * 1024;
const HTTP: &[u8] = b"HTTP/1.";
/// 407 Proxy Authentication Required.
const LOGIN_REQUIRED: u16 = 407;

/// An HTTP proxy. Neither `Display` nor `Debug` shows the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    address: ServerAddress,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
}

/// The text is not repeated: it may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProxy {
    #[error("not a proxy: expected http://[USER:PASSWORD@]HOST:PORT")]
    Form,
    #[error("not a proxy: only http:// is supported; TLS goes through the proxy to the server")]
    Scheme,
    #[error("not a proxy: the port is missing; expected http://[USER:PASSWORD@]HOST:PORT")]
    NoPort,
    #[error("not a proxy: the port is not a port number")]
    Port,
    #[error("not a proxy: a host is a name, an IPv4 address, or an IPv6 address in brackets")]
    Host,
    #[error("not a proxy: a % in the user name or password must begin a code such as %40, which is an @")]
    Code,
    #[error("not a proxy: a user name cannot contain a colon")]
    User,
}

#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("connecting to the proxy {0}")]
    Tcp(Proxy, #[source] io::Error),
    #[error("the proxy {0} did not answer within {TIMEOUT:?}")]
    Silent(Proxy),
    #[error("talking to the proxy {0}")]
    Broken(Proxy, #[source] io::Error),
    #[error("the proxy {0} closed the connection without an answer")]
    Closed(Proxy),
    #[error(
        "the proxy {0} answered {LOGIN_REQUIRED}: it asks for a user name and a password, or does not accept those of --proxy"
    )]
    LoginRequired(Proxy),
    #[error("the proxy {0} answered {1} to CONNECT")]
    Refused(Proxy, u16),
    #[error("the proxy {0} did not answer in HTTP/1")]
    NotHttp(Proxy),
    #[error("the answer of the proxy {0} is longer than {LONGEST_ANSWER} bytes")]
    TooLong(Proxy),
}

impl Proxy {
    /// Whether the proxy is used with a user name and a password.
    pub fn has_login(&self) -> bool {
        self.authorization.is_some()
    }

    /// Connects to the server through the proxy. The next byte of the stream is the server's.
    pub(crate) async fn connect(&self, server: &ServerAddress) -> Result<TcpStream, ProxyError> {
        let connected = tokio::time::timeout(TIMEOUT, self.connect_now(server)).await;
        connected.map_err(|_| ProxyError::Silent(self.clone()))?
    }

    async fn connect_now(&self, server: &ServerAddress) -> Result<TcpStream, ProxyError> {
        let stream = TcpStream::connect((self.address.host.as_str(), self.address.port)).await;
        let mut stream = stream.map_err(|error| ProxyError::Tcp(self.clone(), error))?;
        let request = self.request(server);
        stream
            .write_all(request.as_bytes())
            .await
            .map_err(|error| ProxyError::Broken(self.clone(), error))?;
        match self.read_status(&mut stream).await? {
            200..=299 => Ok(stream),
            LOGIN_REQUIRED => Err(ProxyError::LoginRequired(self.clone())),
            status => Err(ProxyError::Refused(self.clone(), status)),
        }
    }

    fn request(&self, server: &ServerAddress) -> String {
        let server = server.authority();
        let login = self.authorization.as_ref();
        let login = login.map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default();
        format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n{login}\r\n")
    }

    /// Reads the head of the answer and not a byte more: what follows it belongs to TLS.
    async fn read_status(&self, stream: &mut TcpStream) -> Result<u16, ProxyError> {
        let broken = |error| ProxyError::Broken(self.clone(), error);
        let (mut bytes, mut arrived) = (Vec::new(), vec![0; 1024]);
        loop {
            let known = bytes.len();
            let count = stream.peek(&mut arrived).await.map_err(broken)?;
            if count == 0 {
                return Err(ProxyError::Closed(self.clone()));
            }
            bytes.extend_from_slice(&arrived[..count]);
            let (taken, status) = match AnswerHead::read(&bytes) {
                AnswerHead::Incomplete => (count, None),
                AnswerHead::Complete { length, status } => (length - known, Some(status)),
                AnswerHead::NotHttp => return Err(ProxyError::NotHttp(self.clone())),
                AnswerHead::TooLong => return Err(ProxyError::TooLong(self.clone())),
            };
            stream.read_exact(&mut arrived[..taken]).await.map_err(broken)?;
            if let Some(status) = status {
                return Ok(status);
            }
        }
    }
}

/// The beginning of a proxy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerHead {
    Incomplete,
    /// What follows the first `length` bytes is not the proxy's.
    Complete {
        length: usize,
        status: u16,
    },
    NotHttp,
    TooLong,
}

impl AnswerHead {
    pub fn read(bytes: &[u8]) -> AnswerHead {
        let compared = bytes.len().min(HTTP.len());
        if bytes[..compared] != HTTP[..compared] {
            return AnswerHead::NotHttp;
        }
        match end_of_head(bytes) {
            None if bytes.len() >= LONGEST_ANSWER => AnswerHead::TooLong,
            None => AnswerHead::Incomplete,
            Some(length) if length > LONGEST_ANSWER => AnswerHead::TooLong,
            Some(length) => match status(bytes) {
                Some(status) => AnswerHead::Complete { length, status },
                None => AnswerHead::NotHttp,
            },
        }
    }
}

/// The length of the head: up to and including the first empty line.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let after = |ending: &[u8]| {
        bytes.windows(ending.len()).position(|part| part == ending).map(|at| at + ending.len())
    };
    [after(b"\r\n\r\n"), after(b"\n\n")].into_iter().flatten().min()
}

/// The status of `HTTP/1.1 200 Connection established`.
fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let mut words = line.strip_prefix(HTTP)?.split(|byte| matches!(byte, b' ' | b'\r'));
    let (version, status) = (words.next()?, words.next()?);
    let is_number = |word: &[u8], digits: usize| word.len() == digits && word.iter().all(u8::is_ascii_digit);
    if !is_number(version, 1) || !is_number(status, 3) {
        return None;
    }
    std::str::from_utf8(status).ok()?.parse().ok()
}

impl FromStr for Proxy {
    type Err = BadProxy;
    fn from_str(text: &str) -> Result<Proxy, BadProxy> {
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return Err(BadProxy::Scheme),
            None => return Err(BadProxy::Form),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (login, address) =
            rest.rsplit_once('@').map_or((None, rest), |(login, address)| (Some(login), address));
        let port = address.rsplit_once(':').map(|(_, port)| port);
        if port.is_none_or(|port| port.is_empty() || port.ends_with(']')) {
            return Err(BadProxy::NoPort);
        }
        let address = address.parse::<ServerAddress>().map_err(|fault| match fault {
            BadAddress::Form | BadAddress::Scheme => BadProxy::Form,
            BadAddress::Port => BadProxy::Port,
            BadAddress::Host => BadProxy::Host,
        })?;
        let authorization = login.map(authorization).transpose()?;
        Ok(Proxy { address, authorization })
    }
}

/// Basic authentication (RFC 7617) for `USER:PASSWORD` with percent codes.
fn authorization(login: &str) -> Result<String, BadProxy> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let (mut user, password) = (decoded(user)?, decoded(password)?);
    if user.contains(&b':') {
        return Err(BadProxy::User);
    }
    user.push(b':');
    user.extend(password);
    Ok(format!("Basic {}", base64(&user)))
}

fn decoded(text: &str) -> Result<Vec<u8>, BadProxy> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(BadProxy::Code) };
        decoded.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits are a byte"));
    }
    Ok(decoded)
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let digit = bits >> (18 - 6 * index) & 63;
            text.push(if index <= group.len() { char::from(DIGITS[digit as usize]) } else { '=' });
        }
    }
    text
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.address.authority())
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn proxies() {
        for (text, shown, login) in [
            ("http://proxy.example:3128", "http://proxy.example:3128", None),
            ("http://10.0.0.1:80/", "http://10.0.0.1:80", None),
            ("http://[::1]:8080", "http://[::1]:8080", None),
            ("http://Aladdin:open%20sesame@h:1", "http://h:1", Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")),
            ("http://me@h:1", "http://h:1", Some("Basic bWU6")),
            ("http://me:a%40b:c@h:1", "http://h:1", Some("Basic bWU6YUBiOmM=")),
            ("http://me:a@b/c@h:1", "http://h:1", Some("Basic bWU6YUBiL2M=")),
        ] {
            let proxy: Proxy = text.parse().expect("a proxy");
            assert_eq!(
                (proxy.to_string().as_str(), proxy.authorization.as_deref()),
                (shown, login),
                "{text}"
            );
            assert_eq!(proxy.has_login(), login.is_some());
            assert_eq!(format!("{proxy:?}"), format!("Proxy({shown})"), "no password");
        }
        for (text, fault) in [
            ("", BadProxy::Form),
            ("h:1", BadProxy::Form),
            ("https://h:1", BadProxy::Scheme),
            ("socks5://h:1", BadProxy::Scheme),
            ("http://h", BadProxy::NoPort),
            ("http://[::1]", BadProxy::NoPort),
            ("http://u:p@h", BadProxy::NoPort),
            ("http://h:0", BadProxy::Port),
            ("http://h:http", BadProxy::Port),
            ("http://h/path:1", BadProxy::Form),
            ("http://:1", BadProxy::Host),
            ("http://h%41:1", BadProxy::Host),
            ("http://u:100%@h:1", BadProxy::Code),
            ("http://u:%g0@h:1", BadProxy::Code),
            ("http://u%3a:p@h:1", BadProxy::User),
        ] {
            assert_eq!(text.parse::<Proxy>(), Err(fault), "{text}");
        }
    }

    /// The examples of RFC 4648.
    #[test]
    fn base64_is_padded() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
            ("\u{3ff}\u{7fe}", "z7/fvg=="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_request_names_the_server_and_carries_the_login() {
        let request = |proxy: &str, server: &str| {
            let proxy: Proxy = proxy.parse().expect("a proxy");
            proxy.request(&server.parse().expect("an address"))
        };
        assert_eq!(
            request("http://h:1", "https://s1.example:7"),
            "CONNECT s1.example:7 HTTP/1.1\r\nHost: s1.example:7\r\n\r\n"
        );
        assert_eq!(
            request("http://u:p@h:1", "https://[::1]"),
            "CONNECT [::1]:48668 HTTP/1.1\r\nHost: [::1]:48668\r\nProxy-Authorization: Basic dTpw\r\n\r\n"
        );
    }

    enum After {
        Hold,
        Close,
    }

    /// What a proxy that answers with these parts means for the agent: the first bytes of the server, or an
    /// error.
    async fn answered(parts: &[&[u8]], after: After) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = format!("http://u:secret@{}", listener.local_addr().expect("a bound socket"));
        let proxy: Proxy = proxy.parse().expect("a proxy");
        let parts: Vec<Vec<u8>> = parts.iter().map(|part| part.to_vec()).collect();
        let answer = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            stream.set_nodelay(true).expect("a socket");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.expect("a request"));
            }
            for part in parts {
                // The agent may have seen enough.
                let _ = stream.write_all(&part).await;
                tokio::task::yield_now().await;
            }
            match after {
                After::Hold => Some(stream),
                After::Close => None,
            }
        };
        let server = "https://s1.example".parse().expect("an address");
        let (connected, held) = tokio::join!(proxy.connect(&server), answer);
        drop(held);
        match connected {
            Ok(mut stream) => {
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.expect("the server's bytes");
                Ok(rest)
            }
            Err(error) => {
                assert!(error.to_string().contains(&proxy.to_string()), "it names the proxy: {error}");
                Err(error.to_string())
            }
        }
    }

    #[tokio::test]
    async fn bytes_after_the_empty_line_belong_to_tls() {
        let good: [&[&[u8]]; 5] = [
            &[b"HTTP/1.1 200 Connection established\r\n\r\n", b"\x16\x03\x01"],
            &[b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\n\x16\x03\x01"],
            &[b"HT", b"TP/1.0 200\r\n\r", b"\n\x16\x03", b"\x01"],
            &[b"HTTP/1.1 299 \r\n", b"\r\n\x16\x03\x01"],
            &[b"HTTP/1.1 200 OK\n\n\x16\x03\x01"],
        ];
        for parts in good {
            assert_eq!(answered(parts, After::Hold).await, Ok(b"\x16\x03\x01".to_vec()), "{parts:?}");
        }
        // The longest answer that is accepted.
        let mut long = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
        long.resize(LONGEST_ANSWER - 4, b'x');
        long.extend(b"\r\n\r\nrest");
        assert_eq!(answered(&[&long], After::Hold).await, Ok(b"rest".to_vec()));
    }

    #[tokio::test]
    async fn other_answers_are_errors_that_name_the_proxy_and_the_status() {
        let endless = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 3 * LONGEST_ANSWER]].concat();
        let too_long = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; LONGEST_ANSWER], b"\r\n\r\n".to_vec()];
        let rows: [(&[&[u8]], &str); 10] = [
            (&[b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"], "answered 407: it asks for a user"),
            (&[b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"], "answered 403 to CONNECT"),
            (&[b"HTTP/1.1 502 Bad Gateway\r\n\r\n"], "answered 502 to CONNECT"),
            (&[b"HTTP/1.1 100 Continue\r\n\r\n"], "answered 100 to CONNECT"),
            (&[b"HTTP/2 200 OK\r\n\r\n"], "did not answer in HTTP/1"),
            (&[b"SSH-2.0-OpenSSH_9.2\r\n"], "did not answer in HTTP/1"),
            (&[b"HTTP/1.1 2000 OK\r\n\r\n"], "did not answer in HTTP/1"),
            (&[b"HTTP/1.1\r\n\r\n"], "did not answer in HTTP/1"),
            (&[&endless], "longer than 8192 bytes"),
            (&[&too_long.concat()], "longer than 8192 bytes"),
        ];
        for (parts, reason) in rows {
            let error = answered(parts, After::Hold).await.expect_err(reason);
            assert!(error.contains(reason) && !error.contains("secret"), "{error}");
        }
        let error = answered(&[b"HTTP/1.1 200 OK\r\n"], After::Close).await.expect_err("half an answer");
        assert!(error.contains("closed the connection without an answer"), "{error}");
        let error = answered(&[], After::Close).await.expect_err("no answer");
        assert!(error.contains("closed the connection without an answer"), "{error}");
    }

    #[tokio::test]
    async fn a_proxy_that_is_not_there_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        drop(listener);
        let proxy: Proxy = format!("http://{address}").parse().expect("a proxy");
        let error =
            proxy.connect(&"https://s1".parse().expect("an address")).await.expect_err("nobody listens");
        assert!(error.to_string().contains(&format!("connecting to the proxy http://{address}")), "{error}");
    }

    #[tokio::test]
    async fn a_proxy_that_says_nothing_is_left() {
        let half: [&[u8]; 1] = [b"HTTP/1.1 200 OK\r\n"];
        let (nothing, half) = tokio::join!(answered(&[], After::Hold), answered(&half, After::Hold));
        for error in [nothing, half] {
            let error = error.expect_err("it never ends its answer");
            assert!(error.contains("did not answer within 10s"), "{error}");
        }
    }
}
