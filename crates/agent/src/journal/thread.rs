//! The one thread that writes: takes all that waits, writes it in one transaction, and answers when it is on
//! the disk.

use super::JournalError;
use procfleet_failpoint::{Point, fails};
use procfleet_sqlite::Reserve;
use rusqlite::{Connection, Transaction};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// How many writes share a commit at most, and how many may wait.
const BATCH: usize = 256;

/// How often it is tried to cover a commit that failed. Already the first one that reaches the log is enough,
/// synced or not.
const COVERS: usize = 3;

/// Does its part of the transaction, and says how it went once the whole is committed. Without one it does
/// nothing.
type JournalJob = Box<dyn FnOnce(Option<&Transaction<'_>>) -> Answer + Send>;
type Answer = Box<dyn FnOnce(bool) + Send>;

#[derive(Clone)]
pub(super) struct Thread {
    jobs: mpsc::Sender<JournalJob>,
    handle: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Thread")
    }
}

impl Thread {
    pub(super) fn start(connection: Connection, reserve: Arc<Reserve>) -> Thread {
        let (jobs, inbox) = mpsc::channel(BATCH);
        let handle = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || {
                work(connection, inbox);
                // Only now: see `Reserve`.
                drop(reserve);
            })
            .expect("a thread can be started at the agent's start");
        Thread { jobs, handle: Arc::new(Mutex::new(Some(handle))) }
    }

    /// Runs `act` inside the next transaction. An error of one job undoes that job alone.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, JournalError> {
        let (tell, answer) = oneshot::channel();
        let job: JournalJob = Box::new(move |transaction| {
            let done = transaction.map(|transaction| {
                transaction.execute_batch("SAVEPOINT job")?;
                let done = act(transaction);
                transaction.execute_batch(match done {
                    Ok(_) => "RELEASE job",
                    Err(_) => "ROLLBACK TO job; RELEASE job",
                })?;
                done
            });
            Box::new(move |committed| {
                let said = match (done, committed) {
                    (Some(Ok(value)), true) => Ok(value),
                    (Some(Ok(_)), false) | (None, _) => Err(JournalError::NotCommitted),
                    (Some(Err(error)), _) => Err(JournalError::Sqlite(error)),
                };
                let _ = tell.send(said);
            })
        });
        self.jobs.send(job).await.map_err(|_| JournalError::Ended)?;
        answer.await.map_err(|_| JournalError::Ended)?
    }

    pub(super) async fn close(self) {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(self.jobs);
        if let Some(handle) = handle {
            // Other handles may still exist: their owners have ended, so this only waits for the last write.
            let _ = tokio::time::timeout(
                std::time::Duration::from_secs(2),
                tokio::task::spawn_blocking(|| handle.join()),
            )
            .await;
        }
    }
}

fn work(mut connection: Connection, mut inbox: mpsc::Receiver<JournalJob>) {
    let mut jobs = Vec::new();
    loop {
        if inbox.blocking_recv_many(&mut jobs, BATCH) == 0 {
            return;
        }
        let (answers, committed) = match connection.transaction() {
            Ok(transaction) => {
                // Some errors, a full disk's among them, end the transaction. What is written after that
                // would be committed by itself, and its owner told that it was not.
                let still = || (!transaction.is_autocommit()).then_some(&transaction);
                let answers: Vec<Answer> = jobs.drain(..).map(|job| job(still())).collect();
                let committed = commit(transaction);
                if let Err(failure) = &committed {
                    tracing::error!(
                        error = failure as &dyn std::error::Error,
                        "journal commit failed; its ops are refused. Check the disk of the data folder"
                    );
                }
                (answers, committed.is_ok())
            }
            Err(failure) => {
                tracing::error!(
                    error = &failure as &dyn std::error::Error,
                    "cannot begin a journal transaction; its ops are refused. Check the disk of the data folder"
                );
                (jobs.drain(..).map(|job| job(None)).collect(), false)
            }
        };
        if !committed {
            cover(&connection);
        }
        for answer in answers {
            answer(committed);
        }
    }
}

fn commit(transaction: Transaction<'_>) -> rusqlite::Result<()> {
    if fails(Point::AgentCommit) {
        let cause = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
        return Err(rusqlite::Error::SqliteFailure(cause, None));
    }
    transaction.commit()
}

/// Where syncing failed, the whole commit is in the log all the same. SQLite has undone it in this life, but
/// the next one would find it there and believe in it: ops would be carried out of which it was said that
/// nothing was done. So something harmless is written over it before anybody hears of the failure.
fn cover(connection: &Connection) {
    let covered = (0..COVERS).find_map(|_| {
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('covered', random())", []).ok()
    });
    if covered.is_none() {
        tracing::error!(
            "journal commit failed and its WAL frames could not be overwritten; restart the agent (the journal is checked at start)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk makes SQLite undo the whole transaction in the middle of it.
    #[tokio::test]
    async fn what_follows_the_end_of_a_transaction_is_not_written_by_itself() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let path = folder.path().join("t.db");
        let connection = Connection::open(&path).expect("a new file");
        connection.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t (n)").expect("a table");
        let thread = Thread::start(connection, Arc::new(Reserve::of(&path).expect("both files")));
        let insert = |t: &Transaction<'_>| t.execute_batch("INSERT INTO t VALUES (1)");
        // The first holds the thread until the others wait, so that they share a transaction.
        let (tell, begun) = tokio::sync::oneshot::channel();
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let first = thread.write(move |_| {
            let _ = tell.send(());
            let _ = gate.recv();
            Ok(())
        });
        let others = async {
            begun.await.expect("the thread takes the first");
            let open = async {
                // All three are in the queue by now, for they were polled before.
                go.send(()).expect("the first waits");
            };
            let end = thread.write(|t| t.execute_batch("ROLLBACK"));
            tokio::join!(thread.write(insert), end, thread.write(insert), open)
        };
        let (_, (before, ends, after, ())) = tokio::join!(first, others);
        assert!(ends.is_err(), "its savepoint is gone");
        assert!(matches!(before, Err(JournalError::NotCommitted)), "{before:?}");
        assert!(matches!(after, Err(JournalError::NotCommitted)), "{after:?}");
        let rows = thread.write(|t| t.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)));
        assert_eq!(rows.await.expect("the thread goes on"), 0);
        thread.write(insert).await.expect("and writes");
    }
}
