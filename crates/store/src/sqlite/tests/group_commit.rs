//! Jobs that share a commit.

use super::*;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

fn put(db: &Connection, name: &str) -> Result<(), QueryFault> {
    db.execute("INSERT INTO businesses (name) VALUES (?)", [name])?;
    Ok(())
}

async fn has(store: &Store, name: &'static str) -> bool {
    let look =
        move |db: &Connection| Ok(db.prepare("SELECT 1 FROM businesses WHERE name = ?")?.exists([name])?);
    store.read("looking", look).await.expect("no error")
}

/// Blocks the writer until the returned sender is used, so that jobs gather in one group.
pub(super) async fn hold(store: &Store) -> (Sender<()>, JoinHandle<Result<(), StoreError>>) {
    let (release, until) = channel();
    let (entered, entrance) = oneshot::channel();
    let store = store.clone();
    let holding = tokio::spawn(async move {
        let wait = move |_: &Connection| {
            entered.send(()).expect("the test waits for it");
            until.recv().expect("released");
            Ok(())
        };
        store.write("holding", wait).await
    });
    entrance.await.expect("the writer is held");
    (release, holding)
}

/// Runs `spoiler` in one group between two good jobs. `expected`: which of the three fail.
async fn check(store: &Store, spoiler: fn(&Connection) -> Result<(), QueryFault>, expected: [bool; 3]) {
    let (release, holding) = hold(store).await;
    // Each job is in the channel after the first poll of its future. The last one releases the writer.
    let (before, spoiled, after, ()) = tokio::join!(
        biased;
        store.write("before", |db| put(db, "before")),
        store.write("spoiling", spoiler),
        store.write("after", |db| put(db, "after")),
        async { release.send(()).expect("the writer waits") }
    );
    holding.await.expect("no panic").expect("its own group");
    let failed = [before.is_err(), spoiled.is_err(), after.is_err()];
    assert_eq!(failed, expected, "{before:?} {spoiled:?} {after:?}");
    let stored = [has(store, "before").await, has(store, "spoiler").await, has(store, "after").await];
    assert_eq!(stored, expected.map(|failed| !failed), "success means stored, failure means not stored");
}

#[tokio::test]
async fn a_good_group() {
    let fixture = fixture().await;
    check(&fixture.store, |db| put(db, "spoiler"), [false; 3]).await;
}

#[tokio::test]
async fn a_job_that_fails_affects_no_other() {
    let fails = |db: &Connection| {
        put(db, "spoiler")?;
        put(db, "spoiler")
    };
    let fixture = fixture().await;
    check(&fixture.store, fails, [false, true, false]).await;
}

#[tokio::test]
async fn a_job_that_panics_affects_no_other() {
    let panics = |db: &Connection| {
        put(db, "spoiler")?;
        panic!("on purpose")
    };
    let fixture = fixture().await;
    check(&fixture.store, panics, [false, true, false]).await;
}

#[tokio::test]
async fn a_lost_transaction_fails_the_jobs_before_it() {
    let gives_up = |db: &Connection| {
        put(db, "spoiler")?;
        Ok(db.execute_batch("ROLLBACK")?)
    };
    let fixture = fixture().await;
    check(&fixture.store, gives_up, [true, true, false]).await;
}

#[tokio::test]
async fn a_failed_commit_fails_all_jobs() {
    let breaks_the_commit = |db: &Connection| {
        put(db, "spoiler")?;
        db.execute_batch(
            "PRAGMA defer_foreign_keys = ON;
             INSERT INTO procs (agent, namespace, name, revision, status_json) VALUES ('nobody', '', '', 1, '')",
        )?;
        Ok(())
    };
    let fixture = fixture().await;
    check(&fixture.store, breaks_the_commit, [true; 3]).await;
    fixture.store.create_app(new_app("app"), None).await.expect("the store goes on");
}

#[tokio::test]
async fn the_store_recovers_from_a_full_disk() {
    let Fixture { folder: _folder, store } = fixture().await;
    let limit = |pages: i64| {
        store.write("limiting", move |db| {
            let page_count: i64 = db.pragma_query_value(None, "page_count", |row| row.get(0))?;
            Ok(db.query_row(&format!("PRAGMA max_page_count = {}", page_count + pages), [], |_| Ok(()))?)
        })
    };
    limit(2).await.expect("limited");
    // More than the reserve of free pages holds.
    let agents = vec!["agent"; 50_000];
    let failed = store.create_task(new_task(&agents)).await.expect_err("full");
    assert!(matches!(failed, StoreError::Database { .. }), "{failed:?}");
    assert!(newest(&store, 10).await.is_empty());

    limit(100_000).await.expect("room again");
    store.create_task(new_task(&agents)).await.expect("a task");
}

#[tokio::test]
async fn a_read_that_panics_returns_its_connection() {
    let Fixture { folder: _folder, store } = fixture().await;
    for _ in 0..10 {
        let panicked = store.read("panicking", |_| -> Result<(), QueryFault> { panic!("on purpose") }).await;
        assert!(matches!(panicked, Err(StoreError::Panicked { .. })), "{panicked:?}");
    }
    assert!(!has(&store, "any").await);
}
