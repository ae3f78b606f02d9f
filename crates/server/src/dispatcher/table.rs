//! The table of open ops and their timers.

use super::{RETIRED, RETRY, Work, revoked};
use crate::backlog::Load;
use procfleet_core::boot_time::BootTime;
use procfleet_core::dispatch::{Cancelling, OpProgress, OpenOp};
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{AgentId, Epoch, OpId, ProcKey, TaskId};
use procfleet_core::request::Target;
use procfleet_core::spec::Spec;
use procfleet_failpoint::{Point, hit};
use procfleet_store::{Dismissal, OpScope, OpenOpRow, RequestHead, SentBefore, StoreError};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tracing::{error, info};

/// The epoch of sessions of an earlier server process. Epochs of the store begin with 1.
const NO_SESSION: Epoch = Epoch(0);

/// One open op.
pub(super) struct Entry {
    pub(super) open: OpenOp,
    pub(super) request: Arc<SharedRequest>,
    pub(super) target: Target,
    pub(super) agent: Option<AgentId>,
    /// `Some`: the task was cancelled.
    pub(super) cancelling: Option<Cancelling>,
    pub(super) wake: Option<BootTime>,
}

/// What the open ops of one request share.
pub(super) struct SharedRequest {
    pub(super) proc: ProcKey,
    /// The JSON text of its spec.
    pub(super) spec: Option<Vec<u8>>,
    /// The ops of the request change single fields of a stored spec.
    pub(super) changes: bool,
    pub(super) accounts: GrantScope<String>,
}

impl SharedRequest {
    fn new(head: &RequestHead) -> SharedRequest {
        SharedRequest {
            proc: head.proc.clone(),
            spec: head.spec.as_deref().map(text_of),
            changes: head.spec.as_ref().is_some_and(|spec| !spec.change.is_empty()),
            accounts: head.accounts.clone(),
        }
    }
}

impl Work {
    /// Loads the ops that were open when the server started.
    pub(super) async fn load_open_ops(&mut self) -> Result<(), StoreError> {
        let open = self.store.open_ops(OpScope::All).await?;
        // A server of its own store has accepted all of them. With other servers, each bounds what it
        // accepts.
        if !self.cluster.is_shared() {
            let mut specs: HashMap<TaskId, BTreeMap<*const RequestHead, usize>> = HashMap::new();
            for row in &open {
                let sizes = specs.entry(row.op.task).or_default();
                let size = || row.request.spec.as_ref().map_or(0, |spec| text_of(spec).len());
                sizes.entry(Arc::as_ptr(&row.request)).or_insert_with(size);
            }
            for (task, ops) in count_by_task(&open) {
                let bytes = specs.get(&task).map_or(0, |sizes| sizes.values().sum());
                self.backlog.restore(task, Load { ops, bytes });
            }
        }
        if !open.is_empty() {
            info!(ops = open.len(), "open ops resumed from the store");
        }
        self.add_new(open);
        Ok(())
    }

    /// Reads the ops of all new tasks in one query.
    pub(super) async fn read_tasks(&mut self) {
        // A server that may not decide would not see the ops of agents without a living server.
        if self.unread.is_empty() || !self.cluster.may_act() {
            return;
        }
        let read = match self.find_earlier().await {
            Ok(()) => self.store.open_ops(OpScope::Tasks(self.unread.clone())).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(_) if !self.cluster.may_act() => {}
            Ok(rows) => {
                hit(Point::ServerDispatcherRead);
                let open = count_by_task(&rows);
                for task in std::mem::take(&mut self.unread) {
                    match self.cluster.is_shared() {
                        // Other servers have some of its ops; the next look tells how many are open.
                        true => self.cluster.learn(task),
                        false => {
                            self.backlog.release_down_to(task, open.get(&task).copied().unwrap_or_default())
                        }
                    }
                }
                self.add_new(rows);
            }
            Err(error) => {
                let tasks = self.unread.len();
                error!(
                    tasks,
                    error = &error as &dyn std::error::Error,
                    "reading new tasks from the store failed; their ops wait and the read is tried again every second. If this goes on, check the disk of the data folder, or with --store the database"
                );
                self.retry_at = Some(self.clock.now() + RETRY);
            }
        }
    }

    /// Adds ops that are not in the table yet.
    pub(super) fn add_new(&mut self, mut rows: Vec<OpenOpRow>) {
        for row in &rows {
            if let (Some(agent), Some(epoch)) = (&row.agent, row.epoch)
                && self.cluster.saw_epoch(agent, epoch)
                && self.cluster.is_shared()
            {
                self.mark_maybe_sent(agent);
            }
        }
        if rows.iter().filter_map(|row| row.holder).any(|holder| self.cluster.has_died_since(holder)) {
            self.give_grace();
        }
        rows.retain(|row| !self.ops.contains_key(&row.op));
        for row in &rows {
            if let (Some(agent), Some(dismissal)) = (&row.agent, &row.dismissal) {
                self.dismissed.insert(agent.clone(), reason_of(dismissal));
            }
        }
        self.add(rows);
    }

    /// The agent was connected to another server in between, which may have sent its ops. The grace period
    /// of its earlier disconnect from this server is over.
    fn mark_maybe_sent(&mut self, agent: &AgentId) {
        self.back_by.remove(agent);
        for op in self.by_agent.get(agent).into_iter().flatten() {
            if let Some(entry) = self.ops.get_mut(op)
                && entry.open.progress == OpProgress::Waiting
            {
                entry.open.progress = OpProgress::Sent(NO_SESSION);
            }
        }
    }

    fn add(&mut self, rows: Vec<OpenOpRow>) {
        // One copy of each request, shared by all of its ops.
        let mut requests: HashMap<*const RequestHead, (Arc<RequestHead>, Arc<SharedRequest>)> =
            HashMap::new();
        for row in rows {
            // The entry keeps the head alive, so that no other head gets its address.
            let (_, request) = requests
                .entry(Arc::as_ptr(&row.request))
                .or_insert_with(|| (row.request.clone(), Arc::new(SharedRequest::new(&row.request))));
            let request = request.clone();
            if let Some(agent) = &row.agent {
                self.by_agent.entry(agent.clone()).or_default().insert(row.op);
            }
            let open = OpenOp {
                kind: row.request.kind,
                accepted: self.clock.moment_of(row.accepted.wall, row.accepted),
                start_by: self.clock.moment_of(row.start_by, row.accepted),
                deadline: self.clock.moment_of(row.deadline, row.accepted),
                // An agent that may have the op may even have its outcome, so only the agent's report or the
                // deadline ends it.
                progress: match row.sent {
                    SentBefore::No => OpProgress::Waiting,
                    SentBefore::Maybe => OpProgress::Sent(NO_SESSION),
                },
            };
            let cancelling = row.cancelled.then_some(Cancelling::Due);
            let (target, agent) = (row.target, row.agent);
            let entry = Entry { open, request, target, agent, cancelling, wake: None };
            self.ops.insert(row.op, Box::new(entry));
            self.dirty.insert(row.op);
        }
    }

    /// Removes an op that has ended. False: the op was not in the table.
    pub(super) fn forget(&mut self, op: OpId) -> bool {
        let Some(entry) = self.ops.remove(&op) else { return false };
        if let Some(wake) = entry.wake {
            self.timers.remove(&(wake, op));
        }
        let Some(agent) = entry.agent else { return true };
        if let Some(ops) = self.by_agent.get_mut(&agent) {
            ops.remove(&op);
            if ops.is_empty() {
                self.by_agent.remove(&agent);
                // An entry of `back_by` refers to this epoch.
                if !self.sessions.contains_key(&agent) && !self.back_by.contains_key(&agent) {
                    self.cluster.epochs.remove(&agent);
                }
            }
        }
        // The op will not be confirmed any longer, so it does not count as unconfirmed.
        if let OpProgress::Sent(epoch) = entry.open.progress {
            self.confirmed(&agent, epoch);
        }
        true
    }

    /// Sets the op's timer, instead of an earlier one.
    pub(super) fn wake(&mut self, op: OpId, at: BootTime) {
        if let Some(entry) = self.ops.get_mut(&op) {
            if let Some(old) = entry.wake.replace(at) {
                self.timers.remove(&(old, op));
            }
            self.timers.insert((at, op));
        }
    }

    /// When the next timer or retry is due.
    pub(super) fn wake_at(&self) -> Option<BootTime> {
        let timer = self.timers.first().map(|(moment, _)| *moment);
        // Timers and the poll have no effect until this server may decide again.
        if !self.cluster.may_act() {
            return Some(self.clock.now() + RETRY);
        }
        // `follow_cluster`, which moves `poll_at`, does not run before `retry_at`.
        let next_poll = self.cluster.poll_at.map(|at| self.retry_at.map_or(at, |retry_at| at.max(retry_at)));
        timer.into_iter().chain(self.retry_at).chain(next_poll).min()
    }

    /// Lets all open ops of the agent be decided.
    pub(super) fn reconsider(&mut self, agent: &AgentId) {
        self.dirty.extend(self.by_agent.get(agent).into_iter().flatten());
    }
}

fn count_by_task(rows: &[OpenOpRow]) -> HashMap<TaskId, usize> {
    let mut ops = HashMap::new();
    for row in rows {
        *ops.entry(row.op.task).or_default() += 1;
    }
    ops
}

/// Continues the text "its agent".
pub(super) fn reason_of(dismissal: &Dismissal) -> String {
    match dismissal {
        Dismissal::Retired => RETIRED.to_owned(),
        Dismissal::Revoked(why) => revoked(why),
    }
}

fn text_of(spec: &Spec) -> Vec<u8> {
    serde_json::to_vec(spec).expect("a spec is always JSON")
}
