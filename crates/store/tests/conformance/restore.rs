//! A store that goes back in time assigns no number twice, and recognises cursors of the lost time.
//!
//! On SQLite, `procfleet store restore` sets a store back. On PostgreSQL, a copy of the database replaces it,
//! as a restored dump does.

use super::*;
use procfleet_testkit::PATIENCE;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// A loss that an SQLite store suffers before a backup replaces it.
type Loss = (&'static str, fn(&Path));

const LOSSES: [Loss; 5] = [
    ("the store is sound", |_| {}),
    ("the store is sound, and the file of its generation is lost", |store| remove(store, ".generation")),
    ("the store is no database any more", |store| {
        std::fs::write(store, vec![0xa5; 8192]).expect("our own file");
    }),
    ("the store is removed", |store| ["", "-wal", "-shm"].iter().for_each(|ending| remove(store, ending))),
    ("the store is no database any more, and its last server knew no file of generations", |store| {
        remove(store, ".generation");
        std::fs::write(store, "nothing").expect("our own file");
    }),
];

fn beside(store: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}{ending}", store.display()))
}

fn remove(store: &Path, ending: &str) {
    let _ = std::fs::remove_file(beside(store, ending));
}

/// The numbers of an event, a task and an audit record that are made now.
async fn use_numbers(store: &Store, round: u64) -> [(&'static str, u64); 3] {
    store.add_events(&agent("a"), vec![event(round, "exited")], 9).await.expect("stored");
    let task = store.create_task(new_task(&["a"])).await.expect("a task");
    store.create_user(&format!("ann{round}"), 1, NewAudit::default()).await.expect("a user");
    let audit = store.list_audit(1, AuditFilter::default()).await.expect("readable").records[0].id;
    [("event", newest_event(store).await), ("task", task.number), ("audit", audit)]
}

async fn newest_event(store: &Store) -> u64 {
    store.newest_event_number().await.expect("readable")
}

/// Saves a store that is closed, and sets it back to the saved one again and again.
async fn check(engine: TestEngine, what: &str, lose: fn(&Path)) {
    let Fixture { folder, mut store } = engine.with_agents(&["a"]).await;
    let mut used = BTreeSet::from(use_numbers(&store, 1).await);
    let mut cursors = vec![newest_event(&store).await];
    store.close().await.expect("closed");
    save(engine, &folder).await;
    store = engine.reopen(&folder).await.expect("it opens");
    for round in 2..=4 {
        for new in use_numbers(&store, round).await {
            assert!(used.insert(new), "{what}, round {round}: {new:?} again, of {used:?}");
        }
        cursors.push(newest_event(&store).await);
        store.close().await.expect("closed");
        if engine == TestEngine::Sqlite {
            lose(&path(&folder));
        }
        set_back(engine, &folder).await;
        store = engine.reopen(&folder).await.expect("it opens");
        assert!(store.was_restored().await.expect("readable"), "{what}");
    }
    use_numbers(&store, 5).await;
    for (index, cursor) in cursors.into_iter().enumerate() {
        let lost = store.event_lost_at(cursor).await.expect("readable");
        assert_eq!(lost.is_some(), index > 0, "{what}: a cursor at {cursor}");
    }
    let newest = newest_event(&store).await;
    assert_eq!(store.event_lost_at(newest).await.expect("readable"), None);
    assert!(newest < 1 << 53, "a JSON number");
}

async fn save(engine: TestEngine, folder: &TempDir) {
    match engine {
        TestEngine::Sqlite => {
            backup(&path(folder), &folder.path().join("backup.db")).expect("a backup");
        }
        TestEngine::Postgres => {
            let name = database(folder);
            run(vec![format!("CREATE DATABASE {name}_saved TEMPLATE {name}")]).await;
        }
    }
}

async fn set_back(engine: TestEngine, folder: &TempDir) {
    match engine {
        TestEngine::Sqlite => {
            restore(&path(folder), &folder.path().join("backup.db")).expect("restored");
        }
        TestEngine::Postgres => {
            let name = database(folder);
            let drop = format!("DROP DATABASE {name} WITH (FORCE)");
            run(vec![drop, format!("CREATE DATABASE {name} TEMPLATE {name}_saved")]).await;
        }
    }
}

fn database(folder: &TempDir) -> String {
    let url = std::fs::read_to_string(url_file(folder)).expect("the url");
    url.rsplit('/').next().expect("a name").to_owned()
}

/// Runs statements about databases. The connections of a store that was just closed may not have ended yet.
async fn run(statements: Vec<String>) {
    let work = move || {
        for sql in statements {
            procfleet_testkit::wait_until(PATIENCE, &sql, || {
                Cluster::shared().psql("postgres", &sql).is_ok()
            });
        }
    };
    tokio::task::spawn_blocking(work).await.expect("no panic");
}

on_each_engine!(a_store_that_is_restored_again_and_again_assigns_no_number_twice);
async fn a_store_that_is_restored_again_and_again_assigns_no_number_twice(engine: TestEngine) {
    match engine {
        TestEngine::Sqlite => {
            for (what, lose) in LOSSES {
                check(engine, what, lose).await;
            }
        }
        TestEngine::Postgres => check(engine, "the database is dropped", |_| {}).await,
    }
}

/// The stamp shows that the file was replaced, and the file of the generation how often.
#[tokio::test]
async fn a_backup_that_is_copied_into_place_again_and_again_assigns_no_number_twice() {
    let engine = TestEngine::Sqlite;
    let Fixture { folder, mut store } = engine.with_agents(&["a"]).await;
    save(engine, &folder).await;
    let (path, mut used) = (path(&folder), BTreeSet::new());
    for round in 1..=4 {
        for new in use_numbers(&store, round).await {
            assert!(used.insert(new), "round {round}: {new:?} again, of {used:?}");
        }
        store.close().await.expect("closed");
        ["-wal", "-shm"].iter().for_each(|ending| remove(&path, ending));
        std::fs::copy(folder.path().join("backup.db"), &path).expect("a copy");
        store = engine.reopen(&folder).await.expect("it opens");
    }
}

/// A failover that loses changes, as far as the servers see it: their connections end, and the database that
/// they reach next lacks what was stored last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_go_on_in_a_database_that_went_back_while_they_ran() {
    let engine = TestEngine::Postgres;
    let Fixture { folder, store } = engine.with_agents(&["a"]).await;
    let open = store.create_task(new_task(&["a"])).await.expect("a task");
    let kept = use_numbers(&store, 1).await;
    store.close().await.expect("closed");
    save(engine, &folder).await;
    let one = engine.reopen(&folder).await.expect("a server");
    let two = engine.reopen(&folder).await.expect("another server");
    let lost = [use_numbers(&one, 2).await, use_numbers(&two, 3).await].concat();
    let runs = [one.membership().run(), two.membership().run()];
    set_back(engine, &folder).await;

    let task = async |store: &Store| store.create_task(new_task(&["a"])).await.ok();
    let mut tasks = BTreeSet::new();
    for store in [&one, &two] {
        let accepted = async {
            loop {
                match task(store).await {
                    Some(task) => break task,
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let task = tokio::time::timeout(PATIENCE, accepted).await.expect("it goes on");
        tasks.insert(task.number);
        assert!(
            !runs.contains(&store.membership().run()),
            "a server of the lost time has a number of its own"
        );
        let all_is_lost = StoreLoss { times: 1, safe_until: BootTime(0) };
        assert_eq!(store.membership().view().borrow().loss, all_is_lost);
    }
    assert_ne!(one.membership().run(), two.membership().run());
    let numbers = [use_numbers(&one, 4).await, use_numbers(&two, 5).await].concat();
    for (what, number) in numbers {
        assert!(!lost.contains(&(what, number)), "{what} {number} again, of {lost:?}");
    }
    assert!(
        lost.iter().all(|(what, number)| *what != "task" || !tasks.contains(number)),
        "{tasks:?}, {lost:?}"
    );
    let of_event = |numbers: &[(&str, u64)]| numbers[0].1;
    for (cursor, expected) in
        [(of_event(&kept), false), (of_event(&lost), true), (of_event(&lost[3..]), true)]
    {
        let found = two.event_lost_at(cursor).await.expect("readable");
        assert_eq!(found.is_some(), expected, "a cursor at {cursor}");
    }
    // One server has begun the generation, and said so.
    let begun = AuditFilter { action: Some("store_restore".to_owned()), ..AuditFilter::default() };
    assert_eq!(one.list_audit(9, begun).await.expect("readable").records.len(), 1);
    let record = one.task(open).await.expect("readable").expect("it was stored before");
    assert_eq!(record.counts.open, 1, "an open op is not ended");
    // One of them decides about agents without a server.
    let sent = async |task: TaskId| {
        loop {
            for store in [&one, &two] {
                let ops = store.open_ops(OpScope::All).await.expect("readable");
                if let Some(row) = ops.into_iter().find(|row| row.op.task == task) {
                    return row.sent;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later");
    let created_at = i64::try_from(since_1970.as_millis()).expect("not so late") + 60_000;
    let later = NewTask { created_at, ..new_task(&["a"]) };
    let later = one.create_task(later).await.expect("a task");
    for (task, expected) in [(open, SentBefore::Maybe), (later, SentBefore::No)] {
        let sent = tokio::time::timeout(PATIENCE, sent(task)).await.expect("it is open");
        assert_eq!(sent, expected, "{task}: by a server of the lost time");
    }
}
