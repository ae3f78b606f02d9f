//! Opens the database: lock, checks, migrations.

use super::connection::{connect, create};
use super::file_id::{self, FileOrigin};
use super::integrity::StoreSize;
use super::store_lock::{StoreLock, lock};
use super::{agents, failed, generation, integrity, missing_store, named};
use crate::StoreError;
use procfleet_sqlite::{Migrations, VersionError};
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

pub(super) const MIGRATIONS: Migrations = Migrations(&[
    include_str!("migrations/0001_init.sql"),
    include_str!("migrations/0002_events.sql"),
    include_str!("migrations/0003_users.sql"),
    include_str!("migrations/0004_process_groups.sql"),
    include_str!("migrations/0005_certificates.sql"),
    include_str!("migrations/0006_cancel_and_retry.sql"),
    include_str!("migrations/0007_agent_labels.sql"),
    include_str!("migrations/0008_late_reports.sql"),
    include_str!("migrations/0009_boots.sql"),
    include_str!("migrations/0010_audit_counts.sql"),
    include_str!("migrations/0011_last_heard.sql"),
    include_str!("migrations/0012_event_account.sql"),
    include_str!("migrations/0013_tokens.sql"),
    include_str!("migrations/0014_generations.sql"),
    include_str!("migrations/0015_drop_settings.sql"),
    include_str!("migrations/0016_ca.sql"),
    include_str!("migrations/0017_lists.sql"),
    include_str!("migrations/0018_event_and_audit_lists.sql"),
    include_str!("migrations/0019_cut_off.sql"),
]);

/// The writing connection, and the lock that keeps other servers out.
#[derive(Debug)]
pub(super) struct OpenedDatabase {
    pub(super) connection: Connection,
    pub(super) lock: StoreLock,
    /// The stamps that the file may have.
    pub(super) stamps: Vec<u32>,
    /// A large store is not checked yet.
    pub(super) size: StoreSize,
}

pub(super) fn open(path: &Path) -> Result<OpenedDatabase, StoreError> {
    // The lock comes before anything else touches the file: closing any descriptor of a SQLite file drops the
    // locks that SQLite holds on it in this process.
    let lock = lock(path)?;
    missing_store::check_file(path)?;
    let (origin, stamp) = file_id::origin(path)?;
    let size = StoreSize::of(path);
    create(path).map_err(|source| StoreError::File { doing: "creating", path: path.to_owned(), source })?;
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .map_err(|source| named(failed("opening the store", source), path))?;
    missing_store::check_tables(&connection, path)?;
    if size == StoreSize::Small {
        integrity::check(&connection, path)?;
    }
    upgrade(&mut connection, path).map_err(|error| named(error, path))?;
    // Lists need it and nothing else does, so a full disk does not keep the server from starting.
    if let Err(error) = agents::forget_presence(&connection) {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "cannot reset which agents are connected; lists may show agents as connected until they come back"
        );
    }
    if origin == FileOrigin::Other {
        generation::begin(&mut connection, generation::known(path)?)
            .map_err(|fault| named(fault.during("beginning a generation"), path))?;
    }
    // Before the stamp: until the stamp is saved, another opening begins a generation again.
    generation::keep(&connection, path)?;
    let stamps = file_id::stamp(&connection, path, stamp)?;
    tracing::info!(path = %path.display(), schema = MIGRATIONS.known(), "store opened");
    Ok(OpenedDatabase { connection, lock, stamps, size })
}

/// Refuses a backup that this version cannot use as a store.
pub(super) fn check_backup(copy: &Path, named: &Path) -> Result<(), StoreError> {
    let failed = |source| super::failed("looking into the backup", source);
    let connection = Connection::open_with_flags(copy, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let found = MIGRATIONS
        .version(&connection)
        .map_err(|error| version_error(error, "looking into the backup", named))?;
    let sql =
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('agents', 'apps', 'tasks')";
    let tables: i64 = connection.query_row(sql, [], |row| row.get(0)).map_err(failed)?;
    if tables == 3 && found > 0 {
        return Ok(());
    }
    Err(StoreError::BadBackup {
        path: named.to_owned(),
        reason: "it is a database, and not a store of procfleet".to_owned(),
    })
}

pub(super) fn upgrade(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let mut apply = || -> Result<(), VersionError> {
        let transaction = connection.transaction()?;
        MIGRATIONS.apply(&transaction)?;
        agents::fill_host_order(&transaction)?;
        Ok(transaction.commit()?)
    };
    apply().map_err(|error| version_error(error, "upgrading the store's schema", path))
}

fn version_error(error: VersionError, doing: &'static str, path: &Path) -> StoreError {
    match error {
        VersionError::TooNew { found, known } => {
            StoreError::Newer { store: path.display().to_string(), found, known }
        }
        VersionError::Sqlite(source) => failed(doing, source),
    }
}
