//! Refuses a journal that cannot be used, and leaves it unchanged. An agent with a new journal in its place
//! would forget what is hosted, start stopped procs and repeat ops.

use super::{JournalError, MIGRATIONS};
use procfleet_core::supervise::Record;
use procfleet_sqlite::{
    CheckError, DatabaseFile, FileFault, VersionError, explain, inspect, is_damage, quick_check,
};
use rusqlite::{Connection, OpenFlags};
use std::fs;
use std::io;
use std::path::Path;

/// Written when the agent has joined, which is after the journal was created.
const JOINED: &str = "agent.id";

/// Checks the file before SQLite opens it, which would create a missing one.
pub(super) fn check_file(path: &Path) -> Result<(), JournalError> {
    let broken = |reason: &str| Err(broken(path, reason));
    let had_one = path.parent().is_some_and(|folder| folder.join(JOINED).exists());
    match inspect(path) {
        Ok(DatabaseFile::Empty) if had_one => broken("it is empty, and this agent had one"),
        Ok(DatabaseFile::Missing) if had_one => broken("it is gone, and this agent had one"),
        Ok(DatabaseFile::Missing) => Ok(()),
        Err(FileFault::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            broken("this account may not read and write it")
        }
        Err(fault) => broken(&fault.to_string()),
        Ok(DatabaseFile::Empty | DatabaseFile::Present) => {
            match fs::OpenOptions::new().read(true).write(true).open(path) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    broken("this account may not read and write it")
                }
                // Other errors may pass, such as a lack of file descriptors.
                Ok(_) | Err(_) => Ok(()),
            }
        }
    }
}

/// Refuses the journal of a newer version.
pub(super) fn check_version(connection: &Connection, path: &Path) -> Result<(), JournalError> {
    MIGRATIONS.version(connection).map(|_| ()).map_err(|error| version_error(error, path))
}

pub(super) fn version_error(error: VersionError, path: &Path) -> JournalError {
    match error {
        VersionError::TooNew { found, known } => JournalError::TooNew { path: path.to_owned(), found, known },
        VersionError::Sqlite(error) => JournalError::Sqlite(error),
    }
}

/// Checks the structure of the whole journal.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), JournalError> {
    quick_check(connection).map_err(|error| match error {
        CheckError::Damaged(reason) => broken(path, &reason),
        CheckError::Sqlite(error) => JournalError::Sqlite(error),
    })
}

/// Names the cause where it is a damaged file or a full disk.
pub(super) fn explained(failure: JournalError, path: &Path) -> JournalError {
    match failure {
        JournalError::Open { source, .. } | JournalError::Sqlite(source) if is_damage(&source) => {
            broken(path, &source.to_string())
        }
        JournalError::Open { source, .. } => {
            JournalError::Open { path: path.to_owned(), source: explain(source, path) }
        }
        JournalError::Sqlite(source) => JournalError::Sqlite(explain(source, path)),
        failure => failure,
    }
}

/// Checks whether this program can use a journal, without changing it. Returns the number of procs in it.
pub(crate) fn examine(path: &Path) -> Result<usize, JournalError> {
    let read = || -> Result<usize, JournalError> {
        check_file(path)?;
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
            .map_err(|source| JournalError::Open { path: path.to_owned(), source })?;
        check_version(&connection, path)?;
        check(&connection, path)?;
        let mut statement = connection.prepare("SELECT record FROM procs")?;
        let records = statement.query_map([], |row| row.get::<_, String>(0))?;
        let mut procs = 0;
        for record in records {
            if let Err(failure) = serde_json::from_str::<Record>(&record?) {
                return Err(broken(path, &failure.to_string()));
            }
            procs += 1;
        }
        Ok(procs)
    };
    read().map_err(|failure| explained(failure, path))
}

fn broken(path: &Path, reason: &str) -> JournalError {
    JournalError::Broken { path: path.to_owned(), reason: reason.to_owned() }
}
