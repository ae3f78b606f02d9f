//! The PostgreSQL engine.
//!
//! ```text
//! method --> unit (a task of its own): connection from the pool, BEGIN, statements, COMMIT --> answer
//! method of one agent --> queue: a unit for all agents that wait at the same moment --> answer
//! method --> read: connection from the pool, one statement, or several in one REPEATABLE READ snapshot
//! beat   --> its own connection, twice a second: does the database answer, and which servers are alive?
//! ```
//!
//! - A unit is never cancelled by its caller, who may stop waiting while the unit goes on. Only a unit that
//!   an outage of the database has left without an answer is given up, some seconds after the outage.
//! - A unit or a read that panics fails alone, as [`StoreError::Panicked`].
//! - A unit that lost a race (serialization failure, deadlock, lock timeout) is repeated as a whole.
//! - While beats get no answer, every method returns [`StoreError::Unavailable`] at once, and those that wait
//!   return it, too.
//! - All units lock rows in one order: the server's own row, sessions by agent, tasks by number, the event
//!   counter, the rest.

mod agent_connects;
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
mod connect;
mod copy;
mod events;
mod fault;
mod generation;
mod group_commit;
mod history;
mod join;
mod membership;
mod ops;
mod partitions;
mod pool;
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
#[cfg(test)]
mod tests;
mod tokens;
mod url;
mod users;
mod wakeups;

use crate::StoreError;
use crate::membership::{Membership, MembershipView, ServerTerm};
use agent_connects::{Connect, Disconnect};
use certificates::PresentedCertificate;
use conditions::{Value, numbered};
use connect::Database;
use deadpool_postgres::Transaction;
use events::EventReport;
use fault::{PgFault, Repeat};
use futures_util::future::BoxFuture;
use group_commit::GroupQueue;
use history::DatabaseHistory;
use join::Join;
use membership::{Beats, Outages, answered_within};
use pool::ConnectionPool;
use proc_reports::AgentProcs;
use process_groups::AgentGroups;
use procfleet_core::TaskId;
use procfleet_program::panics::{self, Caught};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::{IsolationLevel, Row};
pub use url::{StoreUrl, UrlFault};
use wakeups::Wakeups;
pub(crate) use {copy::CopyTarget, copy::CopyTransaction, partitions::DAY_BITS};

/// How often a unit is tried that loses races.
const TRIES: u32 = 4;
/// Longest pause before such a unit is tried again, in milliseconds.
const JITTER_MS: u64 = 20;

/// How long a unit that began before the end of an outage may go on after that end.
const GIVE_UP: Duration = Duration::from_secs(5);
/// Time limit for registering this server at its start. The commit may hang at a synchronous standby.
const ENTER: Duration = Duration::from_secs(10);
/// Time limit for deregistering this server when it stops.
const LEAVE: Duration = Duration::from_secs(2);

/// The engine. Clones share one pool.
#[derive(Clone, Debug)]
pub(crate) struct PgStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: ConnectionPool,
    membership: Membership,
    beats: Beats,
    outages: Outages,
    _wakeups: Wakeups,
    joins: GroupQueue<Join>,
    presented: GroupQueue<PresentedCertificate>,
    connects: GroupQueue<Connect>,
    disconnects: GroupQueue<Disconnect>,
    proc_reports: GroupQueue<AgentProcs>,
    group_reports: GroupQueue<AgentGroups>,
    event_reports: GroupQueue<EventReport>,
    /// Where the store is, without the password.
    name: String,
}

impl PgStore {
    /// Connects, and creates or migrates the tables.
    pub(crate) async fn open(url: &StoreUrl) -> Result<PgStore, StoreError> {
        const DOING: &str = "opening the store";
        let database = Database::of(url)?;
        // Before the settings, which a pooler would pass on to its other clients.
        pooler::refuse(&database, url.name()).await?;
        let outages = Outages::default();
        let history = DatabaseHistory::default();
        let pool = ConnectionPool::new(&database, outages.clone(), history.clone());
        let mut first = pool.get().await.map_err(|fault| fault.during(DOING))?;
        schema::migrate(&mut first, url.name()).await?;
        let (membership, outgoing) = Membership::shared();
        let entered = async {
            copy::record_use(&mut first, url.name()).await?;
            // Opened here: on a busy machine a new connection may take longer than a beat has.
            let mut beating = database.connect().await?;
            let recorded = history.record(&mut beating).await?;
            history.adopt(recorded.history);
            Ok((membership::enter(&*beating, &membership).await?, beating))
        };
        let (run, beating) = answered_within(ENTER, entered).await.map_err(|fault| fault.during(DOING))?;
        drop(first);
        membership.publish(|view| view.run = run);
        let beats = Beats::keep(membership.clone(), history, database.clone(), outages.clone(), beating);
        let wakeups = Wakeups::start(membership.clone(), outgoing, database);
        let inner = Inner {
            pool,
            membership,
            beats,
            outages,
            _wakeups: wakeups,
            joins: GroupQueue::default(),
            presented: GroupQueue::default(),
            connects: GroupQueue::default(),
            disconnects: GroupQueue::default(),
            proc_reports: GroupQueue::default(),
            group_reports: GroupQueue::default(),
            event_reports: GroupQueue::default(),
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
        if let Some(reason) = self.inner.beats.unavailable() {
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
        let left = answered_within(LEAVE, async {
            let connection = self.inner.pool.get().await?;
            membership::leave(&connection, self.inner.membership.run()).await
        });
        let left = left.await.map_err(|fault| fault.during("leaving the store"));
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
        self.unit(doing, arguments, work).await.map_err(|fault| fault.during(doing))
    }

    /// As [`PgStore::write`], for the unit that creates this task: an error after which the task may be
    /// stored names it.
    async fn write_task<A, T>(
        &self,
        doing: &'static str,
        task: TaskId,
        arguments: A,
        work: UnitFn<A, T>,
    ) -> Result<T, StoreError>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        self.unit(doing, arguments, work).await.map_err(|fault| match fault.is_uncertain() {
            true => StoreError::TaskUncertain { task, source: Box::new(fault.during(doing)) },
            false => fault.during(doing),
        })
    }

    async fn unit<A, T>(&self, doing: &'static str, arguments: A, work: UnitFn<A, T>) -> Result<T, PgFault>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        if let Some(reason) = self.inner.beats.unavailable() {
            return Err(PgFault::Connection(reason));
        }
        let inner = Arc::clone(&self.inner);
        let term = inner.membership.term();
        // A panic fails this unit alone: its transaction is rolled back when the task unwinds.
        let unit = tokio::spawn(panics::contain(async move { inner.repeat(&arguments, work, term).await }));
        tokio::select! {
            biased;
            done = unit => done.map_err(|error| StoreError::from_join(doing, &error))?,
            reason = self.inner.beats.wait_until_unavailable() => Err(PgFault::Unanswered(reason)),
        }
    }

    /// Several statements in one snapshot.
    async fn read<A, T>(&self, doing: &'static str, arguments: A, look: UnitFn<A, T>) -> Result<T, StoreError>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        let read = async {
            match self.inner.read_once(&arguments, look).await {
                Err(fault) if self.inner.can_read_again(&fault) => {
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
                Err(fault) if self.inner.can_read_again(&fault) => {
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
        let read = || rows.iter().map(convert).collect::<Result<_, _>>();
        let read = panics::catch_in(read).map_err(|Caught| StoreError::Panicked { doing })?;
        read.map_err(|fault: PgFault| fault.during(doing))
    }

    /// Waits for a read, or until the database is away.
    async fn answered<T>(
        &self,
        doing: &'static str,
        read: impl Future<Output = Result<T, PgFault>>,
    ) -> Result<T, StoreError> {
        tokio::select! {
            biased;
            done = panics::catch(read) => match done {
                Ok(done) => done.map_err(|fault| fault.during(doing)),
                Err(Caught) => Err(StoreError::Panicked { doing }),
            },
            reason = self.inner.beats.wait_until_unavailable() => {
                Err(StoreError::Unavailable { doing, reason })
            }
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
    async fn read_once<A, T>(&self, arguments: &A, look: UnitFn<A, T>) -> Result<T, PgFault> {
        let outage = self.outage();
        let mut connection = self.pool.get().await?;
        let read = async {
            let snapshot = connection
                .build_transaction()
                .isolation_level(IsolationLevel::RepeatableRead)
                .read_only(true)
                .start()
                .await?;
            let seen = look(&snapshot, arguments).await?;
            snapshot.commit().await?;
            Ok(seen)
        };
        unless_given_up(outage, read).await
    }

    async fn rows_once(&self, sql: &str, values: &[Value], planned: Planned) -> Result<Vec<Row>, PgFault> {
        let outage = self.outage();
        let connection = self.pool.get().await?;
        let sql = numbered(sql);
        let read = async {
            match planned {
                Planned::Now => {
                    let values: Vec<_> =
                        values.iter().map(|value| (value.as_sql(), value.sql_type())).collect();
                    Ok(connection.query_typed(&sql, &values).await?)
                }
                Planned::Once => {
                    let types: Vec<_> = values.iter().map(Value::sql_type).collect();
                    let statement = connection.prepare_typed_cached(&sql, &types).await?;
                    let values: Vec<_> = values.iter().map(Value::as_sql).collect();
                    Ok(connection.query(&statement, &values).await?)
                }
            }
        };
        unless_given_up(outage, read).await
    }

    /// Whether a failed read can be repeated at once: its connection was closed or leads to a standby, or its
    /// prepared statements are stale. Drops all idle connections, which may be closed, too, or the cached
    /// statements.
    fn can_read_again(&self, fault: &PgFault) -> bool {
        let has_ended =
            matches!(fault, PgFault::Sql(error) if error.is_closed()) || fault.repeat() == Repeat::Demoted;
        let is_stale = fault.repeat() == Repeat::StaleStatement;
        if has_ended {
            self.pool.drop_idle();
        }
        if is_stale {
            self.pool.forget_statements();
        }
        has_ended || is_stale
    }

    /// For [`unless_given_up`]. Called before the work takes its connection: an outage that ends right after
    /// that counts, too.
    fn outage(&self) -> impl Future<Output = ()> {
        self.outages.wait_until_over_for(GIVE_UP)
    }

    async fn repeat<A, T>(&self, arguments: &A, work: UnitFn<A, T>, term: ServerTerm) -> Result<T, PgFault> {
        let mut tries = 1;
        loop {
            let fault = match self.once(arguments, work, term).await {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            match fault.repeat() {
                // Units that met once would meet again.
                Repeat::Conflict if tries < TRIES => {
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=JITTER_MS))).await;
                }
                Repeat::StaleStatement if tries == 1 => self.pool.forget_statements(),
                Repeat::Partition(number) if tries < TRIES => {
                    match partitions::create_for(self, number).await {
                        Err(fault) if fault.repeat() != Repeat::Conflict => return Err(fault),
                        // Another transaction creates or drops partitions; the unit itself is tried again.
                        Ok(()) | Err(_) => {}
                    }
                }
                Repeat::Demoted => {
                    self.pool.drop_idle();
                    return Err(fault);
                }
                Repeat::Conflict | Repeat::StaleStatement | Repeat::Partition(_) | Repeat::Never => {
                    return Err(fault);
                }
            }
            tries += 1;
        }
    }

    /// `term`: when the unit was requested. A decision that was made before the database went back in time
    /// may rest on sessions that the database has lost.
    async fn once<A, T>(&self, arguments: &A, work: UnitFn<A, T>, term: ServerTerm) -> Result<T, PgFault> {
        // A connection from before the outage would be kept until the outage is over.
        if let Some(reason) = self.beats.unavailable() {
            return Err(PgFault::Connection(reason));
        }
        let outage = self.outage();
        let mut connection = self.pool.get().await?;
        let now = self.membership.term();
        if now.run != term.run {
            return Err(StoreError::Fenced.into());
        }
        if now != term {
            let reason = "the database failed over or was restored a moment ago";
            return Err(PgFault::Connection(reason.to_owned()));
        }
        let unit = async {
            let transaction = connection.transaction().await?;
            membership::check_not_fenced(&transaction, self.membership.run()).await?;
            let done = work(&transaction, arguments).await?;
            transaction.commit().await.map_err(PgFault::commit)?;
            Ok(done)
        };
        unless_given_up(outage, unit).await
    }
}

/// Aborts `work` if its connection has not answered within [`GIVE_UP`] after an outage: the connection may be
/// half-open. The callers were told when the outage began that the database is away.
async fn unless_given_up<T>(
    outage: impl Future<Output = ()>,
    work: impl Future<Output = Result<T, PgFault>>,
) -> Result<T, PgFault> {
    tokio::select! {
        // A unit that has ended is not given up.
        biased;
        done = work => done,
        () = outage => {
            Err(PgFault::Connection("the connection was given up after an outage of the database".to_owned()))
        }
    }
}
