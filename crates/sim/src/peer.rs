//! A manual peer: it has joined as any agent, and the test decides every byte that it sends.

use crate::enroll::{SimEnrollError, enroll, request_certificate};
use futures_util::{SinkExt, StreamExt};
use procfleet_agent::config::ServerAddress;
use procfleet_agent::identity::AgentIdentity;
use procfleet_agent::tls::{self, ConnectError, Socket};
use procfleet_proto::link::token::JoinToken;
use procfleet_proto::link::{Hello, HostFacts, LINK_PATH, agent_message, decode_server, server_message};
use procfleet_proto::peer::{PEER_NAME, PEER_PATH};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring as ring_provider;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use tokio_tungstenite::tungstenite::{self, Message};

/// How long the server may take to say something.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("starting the runtime")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Enroll(#[from] SimEnrollError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// What a peer shows in its TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownCertificate {
    Agents,
    None,
}

/// An agent's identity without an agent.
pub struct ManualPeer {
    server: ServerAddress,
    identity: AgentIdentity,
    runtime: Runtime,
}

impl std::fmt::Debug for ManualPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("agent", &self.identity.agent).finish_non_exhaustive()
    }
}

impl ManualPeer {
    pub fn join(server: ServerAddress, token: &JoinToken, ip: IpAddr) -> Result<ManualPeer, PeerError> {
        let runtime = runtime()?;
        let identity = runtime.block_on(enroll(&server, Some(token), ip))?;
        Ok(ManualPeer { server, identity, runtime })
    }

    /// Asks to join with this signing request, which may be anything.
    pub fn join_with_request(
        server: &ServerAddress,
        token: &JoinToken,
        ip: IpAddr,
        csr: Vec<u8>,
    ) -> Result<(), PeerError> {
        runtime()?.block_on(request_certificate(server, token, ip, csr))?;
        Ok(())
    }

    pub fn agent(&self) -> &str {
        self.identity.agent.as_str()
    }

    /// A connection without any message yet.
    pub fn connect(&self) -> Result<Talk<'_>, PeerError> {
        self.connect_at(LINK_PATH)
    }

    /// As [`ManualPeer::connect`], to another path.
    pub fn connect_at(&self, path: &str) -> Result<Talk<'_>, PeerError> {
        let connecting = async {
            let tls = tls::with_identity(&self.identity)?;
            tls::connect(&self.server, None, path, tls).await
        };
        Ok(Talk { socket: self.runtime.block_on(connecting)?, peer: self })
    }

    /// Tries to get in where servers do.
    pub fn enter_as_server(&self, shown: ShownCertificate) -> Result<(), PeerError> {
        let failed = |error| ConnectError::Tls(self.server.clone(), error);
        let entering = async {
            let tls = match shown {
                ShownCertificate::Agents => tls::with_identity(&self.identity)?,
                ShownCertificate::None => self.without_certificate().map_err(ConnectError::Prepare)?,
            };
            let address = (self.server.host.as_str(), self.server.port);
            let stream = TcpStream::connect(address).await.map_err(failed)?;
            let name = ServerName::try_from(PEER_NAME).expect("a constant name is a good name");
            let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await.map_err(failed)?;
            let url = format!("wss://{PEER_NAME}{PEER_PATH}");
            match tokio_tungstenite::client_async(url, stream).await {
                Ok(_) => Ok(()),
                Err(tungstenite::Error::Io(error)) => Err(failed(error)),
                Err(error) => Err(ConnectError::WebSocket(self.server.clone(), Box::new(error))),
            }
        };
        Ok(self.runtime.block_on(entering)?)
    }

    fn without_certificate(&self) -> Result<ClientConfig, rustls::Error> {
        let mut roots = RootCertStore::empty();
        for ca in &self.identity.cas {
            roots.add(ca.clone())?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring_provider::default_provider()))
            .with_safe_default_protocol_versions()?;
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }

    /// The first message of an honest agent, with this boot id.
    pub fn hello(&self, boot_id: &str) -> agent_message::Body {
        agent_message::Body::Hello(Hello {
            agent: self.identity.agent.to_string(),
            boot_id: boot_id.to_owned(),
            version: procfleet_agent::VERSION.to_owned(),
            host: Some(HostFacts::default()),
            limits_accounts: true,
            ..Hello::default()
        })
    }
}

fn runtime() -> Result<Runtime, PeerError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(PeerError::Runtime)
}

/// A connection of a peer.
pub struct Talk<'a> {
    socket: Socket,
    peer: &'a ManualPeer,
}

impl std::fmt::Debug for Talk<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Talk").field("peer", self.peer).finish_non_exhaustive()
    }
}

impl Talk<'_> {
    /// Sends one message. The next message of the server shows whether it still listens.
    pub fn send(&mut self, message: impl Into<Vec<u8>>) {
        let message = Message::Binary(message.into().into());
        let _ = self.peer.runtime.block_on(self.socket.send(message));
    }

    /// A message of text, which this protocol does not have.
    pub fn send_text(&mut self, text: &str) {
        let _ = self.peer.runtime.block_on(self.socket.send(Message::Text(text.into())));
    }

    /// The next message of the server. `None`: the connection has ended.
    ///
    /// # Panics
    /// If the server neither says anything nor ends the connection.
    pub fn receive(&mut self) -> Option<server_message::Body> {
        let next = async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Message::Binary(bytes))) => return decode_server(&bytes).ok(),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                    Some(Ok(_)) => {}
                }
            }
        };
        let next = async { tokio::time::timeout(TIMEOUT, next).await };
        self.peer.runtime.block_on(next).expect("the server says something or hangs up")
    }

    /// All that the server says until the connection ends.
    pub fn rest(&mut self) -> Vec<server_message::Body> {
        std::iter::from_fn(|| self.receive()).collect()
    }
}
