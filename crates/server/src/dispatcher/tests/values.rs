//! Outcomes that the database does not accept.

use super::takeover::waiting;
use super::*;

/// A character that the encoding of a database has not causes the same error.
const REFUSE: &str = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
    $$ BEGIN RAISE EXCEPTION 'untranslatable' USING ERRCODE = '22P05'; END $$; \
    CREATE TRIGGER refuse BEFORE INSERT ON outcomes FOR EACH ROW \
    WHEN (NEW.message LIKE 'bad%') EXECUTE FUNCTION refuse()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_the_database_does_not_accept_holds_back_no_other() {
    let mut waiting = waiting().await;
    let database = waiting.servers.url.name().rsplit('/').next().expect("a name").to_owned();
    let refuse = move || procfleet_testkit::Cluster::shared().psql(&database, REFUSE);
    tokio::task::spawn_blocking(refuse).await.expect("it ends").expect("a trigger");
    let messages = ["good 0", "bad 1", "good 2", "good 3", "good 4", "bad 5", "bad 6"];
    let ops = waiting.fixture.task(messages.len(), 0, 30_000, 60_000).await;
    let (agent, work) = (waiting.fixture.agent.clone(), &mut waiting.servers.work);
    for (op, message) in ops.iter().zip(messages) {
        let outcome = Outcome::without_status(Code::Success, message, OpKind::Query);
        work.reported(&agent, Epoch(1), *op, Some(outcome));
    }
    work.commit().await;
    assert_eq!((work.finished.len(), work.retry_at), (0, None));
    let (_, records) =
        waiting.servers.two.task_results(ops[0].task).await.expect("no error").expect("a task");
    for (record, message) in records.into_iter().zip(messages) {
        let outcome = record.outcome.expect("it has ended");
        match message.starts_with("good") {
            true => assert_eq!((outcome.code, outcome.message.as_str()), (Code::Success, message)),
            false => assert_eq!(outcome.code, Code::SystemError, "{message}: {}", outcome.message),
        }
    }
}
