//! When a hosted process that died is started again: (verdict, delay), and nothing else.

use crate::moment::Moment;
use crate::spec::Policy;
use serde::{Deserialize, Serialize};

/// The recent history that the verdict depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streak {
    /// Restarts since the last stable run.
    pub restarts: u32,
    pub last_start: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Now,
    At(Moment),
    GiveUp,
}

/// Why it is not running. A launch that fails may take long without there having been a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fall {
    Died,
    NotStarted,
}

impl Streak {
    /// The process is dead, or could not be started. A run longer than `start_interval` was stable and clears the
    /// count; after `start_retries` restarts without one, there are no more.
    pub(super) fn fell(&mut self, now: Moment, fall: Fall, policy: &Policy) -> Verdict {
        let long_ago = self.last_start.is_none_or(|start| now.since(start) > policy.start_interval);
        let stable = fall == Fall::Died && long_ago;
        if stable {
            self.restarts = 0;
        }
        if self.restarts >= policy.start_retries {
            return Verdict::GiveUp;
        }
        self.restarts += 1;
        match self.last_start {
            Some(start) if !stable => Verdict::At(start + policy.start_interval),
            _ => Verdict::Now,
        }
    }

    /// An order begins anew.
    pub(super) fn forgive(&mut self) {
        self.restarts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn policy() -> Policy {
        Policy { start_retries: 2, start_interval: Duration::from_secs(10), ..Policy::default() }
    }

    #[test]
    fn a_long_life_is_followed_at_once_and_clears_the_count() {
        let mut streak = Streak { restarts: 2, last_start: Some(Moment(0)) };
        assert_eq!(streak.fell(Moment(10_001), Fall::Died, &policy()), Verdict::Now);
        assert_eq!(streak.restarts, 1);
    }

    #[test]
    fn short_lives_wait_and_then_end() {
        let mut streak = Streak { restarts: 0, last_start: Some(Moment(1_000)) };
        assert_eq!(streak.fell(Moment(2_000), Fall::Died, &policy()), Verdict::At(Moment(11_000)));
        streak.last_start = Some(Moment(11_000));
        assert_eq!(streak.fell(Moment(11_500), Fall::Died, &policy()), Verdict::At(Moment(21_000)));
        streak.last_start = Some(Moment(21_000));
        assert_eq!(streak.fell(Moment(21_001), Fall::Died, &policy()), Verdict::GiveUp);
    }

    #[test]
    fn a_launch_that_takes_long_to_fail_is_no_stable_run() {
        let mut streak = Streak { restarts: 1, last_start: Some(Moment(0)) };
        assert_eq!(streak.fell(Moment(60_000), Fall::NotStarted, &policy()), Verdict::At(Moment(10_000)));
        assert_eq!(streak.fell(Moment(60_000), Fall::NotStarted, &policy()), Verdict::GiveUp);
    }
}
