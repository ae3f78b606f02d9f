//! Two servers do something at the same moment. See [`gate`](super::gate).

use super::gate::{Gate, Meanwhile};
use super::*;
use procfleet_store::clock::ClockReading;
use procfleet_testkit::PATIENCE;
use std::future::Future;
use std::time::Instant;

async fn fixture(agents: &[&str]) -> Fixture {
    TestEngine::Postgres.with_agents(agents).await
}

/// Units of one agent's messages come one after the other in one server, so two servers are needed to make
/// them meet.
async fn two_servers(agents: &[&str]) -> (TempDir, Store, Store) {
    let Fixture { folder, store } = fixture(agents).await;
    let other = TestEngine::Postgres.reopen(&folder).await.expect("a second server");
    (folder, store, other)
}

fn submit(store: &Store, request: u8) -> impl Future<Output = Result<Submitted, StoreError>> + use<> {
    submit_under(KeyKind::Idempotency, store, request)
}

fn submit_under(
    kind: KeyKind,
    store: &Store,
    request: u8,
) -> impl Future<Output = Result<Submitted, StoreError>> + use<> {
    let key = SubmissionKey { kind, text: "k".to_owned() };
    let since = ClockReading { wall: i64::MIN, mark: None };
    let submission = Submission { key, request_hash: [request; 32], since };
    let store = store.clone();
    Box::pin(async move { store.submit_task(new_task(&["a"]), submission).await })
}

fn finish(store: &Store, report: Finished) -> impl Future<Output = Vec<Applied>> + use<> {
    let store = store.clone();
    async move { store.finish_ops(vec![report]).await.expect("applied") }
}

fn add_event(store: &Store, from: &str) -> impl Future<Output = Result<usize, StoreError>> + use<> {
    let (store, from) = (store.clone(), agent(from));
    let event = event(1, "exited");
    async move { store.add_events(&from, vec![event], 9).await.map(|new| new.len()) }
}

/// The agent sends it again until it is stored. The pool may not have noticed yet that its connection has
/// ended.
async fn add_again(store: &Store, from: &str) -> Result<usize, StoreError> {
    let began = Instant::now();
    loop {
        match add_event(store, from).await {
            Err(StoreError::Unavailable { .. }) if began.elapsed() < PATIENCE => {}
            stored => return stored,
        }
    }
}

fn connect(store: &Store) -> impl Future<Output = Result<u64, StoreError>> + use<> {
    let store = store.clone();
    async move {
        store.agent_connected(&agent("a"), "0.2.0", "null", 1_600, NEVER_CONNECTED).await.map(|epoch| epoch.0)
    }
}

fn revoke(store: &Store) -> impl Future<Output = ()> + use<> {
    let store = store.clone();
    async move {
        let revoked = store.revoke_agents(vec![agent("a")], "lost".to_owned(), 1_700, NewAudit::default());
        revoked.await.expect("revoked");
    }
}

fn join(
    store: &Store,
    name: &str,
    last: u8,
) -> impl Future<Output = Result<JoinedAgent, JoinTokenRefusal>> + use<> {
    let (store, joining) = (store.clone(), joining(name, last));
    async move { store.join(shown(), joining, 1_500).await.expect("no error") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_of_two_calls_under_a_key_gets_the_task_of_the_first() {
    for (request, is_same) in [(1, true), (2, false)] {
        let Fixture { folder, store } = fixture(&[]).await;
        let gate = Gate::at(&folder, "INSERT ON ops").await;
        let (first, second, meanwhile) = gate.between(submit(&store, 1), submit(&store, request)).await;
        let Ok(Submitted::New(task)) = first else { panic!("{first:?}") };
        let expected = if is_same { Submitted::Before(task) } else { Submitted::OtherRequest(task) };
        assert_eq!((second.expect("no error"), meanwhile), (expected, Meanwhile::Waited));
        assert_eq!(newest(&store, 10).await.len(), 1);
        assert_eq!(store.open_ops(OpScope::All).await.expect("no error").len(), 1);
    }
}

/// A request id stands for each of its requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_calls_with_one_request_id_are_one_task_if_they_are_equal() {
    for (request, is_same) in [(1, true), (2, false)] {
        let (folder, store, other) = two_servers(&[]).await;
        let gate = Gate::at(&folder, "INSERT ON ops").await;
        let [one, two] = [(&store, 1), (&other, request)]
            .map(|(at, request)| submit_under(KeyKind::RequestId, at, request));
        let (first, second, meanwhile) = gate.between(one, two).await;
        let (Ok(Submitted::New(task)), Ok(second)) = (&first, second) else { panic!("{first:?}") };
        match is_same {
            true => assert_eq!((second, meanwhile), (Submitted::Before(*task), Meanwhile::Waited)),
            false => {
                assert!(matches!(second, Submitted::New(another) if another != *task), "{second:?}");
                assert_eq!(meanwhile, Meanwhile::CameToo);
            }
        }
        assert_eq!(newest(&store, 10).await.len(), if is_same { 1 } else { 2 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_dies_leaves_its_key_to_the_one_that_waits() {
    let Fixture { folder, store } = fixture(&[]).await;
    let gate = Gate::at(&folder, "INSERT ON ops").await;
    let first = tokio::spawn(submit(&store, 1));
    gate.wait_until_somebody_is_here().await;
    let second = tokio::spawn(submit(&store, 2));
    assert_eq!(gate.wait_for(&second).await, Meanwhile::Waited);
    gate.end_who_is_here().await;
    let first = first.await.expect("no panic");
    assert!(first.is_err(), "{first:?}");
    gate.open().await;
    let second = second.await.expect("no panic").expect("the key is free");
    assert!(matches!(second, Submitted::New(_)), "{second:?}");
    assert_eq!(newest(&store, 10).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_outcome_of_an_op_wins_and_is_counted_once() {
    let Fixture { folder, store } = fixture(&[]).await;
    let task = store.create_task(new_task(&["a", "b"])).await.expect("a task");
    let gate = Gate::at(&folder, "INSERT ON outcomes").await;
    let (timeout, success) =
        (finished(op(task, 0), None, Code::Timeout), finished(op(task, 0), Some("a"), Code::Success));
    let (first, second, meanwhile) = gate.between(finish(&store, timeout), finish(&store, success)).await;
    assert_eq!((&first[..], meanwhile), (&[Applied::Now][..], Meanwhile::Waited));
    assert_eq!(second, [Applied::Late], "what the agent says is kept beside it");
    let (record, ops) = store.task_results(task).await.expect("no error").expect("the task");
    assert_eq!(record.counts, TaskCounts { total: 2, open: 1, succeeded: 0, failed: 1 });
    assert_eq!(ops[0].outcome.as_ref().map(|outcome| outcome.code), Some(Code::Timeout));
    assert_eq!(ops[0].late.as_ref().map(|late| late.code), Some(Code::Success));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_two_ops_of_a_task_end_at_once_and_the_task_ends() {
    let Fixture { folder, store } = fixture(&[]).await;
    let task = store.create_task(new_task(&["a", "b"])).await.expect("a task");
    let gate = Gate::at(&folder, "INSERT ON outcomes").await;
    let reports = [("a", 0), ("b", 1)].map(|(by, index)| finished(op(task, index), Some(by), Code::Success));
    let [one, other] = reports.map(|report| finish(&store, report));
    let (first, second, meanwhile) = gate.between(one, other).await;
    assert_eq!((first, second), (vec![Applied::Now], vec![Applied::Now]));
    assert_eq!(meanwhile, Meanwhile::Waited, "counts are locked before anything is counted");
    let record = store.task(task).await.expect("no error").expect("the task");
    assert_eq!(record.counts, TaskCounts { total: 2, open: 0, succeeded: 2, failed: 0 });
    assert_eq!(store.open_tasks().await.expect("no error"), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_has_just_ended_cannot_be_cancelled() {
    let Fixture { folder, store } = fixture(&[]).await;
    let task = store.create_task(new_task(&["a"])).await.expect("a task");
    let gate = Gate::at(&folder, "UPDATE ON tasks").await;
    let ended = finish(&store, finished(op(task, 0), Some("a"), Code::Success));
    let cancel = {
        let store = store.clone();
        async move { store.cancel_task(task, 8, NewAudit::default()).await.expect("no error") }
    };
    let (ended, cancelled, meanwhile) = gate.between(ended, cancel).await;
    assert_eq!((&ended[..], cancelled, meanwhile), (&[Applied::Now][..], false, Meanwhile::Waited));
    let record = store.task(task).await.expect("no error").expect("the task");
    assert_eq!((record.cancelled_at, record.counts.succeeded, record.counts.open), (None, 1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_get_their_numbers_in_the_order_of_the_commits_and_without_gaps() {
    let (folder, store, other) = two_servers(&["a", "b"]).await;
    let gate = Gate::at(&folder, "INSERT ON events").await;
    let first = tokio::spawn(add_event(&store, "a"));
    gate.wait_until_somebody_is_here().await;
    let second = tokio::spawn(add_event(&other, "b"));
    assert_eq!(
        gate.wait_for(&second).await,
        Meanwhile::Waited,
        "an event with a higher number is not visible first"
    );
    assert_eq!(store.newest_event_number().await.expect("no error"), 0);
    gate.open().await;
    for unit in [first, second] {
        assert_eq!(unit.await.expect("no panic").expect("stored"), 1);
    }
    let events = store.events(EventFilter::default(), &GrantScope::All, EventPage::After(0, 9)).await;
    let events: Vec<(u64, String)> =
        events.expect("no error").iter().map(|event| (event.number, event.agent.to_string())).collect();
    assert_eq!(events, [(1, "a".to_owned()), (2, "b".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_dies_leaves_no_gap() {
    let (folder, store, other) = two_servers(&["a", "b"]).await;
    let gate = Gate::at(&folder, "INSERT ON events").await;
    let first = tokio::spawn(add_event(&store, "a"));
    gate.wait_until_somebody_is_here().await;
    let second = tokio::spawn(add_event(&other, "b"));
    assert_eq!(gate.wait_for(&second).await, Meanwhile::Waited);
    gate.end_who_is_here().await;
    first.await.expect("no panic").expect_err("its connection has ended");
    gate.open().await;
    assert_eq!(second.await.expect("no panic").expect("stored"), 1);
    assert_eq!(add_again(&store, "a").await.expect("stored"), 1);
    let events = store.events(EventFilter::default(), &GrantScope::All, EventPage::After(0, 9)).await;
    let events: Vec<(u64, String)> =
        events.expect("no error").iter().map(|event| (event.number, event.agent.to_string())).collect();
    assert_eq!(events, [(1, "b".to_owned()), (2, "a".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_comes_twice_at_once_is_stored_once() {
    let (folder, store, other) = two_servers(&["a"]).await;
    let gate = Gate::at(&folder, "INSERT ON events").await;
    let (first, second, meanwhile) = gate.between(add_event(&store, "a"), add_event(&other, "a")).await;
    let stored = (first.expect("no error"), second.expect("no error"));
    assert_eq!((stored, meanwhile), ((1, 0), Meanwhile::Waited));
    assert_eq!(store.newest_event_number().await.expect("no error"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_connections_of_an_agent_get_epochs_of_their_own() {
    let (folder, store, other) = two_servers(&["a"]).await;
    let gate = Gate::at(&folder, "UPDATE ON sessions").await;
    let (first, second, meanwhile) = gate.between(connect(&store), connect(&other)).await;
    assert_eq!((first.expect("connected"), second.expect("connected")), (1, 2));
    assert_eq!(meanwhile, Meanwhile::Waited);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_being_revoked_does_not_connect() {
    let Fixture { folder, store } = fixture(&["a"]).await;
    let gate = Gate::at(&folder, "UPDATE ON agents").await;
    let ((), connected, meanwhile) = gate.between(revoke(&store), connect(&store)).await;
    assert!(matches!(connected, Err(StoreError::NoSuchAgent(_))), "{connected:?}");
    assert_eq!(meanwhile, Meanwhile::Waited);
    let record = store.agent(&agent("a")).await.expect("no error").expect("known");
    assert_eq!((record.connected, record.epoch.0), (false, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_connecting_is_revoked_after_it() {
    let Fixture { folder, store } = fixture(&["a"]).await;
    let gate = Gate::at(&folder, "UPDATE ON sessions").await;
    let (connected, (), meanwhile) = gate.between(connect(&store), revoke(&store)).await;
    assert_eq!((connected.expect("it was first"), meanwhile), (1, Meanwhile::Waited));
    let record = store.agent(&agent("a")).await.expect("no error").expect("known");
    assert!(record.revoked.is_some(), "{record:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_that_join_as_one_host_take_turns() {
    let (folder, store, other) = two_servers(&[]).await;
    let gate = Gate::at(&folder, "INSERT ON agents").await;
    let (first, second, meanwhile) = gate.between(join(&store, "a", 1), join(&other, "b", 1)).await;
    assert_eq!(first.expect("joined").retired, []);
    assert_eq!((second.expect("joined").retired, meanwhile), (vec![agent("a")], Meanwhile::Waited));
    let found = store.agent_at(host(1)).await.expect("no error").expect("one agent");
    assert_eq!(found.agent, agent("b"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_use_of_a_token_is_used_once_at_two_servers() {
    let Fixture { folder, store } = TestEngine::Postgres.fixture().await;
    let other = TestEngine::Postgres.reopen(&folder).await.expect("a second server");
    store.create_token(token(1)).await.expect("a token");
    let gate = Gate::at(&folder, "UPDATE ON tokens").await;
    let (first, second, meanwhile) = gate.between(join(&store, "a", 1), join(&other, "b", 2)).await;
    assert!(first.is_ok(), "{first:?}");
    assert_eq!((second, meanwhile), (Err(JoinTokenRefusal::UsedUp), Meanwhile::Waited));
    assert!(store.agent_at(host(2)).await.expect("no error").is_none(), "it has not joined");
}

/// Reports about the same tasks reach two servers in opposite orders. Both servers wait for the second of
/// three tasks, which somebody else has locked. If they locked the counts in the order of the reports, each
/// would hold those of one task and wait for those of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposing_batches_of_two_servers_do_not_deadlock() {
    let (folder, store, other) = two_servers(&[]).await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(store.create_task(new_task(&["a", "b"])).await.expect("a task"));
    }
    let mut reports = Vec::new();
    for task in &tasks {
        let both = [("a", 0), ("b", 1)];
        reports.extend(both.map(|(by, index)| finished(op(*task, index), Some(by), Code::Success)));
    }
    let reversed: Vec<Finished> = reports.iter().rev().cloned().collect();
    let database = administrator(&folder).await;
    let second = i64::try_from(tasks[1].number).expect("a number of the store");
    let sql = format!("BEGIN; SELECT 1 FROM task_counts WHERE number = {second} FOR UPDATE");
    database.batch_execute(&sql).await.expect("locked");
    let mut units = Vec::new();
    for (waiting, (store, reports)) in (1..).zip([(&store, reports), (&other, reversed)]) {
        let store = store.clone();
        units.push(tokio::spawn(async move { store.finish_ops(reports).await.expect("stored") }));
        wait_until_waiting(&database, waiting).await;
    }
    database.batch_execute("COMMIT").await.expect("unlocked");
    let mut applied = Vec::new();
    for unit in units {
        applied.push(unit.await.expect("no panic"));
    }
    applied.sort_by_key(|applied| applied[0] != Applied::Now);
    assert_eq!(applied, [[Applied::Now; 6], [Applied::Already; 6]], "one was first with all of them");
    for task in tasks {
        let record = store.task(task).await.expect("no error").expect("the task");
        assert_eq!(record.counts, TaskCounts { total: 2, open: 0, succeeded: 2, failed: 0 });
    }
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = database.query_one(sql, &[]).await.expect("readable").get(0);
    assert_eq!(deadlocks, 0);
}

/// Waits until so many transactions wait for a lock.
async fn wait_until_waiting(database: &tokio_postgres::Client, transactions: i64) {
    let sql = "SELECT count(DISTINCT pid) FROM pg_locks JOIN pg_stat_activity USING (pid) \
               WHERE NOT granted AND datname = current_database()";
    let began = Instant::now();
    while database.query_one(sql, &[]).await.expect("readable").get::<_, i64>(0) < transactions {
        assert!(began.elapsed() < PATIENCE, "fewer than {transactions} transactions wait");
    }
}

/// A server writes what an agent said in the old session, and the agent connects to another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_begins_after_the_states_of_the_one_before_it_are_stored() {
    let Fixture { folder, store: one } = fixture(&["a"]).await;
    let two = TestEngine::Postgres.reopen(&folder).await.expect("a second server");
    let old = Epoch(connect(&one).await.expect("connected"));
    let replace = |store: &Store, epoch: Epoch, name: &str| {
        let record = said(name, 1, "{}");
        let store = store.clone();
        async move { store.replace_procs(&agent("a"), epoch, vec![record]).await }
    };
    let gate = Gate::at(&folder, "INSERT ON procs").await;
    let (stored, connected, meanwhile) = gate.between(replace(&one, old, "before"), connect(&two)).await;
    stored.expect("its session was the last one");
    assert_eq!(meanwhile, Meanwhile::Waited);
    replace(&two, Epoch(connected.expect("connected")), "now").await.expect("stored");
    let both = ["before", "now"].map(|name| (agent("a"), proc(name)));
    let known = two.known_procs(both.to_vec()).await.expect("no error");
    assert_eq!(known.into_iter().collect::<Vec<_>>(), both[1..], "the new session has replaced all");
}

/// Others declare a server dead while it stores something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_fenced_after_the_end_of_what_it_has_under_way() {
    let Fixture { folder, store } = fixture(&["a"]).await;
    let task = store.create_task(new_task(&["a"])).await.expect("a task");
    let run = store.membership().run();
    let url = std::fs::read_to_string(url_file(&folder)).expect("the url");
    let (other, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    let fence = async move {
        let sql = "UPDATE servers SET state = 'fenced' WHERE id = $1 AND state = 'up'";
        other.execute(sql, &[&run.0]).await.expect("fenced")
    };
    let gate = Gate::at(&folder, "INSERT ON outcomes").await;
    let report = finish(&store, finished(op(task, 0), Some("a"), Code::Success));
    let (applied, fenced, meanwhile) = gate.between(report, fence).await;
    assert_eq!((&applied[..], fenced, meanwhile), (&[Applied::Now][..], 1, Meanwhile::Waited));
}
