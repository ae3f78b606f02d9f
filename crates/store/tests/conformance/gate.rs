//! Units of work that meet in PostgreSQL, in an order that the test decides.
//!
//! A gate is an advisory lock in a trigger. The first unit stops at the gate, in the middle of its
//! transaction and with its locks. Then the second one begins. The gate opens when the second unit waits for
//! a lock of the first, or has ended. Nothing depends on time. SQLite has one writer, so its units never
//! meet.

use super::*;
use procfleet_testkit::PATIENCE;
use std::future::Future;
use std::time::Instant;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

/// Stops every transaction that changes a table in a certain way, until it is opened.
pub(crate) struct Gate {
    client: Client,
}

/// What the second unit did while the first one stood at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    /// It waited for a lock of the first one.
    Waited,
    /// It stood at the gate, too.
    CameToo,
    Ended,
}

impl Gate {
    /// `change` is the change at which transactions stop, such as `INSERT ON ops`.
    pub(crate) async fn at(folder: &TempDir, change: &str) -> Gate {
        let client = administrator(folder).await;
        let sql = format!(
            // The gate may be shut for longer than the store waits for locks.
            "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS \
             $$ BEGIN PERFORM pg_advisory_xact_lock_shared(77); RETURN NEW; END $$; \
             CREATE TRIGGER gate BEFORE {change} FOR EACH ROW EXECUTE FUNCTION gate(); \
             SELECT pg_advisory_lock(77)"
        );
        client.batch_execute(&sql).await.expect("a gate");
        Gate { client }
    }

    /// How many transactions stand at the gate, and how many wait for another lock.
    async fn waiting(&self) -> (i64, i64) {
        let sql = "SELECT count(DISTINCT pid) FILTER (WHERE locktype = 'advisory'), \
                   count(DISTINCT pid) FILTER (WHERE locktype != 'advisory') \
                   FROM pg_locks JOIN pg_stat_activity USING (pid) \
                   WHERE NOT granted AND datname = current_database()";
        let row = self.client.query_one(sql, &[]).await.expect("readable");
        (row.get(0), row.get(1))
    }

    pub(crate) async fn wait_until_somebody_is_here(&self) {
        self.wait_until_blocked(1).await;
    }

    /// Waits until so many transactions wait, at the gate or for another lock.
    pub(crate) async fn wait_until_blocked(&self, transactions: i64) {
        let began = Instant::now();
        loop {
            let (here, elsewhere) = self.waiting().await;
            if here > 0 && here + elsewhere >= transactions {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{here} wait at the gate, {elsewhere} elsewhere");
        }
    }

    /// Ends the connection that stands at the gate, as a crash of its server would.
    pub(crate) async fn end_who_is_here(&self) {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' \
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        self.client.execute(sql, &[]).await.expect("ended");
    }

    pub(crate) async fn open(self) {
        self.client.batch_execute("SELECT pg_advisory_unlock(77)").await.expect("open");
    }

    /// Runs two units: the second begins when the first stands at the gate.
    pub(crate) async fn between<A, B>(
        self,
        first: impl Future<Output = A> + Send + 'static,
        second: impl Future<Output = B> + Send + 'static,
    ) -> (A, B, Meanwhile)
    where
        A: Send + 'static,
        B: Send + 'static,
    {
        let first = tokio::spawn(first);
        self.wait_until_somebody_is_here().await;
        let second = tokio::spawn(second);
        let meanwhile = self.wait_for(&second).await;
        assert!(!first.is_finished(), "the first one still stands at the gate");
        self.open().await;
        (first.await.expect("no panic"), second.await.expect("no panic"), meanwhile)
    }

    pub(crate) async fn wait_for<B>(&self, second: &JoinHandle<B>) -> Meanwhile {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "the second one neither waits nor ends");
            let (here, elsewhere) = self.waiting().await;
            match (second.is_finished(), elsewhere > 0, here > 1) {
                (true, _, _) => return Meanwhile::Ended,
                (false, true, _) => return Meanwhile::Waited,
                (false, false, true) => return Meanwhile::CameToo,
                (false, false, false) => {}
            }
        }
    }
}
