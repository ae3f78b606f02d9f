//! Parsers for files of a process under `/proc`.
//!
//! A process may vanish between two reads, and its own data may be anything. Every function therefore returns
//! an `Option`, and no data is trusted to be UTF-8.

use procfleet_core::process::ProgramFile;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The environment variable that identifies the processes of a proc.
pub(super) const MARK: &str = "PROCFLEET_PROC";
/// Set for stop, kill and reload commands, which must not be taken for the process.
pub(super) const CONTROL_COMMAND: &str = "PROCFLEET_ASIDE";
/// The pid of the command. Descendants inherit the variable and have other pids, so only the command matches
/// its value.
pub(super) const COMMAND: &str = "PROCFLEET_COMMAND_PID";
/// Start time of the command, in milliseconds since the host's boot. All of its descendants inherit the
/// value.
pub(super) const RUN: &str = "PROCFLEET_RUN";
/// Shows that the mark and the run were given by this agent (`proc_mark`).
pub(super) const PROOF: &str = "PROCFLEET_PROOF";

/// The kernel's flag for its own threads.
const PF_KTHREAD: u64 = 0x0020_0000;

/// Maximum length of an environment that is searched for the mark. The kernel allows more, but programs do
/// not use it.
const ENVIRON_LIMIT: u64 = 1 << 20;
/// As much of a command line as is read: enough for every argument that identifies a program.
const CMDLINE_LIMIT: u64 = 64 << 10;

/// Attempts while a process is in `execve`, which takes a fraction of a millisecond, and longer on a busy
/// host.
const EXEC_TRIES: usize = 400;
/// Attempts for all processes of one scan together: a second.
const EXEC_TRIES_OF_SCAN: usize = 4_000;
const EXEC_PAUSE: Duration = Duration::from_micros(250);
/// A process that is not in `execve` has no environment if it has none so often. An exec may be done between
/// two reads.
const WITHOUT_ENVIRONMENT: usize = 3;

/// Identifies a process, also after its pid was reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
}

impl Id {
    /// Whether it was started before the other. Within one tick of 10 ms the pids decide: they increase until
    /// they wrap around.
    pub(super) fn is_older_than(self, other: Id) -> bool {
        (self.start_ticks, self.pid) < (other.start_ticks, other.pid)
    }
}

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) id: Id,
    pub(super) comm: String,
    pub(super) state: char,
    pub(super) parent: u32,
    pub(super) session: u32,
    pub(super) flags: u64,
    pub(super) user_ticks: u64,
    pub(super) system_ticks: u64,
    /// The CPU time of its children that have ended and that it has waited for, and of theirs.
    pub(super) children_ticks: u64,
    pub(super) threads: u64,
    /// Not in the middle of `execve`, where arguments and environment are not there yet, and no kernel
    /// thread.
    has_program: bool,
    pub(super) rss_pages: u64,
    /// The wait status of a zombie; 0 also where we may not read it.
    pub(super) exit_status: i32,
}

impl Stat {
    /// `None`: no such process, or it cannot be read. See [`Stat::find`].
    pub(super) fn read(pid: u32) -> Option<Stat> {
        Stat::find(pid).ok().flatten()
    }

    /// `None`: no such process. An error does not mean that it is gone: descriptors or memory may have run
    /// out.
    pub(super) fn find(pid: u32) -> Result<Option<Stat>, Errno> {
        // The kernel gives the whole line at once.
        let mut line = [0; 1024];
        match File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut line)) {
            Ok(length) => Ok(Stat::parse(&line[..length]).filter(|stat| stat.id.pid == pid)),
            Err(error) => match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
                Errno::NOENT | Errno::SRCH => Ok(None),
                error => Err(error),
            },
        }
    }

    /// The program's name is in parentheses and may contain spaces and parentheses, so the rest begins after
    /// the last one.
    pub(super) fn parse(text: &[u8]) -> Option<Stat> {
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')').filter(|close| *close > open)?;
        let pid = std::str::from_utf8(&text[..open]).ok()?.trim().parse().ok()?;
        let comm = String::from_utf8_lossy(&text[open + 1..close]).into_owned();
        let rest = std::str::from_utf8(&text[close + 1..]).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let small = |index: usize| fields.get(index)?.parse::<u32>().ok();
        Some(Stat {
            id: Id { pid, start_ticks: number(19)? },
            comm,
            state: fields.first()?.chars().next()?,
            parent: small(1)?,
            session: small(3)?,
            flags: number(6)?,
            user_ticks: number(11)?,
            system_ticks: number(12)?,
            // The kernel prints them signed.
            children_ticks: [13, 14].iter().filter_map(|index| number(*index)).sum(),
            threads: number(17)?,
            // The start of its code.
            has_program: number(23) != Some(0),
            // The kernel prints it signed.
            rss_pages: fields.get(21)?.parse::<i64>().ok()?.max(0).unsigned_abs(),
            exit_status: fields.get(49).and_then(|status| status.parse().ok()).unwrap_or(0),
        })
    }

    pub(super) fn is_running(&self) -> bool {
        is_running(u8::try_from(self.state).unwrap_or(b'?'), self.threads)
    }

    pub(super) fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }
}

/// An open `/proc`, for reading many processes in a row.
#[derive(Debug)]
pub(super) struct ProcDir(OwnedFd);

/// The fields of `/proc/PID/stat` that samples need, without allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsageLine {
    pub(super) id: Id,
    pub(super) parent: u32,
    pub(super) session: u32,
    state: u8,
    threads: u32,
    flags: u64,
    /// Its own CPU time.
    pub(super) own_ticks: u64,
    /// The CPU time of its children that have ended and that it has waited for, and of theirs.
    pub(super) children_ticks: u64,
    pub(super) rss_pages: u64,
}

impl ProcDir {
    pub(super) fn open() -> Option<ProcDir> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open("/proc", flags, Mode::empty()).ok().map(ProcDir)
    }

    /// `None`: no such process.
    pub(super) fn line(&self, pid: u32) -> Option<UsageLine> {
        let mut name = [0; 16];
        let name = path(&mut name, pid, "/stat")?;
        let file = rustix::fs::openat(&self.0, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = [0; 1024];
        let length = rustix::io::read(&file, &mut text).ok()?;
        UsageLine::parse(text.get(..length)?).filter(|line| line.id.pid == pid)
    }

    /// Number of open files; 0 if it cannot be read. Kernels since 6.2 give it without listing them.
    pub(super) fn open_files(&self, pid: u32) -> u64 {
        let mut name = [0; 16];
        let Some(name) = path(&mut name, pid, "/fd") else { return 0 };
        match rustix::fs::statat(&self.0, name, AtFlags::empty()) {
            Ok(stat) if stat.st_size > 0 => u64::try_from(stat.st_size).unwrap_or(0),
            Ok(_) => fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64),
            Err(_) => 0,
        }
    }
}

/// Writes `PID/stat` into the buffer.
fn path<'a>(buffer: &'a mut [u8; 16], pid: u32, rest: &str) -> Option<&'a str> {
    let mut left = &mut buffer[..];
    write!(left, "{pid}{rest}").ok()?;
    let length = 16 - left.len();
    std::str::from_utf8(buffer.get(..length)?).ok()
}

impl UsageLine {
    fn parse(text: &[u8]) -> Option<UsageLine> {
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')').filter(|close| *close > open)?;
        let pid = number(text.get(..open)?.trim_ascii())?;
        let mut fields = [&b""[..]; 22];
        let rest = text.get(close + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        for (slot, field) in fields.iter_mut().zip(rest) {
            *slot = field;
        }
        let small = |index: usize| u32::try_from(number(fields[index])?).ok();
        Some(UsageLine {
            id: Id { pid: u32::try_from(pid).ok()?, start_ticks: number(fields[19])? },
            parent: small(1)?,
            session: small(3)?,
            state: *fields[0].first()?,
            threads: small(17)?,
            flags: number(fields[6])?,
            own_ticks: number(fields[11])?.saturating_add(number(fields[12])?),
            // The kernel prints these signed, and the last one too.
            children_ticks: number(fields[13]).unwrap_or(0).saturating_add(number(fields[14]).unwrap_or(0)),
            rss_pages: if fields[21].starts_with(b"-") { 0 } else { number(fields[21])? },
        })
    }

    pub(super) fn is_running(&self) -> bool {
        is_running(self.state, u64::from(self.threads))
    }

    pub(super) fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }
}

/// A zombie is not running. A process whose main thread ended looks like a zombie, but has other threads.
fn is_running(state: u8, threads: u64) -> bool {
    match state {
        b'X' | b'x' => false,
        b'Z' => threads > 1,
        _ => true,
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let value = |sum: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, value) }
}

/// Every pid there is.
pub(super) fn pids() -> Vec<u32> {
    find_pids().unwrap_or_default()
}

/// As [`pids`]. An error: `/proc` cannot be listed.
pub(super) fn find_pids() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The children of all threads of a process except one. `None`: it is gone, or the kernel has no such list.
///
/// The kernel may miss a child if another ends while it lists them.
pub(super) fn children(pid: u32, but: Option<u32>) -> Option<Vec<u32>> {
    let mut children = Vec::new();
    let but = but.map(|thread| thread.to_string());
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        if but.as_deref().is_some_and(|but| thread.file_name() == but) {
            continue;
        }
        match read_at_most(&thread.path().join("children"), u64::MAX) {
            Ok(text) => children.extend(
                text.split(u8::is_ascii_whitespace)
                    .filter_map(|pid| std::str::from_utf8(pid).ok()?.parse::<u32>().ok()),
            ),
            // If the main thread is gone, the process is; other threads may end at any time.
            Err(_) if thread.file_name().to_str() == Some(&pid.to_string()) => return None,
            Err(_) => {}
        }
    }
    Some(children)
}

/// False for the id of a thread that is not its process's first: `/proc` answers for those too.
pub(super) fn is_whole_process(pid: u32) -> bool {
    let Ok(text) = read_at_most(Path::new(&format!("/proc/{pid}/status")), 8192) else { return false };
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .find_map(|line| line.strip_prefix("Tgid:"))
        .is_some_and(|tgid| tgid.trim() == pid.to_string())
}

/// The real and the saved uid of a process.
pub(super) fn owners(pid: u32) -> Option<[u32; 2]> {
    let text = read_at_most(Path::new(&format!("/proc/{pid}/status")), 8192).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut ids = text.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace();
    let (real, saved) = (ids.next()?, ids.nth(1)?);
    Some([real.parse().ok()?, saved.parse().ok()?])
}

/// The arguments. Empty for kernel threads, zombies and unreadable processes.
pub(super) fn argv(pid: u32) -> Vec<String> {
    let text = read_at_most(Path::new(&format!("/proc/{pid}/cmdline")), CMDLINE_LIMIT).unwrap_or_default();
    split_nul(&text).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}

/// The program's file. A file that was replaced or removed since then keeps its old name here.
pub(super) fn exe(pid: u32) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(match path.to_str().and_then(|text| text.strip_suffix(" (deleted)")) {
        Some(before) => PathBuf::from(before),
        None => path,
    })
}

/// The program's file, by device and inode.
pub(super) fn program_file(pid: u32) -> Option<ProgramFile> {
    let data = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some(ProgramFile::at(data.dev(), data.ino()))
}

/// Whether the program's file is setuid. Any user can start such a program with arguments and environment of
/// the user's choice, and it may change its real uid.
pub(super) fn is_setuid(pid: u32) -> bool {
    const SETUID: u32 = 0o4000;
    fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|data| data.mode() & SETUID != 0)
}

pub(super) fn cwd(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// The value of the mark, if the process has one and we may read it.
///
/// A process in the middle of `execve` briefly has neither arguments nor an environment. It must not be
/// mistaken for one without a mark (it could escape a kill, or count as a stranger), so the read is repeated.
pub(super) fn mark(pid: u32) -> Option<Vec<u8>> {
    variable(pid, MARK)
}

/// As [`mark`], for one of many processes.
pub(super) fn mark_within(pid: u32, waits: &ExecWaits) -> Option<Vec<u8>> {
    value_in(&environment(pid, waits)?, MARK)
}

/// How many more times the reads of one scan may wait for processes in `execve`, in total. Thousands of
/// processes in `execve` would otherwise delay a scan by minutes.
#[derive(Debug)]
pub(super) struct ExecWaits(AtomicUsize);

impl ExecWaits {
    pub(super) fn of_scan() -> ExecWaits {
        ExecWaits(AtomicUsize::new(EXEC_TRIES_OF_SCAN))
    }

    fn of_one() -> ExecWaits {
        ExecWaits(AtomicUsize::new(EXEC_TRIES))
    }

    /// Waits for a moment. False: there were enough waits.
    fn pause(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        if self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            return false;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "nothing reports when an exec is done, and looks are synchronous"
        )]
        std::thread::sleep(EXEC_PAUSE);
        true
    }
}

/// Variables in a process's environment that show its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MarkClaim {
    /// The value of the mark.
    pub(super) name: Vec<u8>,
    pub(super) proof: Option<Vec<u8>>,
    pub(super) run: Option<NonZeroU64>,
}

/// The mark with its proof, under the same conditions as [`mark`].
pub(super) fn mark_claim(pid: u32) -> Option<MarkClaim> {
    mark_claim_within(pid, &ExecWaits::of_one())
}

/// As [`mark_claim`], for one of many processes.
pub(super) fn mark_claim_within(pid: u32, waits: &ExecWaits) -> Option<MarkClaim> {
    let environment = environment(pid, waits)?;
    let value = |name| value_in(&environment, name);
    Some(MarkClaim { name: value(MARK)?, proof: value(PROOF), run: value(RUN).and_then(|run| began(&run)) })
}

/// Whether the process is, or was started by, a command that ends or reloads the process and is not there to
/// become it.
pub(super) fn is_control_command(pid: u32) -> bool {
    variable(pid, CONTROL_COMMAND).is_some()
}

/// Whether the process is a command of ours itself, and not a descendant of one.
pub(super) fn is_command(pid: u32) -> bool {
    // Older agents did not set the variable.
    variable(pid, COMMAND).is_none_or(|command| command == pid.to_string().as_bytes())
}

/// The command of ours that has started the process, or that it is.
pub(super) fn command_of(pid: u32) -> Option<u32> {
    str::from_utf8(&variable(pid, COMMAND)?).ok()?.parse().ok()
}

/// When the command began that has started the process, by the environment.
pub(super) fn run_of(pid: u32) -> Option<NonZeroU64> {
    began(&variable(pid, RUN)?)
}

fn began(text: &[u8]) -> Option<NonZeroU64> {
    str::from_utf8(text).ok()?.parse().ok()
}

fn variable(pid: u32, name: &str) -> Option<Vec<u8>> {
    value_in(&environment(pid, &ExecWaits::of_one())?, name)
}

fn environment(pid: u32, waits: &ExecWaits) -> Option<Vec<u8>> {
    let environ = Path::new("/proc").join(pid.to_string()).join("environ");
    let (mut without, mut tries) = (0, 0);
    loop {
        let text = read_at_most(&environ, ENVIRON_LIMIT);
        if text.as_ref().is_ok_and(|text| !text.is_empty()) {
            return text.ok();
        }
        let Some(stat) = Stat::read(pid).filter(Stat::is_running) else { return text.ok() };
        // The main thread has ended and has no memory any longer; the other threads share theirs.
        if stat.state == 'Z' {
            if let Some(text) = environment_of_threads(pid) {
                return Some(text);
            }
        } else if text.is_err() {
            return None;
        } else if stat.has_program {
            // The process has no environment, or its exec was done between the two reads.
            if without == WITHOUT_ENVIRONMENT {
                return text.ok();
            }
            without += 1;
            continue;
        }
        tries += 1;
        if tries > EXEC_TRIES || !waits.pause() {
            return text.ok();
        }
    }
}

/// By the first thread that has one.
fn environment_of_threads(pid: u32) -> Option<Vec<u8>> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut texts =
        threads.filter_map(|thread| read_at_most(&thread.path().join("environ"), ENVIRON_LIMIT).ok());
    texts.find(|text| !text.is_empty())
}

fn value_in(environment: &[u8], name: &str) -> Option<Vec<u8>> {
    split_nul(environment)
        .find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec))
}

/// NUL ends each item, the last one too; a process that rewrote its own memory may leave it out.
fn split_nul(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    let some = (!text.is_empty()).then(|| text.split(|byte| *byte == 0));
    some.into_iter().flatten()
}

fn read_at_most(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Most of these files fit in at once; an empty vector would be filled in a dozen small reads.
    let mut text = Vec::with_capacity(2048);
    File::open(path)?.take(limit).read_to_end(&mut text)?;
    Ok(text)
}

/// When a process was started, in ticks since the host's boot: with its pid it is that process and no other.
pub fn start_ticks(pid: u32) -> Option<u64> {
    Stat::read(pid).filter(Stat::is_running).map(|stat| stat.id.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let text = b"42 (a) b (c)) S 7 42 9 0 -1 4194560 1 2 3 4 50 60 7 8 20 0 3 0 777 1000 25 18446744073709551615";
        let stat = Stat::parse(text).expect("a good line");
        assert_eq!(stat.id, Id { pid: 42, start_ticks: 777 });
        assert_eq!((stat.comm.as_str(), stat.state, stat.parent, stat.session), ("a) b (c)", 'S', 7, 9));
        assert_eq!((stat.user_ticks, stat.system_ticks, stat.threads, stat.rss_pages), (50, 60, 3, 25));
        assert_eq!(stat.children_ticks, 15);
        let line = UsageLine::parse(text).expect("a good line");
        assert_eq!((line.id, line.parent, line.session), (stat.id, stat.parent, stat.session));
        assert_eq!((line.own_ticks, line.children_ticks, line.rss_pages), (110, 15, 25));
    }

    #[test]
    fn unparsable_stat_lines_are_no_process() {
        for text in
            [&b""[..], b"42", b"42 (", b"42 )(", b"42 (x)", b"42 (x) S", b"x (x) S 1 2 3", b"\xff\xfe(\xff)"]
        {
            assert_eq!(Stat::parse(text), None, "{text:?}");
            assert_eq!(UsageLine::parse(text), None, "{text:?}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs a process that is no proc's")]
    fn a_process_that_becomes_another_program_keeps_its_mark() {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "exec \"$0\" -c \"$1\" \"$0\" \"$1\"", "/bin/sh"])
            .arg("exec \"$0\" -c \"$1\" \"$0\" \"$1\"")
            .env(MARK, "ours")
            .spawn()
            .expect("a shell");
        let unmarked = (0..10_000).filter(|_| mark(child.id()).as_deref() != Some(b"ours")).count();
        child.kill().expect("our child");
        child.wait().expect("our child");
        assert_eq!(unmarked, 0, "of 10,000 looks");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs a process that is no proc's")]
    fn the_mark_of_a_process_whose_main_thread_has_ended_is_found() {
        let text = "import ctypes, threading, time\n\
                    threading.Thread(target=time.sleep, args=(1000,)).start()\n\
                    ctypes.CDLL(None).pthread_exit(None)\n";
        let mut child = std::process::Command::new("python3")
            .args(["-c", text])
            .env(MARK, "ours")
            .spawn()
            .expect("python3 can be run");
        let pid = child.id();
        procfleet_testkit::wait_until(procfleet_testkit::PATIENCE, "its main thread ends", || {
            Stat::read(pid).is_some_and(|stat| stat.state == 'Z')
        });
        let waits = ExecWaits::of_scan();
        let marks = [mark(pid), mark_within(pid, &waits), mark_claim(pid).map(|claim| claim.name)];
        let is_running = start_ticks(pid).is_some();
        child.kill().expect("our child");
        child.wait().expect("our child");
        assert!(is_running, "another thread lives");
        assert_eq!(marks.map(|mark| mark.as_deref() == Some(b"ours")), [true; 3]);
        assert_eq!(waits.0.into_inner(), EXEC_TRIES_OF_SCAN, "without a wait");
    }

    #[test]
    fn the_waits_of_a_scan_are_bounded() {
        let waits = ExecWaits(AtomicUsize::new(2));
        assert_eq!([waits.pause(), waits.pause(), waits.pause()], [true, true, false]);
    }

    #[test]
    fn the_agent_reads_its_own_process() {
        let pid = std::process::id();
        let stat = Stat::read(pid).expect("we are running");
        assert!(stat.is_running() && !stat.is_kernel_thread());
        assert!(is_whole_process(pid));
        let proc = ProcDir::open().expect("it is mounted");
        let line = proc.line(pid).expect("we are running");
        assert_eq!((line.id, line.parent, line.session), (stat.id, stat.parent, stat.session));
        assert!(line.is_running() && !line.is_kernel_thread() && line.rss_pages > 0);
        let listed = fs::read_dir("/proc/self/fd").expect("our own").count();
        assert!(proc.open_files(pid).abs_diff(listed as u64) < 100, "others open and close files meanwhile");
        let me = rustix::process::getuid().as_raw();
        assert_eq!(owners(pid), Some([me, me]));
        assert!(pids().contains(&pid));
        assert!(!argv(pid).is_empty());
        assert_eq!(exe(pid), std::env::current_exe().ok());
    }

    #[test]
    fn an_empty_argument_is_kept() {
        assert_eq!(split_nul(b"a\0\0b\0").count(), 3);
        assert_eq!(split_nul(b"").count(), 0);
    }
}
