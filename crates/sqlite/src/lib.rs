//! The use of SQLite that the server's store and the agent's journal share.
//!
//! | | |
//! |---|---|
//! | [`Writer`] | group commit: one thread writes, many jobs share one synced transaction |
//! | [`Migrations`] | brings a database to the newest format |
//! | [`inspect`], [`quick_check`], [`is_damage`] | detect damage before and after SQLite opens the file |
//! | [`wal_damage`] | detects an altered write-ahead log, which SQLite does not |
//! | [`Reserve`], [`is_reserve_low`], [`keep_log`] | disk space for writes on a full disk, also across an orderly end |
//! | [`explain`] | errors that name a full disk |
//!
//! Tables and queries belong to the store and the journal.

mod error;
mod files;
mod integrity;
mod migrations;
mod reserve;
mod wal;
mod wal_index;
mod writer;

pub use error::{explain, is_damage, is_damaged_file};
pub use files::{beside, replace_file, sync_folder};
pub use integrity::{CheckError, DatabaseFile, FileFault, inspect, quick_check, quick_check_table, tables};
pub use migrations::{Migrations, VersionError};
pub use reserve::{Reserve, is_reserve_low, keep_log};
pub use wal::{WalDamage, wal_damage};
pub use writer::{CommitGuard, CommitResult, WriteError, Writer, WriterSettings};
