//! Sessions: what an earlier one says is out of date, and what a server concludes from them.

use super::*;

async fn connect(store: &Store, name: &str, highest: u64) -> Epoch {
    store.agent_connected(&agent(name), "0.1.0", "null", 1_600, Epoch(highest)).await.expect("connected")
}

async fn disconnect(store: &Store, name: &str, epoch: Epoch) {
    let at = clock::ClockReading { wall: 900, mark: None };
    store.agent_disconnected(&agent(name), epoch, at, 900).await.expect("stored");
}

async fn names(store: &Store) -> Vec<String> {
    let page = store
        .list_procs(every_proc(), procfleet_proto::http::cursor::ProcOrder::Host, None, 10)
        .await
        .expect("no error");
    page.procs.into_iter().map(|(_, _, record)| record.proc.name).collect()
}

on_each_engine!(states_of_an_earlier_session_are_refused);
async fn states_of_an_earlier_session_are_refused(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    let a = agent("a");
    let old = connect(&store, "a", 0).await;
    store.replace_procs(&a, old, vec![said("before", 1, "{}")]).await.expect("stored");
    let new = connect(&store, "a", 0).await;
    store.replace_procs(&a, new, vec![said("now", 1, "{}")]).await.expect("stored");
    let groups = || vec![GroupsRecord { namespace: "web".to_owned(), revision: 9, groups: Vec::new() }];
    let late = [
        store.replace_procs(&a, old, vec![said("late", 1, "{}")]).await,
        store.put_procs(&a, old, vec![said("late", 1, "{}")], Vec::new()).await,
        store.put_procs(&a, old, Vec::new(), vec![proc("now")]).await,
        store.replace_process_groups(&a, old, groups()).await,
        store.put_process_groups(&a, old, groups()).await,
    ];
    for late in late {
        assert!(matches!(late, Err(StoreError::OldSession(_))), "{late:?}");
    }
    assert_eq!(names(&store).await, ["now"]);
}

on_each_engine!(an_epoch_is_higher_than_every_one_that_the_agent_knows);
async fn an_epoch_is_higher_than_every_one_that_the_agent_knows(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    assert_eq!(connect(&store, "a", 0).await, Epoch(1));
    assert_eq!(connect(&store, "a", 0).await, Epoch(2));
    // A failover has lost the epochs 3 to 7.
    assert_eq!(connect(&store, "a", 7).await, Epoch(8));
    assert_eq!(connect(&store, "a", 7).await, Epoch(9));
}

on_each_engine!(sessions_that_are_not_the_last_ones_are_found);
async fn sessions_that_are_not_the_last_ones_are_found(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b", "c"]).await;
    for (name, sessions) in [("a", 1), ("b", 2)] {
        for _ in 0..sessions {
            connect(&store, name, 0).await;
        }
    }
    for (known, expected) in [
        (&[("a", 1), ("b", 1), ("c", 0)][..], &["b"][..]),
        (&[("a", 0), ("b", 1), ("nobody", 0)], &["a", "b"]),
        (&[("a", 2), ("b", 2)], &[]),
        (&[], &[]),
    ] {
        let sessions = known.iter().map(|(name, epoch)| (agent(name), Epoch(*epoch))).collect();
        let mut found = store.later_sessions(sessions).await.expect("no error");
        found.sort();
        assert_eq!(found, expected.iter().map(|name| agent(name)).collect::<Vec<_>>(), "{known:?}");
    }
}

on_each_engine!(dismissed_agents_are_named_with_the_reason);
async fn dismissed_agents_are_named_with_the_reason(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b", "c", "d"]).await;
    store
        .revoke_agents(vec![agent("a")], "stolen".to_owned(), 1_700, NewAudit::default())
        .await
        .expect("revoked");
    store.forget_agents(vec![agent("d")], 1_700, NewAudit::default()).await.expect("forgotten");
    store.join(shown(), joining("new", 2), 1_700).await.expect("no error").expect("joined");
    let all = ["a", "b", "c", "d", "new", "nobody"].map(agent).to_vec();
    let found = store.dismissals(all).await.expect("no error");
    assert_eq!(found.len(), 3);
    assert_eq!(found[&agent("a")], Dismissal::Revoked("stolen".to_owned()));
    assert_eq!(found[&agent("b")], Dismissal::Retired);
    let forgotten = Dismissal::Revoked(FORGOTTEN.to_owned());
    assert_eq!(found[&agent("d")], forgotten);

    let task = new_task(&["a", "b", "c", "d"]);
    store.create_task(task).await.expect("a task");
    let open = store.open_ops(OpScope::All).await.expect("no error");
    let dismissals: Vec<Option<Dismissal>> = open.into_iter().map(|row| row.dismissal).collect();
    let expected =
        [Some(Dismissal::Revoked("stolen".to_owned())), Some(Dismissal::Retired), None, Some(forgotten)];
    assert_eq!(dismissals, expected);
}

on_each_engine!(the_last_session_of_an_agent_is_shown);
async fn the_last_session_of_an_agent_is_shown(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b"]).await;
    let epoch = connect(&store, "a", 0).await;
    let sessions = store.sessions_of(vec![agent("a"), agent("b"), agent("c")]).await.expect("no error");
    assert_eq!(sessions.len(), 2);
    let a = sessions[&agent("a")];
    assert_eq!((a.epoch, a.connected, a.changed_at, a.heard_at), (epoch, true, 1_600, 1_600));
    assert_eq!(a.holder, store.membership().run());
    assert!(!sessions[&agent("b")].connected);
    disconnect(&store, "a", epoch).await;
    assert!(!store.sessions_of(vec![agent("a")]).await.expect("no error")[&agent("a")].connected);
}

on_each_engine!(a_server_that_starts_knows_which_ops_were_never_sent);
async fn a_server_that_starts_knows_which_ops_were_never_sent(engine: TestEngine) {
    let Fixture { folder, store } = engine.with_agents(&["away", "here", "left"]).await;
    // The op is accepted at 1,000.
    let epoch = connect(&store, "away", 0).await;
    disconnect(&store, "away", epoch).await;
    connect(&store, "here", 0).await;
    let left = connect(&store, "left", 0).await;
    store.create_task(new_task(&["away", "here", "left"])).await.expect("a task");
    let at = clock::ClockReading { wall: 1_500, mark: None };
    store.agent_disconnected(&agent("left"), left, at, 1_500).await.expect("stored");
    store.close().await.expect("closed");

    let store = engine.reopen(&folder).await.expect("it opens again");
    let open = store.open_ops(OpScope::All).await.expect("no error");
    let sent: Vec<SentBefore> = open.into_iter().map(|row| row.sent).collect();
    assert_eq!(sent, [SentBefore::No, SentBefore::Maybe, SentBefore::Maybe]);
}
