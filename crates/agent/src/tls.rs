//! The agent's end of the link's TLS and WebSocket.
//!
//! Before it has joined, an agent knows its server only by the pin in its token: the SHA-256 of the CA's
//! certificate, which the server must send along. From then on it knows the CA itself. The server's address
//! is never checked, its name inside the CA always is. All of this is the same through a proxy.

use crate::config::ServerAddress;
use crate::identity::AgentIdentity;
use crate::proxy::{self, ProxyError};
use procfleet_proto::link::{BUFFER, MAX_FRAME, MAX_MESSAGE};
use procfleet_proto::tunnel::{ProxyUrl, TunnelRefusal};
use ring::digest::{SHA256, digest};
use socket2::TcpKeepalive;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring as ring_provider, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// The name inside the CA that the server must prove.
const SERVER_NAME: &str = "procfleet-server";
/// How long a connection may take, through a proxy or not.
pub const CONNECT: Duration = Duration::from_secs(15);
/// How long TLS and the opening of the WebSocket may take. A server that takes over the agents of another one
/// may be busy for a while, and who gives up begins again at the end of its queue.
const OPEN: Duration = Duration::from_secs(25);
/// TCP notices a machine that is gone within 12 s, also while nothing is being sent: a machine answers
/// keep-alives even if its server is too busy to send anything. The link's own timer, which has more
/// patience, notices a server that is stopped, or gone behind a proxy.
const USER_TIMEOUT_MS: u32 = 12_000;
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(4);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEP_ALIVE_PROBES: u32 = 4;
/// TCP_NOTSENT_LOWAT: the most bytes that the kernel holds without having sent them. An outcome cannot
/// overtake bytes that are in the kernel.
const UNSENT_BYTES: u32 = 16 * 1024;

pub type Socket = WebSocketStream<TlsStream<TcpStream>>;

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("connecting to {0}")]
    Tcp(ServerAddress, #[source] io::Error),
    #[error("connecting to {0} through a proxy")]
    Proxy(ServerAddress, #[source] ProxyError),
    #[error("{0} did not answer within {1:?}")]
    Silent(ServerAddress, Duration),
    #[error("making TLS ready")]
    Prepare(#[source] TlsError),
    #[error(
        "TLS with {0} failed: one side does not trust the other's certificate, or it is no procfleet link"
    )]
    Tls(ServerAddress, #[source] io::Error),
    #[error("{0} refused: {1}")]
    Refused(ServerAddress, String),
    #[error("opening the WebSocket to {0}")]
    WebSocket(ServerAddress, #[source] Box<WsError>),
}

impl ConnectError {
    /// Whether nobody answered, so that another server, or a later attempt, may succeed. A proxy that wants a
    /// password wants it for every server.
    pub fn is_unreachable(&self) -> bool {
        match self {
            ConnectError::Tcp(..) | ConnectError::Silent(..) => true,
            ConnectError::Proxy(_, error) => !matches!(
                error,
                ProxyError::Refused(_, TunnelRefusal::LoginNeeded | TunnelRefusal::LoginRefused)
            ),
            // The connection was closed before TLS was established: a server that is ending, or a load
            // balancer without a server.
            ConnectError::Tls(_, error) => {
                matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
            }
            ConnectError::Prepare(_) | ConnectError::Refused(..) | ConnectError::WebSocket(..) => false,
        }
    }
}

/// TLS for an agent that has joined.
pub fn with_identity(identity: &AgentIdentity) -> Result<ClientConfig, ConnectError> {
    let mut roots = RootCertStore::empty();
    for ca in &identity.cas {
        roots.add(ca.clone()).map_err(ConnectError::Prepare)?;
    }
    let mut config = builder()?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![identity.certificate.clone()], identity.key.clone_key())
        .map_err(ConnectError::Prepare)?;
    // Each session has a new configuration, so a resumption cache would only use memory.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// TLS for an agent that knows only the CA's hash.
pub fn with_pin(pin: [u8; 32]) -> Result<ClientConfig, ConnectError> {
    let verifier = Arc::new(PinnedCa { pin, provider: Arc::new(ring_provider::default_provider()) });
    Ok(builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn builder() -> Result<
    tokio_rustls::rustls::ConfigBuilder<ClientConfig, tokio_rustls::rustls::WantsVerifier>,
    ConnectError,
> {
    ClientConfig::builder_with_provider(Arc::new(ring_provider::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(ConnectError::Prepare)
}

pub async fn connect(
    server: &ServerAddress,
    proxy: Option<&ProxyUrl>,
    path: &str,
    tls: ClientConfig,
) -> Result<Socket, ConnectError> {
    let connecting = tokio::time::timeout(CONNECT, connect_tcp(server, proxy)).await;
    let stream = connecting.map_err(|_| ConnectError::Silent(server.clone(), CONNECT))??;
    open(server, path, tls, stream).await
}

async fn connect_tcp(server: &ServerAddress, proxy: Option<&ProxyUrl>) -> Result<TcpStream, ConnectError> {
    match proxy {
        None => {
            let connecting = TcpStream::connect((server.host.as_str(), server.port)).await;
            connecting.map_err(|error| ConnectError::Tcp(server.clone(), error))
        }
        Some(proxy) => {
            let connecting = proxy::connect(proxy, server).await;
            connecting.map_err(|error| ConnectError::Proxy(server.clone(), error))
        }
    }
}

/// Opens the WebSocket on a new TCP connection.
pub async fn open(
    server: &ServerAddress,
    path: &str,
    tls: ClientConfig,
    stream: TcpStream,
) -> Result<Socket, ConnectError> {
    set_socket_options(&stream).map_err(|error| ConnectError::Tcp(server.clone(), error))?;
    let opening = tokio::time::timeout(OPEN, open_now(server, path, tls, stream)).await;
    opening.map_err(|_| ConnectError::Silent(server.clone(), OPEN))?
}

fn set_socket_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_IDLE)
        .with_interval(KEEP_ALIVE_INTERVAL)
        .with_retries(KEEP_ALIVE_PROBES);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keep_alive)?;
    rustix::net::sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES)
}

async fn open_now(
    server: &ServerAddress,
    path: &str,
    tls: ClientConfig,
    stream: TcpStream,
) -> Result<Socket, ConnectError> {
    let name = ServerName::try_from(SERVER_NAME).expect("a constant name is a good name");
    let stream = TlsConnector::from(Arc::new(tls))
        .connect(name, stream)
        .await
        .map_err(|error| ConnectError::Tls(server.clone(), error))?;
    let ws = |error: WsError| match error {
        WsError::Http(response) if response.status() != StatusCode::SWITCHING_PROTOCOLS => {
            let reason = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            ConnectError::Refused(server.clone(), format!("{} {reason}", response.status()))
        }
        WsError::Io(error) => ConnectError::Tls(server.clone(), error),
        error => ConnectError::WebSocket(server.clone(), Box::new(error)),
    };
    let request = format!("wss://{SERVER_NAME}{path}").into_client_request().map_err(ws)?;
    let limits = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_write_buffer_size(4 * MAX_MESSAGE)
        .max_frame_size(Some(MAX_FRAME))
        .max_message_size(Some(MAX_MESSAGE));
    let (socket, _) =
        tokio_tungstenite::client_async_with_config(request, stream, Some(limits)).await.map_err(ws)?;
    Ok(socket)
}

/// Trusts exactly the CA whose certificate has this hash.
#[derive(Debug)]
struct PinnedCa {
    pin: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let pinned =
            intermediates.iter().find(|certificate| digest(&SHA256, certificate).as_ref() == self.pin);
        let ca = pinned.ok_or(TlsError::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|_| TlsError::InvalidCertificate(CertificateError::UnknownIssuer))?;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_server::FakeServer;
    use procfleet_proto::link::LINK_PATH;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
    use tokio::net::TcpListener;

    /// A proxy that connects everybody to this server, and its address.
    async fn proxy_to(server: &FakeServer) -> ProxyUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let proxy = format!("http://{}", listener.local_addr().expect("a bound socket"));
        let server = server.address();
        tokio::spawn(async move {
            let (mut agent, _) = listener.accept().await.expect("a connection");
            let mut request = [0; 1024];
            let length = agent.read(&mut request).await.expect("a request");
            assert!(request[..length].starts_with(b"CONNECT no.such.host.invalid:7 HTTP/1.1\r\n"));
            agent.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.expect("the agent reads");
            let mut server = TcpStream::connect((server.host, server.port)).await.expect("it listens");
            let _ = copy_bidirectional(&mut agent, &mut server).await;
        });
        proxy.parse().expect("a proxy")
    }

    #[tokio::test]
    async fn a_connection_has_keep_alive() {
        let server = FakeServer::open().await;
        let address = server.address();
        let tls = with_identity(&server.identity()).expect("our own identity");
        let (socket, _peer) = tokio::join!(connect(&address, None, LINK_PATH, tls), server.accept());
        let socket = socket.expect("a connection");
        let stream = socket2::SockRef::from(socket.get_ref().get_ref().0);
        assert!(stream.keepalive().expect("a socket"));
        assert_eq!(stream.tcp_keepalive_time().expect("a socket"), KEEP_ALIVE_IDLE);
        assert_eq!(stream.tcp_keepalive_interval().expect("a socket"), KEEP_ALIVE_INTERVAL);
        assert_eq!(stream.tcp_keepalive_retries().expect("a socket"), KEEP_ALIVE_PROBES);
    }

    /// The agent resolves nothing, and the certificate is checked as without a proxy.
    #[tokio::test]
    async fn a_proxy_resolves_the_name_and_cannot_replace_the_server() {
        let (server, other) = (FakeServer::open().await, FakeServer::open().await);
        let address: ServerAddress = "no.such.host.invalid:7".parse().expect("an address");
        for tls in [with_identity(&server.identity()), with_pin(server.pin())] {
            let (tls, proxy) = (tls.expect("our own identity"), proxy_to(&server).await);
            let connecting = connect(&address, Some(&proxy), LINK_PATH, tls);
            let (socket, _peer) = tokio::join!(connecting, server.accept());
            socket.expect("a connection");
        }
        for tls in [with_identity(&server.identity()), with_pin(server.pin())] {
            let (tls, proxy) = (tls.expect("our own identity"), proxy_to(&other).await);
            let connecting = connect(&address, Some(&proxy), LINK_PATH, tls);
            let refused = tokio::select! {
                refused = connecting => refused.expect_err("the server of another CA"),
                never = async { other.accept().await; std::future::pending().await } => never,
            };
            assert!(matches!(refused, ConnectError::Tls(..)) && !refused.is_unreachable(), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_closes_the_connection_before_tls_is_unreachable() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address: ServerAddress = listener.local_addr().expect("bound").to_string().parse().expect("one");
        let server = FakeServer::open().await;
        let connecting = connect(&address, None, LINK_PATH, with_pin(server.pin()).expect("TLS"));
        let closing = async { drop(listener.accept().await) };
        let (refused, ()) = tokio::join!(connecting, closing);
        let refused = refused.expect_err("nobody is there");
        assert!(refused.is_unreachable(), "{refused:?}");
    }
}
