//! Retires a CA that has a successor as soon as no agent and no join token needs it.

use crate::ca_change::{self, CaChangeError};
use crate::clock::Clock;
use crate::pki::Ca;
use procfleet_failpoint::{Point, hit};
use procfleet_proto::link::token::hex;
use procfleet_store::{Lease, NewAudit, OldCa, Store, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{info, warn};

/// How often the agents of the old CA are counted while there is a successor.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Succession {
    pub store: Store,
    pub ca: Arc<Ca>,
    pub clock: Clock,
    pub stop: watch::Receiver<bool>,
}

impl Succession {
    pub async fn run(mut self) {
        let mut changes = self.ca.changes();
        loop {
            hit(Point::ServerSuccession);
            let look = async {
                match self.ca.next_pin() {
                    Some(_) => tokio::time::sleep(LOOK).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                _ = changes.changed() => continue,
                () = look => {}
            }
            if !self.store.membership().has(Lease::Succession) {
                continue;
            }
            match self.is_free().await {
                Ok(false) => {}
                Ok(true) => self.retire().await,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(error, "the agents of the old CA could not be counted; trying again");
                }
            }
        }
    }

    async fn retire(&self) {
        let (old, now) = (self.ca.pin(), self.clock.wall());
        let detail = "no agent and no join token needs it".to_owned();
        let record = NewAudit::of_server(now, "ca_retire", hex(&old), detail);
        let how = OldCa::RetireIfUnneeded { at: now };
        match ca_change::retire(self.store.clone(), self.ca.clone(), old, how, move |_| record.clone()).await
        {
            Ok(Some(_)) => {
                info!(retired = hex(&old), "the CA was retired: no agent and no join token needs it");
            }
            // An administrator or another server was faster, or an agent has joined just now.
            Ok(None) | Err(CaChangeError::Needed { .. }) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                warn!(error, "the old CA could not be retired; trying again");
            }
        }
    }

    async fn is_free(&self) -> Result<bool, StoreError> {
        let agents = self.store.agents_of_ca(self.ca.pin()).await?;
        Ok(agents == 0 && self.store.usable_tokens(self.clock.wall()).await? == 0)
    }
}
