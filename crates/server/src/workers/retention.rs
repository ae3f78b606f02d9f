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
            if self.store.membership().has(Lease::Retention) {
                self.delete().await;
            }
            next = Instant::now() + EVERY;
        }
    }

    /// Each kind of record on its own: a fault of one does not keep the others from being deleted.
    async fn delete(&self) {
        let now = self.clock.wall();
        let kept_since = now - millis(self.keep);
        let tasks = count("tasks", self.delete_tasks(kept_since).await);
        let audit = count("audit records", all_rows(|| self.store.delete_audit(kept_since, ROWS)).await);
        let events = count("events", all_rows(|| self.store.delete_events(kept_since, ROWS)).await);
        let expired = now - millis(EXPIRED_TOKENS);
        let tokens = count("tokens", all_rows(|| self.store.delete_tokens(expired, ROWS)).await);
        if tasks + audit + events + tokens > 0 {
            info!(tasks, audit, events, tokens, "old tasks, audit records, events and tokens were deleted");
        }
    }

    async fn delete_tasks(&self, kept_since: WallMs) -> Result<u64, StoreError> {
        let mut tasks = 0;
        loop {
            let began = Instant::now();
            let deleted = self.store.delete_tasks(kept_since, SLICE).await?;
            self.metrics.tasks_deleted.inc_by(deleted.tasks);
            tasks += deleted.tasks;
            if !deleted.more {
                return Ok(tasks);
            }
            rest(began).await;
        }
    }
}

/// The number of deleted records. A fault is logged.
fn count(records: &str, deleted: Result<u64, StoreError>) -> u64 {
    deleted.unwrap_or_else(|error| {
        warn!(
            error = &error as &dyn std::error::Error,
            records, "deleting old records failed; the next try is in an hour"
        );
        0
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_store::{AuditFilter, NewAudit};
    use procfleet_testkit::Cluster;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_fault_of_one_kind_of_record_does_not_keep_the_others() {
        let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
        let store = Store::connect(&url.parse().expect("a url")).await.expect("a store");
        let record = NewAudit { at: 1_000, ..NewAudit::default() };
        store.audit(record).await.expect("written");
        // The partitions of day 1, in use by a view: DROP fails.
        let sql = "CREATE TABLE ops_d1 (LIKE ops INCLUDING ALL); CREATE TABLE outcomes_d1 (LIKE outcomes INCLUDING ALL); \
                   CREATE TABLE late_reports_d1 (LIKE late_reports INCLUDING ALL); \
                   ALTER TABLE ops ATTACH PARTITION ops_d1 FOR VALUES FROM (274877906944) TO (549755813888); \
                   ALTER TABLE outcomes ATTACH PARTITION outcomes_d1 FOR VALUES FROM (274877906944) TO (549755813888); \
                   ALTER TABLE late_reports ATTACH PARTITION late_reports_d1 FOR VALUES FROM (274877906944) TO (549755813888); \
                   CREATE VIEW report AS SELECT * FROM ops_d1";
        let name = url.rsplit('/').next().expect("a name").to_owned();
        let made = tokio::task::spawn_blocking(move || Cluster::shared().psql(&name, sql));
        made.await.expect("no panic").expect("partitions");
        let (_stop, stopped) = watch::channel(false);
        let retention = Retention {
            clock: Clock::of_store(store.membership()),
            metrics: Arc::new(Metrics::new()),
            keep: Duration::from_secs(86_400),
            stop: stopped,
            store: store.clone(),
        };
        let dropped = retention.delete_tasks(retention.clock.wall() - millis(retention.keep)).await;
        assert!(dropped.is_err(), "{dropped:?}");
        retention.delete().await;
        let left = store.list_audit(10, AuditFilter::default()).await.expect("no error").records;
        assert!(left.is_empty(), "{left:?}");
    }
}
