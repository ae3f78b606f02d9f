//! Retires a CA that has a successor as soon as no agent and no join token needs it.

use crate::clock::Clock;
use crate::pki::Ca;
use crate::store::{Store, StoreError};
use procfleet_proto::link::token::hex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{info, warn};

/// While a CA is being replaced: how often it is asked whether anybody still needs the old one.
const LOOK: Duration = Duration::from_secs(1);

/// Retires a CA that has a successor when nobody needs it any more.
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
            match self.is_free().await {
                Ok(false) => {}
                Ok(true) => {
                    let (ca, old) = (self.ca.clone(), hex(&self.ca.pin()));
                    match tokio::task::spawn_blocking(move || ca.retire()).await {
                        Ok(Ok(_)) => info!(retired = old, "the CA was retired: nobody needs it any more"),
                        Ok(Err(error)) => {
                            warn!(error = &error as &dyn std::error::Error, "the CA could not be retired");
                        }
                        // Its panic ends the server.
                        Err(_) => return,
                    }
                }
                Err(error) => {
                    warn!(error = &error as &dyn std::error::Error, "who uses the CA could not be read");
                }
            }
        }
    }

    async fn is_free(&self) -> Result<bool, StoreError> {
        let agents = self.store.agents_of_ca(self.ca.pin()).await?;
        Ok(agents == 0 && self.store.usable_tokens(self.clock.wall()).await? == 0)
    }
}
