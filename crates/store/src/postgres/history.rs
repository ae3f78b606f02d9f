//! Notices a database that went back in time, or may have: it failed over, or was restored.
//!
//! ```text
//! new connection --> history: cluster, timeline, database --the known one--> used
//!                                                        \--another one----> refused, until a server has
//!                                                                            begun a generation
//! ```
//!
//! PostgreSQL begins a timeline with each promotion of a standby and each recovery to a point in time, and a
//! restored dump is another database. Changes that were committed before may be lost then, so numbers that
//! were assigned in the lost time would be assigned again. The first server that connects afterwards begins a
//! generation (see `generation`), with numbers that no lost store has assigned. Nothing else changes in the
//! store if no change was lost. Open ops are not ended: they have deadlines, and agents carry out an op once.
//! Each server that ran meanwhile finds out which of its changes may be lost (see `membership`).
//!
//! Not noticed: a disk that was set back to an earlier state under a stopped cluster. It has the same
//! history.

use super::fault::PgFault;
use crate::NewAudit;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Transaction};

/// Numbers of events and audit records go on at the milliseconds since 1970 times this. Fewer are assigned in
/// a millisecond, so the ranges of two generations are apart even if the second one does not know the first.
/// JSON readers with 53 bits for integers can read them until the year 2255.
const NUMBERS_PER_MS: i64 = 1_000;
/// If the database's clock was set back, numbers go on at the next multiple.
const GAP: i64 = 1_000_000_000;
/// A generation raises the task sequence by this, and by [`TASKS_PER_MS`] for each millisecond since midnight
/// (UTC). A task number contains its day, so only numbers of the same day could collide. The 38 bits of the
/// sequence last for more than a thousand generations.
const TASK_GAP: i64 = 30_000_000;
const TASKS_PER_MS: i64 = 2;
const DAY_MS: i64 = 86_400_000;

/// The history of the database as this server knows it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct DatabaseHistory(Arc<Mutex<Option<String>>>);

impl DatabaseHistory {
    /// For a new connection of the pool: whether its changes may be made.
    pub(super) async fn check(&self, client: &Client) -> Result<HistoryCheck, tokio_postgres::Error> {
        let Some(known) = self.known() else { return Ok(HistoryCheck::Known) };
        match read(client).await? == known {
            true => Ok(HistoryCheck::Known),
            false => Ok(HistoryCheck::Other),
        }
    }

    /// Compares the history of the database with the stored one, and begins a generation if they differ.
    pub(super) async fn record(&self, client: &mut Client) -> Result<RecordedHistory, PgFault> {
        let (current, known) = (read(client).await?, self.known());
        if known.as_ref() == Some(&current) {
            return Ok(RecordedHistory { history: current, check: HistoryCheck::Known });
        }
        let tx = client.transaction().await?;
        tx.batch_execute("SET LOCAL lock_timeout = '1s'").await?;
        let row = tx.query_one("SELECT history FROM database_history WHERE id = 1 FOR UPDATE", &[]).await?;
        let stored: Option<String> = row.try_get(0)?;
        let began = match &stored {
            Some(stored) if *stored != current => Some(begin(&tx, stored, &current).await?),
            Some(_) | None => None,
        };
        tx.execute("UPDATE database_history SET history = $1 WHERE id = 1", &[&current]).await?;
        tx.commit().await.map_err(PgFault::commit)?;
        if let Some(events_from) = began {
            tracing::warn!(
                events_from,
                "the database failed over or was restored: changes may be lost. New events, tasks and audit records get numbers \
                 of a new range, and cursors of lost events are refused; see docs/operator/postgres.md"
            );
        }
        let check = match known {
            Some(_) => HistoryCheck::Other,
            // The server has just started.
            None => HistoryCheck::Known,
        };
        Ok(RecordedHistory { history: current, check })
    }

    /// From now on the pool uses connections with this history. Called when the loss is published, so that no
    /// unit from before the loss gets such a connection.
    pub(super) fn adopt(&self, history: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(history);
    }

    fn known(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryCheck {
    Known,
    /// Not what the server knew. The beats record it with their next connection.
    Other,
}

/// A history that the database has stored.
pub(super) struct RecordedHistory {
    pub(super) history: String,
    /// Whether this server knew it before.
    pub(super) check: HistoryCheck,
}

/// Cluster, timeline and database. Any role may ask for them; a service that is only compatible with
/// PostgreSQL may refuse.
async fn read(client: &Client) -> Result<String, tokio_postgres::Error> {
    const DATABASE: &str = "(SELECT oid::text FROM pg_database WHERE datname = current_database())";
    let cluster = "(SELECT system_identifier::text FROM pg_control_system())";
    let timeline = "left(pg_walfile_name(pg_current_wal_lsn()), 8)";
    let all = format!("SELECT {cluster} || ' ' || {timeline} || ' ' || {DATABASE}");
    let row = match client.query_one(&all, &[]).await {
        Err(error) if is_not_offered(&error) => client.query_one(&format!("SELECT {DATABASE}"), &[]).await?,
        row => row?,
    };
    row.try_get(0)
}

fn is_not_offered(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [&SqlState::INSUFFICIENT_PRIVILEGE, &SqlState::UNDEFINED_FUNCTION, &SqlState::FEATURE_NOT_SUPPORTED]
            .contains(&code)
    })
}

/// Returns the number after which events go on.
async fn begin(tx: &Transaction<'_>, stored: &str, current: &str) -> Result<i64, PgFault> {
    let sql = "SELECT last, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, shift_ms, \
               (SELECT coalesce(max(created_at), 0) FROM tasks WHERE is_open) \
               FROM event_counter, store_clock WHERE event_counter.id = 1 FOR UPDATE OF event_counter";
    let row = tx.query_one(sql, &[]).await?;
    let (last, now, shift): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    // Not before the newest open task, even if the clock of the new primary is behind: ops of tasks that
    // were created up to `began_at` count as possibly sent.
    let began_at = (now + shift).max(row.try_get(3)?);
    let from = ((last / GAP + 1) * GAP).max(now * NUMBERS_PER_MS);
    tx.execute("UPDATE event_counter SET last = $1 WHERE id = 1", &[&from]).await?;
    let sql = "INSERT INTO generations (events_before, events_from, began_at) VALUES ($1, $2, $3)";
    tx.execute(sql, &[&last, &from, &began_at]).await?;
    let detail = format!(
        "the database failed over or was restored (cluster, timeline, database: {stored}, now {current}); \
         events after {last} may be lost, and go on after {from}"
    );
    let NewAudit { at, app, action, detail, .. } =
        NewAudit::of_server(now + shift, "store_restore", String::new(), detail);
    let sql = "INSERT INTO audit (at, app, username, origin, action, subject, code, detail) \
               VALUES ($1, $2, '', '', $3, '', 0, $4)";
    tx.execute(sql, &[&at, &app, &action, &detail]).await?;
    // Last, because a rollback does not undo `setval`: a failed attempt skips numbers.
    let tasks = TASK_GAP + now % DAY_MS * TASKS_PER_MS;
    tx.execute("SELECT setval('task_sequence', nextval('task_sequence') + $1)", &[&tasks]).await?;
    // A server that entered in the lost time may still use its server id and boot number, so new ones begin
    // above them: at the milliseconds since 1970, because no server starts within a millisecond.
    for (table, column, above) in [
        ("audit", "id", now * NUMBERS_PER_MS),
        ("servers", "id", now),
        ("boots", "number", now),
        ("webhooks", "id", now),
    ] {
        let sql = "SELECT setval(sequence, greatest(nextval(sequence), $3)) \
                   FROM (SELECT pg_get_serial_sequence($1, $2)::regclass AS sequence) AS named";
        tx.execute(sql, &[&table, &column, &above]).await?;
    }
    Ok(from)
}
