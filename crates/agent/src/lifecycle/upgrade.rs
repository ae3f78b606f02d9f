//! `procfleet agent upgrade`: replaces the program of a running agent without losing or doubling a process,
//! and rolls back if the new program does not come up.
//!
//! First the new program must show that it runs on this machine, is not older, and can read this agent's
//! journal. Then it replaces the old file atomically, the old one stays beside it, and SIGHUP makes the agent
//! re-execute itself: the pid and the children stay.

use crate::config::AgentFolder;
use crate::lifecycle::life::AgentLife;
use crate::{VERSION, journal};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Timeout for questions to the new program.
const QUESTION: Duration = Duration::from_secs(20);
/// Interval of checks while the agent re-executes itself.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(clap::Args, Debug)]
pub struct Upgrade {
    /// The new program: procfleet or procfleet-agent, whichever the agent runs now
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    #[command(flatten)]
    folder: AgentFolder,
    /// Take an older version too, if it can read the journal
    #[arg(long)]
    allow_downgrade: bool,
    /// Seconds for the new program to come up before the old one is put back
    #[arg(long, value_name = "SECS", default_value_t = 30)]
    timeout: u64,
}

/// Why there was no upgrade. Only the last two changed something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    #[error("no agent runs on {}: replace its program and start it", .0.display())]
    NotRunning(PathBuf),
    #[error("reading {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a program for this machine", .0.display())]
    NotForUs(PathBuf),
    #[error("{} is not procfleet: {reason}", path.display())]
    NotProcfleet { path: PathBuf, reason: String },
    #[error("the agent runs as {now}, and {} is {offered}", path.display())]
    AnotherProgram { path: PathBuf, now: String, offered: String },
    #[error("{} is {offered}, which is older than {now}; use --allow-downgrade to install it anyway", path.display())]
    Older { path: PathBuf, now: Version, offered: Version },
    #[error("{} cannot take up this agent: {reason}", path.display())]
    CannotTakeUp { path: PathBuf, reason: String },
    #[error("installing the new program as {}", path.display())]
    Install { path: PathBuf, source: io::Error },
    #[error("{reason}; {} is as it was{and_agent}", path.display())]
    RolledBack { reason: String, path: PathBuf, and_agent: &'static str },
    #[error("{reason}, and {} could not be put back", path.display())]
    NotRolledBack { reason: String, path: PathBuf, source: io::Error },
}

/// Three numbers, as `--version` prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version([u64; 3]);

impl Version {
    fn read(text: &str) -> Option<Version> {
        let plain = text.trim().split(['-', '+']).next()?;
        let mut numbers = plain.split('.').map(|number| number.parse().ok());
        let three = [numbers.next()??, numbers.next()??, numbers.next()??];
        numbers.next().is_none().then_some(Version(three))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Upgrades, and returns a text for the operator.
pub(crate) fn upgrade(upgrade: &Upgrade) -> Result<String, UpgradeError> {
    let Upgrade { binary, folder, allow_downgrade, timeout } = upgrade;
    let folder = &folder.data;
    let now = AgentLife::read(folder).ok_or_else(|| UpgradeError::NotRunning(folder.clone()))?;
    let offered = examine(binary, folder, &now)?;
    let old = Version::read(&now.version).unwrap_or(Version([0; 3]));
    if offered < old && !allow_downgrade {
        return Err(UpgradeError::Older { path: binary.clone(), now: old, offered });
    }
    let installed = InstalledProgram::of(&now.program);
    let running = PathBuf::from(format!("/proc/{}/exe", now.pid));
    installed
        .take(binary, &running)
        .map_err(|source| UpgradeError::Install { path: now.program.clone(), source })?;
    let timeout = Duration::from_secs(*timeout);
    match reexecuted(folder, &now, timeout) {
        Ok(life) => Ok(format!(
            "the agent runs {} (it was {}) as pid {}; {} procs were taken up; the old program is {}",
            life.version,
            now.version,
            life.pid,
            life.procs,
            installed.previous.display()
        )),
        Err(reason) => Err(back(folder, &now, &installed, reason, timeout)),
    }
}

/// `procfleet agent check`: whether this program can take up the agent of the folder.
pub(crate) fn check(folder: &Path) -> Result<String, journal::JournalError> {
    let procs = journal::examine(&folder.join(journal::FILE))?;
    Ok(format!("procfleet {VERSION} can take up the agent of {} with {procs} procs", folder.display()))
}

/// The version of the new program, if it can run here.
fn examine(binary: &Path, folder: &Path, now: &AgentLife) -> Result<Version, UpgradeError> {
    let path = || binary.to_owned();
    let ours =
        head(Path::new("/proc/self/exe")).map_err(|source| UpgradeError::Read { path: path(), source })?;
    let theirs = head(binary).map_err(|source| UpgradeError::Read { path: path(), source })?;
    if ours != theirs {
        return Err(UpgradeError::NotForUs(path()));
    }
    let printed =
        ask(binary, &["--version"]).map_err(|reason| UpgradeError::NotProcfleet { path: path(), reason })?;
    let not_procfleet = || UpgradeError::NotProcfleet {
        path: path(),
        reason: format!("`--version` printed {:?}", printed.lines().next().unwrap_or_default()),
    };
    let (name, version) = printed.trim().split_once(' ').ok_or_else(not_procfleet)?;
    let version = Version::read(version).ok_or_else(not_procfleet)?;
    let running = name_of(&now.program);
    if name != running {
        return Err(UpgradeError::AnotherProgram { path: path(), now: running, offered: name.to_owned() });
    }
    let folder = folder.to_string_lossy();
    let mut question = vec!["check", "--data", &folder];
    if name == "procfleet" {
        question.insert(0, "agent");
    }
    ask(binary, &question).map_err(|reason| UpgradeError::CannotTakeUp { path: path(), reason })?;
    Ok(version)
}

/// As it calls itself: the file may have any name.
fn name_of(program: &Path) -> String {
    let printed = ask(program, &["--version"]).unwrap_or_default();
    printed.split(' ').next().unwrap_or_default().to_owned()
}

/// The part of an ELF file that names its machine.
fn head(path: &Path) -> io::Result<[u8; 20]> {
    let mut head = [0; 20];
    File::open(path)?.take(20).read_exact(&mut head).or_else(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Ok(()),
        _ => Err(error),
    })?;
    // e_type: executables may be position independent or not.
    head[16..18].fill(0);
    Ok(head)
}

/// Runs the program with a question, and returns its answer.
#[expect(clippy::disallowed_methods, reason = "the agent's own program, and not one that it looks after")]
fn ask(program: &Path, question: &[&str]) -> Result<String, String> {
    let mut command = std::process::Command::new(program);
    command.args(question).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let asked = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if asked.elapsed() < QUESTION => pause(),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it has not answered within {} s", QUESTION.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let read = |stream: Option<&mut dyn Read>| {
        let mut text = Vec::new();
        let _ = stream.map(|stream| stream.take(4096).read_to_end(&mut text));
        String::from_utf8_lossy(&text).trim().to_owned()
    };
    match status.success() {
        true => Ok(read(child.stdout.as_mut().map(|stream| stream as &mut dyn Read))),
        false => {
            let printed = read(child.stderr.as_mut().map(|stream| stream as &mut dyn Read));
            Err(if printed.is_empty() { status.to_string() } else { printed })
        }
    }
}

/// The file of the agent's program, and its backup.
struct InstalledProgram {
    program: PathBuf,
    previous: PathBuf,
}

impl InstalledProgram {
    fn of(program: &Path) -> InstalledProgram {
        let beside = |ending: &str| {
            let mut name = program.file_name().unwrap_or_default().to_owned();
            name.push(ending);
            program.with_file_name(name)
        };
        InstalledProgram { program: program.to_owned(), previous: beside(".previous") }
    }

    /// Replaces the old program atomically; the running one stays beside it. A start at any time finds a
    /// complete program.
    fn take(&self, binary: &Path, running: &Path) -> io::Result<()> {
        self.keep(running)?;
        if is_same_file(binary, &self.program) {
            // The new program is already installed, and only needs to be executed.
            return Ok(());
        }
        let draft = self.program.with_extension("new");
        fs::copy(binary, &draft)?;
        fs::set_permissions(&draft, fs::metadata(&self.program)?.permissions())?;
        File::open(&draft)?.sync_all()?;
        fs::rename(&draft, &self.program)?;
        sync_folder(&self.program)
    }

    /// The running program may differ from the installed file: an upgrade was interrupted, or the file was
    /// replaced by hand. The rollback needs the program that is known to work.
    fn keep(&self, running: &Path) -> io::Result<()> {
        if is_same_file(running, &self.previous) {
            return Ok(());
        }
        let _ = fs::remove_file(&self.previous);
        if is_same_file(running, &self.program) {
            return fs::hard_link(&self.program, &self.previous);
        }
        fs::copy(running, &self.previous)?;
        fs::set_permissions(&self.previous, fs::metadata(&self.program)?.permissions())?;
        File::open(&self.previous)?.sync_all()
    }

    fn put_back(&self) -> io::Result<()> {
        fs::rename(&self.previous, &self.program)?;
        sync_folder(&self.program)
    }
}

fn sync_folder(of: &Path) -> io::Result<()> {
    File::open(of.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let file_id = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).ok().map(|data| (data.dev(), data.ino()))
    };
    file_id(one).is_some() && file_id(one) == file_id(other)
}

/// Makes the agent re-execute its file, and waits until it is ready.
fn reexecuted(folder: &Path, old: &AgentLife, timeout: Duration) -> Result<AgentLife, String> {
    signal(old, Signal::HUP).map_err(|error| format!("cannot send SIGHUP to the agent: {error}"))?;
    let signalled_at = Instant::now();
    loop {
        if let Some(life) = AgentLife::read(folder).filter(|life| life.ready_at_millis != old.ready_at_millis)
        {
            return Ok(life);
        }
        if signalled_at.elapsed() >= timeout {
            return Err(format!("the new program was not ready within {} s", timeout.as_secs()));
        }
        pause();
    }
}

/// Puts the old program back, and kills a new one that hangs, so that the service manager starts the old one.
fn back(
    folder: &Path,
    old: &AgentLife,
    installed: &InstalledProgram,
    reason: String,
    timeout: Duration,
) -> UpgradeError {
    let path = installed.program.clone();
    if let Err(source) = installed.put_back() {
        return UpgradeError::NotRolledBack { reason, path, source };
    }
    // The process is the same whatever it executes; killing it ends none of its children.
    let _ = signal(old, Signal::KILL);
    let began = Instant::now();
    while began.elapsed() < timeout {
        if AgentLife::read(folder).is_some_and(|life| life.ready_at_millis != old.ready_at_millis) {
            let and_agent = ", and the agent runs it again";
            return UpgradeError::RolledBack { reason, path, and_agent };
        }
        pause();
    }
    let and_agent = "; the agent has ended and nobody started it again: its processes go on, start it";
    UpgradeError::RolledBack { reason, path, and_agent }
}

fn signal(life: &AgentLife, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(life.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    // Read after the pidfd was opened, so the pidfd refers to this process or to none.
    if crate::exec::start_ticks(life.pid) != Some(life.start_ticks) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(pidfd_send_signal(pidfd, signal)?)
}

#[expect(clippy::disallowed_methods, reason = "another process can only be asked again and again")]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let version = |text: &str| Version::read(text);
        assert!(version("0.10.0") > version("0.9.9") && version("1.0.0-rc.1") == version("1.0.0"));
        for text in ["", "1", "1.2", "1.2.3.4", "a.b.c", "1.2.x"] {
            assert_eq!(version(text), None, "{text}");
        }
        assert_eq!(version("1.2.3\n").map(|version| version.to_string()).as_deref(), Some("1.2.3"));
    }

    #[test]
    fn a_script_is_refused_as_a_new_program() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let script = folder.path().join("script");
        fs::write(&script, "#!/bin/sh\n").expect("our own folder");
        let ours = head(Path::new("/proc/self/exe")).expect("we run");
        assert_ne!(head(&script).expect("readable"), ours);
        assert_eq!(head(Path::new("/bin/sh")).expect("readable"), ours);
    }

    #[test]
    fn a_file_is_replaced_in_one_step_and_put_back() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let [program, new, newer] = ["procfleet", "fresh", "fresher"].map(|name| folder.path().join(name));
        for (path, text) in [(&program, "old"), (&new, "new"), (&newer, "newer")] {
            fs::write(path, text).expect("our own folder");
        }
        let installed = InstalledProgram::of(&program);
        installed.take(&new, &program).expect("our own folder");
        let read = |path: &Path| fs::read_to_string(path).expect("it is there");
        assert_eq!((read(&program).as_str(), read(&installed.previous).as_str()), ("new", "old"));
        // The upgrade was interrupted, and the agent still runs the old program: that is the one to go back
        // to.
        installed.take(&newer, &installed.previous).expect("our own folder");
        assert_eq!((read(&program).as_str(), read(&installed.previous).as_str()), ("newer", "old"));
        installed.put_back().expect("our own folder");
        assert_eq!((read(&program).as_str(), installed.previous.exists()), ("old", false));
        // The new program was put in place by hand, and the old one exists only in the kernel.
        let kernels = folder.path().join("exe");
        fs::rename(&program, &kernels).and_then(|()| fs::copy(&new, &program)).expect("our own folder");
        installed.take(&program, &kernels).expect("our own folder");
        assert_eq!((read(&program).as_str(), read(&installed.previous).as_str()), ("new", "old"));
    }
}
