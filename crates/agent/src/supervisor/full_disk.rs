//! Handles a full disk of the data folder.
//!
//! The journal holds disk blocks in advance, so ops that end a process can still be journalled. Ops that
//! would start more are refused. A query changes nothing: if the journal cannot be written at all, it is
//! answered without the journal, and the server sends it again after a crash of the agent.

use procfleet_core::id::OpId;
use procfleet_core::supervise::Write;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub(super) struct FullDisk {
    is_full: AtomicBool,
    /// Queries that are in no journal.
    unjournalled: Mutex<HashSet<OpId>>,
}

impl FullDisk {
    /// Returns whether the state has changed.
    pub(super) fn set(&self, is_full: bool) -> bool {
        self.is_full.swap(is_full, Ordering::Relaxed) != is_full
    }

    /// The note in the status of every proc.
    pub(super) fn note(&self) -> &'static str {
        match self.is_full.load(Ordering::Relaxed) {
            true => {
                "the disk of the agent's data folder is full: only stop, kill, reload, unhost, unregister and query are carried out"
            }
            false => "",
        }
    }

    pub(super) fn answer_without_journal(&self, op: OpId) {
        self.unjournalled().insert(op);
    }

    /// Splits off the outcomes that need not be written, because their ops are in no journal.
    pub(super) fn answers_of_unjournalled(&self, writes: Vec<Write>) -> (Vec<Write>, Vec<Write>) {
        let mut unjournalled = self.unjournalled();
        if unjournalled.is_empty() {
            return (Vec::new(), writes);
        }
        writes.into_iter().partition(|write| matches!(write, Write::Done(op, _) if unjournalled.remove(op)))
    }

    fn unjournalled(&self) -> std::sync::MutexGuard<'_, HashSet<OpId>> {
        self.unjournalled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
