//! Processes that have left the proc's cgroups and its mark: `su -` clears the environment, and where each
//! session has a cgroup, it leaves that of the run.
//!
//! They are noted during a launch, while they descend from a process in a cgroup of the proc, together with
//! the scope of the session that they have entered. An orphan in that scope that has come to the agent is one
//! of them, too, even if it was never seen below the proc. A process that leaves both between two looks is
//! not found, and neither is one that an earlier agent process had noted. Later sessions are not noted: they
//! are those of the users of an `sshd`, for example.

use super::ProcExecutor;
use crate::exec::cgroup;
use crate::exec::procfs::{Id, Stat};
use crate::exec::scan::tree::{self, Scan};
use crate::exec::spawn::run::Run;
use crate::exec::watch::exits::OwnedTask;
use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pause before the first look for strays of a command. Each next pause is twice as long.
const FIRST_NOTE: Duration = Duration::from_millis(50);
/// A command that runs for twice as long may be the process itself, which opens sessions for its users.
const LAST_NOTE: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Strays {
    processes: Vec<Id>,
    /// The scopes that they have entered, as the kernel writes them.
    scopes: Vec<String>,
}

impl ProcExecutor {
    /// Notes descendants of the proc that are in none of its cgroups.
    pub(super) fn note_strays(&mut self) {
        if self.groups.are_made() && !self.groups.is_empty() {
            note(self.strays.get_or_insert_default(), &self.groups.all());
        }
    }

    /// Notes strays of a command while it runs: what it does in another session it does before it ends.
    pub(super) fn note_strays_of(&mut self, run: &mut Run) {
        let Some(group) = run.group.clone() else { return };
        let (strays, shell) = (self.strays.get_or_insert_default().clone(), run.shell.clone());
        run.noting = Some(OwnedTask::spawn(async move {
            let mut pause = FIRST_NOTE;
            while shell.exit().is_none() && pause < LAST_NOTE {
                tokio::time::sleep(pause).await;
                note(&strays, std::slice::from_ref(&group));
                pause *= 2;
            }
        }));
    }

    /// The strays that were seen.
    pub(super) fn strays(&self) -> Vec<Id> {
        self.strays.as_ref().map(|strays| lock(strays).processes.clone()).unwrap_or_default()
    }

    /// Strays in a scan with their descendants, if nothing that the proc keeps running can need them.
    pub(super) fn left_strays(&self, scan: &Scan) -> HashSet<Id> {
        let Some(strays) = self.strays.as_ref().filter(|_| !self.is_at_work()) else {
            return HashSet::new();
        };
        let strays = lock(strays);
        let has_entered = |stat: &Stat| {
            !strays.scopes.is_empty()
                && cgroup::scope_of(stat.id.pid).is_some_and(|scope| strays.scopes.contains(&scope))
        };
        let mut found = scan.all();
        found.retain(|stat| {
            (strays.processes.contains(&stat.id) || has_entered(stat))
                && !scan.is_anothers(stat, &self.mark)
                // The agent adopts orphans, so a process elsewhere has only got a number.
                && tree::is_below_us(stat)
        });
        scan.with_descendants(found.iter().map(|stat| stat.id))
    }

    /// No stray is left, and the next run makes others.
    pub(super) fn forget_strays(&mut self) {
        if self.strays.is_some() && !self.is_at_work() {
            self.strays = None;
        }
    }

    fn is_at_work(&self) -> bool {
        let is_there = |id: Id| {
            let is_it = |stat: Option<Stat>| stat.is_some_and(|stat| stat.id == id && stat.is_running());
            Stat::find(id.pid).map_or(true, is_it)
        };
        self.current().any(is_there) || self.runs().any(|run| !self.is_retired(run) && run.is_at_work())
    }
}

fn lock(strays: &Mutex<Strays>) -> MutexGuard<'_, Strays> {
    strays.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(strays: &Mutex<Strays>, groups: &[Arc<Path>]) {
    let found = tree::outside(groups);
    if found.is_empty() {
        return;
    }
    let mut strays = lock(strays);
    strays.processes.retain(|id| Stat::read(id.pid).is_some_and(|stat| stat.id == *id));
    for stat in found {
        let scope = cgroup::scope_of(stat.id.pid).filter(|scope| !strays.scopes.contains(scope));
        strays.scopes.extend(scope);
        if !strays.processes.contains(&stat.id) {
            strays.processes.push(stat.id);
        }
    }
}
