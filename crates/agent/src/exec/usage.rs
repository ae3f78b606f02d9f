//! What a process and all that belongs to it use: CPU, memory, open files.
//!
//! One scan of `/proc` serves all procs that are sampled at about the same time. To the process belong those that
//! descend from it and those of its session. Memory that they share is counted for each of them.

use super::Host;
use super::inspect::per_cent_of_host;
use super::procfs::{Id, Stat};
use super::tree::Scan;
use procfleet_core::process::Found;
use procfleet_core::supervise::Usage;
use procfleet_core::{Moment, Process};
use std::collections::{HashMap, HashSet};

/// Every process at one moment, with those below it and those of its session.
#[derive(Debug)]
pub(super) struct Snapshot {
    taken: Moment,
    scan: Scan,
    below: HashMap<u32, Vec<u32>>,
    sessions: HashMap<u32, Vec<u32>>,
}

impl Snapshot {
    pub(super) fn take(taken: Moment) -> Snapshot {
        let scan = Scan::take();
        let (mut below, mut sessions) = (HashMap::<u32, Vec<u32>>::new(), HashMap::<u32, Vec<u32>>::new());
        for stat in scan.all() {
            below.entry(stat.parent).or_default().push(stat.id.pid);
            sessions.entry(stat.session).or_default().push(stat.id.pid);
        }
        Snapshot { taken, scan, below, sessions }
    }

    pub(super) fn taken(&self) -> Moment {
        self.taken
    }

    /// The process first, and all that belongs to it. `None` when it is not there.
    fn tree(&self, id: Id, found: Found) -> Option<Vec<&Stat>> {
        let main = self.scan.get(id.pid).filter(|stat| stat.id == id)?;
        let session = match found {
            // The agent made the session for this command.
            Found::Foreground => Some(main.session),
            Found::PidFile | Found::Name => (main.session == id.pid).then_some(id.pid),
        };
        let members = |of: &HashMap<u32, Vec<u32>>, pid: u32| of.get(&pid).cloned().unwrap_or_default();
        let mut open = vec![id.pid];
        open.extend(session.into_iter().flat_map(|session| members(&self.sessions, session)));
        let mut seen = HashSet::new();
        let mut tree = Vec::new();
        let mut place = 0;
        while let Some(pid) = open.get(place).copied() {
            place += 1;
            if !self.scan.may_be_signalled(Id { pid, start_ticks: 0 }) || !seen.insert(pid) {
                continue;
            }
            tree.extend(self.scan.get(pid));
            open.extend(members(&self.below, pid));
        }
        Some(tree)
    }
}

/// The CPU time of a tree at one moment, for the next sample to count from.
#[derive(Debug)]
pub(super) struct Last {
    id: Id,
    at: Moment,
    ticks: Ticks,
    cpu: f64,
}

/// The CPU time of each member, and of all with those that have ended.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ticks {
    each: HashMap<Id, u64>,
    total: u64,
}

impl Ticks {
    fn of(tree: &[&Stat]) -> Ticks {
        let own = |stat: &Stat| stat.user_ticks.saturating_add(stat.system_ticks);
        Ticks {
            each: tree.iter().map(|stat| (stat.id, own(stat))).collect(),
            total: tree.iter().map(|stat| own(stat).saturating_add(stat.children_ticks)).sum(),
        }
    }

    /// What was used since then. A member that ended is in its parent's account, so the totals tell of it; one that left
    /// takes its account along, and then those who stayed tell at least of themselves.
    fn since(&self, last: &Ticks) -> u64 {
        let stayed =
            self.each.iter().map(|(id, now)| now.saturating_sub(last.each.get(id).copied().unwrap_or(0)));
        self.total.saturating_sub(last.total).max(stayed.sum())
    }
}

/// `None` when the process is not in the snapshot. `last` is the sample before, and becomes this one.
pub(super) fn usage(
    host: &Host,
    snapshot: &Snapshot,
    process: &Process,
    last: &mut Option<Last>,
) -> Option<Usage> {
    let id = Id { pid: process.pid, start_ticks: process.start_ticks };
    let tree = snapshot.tree(id, process.found)?;
    let ticks = Ticks::of(&tree);
    let at = snapshot.taken;
    let cpu = match last.take().filter(|last| last.id == id) {
        Some(last) if last.at == at => last.cpu,
        Some(last) => {
            let span = u64::try_from(at.since(last.at).as_millis()).unwrap_or(u64::MAX);
            per_cent_of_host(host, ticks.since(&last.ticks), span)
        }
        None => {
            let began = id.start_ticks.saturating_mul(1000) / host.ticks_per_second;
            per_cent_of_host(host, ticks.total, at.0.saturating_sub(began))
        }
    };
    let pages: u64 = tree.iter().map(|stat| stat.rss_pages).sum();
    let bytes = pages.saturating_mul(host.page_bytes);
    let usage = Usage {
        cpu,
        mem: (bytes as f64 * 100.0 / host.memory_bytes.max(1) as f64).min(100.0),
        fd: tree.iter().map(|stat| open_files(stat.id.pid)).sum(),
    };
    *last = Some(Last { id, at, ticks, cpu });
    Some(usage)
}

/// How many files the process has open; 0 if that cannot be read.
pub(super) fn open_files(pid: u32) -> u64 {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"));
    entries.map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(each: &[(u32, u64)], total: u64) -> Ticks {
        let each = each.iter().map(|(pid, ticks)| (Id { pid: *pid, start_ticks: 1 }, *ticks)).collect();
        Ticks { each, total }
    }

    #[test]
    fn cpu_time_is_neither_lost_nor_counted_twice() {
        let rows = [
            ("nothing happened", ticks(&[(1, 10)], 10), ticks(&[(1, 10)], 10), 0),
            ("it worked", ticks(&[(1, 10)], 10), ticks(&[(1, 15)], 15), 5),
            ("a child began and works", ticks(&[(1, 10)], 10), ticks(&[(1, 10), (2, 7)], 17), 7),
            // Its 20 ticks were counted already; it worked for 4 more before it ended.
            ("a child ended", ticks(&[(1, 10), (2, 20)], 30), ticks(&[(1, 10)], 34), 4),
            ("a child came and went", ticks(&[(1, 10)], 10), ticks(&[(1, 10)], 40), 30),
            // Nobody in the tree waited for it.
            ("a child left", ticks(&[(1, 10), (2, 20)], 30), ticks(&[(1, 16)], 16), 6),
        ];
        for (what, before, now, used) in rows {
            assert_eq!(now.since(&before), used, "{what}");
        }
    }
}
