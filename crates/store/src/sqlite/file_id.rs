//! Recognises a database file that was replaced between two starts.
//!
//! Each opening stamps the file with a random number (SQLite's `application_id`, in its first page) and
//! writes the number to `server.db.id` beside it. The next opening compares the two:
//!
//! - Equal: it is the file that the last server used, and a write-ahead log beside it is its own.
//! - Different: the file was replaced, most likely by a backup. A log beside it belongs to the previous file,
//!   and SQLite would mix the two. Without a log, a new generation begins (see `generation`).
//!
//! Limit: a copy that another tool made while the same server ran has the same stamp as the original.

use crate::StoreError;
use procfleet_sqlite::{beside, replace_file};
use ring::rand::{SecureRandom, SystemRandom};
use rusqlite::{Connection, ErrorCode};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: &[u8] = b"SQLite format 3\0";
/// Offset of `application_id` in the file, big-endian.
const STAMP_OFFSET: usize = 68;
/// Length of the header of a write-ahead log. A log without frames holds no changes.
const LOG_HEADER: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileOrigin {
    /// The last server used it, or it is new.
    Same,
    /// The file was replaced.
    Other,
}

/// Returns the origin, and the stamp in the file; the log may hold a later one. To be called before SQLite
/// opens the file. Refuses a file beside the log of another file.
pub(super) fn origin(path: &Path) -> Result<(FileOrigin, u32), StoreError> {
    let failed = |source| StoreError::File { doing: "looking at", path: path.to_owned(), source };
    let Some(stamp) = stamp_in(path).map_err(failed)? else { return Ok((FileOrigin::Same, 0)) };
    let origin = match saved(path) {
        // A store from before stamps existed.
        None if stamp == 0 => FileOrigin::Same,
        None => FileOrigin::Other,
        Some(saved) if saved.contains(&stamp) => FileOrigin::Same,
        Some(_) => match std::fs::metadata(beside(path, "-wal")) {
            Ok(log) if log.len() > LOG_HEADER => {
                return Err(StoreError::ForeignLog { path: path.to_owned() });
            }
            Ok(_) | Err(_) => FileOrigin::Other,
        },
    };
    Ok((origin, stamp))
}

/// Gives the open store a new stamp. `in_file` is the stamp that its file has now. Returns the stamps that
/// the file may have from now on. On a full disk the store keeps its stamp.
pub(super) fn stamp(connection: &Connection, path: &Path, in_file: u32) -> Result<Vec<u32>, StoreError> {
    let failed = |source| super::failed("stamping the store", source);
    let unsaved = |source| StoreError::File { doing: "saving the stamp of", path: path.to_owned(), source };
    let old: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(failed)?;
    let old = old as u32;
    let new = random();
    // All of them, until the checkpoint has written the new one.
    match save(path, &[in_file, old, new]) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(vec![in_file, old]),
        saved => saved.map_err(unsaved)?,
    }
    let done = set(connection, new)
        .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get::<_, i64>(0)));
    match done {
        Ok(0) => {
            save(path, &[new]).map_err(unsaved)?;
            Ok(vec![new])
        }
        // Another process reads the store, perhaps a backup. The next opening stamps it again.
        Ok(_) => Ok(vec![in_file, old, new]),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => Ok(vec![in_file, old, new]),
        Err(error) => Err(failed(error)),
    }
}

/// Gives a copy a stamp of its own.
pub(super) fn set_random(connection: &Connection) -> rusqlite::Result<()> {
    set(connection, random())
}

/// The stamp of an open database file. `None`: the file is no longer a database.
pub(super) fn stamp_of(file: &File) -> io::Result<Option<u32>> {
    let mut head = [0; STAMP_OFFSET + 4];
    match file.read_exact_at(&mut head, 0) {
        Ok(()) if head.starts_with(MAGIC) => {
            let stamp = head[STAMP_OFFSET..].try_into().expect("four bytes are left");
            Ok(Some(u32::from_be_bytes(stamp)))
        }
        Ok(()) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn stamp_in(path: &Path) -> io::Result<Option<u32>> {
    match File::open(path) {
        Ok(file) => stamp_of(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn set(connection: &Connection, stamp: u32) -> rusqlite::Result<()> {
    connection.pragma_update(None, "application_id", stamp as i32)
}

/// Never zero, which is the value of a file without a stamp.
fn random() -> u32 {
    let mut bytes = [0; 4];
    SystemRandom::new().fill(&mut bytes).expect("the kernel gives random bytes");
    u32::from_be_bytes(bytes).max(1)
}

fn saved(path: &Path) -> Option<Vec<u32>> {
    let text = std::fs::read_to_string(beside(path, ".id")).ok()?;
    text.split_whitespace().map(|word| u32::from_str_radix(word, 16).ok()).collect()
}

fn save(path: &Path, stamps: &[u32]) -> io::Result<()> {
    let words: Vec<String> = stamps.iter().map(|stamp| format!("{stamp:08x}")).collect();
    replace_file(&beside(path, ".id"), format!("{}\n", words.join(" ")))
}
