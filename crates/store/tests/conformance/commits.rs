//! The connection to PostgreSQL ends while a unit is committed, before the database has the COMMIT or after
//! the database has carried it out.

use super::*;
use procfleet_store::clock::ClockReading;
use procfleet_testkit::{CommitCut, DatabaseProxy};

const ROUNDS: u32 = 10;

/// Two servers, of which the first reaches the database through a proxy.
struct Cut {
    proxy: DatabaseProxy,
    through: Store,
    direct: Store,
    _folder: TempDir,
}

async fn cut(agents: &[&str]) -> Cut {
    let Fixture { folder, store: direct } = TestEngine::Postgres.with_agents(agents).await;
    let url = std::fs::read_to_string(url_file(&folder)).expect("the url");
    let proxy = DatabaseProxy::to(&url);
    let through = Store::connect(&proxy.url().parse().expect("a url")).await.expect("a second server");
    Cut { proxy, through, direct, _folder: folder }
}

/// Each place of the cut, and whether the change is stored.
const CUTS: [(CommitCut, bool); 2] = [(CommitCut::Before, false), (CommitCut::After, true)];

fn under_key(text: String) -> Submission {
    let key = SubmissionKey { kind: KeyKind::Idempotency, text };
    Submission { key, request_hash: [1; 32], since: ClockReading { wall: i64::MIN, mark: None } }
}

/// The id that the error names.
fn named<T: std::fmt::Debug>(result: Result<T, StoreError>) -> TaskId {
    match result {
        Err(StoreError::TaskUncertain { task, .. }) => task,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_of_an_unknown_commit_names_the_task() {
    let Cut { proxy, through, direct, _folder } = cut(&[]).await;
    // The partition of its day is created in a transaction of its own.
    direct.create_task(new_task(&["a"])).await.expect("a task");
    let mut stored = 1;
    for round in 0..ROUNDS {
        for (place, is_stored) in CUTS {
            proxy.cut_next_commit(place);
            let task = named(through.create_task(new_task(&["a"])).await);
            let found = direct.task(task).await.expect("no error");
            assert_eq!(found.is_some(), is_stored, "{place:?} {task}");
            stored += u32::from(is_stored);

            let key = under_key(format!("{round} {place:?}"));
            proxy.cut_next_commit(place);
            let task = named(through.submit_task(new_task(&["a"]), key.clone()).await);
            assert_eq!(direct.task(task).await.expect("no error").is_some(), is_stored, "{place:?} {task}");
            stored += 1;
            match direct.submit_task(new_task(&["a"]), key).await.expect("no error") {
                Submitted::Before(first) => assert!(is_stored && first == task, "{place:?} {first} {task}"),
                Submitted::New(again) => assert!(!is_stored && again != task, "{place:?} {again} {task}"),
                other @ Submitted::OtherRequest(_) => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(newest(&direct, 1_000).await.len(), stored as usize, "each call is stored once or not at all");
}

/// The dispatcher writes reports again whose commit is not known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_whose_commit_is_unknown_are_counted_once() {
    let Cut { proxy, through, direct, _folder } = cut(&[]).await;
    for _ in 0..ROUNDS {
        for (place, is_stored) in CUTS {
            let task = direct.create_task(new_task(&["a", "b"])).await.expect("a task");
            let reports = || {
                ["a", "b"]
                    .iter()
                    .zip(0..)
                    .map(|(by, index)| finished(op(task, index), Some(by), Code::Success))
            };
            proxy.cut_next_commit(place);
            let unknown = through.finish_ops(reports().collect()).await;
            assert!(matches!(unknown, Err(StoreError::Uncertain { .. })), "{unknown:?}");
            let again = direct.finish_ops(reports().collect()).await.expect("stored");
            let expected = if is_stored { Applied::Already } else { Applied::Now };
            assert_eq!(again, [expected; 2], "{place:?}");
            let record = direct.task(task).await.expect("no error").expect("the task");
            assert_eq!(record.counts, TaskCounts { total: 2, open: 0, succeeded: 2, failed: 0 });
        }
    }
}

/// The agent sends events again that were not confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_whose_commit_is_unknown_are_stored_once_and_leave_no_gap() {
    let Cut { proxy, through, direct, _folder } = cut(&["a"]).await;
    let mut number = 0;
    for _ in 0..ROUNDS {
        for (place, is_stored) in CUTS {
            number += 1;
            let events = || vec![event(number, "exited")];
            proxy.cut_next_commit(place);
            let unknown = through.add_events(&agent("a"), events(), 9).await;
            assert!(matches!(unknown, Err(StoreError::Uncertain { .. })), "{unknown:?}");
            let again = direct.add_events(&agent("a"), events(), 9).await.expect("stored");
            assert_eq!(again.len(), usize::from(!is_stored), "{place:?}");
            assert_eq!(direct.newest_event_number().await.expect("no error"), number);
        }
    }
}
