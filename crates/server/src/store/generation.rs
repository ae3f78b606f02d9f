//! What a restored backup changes.
//!
//! After a restore the numbers of events and tasks that were given out since the backup was made would be
//! given out again. A new generation begins at the next multiple of [`GAP`], so that no number means two
//! things, and so that a cursor of the lost time can be told from a good one.

use super::audit::insert_audit;
use super::columns::{integer, natural};
use super::{NewAudit, QueryFault, Store, StoreError};
use rusqlite::{Connection, OptionalExtension, params};

/// More than are given out between two backups. JOB's callers may keep a task's number in 32 bits, so it is
/// not larger.
const GAP: i64 = 1_000_000_000;
/// The tables whose numbers others know.
const NUMBERED: [&str; 3] = ["events", "tasks", "audit"];

/// Begins a generation in a store that was put here. In one transaction.
pub(super) fn begin(connection: &mut Connection) -> Result<(), QueryFault> {
    let db = connection.transaction()?;
    let last = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)";
    let events_before: i64 = db.query_row(last, [], |row| row.get(0))?;
    for table in NUMBERED {
        let sql = "INSERT INTO sqlite_sequence (name, seq) SELECT ?1, 0 \
                   WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ?1)";
        db.execute(sql, [table])?;
        db.execute(
            "UPDATE sqlite_sequence SET seq = (seq / ?2 + 1) * ?2 WHERE name = ?1",
            params![table, GAP],
        )?;
    }
    let sql = "INSERT INTO generations (events_before, events_from) VALUES (?1, (?1 / ?2 + 1) * ?2)";
    db.execute(sql, params![events_before, GAP])?;
    Ok(db.commit()?)
}

impl Store {
    /// Whether a backup was put here of which nothing has been said yet.
    pub async fn is_newly_restored(&self) -> Result<bool, StoreError> {
        self.read("reading the generations", |db| {
            Ok(db.prepare_cached("SELECT 1 FROM generations WHERE began_at IS NULL")?.exists([])?)
        })
        .await
    }

    /// All that follows from the restored backup was done.
    pub async fn generation_began(&self, at: i64, audit: NewAudit) -> Result<(), StoreError> {
        self.write("noting a new generation", move |db| {
            db.execute("UPDATE generations SET began_at = ? WHERE began_at IS NULL", [at])?;
            insert_audit(db, &audit)
        })
        .await
    }

    /// When the backup was restored with which this event was lost. `None`: the number is not one of a lost
    /// event.
    pub async fn event_lost_at(&self, number: u64) -> Result<Option<i64>, StoreError> {
        self.read("reading the generations", move |db| {
            let sql =
                "SELECT coalesce(began_at, 0) FROM generations WHERE events_before < ?1 AND ?1 < events_from";
            Ok(db.prepare_cached(sql)?.query_row([integer(number)], |row| row.get(0)).optional()?)
        })
        .await
    }

    /// The newest number that an event has had.
    pub async fn newest_event_number(&self) -> Result<u64, StoreError> {
        self.read("reading the newest event number", |db| {
            let sql = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)";
            Ok(natural(db.prepare_cached(sql)?.query_row([], |row| row.get(0))?))
        })
        .await
    }
}
