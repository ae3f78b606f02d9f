//! Refuses a connection pooler that shares connections between transactions (PgBouncer with `pool_mode =
//! transaction` or `statement`).
//!
//! The store needs sessions: prepared statements, settings and locks of the connection. Behind such a pooler
//! the statements of one connection run in whichever backend is free, which works until it does not.
//!
//! The proof are the pids of the backends, with two connections that are open at the same time:
//!
//! ```text
//! first -> pid, second -> pid, second -> pid, first -> pid
//! ```
//!
//! With sessions, each connection always has the same pid, and the two differ. A pooler that hands out the
//! connection that was used last gives both the same. A pooler that hands them out in turn gives the second
//! one another pid when it asks again. Other clients of the pooler may hide this for a moment, so the proof
//! is tried several times.

use super::connect::Database;
use super::fault::PgFault;
use crate::StoreError;
use std::time::Duration;
use tokio_postgres::{Client, Error, SimpleQueryMessage};

const ROUNDS: usize = 3;
/// For opening both connections and all rounds.
const PATIENCE: Duration = Duration::from_secs(5);

/// `name` is the store's, for messages.
pub(super) async fn refuse(database: &Database, name: &str) -> Result<(), StoreError> {
    const DOING: &str = "opening the store";
    let has_sessions = tokio::time::timeout(PATIENCE, has_sessions(database)).await;
    match has_sessions {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(StoreError::Pooler { store: name.to_owned() }),
        Ok(Err(error)) => Err(PgFault::Sql(error).during(DOING)),
        Err(_) => {
            let reason = format!("the database has not answered for {} s", PATIENCE.as_secs());
            Err(StoreError::Unavailable { doing: DOING, reason })
        }
    }
}

async fn has_sessions(database: &Database) -> Result<bool, Error> {
    let (first, second) = (database.connect_as_it_is().await?, database.connect_as_it_is().await?);
    let mut pids: Option<(String, String)> = None;
    for _ in 0..ROUNDS {
        let before = (backend(&first).await?, backend(&second).await?);
        let (second, first) = (backend(&second).await?, backend(&first).await?);
        let is_stable = before == (first, second) && pids.is_none_or(|pids| pids == before);
        if before.0 == before.1 || !is_stable {
            return Ok(false);
        }
        pids = Some(before);
    }
    Ok(true)
}

/// A simple query: a prepared statement would be lost in the pooler, with an error that says something else.
async fn backend(client: &Client) -> Result<String, Error> {
    let rows = client.simple_query("SELECT pg_backend_pid()").await?;
    let pid = rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    Ok(pid.unwrap_or_default())
}
