//! Texts for errors of SQLite that people can act on.

use crate::reserve::is_disk_full;
use rusqlite::ErrorCode;
use std::path::Path;

const DISK: &str = "the disk of ";

/// The same error, with a text that names a full disk. SQLite reports a lack of space as one of a dozen
/// numbers, depending on what was to be written: a new log's shared memory, for example, fails as "Error code
/// 4874".
///
/// `database` is the file that was to be written.
pub fn explain(error: rusqlite::Error, database: &Path) -> rusqlite::Error {
    let rusqlite::Error::SqliteFailure(code, said) = error else { return error };
    let folder = crate::reserve::folder_of(database);
    let is_full = match code.code {
        // The first to explain the error knew best which file was to be written.
        _ if said.as_deref().is_some_and(|said| said.starts_with(DISK)) => false,
        ErrorCode::DiskFull => true,
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => is_disk_full(folder),
        _ => false,
    };
    let said = match is_full {
        true => Some(format!("{DISK}{} is full; free some space there", shown(folder))),
        false => said,
    };
    rusqlite::Error::SqliteFailure(code, said)
}

fn shown(folder: &Path) -> String {
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn only_a_full_disk_is_called_one() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let database = folder.path().join("x.db");
        let check = |number, said: Option<&str>, expected: &str| {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(number), said.map(str::to_owned));
            let text = explain(error, &database).to_string();
            assert!(text.contains(expected), "{number}: {text}");
        };
        let full = format!("the disk of {} is full; free some space there", folder.path().display());
        check(ffi::SQLITE_FULL, Some("database or disk is full"), &full);
        check(ffi::SQLITE_FULL, None, &full);
        check(ffi::SQLITE_FULL, Some("the disk of /other is full"), "the disk of /other is full");
        // This disk has room, so the cause is another one.
        check(ffi::SQLITE_IOERR_SHMSIZE, None, "4874");
        check(ffi::SQLITE_BUSY, Some("database is locked"), "database is locked");
    }
}
