//! The copy of an embedded store to PostgreSQL.

use std::path::PathBuf;

/// Where the copied rows come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopySource {
    /// The store of a data folder.
    Store(PathBuf),
    Backup(PathBuf),
}

/// How the source was used while it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOrigin {
    /// No server used the store, and none could start on it until the copy was complete.
    Stopped,
    /// A server was using the store. What it stores later is not in the copy.
    Running,
    /// A backup, or a store in whose place a backup was put.
    Backup,
}

/// A complete copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    pub origin: CopyOrigin,
    pub tables: usize,
    pub rows: u64,
    /// How many texts had NUL bytes, which PostgreSQL cannot store. The copy has U+FFFD instead.
    pub replaced_texts: u64,
}

/// A table that is the same in both stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableComparison {
    pub table: &'static str,
    pub rows: u64,
    /// Of all rows in the order of their keys.
    pub sha256: [u8; 32],
}

/// Why a store is not replaced by a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyRefusal {
    #[error("a server is using it now")]
    InUse,
    #[error(
        "a server has used it, and a copy would replace what that server has stored. Copy to a new, empty database"
    )]
    WasUsed,
    #[error("another `procfleet store copy` is writing to it")]
    UnderWay,
}
