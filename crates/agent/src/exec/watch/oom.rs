//! Finds out which processes the OOM killer has killed.
//!
//! The exit status of such a process is SIGKILL, as of any other kill. The kernel logs the pid to `/dev/kmsg`
//! before the process is gone. Where the log cannot be read, or has pids of another namespace, the OOM
//! counters of memory cgroups are used instead.
//!
//! Only deaths by SIGKILL are checked, within microseconds, because a restart waits for the answer. There is
//! one kernel log, so this state is global.

use crate::exec::procfs::Id;
use procfleet_core::process::Exit;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::Signal;
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const LOG: &str = "/dev/kmsg";
/// The inode number of the initial pid namespace, whose pids are in the log.
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Larger than any record.
const RECORD: usize = 16 * 1024;
/// Maximum number of records in one read, so that a log that grows faster than it is read blocks no caller.
const MOST_RECORDS: usize = 20_000;
/// Maximum number and age of remembered OOM kills.
const MOST_KILLED: usize = 1_000;
const REMEMBERED: Duration = Duration::from_secs(60);

static OOM: Mutex<Oom> = Mutex::new(Oom { source: OomSource::Unopened, killed: VecDeque::new() });

struct Oom {
    source: OomSource,
    /// Kills from the log that were not attributed to an exit yet.
    killed: VecDeque<(Instant, u32)>,
}

enum OomSource {
    Unopened,
    Log(OwnedFd),
    Counters(OomCounters),
}

fn lock() -> MutexGuard<'static, Oom> {
    OOM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the log and skips its present content.
pub(in crate::exec) fn listen() {
    let mut oom = lock();
    if !matches!(oom.source, OomSource::Unopened) {
        return;
    }
    oom.source = match open_log() {
        Ok(log) => OomSource::Log(log),
        Err(reason) => {
            tracing::info!(%reason, "cannot read /dev/kmsg; OOM kills are detected by cgroup counters only");
            OomSource::Counters(OomCounters::default())
        }
    };
}

/// Records the OOM counter of a process, to compare it at its exit.
pub(in crate::exec) fn watch(id: Id) {
    if let OomSource::Counters(counters) = &mut lock().source {
        counters.watch(id);
    }
}

/// Turns an exit by SIGKILL into an OOM kill if it was one.
pub(in crate::exec) fn judge(id: Id, exit: Exit) -> Exit {
    let mut oom = lock();
    let by_kill = exit == Exit::Signal(Signal::KILL.as_raw());
    let killed = match &mut oom.source {
        OomSource::Unopened => false,
        OomSource::Counters(counters) => counters.ended(id, by_kill),
        OomSource::Log(_) if !by_kill => false,
        OomSource::Log(_) => {
            oom.read_log();
            let index = oom.killed.iter().position(|(_, pid)| *pid == id.pid);
            index.and_then(|index| oom.killed.remove(index)).is_some()
        }
    };
    if killed { Exit::OutOfMemory } else { exit }
}

/// Reads the new records of the log, so that few are left when an exit must be judged. Call it periodically.
pub(in crate::exec) fn update() {
    let mut oom = lock();
    match &mut oom.source {
        OomSource::Unopened => {}
        OomSource::Log(_) => oom.read_log(),
        OomSource::Counters(counters) => counters.update(),
    }
}

fn open_log() -> Result<OwnedFd, String> {
    let namespace = fs::metadata("/proc/self/ns/pid").map_err(|error| error.to_string())?;
    if namespace.ino() != FIRST_NAMESPACE {
        return Err("this is a pid namespace of its own".to_owned());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let log = rustix::fs::open(LOG, flags, Mode::empty()).map_err(|error| error.to_string())?;
    rustix::fs::seek(&log, SeekFrom::End(0)).map_err(|error| error.to_string())?;
    Ok(log)
}

impl Oom {
    fn read_log(&mut self) {
        let OomSource::Log(log) = &self.source else { return };
        let now = Instant::now();
        let mut record = [0; RECORD];
        for _ in 0..MOST_RECORDS {
            match rustix::io::read(log, &mut record) {
                Ok(0) => break,
                Ok(length) => {
                    self.killed.extend(killed_pid(&record[..length]).map(|pid| (now, pid)));
                }
                // The oldest were overwritten before they were read; or a signal came.
                Err(Errno::PIPE | Errno::INTR) => {}
                // No record is left.
                Err(_) => break,
            }
        }
        self.killed.retain(|(at, _)| now.duration_since(*at) < REMEMBERED);
        let surplus = self.killed.len().saturating_sub(MOST_KILLED);
        self.killed.drain(..surplus);
    }
}

/// The pid of an OOM kill, if this record is one: `PRIORITY,NUMBER,TIME,FLAGS;TEXT`.
fn killed_pid(record: &[u8]) -> Option<u32> {
    let record = std::str::from_utf8(record).ok()?;
    let (head, text) = record.split_once(';')?;
    // Records of programs have a facility; the kernel's own is 0.
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    if priority >= 8 {
        return None;
    }
    let digits = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    if text.starts_with("oom-kill:") {
        // A program's name may contain anything, but the text after it is the kernel's.
        return text.rsplit_once(",pid=").and_then(|(_, pid)| digits(pid));
    }
    let (why, victim) = text.split_once(": Killed process ")?;
    let lower = why.to_ascii_lowercase();
    lower.contains("out of memory").then(|| digits(victim)).flatten()
}

/// The fallback: the number of OOM kills of each cgroup.
#[derive(Debug, Default)]
struct OomCounters {
    /// The counter file of each watched process. It cannot be found after the exit.
    files: HashMap<Id, PathBuf>,
    /// The counter of each file, as far as its kills are attributed.
    known: HashMap<PathBuf, u64>,
}

impl OomCounters {
    fn watch(&mut self, id: Id) {
        let Ok(groups) = fs::read_to_string(format!("/proc/{}/cgroup", id.pid)) else { return };
        let file = counter_files(&groups).into_iter().find(|file| read_count(file).is_some());
        if let Some(file) = file {
            self.watch_in(id, file);
        }
    }

    fn watch_in(&mut self, id: Id, file: PathBuf) {
        if !self.known.contains_key(&file) {
            self.known.insert(file.clone(), read_count(&file).unwrap_or_default());
        }
        self.files.insert(id, file);
    }

    /// Whether the counter has a kill that was not attributed yet.
    fn ended(&mut self, id: Id, by_kill: bool) -> bool {
        let Some(file) = self.files.remove(&id) else { return false };
        let Some(known) = self.known.get_mut(&file).filter(|_| by_kill) else { return false };
        let more = read_count(&file).is_some_and(|count| count > *known);
        *known += u64::from(more);
        more
    }

    /// Attributes unexplained kills to processes that are not watched: the exits of watched ones are checked
    /// at once.
    fn update(&mut self) {
        self.known.retain(|file, _| self.files.values().any(|used| used == file));
        for (file, known) in &mut self.known {
            *known = read_count(file).unwrap_or(*known);
        }
    }
}

/// The files that may count the kills of a process's memory cgroup, by its `/proc/PID/cgroup`.
fn counter_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if controllers.split(',').any(|controller| controller == "memory") {
            files.insert(0, Path::new("/sys/fs/cgroup/memory").join(path).join("memory.oom_control"));
        }
        if number == "0" && controllers.is_empty() {
            for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                let group = Path::new(root).join(path);
                // A kill in a group below is not this process's.
                files.extend([group.join("memory.events.local"), group.join("memory.events")]);
            }
        }
    }
    files
}

fn read_count(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only records of the kernel itself name OOM kills.
    #[test]
    fn fuzzed_records_of_the_log() {
        let good = [
            "6,1202,85412345678,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=tail,pid=14302,uid=0\n",
            "3,88,1234,-;Out of memory: Killed process 77 (java) total-vm:1kB, anon-rss:1kB\n",
            "12,5,6,-;Out of memory: Killed process 1 (init)\n",
        ];
        procfleet_testkit::fuzz::Fuzz::cases(20_000).text(&good, |record| {
            if let Some(pid) = killed_pid(record.as_bytes()) {
                assert!(record.contains(&pid.to_string()) || record.contains('0'), "{record:?}");
                let facility = record.split([',', ';']).next().and_then(|digits| digits.parse::<u32>().ok());
                assert!(facility.is_some_and(|facility| facility < 8), "{record:?}");
            }
        });
    }

    /// Recorded from kernels 5.10 and 6.18, and similar records that are not OOM kills.
    #[test]
    fn the_kernel_log_names_the_killed_process() {
        for (record, expected) in [
            (
                "6,1202,85412345678,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/eat,task_memcg=/eat,task=tail,pid=14302,uid=0\n",
                Some(14302),
            ),
            (
                "3,1203,85412345699,-;Memory cgroup out of memory: Killed process 14302 (tail) total-vm:20088kB, anon-rss:15360kB, file-rss:1664kB, shmem-rss:0kB, UID:0 pgtables:76kB oom_score_adj:0\n",
                Some(14302),
            ),
            (
                "3,88,1234,-;Out of memory: Killed process 77 (java) total-vm:1kB, anon-rss:1kB\n SUBSYSTEM=x\n",
                Some(77),
            ),
            (
                "3,88,1234,-;Out of memory (oom_kill_allocating_task): Killed process 78 (java) total-vm:1kB\n",
                Some(78),
            ),
            // A program may choose its name.
            (
                "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=a,pid=1,uid=0,pid=99,uid=1000\n",
                Some(99),
            ),
            // Written into the log by a program.
            ("12,5,6,-;Out of memory: Killed process 1 (init)\n", None),
            ("6,5,6,-;tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n", None),
            ("6,5,6,-;usb 1-1: Killed process 7\n", None),
            ("3,5,6,-;Out of memory: Killed process many\n", None),
            ("", None),
            ("no record", None),
        ] {
            assert_eq!(killed_pid(record.as_bytes()), expected, "{record}");
        }
        assert_eq!(killed_pid(&[b'3', b';', 0xff]), None);
    }

    #[test]
    fn counters_are_looked_for_where_the_process_is() {
        let files = |groups: &str| -> Vec<String> {
            counter_files(groups).iter().map(|file| file.display().to_string()).collect()
        };
        assert_eq!(
            files("0::/system.slice/web.service\n"),
            [
                "/sys/fs/cgroup/system.slice/web.service/memory.events.local",
                "/sys/fs/cgroup/system.slice/web.service/memory.events",
                "/sys/fs/cgroup/unified/system.slice/web.service/memory.events.local",
                "/sys/fs/cgroup/unified/system.slice/web.service/memory.events",
            ]
        );
        let first = "9:name=systemd:/\n4:cpu,memory:/web:1\n0::/\n";
        assert_eq!(files(first)[0], "/sys/fs/cgroup/memory/web:1/memory.oom_control");
        assert_eq!(files("nonsense\n"), [""; 0]);
    }

    #[test]
    fn each_kill_that_was_counted_is_one_death() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let file = folder.path().join("memory.events");
        let count = |number: u64| {
            fs::write(&file, format!("low 0\noom 9\noom_kill {number}\noom_group_kill 0\n")).expect("ours");
        };
        let id = |pid| Id { pid, start_ticks: 1 };
        let mut counters = OomCounters::default();
        count(5);
        (1..=4).for_each(|pid| counters.watch_in(id(pid), file.clone()));
        assert!(!counters.ended(id(1), true), "somebody else has killed it");
        count(6);
        assert!(!counters.ended(id(2), false), "it has ended by itself");
        assert!(counters.ended(id(3), true));
        assert!(!counters.ended(id(4), true), "there was one kill");
        assert!(!counters.ended(id(5), true), "nobody knows it");
        counters.watch_in(id(6), file.clone());
        count(7);
        counters.update();
        assert!(!counters.ended(id(6), true), "that was long ago, and another");
        counters.update();
        assert!(counters.known.is_empty() && counters.files.is_empty());
    }
}
