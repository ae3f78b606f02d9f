//! A pool of read-only connections.

use super::{QueryFault, connection};
use crate::StoreError;
use procfleet_program::panics;
use rusqlite::{Connection, TransactionBehavior};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// Maximum number of concurrent reads. They are short and CPU-bound, so more than the cores of a small server
/// gain nothing.
const CONNECTIONS: u32 = 3;

#[derive(Debug)]
pub(super) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    /// One permit for each idle connection.
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn open(path: &Path) -> Result<Readers, StoreError> {
        let idle = (0..CONNECTIONS).map(|_| connection::open_reader(path)).collect::<Result<Vec<_>, _>>()?;
        Ok(Readers { permits: Arc::new(Semaphore::new(idle.len())), idle: Arc::new(Mutex::new(idle)) })
    }

    pub(super) async fn run<T, F>(&self, doing: &'static str, look: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, QueryFault> + Send + 'static,
    {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let idle = Arc::clone(&self.idle);
        let work = move || {
            // The connection is returned before the permit, also after a panic.
            let _permit = permit;
            let mut loan = Loan::take(&idle).ok_or(StoreError::Closed)?;
            in_one_snapshot(loan.connection(), look).map_err(|fault| fault.during(doing))
        };
        panics::block_for_request(work).await.unwrap_or(Err(StoreError::Panicked { doing }))
    }

    /// Waits for running reads, then closes the connections.
    pub(super) async fn close(&self) {
        // An error means that the pool is closed already.
        if let Ok(all) = self.permits.acquire_many(CONNECTIONS).await {
            self.permits.close();
            drop(all);
        }
        lock(&self.idle).clear();
    }
}

fn in_one_snapshot<T>(
    connection: &mut Connection,
    look: impl FnOnce(&Connection) -> Result<T, QueryFault>,
) -> Result<T, QueryFault> {
    let snapshot = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
    let seen = look(&snapshot)?;
    snapshot.finish()?;
    Ok(seen)
}

/// A borrowed connection, returned on drop.
struct Loan<'pool> {
    idle: &'pool Mutex<Vec<Connection>>,
    connection: Option<Connection>,
}

impl<'pool> Loan<'pool> {
    fn take(idle: &'pool Mutex<Vec<Connection>>) -> Option<Self> {
        let connection = lock(idle).pop()?;
        Some(Loan { idle, connection: Some(connection) })
    }

    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is taken out only by drop")
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        lock(self.idle).extend(self.connection.take());
    }
}

fn lock(idle: &Mutex<Vec<Connection>>) -> std::sync::MutexGuard<'_, Vec<Connection>> {
    // The list of connections is consistent even after a panic.
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}
