//! The connections of units and reads.
//!
//! ```text
//! get --> slot (one for each connection, first come, first served) --> idle connection, or a new one
//!                                                                 \--the database has none left--> the slot
//!         <------------------- another slot, when its connection is free -- is out of use for COOLDOWN
//! ```
//!
//! A database without free connections is no reason to refuse a call: this server has connections, and each
//! is free again after a few milliseconds. The slot whose connection could not be opened stays out of use for
//! a while. Without that, every waiting call would ask the database for a new connection again and again, and
//! the database starts a process for each attempt.

use super::connect::Database;
use super::fault::{PgFault, chain};
use super::history::{DatabaseHistory, HistoryCheck};
use super::membership::Outages;
use crate::StoreError;
use deadpool_postgres::{Hook, HookError, Object, PoolError, Runtime, Timeouts};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::error::SqlState;

/// Connections of the pool. Each is one backend of the database; more than its cores gain little.
pub(super) const CONNECTIONS: usize = 8;

/// Settings of every connection of the pool. A server that stops in the middle of a transaction must not hold
/// its locks for long, and a backend whose server is gone must not go on. JIT costs more than it gains for
/// short statements. A caller is answered when its task is durable, whatever the default of the database is.
/// Nearly every statement has its index; a plan that was made when a table was small, or
/// before its statistics were there, must not read all of it later.
const SETTINGS: &str = "SET statement_timeout = '30s'; SET lock_timeout = '2s'; \
     SET idle_in_transaction_session_timeout = '5s'; SET client_connection_check_interval = '5s'; \
     SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3; SET tcp_keepalives_count = 3; \
     SET tcp_user_timeout = 15000; SET jit = off; SET seq_page_cost = 100; SET TimeZone = 'UTC'; \
     SET client_min_messages = warning; SELECT set_config('synchronous_commit', 'on', false) \
     WHERE current_setting('synchronous_commit') = 'off'";

/// How long a unit or a read waits for a connection.
const WAIT: Duration = Duration::from_millis(1_500);
/// Cool-down of a slot after PostgreSQL refused its connection (`too_many_connections`).
const COOLDOWN: Duration = Duration::from_secs(1);

/// Time limit for a connection of the pool, whether it is opened or checked. A database that hangs between
/// the login and the first statement must not keep a slot: the pool limits only the login.
const OPEN: Duration = Duration::from_secs(3);

/// Opening a connection, and checking one that was used before. Calls wait for a slot and not for the pool.
const TIMEOUTS: Timeouts = Timeouts {
    wait: Some(WAIT),
    create: Some(Duration::from_millis(1_500)),
    recycle: Some(Duration::from_millis(500)),
};

#[derive(Debug)]
pub(super) struct ConnectionPool {
    pool: deadpool_postgres::Pool,
    slots: Arc<Semaphore>,
}

/// A connection that goes back to the pool when it is dropped, and then its slot.
pub(super) struct PooledConnection {
    connection: Object,
    _slot: OwnedSemaphorePermit,
}

impl ConnectionPool {
    pub(super) fn new(database: &Database, outages: Outages, history: DatabaseHistory) -> ConnectionPool {
        let pool = deadpool_postgres::Pool::builder(database.manager())
            .max_size(CONNECTIONS)
            .timeouts(TIMEOUTS)
            .runtime(Runtime::Tokio1)
            .post_create(Hook::async_fn(move |client, _| {
                let history = history.clone();
                Box::pin(async move {
                    client.batch_execute(SETTINGS).await.map_err(HookError::Backend)?;
                    match history.check(client).await.map_err(HookError::Backend)? {
                        HistoryCheck::Known => Ok(()),
                        HistoryCheck::Other => {
                            Err(HookError::message("the database failed over or was restored a moment ago"))
                        }
                    }
                })
            }))
            .pre_recycle(Hook::sync_fn(move |_, metrics| match outages.since(metrics.created) {
                true => Err(HookError::message("the database was away")),
                false => Ok(()),
            }))
            .build()
            .expect("a runtime is given, which the timeouts need");
        ConnectionPool { pool, slots: Arc::new(Semaphore::new(CONNECTIONS)) }
    }

    pub(super) async fn get(&self) -> Result<PooledConnection, PgFault> {
        let until = Instant::now() + WAIT;
        let mut shortage = None;
        loop {
            let Ok(slot) = timeout_at(until, Arc::clone(&self.slots).acquire_owned()).await else {
                return Err(self.nothing_free(shortage));
            };
            let slot = slot.map_err(|_| PgFault::Known(StoreError::Closed))?;
            let Ok(opened) = timeout(OPEN, self.pool.get()).await else {
                let time = OPEN.as_secs();
                return Err(PgFault::Connection(format!(
                    "no usable connection to the database within {time} s"
                )));
            };
            match opened {
                Ok(connection) => return Ok(PooledConnection { connection, _slot: slot }),
                Err(PoolError::Backend(error)) if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => {
                    shortage = Some(chain(&error));
                    tokio::spawn(async move {
                        sleep(COOLDOWN).await;
                        drop(slot);
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Drops the idle connections.
    pub(super) fn drop_idle(&self) {
        self.pool.retain(|_, _| false);
    }

    /// Statements are prepared again.
    pub(super) fn forget_statements(&self) {
        self.pool.manager().statement_caches.clear();
    }

    pub(super) fn close(&self) {
        self.slots.close();
        self.pool.close();
    }

    fn nothing_free(&self, shortage: Option<String>) -> PgFault {
        match shortage {
            Some(reason) if self.pool.status().size == 0 => {
                tracing::warn!(
                    reason,
                    "the database has no connection left for this server; end other clients or raise max_connections"
                );
                PgFault::Connection(reason)
            }
            Some(_) | None => {
                PgFault::Connection(format!("no connection was free within {} ms", WAIT.as_millis()))
            }
        }
    }
}

impl Deref for PooledConnection {
    type Target = Object;

    fn deref(&self) -> &Object {
        &self.connection
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut Object {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A database that accepts every login and then says nothing.
    async fn silent_after_login() -> Database {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move {
            let mut clients = Vec::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let _ = client.read(&mut [0; 1024]).await;
                // AuthenticationOk and ReadyForQuery.
                let _ = client.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await;
                clients.push(client);
            }
        });
        Database::of(&format!("postgres://me@127.0.0.1:{port}/fleet").parse().expect("a url"))
            .expect("usable")
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_after_its_login_keeps_no_slot() {
        let pool =
            ConnectionPool::new(&silent_after_login().await, Outages::default(), DatabaseHistory::default());
        let got = timeout(Duration::from_secs(60), pool.get()).await.expect("an answer");
        assert!(matches!(got, Err(PgFault::Connection(_))), "there is no usable connection");
        assert_eq!(pool.slots.available_permits(), CONNECTIONS);
    }
}
