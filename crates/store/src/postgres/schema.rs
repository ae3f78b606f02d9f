//! Creates and migrates the tables.
//!
//! Servers that start at once take turns by a transaction-level advisory lock. Each waits for locks for a few
//! seconds only, because a waiting ALTER TABLE blocks everybody behind it.

use super::fault::{PgFault, Repeat};
use crate::StoreError;
use deadpool_postgres::{GenericClient, Object};
use std::time::Duration;

const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_init.sql"),
    include_str!("migrations/0002_store_use.sql"),
    include_str!("migrations/0003_procs_in_place.sql"),
    include_str!("migrations/0004_database_history.sql"),
    include_str!("migrations/0005_server_ends.sql"),
];

/// The first of the two numbers of our advisory locks: the letters "proc".
pub(super) const LOCKS: i32 = 0x7072_6f63;
const MIGRATION_LOCK: i32 = 1;

const ENCODING: &str = "UTF8";

const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// The oldest version whose servers can use the store beside this one: the version before. Older ones end.
const OLDEST_SERVER: i64 = MIGRATIONS.len() as i64 - 1;

/// The newest version that this program knows.
pub(super) fn known() -> i64 {
    MIGRATIONS.len() as i64
}

pub(super) async fn migrate(connection: &mut Object, name: &str) -> Result<(), StoreError> {
    const DOING: &str = "upgrading the store's schema";
    refuse_other_encodings(connection, name).await.map_err(|fault| fault.during(DOING))?;
    for attempt in 1.. {
        match step(connection, name).await {
            Ok(()) => return Ok(()),
            Err(fault) if fault.repeat() == Repeat::Conflict && attempt < TRIES => {
                let holders = holders(connection).await.unwrap_or_default();
                tracing::info!(
                    store = name,
                    attempt,
                    holders,
                    "waiting to upgrade the store's schema: a table or the migration is locked"
                );
                tokio::time::sleep(PAUSE).await;
            }
            Err(fault) => return Err(fault.during(DOING)),
        }
    }
    unreachable!("the loop ends by returning")
}

/// A database with another encoding accepts the tables, and refuses the first text that it cannot represent.
async fn refuse_other_encodings(client: &impl GenericClient, name: &str) -> Result<(), PgFault> {
    let encoding: String = client.query_one("SHOW server_encoding", &[]).await?.try_get(0)?;
    match encoding == ENCODING {
        true => Ok(()),
        false => Err(StoreError::Encoding { store: name.to_owned(), encoding }.into()),
    }
}

/// The other connections that have locks on tables or on the migration, for operators.
async fn holders(client: &impl GenericClient) -> Result<String, PgFault> {
    let sql = "SELECT string_agg(DISTINCT format('pid %s (%s, %s)', pid, usename, application_name), ', ') \
               FROM pg_locks JOIN pg_stat_activity USING (pid) \
               WHERE granted AND pid <> pg_backend_pid() AND datname = current_database() \
               AND (relation >= 16384 OR (locktype = 'advisory' AND classid = $1::bigint))";
    let row = client.query_one(sql, &[&i64::from(LOCKS)]).await?;
    Ok(row.try_get::<_, Option<String>>(0)?.unwrap_or_default())
}

async fn step(connection: &mut Object, name: &str) -> Result<(), PgFault> {
    let transaction = connection.transaction().await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&LOCKS, &MIGRATION_LOCK]).await?;
    transaction
        .batch_execute("CREATE TABLE IF NOT EXISTS schema_version (id integer PRIMARY KEY CHECK (id = 1), version bigint NOT NULL, oldest_server bigint NOT NULL)")
        .await?;
    let row =
        transaction.query_opt("SELECT version, oldest_server FROM schema_version WHERE id = 1", &[]).await?;
    let (found, oldest) = match row {
        Some(row) => (row.try_get(0)?, row.try_get(1)?),
        None => (0_i64, 0_i64),
    };
    if oldest > known() {
        return Err(StoreError::Newer { store: name.to_owned(), found, known: known() }.into());
    }
    // Only adds to what the version before it knows, so that both can run side by side.
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.batch_execute(migration).await?;
    }
    let sql = "INSERT INTO schema_version (id, version, oldest_server) VALUES (1, $1, $2) ON CONFLICT (id) DO UPDATE \
               SET version = greatest(schema_version.version, $1), \
               oldest_server = greatest(schema_version.oldest_server, $2)";
    transaction.execute(sql, &[&known(), &OLDEST_SERVER]).await?;
    Ok(transaction.commit().await?)
}

#[cfg(test)]
mod tests {
    use super::super::connect::Database;
    use super::*;
    use procfleet_testkit::Cluster;

    #[tokio::test]
    async fn the_holders_of_locks_are_named() {
        let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
        let connect = async |application: &str| {
            let url = format!("{url}?application_name={application}").parse().expect("a url");
            let pool = deadpool_postgres::Pool::builder(Database::of(&url).expect("a url").manager());
            pool.build().expect("no timeouts").get().await.expect("a connection")
        };
        let (mut holder, reader) = (connect("holds").await, connect("reads").await);
        holder.batch_execute("CREATE TABLE t (x int)").await.expect("a table");
        assert_eq!(holders(&reader).await.expect("readable"), "");
        for sql in ["LOCK TABLE t IN ACCESS SHARE MODE", "SELECT pg_advisory_xact_lock(1886547811, 1)"] {
            let transaction = holder.transaction().await.expect("a transaction");
            transaction.batch_execute(sql).await.expect("a lock");
            let named = holders(&reader).await.expect("readable");
            assert!(named.starts_with("pid ") && named.ends_with("(procfleet, holds)"), "{sql}: {named}");
        }
    }
}
