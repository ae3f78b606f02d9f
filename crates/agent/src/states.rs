//! The procs' states as the server should see them, and the process groups. Each actor writes its own proc's,
//! and the supervisor the groups; the link reads what has changed.

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
    news: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    /// `None`: the proc was forgotten, and the server should forget it too.
    procs: BTreeMap<Arc<ProcKey>, (u64, Option<ProcReport>)>,
    /// By namespace. An empty list: there are none any more, and the server should know that.
    groups: BTreeMap<String, (u64, Vec<ProcessGroup>)>,
}

/// What is to be told.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StateNews {
    pub(crate) procs: Vec<ProcStateMessage>,
    pub(crate) groups: Vec<GroupsMessage>,
}

impl StateReports {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The proc looks so. If it did before, that is no news, whatever the time is.
    pub(crate) fn publish(&self, proc: &Arc<ProcKey>, mut report: ProcReport) {
        let inner = self.lock();
        if let Some((_, Some(known))) = inner.procs.get(proc) {
            let now = std::mem::replace(&mut report.reported_at, known.reported_at);
            if *known == report {
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
        inner.procs.insert(proc.clone(), (revision, report));
        self.news.notify_one();
    }

    pub(crate) fn publish_groups(&self, namespace: &str, groups: Vec<ProcessGroup>) {
        let mut inner = self.lock();
        inner.revision += 1;
        let revision = inner.revision;
        inner.groups.insert(namespace.to_owned(), (revision, groups));
        self.news.notify_one();
    }

    /// All that there are, for a new session. What was forgotten need not be said: it is not in the list.
    pub(crate) fn all(&self) -> (u64, StateNews) {
        let mut inner = self.lock();
        inner.procs.retain(|_, (_, report)| report.is_some());
        inner.groups.retain(|_, (_, groups)| !groups.is_empty());
        (inner.revision, news_since(&inner, 0))
    }

    /// What has changed since `revision`, and the revision that this is.
    pub(crate) fn since(&self, revision: u64) -> (u64, StateNews) {
        let inner = self.lock();
        (inner.revision, news_since(&inner, revision))
    }

    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }
}

fn news_since(inner: &Inner, since: u64) -> StateNews {
    let procs = inner.procs.iter().filter(|(_, (at, _))| *at > since);
    let groups = inner.groups.iter().filter(|(_, (at, _))| *at > since);
    StateNews {
        procs: procs.map(|(proc, (at, report))| ProcStateMessage::new(proc, *at, report.as_ref())).collect(),
        groups: groups.map(|(namespace, (at, groups))| GroupsMessage::new(namespace, *at, groups)).collect(),
    }
}
