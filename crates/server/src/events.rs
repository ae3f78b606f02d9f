//! Events of agents: stores new ones and wakes the waiters (long polls and the webhook worker).

use crate::metrics::Metrics;
use procfleet_core::id::AgentId;
use procfleet_core::supervise::Event;
use procfleet_store::{Membership, NewEvent, Store, StoreError, Wake};
use std::sync::Arc;
use tokio::sync::watch;

/// Wakes waiters when there may be new events. It carries no data: the waiters read the store.
#[derive(Clone, Debug)]
pub struct EventNotifier {
    waiters: Arc<watch::Sender<()>>,
    membership: Membership,
}

impl EventNotifier {
    pub fn new(membership: Membership) -> EventNotifier {
        EventNotifier { waiters: Arc::new(watch::channel(()).0), membership }
    }

    /// Wakes the waiters of all servers.
    pub fn notify(&self) {
        self.notify_here();
        self.membership.wake_others(Wake::Events);
    }

    /// Another server has stored events.
    pub fn notify_here(&self) {
        self.waiters.send_replace(());
    }

    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.waiters.subscribe()
    }
}

/// Stores the events of an agent, each once, and wakes the waiters.
pub async fn store_events(
    store: &Store,
    metrics: &Metrics,
    event_notifier: &EventNotifier,
    agent: &AgentId,
    events: Vec<NewEvent>,
    now: i64,
) -> Result<(), StoreError> {
    let new = store.add_events(agent, events, now).await?;
    for event in &new {
        metrics.event(&event.kind);
        if let Ok(Event::Exited { exit, .. }) = serde_json::from_str(&event.details) {
            metrics.exit(exit);
        }
    }
    if !new.is_empty() {
        event_notifier.notify();
    }
    Ok(())
}
