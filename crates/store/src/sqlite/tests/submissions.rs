//! Keys after a crash.

use super::*;
use crate::clock::ClockReading;

fn under_key(request: u8) -> Submission {
    let key = SubmissionKey { kind: KeyKind::Idempotency, text: "k".to_owned() };
    Submission { key, request_hash: [request; 32], since: ClockReading { wall: i64::MIN, mark: None } }
}

/// A copy of the files is what kill -9 leaves.
#[tokio::test]
async fn a_key_is_there_after_a_crash() {
    let Fixture { folder, store } = fixture().await;
    let submitted = store.submit_task(new_task(&["a"]), under_key(1)).await.expect("no error");
    let Submitted::New(first) = submitted else { panic!("{submitted:?}") };
    let elsewhere = tempfile::tempdir().expect("a temp folder");
    for name in ["store.db", "store.db-wal"] {
        std::fs::copy(folder.path().join(name), elsewhere.path().join(name)).expect("a copy");
    }
    let revived = Store::open(&path(&elsewhere)).await.expect("it opens");
    for (request, expected) in [(1, Submitted::Before(first)), (2, Submitted::OtherRequest(first))] {
        let again = revived.submit_task(new_task(&["a"]), under_key(request)).await.expect("no error");
        assert_eq!(again, expected);
    }
    drop(store);
}
