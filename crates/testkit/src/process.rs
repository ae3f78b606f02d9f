//! Processes seen from outside: whether they run, whose they are, and their end.

use crate::program::Program;
use crate::wait::{PATIENCE, wait_until};
use rustix::process::{Pid, Signal};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

thread_local! {
    /// Start times of the processes whose pids this test knows.
    static REMEMBERED: RefCell<HashMap<u32, u64>> = RefCell::default();
}

/// Whether there is such a process; zombies do not count. Another process that got the pid of a process that
/// this thread has remembered does not count either, because a test that chooses pids lets the kernel reuse
/// them at once.
pub fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.is_alive() && is_remembered(pid, &stat))
}

/// Whether SIGSTOP has stopped the process.
pub(crate) fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.state == 'T')
}

/// True, too, for a pid that this thread has not remembered.
fn is_remembered(pid: u32, stat: &Stat) -> bool {
    REMEMBERED.with_borrow(|known| known.get(&pid).is_none_or(|start_time| *start_time == stat.start_time))
}

/// Binds the pid, for this thread, to the process that has it now. The functions that return a pid call this
/// themselves.
pub fn remember(pid: u32) -> u32 {
    REMEMBERED.with_borrow_mut(|known| match start_time(pid) {
        Some(start_time) => known.insert(pid, start_time),
        None => known.remove(&pid),
    });
    pid
}

/// In clock ticks since the machine was started: with the pid it tells a process from its successor.
pub fn start_time(pid: u32) -> Option<u64> {
    stat(pid).map(|stat| stat.start_time)
}

pub fn kill(pid: u32, signal: Signal) {
    // A process that has ended already is fine, and another process that has its pid now is not touched.
    if stat(pid).is_some_and(|stat| !is_remembered(pid, &stat)) {
        return;
    }
    let _ = rustix::process::kill_process(raw(pid), signal);
}

/// A pid that was in use shortly before and is free now.
pub fn dead_pid() -> u32 {
    let finished = Program::new("/bin/true").run();
    wait_until(PATIENCE, "a process is gone", || stat(finished.pid).is_none());
    finished.pid
}

/// Calls `start` until the started process has this pid. `None`: other processes always took the pid first.
/// An error: the kernel does not let us choose.
///
/// Afterwards the kernel continues with the pids that it had reached. Otherwise the next processes of this
/// machine would get pids that were in use shortly before, and a test that waits until a pid is gone would
/// wait for another process.
pub fn with_pid<T>(
    pid: u32,
    mut start: impl FnMut() -> T,
    pid_of: impl Fn(&T) -> u32,
) -> std::io::Result<Option<T>> {
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    for _ in 0..500 {
        let reached = fs::read(LAST)?;
        fs::write(LAST, (pid - 1).to_string())?;
        let started = start();
        fs::write(LAST, reached)?;
        if pid_of(&started) == pid {
            remember(pid);
            return Ok(Some(started));
        }
    }
    Ok(None)
}

/// The account that the tests run as.
pub fn account() -> String {
    let me = rustix::process::geteuid().as_raw().to_string();
    let accounts = fs::read_to_string("/etc/passwd").expect("the machine has accounts");
    let mine = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mine = mine.filter(|fields| fields.get(2) == Some(&me.as_str())).map(|fields| fields[0].to_owned());
    mine.into_iter().next().expect("the tests run as an account that has a name")
}

/// The processes that were started for the proc `namespace:name` and its other instances, by the mark that
/// the agent leaves in their environment. A proc whose name only has this prefix does not count.
pub fn pids_marked(proc: &str) -> Vec<u32> {
    marked(|key| key.strip_prefix(proc).is_some_and(|rest| rest.is_empty() || rest.starts_with('#')))
}

/// The processes with a mark whose `namespace:name` satisfies the condition.
fn marked(is_wanted: impl Fn(&str) -> bool) -> Vec<u32> {
    let bears = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variables = String::from_utf8_lossy(&environment);
        let mut marks = variables.split('\0').filter_map(|variable| variable.strip_prefix("PROCFLEET_PROC="));
        // The part before the slash is internal to the agent.
        marks.any(|mark| is_wanted(mark.split_once('/').map_or(mark, |(_, key)| key)))
    };
    let is_alive = |pid: &u32| stat(*pid).is_some_and(|stat| stat.is_alive());
    all().into_iter().filter(bears).filter(is_alive).collect()
}

/// The running children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| stat(*pid).is_some_and(|stat| stat.parent == parent && stat.is_alive());
    all().into_iter().filter(is_child).collect()
}

/// Kills the programs that were given this argument.
pub(crate) fn kill_with_argument(argument: &Path) {
    let argument = argument.to_str().expect("a plain path").as_bytes();
    let given = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument)
    };
    all().into_iter().filter(given).for_each(|pid| kill(pid, Signal::KILL));
}

/// Kills processes with a working directory in this folder or below, including those without a mark.
pub(crate) fn kill_working_in(folder: &Path) {
    let works_there = |pid: &u32| {
        *pid != std::process::id()
            && fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
    };
    all().into_iter().filter(works_there).for_each(|pid| kill(pid, Signal::KILL));
}

/// Kills all processes of a namespace, and repeats that for processes that were forked meanwhile.
pub fn kill_marked(namespace: &str) {
    for _ in 0..100 {
        let prefix = format!("{namespace}:");
        let marked = marked(|key| key.starts_with(&prefix));
        if marked.is_empty() {
            return;
        }
        marked.into_iter().for_each(|pid| kill(pid, Signal::KILL));
    }
}

/// A process that procfleet must not touch. It ends with the test.
#[derive(Debug)]
pub struct Stranger(Program);

impl Stranger {
    /// `tail -f /dev/null`: nothing that a test starts is called that.
    pub fn start(folder: &Path) -> Stranger {
        let mut program = Program::new("tail").args(["-f", "/dev/null"]).current_dir(folder);
        program.start();
        Stranger(program)
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    #[track_caller]
    pub fn assert_unharmed(&mut self) {
        assert!(self.0.is_running(), "the stranger was ended");
    }
}

struct Stat {
    state: char,
    parent: u32,
    start_time: u64,
}

impl Stat {
    fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

fn stat(pid: u32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let fields: Vec<&str> = line.rsplit_once(") ")?.1.split(' ').collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("this is Linux").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn raw(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid of this machine")
}
