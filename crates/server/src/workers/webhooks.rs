//! Delivers events to webhooks in GSE's format, at least once.
//!
//! Each webhook has a cursor in the store. The cursor moves when the receiver answers with a success status.
//! After a crash the last delivery may be repeated; repeated events have the same ids.
//!
//! A request that fails is repeated with half of its events, down to one. An event that the receiver refuses
//! again and again, alone, is skipped: one event, whose content an agent or an app chooses, must not block
//! all others.

use crate::events::EventNotifier;
use crate::metrics::Metrics;
use procfleet_core::grants::GrantScope;
use procfleet_failpoint::{Point, hit};
use procfleet_http_client::Timeouts;
use procfleet_program::panics;
use procfleet_proto::http::events::{DeliveredEvent, data_id, delivered_size, delivery, without_secrets};
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
/// Maximum size of a request, unless one event alone is larger. nginx accepts 1 MiB by default.
const REQUEST: usize = 256 * 1024;
/// An event that was refused alone so often is skipped: with the pauses, after an hour.
const REFUSALS: u32 = 60;
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
    pub metrics: Arc<Metrics>,
    pub stop: watch::Receiver<bool>,
}

/// State of the deliveries to one webhook.
#[derive(Clone, Copy, Debug)]
struct Tries {
    failures: u32,
    /// The next try is not before this time.
    next: Option<Instant>,
    under_way: bool,
    /// Maximum number of events in a request.
    most: usize,
    /// The event that the receiver has refused alone, and how often.
    alone: Option<(u64, u32)>,
}

impl Default for Tries {
    fn default() -> Self {
        Tries { failures: 0, next: None, under_way: false, most: BATCH as usize, alone: None }
    }
}

impl Tries {
    /// The receiver has taken events. Requests grow step by step, because the next large one may fail again.
    fn taken(&mut self) {
        let all = Tries::default();
        *self = Tries { most: (self.most * 2).min(all.most), ..all };
    }

    fn refused(&mut self, failed: &FailedRequest, now: Instant) -> FailureVerdict {
        self.most = (failed.events / 2).max(1);
        if failed.cause == FailureCause::Events && failed.events == 1 {
            let before = self.alone.map_or(0, |(event, count)| if event == failed.first { count } else { 0 });
            self.alone = Some((failed.first, before + 1));
            if before + 1 >= REFUSALS {
                return FailureVerdict::Skip;
            }
        }
        self.failed(now);
        FailureVerdict::Repeat
    }

    fn failed(&mut self, now: Instant) {
        let pause = (FIRST_PAUSE * 2u32.saturating_pow(self.failures.min(10))).min(LONGEST_PAUSE);
        self.failures += 1;
        self.next = Some(now + pause);
    }

    fn skipped(&mut self) {
        *self = Tries { most: 1, ..Tries::default() };
    }
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
                    let (store, stop, most) = (self.store.clone(), self.stop.clone(), tried.most);
                    deliveries.spawn_blocking(move || {
                        let may_deliver = || store.membership().has(Lease::Webhooks) && !*stop.borrow();
                        let end = panics::catch_in(|| deliver(&webhook.url, &events, most, may_deliver));
                        let panicked = |caught: panics::Caught| {
                            let (reason, cause) = (caught.to_string(), FailureCause::Receiver);
                            DeliveryEnd::Refused(FailedRequest {
                                reason,
                                cause,
                                first: 0,
                                events: events.len(),
                            })
                        };
                        (webhook.id, end.unwrap_or_else(panicked))
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
        match end {
            DeliveryEnd::Taken { up_to } => {
                if !self.move_cursor(webhook, up_to, tries).await {
                    return;
                }
                if tries.failures > 0 {
                    info!(webhook, "a webhook takes events again");
                }
                tries.taken();
                self.delivery_errors.lock().remove(&webhook);
            }
            DeliveryEnd::Refused(failed) => {
                if tries.failures == 0 {
                    let reason = &failed.reason;
                    warn!(
                        webhook,
                        %reason,
                        "delivery to a webhook failed; its events wait, and the delivery is retried at most 60 s apart. \
                         Check the receiver"
                    );
                }
                let event = failed.first;
                let verdict = tries.refused(&failed, Instant::now());
                self.delivery_errors.lock().insert(webhook, failed.reason);
                if verdict == FailureVerdict::Skip && self.move_cursor(webhook, event, tries).await {
                    tries.skipped();
                    self.metrics.webhook_events_skipped.inc();
                    warn!(
                        webhook,
                        event,
                        "a webhook has refused an event for an hour; the event is skipped, and the next ones are \
                         delivered; see the log of the receiver for the reason"
                    );
                }
            }
            // Nothing was sent, so this is not a failure of the receiver.
            DeliveryEnd::NotSent => {}
        }
    }

    /// False: the store does not take it, so the events are delivered again.
    async fn move_cursor(&self, webhook: u64, up_to: u64, tries: &mut Tries) -> bool {
        let Err(error) = self.store.webhook_delivered(webhook, up_to).await else { return true };
        let reason = error.to_string();
        if tries.failures == 0 {
            warn!(
                webhook,
                %reason,
                "storing the cursor of a webhook failed; its last events are delivered again"
            );
        }
        tries.failed(Instant::now());
        self.delivery_errors.lock().insert(webhook, reason);
        false
    }
}

/// How a delivery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DeliveryEnd {
    /// The receiver has taken everything up to this event.
    Taken { up_to: u64 },
    /// The receiver has taken nothing.
    Refused(FailedRequest),
    /// This server ends, has no lease any longer, or does not reach the database.
    NotSent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FailedRequest {
    reason: String,
    cause: FailureCause,
    /// The number of the first event in the request.
    first: u64,
    /// How many events were in the request.
    events: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureCause {
    /// The receiver does not accept this content, or so much of it.
    Events,
    /// Another content would fare no better.
    Receiver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureVerdict {
    Repeat,
    Skip,
}

impl FailureCause {
    fn of_status(status: u16) -> FailureCause {
        match status {
            // Its login, its url, or its load.
            401 | 404 | 405 | 407 | 408 | 410 | 429 => FailureCause::Receiver,
            400..=499 => FailureCause::Events,
            _ => FailureCause::Receiver,
        }
    }
}

/// Sends events in order, up to the first failure. A request has events of one data id. The lease is checked
/// before each request: after a SIGSTOP of this process, another server may have delivered the rest.
fn deliver(url: &str, records: &[EventRecord], most: usize, may_deliver: impl Fn() -> bool) -> DeliveryEnd {
    let client = procfleet_http_client::client(Timeouts { connect: None, overall: TIMEOUT });
    let id = |record: &EventRecord| format!("{}-{}", record.event.journal, record.event.journal_number);
    let ids: Vec<String> = records.iter().map(id).collect();
    let events: Vec<DeliveredEvent<'_>> =
        records.iter().zip(&ids).map(|(record, id)| delivered(record, id)).collect();
    let (mut begin, mut up_to) = (0, 0);
    while let Some(first) = events.get(begin) {
        let end = begin + request_length(&events[begin..], most);
        if !may_deliver() {
            return match up_to {
                0 => DeliveryEnd::NotSent,
                up_to => DeliveryEnd::Taken { up_to },
            };
        }
        let body = delivery(data_id(first.report_id), events[begin..end].iter().copied());
        let (reason, cause) = match client.post(url).send_json(body) {
            Ok(answer) if answer.status().is_success() => {
                up_to = records[end - 1].number;
                begin = end;
                continue;
            }
            // A redirect is a failure, too: the receiver that the administrator named has not taken the
            // events.
            Ok(answer) => {
                let status = answer.status().as_u16();
                (format!("http status: {status}"), FailureCause::of_status(status))
            }
            Err(error) => (error.to_string().replace(url, &without_secrets(url)), FailureCause::Receiver),
        };
        // Events that were taken before the failure are not sent again.
        if up_to > 0 {
            return DeliveryEnd::Taken { up_to };
        }
        let (first, events) = (records[begin].number, end - begin);
        return DeliveryEnd::Refused(FailedRequest { reason, cause, first, events });
    }
    DeliveryEnd::Taken { up_to }
}

fn delivered<'a>(record: &'a EventRecord, id: &'a str) -> DeliveredEvent<'a> {
    DeliveredEvent {
        agent: &record.agent,
        host: record.host,
        proc: &record.event.proc,
        proc_name: &record.event.proc_name,
        kind: &record.event.kind,
        message: &record.event.message,
        at: record.event.at,
        report_id: record.event.report_id,
        id,
    }
}

/// How many of these events are sent in one request: at least one.
fn request_length(events: &[DeliveredEvent<'_>], most: usize) -> usize {
    let id = events.first().map(|first| data_id(first.report_id));
    let mut bytes = 0;
    let fits = |event: &&DeliveredEvent<'_>| {
        bytes += delivered_size(**event);
        bytes <= REQUEST && Some(data_id(event.report_id)) == id
    };
    events.iter().take(most).take_while(fits).count().max(1)
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
            metrics: Arc::new(Metrics::new()),
            stop: watch::channel(false).1,
        };
        let nowhere = "http://127.0.0.1:1/";
        let mut tries = Tries { under_way: true, ..Tries::default() };
        let end = deliver(nowhere, &[event(7, 1)], 100, || false);
        delivery.ended(1, end, &mut tries).await;
        assert_eq!((tries.failures, tries.next, tries.under_way), (0, None, false));
        assert_eq!(delivery.delivery_errors.get(1), "");

        tries.under_way = true;
        let refused = tokio::task::spawn_blocking(move || deliver(nowhere, &[event(7, 1)], 100, || true));
        delivery.ended(1, refused.await.expect("no panic"), &mut tries).await;
        assert_eq!((tries.failures, tries.under_way), (1, false));
        assert_ne!(delivery.delivery_errors.get(1), "");
    }

    #[test]
    fn a_request_has_events_of_one_data_id_up_to_a_size() {
        let check = |records: &[EventRecord], most: usize, expected: usize| {
            let events: Vec<DeliveredEvent<'_>> =
                records.iter().map(|record| delivered(record, "id")).collect();
            assert_eq!(request_length(&events, most), expected);
        };
        let with_message = |message: String| {
            let mut record = event(1, 7);
            record.event.message = message;
            record
        };
        check(&vec![event(1, 7); 100], 100, 100);
        check(&vec![event(1, 7); 100], 25, 25);
        check(&[event(1, 7), event(2, 7), event(3, 8), event(4, 7)], 100, 2);
        // Each byte of such a message takes six in JSON.
        check(&vec![with_message("\u{1}".repeat(8 * 1024)); 100], 100, 5);
        check(&vec![with_message("m".repeat(REQUEST)); 2], 100, 1);
    }

    /// Delivers events 1 to 100 to a receiver that refuses requests, given by first event and length. Returns
    /// the skipped events and the number of requests; gives up after 10,000.
    fn simulate(refuses: impl Fn(u64, usize) -> Option<FailureCause>) -> (Vec<u64>, usize) {
        let (mut tries, mut cursor, mut skipped) = (Tries::default(), 0, Vec::new());
        for requests in 0..10_000 {
            if cursor == 100 {
                return (skipped, requests);
            }
            let (first, length) = (cursor + 1, tries.most.min(100 - cursor as usize));
            match refuses(first, length) {
                None => {
                    cursor += length as u64;
                    tries.taken();
                }
                Some(cause) => {
                    let failed = FailedRequest { reason: String::new(), cause, first, events: length };
                    if tries.refused(&failed, Instant::now()) == FailureVerdict::Skip {
                        skipped.push(first);
                        cursor = first;
                        tries.skipped();
                    }
                }
            }
        }
        (skipped, 10_000)
    }

    #[test]
    fn a_refused_request_is_halved_and_only_an_event_that_is_refused_alone_is_skipped() {
        let events = Some(FailureCause::Events);
        assert_eq!(simulate(|_, _| None), (vec![], 1));
        // Too large.
        let (skipped, requests) = simulate(|_, length| events.filter(|_| length > 7));
        assert!(skipped.is_empty() && requests < 40, "{skipped:?} {requests}");
        let has_37 = |first: u64, length: usize| (first..first + length as u64).contains(&37);
        let (skipped, requests) = simulate(|first, length| events.filter(|_| has_37(first, length)));
        assert!(skipped == [37] && (60..100).contains(&requests), "{skipped:?} {requests}");
        // A receiver that is down, or does not know its url any more, gets everything later.
        assert_eq!(simulate(|_, _| Some(FailureCause::Receiver)), (vec![], 10_000));
        for (status, cause) in
            [(400, FailureCause::Events), (413, FailureCause::Events), (422, FailureCause::Events)]
                .into_iter()
                .chain([302, 401, 404, 429, 500, 503].map(|status| (status, FailureCause::Receiver)))
        {
            assert_eq!(FailureCause::of_status(status), cause, "{status}");
        }
    }
}
