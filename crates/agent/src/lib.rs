//! The host side of procfleet.
//!
//! [`run`] opens the journal, resumes every proc in it, and keeps a session with the server. Without a
//! server, hosted procs stay hosted, and outcomes wait in the journal. Ending the agent ends none of its
//! processes.
//!
//! - `link`: the session with a server; `enroll`: joining, once; `renewal`: new certificates;
//! - `tls`, `proxy`: the connection to a server;
//! - `log_query`, `specs`: queries of the server;
//! - `outbox`: outcomes that the server has not acknowledged;
//! - `journal`: durable state;
//! - `hosting_file`: the hosted procs, in the file that platforms read on the host;
//! - `supervisor`: one actor for each proc, which feeds `core`'s state machine;
//! - `inbox`: the queue of inputs of one actor;
//! - `lifecycle`: the agent program itself;
//! - `path_walk`: resolves a path, and shows which accounts could redirect it;
//! - `exec`: the only module that makes, finds or signals processes.

pub mod config;
mod enroll;
pub mod exec;
#[cfg(test)]
mod fake_server;
mod hosting_file;
pub mod identity;
pub mod inbox;
mod journal;
mod lifecycle;
mod link;
mod log_query;
mod outbox;
mod path_walk;
pub mod program;
pub mod proxy;
mod random;
mod renewal;
mod specs;
mod states;
mod supervisor;
pub mod tls;

use crate::config::AgentSettings;
use crate::exec::ExecContext;
use crate::program::AgentEnding;
use procfleet_program::panics::{self, Panicked};
use procfleet_program::{PartEnded, Parts};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

/// Interval of housekeeping.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Interval of pruning the journal.
const PRUNING: Duration = Duration::from_secs(3600);
/// Time for running ops to end before a re-exec. Their processes go on in any case, but later ops are
/// reported as interrupted.
const LAST_OPS: Duration = Duration::from_secs(10);
/// Time for the shutdown after a panic: the task that panicked may never finish.
const END_AFTER_PANIC: Duration = Duration::from_secs(3);
/// Interval of housekeeping while a log needs rotation.
const SOON: Duration = Duration::from_secs(1);
/// Interval of cleaning up the output of unregistered procs.
const FORGOTTEN: Duration = Duration::from_secs(60 * 60);
/// How long children of a killed agent may hold the lock of the data folder.
const LET_GO: Duration = Duration::from_secs(1);
/// How long orphans that have exited may stay zombies. A watch has reaped its process by then.
const REAPING: Duration = Duration::from_millis(100);

/// The version that the server sees.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("preparing the agent's runtime")]
    Runtime(#[source] io::Error),
    #[error("preparing the data folder {path}")]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not used as the data folder: {reason}", path.display())]
    FolderRefused { path: PathBuf, reason: procfleet_core::data_folder::FolderRefusal },
    #[error("another agent uses the data folder {0}")]
    InUse(PathBuf),
    #[error(transparent)]
    Journal(#[from] journal::JournalError),
    #[error(transparent)]
    Exec(#[from] exec::ExecError),
    #[error(transparent)]
    Identity(#[from] identity::IdentityError),
    #[error(transparent)]
    Enroll(#[from] enroll::EnrollError),
    #[error("the agent ends, to be started again and take its processes up from the journal")]
    Panicked(#[from] Panicked),
    #[error("the agent ends, to be started again and take its processes up from the journal")]
    Part(#[from] PartEnded),
}

impl AgentError {
    /// A restart would not help: an operator must act.
    pub fn needs_operator(&self) -> bool {
        let broken = |error: &journal::JournalError| {
            matches!(error, journal::JournalError::Broken { .. } | journal::JournalError::TooNew { .. })
        };
        matches!(self, AgentError::FolderRefused { .. })
            || matches!(self, AgentError::Journal(error) if broken(error))
    }
}

/// Locks the folder for this agent, while the file is open.
fn take_folder(folder: &Path) -> Result<std::fs::File, AgentError> {
    let prepared = |source| AgentError::Folder { path: folder.to_owned(), source };
    config::make_data_folder(folder)?;
    let lock = std::fs::File::create(folder.join("agent.lock")).map_err(prepared)?;
    // A child of a killed agent holds the lock until its `execve`.
    let asked = std::time::Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(std::fs::TryLockError::WouldBlock) if asked.elapsed() < LET_GO => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "nothing else is done before the folder is ours"
                )]
                std::thread::sleep(LET_GO / 20);
            }
            Err(std::fs::TryLockError::WouldBlock) => return Err(AgentError::InUse(folder.to_owned())),
            Err(std::fs::TryLockError::Error(source)) => return Err(prepared(source)),
        }
    }
}

/// Saves the readable part of the journal of an agent that is not running.
pub(crate) fn repair(folder: &Path) -> Result<String, AgentError> {
    let _lock = take_folder(folder)?;
    Ok(journal::repair(folder)?.to_string())
}

/// Runs until `stop` completes. Managed processes go on.
pub async fn run(
    config: AgentSettings,
    stop: impl Future<Output = AgentEnding>,
) -> Result<AgentEnding, AgentError> {
    let folder = &config.data;
    let lock = take_folder(folder)?;
    let context = ExecContext::open(folder.join("output"), config.containment)?;
    let context = Arc::new(context.allowing(config.allow.clone()).rotating(config.rotation));
    exec::end_old_probes(&context);
    let (journal, past) = journal::Journal::open(&folder.join(journal::FILE), context.boot_id()).await?;
    let outbox = outbox::Outbox::new(past.unacknowledged.clone());
    let states = states::StateReports::default();
    let hosting = hosting_file::HostingFile::open(folder);
    for proc in &past.procs {
        // All procs before the first change: a reader of the file must not miss a proc that was hosted all
        // the time.
        if let Some(record) = &proc.record {
            hosting.keep(&Arc::new(proc.key.clone()), &record.spec, record.hosting);
        }
    }
    let procs = past.procs.len();
    let mut parts = Parts::default();
    let supervisor = supervisor::Supervisor::start(
        &mut parts,
        context.clone(),
        journal.clone(),
        outbox.clone(),
        states.clone(),
        hosting.clone(),
        past,
    );

    write_life(&config, &context, procs);

    let stop = async {
        let ending = stop.await;
        if ending == AgentEnding::Reexec {
            info!("re-executing the agent after running ops have ended, or after 10 s");
            let _ = tokio::time::timeout(LAST_OPS, supervisor.idle()).await;
        }
        ending
    };
    let ending = tokio::select! {
        // Stop first: ending the agent must not wait for a server.
        biased;
        ending = stop => Ok(ending),
        // The next agent process resumes all procs from the journal.
        panicked = panics::fatal() => Err(AgentError::Panicked(panicked)),
        ended = parts.ended() => Err(AgentError::Part(ended)),
        ended = join_and_connect(&config, &journal, &supervisor, &outbox, &states) => {
            ended?;
            Ok(AgentEnding::Stop)
        }
        never = run_housekeeping(&context, &journal) => match never {},
        never = rotate_logs(&context) => match never {},
        never = trim_memory(&supervisor, &journal) => match never {},
        never = hosting.keep_written() => match never {},
    };
    info!(?ending, "agent is stopping; its processes keep running");
    let end = async {
        supervisor.stop().await;
        parts.join().await;
        hosting.write();
        journal.close().await;
    };
    match &ending {
        Ok(_) => end.await,
        Err(_) => {
            let _ = tokio::time::timeout(END_AFTER_PANIC, end).await;
        }
    }
    drop(lock);
    ending
}

/// Writes `agent.json`.
fn write_life(config: &AgentSettings, context: &ExecContext, procs: usize) {
    let pid = std::process::id();
    let life = lifecycle::life::AgentLife {
        pid,
        start_ticks: exec::start_ticks(pid).unwrap_or_default(),
        version: VERSION.to_owned(),
        program: config.program.clone(),
        ready_at_millis: context.now().0,
        procs,
    };
    // A full disk does not prevent supervision.
    if let Err(error) = life.write(&config.data) {
        tracing::warn!(%error, "cannot write agent.json; `procfleet agent upgrade` does not work until the next start");
    }
}

/// Periodic work.
async fn run_housekeeping(
    context: &Arc<ExecContext>,
    journal: &journal::Journal,
) -> std::convert::Infallible {
    let mut ended = signal(SignalKind::child()).ok();
    let mut trim = tokio::time::interval(HOUSEKEEPING);
    let mut prune = tokio::time::interval(PRUNING);
    loop {
        tokio::select! {
            () = received(&mut ended) => {
                // A short delay reaps processes that end together in one pass.
                tokio::time::sleep(REAPING).await;
                context.reap_orphans();
            }
            _ = trim.tick() => {
                context.read_oom_kills();
                context.trim_cgroups();
            }
            _ = prune.tick() => journal.prune().await,
        }
    }
}

/// Rotates logs, concurrently with other work: copying takes a while.
async fn rotate_logs(context: &Arc<ExecContext>) -> std::convert::Infallible {
    // By then the procs of the journal have found their logs, also renamed ones, whose records would be
    // removed with those of lost logs.
    let mut forget_at = Instant::now() + HOUSEKEEPING;
    let mut pause = SOON;
    loop {
        tokio::time::sleep(pause).await;
        let with_forgotten = Instant::now() >= forget_at;
        if with_forgotten {
            forget_at = Instant::now() + FORGOTTEN;
        }
        let context = context.clone();
        let rotate = move || {
            if with_forgotten {
                context.rotate_forgotten_logs();
            }
            context.rotate_logs()
        };
        let was_much = tokio::task::spawn_blocking(rotate).await.unwrap_or(false);
        pause = if was_much { SOON } else { HOUSEKEEPING };
    }
}

/// Returns the memory of a burst of ops to the kernel.
async fn trim_memory(
    supervisor: &supervisor::Supervisor,
    journal: &journal::Journal,
) -> std::convert::Infallible {
    // The first time after the start.
    tokio::time::sleep(SOON).await;
    loop {
        journal.shrink().await;
        procfleet_program::memory::trim_heap();
        supervisor.burst().await;
    }
}

async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    let signalled = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if signalled.is_none() {
        std::future::pending().await
    }
}

/// Joins if that has not happened yet, and then stays connected.
async fn join_and_connect(
    config: &AgentSettings,
    journal: &journal::Journal,
    supervisor: &supervisor::Supervisor,
    outbox: &outbox::Outbox,
    states: &states::StateReports,
) -> Result<(), AgentError> {
    let identity = match identity::AgentIdentity::load(&config.data)? {
        Some(identity) => identity,
        None => {
            journal.forget_fleet().await?;
            enroll::join(config).await?
        }
    };
    let servers = config.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    info!(agent = %identity.agent, servers, "agent is up");
    let credentials = identity::Credentials::new(&config.data, identity);
    link::stay_connected(config, &credentials, journal, supervisor, outbox, states).await;
    Ok(())
}
