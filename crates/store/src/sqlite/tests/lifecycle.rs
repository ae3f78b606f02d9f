//! Opening, closing, crashing.

use super::*;

#[tokio::test]
async fn acknowledged_changes_survive_a_drop_without_close() {
    let Fixture { folder, store } = fixture().await;
    let id = store.create_task(new_task(&["a", "b"])).await.expect("a task");
    store.finish_ops(vec![finished(op(id, 0), Some("a"), Code::Success)]).await.expect("applied");
    drop(store);

    let store = Store::open(&path(&folder)).await.expect("it opens again");
    let record = store.task(id).await.expect("no error").expect("the task");
    assert_eq!(record.counts, TaskCounts { total: 2, open: 1, succeeded: 1, failed: 0 });
}

/// A copy of the files is what kill -9 leaves.
#[tokio::test]
async fn acknowledged_changes_survive_a_crash() {
    let Fixture { folder, store } = fixture().await;
    let id = store.create_task(new_task(&["a"])).await.expect("a task");
    let elsewhere = tempfile::tempdir().expect("a temp folder");
    for name in ["store.db", "store.db-wal"] {
        std::fs::copy(folder.path().join(name), elsewhere.path().join(name)).expect("a copy");
    }

    let revived = Store::open(&path(&elsewhere)).await.expect("it opens");
    assert!(revived.task(id).await.expect("no error").is_some());
    drop(store);
}

#[tokio::test]
async fn a_second_server_is_refused_until_the_first_has_ended() {
    let Fixture { folder, store } = fixture().await;
    let refused = Store::open(&path(&folder)).await.expect_err("in use");
    assert!(matches!(refused, StoreError::InUse { .. }), "{refused:?}");
    let named = format!("the data folder {} is in use by another server", folder.path().display());
    assert_eq!(refused.to_string(), named);

    store.create_app(new_app("app"), None).await.expect("the first one still works");
    store.close().await.expect("closed");
    Store::open(&path(&folder)).await.expect("free again");
}

#[tokio::test]
async fn closing_empties_the_log_and_refuses_other_clones() {
    let Fixture { folder, store } = fixture().await;
    let clone = store.clone();
    let id = store.create_task(new_task(&["a"])).await.expect("a task");
    store.close().await.expect("closed");

    assert!(matches!(clone.create_task(new_task(&["a"])).await, Err(StoreError::Closed)));
    assert!(matches!(clone.task(id).await, Err(StoreError::Closed)));
    clone.close().await.expect("closing twice is fine");
    let log = std::fs::metadata(folder.path().join("store.db-wal")).expect("it is kept");
    assert_eq!(log.len(), 0);
}

#[tokio::test]
async fn jobs_before_the_close_are_carried_out() {
    let Fixture { folder, store } = fixture().await;
    let clone = store.clone();
    let (created, closed) = tokio::join!(biased; clone.create_task(new_task(&["a"])), store.close());
    closed.expect("closed");
    let id = created.expect("it was taken");
    let store = Store::open(&path(&folder)).await.expect("it opens again");
    assert!(store.task(id).await.expect("no error").is_some());
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let Fixture { folder, store } = fixture().await;
    store.close().await.expect("closed");
    let file = Connection::open(path(&folder)).expect("a database");
    file.pragma_update(None, "user_version", 99).expect("written");
    drop(file);

    let refused = Store::open(&path(&folder)).await.expect_err("newer");
    assert!(matches!(refused, StoreError::Newer { found: 99, .. }), "{refused:?}");
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let Fixture { folder, store } = fixture().await;
    store.create_app(new_app("app"), None).await.expect("an app");
    for entry in std::fs::read_dir(folder.path()).expect("a folder") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
}

/// SQLite ignores a pragma that it does not accept.
#[tokio::test]
async fn the_pragmas_hold() {
    let Fixture { folder: _folder, store } = fixture().await;
    let look = |db: &Connection| -> Result<(String, i64, i64), QueryFault> {
        Ok((
            db.pragma_query_value(None, "journal_mode", |row| row.get(0))?,
            db.pragma_query_value(None, "synchronous", |row| row.get(0))?,
            db.pragma_query_value(None, "foreign_keys", |row| row.get(0))?,
        ))
    };
    assert_eq!(store.write("looking", look).await.expect("no error"), ("wal".to_owned(), 2, 1));
    let refused = store.read("writing", |db| Ok(db.execute("DELETE FROM boots", [])?)).await;
    assert!(matches!(refused, Err(StoreError::Database { .. })), "{refused:?}");
}

/// A store of the first version.
#[tokio::test]
async fn a_store_of_the_first_schema_is_upgraded() {
    let folder = tempfile::tempdir().expect("a temp folder");
    let old = Connection::open(path(&folder)).expect("a database");
    old.execute_batch(include_str!("../migrations/0001_init.sql")).expect("the first schema");
    old.execute("INSERT INTO apps VALUES ('old', ?1, 0, 1, NULL)", [SECRET]).expect("an app");
    old.pragma_update(None, "user_version", 1).expect("written");
    drop(old);

    let store = Store::open(&path(&folder)).await.expect("it is upgraded");
    assert!(store.app("old").await.expect("no error").is_some());
    store.create_user("ann", 1, NewAudit::default()).await.expect("what is new works");
}

/// Boot numbers order the points of the boot-time clock across boots.
#[tokio::test]
async fn boots_have_numbers_in_their_order() {
    let Fixture { folder, store } = fixture().await;
    let enter = async |store: &Store, id: Option<&str>| {
        store.enter_boot(id.map(str::to_owned)).await.expect("recorded").0
    };
    assert_eq!((enter(&store, Some("a")).await, enter(&store, Some("a")).await), (1, 1));
    drop(store);
    let store = Store::open(&path(&folder)).await.expect("it opens again");
    assert_eq!(enter(&store, Some("a")).await, 1, "the same boot");
    assert_eq!(enter(&store, Some("b")).await, 2);
    assert_eq!(enter(&store, Some("a")).await, 3, "another boot came in between");
    assert_eq!(
        (enter(&store, None).await, enter(&store, None).await),
        (4, 5),
        "an unknown boot counts as new"
    );
}

/// `/readyz` asks this until the server has ended.
#[tokio::test]
async fn a_store_in_which_a_read_has_met_damage_refuses_changes() {
    use std::os::unix::fs::FileExt;
    let Fixture { folder, store } = fixture().await;
    store.close().await.expect("closed");
    let file = Connection::open(path(&folder)).expect("a database");
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'business_sets'";
    let root: u32 = file.query_row(sql, [], |row| row.get(0)).expect("a table");
    let size: u32 = file.pragma_query_value(None, "page_size", |row| row.get(0)).expect("a number");
    drop(file);
    let store = Store::open(&path(&folder)).await.expect("it is sound");
    assert_eq!(store.refuses_changes().await, None);
    let file = std::fs::OpenOptions::new().write(true).open(path(&folder)).expect("our own file");
    file.write_all_at(&[0xa5; 512], u64::from(root - 1) * u64::from(size)).expect("our own file");
    let met = store.business_sets().await;
    assert!(met.is_err(), "{met:?}");
    let reason = store.refuses_changes().await;
    assert_eq!(reason.as_deref(), Some("it is damaged, and the server ends"));
    let refused = store.create_user("ann", 1, NewAudit::default()).await;
    assert!(refused.is_err(), "{refused:?}");
    assert!(matches!(store.failed().await, StoreError::Damaged { .. }));
}

/// The check of each second finds it, before a query reads the log.
#[tokio::test]
async fn a_store_whose_log_was_cut_refuses_changes_and_reads_nothing_from_it() {
    let Fixture { folder, store } = fixture().await;
    store.create_user("ann", 1, NewAudit::default()).await.expect("a user");
    assert_eq!(store.refuses_changes().await, None);
    let log = procfleet_sqlite::beside(&path(&folder), "-wal");
    std::fs::OpenOptions::new().write(true).truncate(true).open(log).expect("our own file");
    let refused = store.create_user("bob", 1, NewAudit::default()).await;
    assert!(refused.is_err(), "{refused:?}");
    let failed = store.failed().await;
    assert!(matches!(failed, StoreError::Damaged { .. }) && failed.needs_operator(), "{failed:?}");
}

#[tokio::test]
async fn a_short_read_is_damage() {
    let Fixture { store, .. } = fixture().await;
    let short = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_SHORT_READ);
    let met = store
        .read::<(), _>("reading", move |_| {
            Err(QueryFault::Sql(rusqlite::Error::SqliteFailure(short, Some("disk I/O error".to_owned()))))
        })
        .await;
    assert!(met.is_err(), "{met:?}");
    assert!(matches!(store.failed().await, StoreError::Damaged { .. }));
}
