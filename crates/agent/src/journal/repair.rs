//! Saves the readable rows of a broken journal.
//!
//! The rows go into a new journal, and the old file is renamed. An op that was lost may have been carried
//! out. So the new journal records its time of creation, and an unknown op that was sent before is answered
//! as interrupted instead of being carried out again.

use super::{FILE, JournalError, MIGRATIONS, integrity};
use procfleet_core::id::OpId;
use procfleet_core::supervise::Record;
use procfleet_sqlite::wal_damage;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params_from_iter};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The tables, with the columns that they have in every format. The account of an event is left out: without
/// it, only apps with all accounts see the message.
const TABLES: [(&str, &str); 5] = [
    ("meta", "key, value"),
    ("procs", "namespace, name, record, registered_at"),
    ("ops", "op, namespace, name, kind, state, request, outcome, confirmed, accepted_at"),
    ("events", "number, at, namespace, name, kind, message, details, report_id, proc_name"),
    ("groups", "namespace, groups"),
];

/// The result of a repair.
#[derive(Debug)]
pub(crate) struct Saved {
    /// The new path of the old file. `None`: there was no file.
    pub(crate) kept: Option<PathBuf>,
    pub(crate) procs: Vec<String>,
    /// Procs whose names were readable, but not their records.
    pub(crate) lost: Vec<String>,
    pub(crate) ops: usize,
    /// False if unknown rows may be missing.
    pub(crate) whole: bool,
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        writeln!(f, "procs saved: {}", list(&self.procs))?;
        writeln!(f, "procs lost, to be registered or started again: {}", list(&self.lost))?;
        writeln!(f, "ops saved: {}", self.ops)?;
        if !self.whole {
            writeln!(
                f,
                "some of it could not be read: there may have been more. Ops that were sent before now and are not known are \
                 answered as interrupted (805)"
            )?;
        }
        match &self.kept {
            Some(kept) => write!(f, "the old journal is {}", kept.display()),
            None => f.write_str("there was no journal"),
        }
    }
}

/// Whether an unknown op may have been carried out, because it was sent before the journal was repaired.
pub(super) fn may_have_been_done(t: &Connection, op: OpId) -> rusqlite::Result<bool> {
    let repaired: Option<String> = t
        .prepare_cached("SELECT value FROM meta WHERE key = 'unsure_until'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(repaired.and_then(|stamp| stamp.parse::<u64>().ok()).is_some_and(|stamp| op.task.stamp <= stamp))
}

/// Creates a new journal from the readable rows. The agent must not be running.
pub(crate) fn repair(folder: &Path) -> Result<Saved, JournalError> {
    let path = folder.join(FILE);
    let stamp = jiff::Timestamp::now().strftime("%Y%m%d%H%M%S").to_string();
    let failed = |source| JournalError::Repair { path: path.clone(), source };
    let draft = folder.join(format!("{FILE}.repaired"));
    let _ = std::fs::remove_file(&draft);
    let mut saved = Saved { kept: None, procs: Vec::new(), lost: Vec::new(), ops: 0, whole: false };
    let mut new = Connection::open(&draft)?;
    fill(&mut new, &path, &stamp, &mut saved)?;
    // Without a write-ahead log, so the one file is complete.
    new.close().map_err(|(_, error)| error)?;
    std::fs::File::open(&draft).and_then(|file| file.sync_all()).map_err(failed)?;
    // Never overwrites a file that an earlier repair kept.
    let kept = (1..).map(|number| match number {
        1 => format!("{FILE}.broken-{stamp}"),
        _ => format!("{FILE}.broken-{stamp}-{number}"),
    });
    let kept = kept.map(|name| folder.join(name)).find(|kept| !kept.exists()).unwrap_or_default();
    let beside_kept = kept.to_string_lossy().into_owned();
    match std::fs::rename(&path, &kept) {
        Ok(()) => saved.kept = Some(kept),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    for beside in ["-wal", "-shm"] {
        let _ = std::fs::rename(folder.join(format!("{FILE}{beside}")), format!("{beside_kept}{beside}"));
    }
    std::fs::rename(&draft, &path).map_err(failed)?;
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(saved)
}

fn fill(new: &mut Connection, old: &Path, stamp: &str, saved: &mut Saved) -> Result<(), JournalError> {
    let t = new.transaction()?;
    MIGRATIONS.apply(&t).map_err(|error| integrity::version_error(error, old))?;
    // SQLite silently ignores the rest of an altered log.
    let log_is_whole = wal_damage(old).is_none();
    let tables: Vec<Rows> = match Connection::open_with_flags(old, OpenFlags::SQLITE_OPEN_READ_ONLY) {
        Ok(old) => TABLES.iter().map(|(table, columns)| read(&old, table, columns)).collect(),
        Err(_) => TABLES.iter().map(|_| Rows::default()).collect(),
    };
    saved.whole = log_is_whole && tables.iter().all(|table| table.whole);
    for ((table, columns), rows) in TABLES.iter().zip(&tables) {
        // The numbers of lost events would be used again under the same journal name, and the server would
        // ignore the new events as duplicates.
        if *table == "events" && !saved.whole {
            continue;
        }
        let parameters = vec!["?"; columns.split(", ").count()].join(", ");
        let insert = format!("INSERT OR REPLACE INTO {table} ({columns}) VALUES ({parameters})");
        let mut statement = t.prepare(&insert)?;
        for row in &rows.rows {
            let text = |column: usize| match row.get(column) {
                Some(Value::Text(text)) => text.as_str(),
                Some(_) | None => "",
            };
            match *table {
                "meta" if !saved.whole && text(0) == "journal" => continue,
                "procs" => {
                    let name = format!("{}:{}", text(0), text(1));
                    match serde_json::from_str::<Record>(text(2)) {
                        Ok(_) => saved.procs.push(name),
                        Err(_) => {
                            saved.lost.push(name);
                            continue;
                        }
                    }
                }
                "ops" if text(0).parse::<OpId>().is_err() => continue,
                "ops" => saved.ops += 1,
                _ => {}
            }
            // A row that violates the schema counts as unreadable.
            if statement.execute(params_from_iter(row)).is_err() {
                saved.whole = false;
            }
        }
    }
    if !saved.whole {
        t.execute("INSERT OR REPLACE INTO meta VALUES ('unsure_until', ?1)", [stamp])?;
    }
    t.commit()?;
    Ok(())
}

#[derive(Default)]
struct Rows {
    rows: Vec<Vec<Value>>,
    /// Whether all rows could be read.
    whole: bool,
}

/// Reads forwards, and after an unreadable row also backwards from the end.
fn read(old: &Connection, table: &str, columns: &str) -> Rows {
    let mut up = read_in_order(old, table, columns, "ASC");
    if !up.whole {
        let down = read_in_order(old, table, columns, "DESC");
        up.rows.extend(down.rows);
    }
    up
}

fn read_in_order(old: &Connection, table: &str, columns: &str, order: &str) -> Rows {
    let count = columns.split(", ").count();
    // Without an index, which may be the damaged part.
    let question = format!("SELECT {columns} FROM {table} NOT INDEXED ORDER BY rowid {order}");
    let Ok(mut statement) = old.prepare(&question) else { return Rows::default() };
    let Ok(mut rows) = statement.query([]) else { return Rows::default() };
    let mut read = Rows::default();
    loop {
        match rows.next() {
            Ok(Some(row)) => {
                let values: Result<Vec<Value>, _> = (0..count).map(|column| row.get(column)).collect();
                read.rows.extend(values.ok());
            }
            Ok(None) => {
                read.whole = true;
                return read;
            }
            Err(_) => return read,
        }
    }
}
