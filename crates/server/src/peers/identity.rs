//! The certificate that this server shows to other servers. It is made when it is first needed, and again
//! when the run of this server or the CA has changed, or the certificate is a day old.

use crate::clock::Clock;
use crate::pki::{Ca, PkiError, RunCertificate};
use procfleet_core::boot_time::BootTime;
use procfleet_store::ServerId;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;

/// A certificate is valid for seven days, so a server that cannot make another one has time.
const RENEW_AFTER: Duration = Duration::from_secs(86_400);

#[derive(Debug)]
pub(super) struct PeerIdentities {
    ca: Arc<Ca>,
    ca_changes: watch::Receiver<u64>,
    clock: Clock,
    current: Mutex<Option<Arc<PeerIdentity>>>,
}

#[derive(Debug)]
pub(super) struct PeerIdentity {
    pub(super) certificate: RunCertificate,
    pub(super) server_tls: Arc<ServerConfig>,
    ca_change: u64,
    made_at: BootTime,
}

impl PeerIdentities {
    pub(super) fn new(ca: Arc<Ca>, clock: Clock) -> PeerIdentities {
        PeerIdentities { ca_changes: ca.changes(), ca, clock, current: Mutex::default() }
    }

    pub(super) fn of(&self, run: ServerId) -> Result<Arc<PeerIdentity>, PkiError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // Read before the certificate is made: a change in between makes another one next time.
        let (ca_change, now) = (*self.ca_changes.borrow(), self.clock.now());
        if let Some(known) = &*current
            && known.certificate.run() == run
            && known.ca_change == ca_change
            && now.since(known.made_at) < RENEW_AFTER
        {
            return Ok(known.clone());
        }
        let certificate = self.ca.sign_run(run, self.clock)?;
        let server_tls = certificate.server_tls()?;
        let made = Arc::new(PeerIdentity { certificate, server_tls, ca_change, made_at: now });
        *current = Some(made.clone());
        Ok(made)
    }
}
