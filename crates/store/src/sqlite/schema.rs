//! Opens the database: lock, checks, pragmas, migrations.

use super::file_id::{self, FileOrigin};
use super::integrity::StoreSize;
use super::{agents, failed, generation, integrity, lost, named};
use crate::StoreError;
use procfleet_sqlite::{Migrations, VersionError, beside, keep_log};
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

pub(super) const MIGRATIONS: Migrations = Migrations(&[
    include_str!("migrations/0001_init.sql"),
    include_str!("migrations/0002_events.sql"),
    include_str!("migrations/0003_users.sql"),
    include_str!("migrations/0004_process_groups.sql"),
    include_str!("migrations/0005_certificates.sql"),
    include_str!("migrations/0006_cancel_and_retry.sql"),
    include_str!("migrations/0007_agent_labels.sql"),
    include_str!("migrations/0008_late_reports.sql"),
    include_str!("migrations/0009_boots.sql"),
    include_str!("migrations/0010_audit_counts.sql"),
    include_str!("migrations/0011_last_heard.sql"),
    include_str!("migrations/0012_event_account.sql"),
    include_str!("migrations/0013_tokens.sql"),
    include_str!("migrations/0014_generations.sql"),
    include_str!("migrations/0015_drop_settings.sql"),
    include_str!("migrations/0016_ca.sql"),
    include_str!("migrations/0017_lists.sql"),
    include_str!("migrations/0018_event_and_audit_lists.sql"),
]);

/// For readers and backup tools of other processes. Other servers are kept out by the lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// More than there are different statements, so that none is prepared twice.
const STATEMENTS: usize = 64;

/// The writing connection, and the lock that keeps other servers out.
#[derive(Debug)]
pub(super) struct OpenedDatabase {
    pub(super) connection: Connection,
    pub(super) lock: StoreLock,
    /// The stamps that the file may have.
    pub(super) stamps: Vec<u32>,
    /// A large store is not checked yet.
    pub(super) size: StoreSize,
}

/// Held while the store may be written. The kernel releases it when the process ends.
#[derive(Debug)]
pub struct StoreLock {
    file: File,
}

impl Drop for StoreLock {
    /// A child that this process has forked has the file open until its `execve`, so closing it is not
    /// enough.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

pub(super) fn open(path: &Path) -> Result<OpenedDatabase, StoreError> {
    // The lock comes before anything else touches the file: closing any descriptor of a SQLite file drops the
    // locks that SQLite holds on it in this process.
    let lock = lock(path)?;
    lost::check_file(path)?;
    let (origin, stamp) = file_id::origin(path)?;
    let size = StoreSize::of(path);
    create(path).map_err(|source| StoreError::File { doing: "creating", path: path.to_owned(), source })?;
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .map_err(|source| named(failed("opening the store", source), path))?;
    lost::check_tables(&connection, path)?;
    if size == StoreSize::Small {
        integrity::check(&connection, path)?;
    }
    upgrade(&mut connection, path).map_err(|error| named(error, path))?;
    // Lists need it and nothing else does, so a full disk does not keep the server from starting.
    if let Err(error) = agents::forget_presence(&connection) {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "cannot reset which agents are connected; lists may show agents as connected until they come back"
        );
    }
    if origin == FileOrigin::Other {
        generation::begin(&mut connection)
            .map_err(|fault| named(fault.during("beginning a generation"), path))?;
    }
    let stamps = file_id::stamp(&connection, path, stamp)?;
    tracing::info!(path = %path.display(), schema = MIGRATIONS.known(), "store opened");
    Ok(OpenedDatabase { connection, lock, stamps, size })
}

pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .map_err(|source| failed("opening the store for reading", source))
}

/// Refuses a backup that this version cannot use as a store.
pub(super) fn check_backup(copy: &Path, named: &Path) -> Result<(), StoreError> {
    let failed = |source| super::failed("looking into the backup", source);
    let connection = Connection::open_with_flags(copy, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let found = MIGRATIONS
        .version(&connection)
        .map_err(|error| version_error(error, "looking into the backup", named))?;
    let sql =
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('agents', 'apps', 'tasks')";
    let tables: i64 = connection.query_row(sql, [], |row| row.get(0)).map_err(failed)?;
    if tables == 3 && found > 0 {
        return Ok(());
    }
    Err(StoreError::BadBackup {
        path: named.to_owned(),
        reason: "it is a database, and not a store of procfleet".to_owned(),
    })
}

/// Keeps other servers away from the data folder of the store at this path, also if the store itself is
/// elsewhere.
pub fn lock(path: &Path) -> Result<StoreLock, StoreError> {
    let path_of_lock = beside(path, ".lock");
    let failed = |source| StoreError::File { doing: "locking", path: path_of_lock.clone(), source };
    let file = create(&path_of_lock).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(StoreLock { file }),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { store: path.display().to_string() }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Readable by the owner only, because it holds hashes of secrets. SQLite gives `-wal` and `-shm` the same
/// mode.
fn create(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    // Each connection is used by one thread at a time, so it needs no mutex.
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    keep_log(&connection)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "foreign_keys", true)?;
    // Savepoints keep their rollback data in memory, not in files below /tmp.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    if access.contains(OpenFlags::SQLITE_OPEN_READ_WRITE) {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        // 32 MiB (negative means KiB): enough for a task of 100,000 ops.
        connection.pragma_update(None, "cache_size", -32_768)?;
        // The log is truncated to this size after a burst.
        connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    }
    Ok(connection)
}

pub(super) fn upgrade(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let mut apply = || -> Result<(), VersionError> {
        let transaction = connection.transaction()?;
        MIGRATIONS.apply(&transaction)?;
        agents::fill_host_order(&transaction)?;
        Ok(transaction.commit()?)
    };
    apply().map_err(|error| version_error(error, "upgrading the store's schema", path))
}

fn version_error(error: VersionError, doing: &'static str, path: &Path) -> StoreError {
    match error {
        VersionError::TooNew { found, known } => {
            StoreError::Newer { store: path.display().to_string(), found, known }
        }
        VersionError::Sqlite(source) => failed(doing, source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_free_again_while_a_forked_child_has_its_lock_file_open() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let path = folder.path().join("store.db");
        let held = lock(&path).expect("nobody has it");
        let of_child = held.file.try_clone().expect("a copy of the descriptor");
        drop(held);
        lock(&path).expect("free again");
        drop(of_child);
    }
}
