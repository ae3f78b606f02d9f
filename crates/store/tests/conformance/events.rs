//! Events are stored once, listed in order, and sent on from where a receiver stopped.

use super::*;
use procfleet_core::grants::{GrantScope, Pattern};

async fn numbers(
    store: &Store,
    filter: EventFilter,
    within: &GrantScope<BusinessId>,
    page: EventPage,
) -> Vec<u64> {
    let found = store.events(filter, within, page).await.expect("readable");
    found.into_iter().map(|record| record.event.journal_number).collect()
}

on_each_engine!(an_event_that_comes_twice_is_stored_once);
async fn an_event_that_comes_twice_is_stored_once(engine: TestEngine) {
    let Fixture { store, .. } = &engine.with_agents(&["a", "b"]).await;
    let add = async |from: &str, events: Vec<NewEvent>| {
        store.add_events(&agent(from), events, 9).await.expect("stored").len()
    };
    assert_eq!(add("a", vec![event(1, "exited"), event(2, "gave_up")]).await, 2);
    assert_eq!(add("a", vec![event(2, "gave_up"), event(3, "exited")]).await, 1);
    let other_journal = NewEvent { journal: "j2".to_owned(), ..event(1, "exited") };
    assert_eq!(add("a", vec![other_journal]).await, 1, "an agent that lost its journal counts anew");
    assert_eq!(add("b", vec![event(1, "exited")]).await, 1, "and every agent for itself");
    let all = GrantScope::All;
    assert_eq!(numbers(store, EventFilter::default(), &all, EventPage::Newest(3)).await, [3, 1, 1]);
    assert_eq!(numbers(store, EventFilter::default(), &all, EventPage::After(1, 2)).await, [2, 3]);
    let gave_up = EventFilter { kind: Some("gave_up".to_owned()), ..EventFilter::default() };
    assert_eq!(numbers(store, gave_up, &all, EventPage::Newest(9)).await, [2]);
    let of_b = EventFilter { agent: Some(agent("b")), ..EventFilter::default() };
    assert_eq!(numbers(store, of_b, &all, EventPage::Newest(9)).await, [1]);
    let elsewhere = GrantScope::Only([BusinessId(7)].into());
    assert!(numbers(store, EventFilter::default(), &elsewhere, EventPage::Newest(9)).await.is_empty());
    let stranger = store.add_events(&agent("x"), vec![event(1, "exited")], 9).await;
    assert!(matches!(stranger, Err(StoreError::NoSuchAgent(_))), "{stranger:?}");
    // The total is that of all pages.
    let count = async |filter, within| store.count_events(filter, within).await.expect("readable");
    let all_events = EventFilter::default;
    let nginx = EventFilter { name: Some("nginx".to_owned()), ..all_events() };
    let hidden = EventFilter { within: GrantScope::Only([Pattern::Exactly("x".to_owned())].into()), ..nginx };
    for (filter, within, expected) in [
        (all_events(), &all, 5),
        (EventFilter { kind: Some("gave_up".to_owned()), ..all_events() }, &all, 1),
        (EventFilter { agent: Some(agent("b")), ..all_events() }, &all, 1),
        (EventFilter { name: Some("nginx".to_owned()), ..all_events() }, &all, 5),
        (EventFilter { since: Some(6), ..all_events() }, &all, 0),
        (EventFilter { since: Some(5), ..all_events() }, &all, 5),
        (hidden, &all, 0),
        (all_events(), &elsewhere, 0),
    ] {
        assert_eq!(count(filter.clone(), within).await, expected, "{filter:?}");
    }
    assert_eq!(store.delete_events(10, 3).await.expect("deleted"), 3);
    assert_eq!(numbers(store, EventFilter::default(), &all, EventPage::After(0, 9)).await, [1, 1]);
}

on_each_engine!(a_webhook_begins_with_the_next_event_and_remembers_where_it_is);
async fn a_webhook_begins_with_the_next_event_and_remembers_where_it_is(engine: TestEngine) {
    let Fixture { store, .. } = &engine.with_agents(&["a"]).await;
    store.add_events(&agent("a"), vec![event(1, "exited")], 9).await.expect("stored");
    let add =
        async || store.add_webhook("http://h/".to_owned(), 3, NewAudit::default()).await.expect("stored");
    let webhook = add().await.expect("a new one");
    assert_eq!((webhook.delivered, add().await), (1, None));
    store.webhook_delivered(webhook.id, 4).await.expect("stored");
    store.webhook_delivered(webhook.id, 2).await.expect("stored");
    assert_eq!(store.webhooks().await.expect("readable")[0].delivered, 4, "it never goes back");
    assert!(store.remove_webhook(webhook.id, NewAudit::default()).await.expect("removed"));
    assert!(!store.remove_webhook(webhook.id, NewAudit::default()).await.expect("nothing to remove"));
    let ours = AuditFilter { app: Some(String::new()), ..AuditFilter::default() };
    assert_eq!(store.list_audit(9, ours).await.expect("readable").records.len(), 2);
}
