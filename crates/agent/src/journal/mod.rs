//! The agent's durable state: one SQLite file, written with `synchronous=FULL`.
//!
//! It holds each proc's record, the process groups, and each op from its acceptance to its confirmed outcome.
//! One thread owns the connection and commits waiting writes together (group commit). An operator can open
//! the file with any SQLite tool.

mod divide;
mod events;
mod integrity;
mod link;
mod repair;

#[cfg(test)]
mod tests;

pub(crate) use events::EventProc;
pub(crate) use integrity::examine;
pub(crate) use repair::repair;

/// The journal in the agent's folder.
pub(crate) const FILE: &str = "agent.db";

use procfleet_core::code::Code;
use procfleet_core::id::{BootId, OpId, ProcKey};
use procfleet_core::op::{OpKind, Order, Outcome};
use procfleet_core::parts;
use procfleet_core::spec::{Instances, ProcessGroup, Spec};
use procfleet_core::stagger;
use procfleet_core::supervise::{Record, Write};
use procfleet_failpoint::Point;
use procfleet_sqlite::{Migrations, Reserve, WriteError, Writer, WriterSettings, keep_log};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tracing::{error, warn};

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("opening the journal {path}")]
    Open {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error(
        "the journal {path} was written by a newer version of procfleet (format {found}, this one knows {known})"
    )]
    TooNew { path: PathBuf, found: i64, known: i64 },
    /// The agent must not create a new journal instead: it would forget what is hosted, what was stopped and
    /// which ops were carried out.
    #[error(
        "the journal {path} cannot be used: {reason}. Nothing was started, ended or forgotten: the processes of this host go on. \
         Put the file right, or save what can be read of it: procfleet agent repair --data {folder}",
        folder = path.parent().unwrap_or(Path::new(".")).display()
    )]
    Broken { path: PathBuf, reason: String },
    #[error("repairing the journal {path}")]
    Repair {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("opening the journal's files to reserve disk space")]
    Reserve {
        #[source]
        source: std::io::Error,
    },
    #[error("starting the journal's thread")]
    Thread {
        #[source]
        source: std::io::Error,
    },
    #[error("the journal")]
    Sqlite(#[from] rusqlite::Error),
    #[error("a commit failed, and all that was in it is undone")]
    NotCommitted,
    #[error("the journal has ended")]
    Ended,
}

const MIGRATIONS: Migrations = Migrations(&[
    include_str!("migrations/0001_init.sql"),
    include_str!("migrations/0002_events.sql"),
    include_str!("migrations/0003_groups.sql"),
    include_str!("migrations/0004_event_user.sql"),
]);

const WRITER: WriterSettings = WriterSettings {
    name: "journal",
    group: 256,
    // The writer also serves reads, which need no write lock.
    begin: "BEGIN",
    commit: Point::AgentCommit,
};
/// More than there are different statements, so that none is prepared twice.
const STATEMENTS: usize = 32;
/// The agent's end waits no longer than this for a disk that hangs. The next start replays the log.
const CLOSE: Duration = Duration::from_secs(2);
/// Confirmed ops are kept this long for the operator. The server does not ask for them again.
const KEEP_SECS: i64 = 7 * 86_400;

#[derive(Clone, Debug)]
pub(crate) struct Journal {
    writer: Arc<Writer>,
    reserve: Arc<Reserve>,
    /// There are new events.
    events_changed: Arc<Notify>,
}

/// The state that the last run of the agent left.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Whether the host has booted since then.
    pub(crate) cause: stagger::StaggerCause,
    pub(crate) procs: Vec<PastProc>,
    pub(crate) unacknowledged: Vec<(OpId, Outcome)>,
    /// Divided ops, some of whose parts have no outcome yet.
    pub(crate) divided: Vec<(OpId, OpParts)>,
    /// Procs whose records cannot be read, with the reason. The agent does not act on them, because their
    /// wanted state is unknown.
    pub(crate) unreadable: Vec<(ProcKey, String)>,
    /// The process groups of each namespace that has some.
    pub(crate) groups: Vec<(String, Vec<ProcessGroup>)>,
}

/// The parts of an op by their instances, with the outcomes that there are.
pub(crate) type OpParts = BTreeMap<u32, Option<Outcome>>;

#[derive(Debug)]
pub(crate) struct PastProc {
    pub(crate) key: ProcKey,
    /// `None`: the journal has ops of the proc, but no record.
    pub(crate) record: Option<Record>,
    pub(crate) registered_at: i64,
    /// Ops that had begun.
    pub(crate) interrupted: Vec<(OpId, OpKind)>,
    /// Ops that had not begun when the host was restarted. Their deadlines are on a clock that no longer
    /// exists.
    pub(crate) unbegun: Vec<(OpId, OpKind)>,
    /// Ops that were accepted and had not begun. They may still be carried out.
    pub(crate) waiting: Vec<Order>,
}

/// The journal's knowledge of an op that has just arrived.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Acceptance {
    /// To be carried out: the op itself, or one part for each instance of its proc.
    New(Vec<(ProcKey, Order)>),
    /// Received before, and waiting or running.
    Known,
    /// Received before, with this outcome.
    Done(Outcome),
}

/// The state of an op.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JournalledOp {
    Unknown,
    /// The op, or these parts of it, are waiting or running.
    Open(Vec<(ProcKey, OpId)>),
    Done(Outcome),
}

impl PastProc {
    fn without_record(key: ProcKey) -> PastProc {
        let (interrupted, unbegun, waiting) = (Vec::new(), Vec::new(), Vec::new());
        PastProc { key, record: None, registered_at: 0, interrupted, unbegun, waiting }
    }
}

impl Journal {
    pub(crate) async fn open(path: &Path, boot: &BootId) -> Result<(Journal, Past), JournalError> {
        let (connection, past) = open(path, boot).map_err(|failure| integrity::explained(failure, path))?;
        let reserve = Arc::new(Reserve::of(path).map_err(|source| JournalError::Reserve { source })?);
        let writer = Writer::start(WRITER, connection, reserve.clone(), ())
            .map_err(|source| JournalError::Thread { source })?;
        Ok((Journal { writer: Arc::new(writer), reserve, events_changed: Arc::default() }, past))
    }

    /// Runs `act` in the next transaction. Returns when it is durable.
    async fn run<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, JournalError> {
        self.writer.run(act).await.map_err(|error| match error {
            WriteError::Job(error) => JournalError::Sqlite(error),
            WriteError::Commit(_) => JournalError::NotCommitted,
            WriteError::Closed => JournalError::Ended,
        })
    }

    /// Whether only essential changes should be written.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.reserve.is_disk_full()
    }

    /// Deletes all confirmed ops, so that new ones fit into the file without growing it.
    pub(crate) async fn free_space(&self) {
        let made = self.run(|t| t.execute("DELETE FROM ops WHERE confirmed = 1", []).map(|_| ()));
        if let Err(failure) = made.await {
            warn!(
                error = &failure as &dyn std::error::Error,
                "cannot delete acknowledged ops from the journal; retrying in an hour"
            );
        }
    }

    /// Releases the page cache after many writes.
    pub(crate) async fn shrink(&self) {
        // Best effort.
        let _ = self.run(|t| t.execute_batch("PRAGMA shrink_memory")).await;
    }

    /// Deletes old confirmed ops. To be called regularly.
    pub(crate) async fn prune(&self) {
        // On failure the next call does it.
        let _ = self.run(prune).await;
    }

    /// Writes ops as they arrive, in one transaction. On failure none of them is accepted.
    pub(crate) async fn accept(
        &self,
        orders: Vec<(ProcKey, Order)>,
    ) -> Result<Vec<Acceptance>, JournalError> {
        self.run(move |t| orders.iter().map(|(key, order)| accept(t, key, order)).collect()).await
    }

    /// The stored spec of a proc.
    pub(crate) async fn spec(&self, key: ProcKey) -> Result<Option<Spec>, JournalError> {
        self.run(move |t| divide::stored_spec(t, &key)).await
    }

    /// The state of an op, whole or in parts.
    pub(crate) async fn op_state(&self, op: OpId) -> Result<JournalledOp, JournalError> {
        self.run(move |t| match known(t, op)? {
            None => Ok(JournalledOp::Unknown),
            Some(Acceptance::Done(outcome)) => Ok(JournalledOp::Done(outcome)),
            Some(Acceptance::Known | Acceptance::New(_)) => Ok(JournalledOp::Open(open_parts(t, op)?)),
        })
        .await
    }

    /// Makes a step durable. Retries until it is written, because the effects of the step must follow it.
    pub(crate) async fn write(&self, key: &ProcKey, writes: &[Write], known: &EventProc) {
        if writes.is_empty() {
            return;
        }
        let has_events = writes.iter().any(|write| matches!(write, Write::Event(_)));
        let step = Arc::new((key.clone(), writes.to_vec(), known.clone()));
        self.insist(move |t| {
            let (key, writes, known) = &*step;
            writes.iter().try_for_each(|write| write_one(t, key, write, known))
        })
        .await;
        if has_events {
            self.events_changed.notify_one();
        }
    }

    /// Replaces the process groups of a namespace, together with the outcome of the op that asked for it.
    pub(crate) async fn set_groups(
        &self,
        namespace: &str,
        groups: &[ProcessGroup],
        op: OpId,
        outcome: &Outcome,
    ) {
        let key = ProcKey { namespace: namespace.to_owned(), name: String::new() };
        let (groups, done) = (groups.to_vec(), Write::Done(op, outcome.clone()));
        self.insist(move |t| {
            match groups.is_empty() {
                true => {
                    t.prepare_cached("DELETE FROM groups WHERE namespace = ?1")?.execute([&key.namespace])?
                }
                false => t
                    .prepare_cached("INSERT OR REPLACE INTO groups (namespace, groups) VALUES (?1, ?2)")?
                    .execute(params![key.namespace, json(&groups)])?,
            };
            write_one(t, &key, &done, &EventProc::default())
        })
        .await;
    }

    /// Retries until the write is durable.
    async fn insist(&self, act: impl Fn(&Connection) -> rusqlite::Result<()> + Clone + Send + 'static) {
        loop {
            match self.run(act.clone()).await {
                Ok(()) => return,
                // The agent is ending. Its next run finds the step missing and reports the op as interrupted.
                Err(JournalError::Ended) => std::future::pending().await,
                Err(failure) => {
                    error!(
                        error = &failure as &dyn std::error::Error,
                        "cannot write the journal; retrying. Ops wait meanwhile: check the disk of the data folder"
                    );
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Records that the server has these outcomes.
    pub(crate) async fn confirm(&self, ops: Vec<OpId>) {
        let written = self.run(move |t| {
            let mut statement =
                t.prepare_cached("UPDATE ops SET confirmed = 1 WHERE op = ?1 AND state = 2")?;
            let mut confirm = |op: OpId| statement.execute([op.to_string()]);
            for op in ops {
                // A divided op is stored as its parts only, which are confirmed together.
                if confirm(op)? == 0 && confirm(op.part(1))? > 0 {
                    for instance in 2..=Instances::MAX {
                        confirm(op.part(instance))?;
                    }
                }
            }
            Ok(())
        });
        // On failure the outcome is reported once more after the next start.
        if let Err(failure) = written.await {
            warn!(
                error = &failure as &dyn std::error::Error,
                "cannot record an acknowledgement; the outcome may be sent again"
            );
        }
    }

    /// Makes every write fail, as on a full disk.
    #[cfg(test)]
    pub(crate) async fn refuse_writes(&self) {
        self.run(|t| t.execute_batch("PRAGMA query_only = ON")).await.expect("a pragma");
    }

    #[cfg(test)]
    pub(crate) async fn accept_writes(&self) {
        self.run(|t| t.execute_batch("PRAGMA query_only = OFF")).await.expect("a pragma");
    }

    pub(crate) async fn close(self) {
        let _ = tokio::time::timeout(CLOSE, self.writer.close()).await;
    }
}

/// Opens the journal, migrates it and reads the state that the last run left, in one transaction: on failure
/// the journal is unchanged.
fn open(path: &Path, boot: &BootId) -> Result<(Connection, Past), JournalError> {
    integrity::check_file(path)?;
    let opening = |source| JournalError::Open { path: path.to_owned(), source };
    let mut connection = Connection::open(path).map_err(opening)?;
    keep_log(&connection).map_err(opening)?;
    connection
        .execute_batch(
            // 128 KiB of pages: the file is small, rarely read, and in the kernel's page cache too. SQLite
            // allocates most pages singly, and the heap keeps the holes that they leave.
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA cache_size=-128;",
        )
        .map_err(opening)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    integrity::check_version(&connection, path)?;
    integrity::check(&connection, path)?;
    let transaction = connection.transaction().map_err(opening)?;
    MIGRATIONS.apply(&transaction).map_err(|error| integrity::version_error(error, path))?;
    let past = read_past(&transaction, boot)?;
    transaction.execute("INSERT OR REPLACE INTO meta VALUES ('boot_id', ?1)", [&boot.0])?;
    prune(&transaction)?;
    events::forget_unreportable(&transaction)?;
    transaction.commit()?;
    Ok((connection, past))
}

fn prune(t: &Connection) -> rusqlite::Result<()> {
    let old = now_secs() - KEEP_SECS;
    t.execute("DELETE FROM ops WHERE confirmed = 1 AND accepted_at < ?1", [old]).map(|_| ())
}

fn accept(t: &Connection, key: &ProcKey, order: &Order) -> rusqlite::Result<Acceptance> {
    if let Some(known) = known(t, order.op)? {
        return Ok(known);
    }
    if repair::may_have_been_done(t, order.op)? {
        let message = format!(
            "interrupted: the agent's journal was repaired after {} was sent, and it is unknown whether it was carried out; \
             nothing was done now",
            order.kind.verb()
        );
        return Ok(Acceptance::Done(Outcome::without_status(Code::Interrupted, message, order.kind)));
    }
    let order = match divide::with_whole_spec(t, key, order.clone())? {
        Ok(order) => order,
        Err(fault) => {
            let message = format!("{} was not begun: {fault}", order.kind.verb());
            return Ok(Acceptance::Done(Outcome::without_status(fault.code(), message, order.kind)));
        }
    };
    let parts = divide::divide(t, key, &order)?;
    let mut statement = t.prepare_cached(
        "INSERT INTO ops (op, namespace, name, kind, state, request, accepted_at) VALUES (?1,?2,?3,?4,0,?5,?6)",
    )?;
    for (key, part) in &parts {
        let (op, kind) = (part.op.to_string(), part.kind.number());
        statement.execute(params![op, key.namespace, key.name, kind, json(part), now_secs()])?;
    }
    Ok(Acceptance::New(parts))
}

/// The state of an op that was received before, whole or in parts. `None`: it is new.
fn known(t: &Connection, op: OpId) -> rusqlite::Result<Option<Acceptance>> {
    let acceptance = |outcome: Option<Outcome>| outcome.map_or(Acceptance::Known, Acceptance::Done);
    if let Some(outcome) = written_outcome(t, op)? {
        return Ok(Some(acceptance(outcome)));
    }
    // A divided op always has a part for the first instance.
    if written_outcome(t, op.part(1))?.is_none() {
        return Ok(None);
    }
    let mut parts = OpParts::new();
    for instance in 1..=Instances::MAX {
        if let Some(outcome) = written_outcome(t, op.part(instance))? {
            parts.insert(instance, outcome);
        }
    }
    Ok(Some(acceptance(merged(parts).ok())))
}

/// The procs in which an op, or its parts, have no outcome yet.
fn open_parts(t: &Connection, op: OpId) -> rusqlite::Result<Vec<(ProcKey, OpId)>> {
    let mut statement = t.prepare_cached("SELECT namespace, name FROM ops WHERE op = ?1 AND state < 2")?;
    let mut parts = Vec::new();
    for op in std::iter::once(op).chain((1..=Instances::MAX).map(|instance| op.part(instance))) {
        let key = statement
            .query_row([op.to_string()], |row| Ok(ProcKey { namespace: row.get(0)?, name: row.get(1)? }))
            .optional()?;
        parts.extend(key.map(|key| (key, op)));
    }
    Ok(parts)
}

/// `None`: the op is not in the journal. `Some(None)`: it has no outcome, or an unreadable one.
fn written_outcome(t: &Connection, op: OpId) -> rusqlite::Result<Option<Option<Outcome>>> {
    let known: Option<Option<String>> = t
        .prepare_cached("SELECT outcome FROM ops WHERE op = ?1")?
        .query_row([op.to_string()], |row| row.get(0))
        .optional()?;
    Ok(known.map(|outcome| outcome.and_then(|text| serde_json::from_str(&text).ok())))
}

/// Merges the outcomes if all parts have ended, else returns the parts.
fn merged(parts: OpParts) -> Result<Outcome, OpParts> {
    let ended: BTreeMap<u32, Outcome> =
        parts.iter().filter_map(|(instance, outcome)| Some((*instance, outcome.clone()?))).collect();
    match parts::merge(&ended) {
        Some(outcome) if ended.len() == parts.len() => Ok(outcome),
        Some(_) | None => Err(parts),
    }
}

fn write_one(t: &Connection, key: &ProcKey, write: &Write, known: &EventProc) -> rusqlite::Result<()> {
    match write {
        Write::Record(record) => t
            .prepare_cached(
                "INSERT INTO procs (namespace, name, record, registered_at) VALUES (?1,?2,?3,?4)
                 ON CONFLICT (namespace, name) DO UPDATE SET record = ?3",
            )?
            .execute(params![key.namespace, key.name, json(record), now_secs()]),
        Write::Forget => t
            .prepare_cached("DELETE FROM procs WHERE namespace = ?1 AND name = ?2")?
            .execute(params![key.namespace, key.name]),
        Write::Begun(op) => t
            .prepare_cached("UPDATE ops SET state = 1 WHERE op = ?1 AND state = 0")?
            .execute([op.to_string()]),
        Write::Done(op, outcome) => t
            .prepare_cached("UPDATE ops SET state = 2, outcome = ?2 WHERE op = ?1 AND state < 2")?
            .execute(params![op.to_string(), json(outcome)]),
        Write::Event(event) => events::write(t, key, event, known),
    }
    .map(|_| ())
}

fn read_past(t: &Connection, boot: &BootId) -> Result<Past, JournalError> {
    let last_boot: Option<String> =
        t.query_row("SELECT value FROM meta WHERE key = 'boot_id'", [], |row| row.get(0)).optional()?;
    let same_boot = last_boot.as_deref() == Some(boot.0.as_str());
    let cause = if same_boot { stagger::StaggerCause::AgentRestart } else { stagger::StaggerCause::Boot };
    let mut past = Past { cause, ..Past::default() };

    let mut statement = t.prepare("SELECT namespace, name, record, registered_at FROM procs")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let key = ProcKey { namespace: row.get(0)?, name: row.get(1)? };
        let text: String = row.get(2)?;
        let record: Record = match serde_json::from_str(&text) {
            Ok(record) => record,
            Err(failure) => {
                error!(
                    proc = %key,
                    error = %failure,
                    "cannot read a proc's record in the journal; the proc is not supervised and ops on it are refused. Stop the agent, run procfleet agent repair, start the agent, and register the proc again"
                );
                past.unreadable.push((key, failure.to_string()));
                continue;
            }
        };
        let record = if same_boot { record } else { record.after_reboot() };
        let registered_at = row.get(3)?;
        past.procs.push(PastProc { record: Some(record), registered_at, ..PastProc::without_record(key) });
    }
    drop(rows);

    let mut statement = t.prepare(
        "SELECT op, namespace, name, state, request, outcome FROM ops WHERE confirmed = 0 ORDER BY rowid",
    )?;
    let mut rows = statement.query([])?;
    let mut divided: BTreeMap<OpId, OpParts> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (op, state): (String, i64) = (row.get(0)?, row.get(3)?);
        let request: String = row.get(4)?;
        let (Ok(op), Ok(order)) = (op.parse::<OpId>(), serde_json::from_str::<Order>(&request)) else {
            error!(
                op,
                "cannot read an op in the journal; the op is dropped and expires on the server. Send it again"
            );
            continue;
        };
        if state == 2 {
            let outcome: String = row.get(5)?;
            match (serde_json::from_str(&outcome), op.whole()) {
                (Ok(outcome), (_, None)) => past.unacknowledged.push((op, outcome)),
                (Ok(outcome), (whole, Some(instance))) => {
                    divided.entry(whole).or_default().insert(instance, Some(outcome));
                }
                (Err(failure), _) => {
                    error!(%op, error = %failure, "cannot read an outcome in the journal; it is not reported, and the op expires on the server. Check the process by hand")
                }
            }
            continue;
        }
        if let (whole, Some(instance)) = op.whole() {
            divided.entry(whole).or_default().insert(instance, None);
        }
        let key = ProcKey { namespace: row.get(1)?, name: row.get(2)? };
        let index = past.procs.iter().position(|proc| proc.key == key).unwrap_or_else(|| {
            past.procs.push(PastProc::without_record(key));
            past.procs.len() - 1
        });
        let proc = &mut past.procs[index];
        match (state == 0, same_boot) {
            (true, true) => proc.waiting.push(order),
            (true, false) => proc.unbegun.push((op, order.kind)),
            (false, _) => proc.interrupted.push((op, order.kind)),
        }
    }
    for (whole, parts) in divided {
        match merged(parts) {
            Ok(outcome) => past.unacknowledged.push((whole, outcome)),
            Err(parts) => past.divided.push((whole, parts)),
        }
    }
    drop(rows);

    let mut statement = t.prepare("SELECT namespace, groups FROM groups ORDER BY namespace")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (namespace, text): (String, String) = (row.get(0)?, row.get(1)?);
        match serde_json::from_str(&text) {
            Ok(groups) => past.groups.push((namespace, groups)),
            Err(failure) => {
                error!(namespace, error = %failure, "cannot read process groups in the journal; their limits do not apply. Set them again")
            }
        }
    }
    Ok(past)
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types have only text keys, so they are always JSON")
}

fn now_secs() -> i64 {
    jiff::Timestamp::now().as_second()
}
