//! Making a process: a copy of the agent that turns itself into a program.
//!
//! The copy is made by `clone3`, which gives the pidfd with it and puts it into its cgroup from its first moment on; where that
//! call is refused (an old kernel, a seccomp filter), by `clone`, and the copy enters the cgroup itself before it becomes
//! the program. The parent waits until the program is running (`CLONE_VFORK`). The copy has memory of its own and not the
//! parent's (no `CLONE_VM`), so it may go on in ordinary code on an ordinary stack. But there may have been other threads, whose locks
//! nobody will open any more: it makes system calls only, takes no lock and allocates nothing. All that it needs was made
//! before.

#![expect(unsafe_code, reason = "what happens between clone and exec cannot be written without it")]

use super::user::Account;
use nix::libc;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What a new process is to become.
#[derive(Debug)]
pub(super) struct Recipe<'a> {
    /// The first of these that can be executed.
    pub(super) programs: Vec<Program>,
    pub(super) environment: Vec<CString>,
    pub(super) folder: &'a CStr,
    pub(super) account: &'a Account,
    pub(super) input: BorrowedFd<'a>,
    pub(super) output: BorrowedFd<'a>,
    /// The folder of its cgroup.
    pub(super) group: Option<BorrowedFd<'a>>,
}

/// A file, and what the program in it is told.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) file: CString,
    pub(super) arguments: Vec<CString>,
}

/// The open files that the agent itself was allowed, before it allowed itself more.
static FILES_GIVEN: OnceLock<Rlimit> = OnceLock::new();
/// `clone3` was refused, and will be again.
static NO_CLONE3: AtomicBool = AtomicBool::new(false);
/// Where the copy writes what went wrong. One at a time.
static REPORT: Mutex<Option<&'static Report>> = Mutex::new(None);

/// A page that parent and copy share.
struct Report {
    errno: AtomicI32,
}

/// Allows the agent as many open files as it may have: each process that it looks after takes one or two. What it
/// starts is allowed what the agent was.
pub fn allow_many_files() {
    let given = getrlimit(Resource::Nofile);
    if FILES_GIVEN.set(given).is_ok() && given.current != given.maximum {
        let all = Rlimit { current: given.maximum, maximum: given.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, all) {
            tracing::debug!(%error, "the agent may not open more files");
        }
    }
}

/// Whether the kernel was told to spare the agent when memory runs out. That is not for what it starts; where it was told
/// to take the agent rather than others, that was meant for all of it.
fn is_spared() -> bool {
    static SPARED: OnceLock<bool> = OnceLock::new();
    *SPARED.get_or_init(|| {
        fs::read_to_string("/proc/self/oom_score_adj")
            .is_ok_and(|text| text.trim().parse().is_ok_and(|adjustment: i32| adjustment < 0))
    })
}

/// The programs are running, or the error says why none of them is.
pub(super) fn make(recipe: &Recipe<'_>) -> io::Result<(u32, OwnedFd)> {
    let copy = Copy::of(recipe);
    let mut report = REPORT.lock().unwrap_or_else(PoisonError::into_inner);
    let report = match *report {
        Some(report) => report,
        None => *report.insert(Report::share()?),
    };
    report.errno.store(0, Ordering::Relaxed);
    let blocked = block_signals();
    let made = clone(recipe.group);
    if let Ok(Clone::Copy { entered }) = made {
        copy.become_it(entered, report);
    }
    restore_signals(&blocked);
    let (pid, pidfd) = match made {
        Ok(Clone::Parent { pid, pidfd }) => (pid, pidfd),
        Ok(Clone::Copy { .. }) => unreachable!("it has become the program, or ended"),
        Err(error) => return Err(error.into()),
    };
    match report.errno.load(Ordering::Acquire) {
        0 => Ok((pid, pidfd)),
        errno => {
            use rustix::fd::AsFd;
            // It has ended already, or is about to.
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

impl Report {
    fn share() -> io::Result<&'static Report> {
        // SAFETY: a new page, which nothing else uses and which is never given back. It is aligned and zeroed, and zero is a
        // valid `Report`.
        unsafe {
            let page = libc::mmap(
                ptr::null_mut(),
                size_of::<Report>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if page == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            Ok(&*page.cast::<Report>())
        }
    }
}

/// On which side of the call we are.
enum Clone {
    Parent {
        pid: u32,
        pidfd: OwnedFd,
    },
    /// `entered`: it is in its cgroup already.
    Copy {
        entered: Entered,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Entered {
    Yes,
    /// There is no cgroup, or it must enter it itself.
    No,
}

/// `struct clone_args` as of Linux 5.7.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const FLAGS: libc::c_int = libc::CLONE_PIDFD | libc::CLONE_VFORK;

fn clone(group: Option<BorrowedFd<'_>>) -> Result<Clone, Errno> {
    if !NO_CLONE3.load(Ordering::Relaxed) {
        match clone3(group) {
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::TOOBIG) => {
                tracing::info!("this host refuses clone3: processes enter their cgroups themselves");
                NO_CLONE3.store(true, Ordering::Relaxed);
            }
            // No room for one more, whatever group it is in.
            Err(error @ (Errno::AGAIN | Errno::NOMEM)) => return Err(error),
            // The group cannot take it, or is gone. Rather a process without one than none.
            Err(error) if group.is_some() => {
                tracing::warn!(%error, "a process could not be put into its cgroup and is known by its descent");
                return clone3(None);
            }
            answer => return answer,
        }
    }
    let mut pidfd: libc::c_int = -1;
    // SAFETY: without CLONE_VM the copy has memory of its own, stack included, so both go on from here as after a fork. The
    // kernel writes the pidfd to the third argument, which outlives the call; the order of those after it differs
    // between machines, and all of them are 0.
    let pid = unsafe {
        let flags = libc::c_long::from(FLAGS | libc::SIGCHLD);
        libc::syscall(libc::SYS_clone, flags, 0, &raw mut pidfd, 0, 0)
    };
    side(pid, pidfd, Entered::No)
}

fn clone3(group: Option<BorrowedFd<'_>>) -> Result<Clone, Errno> {
    let mut pidfd: libc::c_int = -1;
    let mut args = CloneArgs {
        flags: u64::from(FLAGS.unsigned_abs()),
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        ..CloneArgs::default()
    };
    let entered = match group {
        Some(group) => {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = u64::from(group.as_raw_fd().unsigned_abs());
            Entered::Yes
        }
        None => Entered::No,
    };
    // SAFETY: as above; the kernel reads as many bytes of `args` as it is told, and writes the pidfd, which outlives the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    side(pid, pidfd, entered)
}

fn side(pid: libc::c_long, pidfd: libc::c_int, entered: Entered) -> Result<Clone, Errno> {
    match u32::try_from(pid) {
        Ok(0) => Ok(Clone::Copy { entered }),
        // SAFETY: the kernel has just opened it for us, and nobody else knows of it.
        Ok(pid) => Ok(Clone::Parent { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::AGAIN)),
    }
}

/// Until the copy has put the agent's handlers away, no signal may reach it: they would write into the agent's own pipes.
fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are ours, and the first call makes the one that the second reads.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set was filled by the kernel.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
}

/// All that the copy needs, as the kernel takes it.
struct Copy<'a> {
    recipe: &'a Recipe<'a>,
    /// For each program its arguments, ended by a null.
    arguments: Vec<Vec<*const libc::c_char>>,
    environment: Vec<*const libc::c_char>,
    files: Option<Rlimit>,
    spared: bool,
}

impl<'a> Copy<'a> {
    fn of(recipe: &'a Recipe<'a>) -> Copy<'a> {
        let pointers = |strings: &[CString]| {
            strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>()
        };
        Copy {
            arguments: recipe.programs.iter().map(|program| pointers(&program.arguments)).collect(),
            environment: pointers(&recipe.environment),
            files: FILES_GIVEN.get().copied(),
            spared: is_spared(),
            recipe,
        }
    }

    fn become_it(self, entered: Entered, report: &Report) -> ! {
        let error = self.prepare(entered).err().unwrap_or_else(|| self.execute());
        report.errno.store(error.raw_os_error(), Ordering::Release);
        // SAFETY: it ends this process, the copy, without running anything of the agent's.
        unsafe { libc::_exit(127) }
    }

    fn prepare(&self, entered: Entered) -> Result<(), Errno> {
        let recipe = self.recipe;
        reset_signals();
        if let (Some(group), Entered::No) = (recipe.group, entered) {
            // Where that is refused, it runs outside, and is found by its descent and its mark.
            let _ = enter(group);
        }
        rustix::process::setsid()?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        // Three that are above the three, so that none is written over before it has been copied.
        for (from, to) in [(recipe.input, 0), (recipe.output, 1), (recipe.output, 2)] {
            // SAFETY: plain numbers; what is closed by it is the copy's own.
            if unsafe { libc::dup2(from.as_raw_fd(), to) } < 0 {
                return Err(last_errno());
            }
        }
        close_on_exec();
        if self.spared {
            let own =
                rustix::fs::open(c"/proc/self/oom_score_adj", rustix::fs::OFlags::WRONLY, Mode::empty());
            let _ = own.and_then(|own| rustix::io::write(&own, b"0"));
        }
        if let Some(files) = &self.files {
            setrlimit(Resource::Nofile, *files)?;
        }
        recipe.account.become_it()?;
        // Only now, so that the folder's permissions are those for this user.
        rustix::process::chdir(recipe.folder)
    }

    /// Returns only if it failed.
    fn execute(&self) -> Errno {
        // SAFETY: the set is ours, and all pointers are to strings that end with a NUL, in arrays that end with a null, which
        // live as long as `self`.
        unsafe {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            let mut error = Errno::NOENT;
            for (program, arguments) in self.recipe.programs.iter().zip(&self.arguments) {
                libc::execve(program.file.as_ptr(), arguments.as_ptr(), self.environment.as_ptr());
                error = last_errno();
            }
            error
        }
    }
}

/// Lets every signal do what it does by default, also those that the C library would not let us change.
fn reset_signals() {
    /// The kernel's `struct sigaction`, whose longest form has four words: the default action, no flags, no mask.
    const DEFAULT: [u64; 4] = [0; 4];
    for signal in 1..=64 {
        // SAFETY: the kernel reads a structure that is no longer than this one, and of the mask as many bytes as it is told. The
        // default action is no function of ours. Two signals cannot be changed, which does no harm.
        unsafe {
            let action = DEFAULT.as_ptr();
            libc::syscall(libc::SYS_rt_sigaction, signal, action, ptr::null_mut::<u64>(), size_of::<u64>());
        }
    }
}

fn enter(group: BorrowedFd<'_>) -> Result<(), Errno> {
    let procs = rustix::fs::openat(group, c"cgroup.procs", rustix::fs::OFlags::WRONLY, Mode::empty())?;
    rustix::io::write(&procs, b"0").map(drop)
}

/// Keeps everything but the three standard descriptors from the new program. The agent's own are so marked from the
/// beginning; those that it got from whoever started it (a terminal, a lock, an ssh connection) may not be.
fn close_on_exec() {
    // SAFETY: the call takes three numbers and touches no memory of ours. Descriptors are only marked here, and closed by
    // the exec, so nothing that is in use goes away. Where the kernel does not know the call, all stays as it was.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

fn last_errno() -> Errno {
    // SAFETY: the place is this thread's own.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}
