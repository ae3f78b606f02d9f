//! Which database file this is.
//!
//! Each opening stamps the file with a random number (SQLite's `application_id`, in its first page) and
//! writes the number to `server.db.id` beside it. The next opening compares the two:
//!
//! - they are the same: it is the file that the last server used, and a write-ahead log beside it is its own;
//! - they differ: another file was put in its place, most likely a backup. A log beside it belongs to the
//!   file before, and SQLite would mix the two. Without a log, a new generation begins (see `generation`).
//!
//! A copy that was made with other tools while the same server ran has the same stamp. It cannot be told from
//! the original.

use super::StoreError;
use crate::secret;
use procfleet_sqlite::{beside, sync_folder};
use rusqlite::{Connection, ErrorCode};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const MAGIC: &[u8] = b"SQLite format 3\0";
/// Where `application_id` is in the file, in the order of the network.
const STAMP_OFFSET: usize = 68;
/// Length of the header of a write-ahead log; one without frames holds nothing.
const LOG_HEADER: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileOrigin {
    /// The last server used it, or it is new.
    Same,
    /// Somebody put it here.
    Other,
}

/// Also the stamp that is in the file now; its log may hold a later one. To be called before the file is
/// opened as a database. Refuses a file beside the log of another.
pub(super) fn origin(path: &Path) -> Result<(FileOrigin, u32), StoreError> {
    let failed = |source| StoreError::File { doing: "looking at", path: path.to_owned(), source };
    let Some(stamp) = stamp_in(path).map_err(failed)? else { return Ok((FileOrigin::Same, 0)) };
    let origin = match noted(path) {
        // From before there were stamps.
        None if stamp == 0 => FileOrigin::Same,
        None => FileOrigin::Other,
        Some(noted) if noted.contains(&stamp) => FileOrigin::Same,
        Some(_) => match std::fs::metadata(beside(path, "-wal")) {
            Ok(log) if log.len() > LOG_HEADER => {
                return Err(StoreError::ForeignLog { path: path.to_owned() });
            }
            Ok(_) | Err(_) => FileOrigin::Other,
        },
    };
    Ok((origin, stamp))
}

/// Stamps the open store anew, in whose file the stamp `in_file` is. Answers with the stamps that its file
/// may have from now on. On a full disk it keeps the one it has.
pub(super) fn stamp(connection: &Connection, path: &Path, in_file: u32) -> Result<Vec<u32>, StoreError> {
    let failed = |source| StoreError::Database { doing: "stamping the store", source };
    let unnoted = |source| StoreError::File { doing: "noting the stamp of", path: path.to_owned(), source };
    let old: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(failed)?;
    let old = old as u32;
    let new = random();
    // All of them, until it is certain which the file has.
    match note(path, &[in_file, old, new]) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(vec![in_file, old]),
        noted => noted.map_err(unnoted)?,
    }
    let done = set(connection, new)
        .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get::<_, i64>(0)));
    match done {
        Ok(0) => {
            note(path, &[new]).map_err(unnoted)?;
            Ok(vec![new])
        }
        // Somebody reads the store, a backup perhaps: the next opening stamps it again.
        Ok(_) => Ok(vec![in_file, old, new]),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => Ok(vec![in_file, old, new]),
        Err(error) => Err(failed(error)),
    }
}

/// Makes this database another one than the one that it was copied from.
pub(super) fn set_random(connection: &Connection) -> rusqlite::Result<()> {
    set(connection, random())
}

/// The stamp of an open database file. `None`: it is not a database any more.
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

/// Zero is the stamp of a file that has none.
fn random() -> u32 {
    u32::from_be_bytes(secret::random()).max(1)
}

fn noted(path: &Path) -> Option<Vec<u32>> {
    let text = std::fs::read_to_string(beside(path, ".id")).ok()?;
    text.split_whitespace().map(|word| u32::from_str_radix(word, 16).ok()).collect()
}

/// Whole or not at all.
fn note(path: &Path, stamps: &[u32]) -> io::Result<()> {
    let (draft, file) = (beside(path, ".id.new"), beside(path, ".id"));
    let words: Vec<String> = stamps.iter().map(|stamp| format!("{stamp:08x}")).collect();
    let mut written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    let done = writeln!(written, "{}", words.join(" ")).and_then(|()| written.sync_all());
    if let Err(error) = done {
        let _ = std::fs::remove_file(&draft);
        return Err(error);
    }
    std::fs::rename(&draft, &file)?;
    sync_folder(path)
}
