//! Follows changes of the CA that other servers make: rotation, retirement.
//!
//! It compares the pins of the store with those in use every few seconds, and at once when it is woken
//! ([`Ca::wake`]). Sessions hear of an adopted change by [`Ca::changes`].

use crate::ca_change::{self, CaChangeError};
use crate::pki::Ca;
use procfleet_store::{Store, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{error, info};

const LOOK: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct CaFollower {
    pub store: Store,
    pub ca: Arc<Ca>,
    pub stop: watch::Receiver<bool>,
}

impl CaFollower {
    pub async fn run(mut self) {
        let mut is_failing = false;
        loop {
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                () = self.ca.woken() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
            match ca_change::catch_up(&self.store, &self.ca).await {
                Ok(()) if is_failing => {
                    is_failing = false;
                    info!("the CA of the store is in use again");
                }
                // The store itself says that the database is away.
                Err(CaChangeError::Store(StoreError::Unavailable { .. })) => {}
                // Once for a row of failures.
                Err(error) if !is_failing => {
                    is_failing = true;
                    error!(
                        error = &error as &dyn std::error::Error,
                        "the CA of the store could not be read or opened; the server goes on with the CA that it has, and tries again. \
                         If another server has changed the CA or the seal key, start this one with all seal keys (--seal-key)"
                    );
                }
                Ok(()) | Err(_) => {}
            }
        }
    }
}
