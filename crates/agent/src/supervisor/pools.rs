//! Usage of a namespace's processes together, where its groups limit it. A round of samples has all of them
//! at one time, and [`procfleet_core::groups`] decides which proc to end.

use super::sampler::{Pooled, Round, Sampled};
use procfleet_core::groups::{self, Member, has_limit};
use procfleet_core::id::ProcKey;
use procfleet_core::spec::ProcessGroup;
use procfleet_core::supervise::{Input, ProcNotice};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct LimitedPools {
    /// The groups of each namespace that has a limit.
    groups: BTreeMap<String, Vec<ProcessGroup>>,
    course: groups::Pools,
}

impl LimitedPools {
    /// Replaces the groups of a namespace.
    pub(super) fn set(&mut self, namespace: &str, groups: &[ProcessGroup]) -> Pooled {
        if has_limit(groups) {
            self.groups.insert(namespace.to_owned(), groups.to_vec());
            return Pooled::Yes;
        }
        self.groups.remove(namespace);
        self.course.forget(namespace);
        Pooled::No
    }

    /// Evaluates a round, and returns inputs for the procs concerned.
    pub(super) fn sampled(&mut self, round: &Round) -> Vec<(ProcKey, Input)> {
        let mut victims = Vec::new();
        for (namespace, groups) in &self.groups {
            let counts =
                |sampled: &&Sampled| sampled.key.namespace == *namespace && sampled.pooled == Pooled::Yes;
            let members: Vec<Member> = round.iter().filter(counts).map(member).collect();
            for verdict in self.course.sampled(namespace, groups, &members) {
                victims.extend(verdict.victims.into_iter().map(|victim| {
                    let overuse = Box::new(verdict.overuse.clone());
                    let input = Input::Notice(ProcNotice::Overused {
                        process: victim.process,
                        overuse,
                        past: victim.past,
                    });
                    (victim.proc, input)
                }));
            }
        }
        victims
    }
}

fn member(sampled: &Sampled) -> Member {
    Member {
        proc: (*sampled.key).clone(),
        process: sampled.process,
        cpu: sampled.usage.cpu,
        mem: sampled.usage.mem,
        cpu_limit: sampled.spec.resource.cpu,
        mem_limit: sampled.spec.resource.mem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::process::{Evidence, Found, Process};
    use procfleet_core::supervise::Usage;
    use std::sync::Arc;

    fn groups(limit: Option<f64>) -> Vec<ProcessGroup> {
        vec![ProcessGroup { id: "g".to_owned(), mem_pool_limit: limit, ..ProcessGroup::default() }]
    }

    fn sampled(pid: u32, namespace: &str, name: &str, mem: f64) -> Sampled {
        Sampled {
            key: Arc::new(ProcKey { namespace: namespace.to_owned(), name: name.to_owned() }),
            process: Process { pid, start_ticks: 1, found: Found::PidFile, evidence: Evidence::default() },
            usage: Usage { mem, ..Usage::default() },
            spec: Arc::default(),
            pooled: Pooled::Yes,
            is_forwarded: false,
        }
    }

    #[test]
    fn a_namespace_pays_for_its_own_processes_alone() {
        let mut pools = LimitedPools::default();
        assert_eq!(pools.set("web", &groups(Some(10.0))), Pooled::Yes);
        let round =
            || vec![sampled(3, "db", "c", 99.0), sampled(1, "web", "a", 8.0), sampled(2, "web", "b", 4.0)];
        let mut victims = |round: Round| -> Vec<String> {
            pools.sampled(&round).into_iter().map(|(key, _)| key.to_string()).collect()
        };
        assert_eq!(victims(round()), [""; 0]);
        assert_eq!(victims(Vec::new()), [""; 0], "counting begins anew");
        assert_eq!([victims(round()), victims(round())].concat(), [""; 0]);
        assert_eq!(victims(round()), ["web:a"]);
        assert_eq!([victims(round()), victims(round())].concat(), [""; 0]);
        assert_eq!(pools.set("web", &groups(None)), Pooled::No);
        assert_eq!(pools.sampled(&round()), []);
        // An unhosted process neither counts in the pool nor is ended for it.
        assert_eq!(pools.set("web", &groups(Some(10.0))), Pooled::Yes);
        for _ in 0..6 {
            let alone = |sampled: Sampled| Sampled { pooled: Pooled::No, ..sampled };
            assert_eq!(
                pools.sampled(&vec![alone(sampled(1, "web", "a", 99.0)), sampled(2, "web", "b", 4.0)]),
                []
            );
        }
    }
}
