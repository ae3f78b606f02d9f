//! Lists events, with long polling.

use super::{AppError, Caller, Page, Services, access};
use crate::agent_limits;
use procfleet_core::grants::{GrantScope, Rights};
use procfleet_core::request::Target;
use procfleet_proto::http::events::{EventRow, EventsView};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::query::EventsQuery;
use procfleet_store::{EventFilter, EventPage, EventRecord, FoundTarget};
use serde_json::value::RawValue;
use tokio::time::Instant;

/// The events of the caller's businesses and namespaces, in the order of their arrival.
pub async fn list(
    services: &Services,
    caller: &Caller,
    question: EventsQuery,
) -> Result<Page<EventsView>, AppError> {
    if let Some(after) = question.after {
        refuse_lost_cursor(services, after).await?;
    }
    let agent = match question.host {
        None => None,
        Some(host) => {
            let found =
                services.store.resolve_within(&[Target::Host(host)], caller.rights.businesses()).await?;
            match found.into_iter().next().and_then(FoundTarget::agent) {
                Some(agent) => Some(agent),
                None => {
                    let last = question.after.unwrap_or_default();
                    let total = question.after.is_none().then_some(0);
                    return Ok(Page { data: EventsView { events: Vec::new(), last }, next: None, total });
                }
            }
        }
    };
    let EventsQuery { namespace, name, kind, select, since, after, limit, wait, host: _ } = question;
    let since = since.map(|secs| secs.saturating_mul(1000));
    let within = match &*caller.rights {
        Rights::Administrator => GrantScope::All,
        Rights::Granted(grants) => grants.namespaces.clone(),
    };
    let filter = EventFilter { within, namespace, name, kind, agent, select, since };
    // A caller that follows events asks again and again, and does not need the number of all of them.
    let total = match after {
        None => Some(services.store.count_events(filter.clone(), caller.rights.businesses()).await?),
        Some(_) => None,
    };
    let until = Instant::now() + wait;
    let mut event_notifier = services.event_notifier.subscribe();
    let mut last = after;
    loop {
        event_notifier.mark_unchanged();
        let page = last.map_or(EventPage::Newest(limit), |last| EventPage::After(last, limit));
        // Before the list is read: an event in between is listed twice at worst, and never missed.
        let newest = match last {
            None => services.store.last_event().await?,
            Some(last) => last,
        };
        let records = services.store.events(filter.clone(), caller.rights.businesses(), page).await?;
        let seen = records.last().map_or(newest, |record| record.number.max(newest));
        let events: Vec<EventRow> = records.into_iter().map(|record| row(caller, record)).collect();
        if !events.is_empty() || last.is_none() || Instant::now() >= until {
            return Ok(Page { data: EventsView { events, last: seen }, next: None, total });
        }
        last = Some(seen);
        let _ = tokio::time::timeout_at(until, event_notifier.changed()).await;
    }
}

/// A cursor behind a restored backup would skip events or repeat some.
async fn refuse_lost_cursor(services: &Services, after: u64) -> Result<(), AppError> {
    const AGAIN: &str = "list the events again without `after`, and go on from the `last` of that answer";
    let mut faults = Faults::default();
    if let Some(at) = services.store.event_lost_at(after).await? {
        let at = jiff::Timestamp::from_millisecond(at).unwrap_or_default();
        faults.add(
            "after",
            format!(
                "event {after} was lost when a backup of the store was restored, or its database failed over, at {at:.0}; {AGAIN}"
            ),
        );
    } else if after > services.store.newest_event_number().await? {
        faults.add(
            "after",
            format!("no event has had the number {after} yet: it is of another store; {AGAIN}"),
        );
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.into()) }
}

/// Hides message and details of a process whose account the caller may not use: they may hold its output.
fn row(caller: &Caller, record: EventRecord) -> EventRow {
    let EventRecord { number, agent, host, received_at, mut event } = record;
    if !access::may_see_output_of(caller, &event.account) {
        event.message = "not shown: the app may not use the account of this process".to_owned();
        event.details = "null".to_owned();
    }
    EventRow {
        number,
        at: event.at,
        received_at,
        bk_agent_id: agent.to_string(),
        bk_cloud_id: host.cloud.0,
        ip: host.ip.to_string(),
        namespace: event.proc.namespace,
        name: event.proc.name,
        kind: event.kind,
        message: event.message,
        details: details(event.details),
    }
}

/// Details as they were sent. `null` if a caller's parser might refuse them: earlier servers stored JSON of
/// any depth.
fn details(text: String) -> Box<RawValue> {
    let checked = agent_limits::check_details(text.as_bytes()).and_then(|()| RawValue::from_string(text));
    checked.unwrap_or_default()
}
