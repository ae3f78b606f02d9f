//! The states of procs for the server, and the process groups. Each actor publishes its own proc's state, and
//! the supervisor the groups; the link reads changes.

use procfleet_core::id::ProcKey;
use procfleet_core::spec::ProcessGroup;
use procfleet_proto::link::{GroupsMessage, ProcStateMessage};
use procfleet_proto::state::ProcReport;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
pub(crate) struct StateReports {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    /// `None`: the proc was unregistered, and the server should delete it too.
    /// Boxed: the nodes of the tree are half empty.
    procs: BTreeMap<Arc<ProcKey>, (u64, Option<Box<ProcReport>>)>,
    /// By namespace. An empty list: the groups were deleted, and the server should know it.
    groups: BTreeMap<String, (u64, Vec<ProcessGroup>)>,
}

/// Changes for the server.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StateChanges {
    pub(crate) procs: Vec<ProcStateMessage>,
    pub(crate) groups: Vec<GroupsMessage>,
}

impl StateReports {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the state of a proc. An equal state is not a change, whatever its time.
    pub(crate) fn publish(&self, proc: &Arc<ProcKey>, mut report: ProcReport) {
        let inner = self.lock();
        if let Some((_, Some(known))) = inner.procs.get(proc) {
            let now = std::mem::replace(&mut report.reported_at, known.reported_at);
            if **known == report {
                return;
            }
            report.reported_at = now;
        }
        self.change(inner, proc, Some(report));
    }

    pub(crate) fn forget(&self, proc: &Arc<ProcKey>) {
        self.change(self.lock(), proc, None);
    }

    fn change(&self, mut inner: MutexGuard<'_, Inner>, proc: &Arc<ProcKey>, report: Option<ProcReport>) {
        inner.revision += 1;
        let revision = inner.revision;
        inner.procs.insert(proc.clone(), (revision, report.map(Box::new)));
        self.changed.notify_one();
    }

    pub(crate) fn publish_groups(&self, namespace: &str, groups: Vec<ProcessGroup>) {
        let mut inner = self.lock();
        inner.revision += 1;
        let revision = inner.revision;
        inner.groups.insert(namespace.to_owned(), (revision, groups));
        self.changed.notify_one();
    }

    /// All states, for a new session. Unregistered procs are missing in the list.
    pub(crate) fn all(&self) -> (u64, StateChanges) {
        let mut inner = self.lock();
        inner.procs.retain(|_, (_, report)| report.is_some());
        inner.groups.retain(|_, (_, groups)| !groups.is_empty());
        (inner.revision, changes_since(&inner, 0))
    }

    /// Changes since `revision`, and the present revision.
    pub(crate) fn since(&self, revision: u64) -> (u64, StateChanges) {
        let inner = self.lock();
        (inner.revision, changes_since(&inner, revision))
    }

    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

fn changes_since(inner: &Inner, since: u64) -> StateChanges {
    let procs = inner.procs.iter().filter(|(_, (at, _))| *at > since);
    let groups = inner.groups.iter().filter(|(_, (at, _))| *at > since);
    StateChanges {
        procs: procs
            .map(|(proc, (at, report))| ProcStateMessage::new(proc, *at, report.as_deref()))
            .collect(),
        groups: groups.map(|(namespace, (at, groups))| GroupsMessage::new(namespace, *at, groups)).collect(),
    }
}
