//! Another version of the server upgrades the tables while this one runs.

use super::gate::Gate;
use super::*;
use procfleet_testkit::PATIENCE;

/// Connections of the pool, and some more: each of them has prepared its statements after so many calls.
const ROUNDS: usize = 10;

/// A method that has statements prepared.
#[derive(Clone, Copy, Debug)]
enum Method {
    OpenOps,
    Agent,
    AgentWithCertificate,
    RevokeToken,
}

impl Method {
    async fn call(self, store: &Store, task: TaskId) -> Result<(), StoreError> {
        match self {
            Method::OpenOps => {
                let ops = store.open_ops(OpScope::Tasks(vec![task])).await?;
                assert_eq!(ops.len(), 1);
            }
            Method::Agent => assert!(store.agent(&agent("a")).await?.is_some()),
            Method::AgentWithCertificate => {
                assert!(store.agent_with_certificate(&agent("a"), [9; 32]).await?.is_some());
            }
            Method::RevokeToken => {
                let audit = NewAudit::default();
                assert!(store.revoke_token("t1".to_owned(), 1_800, audit).await?.is_some());
            }
        }
        Ok(())
    }
}

/// PostgreSQL refuses a prepared statement whose result has another type now (0A000).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_are_prepared_again_when_their_columns_have_changed() {
    let Fixture { folder, store } = TestEngine::Postgres.with_agents(&["a"]).await;
    let task = store.create_task(new_task(&["a"])).await.expect("a task");
    let database = administrator(&folder).await;
    for (method, table, column) in [
        (Method::OpenOps, "tasks", "requests_json"),
        (Method::Agent, "agents", "facts"),
        (Method::AgentWithCertificate, "agents", "labels"),
        (Method::RevokeToken, "tokens", "id"),
    ] {
        for _ in 0..ROUNDS {
            method.call(&store, task).await.expect("as before");
        }
        let sql = format!("ALTER TABLE {table} ALTER {column} TYPE varchar");
        database.batch_execute(&sql).await.expect("an upgrade");
        for _ in 0..ROUNDS {
            let called = method.call(&store, task).await;
            assert!(called.is_ok(), "{method:?}: {called:?}");
        }
    }
    store.close().await.expect("closed");
}

/// A waiting ALTER TABLE blocks everybody behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_gives_up_a_lock_and_tries_again() {
    let folder = tempfile::tempdir().expect("a temp folder");
    let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
    std::fs::write(url_file(&folder), url).expect("a file");
    let (reader, database) = (administrator(&folder).await, administrator(&folder).await);
    // A store of the version before the third migration, which changes the table of procs.
    for sql in [
        include_str!("../../src/postgres/migrations/0001_init.sql"),
        include_str!("../../src/postgres/migrations/0002_store_use.sql"),
        "CREATE TABLE schema_version (id integer PRIMARY KEY CHECK (id = 1), version bigint NOT NULL, \
         oldest_server bigint NOT NULL); INSERT INTO schema_version VALUES (1, 2, 1)",
    ] {
        database.batch_execute(sql).await.expect("the tables of an earlier version");
    }
    reader.batch_execute("BEGIN; LOCK TABLE procs IN ACCESS SHARE MODE").await.expect("a long read");
    let opening = tokio::spawn(async move { (TestEngine::Postgres.reopen(&folder).await, folder) });
    // Twice: the migration comes back after it has given up.
    for _ in 0..2 {
        let waits =
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'procs'::regclass)";
        let began = std::time::Instant::now();
        while !database.query_one(waits, &[]).await.expect("readable").get::<_, bool>(0) {
            assert!(began.elapsed() < PATIENCE, "the migration does not wait for the table");
        }
        let changed = database.execute("UPDATE procs SET name = name", &[]);
        tokio::time::timeout(PATIENCE, changed).await.expect("writers go on").expect("changed");
    }
    assert!(!opening.is_finished(), "the read has not ended");
    reader.batch_execute("COMMIT").await.expect("the end of the read");
    let (opened, _folder) = opening.await.expect("no panic");
    let store = opened.expect("the migration is done");
    let row = database.query_one("SELECT version > 2 FROM schema_version", &[]).await.expect("a version");
    assert!(row.get::<_, bool>(0));
    store.close().await.expect("closed");
}

/// The numbers of the newest version and of the oldest one whose servers can use the store.
async fn versions(database: &tokio_postgres::Client) -> (i64, i64) {
    let sql = "SELECT version, oldest_server FROM schema_version";
    let row = database.query_one(sql, &[]).await.expect("versions");
    (row.get(0), row.get(1))
}

/// Waits until a server has read the versions again: each beat does.
async fn wait_for_beats(database: &tokio_postgres::Client, store: &Store) {
    const BEATS: i64 = 3;
    let run = store.membership().run().0;
    let beat = async || -> i64 {
        let row = database.query_one("SELECT beat FROM beats WHERE server = $1", &[&run]).await;
        row.expect("its own row").get(0)
    };
    let until = beat().await + BEATS;
    let beating = async {
        while beat().await < until {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, beating).await.is_ok(), "no beat");
}

async fn has_failed(store: &Store) -> bool {
    tokio::time::timeout(std::time::Duration::ZERO, store.failed()).await.is_ok()
}

/// A session, a task, its outcome, an event and the state of a proc.
async fn work(store: &Store, name: &str, journal_number: u64) -> TaskId {
    let agent = agent(name);
    let seen = store.agent(&agent).await.expect("no error").expect("known").epoch;
    let epoch = store.agent_connected(&agent, "0.1.0", "null", 1_600, seen).await.expect("connected");
    let task = store.create_task(new_task(&[name])).await.expect("a task");
    assert_eq!(store.open_ops(OpScope::Tasks(vec![task])).await.expect("no error").len(), 1);
    let ended = finished(op(task, 0), Some(name), Code::Success);
    assert_eq!(store.finish_ops(vec![ended]).await.expect("no error"), [Applied::Now]);
    store.add_events(&agent, vec![event(journal_number, "exited")], 9).await.expect("an event");
    let procs = vec![said("nginx", journal_number, "{}")];
    store.put_procs(&agent, epoch, procs, Vec::new()).await.expect("a state");
    task
}

/// As by an upgrade of the other servers by one version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_the_next_version_is_used_by_this_one() {
    let Fixture { folder, store: one } = TestEngine::Postgres.with_agents(&["a", "b"]).await;
    let database = administrator(&folder).await;
    let (version, _) = versions(&database).await;
    let sql = "UPDATE schema_version SET version = version + 1, oldest_server = version";
    database.execute(sql, &[]).await.expect("ours");
    wait_for_beats(&database, &one).await;
    let first = work(&one, "a", 1).await;
    assert!(!has_failed(&one).await, "the server that runs goes on");

    let two = TestEngine::Postgres.reopen(&folder).await.expect("a server starts");
    wait_for_beats(&database, &two).await;
    let second = work(&two, "b", 1).await;
    assert_ne!(first, second);
    for store in [&one, &two] {
        wait_for_beats(&database, store).await;
        assert!(store.membership().may_act() && !has_failed(store).await);
        for task in [first, second] {
            assert!(
                store.task(task).await.expect("no error").is_some_and(|task| task.counts.open == 0),
                "{task}"
            );
        }
    }
    assert_eq!(versions(&database).await, (version + 1, version), "an older server lowers nothing");
}

/// SQL that undoes the last migration. A new migration replaces it.
const UNDO: (i64, &str) = (5, "DROP TABLE server_ends");

/// The migration stops before its commit, with all of its locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_the_version_before_works_during_a_migration_and_after_it() {
    let Fixture { folder, store: one } = TestEngine::Postgres.with_agents(&["a", "b"]).await;
    let database = administrator(&folder).await;
    let (last, undo) = UNDO;
    assert_eq!(versions(&database).await, (last, last - 1), "UNDO is that of the last migration");
    database.batch_execute(undo).await.expect("the tables of the version before");
    let sql = "UPDATE schema_version SET version = version - 1, oldest_server = oldest_server - 1";
    database.execute(sql, &[]).await.expect("ours");
    // The last statement of the migration.
    let gate = Gate::at(&folder, "INSERT ON schema_version").await;
    work(&one, "a", 1).await;

    let opening = tokio::spawn(async move { (TestEngine::Postgres.reopen(&folder).await, folder) });
    gate.wait_until_somebody_is_here().await;
    for number in 2..5 {
        work(&one, "a", number).await;
    }
    wait_for_beats(&database, &one).await;
    assert!(!opening.is_finished(), "the migration is not committed");
    assert_eq!(versions(&database).await, (last - 1, last - 2));
    gate.open().await;
    let (opened, folder) = opening.await.expect("no panic");
    let two = opened.expect("the migration is done");
    assert_eq!(versions(&database).await, (last, last - 1));

    let newest = work(&one, "a", 5).await;
    let other = work(&two, "b", 1).await;
    for store in [&one, &two] {
        wait_for_beats(&database, store).await;
        assert!(store.membership().may_act() && !has_failed(store).await);
        for task in [newest, other] {
            assert!(store.task(task).await.expect("no error").is_some(), "{task}");
        }
        assert_eq!(store.last_event().await.expect("no error"), 6);
    }
    drop(folder);
}
