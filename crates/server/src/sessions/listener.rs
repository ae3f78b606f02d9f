//! The link's port: TCP, TLS, HTTP, and the paths that upgrade to WebSockets.
//!
//! Agents and servers enter by different names in the TLS hello (SNI), with different certificates on both
//! sides, and each entrance has its own paths. A server that is alone has no entrance for servers.

use super::handshake_limiter::{Evicted, HandshakeLimiter, HandshakeSlot};
use super::peer_questions::PeerPort;
use super::{Link, connection, enroll};
use crate::files::FileShares;
use crate::handshake::{self, Metered};
use crate::metrics::{Metrics, ServerPort};
use crate::peer::PeerNet;
use crate::peers::Peers;
use crate::pki;
use crate::proxies::{PeerOrigin, Speaker, TrustedProxies};
use crate::refusal_log::RefusalLog;
use axum::extract::{Extension, State, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Router, extract::ws::WebSocket};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use procfleet_program::panics;
use procfleet_proto::link::{BUFFER, ENROLL_PATH, LINK_PATH, MAX_FRAME, MAX_MESSAGE};
use procfleet_proto::peer::{PEER_NAME, PEER_PATH};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tracing::{debug, warn};

/// How long TLS may take, and the request for a WebSocket afterwards. Much, because the server may be the
/// slow one; a slow peer is evicted earlier if its slot is needed.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// Maximum number of handshakes under way.
const HANDSHAKES: usize = 512;
/// Larger than the first TLS record of an agent.
const FIRST_RECORD: usize = 2 * 1024;
/// Small, because agents send short messages and there may be ten thousand of them; a longer message grows
/// its own buffer.
const READ_BUFFER: usize = 1024;
/// TCP_USER_TIMEOUT: how long sent bytes may stay unacknowledged before the kernel closes the connection.
const USER_TIMEOUT_MS: u32 = 20_000;

/// The peer of a connection after the TLS handshake.
#[derive(Clone, Debug)]
struct TlsPeer {
    certificate: Option<CertificateDer<'static>>,
    ip: IpAddr,
    slot: Arc<HandshakeSlot>,
    /// Held by every session; the port has ended when all are dropped.
    permit: Arc<OwnedSemaphorePermit>,
}

impl Link {
    /// Serves connections until the server stops; returns when the last one has ended.
    pub async fn serve(self, listener: TcpListener) {
        let limiter = HandshakeLimiter::new(HANDSHAKES);
        let most = FileShares::of_this_process().agents;
        let permits = Arc::new(Semaphore::new(most as usize));
        let routers = Routers::new(&self);
        let mut connections = JoinSet::new();
        let mut stop = self.stop.clone();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                accepted = listener.accept() => accepted,
                // Joins ended connections, which frees their memory.
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                // Most likely EMFILE: the next accept would fail at once, too.
                Err(error) => {
                    warn!(%error, "cannot accept an agent's connection; trying again in 100 ms");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // The agent finds another server, or comes back. In the kernel's queue it would wait in vain.
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                self.metrics.refused_sessions.inc();
                if self.refusal_log.admits_a_line() {
                    warn!(%from, agents = most, "closed an agent's connection: all descriptors that RLIMIT_NOFILE leaves for agents are used");
                }
                continue;
            };
            // After the accept: taking a slot may evict another peer.
            let slot = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                slot = limiter.take(PeerNet::from(from.ip())) => slot,
            };
            // Read for each connection, because the CA may have changed.
            let tls = PortTls { agents: self.ca.link_tls(), peers: self.peers.clone() };
            let incoming = IncomingConnection { from, slot: Arc::new(slot), permit: Arc::new(permit) };
            let (metrics, refusal_log) = (self.metrics.clone(), self.refusal_log.clone());
            let proxies = self.proxies.clone();
            let serving = accept_peer(stream, incoming, proxies, tls, routers.clone(), metrics, refusal_log);
            connections.spawn(panics::contain(serving));
        }
        drop(listener);
        // Sessions end when their senders are dropped; the caller bounds how long this may take.
        while connections.join_next().await.is_some() {}
        let _ = permits.acquire_many(most).await;
    }
}

/// A TCP connection before its TLS handshake.
struct IncomingConnection {
    from: SocketAddr,
    slot: Arc<HandshakeSlot>,
    permit: Arc<OwnedSemaphorePermit>,
}

/// By which name a peer came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entrance {
    Agents,
    Servers,
}

/// The paths of each entrance.
#[derive(Clone, Debug)]
struct Routers {
    agents: Router,
    servers: Router,
}

impl Routers {
    fn new(link: &Link) -> Routers {
        let agents = Router::new()
            .route(LINK_PATH, any(open_link))
            .route(ENROLL_PATH, any(open_enrolment))
            .route(PEER_PATH, any(refuse_peer))
            .with_state(link.clone());
        let servers = Router::new().route(PEER_PATH, any(open_peer)).with_state(PeerPort::new(link.clone()));
        Routers { agents, servers }
    }
}

/// The TLS configurations of a new connection.
#[derive(Debug)]
struct PortTls {
    agents: Arc<ServerConfig>,
    peers: Option<Peers>,
}

async fn accept_peer(
    mut stream: TcpStream,
    incoming: IncomingConnection,
    proxies: TrustedProxies,
    tls: PortTls,
    routers: Routers,
    metrics: Arc<Metrics>,
    refusal_log: RefusalLog,
) {
    let IncomingConnection { from, slot, permit } = incoming;
    let Ok(origin) = slot.wait_for(proxies.origin(&mut stream, from, ServerPort::Link)).await else {
        metrics.refused_sessions.inc();
        return debug!(%from, "a proxy's connection without a header was evicted for another");
    };
    let Some(PeerOrigin { address: from, speaker }) = origin else { return };
    slot.count_for(PeerNet::from(from.ip()));
    let handshake = tokio::time::timeout(HANDSHAKE, Box::pin(tls_handshake(stream, &slot, tls)));
    match slot.wait_for(handshake).await {
        Ok(Ok(Ok((stream, certificate, entrance)))) => {
            let lost = slot.clone();
            let peer = TlsPeer { certificate, ip: from.ip(), slot, permit };
            let router = match entrance {
                Entrance::Agents => routers.agents,
                Entrance::Servers => routers.servers,
            };
            serve_connection(stream, peer, router, lost).await;
        }
        _ if speaker == Speaker::Proxy => debug!(%from, "a proxy checked the link's port"),
        Ok(Ok(Err(error))) => {
            metrics.refused_sessions.inc();
            if refusal_log.admits_a_line() {
                warn!(%from, %error, "a TLS handshake on the link port failed; the peer may be no agent (health check, port scan)");
            }
        }
        Ok(Err(_)) | Err(Evicted) => {
            metrics.refused_sessions.inc();
            debug!(%from, "a peer did not finish its handshake");
        }
    }
}

type TlsStream = tokio_rustls::server::TlsStream<Metered>;

async fn tls_handshake(
    stream: TcpStream,
    slot: &HandshakeSlot,
    tls: PortTls,
) -> std::io::Result<(TlsStream, Option<CertificateDer<'static>>, Entrance)> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT_MS)?;
    // A peer that has given up is not worth a handshake.
    if stream.ready(Interest::READABLE).await?.is_read_closed() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    // An agent's first TLS record arrives whole. A peer that sends half of one is evicted like a silent one
    // (slow-loris): otherwise a few thousand of them would fill the accept queue for longer than an agent
    // waits.
    let mut first = vec![0; FIRST_RECORD];
    let seen = stream.peek(&mut first).await?;
    if begins_with_a_record(&first[..seen]) {
        slot.mark_sent_data();
    }
    drop(first);
    let mut entrance = Entrance::Agents;
    let stream = match tls.peers {
        None => handshake::accept(&TlsAcceptor::from(tls.agents), stream).await?,
        Some(peers) => {
            let choose = |name: Option<&str>| match name == Some(PEER_NAME) {
                true => {
                    entrance = Entrance::Servers;
                    peers.server_tls().map_err(std::io::Error::other)
                }
                false => Ok(tls.agents),
            };
            handshake::accept_by_name(stream, choose).await?
        }
    };
    slot.mark_sent_data();
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
    Ok((stream, certificate.map(CertificateDer::into_owned), entrance))
}

/// A TLS record begins with a byte for its type (22 is a handshake), two for the version, two for its length.
fn begins_with_a_record(bytes: &[u8]) -> bool {
    match bytes {
        [22, _, _, high, low, rest @ ..] => rest.len() >= usize::from(u16::from_be_bytes([*high, *low])),
        _ => false,
    }
}

async fn serve_connection(stream: TlsStream, peer: TlsPeer, router: Router, slot: Arc<HandshakeSlot>) {
    let router = TowerToHyperService::new(router);
    // Not a layer of the router, which would be cloned whole for each connection.
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        router.call(request)
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    match slot.wait_for(serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a connection to the link ended early"),
        Err(Evicted) => debug!("a peer was evicted before its hello"),
    }
}

async fn open_link(
    State(link): State<Link>,
    Extension(peer): Extension<TlsPeer>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let Some(certificate) = peer.certificate.clone() else {
        link.metrics.refused_sessions.inc();
        if link.refusal_log.admits_a_line() {
            warn!(from = %peer.ip, "an agent without a certificate was refused");
        }
        let reason = "this link needs a client certificate; join with a token first (procfleet agent --token-file FILE)";
        return (StatusCode::UNAUTHORIZED, reason).into_response();
    };
    if pki::server_of(&certificate).is_some() {
        link.metrics.refused_sessions.inc();
        if link.refusal_log.admits_a_line() {
            warn!(from = %peer.ip, "a server's certificate was refused on the path for agents");
        }
        return (StatusCode::FORBIDDEN, "this path is for agents; the certificate is a server's")
            .into_response();
    }
    bounded(upgrade).on_upgrade(move |socket| {
        let TlsPeer { ip, slot, permit, .. } = peer;
        panics::contain(async move {
            connection::run(link, certificate, ip, slot, socket).await;
            drop(permit);
        })
    })
}

async fn open_peer(
    State(port): State<PeerPort>,
    Extension(peer): Extension<TlsPeer>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let Some(server) = peer.certificate.as_ref().and_then(pki::server_of) else {
        return refuse_peer(State(port.link), Extension(peer)).await;
    };
    bounded(upgrade).on_upgrade(move |socket| {
        let TlsPeer { slot, permit, .. } = peer;
        // The peer has shown who it is.
        drop(slot);
        panics::contain(async move {
            port.serve(server, socket).await;
            drop(permit);
        })
    })
}

async fn refuse_peer(State(link): State<Link>, Extension(peer): Extension<TlsPeer>) -> Response {
    link.metrics.refused_sessions.inc();
    if link.refusal_log.admits_a_line() {
        warn!(from = %peer.ip, "a peer that is no server of this fleet was refused on the path for servers");
    }
    (StatusCode::FORBIDDEN, "this path is for servers of this fleet, by their own name and certificate")
        .into_response()
}

async fn open_enrolment(
    State(link): State<Link>,
    Extension(peer): Extension<TlsPeer>,
    upgrade: WebSocketUpgrade,
) -> Response {
    bounded(upgrade).on_upgrade(move |socket: WebSocket| {
        let TlsPeer { ip, slot, permit, .. } = peer;
        panics::contain(async move {
            enroll::run(link, ip, &slot, socket).await;
            drop(permit);
        })
    })
}

fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(BUFFER)
        .max_write_buffer_size(4 * MAX_MESSAGE)
        .max_frame_size(MAX_FRAME)
        // Agents send each message in one frame. Decoded, a message of empty parts takes a hundred times its
        // size on the wire, so larger messages are refused.
        .max_message_size(MAX_FRAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_tls_record_is_not_detected() {
        for (bytes, whole) in [
            (&[][..], false),
            (&[22, 3, 1], false),
            (&[22, 3, 1, 0, 2, 1], false),
            (&[22, 3, 1, 0, 2, 1, 0], true),
            (&[22, 3, 1, 0, 2, 1, 0, 9], true),
            (b"GET / HTTP/1.1\r\n", false),
        ] {
            assert_eq!(begins_with_a_record(bytes), whole, "{bytes:?}");
        }
    }
}
