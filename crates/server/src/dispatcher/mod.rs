//! The single writer of ops.
//!
//! The dispatcher knows every open op that this server decides about and every agent that is connected here.
//! On each input (a new task, a connection, a report, a deadline) it asks
//! [`dispatch::decide`](procfleet_core::dispatch::decide) about the affected ops and acts: hand the op to a
//! session, wait, or write the outcome. It loads its ops from the store, so a start after a crash runs the
//! same code.
//!
//! Outcomes are written in batches, one transaction each, and acknowledged only after the commit. If the
//! store refuses a batch, the batch is kept and tried again; agents repeat reports that were not
//! acknowledged.
//!
//! Servers that share a store divide the ops by agents: an op is decided by the server that holds its agent's
//! last session, or, if that server is dead, by the one that has the lease `unheld`. A server that has not
//! reached the store for some seconds neither sends nor decides (`cluster.rs`).
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | the handle, the messages and the state |
//! | `work.rs` | the loop: takes messages until nothing is due |
//! | `table.rs` | the open ops and their timers |
//! | `decide.rs` | what to do with an op that is due, and sending it |
//! | `sessions.rs` | the connected agents |
//! | `cluster.rs` | the other servers of the store: what they took over, what they have announced |
//! | `commit.rs` | writing outcomes and acknowledging them |

mod cluster;
mod commit;
mod decide;
mod sessions;
mod table;
#[cfg(test)]
mod tests;
mod work;

use crate::backlog::Backlog;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::presences::{LastHeard, Presences};
use crate::session_channel::SessionSender;
use cluster::Cluster;
use procfleet_core::boot_time::BootTime;
use procfleet_core::dispatch::RESTART_GRACE;
use procfleet_core::id::{AgentId, Epoch, OpId, TaskId};
use procfleet_core::op::Outcome;
use procfleet_program::Parts;
use procfleet_store::{Finished, ServerTerm, Store, StoreError, Wake};
use sessions::Session;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use table::Entry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

/// Capacity of the message queue. Reports arrive in batches, so this is far more than one round of a large
/// fleet. A session that finds the queue full waits (back-pressure), and so does its agent.
const QUEUE: usize = 4_096;
/// Maximum bytes of reports that wait to be written. Beyond it sessions stop reading, so that a burst of
/// results, or a full disk, queues on the agents (back-pressure).
const REPORT_BYTES: usize = 32 << 20;
/// How soon a failed write or read of the store is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The reason given for an agent whose host another agent has joined for.
pub const RETIRED: &str = "was retired: another agent has joined for its host";

/// The reason given for an agent that an administrator has revoked.
pub fn revoked(why: &str) -> String {
    match why {
        "" => "was revoked; only a new token lets its host in again".to_owned(),
        why => format!("was revoked ({why}); only a new token lets its host in again"),
    }
}

/// An input of the dispatcher.
#[derive(Debug)]
pub enum DispatcherMessage {
    /// The task is in the store; the dispatcher reads its ops from there.
    TaskCreated(TaskId),
    /// The cancellation is in the store.
    Cancelled(TaskId),
    /// Another server has announced something.
    Woken(Wake),
    Connected {
        agent: AgentId,
        /// The run of this server that has stored the session, or an earlier one.
        term: ServerTerm,
        epoch: Epoch,
        sender: SessionSender,
        /// Ops that are in the agent's journal.
        taken: Vec<OpId>,
        heard: LastHeard,
        capabilities: AgentCapabilities,
    },
    /// The session has ended, or it is not known whether it was stored.
    Gone {
        agent: AgentId,
        epoch: Epoch,
    },
    /// Only this server does not reach the store: its agents are better off at others.
    CutOff,
    /// The store says that the agent was retired or revoked. Its session and its ops end.
    Dismissed {
        agent: AgentId,
        /// Continues a sentence that begins with "its agent".
        reason: String,
    },
    Reports {
        agent: AgentId,
        epoch: Epoch,
        reports: Vec<(OpId, Option<Outcome>)>,
        /// Share of `REPORT_BYTES`; see [`Dispatcher::report`].
        permit: Option<OwnedSemaphorePermit>,
    },
    Stop(oneshot::Sender<()>),
}

/// Capabilities that not every version of the agent has.
#[derive(Clone, Copy, Debug)]
pub struct AgentCapabilities {
    /// Understands the message that cancels an op.
    pub cancels: bool,
    /// Can change single fields of a stored spec.
    pub changes: bool,
    /// Refuses ops on OS accounts that their app may not use.
    pub limits_accounts: bool,
}

/// The state of the dispatcher. Each file adds the methods of its idea.
struct Work {
    store: Store,
    cluster: Cluster,
    clock: Clock,
    presences: Presences,
    metrics: Arc<Metrics>,
    /// Counts the open ops; ended ops free capacity for others.
    backlog: Backlog,
    changes: watch::Sender<u64>,
    /// Boxed: a table of unboxed entries would be the largest object in memory, and twice as large while it
    /// grows.
    ops: HashMap<OpId, Box<Entry>>,
    by_agent: HashMap<AgentId, BTreeSet<OpId>>,
    sessions: HashMap<AgentId, Session>,
    /// Until when an agent that is away may reconnect before its ops are decided without it.
    back_by: HashMap<AgentId, BootTime>,
    /// Agents that were retired or revoked, with the reason.
    dismissed: HashMap<AgentId, String>,
    /// Until then agents without a `back_by` may reconnect, after a start of this server or the death of
    /// another one. With a shared store it also extends `back_by`.
    verdicts_from: BootTime,
    timers: BTreeSet<(BootTime, OpId)>,
    /// Ops to decide about.
    dirty: BTreeSet<OpId>,
    finished: Vec<Finished>,
    /// Tasks whose ops are still to be read from the store.
    unread: Vec<TaskId>,
    /// Released when the reports that they belong to are written.
    report_permits: Vec<OwnedSemaphorePermit>,
    retry_at: Option<BootTime>,
}

/// The handle of the dispatcher.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    messages: mpsc::Sender<DispatcherMessage>,
    changed: watch::Receiver<u64>,
    report_bytes: Arc<Semaphore>,
}

impl Dispatcher {
    /// Loads the open ops and starts to work on them.
    pub async fn start(
        parts: &mut Parts,
        store: Store,
        clock: Clock,
        presences: Presences,
        metrics: Arc<Metrics>,
        backlog: Backlog,
    ) -> Result<Dispatcher, StoreError> {
        let (dispatcher, work) =
            Dispatcher::prepare(store, clock, presences, metrics, backlog, RESTART_GRACE).await?;
        parts.spawn("the dispatcher of ops", work);
        Ok(dispatcher)
    }

    /// The handle and the task. `grace`: how long agents that have not reconnected yet do not count as away.
    async fn prepare(
        store: Store,
        clock: Clock,
        presences: Presences,
        metrics: Arc<Metrics>,
        backlog: Backlog,
        grace: Duration,
    ) -> Result<(Dispatcher, impl Future<Output = ()> + Send + 'static), StoreError> {
        let (messages, inbox) = mpsc::channel(QUEUE);
        let (changes, changed) = watch::channel(0);
        let work = Work::load(store, clock, presences, metrics, backlog, changes, grace).await?;
        let report_bytes = Arc::new(Semaphore::new(REPORT_BYTES));
        Ok((Dispatcher { messages, changed, report_bytes }, work.run(inbox)))
    }

    /// Hands over an agent's reports from a message of `size` bytes. Waits while `REPORT_BYTES` are used up.
    /// False: the dispatcher has ended.
    pub async fn report(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        reports: Vec<(OpId, Option<Outcome>)>,
        size: usize,
    ) -> bool {
        let size = u32::try_from(size.min(REPORT_BYTES)).unwrap_or(u32::MAX);
        // `ok`: the semaphore is never closed.
        let permit = Arc::clone(&self.report_bytes).acquire_many_owned(size).await.ok();
        self.send(DispatcherMessage::Reports { agent: agent.clone(), epoch, reports, permit }).await
    }

    /// Waits while the queue is full. False: the dispatcher has ended.
    pub async fn send(&self, message: DispatcherMessage) -> bool {
        self.messages.send(message).await.is_ok()
    }

    /// Changes whenever an op gets an outcome.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// Asks all agents to reconnect later, and ends.
    pub async fn stop(&self) {
        let (done, ended) = oneshot::channel();
        if self.send(DispatcherMessage::Stop(done)).await {
            let _ = ended.await;
        }
    }
}
