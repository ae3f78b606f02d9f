//! Another version of the server upgrades the tables while this one runs.

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
