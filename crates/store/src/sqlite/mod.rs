//! The embedded engine: one SQLite file.
//!
//! Theory of operation. The file is in WAL mode, with one writer and a few readers:
//!
//! ```text
//! many tasks --jobs--> bounded channel --> writer thread: BEGIN, each job in a savepoint, COMMIT, answer all
//! many tasks --------> a permit -------> spawn_blocking: one read transaction on one of the read-only connections
//! ```
//!
//! - A method that changes something returns after the commit that holds its change was synced to disk. Jobs
//!   that wait at the same moment share one commit, so that thousands of small changes cost one sync.
//! - A job that fails rolls back its own changes only.
//! - Dropping a future does not cancel its job.

mod agent_list;
mod agents;
mod apps;
mod audit;
mod backup;
mod boots;
mod businesses;
mod ca;
mod certificates;
mod columns;
mod conditions;
mod connection;
mod events;
mod file_id;
mod generation;
mod health;
mod integrity;
mod join;
mod missing_store;
mod ops;
mod proc_list;
mod process_groups;
mod procs;
mod reader;
mod readmit;
mod retention;
mod schema;
mod snapshot;
mod spare_space;
mod store_lock;
mod submissions;
mod tasks;
mod tokens;
mod users;

#[cfg(test)]
mod tests;

pub use backup::{backup, restore};
pub(crate) use snapshot::Snapshot;
pub use store_lock::{StoreLock, lock};

use crate::{DrainOutcome, DriverError, Membership, NewAudit, ServerIntro, ServerRecord, StoreError};
use health::{HealthGuard, StoreHealth};
use integrity::{BackgroundCheck, StoreSize};
use procfleet_failpoint::Point;
use procfleet_program::panics;
use procfleet_sqlite::{Reserve, WriteError, Writer, WriterSettings, explain, is_damage};
use reader::Readers;
use rusqlite::Connection;
use spare_space::SpareSpace;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Larger groups gain nothing, and make their first job wait.
const WRITER: WriterSettings = WriterSettings {
    name: "procfleet-store",
    group: 1_000,
    // Only the writer writes. Immediate, so that a job never fails because its read snapshot is outdated.
    begin: "BEGIN IMMEDIATE",
    commit: Point::ServerCommit,
};

/// How often the files of the store are checked when nothing is written.
const FILES: Duration = Duration::from_secs(1);

/// The embedded engine. Clones share one open file.
#[derive(Clone, Debug)]
pub(crate) struct SqliteStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    check: Mutex<Option<BackgroundCheck>>,
    size: StoreSize,
    /// Before the writer: fields are dropped in order, and the writer's last checkpoint needs no readers.
    readers: Readers,
    writer: Writer,
    reserve: Arc<Reserve>,
    spare_space: SpareSpace,
    health: Arc<StoreHealth>,
    membership: Membership,
}

/// The error of a statement.
fn failed(doing: &'static str, source: rusqlite::Error) -> StoreError {
    StoreError::Database { doing, source: DriverError::new(source) }
}

fn damaged(path: &Path, reason: impl Into<String>) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), reason: reason.into() }
}

/// Names the file in an error where the cause is damage or a full disk.
pub fn named(error: StoreError, path: &Path) -> StoreError {
    match &error {
        StoreError::Database { doing, source } => match source.as_driver::<rusqlite::Error>() {
            Some(source) if is_damage(source) => damaged(path, source.to_string()),
            Some(rusqlite::Error::SqliteFailure(code, text)) => {
                failed(doing, explain(rusqlite::Error::SqliteFailure(*code, text.clone()), path))
            }
            Some(_) | None => error,
        },
        StoreError::Commit { source, .. } => match source.as_driver::<rusqlite::Error>() {
            Some(source) if is_damage(source) => damaged(path, source.to_string()),
            Some(_) | None => error,
        },
        StoreError::Unreadable { .. } => damaged(path, error.to_string()),
        _ => error,
    }
}

impl SqliteStore {
    /// Opens the store. Creates or migrates the file if needed.
    pub(crate) async fn open(path: &Path) -> Result<SqliteStore, StoreError> {
        let path = path.to_owned();
        let open = move || {
            let opened = schema::open(&path)?;
            let readers = Readers::open(&path)?;
            let failed = |doing| {
                let path = path.clone();
                move |source| StoreError::File { doing, path, source }
            };
            let reserve =
                Arc::new(Reserve::of(&path).map_err(failed("opening, to reserve disk space, the files of"))?);
            let health = Arc::new(
                StoreHealth::of(&path, reserve.clone(), opened.stamps)
                    .map_err(failed("looking at the files of"))?,
            );
            let spare_space = SpareSpace::of(reserve.clone());
            let guard =
                HealthGuard { health: health.clone(), spare_space: spare_space.clone(), _lock: opened.lock };
            let writer = Writer::start(WRITER, opened.connection, reserve.clone(), guard)
                .map_err(failed("starting the writer of"))?;
            Ok(SqliteStore {
                inner: Arc::new(Inner {
                    check: Mutex::new(None),
                    size: opened.size,
                    readers,
                    writer,
                    reserve,
                    spare_space,
                    health,
                    membership: Membership::alone(),
                }),
            })
        };
        tokio::task::spawn_blocking(open)
            .await
            .unwrap_or(Err(StoreError::Panicked { doing: "opening the store" }))
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.inner.membership
    }

    /// The only server has nobody to introduce itself to.
    pub(crate) async fn introduce(&self, _intro: ServerIntro) -> Result<(), StoreError> {
        Ok(())
    }

    pub(crate) async fn servers(&self) -> Result<Vec<ServerRecord>, StoreError> {
        Ok(Vec::new())
    }

    /// The store knows no server by its name.
    pub(crate) async fn drain_server(
        &self,
        _name: &str,
        _drains: bool,
        _audit: NewAudit,
    ) -> Result<DrainOutcome, StoreError> {
        Ok(DrainOutcome::Unknown)
    }

    /// Whether only essential changes should be written.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.inner.reserve.is_disk_full()
    }

    /// Whether little space for changes on a full disk is left.
    pub(crate) async fn is_reserve_low(&self) -> Result<bool, StoreError> {
        let look = |connection: &Connection| Ok(procfleet_sqlite::is_reserve_low(connection)?);
        self.read("looking at the disk reserve of the store", look).await
    }

    /// Checks a large store, which was not checked before it was opened.
    pub(crate) fn check_in_background(&self) -> Result<(), StoreError> {
        let Inner { check, size, health, .. } = &*self.inner;
        let mut check = check.lock().unwrap_or_else(PoisonError::into_inner);
        if *size == StoreSize::Large && check.is_none() {
            *check = Some(BackgroundCheck::start(Arc::clone(health))?);
        }
        Ok(())
    }

    /// Why the store accepts no changes now. `None`: it does.
    pub(crate) async fn refuses_changes(&self) -> Option<String> {
        let Inner { health, reserve, .. } = &*self.inner;
        if let Some(condemned) = health.condemned() {
            // Anyone may call /readyz, so no path is named.
            return Some(condemned.in_short().to_owned());
        }
        if reserve.is_read_only() {
            return Some("the file system of the data folder is read-only".to_owned());
        }
        if self.is_disk_full() {
            return Some("the disk of the data folder is full".to_owned());
        }
        // Only after a failure: anyone may call /readyz, and a write costs a sync.
        let tried = match health.last_commit_failed() {
            true => self.probe_write().await,
            false => self.probe_read().await,
        };
        tried.err().map(|error| match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })
    }

    /// Returns when the store has become unusable: its files were replaced, or it is damaged.
    pub(crate) async fn failed(&self) -> StoreError {
        let mut condemned = self.inner.health.subscribe();
        loop {
            if let Some(condemned) = condemned.borrow_and_update().clone() {
                return condemned.into();
            }
            let _ = tokio::time::timeout(FILES, condemned.changed()).await;
            let health = Arc::clone(&self.inner.health);
            // The result is in `condemned`, too.
            let _ = tokio::task::spawn_blocking(move || health.check()).await;
        }
    }

    /// Refuses further jobs, carries out those that were handed over, and leaves the log empty. Other clones
    /// of the handle get [`StoreError::Closed`] from then on.
    pub(crate) async fn close(self) -> Result<(), StoreError> {
        let check = self.inner.check.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = tokio::task::spawn_blocking(|| drop(check)).await;
        self.inner.readers.close().await;
        const DOING: &str = "closing the store";
        match self.inner.writer.close().await {
            Some(closed) => closed.map_err(|source| failed(DOING, source)),
            None => Err(StoreError::Panicked { doing: DOING }),
        }
    }

    /// Runs `change` on the writer. Returns when it is durable.
    async fn write<T, F>(&self, doing: &'static str, change: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, QueryFault> + Send + 'static,
    {
        // The writer rolls the savepoint back, so a panic costs this job alone.
        let job = move |db: &Connection| {
            panics::catch_in(|| change(db))
                .unwrap_or(Err(QueryFault::Known(StoreError::Panicked { doing })))
                .map_err(|fault| fault.during(doing))
        };
        self.judged(self.inner.writer.run(job).await.map_err(|error| match error {
            WriteError::Job(error) => error,
            WriteError::Commit(source) => StoreError::Commit { doing, source: DriverError::shared(source) },
            WriteError::Closed => StoreError::Closed,
        }))
    }

    /// Runs `look` in one read transaction.
    async fn read<T, F>(&self, doing: &'static str, look: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, QueryFault> + Send + 'static,
    {
        self.judged(self.inner.readers.run(doing, look).await)
    }

    /// A damaged file ends the server.
    fn judged<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.inspect_err(|error| self.inner.health.judge(error))
    }
}

/// An error inside a job, without what the job was doing.
#[derive(Debug)]
enum QueryFault {
    Sql(rusqlite::Error),
    Unreadable { what: &'static str, reason: String },
    Unwritable { what: &'static str, reason: String },
    Known(StoreError),
}

impl QueryFault {
    fn during(self, doing: &'static str) -> StoreError {
        match self {
            QueryFault::Sql(source) => failed(doing, source),
            QueryFault::Unreadable { what, reason } => StoreError::Unreadable { doing, what, reason },
            QueryFault::Unwritable { what, reason } => StoreError::Unwritable { doing, what, reason },
            QueryFault::Known(error) => error,
        }
    }
}

impl From<rusqlite::Error> for QueryFault {
    fn from(error: rusqlite::Error) -> Self {
        QueryFault::Sql(error)
    }
}

impl From<StoreError> for QueryFault {
    fn from(error: StoreError) -> Self {
        QueryFault::Known(error)
    }
}
