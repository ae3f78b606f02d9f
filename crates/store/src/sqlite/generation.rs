//! Generations: number ranges that a restored backup does not share with the lost store.
//!
//! After a restore, the numbers of events and tasks that were assigned since the backup would be assigned
//! again. A new generation begins at the next multiple of [`GAP`], so that numbers stay unique, and so that a
//! cursor of the lost time is recognised.
//!
//! The backup does not know the generations that began after it. So `server.db.generation` beside the store
//! names the newest generation of the data folder, and outlives every store that is put there. A restore
//! also asks the store that it replaces, if that store is readable.

use super::audit::insert_audit;
use super::columns::{integer, natural};
use super::{QueryFault, SqliteStore, connection};
use crate::{NewAudit, StoreError};
use procfleet_sqlite::{beside, replace_file};
use rusqlite::{Connection, OptionalExtension, params};
use std::io;
use std::path::Path;

/// More numbers than are assigned between two backups. Not larger, because JOB's callers may keep a task's
/// number in 32 bits.
const GAP: i64 = 1_000_000_000;
/// The tables whose numbers clients know.
const NUMBERED: [&str; 3] = ["events", "tasks", "audit"];

/// Task numbers stay below 2^38 (see `copied_tables`). A higher generation can only be read from a damaged
/// store.
const HIGHEST: i64 = (1 << 38) / GAP;
/// Ending of the file that names the newest generation of a data folder.
const FILE: &str = ".generation";

/// Begins a generation in a restored store, in one transaction. `known` is the newest generation of the data
/// folder.
pub(super) fn begin(connection: &mut Connection, known: i64) -> Result<(), QueryFault> {
    let db = connection.transaction()?;
    let last = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)";
    let events_before: i64 = db.query_row(last, [], |row| row.get(0))?;
    let from = (newest(&db)?.max(known) + 1) * GAP;
    for table in NUMBERED {
        let sql = "INSERT INTO sqlite_sequence (name, seq) SELECT ?1, 0 \
                   WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ?1)";
        db.execute(sql, [table])?;
        db.execute("UPDATE sqlite_sequence SET seq = ?2 WHERE name = ?1", params![table, from])?;
    }
    let sql = "INSERT INTO generations (events_before, events_from) VALUES (?1, ?2)";
    db.execute(sql, params![events_before, from])?;
    Ok(db.commit()?)
}

/// The newest generation of the data folder. 0 if no file names one.
pub(super) fn known(store: &Path) -> Result<i64, StoreError> {
    saved(store).map(Option::unwrap_or_default)
}

/// Saves the generation of an open store as one of the data folder. On a full disk the file stays as it is;
/// the next opening tries again.
pub(super) fn keep(connection: &Connection, store: &Path) -> Result<(), StoreError> {
    let newest = newest(connection).map_err(|source| super::failed("reading the generation", source))?;
    match save(store, newest) {
        Err(StoreError::File { source, .. }) if source.kind() == io::ErrorKind::StorageFull => Ok(()),
        done => done,
    }
}

/// Saves the generation of a store that a backup will replace, before it is moved away. `restores` is how
/// often a backup was restored in the data folder.
pub(super) fn keep_replaced(store: &Path, restores: i64) -> Result<(), StoreError> {
    // A damaged store may still have its numbers. They are asked for without a check of the other pages.
    let read = connection::open_reader(store)
        .and_then(|db| newest(&db).map_err(|source| super::failed("reading the generation", source)));
    let found = match read {
        Ok(found) if (0..=HIGHEST).contains(&found) => found,
        // A server of this version has saved the generation when it opened the store. If there was none, each
        // restore has begun one generation at most.
        Ok(_) | Err(_) => saved(store)?.unwrap_or(restores),
    };
    save(store, found)
}

/// The newest generation in which the store has assigned a number.
fn newest(connection: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT coalesce(max(seq), 0) / ?1 FROM sqlite_sequence WHERE name IN (?2, ?3, ?4)";
    let [first, second, third] = NUMBERED;
    connection.query_row(sql, params![GAP, first, second, third], |row| row.get(0))
}

/// `None`: there is no file. A file without a number is refused, because 0 in its place would let a restored
/// store assign numbers again.
fn saved(store: &Path) -> Result<Option<i64>, StoreError> {
    let path = beside(store, FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StoreError::File { doing: "reading", path, source }),
    };
    let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
    match number.filter(|number| (0..=HIGHEST).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => Err(StoreError::BadGeneration { path }),
    }
}

/// The saved generation only grows.
fn save(store: &Path, generation: i64) -> Result<(), StoreError> {
    if saved(store)?.is_some_and(|saved| saved >= generation) {
        return Ok(());
    }
    replace_file(&beside(store, FILE), format!("{generation}\n")).map_err(|source| unsaved(store, source))
}

fn unsaved(store: &Path, source: io::Error) -> StoreError {
    StoreError::File { doing: "saving the generation of", path: store.to_owned(), source }
}

impl SqliteStore {
    pub(crate) async fn is_newly_restored(&self) -> Result<bool, StoreError> {
        self.read("reading the generations", |db| {
            Ok(db.prepare_cached("SELECT 1 FROM generations WHERE began_at IS NULL")?.exists([])?)
        })
        .await
    }

    pub(crate) async fn generation_began(&self, at: i64, audit: NewAudit) -> Result<(), StoreError> {
        self.write("recording a new generation", move |db| {
            db.execute("UPDATE generations SET began_at = ? WHERE began_at IS NULL", [at])?;
            insert_audit(db, &audit)
        })
        .await
    }

    pub(crate) async fn event_lost_at(&self, number: u64) -> Result<Option<i64>, StoreError> {
        self.read("reading the generations", move |db| {
            let sql =
                "SELECT coalesce(began_at, 0) FROM generations WHERE events_before < ?1 AND ?1 < events_from";
            Ok(db.prepare_cached(sql)?.query_row([integer(number)], |row| row.get(0)).optional()?)
        })
        .await
    }

    pub(crate) async fn newest_event_number(&self) -> Result<u64, StoreError> {
        self.read("reading the newest event number", |db| {
            let sql = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)";
            Ok(natural(db.prepare_cached(sql)?.query_row([], |row| row.get(0))?))
        })
        .await
    }
}
