//! An agent's certificate over its life: when the next one is due, and the giving of it.
//!
//! An agent asks for its next certificate over the session that it has, and the session goes on. One whose
//! certificate has expired gets a session in which it can do nothing else.

use super::connection::SessionEnd;
use super::listener::Link;
use crate::pki;
use crate::secret;
use crate::store::CertificateRecord;
use procfleet_core::id::AgentId;
use procfleet_proto::link::{Renew, Renewed, server_message::Body};
use std::time::Duration;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tracing::{info, warn};

/// After a new CA has come, its agents ask for new certificates within this long, and not all at once.
const SPREAD: Duration = Duration::from_secs(300);

/// How the certificate that an agent shows stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertificateAge {
    Good { renew_in: Duration },
    Expired,
}

pub(super) fn standing(
    link: &Link,
    shown: &CertificateDer<'_>,
    record: &CertificateRecord,
) -> CertificateAge {
    let now = link.clock.wall();
    // One of ours always says it; without it there is nothing that could be good.
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

/// At two thirds of a certificate's life, a third is left for whatever is in the way.
fn renew_in(issued_at: i64, expires_at: i64, now: i64) -> Duration {
    let due = issued_at.saturating_add(expires_at.saturating_sub(issued_at) / 3 * 2);
    Duration::from_millis(u64::try_from(due.saturating_sub(now)).unwrap_or_default())
}

/// A moment of the next minutes, for a fleet that all at once has to renew.
pub(super) fn soon(link: &Link) -> Duration {
    let spread = SPREAD.min(link.ca.life() / 10);
    spread.mul_f64(f64::from(u16::from_le_bytes(secret::random())) / f64::from(u16::MAX))
}

/// What tells an agent to ask for its next certificate in so long.
pub(super) fn ask_for_renewal(within: Duration) -> Body {
    Body::Renewed(Renewed { certificate: Vec::new(), cas: Vec::new(), renew_in_ms: millis(within) })
}

/// Gives the agent a certificate, or notes which one it has kept.
pub(super) async fn renew(link: &Link, agent: &AgentId, request: Renew) -> Result<Option<Body>, SessionEnd> {
    let failed = |error: crate::store::StoreError| {
        warn!(error = &error as &dyn std::error::Error, "a certificate could not be written down");
        SessionEnd::Refused("the server cannot renew certificates now".to_owned())
    };
    if request.csr.is_empty() {
        let Ok(kept) = request.kept.try_into() else {
            return Err(SessionEnd::Refused("what was kept is not the hash of a certificate".to_owned()));
        };
        link.store.use_certificate(agent, kept).await.map_err(failed)?;
        return Ok(None);
    }
    let now = link.clock.wall();
    let signed = link
        .ca
        .sign_agent(&request.csr, agent, now)
        .map_err(|_| SessionEnd::Refused("the certificate request cannot be used".to_owned()))?;
    let record = CertificateRecord {
        sha256: secret::hash(&signed.certificate),
        ca: Some(signed.ca),
        issued_at: Some(signed.issued_at),
        expires_at: Some(signed.expires_at),
    };
    link.store.give_certificate(agent, record).await.map_err(failed)?;
    info!(%agent, good_for = ?link.ca.life(), "an agent's certificate was renewed");
    Ok(Some(Body::Renewed(Renewed {
        certificate: signed.certificate.to_vec(),
        cas: link.ca.certificates().iter().map(|ca| ca.to_vec()).collect(),
        renew_in_ms: millis(renew_in(signed.issued_at, signed.expires_at, now)),
    })))
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_due_at_two_thirds_of_a_life() {
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
