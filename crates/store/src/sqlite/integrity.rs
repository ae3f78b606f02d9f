//! Checks the structure of the whole store at each start.
//!
//! A small store is checked before the server is up. A large one is checked in the background when the server
//! is up, with one read transaction for each table, so that the write-ahead log can be reset in between.
//! Damage condemns the store (see `health`), which ends the server.

use super::health::{Condemned, StoreHealth};
use super::{connection, damaged, failed, named};
use crate::StoreError;
use procfleet_sqlite::{CheckError, quick_check, quick_check_table, tables};
use rusqlite::{Connection, InterruptHandle};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Up to this size, a check takes less than a second.
const SMALL: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreSize {
    Small,
    Large,
}

impl StoreSize {
    pub(super) fn of(path: &Path) -> StoreSize {
        match std::fs::metadata(path) {
            Ok(file) if file.len() > SMALL => StoreSize::Large,
            Ok(_) | Err(_) => StoreSize::Small,
        }
    }
}

/// Checks a small store, or a backup. An error names `path`.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    quick_check(connection).map_err(|error| check_error(error, path))
}

/// The check of a large store. Dropping it cancels the check.
pub(super) struct BackgroundCheck {
    stop: Arc<AtomicBool>,
    interrupt: InterruptHandle,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundCheck {
    pub(super) fn start(health: Arc<StoreHealth>) -> Result<BackgroundCheck, StoreError> {
        let path = health.path().to_owned();
        let connection = connection::open_reader(&path)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (interrupt, stopped) = (connection.get_interrupt_handle(), stop.clone());
        let named = path.clone();
        let thread = std::thread::Builder::new()
            .name("procfleet-check".to_owned())
            .spawn(move || check_tables(&connection, &path, &health, &stopped))
            .map_err(|source| StoreError::File { doing: "starting the check of", path: named, source })?;
        Ok(BackgroundCheck { stop, interrupt, thread: Some(thread) })
    }
}

impl std::fmt::Debug for BackgroundCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackgroundCheck").finish_non_exhaustive()
    }
}

impl Drop for BackgroundCheck {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.interrupt.interrupt();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn check_tables(connection: &Connection, path: &Path, health: &StoreHealth, stop: &AtomicBool) {
    match check_by_table(connection, path, stop) {
        Ok(()) => tracing::info!(path = %path.display(), "store checked"),
        Err(StoreError::Damaged { path, reason }) => {
            health.condemn(Condemned::Damaged { path, reason });
        }
        // Cancelled, or a failure that may pass.
        Err(error) => tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the check of the store was not completed; the next start checks it again"
        ),
    }
}

fn check_by_table(connection: &Connection, path: &Path, stop: &AtomicBool) -> Result<(), StoreError> {
    let tables = tables(connection).map_err(|error| check_error(CheckError::Sqlite(error), path))?;
    for table in tables {
        if stop.load(Ordering::Relaxed) {
            return Err(StoreError::Closed);
        }
        quick_check_table(connection, &table).map_err(|error| check_error(error, path))?;
    }
    Ok(())
}

fn check_error(error: CheckError, path: &Path) -> StoreError {
    match error {
        CheckError::Damaged(reason) => damaged(path, reason),
        CheckError::Sqlite(source) => named(failed("checking the store", source), path),
    }
}
