//! Passes on what other servers announce. The announcements carry no data: each receiver reads the store.

use crate::dispatcher::{Dispatcher, DispatcherMessage};
use crate::events::EventNotifier;
use crate::pki::Ca;
use procfleet_store::{Membership, Wake};
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

#[derive(Debug)]
pub struct Wakes {
    pub membership: Membership,
    pub dispatcher: Dispatcher,
    pub event_notifier: EventNotifier,
    pub ca: Arc<Ca>,
    pub stop: watch::Receiver<bool>,
}

impl Wakes {
    pub async fn run(mut self) {
        let mut wakes = self.membership.wakes();
        loop {
            let wake = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                wake = wakes.recv() => wake,
            };
            let wake = match wake {
                Ok(wake) => wake,
                Err(RecvError::Lagged(_)) => Wake::Everything,
                Err(RecvError::Closed) => return,
            };
            if matches!(wake, Wake::Ca | Wake::Everything) {
                self.ca.wake();
            }
            if matches!(wake, Wake::Events | Wake::Everything) {
                self.event_notifier.notify_here();
            }
            self.dispatcher.send(DispatcherMessage::Woken(wake)).await;
        }
    }
}
