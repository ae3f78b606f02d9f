//! Renewal of agents' certificates: when the next certificate is due, and signing it.
//!
//! An agent asks for its next certificate over its open session, which continues. An agent whose certificate
//! has expired gets a session that only allows the renewal.

use super::Link;
use super::session_end::SessionEnd;
use crate::ca_change;
use crate::pki::{self, PkiError, Signed};
use crate::secret;
use procfleet_core::id::AgentId;
use procfleet_proto::link::{Renew, Renewed, server_message::Body};
use procfleet_store::{CertificateRecord, StoreError};
use std::time::Duration;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tracing::{error, info, warn};

/// After a new CA was added, agents renew their certificates within this time, staggered.
const SPREAD: Duration = Duration::from_secs(300);

/// State of the certificate that an agent presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertificateAge {
    Good { renew_in: Duration },
    Expired,
}

pub(super) fn age(link: &Link, shown: &CertificateDer<'_>, record: &CertificateRecord) -> CertificateAge {
    let now = link.clock.wall();
    // A certificate of our CA always has a validity period; treat any other as expired.
    let Some((from, until)) = pki::validity(shown) else { return CertificateAge::Expired };
    if now >= until {
        return CertificateAge::Expired;
    }
    let signing = link.ca.next_pin().unwrap_or_else(|| link.ca.pin());
    match record.ca == Some(signing) {
        true => CertificateAge::Good { renew_in: renew_in(record.issued_at.unwrap_or(from), until, now) },
        false => CertificateAge::Good { renew_in: soon(link) },
    }
}

/// Renewal is due at two thirds of the lifetime, which leaves a third for retries.
fn renew_in(issued_at: i64, expires_at: i64, now: i64) -> Duration {
    let due = issued_at.saturating_add(expires_at.saturating_sub(issued_at) / 3 * 2);
    Duration::from_millis(u64::try_from(due.saturating_sub(now)).unwrap_or_default())
}

/// A random delay of up to `SPREAD` (jitter), for a fleet that has to renew all at once.
pub(super) fn soon(link: &Link) -> Duration {
    let spread = SPREAD.min(link.ca.life() / 10);
    spread.mul_f64(f64::from(u16::from_le_bytes(secret::random())) / f64::from(u16::MAX))
}

/// The message that tells an agent to ask for its next certificate within this time.
pub(super) fn ask_for_renewal(within: Duration) -> Body {
    Body::Renewed(Renewed { certificate: Vec::new(), cas: Vec::new(), renew_in_ms: millis(within) })
}

/// Signs a certificate for the agent, or stores which certificate the agent has kept.
pub(super) async fn renew(link: &Link, agent: &AgentId, request: Renew) -> Result<Option<Body>, SessionEnd> {
    let failed = |error: procfleet_store::StoreError| {
        warn!(
            error = &error as &dyn std::error::Error,
            "storing a certificate failed; the session of the agent ends"
        );
        SessionEnd::Refused("the server cannot renew certificates now".to_owned())
    };
    if request.csr.is_empty() {
        let Ok(kept) = request.kept.try_into() else {
            return Err(SessionEnd::Refused("the hash of the kept certificate is not a SHA-256".to_owned()));
        };
        link.store.use_certificate(agent, kept).await.map_err(failed)?;
        return Ok(None);
    }
    let now = link.clock.wall();
    let sign = || {
        let signed = link.ca.sign_agent(&request.csr, agent, now);
        signed.map_err(|error| SessionEnd::Refused(refusal_of(&error)))
    };
    let mut signed = sign()?;
    let mut given = link.store.give_certificate(agent, record(&signed)).await;
    if let Err(StoreError::CaChanged) = given {
        follow_ca(link).await;
        signed = sign()?;
        given = link.store.give_certificate(agent, record(&signed)).await;
    }
    given.map_err(failed)?;
    info!(%agent, good_for = ?link.ca.life(), "an agent's certificate was renewed");
    Ok(Some(Body::Renewed(Renewed {
        certificate: signed.certificate.to_vec(),
        cas: link.ca.certificates().iter().map(|ca| ca.to_vec()).collect(),
        renew_in_ms: millis(renew_in(signed.issued_at, signed.expires_at, now)),
    })))
}

/// The reason that an agent gets when its certificate is not signed. A fault that is not the agent's is
/// logged.
pub(super) fn refusal_of(error: &PkiError) -> String {
    match error {
        PkiError::Request(_) => error.to_string(),
        PkiError::File { .. }
        | PkiError::Lost { .. }
        | PkiError::NotLost { .. }
        | PkiError::Damaged { .. }
        | PkiError::Sealed { .. }
        | PkiError::NotStored { .. }
        | PkiError::Certificate(_)
        | PkiError::Tls(_) => {
            error!(
                error = error as &dyn std::error::Error,
                "signing an agent's certificate failed; the agent is refused and will retry. Check the CA's key"
            );
            "the server cannot sign certificates now".to_owned()
        }
    }
}

/// The record of a certificate that was signed now.
pub(super) fn record(signed: &Signed) -> CertificateRecord {
    CertificateRecord {
        sha256: secret::hash(&signed.certificate),
        ca: Some(signed.ca),
        issued_at: Some(signed.issued_at),
        expires_at: Some(signed.expires_at),
    }
}

/// Adopts the CA of the store after a certificate was refused because the CA has changed.
pub(super) async fn follow_ca(link: &Link) {
    if let Err(error) = ca_change::catch_up(&link.store, &link.ca).await {
        warn!(
            error = &error as &dyn std::error::Error,
            "the CA has changed and could not be adopted; the certificate of an agent is not signed"
        );
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fault_of_the_request_is_reported_as_the_agents() {
        for (error, refusal) in [
            (
                PkiError::Request(rcgen::Error::CouldNotParseCertificationRequest),
                "the certificate request cannot be used",
            ),
            (PkiError::Certificate(rcgen::Error::RemoteKeyError), "the server cannot sign certificates now"),
        ] {
            assert_eq!(refusal_of(&error), refusal);
        }
    }

    #[test]
    fn a_renewal_is_due_at_two_thirds_of_the_lifetime() {
        for (issued, expires, now, due) in [
            (0, 90_000, 0, 60_000),
            (0, 90_000, 59_000, 1_000),
            (0, 90_000, 60_000, 0),
            (0, 90_000, 200_000, 0),
            (1_000, 1_000, 0, 1_000),
        ] {
            assert_eq!(
                renew_in(issued, expires, now),
                Duration::from_millis(due),
                "{issued} {expires} {now}"
            );
        }
    }
}
