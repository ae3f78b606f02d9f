//! Checks the structure of an open database. SQLite keeps no checksums of its pages, so altered bytes inside a
//! value are not found.

use crate::error::is_damage;
use rusqlite::Connection;

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

/// Reads one table and its indexes, in a read transaction of its own.
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
