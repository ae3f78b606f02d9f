//! Finds processes that were started by hand for procs that have none.
//!
//! Every 10 s one scan serves all such procs: their pid files are read and, if some have no pid file, the
//! names of all processes. A candidate is sent to the actor of its proc, which verifies the candidate with
//! its own look. While every proc has a process, nothing is scanned.

use crate::exec::{ExecContext, StartedByHand};
use procfleet_core::Spec;
use procfleet_core::id::ProcKey;
use procfleet_core::process::Process;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// The status shows a process that was started by hand within 15 s, including the report to the server.
const EVERY: Duration = Duration::from_secs(10);

/// The procs that have no process, with the specs that identify it.
#[derive(Clone, Debug, Default)]
pub(super) struct AbsentProcs {
    specs: Arc<Mutex<BTreeMap<Arc<ProcKey>, Arc<Spec>>>>,
}

impl AbsentProcs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<ProcKey>, Arc<Spec>>> {
        self.specs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the proc has a process, or is not searched for.
    pub(super) fn set(&self, key: &Arc<ProcKey>, spec: Option<Arc<Spec>>) {
        match spec {
            Some(spec) => self.lock().insert(key.clone(), spec),
            None => self.lock().remove(key),
        };
    }

    /// Scans until the receiver is closed.
    pub(super) async fn run(
        self,
        context: Arc<ExecContext>,
        found: mpsc::Sender<Vec<(Arc<ProcKey>, Process)>>,
    ) {
        loop {
            tokio::time::sleep(EVERY).await;
            let absent: Vec<_> = self.lock().iter().map(|(key, spec)| (key.clone(), spec.clone())).collect();
            if absent.is_empty() {
                continue;
            }
            let context = context.clone();
            let look = move || {
                let started = StartedByHand::new(&context);
                let seen = absent.into_iter().filter_map(|(key, spec)| {
                    let process = started.candidate(&key, &spec.identity)?;
                    Some((key, process))
                });
                seen.collect::<Vec<_>>()
            };
            // The scan reads many files, so it does not block the actors' threads.
            let seen = tokio::task::spawn_blocking(look).await.unwrap_or_default();
            if !seen.is_empty() && found.send(seen).await.is_err() {
                return;
            }
        }
    }
}
