//! The target of `procfleet store copy`: a store that no server has used.
//!
//! A server that starts records that it uses the store, under a shared advisory lock. A copy holds the same
//! lock exclusively until its commit. So either the server starts after the copy is complete, or the copy is
//! refused.

use super::connect::Database;
use super::fault::PgFault;
use super::url::StoreUrl;
use super::{partitions, pooler, schema};
use crate::copied_tables::{
    COPIED_TABLES, ColumnType, CopiedTable, CopyRow, CopyRows, CopyValue, UsedNumbers,
};
use crate::{CopyRefusal, StoreError};
use deadpool_postgres::{GenericClient, Hook, HookError, Object, Pool, Runtime, Timeouts, Transaction};
use futures_util::StreamExt;
use std::pin::pin;
use std::time::Duration;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, RowStream};

const COPY_LOCK: i32 = 3;

/// No limit for a statement, because a COPY takes as long as the store is large. Locks of a process that has
/// vanished are released soon.
const SETTINGS: &str = "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '5min'; \
     SET client_connection_check_interval = '2s'; SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3; \
     SET tcp_keepalives_count = 3; SET tcp_user_timeout = 15000; SET jit = off; SET TimeZone = 'UTC'; \
     SET synchronous_commit = on; SET client_min_messages = warning";

const TIMEOUT: Duration = Duration::from_secs(10);
/// A server that uses a store changes its beats more often than this.
const TWO_BEATS: Duration = Duration::from_secs(2);

/// A connection to a store that no server has used.
#[derive(Debug)]
pub(crate) struct CopyTarget {
    connection: Object,
    name: String,
}

/// The transaction of a copy. Dropping it undoes everything.
pub(crate) struct CopyTransaction<'a> {
    transaction: Transaction<'a>,
    name: &'a str,
}

/// The rows of a table of the copy.
pub(crate) struct CopiedRows {
    table: &'static CopiedTable,
    rows: std::pin::Pin<Box<RowStream>>,
}

impl CopyTarget {
    /// Connects, and creates or migrates the tables.
    pub(crate) async fn open(url: &StoreUrl) -> Result<CopyTarget, StoreError> {
        const DOING: &str = "opening the store";
        let database = Database::of(url)?;
        pooler::refuse(&database, url.name()).await?;
        let pool = Pool::builder(database.manager())
            .max_size(1)
            .timeouts(Timeouts { wait: Some(TIMEOUT), create: Some(TIMEOUT), recycle: Some(TIMEOUT) })
            .runtime(Runtime::Tokio1)
            .post_create(Hook::async_fn(|client, _| {
                Box::pin(async move { client.batch_execute(SETTINGS).await.map_err(HookError::Backend) })
            }))
            .build()
            .expect("a runtime is given, which the timeouts need");
        let mut connection = pool.get().await.map_err(|error| PgFault::from(error).during(DOING))?;
        let name = url.name().to_owned();
        // Before the migration: the tables of a server that runs are not changed.
        refuse_if_used(&connection, &name).await.map_err(|fault| fault.during(DOING))?;
        schema::migrate(&mut connection, &name).await?;
        Ok(CopyTarget { connection, name })
    }

    /// Begins the transaction, and empties the tables.
    pub(crate) async fn begin(&mut self) -> Result<CopyTransaction<'_>, StoreError> {
        const DOING: &str = "emptying the tables of an earlier copy";
        let name = self.name.as_str();
        let transaction =
            self.connection.transaction().await.map_err(|error| PgFault::Sql(error).during(DOING))?;
        let empty = async {
            let locked =
                transaction.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&schema::LOCKS, &COPY_LOCK]);
            if let Err(error) = locked.await {
                return Err(match error.code() {
                    Some(&SqlState::LOCK_NOT_AVAILABLE) => refused(name, CopyRefusal::UnderWay),
                    _ => error.into(),
                });
            }
            refuse_if_used(&transaction, name).await?;
            let tables: Vec<&str> = COPIED_TABLES.iter().map(|table| table.name).collect();
            Ok(transaction.batch_execute(&format!("TRUNCATE {}", tables.join(", "))).await?)
        };
        empty.await.map_err(|fault| fault.during(DOING))?;
        Ok(CopyTransaction { transaction, name })
    }
}

impl CopyTransaction<'_> {
    /// Where the copy is, without the password.
    pub(crate) fn store(&self) -> &str {
        self.name
    }

    pub(crate) async fn create_partitions(&self, days: &[i64]) -> Result<(), StoreError> {
        for day in days {
            let created = partitions::create(&self.transaction, *day).await;
            created.map_err(|fault| fault.during("creating partitions"))?;
        }
        Ok(())
    }

    pub(crate) async fn fill(&self, table: &CopiedTable, mut rows: CopyRows) -> Result<(), StoreError> {
        const DOING: &str = "writing the copy";
        let failed = |error| PgFault::Sql(error).during(DOING);
        let sql = format!("COPY {} ({}) FROM STDIN (FORMAT binary)", table.name, table.column_names());
        let types: Vec<Type> = table.columns.iter().map(|(_, kind)| sql_type(*kind)).collect();
        let sink = self.transaction.copy_in(&sql).await.map_err(failed)?;
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
        while let Some(row) = rows.next().await? {
            let values: Vec<&(dyn ToSql + Sync)> =
                table.columns.iter().zip(&row).map(|((_, kind), value)| as_sql(*kind, value)).collect();
            writer.as_mut().write(&values).await.map_err(failed)?;
        }
        writer.finish().await.map_err(failed)?;
        Ok(())
    }

    /// Agents that were connected when the store was copied have the server 0, which ends with the copy. So
    /// for a day only a token that allows it replaces one that has not reconnected (see `join`).
    pub(crate) async fn end_sessions(&self) -> Result<(), StoreError> {
        let sql = "INSERT INTO server_ends (server, ended_at) \
                   VALUES (0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) \
                   ON CONFLICT (server) DO UPDATE SET ended_at = excluded.ended_at";
        let done = self.transaction.batch_execute(sql).await;
        done.map_err(|error| PgFault::Sql(error).during("ending the sessions of the copy"))
    }

    /// Lets the counters continue above the copied numbers, and the planner know the tables. ALTER is undone
    /// with the transaction, unlike `setval`.
    pub(crate) async fn continue_above(&self, used: UsedNumbers) -> Result<(), StoreError> {
        let UsedNumbers { tasks, webhooks, audit, generations, boots } = used;
        // A task number is a day and a sequence. Above the sequence of every copied number, even a clock that
        // shows 1970 makes no number that a copied task has.
        let tasks = tasks & ((1 << partitions::DAY_BITS) - 1);
        let mut sql = format!("ALTER SEQUENCE task_sequence RESTART WITH {};", tasks + 1);
        for (table, column, last) in [
            ("webhooks", "id", webhooks),
            ("audit", "id", audit),
            ("generations", "number", generations),
            ("boots", "number", boots),
        ] {
            sql.push_str(&format!("ALTER TABLE {table} ALTER COLUMN {column} RESTART WITH {};", last + 1));
        }
        for table in COPIED_TABLES {
            sql.push_str(&format!("ANALYZE {};", table.name));
        }
        let done = self.transaction.batch_execute(&sql).await;
        done.map_err(|error| PgFault::Sql(error).during("setting the counters of the copy"))
    }

    /// The copied rows of a table, in the order of its key.
    pub(crate) async fn rows(&self, table: &'static CopiedTable) -> Result<CopiedRows, StoreError> {
        let order = table.columns.iter().take(table.key).map(|(name, kind)| match kind {
            ColumnType::Text => format!("{name} COLLATE \"C\""),
            ColumnType::Bool | ColumnType::Int | ColumnType::Bytes | ColumnType::One => (*name).to_owned(),
        });
        let order = order.collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT {} FROM {} ORDER BY {order}", table.column_names(), table.name);
        let none: [&(dyn ToSql + Sync); 0] = [];
        let rows = self.transaction.query_raw(&sql, none).await;
        let rows = rows.map_err(|error| PgFault::Sql(error).during("reading the copy"))?;
        Ok(CopiedRows { table, rows: Box::pin(rows) })
    }

    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        self.transaction.commit().await.map_err(|error| PgFault::commit(error).during("committing the copy"))
    }
}

impl CopiedRows {
    pub(crate) async fn next(&mut self) -> Result<Option<CopyRow>, StoreError> {
        let read = |row: Row| -> Result<CopyRow, tokio_postgres::Error> {
            let columns = self.table.columns.iter().enumerate();
            columns.map(|(index, (_, kind))| value(&row, index, *kind)).collect()
        };
        let row = self.rows.next().await.transpose().and_then(|row| row.map(read).transpose());
        row.map_err(|error| PgFault::Sql(error).during("reading the copy"))
    }
}

/// For a server that starts: from now on, no copy replaces the store.
pub(super) async fn record_use(connection: &mut Object, name: &str) -> Result<(), StoreError> {
    let record = async {
        let transaction = connection.transaction().await?;
        let sql = "SELECT pg_try_advisory_xact_lock_shared($1, $2)";
        let row = transaction.query_one(sql, &[&schema::LOCKS, &COPY_LOCK]).await?;
        if !row.try_get::<_, bool>(0)? {
            return Err(StoreError::BeingCopied { store: name.to_owned() }.into());
        }
        let sql = "UPDATE store_use SET used_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint \
                   WHERE used_at IS NULL";
        transaction.execute(sql, &[]).await?;
        Ok(transaction.commit().await?)
    };
    record.await.map_err(|fault: PgFault| fault.during("recording the use of the store"))
}

async fn refuse_if_used(client: &impl GenericClient, name: &str) -> Result<(), PgFault> {
    let exists = "SELECT to_regclass('store_use') IS NOT NULL, to_regclass('boots') IS NOT NULL";
    let row = client.query_one(exists, &[]).await?;
    let sql = match (row.try_get(0)?, row.try_get(1)?) {
        (true, _) => "SELECT used_at IS NOT NULL FROM store_use WHERE id = 1",
        // A store of an earlier version, in which every server that starts records its boot.
        (false, true) => "SELECT EXISTS (SELECT 1 FROM boots)",
        (false, false) => return Ok(()),
    };
    if !client.query_one(sql, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(());
    }
    let before = beats(client).await?;
    tokio::time::sleep(TWO_BEATS).await;
    let reason = match beats(client).await? == before {
        true => CopyRefusal::WasUsed,
        false => CopyRefusal::InUse,
    };
    Err(refused(name, reason))
}

/// All beats as one text, whatever their columns are.
async fn beats(client: &impl GenericClient) -> Result<String, PgFault> {
    let sql = "SELECT coalesce(string_agg(beats::text, ' ' ORDER BY beats::text), '') FROM beats";
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

fn refused(name: &str, reason: CopyRefusal) -> PgFault {
    StoreError::CopyRefused { store: name.to_owned(), reason }.into()
}

fn sql_type(kind: ColumnType) -> Type {
    match kind {
        ColumnType::Bool => Type::BOOL,
        ColumnType::Int => Type::INT8,
        ColumnType::Text => Type::TEXT,
        ColumnType::Bytes => Type::BYTEA,
        ColumnType::One => Type::INT4,
    }
}

fn as_sql(kind: ColumnType, value: &CopyValue) -> &(dyn ToSql + Sync) {
    match (value, kind) {
        (_, ColumnType::One) => &1_i32,
        (CopyValue::Null, ColumnType::Bool) => &None::<bool>,
        (CopyValue::Null, ColumnType::Int) => &None::<i64>,
        (CopyValue::Null, ColumnType::Text) => &None::<&str>,
        (CopyValue::Null, ColumnType::Bytes) => &None::<&[u8]>,
        (CopyValue::Bool(value), _) => value,
        (CopyValue::Int(value), _) => value,
        (CopyValue::Text(value), _) => value,
        (CopyValue::Bytes(value), _) => value,
    }
}

fn value(row: &Row, index: usize, kind: ColumnType) -> Result<CopyValue, tokio_postgres::Error> {
    let value = match kind {
        ColumnType::Bool => row.try_get::<_, Option<bool>>(index)?.map(CopyValue::Bool),
        ColumnType::Int => row.try_get::<_, Option<i64>>(index)?.map(CopyValue::Int),
        ColumnType::Text => row.try_get::<_, Option<String>>(index)?.map(CopyValue::Text),
        ColumnType::Bytes => row.try_get::<_, Option<Vec<u8>>>(index)?.map(CopyValue::Bytes),
        ColumnType::One => row.try_get::<_, Option<i32>>(index)?.map(|one| CopyValue::Int(i64::from(one))),
    };
    Ok(value.unwrap_or(CopyValue::Null))
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_testkit::Cluster;
    use std::collections::BTreeSet;

    /// Columns that belong to the servers and not to the fleet, or that have their default in a copy. A table
    /// or column that holds state of the fleet belongs into [`COPIED_TABLES`].
    const NOT_COPIED: [&str; 14] = [
        "schema_version.",
        "store_use.",
        "servers.",
        "server_ends.",
        "beats.",
        "leases.",
        "store_clock.",
        "database_history.",
        "identity.",
        // The server seals the key files that it finds at its first start.
        "ca_keys.",
        "server_seal_keys.",
        "sessions.holder",
        "ops.epoch",
        "ops.connected",
    ];

    #[tokio::test]
    async fn every_table_and_column_is_copied_or_named_here() {
        let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
        let target = CopyTarget::open(&url.parse().expect("a url")).await.expect("an empty store");
        let sql = "SELECT table_name || '.' || column_name FROM information_schema.columns \
                   WHERE table_schema = current_schema()";
        let rows = target.connection.query(sql, &[]).await.expect("readable");
        let found: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
        let copied: BTreeSet<String> = COPIED_TABLES
            .iter()
            .flat_map(|table| table.columns.iter().map(|(column, _)| format!("{}.{column}", table.name)))
            .collect();
        let unknown: Vec<&String> = copied.difference(&found).collect();
        assert!(unknown.is_empty(), "the schema has no {unknown:?}");
        let left_out =
            found.difference(&copied).filter(|name| !NOT_COPIED.iter().any(|not| name.starts_with(not)));
        let left_out: Vec<&String> = left_out.collect();
        assert!(left_out.is_empty(), "{left_out:?} would be lost by a copy");
    }
}
