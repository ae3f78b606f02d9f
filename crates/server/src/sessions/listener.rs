//! The link's port: TCP, TLS, HTTP, and the two paths that become WebSockets.

use super::{Questions, connection, enroll};
use crate::app::events::Bell;
use crate::clock::Clock;
use crate::keeper::Keeper;
use crate::metrics::Metrics;
use crate::pki::{Ca, PkiError};
use crate::store::Store;
use axum::extract::{Extension, State, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Router, extract::ws::WebSocket};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use procfleet_proto::link::{BUFFER, ENROLL_PATH, LINK_PATH, MAX_FRAME, MAX_MESSAGE};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tracing::{debug, warn};

/// How long a peer may take from its first byte to an open WebSocket.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How many handshakes are done at once. Beyond it connections wait in the kernel's queue.
const HANDSHAKES: usize = 256;
/// How long a peer may leave our bytes unconfirmed before the kernel gives the connection up.
const USER_TIMEOUT_MS: u32 = 20_000;

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Pki(#[from] PkiError),
}

/// What every connection needs.
#[derive(Clone, Debug)]
pub struct Link {
    pub store: Store,
    pub keeper: Keeper,
    pub ca: Arc<Ca>,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    pub bell: Bell,
    pub questions: Questions,
    pub stop: watch::Receiver<bool>,
}

/// Who is at the other end, as far as TLS knows.
#[derive(Clone, Debug)]
struct Peer {
    certificate: Option<CertificateDer<'static>>,
    ip: IpAddr,
}

impl Link {
    /// Serves connections until told to stop; returns when the last one has ended.
    pub async fn serve(self, listener: TcpListener) -> Result<(), LinkError> {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        let router = Router::new()
            .route(LINK_PATH, any(open_link))
            .route(ENROLL_PATH, any(open_enrolment))
            .with_state(self.clone());
        let mut connections = JoinSet::new();
        let mut stop = self.stop.clone();
        loop {
            let place = handshakes.clone().acquire_owned();
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                accepted = async { (place.await, listener.accept().await) } => accepted,
                // Ended connections are let go of as they end.
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            };
            let (Ok(place), Ok((stream, from))) = accepted else {
                // Out of file descriptors, most likely: the next accept would fail at once, too.
                warn!("accepting an agent's connection failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            // As it is now: a CA may have come or gone.
            let acceptor = TlsAcceptor::from(self.ca.link_tls());
            let (router, metrics) = (router.clone(), self.metrics.clone());
            connections.spawn(async move {
                let handshake = tokio::time::timeout(HANDSHAKE, shake_hands(stream, from, acceptor)).await;
                drop(place);
                match handshake {
                    Ok(Ok((stream, peer))) => serve_connection(stream, peer, router).await,
                    Ok(Err(error)) => {
                        metrics.refused_sessions.inc();
                        warn!(%from, %error, "an agent's TLS handshake was refused");
                    }
                    Err(_) => {
                        metrics.refused_sessions.inc();
                        debug!(%from, "a peer did not finish its handshake");
                    }
                }
            });
        }
        drop(listener);
        // Sessions end with their outboxes; the caller bounds how long this may take.
        while connections.join_next().await.is_some() {}
        Ok(())
    }
}

type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

async fn shake_hands(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: TlsAcceptor,
) -> std::io::Result<(TlsStream, Peer)> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT_MS)?;
    let stream = acceptor.accept(stream).await?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
    Ok((stream, Peer { certificate: certificate.map(CertificateDer::into_owned), ip: from.ip() }))
}

async fn serve_connection(stream: TlsStream, peer: Peer, router: Router) {
    let service = TowerToHyperService::new(router.layer(Extension(peer)));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        debug!(%error, "a connection to the link ended early");
    }
}

async fn open_link(
    State(link): State<Link>,
    Extension(peer): Extension<Peer>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let Some(certificate) = peer.certificate else {
        link.metrics.refused_sessions.inc();
        warn!(from = %peer.ip, "an agent without a certificate was refused");
        let reason =
            "this link needs a client certificate; join with a token first (procfleet agent --token)";
        return (StatusCode::UNAUTHORIZED, reason).into_response();
    };
    bounded(upgrade).on_upgrade(move |socket| connection::run(link, certificate, peer.ip, socket))
}

async fn open_enrolment(
    State(link): State<Link>,
    Extension(peer): Extension<Peer>,
    upgrade: WebSocketUpgrade,
) -> Response {
    bounded(upgrade).on_upgrade(move |socket: WebSocket| enroll::run(link, peer.ip, socket))
}

fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_write_buffer_size(4 * MAX_MESSAGE)
        .max_frame_size(MAX_FRAME)
        .max_message_size(MAX_MESSAGE)
}
