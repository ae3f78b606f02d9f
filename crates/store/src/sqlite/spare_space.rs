//! Disk space for changes that can wait, such as events. They must leave the rest of the disk to stops, kills
//! and outcomes.
//!
//! The check belongs into the job of the writer: thousands of jobs may wait there that all saw enough space
//! before. SQLite writes a transaction at its commit, so the changes of the open one are counted here.

use procfleet_sqlite::Reserve;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Clones share one count. Only the writer's thread uses it.
#[derive(Clone, Debug)]
pub(super) struct SpareSpace {
    reserve: Arc<Reserve>,
    /// Bytes of the open transaction.
    uncommitted: Arc<AtomicU64>,
}

impl SpareSpace {
    pub(super) fn of(reserve: Arc<Reserve>) -> SpareSpace {
        SpareSpace { reserve, uncommitted: Arc::default() }
    }

    /// Counts a change in the open transaction. False: the disk has no space for it.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let all = self.uncommitted.load(Ordering::Relaxed).saturating_add(bytes);
        let has_space = self.reserve.has_space_for(all);
        if has_space {
            self.uncommitted.store(all, Ordering::Relaxed);
        }
        has_space
    }

    /// The transaction has ended.
    pub(super) fn clear(&self) {
        self.uncommitted.store(0, Ordering::Relaxed);
    }
}
