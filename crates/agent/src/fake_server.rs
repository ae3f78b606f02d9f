//! A TLS and WebSocket listener for unit tests of the connection.

use crate::config::ServerAddress;
use crate::identity::AgentIdentity;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use ring::digest::{SHA256, digest};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::ring as ring_provider};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_tungstenite::WebSocketStream;

pub(crate) struct FakeServer {
    listener: TcpListener,
    tls: TlsAcceptor,
    ca: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl FakeServer {
    pub(crate) async fn open() -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let ca = params.self_signed(&key).expect("a CA").der().clone();
        let issuer = Issuer::from_ca_cert_der(&ca, key).expect("our own CA");
        let (leaf, key) = leaf(&issuer, "procfleet-server");
        let tls = ServerConfig::builder_with_provider(Arc::new(ring_provider::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("TLS versions")
            .with_no_client_auth()
            .with_single_cert(vec![leaf, ca.clone()], key)
            .expect("our own certificate");
        FakeServer { listener, tls: TlsAcceptor::from(Arc::new(tls)), ca, issuer }
    }

    pub(crate) fn address(&self) -> ServerAddress {
        let port = self.listener.local_addr().expect("a bound socket").port();
        ServerAddress { host: "127.0.0.1".to_owned(), port }
    }

    /// The hash of the CA, as in a join token.
    pub(crate) fn pin(&self) -> [u8; 32] {
        digest(&SHA256, &self.ca).as_ref().try_into().expect("32 bytes")
    }

    /// An agent that has joined.
    pub(crate) fn identity(&self) -> AgentIdentity {
        let (certificate, key) = leaf(&self.issuer, "agent");
        AgentIdentity { agent: "a1".parse().expect("an id"), key, certificate, cas: vec![self.ca.clone()] }
    }

    pub(crate) async fn accept(&self) -> WebSocketStream<TlsStream<TcpStream>> {
        let (stream, _) = self.listener.accept().await.expect("a connection");
        let stream = self.tls.accept(stream).await.expect("TLS");
        tokio_tungstenite::accept_async(stream).await.expect("a WebSocket")
    }
}

fn leaf(issuer: &Issuer<'static, KeyPair>, name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new([name.to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, issuer).expect("a certificate").der().clone();
    (certificate, PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())))
}
