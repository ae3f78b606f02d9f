//! Enrolment of a new host: join token and signing request in, certificate out.

use super::Link;
use super::certificates;
use super::handshake_limiter::HandshakeSlot;
use crate::agent_limits;
use crate::dispatcher::{DispatcherMessage, RETIRED};
use crate::secret;
use crate::workers::refusals::RefusalSource;
use axum::extract::ws::{Message, WebSocket};
use futures_util::StreamExt;
use procfleet_core::Code;
use procfleet_core::id::{AgentId, Host};
use procfleet_proto::link::token::{JoinToken, hex};
use procfleet_proto::link::{Enroll, Enrolled, Refused, agent_message, decode_agent, server_message::Body};
use procfleet_store::{AGENT_REPLACED, JoinTokenRefusal, JoiningAgent, LINK, NewAudit, StoreError, TokenUse};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::timeout;
use tracing::{info, warn};

const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn run(link: Link, from: IpAddr, slot: &HandshakeSlot, mut socket: WebSocket) {
    let answer = match slot.wait_for(timeout(TIMEOUT, socket.next())).await {
        Ok(Ok(Some(Ok(Message::Binary(bytes))))) => match decode_agent(&bytes) {
            Ok(agent_message::Body::Enroll(request)) => enroll(&link, from, request).await,
            Ok(_) | Err(_) => Err(NotEnrolled::Refused("the first message must be an enrolment".to_owned())),
        },
        Ok(_) | Err(_) => return,
    };
    let body = match answer {
        Ok(enrolled) => Body::Enrolled(enrolled),
        // A refusal is final for an agent that joins. Without an answer it tries another server.
        Err(NotEnrolled::Unanswered) => {
            link.metrics.refused_sessions.inc();
            return;
        }
        Err(NotEnrolled::Refused(reason)) => {
            link.metrics.refused_sessions.inc();
            if link.refusal_log.admits_a_line() {
                warn!(%from, %reason, "an enrolment was refused");
            }
            Body::Refused(Refused { reason })
        }
    };
    let reply = async {
        let _ = socket.send(Message::Binary(body.into_bytes().into())).await;
        let _ = socket.send(Message::Close(None)).await;
    };
    let _ = slot.wait_for(timeout(TIMEOUT, reply)).await;
}

/// Why an agent is not enrolled.
enum NotEnrolled {
    /// With the reason for the agent. No other server would enrol it.
    Refused(String),
    /// This server cannot decide now.
    Unanswered,
}

impl From<String> for NotEnrolled {
    fn from(reason: String) -> Self {
        NotEnrolled::Refused(reason)
    }
}

async fn enroll(link: &Link, from: IpAddr, mut request: Enroll) -> Result<Enrolled, NotEnrolled> {
    agent_limits::bound_version(&mut request.version);
    agent_limits::check_signing_request(&request.csr).map_err(|excess| excess.to_string())?;
    let token: JoinToken = request.token.parse().map_err(|error| format!("{error}"))?;
    let ip = host_address(&request.ip, from)?;
    let now = link.clock.wall();
    let shown = TokenUse { id: token.public_id(), secret_hash: secret::hash(&token.secret) };
    // A reader checks the token before anything is signed or sent to the store's writer, so that a peer
    // without a token costs neither.
    match link.store.join_refusal(shown.clone(), ip, now).await {
        Ok(None) => {}
        Ok(Some(refusal)) => {
            record_refusal(link, from, ip, &shown.id, refusal, now).await;
            return Err(refusal.to_string().into());
        }
        Err(error) => return Err(unanswered(link, from, &error)),
    }
    let agent = new_agent_id(now);
    let sign = || {
        let signed = link.ca.sign_agent(&request.csr, &agent, now);
        signed.map_err(|error| certificates::refusal_of(&error))
    };
    let mut signed = sign()?;
    let joining = JoiningAgent {
        agent: agent.clone(),
        ip,
        certificate: certificates::record(&signed),
        version: request.version,
        from,
    };
    let mut joined = link.store.join(shown.clone(), joining.clone(), now).await;
    if let Err(StoreError::CaChanged) = joined {
        certificates::follow_ca(link).await;
        signed = sign()?;
        let joining = JoiningAgent { certificate: certificates::record(&signed), ..joining };
        joined = link.store.join(shown, joining, now).await;
    }
    let joined = joined.map_err(|error| unanswered(link, from, &error))?;
    match joined {
        Ok(joined) => {
            info!(%agent, host = %joined.host, token = token.public_id(), retired = ?joined.retired, "agent enrolled");
            if !joined.retired.is_empty() {
                warn!(%agent, host = %joined.host, %from, retired = ?joined.retired, "an agent has taken over a host");
                link.metrics.event(AGENT_REPLACED);
                link.event_notifier.notify();
            }
            for agent in joined.retired {
                // The retired agent may still be connected.
                link.dispatcher
                    .send(DispatcherMessage::Dismissed { agent, reason: RETIRED.to_owned() })
                    .await;
            }
            let mut cas = link.ca.certificates().into_iter().map(|ca| ca.to_vec());
            Ok(Enrolled {
                agent: agent.to_string(),
                certificate: signed.certificate.to_vec(),
                ca: cas.next().unwrap_or_default(),
                more_cas: cas.collect(),
            })
        }
        Err(refusal) => Err(refusal.to_string().into()),
    }
}

fn unanswered(link: &Link, from: IpAddr, error: &StoreError) -> NotEnrolled {
    if link.refusal_log.admits_a_line() {
        warn!(
            %from, error = error as &dyn std::error::Error,
            "an enrolment was not answered, because the store failed; the agent tries again"
        );
    }
    NotEnrolled::Unanswered
}

/// The address that an agent reports for its host. An empty text means the address that it connects from.
pub(super) fn host_address(reported: &str, from: IpAddr) -> Result<IpAddr, String> {
    let ip = match reported {
        "" => from,
        text => text.parse().map_err(|_| "the host's ip is not an IP address".to_owned())?,
    };
    let ip = Host::address(ip).map_err(|error| error.to_string())?;
    // Every host has a loopback address, so only an agent on the server's own host can mean it.
    if ip.is_loopback() && !from.to_canonical().is_loopback() {
        return Err(format!(
            "{ip} is a loopback address, and the agent calls from {from}: give it the address of its host (--ip)"
        ));
    }
    Ok(ip)
}

/// A valid token was used for a host that it does not admit, so the token may be stolen. Repeats are counted
/// in one row, since the peer can try until the token expires.
async fn record_refusal(
    link: &Link,
    from: IpAddr,
    ip: IpAddr,
    token: &str,
    refusal: JoinTokenRefusal,
    now: i64,
) {
    match refusal {
        JoinTokenRefusal::HostInUse(_) | JoinTokenRefusal::HostOf(_) => {}
        JoinTokenRefusal::Unknown
        | JoinTokenRefusal::Expired
        | JoinTokenRefusal::UsedUp
        | JoinTokenRefusal::Revoked => return,
    }
    let entry = NewAudit {
        at: now,
        app: LINK.to_owned(),
        origin: from.to_string(),
        action: "agent_join".to_owned(),
        code: Code::NotAllowed.external(),
        detail: format!("{ip} with token {token}: {refusal}"),
        ..NewAudit::default()
    };
    link.refusals.record(RefusalSource::Peer(from.into()), entry).await;
}

/// In the format of GSE's agent ids: `02`, 20 hexadecimal digits, the time in milliseconds, one more digit.
fn new_agent_id(wall: i64) -> AgentId {
    let random = hex(&secret::random::<11>());
    format!("02{}{:013}{}", &random[..20], wall.max(0), &random[20..21])
        .parse()
        .expect("hexadecimal digits are an id")
}
