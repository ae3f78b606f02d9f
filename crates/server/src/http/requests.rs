//! Serves the requests of one connection. Its HTTP buffers exist only while a request is in progress.
//!
//! ```text
//! waiting --first byte--> serving --idle for PARK_AFTER--> waiting --IDLE--> closed
//! ```
//!
//! While it waits, a connection needs a socket (and a TLS session) and a buffer of one byte. hyper's read and
//! write buffers, of 8 KiB each at least and up to 64 KiB after a large body, are created with the first byte
//! of a request and freed when the connection is idle.

use super::connections::ConnectionInfo;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::{Buf, Bytes};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::debug;

/// Time limit for the next request of an idle connection, and for the rest of a request's head.
const IDLE: Duration = Duration::from_secs(30);
/// How long a connection keeps its buffers after an answer.
const PARK_AFTER: Duration = Duration::from_secs(1);
/// Maximum size of a request's head, which is buffered before its sender is authenticated.
const HEAD: usize = 64 * 1024;
/// The number of larger heads is bounded.
const USUAL_HEAD: usize = 16 * 1024;
/// How long a connection that is being closed may take to flush.
const CLOSING: Duration = Duration::from_secs(1);

/// The origin of a connection, and the router that answers it.
#[derive(Clone)]
pub(super) struct Answerer {
    pub(super) router: Router,
    pub(super) from: SocketAddr,
    pub(super) connection: ConnectionInfo,
}

/// Serves a connection until its end, or until the server stops.
pub(super) async fn serve<S>(mut stream: S, answerer: Answerer, mut stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut ahead = Bytes::new();
    loop {
        if ahead.is_empty() {
            let mut first = [0];
            let read = tokio::select! {
                biased;
                () = told_to_stop(&mut stop) => None,
                read = timeout(IDLE, stream.read(&mut first)) => read.ok(),
            };
            match read {
                Some(Ok(1)) => ahead = Bytes::copy_from_slice(&first),
                Some(Ok(_)) | None => {
                    let _ = timeout(CLOSING, stream.shutdown()).await;
                    return;
                }
                Some(Err(error)) => {
                    debug!(from = %answerer.from, %error, "a caller's connection ended early");
                    return;
                }
            }
        }
        // On the heap, and freed while the connection waits.
        match Box::pin(serve_requests(stream, ahead, &answerer, stop.clone())).await {
            ServedStream::Idle { stream: idle, unread } => (stream, ahead) = (idle, unread),
            ServedStream::Ended => return,
        }
    }
}

enum ServedStream<S> {
    Idle {
        stream: S,
        /// The beginning of a pipelined request.
        unread: Bytes,
    },
    Ended,
}

async fn serve_requests<S>(
    stream: S,
    ahead: Bytes,
    answerer: &Answerer,
    mut stop: watch::Receiver<bool>,
) -> ServedStream<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Answerer { router, from, connection: peer } = answerer.clone();
    let activity = Arc::new(ConnectionActivity::default());
    let watched = WatchedStream { stream, ahead, activity: activity.clone(), peer: peer.clone() };
    let (inner, answering) = (TowerToHyperService::new(router), activity.clone());
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(from));
        request.extensions_mut().insert(peer.clone());
        let open = OpenRequest::new(answering.clone(), peer.clone());
        let answer = inner.call(request);
        async move { answer.await.map(|answer| answer.map(|body| AnswerBody { body, _open: open })) }
    });
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(watched), service);
    let mut answered = 0;
    let served = loop {
        tokio::select! {
            biased;
            served = &mut connection => break served,
            () = told_to_stop(&mut stop) => {
                Pin::new(&mut connection).graceful_shutdown();
                break connection.await;
            }
            () = tokio::time::sleep(PARK_AFTER) => match activity.idle_after() {
                Some(now) if now == answered => {
                    let parts = connection.into_parts();
                    let WatchedStream { stream, .. } = parts.io.into_inner();
                    return ServedStream::Idle { stream, unread: parts.read_buf };
                }
                Some(now) => answered = now,
                None => {}
            },
        }
    };
    if let Err(error) = served {
        debug!(%from, %error, "a caller's connection ended early");
    }
    ServedStream::Ended
}

async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// State of hyper's work on one connection.
#[derive(Debug, Default)]
struct ConnectionActivity {
    /// Requests whose answer is not completely written.
    open: AtomicUsize,
    answered: AtomicU64,
    /// Bytes received since the last answer and before the next request.
    head: AtomicUsize,
    unflushed: AtomicBool,
}

impl ConnectionActivity {
    /// The number of answers, if the connection waits for its next request; otherwise `None`.
    fn idle_after(&self) -> Option<u64> {
        let busy = self.open.load(Ordering::Relaxed) > 0
            || self.head.load(Ordering::Relaxed) > 0
            || self.unflushed.load(Ordering::Relaxed);
        Some(self.answered.load(Ordering::Relaxed)).filter(|answered| !busy && *answered > 0)
    }
}

/// A request that is being answered.
#[derive(Debug)]
struct OpenRequest {
    activity: Arc<ConnectionActivity>,
    peer: ConnectionInfo,
}

impl OpenRequest {
    fn new(activity: Arc<ConnectionActivity>, peer: ConnectionInfo) -> OpenRequest {
        activity.open.fetch_add(1, Ordering::Relaxed);
        activity.head.store(0, Ordering::Relaxed);
        OpenRequest { activity, peer }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.peer.head_ended();
        self.activity.answered.fetch_add(1, Ordering::Relaxed);
        self.activity.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer's body; its request is open until the last frame was taken.
struct AnswerBody {
    body: Body,
    _open: OpenRequest,
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that first returns the bytes that were read ahead, and records what hyper does with it.
#[derive(Debug)]
struct WatchedStream<S> {
    stream: S,
    ahead: Bytes,
    activity: Arc<ConnectionActivity>,
    peer: ConnectionInfo,
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let length = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead[..length]);
            self.ahead.advance(length);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let came = buffer.filled().len() - before;
        if self.activity.open.load(Ordering::Relaxed) == 0 {
            let head = self.activity.head.fetch_add(came, Ordering::Relaxed) + came;
            if head > USUAL_HEAD && !self.peer.admits_large_head() {
                return Poll::Ready(Err(io::Error::other("too many large request heads at once")));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.activity.unflushed.store(true, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.activity.unflushed.store(true, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.activity.unflushed.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
