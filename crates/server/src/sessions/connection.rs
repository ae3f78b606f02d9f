//! One agent's session: hello, welcome, then reports in and ops out until either side ends it.

use super::Link;
use super::certificates::{self, CertificateAge};
use super::clones;
use super::handshake_limiter::HandshakeSlot;
use super::intake::Intake;
use super::questions::QuestionCapabilities;
use super::readmission;
use super::session_end::SessionEnd;
use crate::agent_limits;
use crate::dispatcher::{AgentCapabilities, DispatcherMessage, RETIRED, revoked};
use crate::pki;
use crate::presences::LastHeard;
use crate::secret;
use crate::session_channel::{CutReason, SessionReceiver, SessionSender};
use axum::extract::ws::{Message, WebSocket};
use futures_util::{Sink, SinkExt, StreamExt};
use procfleet_core::id::{AgentId, Epoch, OpId};
use procfleet_failpoint::{Point, hit};
use procfleet_program::panics;
use procfleet_proto::link::{
    BadMessage, Hello, Refused, ServerList, Welcome, agent_message, decode_agent, server_message::Body,
};
use procfleet_store::ServerTerm;
use procfleet_store::clock::WallMs;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, timeout};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tracing::{Instrument, info, info_span, warn};

const HELLO: Duration = Duration::from_secs(20);
/// How long an agent may take to renew an expired certificate. Such a session holds no slot of the handshake
/// limiter, so a short limit bounds their number.
const RENEWAL: Duration = Duration::from_secs(10);
/// How often a server that may not send looks whether it may again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Interval of the WebSocket pings. Agents leave after two and a half intervals without a message. Do not
/// shorten it: a server that is busy taking over the agents of a dead server would lose its own agents.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A session ends at the first ping that finds the agent silent for more than this, which is at most 30 s
/// after its last message: a host that hangs or is cut off shows as away within 35 s.
const AGENT_SILENCE: Duration = Duration::from_secs(20);
/// Time limit of one write. The session of a slower reader is cut, and the agent gets the rest in its next
/// session.
const WRITE: Duration = Duration::from_secs(20);

/// The socket of a session that is open.
struct SessionSocket {
    socket: WebSocket,
    buffer: WriteBuffer,
}

/// Messages that were handed to the socket and not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteBuffer {
    Empty,
    /// The next write of any message would send them, too.
    HasMessages,
}

/// `slot`: the slot of the handshake, released after the hello.
pub(super) async fn run(
    link: Link,
    certificate: CertificateDer<'static>,
    ip: IpAddr,
    slot: Arc<HandshakeSlot>,
    mut socket: WebSocket,
) {
    // Futures that run once in a session are boxed, so that ten thousand sessions do not keep their memory.
    let Ok(hello) = slot.wait_for(Box::pin(read_hello(&mut socket))).await else { return };
    let greeting = match hello {
        Ok(hello) => Box::pin(greet(&link, &certificate, ip, hello)).await,
        Err(end) => Err(end),
    };
    drop((slot, certificate));
    let (agent, hello, certificate_age) = match greeting {
        Ok(greeting) => greeting,
        // Without a `Refused`: a refused agent would back off from all servers, for up to a minute.
        Err(SessionEnd::Unchecked(error)) => {
            if link.refusal_log.admits_a_line() {
                warn!(
                    from = %ip,
                    error = &error as &dyn std::error::Error,
                    "cannot check an agent because the store does not answer; closed the agent's connection, the agent will retry"
                );
            }
            Box::pin(send_close(&mut socket, None)).await;
            return;
        }
        Err(end) => {
            link.metrics.refused_sessions.inc();
            if link.refusal_log.admits_a_line() {
                warn!(from = %ip, reason = %end, "an agent's session was refused");
            }
            let refused = Body::Refused(Refused { reason: end.to_string() });
            Box::pin(send_close(&mut socket, Some(refused))).await;
            return;
        }
    };
    let span = info_span!("session", %agent);
    async {
        let renew_in = match certificate_age {
            CertificateAge::Good { renew_in } => renew_in,
            CertificateAge::Expired => {
                let end = Box::pin(renew_only(&link, &agent, &mut socket)).await;
                info!(from = %ip, reason = %end, "an agent with an expired certificate connected to renew it");
                Box::pin(send_close(&mut socket, None)).await;
                return;
            }
        };
        // Before the session is stored: it may be stored in a later term, which costs a reconnect.
        let term = link.store.membership().term();
        let Some(epoch) = Box::pin(record_connected(&link, &agent, &hello)).await else { return };
        info!(from = %ip, version = %hello.version, epoch = epoch.0, "agent connected");
        let heard = LastHeard::at(link.clock.wall());
        let containment = hello.host.as_ref().map_or("", |facts| &facts.containment);
        let _counted = link.metrics.session(containment);
        let mut socket = SessionSocket { socket, buffer: WriteBuffer::Empty };
        let session = open(&link, &agent, (term, epoch), hello, renew_in, &heard, &mut socket);
        // The dispatcher must learn of the end of the session, also after a panic.
        let end = panics::catch(session).await.unwrap_or_else(SessionEnd::Panicked);
        link.questions.gone(&agent, epoch);
        Box::pin(leave(&link, &agent, epoch, heard.get(), end, socket)).await;
    }
    .instrument(span)
    .await;
}

/// An agent that claims a higher epoch harms only itself, but must not exhaust the numbers.
const HIGHEST_EPOCH: u64 = 1 << 53;

async fn record_connected(link: &Link, agent: &AgentId, hello: &Hello) -> Option<Epoch> {
    let (mut facts, now) = (hello.host.clone(), link.clock.wall());
    if let Some(facts) = &mut facts {
        agent_limits::bound_facts(facts, now / 1_000);
    }
    let facts = serde_json::to_string(&facts).expect("a few texts and numbers are JSON");
    match link
        .store
        .agent_connected(agent, &hello.version, &facts, now, Epoch(hello.highest_epoch.min(HIGHEST_EPOCH)))
        .await
    {
        Ok(epoch) => Some(epoch),
        Err(error) => {
            warn!(
                error = &error as &dyn std::error::Error,
                "storing the start of a session failed; the session was closed"
            );
            // The session may be stored in spite of the error.
            link.dispatcher.send(DispatcherMessage::Gone { agent: agent.clone(), epoch: Epoch(0) }).await;
            None
        }
    }
}

async fn leave(
    link: &Link,
    agent: &AgentId,
    epoch: Epoch,
    heard: WallMs,
    end: SessionEnd,
    socket: SessionSocket,
) {
    let SessionSocket { mut socket, buffer } = socket;
    link.dispatcher.send(DispatcherMessage::Gone { agent: agent.clone(), epoch }).await;
    if let Err(error) = link.store.agent_disconnected(agent, epoch, link.clock.reading(), heard).await {
        warn!(error = &error as &dyn std::error::Error, "storing the end of a session failed");
    }
    info!(reason = %end, epoch = epoch.0, "agent disconnected");
    if let Some(reason) = end.fault() {
        link.metrics.cut(reason);
    }
    // This server may not be allowed to send the ops in the buffer any longer.
    if buffer == WriteBuffer::HasMessages {
        return;
    }
    let last = match end {
        SessionEnd::Refused(reason) => Some(Body::Refused(Refused { reason })),
        // A slow agent would not read the reason either.
        SessionEnd::Cut(CutReason::Slow) => return,
        SessionEnd::Cut(reason) => Some(Body::Refused(Refused { reason: reason.to_string() })),
        SessionEnd::Excess(excess) => Some(Body::Refused(Refused { reason: excess.to_string() })),
        SessionEnd::Protocol(_)
        | SessionEnd::Garbled(_)
        | SessionEnd::Oversized(_)
        | SessionEnd::Broken(_)
        | SessionEnd::Silent(_)
        | SessionEnd::Closed
        | SessionEnd::Dropped
        | SessionEnd::HeldBack
        | SessionEnd::Unchecked(_)
        | SessionEnd::Panicked(_) => None,
    };
    send_close(&mut socket, last).await;
}

async fn send_close(socket: &mut WebSocket, last: Option<Body>) {
    let words = async {
        if let Some(body) = last {
            let _ = send(socket, body).await;
        }
        let _ = socket.send(Message::Close(None)).await;
    };
    let _ = timeout(WRITE, words).await;
}

async fn read_hello(socket: &mut WebSocket) -> Result<Hello, SessionEnd> {
    match timeout(HELLO, next(socket)).await {
        Ok(Ok(agent_message::Body::Hello(hello))) => Ok(hello),
        Ok(Ok(_)) => Err(SessionEnd::Refused("the first message must be a hello".to_owned())),
        Ok(Err(end)) => Err(end),
        Err(_) => Err(SessionEnd::Silent(HELLO)),
    }
}

/// Checks a hello against the client certificate.
async fn greet(
    link: &Link,
    certificate: &CertificateDer<'static>,
    ip: IpAddr,
    mut hello: Hello,
) -> Result<(AgentId, Hello, CertificateAge), SessionEnd> {
    agent_limits::check_hello(&mut hello)?;
    let named = pki::agent_of(certificate)
        .ok_or_else(|| SessionEnd::Refused("the certificate names no agent".to_owned()))?;
    if hello.agent != named.as_str() {
        return Err(SessionEnd::Refused(format!(
            "the certificate is for agent {named}, not for the one that says hello"
        )));
    }
    let sha256 = secret::hash(certificate);
    let mut found = link.store.agent_with_certificate(&named, sha256).await?;
    if !matches!(found, Some((_, Some(_)))) && readmission::is_open(link).await {
        readmission::readmit(link, &named, certificate, &hello, ip).await?;
        found = link.store.agent_with_certificate(&named, sha256).await?;
    }
    let Some((record, shown)) = found else {
        let hint = readmission::hint(link).await;
        return Err(SessionEnd::Refused(format!("agent {named} is not known here{hint}")));
    };
    if let Some(why) = &record.revoked {
        return Err(SessionEnd::Refused(format!("agent {named} {}", revoked(&why.why))));
    }
    if record.retired_at.is_some() {
        return Err(SessionEnd::Refused(format!("agent {named} {RETIRED}")));
    }
    let Some(shown) = shown else {
        let hint = readmission::hint(link).await;
        return Err(SessionEnd::Refused(format!("this is not a present certificate of agent {named}{hint}")));
    };
    let certificate_age = certificates::age(link, certificate, &shown);
    if certificate_age == CertificateAge::Expired && !hello.renews {
        let reason = "has expired, and this version of the agent cannot renew it; join again with a token";
        return Err(SessionEnd::Refused(format!("the certificate of agent {named} {reason}")));
    }
    if record.certificate_sha256 != sha256 {
        link.store.use_certificate(&named, sha256).await?;
    }
    if certificate_age != CertificateAge::Expired
        && let Some(why) = clones::revoke_if_cloned(link, &named, &hello, ip).await?
    {
        return Err(SessionEnd::Refused(format!("agent {named} {why}")));
    }
    Ok((named, hello, certificate_age))
}

/// A session in which the agent can only ask for a new certificate. Its next session is an ordinary one.
async fn renew_only(link: &Link, agent: &AgentId, socket: &mut WebSocket) -> SessionEnd {
    let renewing = async {
        send(socket, certificates::ask_for_renewal(Duration::ZERO)).await.map_err(SessionEnd::Broken)?;
        loop {
            let agent_message::Body::Renew(request) = next(socket).await? else {
                return Err(SessionEnd::Refused(
                    "its certificate has expired, and it may only renew it".to_owned(),
                ));
            };
            if let Some(answer) = certificates::renew(link, agent, request).await? {
                send(socket, answer).await.map_err(SessionEnd::Broken)?;
            }
        }
    };
    let renewed: Result<Result<std::convert::Infallible, SessionEnd>, _> = timeout(RENEWAL, renewing).await;
    match renewed {
        Ok(Ok(never)) => match never {},
        Ok(Err(end)) => end,
        Err(_) => SessionEnd::Silent(RENEWAL),
    }
}

/// Sends the welcome, registers the session with the dispatcher, and serves it until it ends.
async fn open(
    link: &Link,
    agent: &AgentId,
    (term, epoch): (ServerTerm, Epoch),
    hello: Hello,
    renew_in: Duration,
    heard: &LastHeard,
    socket: &mut SessionSocket,
) -> SessionEnd {
    let mut servers = link.store.membership().advertised();
    let welcome = Welcome {
        epoch: epoch.0,
        server_time: link.clock.wall(),
        heartbeat_ms: u64::try_from(HEARTBEAT.as_millis()).unwrap_or(u64::MAX),
        takes_events: true,
        renew_in_ms: Some(certificates::millis(renew_in)),
        limits_accounts: true,
        servers: servers.borrow_and_update().to_vec(),
    };
    if let Err(end) = in_time(send(&mut socket.socket, Body::Welcome(welcome))).await {
        return end;
    }
    let taken = hello.taken.iter().filter_map(|op| op.parse::<OpId>().ok()).collect();
    let question_capabilities = QuestionCapabilities {
        logs: hello.reads_logs,
        specs: hello.changes_specs,
        accounts: hello.limits_accounts,
    };
    let capabilities = AgentCapabilities {
        cancels: hello.cancels,
        changes: hello.changes_specs,
        limits_accounts: hello.limits_accounts,
    };
    let news = News { renews: hello.renews, servers, cas: link.ca.changes() };
    drop(hello);
    let (outbox, orders, cut) = SessionSender::for_session();
    link.questions.connected(agent, epoch, &outbox, question_capabilities);
    let connected = DispatcherMessage::Connected {
        agent: agent.clone(),
        term,
        epoch,
        sender: outbox,
        taken,
        heard: heard.clone(),
        capabilities,
    };
    link.dispatcher.send(connected).await;
    cut.during(serve(link, agent, epoch, news, orders, heard, socket)).await.unwrap_or_else(SessionEnd::Cut)
}

/// Changes that an agent is told about during its session.
struct News {
    /// The agent's version renews its certificate when there is a new CA.
    renews: bool,
    cas: watch::Receiver<u64>,
    /// The servers of the fleet, of which the welcome has named the first list.
    servers: watch::Receiver<Arc<[String]>>,
}

impl News {
    /// The next message for the agent. The session polls this one future until it is ready: a new
    /// `changed()` future in each turn of the loop would lock the waiter list that all sessions share.
    async fn next(mut self, link: &Link) -> (News, Body) {
        let body = tokio::select! {
            Ok(()) = self.cas.changed(), if self.renews => certificates::ask_for_renewal(certificates::soon(link)),
            Ok(()) = self.servers.changed() => {
                Body::ServerList(ServerList { servers: self.servers.borrow_and_update().to_vec() })
            }
            else => std::future::pending().await,
        };
        (self, body)
    }
}

/// The loop of a session: ops and pings out, messages of the agent in.
async fn serve(
    link: &Link,
    agent: &AgentId,
    epoch: Epoch,
    news: News,
    mut receiver: SessionReceiver,
    last_heard: &LastHeard,
    socket: &mut SessionSocket,
) -> SessionEnd {
    let SessionSocket { socket, buffer } = socket;
    let mut next_news = pin!(news.next(link));
    let mut intake = Intake::begin(link, agent, last_heard.clone());
    let mut parked: Option<Parked> = None;
    let may_act = || link.store.membership().may_act();
    // Start of the silence. Reset after every store write and pause, since nothing is read from the socket
    // meanwhile.
    let mut silent_since = Instant::now();
    // Jitter, so that ten thousand sessions do not ping at once.
    let jitter = HEARTBEAT.mul_f64(f64::from(secret::random::<1>()[0]) / 255.0);
    let mut beat = tokio::time::interval_at(Instant::now() + jitter, HEARTBEAT);
    // No burst of pings after a long store write.
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_overdue = false;
    loop {
        let done = tokio::select! {
            // Ops first: they are few, and a flood of reports must not delay a stop.
            biased;
            order = receiver.recv(), if parked.is_none() => match order {
                None => return SessionEnd::Dropped,
                Some(order) => {
                    let sent = in_time(send_all(socket, buffer, order, &mut receiver, may_act)).await;
                    sent.and_then(QueueWrite::unsent).map(|unsent| parked = unsent.map(Parked::new))
                }
            },
            () = until(parked.as_ref().map(|parked| parked.retry_at)) => match parked.take() {
                Some(Parked { order, .. }) => {
                    let sent = in_time(send_all(socket, buffer, order, &mut receiver, may_act)).await;
                    sent.and_then(QueueWrite::unsent).map(|unsent| parked = unsent.map(Parked::new))
                }
                None => Ok(()),
            },
            _ = beat.tick() => {
                is_overdue = !intake.is_paused() && silent_since.elapsed() > AGENT_SILENCE;
                // A write to a host that hangs may take long.
                if is_overdue { Ok(()) } else { ping(socket).await }
            }
            (news, body) = &mut next_news => {
                next_news.set(news.next(link));
                in_time(send(socket, body)).await
            }
            () = until(intake.wake_at()) => {
                if intake.is_paused() {
                    // Nothing was read during the pause.
                    silent_since = Instant::now();
                }
                let resumed = Box::pin(intake.resume(link, agent, epoch));
                let resumed = beating(socket, &mut beat, resumed).await;
                answered(socket, resumed).await
            }
            message = socket.next(), if !intake.is_paused() => {
                (silent_since, is_overdue) = (Instant::now(), false);
                last_heard.set(link.clock.wall());
                let (body, size) = match message {
                    None | Some(Ok(Message::Close(_))) => return SessionEnd::Closed,
                    Some(Err(error)) => return SessionEnd::of_socket(error),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(Message::Text(_))) => return SessionEnd::Protocol(BadMessage::Empty),
                    Some(Ok(Message::Binary(bytes))) => match decode_agent(&bytes) {
                        Ok(body) => (body, bytes.len()),
                        Err(BadMessage::Unknown) => {
                            intake.skip(link, agent, bytes.len());
                            continue;
                        }
                        Err(error) => return SessionEnd::Protocol(error),
                    },
                };
                let handled = Box::pin(intake.handle(link, agent, epoch, body, size));
                let handled = beating(socket, &mut beat, handled).await;
                let handled = answered(socket, handled).await;
                // A slow store does not count as silence of the agent.
                silent_since = Instant::now();
                handled
            }
            // After a last look at the socket: a busy server may not have read the agent's messages yet.
            () = tokio::task::yield_now(), if is_overdue => {
                return SessionEnd::Silent(silent_since.elapsed());
            }
        };
        if let Err(end) = done {
            return end;
        }
    }
}

/// A message that waits until this server may send again.
struct Parked {
    order: Body,
    /// A deadline, not a duration: a new sleep would start at each message of the agent and never end.
    retry_at: Instant,
}

impl Parked {
    fn new(order: Body) -> Parked {
        Parked { order, retry_at: Instant::now() + LOOK_AGAIN }
    }
}

async fn ping(socket: &mut WebSocket) -> Result<(), SessionEnd> {
    in_time(socket.send(Message::Ping(bytes::Bytes::new()))).await
}

/// Goes on pinging while the store is slow: else all agents would leave a server that waits for its database.
async fn beating<T>(
    socket: &mut WebSocket,
    beat: &mut Interval,
    mut work: Pin<Box<impl Future<Output = Result<T, SessionEnd>>>>,
) -> Result<T, SessionEnd> {
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = beat.tick() => ping(socket).await?,
        }
    }
}

/// Waits forever without a deadline.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn answered(
    socket: &mut WebSocket,
    answer: Result<Option<Body>, SessionEnd>,
) -> Result<(), SessionEnd> {
    match answer? {
        Some(body) => in_time(send(socket, body)).await,
        None => Ok(()),
    }
}

/// Boxed, because a session rarely writes and mostly waits.
async fn in_time<T>(write: impl Future<Output = Result<T, axum::Error>>) -> Result<T, SessionEnd> {
    match Box::pin(timeout(WRITE, write)).await {
        Ok(written) => written.map_err(SessionEnd::Broken),
        Err(_) => Err(SessionEnd::Cut(CutReason::Slow)),
    }
}

async fn next(socket: &mut WebSocket) -> Result<agent_message::Body, SessionEnd> {
    loop {
        match socket.next().await {
            None | Some(Ok(Message::Close(_))) => return Err(SessionEnd::Closed),
            Some(Err(error)) => return Err(SessionEnd::of_socket(error)),
            Some(Ok(Message::Binary(bytes))) => return Ok(decode_agent(&bytes)?),
            Some(Ok(Message::Text(_))) => return Err(SessionEnd::Protocol(BadMessage::Empty)),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
        }
    }
}

async fn send(socket: &mut WebSocket, body: Body) -> Result<(), axum::Error> {
    socket.send(Message::Binary(body.into_bytes().into())).await
}

/// Result of [`send_all`].
#[derive(Debug, PartialEq)]
enum QueueWrite {
    /// Flushed. `Some`: the first message that was not written, to be sent when this server may send again.
    Sent(Option<Body>),
    /// Messages are in the socket's buffer, and this server may not send them any longer.
    HeldBack,
}

impl QueueWrite {
    fn unsent(self) -> Result<Option<Body>, SessionEnd> {
        match self {
            QueueWrite::Sent(unsent) => Ok(unsent),
            QueueWrite::HeldBack => Err(SessionEnd::HeldBack),
        }
    }
}

/// Writes all queued messages, then flushes once. `may_act` is checked before each message and again before
/// the flush: after a SIGSTOP of this process, other servers may have decided about the ops in the queue.
async fn send_all<S: Sink<Message> + Unpin>(
    socket: &mut S,
    buffer: &mut WriteBuffer,
    first: Body,
    receiver: &mut SessionReceiver,
    may_act: impl Fn() -> bool,
) -> Result<QueueWrite, S::Error> {
    let (mut ops, mut acks) = (false, false);
    let mut next = Some(first);
    while let Some(order) = next.take_if(|_| may_act()) {
        ops |= is_op(&order);
        acks |= is_ack(&order);
        *buffer = WriteBuffer::HasMessages;
        socket.feed(Message::Binary(order.into_bytes().into())).await?;
        next = receiver.try_recv();
    }
    if *buffer == WriteBuffer::HasMessages && !may_act() {
        return Ok(QueueWrite::HeldBack);
    }
    socket.flush().await?;
    *buffer = WriteBuffer::Empty;
    if ops {
        hit(Point::ServerOpSent);
    }
    if acks {
        hit(Point::ServerAckSent);
    }
    Ok(QueueWrite::Sent(next))
}

fn is_op(body: &Body) -> bool {
    matches!(body, Body::Op(_))
}

fn is_ack(body: &Body) -> bool {
    matches!(body, Body::Ack(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_proto::link::{Op, decode_server};
    use std::cell::Cell;
    use std::task::{Context, Poll};

    fn op(number: u32) -> Body {
        Body::Op(Op { id: format!("20261116120000-1-{number}"), ..Op::default() })
    }

    fn bodies(messages: &[Message]) -> Vec<Body> {
        let bodies = messages.iter().map(|message| match message {
            Message::Binary(bytes) => decode_server(bytes).expect("our own message"),
            other => panic!("{other:?}"),
        });
        bodies.collect()
    }

    /// A socket with a buffer, as that of a session.
    #[derive(Default)]
    struct BufferedSink {
        fed: Vec<Message>,
        sent: Vec<Message>,
    }

    impl Sink<Message> for BufferedSink {
        type Error = std::convert::Infallible;

        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Self::Error> {
            self.fed.push(message);
            Ok(())
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            let fed = std::mem::take(&mut self.fed);
            self.sent.extend(fed);
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            self.poll_flush(context)
        }
    }

    /// A process may be stopped at any point, and others decide about its ops meanwhile.
    #[tokio::test]
    async fn nothing_leaves_a_server_that_may_not_send_any_longer() {
        // The sender asks `may_act` before each of three messages, and before the flush.
        for (may_send, written, buffer) in [
            (0, QueueWrite::Sent(Some(op(0))), WriteBuffer::Empty),
            (1, QueueWrite::HeldBack, WriteBuffer::HasMessages),
            (2, QueueWrite::HeldBack, WriteBuffer::HasMessages),
            (3, QueueWrite::HeldBack, WriteBuffer::HasMessages),
            (4, QueueWrite::Sent(None), WriteBuffer::Empty),
        ] {
            let (sender, mut receiver, _cut) = SessionSender::for_session();
            for number in [1, 2] {
                sender.try_send(op(number)).expect("the queue has capacity");
            }
            let asked = Cell::new(0);
            let may_act = || asked.replace(asked.get() + 1) < may_send;
            let (mut socket, mut found) = (BufferedSink::default(), WriteBuffer::Empty);
            let Ok(result) = send_all(&mut socket, &mut found, op(0), &mut receiver, may_act).await;
            let all = written == QueueWrite::Sent(None);
            assert_eq!((result, found), (written, buffer), "{may_send}");
            assert_eq!(bodies(&socket.sent), (0..if all { 3 } else { 0 }).map(op).collect::<Vec<_>>());
            if may_send == 0 {
                let rest: Vec<Body> = std::iter::from_fn(|| receiver.try_recv()).collect();
                assert_eq!(rest, [op(1), op(2)], "in order, and nothing is lost");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_parked_message_is_looked_at_again_while_the_agent_sends_all_the_time() {
        let parked = Some(Parked::new(op(0)));
        let mut messages = 0;
        loop {
            tokio::select! {
                biased;
                () = until(parked.as_ref().map(|parked| parked.retry_at)) => break,
                () = tokio::time::sleep(LOOK_AGAIN / 4) => messages += 1,
            }
            assert!(messages < 10, "the parked message waits for ever");
        }
    }

    /// A host that hangs, or whose packets are dropped, is away in less than 35 s, and its agent has left.
    /// The limits are compared, because a busy machine may be late with the end of a session.
    #[test]
    fn silence_is_noticed_after_three_heartbeats() {
        const LONGEST: Duration = Duration::from_secs(35);
        // The agent's limits are multiples of the heartbeat; its test in link/socket.rs has the same value.
        assert_eq!(HEARTBEAT, Duration::from_secs(10));
        // The last ping before the limit finds the agent just in time, and the next one ends the session.
        let server = AGENT_SILENCE + HEARTBEAT;
        // An agent that is not writing leaves earlier, after two and a half intervals.
        let agent = HEARTBEAT * 3;
        for limit in [server, agent] {
            assert!(limit < LONGEST, "{limit:?}");
        }
    }
}
