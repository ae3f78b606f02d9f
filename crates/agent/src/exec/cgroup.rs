//! The cgroups of this agent's procs, where the host has cgroup v2 and the agent may create groups.
//!
//! ```text
//! GROUP OF THE AGENT/procfleet-INSTANCE/KEY/run-BEGAN-RUN
//! ```
//!
//! Each run of a command has a group, below the group of its proc. All descendants of the command stay in it,
//! whatever they do to their session, parents and environment, and `cgroup.kill` ends all of them at once. No
//! controllers are needed or enabled. Every process in the group belongs to the proc, even if it was moved
//! there by hand; only the agent and its parents are spared. A probe has no group.
//!
//! The groups outlive the agent, as the processes do. Their path is stored in the agent's data folder, so
//! that the next agent process finds them even if it is started in another cgroup. `rmdir` of a group with
//! processes fails, which is also the test for an empty group.

use crate::exec::error::ExecError;
use crate::exec::watch::pidfd;
use procfleet_core::BootTime;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Signal, geteuid};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// How the processes of a proc are tracked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Containment {
    /// Cgroups where the host allows them, else as `tree`
    #[default]
    Auto,
    /// A cgroup for each proc; without them the agent does not start
    Cgroup,
    /// Descent, sessions and a variable in the environment
    Tree,
}

/// The file with the folders of the groups: one in each line, the present one first.
const ROOTS_FILE: &str = ".cgroup";
/// Prefix of the folders of all agents.
const PREFIX: &str = "procfleet-";
/// Number of pidfds that are open at once while the processes of a group are signalled.
const SIGNALLED_AT_ONCE: usize = 64;
/// Attempts to create a group that another program removes in between, because it was empty.
const TRIES: usize = 3;

/// The groups of all procs.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    /// Parent of new groups. `None`: groups are not available.
    root: Option<Arc<Path>>,
    /// An open file that shows other agents that the folder is in use.
    _in_use: Option<OwnedFd>,
    /// Groups without an executor, by the name of their proc.
    orphaned: Mutex<HashMap<String, Vec<PathBuf>>>,
    /// The folders of procs without running processes.
    idle: Mutex<HashSet<PathBuf>>,
    /// The groups of commands that have ended and have left something running.
    outlived: Mutex<HashSet<PathBuf>>,
}

impl Cgroups {
    /// `folder` is the agent's output folder, which stores the paths of its groups.
    pub(super) fn open(
        containment: Containment,
        folder: &Path,
        instance: &str,
    ) -> Result<Cgroups, ExecError> {
        let root: Option<Arc<Path>> = match containment {
            Containment::Tree => None,
            Containment::Auto | Containment::Cgroup => match find_root(instance) {
                Ok(root) => Some(Arc::from(root)),
                Err(reason) if containment == Containment::Cgroup => {
                    return Err(ExecError::NoCgroups { reason });
                }
                Err(reason) => {
                    tracing::info!(%reason, "cgroups are not available; processes are tracked by descent");
                    None
                }
            },
        };
        let file = folder.join(ROOTS_FILE);
        let known = fs::read_to_string(&file).unwrap_or_default();
        let mut roots: Vec<PathBuf> = root.iter().map(|root| root.to_path_buf()).collect();
        for old in known.lines().map(PathBuf::from) {
            if !roots.contains(&old) && is_group(&old) {
                roots.push(old);
            }
        }
        let mut orphaned: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for home in roots.iter().flat_map(|root| folders_in(root)) {
            let runs = folders_in(&home).into_iter().filter(|run| !remove(run)).collect::<Vec<_>>();
            let name = home.file_name().map(|name| name.to_string_lossy().into_owned());
            if let (Some(name), false) = (name, runs.is_empty() && remove(&home)) {
                orphaned.entry(name).or_default().extend(runs);
            }
        }
        roots.retain(|old| Some(old.as_path()) == root.as_deref() || !remove(old));
        let text: String = roots.iter().map(|root| format!("{}\n", root.display())).collect();
        if text != known
            && let Err(error) = fs::write(&file, text)
        {
            tracing::warn!(file = %file.display(), %error, "cannot write the path of the cgroups to the data folder; after a restart the agent may not find them");
        }
        let in_use = root.as_ref().and_then(|root| locked(root, FlockOperation::NonBlockingLockShared));
        Ok(Cgroups {
            root,
            _in_use: in_use,
            orphaned: Mutex::new(orphaned),
            idle: Mutex::default(),
            outlived: Mutex::default(),
        })
    }

    /// How processes are kept together, as the server knows it.
    pub(super) fn containment(&self) -> &'static str {
        if self.root.is_some() { "cgroup" } else { "tree" }
    }

    /// Everything that runs in any of the groups that no proc holds.
    pub(super) fn orphaned_pids(&self) -> HashSet<u32> {
        // Processes of a group that cannot be read are found by their marks.
        self.orphaned().values().flatten().flat_map(|group| pids_in(group).unwrap_or_default()).collect()
    }

    /// The groups of a proc. `name` is its own among all procs and fit for a file.
    pub(super) fn of(&self, name: Arc<str>) -> ProcCgroups {
        let mut groups = ProcCgroups { root: self.root.clone(), name, runs: Vec::new() };
        self.hand_over(&mut groups);
        groups
    }

    /// Moves the groups of this proc that no executor holds to `groups`.
    pub(super) fn hand_over(&self, groups: &mut ProcCgroups) {
        groups.runs.extend(self.orphaned().remove(&*groups.name).into_iter().flatten().map(Arc::from));
    }

    /// Takes over the groups of a proc whose executor was dropped.
    pub(super) fn give_back(&self, groups: &mut ProcCgroups) {
        groups.remove_empty();
        if !groups.runs.is_empty() {
            let runs = std::mem::take(&mut groups.runs).into_iter().map(|run| run.to_path_buf());
            self.orphaned().entry(groups.name.to_string()).or_default().extend(runs);
        }
    }

    /// Removes empty groups that no executor holds.
    pub(super) fn trim(&self) {
        let emptied: Vec<PathBuf> = self.outlived().extract_if(|group| remove(group)).collect();
        let homes = emptied.iter().filter_map(|group| Some(group.parent()?.to_owned()));
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(homes);
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        for home in idle {
            // Fails if a process runs in it again.
            let _ = rustix::fs::rmdir(home);
        }
        self.orphaned().retain(|_, runs| {
            let homes: HashSet<PathBuf> =
                runs.iter().filter_map(|run| Some(run.parent()?.to_owned())).collect();
            runs.retain(|run| !remove(run));
            homes.iter().for_each(|home| {
                remove(home);
            });
            !runs.is_empty()
        });
    }

    /// The command of a group has ended. Its group may be empty, or hold processes for years.
    pub(super) fn command_ended(&self, group: &Path) {
        if !remove(group) {
            self.outlived().insert(group.to_owned());
        } else if let Some(home) = group.parent() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).insert(home.to_owned());
        }
    }

    /// The last group of a proc is gone. Its folder is removed later, unless the proc is started again until
    /// then.
    pub(super) fn mark_idle(&self, groups: &ProcCgroups) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(groups.home());
    }

    fn outlived(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.outlived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphaned(&self) -> MutexGuard<'_, HashMap<String, Vec<PathBuf>>> {
        self.orphaned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cgroups {
    /// Ends no process: a group that is in use stays.
    fn drop(&mut self) {
        self.trim();
        self.root.iter().for_each(|root| {
            remove(root);
        });
    }
}

/// The groups of one proc.
#[derive(Debug)]
pub(super) struct ProcCgroups {
    name: Arc<str>,
    /// The parent of all procs' folders. `None`: groups are not available.
    root: Option<Arc<Path>>,
    /// Each path is shared with its run.
    runs: Vec<Arc<Path>>,
}

impl ProcCgroups {
    /// The proc's folder, the parent of its groups. Not stored: it would take memory for every proc.
    fn home(&self) -> Option<PathBuf> {
        self.root.as_ref().map(|root| root.join(&*self.name))
    }

    /// Creates a group for a run and opens it. `None`: groups are not available.
    pub(super) fn make(&mut self, began: BootTime, run: u64) -> Option<(Arc<Path>, OwnedFd)> {
        let home = self.home()?;
        // Processes that outlived their run may have ended since.
        if self.runs.len() > 1 {
            self.runs.retain(|group| !remove(group));
        }
        let group = home.join(format!("run-{}-{run}", began.0));
        let mut last = Errno::NOENT;
        for _ in 0..TRIES {
            match rustix::fs::mkdir(&group, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => {
                    let _ = fs::create_dir_all(&home);
                    continue;
                }
                Err(error) => {
                    last = error;
                    break;
                }
            }
            match rustix::fs::open(&group, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
                Ok(open) => {
                    let group: Arc<Path> = Arc::from(group);
                    // Most procs have one run.
                    self.runs.reserve_exact(1);
                    self.runs.push(group.clone());
                    return Some((group, open));
                }
                Err(error) => last = error,
            }
        }
        tracing::warn!(group = %group.display(), error = %last, "cannot create a cgroup; the command is tracked by descent");
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The proc's name among its groups.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether groups are available.
    pub(super) fn are_available(&self) -> bool {
        self.root.is_some()
    }

    pub(super) fn all(&self) -> Vec<Arc<Path>> {
        self.runs.clone()
    }

    /// The group that this process is in.
    pub(super) fn holding(&self, pid: u32) -> Option<&Path> {
        let holds = |group: &&Arc<Path>| pids_in(group).is_ok_and(|pids| pids.contains(&pid));
        self.runs.iter().find(holds).map(|group| &**group)
    }

    /// Groups with processes of which none `is_kept`. Removes empty groups; the folder of the proc stays for
    /// the next run. A group that cannot be read is neither empty nor left.
    pub(super) fn left(&mut self, is_kept: impl Fn(u32) -> bool) -> Vec<Arc<Path>> {
        self.runs.retain(|group| !remove(group));
        let abandoned = |group: &&Arc<Path>| pids_in(group).is_ok_and(|pids| !pids.into_iter().any(&is_kept));
        self.runs.iter().filter(abandoned).cloned().collect()
    }

    /// Everything that runs in the groups of the proc. An error: one of them cannot be read.
    pub(super) fn pids(&self) -> io::Result<HashSet<u32>> {
        pids_in_all(&self.runs)
    }

    fn remove_empty(&mut self) {
        self.runs.retain(|group| !remove(group));
        if self.runs.is_empty()
            && let Some(home) = self.home()
        {
            remove(&home);
        }
    }

    /// Removes the group of a run that has ended, if nothing of it is left.
    pub(super) fn forget_if_empty(&mut self, group: &Path) {
        if remove(group) {
            self.runs.retain(|run| **run != *group);
        }
    }
}

/// The agent and the proc that the cgroup of a process belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupHolder {
    pub(super) instance: String,
    /// The proc as its folder is called.
    pub(super) proc: String,
    /// When the command of the group began, in milliseconds since the host's boot.
    pub(super) run: Option<NonZeroU64>,
    /// The group as the kernel writes it.
    group: String,
}

impl CgroupHolder {
    /// Whether the agent of this instance, which is our own, has made the group. A user with delegated
    /// cgroups can give them our names, so the group must be root's or our account's.
    pub(super) fn is_made_by(&self, instance: &str) -> bool {
        static MOUNT: OnceLock<Option<(PathBuf, String)>> = OnceLock::new();
        let mount = MOUNT.get_or_init(|| mount(&fs::read_to_string("/proc/self/mountinfo").ok()?));
        self.instance == instance
            && mount.as_ref().is_some_and(|(top, root)| {
                let group = self.group.strip_prefix(root.trim_end_matches('/')).unwrap_or(&self.group);
                fs::metadata(top.join(group.trim_start_matches('/')))
                    .is_ok_and(|data| data.uid() == 0 || data.uid() == geteuid().as_raw())
            })
    }

    /// The proc for people: `namespace:name`.
    pub(super) fn shown(&self) -> String {
        self.proc.replacen('+', ":", 1)
    }
}

/// The holder of a process's cgroup, if an agent created it for a run.
pub(super) fn held_by(pid: u32) -> Option<CgroupHolder> {
    holder(own_group(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)?)
}

/// The systemd scope of a process, if it was made for one session or one `systemd-run` and the agent is not
/// in it. Several procs may share other groups.
pub(super) fn scope_of(pid: u32) -> Option<String> {
    let groups = |whose: &str| fs::read_to_string(format!("/proc/{whose}/cgroup")).ok();
    let (theirs, ours) = (groups(&pid.to_string())?, groups("self")?);
    let theirs = own_group(&theirs)?;
    let scope = scope(theirs).filter(|_| holder(theirs).is_none())?;
    (own_group(&ours)?.strip_prefix(scope).is_none()).then(|| scope.to_owned())
}

/// The part of the path up to the innermost scope.
fn scope(group: &str) -> Option<&str> {
    let is_scope = |name: &str| {
        name.ends_with(".scope") && ["session-", "run-"].iter().any(|prefix| name.starts_with(prefix))
    };
    let ends = group.match_indices('/').map(|(at, _)| at).chain([group.len()]);
    let mut scopes = ends.filter_map(|end| group.get(..end));
    scopes.rfind(|path| path.rsplit('/').next().is_some_and(is_scope))
}

/// Whether a process is in the very groups that the agent itself is in.
pub(super) fn is_our_own(pid: u32) -> bool {
    let groups = |whose: &str| fs::read_to_string(format!("/proc/{whose}/cgroup")).ok();
    groups(&pid.to_string()).is_some_and(|theirs| Some(theirs) == groups("self"))
}

/// The innermost one: an agent may itself be in the group of another agent's proc.
fn holder(group: &str) -> Option<CgroupHolder> {
    let parts: Vec<&str> = group.split('/').collect();
    parts.windows(3).rev().find_map(|three| match three {
        [agent, proc, run] if run.starts_with("run-") => {
            let instance = agent.strip_prefix(PREFIX)?;
            let began = run.split('-').nth(1).and_then(|began| began.parse().ok());
            Some(CgroupHolder {
                instance: instance.to_owned(),
                proc: (*proc).to_owned(),
                run: began,
                group: group.to_owned(),
            })
        }
        _ => None,
    })
}

/// Everything that runs in a group and below it. An error: it cannot be read, as without descriptors. A
/// group that was removed is empty.
pub(super) fn pids_in(group: &Path) -> io::Result<Vec<u32>> {
    let text = match fs::read_to_string(group.join("cgroup.procs")) {
        Ok(text) => text,
        Err(error) if is_removed(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    pids.retain(|pid| *pid != 0);
    for below in find_folders_in(group)? {
        pids.extend(pids_in(&below)?);
    }
    Ok(pids)
}

/// Everything that runs in these groups.
pub(super) fn pids_in_all(groups: &[Arc<Path>]) -> io::Result<HashSet<u32>> {
    let mut pids = HashSet::new();
    for group in groups {
        pids.extend(pids_in(group)?);
    }
    Ok(pids)
}

fn is_removed(error: &io::Error) -> bool {
    // The files of a removed group that are still open fail with ENODEV. In a threaded group, whose processes
    // are listed above it, the read fails with EOPNOTSUPP.
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP))
}

/// Kills everything in a group at once, however quickly it forks.
pub(super) fn kill(group: &Path) {
    let spared = spared();
    // The agent may have been moved in here. It must not kill itself.
    let pids = match pids_in(group) {
        Ok(pids) => pids,
        Err(error) => {
            tracing::warn!(group = %group.display(), %error, "cannot read a cgroup; its processes are not killed through it");
            return;
        }
    };
    if pids.iter().any(|pid| spared.contains(pid)) {
        tracing::warn!(group = %group.display(), "the agent runs in a cgroup of this proc; its processes are killed one by one");
        return signal(group, Signal::KILL);
    }
    match fs::write(group.join("cgroup.kill"), "1") {
        Ok(()) => tracing::debug!(group = %group.display(), "killed"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(group = %group.display(), %error, "cgroup.kill failed; its processes are killed one by one");
            signal(group, Signal::KILL);
        }
    }
}

/// Signals every process in the group. A pid may have been reused since the group listed it, so each pidfd is
/// opened first and the list read again.
pub(super) fn signal(group: &Path, signal: Signal) {
    if let Err(error) = try_signal(group, signal) {
        tracing::warn!(group = %group.display(), ?signal, %error, "cannot read a cgroup; some of its processes were not signalled");
    }
}

fn try_signal(group: &Path, signal: Signal) -> io::Result<()> {
    let spared = spared();
    let mut named = pids_in(group)?;
    named.retain(|pid| !spared.contains(pid));
    for named in named.chunks(SIGNALLED_AT_ONCE) {
        let held: Vec<(u32, OwnedFd)> =
            named.iter().filter_map(|pid| Some((*pid, opened(*pid, signal)?))).collect();
        let still: HashSet<u32> = pids_in(group)?.into_iter().collect();
        for (pid, pidfd) in held.into_iter().filter(|(pid, _)| still.contains(pid)) {
            match rustix::process::pidfd_send_signal(pidfd, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => tracing::warn!(pid, ?signal, %error, "cannot signal a process"),
            }
        }
    }
    Ok(())
}

fn opened(pid: u32, signal: Signal) -> Option<OwnedFd> {
    match pidfd::open(pid) {
        Ok(pidfd) => Some(pidfd),
        Err(Errno::SRCH) => None,
        Err(error) => {
            tracing::warn!(pid, ?signal, %error, "cannot signal a process");
            None
        }
    }
}

/// The agent, its parent and init.
fn spared() -> [u32; 3] {
    let parent = rustix::process::getppid().map_or(1, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    [1, std::process::id(), parent]
}

/// Removes the group if nothing runs in it. Returns whether it is gone.
pub(super) fn remove(group: &Path) -> bool {
    match rustix::fs::rmdir(group) {
        Ok(()) | Err(Errno::NOENT) => true,
        // The program may have created groups below it.
        Err(Errno::BUSY | Errno::NOTEMPTY) => {
            let below = folders_in(group);
            !below.is_empty()
                && below.iter().filter(|below| !remove(below)).count() == 0
                && matches!(rustix::fs::rmdir(group), Ok(()) | Err(Errno::NOENT))
        }
        Err(_) => false,
    }
}

fn folders_in(group: &Path) -> Vec<PathBuf> {
    find_folders_in(group).unwrap_or_default()
}

fn find_folders_in(group: &Path) -> io::Result<Vec<PathBuf>> {
    // A directory has two links, and one more for each subdirectory; or one, where the filesystem does not
    // count.
    if fs::symlink_metadata(group).is_ok_and(|data| data.nlink() == 2) {
        return Ok(Vec::new());
    }
    let entries = match fs::read_dir(group) {
        Ok(entries) => entries,
        Err(error) if is_removed(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders.map(|entry| entry.path()).collect())
}

fn locked(root: &Path, how: FlockOperation) -> Option<OwnedFd> {
    let open = rustix::fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    rustix::fs::flock(&open, how).ok()?;
    Some(open)
}

fn is_group(folder: &Path) -> bool {
    folder.join("cgroup.procs").exists()
}

/// The parent for this agent's groups: its own group, or else the root group.
fn find_root(instance: &str) -> Result<PathBuf, String> {
    let read = |file: &str| fs::read_to_string(file).map_err(|error| format!("reading {file}: {error}"));
    let mounts = read("/proc/self/mountinfo")?;
    let (top, root) = mount(&mounts).ok_or("cgroup v2 is not mounted")?;
    let groups = read("/proc/self/cgroup")?;
    let own = own_group(&groups).ok_or("the agent is in no cgroup v2")?;
    let own = own.strip_prefix(root.trim_end_matches('/')).unwrap_or(own);
    let name = format!("{PREFIX}{instance}");
    let own = outside(own, &name);
    let mut reason = String::new();
    for parent in [top.join(own.trim_start_matches('/')), top] {
        clear_up(&parent);
        match try_root(&parent.join(&name)) {
            Ok(root) => return Ok(root),
            Err(error) if reason.is_empty() => reason = format!("{}: {error}", parent.display()),
            Err(_) => {}
        }
    }
    Err(reason)
}

/// The mount point of cgroup v2, and the part that is mounted.
fn mount(mounts: &str) -> Option<(PathBuf, String)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, mount_point) = (fields.next()?, fields.next()?);
        // The kernel escapes a blank in the name.
        let plain = |text: &str| text.replace("\\040", " ");
        (after.split(' ').next() == Some("cgroup2")).then(|| (PathBuf::from(plain(mount_point)), plain(root)))
    })
}

fn own_group(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::"))
}

/// An agent that was started by one of its own procs is in the group of that proc. It uses the former parent
/// group.
fn outside<'a>(own: &'a str, name: &str) -> &'a str {
    match own.find(&format!("/{name}/")) {
        Some(at) => &own[..at],
        None => own,
    }
}

/// Creates the folder and checks that a group in it can be used.
fn try_root(root: &Path) -> Result<PathBuf, io::Error> {
    fs::create_dir_all(root)?;
    // `cgroup.kill` needs Linux 5.14. Without it, groups have no advantage for a kill.
    fs::OpenOptions::new().write(true).open(root.join("cgroup.kill"))?;
    fs::OpenOptions::new().write(true).open(root.join("cgroup.procs"))?;
    match fs::read_to_string(root.join("cgroup.type"))?.trim() {
        "domain" => Ok(root.to_owned()),
        other => Err(io::Error::other(format!("its groups are {other}"))),
    }
}

/// Removes groups of agents whose data folders are gone. Only empty groups can be removed.
fn clear_up(parent: &Path) {
    let is_agents =
        |folder: &&PathBuf| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    for root in folders_in(parent).iter().filter(is_agents) {
        let Some(_nobody_uses_it) = locked(root, FlockOperation::NonBlockingLockExclusive) else { continue };
        for home in folders_in(root) {
            folders_in(&home).iter().for_each(|run| {
                remove(run);
            });
            remove(&home);
        }
        remove(root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::procfs::Stat;
    use std::time::Duration;

    const SHORTLY: Duration = Duration::from_millis(10);

    #[test]
    fn the_mount_is_found_among_others() {
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(mount(hybrid), Some((PathBuf::from("/sys/fs/cgroup/unified"), "/".to_owned())));
        let shared = "30 23 0:26 /docker/x /sys/fs/my\\040group ro shared:4 master:1 - cgroup2 cgroup rw\n";
        assert_eq!(mount(shared), Some((PathBuf::from("/sys/fs/my group"), "/docker/x".to_owned())));
        assert_eq!(mount("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"), None);
        assert_eq!(mount(""), None);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a stranger is needed")]
    fn killing_a_cgroup_spares_the_agent() {
        let group = tempfile::tempdir().expect("a temp dir");
        let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().expect("a stranger");
        let (us, other) = (std::process::id(), stranger.id());
        fs::write(group.path().join("cgroup.procs"), format!("{us}\n{other}\n0\n")).expect("our folder");
        kill(group.path());
        stranger.wait().expect("it was killed by itself");
        assert!(!group.path().join("cgroup.kill").exists());
        fs::write(group.path().join("cgroup.procs"), "").expect("our folder");
        kill(group.path());
        assert_eq!(fs::read_to_string(group.path().join("cgroup.kill")).expect("it was written"), "1");
    }

    #[test]
    fn a_group_that_cannot_be_read_is_neither_empty_nor_left() {
        let group = tempfile::tempdir().expect("a temp dir");
        let run: Arc<Path> = Arc::from(group.path());
        let mut web = ProcCgroups { root: None, name: Arc::from("web+x"), runs: vec![run] };
        fs::create_dir_all(group.path().join("cgroup.procs/in-use")).expect("our folder");
        fs::write(group.path().join("cgroup.procs/in-use/file"), "").expect("our folder");
        assert!(web.pids().is_err());
        assert_eq!(web.left(|_| false), Vec::<Arc<Path>>::new());
        assert!(!web.is_empty());
        kill(group.path());
        assert!(!group.path().join("cgroup.kill").exists(), "the agent may be in it");
        fs::remove_dir_all(group.path()).expect("our folder");
        assert_eq!(web.pids().expect("it was removed"), HashSet::new());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "strangers are needed")]
    fn a_large_group_is_signalled_with_few_descriptors() {
        if procfleet_testkit::played_apart(&[]) {
            return;
        }
        let group = tempfile::tempdir().expect("a temp dir");
        let start = || std::process::Command::new("sleep").arg("1000").spawn().expect("a stranger");
        let mut strangers: Vec<_> = (0..3 * SIGNALLED_AT_ONCE).map(|_| start()).collect();
        let pids: String = strangers.iter().map(|stranger| format!("{}\n", stranger.id())).collect();
        fs::write(group.path().join("cgroup.procs"), pids).expect("our folder");
        let few = Some(3 * SIGNALLED_AT_ONCE as u64 / 2);
        let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = rustix::process::Rlimit { current: few, maximum: before.maximum };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("it is lower");
        signal(group.path(), Signal::TERM);
        let missed = strangers.iter_mut().filter(|stranger| {
            let is_signalled =
                || Stat::read(stranger.id()).is_none_or(|stat| !stat.is_running()).then_some(());
            procfleet_testkit::ask_again(SHORTLY, procfleet_testkit::PATIENCE, is_signalled).is_none()
        });
        let missed = missed.count();
        for stranger in &mut strangers {
            let _ = stranger.kill();
            stranger.wait().expect("our child");
        }
        assert_eq!(missed, 0);
    }

    /// An agent that is started in another cgroup finds its former groups.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process is needed")]
    fn groups_are_found_where_they_were() {
        let before = format!("before-{}", std::process::id());
        let Ok(root) = find_root(&before) else { return };
        let run = root.join("web+x").join("run-1-1");
        fs::create_dir_all(&run).expect("a group");
        let mut process = std::process::Command::new("sleep").arg("1000").spawn().expect("a process");
        fs::write(run.join("cgroup.procs"), process.id().to_string()).expect("root may move it");
        let folder = tempfile::tempdir().expect("a temp dir");
        let roots = folder.path().join(ROOTS_FILE);
        fs::write(&roots, format!("{}\n/no/such/group\n", root.display())).expect("our folder");
        let groups = Cgroups::open(Containment::Tree, folder.path(), "now").expect("no group is needed");
        assert_eq!(groups.orphaned_pids(), HashSet::from([process.id()]));
        assert_eq!(fs::read_to_string(&roots).expect("it stays known"), format!("{}\n", root.display()));
        let mut web = groups.of(Arc::from("web+x"));
        assert_eq!(web.left(|pid| pid == process.id()), Vec::<Arc<Path>>::new(), "it is looked after");
        assert_eq!(web.left(|_| false), [Arc::from(run.as_path())]);
        kill(&run);
        process.wait().expect("it was killed");
        assert_eq!(web.left(|_| false), Vec::<Arc<Path>>::new());
        assert!(!run.exists());
        drop(groups);
        Cgroups::open(Containment::Tree, folder.path(), "now").expect("no group is needed");
        assert!(!root.exists());
        assert_eq!(fs::read_to_string(&roots).expect("the file"), "");
    }

    #[test]
    fn an_agent_in_its_own_group_makes_none_below_it() {
        assert_eq!(
            own_group("9:name=systemd:/\n0::/system.slice/a.service\n"),
            Some("/system.slice/a.service")
        );
        assert_eq!(own_group("9:name=systemd:/\n"), None);
        assert_eq!(outside("/a.service/procfleet-7/web+x/run-1-1", "procfleet-7"), "/a.service");
        assert_eq!(outside("/procfleet-8/web+x/run-1-1", "procfleet-7"), "/procfleet-8/web+x/run-1-1");
        assert_eq!(outside("/", "procfleet-7"), "/");
    }

    #[test]
    fn only_groups_that_are_made_for_one_session_count_as_scopes() {
        for (group, expected) in [
            ("/user.slice/user-0.slice/session-c3.scope", Some("/user.slice/user-0.slice/session-c3.scope")),
            ("/user.slice/session-c3.scope/below", Some("/user.slice/session-c3.scope")),
            ("/system.slice/run-r2f.scope", Some("/system.slice/run-r2f.scope")),
            ("/system.slice/nginx.service", None),
            ("/limits/large", None),
            ("/init.scope", None),
            ("/", None),
        ] {
            assert_eq!(scope(group), expected, "{group}");
        }
    }

    #[test]
    fn a_process_is_held_by_the_innermost_run() {
        let rows = [
            ("/a.service/procfleet-7/web+x/run-1-1", Some(("7", "web:x"))),
            ("/procfleet-7/web+x/run-1-1/own/group", Some(("7", "web:x"))),
            ("/procfleet-7/web+x/run-1-1/procfleet-8/api+y/run-2-1", Some(("8", "api:y"))),
            ("/procfleet-7/web+x/run-1-1/procfleet-8", Some(("7", "web:x"))),
            ("/procfleet-7/web+x", None),
            ("/other-7/web+x/run-1-1", None),
            ("/", None),
        ];
        for (group, expected) in rows {
            let found = holder(group).map(|holder| (holder.instance.clone(), holder.shown()));
            let expected = expected.map(|(instance, proc)| (instance.to_owned(), proc.to_owned()));
            assert_eq!(found, expected, "{group}");
        }
    }
}
