//! Deletes what is older than it is to be kept, in slices, while everything else goes on.
//!
//! It reads the truth from the store each time, so that it may end anywhere and go on after the next start.

use crate::clock::{Clock, WallMs};
use crate::metrics::Metrics;
use crate::store::{Slice, Store, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

/// Agents that come back and open ops that are taken up have the first seconds to themselves.
const FIRST: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(3_600);
/// The writer is busy with it for some ten milliseconds; who comes meanwhile waits that long.
const SLICE: Slice = Slice { tasks: 500, ops: 5_000 };
/// Audit records, events and tokens are small and have no ops.
const ROWS: u32 = 2_000;
/// A token is refused as expired, and not as unknown, for so long.
const EXPIRED_TOKENS: Duration = Duration::from_secs(30 * 86_400);

#[derive(Debug)]
pub struct Retention {
    pub store: Store,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    pub keep: Duration,
    pub stop: watch::Receiver<bool>,
}

impl Retention {
    /// Ends when it is told to stop. A slice that was handed to the store is still carried out.
    pub async fn run(self) {
        let mut stop = self.stop.clone();
        tokio::select! {
            // The end first: deleting can go on after the next start.
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = self.delete_for_ever() => {}
        }
    }

    async fn delete_for_ever(&self) {
        let mut next = Instant::now() + FIRST;
        loop {
            tokio::time::sleep_until(next).await;
            if let Err(error) = self.delete().await {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "deleting what is old failed; it is tried again later"
                );
            }
            self.store.fill_reserve();
            next = Instant::now() + EVERY;
        }
    }

    async fn delete(&self) -> Result<(), StoreError> {
        let now = self.clock.wall();
        let kept_since = now - millis(self.keep);
        let mut tasks = 0;
        loop {
            let began = Instant::now();
            let deleted = self.store.delete_tasks(kept_since, SLICE).await?;
            self.metrics.tasks_deleted.inc_by(deleted.tasks);
            tasks += deleted.tasks;
            if !deleted.more {
                break;
            }
            rest(began).await;
        }
        let audit = all_rows(|| self.store.delete_audit(kept_since, ROWS)).await?;
        let events = all_rows(|| self.store.delete_events(kept_since, ROWS)).await?;
        let tokens = all_rows(|| self.store.delete_tokens(now - millis(EXPIRED_TOKENS), ROWS)).await?;
        if tasks + audit + events + tokens > 0 {
            info!(tasks, audit, events, tokens, "what was too old to keep was deleted");
        }
        Ok(())
    }
}

async fn all_rows<F>(mut slice: impl FnMut() -> F) -> Result<u64, StoreError>
where
    F: Future<Output = Result<u64, StoreError>>,
{
    let mut total = 0;
    loop {
        let began = Instant::now();
        let deleted = slice().await?;
        total += deleted;
        if deleted < u64::from(ROWS) {
            return Ok(total);
        }
        rest(began).await;
    }
}

/// As long as the slice took: at least half of the writer's time is for others.
async fn rest(began: Instant) {
    tokio::time::sleep(began.elapsed()).await;
}

fn millis(duration: Duration) -> WallMs {
    WallMs::try_from(duration.as_millis()).unwrap_or(WallMs::MAX / 4)
}
