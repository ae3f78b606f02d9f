//! Deletion of old rows.

use super::*;
use procfleet_testkit::PATIENCE;
use tokio_postgres::Client;

const LARGE: Slice = Slice { tasks: 1_000, ops: 100_000 };

/// A task of `ops` ops that was made at this time; all but `open` of them have ended.
async fn task(store: &Store, created_at: i64, ops: u32, open: u32) -> TaskId {
    let agents: Vec<String> = (0..ops).map(|n| format!("agent-{n}")).collect();
    let agents: Vec<&str> = agents.iter().map(String::as_str).collect();
    let id = store.create_task(NewTask { created_at, ..new_task(&agents) }).await.expect("a task");
    let finished = (open..ops).map(|index| finished(op(id, index), None, Code::Success)).collect();
    store.finish_ops(finished).await.expect("applied");
    id
}

async fn kept(store: &Store) -> Vec<TaskId> {
    let mut kept: Vec<TaskId> = newest(store, 1_000).await.iter().map(|task| task.id).collect();
    kept.reverse();
    kept
}

on_each_engine!(only_old_tasks_without_open_ops_are_deleted);
async fn only_old_tasks_without_open_ops_are_deleted(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let old = task(&store, 999, 2, 0).await;
    let old_and_open = task(&store, 1, 2, 1).await;
    let in_time = task(&store, 1_000, 2, 0).await;
    // The clock was set back for a while.
    let old_with_a_high_number = task(&store, 500, 1, 0).await;
    assert_eq!(kept(&store).await, [old, old_and_open, in_time, old_with_a_high_number]);

    let deleted = store.delete_tasks(1_000, LARGE).await.expect("deleted");
    assert_eq!(deleted, Deleted { tasks: 2, ops: 3, more: false });
    assert_eq!(kept(&store).await, [old_and_open, in_time]);
    assert_eq!(store.task_results(old).await.expect("no error"), None);
    let (_, ops) = store.task_results(old_and_open).await.expect("no error").expect("the task");
    assert_eq!(ops.len(), 2);

    let late = store.finish_ops(vec![finished(op(old, 0), None, Code::Success)]).await.expect("applied");
    assert_eq!(late, [Applied::Unknown]);
    store.finish_ops(vec![finished(op(old_and_open, 0), None, Code::Success)]).await.expect("applied");
    assert_eq!(store.delete_tasks(1_000, LARGE).await.expect("deleted").tasks, 1, "its last op has ended");
    assert_eq!(kept(&store).await, [in_time]);
    let next = task(&store, 2_000, 1, 0).await;
    assert!(next.number > old_with_a_high_number.number, "numbers are not given out again");
}

on_each_engine!(a_key_goes_with_its_task);
async fn a_key_goes_with_its_task(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let key = SubmissionKey { kind: KeyKind::Idempotency, text: "k".to_owned() };
    let since = procfleet_store::clock::ClockReading { wall: i64::MIN, mark: None };
    let submission = Submission { key, request_hash: [1; 32], since };
    let submit = async || store.submit_task(new_task(&["a"]), submission.clone()).await.expect("no error");
    let Submitted::New(id) = submit().await else { panic!("it is the first") };
    assert_eq!(store.delete_tasks(2_000, LARGE).await.expect("deleted").tasks, 0, "it is open");
    assert_eq!(submit().await, Submitted::Before(id));
    store.finish_ops(vec![finished(op(id, 0), None, Code::Success)]).await.expect("applied");
    assert_eq!(store.delete_tasks(2_000, LARGE).await.expect("deleted").tasks, 1);
    assert!(matches!(submit().await, Submitted::New(other) if other != id));
}

on_each_engine!(old_audit_records_and_tokens_are_deleted);
async fn old_audit_records_and_tokens_are_deleted(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    for at in [5, 1, 3, 4, 2] {
        store.audit(NewAudit { at, ..NewAudit::default() }).await.expect("written");
    }
    let audit = async || {
        let rows = store.list_audit(10, AuditFilter::default()).await.expect("no error").records;
        rows.iter().map(|row| row.entry.at).collect::<Vec<_>>()
    };
    assert_eq!(store.delete_audit(4, 2).await.expect("deleted"), 2);
    assert_eq!(audit().await, [4, 3, 5]);
    assert_eq!(store.delete_audit(4, 2).await.expect("deleted"), 1);
    assert_eq!(audit().await, [4, 5]);

    store.create_token(token(1)).await.expect("a token");
    assert_eq!(store.delete_tokens(2_000, 10).await.expect("deleted"), 0);
    assert_eq!(
        store.join(shown(), joining("a", 1), 2_500).await.expect("no error"),
        Err(JoinTokenRefusal::Expired)
    );
    assert_eq!(store.delete_tokens(2_001, 10).await.expect("deleted"), 1);
    assert_eq!(
        store.join(shown(), joining("a", 1), 2_500).await.expect("no error"),
        Err(JoinTokenRefusal::Unknown)
    );
}

const DAY: i64 = 86_400_000;

/// A store with an ended task of day 1 and one of day 3, and a connection of the test's own.
async fn two_days() -> (Fixture, Client) {
    let fixture = TestEngine::Postgres.fixture().await;
    task(&fixture.store, DAY, 2, 0).await;
    task(&fixture.store, 3 * DAY, 2, 1).await;
    let client = administrator(&fixture.folder).await;
    (fixture, client)
}

/// The tables of a day, attached or not.
async fn tables_of(client: &Client, day: u32) -> i64 {
    let sql =
        "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname ~ ('^[a-z_]+_d' || $1::text || '$')";
    client.query_one(sql, &[&day.to_string()]).await.expect("readable").get(0)
}

/// The day is dropped while a report reads other ops, or the same, in one long transaction. Nothing that uses
/// ops meanwhile waits for a lock of a table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_is_dropped_beside_a_long_read_without_holding_up_writers() {
    for report in ["SELECT count(*) FROM ops", "SELECT count(*) FROM ops WHERE task >= 3::bigint << 38"] {
        let (Fixture { folder, store }, reader) = two_days().await;
        let other = TestEngine::Postgres.reopen(&folder).await.expect("a second server");
        let watcher = administrator(&folder).await;
        reader.batch_execute(&format!("BEGIN; {report}")).await.expect("a long read");
        let dropping = tokio::spawn({
            let store = store.clone();
            async move { store.delete_tasks(2 * DAY, LARGE).await }
        });
        let mut rounds = 0;
        while !dropping.is_finished() || rounds < 20 {
            let working = tokio::spawn({
                let other = other.clone();
                async move {
                    let id = task(&other, 3 * DAY, 3, 1).await;
                    other.open_ops(OpScope::Tasks(vec![id])).await.expect("no error");
                    other.task_results(id).await.expect("no error").expect("the task");
                }
            });
            while !working.is_finished() {
                // The transaction that drops the day may itself wait for the report.
                let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation' \
                           AND mode != 'AccessExclusiveLock' \
                           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
                let held_up: i64 = watcher.query_one(sql, &[]).await.expect("readable").get(0);
                assert_eq!(held_up, 0, "{report}");
            }
            working.await.expect("all of it is done");
            rounds += 1;
        }
        let deleted = dropping.await.expect("no panic").expect("the tasks are deleted in any case");
        assert_eq!((deleted.tasks, deleted.more), (1, false), "{report}");
        reader.batch_execute("COMMIT").await.expect("the read ends");
        let dropped = async {
            while tables_of(&watcher, 1).await > 0 {
                store.delete_tasks(2 * DAY, LARGE).await.expect("deleted");
            }
        };
        tokio::time::timeout(PATIENCE, dropped).await.expect("the day is dropped");
        assert_eq!(tables_of(&watcher, 3).await, 3, "{report}");
    }
}

/// A task gets a number of an old day after the day's partitions were detached, wholly or half: the clock was
/// set back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_of_a_day_that_is_about_to_be_dropped_keeps_it() {
    let (Fixture { folder, store }, reader) = two_days().await;
    let client = administrator(&folder).await;
    for long_read in [false, true] {
        store.delete_tasks(DAY + 1, LARGE).await.expect("deleted");
        let detach = "ALTER TABLE ops DETACH PARTITION ops_d1 CONCURRENTLY";
        if long_read {
            reader.batch_execute("BEGIN; SELECT count(*) FROM ops").await.expect("a long read");
            client.batch_execute("SET lock_timeout = '1ms'").await.expect("a setting");
            client.batch_execute(detach).await.expect_err("the read lasts for longer");
            reader.batch_execute("COMMIT").await.expect("the read ends");
        } else {
            client.batch_execute(detach).await.expect("detached");
        }
        let id = task(&store, DAY, 2, 1).await;
        store.delete_tasks(2 * DAY, LARGE).await.expect("deleted");
        let (_, ops) = store.task_results(id).await.expect("no error").expect("the task");
        assert_eq!(ops.len(), 2, "{long_read}");
        store.finish_ops(vec![finished(op(id, 0), None, Code::Success)]).await.expect("applied");
    }
    store.delete_tasks(2 * DAY, LARGE).await.expect("deleted");
    assert_eq!(tables_of(&client, 1).await, 0);
}
