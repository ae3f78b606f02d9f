//! The way to a server through an HTTP proxy (`procfleet_proto::tunnel`).
//!
//! The proxy resolves the server's name and forwards bytes. TLS is between agent and server as without a
//! proxy, so the proxy can neither read nor change anything. Only `--proxy` names a proxy: the variables of
//! other programs (`HTTPS_PROXY`, …) are ignored.

use procfleet_core::server_address::ServerAddress;
use procfleet_proto::tunnel::{ProxyUrl, TunnelRefusal};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long the proxy may take to accept the connection, to connect to the server, and to say so.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Each names the proxy, without its user and password.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("connecting to the proxy {0}")]
    Tcp(String, #[source] io::Error),
    #[error("the proxy {0} did not answer within {TIMEOUT:?}")]
    Silent(String),
    #[error("talking to the proxy {0}")]
    Broken(String, #[source] io::Error),
    #[error("the proxy {0} closed the connection without an answer")]
    Closed(String),
    #[error("asking the proxy {0}: {1}")]
    Refused(String, TunnelRefusal),
}

/// Connects to the server through the proxy. The next byte of the stream is the server's.
pub(crate) async fn connect(proxy: &ProxyUrl, server: &ServerAddress) -> Result<TcpStream, ProxyError> {
    let connected = tokio::time::timeout(TIMEOUT, connect_now(proxy, server)).await;
    connected.map_err(|_| ProxyError::Silent(proxy.to_string()))?
}

async fn connect_now(proxy: &ProxyUrl, server: &ServerAddress) -> Result<TcpStream, ProxyError> {
    let broken = |error| ProxyError::Broken(proxy.to_string(), error);
    let stream = TcpStream::connect(proxy.address()).await;
    let mut stream = stream.map_err(|error| ProxyError::Tcp(proxy.to_string(), error))?;
    stream.write_all(&proxy.request(&server.authority())).await.map_err(broken)?;
    // The head of the answer is read, and not a byte more: what follows it belongs to TLS.
    let (mut bytes, mut arrived) = (Vec::new(), vec![0; 1024]);
    loop {
        let known = bytes.len();
        let count = stream.peek(&mut arrived).await.map_err(broken)?;
        if count == 0 {
            return Err(ProxyError::Closed(proxy.to_string()));
        }
        bytes.extend_from_slice(&arrived[..count]);
        let end = proxy.read_reply(&bytes).map_err(|fault| ProxyError::Refused(proxy.to_string(), fault))?;
        let taken = end.map_or(count, |end| end - known);
        stream.read_exact(&mut arrived[..taken]).await.map_err(broken)?;
        if end.is_some() {
            return Ok(stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_proto::tunnel::LONGEST_REPLY;
    use tokio::net::TcpListener;

    enum After {
        Hold,
        Close,
    }

    /// What a proxy that answers with these parts means for the agent: the first bytes of the server, or an
    /// error.
    async fn answered(parts: &[&[u8]], after: After) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = format!("http://u:secret@{}", listener.local_addr().expect("a bound socket"));
        let proxy: ProxyUrl = proxy.parse().expect("a proxy");
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
        let (connected, held) = tokio::join!(connect(&proxy, &server), answer);
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
        long.resize(LONGEST_REPLY - 4, b'x');
        long.extend(b"\r\n\r\nrest");
        assert_eq!(answered(&[&long], After::Hold).await, Ok(b"rest".to_vec()));
    }

    #[tokio::test]
    async fn other_answers_are_errors_that_name_the_proxy_and_the_status() {
        let endless = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 3 * LONGEST_REPLY]].concat();
        let too_long = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; LONGEST_REPLY], b"\r\n\r\n".to_vec()];
        let rows: [(&[&[u8]], &str); 10] = [
            (&[b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"], "refuses its user or password (407)"),
            (
                &[b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"],
                "does not allow a tunnel to the server's port (403)",
            ),
            (&[b"HTTP/1.1 502 Bad Gateway\r\n\r\n"], "cannot reach the server (502)"),
            (&[b"HTTP/1.1 100 Continue\r\n\r\n"], "refuses a tunnel (100)"),
            (&[b"HTTP/2 200 OK\r\n\r\n"], "does not answer as an HTTP proxy"),
            (&[b"SSH-2.0-OpenSSH_9.2\r\n"], "does not answer as an HTTP proxy"),
            (&[b"HTTP/1.1 2000 OK\r\n\r\n"], "does not answer as an HTTP proxy"),
            (&[b"HTTP/1.1\r\n\r\n"], "does not answer as an HTTP proxy"),
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
        let proxy: ProxyUrl = format!("http://{address}").parse().expect("a proxy");
        let server = "https://s1".parse().expect("an address");
        let error = connect(&proxy, &server).await.expect_err("nobody listens");
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
