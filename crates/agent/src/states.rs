//! The procs' states as the server should see them. Each actor writes its own; the link reads what has changed.

use procfleet_core::id::ProcKey;
use procfleet_proto::link::ProcStateMessage;
use procfleet_proto::state::ProcReport;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
pub(crate) struct States {
    inner: Arc<Mutex<Inner>>,
    news: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    /// `None`: the proc was forgotten, and the server should forget it too.
    procs: BTreeMap<ProcKey, (u64, Option<ProcReport>)>,
}

impl States {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish(&self, proc: &ProcKey, report: ProcReport) {
        self.change(proc, Some(report));
    }

    pub(crate) fn forget(&self, proc: &ProcKey) {
        self.change(proc, None);
    }

    fn change(&self, proc: &ProcKey, report: Option<ProcReport>) {
        let mut inner = self.lock();
        inner.revision += 1;
        let revision = inner.revision;
        inner.procs.insert(proc.clone(), (revision, report));
        self.news.notify_one();
    }

    /// All that there are, for a new session. What was forgotten need not be said: it is not in the list.
    pub(crate) fn all(&self) -> (u64, Vec<ProcStateMessage>) {
        let mut inner = self.lock();
        inner.procs.retain(|_, (_, report)| report.is_some());
        (inner.revision, messages(&inner, 0))
    }

    /// What has changed since `revision`, and the revision that this is.
    pub(crate) fn since(&self, revision: u64) -> (u64, Vec<ProcStateMessage>) {
        let inner = self.lock();
        (inner.revision, messages(&inner, revision))
    }

    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }
}

fn messages(inner: &Inner, since: u64) -> Vec<ProcStateMessage> {
    let changed = inner.procs.iter().filter(|(_, (at, _))| *at > since);
    changed.map(|(proc, (at, report))| ProcStateMessage::new(proc, *at, report.as_ref())).collect()
}
