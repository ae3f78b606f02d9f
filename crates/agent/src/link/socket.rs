//! The connection of one session: messages in and out, and the deadline by which the server must be heard.
//!
//! The server pings. A server that is not heard for two and a half of its intervals is left: it may be
//! stopped, powered off or cut off by a firewall, and TCP alone notices none of these in time. The agent does
//! not read while it writes, so a write may take until three intervals have passed.

use super::LinkEnd;
use crate::tls::Socket;
use futures_util::{SinkExt, StreamExt};
use procfleet_proto::link::{BadMessage, agent_message, decode_server, server_message::Body};
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tracing::debug;

/// How long the server may take for its first answer.
const WELCOME: Duration = Duration::from_secs(25);
/// Write timeout. A server that is stopped does not read, and the TCP buffers fill up.
const WRITE: Duration = Duration::from_secs(20);

pub(super) struct LinkSocket {
    socket: Socket,
    last_received: Instant,
    silence_limit: Duration,
    /// Maximum time from the last message of the server to the end of a write.
    write_limit: Duration,
}

impl LinkSocket {
    pub(super) fn new(socket: Socket) -> LinkSocket {
        LinkSocket { socket, last_received: Instant::now(), silence_limit: WELCOME, write_limit: WELCOME }
    }

    /// From now on the server sends something at this interval.
    pub(super) fn expect_heartbeat(&mut self, millis: u64) {
        let interval = Duration::from_millis(millis.clamp(1_000, 600_000));
        (self.silence_limit, self.write_limit) = (interval * 5 / 2, interval * 3);
    }

    /// The next message of a kind that this version knows. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Body, LinkEnd> {
        loop {
            let message = self.socket.next().await;
            self.last_received = Instant::now();
            match message {
                None | Some(Ok(Message::Close(_))) => return Err(LinkEnd::Closed),
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(Message::Binary(bytes))) => match decode_server(&bytes) {
                    Err(BadMessage::Unknown) => debug!("ignored a message of a newer protocol version"),
                    body => return Ok(body?),
                },
                // Pings are answered by the library when the socket is next written or read.
                Some(Ok(_)) => self.flush().await?,
            }
        }
    }

    /// As [`LinkSocket::next`], or the end of the session if the server stays silent.
    pub(super) async fn answer(&mut self) -> Result<Body, LinkEnd> {
        let deadline = Instant::now() + self.silence_limit;
        match tokio::time::timeout_at(deadline.into(), self.next()).await {
            Ok(body) => body,
            Err(_) => Err(LinkEnd::Silent(self.silence_limit)),
        }
    }

    /// The time at which the server has been silent for too long, unless it is heard before.
    pub(super) fn silent_at(&self) -> Instant {
        self.last_received + self.silence_limit
    }

    pub(super) fn silence(&self) -> LinkEnd {
        LinkEnd::Silent(self.last_received.elapsed())
    }

    pub(super) async fn send(&mut self, body: agent_message::Body) -> Result<(), LinkEnd> {
        self.feed(body).await?;
        self.flush().await
    }

    /// As [`LinkSocket::send`], but the message may wait for the next flush.
    pub(super) async fn feed(&mut self, body: agent_message::Body) -> Result<(), LinkEnd> {
        let deadline = self.write_deadline();
        let written = self.socket.feed(Message::Binary(body.into_bytes().into()));
        in_time(deadline, written).await.unwrap_or_else(|| Err(self.silence()))
    }

    pub(super) async fn flush(&mut self) -> Result<(), LinkEnd> {
        let deadline = self.write_deadline();
        in_time(deadline, self.socket.flush()).await.unwrap_or_else(|| Err(self.silence()))
    }

    fn write_deadline(&self) -> Instant {
        (self.last_received + self.write_limit).min(Instant::now() + WRITE)
    }
}

/// `None`: the write was not done in time. A write that needs no waiting is done also after the deadline.
async fn in_time(
    deadline: Instant,
    write: impl Future<Output = Result<(), WsError>>,
) -> Option<Result<(), LinkEnd>> {
    match tokio::time::timeout_at(deadline.into(), write).await {
        Ok(written) => Some(written.map_err(LinkEnd::from)),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_server::FakeServer;
    use crate::tls;
    use procfleet_proto::link::{LINK_PATH, LogRead, Welcome};
    use tokio::net::TcpStream;
    use tokio_rustls::server::TlsStream;
    use tokio_tungstenite::WebSocketStream;

    /// The agent's end, which expects a heartbeat each second, and the server's end.
    async fn connected() -> (LinkSocket, WebSocketStream<TlsStream<TcpStream>>) {
        let server = FakeServer::open().await;
        let address = server.address();
        let tls = tls::with_identity(&server.identity()).expect("our own identity");
        let (socket, peer) = tokio::join!(tls::connect(&address, None, LINK_PATH, tls), server.accept());
        let mut socket = LinkSocket::new(socket.expect("a connection"));
        socket.expect_heartbeat(1_000);
        (socket, peer)
    }

    fn large() -> agent_message::Body {
        agent_message::Body::LogRead(LogRead { bytes: vec![0; 40 * 1024], ..LogRead::default() })
    }

    /// A server that hangs, or whose packets are dropped, is left within 30 s. The limits are compared,
    /// because a busy machine may be late with the end of a session.
    #[tokio::test]
    async fn a_silent_server_is_left_after_two_and_a_half_heartbeats() {
        // `HEARTBEAT` of the server's sessions/connection.rs; a test there asserts the same value.
        const HEARTBEAT_MS: u64 = 10_000;
        const LONGEST: Duration = Duration::from_secs(30);
        let (mut socket, _peer) = Box::pin(connected()).await;
        socket.expect_heartbeat(HEARTBEAT_MS);
        let silence = socket.silent_at() - socket.last_received;
        assert_eq!((silence, socket.write_limit), (Duration::from_secs(25), Duration::from_secs(30)));
        // A session that is idle, that writes, and that waits for its first answer.
        for limit in [silence, socket.write_limit, WELCOME] {
            assert!(limit <= LONGEST, "{limit:?}");
        }
        // A write that begins late gets only the time that is left.
        socket.last_received -= silence;
        assert_eq!(socket.write_deadline(), socket.last_received + socket.write_limit);
    }

    /// As a server that is stopped: the kernel accepts bytes until its buffers are full.
    #[tokio::test]
    async fn a_write_ends_when_the_server_has_been_silent_for_too_long() {
        let (mut socket, _stopped) = Box::pin(connected()).await;
        let began = Instant::now();
        let end = loop {
            if let Err(end) = socket.send(large()).await {
                break end;
            }
        };
        assert!(matches!(end, LinkEnd::Silent(_)), "{end}");
        assert!(
            began.elapsed() >= Duration::from_millis(2_900),
            "not before its time: {:?}",
            began.elapsed()
        );
    }

    #[tokio::test]
    async fn pings_count_as_heard_and_nothing_does_not() {
        let (mut socket, mut peer) = Box::pin(connected()).await;
        let first = socket.silent_at();
        peer.send(Message::Ping("are you there?".into())).await.expect("the agent reads");
        let welcome = Body::Welcome(Welcome { epoch: 7, ..Welcome::default() });
        peer.send(Message::Binary(welcome.clone().into_bytes().into())).await.expect("the agent reads");
        assert_eq!(socket.next().await.expect("a message"), welcome);
        assert!(socket.silent_at() > first);
        let pong = peer.next().await.expect("an answer").expect("a message");
        assert_eq!(pong, Message::Pong("are you there?".into()));
        let end = socket.answer().await.expect_err("the server says no more");
        assert!(matches!(end, LinkEnd::Silent(_)), "{end}");
    }
}
