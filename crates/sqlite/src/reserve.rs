//! Disk blocks that a database holds in advance, for writes on a full disk.
//!
//! In WAL mode SQLite appends changes to the write-ahead log and copies them to the database file at a
//! checkpoint, after which it writes the log from its beginning again. Both files get blocks beyond their
//! ends with `fallocate`. A write into such blocks needs no free space, so a process that fills the disk
//! cannot take the reserve, as it could take the space of a file that is deleted when space is needed.
//!
//! SQLite deletes the log when the last connection is closed, and the blocks with it. [`keep_log`] prevents
//! that, so that the next start on a full disk finds a log that it can write.
//!
//! A file system without `fallocate`, or with copy-on-write (btrfs), gives no such guarantee.

use crate::files::{beside, folder_of};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rustix::fs::{FallocateFlags, StatVfsMountFlags, fallocate, statvfs};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The log grows to 1,000 pages of 4 KiB before SQLite's automatic checkpoint. The rest is for the
/// transaction that exceeds it.
const LOG: u64 = 5 << 20;
/// By how much the database file can grow.
const GROWTH: u64 = 1 << 20;
/// A disk with less free space than this counts as full.
const FULL: u64 = 1 << 20;

/// Must be dropped after every connection to the database: closing a descriptor of the file releases the
/// locks that SQLite holds on it in this process.
#[derive(Debug)]
pub struct Reserve {
    database: File,
    log: File,
    folder: PathBuf,
}

/// Keeps the log when this connection closes the database. [`Writer`](crate::Writer) leaves the log empty at
/// its end. Also keeps SQLite from changing a database that turns out to be damaged.
pub fn keep_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(|_| ())
}

impl Reserve {
    /// The reserve of a database that is open in WAL mode. It is empty until [`Reserve::fill`].
    pub fn of(database: &Path) -> io::Result<Reserve> {
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let folder = folder_of(database).to_owned();
        Ok(Reserve { database: open(database)?, log: open(&beside(database, "-wal"))?, folder })
    }

    /// Allocates the missing blocks. Idempotent; to be called regularly, because the database grows into its
    /// reserve.
    pub fn fill(&self) -> io::Result<()> {
        let size = self.database.metadata()?.len();
        allocate(&self.log, LOG)?;
        allocate(&self.database, size + GROWTH)
    }

    /// Copies the log into the database file and leaves it empty, with its reserved blocks.
    pub(crate) fn checkpoint(&self, connection: &Connection) -> rusqlite::Result<()> {
        // Truncating the log frees its blocks. On a full disk, another process could take them before `fill`.
        let mode = if self.is_disk_full() { "FULL" } else { "TRUNCATE" };
        connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))?;
        if let Err(error) = self.fill() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                folder = %self.folder.display(),
                "cannot reserve disk space; if the disk becomes full, the next start may fail"
            );
        }
        Ok(())
    }

    /// Whether the file system is mounted read-only.
    pub fn is_read_only(&self) -> bool {
        statvfs(&self.folder).is_ok_and(|disk| disk.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// The open database file. Opening and closing it a second time would release SQLite's locks.
    pub fn database(&self) -> &File {
        &self.database
    }

    /// Whether the disk has space for essential writes only.
    pub fn is_disk_full(&self) -> bool {
        is_disk_full(&self.folder)
    }

    /// Whether the disk is not full after a transaction that writes this many bytes. Each byte is written
    /// twice: to the log, and at a checkpoint to the database. The log may hold earlier transactions, whose
    /// checkpoint needs space, too.
    pub fn has_space_for(&self, bytes: u64) -> bool {
        let log = self.log.metadata().map_or(LOG, |log| log.len().min(LOG));
        let needed = FULL.saturating_add(log).saturating_add(bytes.saturating_mul(2));
        free_space(&self.folder).is_none_or(|free| free >= needed)
    }
}

/// Whether the disk of a folder is full. False if that cannot be determined.
pub(crate) fn is_disk_full(folder: &Path) -> bool {
    free_space(folder).is_some_and(|free| free < FULL)
}

/// Bytes that this process can still write to the disk of a folder. `None`: that cannot be determined.
fn free_space(folder: &Path) -> Option<u64> {
    let disk = statvfs(folder).ok()?;
    // Some blocks of a file system are for root only.
    let blocks = if rustix::process::geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
    Some(blocks.saturating_mul(disk.f_frsize))
}

/// Allocates blocks up to `size` without changing the file's length.
fn allocate(file: impl AsFd, size: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        // The file system cannot do it. The database works without a reserve.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    fn allocated(file: &fs::Metadata) -> u64 {
        file.blocks() * 512
    }

    #[test]
    fn files_get_blocks_beyond_their_ends_and_keep_their_lengths() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let database = folder.path().join("x.db");
        fs::write(&database, [1; 5000]).expect("our own folder");
        fs::write(folder.path().join("x.db-wal"), [2; 100]).expect("our own folder");
        let reserve = Reserve::of(&database).expect("both files are there");
        for _ in 0..2 {
            reserve.fill().expect("there is free space");
            let (file, log) = (reserve.database.metadata(), reserve.log.metadata());
            let (file, log) = (file.expect("a file"), log.expect("a file"));
            assert_eq!((file.len(), log.len()), (5000, 100));
            assert!(allocated(&file) > GROWTH && allocated(&log) >= LOG, "{file:?} {log:?}");
        }
    }

    #[test]
    fn a_database_without_a_log_is_an_error() {
        let folder = tempfile::tempdir().expect("a temp folder");
        fs::write(folder.path().join("x.db"), []).expect("our own folder");
        assert!(Reserve::of(&folder.path().join("x.db")).is_err());
    }

    #[test]
    fn a_closed_database_keeps_an_empty_log_with_its_blocks() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let path = folder.path().join("x.db");
        for rows in 1..3_i64 {
            let connection = Connection::open(&path).expect("a database");
            keep_log(&connection).expect("a setting");
            let insert =
                "PRAGMA journal_mode=WAL; CREATE TABLE IF NOT EXISTS t (n); INSERT INTO t VALUES (1)";
            connection.execute_batch(insert).expect("writable");
            let reserve = Reserve::of(&path).expect("both files are there");
            reserve.checkpoint(&connection).expect("writable");
            drop(connection);
            drop(reserve);
            let log = fs::metadata(beside(&path, "-wal")).expect("it is kept");
            assert_eq!(log.len(), 0);
            assert!(allocated(&log) >= LOG, "{log:?}");
            // The file alone has all rows.
            let copy = folder.path().join("copy.db");
            fs::copy(&path, &copy).expect("our own folder");
            let copy = Connection::open(&copy).expect("a database");
            let found: i64 = copy.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("rows");
            assert_eq!(found, rows);
        }
    }
}
