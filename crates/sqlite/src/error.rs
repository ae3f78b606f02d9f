//! Classifies errors of SQLite: a damaged file, a full disk, or anything else.

use crate::files::folder_of;
use crate::reserve::is_disk_full;
use rusqlite::{Error, ErrorCode, ffi};
use std::path::Path;

/// Whether the cause of an error is the content of the file, so that a retry cannot help.
///
/// For the statements of this program only: it takes a statement that does not fit the schema
/// (`SQLITE_ERROR`) for a file of another program.
pub fn is_damage(error: &Error) -> bool {
    match error {
        Error::SqliteFailure(error, _) => is_damage_code(*error),
        Error::SqlInputError { error, .. } => is_damage_code(*error),
        Error::InvalidColumnType(..) | Error::IntegralValueOutOfRange(..) | Error::Utf8Error(..) => true,
        _ => false,
    }
}

/// Whether SQLite has read a damaged file. A short read of the database or its log means that another program
/// has cut the file.
pub fn is_damaged_file(error: ffi::Error) -> bool {
    matches!(error.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        || error.extended_code == ffi::SQLITE_IOERR_SHORT_READ
}

fn is_damage_code(error: ffi::Error) -> bool {
    is_damaged_file(error) || error.extended_code == ffi::SQLITE_ERROR
}

/// Names a full disk in the text of an error. SQLite reports a lack of space with a dozen result codes,
/// depending on the write that failed: `SQLITE_IOERR_SHMSIZE`, for example, where the shared memory of the
/// log cannot grow.
///
/// `database` is the file that could not be written.
pub fn explain(error: Error, database: &Path) -> Error {
    let Error::SqliteFailure(code, text) = error else { return error };
    let folder = folder_of(database);
    let is_full = match code.code {
        ErrorCode::DiskFull => true,
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => is_disk_full(folder),
        _ => false,
    };
    let text = match is_full {
        true => Some(format!("the disk of {} is full; free some space there", absolute(folder))),
        false => text,
    };
    Error::SqliteFailure(code, text)
}

fn absolute(folder: &Path) -> String {
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;

    #[test]
    fn only_a_full_disk_is_called_full() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let database = folder.path().join("x.db");
        let check = |number, text: Option<&str>, expected: &str| {
            let error = Error::SqliteFailure(ffi::Error::new(number), text.map(str::to_owned));
            let explained = explain(error, &database).to_string();
            assert!(explained.contains(expected), "{number}: {explained}");
        };
        let full = format!("the disk of {} is full; free some space there", folder.path().display());
        check(ffi::SQLITE_FULL, Some("database or disk is full"), &full);
        check(ffi::SQLITE_FULL, None, &full);
        // This disk has free space, so the cause is another one.
        check(ffi::SQLITE_IOERR_SHMSIZE, None, "4874");
        check(ffi::SQLITE_BUSY, Some("database is locked"), "database is locked");
    }

    #[test]
    fn damage_is_distinguished_from_transient_failures() {
        for (number, expected) in [
            (ffi::SQLITE_CORRUPT, true),
            (ffi::SQLITE_CORRUPT_INDEX, true),
            (ffi::SQLITE_NOTADB, true),
            (ffi::SQLITE_IOERR_SHORT_READ, true),
            (ffi::SQLITE_FULL, false),
            (ffi::SQLITE_IOERR_READ, false),
            (ffi::SQLITE_BUSY_SNAPSHOT, false),
            (ffi::SQLITE_ERROR_SNAPSHOT, false),
        ] {
            let error = Error::SqliteFailure(ffi::Error::new(number), None);
            assert_eq!(is_damage(&error), expected, "{number}");
        }
        let database = Connection::open_in_memory().expect("a database");
        database.execute_batch("CREATE TABLE t (n)").expect("a table");
        for statement in ["SELECT n FROM other", "SELECT other FROM t", "CREATE TABLE t (n)"] {
            let error = database.execute_batch(statement).expect_err("another schema");
            assert!(is_damage(&error), "{statement}: {error:?}");
        }
    }
}
