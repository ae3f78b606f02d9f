//! The partitions of ops, outcomes and late reports, one for each day of tasks.
//!
//! A task's number is `day * 2^38 + sequence`, so the bounds of each partition are known beforehand, and
//! `WHERE task = …` reads one partition. Partitions are created some days ahead, and when one is missing.
//! Tasks that were copied from an embedded store have small numbers, which are those of day 0.

use super::fault::PgFault;
use super::{Inner, schema, unless_given_up};
use deadpool_postgres::Transaction;
use std::collections::HashMap;

const TABLES: [&str; 3] = ["ops", "outcomes", "late_reports"];
/// Bits of a task number below its day.
pub(crate) const DAY_BITS: u32 = 38;
const DAYS_AHEAD: i64 = 8;
const DAY_MS: i64 = 86_400_000;
const PARTITION_LOCK: i32 = 2;

/// A number of a day beyond this would not fit.
const LAST_DAY: i64 = (1 << (62 - DAY_BITS)) - 1;

/// The first number of the day of this time.
pub(super) fn base(at: i64) -> i64 {
    (at / DAY_MS).clamp(0, LAST_DAY) << DAY_BITS
}

pub(super) fn day_of(number: i64) -> i64 {
    number >> DAY_BITS
}

/// For today and the next days, by the database's clock.
pub(super) async fn create_ahead(tx: &Transaction<'_>) -> Result<(), PgFault> {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) / 86400)::bigint";
    let today: i64 = tx.query_one(sql, &[]).await?.try_get(0)?;
    for day in today - 1..=today + DAYS_AHEAD {
        create(tx, day).await?;
    }
    Ok(())
}

/// In a transaction of its own, before the unit that needs it is repeated.
pub(super) async fn create_for(inner: &Inner, number: i64) -> Result<(), PgFault> {
    let outage = inner.outage();
    let mut connection = inner.pool.get().await?;
    let created = async {
        let transaction = connection.transaction().await?;
        create(&transaction, day_of(number)).await?;
        Ok(transaction.commit().await?)
    };
    unless_given_up(outage, created).await
}

/// How a partition belongs to its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartitionState {
    Absent,
    Attached,
    /// A DETACH CONCURRENTLY was broken off. New transactions do not see the partition any more.
    Detaching,
    /// A table of its own, which is to be dropped.
    Detached,
}

/// Attaches the missing partitions of a day. Does nothing for a day that has all of them.
pub(super) async fn create(tx: &Transaction<'_>, day: i64) -> Result<(), PgFault> {
    let is_attached = |(_, state): &(&str, PartitionState)| *state == PartitionState::Attached;
    if states(tx, day).await?.iter().all(is_attached) {
        return Ok(());
    }
    lock(tx).await?;
    let (from, to) = bounds(day);
    for (table, state) in states(tx, day).await? {
        let name = partition(table, day);
        let before = match state {
            PartitionState::Attached => continue,
            PartitionState::Absent => format!(
                "CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES);"
            ),
            PartitionState::Detaching => format!("ALTER TABLE {table} DETACH PARTITION {name} FINALIZE;"),
            PartitionState::Detached => String::new(),
        };
        // ATTACH takes a weaker lock than CREATE … PARTITION OF, which would wait for every reader.
        let sql = format!(
            "{before} ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to})"
        );
        tx.batch_execute(&sql).await?;
    }
    Ok(())
}

/// One transaction at a time creates, attaches or drops partitions.
async fn lock(tx: &Transaction<'_>) -> Result<(), PgFault> {
    tx.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&schema::LOCKS, &PARTITION_LOCK]).await?;
    Ok(())
}

/// The partitions of the day, in the order of [`TABLES`]. Reads the catalog's rows: `to_regclass` looks into
/// a cache of the backend, which learns too late what another transaction has created.
async fn states(tx: &Transaction<'_>, day: i64) -> Result<Vec<(&'static str, PartitionState)>, PgFault> {
    let sql = "SELECT relname::text, inhdetachpending FROM pg_class LEFT JOIN pg_inherits ON inhrelid = oid \
               WHERE relname = ANY($1::text[]) \
               AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'ops'::regclass)";
    let names: Vec<String> = TABLES.iter().map(|table| partition(table, day)).collect();
    let mut found = HashMap::new();
    for row in tx.query(sql, &[&names]).await? {
        let state = match row.try_get(1)? {
            None => PartitionState::Detached,
            Some(true) => PartitionState::Detaching,
            Some(false) => PartitionState::Attached,
        };
        found.insert(row.try_get::<_, String>(0)?, state);
    }
    let state = |table| found.get(&partition(table, day)).copied().unwrap_or(PartitionState::Absent);
    Ok(TABLES.into_iter().map(|table| (table, state(table))).collect())
}

/// The days that have partitions, also detached ones, in order.
pub(super) async fn days(tx: &Transaction<'_>) -> Result<Vec<i64>, PgFault> {
    let sql = "SELECT substr(relname, 6)::bigint FROM pg_class WHERE relname ~ '^ops_d[0-9]+$' AND relkind = 'r' \
               AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'ops'::regclass) ORDER BY 1";
    let rows = tx.query(sql, &[]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// The partitions of a day without tasks that are to be detached: `None` if the day has tasks.
pub(super) async fn unused(
    tx: &Transaction<'_>,
    day: i64,
) -> Result<Option<Vec<(&'static str, PartitionState)>>, PgFault> {
    match has_tasks(tx, day).await? {
        true => Ok(None),
        false => Ok(Some(states(tx, day).await?)),
    }
}

async fn has_tasks(tx: &Transaction<'_>, day: i64) -> Result<bool, PgFault> {
    let (from, to) = bounds(day);
    let sql = "SELECT EXISTS (SELECT 1 FROM tasks WHERE number >= $1 AND number < $2)";
    Ok(tx.query_one(sql, &[&from, &to]).await?.try_get(0)?)
}

/// Detaches a partition without a lock that readers or writers of the table would wait for: DROP of an
/// attached partition locks the whole table. Returns when every transaction that may use the partition has
/// ended. If one lasts for longer than `lock_timeout`, the partition stays [`PartitionState::Detaching`].
///
/// Not a unit: DETACH CONCURRENTLY consists of two transactions.
pub(super) async fn detach(
    inner: &Inner,
    table: &str,
    day: i64,
    state: PartitionState,
) -> Result<(), PgFault> {
    let how = match state {
        PartitionState::Attached => "CONCURRENTLY",
        PartitionState::Detaching => "FINALIZE",
        PartitionState::Absent | PartitionState::Detached => return Ok(()),
    };
    let name = partition(table, day);
    let sql = format!("ALTER TABLE {table} DETACH PARTITION {name} {how}");
    Ok(inner.pool.get().await?.batch_execute(&sql).await?)
}

/// Drops the detached partitions of a day. A task of that day that was stored before they were detached, or
/// that has attached them again, keeps them.
pub(super) async fn drop_detached(tx: &Transaction<'_>, day: i64) -> Result<(), PgFault> {
    lock(tx).await?;
    if has_tasks(tx, day).await? {
        return create(tx, day).await;
    }
    let found = states(tx, day).await?;
    let is_gone = |state| matches!(state, PartitionState::Absent | PartitionState::Detached);
    if found.iter().any(|(_, state)| !is_gone(*state)) {
        return Ok(());
    }
    for (table, _) in found {
        tx.batch_execute(&format!("DROP TABLE IF EXISTS {}", partition(table, day))).await?;
    }
    Ok(())
}

/// The first number of a day and that of the next one.
fn bounds(day: i64) -> (i64, i64) {
    (day << DAY_BITS, (day + 1) << DAY_BITS)
}

fn partition(table: &str, day: i64) -> String {
    format!("{table}_d{day}")
}
