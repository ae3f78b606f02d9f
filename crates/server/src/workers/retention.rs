//! Deletes tasks, audit records, events and tokens that are older than the retention, in slices.
//!
//! Each slice reads the store again, so the work may stop at any point and continue after the next start.

use crate::clock::Clock;
use crate::metrics::Metrics;
use procfleet_failpoint::{Point, hit};
use procfleet_store::clock::WallMs;
use procfleet_store::{Lease, Slice, Store, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

/// The first seconds after a start belong to reconnecting agents and open ops.
const FIRST: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(3_600);
/// One slice keeps the writer busy for some ten milliseconds, which other writes have to wait.
const SLICE: Slice = Slice { tasks: 500, ops: 5_000 };
/// Audit records, events and tokens are small and have no ops.
const ROWS: u32 = 2_000;
/// Expired tokens are kept this long, so that they are refused as expired and not as unknown.
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
    /// Runs until the server stops. A slice that was handed to the store is still carried out.
    pub async fn run(self) {
        let mut stop = self.stop.clone();
        tokio::select! {
            // The stop signal first: deleting can continue after the next start.
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = self.delete_for_ever() => {}
        }
    }

    async fn delete_for_ever(&self) {
        let mut next = Instant::now() + FIRST;
        loop {
            hit(Point::ServerRetention);
            tokio::time::sleep_until(next).await;
            // One server deletes for all. Each slice is a change, which a server that lost its lease cannot
            // make.
            if self.store.membership().has(Lease::Retention)
                && let Err(error) = self.delete().await
            {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "deleting old tasks failed; the next try is in an hour"
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
            info!(tasks, audit, events, tokens, "old tasks, audit records, events and tokens were deleted");
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

/// Sleeps as long as the slice took, so that at least half of the writer's time is for others.
async fn rest(began: Instant) {
    tokio::time::sleep(began.elapsed()).await;
}

fn millis(duration: Duration) -> WallMs {
    WallMs::try_from(duration.as_millis()).unwrap_or(WallMs::MAX / 4)
}
