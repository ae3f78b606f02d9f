//! Readmission of agents that a restored store does not know: they joined, or renewed their certificates,
//! after the backup was made.
//!
//! TLS has verified that their certificate is from our own CA. That is sufficient while the operator allows
//! it (`--readmit`).

use super::Link;
use super::enroll::host_address;
use super::session_end::SessionEnd;
use crate::pki;
use crate::secret;
use procfleet_core::id::AgentId;
use procfleet_proto::link::Hello;
use procfleet_store::{CertificateRecord, JoiningAgent};
use std::net::IpAddr;
use tokio::time::Instant;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tracing::info;

/// Open only after a restore: otherwise an unknown agent is refused.
pub(super) async fn is_open(link: &Link) -> bool {
    link.readmit_until.is_some_and(|until| Instant::now() < until)
        && link.store.was_restored().await.unwrap_or_default()
}

pub(super) async fn readmit(
    link: &Link,
    agent: &AgentId,
    certificate: &CertificateDer<'static>,
    hello: &Hello,
    from: IpAddr,
) -> Result<(), SessionEnd> {
    let (issued_at, expires_at) = pki::validity(certificate).unzip();
    let ip = host_address(&hello.ip, from).map_err(SessionEnd::Refused)?;
    // Without its CA the certificate counts as old, so that the agent soon asks for a new one.
    let certificate =
        CertificateRecord { sha256: secret::hash(certificate), ca: None, issued_at, expires_at };
    let back = JoiningAgent { agent: agent.clone(), ip, certificate, version: hello.version.clone(), from };
    match link.store.readmit(back, link.clock.wall()).await? {
        Ok(host) => {
            info!(%agent, %host, "an agent that the restored store did not know was readmitted");
            Ok(())
        }
        Err(reason) => Err(SessionEnd::Refused(format!("agent {agent} cannot be readmitted: {reason}"))),
    }
}

/// Text to add to a refusal that a restored backup may explain.
pub(super) async fn hint(link: &Link) -> &'static str {
    match link.store.was_restored().await {
        Ok(true) => {
            ": the server's store was restored from a backup. Start the server with --readmit, or join again with a token"
        }
        Ok(false) | Err(_) => "",
    }
}
