//! Tasks and their ops.

use super::*;
use std::collections::BTreeSet;

on_each_engine!(a_task_reads_back_as_it_was_written);
async fn a_task_reads_back_as_it_was_written(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let mut new = new_task(&["a", "b"]);
    new.requests.push(RequestHead {
        proc: proc("redis"),
        kind: OpKind::Query,
        spec: None,
        accounts: GrantScope::All,
        within: GrantScope::Only(BTreeSet::from([BusinessId(1), BusinessId(7)])),
    });
    new.ops[1].request = 1;
    new.ops.push(NewOp {
        request: 1,
        target: Target::Host(host(9)),
        agent: None,
        start_by: 5,
        deadline: 6,
        ended: None,
    });
    let id = store.create_task(new.clone()).await.expect("a task");

    let (record, ops) = store.task_results(id).await.expect("no error").expect("the task");
    let expected = TaskRecord {
        id,
        created_at: 1_000,
        app: "console".to_owned(),
        username: "admin".to_owned(),
        summary: "start web:nginx".to_owned(),
        requests: new.requests.clone(),
        cancelled_at: None,
        retry_of: None,
        counts: TaskCounts { total: 3, open: 3, succeeded: 0, failed: 0 },
    };
    assert_eq!(record, expected);
    assert_eq!(store.task(id).await.expect("no error"), Some(expected.clone()));
    assert_eq!(newest(&store, 5).await, [TaskRecord { requests: Vec::new(), ..expected }]);
    for ((index, op_record), new_op) in (0..).zip(&ops).zip(&new.ops) {
        let NewOp { request, target, agent, .. } = new_op.clone();
        let expected =
            OpRecord { op: op(id, index), request, target, agent, outcome: None, ended_at: None, late: None };
        assert_eq!(*op_record, expected);
    }

    let open = store.open_ops(OpScope::All).await.expect("no error");
    let of_task = store.open_ops(OpScope::Tasks(vec![id])).await.expect("no error");
    assert!(open.iter().map(|row| row.op).eq(of_task.iter().map(|row| row.op)));
    assert_eq!(open.len(), 3);
    assert_eq!(*open[0].request, new.requests[0]);
    let RequestHead { kind, proc: of, spec, .. } = &*open[2].request;
    assert_eq!((*kind, of, spec), (OpKind::Query, &proc("redis"), &None));
    assert_eq!((open[2].accepted.wall, open[2].start_by, open[2].deadline), (1_000, 5, 6));
}

on_each_engine!(ops_of_one_request_share_it);
async fn ops_of_one_request_share_it(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    store.create_task(new_task(&["a", "b"])).await.expect("a task");
    let open = store.open_ops(OpScope::All).await.expect("no error");
    assert!(Arc::ptr_eq(&open[0].request, &open[1].request));
}

on_each_engine!(an_op_is_ended_once_and_counted_once);
async fn an_op_is_ended_once_and_counted_once(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let id = store.create_task(new_task(&["a", "b", "c"])).await.expect("a task");
    let good = finished(op(id, 0), Some("a"), Code::Success);
    let bad = finished(op(id, 1), None, Code::NoAgent);
    let changed_mind = finished(op(id, 0), None, Code::Timeout);

    let applied = store.finish_ops(vec![good.clone(), bad, good.clone()]).await.expect("applied");
    assert_eq!(applied, [Applied::Now, Applied::Now, Applied::Already]);
    let applied = store.finish_ops(vec![good.clone(), changed_mind]).await.expect("applied");
    assert_eq!(applied, [Applied::Already, Applied::Already]);

    let (record, ops) = store.task_results(id).await.expect("no error").expect("the task");
    assert_eq!(record.counts, TaskCounts { total: 3, open: 1, succeeded: 1, failed: 1 });
    assert_eq!((ops[0].outcome.as_ref(), ops[0].ended_at), (Some(&good.outcome), Some(2_500)));
    assert_eq!(ops[1].outcome.as_ref().map(|outcome| outcome.code), Some(Code::NoAgent));
    assert_eq!(ops[2].outcome, None);

    let open = store.open_ops(OpScope::All).await.expect("no error");
    assert_eq!(open.iter().map(|row| row.op).collect::<Vec<_>>(), [op(id, 2)]);
    store.finish_ops(vec![finished(op(id, 2), Some("c"), Code::Success)]).await.expect("applied");
    assert!(store.open_ops(OpScope::All).await.expect("no error").is_empty());
}

on_each_engine!(only_its_own_agent_ends_an_op);
async fn only_its_own_agent_ends_an_op(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let mut new = new_task(&["a", "b"]);
    new.ops[1].agent = None;
    let id = store.create_task(new).await.expect("a task");
    let other_stamp = TaskId { stamp: STAMP + 1, ..id };
    let huge = TaskId { stamp: u64::MAX, number: u64::MAX };
    let check = async |op: OpId, by: Option<&str>, expected: Applied| {
        let applied = store.finish_ops(vec![finished(op, by, Code::Success)]).await.expect("applied");
        assert_eq!(applied, [expected], "{op} {by:?}");
    };
    check(op(id, 0), Some("b"), Applied::NotYours).await;
    check(op(id, 1), Some("b"), Applied::NotYours).await;
    check(op(id, 2), Some("b"), Applied::Unknown).await;
    check(op(other_stamp, 0), Some("a"), Applied::Unknown).await;
    check(op(huge, u32::MAX), None, Applied::Unknown).await;
    check(op(id, 0), Some("a"), Applied::Now).await;
    check(op(id, 0), Some("b"), Applied::NotYours).await;
    check(op(id, 1), None, Applied::Now).await;
    assert_eq!(store.task(other_stamp).await.expect("no error"), None);
    assert_eq!(store.task_results(huge).await.expect("no error"), None);
    assert!(store.open_ops(OpScope::Tasks(vec![other_stamp])).await.expect("no error").is_empty());
}

on_each_engine!(tasks_made_at_the_same_time_get_numbers_of_their_own);
async fn tasks_made_at_the_same_time_get_numbers_of_their_own(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let mut making = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let store = store.clone();
        making.spawn(async move { store.create_task(new_task(&["a"])).await.expect("a task") });
    }
    let ids: BTreeSet<TaskId> = making.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 64);
    assert_eq!(store.open_ops(OpScope::All).await.expect("no error").len(), 64);
    let newest: Vec<TaskId> = newest(&store, 3).await.iter().map(|task| task.id).collect();
    assert_eq!(newest, ids.into_iter().rev().take(3).collect::<Vec<_>>());
}

on_each_engine!(an_op_without_a_request_is_refused);
async fn an_op_without_a_request_is_refused(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let mut new = new_task(&["a"]);
    new.ops[0].request = 1;
    let refused = store.create_task(new).await.expect_err("no such request");
    assert!(matches!(refused, StoreError::Unwritable { .. }), "{refused:?}");
}

on_each_engine!(the_audit_row_comes_with_the_task);
async fn the_audit_row_comes_with_the_task(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let entry = NewAudit { at: 1, action: "operate_proc_v2".to_owned(), ..NewAudit::default() };
    let new = NewTask { audit: Some(entry.clone()), ..new_task(&["a"]) };
    let id = store.create_task(new).await.expect("a task");
    store.audit(NewAudit { subject: "t1".to_owned(), code: 811, ..entry.clone() }).await.expect("written");

    let rows = store.list_audit(10, AuditFilter::default()).await.expect("no error").records;
    assert_eq!(
        rows.iter().map(|row| row.entry.subject.clone()).collect::<Vec<_>>(),
        ["t1".to_owned(), id.to_string()]
    );
    assert_eq!(rows[0].entry.code, 811);
    assert_eq!(store.list_audit(1, AuditFilter::default()).await.expect("no error").records, rows[..1]);
}

on_each_engine!(what_an_agent_says_too_late_is_kept_beside_the_outcome);
async fn what_an_agent_says_too_late_is_kept_beside_the_outcome(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let id = store.create_task(new_task(&["a", "b"])).await.expect("a task");
    let by_server = finished(op(id, 0), None, Code::Timeout);
    let own = finished(op(id, 1), Some("b"), Code::Success);
    let applied = store.finish_ops(vec![by_server, own.clone()]).await.expect("applied");
    assert_eq!(applied, [Applied::Now, Applied::Now]);

    let late = Finished { at: 9_000, ..finished(op(id, 0), Some("a"), Code::Success) };
    for (report, expected) in [
        (late.clone(), Applied::Late),
        (late, Applied::Already),
        // It came to its own outcome; hearing it again is nothing new.
        (own, Applied::Already),
        (finished(op(id, 0), Some("b"), Code::Success), Applied::NotYours),
    ] {
        assert_eq!(store.finish_ops(vec![report]).await.expect("applied"), [expected]);
    }
    let (task, ops) = store.task_results(id).await.expect("no error").expect("the task");
    assert_eq!(task.counts, TaskCounts { total: 2, open: 0, succeeded: 1, failed: 1 });
    assert_eq!(ops[0].outcome.as_ref().map(|outcome| outcome.code), Some(Code::Timeout), "it stays so");
    let kept = LateReport { code: Code::Success, message: "said so".to_owned(), at: 9_000 };
    assert_eq!((ops[0].late.clone(), &ops[1].late), (Some(kept), &None));
}
