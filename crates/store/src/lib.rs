//! procfleet's durable state: one contract, and the engines that keep it.
//!
//! ```text
//! server --> Store (contract.rs: one method for each unit of work) --> sqlite/: one file, the default
//!                                                                 \--> postgres/: a database
//! ```
//!
//! `types` has what goes in and out of the contract, `error` what can go wrong. `copy` moves the embedded
//! store to a database. No other part of the server uses a database.

mod contract;
mod copied_tables;
mod copy;
mod error;
mod membership;
mod order;
mod postgres;
mod sqlite;
mod types;

pub mod clock;
pub mod limits;

pub use copy::copy;
pub use error::{DriverError, StoreError};
pub use membership::{
    DrainOutcome, Lease, LivingServer, Membership, MembershipView, ServerId, ServerIntro, ServerLoad,
    ServerRecord, ServerState, ServerTerm, StoreLoss, Wake, WakeMode,
};
pub use postgres::{StoreUrl, UrlFault};
pub use sqlite::{StoreLock, backup, lock, named, restore};
pub use types::*;

use postgres::PgStore;
use sqlite::SqliteStore;
use std::path::Path;

/// The handle. Clones share one open store. It is closed by [`Store::close`], or by dropping the last clone,
/// which waits for the changes that were handed over.
#[derive(Clone, Debug)]
pub struct Store {
    engine: Engine,
}

#[derive(Clone, Debug)]
enum Engine {
    Sqlite(SqliteStore),
    Postgres(PgStore),
}

impl Store {
    /// Opens the embedded store. Creates or migrates the file if needed.
    pub async fn open(path: &Path) -> Result<Store, StoreError> {
        Ok(Store { engine: Engine::Sqlite(SqliteStore::open(path).await?) })
    }

    /// Connects to a PostgreSQL store. Creates or migrates the tables if needed.
    pub async fn connect(url: &StoreUrl) -> Result<Store, StoreError> {
        Ok(Store { engine: Engine::Postgres(PgStore::open(url).await?) })
    }

    /// What this server knows about itself and others that use the same store.
    pub fn membership(&self) -> &Membership {
        match &self.engine {
            Engine::Sqlite(store) => store.membership(),
            Engine::Postgres(store) => store.membership(),
        }
    }

    /// Whether only essential changes should be written.
    pub fn is_disk_full(&self) -> bool {
        match &self.engine {
            Engine::Sqlite(store) => store.is_disk_full(),
            // A full disk is the database's own matter: it refuses changes by itself.
            Engine::Postgres(_) => false,
        }
    }

    /// Whether little of the space that the store holds for changes on a full disk is left.
    pub async fn is_reserve_low(&self) -> Result<bool, StoreError> {
        match &self.engine {
            Engine::Sqlite(store) => store.is_reserve_low().await,
            Engine::Postgres(_) => Ok(false),
        }
    }

    /// Begins the check of a store that is too large to be checked when it is opened. To be called when the
    /// server is up, which the check must not delay. [`Store::failed`] returns if it finds damage.
    pub fn check_in_background(&self) -> Result<(), StoreError> {
        match &self.engine {
            Engine::Sqlite(store) => store.check_in_background(),
            // The database checks its own pages.
            Engine::Postgres(_) => Ok(()),
        }
    }

    /// Why the store accepts no changes now. `None`: it does.
    pub async fn refuses_changes(&self) -> Option<String> {
        match &self.engine {
            Engine::Sqlite(store) => store.refuses_changes().await,
            Engine::Postgres(store) => store.refuses_changes().await,
        }
    }

    /// Returns when the store has become unusable for good.
    pub async fn failed(&self) -> StoreError {
        match &self.engine {
            Engine::Sqlite(store) => store.failed().await,
            Engine::Postgres(store) => store.failed().await,
        }
    }

    /// Refuses further changes and carries out those that were handed over. Other clones of the handle get
    /// [`StoreError::Closed`] from then on.
    pub async fn close(self) -> Result<(), StoreError> {
        match self.engine {
            Engine::Sqlite(store) => store.close().await,
            Engine::Postgres(store) => store.close().await,
        }
    }
}
