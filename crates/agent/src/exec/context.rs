//! State that all executors on this host share.

use crate::exec::cgroup::{Cgroups, Containment};
use crate::exec::error::{ExecError, NotStarted};
use crate::exec::output::proc_log::ProcLogs;
use crate::exec::output::rotate::Rotation;
use crate::exec::scan::neighbour::AgentPresence;
use crate::exec::scan::proc_mark::{MarkSecret, ProcMark};
use crate::exec::scan::recent::RecentScan;
use crate::exec::scan::strays::StrayWatch;
use crate::exec::scan::tree::Scan;
use crate::exec::spawn::command::{self, PreparedCommand};
use crate::exec::watch::children;
use crate::exec::watch::exits::Exits;
use crate::exec::watch::oom;
use crate::exec::watch::pidfd;
use procfleet_core::host_policy::Allow;
use procfleet_core::{BootId, BootTime, Code, ProcKey, Spec};
use procfleet_proto::link::HostFacts;
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// State that all executors on this host share.
#[derive(Debug)]
pub struct ExecContext {
    output_folder: PathBuf,
    pub(super) proc_logs: ProcLogs,
    boot_id: BootId,
    /// Start of this agent process, in clock ticks since the host's boot. Older processes were started by an
    /// earlier agent process.
    pub(super) opened_at: u64,
    /// Distinguishes this agent's processes from those of another agent on the same host.
    instance: String,
    mark_secret: MarkSecret,
    pub(super) ticks_per_second: u64,
    pub(super) page_bytes: u64,
    pub(super) cpus: u64,
    pub(super) memory_bytes: u64,
    /// Children without a watch. They are reaped by the next executor that tidies up, so that they do not
    /// stay zombies.
    orphaned_commands: Mutex<Vec<(u32, OwnedFd)>>,
    /// Marks of processes that an earlier agent process left: they are not descendants of this one.
    inherited: Mutex<HashSet<Vec<u8>>>,
    recent_scan: RecentScan,
    pub(super) stray_watch: StrayWatch,
    /// The host owner's policy.
    allow: Allow,
    pub(super) groups: Cgroups,
    pub(super) exits: Arc<Exits>,
    presence: AgentPresence,
    /// The shells of the probes that are running; each leads a session.
    probes: Mutex<Vec<u32>>,
}

impl ExecContext {
    pub fn open(output_folder: PathBuf, containment: Containment) -> Result<ExecContext, ExecError> {
        // Output may contain secrets, so the folder is private to the agent.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&output_folder)
            .map_err(|source| ExecError::OutputFolder { folder: output_folder.clone(), source })?;
        let read =
            |file: &'static str| fs::read_to_string(file).map_err(|source| ExecError::Proc { file, source });
        let boot_id = read("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let instance = instance(&output_folder)
            .map_err(|source| ExecError::OutputFolder { folder: output_folder.clone(), source })?;
        let mark_secret = MarkSecret::open(&output_folder)
            .map_err(|source| ExecError::OutputFolder { folder: output_folder.clone(), source })?;
        if let Err(error) = command::reserve_resources() {
            // The first spawn tries again and reports the error.
            tracing::debug!(%error, "cannot prepare the spawner; the first command tries again");
        }
        children::adopt_orphans();
        oom::listen();
        // Before the first scan: two agents that start together must see one another.
        let presence = AgentPresence::announce(&instance);
        let groups = Cgroups::open(containment, &output_folder, &instance)?;
        // Processes in a cgroup are found there.
        let grouped = groups.orphaned_pids();
        let ours = format!("{instance}/").into_bytes();
        let before = Scan::without(&grouped);
        let marks = before.all().into_iter().filter_map(|stat| before.mark_of(stat));
        let inherited = Mutex::new(marks.filter(|mark| mark.starts_with(&ours)).collect());
        let memory = rustix::system::sysinfo();
        let proc_logs = ProcLogs::new(&output_folder);
        proc_logs
            .prepare()
            .map_err(|source| ExecError::OutputFolder { folder: output_folder.clone(), source })?;
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        Ok(ExecContext {
            opened_at: millis(ClockId::Boottime).saturating_mul(ticks_per_second) / 1_000,
            output_folder,
            proc_logs,
            boot_id: BootId(boot_id),
            instance,
            mark_secret,
            ticks_per_second,
            page_bytes: rustix::param::page_size() as u64,
            cpus: count_cpus(&read("/proc/stat")?),
            memory_bytes: memory.totalram * u64::from(memory.mem_unit.max(1)),
            orphaned_commands: Mutex::default(),
            inherited,
            recent_scan: RecentScan::default(),
            stray_watch: StrayWatch::default(),
            allow: Allow::default(),
            groups,
            exits: Arc::default(),
            presence,
            probes: Mutex::default(),
        })
    }

    #[must_use]
    pub fn allowing(self, allow: Allow) -> ExecContext {
        ExecContext { allow, ..self }
    }

    #[must_use]
    pub fn rotating(mut self, rotation: Rotation) -> ExecContext {
        self.proc_logs.rotation = rotation;
        self
    }

    pub fn allow(&self) -> &Allow {
        &self.allow
    }

    /// A command, checked against this host and its policy, for an op or for the agent itself. A folder that
    /// is a symbolic link is checked by its target.
    pub(super) fn prepare(
        &self,
        key: &ProcKey,
        mark: &ProcMark,
        command: &str,
        spec: &Spec,
    ) -> Result<PreparedCommand, NotStarted> {
        let refuse = |reason| Err(NotStarted::new(Code::NotAllowed, reason));
        if let Some(reason) = self.allow.spec_refusal(spec) {
            return refuse(reason);
        }
        let launch = PreparedCommand::prepare(key, mark, command, spec)?;
        match launch.folder() {
            folder if self.allow.holds(folder) => Ok(launch),
            folder => refuse(format!(
                "this host does not allow setup_path {:?}, which is {folder:?}: its policy says so",
                spec.identity.setup_path
            )),
        }
    }

    pub fn boot_id(&self) -> &BootId {
        &self.boot_id
    }

    /// The mark in the environment of every process of this proc. Only the colon in the middle is not
    /// escaped, so no two procs share a mark.
    pub fn mark(&self, key: &ProcKey) -> String {
        format!("{}/{}", self.instance, escaped(key))
    }

    pub(super) fn proc_mark(&self, key: &ProcKey) -> ProcMark {
        ProcMark::new(self.mark(key), self.mark_secret.clone())
    }

    /// The mark of a proc's probes. It differs from every proc's mark, because no namespace is empty.
    pub(super) fn probe_mark(&self, key: &ProcKey) -> ProcMark {
        ProcMark::new(format!("{}{}", self.probe_prefix(), escaped(key)), self.mark_secret.clone())
    }

    /// The mark of this name, if it is that of a proc's probes.
    pub(super) fn as_probe_mark(&self, name: String) -> Option<ProcMark> {
        name.starts_with(&self.probe_prefix()).then(|| ProcMark::new(name, self.mark_secret.clone()))
    }

    fn probe_prefix(&self) -> String {
        format!("{}/:probe:", self.instance)
    }

    /// Facts about the host for the server.
    pub fn facts(&self, started_at: i64) -> HostFacts {
        HostFacts {
            os: std::env::consts::OS.to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            cpus: self.cpus,
            memory_mib: self.memory_bytes >> 20,
            started_at,
            containment: self.groups.containment().to_owned(),
        }
    }

    /// Time since the host's boot, time asleep included.
    pub fn now(&self) -> BootTime {
        BootTime(millis(ClockId::Boottime))
    }

    /// Reads the kernel log and drains the presence socket. Call it periodically.
    pub fn read_oom_kills(&self) {
        self.presence.drain();
        oom::update();
    }

    /// Rotates logs that are too large. True: a log was rotated, so call it again soon.
    pub fn rotate_logs(&self) -> bool {
        self.proc_logs.rotate_if_due()
    }

    /// Rotates the logs of unregistered procs, and deletes old ones. Call it rarely.
    pub fn rotate_forgotten_logs(&self) {
        self.proc_logs.rotate_forgotten();
    }

    /// Removes empty cgroups without an executor. Call it periodically.
    pub fn trim_cgroups(&self) {
        self.groups.trim();
    }

    pub(super) fn wall_millis(&self) -> u64 {
        millis(ClockId::Realtime)
    }

    /// A time in clock ticks since boot, the unit of process start times.
    pub(super) fn ticks_at(&self, moment: BootTime) -> u64 {
        moment.0.saturating_mul(self.ticks_per_second) / 1_000
    }

    pub(super) fn output_folder(&self) -> &Path {
        &self.output_folder
    }

    pub(super) fn probe_began(&self, shell: u32) {
        self.probes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(shell);
    }

    pub(super) fn probe_ended(&self, shell: u32) {
        self.probes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).retain(|one| *one != shell);
    }

    pub(super) fn probes(&self) -> Vec<u32> {
        self.probes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(super) fn adopt(&self, pid: u32, child: OwnedFd) {
        self.orphaned_commands.lock().unwrap_or_else(PoisonError::into_inner).push((pid, child));
    }

    /// Reaps commands that ended after their executor was dropped.
    pub(super) fn reap_orphaned_commands(&self) {
        let mut orphaned_commands = self.orphaned_commands.lock().unwrap_or_else(PoisonError::into_inner);
        orphaned_commands.retain(|(pid, child)| matches!(pidfd::reap(child, *pid), Ok(None)));
    }

    /// Reaps orphans of commands. Call it on SIGCHLD.
    pub fn reap_orphans(&self) {
        children::reap_adopted();
    }

    /// Whether something with this mark may be running that is not below the agent.
    pub(super) fn has_inherited(&self, mark: &ProcMark) -> bool {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).contains(mark.name().as_bytes())
    }

    /// Forgets a mark: no process of an earlier agent process has it.
    pub(super) fn forget_inherited(&self, mark: &ProcMark) {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).remove(mark.name().as_bytes());
    }

    /// All processes except supervised children, scanned after `since` and not long ago.
    pub(super) fn recent_scan(&self, since: BootTime) -> Arc<Scan> {
        self.recent_scan.get(self.now(), since)
    }
}

fn escaped(key: &ProcKey) -> String {
    format!("{}:{}", key.namespace.replace('%', "%25").replace(':', "%3A"), key.name)
}

/// The random name of this agent on the host, stored in its data folder.
fn instance(folder: &Path) -> io::Result<String> {
    let path = folder.join(".instance");
    let known = match fs::read_to_string(&path) {
        Ok(known) => known.trim().to_owned(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
            String::new()
        }
        // A new name would make strangers of all running processes.
        Err(error) => return Err(error),
    };
    if !known.is_empty() {
        return Ok(known);
    }
    let new = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
    procfleet_sqlite::replace_file(&path, &new)?;
    Ok(new)
}

/// Counts `cpu0`, `cpu1` and so on; `cpu` alone is the sum. Includes CPUs that the agent may not use.
fn count_cpus(stat: &str) -> u64 {
    let is_cpu = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    (stat.lines().filter(is_cpu).count() as u64).max(1)
}

fn millis(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}
