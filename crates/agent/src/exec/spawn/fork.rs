//! Creates a process: a child of the agent that executes a program.
//!
//! `clone3` returns the pidfd and puts the child into its cgroup at once. The parent waits until the child
//! has called `execve` (`CLONE_VFORK`), so the child can share the parent's memory (`CLONE_VM`) and nothing
//! is copied; a copy would take longer the more memory the agent uses. The child has its own stack, because
//! it would otherwise overwrite the parent's. Entering that stack takes a few lines of assembly. On
//! architectures without them the child gets a copy of the memory, as after `fork`. The same applies where
//! `clone3` is refused (an old kernel, a seccomp filter) and `clone` is used; there the child enters the
//! cgroup itself before `execve`.
//!
//! The child also shares the table of open files until it has copied the first few descriptors: the agent has
//! one for each supervised process, and copying all of them only to close them takes longer the more there
//! are. The output of the child is therefore duplicated to a low descriptor first.
//!
//! Other threads keep running beside the child, or are missing in its copy, so their locks may never be
//! released. The child only makes system calls: it takes no lock and allocates nothing. The parent prepares
//! all data.

#![expect(unsafe_code, reason = "what happens between clone and exec cannot be written without it")]

use crate::exec::procfs::COMMAND;
use crate::exec::user::Account;
use nix::libc;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};
use std::ffi::CString;
use std::fs;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Everything that a new process needs.
#[derive(Debug)]
pub(in crate::exec) struct SpawnRequest<'a> {
    /// The first of these that can be executed.
    pub(in crate::exec) programs: Vec<ExecTarget>,
    pub(in crate::exec) environment: Vec<CString>,
    pub(in crate::exec) folder: BorrowedFd<'a>,
    pub(in crate::exec) account: &'a Account,
    pub(in crate::exec) input: BorrowedFd<'a>,
    pub(in crate::exec) output: BorrowedFd<'a>,
    /// The folder of its cgroup.
    pub(in crate::exec) group: Option<BorrowedFd<'a>>,
}

/// A file and its arguments.
#[derive(Debug)]
pub(in crate::exec) struct ExecTarget {
    pub(in crate::exec) file: CString,
    pub(in crate::exec) arguments: Vec<CString>,
}

/// RLIMIT_NOFILE as the agent inherited it.
static FILES_GIVEN: OnceLock<Rlimit> = OnceLock::new();
/// `clone3` was refused, and will be again.
static NO_CLONE3: AtomicBool = AtomicBool::new(false);
/// Used by one child at a time, from `clone3` until `execve`.
static RESOURCES: Mutex<Option<SpawnResources>> = Mutex::new(None);

/// Resources that a child uses until `execve`.
#[derive(Clone, Copy)]
struct SpawnResources {
    /// Receives the error of the child.
    report: &'static SpawnReport,
    /// The stack of the child begins here and grows downwards.
    stack_end: usize,
    /// A low descriptor for the child's output. It is never closed.
    output: RawFd,
    /// A low descriptor for the child's folder.
    folder: RawFd,
}

/// A page that parent and child share even if the child has its own memory.
struct SpawnReport {
    errno: AtomicI32,
}

/// A few frames without anything large in them, in builds that are not optimized too.
const STACK: usize = 64 << 10;
/// Guard pages below the stack. No architecture has larger pages.
const GUARD: usize = 64 << 10;

/// Raises RLIMIT_NOFILE to its hard limit: each supervised process takes one or two descriptors. Child
/// processes get the original limit.
pub fn raise_nofile_limit() {
    let given = getrlimit(Resource::Nofile);
    if FILES_GIVEN.set(given).is_ok() && given.current != given.maximum {
        let all = Rlimit { current: given.maximum, maximum: given.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, all) {
            tracing::debug!(%error, "cannot raise RLIMIT_NOFILE");
        }
    }
}

/// Restores the original RLIMIT_NOFILE before a re-exec, so that the next agent sees the limit that it was
/// given.
pub(crate) fn restore_nofile_limit() {
    if let Some(given) = FILES_GIVEN.get()
        && let Err(error) = setrlimit(Resource::Nofile, *given)
    {
        tracing::warn!(%error, "cannot lower RLIMIT_NOFILE; processes of the new agent inherit the higher limit");
    }
}

/// Whether the agent has a negative `oom_score_adj`. Children do not inherit that protection. A positive
/// value is meant for the children too.
fn is_oom_protected() -> bool {
    static SPARED: OnceLock<bool> = OnceLock::new();
    *SPARED.get_or_init(|| {
        fs::read_to_string("/proc/self/oom_score_adj")
            .is_ok_and(|text| text.trim().parse().is_ok_and(|adjustment: i32| adjustment < 0))
    })
}

impl SpawnResources {
    fn of(resources: &mut Option<SpawnResources>, nothing: BorrowedFd<'_>) -> io::Result<SpawnResources> {
        match *resources {
            Some(resources) => Ok(resources),
            None => Ok(*resources.insert(SpawnResources {
                report: SpawnReport::share()?,
                stack_end: map_stack()?,
                output: rustix::io::fcntl_dupfd_cloexec(nothing, 3)?.into_raw_fd(),
                folder: rustix::io::fcntl_dupfd_cloexec(nothing, 3)?.into_raw_fd(),
            })),
        }
    }
}

/// Call it before there are many open files, to get low descriptors. `nothing` is the standard input of
/// commands.
pub(in crate::exec) fn reserve_resources(nothing: BorrowedFd<'_>) -> io::Result<()> {
    SpawnResources::of(&mut RESOURCES.lock().unwrap_or_else(PoisonError::into_inner), nothing).map(drop)
}

/// Returns when the program runs, or with the error of the last attempt.
pub(in crate::exec) fn make(request: &SpawnRequest<'_>) -> io::Result<(u32, OwnedFd)> {
    let child = Child::of(request);
    let mut resources = RESOURCES.lock().unwrap_or_else(PoisonError::into_inner);
    let resources = SpawnResources::of(&mut resources, request.input)?;
    copy_to(request.output, resources.output)?;
    copy_to(request.folder, resources.folder)?;
    resources.report.errno.store(0, Ordering::Relaxed);
    // A child that changes its account clears PR_SET_DUMPABLE: the account must not read
    // the agent's memory while they share it. The setting is restored afterwards.
    let dumpable = request.account.is_another().then(dumpable);
    let blocked = block_signals();
    let made = clone(&child, resources);
    restore_signals(&blocked);
    dumpable.into_iter().for_each(set_dumpable);
    // The agent itself does not hold the file and the folder any longer than it must.
    let _ = copy_to(request.input, resources.output);
    let _ = copy_to(request.input, resources.folder);
    let (pid, pidfd) = made?;
    match resources.report.errno.load(Ordering::Acquire) {
        0 => Ok((pid, pidfd)),
        errno => {
            use rustix::fd::AsFd;
            // The child has exited already, or is about to.
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// New zeroed pages, which are never unmapped.
fn map(bytes: usize, protection: libc::c_int, flags: libc::c_int) -> io::Result<*mut libc::c_void> {
    // SAFETY: the kernel chooses an unused address.
    let address =
        unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags | libc::MAP_ANONYMOUS, -1, 0) };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address) }
}

impl SpawnReport {
    fn share() -> io::Result<&'static SpawnReport> {
        let page = map(size_of::<SpawnReport>(), libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
        // SAFETY: it is aligned, zeroed and never given back, and zero is a valid `Report`.
        Ok(unsafe { &*page.cast::<SpawnReport>() })
    }
}

/// The end of a new stack.
fn map_stack() -> io::Result<usize> {
    let below = map(GUARD + STACK, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_STACK)?;
    // SAFETY: the range is part of the mapping above, which nothing else uses yet.
    let opened = unsafe { libc::mprotect(below.byte_add(GUARD), STACK, libc::PROT_READ | libc::PROT_WRITE) };
    if opened != 0 { Err(io::Error::last_os_error()) } else { Ok(below as usize + GUARD + STACK) }
}

/// `dup3` with `O_CLOEXEC`.
fn copy_to(from: BorrowedFd<'_>, to: RawFd) -> Result<(), Errno> {
    // SAFETY: plain numbers. `to` is reserved for this, and only the holder of the lock uses it.
    let done = unsafe { libc::dup3(from.as_raw_fd(), to, libc::O_CLOEXEC) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// `PR_GET_DUMPABLE`: whether other processes of this account may trace the agent and read its memory.
fn dumpable() -> libc::c_int {
    // SAFETY: the call takes numbers and touches no memory.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) }
}

fn set_dumpable(before: libc::c_int) {
    // Only 0 and 1 can be set. The kernel itself sets 2, which stays.
    if before == 1 {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
    }
}

/// Whether the child is in its cgroup already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    Yes,
    /// There is no cgroup, or the child must enter it itself.
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

/// The longest pid, and the NUL after it.
const PID_DIGITS: usize = 11;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const FLAGS: libc::c_int = libc::CLONE_PIDFD | libc::CLONE_VFORK;

fn clone(child: &Child<'_>, resources: SpawnResources) -> Result<(u32, OwnedFd), Errno> {
    if !NO_CLONE3.load(Ordering::Relaxed) {
        let group = child.request.group;
        match clone3(child, group, resources) {
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::TOOBIG) => {
                tracing::info!("clone3 is refused; processes enter their cgroups after clone");
                NO_CLONE3.store(true, Ordering::Relaxed);
            }
            // Out of processes or memory, with any cgroup.
            Err(error @ (Errno::AGAIN | Errno::NOMEM)) => return Err(error),
            // The group does not accept the child, or is gone. The process is started without a group.
            Err(error) if group.is_some() => {
                tracing::warn!(%error, "CLONE_INTO_CGROUP failed; the process is tracked by descent");
                return clone3(child, None, resources);
            }
            answer => return answer,
        }
    }
    let mut pidfd: libc::c_int = -1;
    // SAFETY: without CLONE_VM the child has its own memory and stack, so both continue here as after a fork.
    // The kernel writes the pidfd to the third argument, which outlives the call. The order of the later
    // arguments differs between architectures; all of them are 0.
    let pid = unsafe {
        let flags = libc::c_long::from(FLAGS | libc::SIGCHLD);
        libc::syscall(libc::SYS_clone, flags, 0, &raw mut pidfd, 0, 0)
    };
    if pid == 0 {
        child.run_command(Entered::No, resources);
    }
    let failed = || Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::AGAIN);
    made(pid, pidfd).ok_or_else(failed)
}

fn clone3(
    child: &Child<'_>,
    group: Option<BorrowedFd<'_>>,
    resources: SpawnResources,
) -> Result<(u32, OwnedFd), Errno> {
    let mut pidfd: libc::c_int = -1;
    let mut args = CloneArgs {
        flags: u64::from((FLAGS | libc::CLONE_FILES).unsigned_abs()),
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
    let pid = call_clone3(&mut args, &ChildEntry { child, entered, resources });
    made(pid, pidfd).ok_or_else(|| Errno::from_raw_os_error(i32::try_from(-pid).unwrap_or(libc::EAGAIN)))
}

/// Arguments of the child's entry function.
struct ChildEntry<'a> {
    child: &'a Child<'a>,
    entered: Entered,
    resources: SpawnResources,
}

/// Makes the child, which never returns from here, and answers as the kernel does: its pid, or an error below
/// 0.
#[cfg(target_arch = "x86_64")]
fn call_clone3(args: &mut CloneArgs, entry: &ChildEntry<'_>) -> libc::c_long {
    extern "C" fn enter_child(entry: &ChildEntry<'_>) -> ! {
        entry.child.run_command(entry.entered, entry.resources)
    }
    args.flags |= u64::from(libc::CLONE_VM.unsigned_abs());
    args.stack = (entry.resources.stack_end - STACK) as u64;
    args.stack_size = STACK as u64;
    let answer: libc::c_long;
    // SAFETY: the kernel reads `size` bytes of `args`, and writes the pidfd, which outlives the call. The
    // parent continues after the block as after any system call. The child continues on a stack that one
    // child at a time uses, whose end is aligned for a call, and calls a function that does not return.
    // `entry` and its references stay valid, because this thread is suspended until the child has called
    // `execve` or has ended (`CLONE_VFORK`). For the same reason the child may use thread-local data such as
    // `errno`.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => answer,
            in("rdi") &raw const *args,
            in("rsi") size_of::<CloneArgs>(),
            in("r12") entry,
            in("r13") enter_child as extern "C" fn(&ChildEntry<'_>) -> !,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// For architectures without the assembly: the child gets a copy of the memory.
#[cfg(not(target_arch = "x86_64"))]
fn call_clone3(args: &mut CloneArgs, entry: &ChildEntry<'_>) -> libc::c_long {
    // SAFETY: the kernel reads `size` bytes of `args`, and writes the pidfd, which outlives the call. Without
    // CLONE_VM the child has its own memory and stack, so both continue here as after a fork.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const *args, size_of::<CloneArgs>()) };
    match pid {
        0 => entry.child.run_command(entry.entered, entry.resources),
        -1 => -libc::c_long::from(last_errno().raw_os_error()),
        pid => pid,
    }
}

fn made(pid: libc::c_long, pidfd: libc::c_int) -> Option<(u32, OwnedFd)> {
    let pid = u32::try_from(pid).ok()?;
    // SAFETY: the kernel has just opened the descriptor for us, and nothing else uses it.
    Some((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Blocks signals until the child has reset the agent's handlers, which would write into the agent's own
/// pipes.
fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are ours, and the first call initialises the one that the second reads.
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

/// The child's data in the form that system calls take.
struct Child<'a> {
    request: &'a SpawnRequest<'a>,
    /// For each program its arguments, ended by a null.
    arguments: Vec<Vec<*const libc::c_char>>,
    environment: Vec<*const libc::c_char>,
    /// The last environment variable. The child writes its own pid into it.
    command: Vec<AtomicU8>,
    files: Option<Rlimit>,
    spared: bool,
}

impl<'a> Child<'a> {
    fn of(request: &'a SpawnRequest<'a>) -> Child<'a> {
        let pointers = |strings: &[CString]| {
            strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>()
        };
        let command: Vec<AtomicU8> =
            [COMMAND.as_bytes(), b"=", &[0; PID_DIGITS]].concat().into_iter().map(AtomicU8::new).collect();
        let mut environment = pointers(&request.environment);
        environment.insert(request.environment.len(), command.as_ptr().cast());
        Child {
            arguments: request.programs.iter().map(|program| pointers(&program.arguments)).collect(),
            environment,
            command,
            files: FILES_GIVEN.get().copied(),
            spared: is_oom_protected(),
            request,
        }
    }

    fn run_command(&self, entered: Entered, resources: SpawnResources) -> ! {
        self.write_own_pid();
        let error = self.prepare(entered, resources).err().unwrap_or_else(|| self.execute());
        resources.report.errno.store(error.raw_os_error(), Ordering::Release);
        // SAFETY: it ends this process, the child, without running anything of the agent's.
        unsafe { libc::_exit(127) }
    }

    /// Writes the child's pid into its environment. Descendants inherit the value and have another pid, so an
    /// agent that did not see the start can tell them apart.
    fn write_own_pid(&self) {
        let mut rest = std::process::id();
        let digits = rest.checked_ilog10().map_or(1, |log| log + 1) as usize;
        let value = COMMAND.len() + 1;
        for digit in self.command[value..value + digits].iter().rev() {
            digit.store(b"0123456789"[(rest % 10) as usize], Ordering::Relaxed);
            rest /= 10;
        }
    }

    fn prepare(&self, entered: Entered, resources: SpawnResources) -> Result<(), Errno> {
        let (request, output) = (self.request, resources.output);
        reset_signals();
        if let (Some(group), Entered::No) = (request.group, entered) {
            // If the kernel refuses, the process runs outside and is found by its descent and environment.
            let _ = enter(group);
        }
        let input = request.input.as_raw_fd();
        unshare_files(input.max(output).max(resources.folder))?;
        rustix::process::setsid()?;
        rustix::process::umask(Mode::from_raw_mode(0o022));
        // All source descriptors are above 2, so none is overwritten before it is copied.
        for (from, to) in [(input, 0), (output, 1), (output, 2)] {
            // SAFETY: plain numbers; a descriptor that this closes belongs to the child's own table.
            if unsafe { libc::dup2(from, to) } < 0 {
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
        request.account.become_account()?;
        // Only now, so that the folder's permissions are those for this user.
        // SAFETY: a plain number.
        match unsafe { libc::fchdir(resources.folder) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Returns only if it failed.
    fn execute(&self) -> Errno {
        // SAFETY: the set is ours, and all pointers are to strings that end with a NUL, in arrays that end
        // with a null, which live as long as `self`.
        unsafe {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            let mut error = Errno::NOENT;
            for (program, arguments) in self.request.programs.iter().zip(&self.arguments) {
                libc::execve(program.file.as_ptr(), arguments.as_ptr(), self.environment.as_ptr());
                error = last_errno();
            }
            error
        }
    }
}

/// Sets the default action for every signal, including those that the C library reserves.
fn reset_signals() {
    /// The kernel's `struct sigaction`, whose longest form has four words: the default action, no flags, no
    /// mask.
    const DEFAULT: [u64; 4] = [0; 4];
    for signal in 1..=64 {
        // SAFETY: the kernel reads a structure that is no longer than this one, and 8 bytes of the mask. The
        // default action calls no function. SIGKILL and SIGSTOP cannot be changed; that error is ignored.
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

/// Gives the child its own table of open files, up to this descriptor.
fn unshare_files(last: RawFd) -> Result<(), Errno> {
    let above = last.unsigned_abs() + 1;
    // SAFETY: plain numbers; CLOSE_RANGE_UNSHARE gives the child its own table first.
    let taken = unsafe { libc::syscall(libc::SYS_close_range, above, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
    // A kernel that does not know the call, before 5.9, copies them all.
    // SAFETY: a plain number, and it touches no memory.
    if taken != 0 && unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// Marks every descriptor but the three standard ones close-on-exec. The agent's own are opened so; inherited
/// ones (a terminal, a lock, an ssh connection) may not be.
fn close_on_exec() {
    // SAFETY: the call takes three numbers and touches no memory of ours. Descriptors are only marked here,
    // and closed by the exec, so nothing that is in use goes away. Where the kernel does not know the call,
    // all stays as it was.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

fn last_errno() -> Errno {
    // SAFETY: `errno` belongs to this thread.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}
