//! Reads a proc's log for a query. It runs no command, and reads no other file.

use crate::exec::context::ExecContext;
use crate::exec::output::proc_log::{Passage, ProcLog, Start};
use procfleet_core::grants::GrantScope;
use procfleet_core::op::OpKind;
use procfleet_core::{Code, ProcKey};
use procfleet_program::panics;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of checks while a query waits for more output.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// Attempts with a log that is removed at the same time.
const TRIES: usize = 3;

/// A query for log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogQuestion {
    pub proc: ProcKey,
    pub start: Start,
    /// Maximum number of bytes.
    pub most: usize,
    /// How long to wait until the log grows beyond this offset.
    pub wait: Duration,
    pub beyond: u64,
    /// Only output of these accounts.
    pub accounts: GrantScope<String>,
}

/// An excerpt of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogExcerpt {
    /// The offset of the first byte.
    pub begin: u64,
    pub bytes: Vec<u8>,
    /// The offset after the last byte of the log.
    pub end: u64,
    /// Number of requested bytes before `begin` that no longer exist.
    pub skipped: u64,
    /// The file, and a remark about it.
    pub file: String,
    pub note: String,
}

impl ExecContext {
    /// An error is a code and a reason that people can act on.
    pub async fn read_log(
        self: &Arc<ExecContext>,
        question: LogQuestion,
    ) -> Result<LogExcerpt, (Code, String)> {
        self.may_read()?;
        let log = self.proc_logs.of(&question.proc);
        self.may_read_of(&log, &question.accounts)?;
        let until = Instant::now() + question.wait;
        while Instant::now() < until && self.end_of(&log).await.is_some_and(|end| end == question.beyond) {
            tokio::time::sleep(POLL_EVERY.min(until.saturating_duration_since(Instant::now()))).await;
        }
        let context = self.clone();
        self.on_blocking_thread(move || context.read(&log, &question)).await
    }

    fn may_read(&self) -> Result<(), (Code, String)> {
        match self.allow().refusal(OpKind::Query, None) {
            Some(reason) => Err((Code::NotAllowed, reason)),
            None => Ok(()),
        }
    }

    /// The account of the present run must be readable for the caller; earlier output is checked piece by
    /// piece.
    fn may_read_of(&self, proc_log: &ProcLog, accounts: &GrantScope<String>) -> Result<(), (Code, String)> {
        let limited = proc_log.live(&self.proc_logs).filter(|_| !accounts.is_all());
        let Some(live) = limited else { return Ok(()) };
        match live.writer() {
            Some(writer) if accounts.allows(&writer) => Ok(()),
            Some(writer) => Err((
                Code::NotAllowed,
                format!("the process runs as user {writer:?}, and the app may not use that account"),
            )),
            None => Err((
                Code::NotAllowed,
                "nobody knows which account wrote this log (it was begun by an earlier version of the agent), so only an app with \
                 all accounts may read it until the process is started again"
                    .to_owned(),
            )),
        }
    }

    /// `None`: there is no log.
    async fn end_of(self: &Arc<ExecContext>, proc_log: &Arc<ProcLog>) -> Option<u64> {
        let (context, log) = (self.clone(), proc_log.clone());
        let end = move || log.live(&context.proc_logs).and_then(|live| live.end().ok());
        panics::block_for_request(end).await.ok().flatten()
    }

    async fn on_blocking_thread<T: Send + 'static>(
        self: &Arc<ExecContext>,
        act: impl FnOnce() -> Result<T, (Code, String)> + Send + 'static,
    ) -> Result<T, (Code, String)> {
        let broke = |_| (Code::SystemError, "reading the log broke off".to_owned());
        panics::block_for_request(act).await.map_err(broke).and_then(|done| done)
    }

    fn read(&self, proc_log: &ProcLog, question: &LogQuestion) -> Result<LogExcerpt, (Code, String)> {
        let proc = &question.proc;
        for _ in 0..TRIES {
            let live = proc_log.live(&self.proc_logs).ok_or_else(|| self.nothing(proc_log, proc))?;
            match live.read(question.start, question.most, &question.accounts) {
                Ok(Passage { begin, bytes, end, skipped }) => {
                    let note = proc_log.elsewhere().map(|at| {
                        format!("the process itself writes to {at} now; this is what its start command wrote")
                    });
                    let (file, note) = (live.path().display().to_string(), note.unwrap_or_default());
                    return Ok(LogExcerpt { begin, bytes, end, skipped, file, note });
                }
                // The log was removed; another one may have taken its place.
                Err(error) if error.kind() == io::ErrorKind::NotFound => proc_log.look_again(),
                Err(error) => {
                    let reason = format!("reading {}: {error}", live.path().display());
                    return Err((Code::SystemError, reason));
                }
            }
        }
        Err(self.nothing(proc_log, proc))
    }

    fn nothing(&self, proc_log: &ProcLog, proc: &ProcKey) -> (Code, String) {
        let reason = match proc_log.elsewhere() {
            Some(at) => format!("{proc} writes to {at}, which is no log of this agent; look there"),
            None => format!(
                "this host has no output of {proc}: it was never started here, or it was forgotten more than a day ago"
            ),
        };
        (Code::FileInvalid, reason)
    }
}
