//! Disk blocks that a database holds in advance, so that it can be written when the disk is full.
//!
//! In WAL mode SQLite appends changes to the write-ahead log and copies them to the database file at a
//! checkpoint, after which the log is written from its beginning again. Both files get blocks beyond their
//! ends with `fallocate`. A write into such blocks needs no free space, so a process that fills the disk
//! cannot take the reserve away, as it could with a file that is deleted when space is needed.
//!
//! On a file system without `fallocate`, and on one that copies on write (btrfs), there is no such guarantee.

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

impl Reserve {
    /// The reserve of a database that is open in WAL mode. It is empty until [`Reserve::fill`].
    pub fn of(database: &Path) -> io::Result<Reserve> {
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let mut log = database.as_os_str().to_owned();
        log.push("-wal");
        let folder = folder_of(database).to_owned();
        Ok(Reserve { database: open(database)?, log: open(Path::new(&log))?, folder })
    }

    /// Allocates what is missing. Idempotent; to be called now and then, since the database grows into its
    /// reserve.
    pub fn fill(&self) -> io::Result<()> {
        let size = self.database.metadata()?.len();
        allocate(&self.log, LOG)?;
        allocate(&self.database, size + GROWTH)
    }

    /// Whether the file system takes no writes.
    pub fn is_read_only(&self) -> bool {
        statvfs(&self.folder).is_ok_and(|disk| disk.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// The open database file, for a look at it: opening and closing it once more would release SQLite's
    /// locks.
    pub fn database(&self) -> &File {
        &self.database
    }

    /// Whether the disk has no room for anything that is not essential.
    pub fn is_disk_full(&self) -> bool {
        is_disk_full(&self.folder)
    }
}

/// Whether the disk of a folder is full. False if that cannot be told.
pub(crate) fn is_disk_full(folder: &Path) -> bool {
    let Ok(disk) = statvfs(folder) else { return false };
    // Some blocks of a file system are for root alone.
    let blocks = if rustix::process::geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
    blocks.saturating_mul(disk.f_frsize) < FULL
}

/// The folder that a file is in.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Allocates blocks up to `size` without changing the file's length.
fn allocate(file: impl AsFd, size: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        // A file system that cannot do it. The database works without a reserve.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_get_blocks_beyond_their_ends_and_keep_their_lengths() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let database = folder.path().join("x.db");
        fs::write(&database, [1; 5000]).expect("our own folder");
        fs::write(folder.path().join("x.db-wal"), [2; 100]).expect("our own folder");
        let reserve = Reserve::of(&database).expect("both files are there");
        for _ in 0..2 {
            reserve.fill().expect("there is room");
            let (file, log) = (reserve.database.metadata(), reserve.log.metadata());
            let (file, log) = (file.expect("a file"), log.expect("a file"));
            assert_eq!((file.len(), log.len()), (5000, 100));
            assert!(file.blocks() * 512 > GROWTH && log.blocks() * 512 >= LOG, "{file:?} {log:?}");
        }
    }

    #[test]
    fn a_database_without_a_log_is_named() {
        let folder = tempfile::tempdir().expect("a temp folder");
        fs::write(folder.path().join("x.db"), []).expect("our own folder");
        assert!(Reserve::of(&folder.path().join("x.db")).is_err());
    }
}
