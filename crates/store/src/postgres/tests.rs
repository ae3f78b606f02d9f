//! Panics inside the engine, and settings of its connections.

use super::group_commit::{ChangeGroup, ChangeReply, GroupChange};
use super::*;
use procfleet_core::AgentId;
use procfleet_program::{LogArgs, LogFormat};
use procfleet_testkit::Cluster;
use std::sync::OnceLock;

/// Makes a user with the name of the agent.
#[derive(Debug)]
struct Noted {
    agent: AgentId,
    end: NoteEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoteEnd {
    Good,
    Panic,
}

impl GroupChange for Noted {
    type Answer = ();
    const DOING: &'static str = "noting";

    fn agent(&self) -> &AgentId {
        &self.agent
    }

    fn bytes(&self) -> usize {
        1
    }

    fn carry_out<'a>(
        tx: &'a Transaction<'a>,
        group: &'a ChangeGroup<Self>,
    ) -> BoxFuture<'a, Result<Vec<ChangeReply<Self>>, PgFault>> {
        Box::pin(async move {
            for noted in &group.changes {
                let sql = "INSERT INTO users (name, created_at) VALUES ($1, 1)";
                tx.execute(sql, &[&noted.agent.as_str()]).await?;
                assert_eq!(noted.end, NoteEnd::Good, "on purpose");
            }
            Ok(group.changes.iter().map(|_| ChangeReply::Answer(Ok(()))).collect())
        })
    }
}

fn queue(_: &Inner) -> &GroupQueue<Noted> {
    static QUEUE: OnceLock<GroupQueue<Noted>> = OnceLock::new();
    QUEUE.get_or_init(GroupQueue::default)
}

fn users(store: &PgStore) -> impl Future<Output = Vec<String>> {
    let store = store.clone();
    async move {
        let rows =
            store.rows("looking", "SELECT name FROM users ORDER BY name", &[]).await.expect("no error");
        store.converted("looking", &rows, |row| Ok(row.try_get(0)?)).expect("texts")
    }
}

/// In a separate process, because the panic hook and its count belong to the whole process.
#[test]
fn a_panic_fails_its_own_call_and_is_contained_and_counted() {
    if procfleet_testkit::played_apart(&[]) {
        return;
    }
    let url = Cluster::shared().database().parse().expect("a url");
    let log = LogArgs { log_format: LogFormat::Text, log_level: "off".to_owned() };
    let _log = log.init_tracing();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = PgStore::open(&url).await.expect("it opens");
        let note = |name: &str, end| {
            let noted = Noted { agent: name.parse().expect("an agent id"), end };
            store.write_grouped(queue, noted)
        };
        // With one thread, the task that serves the queue begins when all three are in the queue.
        let noted = tokio::join!(
            biased;
            note("a", NoteEnd::Good),
            note("b", NoteEnd::Panic),
            note("c", NoteEnd::Good),
        );
        assert!(
            matches!(noted, (Ok(()), Err(StoreError::Panicked { doing: "noting" }), Ok(()))),
            "{noted:?}"
        );
        assert_eq!(users(&store).await, ["a", "c"]);
        assert_eq!(panics::total(), 2, "of the group, and of the one change");

        let written: Result<(), StoreError> = store
            .write("writing", (), |tx, ()| {
                Box::pin(async move {
                    tx.execute("INSERT INTO users (name, created_at) VALUES ('d', 1)", &[]).await?;
                    panic!("on purpose")
                })
            })
            .await;
        let read: Result<(), StoreError> =
            store.read("reading", (), |_, ()| Box::pin(async { panic!("on purpose") })).await;
        let rows = store.rows("looking", "SELECT 1", &[]).await.expect("no error");
        let converted: Result<Vec<()>, StoreError> =
            store.converted("converting", &rows, |_| panic!("on purpose"));
        for (result, doing) in [(written, "writing"), (read, "reading"), (converted.map(drop), "converting")]
        {
            let is_panic = matches!(&result, Err(StoreError::Panicked { doing: what }) if *what == doing);
            assert!(is_panic, "{doing}: {result:?}");
        }
        assert_eq!(panics::total(), 5);
        // The pool gives none of their transactions to others.
        for _ in 0..2 * pool::CONNECTIONS {
            assert_eq!(users(&store).await, ["a", "c"]);
        }
        tokio::select! {
            biased;
            panicked = panics::fatal() => panic!("the program would end: {panicked}"),
            () = std::future::ready(()) => {}
        }
        store.close().await.expect("closed");
    });
}

/// `local` and `remote_apply` are choices of the operator about standbys, and durable all the same.
#[tokio::test]
async fn changes_are_durable_whatever_the_default_of_the_database_is() {
    for (default, used) in [("off", "on"), ("on", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
    {
        let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
        let url: StoreUrl = url.parse().expect("a url");
        let administrator = Database::of(&url).expect("a url").connect().await.expect("a connection");
        let sql = format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = {default}', current_database()); END $$"
        );
        administrator.batch_execute(&sql).await.expect("a setting");
        let store = PgStore::open(&url).await.expect("it opens");
        let rows = store.rows("looking", "SHOW synchronous_commit", &[]).await.expect("a row");
        let shown: Vec<String> =
            store.converted("looking", &rows, |row| Ok(row.try_get(0)?)).expect("a text");
        assert_eq!(shown, [used], "{default}");
    }
}

/// A decision that was made before the database went back in time may rest on sessions that are lost.
#[tokio::test]
async fn a_unit_that_was_requested_before_a_loss_is_refused_after_it() {
    let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
    let store = PgStore::open(&url.parse().expect("a url")).await.expect("it opens");
    let mut busy = Vec::new();
    for _ in 0..pool::CONNECTIONS {
        busy.push(store.inner.pool.get().await.expect("a connection"));
    }
    let unit = store.write("deciding", (), |tx, ()| {
        Box::pin(async move {
            tx.execute("INSERT INTO users (name, created_at) VALUES ('late', 1)", &[]).await?;
            Ok(())
        })
    });
    let (done, ()) = tokio::join!(unit, async {
        tokio::task::yield_now().await;
        store.membership().publish(|view| view.loss = view.loss.again(procfleet_core::BootTime(0)));
        drop(busy);
    });
    assert!(matches!(done, Err(StoreError::Unavailable { .. })), "{done:?}");
    assert_eq!(users(&store).await, Vec::<String>::new());
}
