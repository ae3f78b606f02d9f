//! Waiting: ask again until there is an answer, with a deadline. Nothing else in the tests sleeps.

use std::time::{Duration, Instant};

/// Deadline for everything that a test waits for. A test passes as soon as the condition holds, so this is
/// only how long a failure takes. It must be enough on a machine whose cores are all busy with something
/// else.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const EVERY: Duration = Duration::from_millis(10);

/// Asks until there is an answer, and panics with `what` was waited for when there is none in time.
#[track_caller]
pub fn wait_for<T>(deadline: Duration, what: &str, ask: impl FnMut() -> Option<T>) -> T {
    let Some(answer) = ask_again(EVERY, deadline, ask) else {
        panic!("waited {deadline:?} in vain for this: {what}");
    };
    answer
}

/// Asks at this interval until there is an answer; `None` at the deadline, for callers with a better message.
pub fn ask_again<T>(every: Duration, deadline: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let answer = ask();
        if answer.is_some() || began.elapsed() >= deadline {
            return answer;
        }
        pause_for(every);
    }
}

/// Asks until it is so.
#[track_caller]
pub fn wait_until(deadline: Duration, what: &str, mut ask: impl FnMut() -> bool) {
    wait_for(deadline, what, || ask().then_some(()));
}

/// Lets time pass in which something must not happen, or after which something counts as long.
pub fn let_pass(time: Duration) {
    pause_for(time);
}

pub(crate) fn pause() {
    pause_for(EVERY);
}

#[expect(
    clippy::disallowed_methods,
    reason = "what happens in another process can only be asked for again and again"
)]
fn pause_for(time: Duration) {
    std::thread::sleep(time);
}
