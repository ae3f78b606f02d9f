//! The PostgreSQL engine.
//!
//! ```text
//! method --> unit (a task of its own): connection from the pool, BEGIN, statements, COMMIT --> answer
//! method of one agent --> line: a unit for all agents that wait at the same moment --> answer
//! method --> read: connection from the pool, one statement, or several in one REPEATABLE READ snapshot
//! beat   --> its own connection, twice a second: does the database answer, and which servers are alive?
//! ```
//!
//! - A unit is never cancelled: the caller may stop waiting, and the unit goes on.
//! - A unit that lost a race (serialization failure, deadlock, lock timeout) is repeated as a whole.
//! - While beats get no answer, every method returns [`StoreError::Away`] at once, and those that wait
//!   return it, too.
//! - All units lock rows in one order: the server's own row, sessions by agent, tasks by number, the event
//!   counter, the rest.

mod agent_list;
mod agents;
mod apps;
mod audit;
mod boots;
mod businesses;
mod ca;
mod certificates;
mod columns;
mod conditions;
mod connects;
mod copy;
mod events;
mod fault;
mod generation;
mod line;
mod membership;
mod ops;
mod partitions;
mod pooler;
mod proc_list;
mod proc_reports;
mod process_groups;
mod procs;
mod readmit;
mod retention;
mod schema;
mod servers;
mod submissions;
mod tasks;
mod tokens;
mod url;
mod users;
mod wakeups;

use crate::StoreError;
use crate::membership::{Membership, MembershipView};
use agents::Join;
use certificates::PresentedCertificate;
use conditions::{Value, numbered};
use connects::{Connect, Disconnect};
use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Timeouts, Transaction,
};
use events::EventReport;
use fault::{PgFault, Repeat};
use futures_util::future::BoxFuture;
use line::Line;
use membership::Beats;
use proc_reports::AgentProcs;
use process_groups::AgentGroups;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::{IsolationLevel, Row};
pub use url::{StoreUrl, UrlFault};
use wakeups::Wakeups;
pub(crate) use {copy::CopyTarget, copy::CopyTransaction, partitions::DAY_BITS};

/// Connections of the pool. Each is one backend of the database; more than its cores gain little.
const CONNECTIONS: usize = 8;
/// How often a unit is tried that loses races.
const TRIES: u32 = 4;

/// Settings of every connection. A server that stops in the middle of a transaction must not hold its locks
/// for long. JIT costs more than it gains for short statements. Nearly every statement has its index; a plan
/// that was made when a table was small, or before its statistics were there, must not read all of it later.
const SETTINGS: &str = "SET statement_timeout = '30s'; SET lock_timeout = '2s'; \
     SET idle_in_transaction_session_timeout = '5s'; SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3; \
     SET tcp_keepalives_count = 3; SET tcp_user_timeout = 15000; SET jit = off; SET seq_page_cost = 100; SET TimeZone = 'UTC'; \
     SET client_min_messages = warning";

/// Waiting for a free connection, opening one, and checking one that was used before.
const TIMEOUTS: Timeouts = Timeouts {
    wait: Some(Duration::from_millis(1_500)),
    create: Some(Duration::from_millis(1_500)),
    recycle: Some(Duration::from_millis(500)),
};

/// The engine. Clones share one pool.
#[derive(Clone, Debug)]
pub(crate) struct PgStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: Pool,
    membership: Membership,
    beats: Beats,
    _wakeups: Wakeups,
    joins: Line<Join>,
    presented: Line<PresentedCertificate>,
    connects: Line<Connect>,
    disconnects: Line<Disconnect>,
    proc_reports: Line<AgentProcs>,
    group_reports: Line<AgentGroups>,
    event_reports: Line<EventReport>,
    /// Where the store is, without the password.
    name: String,
}

impl PgStore {
    /// Connects, and creates or migrates the tables.
    pub(crate) async fn open(url: &StoreUrl) -> Result<PgStore, StoreError> {
        const DOING: &str = "opening the store";
        let connector = url.connector().map_err(|fault| StoreError::Url(fault.to_string()))?;
        // Before the settings, which a pooler would pass on to its other clients.
        pooler::refuse(url, &connector).await?;
        let manager = Manager::from_config(
            url.config().clone(),
            connector.clone(),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS)
            .timeouts(TIMEOUTS)
            .runtime(Runtime::Tokio1)
            .post_create(Hook::async_fn(|client, _| {
                Box::pin(async move { client.batch_execute(SETTINGS).await.map_err(HookError::Backend) })
            }))
            .build()
            .expect("a runtime is given, which the timeouts need");
        let mut first = pool.get().await.map_err(|error| PgFault::from(error).during(DOING))?;
        schema::migrate(&mut first, url.name()).await?;
        copy::record_use(&mut first, url.name()).await?;
        let (membership, outgoing) = Membership::shared();
        let client: &tokio_postgres::Client = &first;
        let run = membership::enter(client, &membership).await.map_err(|fault| fault.during(DOING))?;
        drop(first);
        membership.publish(|view| view.run = run);
        let beats = Beats::keep(membership.clone(), url.config().clone(), connector.clone());
        let wakeups = Wakeups::start(membership.clone(), outgoing, url.config().clone(), connector);
        let inner = Inner {
            pool,
            membership,
            beats,
            _wakeups: wakeups,
            joins: Line::default(),
            presented: Line::default(),
            connects: Line::default(),
            disconnects: Line::default(),
            proc_reports: Line::default(),
            group_reports: Line::default(),
            event_reports: Line::default(),
            name: url.name().to_owned(),
        };
        let store = PgStore { inner: Arc::new(inner) };
        store.prepare().await?;
        tracing::info!(store = url.name(), schema = schema::known(), "store opened");
        Ok(store)
    }

    /// Tasks of the next days find their partitions, and the store's time and the leases are known.
    async fn prepare(&self) -> Result<(), StoreError> {
        const DOING: &str = "preparing the store";
        self.write(DOING, (), |tx, ()| Box::pin(partitions::create_ahead(tx))).await?;
        let mut view = self.inner.membership.view();
        let own = |view: &MembershipView| view.alive.contains_key(&view.run);
        let known = async {
            // Fails only if the sender is gone, which this store has.
            let _ = view.wait_for(own).await;
            Ok(())
        };
        self.answered(DOING, known).await
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.inner.membership
    }

    /// As [`PgStore::rows`], inside a unit or a snapshot.
    async fn rows_in(tx: &Transaction<'_>, sql: &str, values: &[Value]) -> Result<Vec<Row>, PgFault> {
        let sql = numbered(sql);
        let values: Vec<_> = values.iter().map(|value| (value.as_sql(), value.sql_type())).collect();
        Ok(tx.query_typed(&sql, &values).await?)
    }

    pub(crate) async fn refuses_changes(&self) -> Option<String> {
        if let Some(reason) = self.inner.beats.away() {
            return Some(reason);
        }
        let tried = self.write("trying a change", (), |tx, ()| {
            Box::pin(async move {
                tx.execute("UPDATE event_counter SET last = last WHERE id = 1", &[]).await?;
                Ok(())
            })
        });
        tried.await.err().map(|error| match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })
    }

    /// The engine comes back by itself from everything but an upgrade of the store beyond this program.
    pub(crate) async fn failed(&self) -> StoreError {
        let found = self.inner.beats.wait_until_newer().await;
        StoreError::Newer { store: self.inner.name.clone(), found, known: schema::known() }
    }

    pub(crate) async fn close(self) -> Result<(), StoreError> {
        self.inner.beats.stop();
        let left = match self.inner.connection().await {
            Ok(connection) => membership::leave(&connection, self.inner.membership.run()).await,
            Err(fault) => Err(fault.during("leaving the store")),
        };
        self.inner.pool.close();
        left?;
        tracing::debug!(store = self.inner.name, "store closed");
        Ok(())
    }

    /// Runs one transaction. Returns when it is durable. `work` may run several times, so it must have no
    /// effect outside the transaction.
    async fn write<A, T>(
        &self,
        doing: &'static str,
        arguments: A,
        work: UnitFn<A, T>,
    ) -> Result<T, StoreError>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let unit = tokio::spawn(async move { inner.repeat(&arguments, work).await });
        let done = tokio::select! {
            biased;
            done = unit => done.map_err(|error| StoreError::from_join(doing, &error))?,
            reason = self.inner.beats.wait_until_away() => {
                // The unit goes on; whether it is committed is not known.
                return Err(StoreError::Away { doing, reason });
            }
        };
        done.map_err(|fault| fault.during(doing))
    }

    /// Several statements in one snapshot.
    async fn read<A, T>(&self, doing: &'static str, arguments: A, look: UnitFn<A, T>) -> Result<T, StoreError>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        let read = async {
            match self.inner.read_once(&arguments, look).await {
                Err(fault) if self.inner.drops_ended_connections(&fault) => {
                    self.inner.read_once(&arguments, look).await
                }
                done => done,
            }
        };
        self.answered(doing, read).await
    }

    /// One statement, with `?` for each value. It is planned for these values.
    async fn rows(&self, doing: &'static str, sql: &str, values: &[Value]) -> Result<Vec<Row>, StoreError> {
        self.planned_rows(doing, sql, values, Planned::Now).await
    }

    /// As [`PgStore::rows`], for a statement that is often used and always the same: it is planned once.
    async fn prepared_rows(
        &self,
        doing: &'static str,
        sql: &str,
        values: &[Value],
    ) -> Result<Vec<Row>, StoreError> {
        self.planned_rows(doing, sql, values, Planned::Once).await
    }

    async fn planned_rows(
        &self,
        doing: &'static str,
        sql: &str,
        values: &[Value],
        planned: Planned,
    ) -> Result<Vec<Row>, StoreError> {
        let read = async {
            match self.inner.rows_once(sql, values, planned).await {
                Err(fault) if self.inner.drops_ended_connections(&fault) => {
                    self.inner.rows_once(sql, values, planned).await
                }
                Err(fault) if fault.repeat() == Repeat::StaleStatement => {
                    self.inner.pool.manager().statement_caches.clear();
                    self.inner.rows_once(sql, values, planned).await
                }
                done => done,
            }
        };
        self.answered(doing, read).await
    }

    /// Reads the columns of rows.
    fn converted<T>(
        &self,
        doing: &'static str,
        rows: &[Row],
        convert: impl Fn(&Row) -> Result<T, PgFault>,
    ) -> Result<Vec<T>, StoreError> {
        rows.iter().map(convert).collect::<Result<_, _>>().map_err(|fault| fault.during(doing))
    }

    /// Waits for a read, or until the database is away.
    async fn answered<T>(
        &self,
        doing: &'static str,
        read: impl Future<Output = Result<T, PgFault>>,
    ) -> Result<T, StoreError> {
        tokio::select! {
            biased;
            done = read => done.map_err(|fault| fault.during(doing)),
            reason = self.inner.beats.wait_until_away() => Err(StoreError::Away { doing, reason }),
        }
    }
}

/// When a statement is planned.
#[derive(Clone, Copy, Debug)]
enum Planned {
    Now,
    Once,
}

/// The statements of a unit. A plain function, so that it can run again with the same arguments.
type UnitFn<A, T> = for<'a> fn(&'a Transaction<'a>, &'a A) -> BoxFuture<'a, Result<T, PgFault>>;

impl Inner {
    async fn connection(&self) -> Result<Object, PgFault> {
        Ok(self.pool.get().await?)
    }

    async fn read_once<A, T>(&self, arguments: &A, look: UnitFn<A, T>) -> Result<T, PgFault> {
        let mut connection = self.connection().await?;
        let snapshot = connection
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead)
            .read_only(true)
            .start()
            .await?;
        let seen = look(&snapshot, arguments).await?;
        snapshot.commit().await?;
        Ok(seen)
    }

    async fn rows_once(&self, sql: &str, values: &[Value], planned: Planned) -> Result<Vec<Row>, PgFault> {
        let connection = self.connection().await?;
        let sql = numbered(sql);
        match planned {
            Planned::Now => {
                let values: Vec<_> = values.iter().map(|value| (value.as_sql(), value.sql_type())).collect();
                Ok(connection.query_typed(&sql, &values).await?)
            }
            Planned::Once => {
                let types: Vec<_> = values.iter().map(Value::sql_type).collect();
                let statement = connection.prepare_typed_cached(&sql, &types).await?;
                let values: Vec<_> = values.iter().map(Value::as_sql).collect();
                Ok(connection.query(&statement, &values).await?)
            }
        }
    }

    /// Whether a read failed because its connection has ended, so that it can be repeated on a new one. The
    /// pool may not have noticed yet that the database has closed connections that nobody used; all of those
    /// go.
    fn drops_ended_connections(&self, fault: &PgFault) -> bool {
        let has_ended = matches!(fault, PgFault::Sql(error) if error.is_closed());
        if has_ended {
            self.pool.retain(|_, _| false);
        }
        has_ended
    }

    async fn repeat<A, T>(&self, arguments: &A, work: UnitFn<A, T>) -> Result<T, PgFault> {
        let mut tries = 1;
        loop {
            let fault = match self.once(arguments, work).await {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            match fault.repeat() {
                Repeat::Conflict if tries < TRIES => {}
                Repeat::StaleStatement if tries == 1 => self.pool.manager().statement_caches.clear(),
                Repeat::Partition(number) if tries < TRIES => partitions::create_for(self, number).await?,
                Repeat::Demoted => {
                    self.pool.retain(|_, _| false);
                    return Err(fault);
                }
                Repeat::Conflict | Repeat::StaleStatement | Repeat::Partition(_) | Repeat::Never => {
                    return Err(fault);
                }
            }
            tries += 1;
        }
    }

    async fn once<A, T>(&self, arguments: &A, work: UnitFn<A, T>) -> Result<T, PgFault> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        membership::hold(&transaction, self.membership.run()).await?;
        let done = work(&transaction, arguments).await?;
        transaction.commit().await.map_err(PgFault::commit)?;
        Ok(done)
    }
}
