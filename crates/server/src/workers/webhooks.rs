//! Delivers events to webhooks in GSE's format, at least once.
//!
//! Each webhook has a cursor in the store. The cursor moves when the receiver answers with a success status.
//! After a crash the last delivery may be repeated; repeated events have the same ids.

use crate::events::EventNotifier;
use procfleet_core::grants::GrantScope;
use procfleet_failpoint::{Point, hit};
use procfleet_http_client::Timeouts;
use procfleet_program::panics;
use procfleet_proto::http::events::{DeliveredEvent, data_id, delivery, without_secrets};
use procfleet_store::{EventFilter, EventPage, EventRecord, Lease, Store};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

/// Maximum number of events in one delivery.
const BATCH: u32 = 100;
/// Time limit of one delivery. The worker ends without waiting for a delivery, but the process ends after it;
/// its events are sent again after the next start.
const TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Why the last delivery to each webhook failed. Webhooks without a failure have no entry.
#[derive(Clone, Debug, Default)]
pub struct DeliveryErrors(Arc<Mutex<HashMap<u64, String>>>);

impl DeliveryErrors {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, webhook: u64) -> String {
        self.lock().get(&webhook).cloned().unwrap_or_default()
    }
}

/// The worker.
#[derive(Debug)]
pub struct Delivery {
    pub store: Store,
    pub event_notifier: EventNotifier,
    pub delivery_errors: DeliveryErrors,
    pub stop: watch::Receiver<bool>,
}

/// State of the deliveries to one webhook.
#[derive(Clone, Copy, Debug, Default)]
struct Tries {
    failures: u32,
    /// The next try is not before this time.
    next: Option<Instant>,
    under_way: bool,
}

impl Delivery {
    pub async fn run(self) {
        let mut stop = self.stop.clone();
        let mut event_notifier = self.event_notifier.subscribe();
        let mut tries: HashMap<u64, Tries> = HashMap::new();
        let mut deliveries: JoinSet<(u64, DeliveryEnd)> = JoinSet::new();
        loop {
            hit(Point::ServerWebhooks);
            let due = self.begin_due(&mut tries, &mut deliveries).await;
            let ended = tokio::select! {
                // The stop signal first: an unfinished delivery is repeated after the next start.
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                Some(ended) = deliveries.join_next(), if !deliveries.is_empty() => ended.ok(),
                // New events, or other webhooks.
                _ = event_notifier.changed() => None,
                () = tokio::time::sleep_until(due) => None,
            };
            if let Some((webhook, ended)) = ended {
                self.ended(webhook, ended, tries.entry(webhook).or_default()).await;
            }
        }
    }

    /// Begins the deliveries that are due. Returns when to look again.
    async fn begin_due(
        &self,
        tries: &mut HashMap<u64, Tries>,
        deliveries: &mut JoinSet<(u64, DeliveryEnd)>,
    ) -> Instant {
        let now = Instant::now();
        let mut due = now + LONGEST_PAUSE;
        // One server delivers for all. A delivery that another one has begun may come twice: receivers know
        // events by their numbers.
        if !self.store.membership().has(Lease::Webhooks) {
            // Errors of earlier deliveries are stale when this server gets the lease again.
            tries.retain(|_, tried| tried.under_way);
            self.delivery_errors.lock().clear();
            return now + FIRST_PAUSE;
        }
        let webhooks = match self.store.webhooks().await {
            Ok(webhooks) => webhooks,
            Err(error) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "the webhooks could not be read from the store; trying again"
                );
                return now + FIRST_PAUSE;
            }
        };
        tries.retain(|id, _| webhooks.iter().any(|webhook| webhook.id == *id));
        self.delivery_errors.lock().retain(|id, _| webhooks.iter().any(|webhook| webhook.id == *id));
        for webhook in webhooks {
            let tried = tries.entry(webhook.id).or_default();
            match tried.next {
                _ if tried.under_way => continue,
                Some(next) if next > now => {
                    due = due.min(next);
                    continue;
                }
                Some(_) | None => {}
            }
            let page = EventPage::After(webhook.delivered, BATCH);
            match self.store.events(EventFilter::default(), &GrantScope::All, page).await {
                Ok(events) if events.is_empty() => {}
                Ok(events) => {
                    tried.under_way = true;
                    let store = self.store.clone();
                    deliveries.spawn_blocking(move || {
                        let may_deliver = || store.membership().has(Lease::Webhooks);
                        let end = panics::catch_in(|| deliver(&webhook.url, &events, may_deliver));
                        (webhook.id, end.unwrap_or_else(|caught| DeliveryEnd::Refused(caught.to_string())))
                    });
                }
                Err(error) => {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "the events for a webhook could not be read from the store; trying again"
                    );
                    due = due.min(now + FIRST_PAUSE);
                }
            }
        }
        due
    }

    async fn ended(&self, webhook: u64, end: DeliveryEnd, tries: &mut Tries) {
        tries.under_way = false;
        let stored = match end {
            DeliveryEnd::Taken { up_to } => {
                self.store.webhook_delivered(webhook, up_to).await.map_err(|error| error.to_string())
            }
            DeliveryEnd::Refused(reason) => Err(reason),
            // Nothing was sent, so this is not a failure of the receiver.
            DeliveryEnd::NotSent => return,
        };
        match stored {
            Ok(()) => {
                if tries.failures > 0 {
                    info!(webhook, "a webhook takes events again");
                }
                *tries = Tries::default();
                self.delivery_errors.lock().remove(&webhook);
            }
            Err(reason) => {
                if tries.failures == 0 {
                    warn!(webhook, %reason, "a webhook does not take events; they wait for it");
                }
                let pause = (FIRST_PAUSE * 2u32.saturating_pow(tries.failures.min(10))).min(LONGEST_PAUSE);
                tries.failures += 1;
                tries.next = Some(Instant::now() + pause);
                self.delivery_errors.lock().insert(webhook, reason);
            }
        }
    }
}

/// How a delivery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DeliveryEnd {
    /// The receiver has taken everything up to this event.
    Taken { up_to: u64 },
    /// The receiver has taken nothing, for this reason.
    Refused(String),
    /// This server has no lease any longer, or does not reach the database.
    NotSent,
}

/// Sends events of one data id at a time, in order, up to the first failure. The lease is checked before each
/// request: after a SIGSTOP of this process, another server may have delivered the rest.
fn deliver(url: &str, events: &[EventRecord], may_deliver: impl Fn() -> bool) -> DeliveryEnd {
    let client = procfleet_http_client::client(Timeouts { connect: None, overall: TIMEOUT });
    let mut up_to = 0;
    for group in events.chunk_by(|one, next| data_id(one.event.report_id) == data_id(next.event.report_id)) {
        let ids: Vec<String> = group
            .iter()
            .map(|record| format!("{}-{}", record.event.journal, record.event.journal_number))
            .collect();
        let events = group.iter().zip(&ids).map(|(record, id)| DeliveredEvent {
            agent: &record.agent,
            host: record.host,
            proc: &record.event.proc,
            proc_name: &record.event.proc_name,
            kind: &record.event.kind,
            message: &record.event.message,
            at: record.event.at,
            report_id: record.event.report_id,
            id,
        });
        let number = group.first().map_or(0, |first| data_id(first.event.report_id));
        if !may_deliver() {
            return match up_to {
                0 => DeliveryEnd::NotSent,
                up_to => DeliveryEnd::Taken { up_to },
            };
        }
        match client.post(url).send_json(delivery(number, events)) {
            Ok(answer) if answer.status().is_success() => {
                up_to = group.last().map_or(up_to, |last| last.number);
            }
            // Events that were taken before the failure are not sent again.
            Ok(_) | Err(_) if up_to > 0 => return DeliveryEnd::Taken { up_to },
            // A redirect is a failure, too: the receiver that the administrator named has not taken the
            // events.
            Ok(answer) => return DeliveryEnd::Refused(format!("http status: {}", answer.status().as_u16())),
            Err(error) => {
                return DeliveryEnd::Refused(error.to_string().replace(url, &without_secrets(url)));
            }
        }
    }
    DeliveryEnd::Taken { up_to }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::{CloudId, Host, ProcKey};
    use procfleet_store::NewEvent;

    fn event(number: u64, report_id: i64) -> EventRecord {
        let event = NewEvent {
            journal: "j".to_owned(),
            journal_number: number,
            at: 1,
            proc: ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() },
            kind: "exited".to_owned(),
            message: String::new(),
            details: "null".to_owned(),
            report_id,
            proc_name: "nginx".to_owned(),
            account: String::new(),
        };
        let host = Host { cloud: CloudId(0), ip: [10, 0, 0, 1].into() };
        EventRecord { number, agent: "a".parse().expect("an agent id"), host, received_at: 1, event }
    }

    /// A server that has lost the lease, or does not reach the database for a moment, says nothing about the
    /// receiver: the next delivery is neither late nor reported as one to a webhook that takes events again.
    #[tokio::test]
    async fn a_delivery_that_may_not_be_made_is_no_failure_of_its_receiver() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let store = Store::open(&folder.path().join("server.db")).await.expect("a store");
        let delivery = Delivery {
            event_notifier: EventNotifier::new(store.membership().clone()),
            store,
            delivery_errors: DeliveryErrors::default(),
            stop: watch::channel(false).1,
        };
        let nowhere = "http://127.0.0.1:1/";
        let mut tries = Tries { under_way: true, ..Tries::default() };
        let end = deliver(nowhere, &[event(7, 1)], || false);
        delivery.ended(1, end, &mut tries).await;
        assert_eq!((tries.failures, tries.next, tries.under_way), (0, None, false));
        assert_eq!(delivery.delivery_errors.get(1), "");

        tries.under_way = true;
        let refused = tokio::task::spawn_blocking(move || deliver(nowhere, &[event(7, 1)], || true));
        delivery.ended(1, refused.await.expect("no panic"), &mut tries).await;
        assert_eq!((tries.failures, tries.under_way), (1, false));
        assert_ne!(delivery.delivery_errors.get(1), "");
    }
}
