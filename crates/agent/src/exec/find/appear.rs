//! Candidates for processes that were started by hand.

use crate::exec::context::ExecContext;
use crate::exec::find;
use crate::exec::procfs::{self, Id, Stat};
use crate::exec::scan::identify::{RunningProgram, SetupPath};
use crate::exec::scan::tree::Scan;
use crate::exec::watch::children;
use procfleet_core::process::{Evidence, Found};
use procfleet_core::spec::Identity;
use procfleet_core::{ProcKey, Process};
use std::cell::OnceCell;

/// A cheap scan on behalf of many procs. A candidate is verified by `ProcExecutor::look`.
#[derive(Debug)]
pub struct StartedByHand<'a> {
    context: &'a ExecContext,
    /// All processes that the agent did not start; scanned when the first proc is searched by name.
    scan: OnceCell<Scan>,
}

impl<'a> StartedByHand<'a> {
    pub fn new(context: &'a ExecContext) -> StartedByHand<'a> {
        StartedByHand { context, scan: OnceCell::new() }
    }

    /// A process that may be the missing one of this proc.
    pub fn candidate(&self, key: &ProcKey, identity: &Identity) -> Option<Process> {
        let Identity { proc_name, setup_path, pid_path, user, .. } = identity;
        if !pid_path.is_empty() {
            let named = find::read_pid_file(pid_path).ok()?;
            return Stat::read(named.pid).filter(Stat::is_running).map(|stat| bare(stat.id, Found::PidFile));
        }
        if proc_name.is_empty() || setup_path.is_empty() {
            return None;
        }
        let (mut mark, folder) = (self.context.proc_mark(key), SetupPath::of(identity));
        mark.set_account(user);
        let scan = self.scan.get_or_init(|| Scan::without(&children::kept()));
        let fits = |stat: &&&Stat| {
            let is_in_folder =
                folder.as_ref().is_some_and(|folder| RunningProgram::of(stat).belongs_to(folder));
            !scan.is_anothers(stat, &mark)
                && (is_in_folder
                    || procfs::mark_claim(stat.id.pid)
                        .is_some_and(|claim| mark.identifies(stat.id.pid, &claim)))
        };
        scan.named(proc_name).iter().find(fits).map(|stat| bare(stat.id, Found::Name))
    }
}

fn bare(id: Id, found: Found) -> Process {
    Process { pid: id.pid, start_ticks: id.start_ticks, found, evidence: Evidence::default() }
}
