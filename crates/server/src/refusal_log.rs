//! Log lines about refused peers. Their number is bounded: a peer needs no login to be refused, and must not
//! be able to fill a disk with log lines. Metrics count all refusals.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;

/// Maximum number of lines in each window.
const LINES: u32 = 60;
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct RefusalLog(Arc<Mutex<Window>>);

#[derive(Debug)]
struct Window {
    began: Instant,
    lines: u32,
    omitted: u64,
}

impl Default for RefusalLog {
    fn default() -> RefusalLog {
        RefusalLog(Arc::new(Mutex::new(Window { began: Instant::now(), lines: 0, omitted: 0 })))
    }
}

impl RefusalLog {
    /// Whether a line may be written now. The first call in a window logs how many lines the last window
    /// omitted.
    pub fn admits_a_line(&self) -> bool {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.began.elapsed() >= WINDOW {
            if window.omitted > 0 {
                warn!(omitted = window.omitted, "some refusals of peers were not logged");
            }
            *window = Window { began: Instant::now(), lines: 0, omitted: 0 };
        }
        if window.lines == LINES {
            window.omitted += 1;
            return false;
        }
        window.lines += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_writes_a_bounded_number_of_lines() {
        let log = RefusalLog::default();
        let lines = |tries: u32| (0..tries).filter(|_| log.admits_a_line()).count();
        assert_eq!((lines(1_000), lines(10)), (LINES as usize, 0));
        tokio::time::advance(WINDOW).await;
        assert_eq!(lines(1_000), LINES as usize);
    }
}
