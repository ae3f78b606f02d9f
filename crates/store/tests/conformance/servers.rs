//! Several servers on one PostgreSQL database. Each [`Store`] is a server; an embedded store has one only.

use super::gate::{Gate, Meanwhile};
use super::*;
use procfleet_testkit::{DatabaseProxy, Listening, PATIENCE};
use std::time::{Duration, Instant};

struct Servers {
    _folder: TempDir,
    one: Store,
    two: Store,
}

/// The first server has the leases.
async fn servers(agents: &[&str]) -> Servers {
    let Fixture { folder, store: one } = TestEngine::Postgres.with_agents(agents).await;
    let two = TestEngine::Postgres.reopen(&folder).await.expect("a second server");
    let (first, second) = (one.membership().run(), two.membership().run());
    wait_until("both know each other", async || {
        let knows = |store: &Store, id| store.membership().view().borrow().alive.contains_key(&id);
        knows(&one, second) && knows(&two, first)
    })
    .await;
    Servers { _folder: folder, one, two }
}

async fn connect(store: &Store, name: &str) -> Epoch {
    store.agent_connected(&agent(name), "0.1.0", "null", 1_600, NEVER_CONNECTED).await.expect("connected")
}

async fn open(store: &Store, scope: OpScope) -> Vec<(String, SentBefore)> {
    let rows = store.open_ops(scope).await.expect("no error");
    rows.into_iter()
        .map(|row| (row.agent.map(|agent| agent.to_string()).unwrap_or_default(), row.sent))
        .collect()
}

fn decided(task: TaskId, index: u32, name: &str, epoch: Epoch) -> Finished {
    let by = EndedBy::Server(Some((agent(name), epoch)));
    Finished { by, ..finished(op(task, index), None, Code::NoAgent) }
}

async fn apply(store: &Store, finished: Finished) -> Applied {
    store.finish_ops(vec![finished]).await.expect("no error")[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_op_belongs_to_the_server_that_holds_its_agent() {
    let Servers { one, two, .. } = servers(&["a", "b", "c"]).await;
    connect(&one, "a").await;
    connect(&two, "b").await;
    let task = one.create_task(new_task(&["a", "b", "c"])).await.expect("a task");
    let of = async |store: &Store| open(store, OpScope::Tasks(vec![task])).await;
    // The agent c has no session: whoever has the lease decides.
    assert!(one.membership().has(Lease::Unheld) && !two.membership().has(Lease::Unheld));
    assert_eq!(of(&one).await, [("a".to_owned(), SentBefore::No), ("c".to_owned(), SentBefore::No)]);
    assert_eq!(of(&two).await, [("b".to_owned(), SentBefore::No)]);
    // The agent moves: the first server may have sent it.
    connect(&two, "a").await;
    let moved = open(&two, OpScope::Agents(vec![agent("a")])).await;
    assert_eq!(moved, [("a".to_owned(), SentBefore::Maybe)]);
    // The agent c was away when the op was accepted, so nobody has sent it.
    connect(&two, "c").await;
    let came = open(&two, OpScope::Agents(vec![agent("c")])).await;
    assert_eq!(came, [("c".to_owned(), SentBefore::No)]);
    assert_eq!(of(&one).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_about_an_agent_that_has_moved_is_superseded() {
    let Servers { one, two, .. } = servers(&["a", "b"]).await;
    let (old, other) = (connect(&one, "a").await, connect(&two, "b").await);
    let task = one.create_task(new_task(&["a", "b"])).await.expect("a task");
    let new = connect(&two, "a").await;
    for (store, index, name, epoch, expected) in [
        (&one, 0, "a", old, Applied::Superseded),
        (&one, 0, "a", new, Applied::Superseded),
        (&one, 1, "b", other, Applied::Superseded),
        (&two, 0, "a", old, Applied::Superseded),
        (&two, 0, "a", new, Applied::Now),
        (&two, 1, "b", other, Applied::Now),
        (&one, 1, "b", other, Applied::Superseded),
        (&two, 1, "b", other, Applied::Already),
    ] {
        assert_eq!(
            apply(store, decided(task, index, name, epoch)).await,
            expected,
            "{index} {name} {epoch:?}"
        );
    }
    // A report of the agent itself counts, whichever server it comes through.
    assert_eq!(apply(&one, finished(op(task, 1), Some("b"), Code::Success)).await, Applied::Late);
}

/// Correction C1 of the design: without the lock, both the decision and the connect would go through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connect_waits_for_a_decision_under_way_and_sees_its_outcome() {
    let Servers { one, two, _folder } = servers(&["a"]).await;
    let epoch = connect(&one, "a").await;
    let task = one.create_task(new_task(&["a"])).await.expect("a task");
    let gate = Gate::at(&_folder, "INSERT ON outcomes").await;
    let deciding = {
        let one = one.clone();
        async move { apply(&one, decided(task, 0, "a", epoch)).await }
    };
    let connecting = async move {
        connect(&two, "a").await;
        open(&two, OpScope::Agents(vec![agent("a")])).await
    };
    let (decided, seen, meanwhile) = gate.between(deciding, connecting).await;
    assert_eq!((decided, meanwhile), (Applied::Now, Meanwhile::Waited));
    assert_eq!(seen, [], "the op has its outcome before the agent's next session can get it");
}

/// Correction C5: what an earlier session of another server says comes too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_that_waited_in_another_server_do_not_replace_newer_ones() {
    let Servers { one, two, .. } = servers(&["a"]).await;
    let old = connect(&one, "a").await;
    let new = connect(&two, "a").await;
    two.replace_procs(&agent("a"), new, vec![said("now", 1, "{}")]).await.expect("stored");
    let late = one.replace_procs(&agent("a"), old, vec![said("before", 1, "{}")]).await;
    assert!(matches!(late, Err(StoreError::OldSession(_))), "{late:?}");
    assert_eq!(two.known_procs(vec![(agent("a"), proc("now"))]).await.expect("no error").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_leaves_lets_another_decide_about_its_agents() {
    let Servers { one, two, .. } = servers(&["a", "b"]).await;
    let epoch = connect(&one, "a").await;
    let sent = one.create_task(new_task(&["a"])).await.expect("a task");
    let leaving = one.membership().run();
    one.close().await.expect("closed");
    wait_until("the other has the leases", async || {
        Lease::ALL.into_iter().all(|lease| two.membership().has(lease))
    })
    .await;
    assert!(!two.membership().view().borrow().alive.contains_key(&leaving));
    // The server that left may have sent it.
    assert_eq!(open(&two, OpScope::All).await, [("a".to_owned(), SentBefore::Maybe)]);
    assert_eq!(apply(&two, decided(sent, 0, "a", epoch)).await, Applied::Now);
    let records = two.servers().await.expect("no error");
    // It had not introduced itself, so there is no name to show.
    let states: Vec<ServerState> = records.iter().map(|record| record.state).collect();
    assert_eq!(states, [ServerState::Up]);
    assert_eq!(records[0].leases.len(), Lease::ALL.len());
}

fn intro(name: &str) -> ServerIntro {
    ServerIntro {
        name: name.to_owned(),
        advertise: format!("https://{name}.example:48668"),
        version: "0.1.0".to_owned(),
    }
}

/// Name, state and whether it drains, of each server.
async fn listed(store: &Store) -> Vec<(String, ServerState, bool)> {
    let records = store.servers().await.expect("no error");
    records.into_iter().map(|record| (record.intro.name, record.state, record.drains)).collect()
}

fn advertised(store: &Store) -> Vec<String> {
    store.membership().advertised().borrow().to_vec()
}

async fn drain(store: &Store, name: &str, drains: bool) -> DrainOutcome {
    let audit = NewAudit { action: "server_drain".to_owned(), ..NewAudit::default() };
    store.drain_server(name, drains, audit).await.expect("no error")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_drain_are_not_advertised_and_the_last_one_is_not_drained() {
    let Servers { one, two, .. } = servers(&[]).await;
    one.introduce(intro("s1")).await.expect("known");
    two.introduce(intro("s2")).await.expect("known");
    let all = [intro("s1").advertise, intro("s2").advertise];
    for store in [&one, &two] {
        wait_until("both are advertised", async || advertised(store) == all).await;
    }
    for (store, name, drains, expected) in [
        (&one, "s3", true, DrainOutcome::Unknown),
        (&one, "s3", false, DrainOutcome::Unknown),
        (&two, "s1", false, DrainOutcome::Done),
        (&two, "s1", true, DrainOutcome::Done),
        (&one, "s1", true, DrainOutcome::Done),
        (&one, "s2", true, DrainOutcome::Last),
    ] {
        assert_eq!(drain(store, name, drains).await, expected, "{name} {drains}");
    }
    for store in [&one, &two] {
        wait_until("one is left", async || advertised(store) == all[1..]).await;
    }
    let views = [&one, &two].map(|store| store.membership().view().borrow().clone());
    assert_eq!(views.each_ref().map(|view| view.drains), [true, false]);
    assert_eq!(views.each_ref().map(|view| view.takers().count()), [1, 0]);
    let expected = [("s1".to_owned(), ServerState::Up, true), ("s2".to_owned(), ServerState::Up, false)];
    assert_eq!(listed(&two).await, expected);
    // What was refused is not in the audit trail.
    let audit = two.list_audit(10, AuditFilter::default()).await.expect("no error");
    assert_eq!(audit.records.iter().filter(|record| record.entry.action == "server_drain").count(), 3);
    assert_eq!(drain(&two, "s1", false).await, DrainOutcome::Done);
    wait_until("both are advertised again", async || advertised(&one) == all).await;
}

/// Without the lock, each would count on the other.
/// A server is its row, not its name: a copied unit file must not make two servers one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_with_one_name_are_two_servers() {
    let Servers { one, two, _folder: one_folder } = servers(&["a"]).await;
    for store in [&one, &two] {
        store.introduce(intro("s1")).await.expect("known");
    }
    let up = |drains| ("s1".to_owned(), ServerState::Up, drains);
    assert_eq!(listed(&one).await, [up(false), up(false)]);
    assert_eq!(drain(&one, "s1", true).await, DrainOutcome::Last, "both of them are called so");
    let all = |store: &Store| Lease::ALL.into_iter().filter(|lease| store.membership().has(*lease)).count();
    assert_eq!((all(&one), all(&two)), (Lease::ALL.len(), 0), "each lease has one holder");
    let first = connect(&one, "a").await;
    let second = connect(&two, "a").await;
    assert!(second > first);
    let task = two.create_task(new_task(&["a"])).await.expect("a task");
    assert_eq!(open(&one, OpScope::Tasks(vec![task])).await, [], "the other one holds its agent");
    // With a third one there is a server to send agents to; both of the name drain, and neither is lost.
    let three = TestEngine::Postgres.reopen(&one_folder).await.expect("a third server");
    three.introduce(intro("s3")).await.expect("known");
    assert_eq!(drain(&three, "s1", true).await, DrainOutcome::Done);
    assert_eq!(listed(&three).await, [up(true), up(true), ("s3".to_owned(), ServerState::Up, false)]);
    // The end of one leaves the other one as it is.
    one.close().await.expect("closed");
    wait_until("the other one has the leases", async || all(&two) + all(&three) == Lease::ALL.len()).await;
    assert!(two.membership().may_act());
    assert_eq!(listed(&three).await, [up(true), ("s3".to_owned(), ServerState::Up, false)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_that_are_drained_at_once_do_not_both_drain() {
    let Servers { one, two, _folder } = servers(&[]).await;
    one.introduce(intro("s1")).await.expect("known");
    two.introduce(intro("s2")).await.expect("known");
    let gate = Gate::at(&_folder, "INSERT ON audit").await;
    let drained = |store: &Store, name: &'static str| {
        let store = store.clone();
        tokio::spawn(async move { drain(&store, name, true).await })
    };
    let first = drained(&one, "s1");
    gate.wait_until_blocked(1).await;
    let second = drained(&two, "s2");
    gate.wait_until_blocked(2).await;
    gate.open().await;
    assert_eq!(first.await.expect("no panic"), DrainOutcome::Done);
    assert_eq!(second.await.expect("no panic"), DrainOutcome::Last);
}

/// Its agents could go nowhere, and would come back again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_not_drained_if_no_other_one_has_an_address() {
    let Servers { one, two, _folder } = servers(&[]).await;
    one.introduce(intro("s1")).await.expect("known");
    let without = ServerIntro { advertise: String::new(), ..intro("s2") };
    two.introduce(without).await.expect("known");
    assert_eq!(drain(&one, "s1", true).await, DrainOutcome::Last);
    assert_eq!(drain(&one, "s2", true).await, DrainOutcome::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_declared_dead_drains_as_before_and_is_listed_once() {
    let Servers { one, two, _folder } = servers(&[]).await;
    one.introduce(intro("s1")).await.expect("known");
    two.introduce(intro("s2")).await.expect("known");
    assert_eq!(drain(&two, "s1", true).await, DrainOutcome::Done);
    wait_until("it knows", async || one.membership().view().borrow().drains).await;
    let run = one.membership().run();
    let database = database(&_folder).await;
    let sql = "UPDATE servers SET state = 'fenced' WHERE id = $1";
    database.execute(sql, &[&run.0]).await.expect("what another server does");
    wait_until("it is a new server", async || one.membership().run() != run && one.membership().may_act())
        .await;
    let expected = [("s2".to_owned(), ServerState::Up, false), ("s1".to_owned(), ServerState::Up, true)];
    assert_eq!(listed(&two).await, expected);
    one.close().await.expect("closed");
    let expected = [("s2".to_owned(), ServerState::Up, false), ("s1".to_owned(), ServerState::Left, false)];
    assert_eq!(listed(&two).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_declared_dead_changes_nothing_and_goes_on_as_a_new_one() {
    let Servers { one, two, _folder } = servers(&["a"]).await;
    let epoch = connect(&one, "a").await;
    let task = one.create_task(new_task(&["a"])).await.expect("a task");
    let run = one.membership().run();
    let database = database(&_folder).await;
    database
        .execute("UPDATE servers SET state = 'fenced' WHERE id = $1", &[&run.0])
        .await
        .expect("what another server does");
    let late = one.finish_ops(vec![decided(task, 0, "a", epoch)]).await;
    match late {
        Err(StoreError::Fenced) => {}
        // It has entered again meanwhile.
        Ok(applied) => assert_eq!(applied, [Applied::Superseded]),
        Err(error) => panic!("{error}"),
    }
    wait_until("it is a new server", async || {
        let new = one.membership().run();
        new != run && one.membership().may_act() && two.membership().view().borrow().alive.contains_key(&new)
    })
    .await;
    // Whichever is first takes the lease of the dead server, and decides about its agents from then on.
    let has = |store: &Store| store.membership().has(Lease::Unheld);
    wait_until("one of them has the lease", async || has(&one) != has(&two)).await;
    let expected = if has(&one) { Applied::Now } else { Applied::Superseded };
    assert_eq!(apply(&one, decided(task, 0, "a", epoch)).await, expected);
    connect(&one, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_up_reaches_the_other_servers_only() {
    let Servers { one, two, .. } = servers(&[]).await;
    wait_until("both hear themselves", async || {
        [&one, &two].iter().all(|store| store.membership().wake_mode() == WakeMode::Notified)
    })
    .await;
    let (mut heard_here, mut heard_there) = (one.membership().wakes(), two.membership().wakes());
    let task = one.create_task(new_task(&["a"])).await.expect("a task");
    one.membership().wake_others(Wake::Task(task));
    let heard = tokio::time::timeout(PATIENCE, heard_there.recv()).await.expect("in time");
    assert_eq!(heard, Ok(Wake::Task(task)));
    two.membership().wake_others(Wake::Events);
    let heard = tokio::time::timeout(PATIENCE, heard_here.recv()).await.expect("in time");
    assert_eq!(heard, Ok(Wake::Events));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_whose_connection_was_ended_is_replaced() {
    let Servers { one, _folder, .. } = servers(&[]).await;
    let notified = async || one.membership().wake_mode() == WakeMode::Notified;
    wait_until("it hears itself", notified).await;
    let database = database(&_folder).await;
    // All that listen: the query of a listener is its last.
    let ended = database
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
                  AND (query LIKE 'LISTEN%' OR query LIKE 'SELECT pg_notify%')",
            &[],
        )
        .await
        .expect("we may");
    assert!(ended > 0);
    let mut heard = one.membership().wakes();
    // It listens again, says that it may have missed something, and hears itself.
    let first = tokio::time::timeout(PATIENCE, heard.recv()).await.expect("in time");
    assert_eq!(first, Ok(Wake::Everything));
    wait_until("it hears itself again", notified).await;
}

/// The connection stays open, and nothing arrives on it any more, nor on the next ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_has_become_silent_is_noticed_and_replaced() {
    let Fixture { folder, store: one } = TestEngine::Postgres.fixture().await;
    let proxy = DatabaseProxy::to(&std::fs::read_to_string(url_file(&folder)).expect("the url"));
    let two = Store::connect(&proxy.url().parse().expect("a url")).await.expect("a second server");
    two.introduce(intro("two")).await.expect("known");
    let mode = || two.membership().wake_mode();
    let shown = async |expected| {
        let records = one.servers().await.expect("no error");
        records.iter().any(|record| record.intro.name == "two" && record.wakes == expected)
    };
    wait_until("it hears itself", async || mode() == WakeMode::Notified).await;
    wait_until("others see it", async || shown(WakeMode::Notified).await).await;
    assert_eq!(proxy.silenced(), 0);

    proxy.set_listening(Listening::Silent);
    let mut heard = two.membership().wakes();
    one.membership().wake_others(Wake::Events);
    wait_until("it has noticed", async || mode() == WakeMode::Polling).await;
    wait_until("others see that it polls", async || shown(WakeMode::Polling).await).await;
    assert!(proxy.silenced() > 0);
    assert!(heard.try_recv().is_err(), "the wake-up did not arrive");
    // Nothing but wake-ups is silent.
    two.create_task(new_task(&["a"])).await.expect("a task");
    let before = proxy.silenced();
    wait_until("it has listened again in vain", async || proxy.silenced() > before).await;
    assert_eq!(mode(), WakeMode::Polling);

    proxy.set_listening(Listening::Works);
    wait_until("it hears itself", async || mode() == WakeMode::Notified).await;
    wait_until("others see it", async || shown(WakeMode::Notified).await).await;
    let first = tokio::time::timeout(PATIENCE, heard.recv()).await.expect("in time");
    assert_eq!(first, Ok(Wake::Everything), "it may have missed something");
    one.membership().wake_others(Wake::Events);
    let next = tokio::time::timeout(PATIENCE, heard.recv()).await.expect("in time");
    assert_eq!(next, Ok(Wake::Events));
}

/// A pooler that shares connections lets LISTEN succeed, and delivers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_listen_is_swallowed_polls_until_it_hears_itself() {
    let Fixture { folder, store: one } = TestEngine::Postgres.fixture().await;
    let proxy = DatabaseProxy::to(&std::fs::read_to_string(url_file(&folder)).expect("the url"));
    proxy.set_listening(Listening::Swallowed);
    let two = Store::connect(&proxy.url().parse().expect("a url")).await.expect("a second server");
    two.introduce(intro("two")).await.expect("known");
    let mut heard = two.membership().wakes();
    wait_until("it has listened once", async || proxy.swallowed() > 0).await;
    let began = Instant::now();
    wait_until("it has listened again, because it did not hear itself", async || proxy.swallowed() > 2).await;
    // Each time it waits for its own probe before it gives up the connection: no busy loop.
    assert!(began.elapsed() > Duration::from_secs(6), "{:?}", began.elapsed());
    assert_eq!(two.membership().wake_mode(), WakeMode::Polling);
    let shown = async || {
        let records = one.servers().await.expect("no error");
        records.into_iter().find(|record| record.intro.name == "two").map(|record| record.wakes)
    };
    wait_until("others see that it polls", async || shown().await == Some(WakeMode::Polling)).await;

    proxy.set_listening(Listening::Works);
    wait_until("it hears itself", async || two.membership().wake_mode() == WakeMode::Notified).await;
    wait_until("others see it", async || shown().await == Some(WakeMode::Notified)).await;
    one.membership().wake_others(Wake::Events);
    // After each new connection it says that it may have missed something.
    loop {
        let wake = tokio::time::timeout(PATIENCE, heard.recv()).await.expect("in time");
        match wake.expect("few") {
            Wake::Everything => {}
            other => break assert_eq!(other, Wake::Events),
        }
    }
}

/// A store whose database has a clock that can be set.
async fn store_with_clock() -> Fixture {
    let folder = tempfile::tempdir().expect("a temp folder");
    let made = tokio::task::spawn_blocking(|| Cluster::shared().database_with_clock());
    std::fs::write(url_file(&folder), made.await.expect("a database")).expect("a file");
    let store = TestEngine::Postgres.reopen(&folder).await.expect("a new store opens");
    Fixture { folder, store }
}

async fn set_clock(database: &tokio_postgres::Client, ahead: &str) {
    let sql = format!("UPDATE test_clock SET ahead = '{ahead}'");
    database.batch_execute(&sql).await.expect("ours");
}

/// Milliseconds that are added to a boot time to get the store's time.
fn offset(store: &Store) -> i64 {
    store.membership().store_offset().expect("a shared store")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_of_the_databases_clock_does_not_move_the_stores_time() {
    let Fixture { folder, store: one } = store_with_clock().await;
    let two = TestEngine::Postgres.reopen(&folder).await.expect("a second server");
    let (before, database) = (offset(&one), database(&folder).await);
    assert!((before - offset(&two)).abs() < 2_000);
    let hour = 3_600_000_i64;
    for (jumps, ahead, shift) in [(1, "1 hour", -hour), (2, "0 s", 0), (3, "-1 hour", hour)] {
        set_clock(&database, ahead).await;
        wait_until("the jump is corrected", async || {
            let row = database.query_one("SELECT shift_ms FROM store_clock", &[]).await.expect("ours");
            (row.get::<_, i64>(0) - shift).abs() < 2_000
        })
        .await;
        // Both servers see the correction before the next jump.
        let beats = async || {
            let row = database.query_one("SELECT min(beat) FROM beats", &[]).await.expect("ours");
            row.get::<_, i64>(0)
        };
        let corrected = database.query_one("SELECT max(beat) FROM beats", &[]).await.expect("ours");
        let corrected: i64 = corrected.get(0);
        wait_until("both have looked again", async || beats().await > corrected + 1).await;
        for store in [&one, &two] {
            assert!((offset(store) - before).abs() < 2_000, "{ahead}: {} {before}", offset(store));
        }
        // The first server has counted and corrected the jump. The other one may not see it.
        assert_eq!(one.membership().clock_jumps(), jumps);
        assert!(two.membership().clock_jumps() <= jumps);
    }
}

/// The first server knows the right time, and the second one has only seen the wrong one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_between_a_jump_and_its_correction_follows_the_correction() {
    let Fixture { folder, store: one } = store_with_clock().await;
    let (before, hour) = (offset(&one), 3_600_000_i64);
    let (holder, other) = (database(&folder).await, database(&folder).await);
    holder.batch_execute("BEGIN; SELECT 1 FROM store_clock FOR UPDATE").await.expect("a lock");
    set_clock(&other, "1 hour").await;
    let two = TestEngine::Postgres.reopen(&folder).await.expect("a second server");
    assert!(offset(&two) - before > hour / 2, "nobody can have corrected the jump");
    holder.batch_execute("COMMIT").await.expect("the end of the lock");
    wait_until("the second server has the store's time", async || (offset(&two) - before).abs() < 2_000)
        .await;
    assert_eq!(two.membership().clock_jumps(), 0, "a correction is no jump");
    assert!((offset(&one) - before).abs() < 2_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_too_new_ends_an_old_server_also_while_it_runs() {
    let Servers { one, _folder, .. } = servers(&[]).await;
    let database = database(&_folder).await;
    let sql = "UPDATE schema_version SET version = version + 2, oldest_server = version + 1";
    database.execute(sql, &[]).await.expect("ours");
    let ended = tokio::time::timeout(PATIENCE, one.failed()).await.expect("in time");
    assert!(matches!(ended, StoreError::Newer { .. }), "{ended}");
    let refused = TestEngine::Postgres.reopen(&_folder).await;
    assert!(matches!(refused, Err(StoreError::Newer { .. })), "{refused:?}");
}

/// A beat that waits for a lock is given up, and so is its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_that_waits_leaves_no_connection_behind() {
    const BEATS: usize = 12;
    let Servers { one, two, _folder } = servers(&[]).await;
    let (holder, watcher) = (database(&_folder).await, database(&_folder).await);
    holder.batch_execute("BEGIN; SELECT 1 FROM beats FOR UPDATE").await.expect("a lock");
    wait_until("calls are refused", async || {
        matches!(one.create_task(new_task(&["a"])).await, Err(StoreError::Unavailable { .. }))
    })
    .await;
    let sql = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
               AND wait_event_type = 'Lock' AND query LIKE '%UPDATE beats%'";
    let mut seen = std::collections::BTreeSet::new();
    let mut most = 0;
    wait_until("several beats have waited", async || {
        let rows = watcher.query(sql, &[]).await.expect("readable");
        most = most.max(rows.len());
        seen.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
        seen.len() >= BEATS
    })
    .await;
    assert!(most <= 4, "{most} backends wait for {} beats of two servers", seen.len());
    holder.batch_execute("COMMIT").await.expect("the end of the lock");
    wait_until("both are back", async || {
        one.create_task(new_task(&["a"])).await.is_ok() && two.create_task(new_task(&["a"])).await.is_ok()
    })
    .await;
}

/// The store of one server answers as one that has every right.
#[tokio::test]
async fn the_only_server_has_every_lease() {
    let Fixture { folder: _folder, store } = TestEngine::Sqlite.fixture().await;
    let membership = store.membership();
    assert!(!membership.is_shared() && membership.may_act());
    assert!(Lease::ALL.into_iter().all(|lease| membership.has(lease)));
    assert_eq!(store.servers().await.expect("no error"), []);
}

/// Asks again until it is so.
async fn wait_until(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asking).await.is_ok(), "waited in vain for this: {what}");
}

/// A connection of the test's own.
async fn database(folder: &TempDir) -> tokio_postgres::Client {
    let url = std::fs::read_to_string(url_file(folder)).expect("the url");
    let (client, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}
