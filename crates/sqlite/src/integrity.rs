//! Checks the files of a database before SQLite opens them, and the structure of an open database. SQLite
//! keeps no checksums of its pages, so altered bytes inside a value are not found.

use crate::error::is_damage;
use crate::wal::{WalDamage, wal_damage};
use rusqlite::Connection;
use std::io;
use std::path::Path;

/// The state of the file at the path of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseFile {
    Missing,
    Empty,
    Present,
}

/// Why SQLite must not open a file.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    #[error("it is a folder")]
    Folder,
    #[error("it is not a regular file")]
    NotRegular,
    #[error(transparent)]
    AlteredLog(#[from] WalDamage),
    #[error(transparent)]
    Io(io::Error),
}

/// Looks at the files of a database before SQLite opens them: opening creates a missing database, and replays
/// an altered log up to the damage.
pub fn inspect(database: &Path) -> Result<DatabaseFile, FileFault> {
    match std::fs::metadata(database) {
        Ok(data) if data.is_dir() => Err(FileFault::Folder),
        Ok(data) if !data.is_file() => Err(FileFault::NotRegular),
        Ok(data) if data.len() == 0 => Ok(DatabaseFile::Empty),
        Ok(_) => wal_damage(database).map_or(Ok(DatabaseFile::Present), |damage| Err(damage.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DatabaseFile::Missing),
        Err(error) => Err(FileFault::Io(error)),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error("{0}")]
    Damaged(String),
    /// SQLite could not complete the check.
    #[error(transparent)]
    Sqlite(rusqlite::Error),
}

/// Reads the whole database.
pub fn quick_check(connection: &Connection) -> Result<(), CheckError> {
    check(connection, "PRAGMA quick_check(1)")
}

/// Reads one table and its indexes, in its own read transaction.
pub fn quick_check_table(connection: &Connection, table: &str) -> Result<(), CheckError> {
    check(connection, &format!("PRAGMA quick_check('{}')", table.replace('\'', "''")))
}

pub fn tables(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
}

fn check(connection: &Connection, pragma: &str) -> Result<(), CheckError> {
    match connection.query_row(pragma, [], |row| row.get::<_, String>(0)) {
        Ok(verdict) if verdict == "ok" => Ok(()),
        Ok(verdict) => {
            // The first line only names the database.
            let finding = verdict.lines().find(|line| !line.starts_with("***")).unwrap_or(&verdict);
            Err(CheckError::Damaged(format!("it is malformed: {finding}")))
        }
        Err(error) if is_damage(&error) => Err(CheckError::Damaged(error.to_string())),
        Err(error) => Err(CheckError::Sqlite(error)),
    }
}
