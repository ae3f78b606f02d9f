//! The children of this process: those that it spawned, and orphans that it adopted.
//!
//! The agent is a subreaper (PR_SET_CHILD_SUBREAPER): an orphaned descendant of a command becomes the agent's
//! child, however often it forks and whatever session it enters. All processes that this agent process
//! started are therefore below it, and can be listed without scanning every process of the host.
//!
//! `/proc` lists children by thread, and orphans belong to the main thread. Children are spawned by another
//! thread, so the list of orphans stays short.
//!
//! A process has one set of children, so this state is global.

use crate::exec::procfs::{self, Stat};
use procfleet_core::process::Exit;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum age of a cached list, where callers accept one: reading all of `/proc` takes longer.
const STILL_NEW: Duration = Duration::from_millis(5);

static CHILDREN: Mutex<Children> =
    Mutex::new(Children { kept: None, maker: None, let_go: Vec::new(), adopted: None });

struct Children {
    /// Supervised children that have not been reaped; until then their pids cannot be reused. `None`: this
    /// process is not a subreaper, so it cannot list all descendants.
    kept: Option<HashSet<u32>>,
    /// The thread that spawns children, unless it is the main thread. All children in its `/proc` list are in
    /// `kept` or `let_go`, so `list_adopted` skips that list.
    maker: Option<u32>,
    /// Children without an owner that have not been reaped.
    let_go: Vec<u32>,
    adopted: Option<(Instant, Vec<u32>)>,
}

/// Whether a cached list is acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum Freshness {
    Now,
    AMomentAgo,
}

fn lock() -> MutexGuard<'static, Children> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on orphans come to this process.
pub(in crate::exec) fn adopt_orphans() {
    let mut children = lock();
    if children.kept.is_some() {
        return;
    }
    match rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        // A kernel without /proc/PID/task/TID/children makes adoption useless.
        Ok(()) if procfs::children(std::process::id(), None).is_some() => {
            children.kept = Some(HashSet::new())
        }
        Ok(()) => tracing::debug!("the kernel does not list children in /proc; not adopting orphans"),
        Err(error) => tracing::debug!(%error, "PR_SET_CHILD_SUBREAPER failed; orphans go to init"),
    }
}

/// Spawns a child. It is never mistaken for an orphan in between.
pub(in crate::exec) fn make(
    spawn: impl FnOnce() -> io::Result<(u32, OwnedFd)>,
) -> io::Result<(u32, OwnedFd)> {
    let mut children = lock();
    let thread = rustix::thread::gettid();
    if children.maker.is_none() && thread != rustix::process::getpid() {
        children.maker = Some(thread.as_raw_nonzero().get().unsigned_abs());
    }
    let (pid, pidfd) = spawn()?;
    if let Some(kept) = &mut children.kept {
        kept.insert(pid);
    }
    Ok((pid, pidfd))
}

/// The child has no owner any longer, and is treated as an orphan.
pub(in crate::exec) fn let_go(pid: u32) {
    let mut children = lock();
    if children.kept.as_mut().is_some_and(|kept| kept.remove(&pid)) {
        children.let_go.push(pid);
    }
}

/// Takes ownership of a child; returns false if the process is not a child.
pub(in crate::exec) fn keep(pid: u32) -> bool {
    let mut children = lock();
    // Under the lock, so that it is not reaped and its number given away in between.
    let is_ours = || Stat::read(pid).is_some_and(|stat| stat.parent == std::process::id());
    match &mut children.kept {
        Some(kept) if is_ours() => {
            kept.insert(pid);
            children.let_go.retain(|other| *other != pid);
            true
        }
        Some(_) | None => false,
    }
}

/// Whether the process is a child with an owner.
pub(in crate::exec) fn is_kept(pid: u32) -> bool {
    lock().kept.as_ref().is_some_and(|kept| kept.contains(&pid))
}

/// The children with an owner.
pub(in crate::exec) fn kept() -> HashSet<u32> {
    lock().kept.clone().unwrap_or_default()
}

/// Adopted orphans without an owner. `None` if they cannot be listed here.
///
/// The lock prevents reaping meanwhile, so no orphan is missed.
pub(in crate::exec) fn adopted(freshness: Freshness) -> Option<Vec<u32>> {
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

/// Reaps a child. `None` while it runs.
pub(in crate::exec) fn reap(which: WaitId<'_>, pid: u32) -> Result<Option<Exit>, Errno> {
    let mut children = lock();
    let status = waitid(which, WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
    if status.is_some() {
        children.forget(pid);
    }
    Ok(status.map(|status| match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) if status.dumped() => Exit::Dumped(signal),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }))
}

/// Reaps orphans that have exited. Children with an owner are reaped by their watch.
pub(in crate::exec) fn reap_adopted() {
    // Held throughout: no pid in the list can be reused for a new child.
    let mut children = lock();
    for pid in children.list_adopted().unwrap_or_default() {
        let Some(child) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
        // How it died is of no interest.
        match waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => children.forget(pid),
        }
    }
}

impl Children {
    fn list_adopted(&self) -> Option<Vec<u32>> {
        let kept = self.kept.as_ref()?;
        let mut all = procfs::children(std::process::id(), self.maker)?;
        all.extend(&self.let_go);
        all.sort_unstable();
        all.dedup();
        all.retain(|pid| !kept.contains(pid));
        Some(all)
    }

    /// The child was reaped: its pid may be reused.
    fn forget(&mut self, pid: u32) {
        self.kept.iter_mut().for_each(|kept| {
            kept.remove(&pid);
        });
        self.let_go.retain(|other| *other != pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests run in threads beside the first one, so its list is not read here either.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process is needed")]
    fn a_child_without_an_owner_is_an_orphan_until_it_is_reaped() {
        // In this process it would also reap children of other tests.
        if procfleet_testkit::played_apart(&[]) {
            return;
        }
        adopt_orphans();
        let spawn = || {
            let child = std::process::Command::new("sleep").arg("1000").spawn()?;
            Ok((child.id(), crate::exec::watch::pidfd::open(child.id())?))
        };
        let (pid, pidfd) = make(spawn).expect("a process");
        let is_adopted = || adopted(Freshness::Now).expect("the kernel lists children").contains(&pid);
        assert!(is_kept(pid) && !is_adopted());
        let_go(pid);
        assert!(!is_kept(pid) && is_adopted(), "somebody may look for it");
        assert!(keep(pid) && !is_adopted(), "and look after it again");
        let_go(pid);
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).expect("it is running");
        while is_adopted() {
            reap_adopted();
        }
        assert!(!keep(pid), "it is gone");
    }
}
