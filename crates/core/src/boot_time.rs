//! Time as the rules see it: milliseconds on the kernel's boot-time clock, which never jumps.
//!
//! Times of server and agent are never compared: the link carries durations.

use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in time, in milliseconds since the clock's own beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootTime(pub u64);

impl BootTime {
    /// How long ago `earlier` was; zero if it lies ahead.
    pub fn since(self, earlier: BootTime) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for BootTime {
    type Output = BootTime;
    fn add(self, wait: Duration) -> BootTime {
        BootTime(self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for BootTime {
    fn add_assign(&mut self, wait: Duration) {
        *self = *self + wait;
    }
}

impl Sub<Duration> for BootTime {
    type Output = BootTime;
    fn sub(self, back: Duration) -> BootTime {
        BootTime(self.0.saturating_sub(u64::try_from(back.as_millis()).unwrap_or(u64::MAX)))
    }
}
