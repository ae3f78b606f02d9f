//! Renews the agent's certificate: requested when the server says so, with a new key, and used from the next
//! connection on. The previous one stays valid until its end, so a lost answer does no harm.

use crate::identity::{AgentIdentity, Credentials};
use crate::tls;
use procfleet_proto::link::{Renew, Renewed, agent_message::Body};
use rcgen::{CertificateParams, KeyPair};
use ring::digest::{SHA256, digest};
use std::time::{Duration, Instant};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tracing::{info, warn};

/// Interval of retries for an answer that did not arrive, or could not be stored.
const AGAIN: Duration = Duration::from_secs(30);
/// Maximum wait of one timer, so that no timer overflows.
const LONGEST_WAIT: Duration = Duration::from_secs(400 * 86_400);

/// The state of the renewal within one session.
pub(crate) struct Renewal {
    /// `None`: this server renews nothing.
    due: Option<Instant>,
    /// The key of the last request.
    asked: Option<KeyPair>,
}

impl Renewal {
    pub(crate) fn due_in(millis: Option<u64>, now: Instant) -> Renewal {
        Renewal { due: millis.map(|millis| later(now, millis)), asked: None }
    }

    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.due
    }

    /// The request, when it is due. If no key can be created, there is no request, and the next try comes
    /// later.
    pub(crate) fn ask(&mut self, now: Instant) -> Option<Body> {
        self.due.filter(|due| *due <= now)?;
        self.due = Some(now + AGAIN);
        let request = || -> Result<(KeyPair, Vec<u8>), rcgen::Error> {
            let key = KeyPair::generate()?;
            let csr = CertificateParams::new(Vec::new())?.serialize_request(&key)?.der().to_vec();
            Ok((key, csr))
        };
        match request() {
            Ok((key, csr)) => {
                self.asked = Some(key);
                Some(Body::Renew(Renew { csr, kept: Vec::new() }))
            }
            Err(error) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot create a key for the next certificate; retrying"
                );
                None
            }
        }
    }

    /// Stores the new certificate and confirms it to the server; or schedules the next request.
    pub(crate) fn take(&mut self, credentials: &Credentials, renewed: Renewed, now: Instant) -> Option<Body> {
        let Renewed { certificate, cas, renew_in_ms } = renewed;
        if certificate.is_empty() {
            self.due = Some(later(now, renew_in_ms));
            return None;
        }
        let key = self.asked.take()?;
        let kept = digest(&SHA256, &certificate).as_ref().to_vec();
        let identity = AgentIdentity {
            agent: credentials.present().agent.clone(),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            certificate: CertificateDer::from(certificate),
            cas: cas.into_iter().map(CertificateDer::from).collect(),
        };
        // An unusable certificate must not replace a usable one: it may be the answer to an earlier request.
        if let Err(error) = tls::with_identity(&identity) {
            warn!(
                error = &error as &dyn std::error::Error,
                "the new certificate is not usable; requesting another"
            );
            return None;
        }
        if let Err(error) = credentials.replace(identity) {
            warn!(
                error = &error as &dyn std::error::Error,
                "cannot store the new certificate; requesting another"
            );
            return None;
        }
        info!("certificate renewed");
        self.due = Some(later(now, renew_in_ms));
        Some(Body::Renew(Renew { csr: Vec::new(), kept }))
    }
}

fn later(now: Instant, millis: u64) -> Instant {
    now + Duration::from_millis(millis).min(LONGEST_WAIT)
}
