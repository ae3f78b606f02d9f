//! Joins a fleet, once for each agent. The key is created here and stays here.

use crate::VERSION;
use crate::config::{AgentSettings, ServerAddress};
use crate::identity::{AgentIdentity, IdentityError};
use crate::random;
use crate::tls::{self, ConnectError};
use futures_util::{SinkExt, StreamExt};
use procfleet_core::id::BadId;
use procfleet_core::server_choice;
use procfleet_proto::link::{ENROLL_PATH, Enroll, agent_message, decode_server, server_message::Body};
use rcgen::{CertificateParams, KeyPair};
use std::time::Duration;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_tungstenite::tungstenite::Message;
use tracing::{info, warn};

const TIMEOUT: Duration = Duration::from_secs(15);
const AGAIN: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    #[error(
        "this agent has not joined yet: give it a token (PROCFLEET_TOKEN or --token-file), as `procfleet token create` prints it"
    )]
    NoToken,
    #[error("the server refused the enrolment: {0}")]
    Refused(String),
    #[error("the server's answer to the enrolment makes no sense")]
    BadAnswer,
    #[error("the connection ended before the server had answered the enrolment")]
    NoAnswer,
    #[error("the server gave a bad agent id")]
    BadAgent(#[from] BadId),
    #[error("making a key and a certificate request")]
    Request(#[from] rcgen::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Asks the servers in random order until one answers, and waits if none is there yet. The first answer is
/// final: all servers of a fleet know the same tokens.
pub(crate) async fn join(config: &AgentSettings) -> Result<AgentIdentity, EnrollError> {
    loop {
        for server in server_choice::shuffled(&config.servers, random::draw) {
            match try_to_join(config, &server).await {
                Err(EnrollError::Connect(error)) if error.is_unreachable() => warn!(
                    %server,
                    error = &error as &dyn std::error::Error,
                    "cannot reach the server to join; retrying"
                ),
                Err(EnrollError::NoAnswer) => {
                    warn!(%server, "the server did not answer the request to join; retrying")
                }
                other => return other,
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn try_to_join(config: &AgentSettings, server: &ServerAddress) -> Result<AgentIdentity, EnrollError> {
    let token = config.token.as_ref().ok_or(EnrollError::NoToken)?;
    let key = KeyPair::generate()?;
    let csr = CertificateParams::new(Vec::new())?.serialize_request(&key)?;
    let request = Enroll {
        token: token.to_string(),
        csr: csr.der().to_vec(),
        ip: config.ip.map(|ip| ip.to_string()).unwrap_or_default(),
        version: VERSION.to_owned(),
    };
    let tls = tls::with_pin(token.ca_pin)?;
    let mut socket = tls::connect(server, config.proxy.as_ref(), ENROLL_PATH, tls).await?;
    let request = agent_message::Body::Enroll(request).into_bytes();
    socket.send(Message::Binary(request.into())).await.map_err(|_| EnrollError::NoAnswer)?;
    let answer = tokio::time::timeout(TIMEOUT, socket.next()).await.map_err(|_| EnrollError::NoAnswer)?;
    let bytes = match answer {
        Some(Ok(Message::Binary(bytes))) => bytes,
        None | Some(Ok(Message::Close(_)) | Err(_)) => return Err(EnrollError::NoAnswer),
        Some(Ok(_)) => return Err(EnrollError::BadAnswer),
    };
    match decode_server(&bytes) {
        Ok(Body::Enrolled(enrolled)) => {
            let identity = AgentIdentity {
                agent: enrolled.agent.parse()?,
                key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
                certificate: CertificateDer::from(enrolled.certificate),
                cas: std::iter::once(enrolled.ca)
                    .chain(enrolled.more_cas)
                    .map(CertificateDer::from)
                    .collect(),
            };
            identity.save(&config.data)?;
            info!(agent = %identity.agent, "joined");
            Ok(identity)
        }
        Ok(Body::Refused(refused)) => Err(EnrollError::Refused(refused.reason)),
        Ok(_) | Err(_) => Err(EnrollError::BadAnswer),
    }
}
