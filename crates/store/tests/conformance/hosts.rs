//! Hosts of the database that say nothing, standbys, and a failover.

use super::*;
use procfleet_testkit::PATIENCE;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

/// The URL of a database at several ports of this machine.
fn url(ports: &[u16], database: &str) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("postgres://procfleet@{}/{database}", hosts.join(","))
}

async fn open(url: &str) -> Store {
    let parsed = url.parse().expect("a url");
    let opened = tokio::time::timeout(PATIENCE, Store::connect(&parsed)).await.expect("an answer");
    opened.unwrap_or_else(|error| panic!("{url}: {error:?}"))
}

/// For the testkit, whose functions block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

fn name(url: &str) -> String {
    url.rsplit('/').next().expect("a name").to_owned()
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

/// Lets the store open all connections of its pool: as many units wait at once.
async fn fill_pool(store: &Store, url: &str) {
    const CONNECTIONS: i64 = 8;
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client.batch_execute("BEGIN; LOCK TABLE tasks").await.expect("a lock");
    let mut units = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let store = store.clone();
        units.spawn(async move { store.create_task(new_task(&["a"])).await });
    }
    let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'tasks'::regclass";
    wait_until("all connections wait", async || {
        client.query_one(sql, &[]).await.expect("readable").get::<_, i64>(0) == CONNECTIONS
    })
    .await;
    client.batch_execute("COMMIT").await.expect("the end of the lock");
    for unit in units.join_all().await {
        unit.expect("a task");
    }
}

/// A stopped primary accepts connections by its kernel's backlog, as this listener does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_says_nothing_does_not_hide_the_next_one() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = (silent.local_addr().expect("its address").port(), silent);
    let database = blocking(|| name(&Cluster::shared().database())).await;
    let store = open(&url(&[silent.0, Cluster::shared().port()], &database)).await;
    let task = store.create_task(new_task(&["a"])).await.expect("a task");

    // All connections are opened anew: of the pool, of the beats, of the wake-ups.
    let sql = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'");
    blocking(move || Cluster::shared().psql("postgres", &sql)).await.expect("ended");
    wait_until("a task is accepted", async || store.create_task(new_task(&["a"])).await.is_ok()).await;
    assert!(store.task(task).await.expect("readable").is_some());
    wait_until("wake-ups arrive", async || store.membership().wake_mode() == WakeMode::Notified).await;
    store.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_stopped_is_left_for_the_promoted_standby() {
    let (primary, standby, direct) = blocking(|| {
        let primary = Cluster::own(&[]);
        let standby = primary.standby(&[]);
        let direct = primary.database();
        (Arc::new(primary), Arc::new(standby), direct)
    })
    .await;
    let database = name(&direct);
    // The standby is the first of the list, and is passed over.
    let store = open(&url(&[standby.port(), primary.port()], &database)).await;
    store.create_token(token(100)).await.expect("a token");
    store.join(shown(), joining("a", 1), 1_500).await.expect("no error").expect("joined");
    let before = store.create_task(new_task(&["a"])).await.expect("a task");
    let follower = Arc::clone(&standby);
    let known = database.clone();
    wait_until("the standby has the task", async || {
        let (follower, known) = (Arc::clone(&follower), known.clone());
        let count = blocking(move || follower.psql(&known, "SELECT count(*) FROM tasks")).await;
        count.as_deref() == Ok("1")
    })
    .await;

    fill_pool(&store, &direct).await;
    let stopped = Arc::clone(&primary);
    blocking(move || stopped.stop()).await;
    // More units than the pool has connections. None of them gets an answer of the old primary.
    let connect = |store: Store| async move {
        store.agent_connected(&agent("a"), "0.1.0", "null", 1_600, NEVER_CONNECTED).await
    };
    let mut units = tokio::task::JoinSet::new();
    let (connecting, presenting) = (store.clone(), store.clone());
    units.spawn(async move { connect(connecting).await.map(|_| ()) });
    units.spawn(async move { presenting.agent_with_certificate(&agent("a"), [9; 32]).await.map(|_| ()) });
    for _ in 0..12 {
        let store = store.clone();
        units.spawn(async move { store.create_task(new_task(&["a"])).await.map(|_| ()) });
    }
    while let Some(unit) = units.join_next().await {
        let refused = unit.expect("no panic");
        assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    }

    let promoted = Arc::clone(&standby);
    blocking(move || promoted.promote()).await;
    wait_until("a task is accepted", async || store.create_task(new_task(&["a"])).await.is_ok()).await;
    assert!(store.task(before).await.expect("readable").is_some());
    let loss = store.membership().view().borrow().loss;
    assert_eq!(loss.times, 1);
    assert!(loss.safe_until > BootTime(0), "the standby has beats of this server");
    // Lines of agents' changes had units on connections to the old primary, too.
    wait_until("the agent connects", async || connect(store.clone()).await.is_ok()).await;
    wait_until("certificates are looked up", async || {
        store.agent_with_certificate(&agent("a"), [9; 32]).await.is_ok_and(|found| found.is_some())
    })
    .await;
    store.close().await.expect("closed");
}

/// A commit waits for the standby, and keeps its locks. The beat after it waits for the lock of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_standby_that_is_stopped_costs_no_connections_and_no_commit() {
    const BEATS: usize = 6;
    let (primary, standby, direct) = blocking(|| {
        let primary = Cluster::own(&[]);
        let standby = primary.standby(&[]);
        for sql in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
            primary.psql("postgres", sql).expect("a setting");
        }
        procfleet_testkit::wait_until(PATIENCE, "the standby is synchronous", || {
            let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            primary.psql("postgres", sql).as_deref() == Ok("1")
        });
        let direct = primary.database();
        (Arc::new(primary), Arc::new(standby), direct)
    })
    .await;
    let store = open(&direct).await;
    let before = store.create_task(new_task(&["a"])).await.expect("a task");
    let stopped = Arc::clone(&standby);
    blocking(move || stopped.stop()).await;
    wait_until("calls are refused", async || {
        matches!(store.create_task(new_task(&["a"])).await, Err(StoreError::Unavailable { .. }))
    })
    .await;
    // Each beat has a connection of its own now.
    let mut seen = BTreeSet::new();
    let mut most = 0;
    wait_until("several beats have waited", async || {
        let (primary, database) = (Arc::clone(&primary), name(&direct));
        let sql = format!(
            "SELECT pid FROM pg_stat_activity WHERE datname = '{database}' AND state = 'active' \
             AND query LIKE '%UPDATE beats%' AND pid <> pg_backend_pid()"
        );
        let pids = blocking(move || primary.psql("postgres", &sql)).await.expect("readable");
        most = most.max(pids.lines().count());
        seen.extend(pids.lines().map(str::to_owned));
        seen.len() >= BEATS
    })
    .await;
    assert!(most <= 3, "{most} backends of {} beats", seen.len());
    let stopped = Arc::clone(&standby);
    blocking(move || stopped.go_on()).await;
    wait_until("a task is accepted", async || store.create_task(new_task(&["a"])).await.is_ok()).await;
    assert!(store.task(before).await.expect("readable").is_some());
    let log = primary.log();
    assert!(!log.contains("canceling the wait for synchronous replication"), "{log}");
    assert!(!log.contains("canceling wait for synchronous replication"), "{log}");
    store.close().await.expect("closed");
}
