//! The last scan of all processes, which looks at the same moment share. A scan has an entry for each process
//! of the host, so its memory is freed as soon as the scan is too old to be shared.

use crate::exec::scan::tree::Scan;
use crate::exec::watch::children;
use crate::exec::watch::exits::OwnedTask;
use procfleet_core::BootTime;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum age of a shared scan. A process that is started by hand may be missed for this long.
const RECENT: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(in crate::exec) struct RecentScan {
    last: Arc<Mutex<Option<Taken>>>,
}

#[derive(Debug)]
struct Taken {
    at: BootTime,
    scan: Arc<Scan>,
    #[expect(dead_code, reason = "owned, so that a later scan replaces the task")]
    free_later: OwnedTask,
}

impl RecentScan {
    /// All processes except supervised children, scanned after `since` and at most [`RECENT`] ago. Concurrent
    /// callers share one scan.
    pub(in crate::exec) fn get(&self, now: BootTime, since: BootTime) -> Arc<Scan> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = &*last
            && taken.at > since
            && now.since(taken.at) < RECENT
        {
            return taken.scan.clone();
        }
        let scan = Arc::new(Scan::without(&children::kept()));
        let slot = Arc::downgrade(&self.last);
        let free_later = OwnedTask::spawn(async move {
            tokio::time::sleep(RECENT).await;
            if let Some(slot) = slot.upgrade() {
                slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        });
        *last = Some(Taken { at: now, scan: scan.clone(), free_later });
        scan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_scan_is_shared_while_it_is_recent_and_freed_afterwards() {
        let (recent, now) = (RecentScan::default(), BootTime(1_000_000));
        let scan = recent.get(now, BootTime(0));
        assert!(Arc::ptr_eq(&scan, &recent.get(now + RECENT / 2, BootTime(0))), "shared");
        let newer = recent.get(now + RECENT / 2, now);
        assert!(!Arc::ptr_eq(&scan, &newer), "something has happened since the first scan");
        let held = Arc::downgrade(&newer);
        drop((scan, newer));
        assert!(held.upgrade().is_some(), "kept for others");
        let freed = async {
            while held.upgrade().is_some() {
                tokio::time::sleep(RECENT).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), freed).await.expect("the scan is freed");
    }
}
