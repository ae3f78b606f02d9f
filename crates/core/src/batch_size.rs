//! The size of messages with events and with pages of logs. On a slow link messages are small, so that each
//! arrives in time, and an outcome never waits long behind one.

use std::time::Duration;

/// The size for a new session, whose link speed is unknown.
const FIRST: usize = 8 * 1024;
const LEAST: usize = 1024;
/// After a message that took less, the next one may have twice as much.
const SHORT: Duration = Duration::from_millis(500);
/// After a message that took longer, the next one has correspondingly less.
const LONG: Duration = Duration::from_secs(2);

/// Adapts to the time that messages take until they are answered, which includes all buffers on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSize {
    bytes: usize,
    most: usize,
}

impl BatchSize {
    pub fn up_to(most: usize) -> BatchSize {
        BatchSize { bytes: FIRST.min(most), most }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The size of each of several messages that are under way at the same time.
    pub fn share(&self, messages: usize) -> usize {
        (self.bytes / messages.max(1)).max(LEAST)
    }

    /// Records the time until a message of about this size was answered.
    pub fn answered_after(&mut self, took: Duration) {
        let bytes = match took {
            took if took < SHORT => self.bytes * 2,
            took if took > LONG => {
                let times = took.as_millis().div_ceil(LONG.as_millis());
                self.bytes / usize::try_from(times).unwrap_or(usize::MAX)
            }
            _ => self.bytes,
        };
        self.bytes = bytes.clamp(LEAST, self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_small_on_a_slow_link_and_large_on_a_fast_one() {
        const MOST: usize = 40 * 1024;
        let mut size = BatchSize::up_to(MOST);
        let mut after = |millis| {
            size.answered_after(Duration::from_millis(millis));
            size.bytes()
        };
        assert_eq!([10, 10, 10, 10].map(&mut after), [16 * 1024, 32 * 1024, MOST, MOST]);
        assert_eq!([1_000, 13_000, 60_000, 60_000].map(&mut after), [MOST, MOST / 7, LEAST, LEAST]);
        assert_eq!(after(10), 2 * LEAST);
    }

    #[test]
    fn messages_that_are_under_way_at_once_share_the_size() {
        let size = BatchSize::up_to(40 * 1024);
        assert_eq!([0, 1, 2, 100].map(|messages| size.share(messages)), [FIRST, FIRST, FIRST / 2, LEAST]);
    }
}
