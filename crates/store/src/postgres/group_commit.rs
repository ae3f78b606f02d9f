//! Changes of many agents in one transaction.
//!
//! ```text
//! sessions --changes--> queue --all that wait--> one unit: few statements for all, COMMIT --> answers
//!                                     \--those of locked agents--> units of their own, which wait
//! ```
//!
//! A whole fleet reports at once what one op has changed. A unit for each agent would cost a sync to disk and
//! several round trips each. One unit of a queue runs at a time; changes that come meanwhile are the next
//! group. A lone change does not wait for others.

use super::fault::PgFault;
use super::{Inner, PgStore};
use crate::StoreError;
use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;
use procfleet_core::AgentId;
use procfleet_program::panics::{self, Caught};
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// More changes in a group gain nothing, and make the first one wait.
const CHANGES: usize = 500;
/// Bounds the memory of one unit.
pub(super) const BYTES: usize = 4 << 20;

/// A change that one agent causes.
pub(super) trait GroupChange: Send + Sync + Sized + fmt::Debug + 'static {
    type Answer: Send + fmt::Debug + 'static;
    /// For errors: "storing an agent's procs".
    const DOING: &'static str;
    const ACCESS: Access = Access::Write;

    /// No group holds two changes of one agent.
    fn agent(&self) -> &AgentId;

    /// About how much of the database's memory and of the network it needs.
    fn bytes(&self) -> usize;

    /// Carries out all changes, and returns a reply for each, in order. An error is one of the whole unit.
    fn carry_out<'a>(
        tx: &'a Transaction<'a>,
        group: &'a ChangeGroup<Self>,
    ) -> BoxFuture<'a, Result<Vec<ChangeReply<Self>>, PgFault>>;
}

/// The kind of transaction that a queue uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    /// Read-only: a snapshot. Takes no lock on this server's row, and needs no sync.
    Read,
}

/// Changes of one unit.
pub(super) struct ChangeGroup<C> {
    pub(super) changes: Vec<C>,
    pub(super) locks: Locks,
}

/// How a unit treats rows that others have locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locks {
    Wait,
    /// Leaves them out, so that one agent does not delay the others.
    Skip,
}

impl Locks {
    /// The end of a statement that locks rows.
    pub(super) fn clause(self) -> &'static str {
        match self {
            Locks::Wait => "",
            Locks::Skip => "SKIP LOCKED",
        }
    }
}

pub(super) enum ChangeReply<C: GroupChange> {
    Answer(Result<C::Answer, StoreError>),
    /// The rows of the change are locked, or are not there: only a unit that waits can tell.
    Alone,
}

/// Changes of one kind that wait for the next unit.
#[derive(Debug)]
pub(super) struct GroupQueue<C: GroupChange>(Mutex<Waiting<C>>);

#[derive(Debug)]
struct Waiting<C: GroupChange> {
    changes: VecDeque<(C, AnswerSender<C>)>,
    /// A task carries out the changes.
    has_worker: bool,
}

type AnswerSender<C> = oneshot::Sender<Result<<C as GroupChange>::Answer, StoreError>>;

impl<C: GroupChange> Default for GroupQueue<C> {
    fn default() -> Self {
        GroupQueue(Mutex::new(Waiting { changes: VecDeque::new(), has_worker: false }))
    }
}

impl<C: GroupChange> GroupQueue<C> {
    /// Returns whether the caller has to serve the queue.
    fn push(&self, change: C, sender: AnswerSender<C>) -> bool {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.changes.push_back((change, sender));
        !std::mem::replace(&mut waiting.has_worker, true)
    }

    /// The next group. `None`: no change waits, and the queue has no worker any more.
    fn take(&self) -> Option<(Vec<C>, Vec<AnswerSender<C>>)> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut changes, mut senders) = (Vec::new(), Vec::new());
        let (mut agents, mut bytes, mut later) = (HashSet::new(), 0, VecDeque::new());
        while let Some((change, sender)) = waiting.changes.pop_front() {
            if sender.is_closed() {
                // The caller was told that the database is away, and tries again with another change.
                continue;
            }
            if !agents.insert(change.agent().clone()) {
                later.push_back((change, sender));
                continue;
            }
            bytes += change.bytes();
            changes.push(change);
            senders.push(sender);
            if changes.len() == CHANGES || bytes >= BYTES {
                break;
            }
        }
        later.append(&mut waiting.changes);
        waiting.changes = later;
        waiting.has_worker = !changes.is_empty();
        waiting.has_worker.then_some((changes, senders))
    }
}

impl PgStore {
    /// Returns when the change is durable. Once its unit has begun, it goes on even if the caller stops
    /// waiting.
    pub(super) async fn write_grouped<C: GroupChange>(
        &self,
        queue: fn(&Inner) -> &GroupQueue<C>,
        change: C,
    ) -> Result<C::Answer, StoreError> {
        let (sender, answer) = oneshot::channel();
        if queue(&self.inner).push(change, sender) {
            tokio::spawn(serve(Arc::clone(&self.inner), queue));
        }
        tokio::select! {
            biased;
            answered = answer => answered.unwrap_or(Err(StoreError::Panicked { doing: C::DOING })),
            reason = self.inner.beats.wait_until_unavailable() => {
                Err(StoreError::Unavailable { doing: C::DOING, reason })
            }
        }
    }
}

/// Carries out changes until none waits.
async fn serve<C: GroupChange>(inner: Arc<Inner>, queue: fn(&Inner) -> &GroupQueue<C>) {
    while let Some((changes, senders)) = queue(&inner).take() {
        carry_out(&inner, changes, senders).await;
    }
}

async fn carry_out<C: GroupChange>(inner: &Arc<Inner>, changes: Vec<C>, senders: Vec<AnswerSender<C>>) {
    let group = ChangeGroup { changes, locks: Locks::Skip };
    let replies = match run(inner, &group).await {
        Ok(replies) => replies,
        Err(error) => group.changes.iter().map(|_| reply_to_error(&error)).collect(),
    };
    let mut alone = Vec::new();
    for ((change, sender), reply) in group.changes.into_iter().zip(senders).zip(replies) {
        match reply {
            // The receiver may have stopped waiting, here and below.
            ChangeReply::Answer(answer) => drop(sender.send(answer)),
            ChangeReply::Alone => alone.push((change, sender)),
        }
    }
    if !alone.is_empty() {
        // Others in the queue do not wait for these.
        let inner = Arc::clone(inner);
        tokio::spawn(async move {
            for (change, sender) in alone {
                let _ = sender.send(carry_out_alone(&inner, change).await);
            }
        });
    }
}

/// A panic is an error of the unit, whose transaction is rolled back.
async fn run<C: GroupChange>(
    inner: &Inner,
    group: &ChangeGroup<C>,
) -> Result<Vec<ChangeReply<C>>, StoreError> {
    let unit = async {
        match C::ACCESS {
            Access::Write => inner.repeat(group, C::carry_out, inner.membership.term()).await,
            Access::Read => match inner.read_once(group, C::carry_out).await {
                Err(fault) if inner.can_read_again(&fault) => inner.read_once(group, C::carry_out).await,
                done => done,
            },
        }
    };
    match panics::catch(unit).await {
        Ok(done) => done.map_err(|fault| fault.during(C::DOING)),
        Err(Caught) => Err(StoreError::Panicked { doing: C::DOING }),
    }
}

/// For each change of a unit that failed.
fn reply_to_error<C: GroupChange>(error: &StoreError) -> ChangeReply<C> {
    let same = match error {
        StoreError::Unavailable { doing, reason } => {
            StoreError::Unavailable { doing, reason: reason.clone() }
        }
        StoreError::Uncertain { doing, source } => StoreError::Uncertain { doing, source: source.clone() },
        StoreError::Fenced => StoreError::Fenced,
        StoreError::Closed => StoreError::Closed,
        // One change may be the reason.
        _ => return ChangeReply::Alone,
    };
    ChangeReply::Answer(Err(same))
}

async fn carry_out_alone<C: GroupChange>(inner: &Inner, change: C) -> Result<C::Answer, StoreError> {
    let group = ChangeGroup { changes: vec![change], locks: Locks::Wait };
    let replies = run(inner, &group).await?;
    match replies.into_iter().next() {
        Some(ChangeReply::Answer(answer)) => answer,
        Some(ChangeReply::Alone) | None => Err(StoreError::Panicked { doing: C::DOING }),
    }
}
