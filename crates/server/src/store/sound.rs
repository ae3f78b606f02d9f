//! Whether a store is fit to be used. One that is not is left as it is: a server that began anew in its place
//! would not know its agents, its apps and what it was asked to do.

use super::StoreError;
use procfleet_core::wal::{self, Damage};
use procfleet_sqlite::explain;
use rusqlite::{Connection, ErrorCode};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The certificate of the server's own CA, beside the store. It is made after the store, so where it is,
/// there was one.
const LATER: &str = "ca.cert.der";

const CHECKING: &str = "checking the store";

/// What can be told without opening it as a database, which would make a new one where there is none.
pub(super) fn look_at_file(path: &Path) -> Result<(), StoreError> {
    match std::fs::metadata(path) {
        Ok(data) if data.is_dir() => Err(damaged(path, "it is a folder")),
        Ok(data) if !data.is_file() => Err(damaged(path, "it is not a regular file")),
        Ok(data) if data.len() == 0 => new_only(path, "empty"),
        Ok(_) => match log_damage(path) {
            // SQLite would end its log there without a word, and forget what was accepted after it.
            Ok(Some(damage)) => Err(damaged(path, damage.to_string())),
            // One that is not there, or cannot be read, is SQLite's to judge.
            Ok(None) | Err(_) => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => new_only(path, "gone"),
        Err(source) => Err(StoreError::File { doing: "looking at", path: path.to_owned(), source }),
    }
}

/// A database in which nothing was ever written can only be that of a first start.
pub(super) fn look_inside(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |source| name(StoreError::Database { doing: "looking into the store", source }, path);
    let written: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    if written == 0 { new_only(path, "empty") } else { Ok(()) }
}

/// Reads all of the database, and says where its structure is broken.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    check_with(connection, path, "PRAGMA quick_check(1)")
}

/// The same, with a read transaction for each table.
pub(super) fn check_by_table(
    connection: &Connection,
    path: &Path,
    stopped: impl Fn() -> bool,
) -> Result<(), StoreError> {
    let tables = || -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
        connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
    };
    let tables = tables().map_err(|source| name(StoreError::Database { doing: CHECKING, source }, path))?;
    for table in tables {
        if stopped() {
            return Err(StoreError::Closed);
        }
        let table = table.replace('\'', "''");
        check_with(connection, path, &format!("PRAGMA quick_check('{table}')"))?;
    }
    Ok(())
}

fn check_with(connection: &Connection, path: &Path, pragma: &str) -> Result<(), StoreError> {
    match connection.query_row(pragma, [], |row| row.get::<_, String>(0)) {
        Ok(said) if said == "ok" => Ok(()),
        Ok(said) => {
            let first = said.lines().find(|line| !line.starts_with("***")).unwrap_or(&said);
            Err(damaged(path, format!("it is malformed: {first}")))
        }
        Err(source) => Err(name(StoreError::Database { doing: CHECKING, source }, path)),
    }
}

fn log_damage(path: &Path) -> io::Result<Option<Damage>> {
    let log = File::open(beside(path, "-wal"))?;
    wal::damage(log.metadata()?.len(), |at, bytes| log.read_exact_at(bytes, at))
}

fn new_only(path: &Path, how: &'static str) -> Result<(), StoreError> {
    let later = path.with_file_name(LATER);
    if later.exists() { Err(StoreError::Lost { path: path.to_owned(), how, later }) } else { Ok(()) }
}

fn damaged(path: &Path, reason: impl Into<String>) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), reason: reason.into() }
}

/// An error that comes of what the file is, and not of the moment, is said to be that.
/// A full disk is named.
pub(super) fn name(error: StoreError, path: &Path) -> StoreError {
    match error {
        StoreError::Database { source, .. } if comes_of_the_file(&source) => {
            damaged(path, source.to_string())
        }
        StoreError::Commit { source, .. } if comes_of_the_file(&source) => damaged(path, source.to_string()),
        StoreError::Unreadable { .. } => damaged(path, error.to_string()),
        StoreError::Database { doing, source } => {
            StoreError::Database { doing, source: explain(source, path) }
        }
        error => error,
    }
}

fn comes_of_the_file(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(error, said) => match error.code {
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => true,
            // A table or column is missing, or one that is to be made is there: it is not ours.
            _ => said
                .as_deref()
                .is_some_and(|said| said.starts_with("no such ") || said.contains(" already exists")),
        },
        rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => true,
        _ => false,
    }
}

/// Makes the names of the files in the folder of this one durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// What SQLite keeps beside the file.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}
