//! Short commands that ask about a proc, such as its version. They are not part of the proc.
//!
//! A probe runs with the account, folder and environment of the proc's commands, but has its own mark. It is
//! therefore never found as the process, and never ended with it. A descendant without the mark is recognised
//! by its session while the probe runs. A probe that takes too long is killed with its descendants, and so is
//! one whose result is not awaited any longer. A file in the agent's folder names the running probe, so that
//! the next agent process can kill it after a crash. Processes that a probe leaves after its own end are
//! ignored.

use crate::exec::context::ExecContext;
use crate::exec::error::NotStarted;
use crate::exec::output::{CommandOutput, command_output};
use crate::exec::procfs::{self, Id};
use crate::exec::scan::proc_mark::ProcMark;
use crate::exec::scan::tree::{self, Scan, SessionState};
use crate::exec::spawn::run::Run;
use crate::exec::watch::children;
use crate::exec::watch::pidfd;
use procfleet_core::process::Exit;
use procfleet_core::supervise::CommandEnd;
use procfleet_core::{ProcKey, Spec};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Time for a killed probe to exit before it is left to the context.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// Runs the probes of one proc.
#[derive(Clone, Debug)]
pub struct Prober {
    context: Arc<ExecContext>,
    key: ProcKey,
    mark: ProcMark,
}

/// How a probe ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// With its first line of output, and the last one that is not empty.
    Exited {
        exit: Exit,
        first: String,
        last: String,
    },
    TimedOut,
    NotStarted {
        reason: String,
    },
}

impl Prober {
    pub fn new(context: Arc<ExecContext>, key: ProcKey) -> Prober {
        Prober { mark: context.probe_mark(&key), context, key }
    }

    /// Runs a command of the spec for at most `limit`. `what` names its output file.
    pub async fn run(&self, what: &str, command: &str, spec: &Spec, limit: Duration) -> Probed {
        self.context.reap_orphaned_commands();
        let output = command_output::of_probe(self.context.output_folder(), &self.key, what);
        let path = output.as_ref().ok().map(|(path, _)| path.clone());
        let output = output.map_or(CommandOutput::Nowhere, |(path, file)| CommandOutput::Own { path, file });
        let started = self
            .context
            .prepare(&self.key, &self.mark, command, spec)
            .and_then(|launch| Run::start(launch, self.context.now(), output, None));
        let (run, pidfd, ending) = match started {
            Ok(started) => started,
            Err(NotStarted { reason, .. }) => return Probed::NotStarted { reason },
        };
        tracing::debug!(proc = %self.key, what, pid = run.leader.pid, "probe started");
        self.context.probe_began(run.leader.pid);
        let record = command_output::record_of_probe(self.context.output_folder(), &self.key, what);
        let mut live = RunningProbe::new(self, run, record);
        let end = async move {
            pidfd::gone(&pidfd).await;
            ending.reap(pidfd).await
        };
        tokio::pin!(end);
        match tokio::time::timeout(limit, &mut end).await {
            Ok(CommandEnd::Exited { exit, output: tail }) => {
                let first = path.as_deref().map(command_output::first_line).unwrap_or_default();
                let last = tail.lines().rev().map(str::trim).find(|line| !line.is_empty());
                Probed::Exited { exit, first, last: last.unwrap_or_default().to_owned() }
            }
            Ok(CommandEnd::NotStarted { reason, .. }) => Probed::NotStarted { reason },
            Err(_) => {
                live.kill();
                let _ = tokio::time::timeout(LAST_BREATH, end).await;
                Probed::TimedOut
            }
        }
    }
}

/// A probe that may be running. Dropping it ends it.
struct RunningProbe<'a> {
    prober: &'a Prober,
    run: Run,
    record: PathBuf,
}

impl<'a> RunningProbe<'a> {
    fn new(prober: &'a Prober, run: Run, record: PathBuf) -> RunningProbe<'a> {
        let Id { pid, start_ticks } = run.leader;
        if let Err(error) = fs::write(&record, format!("{pid} {start_ticks}")) {
            tracing::debug!(file = %record.display(), %error, "cannot record a probe; it is not ended if the agent crashes");
        }
        RunningProbe { prober, run, record }
    }

    fn kill(&mut self) {
        // Rarely needed, so a full scan is acceptable.
        let members = |scan: &Scan| self.run.members(scan, &self.prober.mark).into_iter().collect();
        tree::kill_all(&self.prober.key, Scan::take, members);
    }
}

impl Drop for RunningProbe<'_> {
    fn drop(&mut self) {
        if !self.run.has_ended() {
            self.kill();
            // The result is not awaited any longer; the context reaps the process.
            if let Ok(pidfd) = pidfd::open_exactly(self.run.leader) {
                self.prober.context.adopt(self.run.leader.pid, pidfd);
            }
            children::let_go(self.run.leader.pid);
        }
        self.prober.context.probe_ended(self.run.leader.pid);
        let _ = fs::remove_file(&self.record);
    }
}

/// Kills the probes that an earlier agent process left behind.
pub fn end_old_probes(context: &ExecContext) {
    for record in command_output::records_of_probes(context.output_folder()) {
        if let Some((leader, mark)) = old_probe(context, &record) {
            tracing::info!(pid = leader.pid, "killing a probe that an earlier agent process left");
            let mut known = Vec::new();
            tree::kill_all(&mark.name(), Scan::take, |scan| {
                known = scan.run_members(leader, SessionState::Open, &known, &mark).into_iter().collect();
                known.clone()
            });
        }
        let _ = fs::remove_file(record);
    }
}

/// The probe that is meant, with its mark. The pid alone is not enough, because it may have been reused.
fn old_probe(context: &ExecContext, record: &Path) -> Option<(Id, ProcMark)> {
    let text = fs::read_to_string(record).ok()?;
    let (pid, start_ticks) = text.split_once(' ')?;
    let leader = Id { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? };
    let mark = String::from_utf8(procfs::mark(leader.pid)?).ok()?;
    let same = procfs::Stat::read(leader.pid).is_some_and(|stat| stat.id == leader);
    Some((leader, context.as_probe_mark(mark).filter(|_| same)?))
}
