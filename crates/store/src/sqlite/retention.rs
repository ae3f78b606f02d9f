//! Deletes old rows in slices, so that other writes are not delayed.
//!
//! The row of a task and its keys are deleted in one transaction, and from then on the task is unknown. The
//! ops of a large task follow in later slices. `deleted_tasks` lists tasks whose ops remain, also across a
//! crash.

use super::{QueryFault, SqliteStore};
use crate::{Deleted, Slice, StoreError};
use rusqlite::{Connection, OptionalExtension, params};

impl SqliteStore {
    pub(crate) async fn delete_tasks(&self, before: i64, slice: Slice) -> Result<Deleted, StoreError> {
        self.write("deleting old tasks", move |db| {
            let room = u64::from(slice.ops);
            let mut ops = 0;
            while ops < room
                && let Some(task) = leftover(db)?
            {
                ops += delete_ops(db, task, room - ops)?;
                if !has_ops(db, task)? {
                    db.prepare_cached("DELETE FROM deleted_tasks WHERE number = ?")?.execute([task])?;
                }
            }
            let mut tasks = 0;
            for task in old_tasks(db, before, slice.tasks)? {
                if ops >= room {
                    break;
                }
                db.prepare_cached("DELETE FROM tasks WHERE number = ?")?.execute([task])?;
                tasks += 1;
                ops += delete_ops(db, task, room - ops)?;
                if has_ops(db, task)? {
                    db.prepare_cached("INSERT INTO deleted_tasks (number) VALUES (?)")?.execute([task])?;
                }
            }
            let more = leftover(db)?.is_some() || !old_tasks(db, before, 1)?.is_empty();
            Ok(Deleted { tasks, ops, more })
        })
        .await
    }

    pub(crate) async fn delete_events(&self, before: i64, most: u32) -> Result<u64, StoreError> {
        self.write("deleting old events", move |db| {
            let sql = "DELETE FROM events WHERE number IN \
                       (SELECT number FROM events WHERE received_at < ? ORDER BY received_at LIMIT ?)";
            Ok(count(db.prepare_cached(sql)?.execute(params![before, most])?))
        })
        .await
    }

    pub(crate) async fn delete_audit(&self, before: i64, most: u32) -> Result<u64, StoreError> {
        self.write("deleting old audit records", move |db| {
            let sql = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < ? ORDER BY at LIMIT ?)";
            Ok(count(db.prepare_cached(sql)?.execute(params![before, most])?))
        })
        .await
    }

    pub(crate) async fn delete_tokens(&self, before: i64, most: u32) -> Result<u64, StoreError> {
        self.write("deleting old join tokens", move |db| {
            let sql = "DELETE FROM tokens WHERE id IN (SELECT id FROM tokens WHERE expires_at < ? LIMIT ?)";
            Ok(count(db.prepare_cached(sql)?.execute(params![before, most])?))
        })
        .await
    }
}

/// A deleted task whose ops remain.
fn leftover(db: &Connection) -> Result<Option<i64>, QueryFault> {
    let mut statement = db.prepare_cached("SELECT number FROM deleted_tasks LIMIT 1")?;
    Ok(statement.query_row([], |row| row.get(0)).optional()?)
}

fn old_tasks(db: &Connection, before: i64, most: u32) -> Result<Vec<i64>, QueryFault> {
    let sql = "SELECT number FROM tasks INDEXED BY tasks_ended WHERE open = 0 AND created_at < ? \
               ORDER BY created_at LIMIT ?";
    let mut statement = db.prepare_cached(sql)?;
    let numbers = statement.query_map(params![before, most], |row| row.get(0))?;
    Ok(numbers.collect::<Result<_, _>>()?)
}

/// Deletes ops from the first index on, up to a limit. Late reports are deleted at once, because no query can
/// reach them.
fn delete_ops(db: &Connection, task: i64, most: u64) -> Result<u64, QueryFault> {
    db.prepare_cached("DELETE FROM late_reports WHERE task = ?")?.execute([task])?;
    let sql = "DELETE FROM ops WHERE task = ?1 AND idx < (SELECT min(idx) FROM ops WHERE task = ?1) + ?2";
    Ok(count(db.prepare_cached(sql)?.execute(params![task, super::columns::integer(most)])?))
}

fn has_ops(db: &Connection, task: i64) -> Result<bool, QueryFault> {
    Ok(db.prepare_cached("SELECT 1 FROM ops WHERE task = ? LIMIT 1")?.exists([task])?)
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}
