//! What `procfleet store copy` copies: each table of the PostgreSQL store that holds state, and where its
//! rows come from in the embedded store.
//!
//! Every number that a caller, an agent or a reader of events may hold keeps its meaning:
//!
//! - A task keeps number and stamp. Numbers of the embedded store are small, so they belong to day 0 of the
//!   partitions, where no new task ever gets a number (see `postgres/partitions.rs`).
//! - Events, webhooks and audit records keep their numbers, agents the epochs of their sessions, procs their
//!   revisions. The counters continue above them.
//! - A boot keeps its number. The number orders the boots of all machines on which a server has used the
//!   store, and two times are compared by the boot-time clock only if their boot is the same. A server that
//!   moves to the new store within one boot of its machine finds the id of that boot last and continues with
//!   its number; on another machine it gets the next number. Both are as after a restart on the old store.
//!
//! Not copied: `deleted_tasks` and the ops that it names, which no query can reach; which server an agent is
//! connected to, because it is none of the new store's; and what the agents' sessions were when open ops were
//! accepted, so that every open op counts as one that may have been sent.

use crate::StoreError;
use ring::digest::{Context, SHA256};
use tokio::sync::mpsc;

/// One table of the target.
#[derive(Debug)]
pub(crate) struct CopiedTable {
    pub(crate) name: &'static str,
    /// How many of the first columns are the key.
    pub(crate) key: usize,
    pub(crate) columns: &'static [(&'static str, ColumnType)],
    pub(crate) source: CopySelect,
}

/// Where the rows of a table are in the embedded store.
#[derive(Debug)]
pub(crate) enum CopySelect {
    /// A table and columns of the same names.
    Same,
    /// A query with these columns in order, and without ORDER BY.
    Query(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Bool,
    Int,
    Text,
    Bytes,
    /// The key of a table with one row: always 1, four bytes wide in PostgreSQL.
    One,
}

/// A value as both engines store it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CopyValue {
    Null,
    Bool(bool),
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

pub(crate) type CopyRow = Vec<CopyValue>;

/// The numbers above which the counters of the target continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsedNumbers {
    pub(crate) tasks: i64,
    pub(crate) webhooks: i64,
    pub(crate) audit: i64,
    pub(crate) generations: i64,
    pub(crate) boots: i64,
}

use ColumnType::{Bool, Bytes, Int, One, Text};
use CopySelect::{Query, Same};

/// In the order in which foreign keys allow to fill them.
pub(crate) const COPIED_TABLES: &[CopiedTable] = &[
    CopiedTable {
        name: "apps",
        key: 1,
        columns: &[
            ("code", Text),
            ("secret_hash", Bytes),
            ("trusted", Bool),
            ("created_at", Int),
            ("disabled_at", Int),
        ],
        source: Same,
    },
    CopiedTable {
        name: "grants",
        key: 3,
        columns: &[("app", Text), ("dimension", Text), ("value", Text)],
        source: Same,
    },
    CopiedTable { name: "businesses", key: 1, columns: &[("id", Int), ("name", Text)], source: Same },
    CopiedTable { name: "business_sets", key: 1, columns: &[("id", Int), ("name", Text)], source: Same },
    CopiedTable {
        name: "business_set_members",
        key: 2,
        columns: &[("set_id", Int), ("business_id", Int)],
        source: Same,
    },
    CopiedTable {
        name: "users",
        key: 1,
        columns: &[("name", Text), ("created_at", Int), ("disabled_at", Int)],
        source: Same,
    },
    CopiedTable {
        name: "user_tokens",
        key: 1,
        columns: &[("token_hash", Bytes), ("user_name", Text), ("created_at", Int), ("expires_at", Int)],
        source: Query("SELECT token_hash, user, created_at, expires_at FROM user_tokens"),
    },
    CopiedTable {
        name: "tokens",
        key: 1,
        columns: &[
            ("id", Text),
            ("secret_hash", Bytes),
            ("cloud_id", Int),
            ("business_id", Int),
            ("created_at", Int),
            ("expires_at", Int),
            ("uses_left", Int),
            ("replaces", Bool),
            ("revoked_at", Int),
        ],
        source: Same,
    },
    CopiedTable {
        name: "agents",
        key: 1,
        columns: &[
            ("agent_id", Text),
            ("cloud_id", Int),
            ("ip", Text),
            ("host_order", Text),
            ("business_id", Int),
            ("certificate_sha256", Bytes),
            ("certificate_ca", Bytes),
            ("certificate_expires_at", Int),
            ("version", Text),
            ("facts", Text),
            ("labels", Text),
            ("enrolled_at", Int),
            ("retired_at", Int),
            ("revoked_at", Int),
            ("revoked_why", Text),
        ],
        source: Same,
    },
    CopiedTable {
        name: "sessions",
        key: 1,
        columns: &[
            ("agent_id", Text),
            ("epoch", Int),
            ("connected", Bool),
            ("changed_at", Int),
            ("changed_boot", Int),
            ("changed_boot_ms", Int),
            ("heard_at", Int),
        ],
        source: Query(
            "SELECT agent_id, epoch, connected, changed_at, changed_boot, changed_boot_ms, heard_at FROM agents",
        ),
    },
    CopiedTable {
        name: "certificates",
        key: 2,
        columns: &[
            ("agent", Text),
            ("sha256", Bytes),
            ("ca_sha256", Bytes),
            ("issued_at", Int),
            ("expires_at", Int),
        ],
        source: Same,
    },
    CopiedTable {
        name: "ca",
        key: 1,
        columns: &[("id", One), ("current", Bytes), ("next", Bytes)],
        source: Same,
    },
    CopiedTable {
        name: "tasks",
        key: 1,
        columns: &[
            ("number", Int),
            ("stamp", Int),
            ("created_at", Int),
            ("app", Text),
            ("username", Text),
            ("summary", Text),
            ("requests_json", Text),
            ("total", Int),
            ("retry_of", Text),
            ("boot", Int),
            ("boot_ms", Int),
            ("cancelled_at", Int),
            ("is_open", Bool),
        ],
        source: Query(
            "SELECT number, stamp, created_at, app, username, summary, requests_json, total, retry_of, boot, boot_ms, \
             cancelled_at, open > 0 FROM tasks",
        ),
    },
    CopiedTable {
        name: "task_counts",
        key: 1,
        columns: &[("number", Int), ("open", Int), ("succeeded", Int), ("failed", Int)],
        source: Query("SELECT number, open, succeeded, failed FROM tasks"),
    },
    CopiedTable {
        name: "ops",
        key: 2,
        columns: &[
            ("task", Int),
            ("idx", Int),
            ("request", Int),
            ("cloud_id", Int),
            ("ip", Text),
            ("supplier_id", Int),
            ("agent_named", Text),
            ("agent", Text),
            ("start_by", Int),
            ("deadline", Int),
        ],
        source: Query(
            "SELECT task, idx, request, cloud_id, ip, supplier_id, agent_named, agent, start_by, deadline FROM ops \
             WHERE task NOT IN (SELECT number FROM deleted_tasks)",
        ),
    },
    CopiedTable {
        name: "outcomes",
        key: 2,
        columns: &[
            ("task", Int),
            ("idx", Int),
            ("code", Int),
            ("message", Text),
            ("content", Text),
            ("ended_at", Int),
        ],
        source: Query(
            "SELECT task, idx, code, message, content, ended_at FROM ops \
             WHERE code IS NOT NULL AND task NOT IN (SELECT number FROM deleted_tasks)",
        ),
    },
    CopiedTable {
        name: "late_reports",
        key: 2,
        columns: &[("task", Int), ("idx", Int), ("code", Int), ("message", Text), ("at", Int)],
        source: Query(
            "SELECT task, idx, code, message, at FROM late_reports WHERE task NOT IN (SELECT number FROM deleted_tasks)",
        ),
    },
    // A key that was used again after its time has several rows, of which only the last can be in force.
    CopiedTable {
        name: "idempotency_keys",
        key: 2,
        columns: SUBMISSION,
        source: Query(
            "SELECT s.app, key, request_hash, task, stamp, s.created_at, boot, boot_ms \
             FROM submissions AS s JOIN tasks ON number = task WHERE kind = 0 AND task = \
             (SELECT max(task) FROM submissions AS other WHERE other.app = s.app AND kind = 0 AND other.key = s.key)",
        ),
    },
    CopiedTable {
        name: "request_ids",
        key: 3,
        columns: SUBMISSION,
        source: Query(
            "SELECT s.app, key, request_hash, task, stamp, s.created_at, boot, boot_ms \
             FROM submissions AS s JOIN tasks ON number = task WHERE kind = 1",
        ),
    },
    CopiedTable {
        name: "procs",
        key: 3,
        columns: &[
            ("agent", Text),
            ("namespace", Text),
            ("name", Text),
            ("revision", Int),
            ("status_json", Text),
            ("host_order", Text),
            ("state", Text),
            ("start_rank", Int),
            ("failed", Bool),
        ],
        source: Same,
    },
    CopiedTable {
        name: "process_groups",
        key: 2,
        columns: &[("agent", Text), ("namespace", Text), ("revision", Int), ("groups_json", Text)],
        source: Same,
    },
    CopiedTable {
        name: "event_counter",
        key: 1,
        columns: &[("id", One), ("last", Int)],
        source: Query("SELECT 1, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)"),
    },
    CopiedTable {
        name: "events",
        key: 1,
        columns: &[
            ("number", Int),
            ("agent", Text),
            ("journal", Text),
            ("journal_number", Int),
            ("at", Int),
            ("received_at", Int),
            ("namespace", Text),
            ("name", Text),
            ("kind", Text),
            ("message", Text),
            ("details", Text),
            ("report_id", Int),
            ("proc_name", Text),
            ("account", Text),
        ],
        source: Same,
    },
    CopiedTable {
        name: "webhooks",
        key: 1,
        columns: &[("id", Int), ("url", Text), ("created_at", Int), ("delivered", Int)],
        source: Same,
    },
    CopiedTable {
        name: "generations",
        key: 1,
        columns: &[("number", Int), ("events_before", Int), ("events_from", Int), ("began_at", Int)],
        source: Same,
    },
    CopiedTable { name: "boots", key: 1, columns: &[("number", Int), ("id", Text)], source: Same },
    CopiedTable {
        name: "audit",
        key: 1,
        columns: &[
            ("id", Int),
            ("at", Int),
            ("app", Text),
            ("username", Text),
            ("origin", Text),
            ("action", Text),
            ("subject", Text),
            ("code", Int),
            ("detail", Text),
            ("times", Int),
            ("last_at", Int),
        ],
        source: Same,
    },
];

const SUBMISSION: &[(&str, ColumnType)] = &[
    ("app", Text),
    ("key", Text),
    ("request_hash", Bytes),
    ("task", Int),
    ("stamp", Int),
    ("created_at", Int),
    ("boot", Int),
    ("boot_ms", Int),
];

impl CopiedTable {
    pub(crate) fn column_names(&self) -> String {
        self.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// The key of a row, for people.
    pub(crate) fn key_of(&self, row: &CopyRow) -> String {
        let values = self.columns.iter().zip(row).take(self.key);
        values.map(|((name, _), value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    }
}

impl std::fmt::Display for CopyValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CopyValue::Null => f.write_str("NULL"),
            CopyValue::Bool(value) => write!(f, "{value}"),
            CopyValue::Int(value) => write!(f, "{value}"),
            CopyValue::Text(text) => write!(f, "{text:?}"),
            CopyValue::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// The number of rows and their SHA-256, the same for the same rows of either engine.
pub(crate) struct RowDigest {
    rows: u64,
    context: Context,
}

impl RowDigest {
    pub(crate) fn new() -> RowDigest {
        RowDigest { rows: 0, context: Context::new(&SHA256) }
    }

    pub(crate) fn add(&mut self, row: &CopyRow) {
        self.rows += 1;
        for value in row {
            match value {
                CopyValue::Null => self.context.update(&[0]),
                CopyValue::Bool(value) => self.context.update(&[1, u8::from(*value)]),
                CopyValue::Int(value) => self.add_bytes(2, &value.to_be_bytes()),
                CopyValue::Text(text) => self.add_bytes(3, text.as_bytes()),
                CopyValue::Bytes(bytes) => self.add_bytes(4, bytes),
            }
        }
    }

    /// With their length, so that no two lists of values give the same bytes.
    fn add_bytes(&mut self, tag: u8, bytes: &[u8]) {
        self.context.update(&[tag]);
        self.context.update(&(bytes.len() as u64).to_be_bytes());
        self.context.update(bytes);
    }

    pub(crate) fn finish(self) -> (u64, [u8; 32]) {
        let digest = self.context.finish();
        (self.rows, digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

/// The rows of a table, read by a thread that waits while nobody takes them.
#[derive(Debug)]
pub(crate) struct CopyRows {
    batches: mpsc::Receiver<RowBatch>,
    batch: std::vec::IntoIter<CopyRow>,
    is_complete: bool,
}

#[derive(Debug)]
enum RowBatch {
    Rows(Vec<CopyRow>),
    /// There are no more. Without it, the reader has failed.
    End,
    Failed(StoreError),
}

/// The other end of [`CopyRows`], for the reading thread.
#[derive(Debug)]
pub(crate) struct CopyRowSender {
    batches: mpsc::Sender<RowBatch>,
    batch: Vec<CopyRow>,
    bytes: usize,
}

/// A batch ends at so many rows or bytes. Two batches wait in the channel, so this bounds the memory.
const BATCH_ROWS: usize = 500;
const BATCH_BYTES: usize = 1 << 20;

/// The taker of the rows is gone.
#[derive(Debug)]
pub(crate) struct TakerGone;

impl CopyRows {
    pub(crate) fn channel() -> (CopyRowSender, CopyRows) {
        let (sender, receiver) = mpsc::channel(2);
        let rows = CopyRows { batches: receiver, batch: Vec::new().into_iter(), is_complete: false };
        (CopyRowSender { batches: sender, batch: Vec::new(), bytes: 0 }, rows)
    }

    pub(crate) async fn next(&mut self) -> Result<Option<CopyRow>, StoreError> {
        loop {
            if let Some(row) = self.batch.next() {
                return Ok(Some(row));
            }
            if self.is_complete {
                return Ok(None);
            }
            match self.batches.recv().await {
                Some(RowBatch::Rows(rows)) => self.batch = rows.into_iter(),
                Some(RowBatch::End) => self.is_complete = true,
                Some(RowBatch::Failed(error)) => return Err(error),
                None => return Err(StoreError::Panicked { doing: "reading the store" }),
            }
        }
    }
}

impl CopyRowSender {
    pub(crate) fn send(&mut self, row: CopyRow) -> Result<(), TakerGone> {
        self.bytes += row.iter().map(CopyValue::size).sum::<usize>();
        self.batch.push(row);
        if self.batch.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    pub(crate) fn end(mut self, done: Result<(), StoreError>) {
        let last = match done {
            Ok(()) => self.flush().map(|()| RowBatch::End),
            Err(error) => Ok(RowBatch::Failed(error)),
        };
        if let Ok(last) = last {
            // A taker that is gone needs no end.
            let _ = self.batches.blocking_send(last);
        }
    }

    fn flush(&mut self) -> Result<(), TakerGone> {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        self.batches.blocking_send(RowBatch::Rows(batch)).map_err(|_| TakerGone)
    }
}

impl CopyValue {
    fn size(&self) -> usize {
        match self {
            CopyValue::Null | CopyValue::Bool(_) | CopyValue::Int(_) => 8,
            CopyValue::Text(text) => text.len(),
            CopyValue::Bytes(bytes) => bytes.len(),
        }
    }
}
