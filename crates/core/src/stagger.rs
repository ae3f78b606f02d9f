//! Staggers process starts after a boot or agent restart ([`StartStagger`]), and restarts of processes that
//! died at the same time ([`RestartStagger`]).
//!
//! After a boot all hosted processes are started, and after an agent restart those that died meanwhile. A few
//! are started at once, the rest at an even pace, so that neither the host nor the services that they call
//! are overloaded. The last one waits at most [`LONGEST`].

use crate::boot_time::BootTime;
use crate::id::ProcKey;
use crate::jitter;
use std::time::Duration;

/// Number of processes that are started without a pause.
pub const AT_ONCE: u32 = 10;
/// Interval between two further starts: 50 a second.
const STEP: Duration = Duration::from_millis(20);
/// Maximum delay of the last start.
pub const LONGEST: Duration = Duration::from_secs(30);

/// Why the starts coincide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaggerCause {
    /// The host has just booted.
    Boot,
    /// The agent was away.
    #[default]
    AgentRestart,
    /// The restarts of several processes are due at the same time.
    Simultaneous,
}

/// The reason of a start that is staggered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaggerReason {
    /// The agent has come back.
    AgentRestart,
    /// A restart that was waited for is due.
    Retry,
}

/// Staggers restarts that are due at about the same time. Pauses follow the specs, so procs that fail
/// together are due together each time: a few are restarted at once, the others one after the other.
#[derive(Clone, Debug, Default)]
pub struct RestartStagger {
    /// When the next one would be started if all came one after the other, in microseconds.
    next: u64,
}

impl RestartStagger {
    /// The next free start time, never before `now`.
    pub fn next_slot(&mut self, now: BootTime, key: &ProcKey) -> BootTime {
        let step = micros(STEP);
        let due = now.0.saturating_mul(1_000);
        let begin = self.next.max(due);
        let wait = (begin - due).saturating_sub(step * u64::from(AT_ONCE - 1));
        if wait > micros(LONGEST) {
            // Too many for such steps: a random time within the maximum delay.
            return now + jitter::below(LONGEST, key, 0);
        }
        self.next = begin.saturating_add(step);
        BootTime(now.0 + wait.div_ceil(1_000))
    }
}

/// The free start times.
#[derive(Clone, Debug)]
pub struct StartStagger {
    cause: StaggerCause,
    at_once: u32,
    /// In microseconds, because there may be more procs than milliseconds.
    step: u64,
    /// When the next one may be started, in microseconds; meaningless until the first has asked.
    free: u64,
}

impl StartStagger {
    /// `procs`: how many there may be at most.
    pub fn new(cause: StaggerCause, procs: usize) -> StartStagger {
        // One step is reserved for the jitter of the last start.
        let widest = micros(LONGEST) / (procs as u64).saturating_add(1);
        StartStagger { cause, at_once: AT_ONCE, step: micros(STEP).min(widest), free: 0 }
    }

    pub fn cause(&self) -> StaggerCause {
        self.cause
    }

    /// The next free start time, never before `now`.
    pub fn next_slot(&mut self, now: BootTime, key: &ProcKey) -> BootTime {
        if self.at_once > 0 {
            self.at_once -= 1;
            return now;
        }
        let begin = self.free.max(now.0.saturating_mul(1_000));
        self.free = begin.saturating_add(self.step);
        let jitter = jitter::below(Duration::from_micros(self.step), key, 0);
        BootTime(begin.div_ceil(1_000)) + jitter
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(procs: usize, asks: usize) -> Vec<u64> {
        let mut stagger = StartStagger::new(StaggerCause::Boot, procs);
        let key = |number| ProcKey { namespace: "web".to_owned(), name: format!("worker{number}") };
        (0..asks).map(|number| stagger.next_slot(BootTime(7_000), &key(number)).0 - 7_000).collect()
    }

    #[test]
    fn few_start_at_once_and_many_one_after_the_other() {
        assert!(slots(10, 10).iter().all(|wait| *wait == 0));
        // Of many that are hosted, few may have to be started.
        assert!(slots(1_000, 10).iter().all(|wait| *wait == 0));
        for (procs, last) in [(11, 0..20), (1_000, 19_000..20_500), (20_000, 28_000..30_001)] {
            let waits = slots(procs, procs);
            assert!(last.contains(waits.last().expect("some")), "{procs}: {:?}", waits.last());
            let most =
                (0..30).map(|second| waits.iter().skip(10).filter(|wait| **wait / 1_000 == second).count());
            let fair = (procs / 25).max(55);
            assert!(most.max().expect("some") <= fair, "{procs}: never more than {fair} in one second");
        }
    }

    #[test]
    fn a_slot_is_never_in_the_past() {
        let mut stagger = StartStagger::new(StaggerCause::AgentRestart, 1_000);
        let key = ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() };
        for second in 0..100 {
            let now = BootTime(second * 1_000);
            let slot = stagger.next_slot(now, &key);
            assert!(slot >= now && slot.0 <= now.0 + 20, "{slot:?} at {now:?}");
        }
    }

    #[test]
    fn processes_that_fail_together_are_restarted_at_different_times() {
        let key = |number| ProcKey { namespace: "web".to_owned(), name: format!("worker{number}") };
        for procs in [10, 1_000, 20_000] {
            let mut stagger = RestartStagger::default();
            // Each round is due a while after the one before.
            for round in 1..4 {
                let now = BootTime(round * 60_000);
                let waits: Vec<u64> =
                    (0..procs).map(|number| stagger.next_slot(now, &key(number)).0 - now.0).collect();
                let at_once = waits.iter().filter(|wait| **wait == 0).count();
                assert!((10..15).contains(&at_once), "{procs}: {at_once} at once");
                assert!(waits.iter().all(|wait| *wait <= 30_000), "{procs}: none waits for longer");
                let most =
                    (0..=30).map(|second| waits.iter().filter(|wait| **wait / 1_000 == second).count());
                let fair = (procs / 20).max(61);
                assert!(most.max().expect("some") <= fair, "{procs}: never more than {fair} in one second");
            }
        }
        // Few that are due one after the other do not wait at all.
        let mut stagger = RestartStagger::default();
        for tenth in 0..100 {
            let now = BootTime(tenth * 100);
            assert_eq!(stagger.next_slot(now, &key(1)), now);
        }
    }
}
