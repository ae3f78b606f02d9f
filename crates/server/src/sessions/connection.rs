//! One agent's session: hello, welcome, then reports in and ops out until either side ends it.

use super::certificates::{self, CertificateAge};
use super::clones;
use super::handshake_limiter::HandshakeSlot;
use super::intake::Intake;
use super::listener::Link;
use super::questions::QuestionCapabilities;
use super::readmission;
use crate::agent_limits::{self, OversizedMessage};
use crate::dispatcher::{AgentCapabilities, DispatcherMessage, RETIRED, revoked};
use crate::pki;
use crate::presences::LastHeard;
use crate::secret;
use crate::session_channel::{CutReason, SessionReceiver, SessionSender};
use axum::extract::ws::{Message, WebSocket};
use futures_util::{SinkExt, StreamExt};
use procfleet_core::id::{AgentId, Epoch, OpId};
use procfleet_failpoint::{Point, hit};
use procfleet_program::panics::{self, Caught};
use procfleet_proto::link::{
    BadMessage, Hello, Refused, ServerList, Welcome, agent_message, decode_agent, server_message::Body,
};
use procfleet_store::ServerId;
use procfleet_store::clock::WallMs;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, timeout};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_tungstenite::tungstenite::error::{Error as WsError, ProtocolError};
use tracing::{Instrument, info, info_span, warn};

const HELLO: Duration = Duration::from_secs(20);
/// How often a server that may not send looks whether it may again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Interval of the WebSocket pings. Agents leave after two and a half intervals without a message. With a
/// shorter one, the agents of a server that is busy, because it takes over those of another, leave it, too.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A session ends at the first ping that finds the agent silent for more than this, which is at most 30 s
/// after its last message: a host that hangs or is cut off shows as away within 35 s.
const AGENT_SILENCE: Duration = Duration::from_secs(20);
/// Time limit of one write. The session of a slower reader is cut, and the agent gets the rest in its next
/// session.
const WRITE: Duration = Duration::from_secs(20);

/// Why a session ended or was refused. The text goes to the logs of both sides.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
    #[error("{0}")]
    Refused(String),
    #[error("it sent a message that is not part of this protocol")]
    Protocol(#[from] BadMessage),
    #[error("it sent a message that is not part of this protocol")]
    Garbled(#[source] axum::Error),
    #[error("it sent a frame or a message above the size limit")]
    Oversized(#[source] axum::Error),
    #[error("{0}")]
    Excess(#[from] OversizedMessage),
    #[error("the connection broke")]
    Broken(#[source] axum::Error),
    #[error("it has been silent for {0:?}")]
    Silent(Duration),
    #[error("the agent closed it")]
    Closed,
    #[error("{0}")]
    Cut(CutReason),
    #[error("the server is stopping, or has closed the session")]
    Dropped,
    #[error(transparent)]
    Panicked(#[from] Caught),
}

impl SessionEnd {
    /// The label in the metrics, if the agent caused the end.
    fn fault(&self) -> Option<&'static str> {
        match self {
            SessionEnd::Refused(_) => Some("refused"),
            SessionEnd::Protocol(_) | SessionEnd::Garbled(_) => Some("protocol"),
            SessionEnd::Oversized(_) | SessionEnd::Excess(_) => Some("oversized"),
            SessionEnd::Silent(_) => Some("silent"),
            SessionEnd::Cut(cause) => Some(cause.word()),
            SessionEnd::Broken(_) => Some("broken"),
            // A defect of the server, but a message of the agent triggered it.
            SessionEnd::Panicked(_) => Some("panicked"),
            SessionEnd::Closed | SessionEnd::Dropped => None,
        }
    }

    /// Maps an error of the WebSocket below the session.
    fn of_socket(error: axum::Error) -> SessionEnd {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(found) = cause {
            match found.downcast_ref::<WsError>() {
                Some(WsError::Capacity(_)) => return SessionEnd::Oversized(error),
                // A peer that disappears does not violate the protocol.
                Some(WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => break,
                Some(WsError::Protocol(_) | WsError::Utf8(_) | WsError::AttackAttempt) => {
                    return SessionEnd::Garbled(error);
                }
                // After any other error the connection cannot be used any more.
                Some(_) => break,
                None => cause = found.source(),
            }
        }
        SessionEnd::Broken(error)
    }
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
        // Before the session is stored: a later run may store it, which costs a reconnect.
        let run = link.store.membership().run();
        let Some(epoch) = Box::pin(record_connected(&link, &agent, &hello)).await else { return };
        info!(from = %ip, version = %hello.version, epoch = epoch.0, "agent connected");
        let heard = LastHeard::at(link.clock.wall());
        let containment = hello.host.as_ref().map_or("", |facts| &facts.containment);
        let _counted = link.metrics.session(containment);
        let session = open(&link, &agent, (run, epoch), hello, renew_in, &heard, &mut socket);
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
            // It may be stored all the same.
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
    mut socket: WebSocket,
) {
    link.dispatcher.send(DispatcherMessage::Gone { agent: agent.clone(), epoch }).await;
    if let Err(error) = link.store.agent_disconnected(agent, epoch, link.clock.reading(), heard).await {
        warn!(error = &error as &dyn std::error::Error, "storing the end of a session failed");
    }
    info!(reason = %end, epoch = epoch.0, "agent disconnected");
    if let Some(reason) = end.fault() {
        link.metrics.cut(reason);
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
    let unchecked = |error| {
        warn!(
            error = &error as &dyn std::error::Error,
            "reading an agent from the store failed; its session was refused"
        );
        SessionEnd::Refused("the server cannot check the certificate now".to_owned())
    };
    let sha256 = secret::hash(certificate);
    let mut found = link.store.agent_with_certificate(&named, sha256).await.map_err(unchecked)?;
    if !matches!(found, Some((_, Some(_)))) && readmission::is_open(link).await {
        readmission::readmit(link, &named, certificate, &hello, ip).await?;
        found = link.store.agent_with_certificate(&named, sha256).await.map_err(unchecked)?;
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
        link.store.use_certificate(&named, sha256).await.map_err(unchecked)?;
    }
    if certificate_age != CertificateAge::Expired
        && let Some(why) = clones::revoke_if_cloned(link, &named, &hello, ip).await.map_err(unchecked)?
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
    let renewed: Result<Result<std::convert::Infallible, SessionEnd>, _> = timeout(HELLO, renewing).await;
    match renewed {
        Ok(Ok(never)) => match never {},
        Ok(Err(end)) => end,
        Err(_) => SessionEnd::Silent(HELLO),
    }
}

/// Sends the welcome, registers the session with the dispatcher, and serves it until it ends.
async fn open(
    link: &Link,
    agent: &AgentId,
    (run, epoch): (ServerId, Epoch),
    hello: Hello,
    renew_in: Duration,
    heard: &LastHeard,
    socket: &mut WebSocket,
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
    if let Err(end) = in_time(send(socket, Body::Welcome(welcome))).await {
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
    let news = News { renews: hello.renews, servers };
    drop(hello);
    let (outbox, orders, cut) = SessionSender::for_session();
    link.questions.connected(agent, epoch, &outbox, question_capabilities);
    let connected = DispatcherMessage::Connected {
        agent: agent.clone(),
        run,
        epoch,
        sender: outbox,
        taken,
        heard: heard.clone(),
        capabilities,
    };
    link.dispatcher.send(connected).await;
    cut.during(serve(link, agent, epoch, news, orders, heard, socket)).await.unwrap_or_else(SessionEnd::Cut)
}

/// What an agent is told during its session.
struct News {
    /// Its version renews its certificate when there is a new CA.
    renews: bool,
    /// The servers of the fleet, of which the welcome has named the first list.
    servers: watch::Receiver<Arc<[String]>>,
}

/// The loop of a session: ops and pings out, messages of the agent in.
async fn serve(
    link: &Link,
    agent: &AgentId,
    epoch: Epoch,
    mut news: News,
    mut receiver: SessionReceiver,
    last_heard: &LastHeard,
    socket: &mut WebSocket,
) -> SessionEnd {
    let mut cas = link.ca.changes();
    let mut intake = Intake::begin(link, agent);
    // What waits until this server may send again.
    let mut parked: Option<Body> = None;
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
                // A process that was stopped finds ops in its queue that others may have decided about.
                Some(order) if !link.store.membership().holds() => {
                    parked = Some(order);
                    Ok(())
                }
                Some(order) => in_time(send_all(socket, order, &mut receiver)).await,
            },
            () = tokio::time::sleep(LOOK_AGAIN), if parked.is_some() => {
                match parked.take_if(|_| link.store.membership().holds()) {
                    Some(order) => in_time(send_all(socket, order, &mut receiver)).await,
                    None => Ok(()),
                }
            }
            _ = beat.tick() => {
                is_overdue = !intake.is_paused() && silent_since.elapsed() > AGENT_SILENCE;
                // A write to a host that hangs may take long.
                if is_overdue { Ok(()) } else { ping(socket).await }
            }
            Ok(()) = cas.changed(), if news.renews => {
                in_time(send(socket, certificates::ask_for_renewal(certificates::soon(link)))).await
            }
            Ok(()) = news.servers.changed() => {
                let servers = news.servers.borrow_and_update().to_vec();
                in_time(send(socket, Body::ServerList(ServerList { servers }))).await
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
async fn in_time(write: impl Future<Output = Result<(), axum::Error>>) -> Result<(), SessionEnd> {
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

/// Writes all queued messages, then flushes once.
async fn send_all(
    socket: &mut WebSocket,
    first: Body,
    receiver: &mut SessionReceiver,
) -> Result<(), axum::Error> {
    let (mut ops, mut acks) = (is_op(&first), is_ack(&first));
    socket.feed(Message::Binary(first.into_bytes().into())).await?;
    while let Some(order) = receiver.try_recv() {
        ops |= is_op(&order);
        acks |= is_ack(&order);
        socket.feed(Message::Binary(order.into_bytes().into())).await?;
    }
    socket.flush().await?;
    if ops {
        hit(Point::ServerOpSent);
    }
    if acks {
        hit(Point::ServerAckSent);
    }
    Ok(())
}

fn is_op(body: &Body) -> bool {
    matches!(body, Body::Op(_))
}

fn is_ack(body: &Body) -> bool {
    matches!(body, Body::Ack(_))
}
