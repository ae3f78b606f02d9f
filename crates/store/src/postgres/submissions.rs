//! Idempotent submissions: the caller's key is stored in the transaction that creates the task.
//!
//! The key is inserted first. Of two servers that insert the same key at once, the second waits for the
//! first's commit and then finds its row, before any op was inserted for nothing.

use super::PgStore;
use super::columns::{from_json, integer, natural, plain};
use super::fault::PgFault;
use super::tasks::{insert, requests_json};
use crate::clock::ClockMark;
use crate::types::StoredTarget;
use crate::{KeyKind, NewTask, StoreError, Submission, Submitted};
use deadpool_postgres::Transaction;
use procfleet_core::{OpKind, TaskId};
use tokio_postgres::Row;

impl PgStore {
    pub(crate) async fn submitted_before(
        &self,
        app: String,
        submission: Submission,
    ) -> Result<Option<Submitted>, StoreError> {
        self.read("looking up a key", (app, submission), |tx, (app, submission)| {
            Box::pin(async move {
                let earlier = earlier(tx, app, submission).await?;
                not_overtaken(tx, submission, earlier).await
            })
        })
        .await
    }

    pub(crate) async fn submit_task(
        &self,
        task: NewTask,
        submission: Submission,
    ) -> Result<Submitted, StoreError> {
        const DOING: &str = "creating a task under a key";
        let requests = requests_json(&task).map_err(|fault| fault.during(DOING))?;
        let id = self.next_id(DOING, &task).await?;
        self.write_task(
            DOING,
            id,
            (id, task, requests, submission),
            |tx, (id, task, requests, submission)| {
                Box::pin(async move {
                    if !take_key(tx, *id, task, submission).await? {
                        // The row is locked now, and a new statement sees it.
                        let earlier = earlier(tx, &task.app, submission).await?;
                        if let Some(earlier) = not_overtaken(tx, submission, earlier).await? {
                            return Ok(earlier);
                        }
                        replace_key(tx, *id, task, submission).await?;
                    }
                    insert(tx, *id, task, requests).await?;
                    Ok(Submitted::New(*id))
                })
            },
        )
        .await
    }
}

/// Inserts the key, or takes over one that is older than the window. False: the key is in use.
async fn take_key(
    tx: &Transaction<'_>,
    id: TaskId,
    task: &NewTask,
    submission: &Submission,
) -> Result<bool, PgFault> {
    let sql = match submission.key.kind {
        KeyKind::Idempotency => {
            "INSERT INTO idempotency_keys AS k (app, key, request_hash, task, stamp, created_at, boot, boot_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (app, key) DO UPDATE \
             SET request_hash = excluded.request_hash, task = excluded.task, stamp = excluded.stamp, \
             created_at = excluded.created_at, boot = excluded.boot, boot_ms = excluded.boot_ms \
             WHERE CASE WHEN k.boot = $9 THEN k.boot_ms < $10 ELSE k.created_at < $11 END"
        }
        KeyKind::RequestId => {
            "INSERT INTO request_ids AS k (app, key, request_hash, task, stamp, created_at, boot, boot_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (app, key, request_hash) DO UPDATE \
             SET task = excluded.task, stamp = excluded.stamp, created_at = excluded.created_at, \
             boot = excluded.boot, boot_ms = excluded.boot_ms \
             WHERE CASE WHEN k.boot = $9 THEN k.boot_ms < $10 ELSE k.created_at < $11 END"
        }
    };
    let statement = tx.prepare_cached(sql).await?;
    let (app, key) = (plain(&task.app), plain(&submission.key.text));
    let hash = submission.request_hash.as_slice();
    let (number, stamp) = (integer(id.number), integer(id.stamp));
    let (boot, boot_ms) = columns_of(task.mark);
    let (since_boot, since_ms) = columns_of(submission.since.mark);
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 11] = [
        &app,
        &key,
        &hash,
        &number,
        &stamp,
        &task.created_at,
        &boot,
        &boot_ms,
        &since_boot,
        &since_ms,
        &submission.since.wall,
    ];
    Ok(tx.execute(&statement, &values).await? > 0)
}

/// A request id whose task was overtaken refers to the newer task from now on.
async fn replace_key(
    tx: &Transaction<'_>,
    id: TaskId,
    task: &NewTask,
    submission: &Submission,
) -> Result<(), PgFault> {
    let sql = "UPDATE request_ids SET task = $4, stamp = $5, created_at = $6, boot = $7, boot_ms = $8 \
               WHERE app = $1 AND key = $2 AND request_hash = $3";
    let statement = tx.prepare_cached(sql).await?;
    let (app, key) = (plain(&task.app), plain(&submission.key.text));
    let hash = submission.request_hash.as_slice();
    let (number, stamp) = (integer(id.number), integer(id.stamp));
    let (boot, boot_ms) = columns_of(task.mark);
    tx.execute(&statement, &[&app, &key, &hash, &number, &stamp, &task.created_at, &boot, &boot_ms]).await?;
    Ok(())
}

async fn earlier(
    tx: &Transaction<'_>,
    app: &str,
    submission: &Submission,
) -> Result<Option<Submitted>, PgFault> {
    // An idempotency key has at most one row. A request id may have many, so the query includes the hash.
    let sql = match submission.key.kind {
        KeyKind::Idempotency => {
            "SELECT task, stamp, request_hash = $3 FROM idempotency_keys \
             WHERE app = $1 AND key = $2 AND CASE WHEN boot = $4 THEN boot_ms >= $5 ELSE created_at >= $6 END"
        }
        KeyKind::RequestId => {
            "SELECT task, stamp, true FROM request_ids \
             WHERE app = $1 AND key = $2 AND request_hash = $3 \
             AND CASE WHEN boot = $4 THEN boot_ms >= $5 ELSE created_at >= $6 END"
        }
    };
    let statement = tx.prepare_cached(sql).await?;
    let (app, key) = (plain(app), plain(&submission.key.text));
    let hash = submission.request_hash.as_slice();
    let (boot, boot_ms) = columns_of(submission.since.mark);
    let found =
        tx.query_opt(&statement, &[&app, &key, &hash, &boot, &boot_ms, &submission.since.wall]).await?;
    found.as_ref().map(submitted).transpose()
}

/// Within one boot the age is measured by the boot-time clock, which cannot be set.
fn columns_of(mark: Option<ClockMark>) -> (Option<i64>, Option<i64>) {
    (mark.map(|mark| mark.boot.0), mark.map(|mark| integer(mark.moment.0)))
}

fn submitted(row: &Row) -> Result<Submitted, PgFault> {
    let task = TaskId { number: natural(row.try_get(0)?), stamp: natural(row.try_get(1)?) };
    Ok(match row.try_get(2)? {
        true => Submitted::Before(task),
        false => Submitted::OtherRequest(task),
    })
}

async fn not_overtaken(
    tx: &Transaction<'_>,
    submission: &Submission,
    earlier: Option<Submitted>,
) -> Result<Option<Submitted>, PgFault> {
    match earlier {
        Some(Submitted::Before(first))
            if submission.key.kind == KeyKind::RequestId && is_overtaken(tx, first).await? =>
        {
            Ok(None)
        }
        earlier => Ok(earlier),
    }
}

/// Whether a later task has an op, other than a query, on the same proc and agent as one of this task's ops.
async fn is_overtaken(tx: &Transaction<'_>, first: TaskId) -> Result<bool, PgFault> {
    let sql = "SELECT number, requests_json FROM tasks WHERE number >= $1 ORDER BY number";
    let tasks = tx.prepare_cached(sql).await?;
    let sql = "SELECT EXISTS (SELECT 1 FROM ops WHERE task = $1 AND request = $2 AND agent IN \
               (SELECT agent FROM ops WHERE task = $3 AND request = $4 AND agent IS NOT NULL))";
    let same_host = tx.prepare_cached(sql).await?;
    let number = integer(first.number);
    let mut own: Vec<StoredTarget> = Vec::new();
    for row in tx.query(&tasks, &[&number]).await? {
        let other: i64 = row.try_get(0)?;
        let requests: Vec<StoredTarget> = from_json("a task's requests", row.try_get(1)?)?;
        if other == number {
            own = requests;
            continue;
        }
        for (index, request) in (0_i64..).zip(&requests).filter(|(_, other)| other.kind != OpKind::Query) {
            for (own_index, _) in (0_i64..).zip(&own).filter(|(_, own)| own.proc == request.proc) {
                let row = tx.query_one(&same_host, &[&other, &index, &number, &own_index]).await?;
                if row.try_get(0)? {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}
