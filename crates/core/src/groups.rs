//! Process groups: what the processes of a namespace may use together, and whose turn it is when they use more.
//!
//! A pool is overused when the processes' sum has been above its limit in a row of samples. Then processes are ended, one after
//! the other, until the rest fits. Who comes first is a matter of the pool's weight: by usage alone he who uses most, and by
//! limit he who uses most of what he is allowed himself, so that a process with a higher limit is ended later.

use crate::id::ProcKey;
use crate::spec::{ProcessGroup, Weight};
use std::cmp::Ordering;

/// So many samples in a row make an overuse; a short peak does not.
pub const SAMPLES: u32 = 3;
/// What a process without a limit is allowed: the whole host.
const WHOLE: f64 = 100.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    Cpu,
    Mem,
}

/// A process of the namespace, as it was last sampled. All figures are per cent of the whole host.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub proc: ProcKey,
    pub cpu: f64,
    pub mem: f64,
    /// Its own limits (`spec.resource`).
    pub cpu_limit: Option<f64>,
    pub mem_limit: Option<f64>,
}

/// How often in a row a pool was found overused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strain(u32);

impl Strain {
    /// Takes one sample in. True: that was the last straw, and counting begins anew.
    pub fn sampled(&mut self, over: bool) -> bool {
        self.0 = if over { self.0 + 1 } else { 0 };
        let enough = self.0 >= SAMPLES;
        if enough {
            self.0 = 0;
        }
        enough
    }
}

/// What the members use of a pool together.
pub fn used(pool: Pool, members: &[Member]) -> f64 {
    members.iter().map(|member| usage(pool, member)).sum()
}

/// Whether that is more than the group allows.
pub fn is_over(pool: Pool, group: &ProcessGroup, members: &[Member]) -> bool {
    limit(pool, group).is_some_and(|limit| used(pool, members) > limit)
}

/// The members to be ended so that the rest fits into the pool, in their order. None: it fits as it is.
pub fn victims<'m>(pool: Pool, group: &ProcessGroup, members: &'m [Member]) -> Vec<&'m Member> {
    let Some(limit) = limit(pool, group) else { return Vec::new() };
    // Who uses nothing of it makes no room.
    let mut turn: Vec<&Member> = members.iter().filter(|member| usage(pool, member) > 0.0).collect();
    turn.sort_by(|a, b| precedence(pool, group, a, b));
    let mut sum: f64 = turn.iter().map(|member| usage(pool, member)).sum();
    turn.into_iter()
        .take_while(|member| {
            let over = sum > limit;
            sum -= usage(pool, member);
            over
        })
        .collect()
}

/// By score; of equal ones the larger first, and of equally large ones by name, so that the order is always the same.
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

    /// `name usage limit`; `-` is no limit. The other pool is filled with what must not matter.
    fn member(pool: Pool, text: &str) -> Member {
        let words: Vec<&str> = text.split(' ').collect();
        let proc = ProcKey { namespace: "web".to_owned(), name: words[0].to_owned() };
        let (usage, limit): (f64, Option<f64>) = (words[1].parse().expect("a number"), words[2].parse().ok());
        match pool {
            Pool::Cpu => Member { proc, cpu: usage, mem: 99.0, cpu_limit: limit, mem_limit: Some(1.0) },
            Pool::Mem => Member { proc, cpu: 99.0, mem: usage, cpu_limit: Some(1.0), mem_limit: limit },
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
        // What it is allowed itself does not matter by usage,
        check(30.0, Usage, &["a 30 90", "b 20 10"], &["a"]);
        // and is all that matters by limit: 30 of 90 is less than 20 of 40.
        check(30.0, Limit, &["a 30 90", "b 20 40"], &["b"]);
        check(30.0, Limit, &["a 30 90", "b 20 80", "c 10 20"], &["c", "a"]);
        // Without a limit it is allowed the whole host, and 0 is none.
        check(30.0, Limit, &["a 30 -", "b 20 50"], &["b"]);
        check(30.0, Limit, &["a 30 0", "b 20 50"], &["b"]);
        // Equal ones go by size, then by name.
        check(30.0, Limit, &["a 10 20", "b 25 50"], &["b"]);
        check(10.0, Usage, &["b 10 -", "a 10 -"], &["a"]);
        // Who uses nothing is left alone.
        check(1.0, Usage, &["a 0 -", "b 2 -"], &["b"]);
    }

    #[test]
    fn a_peak_is_no_overuse() {
        let mut strain = Strain::default();
        let said: Vec<bool> = [true, true, false, true, true, true, true, true, true]
            .into_iter()
            .map(|over| strain.sampled(over))
            .collect();
        assert_eq!(said, [false, false, false, false, false, true, false, false, true]);
    }
}
