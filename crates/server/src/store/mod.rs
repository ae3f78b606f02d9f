//! The embedded store: the server's durable state.
//!
//! Theory of operation. One SQLite file in WAL mode, with one writer and a few readers:
//!
//! ```text
//! many tasks --jobs--> bounded channel --> writer thread: BEGIN, each job in a savepoint, COMMIT, answer all
//! many tasks --------> a permit -------> spawn_blocking: one read transaction on one of the read-only connections
//! ```
//!
//! - A method that changes something returns after the commit that holds its change was synced to disk. Jobs
//!   that wait at the same moment share one commit, so that thousands of small changes cost one sync.
//! - A job that fails rolls back its own changes only.
//! - A read sees one snapshot, which includes every change that was answered before the read began.
//! - Dropping a future does not cancel its job.
//!
//! The store decides nothing about ops and reads no clock: wall times come from the caller, in milliseconds
//! since 1970, UTC. No other module of the server uses the database.

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
mod events;
mod file_id;
mod generation;
mod health;
mod integrity;
mod lost;
mod ops;
mod proc_list;
mod process_groups;
mod procs;
mod reader;
mod readmit;
mod retention;
mod schema;
mod submissions;
mod tasks;
mod tokens;
mod users;

#[cfg(test)]
mod tests;

pub use agent_list::{AgentFilter, AgentPage, ConnectedAgents, RevokedAgents};
pub use agents::{AGENT_REPLACED, AgentRecord, FoundTarget, JoinedAgent, JoiningAgent, LINK, Revoked};
pub use apps::{AppChange, AppRow, AppTrust, GrantChange, NewApp};
pub use audit::{AuditCount, AuditFilter, AuditRecord, NewAudit};
pub use backup::{backup, restore};
pub use businesses::{Business, BusinessSet};
pub use ca::TokensOfCa;
pub use certificates::{CertificateRecord, FORGOTTEN};
pub use events::{EventFilter, EventPage, EventRecord, NewEvent, Webhook};
pub use ops::{Applied, Finished, OpenOpRow};
pub use proc_list::{FailedProcs, ProcFilter, ProcListPage};
pub use process_groups::GroupsRecord;
pub use procs::{ProcListing, ProcPage, ProcRecord};
pub use readmit::ReadmitRefusal;
pub use retention::{Deleted, Slice};
pub use submissions::{KeyKind, Submission, SubmissionKey, Submitted};
pub use tasks::{
    LateReport, NewOp, NewTask, OpRecord, RequestHead, TaskCounts, TaskFilter, TaskListPage, TaskPage,
    TaskRecord,
};
pub use tokens::{JoinTokenRefusal, NewToken, Replaces, TokenRecord, TokenUse};
pub use users::{NewUserToken, TokenHolder, UserChange, UserRow};

use health::{HealthGuard, StoreHealth};
use integrity::{BackgroundCheck, StoreSize};
use procfleet_core::AgentId;
use procfleet_failpoint::Point;
use procfleet_program::panics;
use procfleet_sqlite::{Reserve, WriteError, Writer, WriterSettings, explain, is_damage};
use reader::Readers;
use rusqlite::Connection;
use std::io;
use std::path::{Path, PathBuf};
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

/// The handle. Clones share one open store. It is closed by [`Store::close`], or by dropping the last clone,
/// which waits for the jobs that were handed over.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    check: Mutex<Option<BackgroundCheck>>,
    /// Before the writer: fields are dropped in order, and the writer's last checkpoint needs no readers.
    readers: Readers,
    writer: Writer,
    reserve: Arc<Reserve>,
    health: Arc<StoreHealth>,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{} is in use by another server", path.display())]
    InUse { path: PathBuf },
    #[error(
        "{} was written by a newer procfleet: its schema is {found}, the newest known here is {known}",
        path.display()
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error(
        "{0} cannot be used: {reason}. It was left as it is. Put the last backup in its place with `procfleet store restore`; \
         what can still be read of it, `sqlite3 {0} .recover` prints",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "{0}-wal belongs to another file than {0}: somebody has put another store, perhaps a backup, in the place of the last. Both were left as \
         they are. Put the backup in place with `procfleet store restore`. To use {0} as it is, move {0}-wal and {0}-shm away",
        path.display()
    )]
    ForeignLog { path: PathBuf },
    #[error("{} cannot be restored: {reason}. Nothing was changed", path.display())]
    BadBackup { path: PathBuf, reason: String },
    #[error(
        "{} is {how}, and this server had one: {} is there. Put the last backup in its place with `procfleet store restore`. To begin anew without its agents, \
         apps and tasks, so that every host has to join again, move that certificate away",
        path.display(), later.display()
    )]
    Lost { path: PathBuf, how: &'static str, later: PathBuf },
    #[error(
        "{0} was replaced or removed while the server ran, and nothing was accepted since. To use a backup, run `procfleet store restore` \
         while no server runs. To use the file that is at {1} now, move {1}-wal and {1}-shm away, which belong to the one before",
        file.display(), path.display()
    )]
    Replaced { path: PathBuf, file: PathBuf },
    #[error("{doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{doing}")]
    Database {
        doing: &'static str,
        #[source]
        source: rusqlite::Error,
    },
    /// The change, and all that shared its commit, were rolled back.
    #[error("{doing}: committing it")]
    Commit {
        doing: &'static str,
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// This program cannot parse a stored value.
    #[error("{doing}: the store holds {what} that cannot be read: {reason}")]
    Unreadable { doing: &'static str, what: &'static str, reason: String },
    /// The value could not be read back.
    #[error("{doing}: {what} cannot be stored: {reason}")]
    Unwritable { doing: &'static str, what: &'static str, reason: String },
    #[error("there is already {what} {key}")]
    Exists { what: &'static str, key: String },
    #[error("there is no {what} {key}")]
    Missing { what: &'static str, key: String },
    #[error("agent {0} is not enrolled, or was retired or revoked")]
    NoSuchAgent(AgentId),
    #[error("the store is closed")]
    Closed,
    /// A defect of this program; the log has its location.
    #[error("{doing}: the work panicked")]
    Panicked { doing: &'static str },
}

impl StoreError {
    /// Names the cause where it is a damaged file or a full disk.
    pub fn named(self, path: &Path) -> StoreError {
        match self {
            StoreError::Database { source, .. } if is_damage(&source) => {
                StoreError::damaged(path, source.to_string())
            }
            StoreError::Commit { source, .. } if is_damage(&source) => {
                StoreError::damaged(path, source.to_string())
            }
            StoreError::Unreadable { .. } => StoreError::damaged(path, self.to_string()),
            StoreError::Database { doing, source } => {
                StoreError::Database { doing, source: explain(source, path) }
            }
            error => error,
        }
    }

    fn damaged(path: &Path, reason: impl Into<String>) -> StoreError {
        StoreError::Damaged { path: path.to_owned(), reason: reason.into() }
    }

    /// A restart would not help: an operator has to act.
    pub fn needs_somebody(&self) -> bool {
        matches!(
            self,
            StoreError::Damaged { .. }
                | StoreError::Lost { .. }
                | StoreError::Replaced { .. }
                | StoreError::ForeignLog { .. }
                | StoreError::Newer { .. }
        )
    }
}

impl Store {
    /// Opens the store. Creates or migrates the file if needed.
    pub async fn open(path: &Path) -> Result<Store, StoreError> {
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
            let guard = HealthGuard { health: health.clone(), _lock: opened.lock };
            let writer = Writer::start(WRITER, opened.connection, reserve.clone(), guard)
                .map_err(failed("starting the writer of"))?;
            let check = match opened.size {
                StoreSize::Small => None,
                StoreSize::Large => Some(BackgroundCheck::start(&path, health.clone())?),
            };
            let check = Mutex::new(check);
            let store = Store { inner: Arc::new(Inner { check, readers, writer, reserve, health }) };
            store.fill_reserve();
            Ok(store)
        };
        tokio::task::spawn_blocking(open)
            .await
            .unwrap_or(Err(StoreError::Panicked { doing: "opening the store" }))
    }

    /// Whether only essential changes should be written.
    pub fn is_disk_full(&self) -> bool {
        self.inner.reserve.is_disk_full()
    }

    /// Reserves disk space for changes on a full disk. To be called regularly.
    pub fn fill_reserve(&self) {
        if let Err(error) = self.inner.reserve.fill() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "no disk space can be reserved for the store; if the disk becomes full, stop and kill may fail"
            );
        }
    }

    /// Why the store accepts no changes now. `None`: it does.
    pub async fn refuses_changes(&self) -> Option<String> {
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
    pub async fn failed(&self) -> StoreError {
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
    pub async fn close(self) -> Result<(), StoreError> {
        let check = self.inner.check.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = tokio::task::spawn_blocking(|| drop(check)).await;
        self.inner.readers.close().await;
        const DOING: &str = "closing the store";
        match self.inner.writer.close().await {
            Some(closed) => closed.map_err(|source| StoreError::Database { doing: DOING, source }),
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
            WriteError::Commit(source) => StoreError::Commit { doing, source },
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
            QueryFault::Sql(source) => StoreError::Database { doing, source },
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
