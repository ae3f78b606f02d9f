//! Which proc started a process: by the mark in its environment, else by its cgroup.
//!
//! A process that overwrote its environment has no mark, but is still in the cgroup of its run.
//!
//! A process with the mark of another agent belongs to that agent while the agent is alive (`neighbour`). For
//! an agent that is gone only the proc's name counts, and the program must match.

use crate::exec::cgroup;
use crate::exec::procfs;
use crate::exec::scan::identify::{self, EnvMark};
use crate::exec::scan::neighbour;
use crate::exec::scan::proc_mark::ProcMark;
use rustix::process::geteuid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::exec) enum Origin {
    /// A run of this proc, by this agent.
    Ours,
    /// A proc of another live agent on this host.
    AnotherAgents(String),
    /// Another proc. `None`: a probe, or its name is unknown.
    AnotherProcs(Option<String>),
    /// No evidence; the program decides.
    Unknown,
}

/// The origin of a process. `mark` and `group` are those of the proc that asks.
pub(in crate::exec) fn of(pid: u32, mark: &ProcMark, group: &str) -> Origin {
    let claim = procfs::mark_claim(pid);
    let name = claim.as_ref().map(|claim| &*claim.name);
    match EnvMark::of_value(name, mark.name()) {
        EnvMark::Ours if claim.as_ref().is_some_and(|claim| mark.identifies(pid, claim)) => Origin::Ours,
        EnvMark::AnotherProcs => {
            Origin::AnotherProcs(name.and_then(|name| identify::owner(name, mark.name())))
        }
        // A mark that another program has set, or that a run under another account has left, is not evidence.
        EnvMark::Ours | EnvMark::Missing => {
            let instance = mark.instance();
            let held = cgroup::held_by(pid);
            match held.as_ref().filter(|holder| holder.is_made_by(instance)) {
                Some(holder) if holder.proc == group => return Origin::Ours,
                Some(holder) => return Origin::AnotherProcs(Some(holder.shown())),
                None => {}
            }
            let marked = name.and_then(identify::instance_and_proc);
            let held = held.map(|holder| (holder.instance.clone(), holder.shown()));
            let mut others = marked.into_iter().chain(held).filter(|(agent, _)| agent != instance);
            let another = others.find(|(agent, _)| is_living_agent(agent, pid));
            another.map_or(Origin::Unknown, |(_, proc)| Origin::AnotherAgents(proc))
        }
    }
}

/// Whether an agent of this instance is alive, under an account that is trusted for this process.
fn is_living_agent(instance: &str, pid: u32) -> bool {
    let owners = procfs::owners(pid).unwrap_or_default();
    neighbour::is_alive(instance, |uid| uid == 0 || uid == geteuid().as_raw() || owners.contains(&uid))
}
