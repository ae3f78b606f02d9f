//! Questions of other servers about agents that are connected here. The asking side is `crate::peers`.
//!
//! Only servers get through the TLS handshake ([`crate::pki::RunCertificate`]). A server that this one does
//! not know as alive learns only whether this server may act: it asks because it may be cut off from the
//! database, and others may have declared it dead.

use super::Link;
use super::questions::{AgentAnswer, AgentQuestion, Unanswered};
use axum::extract::ws::{Message, WebSocket};
use futures_util::StreamExt;
use procfleet_core::id::{AgentId, Epoch};
use procfleet_proto::link::{BadMessage, LogRead, SpecRead};
use procfleet_proto::peer::{
    AskAgent, NotHere, PeerAlive, PeerBusy, PeerRefused, WhyUnanswered, ask_agent, decode_question,
    peer_answer, peer_question,
};
use procfleet_store::ServerId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{debug, warn};

/// Questions of other servers that are answered at once. Each waits for an agent, for a long poll up to 40 s.
const AT_ONCE: usize = 1_024;
/// No question of a server takes longer: the longest long poll of the API takes less.
const LONGEST: Duration = Duration::from_secs(120);
/// How long a connection may be without a question. Longer than the asking server keeps it.
const IDLE: Duration = Duration::from_secs(30);
/// How long one write may take.
const WRITE: Duration = Duration::from_secs(20);
/// How long to wait until the asking server is seen in the store: it may have just started.
const SEEN: Duration = Duration::from_secs(2);

/// Shared by the connections of all other servers.
#[derive(Clone, Debug)]
pub(super) struct PeerPort {
    pub(super) link: Link,
    permits: Arc<Semaphore>,
}

impl PeerPort {
    pub(super) fn new(link: Link) -> PeerPort {
        PeerPort { link, permits: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Answers one question after the other until the asking server closes the connection.
    pub(super) async fn serve(self, from: ServerId, mut socket: WebSocket) {
        let mut stop = self.link.stop.clone();
        loop {
            let message = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                message = timeout(IDLE, socket.next()) => message,
            };
            let bytes = match message {
                Ok(Some(Ok(Message::Binary(bytes)))) => bytes,
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => continue,
                Ok(Some(Ok(Message::Text(_)))) => {
                    warn!(
                        server = from.0,
                        "closed the connection of another server: it sent a text message, and the protocol is binary"
                    );
                    break;
                }
                Ok(Some(Ok(Message::Close(_)))) | Ok(None) | Err(_) => break,
                Ok(Some(Err(error))) => {
                    debug!(server = from.0, %error, "a connection of another server ended early");
                    return;
                }
            };
            let answer = tokio::select! {
                biased;
                answer = self.answer(from, &bytes) => answer,
                // The asking server has given up, or sends what nobody asked for. The agent's answer, if one
                // comes, is ignored.
                () = unasked(&mut socket) => return,
            };
            let written = timeout(WRITE, socket.send(Message::Binary(answer.into_bytes().into()))).await;
            if !matches!(written, Ok(Ok(()))) {
                return;
            }
        }
        let _ = timeout(WRITE, socket.send(Message::Close(None))).await;
    }

    async fn answer(&self, from: ServerId, bytes: &[u8]) -> peer_answer::Body {
        let (question, within) = match decode_question(bytes) {
            Ok(question) => question,
            Err(fault) => return refused(&fault),
        };
        match question {
            peer_question::Body::AskAlive(_) => {
                peer_answer::Body::Alive(PeerAlive { may_act: self.link.store.membership().may_act() })
            }
            peer_question::Body::AskAgent(ask) => {
                if !self.is_alive(from).await {
                    let reason =
                        format!("server {} is not alive by what this one has seen in the store", from.0);
                    return peer_answer::Body::Refused(PeerRefused { reason });
                }
                self.ask_agent(ask, within.min(LONGEST)).await
            }
        }
    }

    async fn is_alive(&self, server: ServerId) -> bool {
        let mut view = self.link.store.membership().view();
        let seen = view.wait_for(|view| view.alive.contains_key(&server));
        matches!(timeout(SEEN, seen).await, Ok(Ok(_)))
    }

    async fn ask_agent(&self, ask: AskAgent, within: Duration) -> peer_answer::Body {
        let epoch = Epoch(ask.epoch);
        let Ok(agent) = ask.agent.parse::<AgentId>() else {
            let reason = "the question names no agent".to_owned();
            return peer_answer::Body::Refused(PeerRefused { reason });
        };
        let question = match ask.limited_question() {
            Ok(ask_agent::Question::ReadLog(question)) => AgentQuestion::Log(question),
            Ok(ask_agent::Question::ReadSpec(question)) => AgentQuestion::Spec(question),
            Err(fault) => return refused(&fault),
        };
        let Ok(_permit) = self.permits.try_acquire() else { return peer_answer::Body::Busy(PeerBusy {}) };
        match self.link.questions.ask(&agent, epoch, question, within).await {
            // The numbers of questions mean something to this server only.
            Ok(AgentAnswer::Log(answer)) => peer_answer::Body::LogRead(LogRead { id: 0, ..answer }),
            Ok(AgentAnswer::Spec(answer)) => peer_answer::Body::SpecRead(SpecRead { id: 0, ..answer }),
            Err(Unanswered::Away) => peer_answer::Body::NotHere(NotHere {}),
            Err(Unanswered::TooOld) => WhyUnanswered::TooOld.into(),
            Err(Unanswered::Unchecked) => WhyUnanswered::Unchecked.into(),
            Err(Unanswered::Silent) => WhyUnanswered::Silent.into(),
        }
    }
}

/// Returns when the other side closes the connection, or sends anything while it waits for its answer.
async fn unasked(socket: &mut WebSocket) {
    while let Some(Ok(Message::Ping(_) | Message::Pong(_))) = socket.next().await {}
}

fn refused(fault: &BadMessage) -> peer_answer::Body {
    peer_answer::Body::Refused(PeerRefused { reason: fault.to_string() })
}
