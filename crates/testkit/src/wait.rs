//! Waiting: ask again until there is an answer, with a deadline. Nothing else in the tests sleeps.

use std::time::{Duration, Instant};

/// Long enough for a loaded machine; nobody waits that long unless something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(20);
const EVERY: Duration = Duration::from_millis(10);

/// Asks until there is an answer, and panics with `what` was waited for when there is none in time.
#[track_caller]
pub fn wait_for<T>(deadline: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < deadline, "waited {deadline:?} in vain for this: {what}");
        pause();
    }
}

/// Asks until it is so.
#[track_caller]
pub fn wait_until(deadline: Duration, what: &str, mut ask: impl FnMut() -> bool) {
    wait_for(deadline, what, || ask().then_some(()));
}

#[expect(
    clippy::disallowed_methods,
    reason = "what happens in another process can only be asked for again and again"
)]
pub(crate) fn pause() {
    std::thread::sleep(EVERY);
}
