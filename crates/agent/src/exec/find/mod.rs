//! Finds the process of a proc.
//!
//! If the spec names a pid file, that file decides. Other evidence is used only where the file cannot have
//! been written yet, or where the agent has just started.

pub(super) mod appear;

use crate::exec::cgroup;
use crate::exec::procfs::{self, Id, Stat};
use crate::exec::scan::identify::{self, RunningProgram, SetupPath};
use crate::exec::scan::origin::{self, Origin};
use crate::exec::scan::proc_mark::ProcMark;
use crate::exec::scan::tree::{self, Scan};
use crate::exec::spawn::run::Run;
use crate::exec::user::{self, Account};
use crate::exec::watch::pidfd;
use crate::path_walk::{self, PathTrust, Walked};
use procfleet_core::process::{Cause, Evidence, Found};
use procfleet_core::spec::{Control, Identity};
use procfleet_core::supervise::Leader;
use procfleet_core::{Absence, Process, Sighting};
use rustix::fs::{FileType, OFlags};
use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A pid has at most ten digits; a longer file is not a pid file.
const PID_FILE_LIMIT: u64 = 64;
/// Accuracy of the time at which a pid file was written: 2 s on vfat.
const PID_FILE_SLACK: Duration = Duration::from_secs(2);
/// `/proc` and `/sys`: filesystems that cannot hold a pid file.
const KERNELS_OWN: [rustix::fs::FsWord; 2] = [0x9fa0, 0x6265_6572];

/// The process to find.
#[derive(Clone, Copy, Debug)]
pub(in crate::exec) struct SearchFor<'a> {
    pub(in crate::exec) mark: &'a ProcMark,
    /// The name of the proc's cgroups.
    pub(in crate::exec) group: &'a str,
    pub(in crate::exec) identity: &'a Identity,
    /// The sessions of this proc's runs that may still have members.
    pub(in crate::exec) sessions: &'a [Id],
    /// The sessions and the watched processes.
    pub(in crate::exec) own: &'a [Id],
    /// The sessions of all running probes; their members belong to no proc.
    pub(in crate::exec) probes: &'a [u32],
    /// The last process, if the proc has none that is known to run.
    pub(in crate::exec) dead: Option<Process>,
    /// Start of this agent process, in clock ticks since the host's boot.
    pub(in crate::exec) since: u64,
}

impl SearchFor<'_> {
    fn is_probe(&self, stat: &Stat) -> bool {
        self.probes.contains(&stat.session)
    }

    /// Whether a process of this proc was left by the dead process, or by an older command. Workers have the
    /// name of their master; a process of a later command is not a worker of the dead process.
    fn is_left(&self, pid: u32) -> bool {
        let dead = self.dead.and_then(|dead| dead.evidence.run);
        // Agents of earlier versions did not record the start of a command, so a process without it is older.
        dead.is_some_and(|dead| self.run_of(pid).is_none_or(|run| run <= dead))
    }

    /// When the command began that has started a process, as far as that is proven: the process may have
    /// written any number into its environment.
    fn run_of(&self, pid: u32) -> Option<NonZeroU64> {
        let by_group = || cgroup::held_by(pid).filter(|held| held.is_made_by(self.mark.instance()))?.run;
        self.mark.proven_run(pid).or_else(by_group)
    }

    /// Processes of unknown origin that the dead process may have left, with their descendants. Processes
    /// that this agent process started are below it. Among older ones, an orphan in the agent's own cgroup
    /// cannot be distinguished from a leftover. A process that was started by hand has another parent, or is
    /// in another cgroup where logins have their own.
    fn doubtful(&self, named: &[&Stat], scan: &Scan) -> HashSet<Id> {
        if self.dead.is_none() {
            return HashSet::new();
        }
        let is_doubtful = |stat: &&&Stat| {
            tree::is_below_us(stat)
                || (stat.id.start_ticks <= self.since
                    && scan.is_orphan(stat)
                    && cgroup::is_our_own(stat.id.pid))
        };
        scan.with_descendants(named.iter().filter(is_doubtful).map(|stat| stat.id))
    }
}

/// When the command began that has started a process, as far as the environment or the cgroup tells.
fn run_of(pid: u32) -> Option<NonZeroU64> {
    procfs::run_of(pid).or_else(|| cgroup::held_by(pid)?.run)
}

/// By pid file; without one, by name. `recent_scan` has all that the agent did not make itself.
pub(in crate::exec) fn settled(wanted: SearchFor<'_>, recent_scan: impl FnOnce() -> Arc<Scan>) -> Sighting {
    let found = match by_pid_file(wanted) {
        Some(answer) => answer,
        // Prefer a command of ours over its descendants of the same name.
        None => by_own(wanted).map_or_else(|| by_name(wanted, &recent_scan(), &[]), Ok),
    };
    match found {
        Ok(process) => Sighting::Running(process),
        Err(cause) => Sighting::Absent(Absence { cause, hopeless: true }),
    }
}

/// By pid file, then among the members of the run. Without a pid file and after the command has ended, also
/// by name among all processes: the command may have asked another launcher to start the process.
pub(in crate::exec) fn launched(
    wanted: SearchFor<'_>,
    run: &mut Run,
    leader: Leader,
    scan: impl FnOnce() -> Scan,
    recent_scan: impl FnOnce() -> Arc<Scan>,
) -> Sighting {
    let cause = match by_pid_file(wanted) {
        Some(Ok(process)) => return Sighting::Running(process),
        Some(Err(cause)) => Some(cause),
        None => None,
    };
    let scan = scan();
    let members = run.members(&scan, wanted.mark);
    let leads = scan.get(run.leader.pid).filter(|stat| stat.id == run.leader);
    let found = if leads.is_some() { Found::Foreground } else { Found::Name };
    let is_named = |stat: &Stat| RunningProgram::of(stat).is_named(&wanted.identity.proc_name);
    let program = leads.and_then(|leads| scan.get(unwrap(&scan, leads, run).pid));
    run.is_program |=
        program.is_some_and(|program| wanted.identity.proc_name.is_empty() || is_named(program));
    if let (Some(leads), Some(cause)) = (leads, cause.as_ref().filter(may_change)) {
        // A control script often has the name of its process, so names count only after it has ended.
        let waiting = Sighting::Absent(Absence { cause: cause.clone(), hopeless: false });
        let meant = scan.get(unwrap(&scan, leads, run).pid);
        let named = |stat: &&Stat| RunningProgram::of(stat).is_executable_of(&wanted.identity.proc_name);
        match leader {
            Leader::Accept => {}
            Leader::Refuse => return waiting,
            Leader::AcceptNamed => {
                return meant.filter(named).map_or(waiting, |stat| running(stat.id, Found::Foreground));
            }
        }
    }

    let meant = leads.map(|leads| unwrap(&scan, leads, run));
    let mut named: Vec<&Stat> = members.iter().filter_map(|id| scan.get(id.pid)).collect();
    named.retain(|stat| {
        let is_wrapper = stat.id == run.leader && meant.is_some_and(|meant| meant != run.leader);
        let program = RunningProgram::of(stat);
        let is_shell = program.is_wrapper_of(&run.command)
            && !matches!(wanted.identity.proc_name.as_str(), "sh" | "dash" | "pwsh");
        !is_wrapper && !is_shell && program.is_named(&wanted.identity.proc_name)
    });
    if let Some(top) = topmost(named) {
        let is_child = meant.is_some_and(|meant| meant != top);
        return running(top, if is_child { Found::CommandChild } else { found });
    }
    if let Some(meant) = meant.filter(|_| cause.is_none() || leader == Leader::Accept) {
        let is_shell = leads
            .is_some_and(|leads| leads.id == meant && RunningProgram::of(leads).is_wrapper_of(&run.command))
            || scan.get(meant.pid).is_some_and(|stat| may_be_start_script(stat, wanted.identity));
        return running(meant, if is_shell { Found::Shell } else { Found::Foreground });
    }
    if leader == Leader::Accept {
        // A remaining member of the run must be the process; prefer a session leader, as daemons are.
        let mut left: Vec<&Stat> = members.iter().filter_map(|id| scan.get(id.pid)).collect();
        left.sort_by_key(|stat| (stat.session != stat.id.pid, stat.id.start_ticks, stat.id.pid));
        if let Some(first) = left.first() {
            return running(first.id, found);
        }
    }
    // Another launcher may yet bring the process, unless the command was the process itself.
    let hopeless = leads.is_none() && members.is_empty() && run.is_program;
    let cause = match (cause, leads) {
        (Some(cause), _) => cause,
        (None, Some(_)) => no_such_name(wanted.identity),
        (None, None) => {
            let all = recent_scan();
            // A process that an older command started is not the process of this command, even without its
            // mark.
            let older = all.all().into_iter().filter(|stat| stat.id.start_ticks < run.leader.start_ticks);
            // Nor is a worker of a process of this command: it has the name of its master, which may not have
            // had that name yet when the members were looked at.
            let marked = all.marked(wanted.mark);
            let masters = marked.iter().filter(|stat| is_named(stat)).map(|stat| stat.id);
            let workers = all.with_descendants(masters);
            let others = marked.iter().map(|stat| stat.id).chain(workers).chain(older.map(|stat| stat.id));
            let others: Vec<Id> = others.collect();
            match by_name(wanted, &all, &others) {
                Ok(process) => return Sighting::Running(process),
                Err(cause) => cause,
            }
        }
    };
    Sighting::Absent(Absence { cause, hopeless })
}

/// After a start of the agent: the known process, then the pid file, then the mark, then as settled. A start
/// command that still runs does not count as the process while it may start one; with a pid file, the file
/// decides.
pub(in crate::exec) fn recovered(
    wanted: SearchFor<'_>,
    last: Option<Process>,
    control: &Control,
    recent_scan: impl FnOnce() -> Arc<Scan>,
) -> Sighting {
    if let Some(last) = last.filter(is_alive) {
        return Sighting::Running(last);
    }
    let by_file = by_pid_file(wanted);
    if let Some(Ok(process)) = by_file {
        return Sighting::Running(process);
    }
    if let Some(process) = by_own(wanted) {
        return Sighting::Running(process);
    }
    let scan = recent_scan();
    let mut marked = scan.marked(wanted.mark);
    marked.retain(|stat| {
        is_still_there(stat) && origin::of(stat.id.pid, wanted.mark, wanted.group) == Origin::Ours
    });
    // If the command itself was the process and is gone, its descendants are not the process: workers have
    // its name too.
    let orphans = match last {
        Some(Process { found: Found::Foreground, .. }) => orphans(&marked),
        Some(_) | None => Vec::new(),
    };
    marked.retain(|stat| !orphans.contains(&stat.id) && !wanted.is_left(stat.id.pid));
    let named = marked
        .iter()
        .copied()
        .filter(|stat| RunningProgram::of(stat).is_named(&wanted.identity.proc_name))
        .collect();
    // A stop or reload command may still run, and a leftover of a dead process may lead its own session.
    // Leftovers are swept before the next start.
    let leads = |stat: &&&Stat| leads_a_run(stat) && !procfs::is_control_command(stat.id.pid);
    let leader = marked.iter().find(leads).copied();
    if let (Some(leader), Some(Err(cause))) = (leader, &by_file)
        && may_change(&cause)
    {
        return running(leader.id, Found::Shell);
    }
    if let Some(id) = topmost(named) {
        return running(id, Found::Name);
    }
    if let Some(leader) = leader {
        let program = RunningProgram::of(leader);
        let commands = [&control.start_cmd, &control.restart_cmd];
        return match commands.into_iter().find(|command| program.is_wrapper_of(command)) {
            None if may_be_start_script(leader, wanted.identity) => running(leader.id, Found::Shell),
            None => running(leader.id, Found::Name),
            Some(command) => match scan.children(leader.id.pid).as_slice() {
                [only] if is_simple(command) && !may_be_start_script(only, wanted.identity) => {
                    running(only.id, Found::Foreground)
                }
                _ => running(leader.id, Found::Shell),
            },
        };
    }
    match by_file.unwrap_or_else(|| by_name(wanted, &scan, &orphans)) {
        Ok(process) => Sighting::Running(process),
        Err(cause) => Sighting::Absent(Absence { cause, hopeless: true }),
    }
}

fn may_be_start_script(stat: &Stat, identity: &Identity) -> bool {
    RunningProgram::of(stat).may_be_start_script(identity)
}

/// Whether a running start command may still write the pid file. A directory in its place names no process.
fn may_change(cause: &&Cause) -> bool {
    !matches!(cause, Cause::BadPidFile { .. })
}

/// Processes whose command has ended.
fn orphans(marked: &[&Stat]) -> Vec<Id> {
    let is_there = |command: u32| marked.iter().any(|stat| stat.id.pid == command);
    let is_orphan = |stat: &&&Stat| procfs::command_of(stat.id.pid).is_some_and(|command| !is_there(command));
    marked.iter().filter(is_orphan).map(|stat| stat.id).collect()
}

/// The command of a run, as long as it runs.
pub(in crate::exec) fn leader(run: Option<&Run>) -> Sighting {
    let alive = |run: &&Run| !run.has_ended() && is_there(run.leader);
    match run.filter(alive) {
        Some(run) => running(run.leader, Found::Foreground),
        None => no_run(),
    }
}

/// The run of a periodic process that an earlier agent process started. A run that was begun but not yet seen
/// is recognised by its mark and age; other processes with the mark are leftovers of older runs.
pub(in crate::exec) fn scheduled_run(
    wanted: SearchFor<'_>,
    last: Option<Process>,
    since_ticks: Option<u64>,
) -> Sighting {
    if let Some(last) = last.filter(is_alive) {
        return Sighting::Running(last);
    }
    let Some(since) = since_ticks else { return no_run() };
    let scan = Scan::take();
    let marked = scan.marked(wanted.mark);
    let is_ours = |stat: &Stat| origin::of(stat.id.pid, wanted.mark, wanted.group) == Origin::Ours;
    let leads = |stat: &&&Stat| stat.id.start_ticks >= since && leads_a_run(stat) && is_ours(stat);
    match marked.iter().find(leads) {
        Some(stat) => running(stat.id, Found::Name),
        None => no_run(),
    }
}

fn leads_a_run(stat: &Stat) -> bool {
    stat.session == stat.id.pid && procfs::is_command(stat.id.pid)
}

fn no_run() -> Sighting {
    Sighting::Absent(Absence { cause: Cause::NoRun, hopeless: true })
}

/// Whether a process that an earlier agent process knew still runs, by all evidence.
fn is_alive(last: &Process) -> bool {
    is_there(Id { pid: last.pid, start_ticks: last.start_ticks }) && last.is_confirmed_by(&evidence(last.pid))
}

/// Whether a known process runs, or cannot be looked at: then nothing shows that it has ended.
fn is_there(id: Id) -> bool {
    let is_it = |stat: Option<Stat>| stat.is_some_and(|stat| stat.id == id && stat.is_running());
    Stat::find(id.pid).map_or(true, is_it)
}

/// Evidence beside pid and start time, for the next agent process.
fn evidence(pid: u32) -> Evidence {
    let Ok(pidfd) = pidfd::open(pid) else { return Evidence::default() };
    Evidence { serial: pidfd::serial(&pidfd), program: procfs::program_file(pid), run: run_of(pid) }
}

/// Whether the pid file names another pid. A cheap check for the sampler; an unreadable file names none.
pub fn pid_file_names_another(pid_path: &str, pid: u32) -> bool {
    read_pid_file(pid_path).is_ok_and(|named| named.pid != pid)
}

/// `None`: the spec names no pid file.
fn by_pid_file(wanted: SearchFor<'_>) -> Option<Result<Process, Cause>> {
    let path = &wanted.identity.pid_path;
    (!path.is_empty()).then(|| {
        let PidFileClaim { pid, way, written } = read_pid_file(path)?;
        let dead = || Cause::DeadPid { path: path.clone(), pid };
        // Held throughout: if the process is alive at the end, all reads were about this process.
        let held = pidfd::open(pid).ok();
        let unknown = |error: rustix::io::Errno| Cause::BadPidFile {
            path: path.clone(),
            reason: format!("pid {pid} cannot be looked at: {error}"),
        };
        let stat = Stat::find(pid).map_err(unknown)?.filter(Stat::is_running).ok_or_else(dead)?;
        if !procfs::is_whole_process(pid) {
            return Err(dead());
        }
        let program = RunningProgram::of(&stat);
        let origin = origin::of(pid, wanted.mark, wanted.group);
        let (ours, only_described) = match &origin {
            Origin::Ours => (true, false),
            Origin::AnotherProcs(_) | Origin::AnotherAgents(_) => (false, false),
            Origin::Unknown if wanted.is_probe(&stat) => (false, false),
            Origin::Unknown if is_in_a_session(&stat, wanted) => (true, false),
            Origin::Unknown => {
                let described = !procfs::is_setuid(pid)
                    && identify::is_described(&program, wanted.identity)
                    && (began_since_a_run(&stat, wanted) || runs_from_its_folder(&program, wanted));
                (described, described)
            }
        };
        // The process may have ended and its pid may have been reused during the reads.
        if Stat::find(pid).map_err(unknown)?.is_none_or(|again| again.id != stat.id)
            || held.is_some_and(|held| pidfd::is_gone(&held))
        {
            return Err(dead());
        }
        let (path, user) = (path.clone(), wanted.identity.user.clone());
        if !ours || tree::is_protected(pid) {
            return Err(match origin {
                Origin::AnotherProcs(Some(proc)) => Cause::AnotherProcs { path, pid, proc },
                Origin::AnotherAgents(proc) => Cause::AnotherAgents { path, pid, proc },
                _ => Cause::Stranger { path, pid, program: program.label() },
            });
        }
        // Any account can run a matching program: a description alone does not give access to another
        // account's process.
        if only_described && !user::may_signal(&user, pid) {
            return Err(Cause::AnotherAccounts { path, pid, user });
        }
        // Root may signal every process, and every account can start processes until one has the pid of a
        // dead daemon. A process that began after the file was written is not the one that the file means.
        if only_described && !user::runs_as(&user, pid) && began_after(&stat, written) {
            return Err(dead());
        }
        // The process's own account is not trusted: any user can run a program of this name and write its
        // pid.
        if only_described && let Some(doubt) = way.doubt(&PathTrust::spec(&user)) {
            return Err(Cause::Untrusted { path, pid, reason: doubt.to_string() });
        }
        Ok(process(stat.id, Found::PidFile))
    })
}

/// Whether the process is in the session of a command of this agent process. The number of a session that
/// all processes have left is free again while the run still has members elsewhere. The members of a run are
/// below the agent, which adopts orphans; a process that has got the number is not.
fn is_in_a_session(stat: &Stat, wanted: SearchFor<'_>) -> bool {
    let led = |leader: &Id| leader.pid == stat.session && leader.start_ticks <= stat.id.start_ticks;
    let has_another_leader = |leader: &Id| Stat::read(leader.pid).is_some_and(|stat| stat.id != *leader);
    let mut leaders = wanted.sessions.iter().filter(|leader| led(leader));
    leaders.any(|leader| !has_another_leader(leader)) && tree::is_below_us(stat)
}

/// Whether the process began after a command of ours that may still have descendants. A name alone is weak
/// evidence (a host may run many `java`): a process without a mark must come from us or run from the spec's
/// folder.
fn began_since_a_run(stat: &Stat, wanted: SearchFor<'_>) -> bool {
    wanted.sessions.iter().any(|leader| leader.start_ticks <= stat.id.start_ticks)
}

/// Whether the process began after this time. The start of a process is on the clock since the boot, so a
/// step of the wall clock in between falsifies the answer.
fn began_after(stat: &Stat, time: SystemTime) -> bool {
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let began = Duration::from_millis(stat.id.start_ticks.saturating_mul(1_000) / ticks_per_second);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let age = Duration::try_from(now).unwrap_or_default().saturating_sub(began);
    let began = SystemTime::now().checked_sub(age);
    began.zip(time.checked_add(PID_FILE_SLACK)).is_some_and(|(began, time)| began > time)
}

fn runs_from_its_folder(program: &RunningProgram, wanted: SearchFor<'_>) -> bool {
    SetupPath::of(wanted.identity).is_some_and(|folder| program.runs_from(&folder))
}

/// The pid in a pid file, and the accounts that could have written it.
pub(in crate::exec) struct PidFileClaim {
    pub(in crate::exec) pid: u32,
    way: Walked,
    /// When the file was last written.
    written: SystemTime,
}

/// The pid in this file, with the rights of the calling thread.
pub(in crate::exec) fn read_pid_file(path: &str) -> Result<PidFileClaim, Cause> {
    let bad = |reason: &str| Cause::BadPidFile { path: path.to_owned(), reason: reason.to_owned() };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound if fs::symlink_metadata(path).is_ok() => {
            bad("is a link to a file that does not exist")
        }
        io::ErrorKind::NotFound => Cause::NoPidFile { path: path.to_owned() },
        _ => bad(&error.to_string()),
    };
    if !Path::new(path).is_absolute() {
        return Err(bad("is not absolute"));
    }
    let way = path_walk::walk(Path::new(path)).map_err(failed)?;
    // Checked before it is opened, because opening a device or reading some kernel files has side effects.
    if !way.is(FileType::RegularFile) {
        return Err(bad("is not a regular file"));
    }
    if rustix::fs::fstatfs(&way).is_ok_and(|system| KERNELS_OWN.contains(&system.f_type)) {
        return Err(bad("is one of the kernel's own files"));
    }
    let file = way.open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(failed)?;
    let mut bytes = Vec::new();
    (&file).take(PID_FILE_LIMIT).read_to_end(&mut bytes).map_err(failed)?;
    // Read after the content, so that it is not older than the content.
    let written = file.metadata().and_then(|data| data.modified()).map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    let Some(word) = text.split_ascii_whitespace().next() else { return Err(bad("is empty")) };
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    let pid = word.parse().ok().filter(|pid: &u32| digits && *pid > 0 && i32::try_from(*pid).is_ok());
    let pid = pid.ok_or_else(|| bad(&format!("its content {word:?} is not a pid")))?;
    Ok(PidFileClaim { pid, way, written })
}

/// The sighting, without what the spec's account could not read itself: the caller may be limited to this
/// account. The agent may read everything, so the pid in a pid file is shown only if the account reads the
/// same one there. Otherwise the answer is what the account itself finds.
pub(in crate::exec) fn disclosed(sighting: Sighting, identity: &Identity) -> Sighting {
    let Identity { pid_path, user, .. } = identity;
    let Sighting::Absent(Absence { cause, hopeless }) = sighting else { return sighting };
    let named = match &cause {
        Cause::NoPidFile { .. } | Cause::BadPidFile { .. } => None,
        Cause::DeadPid { pid, .. }
        | Cause::Stranger { pid, .. }
        | Cause::AnotherAccounts { pid, .. }
        | Cause::AnotherProcs { pid, .. }
        | Cause::AnotherAgents { pid, .. }
        | Cause::Untrusted { pid, .. } => Some(*pid),
        Cause::NoSuchName { .. } | Cause::NoIdentity | Cause::NoRun => {
            return Sighting::Absent(Absence { cause, hopeless });
        }
    };
    let unseen = |reason: String| Cause::BadPidFile { path: pid_path.clone(), reason };
    let cause = match Account::of(user) {
        Ok(account) if !account.is_another() => cause,
        Ok(account) => match account.with_rights_of(|| Ok(read_pid_file(pid_path))) {
            Ok(Ok(own)) if named == Some(own.pid) => cause,
            Ok(Ok(_)) => unseen("it was changed while it was read".to_owned()),
            Ok(Err(own)) => own,
            Err(error) => unseen(error.to_string()),
        },
        Err(refused) => unseen(refused.reason),
    };
    Sighting::Absent(Absence { cause, hopeless })
}

/// A process of the spec's name that was started from its folder, or by us, and is none of these.
fn by_name(wanted: SearchFor<'_>, scan: &Scan, orphans: &[Id]) -> Result<Process, Cause> {
    let Identity { proc_name, setup_path, .. } = wanted.identity;
    if proc_name.is_empty() || setup_path.is_empty() {
        return Err(Cause::NoIdentity);
    }
    let folder = SetupPath::of(wanted.identity);
    let mut named = scan.named(proc_name);
    let (all, doubtful) = (named.clone(), OnceCell::new());
    let is_doubtful = |id: Id| doubtful.get_or_init(|| wanted.doubtful(&all, scan)).contains(&id);
    let belongs =
        |stat: &Stat| folder.as_ref().is_some_and(|folder| RunningProgram::of(stat).belongs_to(folder));
    named.retain(|stat| {
        if scan.is_anothers(stat, wanted.mark) || orphans.contains(&stat.id) {
            return false;
        }
        // Checked before and after the mark is read: a process that is exiting or in `execve` shows no mark
        // and would count as of unknown origin.
        let belonged = belongs(stat);
        let origin = origin::of(stat.id.pid, wanted.mark, wanted.group);
        is_still_there(stat)
            && match origin {
                Origin::Ours => !wanted.is_left(stat.id.pid),
                Origin::AnotherProcs(_) | Origin::AnotherAgents(_) => false,
                Origin::Unknown if wanted.is_probe(stat) || is_doubtful(stat.id) => false,
                Origin::Unknown => {
                    belonged && belongs(stat) && user::runs_as(&wanted.identity.user, stat.id.pid)
                }
            }
    });
    let top = topmost(named).ok_or_else(|| no_such_name(wanted.identity))?;
    Ok(process(top, Found::Name))
}

/// Whether the process of the scan still exists: it may have exited and its pid may have been reused.
fn is_still_there(stat: &Stat) -> bool {
    Stat::read(stat.id.pid).is_some_and(|again| again.id == stat.id && again.is_running())
}

/// A command of this proc that runs a program of the spec's name, or a watched process.
fn by_own(wanted: SearchFor<'_>) -> Option<Process> {
    let Identity { proc_name, setup_path, .. } = wanted.identity;
    if proc_name.is_empty() || setup_path.is_empty() {
        return None;
    }
    let leaders = wanted.own.iter().filter_map(|id| Stat::read(id.pid).filter(|stat| stat.id == *id));
    let stats: Vec<Stat> =
        leaders.filter(|stat| stat.is_running() && RunningProgram::of(stat).is_named(proc_name)).collect();
    let top = topmost(stats.iter().collect())?;
    Some(process(top, Found::Name))
}

/// The shell has not started its command yet.
pub(in crate::exec) struct NotRecognisedYet;

/// The process that a shell, which was found in place of the process, has started. `None`: it is not the
/// shell of one of these commands any longer.
pub(in crate::exec) fn below_shell(
    shell: Id,
    commands: &[&str],
    identity: &Identity,
    scan: &Scan,
) -> Result<Option<Process>, NotRecognisedYet> {
    let leader = scan.get(shell.pid).filter(|stat| stat.id == shell).map(RunningProgram::of);
    let Some(command) =
        commands.iter().find(|command| leader.as_ref().is_some_and(|leader| leader.is_wrapper_of(command)))
    else {
        return Ok(None);
    };
    let below = scan.with_descendants([shell]);
    let named = below.iter().filter(|id| **id != shell).filter_map(|id| scan.get(id.pid));
    let named = named.filter(|stat| RunningProgram::of(stat).is_named(&identity.proc_name)).collect();
    let only = match scan.children(shell.pid).as_slice() {
        [only] if is_simple(command) => Some(only.id),
        _ => None,
    };
    topmost(named).or(only).map(|id| Some(process(id, Found::Foreground))).ok_or(NotRecognisedYet)
}

/// Among matching processes, the oldest whose parent does not match: the master, not its workers.
fn topmost(fitting: Vec<&Stat>) -> Option<Id> {
    let pids: HashSet<u32> = fitting.iter().map(|stat| stat.id.pid).collect();
    let tops = fitting.iter().filter(|stat| !pids.contains(&stat.parent));
    tops.map(|stat| stat.id).min_by_key(|id| (id.start_ticks, id.pid))
}

/// The command where `sh` only waits for it: the shell's only child is the process. If the shell does more,
/// such as a loop, the shell is the process.
fn unwrap(scan: &Scan, leader: &Stat, run: &Run) -> Id {
    if !RunningProgram::of(leader).is_wrapper_of(&run.command) || !is_simple(&run.command) {
        return leader.id;
    }
    match scan.children(leader.id.pid).as_slice() {
        [only] => only.id,
        _ => leader.id,
    }
}

/// Whether the shell runs one program and is done: nothing in the command joins, groups or repeats.
fn is_simple(command: &str) -> bool {
    !command.trim_end().contains([';', '&', '|', '\n', '(', ')', '{', '}', '`'])
}

fn no_such_name(identity: &Identity) -> Cause {
    Cause::NoSuchName { proc_name: identity.proc_name.clone(), setup_path: identity.setup_path.clone() }
}

fn running(id: Id, found: Found) -> Sighting {
    Sighting::Running(process(id, found))
}

fn process(id: Id, found: Found) -> Process {
    Process { pid: id.pid, start_ticks: id.start_ticks, found, evidence: evidence(id.pid) }
}
