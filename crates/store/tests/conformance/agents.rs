//! Joining, sessions, resolving.

use super::*;
use procfleet_proto::http::cursor::ProcOrder;
use procfleet_store::clock::ClockReading;
use std::time::{SystemTime, UNIX_EPOCH};

on_each_engine!(a_token_is_spent_exactly_as_often_as_it_may_be);
async fn a_token_is_spent_exactly_as_often_as_it_may_be(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    store.create_token(token(10)).await.expect("a token");
    let mut joins = tokio::task::JoinSet::new();
    for last in 0..64 {
        let store = store.clone();
        let joining = joining(&format!("agent-{last}"), last);
        joins.spawn(async move {
            loop {
                match store.join(shown(), joining.clone(), 1_500).await {
                    // More callers than connections, on a slow machine: nothing was done for this one.
                    Err(StoreError::Unavailable { reason, .. }) if reason.contains("no connection") => {}
                    joined => return joined.expect("no error"),
                }
            }
        });
    }
    let results = joins.join_all().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 10);
    assert!(results.into_iter().filter_map(Result::err).all(|refusal| refusal == JoinTokenRefusal::UsedUp));
    assert_eq!(store.all_agents().await.expect("no error").len(), 10);
}

on_each_engine!(a_token_is_refused_for_a_reason);
async fn a_token_is_refused_for_a_reason(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    store.create_token(token(1)).await.expect("a token");
    let check = async |id: &str, secret: u8, now: i64, expected: Option<JoinTokenRefusal>| {
        let shown = TokenUse { id: id.to_owned(), secret_hash: [secret; 32] };
        let joined = store.join(shown, joining("a", 1), now).await.expect("no error");
        assert_eq!(joined.err(), expected, "{id} {secret} {now}");
    };
    check("other", 7, 1_500, Some(JoinTokenRefusal::Unknown)).await;
    check("t1", 8, 1_500, Some(JoinTokenRefusal::Unknown)).await;
    check("t1", 8, 2_000, Some(JoinTokenRefusal::Unknown)).await;
    check("t1", 7, 2_000, Some(JoinTokenRefusal::Expired)).await;
    check("t1", 7, 1_999, None).await;
    check("t1", 7, 1_999, Some(JoinTokenRefusal::UsedUp)).await;
}

on_each_engine!(a_join_that_fails_does_not_burn_a_use);
async fn a_join_that_fails_does_not_burn_a_use(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    store.create_token(token(2)).await.expect("a token");
    store.join(shown(), joining("a", 1), 1_500).await.expect("no error").expect("joined");
    let exists = store.join(shown(), joining("a", 2), 1_500).await.expect_err("the id is taken");
    assert!(matches!(exists, StoreError::Exists { .. }), "{exists:?}");
    store.join(shown(), joining("b", 2), 1_500).await.expect("no error").expect("one use was left");
}

on_each_engine!(a_new_agent_takes_its_host_over);
async fn a_new_agent_takes_its_host_over(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["old", "bystander"]).await;
    let epoch = store.agent_connected(&agent("old"), "0.1.0", "null", 1_600, NEVER_CONNECTED).await;
    let epoch = epoch.expect("connected");
    let status = said("nginx", 1, "{}");
    store.put_procs(&agent("old"), epoch, vec![status.clone()], Vec::new()).await.expect("stored");

    let joined = store.join(shown(), joining("new", 1), 1_700).await.expect("no error").expect("joined");
    assert_eq!(joined, JoinedAgent { host: host(1), retired: vec![agent("old")] });
    let old = store.agent(&agent("old")).await.expect("no error").expect("still known");
    assert_eq!((old.retired_at, old.connected, old.changed_at), (Some(1_700), false, 1_700));
    let current = store.all_agents().await.expect("no error");
    assert_eq!(current.iter().map(|a| a.agent.as_str()).collect::<Vec<_>>(), ["bystander", "new"]);
    let at = store.agent_at(host(1)).await.expect("no error").map(|record| record.agent);
    assert_eq!(at, Some(agent("new")));

    let procs = store.list_procs(every_proc(), ProcOrder::Host, None, 10).await.expect("no error");
    assert_eq!((procs.procs.len(), procs.total), (0, 0));
    let late = store.put_procs(&agent("old"), epoch, vec![status], Vec::new()).await;
    assert!(matches!(late, Err(StoreError::NoSuchAgent(_))), "{late:?}");
    let back = store.agent_connected(&agent("old"), "0.1.0", "null", 1_800, NEVER_CONNECTED).await;
    assert!(matches!(back, Err(StoreError::NoSuchAgent(_))), "{back:?}");
}

on_each_engine!(a_token_takes_no_host_away_from_another_business);
async fn a_token_takes_no_host_away_from_another_business(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["old"]).await;
    let shop = Business { id: BusinessId(7), name: "shop".to_owned() };
    store.create_business(shop, NewAudit::default()).await.expect("made");
    let theirs = NewToken { id: "t2".to_owned(), business: BusinessId(7), ..token(1) };
    store.create_token(theirs).await.expect("a token");
    let shown = || TokenUse { id: "t2".to_owned(), secret_hash: SECRET };
    let refused = store.join(shown(), joining("new", 1), 1_700).await.expect("no error");
    assert_eq!(refused, Err(JoinTokenRefusal::HostOf(BusinessId::DEFAULT)));
    let at = store.agent_at(host(1)).await.expect("no error").map(|record| record.agent);
    assert_eq!(at, Some(agent("old")));
    store.join(shown(), joining("new", 2), 1_700).await.expect("no error").expect("no use was spent");
}

on_each_engine!(an_agent_whose_server_has_ended_is_lost_a_day_later);
async fn an_agent_whose_server_has_ended_is_lost_a_day_later(engine: TestEngine) {
    const DAY: i64 = 86_400_000;
    let Fixture { folder, store } = engine.with_agents(&["old"]).await;
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("later").as_millis());
    let now = now.expect("a time of today");
    let plain = NewToken {
        id: "t2".to_owned(),
        expires_at: now + 9 * DAY,
        replaces: Replaces::LostAgents,
        ..token(10)
    };
    store.create_token(plain).await.expect("a token");
    store
        .agent_connected(&agent("old"), "0.1.0", "null", now - 30 * DAY, NEVER_CONNECTED)
        .await
        .expect("connected");
    // As after `kill -9`: the end of the session is not stored.
    store.close().await.expect("closes");
    let store = engine.reopen(&folder).await.expect("it opens again");
    let shown = || TokenUse { id: "t2".to_owned(), secret_hash: SECRET };
    let join = async |now: i64| store.join(shown(), joining("new", 1), now).await.expect("no error");
    let in_use = JoinTokenRefusal::HostInUse(host(1));
    assert_eq!(join(now + DAY / 2).await, Err(in_use));
    let refusal = store.join_refusal(shown(), host(1).ip, now + DAY / 2).await;
    assert_eq!(refusal.expect("no error"), Some(in_use));
    let refusal = store.join_refusal(shown(), host(1).ip, now + 2 * DAY).await;
    assert_eq!(refusal.expect("no error"), None);
    let mut store = store;
    if engine == TestEngine::Postgres {
        // Servers of the version before do not note their ends.
        let administrator = administrator(&folder).await;
        administrator.batch_execute("DELETE FROM server_ends").await.expect("ours");
        store.close().await.expect("closes");
        store = engine.reopen(&folder).await.expect("it opens again");
        let refusal = store.join_refusal(shown(), host(1).ip, now + 2 * DAY).await;
        assert_eq!(refusal.expect("no error"), None);
        let sql = format!("UPDATE server_ends SET ended_at = ended_at - {}", 9 * DAY);
        administrator.batch_execute(&sql).await.expect("ours");
    }
    store.close().await.expect("closes");
    let store = engine.reopen(&folder).await.expect("it opens again");
    let refusal = store.join_refusal(shown(), host(1).ip, now + 2 * DAY).await;
    assert_eq!(refusal.expect("no error"), None, "also after a start days later");
    let join = async |now: i64| store.join(shown(), joining("new", 1), now).await.expect("no error");
    assert_eq!(join(now + 2 * DAY).await.map(|joined| joined.retired), Ok(vec![agent("old")]));
}

on_each_engine!(only_a_token_for_that_replaces_an_agent_that_is_well);
async fn only_a_token_for_that_replaces_an_agent_that_is_well(engine: TestEngine) {
    const DAY: i64 = 86_400_000;
    let Fixture { folder: _folder, store } = engine.with_agents(&["old"]).await;
    let far = 1_000 * DAY;
    let plain =
        NewToken { id: "t2".to_owned(), expires_at: far, replaces: Replaces::LostAgents, ..token(10) };
    store.create_token(plain.clone()).await.expect("a token");
    let shown = |id: &str| TokenUse { id: id.to_owned(), secret_hash: SECRET };
    let join = async |token: &str, name: &str, now: i64| {
        store.join(shown(token), joining(name, 1), now).await.expect("no error").map(|joined| joined.retired)
    };
    let in_use = Err(JoinTokenRefusal::HostInUse(host(1)));
    // One whose answer was lost has never connected, and joins again.
    assert_eq!(join("t2", "a", 1_700).await, Ok(vec![agent("old")]));
    let epoch =
        store.agent_connected(&agent("a"), "0.1.0", "null", 1_800, NEVER_CONNECTED).await.expect("connected");
    assert_eq!(join("t2", "b", 1_900).await, in_use);
    assert_eq!(join("t2", "b", 5 * DAY).await, in_use, "it is connected");
    store
        .agent_disconnected(&agent("a"), epoch, ClockReading { wall: 5 * DAY, mark: None }, 5 * DAY)
        .await
        .expect("noted");
    assert_eq!(join("t2", "b", 6 * DAY - 1).await, in_use);
    assert_eq!(join("t2", "b", 6 * DAY).await, Ok(vec![agent("a")]), "it has been away for a day");
    store.agent_connected(&agent("b"), "0.1.0", "null", 6 * DAY, NEVER_CONNECTED).await.expect("connected");
    let any = NewToken { id: "t3".to_owned(), replaces: Replaces::AnyAgent, ..plain };
    store.create_token(any).await.expect("a token");
    assert_eq!(join("t3", "c", 6 * DAY + 1).await, Ok(vec![agent("b")]));
    store
        .agent_connected(&agent("c"), "0.1.0", "null", 6 * DAY + 2, NEVER_CONNECTED)
        .await
        .expect("connected");
    let revoked = store.revoke_agents(vec![agent("c")], String::new(), 6 * DAY + 3, NewAudit::default());
    revoked.await.expect("revoked");
    assert_eq!(join("t2", "d", 6 * DAY + 4).await, Ok(vec![agent("c")]), "it was put aside already");
    let page = EventPage::Newest(10);
    let events = store.events(EventFilter::default(), &GrantScope::All, page).await.expect("readable");
    let told: Vec<(&str, &str)> =
        events.iter().map(|record| (record.event.kind.as_str(), record.agent.as_str())).collect();
    assert_eq!(told, ["a", "b", "c", "d"].map(|new| (AGENT_REPLACED, new)));

    let gone = store.revoke_token("t2".to_owned(), 7 * DAY, NewAudit::default()).await.expect("no error");
    assert_eq!(gone.and_then(|token| token.revoked_at), Some(7 * DAY));
    assert_eq!(join("t2", "e", 7 * DAY).await, Err(JoinTokenRefusal::Revoked));
    assert_eq!(store.revoke_token("t9".to_owned(), 1, NewAudit::default()).await.expect("no error"), None);
    let left: Vec<(String, u32)> = store
        .tokens()
        .await
        .expect("readable")
        .into_iter()
        .map(|token| (token.id, token.uses_left))
        .collect();
    assert_eq!(left, [("t1", 99), ("t2", 7), ("t3", 9)].map(|(id, left)| (id.to_owned(), left)));
}

on_each_engine!(joining_leaves_a_record);
async fn joining_leaves_a_record(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["old"]).await;
    store.join(shown(), joining("new", 1), 1_700).await.expect("no error").expect("joined");
    let late = store.join(shown(), joining("late", 2), 2_000).await.expect("no error");
    assert_eq!(late, Err(JoinTokenRefusal::Expired));
    let rows = store.list_audit(10, AuditFilter::default()).await.expect("no error").records;
    let rows: Vec<_> =
        rows.iter().map(|row| (&*row.entry.subject, row.entry.code, &*row.entry.detail)).collect();
    let expected = [
        ("late", 1_000_837, "10.0.0.2 with token t1: the token has expired"),
        ("new", 0, "3:10.0.0.1 with token t1, business 1, instead of old"),
        ("3:10.0.0.1", 0, "agent new has joined in place of old, from 10.0.0.1 with token t1"),
        ("old", 0, "3:10.0.0.1 with token t1, business 1"),
    ];
    assert_eq!(rows, expected);
}

on_each_engine!(every_session_has_an_epoch_of_its_own);
async fn every_session_has_an_epoch_of_its_own(engine: TestEngine) {
    let Fixture { folder, store } = engine.with_agents(&["a"]).await;
    let a = agent("a");
    let at = |wall: i64| ClockReading { wall, mark: None };
    let seen = async |store: &Store| {
        let record = store.agent(&a).await.expect("no error").expect("an agent");
        (record.connected, record.changed_at, record.epoch.0, record.version)
    };
    assert_eq!(seen(&store).await, (false, 1_500, 0, "0.1.0".to_owned()));
    let first = store.agent_connected(&a, "0.2.0", "null", 1_600, NEVER_CONNECTED).await.expect("connected");
    assert_eq!(seen(&store).await, (true, 1_600, 1, "0.2.0".to_owned()));
    store.close().await.expect("closed");

    let store = engine.reopen(&folder).await.expect("it opens again");
    let second = store.agent_connected(&a, "0.2.0", "null", 1_700, NEVER_CONNECTED).await.expect("connected");
    assert!(second > first);
    store.agent_disconnected(&a, first, at(1_800), 1_800).await.expect("ignored");
    assert_eq!(seen(&store).await, (true, 1_700, 2, "0.2.0".to_owned()));
    store.agent_disconnected(&a, second, at(1_900), 1_900).await.expect("noted");
    assert_eq!(seen(&store).await, (false, 1_900, 2, "0.2.0".to_owned()));
}

on_each_engine!(targets_are_resolved_by_host_and_by_agent);
async fn targets_are_resolved_by_host_and_by_agent(engine: TestEngine) {
    // The second agent's id looks like another host's name: ids come first.
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "3:10.0.0.1", "gone"]).await;
    store.join(shown(), joining("c", 3), 1_700).await.expect("no error").expect("joined");
    let v6 = Target::Host("3:::1".parse().expect("a host"));
    let rows = [
        (Target::Host(host(1)), Some("a")),
        (Target::Host(host(9)), None),
        (Target::Host(Host { cloud: CloudId(0), ..host(1) }), None),
        (v6, None),
        (Target::Agent(agent("a")), Some("a")),
        (Target::Agent(agent("3:10.0.0.1")), Some("3:10.0.0.1")),
        (Target::Agent(agent("3:10.0.0.2")), Some("3:10.0.0.1")),
        (Target::Agent(agent("3:10.0.0.3")), Some("c")),
        (Target::Agent(agent("gone")), None),
        (Target::Agent(agent("nobody")), None),
    ];
    let (targets, expected): (Vec<Target>, Vec<Option<AgentId>>) =
        rows.into_iter().map(|(target, found)| (target, found.map(agent))).unzip();
    assert_eq!(store.resolve(&targets).await.expect("no error"), expected);
}
