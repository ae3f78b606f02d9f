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
    behind: Vec<Write>,
    known: EventProc,
}

impl JournalWriter {
    pub(super) fn new(journal: Journal, key: Arc<ProcKey>) -> JournalWriter {
        JournalWriter { journal, key, writing: None, behind: Vec::new(), known: EventProc::default() }
    }

    /// Makes these durable, with all that came before.
    pub(super) async fn write(&mut self, writes: &[Write], known: EventProc) {
        self.note(writes, known);
        self.settle().await;
    }

    /// These may become durable later. It waits only for a disk that has taken nothing for long.
    pub(super) async fn write_later(&mut self, writes: &[Write], known: EventProc) {
        self.note(writes, known);
        if self.behind.len() > BEHIND {
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

    fn note(&mut self, writes: &[Write], known: EventProc) {
        if writes.is_empty() {
            return;
        }
        // Of several records in one transaction only the last would be there afterwards.
        if writes.iter().any(|write| matches!(write, Write::Record(_))) {
            self.behind.retain(|write| !matches!(write, Write::Record(_)));
        }
        self.behind.extend_from_slice(writes);
        self.known = known;
    }

    fn begin(&mut self) {
        if self.writing.is_none() && !self.behind.is_empty() {
            let (writes, known) = (std::mem::take(&mut self.behind), std::mem::take(&mut self.known));
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
