//! Connections from trusted proxies (`--proxy-from`). Each begins with a PROXY header, before TLS, and the
//! header's address counts as the peer's for every limit, rule, record and log line.
//!
//! The source address alone decides: a connection from a listed address must begin with a valid header, and
//! one from any other address is never searched for a header, so nobody else can name an address. No address
//! is trusted by default, loopback included.

use crate::metrics::{Metrics, ServerPort};
use crate::peer::AddressBlock;
use crate::refusal_log::RefusalLog;
use procfleet_proto::proxy_header::{BadProxyHeader, FIXED, FixedPart, ProxiedPeer};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;
use tracing::{debug, warn};

/// Time limit of a header. Proxies send it with their first packet.
const DEADLINE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct TrustedProxies {
    blocks: Arc<[AddressBlock]>,
    metrics: Arc<Metrics>,
    refusal_log: RefusalLog,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerOrigin {
    /// The peer's own address, also where a proxy is in between.
    pub(crate) address: SocketAddr,
    pub(crate) speaker: Speaker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaker {
    Peer,
    /// A trusted proxy that opened the connection for itself, most likely a health check.
    Proxy,
}

#[derive(Debug, thiserror::Error)]
enum HeaderError {
    #[error("the header is invalid: {0}")]
    Invalid(#[from] BadProxyHeader),
    #[error("no complete header within {} s", DEADLINE.as_secs())]
    Timeout,
    /// A health check without a header does this, too.
    #[error("the connection ended before its first byte")]
    Empty,
    #[error("the connection ended within the header")]
    Ended,
    #[error("the connection failed within the header: {0}")]
    Io(io::Error),
}

impl HeaderError {
    fn reason(&self) -> &'static str {
        match self {
            HeaderError::Invalid(bad) => bad.reason(),
            HeaderError::Timeout => "timeout",
            HeaderError::Empty => "empty",
            HeaderError::Ended | HeaderError::Io(_) => "ended",
        }
    }
}

impl TrustedProxies {
    pub fn new(blocks: Vec<AddressBlock>, metrics: Arc<Metrics>) -> TrustedProxies {
        TrustedProxies { blocks: blocks.into(), metrics, refusal_log: RefusalLog::default() }
    }

    /// Finds out who the peer of a new connection is, and reads the header of a trusted proxy. `None`: the
    /// header is missing or invalid, and the connection must be closed.
    pub(crate) async fn origin(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        from: SocketAddr,
        port: ServerPort,
    ) -> Option<PeerOrigin> {
        if !self.blocks.iter().any(|block| block.contains(from.ip())) {
            return Some(PeerOrigin { address: from, speaker: Speaker::Peer });
        }
        // On the heap, and freed when the header is read.
        let read = Box::pin(timeout(DEADLINE, read_header(stream))).await;
        let error = match read.unwrap_or(Err(HeaderError::Timeout)) {
            Ok(ProxiedPeer::Address(address)) => {
                return Some(PeerOrigin { address, speaker: Speaker::Peer });
            }
            Ok(ProxiedPeer::Unknown) => return Some(PeerOrigin { address: from, speaker: Speaker::Peer }),
            Ok(ProxiedPeer::Proxy) => return Some(PeerOrigin { address: from, speaker: Speaker::Proxy }),
            Err(error) => error,
        };
        self.metrics.refused_proxy_header(port, error.reason());
        if matches!(error, HeaderError::Empty) {
            debug!(%from, port = port.name(), "a proxy closed a connection before its PROXY header");
        } else if self.refusal_log.admits_a_line() {
            let port = port.name();
            warn!(%from, port, reason = %error, "a proxy's connection was closed: it needs a PROXY header");
        }
        None
    }
}

/// Reads exactly the header: the next byte of the stream belongs to TLS or HTTP.
async fn read_header(stream: &mut (impl AsyncRead + Unpin)) -> Result<ProxiedPeer, HeaderError> {
    let mut fixed = [0; FIXED];
    if stream.read(&mut fixed[..1]).await.map_err(HeaderError::Io)? == 0 {
        return Err(HeaderError::Empty);
    }
    read_exact(stream, &mut fixed[1..]).await?;
    let fixed = FixedPart::read(&fixed)?;
    let mut rest = vec![0; fixed.rest()];
    read_exact(stream, &mut rest).await?;
    Ok(fixed.peer(&rest)?)
}

async fn read_exact(stream: &mut (impl AsyncRead + Unpin), bytes: &mut [u8]) -> Result<(), HeaderError> {
    stream.read_exact(bytes).await.map(|_| ()).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => HeaderError::Ended,
        _ => HeaderError::Io(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    const PROXY: &str = "10.0.0.9:1";
    /// From 192.0.2.7:40000.
    const HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x05\x9c\x40\xcb\x3e";
    const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    const UNSPEC: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\x02ab";

    fn proxies() -> TrustedProxies {
        let blocks = vec!["10.0.0.8/31".parse().expect("a block"), "2001:db8::/64".parse().expect("a block")];
        TrustedProxies::new(blocks, Arc::default())
    }

    async fn origin(proxies: &TrustedProxies, from: &str, mut bytes: &[u8]) -> (Option<PeerOrigin>, usize) {
        let origin = proxies.origin(&mut bytes, from.parse().expect("an address"), ServerPort::Link).await;
        (origin, bytes.len())
    }

    #[tokio::test]
    async fn only_the_source_address_decides_whether_there_is_a_header() {
        let (peer, proxy) = (Speaker::Peer, Speaker::Proxy);
        let more = [HEADER, b"\x16\x03\x01"].concat();
        let twice = [HEADER, HEADER].concat();
        for (from, bytes, expected, left) in [
            (PROXY, HEADER, Some(("192.0.2.7:40000", peer)), 0),
            ("10.0.0.8:2", &more, Some(("192.0.2.7:40000", peer)), 3),
            ("[::ffff:10.0.0.8]:2", HEADER, Some(("192.0.2.7:40000", peer)), 0),
            ("[2001:db8::1]:2", HEADER, Some(("192.0.2.7:40000", peer)), 0),
            (PROXY, &twice, Some(("192.0.2.7:40000", peer)), HEADER.len()),
            (PROXY, LOCAL, Some((PROXY, proxy)), 0),
            (PROXY, UNSPEC, Some((PROXY, peer)), 0),
            (PROXY, b"GET / HTTP/1.1\r\n\r\n", None, 2),
            ("10.0.0.7:1", HEADER, Some(("10.0.0.7:1", peer)), HEADER.len()),
            ("127.0.0.1:1", HEADER, Some(("127.0.0.1:1", peer)), HEADER.len()),
            ("[::1]:1", b"", Some(("[::1]:1", peer)), 0),
        ] {
            let expected = expected.map(|(address, speaker)| PeerOrigin {
                address: address.parse().expect("an address"),
                speaker,
            });
            assert_eq!(origin(&proxies(), from, bytes).await, (expected, left), "{from} {bytes:?}");
        }
    }

    #[tokio::test]
    async fn a_refused_header_is_counted_by_its_reason() {
        for (bytes, reason) in [
            (&b""[..], "empty"),
            (&HEADER[..1], "ended"),
            (&HEADER[..15], "ended"),
            (&HEADER[..27], "ended"),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n", "signature"),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff", "too_long"),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c", "family"),
        ] {
            let proxies = proxies();
            assert_eq!(origin(&proxies, PROXY, bytes).await.0, None, "{bytes:?}");
            let line =
                format!("procfleet_proxy_headers_refused_total{{port=\"link\",reason=\"{reason}\"}} 1");
            let text = proxies.metrics.text();
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_header_has_a_deadline_that_no_byte_extends() {
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        let began = Instant::now();
        let slow = async {
            for byte in HEADER {
                theirs.write_all(&[*byte]).await.expect("it is open");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            std::future::pending::<()>().await
        };
        let proxies = proxies();
        let origin = proxies.origin(&mut ours, PROXY.parse().expect("an address"), ServerPort::Api);
        tokio::select! {
            origin = origin => assert_eq!(origin, None),
            () = slow => {}
        }
        assert_eq!(began.elapsed(), DEADLINE);
        let line = "procfleet_proxy_headers_refused_total{port=\"api\",reason=\"timeout\"} 1";
        assert!(proxies.metrics.text().contains(line));
    }
}
