//! Keeps the memory of an idle server small: limits what glibc's allocator keeps, and returns free pages to
//! the kernel after bursts.
//!
//! Each burst leaves free memory between the allocations that last, which only `malloc_trim` returns. It
//! walks over the whole heap under the allocator's locks, so it runs twice when a burst is over, and every
//! minute.

use procfleet_program::memory::{limit_arenas, limit_kept, trim_heap};
use procfleet_server::backlog::Backlog;
use std::num::NonZero;
use std::time::Duration;
use tokio::time::{Instant, interval};

/// Most arenas of the allocator.
const ARENAS: usize = 16;
/// Free bytes at the end of each arena that the allocator keeps. With glibc's default the number grows up to
/// 64 MiB.
const KEPT: i32 = 1024 * 1024;
/// Interval between two looks at the number of open ops.
const LOOK: Duration = Duration::from_secs(1);
/// Shortest and longest time between two trims.
const PAUSE: Duration = Duration::from_secs(5);
const REGULAR: Duration = Duration::from_secs(60);
/// Open ops that make a burst.
const BURST: usize = 5_000;

/// Sets `M_ARENA_MAX` to the number of busy threads: the workers of this runtime and of the link's runtime,
/// and the writer of the store. With fewer arenas, lock contention between these threads cost a fifth of the
/// tasks accepted per second. With glibc's default (8 arenas per core), almost half of the server's memory
/// was free but fragmented. Call it before there are other threads.
pub(crate) fn limit() {
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    limit_arenas((2 * workers + 1).min(ARENAS));
    limit_kept(KEPT);
}

/// Returns free memory to the kernel: soon after the end of a burst, else every minute.
pub(crate) async fn trim(backlog: Backlog) {
    let mut looks = interval(LOOK);
    let mut burst = Burst::none_since(Instant::now());
    loop {
        let now = looks.tick().await;
        if burst.is_trim_due(now, backlog.open().ops) {
            let _ = tokio::task::spawn_blocking(trim_heap).await;
            burst = burst.after_trim(Instant::now());
        }
    }
}

/// The course of the open ops since the last trim.
#[derive(Debug)]
struct Burst {
    trimmed: Instant,
    most_open: usize,
    /// The last trim was that of a burst. The last ops of the burst have been freed since.
    is_just_over: bool,
}

impl Burst {
    fn none_since(trimmed: Instant) -> Burst {
        Burst { trimmed, most_open: 0, is_just_over: false }
    }

    fn after_trim(&self, trimmed: Instant) -> Burst {
        Burst { is_just_over: self.most_open >= BURST, ..Burst::none_since(trimmed) }
    }

    fn is_trim_due(&mut self, now: Instant, open: usize) -> bool {
        self.most_open = self.most_open.max(open);
        let is_over = self.most_open >= BURST && open <= self.most_open / 8;
        now - self.trimmed >= if is_over || self.is_just_over { PAUSE } else { REGULAR }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_after_a_burst_and_every_minute() {
        for (open, trims) in [
            // Without a burst.
            (&[(0, 0), (30, 100), (59, 0)][..], &[][..]),
            (&[(59, 0), (60, 0), (61, 0), (120, 0)], &[60, 120]),
            // A burst ends when few of its ops are open. What these leave is returned by a second trim.
            (&[(10, 50_000), (20, 40_000), (30, 7_000), (31, 6_000), (32, 0), (36, 0), (41, 0)], &[31, 36]),
            // The next one begins anew, and short ones do not trim every second.
            (&[(1, 9_000), (2, 0), (5, 0), (6, 9_000), (7, 0), (9, 0), (10, 0)], &[5, 10]),
        ] {
            let start = Instant::now();
            let mut burst = Burst::none_since(start);
            let mut seen = Vec::new();
            for &(second, open) in open {
                let now = start + Duration::from_secs(second);
                if burst.is_trim_due(now, open) {
                    burst = burst.after_trim(now);
                    seen.push(second);
                }
            }
            assert_eq!(seen, trims, "{open:?}");
        }
    }
}
