//! Equal requests under one key.

use super::*;
use procfleet_core::boot_time::BootTime;
use procfleet_store::clock::{BootNumber, ClockMark, ClockReading};

fn under(kind: KeyKind, key: &str, request: u8, since: i64) -> Submission {
    let key = SubmissionKey { kind, text: key.to_owned() };
    Submission { key, request_hash: [request; 32], since: ClockReading { wall: since, mark: None } }
}

fn own(key: &str, request: u8) -> Submission {
    under(KeyKind::Idempotency, key, request, i64::MIN)
}

fn by(app: &str, created_at: i64) -> NewTask {
    let audit = Some(NewAudit { action: "operate".to_owned(), ..NewAudit::default() });
    NewTask { app: app.to_owned(), created_at, audit, ..new_task(&["a"]) }
}

async fn submit(store: &Store, task: NewTask, submission: Submission) -> Submitted {
    store.submit_task(task, submission).await.expect("no error")
}

#[track_caller]
fn made(submitted: Submitted) -> TaskId {
    match submitted {
        Submitted::New(task) => task,
        Submitted::Before(_) | Submitted::OtherRequest(_) => panic!("{submitted:?}"),
    }
}

on_each_engine!(a_key_stands_for_one_request_of_one_app);
async fn a_key_stands_for_one_request_of_one_app(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let first = made(submit(&store, by("console", 1_000), own("k", 1)).await);
    let much_later = i64::MAX / 2;
    let check = async |submission: Submission, expected: Submitted| {
        assert_eq!(submit(&store, by("console", much_later), submission).await, expected);
    };
    check(own("k", 1), Submitted::Before(first)).await;
    check(own("k", 2), Submitted::OtherRequest(first)).await;
    check(own("k", 1), Submitted::Before(first)).await;
    assert_eq!(newest(&store, 10).await.len(), 1);
    assert_eq!(
        store.list_audit(10, AuditFilter::default()).await.expect("no error").records.len(),
        1,
        "what changed nothing leaves no record"
    );
    assert_eq!(store.open_ops(OpScope::All).await.expect("no error").len(), 1);

    let others = [
        submit(&store, by("console", 1_000), own("K", 1)).await,
        submit(&store, by("other", 1_000), own("k", 1)).await,
        submit(&store, by("other", 1_000), own("k2", 2)).await,
        submit(&store, by("console", 1_000), under(KeyKind::RequestId, "k", 1, 0)).await,
    ];
    let mut ids: Vec<TaskId> = others.into_iter().map(made).collect();
    ids.push(first);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 5);
}

on_each_engine!(a_request_id_stands_for_each_of_its_requests_for_a_while);
async fn a_request_id_stands_for_each_of_its_requests_for_a_while(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let send = async |request: u8, now: i64| {
        let mut task = by("app", now);
        task.requests[0].proc = proc(&request.to_string());
        submit(&store, task, under(KeyKind::RequestId, "id", request, now - 60_000)).await
    };
    let first = made(send(1, 100_000).await);
    // Callers send one request id with all that one request of theirs leads to.
    let second = made(send(2, 100_001).await);
    assert_eq!(send(1, 160_000).await, Submitted::Before(first));
    assert_eq!(send(2, 160_001).await, Submitted::Before(second));
    let later = made(send(1, 160_001).await);
    assert_eq!(send(1, 220_001).await, Submitted::Before(later));
    assert_ne!(made(send(1, 220_002).await), later);
}

on_each_engine!(a_request_id_is_new_after_another_operation_on_the_same_process);
/// An equal request is a repeat until another operation on its process and host is accepted.
async fn a_request_id_is_new_after_another_operation_on_the_same_process(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let task = |kind: OpKind, name: &str, on: &str| {
        let mut task = NewTask { app: "app".to_owned(), ..new_task(&[on]) };
        (task.requests[0].kind, task.requests[0].proc) = (kind, proc(name));
        task
    };
    let start =
        async || submit(&store, task(OpKind::Start, "web", "a"), under(KeyKind::RequestId, "id", 1, 0)).await;
    let first = made(start().await);
    for (kind, name, on, new) in [
        (OpKind::Query, "web", "a", false),
        (OpKind::Stop, "other", "a", false),
        (OpKind::Stop, "web", "b", false),
        (OpKind::Stop, "web", "a", true),
    ] {
        store.create_task(task(kind, name, on)).await.expect("another app's, or without a key");
        let said = start().await;
        assert_eq!(matches!(said, Submitted::New(_)), new, "{kind:?} {name} on {on}: {said:?}");
        if !new {
            assert_eq!(said, Submitted::Before(first));
        }
    }
}

on_each_engine!(a_wall_clock_that_is_set_makes_no_request_id_older_or_newer);
/// Within one boot, the age is measured by the boot-time clock.
async fn a_wall_clock_that_is_set_makes_no_request_id_older_or_newer(engine: TestEngine) {
    const HOUR: i64 = 3_600_000;
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let send = async |boot: i64, moment: u64, wall: i64| {
        let mark = |moment: u64| Some(ClockMark { boot: BootNumber(boot), moment: BootTime(moment) });
        let task = NewTask { mark: mark(moment), ..by("app", wall) };
        let since = ClockReading { wall: wall - 60_000, mark: mark(moment - 60_000) };
        submit(&store, task, Submission { since, ..under(KeyKind::RequestId, "id", 1, 0) }).await
    };
    let first = made(send(1, 100_000, HOUR).await);
    assert_eq!(send(1, 101_000, 2 * HOUR).await, Submitted::Before(first), "it was set ahead");
    let second = made(send(1, 161_000, 0).await);
    assert_ne!(second, first, "it was set back, and a minute is over");
    assert_eq!(send(2, 70_000, 60_000).await, Submitted::Before(second), "another boot goes by wall time");
    made(send(2, 70_000, 60_001).await);
}

on_each_engine!(calls_at_the_same_moment_make_one_task);
async fn calls_at_the_same_moment_make_one_task(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    for key in [own("k", 1), under(KeyKind::RequestId, "id", 1, 0)] {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let (store, key) = (store.clone(), key.clone());
            calls.spawn(async move { submit(&store, by("app", 1_000), key).await });
        }
        let answers = calls.join_all().await;
        let new: Vec<TaskId> = answers
            .iter()
            .filter_map(|answer| match answer {
                Submitted::New(task) => Some(*task),
                Submitted::Before(_) | Submitted::OtherRequest(_) => None,
            })
            .collect();
        let [task] = new[..] else { panic!("{new:?}") };
        assert_eq!(answers.iter().filter(|answer| **answer == Submitted::Before(task)).count(), 63);
    }
    assert_eq!(newest(&store, 10).await.len(), 2);
}

on_each_engine!(a_task_that_could_not_be_made_leaves_its_key_free);
async fn a_task_that_could_not_be_made_leaves_its_key_free(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let mut broken = by("app", 1_000);
    broken.ops[0].request = 1;
    store.submit_task(broken, own("k", 1)).await.expect_err("no such request");
    made(submit(&store, by("app", 1_000), own("k", 2)).await);
}
