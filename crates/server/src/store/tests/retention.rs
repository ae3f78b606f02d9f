//! Deletion of old rows.

use super::*;

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

async fn ops_in_store(store: &Store) -> i64 {
    let count = |db: &Connection| Ok(db.query_row("SELECT count(*) FROM ops", [], |row| row.get(0))?);
    store.read("counting ops", count).await.expect("no error")
}

#[tokio::test]
async fn only_old_tasks_without_open_ops_are_deleted() {
    let Fixture { folder: _folder, store } = fixture().await;
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
    assert_eq!((ops.len(), ops_in_store(&store).await), (2, 4));

    let late = store.finish_ops(vec![finished(op(old, 0), None, Code::Success)]).await.expect("applied");
    assert_eq!(late, [Applied::Unknown]);
    store.finish_ops(vec![finished(op(old_and_open, 0), None, Code::Success)]).await.expect("applied");
    assert_eq!(store.delete_tasks(1_000, LARGE).await.expect("deleted").tasks, 1, "its last op has ended");
    assert_eq!(kept(&store).await, [in_time]);
    let next = task(&store, 2_000, 1, 0).await;
    assert!(next.number > old_with_a_high_number.number, "numbers are not given out again");
}

#[tokio::test]
async fn a_slice_is_as_small_as_it_is_told_to_be() {
    let Fixture { folder: _folder, store } = fixture().await;
    for created_at in 0..7 {
        task(&store, created_at, 2, 0).await;
    }
    let last = task(&store, 5_000, 1, 0).await;
    let check = async |slice: Slice, expected: Deleted| {
        assert_eq!(store.delete_tasks(1_000, slice).await.expect("deleted"), expected, "{slice:?}");
    };
    check(Slice { tasks: 3, ops: 100 }, Deleted { tasks: 3, ops: 6, more: true }).await;
    check(Slice { tasks: 100, ops: 4 }, Deleted { tasks: 2, ops: 4, more: true }).await;
    check(Slice { tasks: 2, ops: 100 }, Deleted { tasks: 2, ops: 4, more: false }).await;
    check(LARGE, Deleted { tasks: 0, ops: 0, more: false }).await;
    assert_eq!((kept(&store).await, ops_in_store(&store).await), (vec![last], 1));
}

/// A task is known with all its keys, or unknown.
#[tokio::test]
async fn a_large_task_goes_at_once_and_its_ops_follow() {
    let Fixture { folder, store } = fixture().await;
    let small = task(&store, 1, 3, 0).await;
    let large = task(&store, 2, 25, 0).await;
    let next = task(&store, 3, 1, 0).await;
    let slice = Slice { tasks: 100, ops: 10 };
    let first = store.delete_tasks(1_000, slice).await.expect("deleted");
    assert_eq!(first, Deleted { tasks: 2, ops: 10, more: true });
    for gone in [small, large] {
        assert_eq!(store.task_results(gone).await.expect("no error"), None);
        assert!(store.task_ops(gone).await.expect("no error").is_empty());
    }
    assert_eq!((kept(&store).await, ops_in_store(&store).await), (vec![next], 19));

    // The remaining ops are known after a restart, and are deleted first.
    store.close().await.expect("closed");
    let store = Store::open(&path(&folder)).await.expect("it opens again");
    let second = store.delete_tasks(1_000, slice).await.expect("deleted");
    assert_eq!(second, Deleted { tasks: 0, ops: 10, more: true });
    let third = store.delete_tasks(1_000, slice).await.expect("deleted");
    assert_eq!(third, Deleted { tasks: 1, ops: 9, more: false });
    assert_eq!((kept(&store).await, ops_in_store(&store).await), (vec![], 0));
}

#[tokio::test]
async fn a_key_goes_with_its_task() {
    let Fixture { folder: _folder, store } = fixture().await;
    let key = SubmissionKey { kind: KeyKind::Idempotency, text: "k".to_owned() };
    let since = crate::clock::ClockReading { wall: i64::MIN, mark: None };
    let submission = Submission { key, request_hash: [1; 32], since };
    let submit = async || store.submit_task(new_task(&["a"]), submission.clone()).await.expect("no error");
    let Submitted::New(id) = submit().await else { panic!("it is the first") };
    assert_eq!(store.delete_tasks(2_000, LARGE).await.expect("deleted").tasks, 0, "it is open");
    assert_eq!(submit().await, Submitted::Before(id));
    store.finish_ops(vec![finished(op(id, 0), None, Code::Success)]).await.expect("applied");
    assert_eq!(store.delete_tasks(2_000, LARGE).await.expect("deleted").tasks, 1);
    assert!(matches!(submit().await, Submitted::New(other) if other != id));
}

#[tokio::test]
async fn old_audit_records_and_tokens_are_deleted() {
    let Fixture { folder: _folder, store } = fixture().await;
    for at in [5, 1, 3, 4, 2] {
        store.audit(NewAudit { at, ..NewAudit::default() }).await.expect("written");
    }
    let audit = async || {
        let rows = store.audit_rows(10, AuditFilter::default()).await.expect("no error");
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

/// The time of a slice does not depend on the size of the store.
#[tokio::test]
async fn old_rows_are_found_through_an_index() {
    let Fixture { folder: _folder, store } = fixture().await;
    let check = async |sql: &'static str, index: &str| {
        let plan = move |db: &Connection| {
            let mut statement = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
            let lines = statement.query_map([], |row| row.get::<_, String>(3))?;
            Ok(lines.collect::<Result<Vec<_>, _>>()?)
        };
        let plan = store.write("planning", plan).await.expect("a plan");
        assert!(
            plan.len() == 1 && plan[0].contains(index) && plan[0].starts_with("SEARCH"),
            "{sql}: {plan:?}"
        );
    };
    check("SELECT number FROM tasks WHERE open = 0 AND created_at < 5 ORDER BY created_at", "tasks_ended")
        .await;
    check("SELECT id FROM audit WHERE at < 5 ORDER BY at", "audit_by_time").await;
    // The statement that deletes a task.
    check("DELETE FROM submissions WHERE task = 5", "submissions_by_task").await;
}
