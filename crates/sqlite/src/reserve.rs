//! Disk space that a database holds in advance, for writes on a full disk.
//!
//! In WAL mode SQLite appends changes to the write-ahead log and copies them to the database file at a
//! checkpoint, after which it writes the log from its beginning again.
//!
//! - The log gets blocks beyond its end with `fallocate`. A write into such blocks needs no free space, so a
//!   process that fills the disk cannot take the reserve, as it could take the space of a file that is
//!   deleted when space is needed.
//! - The database gets free pages inside its file, which SQLite fills before the file grows. Blocks beyond
//!   the end would not last: SQLite cuts the file to its length at each checkpoint, which frees them.
//!
//! SQLite deletes the log when the last connection is closed, and the blocks with it. [`keep_log`] prevents
//! that, so that the next start on a full disk finds a log that it can write.
//!
//! A file system without `fallocate`, or with copy-on-write (btrfs), gives no such guarantee.

use crate::files::{beside, folder_of};
use crate::wal_index::WalIndex;
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
/// Size of the free pages inside the database file, for new rows. They are added when half is used up.
const SPARE: u64 = 1 << 20;
/// A disk with less free space than this counts as full.
const FULL: u64 = 1 << 20;

/// Must be dropped after every connection to the database: closing a descriptor of the file releases the
/// locks that SQLite holds on it in this process.
#[derive(Debug)]
pub struct Reserve {
    database: File,
    log: File,
    log_index: WalIndex,
    folder: PathBuf,
}

/// Keeps the log when this connection closes the database. [`Writer`](crate::Writer) leaves the log empty at
/// its end. Also keeps SQLite from changing a database that turns out to be damaged.
pub fn keep_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(|_| ())
}

impl Reserve {
    /// The reserve of a database that is open in WAL mode. [`Writer`](crate::Writer) fills it.
    pub fn of(database: &Path) -> io::Result<Reserve> {
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let folder = folder_of(database).to_owned();
        Ok(Reserve {
            database: open(database)?,
            log: open(&beside(database, "-wal"))?,
            log_index: WalIndex::of(database)?,
            folder,
        })
    }

    /// Whether free pages should be added: few are left, and the disk has space for them.
    pub(crate) fn wants_pages(&self, connection: &Connection) -> rusqlite::Result<bool> {
        Ok(is_reserve_low(connection)? && self.has_space_for(SPARE))
    }

    /// Adds free pages to the database file, in a transaction of the caller.
    pub(crate) fn add_pages(connection: &Connection) -> rusqlite::Result<()> {
        let missing = SPARE.saturating_sub(spare(connection)?);
        connection.execute_batch(&format!(
            "CREATE TABLE disk_reserve AS SELECT zeroblob({missing}) AS space; DROP TABLE disk_reserve"
        ))
    }

    /// Allocates the blocks of the log, and those of pages that the next checkpoint adds to the database.
    /// Idempotent.
    pub(crate) fn allocate(&self, connection: &Connection) -> io::Result<()> {
        let size = pragma(connection, "page_count")
            .and_then(|pages| Ok(pages * pragma(connection, "page_size")?))
            .map_err(io::Error::other)?;
        allocate(&self.log, 0, LOG)?;
        // Large files have many extents, and only the last pages are new.
        let begin = size.saturating_sub(2 * SPARE);
        allocate(&self.database, begin, size - begin)
    }

    /// Copies the log into the database file and leaves it empty, with its reserved blocks.
    pub(crate) fn checkpoint(&self, connection: &Connection) -> rusqlite::Result<()> {
        // Truncating the log frees its blocks. On a full disk, another process could take them before they
        // are allocated again.
        let mode = if self.is_disk_full() { "FULL" } else { "TRUNCATE" };
        connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))?;
        if let Err(error) = self.allocate(connection) {
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

    /// Whether another program has cut or overwritten the log.
    pub fn log_is_cut(&self) -> bool {
        self.log_index.misses_frames_in(&self.log)
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

/// Whether less than half of the free pages inside the database file is left.
pub fn is_reserve_low(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(spare(connection)? < SPARE / 2)
}

fn spare(connection: &Connection) -> rusqlite::Result<u64> {
    Ok(pragma(connection, "freelist_count")? * pragma(connection, "page_size")?)
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<u64> {
    connection.pragma_query_value(None, name, |row| row.get(0)).map(i64::cast_unsigned)
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

/// Allocates blocks without changing the file's length.
fn allocate(file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, offset, length) {
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

    fn database(path: &Path) -> Connection {
        let connection = Connection::open(path).expect("a database");
        keep_log(&connection).expect("a setting");
        let table = "PRAGMA journal_mode=WAL; CREATE TABLE IF NOT EXISTS t (n)";
        connection.execute_batch(table).expect("writable");
        connection
    }

    /// SQLite cuts the file to its length at a checkpoint.
    #[test]
    fn checkpoints_leave_the_reserve() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let path = folder.path().join("x.db");
        let connection = database(&path);
        let reserve = Reserve::of(&path).expect("both files are there");
        assert!(reserve.wants_pages(&connection).expect("readable"));
        Reserve::add_pages(&connection).expect("there is free space");
        reserve.allocate(&connection).expect("there is free space");
        for checkpoint in ["PASSIVE", "FULL", "RESTART", "FULL"] {
            let insert = "INSERT INTO t VALUES (zeroblob(50000))";
            connection.execute_batch(insert).expect("writable");
            let checkpoint = format!("PRAGMA wal_checkpoint({checkpoint})");
            connection.query_row(&checkpoint, [], |_| Ok(())).expect("no reader is in the way");
            let (file, log) = (reserve.database.metadata(), reserve.log.metadata());
            let (file, log) = (file.expect("a file"), log.expect("a file"));
            assert!(allocated(&file) > SPARE && allocated(&file) >= file.len(), "{file:?}");
            assert!(allocated(&log) >= LOG, "{log:?}");
        }
        let length = |file: &File| file.metadata().expect("a file").len();
        let before = length(&reserve.database);
        for _ in 0..12 {
            connection.execute_batch("INSERT INTO t VALUES (zeroblob(50000))").expect("writable");
        }
        connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())).expect("nobody reads");
        assert_eq!(length(&reserve.database), before, "the rows are in pages that were free");
        assert!(is_reserve_low(&connection).expect("readable"));
        Reserve::add_pages(&connection).expect("there is free space");
        assert!(!reserve.wants_pages(&connection).expect("readable"));
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
            let connection = database(&path);
            connection.execute_batch("INSERT INTO t VALUES (1)").expect("writable");
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
