//! Connections to the database file.

use super::failed;
use crate::StoreError;
use procfleet_sqlite::keep_log;
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

/// For readers and backup tools of other processes. Other servers are kept out by the lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// More than there are different statements, so that none is prepared twice.
const STATEMENTS: usize = 64;

pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .map_err(|source| failed("opening the store for reading", source))
}

/// Readable by the owner only, because it holds hashes of secrets. SQLite gives `-wal` and `-shm` the same
/// mode.
pub(super) fn create(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

pub(super) fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
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
        // A transaction may hold this many changed pages, 32 MiB: enough for a task of 100,000 ops. Unchanged
        // pages are kept up to the default `cache_size`, 2 MiB, so that memory does not grow with the file.
        connection.pragma_update(None, "cache_spill", 8_192)?;
        // The log is truncated to this size after a burst.
        connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    } else {
        // In KiB. The kernel caches the file; with the default of 2 MiB, each reader keeps a copy of the same
        // pages, and the server's memory grows for hours until all copies are full.
        connection.pragma_update(None, "cache_size", -512)?;
    }
    Ok(connection)
}
