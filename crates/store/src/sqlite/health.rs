//! Whether the open store is usable.
//!
//! The store is condemned for good when its files are replaced or removed while the server runs, or when
//! SQLite finds damage. From then on the writer refuses every change, and [`crate::Store::failed`] returns,
//! which ends the program. The files are not changed.

use super::file_id;
use super::spare_space::SpareSpace;
use super::store_lock::StoreLock;
use crate::StoreError;
use procfleet_sqlite::{CommitGuard, CommitResult, Reserve, beside, is_damaged_file};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

const LOG_IS_CUT: &str =
    "its write-ahead log was cut or overwritten while the server ran, so accepted changes are lost";

#[derive(Debug)]
pub(super) struct StoreHealth {
    path: PathBuf,
    files: [OpenFile; 2],
    /// Holds the database file open. `stamps` are those that the file may have.
    reserve: Arc<Reserve>,
    stamps: Vec<u32>,
    last_commit_failed: AtomicBool,
    condemned: watch::Sender<Option<Condemned>>,
}

/// Why the store has become unusable.
#[derive(Clone, Debug)]
pub(super) enum Condemned {
    Replaced { path: PathBuf, file: PathBuf },
    Damaged { path: PathBuf, reason: String },
}

/// A file that SQLite has open. `id` is its device and inode.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    id: (u64, u64),
}

impl StoreHealth {
    /// For a store that has just been opened, so that both files exist.
    pub(super) fn of(path: &Path, reserve: Arc<Reserve>, stamps: Vec<u32>) -> io::Result<StoreHealth> {
        let open = |path: PathBuf| Ok::<_, io::Error>(OpenFile { id: id_of(&path)?, path });
        let files = [open(path.to_owned())?, open(beside(path, "-wal"))?];
        Ok(StoreHealth {
            path: path.to_owned(),
            files,
            reserve,
            stamps,
            last_commit_failed: AtomicBool::new(false),
            condemned: watch::Sender::new(None),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the paths still lead to the open files, that the open file was not overwritten by another
    /// store, and that the log was not cut. Costs three calls of `stat` and three of `pread`.
    pub(super) fn check(&self) -> Result<(), Condemned> {
        if let Some(condemned) = self.condemned() {
            return Err(condemned);
        }
        let replaced = self.files.iter().find(|file| file.is_replaced()).map(|file| &file.path);
        let overwritten = || (!self.has_its_stamp()).then_some(&self.path);
        if let Some(file) = replaced.or_else(overwritten) {
            return Err(self.condemn(Condemned::Replaced { path: self.path.clone(), file: file.clone() }));
        }
        match self.reserve.log_is_cut() {
            false => Ok(()),
            true => {
                let (path, reason) = (self.path.clone(), LOG_IS_CUT.to_owned());
                Err(self.condemn(Condemned::Damaged { path, reason }))
            }
        }
    }

    /// True if the file cannot be read, which proves nothing.
    fn has_its_stamp(&self) -> bool {
        let stamp = file_id::stamp_of(self.reserve.database());
        stamp.map_or(true, |stamp| stamp.is_some_and(|stamp| self.stamps.contains(&stamp)))
    }

    /// Condemns the store if the error reports damage.
    pub(super) fn judge(&self, error: &StoreError) {
        let source = match error {
            StoreError::Database { source, .. } => source,
            StoreError::Commit { source, .. } => source,
            _ => return,
        };
        let Some(source) = source.as_driver::<rusqlite::Error>() else { return };
        let Some(code) = source.sqlite_error().filter(|code| is_damaged_file(**code)) else { return };
        if self.condemned().is_none() {
            let reason = match code.extended_code {
                rusqlite::ffi::SQLITE_IOERR_SHORT_READ => LOG_IS_CUT.to_owned(),
                _ => source.to_string(),
            };
            self.condemn(Condemned::Damaged { path: self.path.clone(), reason });
        }
    }

    pub(super) fn last_commit_failed(&self) -> bool {
        self.last_commit_failed.load(Ordering::Relaxed)
    }

    pub(super) fn condemned(&self) -> Option<Condemned> {
        self.condemned.borrow().clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Condemned>> {
        self.condemned.subscribe()
    }

    /// Keeps the first reason.
    pub(super) fn condemn(&self, why: Condemned) -> Condemned {
        self.condemned.send_if_modified(|known| match known {
            Some(_) => false,
            None => {
                tracing::error!(
                    error = &StoreError::from(why.clone()) as &dyn std::error::Error,
                    "the store cannot be used any more; nothing is accepted, and the server ends; see the error for what to do"
                );
                *known = Some(why.clone());
                true
            }
        });
        self.condemned().unwrap_or(why)
    }
}

/// Checks the files around each group of the writer, and holds the lock until the database is closed.
pub(super) struct HealthGuard {
    pub(super) health: Arc<StoreHealth>,
    pub(super) spare_space: SpareSpace,
    pub(super) _lock: StoreLock,
}

impl CommitGuard for HealthGuard {
    fn check(&self) -> Result<(), rusqlite::Error> {
        self.health.check().map_err(|condemned| condemned.as_sqlite_error())
    }

    fn record(&self, commit: CommitResult) {
        self.spare_space.clear();
        self.health.last_commit_failed.store(commit == CommitResult::Failed, Ordering::Relaxed);
    }
}

impl OpenFile {
    /// Whether the path leads to another file or none. An unreadable path proves nothing.
    fn is_replaced(&self) -> bool {
        match id_of(&self.path) {
            Ok(id) => id != self.id,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl Condemned {
    pub(super) fn in_short(&self) -> &'static str {
        match self {
            Condemned::Replaced { .. } => "its files were replaced, and the server ends",
            Condemned::Damaged { .. } => "it is damaged, and the server ends",
        }
    }

    /// The error for refused changes.
    pub(super) fn as_sqlite_error(&self) -> rusqlite::Error {
        let (code, reason) = match self {
            Condemned::Replaced { file, .. } => (
                rusqlite::ffi::SQLITE_READONLY_DBMOVED,
                format!("{} was replaced or removed", file.display()),
            ),
            Condemned::Damaged { reason, .. } => (rusqlite::ffi::SQLITE_CORRUPT, reason.clone()),
        };
        rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(reason))
    }
}

impl From<Condemned> for StoreError {
    fn from(condemned: Condemned) -> StoreError {
        match condemned {
            Condemned::Replaced { path, file } => StoreError::Replaced { path, file },
            Condemned::Damaged { path, reason } => StoreError::Damaged { path, reason },
        }
    }
}

fn id_of(path: &Path) -> io::Result<(u64, u64)> {
    let data = std::fs::metadata(path)?;
    Ok((data.dev(), data.ino()))
}
