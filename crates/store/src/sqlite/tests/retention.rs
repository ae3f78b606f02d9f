//! Slices of deleted rows.

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
        assert!(store.open_ops(OpScope::Tasks(vec![gone])).await.expect("no error").is_empty());
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

#[tokio::test]
async fn late_reports_are_deleted_with_their_task() {
    let Fixture { folder: _folder, store } = fixture().await;
    let id = store.create_task(new_task(&["a"])).await.expect("a task");
    for (by, code) in [(None, Code::Timeout), (Some("a"), Code::Success)] {
        store.finish_ops(vec![finished(op(id, 0), by, code)]).await.expect("applied");
    }
    let count = async || {
        let count = |db: &Connection| {
            Ok(db.query_row("SELECT count(*) FROM late_reports", [], |row| row.get::<_, i64>(0))?)
        };
        store.read("counting late reports", count).await.expect("no error")
    };
    assert_eq!(count().await, 1);
    store.delete_tasks(i64::MAX, Slice { tasks: 10, ops: 1 }).await.expect("deleted");
    assert_eq!(count().await, 0);
}
