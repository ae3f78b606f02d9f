//! Idempotent submissions: the caller's key is stored in the commit that creates the task.
//!
//! There is one writer thread, so the second of two concurrent calls finds the key of the first. Task and key
//! are one commit, so a crash leaves both or neither.
//!
//! A request id names a chain of calls in which a process may be started, stopped and started again. An
//! equal request counts as a repeat only if no other operation on one of its processes was accepted in
//! between.

use super::columns::{from_json, integer, natural, text};
use super::tasks::{insert, requests_json};
use super::{QueryFault, SqliteStore};
use crate::types::StoredTarget;
use crate::{KeyKind, NewTask, StoreError, Submission, SubmissionKey, Submitted};
use procfleet_core::{OpKind, TaskId};
use rusqlite::{Connection, OptionalExtension, params};

impl SqliteStore {
    pub(crate) async fn submitted_before(
        &self,
        app: String,
        submission: Submission,
    ) -> Result<Option<Submitted>, StoreError> {
        self.read("looking up a key", move |db| repeated(db, &app, &submission)).await
    }

    pub(crate) async fn submit_task(
        &self,
        task: NewTask,
        submission: Submission,
    ) -> Result<Submitted, StoreError> {
        const DOING: &str = "creating a task under a key";
        let requests = requests_json(&task).map_err(|fault| fault.during(DOING))?;
        self.write(DOING, move |db| {
            if let Some(earlier) = repeated(db, &task.app, &submission)? {
                return Ok(earlier);
            }
            let id = insert(db, &task, &requests)?;
            remember(db, &task, &submission, id)?;
            Ok(Submitted::New(id))
        })
        .await
    }
}

fn repeated(db: &Connection, app: &str, submission: &Submission) -> Result<Option<Submitted>, QueryFault> {
    match earlier(db, app, submission)? {
        Some(Submitted::Before(first))
            if submission.key.kind == KeyKind::RequestId && is_overtaken(db, first)? =>
        {
            Ok(None)
        }
        earlier => Ok(earlier),
    }
}

fn earlier(db: &Connection, app: &str, submission: &Submission) -> Result<Option<Submitted>, QueryFault> {
    let Submission { key: SubmissionKey { kind, text }, request_hash, since } = submission;
    // Within one boot the age is measured by the boot-time clock, which cannot be set. An idempotency key has
    // at most one row. A request id may have many, so the query includes the hash.
    let sql = match kind {
        KeyKind::Idempotency => {
            "SELECT number, stamp, request_hash = ?4 FROM submissions JOIN tasks ON number = task \
             WHERE submissions.app = ?1 AND kind = ?2 AND key = ?3 \
             AND iif(boot = ?6, boot_ms >= ?7, submissions.created_at >= ?5)"
        }
        KeyKind::RequestId => {
            "SELECT number, stamp, TRUE FROM submissions JOIN tasks ON number = task \
             WHERE submissions.app = ?1 AND kind = ?2 AND key = ?3 AND request_hash = ?4 \
             AND iif(boot = ?6, boot_ms >= ?7, submissions.created_at >= ?5)"
        }
    };
    let (boot, moment) = (since.mark.map(|mark| mark.boot.0), since.mark.map(|mark| integer(mark.moment.0)));
    let values = params![app, column(*kind), text, request_hash, since.wall, boot, moment];
    let found: Option<(i64, i64, bool)> = db
        .prepare_cached(sql)?
        .query_row(values, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    Ok(found.map(|(number, stamp, same)| {
        let task = TaskId { stamp: natural(stamp), number: natural(number) };
        if same { Submitted::Before(task) } else { Submitted::OtherRequest(task) }
    }))
}

/// Whether a later task has an op, other than a query, on the same proc and agent as one of this task's ops.
fn is_overtaken(db: &Connection, first: TaskId) -> Result<bool, QueryFault> {
    let sql = "SELECT number, requests_json FROM tasks WHERE number >= ? ORDER BY number";
    let mut tasks = db.prepare_cached(sql)?;
    let sql = "SELECT 1 FROM ops WHERE task = ?1 AND request = ?2 AND agent IN \
               (SELECT agent FROM ops WHERE task = ?3 AND request = ?4 AND agent IS NOT NULL)";
    let mut same_host = db.prepare_cached(sql)?;
    let mut rows = tasks.query([integer(first.number)])?;
    let mut own: Vec<StoredTarget> = Vec::new();
    while let Some(row) = rows.next()? {
        let number: i64 = row.get(0)?;
        let requests: Vec<StoredTarget> = from_json("a task's requests", text(row, 1)?)?;
        if natural(number) == first.number {
            own = requests;
            continue;
        }
        for (index, other) in (0_u32..).zip(&requests).filter(|(_, other)| other.kind != OpKind::Query) {
            for (own_index, _) in (0_u32..).zip(&own).filter(|(_, own)| own.proc == other.proc) {
                if same_host.exists(params![number, index, integer(first.number), own_index])? {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// A request id that is used again after its time refers to the newer task from now on.
fn remember(db: &Connection, task: &NewTask, submission: &Submission, id: TaskId) -> Result<(), QueryFault> {
    let sql = "INSERT INTO submissions (app, kind, key, request_hash, task, created_at) VALUES (?, ?, ?, ?, ?, ?) \
               ON CONFLICT (app, kind, key, request_hash) DO UPDATE \
               SET task = excluded.task, created_at = excluded.created_at";
    let SubmissionKey { kind, text } = &submission.key;
    let values =
        params![task.app, column(*kind), text, submission.request_hash, integer(id.number), task.created_at];
    db.prepare_cached(sql)?.execute(values)?;
    Ok(())
}

fn column(kind: KeyKind) -> i64 {
    match kind {
        KeyKind::Idempotency => 0,
        KeyKind::RequestId => 1,
    }
}
