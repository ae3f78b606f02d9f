//! A process as the agent knows it, the result of a look, and the exit of a process.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU64;

/// A live process that is ours. A pid alone is never enough: the start time distinguishes it from a later
/// process with the same pid. While the agent runs, `exec` holds a pidfd; for the next agent process there is
/// the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks between the host's boot and the process's start.
    pub start_ticks: u64,
    pub found: Found,
    #[serde(default, skip_serializing_if = "Evidence::is_none")]
    pub evidence: Evidence,
}

impl Process {
    /// The process as it counts after its check: the shell of a command then counts as the command.
    pub fn counted(self) -> Process {
        match self.found {
            Found::Shell | Found::CommandChild => Process { found: Found::Foreground, ..self },
            Found::PidFile | Found::Foreground | Found::Name => self,
        }
    }

    /// The process as it is known outside its launch, where a child of the command counts as the command.
    pub fn child_as_foreground(self) -> Process {
        match self.found {
            Found::CommandChild => Process { found: Found::Foreground, ..self },
            Found::PidFile | Found::Foreground | Found::Shell | Found::Name => self,
        }
    }

    /// Whether this is the same process, however it was found and whatever program it runs now.
    pub fn is(&self, other: &Process) -> bool {
        self.pid == other.pid
            && self.start_ticks == other.start_ticks
            && self.evidence.serial.zip(other.evidence.serial).is_none_or(|(one, another)| one == another)
    }

    /// Whether a process with the same pid and start time is the known process. All known properties must
    /// agree: start times have a resolution of 10 ms, within which the kernel may reuse a pid.
    pub fn is_confirmed_by(&self, seen: &Evidence) -> bool {
        match (self.evidence.serial.zip(seen.serial), self.evidence.program.zip(seen.program)) {
            // A process that runs another program by now keeps its number.
            (Some((known, seen)), _) => known == seen,
            (None, Some((known, seen))) => known == seen,
            (None, None) => true,
        }
    }
}

/// Further properties of a process from the kernel. A property that the kernel does not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Evidence {
    /// A number that no other process has between two boots of the host (Linux 6.9 and later).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<NonZeroU64>,
    /// The file that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramFile>,
    /// When the command began that has started the process, in milliseconds since the host's boot: the agent
    /// leaves this number in the environment of the command and in the name of its cgroup. A later command of
    /// the same proc has a greater number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<NonZeroU64>,
}

impl Evidence {
    fn is_none(&self) -> bool {
        *self == Evidence::default()
    }
}

/// A file identified by a hash of device and inode, because its name may be reused. One number saves memory:
/// each process in each state has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProgramFile(NonZeroU64);

impl ProgramFile {
    /// The same file has the same number. Two files collide with a probability of 2^-64.
    pub fn at(device: u64, inode: u64) -> ProgramFile {
        // Multiplication by an odd factor loses no bits, and moves the low bits of the device to where inodes
        // have none.
        let mixed = device.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32) ^ inode;
        ProgramFile(NonZeroU64::new(mixed).unwrap_or(NonZeroU64::MAX))
    }
}

/// How a process was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Found {
    /// By its pid file.
    PidFile,
    /// The process is the command that the agent started, or the program that the command's shell waits for.
    Foreground,
    /// A start command that is at work has started the process, and does more than wait for it. Only a launch
    /// makes this difference; it is never stored.
    CommandChild,
    /// The process is the shell of a start command, or a start command whose pid file does not exist yet. The
    /// real process may still appear.
    Shell,
    /// By its program's name.
    Name,
}

/// The answer to "is it running?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    Running(Process),
    Absent(Absence),
}

/// Not running, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    pub cause: Cause,
    /// Whether the process certainly cannot appear later: the command was a program with the proc's name, all
    /// its descendants have exited, and no pid file names a process.
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
    /// The process matches the spec, except for its account.
    AnotherAccounts {
        path: String,
        pid: u32,
        user: String,
    },
    /// The process was started for another proc.
    AnotherProcs {
        path: String,
        pid: u32,
        proc: String,
    },
    /// The process was started by another agent on this host, which still runs.
    AnotherAgents {
        path: String,
        pid: u32,
        proc: String,
    },
    /// Another account may have written the pid file, and there is no other evidence that the process is
    /// ours.
    Untrusted {
        path: String,
        pid: u32,
        reason: String,
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
            Cause::AnotherProcs { path, pid, proc } => {
                write!(f, "pid file {path} names pid {pid}, which was started for {proc}")
            }
            Cause::AnotherAgents { path, pid, proc } => {
                write!(
                    f,
                    "pid file {path} names pid {pid}, which another agent on this host has started for {proc}"
                )
            }
            Cause::Untrusted { path, pid, reason } => {
                write!(
                    f,
                    "pid file {path} names pid {pid}, which this agent did not start, and is not believed: {reason}"
                )
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
    /// By this signal, with a core dump.
    Dumped(i32),
    /// The kernel's OOM killer killed it.
    OutOfMemory,
    /// The process was not our child, and the kernel did not report its status.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_pid_with_the_same_start_time_is_another_process() {
        let file = |inode| Some(ProgramFile::at(1, inode));
        let evidence = |serial: Option<u64>, program| Evidence {
            serial: serial.and_then(NonZeroU64::new),
            program,
            run: None,
        };
        for (known, seen, confirmed, is) in [
            (evidence(Some(5), file(1)), evidence(Some(5), file(1)), true, true),
            (evidence(Some(5), file(1)), evidence(Some(6), file(1)), false, false),
            // The process has executed another program.
            (evidence(Some(5), file(1)), evidence(Some(5), file(2)), true, true),
            // A kernel without process serial numbers: the program decides.
            (evidence(None, file(1)), evidence(None, file(1)), true, true),
            (evidence(None, file(1)), evidence(None, file(2)), false, true),
            // A record of an earlier version, or a program that the agent may not read.
            (evidence(None, None), evidence(Some(5), file(1)), true, true),
            (evidence(Some(5), file(1)), evidence(None, None), true, true),
        ] {
            let process = |evidence| Process { pid: 7, start_ticks: 11, found: Found::PidFile, evidence };
            assert_eq!(process(known).is_confirmed_by(&seen), confirmed, "{known:?} {seen:?}");
            assert_eq!(process(known).is(&process(seen)), is, "{known:?} {seen:?}");
        }
    }
}
