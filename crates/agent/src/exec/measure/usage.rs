//! Resource usage of a process and its tree: CPU, memory, open files.
//!
//! One scan of `/proc` serves all procs. It reads one line for each process, because there may be thousands
//! and the scan repeats every few seconds. The tree of a process is its descendants and its session. Shared
//! memory is counted for each member.

use crate::exec::context::ExecContext;
use crate::exec::measure::inspect::per_cent_of_host;
use crate::exec::procfs::{self, Id, ProcDir, UsageLine};
use procfleet_core::process::Found;
use procfleet_core::supervise::Usage;
use procfleet_core::{BootTime, Process};
use std::collections::HashSet;

/// Processes that are read before the task yields, so that a restart does not wait for a thousand lines.
const AT_ONCE: usize = 64;

/// A snapshot of all user-space processes.
#[derive(Debug)]
pub struct UsageScan {
    taken: BootTime,
    proc: Option<ProcDir>,
    /// By pid.
    lines: Vec<UsageLine>,
    /// Parents with their children, and sessions with their members, as indexes into `lines`.
    below: Vec<(u32, u32)>,
    sessions: Vec<(u32, u32)>,
    /// The agent and those above it, and the first process.
    protected: Vec<u32>,
}

/// The last sample of a process, for the next one.
#[derive(Debug, Default)]
pub struct Meter(Option<Last>);

impl UsageScan {
    /// Scans all processes, and yields in between.
    pub async fn look(context: &ExecContext) -> UsageScan {
        let mut scan = UsageScan::empty(context);
        for (index, pid) in procfs::pids().into_iter().enumerate() {
            if index % AT_ONCE == AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            scan.read(pid);
        }
        scan.sorted()
    }

    fn empty(context: &ExecContext) -> UsageScan {
        let (below, sessions, protected) = (Vec::new(), Vec::new(), Vec::new());
        UsageScan {
            taken: context.now(),
            proc: ProcDir::open(),
            lines: Vec::new(),
            below,
            sessions,
            protected,
        }
    }

    fn read(&mut self, pid: u32) {
        let line = self.proc.as_ref().and_then(|proc| proc.line(pid));
        self.lines.extend(line.filter(|line| line.is_running() && !line.is_kernel_thread()));
    }

    fn sorted(mut self) -> UsageScan {
        self.lines.sort_unstable_by_key(|line| line.id.pid);
        let indexed = || self.lines.iter().zip(0u32..);
        self.below = indexed().map(|(line, index)| (line.parent, index)).collect();
        self.sessions = indexed().map(|(line, index)| (line.session, index)).collect();
        self.below.sort_unstable();
        self.sessions.sort_unstable();
        self.protected = vec![0, 1];
        let mut above = std::process::id();
        while !self.protected.contains(&above) {
            self.protected.push(above);
            above = self.get(above).map_or(0, |line| line.parent);
        }
        self
    }

    pub fn taken(&self) -> BootTime {
        self.taken
    }

    /// Usage of the process and its tree. `None`: it is gone, or did not exist yet. Replaces the sample in
    /// `meter`.
    pub fn usage(&self, context: &ExecContext, process: &Process, meter: &mut Meter) -> Option<Usage> {
        let id = Id { pid: process.pid, start_ticks: process.start_ticks };
        let tree = self.tree(id, process.found)?;
        let ticks = Ticks::of(&tree);
        let at = self.taken;
        let cpu = match meter.0.take().filter(|last| last.id == id) {
            Some(last) if last.at == at => last.cpu,
            Some(last) => {
                let span = u64::try_from(at.since(last.at).as_millis()).unwrap_or(u64::MAX);
                per_cent_of_host(context, ticks.since(&last.ticks), span)
            }
            None => {
                let began = id.start_ticks.saturating_mul(1000) / context.ticks_per_second;
                per_cent_of_host(context, ticks.total, at.0.saturating_sub(began))
            }
        };
        let pages: u64 = tree.iter().map(|line| line.rss_pages).sum();
        let open_files =
            |line: &&UsageLine| self.proc.as_ref().map_or(0, |proc| proc.open_files(line.id.pid));
        let fd = tree.iter().map(open_files).sum();
        meter.0 = Some(Last { id, at, ticks, cpu });
        Some(Usage { cpu, mem: memory_percent(context, pages), fd })
    }

    fn get(&self, pid: u32) -> Option<&UsageLine> {
        let index = self.lines.binary_search_by_key(&pid, |line| line.id.pid).ok()?;
        self.lines.get(index)
    }

    fn members<'a>(&'a self, of: &'a [(u32, u32)], number: u32) -> impl Iterator<Item = &'a UsageLine> {
        let first = of.partition_point(|(of, _)| *of < number);
        let fitting = of.iter().skip(first).take_while(move |(of, _)| *of == number);
        fitting.filter_map(|(_, index)| self.lines.get(usize::try_from(*index).ok()?))
    }

    /// The process, then its tree. `None`: it is not in the snapshot.
    fn tree(&self, id: Id, found: Found) -> Option<Vec<&UsageLine>> {
        let main = self.get(id.pid).filter(|line| line.id == id)?;
        let session = match found {
            // The agent made the session for this command.
            Found::Foreground | Found::CommandChild | Found::Shell => Some(main.session),
            Found::PidFile | Found::Name => (main.session == id.pid).then_some(id.pid),
        };
        let mut tree = vec![main];
        let mut seen = HashSet::from([id.pid]);
        let mut is_new =
            |line: &&UsageLine| !self.protected.contains(&line.id.pid) && seen.insert(line.id.pid);
        if let Some(session) = session {
            tree.extend(self.members(&self.sessions, session).filter(&mut is_new));
        }
        let mut index = 0;
        while let Some(above) = tree.get(index).copied() {
            index += 1;
            tree.extend(self.members(&self.below, above.id.pid).filter(&mut is_new));
        }
        Some(tree)
    }
}

/// Usage of the process alone, without a scan: a process that has just started has no tree worth one. With
/// its start time in seconds since 1970; `None` when it is gone.
pub fn sample_once(context: &ExecContext, process: &Process) -> Option<(i64, Usage)> {
    let proc = ProcDir::open()?;
    let line = proc.line(process.pid).filter(|line| line.id.start_ticks == process.start_ticks)?;
    let began = process.start_ticks.saturating_mul(1000) / context.ticks_per_second;
    let elapsed = context.now().0.saturating_sub(began);
    let usage = Usage {
        cpu: per_cent_of_host(context, line.own_ticks, elapsed),
        mem: memory_percent(context, line.rss_pages),
        fd: proc.open_files(process.pid),
    };
    Some((i64::try_from(context.wall_millis().saturating_sub(elapsed) / 1000).unwrap_or(0), usage))
}

fn memory_percent(context: &ExecContext, pages: u64) -> f64 {
    let bytes = pages.saturating_mul(context.page_bytes);
    (bytes as f64 * 100.0 / context.memory_bytes.max(1) as f64).min(100.0)
}

/// The CPU time of a tree at one time.
#[derive(Debug)]
struct Last {
    id: Id,
    at: BootTime,
    ticks: Ticks,
    cpu: f64,
}

/// The CPU time of each member, and the total with ended children.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ticks {
    /// Most trees are one process, and few have more than a handful.
    each: Box<[(Id, u64)]>,
    total: u64,
}

impl Ticks {
    fn of(tree: &[&UsageLine]) -> Ticks {
        Ticks {
            each: tree.iter().map(|line| (line.id, line.own_ticks)).collect(),
            total: tree.iter().map(|line| line.own_ticks.saturating_add(line.children_ticks)).sum(),
        }
    }

    /// CPU time since then. A child that ended is in its parent's total. A member that left takes its total
    /// along; then the remaining members are counted one by one.
    fn since(&self, last: &Ticks) -> u64 {
        let before = |id: &Id| last.each.iter().find(|(known, _)| known == id).map_or(0, |(_, ticks)| *ticks);
        let stayed = self.each.iter().map(|(id, now)| now.saturating_sub(before(id)));
        self.total.saturating_sub(last.total).max(stayed.sum())
    }
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
            // No member of the tree waited for it.
            ("a child left", ticks(&[(1, 10), (2, 20)], 30), ticks(&[(1, 16)], 16), 6),
        ];
        for (what, before, now, used) in rows {
            assert_eq!(now.since(&before), used, "{what}");
        }
    }
}
