//! The restart policy of a hosted process that died: restart now, restart later, or give up.
//!
//! A run is stable if it lasted longer than `start_interval`, `start_check` and 10 s
//! ([`Policy::stable_after`]). After a stable run the process is restarted at once and the count is reset.
//! After any other run the next start comes `start_interval` after the last one, at most `start_retries`
//! times in a row.
//!
//! A spec may ask for pauses that grow ([`RestartPause::Growing`]): each is twice as long as the one before
//! and a little longer, by up to a fifth, up to sixteen times `start_interval` or five minutes, whichever is
//! less.

use crate::boot_time::BootTime;
use crate::id::ProcKey;
use crate::jitter;
use crate::spec::{Policy, RestartPause};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Maximum factor by which the pause grows, relative to `start_interval`; limited by [`LONGEST_PAUSE`].
const MOST_GROWTH: u32 = 16;
/// Maximum of a pause that has grown. A longer `start_interval` is used unchanged.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Maximum jitter of a grown pause, as a divisor.
const JITTER: u32 = 5;

/// The recent history that the verdict depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streak {
    /// Restarts since the last stable run.
    pub restarts: u32,
    pub last_start: Option<BootTime>,
    /// How many of these restarts were waited for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pauses: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartVerdict {
    Now,
    At(BootTime),
    GiveUp,
}

/// Why it is not running. A launch that fails may take long without there having been a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DownCause {
    Died,
    NotStarted,
}

impl Streak {
    /// The process is dead, or could not be started. A stable run resets the count; after `start_retries`
    /// restarts without one the agent gives up.
    pub(super) fn restart_verdict(
        &mut self,
        now: BootTime,
        down_cause: DownCause,
        policy: &Policy,
        key: &ProcKey,
    ) -> RestartVerdict {
        let long_ago = self.last_start.is_none_or(|start| now.since(start) > policy.stable_after());
        let stable = down_cause == DownCause::Died && long_ago;
        if stable {
            self.reset();
        }
        if self.restarts >= policy.start_retries {
            return RestartVerdict::GiveUp;
        }
        self.restarts += 1;
        match self.last_start {
            Some(start) if !stable => {
                let pause = match policy.restart_pause {
                    RestartPause::Constant => policy.start_interval,
                    RestartPause::Growing => growing_pause(policy.start_interval, self.pauses, key),
                };
                self.pauses += 1;
                RestartVerdict::At(start + pause)
            }
            _ => RestartVerdict::Now,
        }
    }

    /// An order resets the count.
    pub(super) fn reset(&mut self) {
        (self.restarts, self.pauses) = (0, 0);
    }
}

/// The time from the last start to the next one, after this many consecutive pauses. Never less than
/// `interval`.
fn growing_pause(interval: Duration, before: u32, key: &ProcKey) -> Duration {
    if before == 0 {
        return interval;
    }
    let growth = 2_u32.saturating_pow(before).min(MOST_GROWTH);
    let grown = interval.saturating_mul(growth).min(LONGEST_PAUSE).max(interval);
    grown + jitter::below(grown / JITTER, key, before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy { start_retries: 2, start_interval: Duration::from_secs(10), ..Policy::default() }
    }

    fn key(name: &str) -> ProcKey {
        ProcKey { namespace: "web".to_owned(), name: name.to_owned() }
    }

    fn restart_verdict(streak: &mut Streak, now: u64, down_cause: DownCause) -> RestartVerdict {
        streak.restart_verdict(BootTime(now), down_cause, &policy(), &key("nginx"))
    }

    #[test]
    fn a_long_life_is_followed_at_once_and_clears_the_count() {
        let mut streak = Streak { restarts: 2, last_start: Some(BootTime(0)), pauses: 2 };
        assert_eq!(restart_verdict(&mut streak, 10_001, DownCause::Died), RestartVerdict::Now);
        assert_eq!((streak.restarts, streak.pauses), (1, 0));
    }

    #[test]
    fn short_lives_wait_and_then_end() {
        let mut streak = Streak { restarts: 0, last_start: Some(BootTime(1_000)), pauses: 0 };
        assert_eq!(
            restart_verdict(&mut streak, 2_000, DownCause::Died),
            RestartVerdict::At(BootTime(11_000))
        );
        streak.last_start = Some(BootTime(11_000));
        assert_eq!(
            restart_verdict(&mut streak, 11_500, DownCause::Died),
            RestartVerdict::At(BootTime(21_000))
        );
        streak.last_start = Some(BootTime(21_000));
        assert_eq!(restart_verdict(&mut streak, 21_001, DownCause::Died), RestartVerdict::GiveUp);
    }

    /// With the defaults: four restarts, ten seconds apart, and given up after forty.
    #[test]
    fn the_interval_is_as_sent_each_time() {
        for interval in [1, 10, 60, 3_600] {
            let policy = Policy { start_interval: Duration::from_secs(interval), ..Policy::default() };
            let mut streak = Streak { last_start: Some(BootTime(0)), ..Streak::default() };
            for number in 1..=u64::from(policy.start_retries) {
                let due = BootTime(number * interval * 1_000);
                let died = BootTime(due.0 - 500);
                assert_eq!(
                    streak.restart_verdict(died, DownCause::Died, &policy, &key("nginx")),
                    RestartVerdict::At(due)
                );
                streak.last_start = Some(due);
            }
            let last = streak.last_start.expect("it was started");
            assert_eq!(
                streak.restart_verdict(last, DownCause::Died, &policy, &key("nginx")),
                RestartVerdict::GiveUp
            );
        }
    }

    #[test]
    fn a_life_is_stable_when_it_outlasts_the_longest_of_three() {
        for (interval, check, longest) in [(1, 1, 10), (20, 5, 20), (1, 30, 30), (10, 5, 10)] {
            let (start_interval, start_check) = (Duration::from_secs(interval), Duration::from_secs(check));
            let policy = Policy { start_interval, start_check, start_retries: 1, ..Policy::default() };
            for (life, stable) in [(longest * 1_000, false), (longest * 1_000 + 1, true)] {
                let mut streak = Streak { restarts: 1, last_start: Some(BootTime(0)), pauses: 0 };
                let verdict = streak.restart_verdict(BootTime(life), DownCause::Died, &policy, &key("nginx"));
                let expected = if stable { RestartVerdict::Now } else { RestartVerdict::GiveUp };
                assert_eq!(verdict, expected, "{life} ms with {interval} and {check} s");
            }
        }
    }

    /// A process that lives for two seconds was started 602 times in twenty minutes.
    #[test]
    fn a_crash_loop_that_is_slower_than_the_interval_has_an_end() {
        let policy = Policy { start_interval: Duration::from_secs(1), ..Policy::default() };
        let mut streak = Streak { last_start: Some(BootTime(0)), ..Streak::default() };
        let mut now = BootTime(0);
        let mut restarts = 0;
        loop {
            now += Duration::from_secs(2);
            match streak.restart_verdict(now, DownCause::Died, &policy, &key("nginx")) {
                RestartVerdict::GiveUp => break,
                RestartVerdict::Now => panic!("two seconds are no stable life"),
                RestartVerdict::At(at) => assert!(at < now, "it is due already"),
            }
            streak.last_start = Some(now);
            restarts += 1;
        }
        assert_eq!(restarts, policy.start_retries);
    }

    /// The immediate restart after a stable run does not count as a pause, so the first pause after it is the
    /// shortest.
    #[test]
    fn only_pauses_make_pauses_longer() {
        let mut streak = Streak { restarts: 0, last_start: Some(BootTime(0)), pauses: 0 };
        assert_eq!(restart_verdict(&mut streak, 60_000, DownCause::Died), RestartVerdict::Now);
        streak.last_start = Some(BootTime(60_000));
        assert_eq!(
            restart_verdict(&mut streak, 61_000, DownCause::Died),
            RestartVerdict::At(BootTime(70_000))
        );
    }

    #[test]
    fn a_launch_that_takes_long_to_fail_does_not_count_as_a_stable_run() {
        let mut streak = Streak { restarts: 1, last_start: Some(BootTime(0)), pauses: 0 };
        assert_eq!(
            restart_verdict(&mut streak, 60_000, DownCause::NotStarted),
            RestartVerdict::At(BootTime(10_000))
        );
        assert_eq!(restart_verdict(&mut streak, 60_000, DownCause::NotStarted), RestartVerdict::GiveUp);
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        for (interval, expected) in [
            (1, [1, 2, 4, 8, 16, 16]),
            (10, [10, 20, 40, 80, 160, 160]),
            (60, [60, 120, 240, 300, 300, 300]),
            // Longer than the bound by itself.
            (3_600, [3_600, 3_600, 3_600, 3_600, 3_600, 3_600]),
        ] {
            for (before, expected) in (0..).zip(expected) {
                let pause = growing_pause(Duration::from_secs(interval), before, &key("nginx")).as_secs_f64();
                let expected = f64::from(expected);
                let most = if before == 0 { expected } else { expected * 1.2 };
                assert!((expected..=most).contains(&pause), "{interval} s, {before} before: {pause}");
            }
        }
        let longest = growing_pause(Duration::from_secs(86_400), u32::MAX, &key("nginx"));
        assert!(longest >= Duration::from_secs(86_400));
    }

    #[test]
    fn processes_that_died_together_are_restarted_at_different_times() {
        let interval = Duration::from_secs(10);
        let pauses: std::collections::BTreeSet<Duration> =
            (0..1_000).map(|number| growing_pause(interval, 1, &key(&format!("worker{number}")))).collect();
        assert!(pauses.len() > 850, "{} of 4,000 possible ones", pauses.len());
    }
}
