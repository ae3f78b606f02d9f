//! The journal as one proc's actor writes it: every step in its order, some of them waited for.
//!
//! What need not be durable before the actor goes on is written when the disk is ready. What must be waits
//! for all that came before it, and goes into the same transaction.

use crate::journal::{EventProc, Journal};
use procfleet_core::id::ProcKey;
use procfleet_core::supervise::{Event, Severity, Write};
use std::pin::Pin;
use std::sync::Arc;
use tracing::{info, warn};

/// So much may wait for a disk that takes nothing. After that the proc waits too: its memory is no disk.
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

    /// Returns when something was written, and never if there is nothing. Nothing is lost if it is not waited
    /// for to the end.
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
                // Not before: what the log says has happened is not to be lost.
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
