//! Detects a write-ahead log that was truncated or overwritten while SQLite uses it.
//!
//! SQLite keeps the number of committed frames in the shared memory of the log (`-shm`), and does not look
//! at the length of the log before it reads a frame. Frames are written before they are counted, and the
//! count becomes 0 before the log is begun again or cut. So a log that is shorter than the count says was
//! cut by another program. The count is read before and after the log: a check beside a checkpoint, also of
//! another process, proves nothing.
//!
//! The format: <https://www.sqlite.org/walformat.html#the_wal_index_file_format>.

use crate::files::beside;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Length of one of the two equal copies of the header.
const COPY: usize = 48;
const VERSION: u32 = 3_007_000;
const LOG_HEADER: u64 = 32;
const FRAME_HEADER: u64 = 24;
/// Offset of the salts in the log's header, and their length.
const LOG_SALTS: u64 = 16;
const SALTS: usize = 8;

/// The shared memory of a log. Must be dropped after every connection to the database: closing a descriptor
/// of the file releases the locks that SQLite holds on it in this process.
#[derive(Debug)]
pub(crate) struct WalIndex(File);

impl WalIndex {
    /// Of a database that is open in WAL mode.
    pub(crate) fn of(database: &Path) -> io::Result<WalIndex> {
        File::open(beside(database, "-shm")).map(WalIndex)
    }

    /// Whether committed frames are missing from the log. False if that cannot be decided.
    pub(crate) fn misses_frames_in(&self, log: &File) -> bool {
        let is_missing = || -> io::Result<bool> {
            let Some(before) = self.header()? else { return Ok(false) };
            if before.frames == 0 {
                return Ok(false);
            }
            let length = log.metadata()?.len();
            let mut salts = [0; SALTS];
            let is_other = match log.read_exact_at(&mut salts, LOG_SALTS) {
                Ok(()) => salts != before.salts,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => true,
                Err(error) => return Err(error),
            };
            let is_short = length < LOG_HEADER + before.frames * (FRAME_HEADER + before.page_size);
            Ok((is_short || is_other) && self.header()? == Some(before))
        };
        is_missing().unwrap_or(false)
    }

    /// `None` while SQLite writes the header, and for another version of the format.
    fn header(&self) -> io::Result<Option<IndexHeader>> {
        let mut copies = [0; 2 * COPY];
        self.0.read_exact_at(&mut copies, 0)?;
        let (first, second) = copies.split_at(COPY);
        let number = |at: usize| u32::from_ne_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]]);
        let is_initialized = first[12] == 1;
        if first != second || !is_initialized || number(0) != VERSION {
            return Ok(None);
        }
        // 65,536 does not fit, and is stored as 1.
        let page_size = match u16::from_ne_bytes([first[14], first[15]]) {
            1 => 65_536,
            size => u64::from(size),
        };
        let salts = first[32..32 + SALTS].try_into().expect("eight bytes");
        Ok(Some(IndexHeader { changes: number(8), frames: u64::from(number(16)), page_size, salts }))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct IndexHeader {
    /// Grows with each transaction.
    changes: u32,
    frames: u64,
    page_size: u64,
    salts: [u8; SALTS],
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;
    use std::fs::OpenOptions;

    fn database(page_size: u32) -> (tempfile::TempDir, Connection, WalIndex, File) {
        let folder = tempfile::tempdir().expect("a temp folder");
        let path = folder.path().join("x.db");
        let connection = Connection::open(&path).expect("a database");
        let settings = format!(
            "PRAGMA page_size={page_size}; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; CREATE TABLE t (n)"
        );
        connection.execute_batch(&settings).expect("settings");
        let log = OpenOptions::new().read(true).write(true).open(beside(&path, "-wal")).expect("a log");
        let index = WalIndex::of(&path).expect("shared memory");
        (folder, connection, index, log)
    }

    #[test]
    fn a_log_that_sqlite_cuts_or_begins_again_is_whole() {
        for page_size in [512, 4_096, 65_536] {
            let (_folder, connection, index, log) = database(page_size);
            let steps = [
                "INSERT INTO t VALUES (zeroblob(100000))",
                "PRAGMA wal_checkpoint(PASSIVE)",
                "INSERT INTO t VALUES (1)",
                "PRAGMA wal_checkpoint(RESTART)",
                "INSERT INTO t VALUES (1)",
                "PRAGMA wal_checkpoint(TRUNCATE)",
                "INSERT INTO t VALUES (1)",
                "BEGIN; INSERT INTO t VALUES (zeroblob(100000)); ROLLBACK",
            ];
            for step in steps {
                connection.execute_batch(step).expect(step);
                assert!(!index.misses_frames_in(&log), "{page_size}: after {step}");
            }
        }
    }

    #[test]
    fn a_log_that_another_program_cut_or_overwrote_misses_frames() {
        let (_folder, connection, index, log) = database(4_096);
        let length = log.metadata().expect("a length").len();
        log.set_len(length - 1).expect("our own file");
        assert!(index.misses_frames_in(&log), "one byte is missing");
        log.set_len(0).expect("our own file");
        assert!(index.misses_frames_in(&log), "it is empty");
        log.set_len(length).expect("our own file");
        assert!(index.misses_frames_in(&log), "the salts are gone");
        drop(connection);
    }

    /// The check runs beside commits and checkpoints of other threads.
    #[test]
    fn a_check_beside_commits_and_checkpoints_finds_nothing() {
        let (_folder, connection, index, log) = database(4_096);
        connection.execute_batch("PRAGMA synchronous=OFF").expect("a setting");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(!index.misses_frames_in(&log));
                }
            });
            for _ in 0..300 {
                let steps = "INSERT INTO t VALUES (zeroblob(20000)); INSERT INTO t VALUES (1); \
                             PRAGMA wal_checkpoint(TRUNCATE)";
                connection.execute_batch(steps).expect("a step");
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
