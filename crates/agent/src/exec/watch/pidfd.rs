//! Pidfds: the only handles by which processes are signalled, waited for and reaped.
//!
//! A pid may be reused at any time; a pidfd always refers to one process. A signal is sent in three steps:
//! open the pidfd, check that it is the expected process, send. It reaches that process or none.

#![expect(unsafe_code, reason = "PIDFD_GET_INFO and the registration of a descriptor have no safe wrapper")]

use crate::exec::procfs::{Id, Stat};
use crate::exec::watch::children;
use crate::exec::watch::oom;
use procfleet_core::process::{Exit, Process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, geteuid, pidfd_open, pidfd_send_signal};
use std::num::NonZeroU64;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The file system magic of kernels on which each process has its own pidfd inode.
const PID_FS_MAGIC: rustix::fs::FsWord = 0x5049_4446;

/// Interval of polling for a process that cannot be watched.
const POLL_EVERY: Duration = Duration::from_millis(100);

pub(in crate::exec) fn open(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// A pidfd of exactly this process; dead but not yet reaped is fine. `SRCH` when it is gone, another error
/// when that is not known.
pub(in crate::exec) fn open_exactly(id: Id) -> Result<OwnedFd, Errno> {
    let pidfd = open(id.pid)?;
    match Stat::find(id.pid)? {
        Some(stat) if stat.id == id => Ok(pidfd),
        Some(_) | None => Err(Errno::SRCH),
    }
}

/// As [`open_exactly`], and all known evidence about the process matches.
pub(in crate::exec) fn open_confirmed(process: &Process) -> Result<OwnedFd, Errno> {
    let pidfd = open_exactly(Id { pid: process.pid, start_ticks: process.start_ticks })?;
    match serial(&pidfd).zip(process.evidence.serial) {
        Some((seen, known)) if seen != known => Err(Errno::SRCH),
        Some(_) | None => Ok(pidfd),
    }
}

/// The number that the kernel gives a process for as long as the host runs: the inode of its pidfds. Older
/// kernels have one inode for all pidfds, and on 32-bit systems numbers may wrap around.
pub(in crate::exec) fn serial(pidfd: &OwnedFd) -> Option<NonZeroU64> {
    let of_its_own = rustix::fs::fstatfs(pidfd).is_ok_and(|system| system.f_type == PID_FS_MAGIC);
    let stat = (of_its_own && size_of::<usize>() == 8).then(|| rustix::fs::fstat(pidfd).ok()).flatten();
    stat.and_then(|stat| NonZeroU64::new(stat.st_ino))
}

/// Sends the signal to exactly this process. `SRCH` when it is gone.
pub(in crate::exec) fn send(id: Id, signal: Signal) -> Result<(), Errno> {
    pidfd_send_signal(open_exactly(id)?, signal)
}

/// Waits for the exit of exactly this process, for which `pidfd_open` failed.
///
/// If descriptors or memory ran out, the process is polled: a false report of an exit would start a second
/// process beside the first. Only a process that is known to be gone is reported.
pub(in crate::exec) async fn polled(process: Process, mut error: Errno) -> Exit {
    let id = Id { pid: process.pid, start_ticks: process.start_ticks };
    if error != Errno::SRCH {
        tracing::warn!(pid = id.pid, %error, "pidfd_open failed; polling for the exit of one process");
    }
    loop {
        if error == Errno::SRCH {
            return Exit::Unknown;
        }
        let is_gone = |stat: Option<Stat>| stat.is_none_or(|stat| stat.id != id || !stat.is_running());
        if Stat::find(id.pid).is_ok_and(is_gone) {
            return Exit::Unknown;
        }
        tokio::time::sleep(POLL_EVERY).await;
        match open_confirmed(&process) {
            Ok(pidfd) => {
                gone(&pidfd).await;
                return exit(&pidfd, id).await;
            }
            Err(another) => error = another,
        }
    }
}

/// Waits until the process behind the pidfd is gone. It may be dead and not yet reaped then.
pub(in crate::exec) async fn gone(pidfd: &OwnedFd) {
    // SAFETY: the borrow keeps the descriptor open while it is registered.
    match unsafe { AsyncFd::register_with_interest(pidfd.as_fd(), Interest::READABLE) } {
        Ok(watched) => {
            if watched.readable().await.is_ok() {
                return;
            }
        }
        Err(error) => tracing::warn!(%error, "cannot register a pidfd; polling for the exit of one process"),
    }
    while !is_gone(pidfd) {
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// The exit of a process that is gone. Reaps it if it is our child.
///
/// For other processes the status is in `/proc` until the parent reaps them, and then in the pidfd's
/// information on new kernels. Both are waited for only briefly: the report of the exit is urgent, its status
/// is not.
pub(in crate::exec) async fn exit(pidfd: &OwnedFd, id: Id) -> Exit {
    oom::judge(id, exit_status(pidfd, id).await)
}

async fn exit_status(pidfd: &OwnedFd, id: Id) -> Exit {
    match reap(pidfd, id.pid) {
        Ok(Some(exit)) => return exit,
        Ok(None) => return Exit::Unknown,
        // Not our child, or SIGCHLD is ignored and the kernel has reaped it.
        Err(_) => {}
    }
    for pause in [1, 4] {
        if let Some(exit) = exit_of_unreaped(id) {
            return exit;
        }
        match exit_of_reaped(pidfd) {
            Ok(Some(exit)) => return exit,
            Ok(None) => tokio::time::sleep(Duration::from_millis(pause)).await,
            Err(_) => return Exit::Unknown,
        }
    }
    exit_of_reaped(pidfd).ok().flatten().unwrap_or(Exit::Unknown)
}

/// Reaps a child. `None` while it runs.
pub(in crate::exec) fn reap(pidfd: &OwnedFd, pid: u32) -> Result<Option<Exit>, Errno> {
    children::reap(WaitId::PidFd(pidfd.as_fd()), pid)
}

/// Whether the process behind the pidfd is dead.
pub(in crate::exec) fn is_gone(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(ready) if ready > 0)
}

/// `struct pidfd_info` in its first published size, 64 bytes, which every later kernel accepts.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    /// Pids and credentials: pid, tgid, ppid, and uid and gid four times over.
    ids: [u32; 11],
    /// As `wait` gives it. Meaningful only with `PIDFD_INFO_EXIT` in the mask.
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
const PIDFD_GET_INFO: rustix::ioctl::Opcode = opcode::read_write::<PidfdInfo>(0xFF, 11);
const _: () = assert!(size_of::<PidfdInfo>() == 64);

/// The exit status of a zombie. `/proc` shows 0 to unprivileged readers, so only root can trust a 0.
fn exit_of_unreaped(id: Id) -> Option<Exit> {
    let stat = Stat::read(id.pid).filter(|stat| stat.id == id && !stat.is_running())?;
    (stat.exit_status != 0 || geteuid().is_root()).then(|| exit_from_status(stat.exit_status))
}

/// The exit status of a process that was reaped while the pidfd was open. `None` if it has not been reaped.
/// An error if the kernel does not support the request.
fn exit_of_reaped(pidfd: &OwnedFd) -> Result<Option<Exit>, Errno> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the opcode carries the size of `PidfdInfo`, so the kernel reads and writes at most that many
    // bytes of `info`, which outlives the call; every bit pattern is a valid `PidfdInfo`.
    unsafe { ioctl(pidfd, Updater::<PIDFD_GET_INFO, PidfdInfo>::new(&mut info)) }?;
    if info.mask & PIDFD_INFO_EXIT == 0 {
        return Ok(None);
    }
    Ok(Some(exit_from_status(info.exit_code)))
}

/// The kernel wrote a core dump.
const DUMPED: i32 = 0x80;

fn exit_from_status(status: i32) -> Exit {
    match status & 0x7f {
        0 => Exit::Code((status >> 8) & 0xff),
        signal if status & DUMPED != 0 => Exit::Dumped(signal),
        signal => Exit::Signal(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_how_it_ended() {
        for (status, exit) in [
            (0, Exit::Code(0)),
            (7 << 8, Exit::Code(7)),
            (9, Exit::Signal(9)),
            (11, Exit::Signal(11)),
            (11 | 0x80, Exit::Dumped(11)),
        ] {
            assert_eq!(exit_from_status(status), exit, "{status:#x}");
        }
    }
}
