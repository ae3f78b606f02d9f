//! Questions from this server to the other servers of its store.
//!
//! An agent is connected to one server, and any server may be asked about it. The server that is called asks
//! the one that holds the agent's session, on its link port, under the path
//! [`PEER_PATH`](procfleet_proto::peer::PEER_PATH). Both sides show a certificate of the fleet's CA that
//! names the run of the server ([`crate::pki::RunCertificate`]): a URL from the store leads to the run that
//! the store names, or nowhere. The receiving side is `sessions/peer_questions.rs`.
//!
//! A connection carries one question at a time and is kept for a while after it. A question runs and stores
//! nothing, so it is sent again if a kept connection turns out to be closed.

mod connection;
mod identity;
#[cfg(test)]
pub(crate) mod tests;

use crate::clock::Clock;
use crate::pki::{Ca, ExpectedServer, PkiError};
use connection::{ConnectFault, Connection, ExchangeFault};
use identity::PeerIdentities;
use procfleet_proto::link::BadMessage;
use procfleet_proto::peer::{AskAgent, AskAlive, decode_answer, peer_answer, peer_question};
use procfleet_store::{MembershipView, ServerId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::rustls::ServerConfig;

/// TCP, TLS and WebSocket together.
const CONNECT: Duration = Duration::from_secs(2);
/// How long an answer may be on its way, beyond the time that the other server takes for it.
const ON_ITS_WAY: Duration = Duration::from_secs(1);
/// How long a connection is kept for the next question. The other side closes it later than that.
const KEEP: Duration = Duration::from_secs(20);
/// Connections that are kept to one server. More questions at once open more, which are closed afterwards.
const KEPT: usize = 8;
/// How long a server may take to say whether it reaches the database, connecting included.
const ALIVE: Duration = Duration::from_secs(3);

/// The handle. Clones share the certificate and the connections.
#[derive(Clone, Debug)]
pub struct Peers {
    inner: Arc<Inner>,
}

/// Time limits.
#[derive(Clone, Copy, Debug)]
struct TimeLimits {
    connect: Duration,
    alive: Duration,
}

#[derive(Debug)]
struct Inner {
    view: watch::Receiver<MembershipView>,
    identities: PeerIdentities,
    limits: TimeLimits,
    kept: Mutex<HashMap<ServerId, Vec<KeptConnection>>>,
}

#[derive(Debug)]
struct KeptConnection {
    connection: Connection,
    until: Instant,
}

/// Which server, for error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    pub server: ServerId,
    /// Host and port.
    pub address: String,
}

/// Why another server cannot be asked. Each text names the server.
#[derive(Debug, thiserror::Error)]
pub enum PeerFault {
    #[error("server {} is not alive", .0.0)]
    Unknown(ServerId),
    #[error("server {} does not say how other servers reach it; start it with --advertise https://HOST:PORT", .0.0)]
    NoAddress(ServerId),
    #[error("making a certificate to show to {0}")]
    Certificate(PeerAddress, #[source] PkiError),
    #[error("{0} cannot be reached")]
    Unreachable(PeerAddress, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{0} did not let this server connect within {1:?}")]
    NotConnected(PeerAddress, Duration),
    #[error("{0} did not answer in time")]
    Silent(PeerAddress),
    #[error("the connection to {0} broke before the answer")]
    Broken(PeerAddress, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{0} sent an answer that this server does not understand")]
    Garbled(PeerAddress, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{0} refused the question: {1}")]
    Refused(PeerAddress, String),
    #[error("{0} answers as many questions of other servers as it can; ask again")]
    Busy(PeerAddress),
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {} at {}", self.server.0, self.address)
    }
}

impl Peers {
    pub fn new(view: watch::Receiver<MembershipView>, ca: Arc<Ca>, clock: Clock) -> Peers {
        Peers::within(TimeLimits { connect: CONNECT, alive: ALIVE }, view, ca, clock)
    }

    fn within(limits: TimeLimits, view: watch::Receiver<MembershipView>, ca: Arc<Ca>, clock: Clock) -> Peers {
        let inner =
            Inner { view, identities: PeerIdentities::new(ca, clock), limits, kept: Mutex::default() };
        Peers { inner: Arc::new(inner) }
    }

    /// This server.
    pub fn run(&self) -> ServerId {
        self.inner.view.borrow().run
    }

    /// For connections of other servers to this one.
    pub fn server_tls(&self) -> Result<Arc<ServerConfig>, PkiError> {
        Ok(self.inner.identities.of(self.run())?.server_tls.clone())
    }

    /// Asks a server about an agent. `within`: how long that server may take to answer. Returns the answer
    /// with the server that gave it, for messages about an answer that cannot be right.
    pub async fn ask(
        &self,
        server: ServerId,
        question: AskAgent,
        within: Duration,
    ) -> Result<(peer_answer::Body, PeerAddress), PeerFault> {
        let peer = self.address_of(server)?;
        let answer = self.ask_at(&peer, question, within).await?;
        Ok((answer, peer))
    }

    async fn ask_at(
        &self,
        peer: &PeerAddress,
        question: AskAgent,
        within: Duration,
    ) -> Result<peer_answer::Body, PeerFault> {
        let deadline = Instant::now() + within;
        let question = peer_question::Body::AskAgent(question);
        while let Some(connection) = self.take_kept(peer.server) {
            match self.exchange(connection, peer, question.clone(), deadline).await {
                // The other server has closed the connection meanwhile.
                Err(PeerFault::Broken(..)) => {}
                answered => return answered,
            }
        }
        let connection = self.connect(peer, ExpectedServer::Run(peer.server)).await?;
        self.exchange(connection, peer, question, deadline).await
    }

    /// Whether one of the other servers that were alive at the last look still reaches the database.
    pub async fn peer_that_reaches_database(&self) -> Option<PeerAddress> {
        let mut asking = JoinSet::new();
        for peer in self.others() {
            let peers = self.clone();
            asking.spawn(async move {
                let may_act = timeout(peers.inner.limits.alive, peers.may_act(&peer)).await;
                (may_act == Ok(true)).then_some(peer)
            });
        }
        while let Some(answer) = asking.join_next().await {
            if let Ok(Some(peer)) = answer {
                return Some(peer);
            }
        }
        None
    }

    async fn may_act(&self, peer: &PeerAddress) -> bool {
        // The run may be another one by now: this server has not seen the store for a while.
        let Ok(mut connection) = self.connect(peer, ExpectedServer::Any).await else { return false };
        let question = peer_question::Body::AskAlive(AskAlive {}).into_bytes(self.inner.limits.alive);
        let Ok(answer) = connection.exchange(question).await else { return false };
        matches!(decode_answer(&answer), Ok(peer_answer::Body::Alive(alive)) if alive.may_act)
    }

    /// The other servers that have an address.
    fn others(&self) -> Vec<PeerAddress> {
        let view = self.inner.view.borrow();
        let others = view.alive.iter().filter(|(server, _)| **server != view.run);
        let known = others.filter_map(|(server, living)| PeerAddress::of(*server, &living.url));
        known.collect()
    }

    fn address_of(&self, server: ServerId) -> Result<PeerAddress, PeerFault> {
        let view = self.inner.view.borrow();
        let living = view.alive.get(&server).ok_or(PeerFault::Unknown(server))?;
        PeerAddress::of(server, &living.url).ok_or(PeerFault::NoAddress(server))
    }

    async fn connect(&self, peer: &PeerAddress, expected: ExpectedServer) -> Result<Connection, PeerFault> {
        let certificate = |error| PeerFault::Certificate(peer.clone(), error);
        let identity = self.inner.identities.of(self.run()).map_err(certificate)?;
        let tls = identity.certificate.client_tls(expected).map_err(certificate)?;
        let limit = self.inner.limits.connect;
        match timeout(limit, Connection::open(&peer.address, tls)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(fault)) => Err(PeerFault::of_connect(peer, fault)),
            Err(_) => Err(PeerFault::NotConnected(peer.clone(), limit)),
        }
    }

    async fn exchange(
        &self,
        mut connection: Connection,
        peer: &PeerAddress,
        question: peer_question::Body,
        deadline: Instant,
    ) -> Result<peer_answer::Body, PeerFault> {
        // The remaining time is passed on, so that the other server gives up first and says why.
        let within = deadline.saturating_duration_since(Instant::now());
        let exchange = connection.exchange(question.into_bytes(within));
        let answer = match timeout_at(deadline + ON_ITS_WAY, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(fault)) => return Err(PeerFault::of_exchange(peer, fault)),
            Err(_) => return Err(PeerFault::Silent(peer.clone())),
        };
        let garbled = |fault: BadMessage| PeerFault::Garbled(peer.clone(), Box::new(fault));
        let answer = decode_answer(&answer).map_err(garbled)?;
        self.keep(peer.server, connection);
        match answer {
            peer_answer::Body::Busy(_) => Err(PeerFault::Busy(peer.clone())),
            peer_answer::Body::Refused(refused) => Err(PeerFault::Refused(peer.clone(), refused.reason)),
            answer => Ok(answer),
        }
    }

    fn take_kept(&self, server: ServerId) -> Option<Connection> {
        let mut kept = self.kept();
        let now = Instant::now();
        // Drops expired connections to all servers, also to those that have ended and are never asked again.
        kept.retain(|_, connections| {
            connections.retain(|kept| kept.until > now);
            !connections.is_empty()
        });
        kept.get_mut(&server)?.pop().map(|kept| kept.connection)
    }

    fn keep(&self, server: ServerId, connection: Connection) {
        let mut kept = self.kept();
        let connections = kept.entry(server).or_default();
        if connections.len() < KEPT {
            connections.push(KeptConnection { connection, until: Instant::now() + KEEP });
        }
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<ServerId, Vec<KeptConnection>>> {
        self.inner.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerAddress {
    /// `None`: the server has no address that others can use.
    fn of(server: ServerId, url: &str) -> Option<PeerAddress> {
        let address = url.strip_prefix("https://")?.trim_end_matches('/');
        (!address.is_empty()).then(|| PeerAddress { server, address: address.to_owned() })
    }
}

impl PeerFault {
    fn of_connect(peer: &PeerAddress, fault: ConnectFault) -> PeerFault {
        match fault {
            ConnectFault::Refused(reason) => PeerFault::Refused(peer.clone(), reason),
            fault @ (ConnectFault::Tcp(_) | ConnectFault::Tls(_) | ConnectFault::WebSocket(_)) => {
                PeerFault::Unreachable(peer.clone(), Box::new(fault))
            }
        }
    }

    fn of_exchange(peer: &PeerAddress, fault: ExchangeFault) -> PeerFault {
        match fault {
            fault @ (ExchangeFault::Text | ExchangeFault::Frame(_)) => {
                PeerFault::Garbled(peer.clone(), Box::new(fault))
            }
            fault @ (ExchangeFault::Broken(_) | ExchangeFault::Closed) => {
                PeerFault::Broken(peer.clone(), Box::new(fault))
            }
        }
    }

    /// The text with its causes, for a caller who does not see the log.
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}
