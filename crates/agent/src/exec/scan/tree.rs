//! Snapshots of processes, and which of them belong together.
//!
//! A scan has parents and sessions; from them follow descendants, sessions and, with the mark, processes that
//! left both. Where there are cgroups, those of a proc hold all of its processes (`cgroup`). Else processes
//! that this agent process started are its descendants (`children`), and older ones are found by reading all
//! of `/proc`. A process that leaves its session, loses its parent and clears its environment between two
//! scans is not found.

use crate::exec::cgroup;
use crate::exec::procfs::{self, ExecWaits, Id, MarkClaim, Stat};
use crate::exec::scan::identify::{EnvMark, RunningProgram};
use crate::exec::scan::proc_mark::ProcMark;
use crate::exec::watch::children::{self, Freshness};
use crate::exec::watch::pidfd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of rounds of a kill. Each round finds processes that were forked during the last one; a
/// program that only forks into new sessions may escape many rounds.
const ROUNDS: usize = 50;
/// Number of consecutive rounds without a new process that ends a kill.
const QUIET_ROUNDS: usize = 2;
/// Attempts to follow the parents of a process up to the agent, while those in between die.
const ANCESTRY_TRIES: usize = 3;
/// How long the cached ancestors of the agent stay valid if its parent has not changed.
const STILL_ABOVE: Duration = Duration::from_secs(1);

/// A snapshot of running user-space processes: all of them, or those that may belong to one proc.
#[derive(Debug)]
pub(in crate::exec) struct Scan {
    running: HashMap<u32, Stat>,
    /// The agent and those above it, and the first process: never members of anything, never signalled.
    protected: HashSet<u32>,
    /// Members of a cgroup of the proc: they belong to it whatever their environment contains.
    contained: HashSet<u32>,
    /// Their programs, read on first use.
    programs: OnceLock<HashMap<u32, RunningProgram>>,
    marks: OnceLock<HashMap<u32, MarkClaim>>,
    /// Marks that were read one by one.
    asked: Mutex<HashMap<u32, Option<Vec<u8>>>>,
    /// Limit of the waits of all reads of environments.
    waits: ExecWaits,
    /// Something could not be read, so processes may be missing.
    is_partial: bool,
}

impl Scan {
    /// Scans all processes.
    pub(in crate::exec) fn take() -> Scan {
        Scan::without(&HashSet::new())
    }

    /// Scans all processes except these.
    pub(in crate::exec) fn without(pids: &HashSet<u32>) -> Scan {
        let found = procfs::find_pids();
        let mut is_partial = found.is_err();
        let others = found.into_iter().flatten().filter(|pid| !pids.contains(pid));
        let stats: Vec<Stat> = others.filter_map(|pid| find(pid, &mut is_partial)).collect();
        Scan { is_partial, ..Scan::of(stats, protected()) }
    }

    /// Whether processes may be missing, because descriptors or memory ran out while it was taken.
    pub(in crate::exec) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Processes that may belong to a proc with these processes, if all of them are below the agent: they,
    /// their descendants, and adopted orphans. `None` if that does not hold or cannot be known.
    pub(in crate::exec) fn near(own: &[Id], freshness: Freshness) -> Option<Scan> {
        let (mut stats, mut is_partial) = (Vec::new(), false);
        for id in own {
            let stat = find(id.pid, &mut is_partial).filter(|stat| stat.id == *id && stat.is_running());
            let Some(stat) = stat else { continue };
            if !is_below_us(&stat) {
                return None;
            }
            collect(stat, &mut stats, &mut is_partial);
        }
        // Read last: a process that lost its parent meanwhile is in this list.
        let adopted = children::adopted(freshness)?;
        for pid in adopted {
            if let Some(stat) = find(pid, &mut is_partial) {
                collect(stat, &mut stats, &mut is_partial);
            }
        }
        // No descendant of the agent is an ancestor of it.
        Some(Scan { is_partial, ..Scan::of(stats, HashSet::from([0, 1, std::process::id()])) })
    }

    /// Processes in these groups of a proc, and these processes with their descendants. If one of them is
    /// neither in a group nor below the agent, its descendants may be anywhere.
    pub(in crate::exec) fn within(groups: &[Arc<Path>], own: &[Id]) -> Scan {
        let found = cgroup::pids_in_all(groups);
        let mut is_partial = found.is_err();
        let contained = found.unwrap_or_default();
        let mut stats: Vec<Stat> = contained.iter().filter_map(|pid| find(*pid, &mut is_partial)).collect();
        for id in own.iter().filter(|id| !contained.contains(&id.pid)) {
            let stat = find(id.pid, &mut is_partial).filter(|stat| stat.id == *id && stat.is_running());
            let Some(stat) = stat else { continue };
            if !is_below_us(&stat) {
                let all = Scan::take();
                return Scan { contained, is_partial: is_partial || all.is_partial, ..all };
            }
            collect(stat, &mut stats, &mut is_partial);
        }
        Scan { contained, is_partial, ..Scan::of(stats, protected()) }
    }

    /// An empty scan has no descendants either.
    fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    fn of(stats: impl IntoIterator<Item = Stat>, protected: HashSet<u32>) -> Scan {
        let running = stats.into_iter().filter(|stat| stat.is_running() && !stat.is_kernel_thread());
        Scan {
            running: running.map(|stat| (stat.id.pid, stat)).collect(),
            protected,
            contained: HashSet::new(),
            programs: OnceLock::new(),
            marks: OnceLock::new(),
            asked: Mutex::default(),
            waits: ExecWaits::of_scan(),
            is_partial: false,
        }
    }

    /// Processes that run a program of this name, oldest first.
    pub(in crate::exec) fn named(&self, name: &str) -> Vec<&Stat> {
        let programs = self.programs.get_or_init(|| {
            self.all().into_iter().map(|stat| (stat.id.pid, RunningProgram::of(stat))).collect()
        });
        let mut named = self.all();
        named.retain(|stat| programs.get(&stat.id.pid).is_some_and(|program| program.is_named(name)));
        named
    }

    pub(in crate::exec) fn get(&self, pid: u32) -> Option<&Stat> {
        self.running.get(&pid)
    }

    pub(in crate::exec) fn is_running(&self, id: Id) -> bool {
        self.running.get(&id.pid).is_some_and(|stat| stat.id == id)
    }

    /// Everything that may be ours, oldest first.
    pub(in crate::exec) fn all(&self) -> Vec<&Stat> {
        let mut all: Vec<&Stat> =
            self.running.values().filter(|stat| !self.protected.contains(&stat.id.pid)).collect();
        all.sort_by_key(|stat| (stat.id.start_ticks, stat.id.pid));
        all
    }

    pub(in crate::exec) fn children(&self, pid: u32) -> Vec<&Stat> {
        let mut children = self.all();
        children.retain(|stat| stat.parent == pid);
        children
    }

    /// Processes with this mark or in a cgroup of the proc, oldest first.
    pub(in crate::exec) fn marked(&self, mark: &ProcMark) -> Vec<&Stat> {
        let marks = self.marks.get_or_init(|| {
            self.all()
                .into_iter()
                .filter(|stat| !self.contained.contains(&stat.id.pid))
                .filter_map(|stat| Some((stat.id.pid, procfs::mark_claim_within(stat.id.pid, &self.waits)?)))
                .collect()
        });
        let mut marked = self.all();
        marked.retain(|stat| {
            self.contained.contains(&stat.id.pid)
                || marks.get(&stat.id.pid).is_some_and(|claim| mark.is_borne_by(stat.id.pid, claim))
        });
        marked
    }

    /// Whether it has the mark of another proc. Cached: without it each proc would read a thousand
    /// environments of a program that runs a thousand times.
    pub(in crate::exec) fn is_anothers(&self, stat: &Stat, mark: &ProcMark) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let value = asked.entry(stat.id.pid).or_insert_with(|| self.mark_of(stat));
        EnvMark::of_value(value.as_deref(), mark.name()) == EnvMark::AnotherProcs
    }

    /// The value of its mark.
    pub(in crate::exec) fn mark_of(&self, stat: &Stat) -> Option<Vec<u8>> {
        procfs::mark_within(stat.id.pid, &self.waits)
    }

    fn is_marked(&self, pid: u32, mark: &ProcMark) -> bool {
        self.contained.contains(&pid)
            || procfs::mark_claim_within(pid, &self.waits).is_some_and(|claim| mark.is_borne_by(pid, &claim))
    }

    /// The seeds that are running and all below them.
    pub(in crate::exec) fn with_descendants(&self, seeds: impl IntoIterator<Item = Id>) -> HashSet<Id> {
        let mut below: HashMap<u32, Vec<&Stat>> = HashMap::new();
        for stat in self.all() {
            below.entry(stat.parent).or_default().push(stat);
        }
        let mut found = HashSet::new();
        let mut open: Vec<Id> = seeds.into_iter().filter(|seed| self.is_running(*seed)).collect();
        while let Some(id) = open.pop() {
            if !self.protected.contains(&id.pid) && found.insert(id) {
                open.extend(below.get(&id.pid).into_iter().flatten().map(|stat| stat.id));
            }
        }
        found
    }

    /// The members of the session that this process led. The pid is not reused while the session has members,
    /// so either the leader still exists, or no process has its pid.
    pub(in crate::exec) fn session_of(&self, leader: Id) -> Vec<&Stat> {
        if self.get(leader.pid).is_some_and(|stat| stat.id != leader) {
            return Vec::new();
        }
        let mut members = self.all();
        members.retain(|stat| stat.session == leader.pid && stat.id.start_ticks >= leader.start_ticks);
        members
    }

    /// All running members of a run. `known` are members of an earlier scan, which may have left the session
    /// since.
    pub(in crate::exec) fn run_members(
        &self,
        leader: Id,
        session: SessionState,
        known: &[Id],
        mark: &ProcMark,
    ) -> HashSet<Id> {
        let mut session = match session {
            SessionState::Open => self.session_of(leader),
            SessionState::Over => Vec::new(),
        };
        // Without its leader the number may be that of another session by now, whose leader has ended too.
        if !self.is_running(leader) {
            session.retain(|stat| is_below_us(stat));
        }
        let seeds = known.iter().copied().chain([leader]).chain(session.iter().map(|stat| stat.id));
        let mut members = self.with_descendants(seeds);
        // Reads the environment only of candidates that are young enough.
        let marked: Vec<Id> = self
            .all()
            .into_iter()
            .filter(|stat| !stat.id.is_older_than(leader) && !members.contains(&stat.id))
            .filter(|stat| self.is_marked(stat.id.pid, mark))
            .filter(|stat| !self.belongs_to_older(stat, leader, mark))
            .map(|stat| stat.id)
            .collect();
        members.extend(self.with_descendants(marked));
        members
    }

    /// Whether a process descends from one of this proc's that was there before the run: a worker that the
    /// main process forked while its stop command ran is not that command's.
    fn belongs_to_older(&self, stat: &Stat, leader: Id, mark: &ProcMark) -> bool {
        let mut seen = HashSet::new();
        let mut parent = self.get(stat.parent);
        while let Some(above) = parent.filter(|above| seen.insert(above.id)) {
            if self.protected.contains(&above.id.pid) {
                return false;
            }
            if above.id.is_older_than(leader) && self.is_marked(above.id.pid, mark) {
                return true;
            }
            parent = self.get(above.parent);
        }
        false
    }

    /// Whether its parent has ended: the process that adopts orphans is the agent or an ancestor of it.
    pub(in crate::exec) fn is_orphan(&self, stat: &Stat) -> bool {
        self.protected.contains(&stat.parent)
    }

    pub(in crate::exec) fn may_be_signalled(&self, id: Id) -> bool {
        !self.protected.contains(&id.pid)
    }
}

/// Whether this is the agent, one above it, or the first process. For one look, which needs no scan.
pub(in crate::exec) fn is_protected(pid: u32) -> bool {
    protected().contains(&pid)
}

/// The agent and its ancestors. Cached briefly, because an ancestor may end and the agent then has another
/// parent.
fn protected() -> HashSet<u32> {
    struct Seen {
        at: Instant,
        parent: Option<Pid>,
        protected: HashSet<u32>,
    }
    static LAST: Mutex<Option<Seen>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let parent = rustix::process::getppid();
    if let Some(seen) = &*last
        && seen.parent == parent
        && seen.at.elapsed() < STILL_ABOVE
    {
        return seen.protected.clone();
    }
    let at = Instant::now();
    let mut protected = HashSet::from([0, 1]);
    let mut above = std::process::id();
    while protected.insert(above) {
        let Some(stat) = Stat::read(above) else { break };
        above = stat.parent;
    }
    *last = Some(Seen { at, parent, protected: protected.clone() });
    protected
}

/// Whether the process is a child of the agent or below one.
pub(in crate::exec) fn is_below_us(stat: &Stat) -> bool {
    if children::is_kept(stat.id.pid) {
        return true;
    }
    let us = std::process::id();
    let mut process = Some(stat.clone());
    for _ in 0..ANCESTRY_TRIES {
        let Some(stat) = process else { return false };
        let mut seen = HashSet::new();
        let mut parent = stat.parent;
        let mut is_broken = false;
        while parent != us && parent > 1 && !is_broken && seen.insert(parent) {
            match Stat::read(parent) {
                Some(above) => parent = above.parent,
                None => is_broken = true,
            }
        }
        if !is_broken {
            return parent == us;
        }
        // A process above it has died, and its children were adopted.
        process = Stat::read(stat.id.pid).filter(|again| again.id == stat.id);
    }
    false
}

/// Descendants of the processes in these groups that are in no group of any agent's proc. An agent that runs
/// as a proc has groups elsewhere, and its processes outlive it.
pub(in crate::exec) fn outside(groups: &[Arc<Path>]) -> Vec<Stat> {
    let Ok(contained) = cgroup::pids_in_all(groups) else { return Vec::new() };
    let (mut outside, mut is_partial) = (Vec::new(), false);
    for pid in &contained {
        let below = procfs::children(*pid, None).unwrap_or_default().into_iter();
        let left = below.filter(|below| !contained.contains(below) && cgroup::held_by(*below).is_none());
        for stat in left.filter_map(Stat::read).filter(|stat| stat.parent == *pid) {
            collect(stat, &mut outside, &mut is_partial);
        }
    }
    let protected = protected();
    outside.retain(|stat| {
        stat.is_running()
            && !protected.contains(&stat.id.pid)
            && !contained.contains(&stat.id.pid)
            && cgroup::held_by(stat.id.pid).is_none()
    });
    outside
}

/// The process of this pid. Notes where that is not known.
fn find(pid: u32, is_partial: &mut bool) -> Option<Stat> {
    let found = Stat::find(pid);
    *is_partial |= found.is_err();
    found.ok().flatten()
}

/// This process and all below it.
fn collect(top: Stat, stats: &mut Vec<Stat>, is_partial: &mut bool) {
    let mut seen = HashSet::from([top.id.pid]);
    let mut open = vec![top];
    while let Some(stat) = open.pop() {
        let below = procfs::children(stat.id.pid, None).unwrap_or_default();
        open.extend(
            below.into_iter().filter(|pid| seen.insert(*pid)).filter_map(|pid| find(pid, is_partial)),
        );
        stats.push(stat);
    }
}

/// Whether the session of a run may still be recognised by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum SessionState {
    Open,
    /// The session was empty once, so its id may have been reused.
    Over,
}

/// Sends the signal to each of these.
pub(in crate::exec) fn signal_all(scan: &Scan, targets: impl IntoIterator<Item = Id>, signal: Signal) {
    for id in targets.into_iter().filter(|id| scan.may_be_signalled(*id)) {
        match pidfd::send(id, signal) {
            Ok(()) => tracing::debug!(pid = id.pid, ?signal, "signalled"),
            // It has exited.
            Err(Errno::SRCH) => {}
            Err(error) => tracing::warn!(pid = id.pid, ?signal, %error, "cannot signal a process"),
        }
    }
}

/// Kills the `targets`, oldest first so that parents do not see their children die, and scans again until no
/// new process is found. One empty scan is not enough: a process may fork behind the scan. `proc` is for the
/// log.
pub(in crate::exec) fn kill_all(
    proc: &dyn Display,
    scan: impl Fn() -> Scan,
    mut targets: impl FnMut(&Scan) -> Vec<Id>,
) {
    let mut killed = HashSet::new();
    let mut quiet = 0;
    for _ in 0..ROUNDS {
        let scan = scan();
        let mut new: Vec<Id> = targets(&scan).into_iter().filter(|id| killed.insert(*id)).collect();
        quiet = if new.is_empty() { quiet + 1 } else { 0 };
        if quiet == QUIET_ROUNDS || scan.is_empty() {
            return;
        }
        new.sort_by_key(|id| (id.start_ticks, id.pid));
        signal_all(&scan, new, Signal::KILL);
    }
    tracing::warn!(
        %proc,
        killed = killed.len(),
        "processes fork faster than they are killed; gave up after {ROUNDS} rounds. Some may still run: send kill again"
    );
}
