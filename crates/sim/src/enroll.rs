//! Joining with a token, as any agent does: a key made here, a request signed with it, a certificate back.

use futures_util::{SinkExt, StreamExt};
use procfleet_agent::config::ServerAddress;
use procfleet_agent::identity::AgentIdentity;
use procfleet_agent::tls::{self, ConnectError};
use procfleet_proto::link::token::JoinToken;
use procfleet_proto::link::{
    ENROLL_PATH, Enroll, Enrolled, agent_message, decode_server, server_message::Body,
};
use rcgen::{CertificateParams, KeyPair};
use std::net::IpAddr;
use std::time::Duration;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_tungstenite::tungstenite::Message;

const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum SimEnrollError {
    #[error("the agent has not joined yet and there is no token (PROCFLEET_TOKEN or --token)")]
    NoToken,
    #[error("the server refused the enrolment: {0}")]
    Refused(String),
    #[error("the server's answer to the enrolment is invalid")]
    BadAnswer,
    #[error("making a key and a certificate request")]
    Request(#[from] rcgen::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

pub(crate) async fn enroll(
    server: &ServerAddress,
    token: Option<&JoinToken>,
    ip: IpAddr,
) -> Result<AgentIdentity, SimEnrollError> {
    let token = token.ok_or(SimEnrollError::NoToken)?;
    let key = KeyPair::generate()?;
    let csr = CertificateParams::new(Vec::new())?.serialize_request(&key)?;
    let enrolled = request_certificate(server, token, ip, csr.der().to_vec()).await?;
    Ok(AgentIdentity {
        agent: enrolled.agent.parse().map_err(|_| SimEnrollError::BadAnswer)?,
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        certificate: CertificateDer::from(enrolled.certificate),
        cas: vec![CertificateDer::from(enrolled.ca)],
    })
}

/// Sends a signing request, which may be anything, and returns the server's answer.
pub(crate) async fn request_certificate(
    server: &ServerAddress,
    token: &JoinToken,
    ip: IpAddr,
    csr: Vec<u8>,
) -> Result<Enrolled, SimEnrollError> {
    let version = procfleet_agent::VERSION.to_owned();
    let request = Enroll { token: token.to_string(), csr, ip: ip.to_string(), version };
    let mut socket = tls::connect(server, None, ENROLL_PATH, tls::with_pin(token.ca_pin)?).await?;
    let request = agent_message::Body::Enroll(request).into_bytes();
    socket.send(Message::Binary(request.into())).await.map_err(|_| SimEnrollError::BadAnswer)?;
    let answer = tokio::time::timeout(TIMEOUT, socket.next()).await.map_err(|_| SimEnrollError::BadAnswer)?;
    let Some(Ok(Message::Binary(bytes))) = answer else { return Err(SimEnrollError::BadAnswer) };
    match decode_server(&bytes) {
        Ok(Body::Enrolled(enrolled)) => Ok(enrolled),
        Ok(Body::Refused(refused)) => Err(SimEnrollError::Refused(refused.reason)),
        Ok(_) | Err(_) => Err(SimEnrollError::BadAnswer),
    }
}
