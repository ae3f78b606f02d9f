//! What must survive the agent: one SQLite file, written with full sync.
//!
//! It holds each proc's record, the process groups, and each op from its acceptance to its confirmed outcome. One thread owns
//! the connection; what waits for it is written in one transaction. An operator can open the file with any SQLite tool.

mod divide;
mod events;
mod thread;

pub(crate) use events::Known;

use procfleet_core::id::{BootId, OpId, ProcKey};
use procfleet_core::op::{OpKind, Order, Outcome};
use procfleet_core::parts;
use procfleet_core::spec::{Instances, ProcessGroup};
use procfleet_core::supervise::{Record, Write};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thread::Thread;
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
    #[error("the journal")]
    Sqlite(#[from] rusqlite::Error),
    #[error("a commit failed, and all that was in it is undone")]
    NotCommitted,
    #[error("the journal has ended")]
    Ended,
}

/// In order; the journal's format is how many of them were applied. Those that landed never change.
const MIGRATIONS: [&str; 3] = [
    include_str!("migrations/0001_init.sql"),
    include_str!("migrations/0002_events.sql"),
    include_str!("migrations/0003_groups.sql"),
];
/// Confirmed ops are kept so long, for the operator; the server never asks for them again.
const KEEP_SECS: i64 = 7 * 86_400;

#[derive(Clone, Debug)]
pub(crate) struct Journal {
    thread: Thread,
    /// There are new events.
    news: Arc<Notify>,
}

/// What the agent's last life left.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) procs: Vec<PastProc>,
    pub(crate) unacknowledged: Vec<(OpId, Outcome)>,
    /// Ops of which some parts have no outcome yet.
    pub(crate) divided: Vec<(OpId, Parts)>,
    /// The process groups of each namespace that has some.
    pub(crate) groups: Vec<(String, Vec<ProcessGroup>)>,
}

/// The parts of an op by their instances, with the outcomes that there are.
pub(crate) type Parts = BTreeMap<u32, Option<Outcome>>;

#[derive(Debug)]
pub(crate) struct PastProc {
    pub(crate) key: ProcKey,
    /// `None`: only ops are known of it.
    pub(crate) record: Option<Record>,
    pub(crate) registered_at: i64,
    /// Begun, and interrupted.
    pub(crate) interrupted: Vec<(OpId, OpKind)>,
    /// Accepted, and not begun: they may still be carried out.
    pub(crate) waiting: Vec<Order>,
}

/// What the journal says of an op that has just arrived.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Acceptance {
    /// These are to be carried out: the op itself, or its parts where it concerns several instances of its proc.
    New(Vec<(ProcKey, Order)>),
    /// It came before and is waiting or under way.
    Known,
    /// It came before, and this is how it ended.
    Done(Outcome),
}

impl Journal {
    pub(crate) async fn open(path: &Path, boot: &BootId) -> Result<(Journal, Past), JournalError> {
        let opening = |source| JournalError::Open { path: path.to_owned(), source };
        let mut connection = Connection::open(path).map_err(opening)?;
        connection
            .execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;")
            .map_err(opening)?;
        let found: i64 =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(opening)?;
        let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
        if found > known {
            return Err(JournalError::TooNew { path: path.to_owned(), found, known });
        }
        let transaction = connection.transaction().map_err(opening)?;
        for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or_default()) {
            transaction.execute_batch(migration).map_err(opening)?;
        }
        transaction.pragma_update(None, "user_version", known).map_err(opening)?;
        let past = read_past(&transaction, boot)?;
        transaction.execute("INSERT OR REPLACE INTO meta VALUES ('boot_id', ?1)", [&boot.0])?;
        let old = now_secs() - KEEP_SECS;
        transaction.execute("DELETE FROM ops WHERE confirmed = 1 AND accepted_at < ?1", [old])?;
        transaction.commit()?;
        Ok((Journal { thread: Thread::start(connection), news: Arc::default() }, past))
    }

    /// Writes ops down as they arrive, in one transaction. On failure none of them is accepted.
    pub(crate) async fn accept(
        &self,
        orders: Vec<(ProcKey, Order)>,
    ) -> Result<Vec<Acceptance>, JournalError> {
        self.thread.write(move |t| orders.iter().map(|(key, order)| accept(t, key, order)).collect()).await
    }

    /// Makes a step durable. It is not given up: what waits for it may only happen afterwards.
    pub(crate) async fn write(&self, key: &ProcKey, writes: &[Write], known: &Known) {
        if writes.is_empty() {
            return;
        }
        let tells = writes.iter().any(|write| matches!(write, Write::Event(_)));
        let (key, writes, known) = (key.clone(), writes.to_vec(), known.clone());
        self.insist(move |t| writes.iter().try_for_each(|write| write_one(t, &key, write, &known))).await;
        if tells {
            self.news.notify_one();
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
            write_one(t, &key, &done, &Known::default())
        })
        .await;
    }

    /// Tries until it is written.
    async fn insist(&self, act: impl Fn(&Transaction<'_>) -> rusqlite::Result<()> + Clone + Send + 'static) {
        loop {
            match self.thread.write(act.clone()).await {
                Ok(()) => return,
                // The agent is ending: its next life finds the step undone, and says so.
                Err(JournalError::Ended) => std::future::pending().await,
                Err(failure) => {
                    error!(
                        error = &failure as &dyn std::error::Error,
                        "the journal cannot be written; trying again"
                    );
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// The server has these outcomes.
    pub(crate) async fn confirm(&self, ops: Vec<OpId>) {
        let written = self.thread.write(move |t| {
            let mut statement =
                t.prepare_cached("UPDATE ops SET confirmed = 1 WHERE op = ?1 AND state = 2")?;
            let mut confirm = |op: OpId| statement.execute([op.to_string()]);
            for op in ops {
                // An op that is not written down itself is there in parts, and they are confirmed together.
                if confirm(op)? == 0 && confirm(op.part(1))? > 0 {
                    for instance in 2..=Instances::MAX {
                        confirm(op.part(instance))?;
                    }
                }
            }
            Ok(())
        });
        // Unwritten, the outcome is only reported once more after the next start.
        if let Err(failure) = written.await {
            warn!(error = &failure as &dyn std::error::Error, "a confirmation could not be written");
        }
    }

    /// As if the disk were full.
    #[cfg(test)]
    pub(crate) async fn refuse_writes(&self) {
        self.thread.write(|t| t.execute_batch("PRAGMA query_only = ON")).await.expect("a pragma");
    }

    #[cfg(test)]
    pub(crate) async fn accept_writes(&self) {
        self.thread.write(|t| t.execute_batch("PRAGMA query_only = OFF")).await.expect("a pragma");
    }

    pub(crate) async fn close(self) {
        self.thread.close().await;
    }
}

fn accept(t: &Transaction<'_>, key: &ProcKey, order: &Order) -> rusqlite::Result<Acceptance> {
    if let Some(known) = known(t, order.op)? {
        return Ok(known);
    }
    let parts = divide::divide(t, key, order)?;
    let mut statement = t.prepare_cached(
        "INSERT INTO ops (op, namespace, name, kind, state, request, accepted_at) VALUES (?1,?2,?3,?4,0,?5,?6)",
    )?;
    for (key, part) in &parts {
        let (op, kind) = (part.op.to_string(), part.kind.number());
        statement.execute(params![op, key.namespace, key.name, kind, json(part), now_secs()])?;
    }
    Ok(Acceptance::New(parts))
}

/// What has become of an op that came before, whole or in parts. `None`: it is new.
fn known(t: &Transaction<'_>, op: OpId) -> rusqlite::Result<Option<Acceptance>> {
    let said = |outcome: Option<Outcome>| outcome.map_or(Acceptance::Known, Acceptance::Done);
    if let Some(outcome) = written_outcome(t, op)? {
        return Ok(Some(said(outcome)));
    }
    // The first instance is always among the parts.
    if written_outcome(t, op.part(1))?.is_none() {
        return Ok(None);
    }
    let mut parts = Parts::new();
    for instance in 1..=Instances::MAX {
        if let Some(outcome) = written_outcome(t, op.part(instance))? {
            parts.insert(instance, outcome);
        }
    }
    Ok(Some(said(merged(parts).ok())))
}

/// `None`: it is not written down. `Some(None)`: it has no outcome, or none that can be read.
fn written_outcome(t: &Transaction<'_>, op: OpId) -> rusqlite::Result<Option<Option<Outcome>>> {
    let known: Option<Option<String>> = t
        .prepare_cached("SELECT outcome FROM ops WHERE op = ?1")?
        .query_row([op.to_string()], |row| row.get(0))
        .optional()?;
    Ok(known.map(|outcome| outcome.and_then(|text| serde_json::from_str(&text).ok())))
}

/// The outcome of an op whose parts have all ended; else the parts.
fn merged(parts: Parts) -> Result<Outcome, Parts> {
    let ended: BTreeMap<u32, Outcome> =
        parts.iter().filter_map(|(instance, outcome)| Some((*instance, outcome.clone()?))).collect();
    match parts::merge(&ended) {
        Some(outcome) if ended.len() == parts.len() => Ok(outcome),
        Some(_) | None => Err(parts),
    }
}

fn write_one(t: &Transaction<'_>, key: &ProcKey, write: &Write, known: &Known) -> rusqlite::Result<()> {
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

fn read_past(t: &Transaction<'_>, boot: &BootId) -> Result<Past, JournalError> {
    let last_boot: Option<String> =
        t.query_row("SELECT value FROM meta WHERE key = 'boot_id'", [], |row| row.get(0)).optional()?;
    let same_boot = last_boot.as_deref() == Some(boot.0.as_str());
    let mut past = Past::default();

    let mut statement = t.prepare("SELECT namespace, name, record, registered_at FROM procs")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let key = ProcKey { namespace: row.get(0)?, name: row.get(1)? };
        let text: String = row.get(2)?;
        let record: Record = match serde_json::from_str(&text) {
            Ok(record) => record,
            Err(failure) => {
                error!(proc = %key, %failure, "a proc's record cannot be read; the proc is left alone");
                continue;
            }
        };
        let record = if same_boot { record } else { record.after_reboot() };
        let proc = PastProc {
            key,
            record: Some(record),
            registered_at: row.get(3)?,
            interrupted: Vec::new(),
            waiting: Vec::new(),
        };
        past.procs.push(proc);
    }
    drop(rows);

    let mut statement = t.prepare(
        "SELECT op, namespace, name, state, request, outcome FROM ops WHERE confirmed = 0 ORDER BY rowid",
    )?;
    let mut rows = statement.query([])?;
    let mut divided: BTreeMap<OpId, Parts> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (op, state): (String, i64) = (row.get(0)?, row.get(3)?);
        let request: String = row.get(4)?;
        let (Ok(op), Ok(order)) = (op.parse::<OpId>(), serde_json::from_str::<Order>(&request)) else {
            error!(op, "an op in the journal cannot be read");
            continue;
        };
        if state == 2 {
            let outcome: String = row.get(5)?;
            match (serde_json::from_str(&outcome), op.whole()) {
                (Ok(outcome), (_, None)) => past.unacknowledged.push((op, outcome)),
                (Ok(outcome), (whole, Some(instance))) => {
                    divided.entry(whole).or_default().insert(instance, Some(outcome));
                }
                (Err(failure), _) => error!(%op, %failure, "an outcome in the journal cannot be read"),
            }
            continue;
        }
        if let (whole, Some(instance)) = op.whole() {
            divided.entry(whole).or_default().insert(instance, None);
        }
        let key = ProcKey { namespace: row.get(1)?, name: row.get(2)? };
        let place = past.procs.iter().position(|proc| proc.key == key).unwrap_or_else(|| {
            let (interrupted, waiting) = (Vec::new(), Vec::new());
            past.procs.push(PastProc { key, record: None, registered_at: 0, interrupted, waiting });
            past.procs.len() - 1
        });
        // An order from before a reboot has a deadline on a clock that no longer exists.
        match state == 0 && same_boot {
            true => past.procs[place].waiting.push(order),
            false => past.procs[place].interrupted.push((op, order.kind)),
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
            Err(failure) => error!(namespace, %failure, "process groups in the journal cannot be read"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::code::Code;
    use procfleet_core::moment::Moment;
    use procfleet_core::op::Content;
    use procfleet_core::process::{Found, Process};
    use procfleet_core::spec::Spec;
    use procfleet_core::supervise::{Event, Hosting, Rest};

    fn key(name: &str) -> ProcKey {
        ProcKey { namespace: "web".to_owned(), name: name.to_owned() }
    }

    fn order(number: u32, kind: OpKind) -> Order {
        let op = format!("20190813145456-8-{number}").parse().expect("an op id");
        Order { op, kind, spec: Some(Spec::default()), start_by: Moment(5_000) }
    }

    fn outcome() -> Outcome {
        let content =
            Content::Control { hosted: true, proc_name: "nginx".to_owned(), setup_path: "/srv".to_owned() };
        Outcome::new(Code::Success, "success", content)
    }

    fn record() -> Record {
        let process = Process { pid: 7, start_ticks: 11, found: Found::PidFile };
        let rest = Rest::Retry { at: Moment(9) };
        Record {
            spec: Spec::default(),
            hosting: Hosting::Hosted,
            process: Some(process),
            streak: Default::default(),
            rest,
            fault: String::new(),
        }
    }

    /// What was written down by every version that there was.
    #[test]
    fn a_record_of_any_age_is_read() {
        let first = r#"{"spec":{},"hosting":"Hosted","process":null,"streak":{"restarts":0,"last_start":null},"rest":"Idle"}"#;
        let read: Record = serde_json::from_str(first).expect("the first version's record");
        assert_eq!((read.rest.clone(), read.fault.as_str(), read.hosting), (Rest::Idle, "", Hosting::Hosted));
        for rest in [Rest::Due { at: Moment(7) }, Rest::Begun { at: Moment(8) }] {
            let record = Record { rest, fault: "it used too much".to_owned(), ..read.clone() };
            let again: Record = serde_json::from_str(&json(&record)).expect("our own record");
            assert_eq!(again, record);
            assert_eq!(again.after_reboot().rest, Rest::Idle, "moments mean nothing then");
        }
    }

    async fn reopened(path: &Path, boot: &str) -> (Journal, Past) {
        Journal::open(path, &BootId(boot.to_owned())).await.expect("a journal")
    }

    #[tokio::test]
    async fn an_op_is_new_once_and_its_outcome_is_kept() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("agent.db");
        let (journal, past) = reopened(&path, "one").await;
        assert!(past.procs.is_empty() && past.unacknowledged.is_empty());
        let start = order(0, OpKind::Start);
        let accept =
            || async { journal.accept(vec![(key("a"), start.clone())]).await.expect("writable").remove(0) };
        assert_eq!(accept().await, Acceptance::New(vec![(key("a"), start.clone())]));
        assert_eq!(accept().await, Acceptance::Known);
        journal
            .write(&key("a"), &[Write::Begun(start.op), Write::Done(start.op, outcome())], &Known::default())
            .await;
        assert_eq!(accept().await, Acceptance::Done(outcome()));
        let second = Outcome { message: "another".to_owned(), ..outcome() };
        journal.write(&key("a"), &[Write::Done(start.op, second)], &Known::default()).await;
        assert_eq!(accept().await, Acceptance::Done(outcome()), "the first outcome stands");

        drop(journal);
        let (journal, past) = reopened(&path, "one").await;
        assert_eq!(past.unacknowledged, [(start.op, outcome())]);
        journal.confirm(vec![start.op]).await;
        drop(journal);
        let (journal, past) = reopened(&path, "one").await;
        assert!(past.unacknowledged.is_empty(), "confirmed ops are not reported again");
        assert_eq!(
            journal.accept(vec![(key("a"), start.clone())]).await.expect("writable"),
            [Acceptance::Done(outcome())]
        );
    }

    #[tokio::test]
    async fn the_past_tells_begun_from_waiting_and_one_boot_from_another() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("agent.db");
        let (journal, _) = reopened(&path, "one").await;
        let (begun, waiting, lone) =
            (order(0, OpKind::Stop), order(1, OpKind::Start), order(2, OpKind::Reload));
        let orders = vec![(key("a"), begun.clone()), (key("a"), waiting.clone()), (key("b"), lone.clone())];
        journal.accept(orders).await.expect("writable");
        journal
            .write(&key("a"), &[Write::Record(Box::new(record())), Write::Begun(begun.op)], &Known::default())
            .await;
        journal.write(&key("b"), &[Write::Begun(lone.op)], &Known::default()).await;
        drop(journal);

        let (journal, past) = reopened(&path, "one").await;
        let [a, b] = &past.procs[..] else { panic!("two procs: {past:?}") };
        assert_eq!(
            (&a.record, &a.interrupted, &a.waiting),
            (&Some(record()), &vec![(begun.op, OpKind::Stop)], &vec![waiting.clone()])
        );
        assert_eq!((&b.record, &b.interrupted), (&None, &vec![(lone.op, OpKind::Reload)]));
        drop(journal);

        let (_journal, past) = reopened(&path, "two").await;
        let a = &past.procs[0];
        assert_eq!(a.record, Some(record().after_reboot()));
        assert_eq!(
            a.interrupted,
            [(begun.op, OpKind::Stop), (waiting.op, OpKind::Start)],
            "no deadline outlives a boot"
        );
        assert!(a.waiting.is_empty());
    }

    /// A journal as the first version wrote it. It must be readable for ever.
    #[tokio::test]
    async fn a_journal_of_the_first_format_is_understood() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("agent.db");
        let old = Connection::open(&path).expect("a database");
        old.execute_batch(include_str!("golden/format-1.sql")).expect("the old journal");
        drop(old);
        let (_journal, past) = reopened(&path, "one").await;
        let [a] = &past.procs[..] else { panic!("one proc: {past:?}") };
        let record = a.record.as_ref().expect("a record");
        assert_eq!((record.hosting, record.process.map(|process| process.pid)), (Hosting::Hosted, Some(7)));
        assert_eq!((a.interrupted.len(), a.waiting.len(), past.unacknowledged.len()), (1, 1, 1));
        assert!(past.groups.is_empty());
    }

    /// As it was when it had events and process groups.
    #[tokio::test]
    async fn a_journal_of_the_third_format_is_understood() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("agent.db");
        let old = Connection::open(&path).expect("a database");
        old.execute_batch(include_str!("golden/format-3.sql")).expect("the old journal");
        drop(old);
        let (journal, past) = reopened(&path, "one").await;
        assert_eq!((past.procs.len(), past.unacknowledged.len()), (1, 1));
        let events = journal.oldest_events(10_000).await.expect("readable");
        assert_eq!((events.len(), events[0].number, events[0].report_id), (1, 5, 7));
        let [(namespace, groups)] = &past.groups[..] else { panic!("one namespace: {past:?}") };
        assert_eq!((namespace.as_str(), groups.as_slice()), ("demo", &[group("pool")][..]));
    }

    fn group(id: &str) -> ProcessGroup {
        let weight = procfleet_core::spec::Weight::Limit;
        ProcessGroup {
            id: id.to_owned(),
            cpu_pool_limit: Some(20.5),
            mem_pool_weight: weight,
            ..ProcessGroup::default()
        }
    }

    #[tokio::test]
    async fn groups_are_replaced_together_with_the_outcome() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("agent.db");
        // One of the first format, which is upgraded.
        let old = Connection::open(&path).expect("a database");
        old.execute_batch(include_str!("golden/format-1.sql")).expect("the old journal");
        drop(old);
        let (journal, _) = reopened(&path, "one").await;
        let key = ProcKey { namespace: "web".to_owned(), name: String::new() };
        let orders: Vec<Order> = (10..13).map(|number| order(number, OpKind::Group)).collect();
        let all: Vec<_> = orders.iter().map(|order| (key.clone(), order.clone())).collect();
        let expected: Vec<_> = all.iter().map(|one| Acceptance::New(vec![one.clone()])).collect();
        assert_eq!(journal.accept(all).await.expect("writable"), expected);
        journal.set_groups("web", &[group("a"), group("b")], orders[0].op, &outcome()).await;
        journal.set_groups("db", &[group("c")], orders[1].op, &outcome()).await;
        journal.set_groups("web", &[group("d")], orders[2].op, &outcome()).await;
        drop(journal);
        let (journal, past) = reopened(&path, "one").await;
        let expected = [("db".to_owned(), vec![group("c")]), ("web".to_owned(), vec![group("d")])];
        assert_eq!(past.groups, expected);
        assert_eq!(past.unacknowledged.len(), 1 + 3, "each outcome is there with its groups");
        journal.set_groups("web", &[], orders[2].op, &outcome()).await;
        drop(journal);
        let (_journal, past) = reopened(&path, "two").await;
        assert_eq!(past.groups, [("db".to_owned(), vec![group("c")])], "an empty list clears it");
    }

    #[tokio::test]
    async fn events_wait_in_order_until_the_server_has_them() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("agent.db");
        let (journal, _) = reopened(&path, "one").await;
        let known = Known { report_id: 7, proc_name: "nginx".to_owned() };
        for reason in ["first", "second", "third"] {
            let gave_up = Write::Event(Event::GaveUp { reason: reason.to_owned() });
            journal.write(&key("a"), &[gave_up], &known).await;
        }
        let all = journal.oldest_events(10_000).await.expect("readable");
        let told: Vec<&str> = all.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(told, ["first", "second", "third"]);
        assert_eq!((all[0].kind.as_str(), all[0].report_id, all[0].name.as_str()), ("gave_up", 7, "a"));
        assert_eq!(journal.oldest_events(1).await.expect("readable").len(), 1, "one always fits");
        journal.forget_events(all[1].number).await;
        drop(journal);
        let (journal, _) = reopened(&path, "one").await;
        assert_eq!(journal.oldest_events(10_000).await.expect("readable"), all[2..]);
        journal.forget_events(all[2].number).await;
        journal.write(&key("a"), &[Write::Event(Event::RestartSucceeded { pid: 7 })], &known).await;
        let next = journal.oldest_events(10_000).await.expect("readable").remove(0);
        assert!(next.number > all[2].number && next.journal == all[0].journal, "no number comes twice");
    }

    #[tokio::test]
    async fn a_newer_journal_is_refused() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("agent.db");
        Connection::open(&path)
            .expect("a database")
            .pragma_update(None, "user_version", 99)
            .expect("writable");
        let refused = Journal::open(&path, &BootId("one".to_owned())).await.expect_err("too new");
        assert!(matches!(refused, JournalError::TooNew { found: 99, .. }), "{refused}");
    }

    fn parts_of(acceptance: Acceptance) -> Vec<(String, OpId, Option<String>)> {
        let Acceptance::New(parts) = acceptance else { panic!("{acceptance:?}") };
        let path = |order: &Order| order.spec.as_ref().map(|spec| spec.identity.pid_path.clone());
        parts.into_iter().map(|(key, order)| (key.name, order.op, path(&order))).collect()
    }

    /// From the moment on that it is accepted, through a crash, to its confirmation.
    #[tokio::test]
    async fn an_op_on_several_instances_is_one_op_in_parts() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("agent.db");
        let (journal, _) = reopened(&path, "one").await;
        let mut start = order(0, OpKind::Start);
        let spec = start.spec.as_mut().expect("a spec");
        (spec.instances, spec.identity.pid_path) = (Instances(3), "/run/a".to_owned());
        let row = |name: &str, instance: u32, path: &str| {
            (name.to_owned(), start.op.part(instance), Some(path.to_owned()))
        };
        let rows = [row("a", 1, "/run/a"), row("a#2", 2, "/run/a.2"), row("a#3", 3, "/run/a.3")];
        let accepted = journal.accept(vec![(key("a"), start.clone())]).await.expect("writable").remove(0);
        assert_eq!(parts_of(accepted), rows);
        let again = async |journal: &Journal| {
            journal.accept(vec![(key("a"), start.clone())]).await.expect("writable").remove(0)
        };
        assert_eq!(again(&journal).await, Acceptance::Known);

        // One has ended, one had begun, one had not; and then the agent dies.
        journal.write(&key("a"), &[Write::Done(start.op.part(1), outcome())], &Known::default()).await;
        journal.write(&key("a#2"), &[Write::Begun(start.op.part(2))], &Known::default()).await;
        assert_eq!(again(&journal).await, Acceptance::Known);
        drop(journal);
        let (journal, past) = reopened(&path, "one").await;
        assert!(past.unacknowledged.is_empty());
        let parts = Parts::from([(1, Some(outcome())), (2, None), (3, None)]);
        assert_eq!(past.divided, [(start.op, parts)]);
        let open: Vec<_> = past.procs.iter().map(|p| (p.interrupted.len(), p.waiting.len())).collect();
        assert_eq!(open, [(1, 0), (0, 1)]);

        let already = Outcome { code: Code::AlreadyRunning, ..outcome() };
        journal.write(&key("a#2"), &[Write::Done(start.op.part(2), already)], &Known::default()).await;
        journal.write(&key("a#3"), &[Write::Done(start.op.part(3), outcome())], &Known::default()).await;
        assert_eq!(again(&journal).await, Acceptance::Done(outcome()));
        drop(journal);
        let (journal, past) = reopened(&path, "one").await;
        assert_eq!((past.unacknowledged, past.divided), (vec![(start.op, outcome())], vec![]));
        journal.confirm(vec![start.op]).await;
        drop(journal);
        let (journal, past) = reopened(&path, "one").await;
        assert!(past.unacknowledged.is_empty() && past.procs.is_empty(), "{past:?}");
        assert_eq!(again(&journal).await, Acceptance::Done(outcome()));
    }

    #[tokio::test]
    async fn an_order_without_a_spec_goes_to_those_that_are_known_or_on_their_way() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let (journal, _) = reopened(&folder.path().join("agent.db"), "one").await;
        let numbered = |number: u32, kind: OpKind, instances: Option<u32>| {
            let spec = instances.map(|n| Spec { instances: Instances(n), ..Spec::default() });
            Order { spec, ..order(number, kind) }
        };
        let accept = async |name: &str, order: Order| {
            let accepted = journal.accept(vec![(key(name), order)]).await.expect("writable").remove(0);
            parts_of(accepted).into_iter().map(|(name, _, _)| name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(accept("a", numbered(0, OpKind::Stop, Some(3))).await, "a", "nobody knows others");
        assert_eq!(accept("a", numbered(1, OpKind::Start, Some(2))).await, "a a#2");
        assert_eq!(accept("a", numbered(2, OpKind::Stop, None)).await, "a a#2", "on its way");
        assert_eq!(accept("a", numbered(3, OpKind::Restart, None)).await, "a a#2");
        for done in 0..4 {
            let op = order(done, OpKind::Start).op;
            let ops = [op, op.part(1), op.part(2)].map(|op| Write::Done(op, outcome()));
            journal.write(&key("a"), &ops, &Known::default()).await;
        }
        assert_eq!(accept("a", numbered(4, OpKind::Stop, None)).await, "a", "none is left");
        for (name, instances) in [("a", 3), ("a#2", 3), ("a#5", 5), ("a#7", 1), ("a#x", 9), ("ab", 9)] {
            let spec = Spec { instances: Instances(instances), ..Spec::default() };
            let stored = Write::Record(Box::new(Record { spec, ..record() }));
            journal.write(&key(name), &[stored], &Known::default()).await;
        }
        assert_eq!(accept("a", numbered(5, OpKind::Query, None)).await, "a a#2 a#5", "a#7 is another proc");
        assert_eq!(accept("a", numbered(6, OpKind::Restart, None)).await, "a a#2 a#3 a#5");
        assert_eq!(accept("a", numbered(7, OpKind::Host, Some(1))).await, "a");
        assert_eq!(accept("a#2", numbered(8, OpKind::Restart, Some(3))).await, "a#2", "it alone");
    }
}
