//! The states of procs for the server, and the process groups. Each actor publishes its own proc's state, and
//! the supervisor the groups; the link reads changes.

use procfleet_core::id::ProcKey;
use procfleet_core::spec::ProcessGroup;
use procfleet_proto::link::{GroupsMessage, ProcStateMessage, STATE};
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

    /// Publishes the state of a proc. An equal state is not a change, whatever its time. A proc with a name
    /// that no server accepts is not reported.
    pub(crate) fn publish(&self, proc: &Arc<ProcKey>, mut report: ProcReport) {
        if !proc.is_reportable() {
            return;
        }
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
        if proc.is_reportable() {
            self.change(self.lock(), proc, None);
        }
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
        procs: procs.map(|(proc, (at, report))| state_message(proc, *at, report.as_deref())).collect(),
        groups: groups.map(|(namespace, (at, groups))| GroupsMessage::new(namespace, *at, groups)).collect(),
    }
}

/// Servers drop a larger state, and those of earlier versions end the session. JSON needs up to six bytes for
/// one, so labels and a note that are within their limits may exceed it.
fn state_message(proc: &ProcKey, revision: u64, report: Option<&ProcReport>) -> ProcStateMessage {
    let message = ProcStateMessage::new(proc, revision, report);
    match report {
        Some(report) if message.report.len() > STATE => {
            ProcStateMessage::new(proc, revision, Some(&shortened(report)))
        }
        Some(_) | None => message,
    }
}

/// Maximum bytes of the note of a shortened state; with six bytes for each, the state is below its limit.
const SHORT_NOTE: usize = 8 * 1024;
/// Ends the note of a shortened state.
const LEFT_OUT: &str = "the labels are left out, because the state is too large for the server";

/// The state without its labels, and with at most the beginning of its note.
fn shortened(report: &ProcReport) -> ProcReport {
    let mut short = ProcReport { labels: BTreeMap::new(), ..report.clone() };
    let most = SHORT_NOTE - LEFT_OUT.len() - "…; ".len();
    if short.note.len() > most {
        short.note.truncate(short.note.floor_char_boundary(most));
        short.note.push('…');
    }
    if !short.note.is_empty() {
        short.note.push_str("; ");
    }
    short.note.push_str(LEFT_OUT);
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_proto::http::native::ProcState;

    #[track_caller]
    fn sent(report: &ProcReport) -> (usize, ProcReport) {
        let states = StateReports::default();
        let proc = ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() };
        states.publish(&Arc::new(proc), report.clone());
        let (_, mut changes) = states.all();
        let message = changes.procs.pop().expect("a state");
        let read = message.report().expect("our own form").expect("not forgotten");
        (message.report.len(), read)
    }

    #[test]
    fn a_state_that_is_too_large_is_sent_without_its_labels_and_says_so() {
        let report = |labels: usize, note: String| {
            let labels = BTreeMap::from([("l".to_owned(), "v".repeat(labels))]);
            ProcReport { state: ProcState::Running, labels, ..ProcReport::left_alone(note) }
        };
        let fits = report(47 * 1024, "n".repeat(4 * 1024));
        assert_eq!(sent(&fits).1, fits);

        // A command's output of control characters: each has six bytes in JSON.
        let control = "\u{1}".repeat(4 * 1024);
        for large in [report(47 * 1024, control.clone()), report(90 * 1024, String::new())] {
            let (bytes, read) = sent(&large);
            assert!(bytes <= STATE, "{bytes}");
            assert!(read.labels.is_empty() && read.note.ends_with(LEFT_OUT), "{read:?}");
            assert!(read.note.starts_with(&large.note), "the note is whole: {read:?}");
            assert_eq!((read.state, read.pid), (large.state, large.pid));
        }
        let (bytes, read) = sent(&report(90 * 1024, "\u{1}".repeat(90 * 1024)));
        assert!(bytes <= STATE, "{bytes}");
        assert!(read.note.len() <= SHORT_NOTE && read.note.ends_with(&format!("…; {LEFT_OUT}")), "{read:?}");
    }

    #[test]
    fn a_proc_with_a_name_that_no_server_accepts_is_not_reported() {
        let states = StateReports::default();
        for bytes in [ProcKey::LONGEST, ProcKey::LONGEST + 1] {
            let proc = ProcKey { namespace: "web".to_owned(), name: "n".repeat(bytes) };
            states.publish(&Arc::new(proc), ProcReport::left_alone(String::new()));
        }
        assert_eq!(states.all().1.procs.len(), 1);
    }
}
