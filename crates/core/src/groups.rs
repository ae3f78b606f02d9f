//! Process groups: limits for all processes of a namespace together, and the choice of processes to end when
//! a limit is exceeded.
//!
//! A pool is overused when the sum over its processes exceeds the limit in several consecutive samples.
//! Processes are then ended, one after the other, until the rest fits. The weight of the pool decides the
//! order: by usage, the process with the highest usage comes first; by limit, the process with the highest
//! usage relative to its own limit, so that a process with a higher limit is ended later.

use crate::id::ProcKey;
use crate::process::Process;
use crate::spec::{ProcessGroup, Weight};
use crate::usage::LimitHistory;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// Number of consecutive samples that count as overuse. A short peak does not.
pub const SAMPLES: u32 = 3;
/// The limit of a process without one: the whole host.
const WHOLE: f64 = 100.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pool {
    Cpu,
    Mem,
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pool::Cpu => "cpu",
            Pool::Mem => "mem",
        })
    }
}

/// A process of the namespace, as it was last sampled. All figures are per cent of the whole host.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub proc: ProcKey,
    pub process: Process,
    pub cpu: f64,
    pub mem: f64,
    /// Its own limits (`spec.resource`).
    pub cpu_limit: Option<f64>,
    pub mem_limit: Option<f64>,
}

/// The description of an overuse, for events and messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overuse {
    /// The group's id.
    pub group: String,
    pub pool: Pool,
    /// Per cent of the whole host, as all figures here.
    pub limit: f64,
    /// The total usage in each of the samples.
    pub sums: Vec<f64>,
    /// The names of the processes that are ended, in order.
    pub victims: Vec<String>,
}

impl fmt::Display for Overuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums: Vec<String> = self.sums.iter().map(|sum| format!("{sum:.2}")).collect();
        let Overuse { group, pool, limit, victims, .. } = self;
        let (sums, victims) = (sums.join(", "), victims.join(", "));
        write!(f, "{pool} {sums} % together (limit {limit} of group {group}); ended in this order: {victims}")
    }
}

/// The processes to end, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolVerdict {
    pub overuse: Overuse,
    pub victims: Vec<Victim>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Victim {
    pub proc: ProcKey,
    pub process: Process,
    /// Whether the pool was ever within its limit while this process ran. If not, a restart of the process
    /// would exceed the limit again.
    pub past: LimitHistory,
}

/// The recent history of all pools of a host.
#[derive(Clone, Debug, Default)]
pub struct Pools(BTreeMap<(String, String, Pool), PoolHistory>);

#[derive(Clone, Debug, Default)]
struct PoolHistory {
    streak: PoolStreak,
    /// Consecutive totals above the limit.
    sums: Vec<f64>,
    /// Processes that ran while the pool was within its limit.
    within_limit: Vec<Process>,
}

impl Pools {
    /// Adds one sample of all processes of a namespace. A verdict resets the count, so two verdicts never
    /// follow each other directly.
    pub fn sampled(
        &mut self,
        namespace: &str,
        groups: &[ProcessGroup],
        members: &[Member],
    ) -> Vec<PoolVerdict> {
        self.0.retain(|(of, id, _), _| of != namespace || groups.iter().any(|group| group.id == *id));
        let mut verdicts = Vec::new();
        for group in groups {
            for pool in [Pool::Cpu, Pool::Mem] {
                let history = self.0.entry((namespace.to_owned(), group.id.clone(), pool)).or_default();
                verdicts.extend(history.sampled(pool, group, members));
            }
        }
        verdicts
    }

    /// Drops the history of a namespace whose pools were deleted.
    pub fn forget(&mut self, namespace: &str) {
        self.0.retain(|(of, _, _), _| of != namespace);
    }
}

impl PoolHistory {
    fn sampled(&mut self, pool: Pool, group: &ProcessGroup, members: &[Member]) -> Option<PoolVerdict> {
        let over = is_over(pool, group, members);
        if over {
            self.sums.push(used(pool, members));
            self.within_limit
                .retain(|within_limit| members.iter().any(|member| member.process.is(within_limit)));
        } else {
            self.sums.clear();
            self.within_limit = members.iter().map(|member| member.process).collect();
        }
        if !self.streak.sampled(over) {
            return None;
        }
        let past =
            |process: Process| match self.within_limit.iter().any(|within_limit| within_limit.is(&process)) {
                true => LimitHistory::OnceWithin,
                false => LimitHistory::AlwaysOver,
            };
        let victims: Vec<Victim> = victims(pool, group, members)
            .into_iter()
            .map(|Member { proc, process, .. }| Victim {
                proc: proc.clone(),
                process: *process,
                past: past(*process),
            })
            .collect();
        let overuse = Overuse {
            group: group.id.clone(),
            pool,
            limit: limit(pool, group).unwrap_or_default(),
            sums: std::mem::take(&mut self.sums),
            victims: victims.iter().map(|victim| victim.proc.name.clone()).collect(),
        };
        Some(PoolVerdict { overuse, victims })
    }
}

/// Whether anything of a namespace's groups is limited at all.
pub fn has_limit(groups: &[ProcessGroup]) -> bool {
    groups.iter().any(|group| [Pool::Cpu, Pool::Mem].into_iter().any(|pool| limit(pool, group).is_some()))
}

/// The number of consecutive samples above the limit of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStreak(u32);

impl PoolStreak {
    /// Adds one sample. True: the pool is overused, and the count was reset.
    pub fn sampled(&mut self, over: bool) -> bool {
        self.0 = if over { self.0 + 1 } else { 0 };
        let enough = self.0 >= SAMPLES;
        if enough {
            self.0 = 0;
        }
        enough
    }
}

/// The total usage of a pool.
pub fn used(pool: Pool, members: &[Member]) -> f64 {
    members.iter().map(|member| usage(pool, member)).sum()
}

/// Whether the total usage exceeds the limit of the group.
pub fn is_over(pool: Pool, group: &ProcessGroup, members: &[Member]) -> bool {
    limit(pool, group).is_some_and(|limit| used(pool, members) > limit)
}

/// The members to be ended so that the rest fits into the pool, in their order. Empty: all fit.
pub fn victims<'m>(pool: Pool, group: &ProcessGroup, members: &'m [Member]) -> Vec<&'m Member> {
    let Some(limit) = limit(pool, group) else { return Vec::new() };
    // Ending a process without usage does not help.
    let mut ordered: Vec<&Member> = members.iter().filter(|member| usage(pool, member) > 0.0).collect();
    ordered.sort_by(|a, b| precedence(pool, group, a, b));
    let mut sum: f64 = ordered.iter().map(|member| usage(pool, member)).sum();
    ordered
        .into_iter()
        .take_while(|member| {
            let over = sum > limit;
            sum -= usage(pool, member);
            over
        })
        .collect()
}

/// By score, then by usage, then by name, so that the order is deterministic.
fn precedence(pool: Pool, group: &ProcessGroup, a: &Member, b: &Member) -> Ordering {
    let score = |member: &Member| match weight(pool, group) {
        Weight::Usage => usage(pool, member),
        Weight::Limit => usage(pool, member) / allowed(pool, member),
    };
    let larger = |of: &dyn Fn(&Member) -> f64| of(b).total_cmp(&of(a));
    larger(&score).then_with(|| larger(&|member| usage(pool, member))).then_with(|| a.proc.cmp(&b.proc))
}

fn limit(pool: Pool, group: &ProcessGroup) -> Option<f64> {
    match pool {
        Pool::Cpu => group.cpu_pool_limit,
        Pool::Mem => group.mem_pool_limit,
    }
}

fn weight(pool: Pool, group: &ProcessGroup) -> Weight {
    match pool {
        Pool::Cpu => group.cpu_pool_weight,
        Pool::Mem => group.mem_pool_weight,
    }
}

fn usage(pool: Pool, member: &Member) -> f64 {
    match pool {
        Pool::Cpu => member.cpu,
        Pool::Mem => member.mem,
    }
}

fn allowed(pool: Pool, member: &Member) -> f64 {
    let own = match pool {
        Pool::Cpu => member.cpu_limit,
        Pool::Mem => member.mem_limit,
    };
    own.filter(|limit| *limit > 0.0).unwrap_or(WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Evidence, Found};

    /// `name usage limit`; `-` is no limit. The values of the other pool must not matter.
    fn member(pool: Pool, text: &str) -> Member {
        let words: Vec<&str> = text.split(' ').collect();
        let proc = ProcKey { namespace: "web".to_owned(), name: words[0].to_owned() };
        let (usage, limit): (f64, Option<f64>) = (words[1].parse().expect("a number"), words[2].parse().ok());
        let start_ticks = words.get(3).map_or(1, |ticks| ticks.parse().expect("a number"));
        let pid = words[0].bytes().map(u32::from).sum();
        let process = Process { pid, start_ticks, found: Found::PidFile, evidence: Evidence::default() };
        match pool {
            Pool::Cpu => {
                Member { proc, process, cpu: usage, mem: 99.0, cpu_limit: limit, mem_limit: Some(1.0) }
            }
            Pool::Mem => {
                Member { proc, process, cpu: 99.0, mem: usage, cpu_limit: Some(1.0), mem_limit: limit }
            }
        }
    }

    #[track_caller]
    fn check(limit: f64, weight: Weight, members: &[&str], expected: &[&str]) {
        for pool in [Pool::Cpu, Pool::Mem] {
            let limit = Some(limit).filter(|limit| *limit > 0.0);
            let group = match pool {
                Pool::Cpu => {
                    ProcessGroup { cpu_pool_limit: limit, cpu_pool_weight: weight, ..ProcessGroup::default() }
                }
                Pool::Mem => {
                    ProcessGroup { mem_pool_limit: limit, mem_pool_weight: weight, ..ProcessGroup::default() }
                }
            };
            let members: Vec<Member> = members.iter().map(|text| member(pool, text)).collect();
            let named: Vec<&str> =
                victims(pool, &group, &members).iter().map(|member| member.proc.name.as_str()).collect();
            assert_eq!(named, expected, "{pool:?} {limit:?} {weight:?} {members:?}");
            assert_eq!(is_over(pool, &group, &members), !expected.is_empty());
        }
    }

    #[test]
    fn the_rest_fits_and_no_more_than_needed_are_ended() {
        use Weight::{Limit, Usage};
        let three = ["a 10 -", "b 30 -", "c 20 -"];
        check(60.0, Usage, &three, &[]);
        check(59.9, Usage, &three, &["b"]);
        check(30.0, Usage, &three, &["b"]);
        check(29.0, Usage, &three, &["b", "c"]);
        check(5.0, Usage, &three, &["b", "c", "a"]);
        check(0.0, Usage, &three, &[]);
        check(5.0, Usage, &[], &[]);
        // By usage, the process's own limit does not matter.
        check(30.0, Usage, &["a 30 90", "b 20 10"], &["a"]);
        // By limit, only the relative usage matters: 30 of 90 is less than 20 of 40.
        check(30.0, Limit, &["a 30 90", "b 20 40"], &["b"]);
        check(30.0, Limit, &["a 30 90", "b 20 80", "c 10 20"], &["c", "a"]);
        // Without a limit it is allowed the whole host, and 0 is none.
        check(30.0, Limit, &["a 30 -", "b 20 50"], &["b"]);
        check(30.0, Limit, &["a 30 0", "b 20 50"], &["b"]);
        // Equal ones go by size, then by name.
        check(30.0, Limit, &["a 10 20", "b 25 50"], &["b"]);
        check(10.0, Usage, &["b 10 -", "a 10 -"], &["a"]);
        // A process without usage is left alone.
        check(1.0, Usage, &["a 0 -", "b 2 -"], &["b"]);
    }

    fn mem_group(id: &str, limit: f64) -> ProcessGroup {
        ProcessGroup { id: id.to_owned(), mem_pool_limit: Some(limit), ..ProcessGroup::default() }
    }

    /// The verdict of each round of samples: the names of the ended processes. `!` marks processes that were
    /// never within the limit.
    fn verdicts(groups: &[ProcessGroup], rounds: &[&[&str]]) -> Vec<String> {
        let mut pools = Pools::default();
        let mut round = |texts: &&[&str]| {
            let members: Vec<Member> = texts.iter().map(|text| member(Pool::Mem, text)).collect();
            let name = |victim: &Victim| match victim.past {
                LimitHistory::OnceWithin => victim.proc.name.clone(),
                LimitHistory::AlwaysOver => format!("{}!", victim.proc.name),
            };
            let lines = pools.sampled("web", groups, &members).into_iter().map(|verdict| {
                let names: Vec<String> = verdict.victims.iter().map(name).collect();
                format!("{}: {}", verdict.overuse.group, names.join(" "))
            });
            lines.collect::<Vec<_>>().join("; ")
        };
        rounds.iter().map(&mut round).collect()
    }

    #[test]
    fn a_pool_over_its_limit_three_times_in_a_row_has_victims_once() {
        let (low, high): (&[&str], &[&str]) = (&["a 5 -", "b 4 -"], &["a 8 -", "b 4 -"]);
        let one = [mem_group("g", 10.0)];
        assert_eq!(
            verdicts(&one, &[low, high, high, high, high, high, high]),
            ["", "", "", "g: a", "", "", "g: a"]
        );
        assert_eq!(verdicts(&one, &[high, high, low, high, high]), [""; 5]);
        // The victim is started again, and the pool exceeds its limit as soon as the new process is there.
        let again: &[&str] = &["a 8 - 2", "b 4 -"];
        let without: &[&str] = &["b 4 -"];
        assert_eq!(
            verdicts(&one, &[low, high, high, high, without, again, again, again]),
            ["", "", "", "g: a", "", "", "", "g: a!"]
        );
        // The new process was there while the pool was within its limit.
        assert_eq!(
            verdicts(&one, &[high, high, high, &["a 5 - 2", "b 4 -"], again, again, again]),
            ["", "", "g: a!", "", "", "", "g: a"]
        );
        let two = [mem_group("g", 10.0), mem_group("h", 3.0)];
        assert_eq!(verdicts(&two, &[high, high, high]), ["", "", "g: a!; h: a! b!"]);
        assert_eq!(verdicts(&[ProcessGroup::default()], &[high, high, high]), [""; 3]);
    }

    #[test]
    fn the_message_of_an_overuse_names_usage_and_limit() {
        let mut pools = Pools::default();
        let members = [member(Pool::Mem, "a 8 -"), member(Pool::Mem, "b 4.25 -")];
        let groups = [mem_group("g", 10.5)];
        let verdicts: Vec<PoolVerdict> =
            (0..3).flat_map(|_| pools.sampled("web", &groups, &members)).collect();
        let texts: Vec<String> = verdicts.iter().map(|verdict| verdict.overuse.to_string()).collect();
        let expected = "mem 12.25, 12.25, 12.25 % together (limit 10.5 of group g); ended in this order: a";
        assert_eq!(texts, [expected]);
        pools.sampled("web", &groups, &members);
        pools.forget("web");
        assert!(has_limit(&groups) && !has_limit(&[]) && pools.0.is_empty());
    }

    #[test]
    fn a_short_peak_does_not_count_as_overuse() {
        let mut streak = PoolStreak::default();
        let overused: Vec<bool> = [true, true, false, true, true, true, true, true, true]
            .into_iter()
            .map(|over| streak.sampled(over))
            .collect();
        assert_eq!(overused, [false, false, false, false, false, true, false, false, true]);
    }
}
