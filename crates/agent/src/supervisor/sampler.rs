//! Samples the usage of all procs with one scan of `/proc`.
//!
//! Actors subscribe with their process and how much they want to know. A round of samples goes to the
//! supervisor, which forwards each to its actor. Figures that have hardly changed are not forwarded, so a
//! thousand idle procs cause no work beyond the scan.

use crate::exec::{self, ExecContext, Meter, UsageScan};
use procfleet_core::boot_time::BootTime;
use procfleet_core::id::ProcKey;
use procfleet_core::process::Process;
use procfleet_core::spec::{Identity, Spec};
use procfleet_core::supervise::Usage;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// Interval of samples, and of those for procs with limits. The longer is a multiple of the shorter.
const EVERY: Duration = Duration::from_secs(15);
const LIMITED_EVERY: Duration = Duration::from_secs(5);
/// A small change is published after this time.
const STALE: Duration = Duration::from_secs(300);
/// Number of samples before the task yields.
const AT_ONCE: usize = 64;

/// Which samples an actor wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleInterest {
    /// Figures that people would notice.
    Changes,
    /// Every sample.
    Each,
    /// Every sample, and more of them: it has limits.
    Limits,
}

/// Whether the processes of a namespace, or one of them, are sampled for the limits of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooled {
    Yes,
    No,
}

/// The samples that are taken of a proc.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) process: Process,
    /// Has the limits of the proc, and its pid file: a program that replaces itself writes its new pid there.
    pub(super) spec: Arc<Spec>,
    pub(super) interest: SampleInterest,
    /// Whether it counts in the pools of its namespace. An unhosted process is left alone, so it does not.
    pub(super) pooled: Pooled,
}

/// The samples of one time, ordered by key.
pub(super) type Round = Vec<Sampled>;

#[derive(Debug)]
pub(super) struct Sampled {
    pub(super) key: Arc<ProcKey>,
    pub(super) process: Process,
    pub(super) usage: Usage,
    pub(super) spec: Arc<Spec>,
    pub(super) pooled: Pooled,
    /// Whether its actor gets the sample.
    pub(super) is_forwarded: bool,
}

/// The handle of the actors.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampler {
    followed: Arc<Mutex<FollowedProcs>>,
    /// Namespaces with common limits: all of their procs are sampled as procs with limits.
    pooled: Arc<Mutex<BTreeSet<String>>>,
}

/// Boxed: the nodes of the tree are half empty.
type FollowedProcs = BTreeMap<Arc<ProcKey>, Box<Followed>>;

#[derive(Debug)]
struct Followed {
    follow: Follow,
    meter: Meter,
    /// The last sample that the actor got, and its time.
    forwarded: Option<(BootTime, Usage)>,
}

impl Followed {
    fn is_replaced(&self) -> bool {
        let Identity { pid_path, .. } = &self.follow.spec.identity;
        !pid_path.is_empty() && exec::pid_file_names_another(pid_path, self.follow.process.pid)
    }
}

impl Sampler {
    fn lock(&self) -> MutexGuard<'_, FollowedProcs> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this namespace has limits for all its procs together.
    pub(super) fn pool(&self, namespace: &str, pooled: Pooled) {
        let mut all = self.pooled.lock().unwrap_or_else(PoisonError::into_inner);
        match pooled {
            Pooled::Yes => all.insert(namespace.to_owned()),
            Pooled::No => all.remove(namespace),
        };
    }

    /// Subscribes with the proc's process. `None`: it has no process. Cheap if nothing has changed.
    pub(super) fn follow(&self, key: &Arc<ProcKey>, follow: Option<Follow>) {
        let mut followed = self.lock();
        match (follow, followed.get_mut(key)) {
            (None, None) => {}
            (None, Some(_)) => {
                followed.remove(key);
            }
            (Some(follow), Some(known)) if known.follow.process.is(&follow.process) => known.follow = follow,
            (Some(follow), _) => {
                let new = Followed { follow, meter: Meter::default(), forwarded: None };
                followed.insert(key.clone(), Box::new(new));
            }
        }
    }

    /// Samples until the receiver is closed.
    pub(super) async fn run(self, context: Arc<ExecContext>, rounds: mpsc::Sender<Round>) {
        loop {
            let now = context.now();
            let due = after(now, LIMITED_EVERY);
            tokio::time::sleep(due.since(now)).await;
            let all = due.0.is_multiple_of(millis(EVERY));
            let Some(round) = self.round(&context, all).await else { continue };
            if rounds.send(round).await.is_err() {
                return;
            }
        }
    }

    /// `all`: not only procs with limits. `None`: there is nothing to sample.
    async fn round(&self, context: &ExecContext, all: bool) -> Option<Round> {
        let pooled = self.pooled.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_due = |key: &ProcKey, followed: &Followed| {
            let counts = || followed.follow.pooled == Pooled::Yes && pooled.contains(&key.namespace);
            all || followed.follow.interest == SampleInterest::Limits || counts()
        };
        let due: Vec<Arc<ProcKey>> =
            self.lock().iter().filter(|(key, proc)| is_due(key, proc)).map(|(key, _)| key.clone()).collect();
        if due.is_empty() {
            // The supervisor must see that a pool is empty.
            return (!pooled.is_empty()).then(Round::new);
        }
        let scan = UsageScan::look(context).await;
        let mut round = Round::with_capacity(due.len());
        let mut due = due.into_iter().peekable();
        while due.peek().is_some() {
            {
                let mut followed = self.lock();
                for key in due.by_ref().take(AT_ONCE) {
                    let Some(proc) = followed.get_mut(&key) else { continue };
                    let Follow { process, interest, pooled, .. } = proc.follow;
                    let Some(usage) = scan.usage(context, &process, &mut proc.meter) else { continue };
                    let is_forwarded = interest != SampleInterest::Changes
                        || is_noticeable(proc.forwarded, scan.taken(), usage)
                        || proc.is_replaced();
                    if is_forwarded {
                        proc.forwarded = Some((scan.taken(), usage));
                    }
                    let spec = proc.follow.spec.clone();
                    round.push(Sampled { key, process, usage, spec, pooled, is_forwarded });
                }
            }
            tokio::task::yield_now().await;
        }
        Some(round)
    }
}

/// The next multiple of the interval, so that all procs share the same times.
fn after(now: BootTime, every: Duration) -> BootTime {
    let step = millis(every);
    BootTime((now.0 / step).saturating_add(1).saturating_mul(step))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whether the change is noticeable, or a small change is old enough.
fn is_noticeable(forwarded: Option<(BootTime, Usage)>, now: BootTime, usage: Usage) -> bool {
    let Some((at, known)) = forwarded else { return true };
    let differs = |one: f64, other: f64, least: f64| (one - other).abs() >= least.max(one.abs() / 10.0);
    differs(known.cpu, usage.cpu, 1.0)
        || differs(known.mem, usage.mem, 0.5)
        || differs(known.fd as f64, usage.fd as f64, 5.0)
        || (known != usage && now.since(at) >= STALE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Containment;
    use procfleet_core::process::{Evidence, Found};

    fn usage(cpu: f64, mem: f64, fd: u64) -> Usage {
        Usage { cpu, mem, fd }
    }

    #[test]
    fn small_changes_are_not_published() {
        let rows = [
            ("nothing changed", usage(10.0, 5.0, 20), 15, false),
            ("it wobbles", usage(10.9, 5.3, 22), 15, false),
            ("it has wobbled for long", usage(10.1, 5.0, 20), 300, true),
            ("it works", usage(11.5, 5.0, 20), 15, true),
            ("it rests", usage(0.0, 5.0, 20), 15, true),
            ("it grows", usage(10.0, 5.6, 20), 15, true),
            ("it opens files", usage(10.0, 5.0, 26), 15, true),
        ];
        let at = BootTime(1_000_000);
        for (what, now, secs, expected) in rows {
            let forwarded = Some((at, usage(10.0, 5.0, 20)));
            assert_eq!(is_noticeable(forwarded, at + Duration::from_secs(secs), now), expected, "{what}");
        }
        assert!(is_noticeable(None, at, usage(0.0, 0.0, 0)), "the first is");
    }

    #[tokio::test]
    async fn one_scan_samples_all_procs_and_only_changes_are_forwarded() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let context = ExecContext::open(folder.path().join("output"), Containment::Auto).expect("a context");
        let sampler = Sampler::default();
        let key = |name: &str| Arc::new(ProcKey { namespace: "web".to_owned(), name: name.to_owned() });
        // The test itself, by its own line in `/proc`.
        let stat = std::fs::read_to_string("/proc/self/stat").expect("our own");
        let ticks = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)?.parse().ok());
        let start_ticks = ticks.expect("a start time");
        let us = Process {
            pid: std::process::id(),
            start_ticks,
            found: Found::PidFile,
            evidence: Evidence::default(),
        };
        let gone = Process { start_ticks: 1, ..us };
        let follow = |name: &str, what: Option<(Process, SampleInterest, Pooled)>| {
            let what = what.map(|(process, interest, pooled)| {
                let spec = Arc::<Spec>::default();
                Follow { process, spec, interest, pooled }
            });
            sampler.follow(&key(name), what);
        };
        for (name, process, interest) in [
            ("idle", us, SampleInterest::Changes),
            ("limited", us, SampleInterest::Limits),
            ("gone", gone, SampleInterest::Limits),
        ] {
            follow(name, Some((process, interest, Pooled::Yes)));
        }
        let sampled = async |all| {
            let round = sampler.round(&context, all).await.expect("somebody is there");
            round
                .into_iter()
                .map(|sample| (sample.key.name.clone(), sample.is_forwarded, sample.usage.fd > 0))
                .collect::<Vec<_>>()
        };
        let (idle, limited) = ("idle".to_owned(), "limited".to_owned());
        assert_eq!(sampled(true).await, [(idle.clone(), true, true), (limited.clone(), true, true)]);
        assert_eq!(
            sampled(false).await,
            [(limited.clone(), true, true)],
            "in between only procs with limits"
        );
        follow("limited", None);
        follow("gone", None);
        assert!(sampler.round(&context, false).await.is_none());
        assert_eq!(sampled(true).await.len(), 1);
        sampler.pool("web", Pooled::Yes);
        // Whether its figures change depends on other tests in this process.
        let names: Vec<String> = sampled(false).await.into_iter().map(|(name, _, _)| name).collect();
        assert_eq!(names, [idle], "its namespace has limits");
        follow("idle", Some((us, SampleInterest::Changes, Pooled::No)));
        assert!(
            sampler.round(&context, false).await.is_some_and(|round| round.is_empty()),
            "it is left alone"
        );
        follow("idle", None);
        assert!(sampler.round(&context, false).await.is_some_and(|round| round.is_empty()));
        sampler.pool("web", Pooled::No);
        assert!(sampler.round(&context, false).await.is_none());
    }
}
