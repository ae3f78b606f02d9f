//! Compares samples of a process with its limits, and decides when they are an overuse.

use crate::process::Process;
use crate::spec::{LimitSamples, Resource};
use crate::usage::{LimitHistory, Usage};
use std::fmt;

/// Maximum number of samples in an event. `limit_samples` may be larger, and an event must stay small.
const SAMPLES_SHOWN: usize = 20;

/// Consecutive samples of one process above a limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LimitTracker {
    process: Option<Process>,
    over: Vec<Usage>,
    past: LimitHistory,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum LimitVerdict {
    /// Within all limits.
    Within,
    /// Above a limit, but not in enough consecutive samples.
    Wait,
    /// The samples that were over.
    Over { samples: Vec<Usage>, past: LimitHistory },
}

impl LimitTracker {
    pub(super) fn of(process: Process, past: LimitHistory) -> LimitTracker {
        LimitTracker { process: Some(process), past, ..LimitTracker::default() }
    }

    /// A new process and an overuse reset the count. One sample above a limit is a peak; `needed` consecutive
    /// samples are an overuse.
    pub(super) fn add_sample(
        &mut self,
        process: Process,
        usage: Usage,
        limits: &Resource,
        needed: LimitSamples,
    ) -> LimitVerdict {
        if !self.process.is_some_and(|known| known.is(&process)) {
            *self = LimitTracker { process: Some(process), ..LimitTracker::default() };
        }
        if !usage.is_over(limits) {
            self.over.clear();
            self.past = LimitHistory::OnceWithin;
            return LimitVerdict::Within;
        }
        let needed = usize::try_from(needed.0).unwrap_or(usize::MAX);
        self.over.push(usage);
        if self.over.len() < needed {
            return LimitVerdict::Wait;
        }
        let mut samples = std::mem::take(&mut self.over);
        // Only the latest samples are shown.
        samples.drain(..samples.len().saturating_sub(SAMPLES_SHOWN));
        LimitVerdict::Over { samples, past: self.past }
    }
}

/// Usage and limit, for people.
pub(super) struct Excess<'a> {
    pub(super) limits: &'a Resource,
    pub(super) samples: &'a [Usage],
}

impl fmt::Display for Excess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |of: &dyn Fn(&Usage) -> String| {
            let numbers: Vec<String> = self.samples.iter().map(of).collect();
            numbers.join(", ")
        };
        let parts = [
            self.limits.cpu.map(|limit| (format!("cpu {} %", row(&|s| format!("{:.1}", s.cpu))), limit)),
            self.limits.mem.map(|limit| (format!("mem {} %", row(&|s| format!("{:.1}", s.mem))), limit)),
            self.limits.fd.map(|limit| (format!("{} open files", row(&|s| s.fd.to_string())), limit as f64)),
        ];
        let broken = [
            self.samples.iter().any(|s| self.limits.cpu.is_some_and(|limit| s.cpu > limit)),
            self.samples.iter().any(|s| self.limits.mem.is_some_and(|limit| s.mem > limit)),
            self.samples.iter().any(|s| self.limits.fd.is_some_and(|limit| s.fd > limit)),
        ];
        let exceeded =
            parts.into_iter().zip(broken).filter(|(_, broken)| *broken).filter_map(|(part, _)| part);
        for (index, (used, limit)) in exceeded.enumerate() {
            let joint = if index == 0 { "" } else { "; " };
            write!(f, "{joint}{used} (limit {limit})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Evidence, Found};

    fn process(pid: u32) -> Process {
        Process { pid, start_ticks: 7, found: Found::Foreground, evidence: Evidence::default() }
    }

    fn cpu(cpu: f64) -> Usage {
        Usage { cpu, ..Usage::default() }
    }

    const LIMITS: Resource = Resource { cpu: Some(50.0), mem: Some(20.0), fd: Some(100) };

    /// The number of samples until the verdict is `Over`; 0: it never is.
    fn found_after(samples: &[(u32, Usage)], limits: &Resource) -> usize {
        let mut limit_tracker = LimitTracker::default();
        let needed = LimitSamples::default();
        let over = |(pid, usage): &(u32, Usage)| {
            matches!(
                limit_tracker.add_sample(process(*pid), *usage, limits, needed),
                LimitVerdict::Over { .. }
            )
        };
        samples.iter().position(over).map_or(0, |index| index + 1)
    }

    #[test]
    fn three_samples_in_a_row_are_too_much() {
        let (low, high) = ((1, cpu(50.0)), (1, cpu(50.1)));
        let (mem, fd) =
            ((1, Usage { mem: 20.1, ..Usage::default() }), (1, Usage { fd: 101, ..Usage::default() }));
        let another = (2, cpu(99.0));
        for (samples, after) in [
            (vec![high; 3], 3),
            (vec![high; 2], 0),
            // exactly the limit is within it
            (vec![low; 9], 0),
            (vec![high, high, low, high, high], 0),
            (vec![high, low, high, high, high], 5),
            // it need not be the same limit
            (vec![high, mem, fd], 3),
            // another process has not done it
            (vec![high, high, another, another], 0),
            (vec![high, high, another, another, another], 5),
            (vec![another, high, another, high, another, high], 0),
        ] {
            assert_eq!(found_after(&samples, &LIMITS), after, "{samples:?}");
            assert_eq!(found_after(&samples, &Resource::default()), 0, "no limit, no verdict");
        }
    }

    #[test]
    fn limit_samples_decides_how_many_samples_are_an_overuse() {
        for (needed, samples, shown) in [(1, 1, 1), (5, 5, 5), (1_000, 1_000, SAMPLES_SHOWN)] {
            let mut limit_tracker = LimitTracker::default();
            for number in 1..=samples {
                let verdict = limit_tracker.add_sample(process(1), cpu(99.0), &LIMITS, LimitSamples(needed));
                match verdict {
                    LimitVerdict::Over { samples: over, .. } => {
                        assert_eq!((number, over.len()), (samples, shown))
                    }
                    LimitVerdict::Wait => assert!(number < samples, "{needed}"),
                    LimitVerdict::Within => panic!("99 is over"),
                }
            }
        }
    }

    #[test]
    fn a_pid_that_came_again_is_another_process() {
        let mut limit_tracker = LimitTracker::default();
        let successor = Process { start_ticks: 8, ..process(1) };
        for who in [process(1), process(1), successor, successor] {
            assert_eq!(
                limit_tracker.add_sample(who, cpu(99.0), &LIMITS, LimitSamples(3)),
                LimitVerdict::Wait
            );
        }
    }

    #[test]
    fn a_verdict_resets_the_count() {
        let mut limit_tracker = LimitTracker::default();
        let mut add_sample = || limit_tracker.add_sample(process(1), cpu(99.0), &LIMITS, LimitSamples(3));
        assert_eq!((add_sample(), add_sample()), (LimitVerdict::Wait, LimitVerdict::Wait));
        assert_eq!(
            add_sample(),
            LimitVerdict::Over { samples: vec![cpu(99.0); 3], past: LimitHistory::AlwaysOver }
        );
        assert_eq!(add_sample(), LimitVerdict::Wait);
    }

    #[test]
    fn a_process_that_was_once_within_its_limits_is_distinguished() {
        let mut limit_tracker = LimitTracker::default();
        let mut last = LimitVerdict::Wait;
        for usage in [1.0, 99.0, 99.0, 99.0] {
            last = limit_tracker.add_sample(process(1), cpu(usage), &LIMITS, LimitSamples(3));
        }
        assert!(matches!(last, LimitVerdict::Over { past: LimitHistory::OnceWithin, .. }), "{last:?}");
        for usage in [99.0, 99.0, 99.0] {
            last = limit_tracker.add_sample(process(2), cpu(usage), &LIMITS, LimitSamples(3));
        }
        assert!(matches!(last, LimitVerdict::Over { past: LimitHistory::AlwaysOver, .. }), "{last:?}");
    }

    #[test]
    fn only_exceeded_limits_are_reported() {
        let samples = [cpu(61.24), Usage { cpu: 70.0, mem: 1.0, fd: 500 }, cpu(55.0)];
        let text = |limits| Excess { limits, samples: &samples }.to_string();
        assert_eq!(text(&LIMITS), "cpu 61.2, 70.0, 55.0 % (limit 50); 0, 500, 0 open files (limit 100)");
        let mem = Resource { mem: Some(0.5), ..Resource::default() };
        assert_eq!(text(&mem), "mem 0.0, 1.0, 0.0 % (limit 0.5)");
    }
}
