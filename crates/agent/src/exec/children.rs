//! The children of this process: those that it made, and those that came to it because their parents died.
//!
//! The agent is a subreaper: whatever a command leaves behind becomes the agent's own child, however often it forks and
//! whatever session it enters. So all that was started in this life of the agent is below the agent, and can be listed
//! without a look at every process of the host, of which there may be thousands.
//!
//! A process has one set of children, so this is one for the whole program.

use super::procfs::{self, Stat};
use procfleet_core::process::Exit;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is as old as this may be used once more, where that is asked for: reading the whole of `/proc` takes longer.
const STILL_NEW: Duration = Duration::from_millis(5);

static CHILDREN: Mutex<Children> = Mutex::new(Children { kept: None, adopted: None });

struct Children {
    /// Those that somebody looks after and that are not yet reaped: until then their pids are their own. `None`: this
    /// process is no subreaper, so that it does not know all that is left of those that it made.
    kept: Option<HashSet<u32>>,
    adopted: Option<(Instant, Vec<u32>)>,
}

/// Whether a list from a moment ago will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    Now,
    AMomentAgo,
}

fn lock() -> MutexGuard<'static, Children> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on orphans come to this process.
pub(super) fn adopt_orphans() {
    let mut children = lock();
    if children.kept.is_some() {
        return;
    }
    match rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        // A kernel that does not list children gives none of what is gained by having them.
        Ok(()) if procfs::children(std::process::id()).is_some() => children.kept = Some(HashSet::new()),
        Ok(()) => tracing::debug!("the kernel does not list children"),
        Err(error) => tracing::debug!(%error, "orphans go to the first process, not to the agent"),
    }
}

/// Makes a child. Nobody takes it for an orphan in between.
pub(super) fn make(spawn: impl FnOnce() -> io::Result<(u32, OwnedFd)>) -> io::Result<(u32, OwnedFd)> {
    let mut children = lock();
    let (pid, pidfd) = spawn()?;
    if let Some(kept) = &mut children.kept {
        kept.insert(pid);
    }
    Ok((pid, pidfd))
}

/// Nobody looks after this one any more: from now on it is as any orphan.
pub(super) fn let_go(pid: u32) {
    if let Some(kept) = &mut lock().kept {
        kept.remove(&pid);
    }
}

/// From now on somebody looks after this one, if it is a child of ours; says whether it is.
pub(super) fn keep(pid: u32) -> bool {
    let mut children = lock();
    // Under the lock, so that it is not reaped and its number given away in between.
    let is_ours = || Stat::read(pid).is_some_and(|stat| stat.parent == std::process::id());
    match &mut children.kept {
        Some(kept) if is_ours() => {
            kept.insert(pid);
            true
        }
        Some(_) | None => false,
    }
}

/// Whether it is a child of ours that somebody looks after.
pub(super) fn is_kept(pid: u32) -> bool {
    lock().kept.as_ref().is_some_and(|kept| kept.contains(&pid))
}

/// The children that somebody looks after.
pub(super) fn kept() -> HashSet<u32> {
    lock().kept.clone().unwrap_or_default()
}

/// Those that came from dead parents, and that nobody looks after. `None`: that cannot be known here.
///
/// A child leaves the list only when it is reaped, which nobody does meanwhile, so none is left out.
pub(super) fn adopted(freshness: Freshness) -> Option<Vec<u32>> {
    let mut children = lock();
    let recent = children.adopted.as_ref().filter(|(at, _)| at.elapsed() < STILL_NEW);
    if let (Freshness::AMomentAgo, Some((_, adopted))) = (freshness, recent) {
        return Some(adopted.clone());
    }
    let at = Instant::now();
    let adopted = children.list_adopted()?;
    children.adopted = Some((at, adopted.clone()));
    Some(adopted)
}

/// Takes the exit status of a dead child, once. `None`: it is still running.
pub(super) fn reap(which: WaitId<'_>, pid: u32) -> Result<Option<Exit>, Errno> {
    let mut children = lock();
    let status = waitid(which, WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
    if let (Some(_), Some(kept)) = (&status, &mut children.kept) {
        kept.remove(&pid);
    }
    Ok(status.map(|status| match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) if status.dumped() => Exit::Dumped(signal),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }))
}

/// Reaps orphans that have ended, lest they stay as zombies. Those that somebody looks after are reaped by their watch.
pub(super) fn reap_adopted() {
    // Held throughout, so that none of these numbers comes to mean a child that was made meanwhile.
    let children = lock();
    for pid in children.list_adopted().unwrap_or_default() {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // Whether it was dead and how it died is of no interest.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

impl Children {
    fn list_adopted(&self) -> Option<Vec<u32>> {
        let kept = self.kept.as_ref()?;
        let all = procfs::children(std::process::id())?;
        Some(all.into_iter().filter(|pid| !kept.contains(pid)).collect())
    }
}
