//! TLS handshakes of unauthenticated peers: nothing is buffered before their first byte, and a bounded number
//! of bytes afterwards.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

/// Maximum number of bytes from a peer until its handshake is done: a hello, and the certificates of an
/// agent.
const MOST: usize = 32 * 1024;

/// A stream with a limit on the bytes that may be read.
#[derive(Debug)]
pub(crate) struct Metered {
    stream: TcpStream,
    /// `None`: the handshake is done, and other limits apply.
    left: Option<usize>,
}

/// Waits for the first byte, then performs the handshake.
pub(crate) async fn accept(acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<TlsStream<Metered>> {
    stream.readable().await?;
    let metered = Metered { stream, left: Some(MOST) };
    // On the heap, and freed when the handshake is done.
    let mut stream = Box::pin(acceptor.accept(metered)).await?;
    stream.get_mut().0.left = None;
    Ok(stream)
}

/// As [`accept`], with the configuration for the name that the peer asks for (SNI).
pub(crate) async fn accept_by_name(
    stream: TcpStream,
    choose: impl FnOnce(Option<&str>) -> io::Result<Arc<ServerConfig>>,
) -> io::Result<TlsStream<Metered>> {
    stream.readable().await?;
    let metered = Metered { stream, left: Some(MOST) };
    let handshake = async move {
        let started = LazyConfigAcceptor::new(Acceptor::default(), metered).await?;
        let config = choose(started.client_hello().server_name())?;
        started.into_stream(config).await
    };
    let mut stream = Box::pin(handshake).await?;
    stream.get_mut().0.left = None;
    Ok(stream)
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if let Some(left) = self.left {
            let read = buffer.filled().len() - before;
            let Some(left) = left.checked_sub(read) else {
                return Poll::Ready(Err(io::Error::other("the handshake is too large")));
            };
            self.left = Some(left);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
