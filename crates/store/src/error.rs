//! Errors of the store, one variant for each thing that a caller can do. They contain no type of a driver.

use crate::CopyRefusal;
use procfleet_core::{AgentId, TaskId};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{store} is in use by another server")]
    InUse { store: String },
    #[error(
        "{store} was written by a newer procfleet: its schema is {found}, the newest known here is {known}"
    )]
    Newer { store: String, found: i64, known: i64 },
    #[error(
        "{0} cannot be used: {reason}. It was left as it is. Put the last backup in its place with `procfleet store restore`; \
         `sqlite3 {0} .recover` prints the readable rows",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "{0}-wal belongs to another file than {0}: {0} was replaced by another store, perhaps a backup. Both were left as \
         they are. Put the backup in place with `procfleet store restore`. To use {0} as it is, move {0}-wal and {0}-shm away",
        path.display()
    )]
    ForeignLog { path: PathBuf },
    #[error(
        "{} does not hold the number of the newest generation, so a restored backup could assign numbers of tasks and events \
         again. Restore the file from the last backup of the data folder, or write a number into it that is greater than \
         the number of backups that were ever restored here",
        path.display()
    )]
    BadGeneration { path: PathBuf },
    #[error("{} cannot be restored: {reason}. Nothing was changed", path.display())]
    BadBackup { path: PathBuf, reason: String },
    #[error("{} cannot be copied: {reason}", path.display())]
    NotCopied { path: PathBuf, reason: String },
    #[error("nothing was copied to {store}: {reason}")]
    CopyRefused { store: String, reason: CopyRefusal },
    #[error("copying the table {table}")]
    CopyTable {
        table: &'static str,
        #[source]
        source: Box<StoreError>,
    },
    /// The copy was rolled back.
    #[error(
        "the copy of the table {table} differs from the original, so it was given up and {store} is as before: {difference}"
    )]
    CopyDiffers { store: String, table: &'static str, difference: String },
    /// For a server that starts.
    #[error("`procfleet store copy` is writing to {store}; start the server after it has ended")]
    BeingCopied { store: String },
    #[error(
        "{} is {how}, but {} shows that this data folder had a store. Put the last backup in its place with `procfleet store restore`. To start with \
         an empty store, move that certificate away; every host must then join again",
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
        source: DriverError,
    },
    /// The change, and all that shared its commit, were rolled back.
    #[error("{doing}: committing it")]
    Commit {
        doing: &'static str,
        #[source]
        source: DriverError,
    },
    /// Nothing was changed: the rest of the disk is for stops, kills and outcomes. The same call succeeds
    /// when the disk has space.
    #[error("{doing}: the disk of the data folder has too little space; free some there")]
    NoSpace { doing: &'static str },
    /// The database does not answer, or refuses connections or changes for now. Nothing is known to be lost;
    /// the same call may succeed later.
    #[error("{doing}: the database is away: {reason}")]
    Unavailable { doing: &'static str, reason: String },
    /// The connection ended during the commit: the change is stored or not.
    #[error(
        "{doing}: the connection to the database ended during the commit, so it is not known whether it is stored"
    )]
    Uncertain {
        doing: &'static str,
        #[source]
        source: DriverError,
    },
    /// The task is stored, will be, or is not: the database stopped answering, or the connection ended, while
    /// the task was created.
    #[error("it is not known whether task {task} is stored")]
    TaskUncertain {
        task: TaskId,
        #[source]
        source: Box<StoreError>,
    },
    /// This server did not reach the database for a while, and others have declared it dead.
    #[error("other servers have declared this one dead; it goes on as a new one")]
    Fenced,
    /// The agent has connected again since: what its earlier session said is out of date.
    #[error("agent {0} has begun another session since")]
    OldSession(AgentId),
    #[error("the store's URL: {0}")]
    Url(String),
    #[error(
        "{store} is reached by a connection pooler that shares connections between transactions, such as PgBouncer with \
         pool_mode = transaction. The store needs sessions: use the address of PostgreSQL itself, or pool_mode = session"
    )]
    Pooler { store: String },
    #[error(
        "{store} has the encoding {encoding}, which cannot represent every text. The store needs UTF8: create the database \
         with `createdb -E UTF8 -T template0`"
    )]
    Encoding { store: String, encoding: String },
    /// This program cannot parse a stored value.
    #[error("{doing}: the store holds {what} that cannot be read: {reason}")]
    Unreadable { doing: &'static str, what: &'static str, reason: String },
    /// The value could not be read back.
    #[error("{doing}: {what} cannot be stored: {reason}")]
    Unwritable { doing: &'static str, what: &'static str, reason: String },
    /// The database does not accept a value, and would not accept it a second time. The change, and all that
    /// shared its transaction, were rolled back.
    #[error("{doing}: the database does not accept a value")]
    BadValue {
        doing: &'static str,
        #[source]
        source: DriverError,
    },
    #[error("there is already {what} {key}")]
    Exists { what: &'static str, key: String },
    #[error("there is no {what} {key}")]
    Missing { what: &'static str, key: String },
    /// Sign the certificate again, after reading which CA signs.
    #[error("the CA has changed since the certificate was signed")]
    CaChanged,
    #[error("agent {0} is not enrolled, or was retired or revoked")]
    NoSuchAgent(AgentId),
    #[error("the store is closed")]
    Closed,
    /// A defect of this program; the log has its location.
    #[error("{doing}: the work panicked")]
    Panicked { doing: &'static str },
}

impl StoreError {
    /// A restart would not help: an operator has to act.
    pub fn needs_operator(&self) -> bool {
        matches!(
            self,
            StoreError::Damaged { .. }
                | StoreError::Lost { .. }
                | StoreError::Replaced { .. }
                | StoreError::ForeignLog { .. }
                | StoreError::BadGeneration { .. }
                | StoreError::Newer { .. }
                | StoreError::Url(_)
                | StoreError::Pooler { .. }
                | StoreError::Encoding { .. }
        )
    }
}

impl StoreError {
    /// A repetition fails again. Other values of the same transaction can be stored.
    pub fn is_of_values(&self) -> bool {
        matches!(self, StoreError::BadValue { .. } | StoreError::Unwritable { .. })
    }

    pub(crate) fn from_join(doing: &'static str, error: &tokio::task::JoinError) -> StoreError {
        match error.is_panic() {
            true => StoreError::Panicked { doing },
            false => StoreError::Closed,
        }
    }
}

impl From<tokio::task::JoinError> for StoreError {
    /// The task was cancelled with its runtime, or panicked, which ends the server.
    fn from(_: tokio::task::JoinError) -> Self {
        StoreError::Closed
    }
}

/// The error of an engine's driver. Only the engine looks inside.
#[derive(Clone)]
pub struct DriverError(Arc<dyn std::error::Error + Send + Sync>);

impl DriverError {
    pub(crate) fn new(error: impl std::error::Error + Send + Sync + 'static) -> DriverError {
        DriverError(Arc::new(error))
    }

    pub(crate) fn shared<E: std::error::Error + Send + Sync + 'static>(error: Arc<E>) -> DriverError {
        DriverError(error)
    }

    pub(crate) fn as_driver<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for DriverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
