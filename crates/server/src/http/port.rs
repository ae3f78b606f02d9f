//! The API's port: accepts connections up to its share of RLIMIT_NOFILE, and closes idle ones. Further
//! connections wait in the kernel's accept queue.

use super::connections::{Admitted, ConnectionLimiter};
use super::requests::{self, Answerer};
use super::tls::ApiTls;
use crate::files::FileShares;
use crate::handshake;
use crate::metrics::ServerPort;
use crate::peer::PeerNet;
use crate::proxies::TrustedProxies;
use axum::Router;
use procfleet_program::panics;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

/// Time limit of a TLS handshake. Until it is done, the peer counts as one without a login.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// TCP_USER_TIMEOUT: how long sent bytes may stay unacknowledged, or the peer's receive window closed, before
/// the kernel closes the connection. Otherwise a peer that does not read keeps its answers in memory.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves connections until told to stop; returns when the last one has ended.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<ApiTls>,
    proxies: TrustedProxies,
    mut stop: watch::Receiver<bool>,
) {
    let limiter = ConnectionLimiter::new(FileShares::of_this_process().callers as usize);
    let mut connections = JoinSet::new();
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
                warn!(%error, "cannot accept a caller's connection; trying again in 1 s");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        // After the accept: taking a slot may evict another peer.
        let admitted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            admitted = limiter.admit(PeerNet::from(from.ip())) => admitted,
        };
        let (router, proxies) = (router.clone(), proxies.clone());
        let (acceptor, stop) = (tls.as_ref().map(|tls| tls.acceptor().clone()), stop.clone());
        connections.spawn(panics::contain(async move {
            if let Err(error) = set_options(&stream, USER_TIMEOUT) {
                debug!(%from, %error, "a caller's connection ended early");
                return;
            }
            let Some((stream, from)) = find_origin(stream, from, &proxies, &admitted).await else { return };
            let answerer = Answerer { router, from, connection: admitted.connection() };
            tokio::select! {
                biased;
                () = admitted.evicted() => debug!(%from, "a connection without a login was evicted for another"),
                () = serve_connection(stream, acceptor, answerer, stop) => {}
            }
        }));
    }
    drop(listener);
    // The caller bounds how long this may take.
    while connections.join_next().await.is_some() {}
}

fn set_options(stream: &TcpStream, user_timeout: Duration) -> std::io::Result<()> {
    // Answers are written in one piece: Nagle's algorithm would only delay them.
    stream.set_nodelay(true)?;
    let milliseconds = u32::try_from(user_timeout.as_millis()).unwrap_or(u32::MAX);
    Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, milliseconds)?)
}

/// Reads the PROXY header where one is due. From here on, the address that it names is the peer's.
async fn find_origin(
    mut stream: TcpStream,
    from: SocketAddr,
    proxies: &TrustedProxies,
    admitted: &Admitted,
) -> Option<(TcpStream, SocketAddr)> {
    let origin = tokio::select! {
        biased;
        () = admitted.evicted() => {
            debug!(%from, "a proxy's connection without a header was evicted for another");
            return None;
        }
        origin = proxies.origin(&mut stream, from, ServerPort::Api) => origin?,
    };
    admitted.count_for(PeerNet::from(origin.address.ip()));
    Some((stream, origin.address))
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    answerer: Answerer,
    stop: watch::Receiver<bool>,
) {
    let Some(acceptor) = acceptor else { return requests::serve(stream, answerer, stop).await };
    let from = answerer.from;
    match timeout(HANDSHAKE, handshake::accept(&acceptor, stream)).await {
        // On the heap: its future is larger than that of the handshake.
        Ok(Ok(stream)) => Box::pin(requests::serve(stream, answerer, stop)).await,
        Ok(Err(error)) => debug!(%from, %error, "a caller's TLS handshake failed"),
        Err(_) => debug!(%from, "a caller did not finish its TLS handshake"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_testkit::PATIENCE;
    use std::io::ErrorKind;
    use tokio::io::AsyncWriteExt;

    /// More than the buffers of both ends hold.
    const ANSWER: usize = 64 << 20;

    #[tokio::test]
    async fn the_kernel_ends_a_connection_whose_peer_reads_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let _peer = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let (mut stream, _) = listener.accept().await.expect("the peer");
        set_options(&stream, Duration::from_secs(1)).expect("options of TCP");
        let written = timeout(PATIENCE, stream.write_all(&vec![0; ANSWER])).await;
        let ended = written.expect("it ends").expect_err("nobody reads");
        assert_eq!(ended.kind(), ErrorKind::TimedOut, "{ended}");
    }
}
