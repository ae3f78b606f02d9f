//! Tells a first start from a store that was lost.
//!
//! A server on a new store would not know its agents, its apps and its tasks. So a missing or empty store is
//! accepted only if this data folder never had one.

use super::{damaged, named};
use crate::StoreError;
use procfleet_sqlite::{DatabaseFile, FileFault, inspect, tables};
use rusqlite::Connection;
use std::path::Path;

/// The certificate of the server's own CA, which is created after the store.
const CREATED_LATER: &str = "ca.cert.der";

/// Checks the file before SQLite opens it, which would create a missing one.
pub(super) fn check_file(path: &Path) -> Result<(), StoreError> {
    match inspect(path) {
        Ok(DatabaseFile::Present) => Ok(()),
        Ok(DatabaseFile::Empty) => only_at_first_start(path, "empty"),
        Ok(DatabaseFile::Missing) => only_at_first_start(path, "gone"),
        Err(FileFault::Io(source)) => {
            Err(StoreError::File { doing: "looking at", path: path.to_owned(), source })
        }
        Err(fault) => Err(damaged(path, fault.to_string())),
    }
}

/// Checks that a store that is not new has tables.
pub(super) fn check_tables(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |source| named(super::failed("looking into the store", source), path);
    if tables(connection).map_err(failed)?.is_empty() {
        return only_at_first_start(path, "empty");
    }
    Ok(())
}

fn only_at_first_start(path: &Path, how: &'static str) -> Result<(), StoreError> {
    let later = path.with_file_name(CREATED_LATER);
    if later.exists() { Err(StoreError::Lost { path: path.to_owned(), how, later }) } else { Ok(()) }
}
