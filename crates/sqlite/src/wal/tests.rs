//! Logs that SQLite wrote, cut off or altered.

use super::*;
use rusqlite::Connection;
use std::fs;

/// A database without automatic checkpoints.
struct Writer {
    folder: tempfile::TempDir,
    connection: Connection,
    page: usize,
    rows: u32,
}

/// The two files as a kill would leave them.
#[derive(Clone)]
struct Files {
    database: Vec<u8>,
    log: Vec<u8>,
    page: usize,
}

impl Writer {
    fn new(page: usize) -> Writer {
        let folder = tempfile::tempdir().expect("a temp dir");
        let connection = Connection::open(folder.path().join("a.db")).expect("a database");
        let settings =
            format!("PRAGMA page_size={page}; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0");
        connection.execute_batch(&settings).expect("settings");
        connection.execute_batch("CREATE TABLE t (n INTEGER PRIMARY KEY, text)").expect("a table");
        Writer { folder, connection, page, rows: 0 }
    }

    /// One commit, of one frame or more.
    fn commit(&mut self, rows: u32) {
        let t = self.connection.transaction().expect("a transaction");
        for row in self.rows..self.rows + rows {
            t.execute("INSERT INTO t VALUES (?1, ?2)", (row, format!("{row:>200}"))).expect("a row");
        }
        t.commit().expect("writable");
        self.rows += rows;
    }

    fn files(&self) -> Files {
        let read = |name: &str| fs::read(self.folder.path().join(name)).expect("it is there");
        Files { database: read("a.db"), log: read("a.db-wal"), page: self.page }
    }
}

impl Files {
    fn frames(&self) -> usize {
        (self.log.len() - HEADER) / (FRAME + self.page)
    }

    fn offset(&self, frame: usize) -> usize {
        HEADER + frame * (FRAME + self.page)
    }

    fn with(&self, change: impl FnOnce(&mut Vec<u8>)) -> Files {
        let mut changed = self.clone();
        change(&mut changed.log);
        changed
    }

    fn is_damaged(&self) -> bool {
        let read = |at: u64, bytes: &mut [u8]| {
            let at = usize::try_from(at).expect("it is in memory");
            bytes.copy_from_slice(&self.log[at..at + bytes.len()]);
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(damage) = find_damage(self.log.len() as u64, read);
        damage.is_some()
    }

    /// The verdict of the check, and the number of rows that SQLite finds.
    fn judged(&self) -> (bool, u32) {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("a.db");
        fs::write(&path, &self.database).expect("our own folder");
        fs::write(beside(&path, "-wal"), &self.log).expect("our own folder");
        assert_eq!(wal_damage(&path).is_some(), self.is_damaged());
        let count = Connection::open(&path).and_then(|connection| {
            connection.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, u32>(0))
        });
        (self.is_damaged(), count.unwrap_or(0))
    }

    #[track_caller]
    fn assert_intact(&self, what: &str) {
        assert!(!self.is_damaged(), "{what}");
    }

    #[track_caller]
    fn assert_damaged(&self, what: &str) {
        assert!(self.is_damaged(), "{what}");
    }
}

/// Small and large commits. The last one has several frames.
fn some_commits(writer: &mut Writer) {
    for rows in [1, 1, 30, 1, 60, 1, 1, 40] {
        writer.commit(rows);
    }
}

/// One bit in each byte of a frame's header, and four in its page.
fn flips(page: usize, seed: usize) -> impl Iterator<Item = (usize, u8)> {
    let head = (0..FRAME).map(move |byte| (byte, 1 << ((byte + seed) % 8)));
    let body =
        (0..4).map(move |part| (FRAME + (page / 4) * part + (seed * 37) % (page / 4), 1 << (seed % 8)));
    head.chain(body)
}

#[test]
fn a_flipped_bit_that_would_lose_commits_is_found() {
    for page in [512, 4_096, 65_536] {
        let mut writer = Writer::new(page);
        some_commits(&mut writer);
        let files = writer.files();
        assert_eq!(files.judged(), (false, writer.rows), "{page}");
        for byte in 0..HEADER {
            let flipped = files.with(|log| log[byte] ^= 1 << (byte % 8));
            assert_eq!(flipped.judged(), (true, 0), "{page}: byte {byte} of the header");
        }
        let last = files.frames() - 1;
        // A sample of the frames, and always those of the last commit.
        for frame in (0..last).step_by(1 + last / 12).chain(last.saturating_sub(2)..=last) {
            for (byte, bit) in flips(page, frame) {
                let flipped = files.with(|log| log[files.offset(frame) + byte] ^= bit);
                flipped.assert_damaged(&format!("{page}: bit {bit} of byte {byte} of frame {frame}"));
            }
        }
    }
}

/// A power failure or a kill cuts the last commit off at any byte.
#[test]
fn a_log_that_was_cut_off_is_intact() {
    for page in [512, 4_096] {
        let mut writer = Writer::new(page);
        some_commits(&mut writer);
        let files = writer.files();
        let around = (0..=files.frames()).flat_map(|frame| {
            let offset = files.offset(frame);
            [offset.saturating_sub(1), offset, offset + 1, offset + FRAME, offset + FRAME + 100]
        });
        for length in (0..64).chain(around).filter(|length| *length <= files.log.len()) {
            files.with(|log| log.truncate(length)).assert_intact(&format!("{page}: {length} bytes"));
        }
    }
}

/// The blocks of a commit that was not synced reach the disk in any order, or not at all.
#[test]
fn a_last_commit_with_missing_blocks_is_intact() {
    let mut writer = Writer::new(4_096);
    some_commits(&mut writer);
    let begin = writer.files().log.len();
    writer.commit(100);
    let files = writer.files();
    let blocks = begin.next_multiple_of(512)..files.log.len().next_multiple_of(512);
    for from in blocks.clone().step_by(512) {
        for (length, fill) in [(512, 0), (4_096, 0), (4_096, 0xa5)] {
            let to = (from + length).min(files.log.len());
            let missing = files.with(|log| log[from..to].fill(fill));
            missing.assert_intact(&format!("{from}..{to} of {begin}..{} is {fill}", files.log.len()));
        }
    }
    // In an earlier commit, missing blocks are damage.
    for from in (HEADER..begin - 4_096).step_by(4_096) {
        files.with(|log| log[from..from + 512].fill(0xa5)).assert_damaged(&format!("{from}"));
    }
}

#[test]
fn frames_of_an_older_log_do_not_count() {
    let mut writer = Writer::new(4_096);
    some_commits(&mut writer);
    let old = writer.files();
    let checkpoint = "PRAGMA wal_checkpoint(RESTART)";
    writer.connection.query_row(checkpoint, [], |_| Ok(())).expect("a checkpoint");
    writer.files().assert_intact("no frame was written since the checkpoint");
    writer.commit(1);
    writer.commit(1);
    writer.commit(40);
    let files = writer.files();
    assert_eq!(files.log.len(), old.log.len(), "the old frames follow the new ones");
    assert_eq!(files.judged(), (false, writer.rows));
    let differs =
        |frame: &usize| files.log[files.offset(*frame)..][..24] != old.log[old.offset(*frame)..][..24];
    let new = (0..files.frames()).take_while(differs).count();
    assert!((3..files.frames() - 2).contains(&new), "{new} of {}", files.frames());
    for frame in 0..files.frames() {
        for (byte, bit) in flips(4_096, frame) {
            let flipped = files.with(|log| log[files.offset(frame) + byte] ^= bit);
            let what = format!("bit {bit} of byte {byte} of frame {frame}");
            match frame < new {
                true => flipped.assert_damaged(&what),
                false => flipped.assert_intact(&what),
            }
        }
    }
    let flipped = files.with(|log| log[files.offset(new) + 100] ^= 1);
    assert_eq!(flipped.judged(), (false, writer.rows), "SQLite does not read the old frames");
    // The power failed after the new header was written.
    files.with(|log| log[HEADER..].copy_from_slice(&old.log[HEADER..])).assert_intact("only a header");
}

/// The sync of a commit failed, and a later commit overwrote its first frames. The rest has the current
/// salts.
#[test]
fn a_partly_overwritten_failed_commit_is_intact() {
    let mut writer = Writer::new(4_096);
    some_commits(&mut writer);
    let before = writer.files();
    writer.commit(100);
    let failed = writer.files();
    for over in [[1, 1], [1, 30]] {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("a.db");
        fs::write(&path, &before.database).expect("our own folder");
        fs::write(beside(&path, "-wal"), &before.log).expect("our own folder");
        let connection = Connection::open(&path).expect("a database");
        connection.execute_batch("PRAGMA wal_autocheckpoint=0").expect("a setting");
        let mut other = Writer { folder, connection, page: 4_096, rows: 1_000 };
        over.into_iter().for_each(|rows| other.commit(rows));
        let new = other.files();
        assert!(new.log.len() < failed.log.len());
        new.with(|log| log.extend(&failed.log[log.len()..])).assert_intact(&format!("{over:?}"));
    }
}

#[test]
fn a_rolled_back_transaction_is_intact() {
    let mut writer = Writer::new(4_096);
    some_commits(&mut writer);
    writer.connection.execute_batch("PRAGMA cache_size=3; PRAGMA cache_spill=1").expect("settings");
    let before = writer.files().log.len();
    let t = writer.connection.transaction().expect("a transaction");
    for row in 10_000..10_400 {
        t.execute("INSERT INTO t VALUES (?1, ?2)", (row, format!("{row:>200}"))).expect("a row");
    }
    t.rollback().expect("rolled back");
    let files = writer.files();
    assert!(files.log.len() > before, "spilled pages are in the log");
    assert_eq!(files.judged(), (false, writer.rows));
    writer.commit(1);
    assert_eq!(writer.files().judged(), (false, writer.rows));
}

#[test]
fn a_log_without_its_beginning_is_damaged() {
    let mut writer = Writer::new(4_096);
    some_commits(&mut writer);
    let files = writer.files();
    for length in [HEADER, 512, 4_096, 10_000] {
        files.with(|log| log[..length].fill(0)).assert_damaged(&format!("{length} bytes are 0"));
    }
    files.with(|log| log.fill(0)).assert_intact("no frame is left to check");
}
