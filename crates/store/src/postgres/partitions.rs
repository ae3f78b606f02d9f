//! The partitions of ops, outcomes and late reports, one for each day of tasks.
//!
//! A task's number is `day * 2^38 + sequence`, so the bounds of each partition are known beforehand, and
//! `WHERE task = …` reads one partition. Partitions are created some days ahead, and when one is missing.
//! Tasks that were copied from an embedded store have small numbers, which are those of day 0.

use super::fault::PgFault;
use super::{Inner, schema};
use deadpool_postgres::Transaction;

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
    let mut connection = inner.connection().await?;
    let transaction = connection.transaction().await?;
    create(&transaction, day_of(number)).await?;
    Ok(transaction.commit().await?)
}

/// Does nothing for a day that has its partitions.
pub(super) async fn create(tx: &Transaction<'_>, day: i64) -> Result<(), PgFault> {
    if missing(tx, day).await?.is_empty() {
        return Ok(());
    }
    tx.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&schema::LOCKS, &PARTITION_LOCK]).await?;
    let (from, to) = (day << DAY_BITS, (day + 1) << DAY_BITS);
    for table in missing(tx, day).await? {
        let name = partition(table, day);
        // ATTACH takes a weaker lock than CREATE … PARTITION OF, which would wait for every reader.
        let sql = format!(
            "CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES); \
             ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({from}) TO ({to})"
        );
        tx.batch_execute(&sql).await?;
    }
    Ok(())
}

/// The tables without a partition for the day. Reads the catalog's rows: `to_regclass` looks into a cache of
/// the backend, which learns too late what another transaction has created.
async fn missing(tx: &Transaction<'_>, day: i64) -> Result<Vec<&'static str>, PgFault> {
    let sql = "SELECT relname::text FROM pg_class WHERE relname = ANY($1::text[]) \
               AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'ops'::regclass)";
    let names: Vec<String> = TABLES.iter().map(|table| partition(table, day)).collect();
    let mut found = Vec::new();
    for row in tx.query(sql, &[&names]).await? {
        found.push(row.try_get::<_, String>(0)?);
    }
    Ok(TABLES.into_iter().filter(|table| !found.contains(&partition(table, day))).collect())
}

/// The days that have partitions, in order.
pub(super) async fn days(tx: &Transaction<'_>) -> Result<Vec<i64>, PgFault> {
    let sql = "SELECT substr(relname, 6)::bigint FROM pg_inherits JOIN pg_class ON oid = inhrelid \
               WHERE inhparent = 'ops'::regclass AND relname ~ '^ops_d[0-9]+$' ORDER BY 1";
    let rows = tx.query(sql, &[]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Drops the partitions of a day, unless it has tasks. The partitions are locked first: a task whose insert
/// was under way is seen by the look that follows.
pub(super) async fn drop_day(tx: &Transaction<'_>, day: i64) -> Result<(), PgFault> {
    for table in TABLES {
        let name = partition(table, day);
        tx.batch_execute(&format!("LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")).await?;
    }
    let (from, to) = (day << DAY_BITS, (day + 1) << DAY_BITS);
    let sql = "SELECT EXISTS (SELECT 1 FROM tasks WHERE number >= $1 AND number < $2)";
    let in_use: bool = tx.query_one(sql, &[&from, &to]).await?.try_get(0)?;
    if in_use {
        return Ok(());
    }
    for table in TABLES {
        tx.batch_execute(&format!("DROP TABLE {}", partition(table, day))).await?;
    }
    Ok(())
}

fn partition(table: &str, day: i64) -> String {
    format!("{table}_d{day}")
}
