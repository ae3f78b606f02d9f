//! A process as the agent knows it, what was seen when it was looked for, and how it ended.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A live process that is ours. A pid alone is never enough: the start time tells it from a later process with
/// the same number, and while the agent runs a pidfd (held by `exec`) tells the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks between the host's boot and the process's start.
    pub start_ticks: u64,
    pub found: Found,
}

impl Process {
    /// The same process, however it was found.
    pub fn is(&self, other: &Process) -> bool {
        self.pid == other.pid && self.start_ticks == other.start_ticks
    }
}

/// How a process came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Found {
    /// By its pid file.
    PidFile,
    /// It is the command that the agent started, or that command's own child.
    Foreground,
    /// By its program's name.
    Name,
}

/// The answer to "is it running?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    Running(Process),
    Absent(Absence),
}

/// Not running, and what was seen instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    pub cause: Cause,
    /// True when it is certain that it will not appear any more: all that the command started has ended, and
    /// no pid file points anywhere.
    pub hopeless: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    NoPidFile {
        path: String,
    },
    BadPidFile {
        path: String,
        reason: String,
    },
    DeadPid {
        path: String,
        pid: u32,
    },
    Stranger {
        path: String,
        pid: u32,
        program: String,
    },
    /// It fits the spec in all but its owner.
    AnotherAccounts {
        path: String,
        pid: u32,
        user: String,
    },
    NoSuchName {
        proc_name: String,
        setup_path: String,
    },
    /// The spec names neither a pid file nor a program.
    NoIdentity,
    /// A periodic process between two runs.
    NoRun,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::NoPidFile { path } => write!(f, "pid file {path} does not exist"),
            Cause::BadPidFile { path, reason } => write!(f, "pid file {path} cannot be used: {reason}"),
            Cause::DeadPid { path, pid } => {
                write!(f, "pid file {path} names pid {pid}, which is not running")
            }
            Cause::Stranger { path, pid, program } => {
                write!(f, "pid file {path} names pid {pid}, which is another program ({program})")
            }
            Cause::AnotherAccounts { path, pid, user } => {
                write!(f, "pid file {path} names pid {pid}, which is not a process of user {user:?}")
            }
            Cause::NoSuchName { proc_name, setup_path } => {
                write!(f, "no process {proc_name} runs from {setup_path}")
            }
            Cause::NoRun => f.write_str("no run is under way"),
            Cause::NoIdentity => f.write_str("the spec names neither a pid file nor a program"),
        }
    }
}

/// How a process or a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// By this signal, and the kernel wrote its memory down.
    Dumped(i32),
    /// The kernel killed it, for there was no memory left.
    OutOfMemory,
    /// It was not our child, and the kernel would not tell.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exited with status {code}"),
            Exit::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Exit::Dumped(signal) => write!(f, "was ended by signal {signal} and dumped core"),
            Exit::OutOfMemory => f.write_str("was killed by the kernel: out of memory"),
            Exit::Unknown => f.write_str("ended with an unknown status"),
        }
    }
}
