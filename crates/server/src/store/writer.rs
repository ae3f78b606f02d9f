//! Writing: one thread, one transaction at a time, many jobs in each.
//!
//! ```text
//! take what waits -> BEGIN -> (SAVEPOINT, job, RELEASE | ROLLBACK TO)* -> COMMIT (synced) -> answer all
//! ```
//!
//! No job is answered before the commit, so no caller believes in a change that a crash could undo. Some
//! errors (disk full, I/O) make SQLite give up the whole transaction in the middle of a group: the jobs
//! before it are then answered with that error, and the rest begins anew.
//!
//! Before and after each group the writer checks that the files are still those that it opened (see
//! `health`).

use super::health::{CommitResult, StoreHealth};
use super::schema::StoreLock;
use super::{QueryFault, StoreError};
use procfleet_failpoint::{Point, fails};
use procfleet_program::panics;
use procfleet_sqlite::Reserve;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The most jobs in one commit; beyond that a larger group gains nothing and makes the first one wait.
const GROUP: usize = 1_000;
/// The next group gathers while the last one is being committed. Who comes later waits for a place.
const WAITING: usize = GROUP;
/// How often the page cache is given back. A large task needs all of the cache for a moment; under constant
/// load, pages that nobody needs again would fill the cache, and stay.
const SHRINK: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Message>,
    thread: Mutex<Option<JoinHandle<Result<(), StoreError>>>>,
}

enum Message {
    Job(Box<dyn WriteJob>),
    Close,
}

trait WriteJob: Send {
    /// Makes the change, inside a savepoint.
    fn run(&mut self, connection: &Connection) -> SavepointVerdict;
    /// Tells the caller, once it is known what became of the commit.
    fn answer(self: Box<Self>, lost: Option<Arc<rusqlite::Error>>);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SavepointVerdict {
    Keep,
    Undo,
}

/// A change with a caller who waits for it.
struct PendingWrite<T, F> {
    doing: &'static str,
    progress: JobProgress<T, F>,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

enum JobProgress<T, F> {
    Waiting(F),
    Running,
    Done(Result<T, StoreError>),
}

impl<T, F> WriteJob for PendingWrite<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> Result<T, QueryFault> + Send,
{
    fn run(&mut self, connection: &Connection) -> SavepointVerdict {
        let doing = self.doing;
        let JobProgress::Waiting(change) = std::mem::replace(&mut self.progress, JobProgress::Running) else {
            return SavepointVerdict::Undo;
        };
        // Its savepoint is undone, so a panic costs the job alone.
        let result = panics::catch_in(|| change(connection))
            .unwrap_or(Err(QueryFault::Known(StoreError::Panicked { doing })))
            .map_err(|fault| fault.during(doing));
        let verdict = if result.is_ok() { SavepointVerdict::Keep } else { SavepointVerdict::Undo };
        self.progress = JobProgress::Done(result);
        verdict
    }

    fn answer(self: Box<Self>, lost: Option<Arc<rusqlite::Error>>) {
        let doing = self.doing;
        let result = match (self.progress, lost) {
            // Its own error says more than that of the group.
            (JobProgress::Done(Err(error)), _) => Err(error),
            (JobProgress::Done(Ok(made)), None) => Ok(made),
            (JobProgress::Done(Ok(_)) | JobProgress::Waiting(_) | JobProgress::Running, Some(source)) => {
                Err(StoreError::Commit { doing, source })
            }
            (JobProgress::Waiting(_) | JobProgress::Running, None) => Err(StoreError::Closed),
        };
        // A caller that went away needs no answer.
        let _ = self.caller.send(result);
    }
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        reserve: Arc<Reserve>,
        health: Arc<StoreHealth>,
        lock: StoreLock,
    ) -> std::io::Result<Writer> {
        let (jobs, inbox) = mpsc::channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("procfleet-store".to_owned())
            .spawn(move || serve(connection, reserve, health, lock, inbox))?;
        Ok(Writer { jobs, thread: Mutex::new(Some(thread)) })
    }

    pub(super) async fn run<T, F>(&self, doing: &'static str, change: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, QueryFault> + Send + 'static,
    {
        let (caller, answer) = oneshot::channel();
        let job = Box::new(PendingWrite { doing, progress: JobProgress::Waiting(change), caller });
        self.jobs.send(Message::Job(job)).await.map_err(|_| StoreError::Closed)?;
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    pub(super) async fn close(&self) -> Result<(), StoreError> {
        const DOING: &str = "closing the store";
        // An error says that the thread has ended already.
        let _ = self.jobs.send(Message::Close).await;
        let Some(thread) = self.take_thread() else { return Ok(()) };
        let joined = tokio::task::spawn_blocking(|| thread.join()).await;
        joined.ok().and_then(Result::ok).unwrap_or(Err(StoreError::Panicked { doing: DOING }))
    }

    fn take_thread(&self) -> Option<JoinHandle<Result<(), StoreError>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whoever drops the last handle waits for what was handed over, and leaves the file free for the next
/// opener.
impl Drop for Writer {
    fn drop(&mut self) {
        let (unconnected, _) = mpsc::channel(1);
        self.jobs = unconnected;
        if let Some(thread) = self.take_thread() {
            // It logged its own troubles.
            let _ = thread.join();
        }
    }
}

/// The thread. Reserve and lock are dropped after the connection: until then the file is ours.
fn serve(
    connection: Connection,
    reserve: Arc<Reserve>,
    health: Arc<StoreHealth>,
    lock: StoreLock,
    mut inbox: mpsc::Receiver<Message>,
) -> Result<(), StoreError> {
    let mut group = Vec::new();
    let mut shrunk = Instant::now();
    while let Some(first) = inbox.blocking_recv() {
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Job(job) => group.push(job),
                // What waits in the channel is still served; then `blocking_recv` says that it was all.
                Message::Close => inbox.close(),
            }
            next = if group.len() < GROUP { inbox.try_recv().ok() } else { None };
        }
        run_group(&connection, &health, &mut group);
        if shrunk.elapsed() >= SHRINK {
            shrunk = Instant::now();
            // Memory that cannot be given back is kept.
            let _ = connection.execute_batch("PRAGMA shrink_memory");
        }
    }
    let tidied = tidy(&connection, &health)
        .map_err(|source| StoreError::Database { doing: "closing the store", source });
    if let Err(error) = &tidied {
        tracing::warn!(error = error as &dyn std::error::Error, "store closed without a checkpoint");
    }
    drop(connection);
    drop(reserve);
    drop(lock);
    tidied
}

fn tidy(connection: &Connection, health: &StoreHealth) -> rusqlite::Result<()> {
    if health.check().is_err() {
        // Closing would checkpoint, and remove the log by its name, which may be another one by now.
        return connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(|_| ());
    }
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

fn run_group(connection: &Connection, health: &StoreHealth, group: &mut Vec<Box<dyn WriteJob>>) {
    if let Err(condemned) = health.check() {
        return answer_lost(group.drain(..), condemned.as_sqlite_error());
    }
    let mut ran = Vec::with_capacity(group.len());
    for mut job in group.drain(..) {
        let ended = run_job(connection, job.as_mut());
        ran.push(job);
        if let Err(error) = ended {
            health.note_commit(CommitResult::Failed);
            abandon(connection, error, &mut ran);
        }
    }
    if !connection.is_autocommit() {
        match commit(connection) {
            Ok(()) => health.note_commit(CommitResult::Done),
            Err(error) => {
                health.note_commit(CommitResult::Failed);
                abandon(connection, error, &mut ran);
            }
        }
    }
    match health.check() {
        Ok(()) => ran.into_iter().for_each(|job| job.answer(None)),
        // What was committed is in a file that the next server will not find.
        Err(condemned) => answer_lost(ran.into_iter(), condemned.as_sqlite_error()),
    }
}

fn commit(connection: &Connection) -> rusqlite::Result<()> {
    if fails(Point::ServerCommit) {
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC),
            None,
        ));
    }
    run(connection, "COMMIT")
}

/// Errors are those of the transaction, after which nothing of the group so far can be kept. A job's own
/// failure is none.
fn run_job(connection: &Connection, job: &mut dyn WriteJob) -> rusqlite::Result<()> {
    // No transaction is open at the start, nor after the one before was given up.
    if connection.is_autocommit() {
        run(connection, "BEGIN IMMEDIATE")?;
    }
    run(connection, "SAVEPOINT job")?;
    let verdict = job.run(connection);
    if connection.is_autocommit() {
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT_ROLLBACK),
            Some("a change in the same group made SQLite undo all of it".to_owned()),
        ));
    }
    if verdict == SavepointVerdict::Undo {
        run(connection, "ROLLBACK TO job")?;
    }
    run(connection, "RELEASE job")
}

/// Ends the transaction, and tells everyone in it that nothing of it happened.
fn abandon(connection: &Connection, error: rusqlite::Error, ran: &mut Vec<Box<dyn WriteJob>>) {
    // Whoever asked for one of them is told, so none was accepted and then lost.
    tracing::error!(
        error = &error as &dyn std::error::Error,
        changes = ran.len(),
        "the store cannot be written: these changes are refused, and nothing of them is stored; look at the disk of \
         the data folder"
    );
    if !connection.is_autocommit()
        && let Err(error) = run(connection, "ROLLBACK")
    {
        tracing::error!(error = &error as &dyn std::error::Error, "rolling back failed");
    }
    answer_lost(ran.drain(..), error);
}

fn answer_lost(jobs: impl Iterator<Item = Box<dyn WriteJob>>, error: rusqlite::Error) {
    let error = Arc::new(error);
    for job in jobs {
        job.answer(Some(Arc::clone(&error)));
    }
}

fn run(connection: &Connection, statement: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(statement)?.execute([]).map(|_| ())
}
