//! The single writer of a database: one thread, one transaction at a time, many jobs in each (group commit).
//!
//! ```text
//! take all waiting jobs -> BEGIN -> (SAVEPOINT, job, RELEASE | ROLLBACK TO)* -> COMMIT (synced) -> answer all
//! ```
//!
//! - No job is answered before the commit, so no caller relies on a change that a crash could undo.
//! - A job that fails rolls back its own changes only.
//! - Some errors (disk full, I/O) make SQLite roll back the whole transaction in the middle of a group. The
//!   jobs before are then answered with that error, and the remaining jobs run in a new transaction.
//! - A COMMIT whose sync failed may be complete in the log, and the next start would recover it although its
//!   callers got an error. The writer overwrites it with an empty commit before it answers them.
//! - Dropping the future of a job that was handed over does not cancel the job.

use crate::reserve::Reserve;
use procfleet_failpoint::{Point, fails};
use rusqlite::{Connection, Error, ffi};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// How often the page cache is released. A large transaction needs much of it briefly. Under constant load,
/// pages that are not needed again would fill the cache and stay.
const SHRINK: Duration = Duration::from_secs(60);
/// How often the disk reserve is looked at while there are changes.
const REFILL: Duration = Duration::from_secs(1);
/// Attempts to overwrite a failed commit. The first that reaches the log is enough, synced or not.
const OVERWRITES: usize = 3;

#[derive(Clone, Copy, Debug)]
pub struct WriterSettings {
    /// Name of the thread, also in the log.
    pub name: &'static str,
    /// Maximum number of jobs in one commit. As many jobs can wait for the next one.
    pub group: usize,
    /// The statement that begins a transaction.
    pub begin: &'static str,
    /// The failpoint of a commit.
    pub commit: Point,
}

/// Watches over the files that the writer writes. Dropped after the database is closed.
pub trait CommitGuard: Send + 'static {
    /// Called before and after each group. On an error nothing of the group counts as written.
    fn check(&self) -> Result<(), Error>;
    /// Called with the result of each commit.
    fn record(&self, commit: CommitResult);
}

/// No guard.
impl CommitGuard for () {
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    fn record(&self, _commit: CommitResult) {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitResult {
    Done,
    Failed,
}

#[derive(Debug, thiserror::Error)]
pub enum WriteError<E> {
    /// The job failed. Other jobs of its group are not affected.
    #[error("the job failed")]
    Job(E),
    /// The commit failed, and with it all jobs of the group.
    #[error("the commit failed")]
    Commit(#[source] Arc<Error>),
    #[error("the writer is closed")]
    Closed,
}

/// The handle. Dropping it waits for the jobs that were handed over, and closes the database.
#[derive(Debug)]
pub struct Writer {
    jobs: mpsc::Sender<Message>,
    thread: Mutex<Option<JoinHandle<Result<(), Error>>>>,
}

enum Message {
    Job(Box<dyn WriteJob>),
    Close,
}

trait WriteJob: Send {
    /// Makes the change, inside a savepoint.
    fn run(&mut self, connection: &Connection) -> SavepointVerdict;
    /// Answers the caller. `lost` is the error of the commit.
    fn answer(self: Box<Self>, lost: Option<Arc<Error>>);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SavepointVerdict {
    Keep,
    Undo,
}

struct PendingWrite<T, E, F> {
    progress: JobProgress<T, E, F>,
    caller: oneshot::Sender<Result<T, WriteError<E>>>,
}

enum JobProgress<T, E, F> {
    Waiting(F),
    Running,
    Done(Result<T, E>),
}

impl<T, E, F> WriteJob for PendingWrite<T, E, F>
where
    T: Send,
    E: Send,
    F: FnOnce(&Connection) -> Result<T, E> + Send,
{
    fn run(&mut self, connection: &Connection) -> SavepointVerdict {
        let JobProgress::Waiting(change) = std::mem::replace(&mut self.progress, JobProgress::Running) else {
            return SavepointVerdict::Undo;
        };
        let result = change(connection);
        let verdict = if result.is_ok() { SavepointVerdict::Keep } else { SavepointVerdict::Undo };
        self.progress = JobProgress::Done(result);
        verdict
    }

    fn answer(self: Box<Self>, lost: Option<Arc<Error>>) {
        let result = match (self.progress, lost) {
            // The job's own error says more than that of the group.
            (JobProgress::Done(Err(error)), _) => Err(WriteError::Job(error)),
            (JobProgress::Done(Ok(made)), None) => Ok(made),
            (JobProgress::Done(Ok(_)) | JobProgress::Waiting(_) | JobProgress::Running, Some(error)) => {
                Err(WriteError::Commit(error))
            }
            (JobProgress::Waiting(_) | JobProgress::Running, None) => Err(WriteError::Closed),
        };
        // The caller may have dropped its future.
        let _ = self.caller.send(result);
    }
}

impl Writer {
    /// The connection should [keep its log](crate::keep_log).
    pub fn start(
        settings: WriterSettings,
        connection: Connection,
        reserve: Arc<Reserve>,
        guard: impl CommitGuard,
    ) -> std::io::Result<Writer> {
        let (jobs, inbox) = mpsc::channel(settings.group);
        let thread = std::thread::Builder::new().name(settings.name.to_owned());
        let thread = thread.spawn(move || serve(&settings, connection, reserve, guard, inbox))?;
        Ok(Writer { jobs, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `change` in the next transaction. Returns when it is durable.
    pub async fn run<T, E, F>(&self, change: F) -> Result<T, WriteError<E>>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    {
        let (caller, answer) = oneshot::channel();
        let job = Box::new(PendingWrite { progress: JobProgress::Waiting(change), caller });
        self.jobs.send(Message::Job(job)).await.map_err(|_| WriteError::Closed)?;
        answer.await.unwrap_or(Err(WriteError::Closed))
    }

    /// Refuses further jobs, carries out those that were handed over, and closes the database. An error is
    /// one of the last checkpoint; nothing is lost by it. `None`: the writer thread panicked.
    pub async fn close(&self) -> Option<Result<(), Error>> {
        // An error means that the thread has ended already.
        let _ = self.jobs.send(Message::Close).await;
        let Some(thread) = self.take_thread() else { return Some(Ok(())) };
        tokio::task::spawn_blocking(|| thread.join()).await.ok().and_then(Result::ok)
    }

    fn take_thread(&self) -> Option<JoinHandle<Result<(), Error>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let (unconnected, _) = mpsc::channel(1);
        self.jobs = unconnected;
        if let Some(thread) = self.take_thread() {
            // The thread has logged its errors.
            let _ = thread.join();
        }
    }
}

fn serve<G: CommitGuard>(
    settings: &WriterSettings,
    connection: Connection,
    reserve: Arc<Reserve>,
    guard: G,
    mut inbox: mpsc::Receiver<Message>,
) -> Result<(), Error> {
    let mut group = Vec::new();
    let mut shrunk = Instant::now();
    let mut refill = Refill { due: Instant::now(), state: ReserveState::Unknown };
    refill.run(settings, &connection, &reserve, &guard);
    while let Some(first) = inbox.blocking_recv() {
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Job(job) => group.push(job),
                // Jobs in the channel are still carried out. Then `blocking_recv` returns `None`.
                Message::Close => inbox.close(),
            }
            next = if group.len() < settings.group { inbox.try_recv().ok() } else { None };
        }
        run_group(settings, &connection, &guard, &mut group);
        if shrunk.elapsed() >= SHRINK {
            shrunk = Instant::now();
            // Best effort.
            let _ = connection.execute_batch("PRAGMA shrink_memory");
        }
        refill.run(settings, &connection, &reserve, &guard);
    }
    // Replaced files are left alone: the log at the path may be that of another database.
    let closed = if guard.check().is_ok() { reserve.checkpoint(&connection) } else { Ok(()) };
    if let Err(error) = &closed {
        tracing::warn!(
            writer = settings.name,
            error = error as &dyn std::error::Error,
            "database closed without a checkpoint; the next start replays the log"
        );
    }
    drop(connection);
    // After the connection: see `Reserve`.
    drop(reserve);
    drop(guard);
    closed
}

/// Keeps the disk reserve filled.
struct Refill {
    due: Instant,
    state: ReserveState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReserveState {
    Unknown,
    Filled,
    Failed,
}

impl Refill {
    fn run(
        &mut self,
        settings: &WriterSettings,
        connection: &Connection,
        reserve: &Reserve,
        guard: &impl CommitGuard,
    ) {
        if Instant::now() < self.due {
            return;
        }
        self.due = Instant::now() + REFILL;
        let wants_pages = reserve.wants_pages(connection).unwrap_or(false);
        // Without a change there is no transaction: its commit would count as the sign of a working disk.
        if wants_pages {
            let (caller, _) = oneshot::channel::<Result<(), WriteError<Error>>>();
            let job = PendingWrite { progress: JobProgress::Waiting(Reserve::add_pages), caller };
            run_group(settings, connection, guard, &mut vec![Box::new(job)]);
            // Best effort. The new pages were in the page cache.
            let _ = connection.execute_batch("PRAGMA shrink_memory");
        }
        if !wants_pages && self.state == ReserveState::Filled {
            return;
        }
        let before = self.state;
        self.state = match reserve.allocate(connection) {
            Ok(()) => ReserveState::Filled,
            Err(error) => {
                if before != ReserveState::Failed {
                    tracing::warn!(
                        writer = settings.name,
                        error = &error as &dyn std::error::Error,
                        "cannot reserve disk space; stop and kill may fail when the disk is full. Free disk space"
                    );
                }
                ReserveState::Failed
            }
        };
    }
}

fn run_group(
    settings: &WriterSettings,
    connection: &Connection,
    guard: &impl CommitGuard,
    group: &mut Vec<Box<dyn WriteJob>>,
) {
    if let Err(error) = guard.check() {
        return answer_lost(group.drain(..), error);
    }
    let mut ran = Vec::with_capacity(group.len());
    for mut job in group.drain(..) {
        let ended = run_job(settings, connection, job.as_mut());
        ran.push(job);
        if let Err(error) = ended {
            guard.record(CommitResult::Failed);
            roll_back(settings, connection, &error, ran.len());
            answer_lost(ran.drain(..), error);
        }
    }
    if !connection.is_autocommit() {
        match commit(settings, connection) {
            Ok(()) => guard.record(CommitResult::Done),
            Err(error) => {
                guard.record(CommitResult::Failed);
                roll_back(settings, connection, &error, ran.len());
                overwrite_failed_commit(settings, connection);
                answer_lost(ran.drain(..), error);
            }
        }
    }
    match guard.check() {
        Ok(()) => ran.into_iter().for_each(|job| job.answer(None)),
        // The commit is in a file that the next start will not find.
        Err(error) => answer_lost(ran.into_iter(), error),
    }
}

/// An error is one of the transaction: nothing of the group so far can be kept. The job's own error is not
/// returned here.
fn run_job(settings: &WriterSettings, connection: &Connection, job: &mut dyn WriteJob) -> Result<(), Error> {
    // No transaction is open at the start of a group and after a rollback in the middle of it.
    if connection.is_autocommit() {
        run(connection, settings.begin)?;
    }
    run(connection, "SAVEPOINT job")?;
    let verdict = job.run(connection);
    if connection.is_autocommit() {
        return Err(Error::SqliteFailure(
            ffi::Error::new(ffi::SQLITE_ABORT_ROLLBACK),
            Some("a change in the same group made SQLite roll the group back".to_owned()),
        ));
    }
    if verdict == SavepointVerdict::Undo {
        run(connection, "ROLLBACK TO job")?;
    }
    run(connection, "RELEASE job")
}

fn commit(settings: &WriterSettings, connection: &Connection) -> Result<(), Error> {
    if fails(settings.commit) {
        return Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None));
    }
    run(connection, "COMMIT")
}

fn roll_back(settings: &WriterSettings, connection: &Connection, error: &Error, changes: usize) {
    tracing::error!(
        writer = settings.name,
        error = error as &dyn std::error::Error,
        changes,
        "the database cannot be written: these changes are refused, and nothing of them is stored; check the disk of \
         the data folder"
    );
    if !connection.is_autocommit()
        && let Err(error) = run(connection, "ROLLBACK")
    {
        tracing::error!(
            writer = settings.name,
            error = &error as &dyn std::error::Error,
            "rollback failed; if later changes fail too, restart the program"
        );
    }
}

/// Writes a commit without changes to where the failed one is in the log. SQLite writes the first page for
/// `user_version` even if its value stays.
fn overwrite_failed_commit(settings: &WriterSettings, connection: &Connection) {
    let overwrite = || -> Result<(), Error> {
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        connection.pragma_update(None, "user_version", version)
    };
    if !(0..OVERWRITES).any(|_| overwrite().is_ok()) {
        tracing::error!(
            writer = settings.name,
            "commit failed and its frames in the write-ahead log could not be overwritten: if the program is restarted \
             now, the refused changes may reappear; check the disk of the data folder"
        );
    }
}

fn answer_lost(jobs: impl Iterator<Item = Box<dyn WriteJob>>, error: Error) {
    let error = Arc::new(error);
    for job in jobs {
        job.answer(Some(Arc::clone(&error)));
    }
}

fn run(connection: &Connection, statement: &str) -> Result<(), Error> {
    connection.prepare_cached(statement)?.execute([]).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    struct Fixture {
        folder: tempfile::TempDir,
        writer: Writer,
    }

    impl Fixture {
        fn new() -> Fixture {
            let folder = tempfile::tempdir().expect("a temp folder");
            let path = folder.path().join("x.db");
            let connection = Connection::open(&path).expect("a database");
            crate::keep_log(&connection).expect("a setting");
            let setup = "PRAGMA journal_mode=WAL; CREATE TABLE t (n UNIQUE, p REFERENCES t (n)); PRAGMA foreign_keys=ON";
            connection.execute_batch(setup).expect("a table");
            let reserve = Arc::new(Reserve::of(&path).expect("both files"));
            let settings =
                WriterSettings { name: "writer-test", group: 8, begin: "BEGIN", commit: Point::AgentCommit };
            Fixture { folder, writer: Writer::start(settings, connection, reserve, ()).expect("a thread") }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("x.db")
        }

        /// Runs `middle` in one group between the inserts of 1 and 3. Returns which jobs failed, and the
        /// rows.
        async fn group(
            &self,
            middle: fn(&Connection) -> Result<(), Error>,
        ) -> ([Result<(), WriteError<Error>>; 3], Vec<i64>) {
            let (entered, entrance) = oneshot::channel();
            let (release, released) = std::sync::mpsc::channel::<()>();
            // Holds the thread until the other jobs wait, so that they share a transaction.
            let holding = self.writer.run(move |_| {
                let _ = entered.send(());
                let _ = released.recv();
                Ok::<(), Error>(())
            });
            let others = async {
                entrance.await.expect("the thread runs the first job");
                // Each job is in the channel after the first poll of its future.
                let (first, second, third, ()) = tokio::join!(
                    biased;
                    self.writer.run(|c| insert(c, 1)),
                    self.writer.run(middle),
                    self.writer.run(|c| insert(c, 3)),
                    async { release.send(()).expect("the first job waits") }
                );
                [first, second, third]
            };
            let (held, results) = tokio::join!(holding, others);
            held.expect("its own group");
            (results, self.rows().await)
        }

        async fn rows(&self) -> Vec<i64> {
            let rows = self
                .writer
                .run(|c| c.prepare("SELECT n FROM t ORDER BY n")?.query_map([], |row| row.get(0))?.collect());
            rows.await.expect("readable")
        }
    }

    fn insert(connection: &Connection, number: i64) -> Result<(), Error> {
        connection.execute("INSERT INTO t (n) VALUES (?)", [number]).map(|_| ())
    }

    #[tokio::test]
    async fn a_job_that_fails_affects_no_other() {
        let fixture = Fixture::new();
        let (results, rows) = fixture
            .group(|c| {
                insert(c, 2)?;
                insert(c, 2)
            })
            .await;
        assert!(matches!(results, [Ok(()), Err(WriteError::Job(_)), Ok(())]), "{results:?}");
        assert_eq!(rows, [1, 3]);
    }

    /// A full disk makes SQLite roll back the whole transaction in the middle of a group.
    #[tokio::test]
    async fn jobs_after_a_lost_transaction_are_committed_by_another() {
        let fixture = Fixture::new();
        let (results, rows) = fixture.group(|c| c.execute_batch("ROLLBACK")).await;
        let [before, middle, after] = results;
        assert!(matches!(before, Err(WriteError::Commit(_))), "{before:?}");
        assert!(matches!(middle, Err(WriteError::Commit(_))), "{middle:?}");
        after.expect("a transaction of its own");
        assert_eq!(rows, [3]);
    }

    #[tokio::test]
    async fn a_commit_that_fails_fails_the_group_and_is_overwritten_in_the_log() {
        let fixture = Fixture::new();
        fixture.writer.run(|c| insert(c, 0)).await.expect("writable");
        let log = crate::beside(&fixture.path(), "-wal");
        let before = fs::read(&log).expect("the log");
        let (results, rows) = fixture
            .group(|c| c.execute_batch("PRAGMA defer_foreign_keys=ON; INSERT INTO t VALUES (2, 99)"))
            .await;
        for result in results {
            assert!(matches!(result, Err(WriteError::Commit(_))), "{result:?}");
        }
        assert_eq!(rows, [0]);
        assert_ne!(fs::read(&log).expect("the log"), before, "an empty commit was written");
        fixture.writer.run(|c| insert(c, 4)).await.expect("the writer goes on");
    }

    #[tokio::test]
    async fn jobs_that_were_handed_over_are_carried_out_before_the_end() {
        let fixture = Fixture::new();
        let (inserted, closed) =
            tokio::join!(biased; fixture.writer.run(|c| insert(c, 1)), fixture.writer.close());
        inserted.expect("handed over before the close");
        closed.expect("no panic").expect("a checkpoint");
        let refused = fixture.writer.run(|c| insert(c, 2)).await;
        assert!(matches!(refused, Err(WriteError::Closed)), "{refused:?}");
        assert_eq!(fs::metadata(crate::beside(&fixture.path(), "-wal")).expect("it is kept").len(), 0);
        let database = Connection::open(fixture.path()).expect("a database");
        let rows: i64 = database.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("rows");
        assert_eq!(rows, 1);
    }
}
