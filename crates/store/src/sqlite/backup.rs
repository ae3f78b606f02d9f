//! Backup and restore of the store.
//!
//! ```text
//! backup:  server.db (a server may run) -> FILE, which must be new
//! restore: FILE -> server.db.restoring, checked; server.db* -> server.db.before-restore-N*; server.db.restoring -> server.db
//! ```
//!
//! Both use SQLite's backup API, which copies one snapshot and includes the write-ahead log. A restore that
//! is interrupted leaves either the old store or none, which the server reports. A second restore completes
//! it.

use super::{damaged, file_id, generation, integrity, schema, store_lock};
use crate::StoreError;
use procfleet_sqlite::{beside, explain, is_damage, sync_folder};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One step copies all pages of one snapshot. Writers are not blocked.
const ALL_PAGES: i32 = -1;
/// How long to wait for a lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Name suffix of a store that a restore has moved away, before a number: `server.db.before-restore-1`.
const MOVED_AWAY: &str = ".before-restore-";

/// Copies the store to a new file, also while a server runs. Returns its size.
pub fn backup(store: &Path, to: &Path) -> Result<u64, StoreError> {
    fs::metadata(store).map_err(|source| file_error("reading", store, source))?;
    create_new(to).map_err(|source| file_error("creating", to, source))?;
    let copied = copy(store, to).and_then(|()| {
        let size = fs::metadata(to).map_err(|source| file_error("looking at", to, source))?;
        Ok(size.len())
    });
    if copied.is_err() {
        // An incomplete backup must not look like a complete one.
        let _ = fs::remove_file(to);
    }
    copied
}

/// Replaces the store by a backup. No server may run. Returns the new path of the replaced store.
pub fn restore(store: &Path, from: &Path) -> Result<Option<PathBuf>, StoreError> {
    let _lock = store_lock::lock(store)?;
    let given = fs::metadata(from).map_err(|source| file_error("reading", from, source))?;
    let unusable = |reason: String| StoreError::BadBackup { path: from.to_owned(), reason };
    if fs::metadata(store).is_ok_and(|store| (store.dev(), store.ino()) == (given.dev(), given.ino())) {
        return Err(unusable("it is the store itself".to_owned()));
    }
    let draft = beside(store, ".restoring");
    let drafted = remove_if_there(&draft)
        .and_then(|()| create_new(&draft))
        .map_err(|source| file_error("creating", &draft, source))
        .and_then(|()| copy(from, &draft))
        .and_then(|()| schema::check_backup(&draft, from))
        .and_then(|()| generation::keep_replaced(store, restores(store)));
    if let Err(error) = drafted {
        let _ = fs::remove_file(&draft);
        return Err(match error {
            StoreError::Database { source, .. } => unusable(source.to_string()),
            StoreError::Damaged { reason, .. } => unusable(reason),
            other => other,
        });
    }
    let aside = free_name(store);
    let moving = |source| file_error("moving away", store, source);
    let was_there = rename_if_there(store, &aside).map_err(moving)?;
    for ending in ["-wal", "-shm"] {
        rename_if_there(&beside(store, ending), &beside(&aside, ending)).map_err(moving)?;
    }
    fs::rename(&draft, store)
        .and_then(|()| sync_folder(store))
        .map_err(|source| file_error("putting the backup in the place of", store, source))?;
    Ok(was_there.then_some(aside))
}

/// Copies and checks a database. The copy has no log, and a stamp of its own (see [`file_id`]).
fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    // Damage is in the source. A lack of space is on the disk of the copy.
    let failed = |source: rusqlite::Error| match is_damage(&source) {
        true => damaged(from, source.to_string()),
        false => super::failed("copying the store", explain(source, to)),
    };
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source =
        Connection::open_with_flags(from, flags | OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let mut copy =
        Connection::open_with_flags(to, flags | OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
    for connection in [&source, &copy] {
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    }
    {
        let backup = Backup::new(&source, &mut copy).map_err(failed)?;
        if backup.step(ALL_PAGES).map_err(failed)? != StepResult::Done {
            let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
            return Err(failed(rusqlite::Error::SqliteFailure(busy, None)));
        }
    }
    copy.pragma_update(None, "journal_mode", "DELETE").map_err(failed)?;
    file_id::set_random(&copy).map_err(failed)?;
    integrity::check(&copy, from)?;
    copy.close().map_err(|(_, source)| failed(source))?;
    File::open(to)
        .and_then(|file| file.sync_all())
        .and_then(|()| sync_folder(to))
        .map_err(|source| file_error("writing", to, source))
}

fn create_new(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(|_| ())
}

fn free_name(store: &Path) -> PathBuf {
    let mut names = (1_u64..).map(|number| beside(store, &format!("{MOVED_AWAY}{number}")));
    let taken = |name: &PathBuf| ["", "-wal", "-shm"].iter().any(|ending| beside(name, ending).exists());
    names.find(|name| !taken(name)).expect("there are more numbers than files")
}

/// How often a backup was restored here, by the names of the stores that were moved away.
fn restores(store: &Path) -> i64 {
    let Some((folder, name)) = store.parent().zip(store.file_name()) else { return 0 };
    let start = format!("{}{MOVED_AWAY}", name.to_string_lossy());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix(&start)?.split('-').next()?.parse().ok()
    });
    numbers.max().unwrap_or(0)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::rename(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn file_error(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::File { doing, path: path.to_owned(), source }
}
