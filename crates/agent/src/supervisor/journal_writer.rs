//! Orders one actor's journal writes.
//!
//! Deferred writes are committed when the disk is ready. A write that must be durable first waits for all
//! earlier ones, and is in the same transaction.

use crate::journal::{EventProc, Journal};
use procfleet_core::id::ProcKey;
use procfleet_core::supervise::{Event, Severity, Write};
use std::pin::Pin;
use std::sync::Arc;
use tracing::{info, warn};

/// Maximum number of deferred journal writes. Beyond it the actor blocks (back-pressure).
const BEHIND: usize = 64;

/// A write that is under way.
type Writing = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct JournalWriter {
    journal: Journal,
    key: Arc<ProcKey>,
    writing: Option<Writing>,
    /// Writes that were not begun. Boxed: nearly always there are none.
    behind: Option<Box<Behind>>,
}

#[derive(Default)]
struct Behind {
    writes: Vec<Write>,
    known: EventProc,
}

impl JournalWriter {
    pub(super) fn new(journal: Journal, key: Arc<ProcKey>) -> JournalWriter {
        JournalWriter { journal, key, writing: None, behind: None }
    }

    /// Makes these writes and all earlier ones durable.
    pub(super) async fn write(&mut self, writes: &[Write], known: EventProc) {
        self.defer(writes, known);
        self.settle().await;
    }

    /// Defers these writes. Waits only if too many are deferred already.
    pub(super) async fn write_later(&mut self, writes: &[Write], known: EventProc) {
        self.defer(writes, known);
        if self.behind.as_ref().is_some_and(|behind| behind.writes.len() > BEHIND) {
            self.settle().await;
        }
        self.begin();
    }

    /// Returns when a deferred write was committed; never if there is none. Cancel safe.
    pub(super) async fn progress(&mut self) {
        match &mut self.writing {
            Some(writing) => writing.await,
            None => std::future::pending().await,
        }
        self.writing = None;
        self.begin();
    }

    /// Returns when all is durable.
    pub(super) async fn settle(&mut self) {
        self.begin();
        while self.writing.is_some() {
            self.progress().await;
        }
    }

    fn defer(&mut self, writes: &[Write], known: EventProc) {
        if writes.is_empty() {
            return;
        }
        let behind = self.behind.get_or_insert_default();
        // Only the last record of a transaction would remain, so earlier ones are dropped.
        if writes.iter().any(|write| matches!(write, Write::Record(_))) {
            behind.writes.retain(|write| !matches!(write, Write::Record(_)));
        }
        behind.writes.extend_from_slice(writes);
        behind.known = known;
    }

    fn begin(&mut self) {
        if self.writing.is_none()
            && let Some(behind) = self.behind.take()
        {
            let Behind { writes, known } = *behind;
            let (journal, key) = (self.journal.clone(), self.key.clone());
            self.writing = Some(Box::pin(async move {
                journal.write(&key, &writes, &known).await;
                // After the commit: an event in the log must not be lost.
                for write in &writes {
                    if let Write::Event(event) = write {
                        log_event(&key, event);
                    }
                }
            }));
        }
    }
}

fn log_event(key: &ProcKey, event: &Event) {
    match event.severity() {
        Severity::Info => info!(proc = %key, kind = event.kind(), %event, "event"),
        Severity::Warning => warn!(proc = %key, kind = event.kind(), %event, "event"),
    }
}
