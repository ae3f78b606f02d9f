//! Events that wait for the server. An event is written in the transaction of its step, and deleted when the
//! server has confirmed it. While the server is away, the oldest events above a limit are deleted.

use super::{Journal, JournalError, json};
use procfleet_core::id::ProcKey;
use procfleet_core::supervise::Event;
use procfleet_proto::link::EventMessage;
use rusqlite::{Connection, params};
use tracing::warn;

/// Maximum number of waiting events: a few MB.
const MOST: i64 = 10_000;
/// Maximum length of a message, which may contain a command's output.
const LONGEST_MESSAGE: usize = 8 * 1024;
/// A larger event is sent without its details, so that it fits a frame of the link.
const LARGEST: usize = 40 * 1024;

/// Fields of the spec that an event carries for its readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventProc {
    /// The alarm that the spec names; 0: none.
    pub(crate) report_id: i64,
    pub(crate) proc_name: String,
    /// The OS account of its spec.
    pub(crate) user: String,
}

impl Journal {
    /// The oldest events, as many as fit `bytes`, and at least one.
    pub(crate) async fn oldest_events(&self, bytes: usize) -> Result<Vec<EventMessage>, JournalError> {
        self.run(move |t| read(t, bytes)).await
    }

    /// Deletes events that the server has confirmed.
    pub(crate) async fn forget_events(&self, up_to: u64) {
        let up_to = i64::try_from(up_to).unwrap_or(i64::MAX);
        let written = self.run(move |t| {
            t.prepare_cached("DELETE FROM events WHERE number <= ?1")?.execute([up_to]).map(|_| ())
        });
        // On failure they are sent once more after the next connect, and the server ignores them.
        if let Err(failure) = written.await {
            warn!(
                error = &failure as &dyn std::error::Error,
                "cannot record acknowledged events; they may be sent again"
            );
        }
    }

    /// Returns when there may be new events.
    pub(crate) async fn events_changed(&self) {
        self.events_changed.notified().await;
    }
}

/// Deletes events that an earlier version wrote and no server accepts.
pub(super) fn forget_unreportable(t: &Connection) -> rusqlite::Result<()> {
    let longest = ProcKey::LONGEST as i64;
    t.execute(
        "DELETE FROM events WHERE max(length(CAST(namespace AS BLOB)), length(CAST(name AS BLOB))) > ?1",
        [longest],
    )
    .map(|_| ())
}

/// Writes nothing for a proc that no server accepts.
pub(super) fn write(
    t: &Connection,
    key: &ProcKey,
    event: &Event,
    known: &EventProc,
) -> rusqlite::Result<usize> {
    if !key.is_reportable() {
        return Ok(0);
    }
    let mut message = event.to_string();
    message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
    let EventProc { report_id, proc_name, user } = known;
    t.prepare_cached(
        "INSERT INTO events (at, namespace, name, kind, message, details, report_id, proc_name, user)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        jiff::Timestamp::now().as_millisecond(),
        key.namespace,
        key.name,
        event.kind(),
        message,
        json(event),
        report_id,
        proc_name,
        user
    ])?;
    t.prepare_cached("DELETE FROM events WHERE number <= ?1")?.execute([t.last_insert_rowid() - MOST])
}

fn read(t: &Connection, bytes: usize) -> rusqlite::Result<Vec<EventMessage>> {
    let journal: String =
        t.prepare_cached("SELECT value FROM meta WHERE key = 'journal'")?.query_row([], |row| row.get(0))?;
    let mut statement = t.prepare_cached(
        "SELECT number, at, namespace, name, kind, message, details, report_id, proc_name, user
         FROM events ORDER BY number",
    )?;
    let mut rows = statement.query([])?;
    let (mut events, mut size) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let mut event = EventMessage {
            journal: journal.clone(),
            number: u64::try_from(row.get::<_, i64>(0)?).unwrap_or_default(),
            at: row.get(1)?,
            namespace: row.get(2)?,
            name: row.get(3)?,
            kind: row.get(4)?,
            message: row.get(5)?,
            details: row.get::<_, String>(6)?.into_bytes(),
            report_id: row.get(7)?,
            proc_name: row.get(8)?,
            user: row.get(9)?,
        };
        if event.size() > LARGEST {
            // The message repeats the details. A single event must always fit.
            event.details = b"null".to_vec();
        }
        size += event.size() + 8;
        if size > bytes && !events.is_empty() {
            break;
        }
        events.push(event);
    }
    Ok(events)
}
