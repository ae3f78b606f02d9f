//! Generations: number ranges that a restored backup does not share with the lost store.
//!
//! After a restore, the numbers of events and tasks that were assigned since the backup would be assigned
//! again. A new generation begins at the next multiple of [`GAP`], so that numbers stay unique, and so that a
//! cursor of the lost time is recognised.

use super::audit::insert_audit;
use super::columns::{integer, natural};
use super::{QueryFault, SqliteStore};
use crate::{NewAudit, StoreError};
use rusqlite::{Connection, OptionalExtension, params};

/// More numbers than are assigned between two backups. Not larger, because JOB's callers may keep a task's
/// number in 32 bits.
const GAP: i64 = 1_000_000_000;
/// The tables whose numbers clients know.
const NUMBERED: [&str; 3] = ["events", "tasks", "audit"];

/// Begins a generation in a restored store, in one transaction.
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
