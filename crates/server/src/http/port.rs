//! The API's port: accepts connections, within a limit, and closes those that ask for nothing.
//!
//! The program's descriptors are shared with the agents' link and the store. Callers that hold connections without using
//! them, by mistake or on purpose, must not take them all.

use super::connections::{Admitted, ConnectionLimiter};
use super::tls::ApiTls;
use crate::peer::PeerNet;
use axum::Router;
use axum::extract::{ConnectInfo, Extension};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

/// How many connections are held at most; beyond it they wait in the kernel's queue. Fewer where descriptors are scarce.
const CONNECTIONS: u64 = 4_096;
/// How long a connection may wait for a request, or for the rest of its head.
const IDLE: Duration = Duration::from_secs(30);
/// How long a TLS handshake may take. Until it is done, the peer is one that has not logged in.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The most that is buffered of a request's head, before anybody knows whose it is.
const HEAD: usize = 64 * 1024;

/// Serves connections until told to stop; returns when the last one has ended.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<ApiTls>,
    mut stop: watch::Receiver<bool>,
) {
    let limiter = ConnectionLimiter::new(most_connections());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => accepted,
            // Ended connections are let go of as they end.
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Ok((stream, from)) = accepted else {
            // Out of file descriptors, most likely: the next accept would fail at once, too.
            warn!("accepting a caller's connection failed");
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        // Only now, when somebody is there who needs it: another may have to give way.
        let admitted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            admitted = limiter.admit(PeerNet::from(from.ip())) => admitted,
        };
        let (router, tls, stop) = (router.clone(), tls.clone(), stop.clone());
        connections.spawn(async move {
            // Answers are written in one piece: waiting for more to send would only delay them.
            let _ = stream.set_nodelay(true);
            let serving = async {
                match tls {
                    None => serve_connection(stream, from, &admitted, router, stop).await,
                    Some(tls) => match timeout(HANDSHAKE, tls.acceptor().accept(stream)).await {
                        Ok(Ok(stream)) => serve_connection(stream, from, &admitted, router, stop).await,
                        Ok(Err(error)) => debug!(%from, %error, "a caller's TLS handshake failed"),
                        Err(_) => debug!(%from, "a caller did not finish its TLS handshake"),
                    },
                }
            };
            tokio::select! {
                biased;
                () = admitted.evicted() => debug!(%from, "a caller that had not logged in gave way to another"),
                () = Box::pin(serving) => {}
            }
        });
    }
    drop(listener);
    // The caller bounds how long this may take.
    while connections.join_next().await.is_some() {}
}

/// At most half of the descriptors that this program may have.
fn most_connections() -> usize {
    let half = getrlimit(Resource::Nofile).current.map_or(CONNECTIONS, |most| most / 2);
    usize::try_from(half.clamp(16, CONNECTIONS)).unwrap_or(16)
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: SocketAddr,
    admitted: &Admitted,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let router = router.layer(Extension(ConnectInfo(from))).layer(Extension(admitted.connection()));
    let service = TowerToHyperService::new(router);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let told_to_stop = async {
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = told_to_stop => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        debug!(%from, %error, "a caller's connection ended early");
    }
}
