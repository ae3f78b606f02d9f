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
