//! A manual server: agents join and connect as to any server, and the test decides every byte that it sends.

use futures_util::{SinkExt, StreamExt};
use procfleet_proto::link::token::JoinToken;
use procfleet_proto::link::{BadMessage, ENROLL_PATH, Enrolled, agent_message, decode_agent, server_message};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair,
};
use ring::digest::{SHA256, digest};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::rustls::pki_types::{CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::ring as ring_provider};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

/// How long an agent may take to connect or to send its next message.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The name that agents expect in the server's certificate.
const SERVER_NAME: &str = "procfleet-server";

#[derive(Debug, thiserror::Error)]
pub enum ManualServerError {
    #[error("opening the port")]
    Listen(#[from] io::Error),
    #[error("making a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("preparing TLS")]
    Tls(#[from] tokio_rustls::rustls::Error),
    #[error("no agent connected within {TIMEOUT:?}")]
    NobodyConnected,
    #[error("accepting a WebSocket")]
    WebSocket(#[from] Box<WsError>),
    #[error("the agent sent a message that is not of this protocol")]
    Message(#[from] BadMessage),
    #[error("an enrolment did not begin with its request")]
    NoEnrolment,
}

/// A CA, a port, and no rules.
pub struct ManualServer {
    runtime: Runtime,
    listener: TcpListener,
    tls: TlsAcceptor,
    issuer: Arc<Issuer<'static, KeyPair>>,
    ca: Vec<u8>,
}

impl std::fmt::Debug for ManualServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualServer").field("address", &self.listener.local_addr()).finish_non_exhaustive()
    }
}

type AgentSocket = WebSocketStream<TlsStream<TcpStream>>;

impl ManualServer {
    pub fn open() -> Result<ManualServer, ManualServerError> {
        let (runtime, listener) = listen()?;
        let ca_key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.distinguished_name.push(DnType::CommonName, "a CA by hand");
        let ca = params.self_signed(&ca_key)?.der().clone();
        let issuer = Issuer::from_ca_cert_der(&ca, ca_key)?;
        let key = KeyPair::generate()?;
        let leaf = CertificateParams::new([SERVER_NAME.to_owned()])?.signed_by(&key, &issuer)?.der().clone();
        let tls = ServerConfig::builder_with_provider(Arc::new(ring_provider::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(
                vec![leaf, ca.clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )?;
        let (tls, issuer) = (TlsAcceptor::from(Arc::new(tls)), Arc::new(issuer));
        Ok(ManualServer { runtime, listener, tls, issuer, ca: ca.to_vec() })
    }

    /// Another server of the same fleet.
    pub fn sibling(&self) -> Result<ManualServer, ManualServerError> {
        let (runtime, listener) = listen()?;
        let (tls, issuer, ca) = (self.tls.clone(), self.issuer.clone(), self.ca.clone());
        Ok(ManualServer { runtime, listener, tls, issuer, ca })
    }

    pub fn address(&self) -> Result<SocketAddr, ManualServerError> {
        Ok(self.listener.local_addr()?)
    }

    /// A token with which any number of agents may join.
    pub fn token(&self) -> JoinToken {
        let mut ca_pin = [0; 32];
        ca_pin.copy_from_slice(digest(&SHA256, &self.ca).as_ref());
        JoinToken { id: [1; 6], secret: [2; 20], ca_pin }
    }

    /// The next session of an agent. Enrolments that come before it are granted.
    pub fn accept(&self) -> Result<ManualSession<'_>, ManualServerError> {
        let socket =
            self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, self.next_session()).await });
        let socket = socket.map_err(|_| ManualServerError::NobodyConnected)??;
        Ok(ManualSession { socket, server: self })
    }

    async fn next_session(&self) -> Result<AgentSocket, ManualServerError> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let Ok(stream) = self.tls.accept(stream).await else { continue };
            let mut path = String::new();
            #[expect(clippy::result_large_err, reason = "the library defines the type of the callback")]
            let read_path = |request: &Request, response: Response| {
                request.uri().path().clone_into(&mut path);
                Ok(response)
            };
            let accepted = tokio_tungstenite::accept_hdr_async(stream, read_path).await;
            let mut socket = accepted.map_err(Box::new)?;
            if path == ENROLL_PATH {
                self.enroll(&mut socket).await?;
            } else {
                return Ok(socket);
            }
        }
    }

    async fn enroll(&self, socket: &mut AgentSocket) -> Result<(), ManualServerError> {
        let Some(agent_message::Body::Enroll(request)) = receive(socket).await? else {
            return Err(ManualServerError::NoEnrolment);
        };
        let certificate = self.sign(&request.csr)?;
        let enrolled = Enrolled {
            agent: "020000000001".to_owned(),
            certificate,
            ca: self.ca.clone(),
            more_cas: Vec::new(),
        };
        let enrolled = server_message::Body::Enrolled(enrolled).into_bytes();
        socket.send(Message::Binary(enrolled.into())).await.map_err(Box::new)?;
        Ok(())
    }

    fn sign(&self, request: &[u8]) -> Result<Vec<u8>, ManualServerError> {
        let request =
            CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))?;
        Ok(request.signed_by(&self.issuer)?.der().to_vec())
    }

    /// The certificate for a renewal request, and the CAs that the agent is to trust.
    pub fn renewal(&self, request: &[u8]) -> Result<(Vec<u8>, Vec<Vec<u8>>), ManualServerError> {
        Ok((self.sign(request)?, vec![self.ca.clone()]))
    }
}

fn listen() -> Result<(Runtime, TcpListener), ManualServerError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    Ok((runtime, listener))
}

/// A session of an agent with a [`ManualServer`].
pub struct ManualSession<'a> {
    socket: AgentSocket,
    server: &'a ManualServer,
}

impl std::fmt::Debug for ManualSession<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualSession").field("server", self.server).finish_non_exhaustive()
    }
}

impl ManualSession<'_> {
    /// Sends one message. An agent that has left does not receive it, and [`ManualSession::receive`] then
    /// returns `None`.
    pub fn send(&mut self, message: impl Into<Vec<u8>>) {
        let message = Message::Binary(message.into().into());
        let _ = self.server.runtime.block_on(self.socket.send(message));
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        let _ = self.server.runtime.block_on(self.socket.close(None));
    }

    /// The agent's next message. `None`: the connection has ended.
    ///
    /// # Panics
    /// If the agent neither sends a message nor ends the connection, or sends one of another protocol.
    pub fn receive(&mut self) -> Option<agent_message::Body> {
        let next = async { tokio::time::timeout(TIMEOUT, receive(&mut self.socket)).await };
        let next = self.server.runtime.block_on(next).expect("the agent sends a message or hangs up");
        next.expect("a message of this protocol")
    }
}

async fn receive(socket: &mut AgentSocket) -> Result<Option<agent_message::Body>, BadMessage> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Binary(bytes))) => return Ok(Some(decode_agent(&bytes)?)),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(None),
            Some(Ok(_)) => {}
        }
    }
}
