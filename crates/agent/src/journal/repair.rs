//! Saving what can be read of a journal that cannot be used.
//!
//! What is saved goes into a new journal; the old file stays beside it under another name. An op of which
//! nothing is known any more may have been carried out, so the new journal remembers when it was made: an op
//! that was sent before that is answered as interrupted instead of being carried out once more.

use super::{FILE, JournalError, MIGRATIONS, integrity};
use procfleet_core::id::OpId;
use procfleet_core::supervise::Record;
use procfleet_sqlite::wal_damage;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params_from_iter};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The tables, with the columns that a row has in every format. An event's account is not among them: without
/// it only apps with all accounts are shown its message.
const TABLES: [(&str, &str); 5] = [
    ("meta", "key, value"),
    ("procs", "namespace, name, record, registered_at"),
    ("ops", "op, namespace, name, kind, state, request, outcome, confirmed, accepted_at"),
    ("events", "number, at, namespace, name, kind, message, details, report_id, proc_name"),
    ("groups", "namespace, groups"),
];

/// What was done.
#[derive(Debug)]
pub(crate) struct Saved {
    /// Where the old file is now; `None`: there was none.
    pub(crate) kept: Option<PathBuf>,
    pub(crate) procs: Vec<String>,
    /// Procs of which only the name could be read.
    pub(crate) lost: Vec<String>,
    pub(crate) ops: usize,
    /// Whether rows may be missing that nobody can tell of.
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

/// Whether an op may have been carried out although nothing is known of it: it was sent before the journal
/// was repaired.
pub(super) fn may_have_been_done(t: &Connection, op: OpId) -> rusqlite::Result<bool> {
    let repaired: Option<String> = t
        .prepare_cached("SELECT value FROM meta WHERE key = 'unsure_until'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(repaired.and_then(|stamp| stamp.parse::<u64>().ok()).is_some_and(|stamp| op.task.stamp <= stamp))
}

/// Makes a new journal of what can be read. The agent must not be running.
pub(crate) fn repair(folder: &Path) -> Result<Saved, JournalError> {
    let path = folder.join(FILE);
    let stamp = jiff::Timestamp::now().strftime("%Y%m%d%H%M%S").to_string();
    let failed = |source| JournalError::Repair { path: path.clone(), source };
    let draft = folder.join(format!("{FILE}.repaired"));
    let _ = std::fs::remove_file(&draft);
    let mut saved = Saved { kept: None, procs: Vec::new(), lost: Vec::new(), ops: 0, whole: false };
    let mut new = Connection::open(&draft)?;
    fill(&mut new, &path, &stamp, &mut saved)?;
    // Everything is in the one file, and on the disk.
    new.close().map_err(|(_, error)| error)?;
    std::fs::File::open(&draft).and_then(|file| file.sync_all()).map_err(failed)?;
    // Never in the place of one that was kept before.
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
        // Numbers of events that were lost would be given out again under the same name, and taken for the
        // lost ones.
        if *table == "events" && !saved.whole {
            continue;
        }
        let places = vec!["?"; columns.split(", ").count()].join(", ");
        let insert = format!("INSERT OR REPLACE INTO {table} ({columns}) VALUES ({places})");
        let mut statement = t.prepare(&insert)?;
        for row in &rows.rows {
            let text = |place: usize| match row.get(place) {
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
            // A row that does not fit is one that cannot be read.
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
    /// All of them could be read.
    whole: bool,
}

/// The rows from the first on, and if one cannot be read, from the last on down to it.
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
    // Without an index, which may be what is broken.
    let question = format!("SELECT {columns} FROM {table} NOT INDEXED ORDER BY rowid {order}");
    let Ok(mut statement) = old.prepare(&question) else { return Rows::default() };
    let Ok(mut rows) = statement.query([]) else { return Rows::default() };
    let mut read = Rows::default();
    loop {
        match rows.next() {
            Ok(Some(row)) => {
                let values: Result<Vec<Value>, _> = (0..count).map(|place| row.get(place)).collect();
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
