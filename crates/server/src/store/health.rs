//! Whether the open store can still be used.
//!
//! The store is condemned once and for all when its files are replaced or removed under the server, or when
//! SQLite finds it damaged. From then on the writer refuses every change, and [`super::Store::failed`]
//! returns, which ends the program. The files are left as they are.

use super::schema::StoreLock;
use super::{StoreError, file_id};
use procfleet_sqlite::{CommitGuard, CommitResult, Reserve, beside};
use rusqlite::ErrorCode;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct StoreHealth {
    path: PathBuf,
    files: [OpenFile; 2],
    /// Holds the database open, and the stamps that it may have.
    reserve: Arc<Reserve>,
    stamps: Vec<u32>,
    last_commit_failed: AtomicBool,
    condemned: watch::Sender<Option<Condemned>>,
}

/// Why the store cannot be used any more.
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
    /// For a store that has just been opened: both files are there.
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

    /// Checks that the paths still lead to the open files, and that nobody has copied another store over the
    /// open file. Costs two calls of `stat` and one of `pread`.
    pub(super) fn check(&self) -> Result<(), Condemned> {
        if let Some(condemned) = self.condemned() {
            return Err(condemned);
        }
        let replaced = self.files.iter().find(|file| file.is_replaced()).map(|file| &file.path);
        let overwritten = || (!self.has_its_stamp()).then_some(&self.path);
        let Some(file) = replaced.or_else(overwritten) else { return Ok(()) };
        Err(self.condemn(Condemned::Replaced { path: self.path.clone(), file: file.clone() }))
    }

    /// A file that cannot be read proves nothing.
    fn has_its_stamp(&self) -> bool {
        let stamp = file_id::stamp_of(self.reserve.database());
        stamp.map_or(true, |stamp| stamp.is_some_and(|stamp| self.stamps.contains(&stamp)))
    }

    /// Condemns the store if this error says that the file is damaged.
    pub(super) fn judge(&self, error: &StoreError) {
        let source = match error {
            StoreError::Database { source, .. } => source,
            StoreError::Commit { source, .. } => source,
            _ => return,
        };
        let corrupt = [Some(ErrorCode::DatabaseCorrupt), Some(ErrorCode::NotADatabase)];
        if corrupt.contains(&source.sqlite_error_code()) && self.condemned().is_none() {
            self.condemn(Condemned::Damaged { path: self.path.clone(), reason: source.to_string() });
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

    /// The first reason stays.
    pub(super) fn condemn(&self, why: Condemned) -> Condemned {
        self.condemned.send_if_modified(|known| match known {
            Some(_) => false,
            None => {
                tracing::error!(
                    error = &StoreError::from(why.clone()) as &dyn std::error::Error,
                    "the store cannot be used any more; nothing is accepted, and the server ends"
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
    pub(super) _lock: StoreLock,
}

impl CommitGuard for HealthGuard {
    fn check(&self) -> Result<(), rusqlite::Error> {
        self.health.check().map_err(|condemned| condemned.as_sqlite_error())
    }

    fn record(&self, commit: CommitResult) {
        self.health.last_commit_failed.store(commit == CommitResult::Failed, Ordering::Relaxed);
    }
}

impl OpenFile {
    /// Another file is there, or none. A path that cannot be looked at proves nothing.
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

    /// For those whose change was not accepted because of it.
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
