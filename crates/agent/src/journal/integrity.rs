//! Whether a journal is fit to be used. One that is not is left as it is: an agent that began anew in its
//! place would forget what is hosted, start what was stopped and carry out what was done.

use super::{JournalError, known_format, wal_check};
use procfleet_core::supervise::Record;
use procfleet_sqlite::explain;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::fs;
use std::io;
use std::path::Path;

/// Written when the agent has joined, which is after its journal was made.
const JOINED: &str = "agent.id";

/// What can be told without opening it as a database, which would make a new one where there is none.
pub(super) fn look_at_file(path: &Path) -> Result<(), JournalError> {
    let broken =
        |reason: &str| Err(JournalError::Broken { path: path.to_owned(), reason: reason.to_owned() });
    let had_one = path.parent().is_some_and(|folder| folder.join(JOINED).exists());
    match fs::metadata(path) {
        Ok(data) if data.is_dir() => broken("it is a folder"),
        Ok(data) if !data.is_file() => broken("it is not a regular file"),
        Ok(data) if data.len() == 0 && had_one => broken("it is empty, and this agent had one"),
        Err(error) if error.kind() == io::ErrorKind::NotFound && had_one => {
            broken("it is gone, and this agent had one")
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => broken(&error.to_string()),
        Ok(_) => match fs::OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                broken("this account may not read and write it")
            }
            // Whatever else it is may pass: a full disk, no descriptors left.
            Ok(_) | Err(_) => match wal_check::damage(path) {
                Some(damage) => broken(&damage.to_string()),
                None => Ok(()),
            },
        },
    }
}

/// The format that it was written in, if it is one that we know.
pub(super) fn format(connection: &Connection, path: &Path) -> Result<i64, JournalError> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    match found <= known_format() {
        true => Ok(found),
        false => Err(JournalError::TooNew { path: path.to_owned(), found, known: known_format() }),
    }
}

/// Torn or altered pages, as far as they can be told.
pub(super) fn check_pages(connection: &Connection, path: &Path) -> Result<(), JournalError> {
    let said: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    match said.as_str() {
        "ok" => Ok(()),
        _ => Err(JournalError::Broken { path: path.to_owned(), reason: said.replace('\n', " ") }),
    }
}

/// An error that comes of what the file is, and not of the moment, is said to be that.
/// A full disk is named.
pub(super) fn name(failure: JournalError, path: &Path) -> JournalError {
    let broken =
        |reason: &rusqlite::Error| JournalError::Broken { path: path.to_owned(), reason: reason.to_string() };
    match failure {
        JournalError::Open { source, .. } | JournalError::Sqlite(source) if comes_of_the_file(&source) => {
            broken(&source)
        }
        JournalError::Open { source, .. } => {
            JournalError::Open { path: path.to_owned(), source: explain(source, path) }
        }
        JournalError::Sqlite(source) => JournalError::Sqlite(explain(source, path)),
        failure => failure,
    }
}

fn comes_of_the_file(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(error, said) => match error.code {
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => true,
            // A table or column is missing.
            _ => said.as_deref().is_some_and(|said| said.starts_with("no such ")),
        },
        rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => true,
        _ => false,
    }
}

/// Whether this program could take the journal up, without touching it: how many procs are in it.
pub(crate) fn examine(path: &Path) -> Result<usize, JournalError> {
    let read = || -> Result<usize, JournalError> {
        look_at_file(path)?;
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
            .map_err(|source| JournalError::Open { path: path.to_owned(), source })?;
        format(&connection, path)?;
        check_pages(&connection, path)?;
        let mut statement = connection.prepare("SELECT record FROM procs")?;
        let records = statement.query_map([], |row| row.get::<_, String>(0))?;
        let mut procs = 0;
        for record in records {
            if let Err(failure) = serde_json::from_str::<Record>(&record?) {
                return Err(JournalError::Broken { path: path.to_owned(), reason: failure.to_string() });
            }
            procs += 1;
        }
        Ok(procs)
    };
    read().map_err(|failure| name(failure, path))
}
