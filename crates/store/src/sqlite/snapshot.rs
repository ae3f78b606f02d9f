//! A snapshot of the embedded store, from which `procfleet store copy` reads.
//!
//! ```text
//! server.db (a server may run) -> server.db.copying-PID: checked, migrated, without NUL bytes -> unlinked, read
//! ```
//!
//! The snapshot is a copy on the same disk, so that the write-ahead log of a running server does not grow
//! while the rows are sent, and so that stores and backups of earlier versions can be copied. The file is
//! unlinked before the first row is read: the kernel deletes it with the process. A process that was killed
//! earlier leaves its file, which the next snapshot deletes.
//!
//! A snapshot of a store that a server was using, or of a backup, lacks what is stored later. It begins a
//! generation (see `generation`), as a restored backup does: numbers of the lost time are not assigned again.

use super::columns::{text, unreadable};
use super::file_id::{self, FileOrigin};
use super::{QueryFault, backup, failed, generation, named, schema, store_lock};
use crate::copied_tables::{
    ColumnType, CopiedTable, CopyRow, CopyRowSender, CopyRows, CopySelect, CopyValue, UsedNumbers,
};
use crate::{CopyOrigin, StoreError, StoreLock};
use procfleet_sqlite::{beside, tables};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OpenFlags, Row, params_from_iter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

const DOING: &str = "reading the store";
/// How many texts with NUL bytes are in memory at once.
const TEXTS: usize = 1_000;
/// What stands for a NUL byte, as in `postgres/columns.rs`.
const REPLACEMENT: &str = "\u{fffd}";

/// A copy of the store that nobody changes.
#[derive(Debug)]
pub(crate) struct Snapshot {
    connection: Arc<Mutex<Connection>>,
    pub(crate) origin: CopyOrigin,
    /// How many texts had NUL bytes, which PostgreSQL cannot store.
    pub(crate) replaced_texts: u64,
    /// Keeps servers away from a store that no server was using, until the copy is complete.
    _lock: Option<StoreLock>,
}

impl Snapshot {
    /// Of the store of a data folder.
    pub(crate) fn of_store(store: &Path) -> Result<Snapshot, StoreError> {
        std::fs::metadata(store).map_err(|source| reading(store, source))?;
        match store_lock::lock(store) {
            Ok(lock) => {
                let origin = match file_id::origin(store)?.0 {
                    FileOrigin::Same => CopyOrigin::Stopped,
                    // A backup was put in place, and no server has started since.
                    FileOrigin::Other => CopyOrigin::Backup,
                };
                Snapshot::take(store, origin, Some(lock))
            }
            Err(StoreError::InUse { .. }) => Snapshot::take(store, CopyOrigin::Running, None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn of_backup(file: &Path) -> Result<Snapshot, StoreError> {
        std::fs::metadata(file).map_err(|source| reading(file, source))?;
        Snapshot::take(file, CopyOrigin::Backup, None)
    }

    fn take(from: &Path, origin: CopyOrigin, lock: Option<StoreLock>) -> Result<Snapshot, StoreError> {
        remove_leftovers(from);
        let draft = Draft(beside(from, &format!(".copying-{}", std::process::id())));
        backup::backup(from, &draft.0).and_then(|_| schema::check_backup(&draft.0, from)).map_err(
            |error| match (error, origin) {
                (StoreError::BadBackup { path, reason }, _)
                | (StoreError::Damaged { path, reason }, CopyOrigin::Backup) => {
                    StoreError::NotCopied { path, reason }
                }
                (other, _) => other,
            },
        )?;
        let failed = |source| named(failed("preparing the snapshot", source), from);
        let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_READ_WRITE;
        let mut connection = Connection::open_with_flags(&draft.0, flags).map_err(failed)?;
        // A snapshot that was not completed is thrown away.
        connection.pragma_update(None, "synchronous", "OFF").map_err(failed)?;
        connection.pragma_update(None, "journal_mode", "MEMORY").map_err(failed)?;
        connection.pragma_update(None, "foreign_keys", false).map_err(failed)?;
        schema::upgrade(&mut connection, from).map_err(|error| named(error, from))?;
        let during = |fault: QueryFault| named(fault.during("preparing the snapshot"), from);
        match origin {
            CopyOrigin::Stopped => {}
            CopyOrigin::Running | CopyOrigin::Backup => {
                generation::begin(&mut connection, generation::known(from)?).map_err(during)?;
            }
        }
        let replaced_texts = replace_nul_bytes(&mut connection).map_err(during)?;
        drop(draft);
        let connection = Arc::new(Mutex::new(connection));
        Ok(Snapshot { connection, origin, replaced_texts, _lock: lock })
    }

    /// The rows of a table, in the order of its key.
    pub(crate) fn rows(&self, table: &'static CopiedTable) -> CopyRows {
        let (mut sender, rows) = CopyRows::channel();
        let connection = Arc::clone(&self.connection);
        tokio::task::spawn_blocking(move || {
            let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let done = send_rows(&connection, table, &mut sender);
            sender.end(done.map_err(|fault| fault.during(DOING)));
        });
        rows
    }

    /// The highest number of each kind that was ever assigned.
    pub(crate) fn used_numbers(&self) -> Result<UsedNumbers, StoreError> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get(0));
        let assigned = |table: &str, column: &str| {
            let sql = format!(
                "SELECT max(coalesce((SELECT max({column}) FROM {table}), 0), \
                 coalesce((SELECT seq FROM sqlite_sequence WHERE name = '{table}'), 0))"
            );
            number(&sql)
        };
        let used = || -> rusqlite::Result<UsedNumbers> {
            Ok(UsedNumbers {
                tasks: assigned("tasks", "number")?,
                webhooks: assigned("webhooks", "id")?,
                audit: assigned("audit", "id")?,
                generations: assigned("generations", "number")?,
                boots: assigned("boots", "number")?,
            })
        };
        used().map_err(|source| failed(DOING, source))
    }

    /// The numbers of all tasks without their last `bits` bits, each once.
    pub(crate) fn task_days(&self, bits: u32) -> Result<Vec<i64>, StoreError> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let days = || -> rusqlite::Result<Vec<i64>> {
            let mut statement = connection.prepare("SELECT DISTINCT number >> ? FROM tasks ORDER BY 1")?;
            statement.query_map([bits], |row| row.get(0))?.collect()
        };
        days().map_err(|source| failed(DOING, source))
    }
}

/// Deletes the file when it is dropped.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Deletes the drafts of processes that were killed. What cannot be deleted does no harm but take space.
fn remove_leftovers(from: &Path) {
    let (Some(folder), Some(name)) = (from.parent(), from.file_name()) else { return };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let prefix = format!("{}.copying-", name.to_string_lossy());
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) else { continue };
        // SQLite's own files have an ending.
        let pid = rest.split('-').next().unwrap_or_default();
        if pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn send_rows(
    db: &Connection,
    table: &'static CopiedTable,
    sender: &mut CopyRowSender,
) -> Result<(), QueryFault> {
    let query = match table.source {
        CopySelect::Same => format!("SELECT {} FROM {}", table.column_names(), table.name),
        CopySelect::Query(sql) => sql.to_owned(),
    };
    let order: Vec<String> = (1..=table.key).map(|column| column.to_string()).collect();
    let mut statement = db.prepare(&format!("{query} ORDER BY {}", order.join(", ")))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if sender.send(values(table, row)?).is_err() {
            break;
        }
    }
    Ok(())
}

fn values(table: &'static CopiedTable, row: &Row<'_>) -> Result<CopyRow, QueryFault> {
    let value = |(index, (name, kind)): (usize, &(&str, ColumnType))| {
        let stored = row.get_ref(index)?;
        Ok(match (kind, stored) {
            (_, ValueRef::Null) => CopyValue::Null,
            (ColumnType::Bool, ValueRef::Integer(number)) => CopyValue::Bool(number != 0),
            (ColumnType::Int | ColumnType::One, ValueRef::Integer(number)) => CopyValue::Int(number),
            (ColumnType::Text, ValueRef::Text(_)) => CopyValue::Text(text(row, index)?.to_owned()),
            (ColumnType::Bytes, ValueRef::Blob(bytes)) => CopyValue::Bytes(bytes.to_owned()),
            (_, other) => {
                let reason = format!("column {name} of {} is of the type {}", table.name, other.data_type());
                return Err(unreadable("a value", &reason));
            }
        })
    };
    table.columns.iter().enumerate().map(value).collect()
}

/// Replaces NUL bytes in texts, which are legal in SQLite only. Returns how many texts had some.
fn replace_nul_bytes(connection: &mut Connection) -> Result<u64, QueryFault> {
    let db = connection.transaction()?;
    let mut replaced = 0;
    for table in tables(&db)? {
        let (keys, texts) = columns(&db, &table)?;
        // Our tables have keys.
        for column in texts.iter().filter(|_| !keys.is_empty()) {
            let has_nul = format!("instr(CAST({column} AS BLOB), x'00') > 0");
            let find =
                format!("SELECT {column}, {} FROM {table} WHERE {has_nul} LIMIT {TEXTS}", keys.join(", "));
            let is_row: Vec<String> = keys.iter().map(|key| format!("{key} = ?")).collect();
            let replace = format!("UPDATE {table} SET {column} = ? WHERE {}", is_row.join(" AND "));
            loop {
                let found = found(&db, &find, keys.len() + 1)?;
                if found.is_empty() {
                    break;
                }
                for mut row in found {
                    if let Value::Text(text) = &mut row[0] {
                        *text = text.replace('\0', REPLACEMENT);
                    }
                    replaced += u64::try_from(db.prepare_cached(&replace)?.execute(params_from_iter(row))?)
                        .unwrap_or(0);
                }
            }
        }
    }
    db.commit()?;
    Ok(replaced)
}

fn found(db: &Connection, sql: &str, columns: usize) -> Result<Vec<Vec<Value>>, QueryFault> {
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| (0..columns).map(|index| row.get(index)).collect())?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The columns of the key, and the columns with texts.
fn columns(db: &Connection, table: &str) -> Result<(Vec<String>, Vec<String>), QueryFault> {
    // Without generated columns.
    let mut statement = db.prepare("SELECT name, type, pk FROM pragma_table_info(?) ORDER BY pk")?;
    let (mut keys, mut texts) = (Vec::new(), Vec::new());
    let mut rows = statement.query([table])?;
    while let Some(row) = rows.next()? {
        let name = format!("\"{}\"", text(row, 0)?);
        if text(row, 1)? == "TEXT" {
            texts.push(name.clone());
        }
        if row.get::<_, i64>(2)? > 0 {
            keys.push(name);
        }
    }
    Ok((keys, texts))
}

fn reading(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::File { doing: "reading", path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copied_tables::COPIED_TABLES;

    /// Each with the reason.
    const NOT_COPIED: [(&str, &str); 6] = [
        ("deleted_tasks.number", "its ops are left out"),
        ("submissions.kind", "each kind has a table of its own"),
        ("agents.present", "every start resets it"),
        ("agents.cut_off_at", "the sessions of connected agents end with the copy"),
        ("sqlite_sequence.name", "see `used_numbers`"),
        ("sqlite_sequence.seq", "see `used_numbers`"),
    ];

    /// The queries are texts, so this looks for the names of the columns in the queries of their table.
    #[test]
    fn every_table_and_column_is_copied_or_named_here() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let connection = schema::open(&folder.path().join("server.db")).expect("a new store").connection;
        let words = |text: &str| -> Vec<String> {
            text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').map(str::to_owned).collect()
        };
        let mut missing = Vec::new();
        for table in tables(&connection).expect("readable") {
            let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?)").expect("a query");
            let columns = statement.query_map([&table], |row| row.get::<_, String>(0)).expect("readable");
            for column in columns.map(|column| column.expect("readable")) {
                let is_copied = COPIED_TABLES.iter().any(|copied| match copied.source {
                    CopySelect::Same => {
                        copied.name == table && copied.columns.iter().any(|(name, _)| *name == column)
                    }
                    CopySelect::Query(sql) => words(sql).contains(&table) && words(sql).contains(&column),
                });
                let name = format!("{table}.{column}");
                if !is_copied && !NOT_COPIED.iter().any(|(not, _)| *not == name) {
                    missing.push(name);
                }
            }
        }
        assert!(missing.is_empty(), "{missing:?} would be lost by a copy");
    }

    #[test]
    fn drafts_of_processes_that_are_gone_are_deleted() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let own = format!("server.db.copying-{}", std::process::id());
        let keep = [own.as_str(), "server.db.copying-x", "other.db.copying-4194305", "server.db"];
        let delete = ["server.db.copying-4194305", "server.db.copying-4194305-journal"];
        for name in keep.iter().chain(&delete) {
            std::fs::write(folder.path().join(name), "").expect("our own folder");
        }
        remove_leftovers(&folder.path().join("server.db"));
        for (names, expected) in [(&keep[..], true), (&delete[..], false)] {
            for name in names {
                assert_eq!(folder.path().join(name).exists(), expected, "{name}");
            }
        }
    }
}
