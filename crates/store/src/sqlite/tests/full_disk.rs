//! Events leave the rest of the disk to essential changes.

use super::group_commit::hold;
use super::*;
use futures_util::future::join_all;
use procfleet_testkit::Disk;

/// Their texts are as large as those of several messages of an agent.
fn large_event(number: u64) -> NewEvent {
    NewEvent {
        journal: "j1".to_owned(),
        journal_number: number,
        at: 5,
        proc: proc("nginx"),
        kind: "exited".to_owned(),
        message: String::new(),
        details: format!("\"{}\"", "d".repeat(250_000)),
        report_id: 0,
        proc_name: "nginx".to_owned(),
        account: "www".to_owned(),
    }
}

/// All of them wait for the writer at the same time, which every agent of a fleet can cause: each saw a disk
/// with space.
#[tokio::test]
async fn events_that_wait_at_the_writer_do_not_use_up_the_disk() {
    const EVENTS: u64 = 100;
    let folder = tempfile::tempdir().expect("a temp folder");
    let Some(disk) = Disk::mount(&folder.path().join("disk"), "24m") else { return };
    let store = Store::open(&disk.path().join("store.db")).await.expect("a new store opens");
    store.create_token(token(100)).await.expect("a token");
    let joined = store.join(shown(), joining("a", 1), 1_500).await.expect("no error");
    assert!(joined.is_ok(), "{joined:?}");
    let agents = vec!["a"; 200];
    let task = store.create_task(new_task(&agents)).await.expect("a task");
    let finish = async |index: u32| {
        store.finish_ops(vec![finished(op(task, index), Some("a"), Code::Success)]).await.expect("applied");
    };
    let mut stored = 0;
    for round in 0..5 {
        let from = agent("a");
        let (release, holding) = hold(&store).await;
        let numbers = round * EVENTS + 1..=(round + 1) * EVENTS;
        let events = numbers.map(|number| store.add_events(&from, vec![large_event(number)], 9));
        // Each job is in the channel after the first poll of its future. The last one releases the writer.
        let (added, (), ()) = tokio::join!(
            biased;
            join_all(events),
            finish(u32::try_from(round).expect("small")),
            async { release.send(()).expect("the writer waits") }
        );
        holding.await.expect("no panic").expect("its own group");
        let refused = added.iter().filter(|added| matches!(added, Err(StoreError::NoSpace { .. }))).count();
        let new = added.iter().filter(|added| added.is_ok()).count();
        assert!(new + refused == added.len() && refused > 0, "{new} and {refused} of {added:?}");
        stored += new;
    }
    assert!(stored > 0 && !store.is_disk_full(), "{stored} stored");
    // Each in a commit of its own, and more than the log holds without a checkpoint.
    for index in 5..200 {
        finish(index).await;
    }
    assert!(!store.is_disk_full());
    drop(store);
}
