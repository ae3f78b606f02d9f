//! Polling: a task, a cancellation or an outcome is found without its wake-up, which was lost, or was never
//! sent because the server that stored the change died. Two servers on one PostgreSQL database.

use super::takeover::{Waiting, waiting};
use super::*;
use procfleet_core::boot_time::BootTime;
use procfleet_core::dispatch::OpProgress;
use procfleet_store::{EndedBy, Finished, NewAudit, Wake};

const DAY: i64 = 24 * HOUR;

impl Waiting {
    /// Looks at the open tasks, as the loop does when it is time, and reads those that are new.
    async fn poll(&mut self) {
        self.servers.work.cluster.poll_at = Some(self.servers.work.clock.now());
        self.servers.work.follow_cluster().await;
        self.servers.work.read_tasks().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_nobody_announced_is_found() {
    let mut waiting = waiting().await;
    waiting.fixture.store = waiting.servers.two.clone();
    let op = waiting.accept().await;
    assert_eq!(waiting.progress(op), None);
    waiting.poll().await;
    assert_eq!(waiting.progress(op), Some(OpProgress::Waiting));
    waiting.poll().await;
    assert!(waiting.servers.work.unread.is_empty(), "it is read once");
}

/// A poll that pages by a cursor (keyset pagination) would miss this task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_with_a_lower_number_that_is_committed_later_is_found() {
    let mut waiting = waiting().await;
    waiting.poll().await;
    // A number begins with the day of its task.
    let earlier = waiting.fixture.task(1, DAY, 30_000, 60_000).await[0];
    assert!(earlier.task.number < waiting.op.task.number, "{earlier} {}", waiting.op);
    waiting.poll().await;
    assert!(waiting.progress(earlier).is_some());
    assert_eq!(waiting.progress(waiting.op), Some(OpProgress::Waiting), "the other one stays");
}

/// A caller starts a proc through one server, and then stops it through another one, which has the agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_are_sent_in_the_order_of_acceptance_whichever_servers_have_accepted_them() {
    let mut waiting = waiting().await;
    let epoch = waiting.connect_to(&waiting.servers.one).await;
    let mut receiver = waiting.announce(waiting.servers.one.membership().term(), epoch, LastHeard::at(0));
    waiting.servers.work.follow_cluster().await;
    waiting.servers.work.settle().await;
    assert_eq!(next_op(&mut receiver).await, waiting.op);
    // The other server's clock is a second ahead, and its wake-up has not arrived yet.
    let first = waiting.fixture.new_task(None, 1, 0, 30_000, 60_000, 0);
    let first = NewTask { stamp: first.stamp + 1, ..first };
    let first = waiting.servers.two.create_task(first).await.expect("a task");
    let second = waiting.accept().await;
    waiting.servers.work.take(DispatcherMessage::TaskCreated(second.task));
    waiting.servers.work.read_tasks().await;
    waiting.servers.work.settle().await;
    let sent = [next_op(&mut receiver).await, next_op(&mut receiver).await];
    assert_eq!(sent, [OpId { task: first, index: 0 }, second]);
    // The wake-up comes now.
    waiting.servers.work.woken(Wake::Task(first));
    assert!(waiting.servers.work.unread.is_empty(), "it is read once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancellation_that_nobody_announced_is_found() {
    let mut waiting = waiting().await;
    waiting.poll().await;
    let is_cancelled = |waiting: &Waiting| waiting.servers.work.ops[&waiting.op].cancelling.is_some();
    assert!(!is_cancelled(&waiting));
    let cancelled = waiting.servers.two.cancel_task(waiting.op.task, 1, NewAudit::default()).await;
    assert!(cancelled.expect("no error"));
    waiting.poll().await;
    assert!(is_cancelled(&waiting));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_that_ended_elsewhere_are_forgotten_and_those_who_wait_are_told() {
    let mut waiting = waiting().await;
    waiting.poll().await;
    let mut changes = waiting.servers.work.changes.subscribe();
    let outcome = Outcome::without_status(Code::Success, "done", OpKind::Query);
    let by = EndedBy::Agent(waiting.fixture.agent.clone());
    let finished = Finished { op: waiting.op, by, outcome, at: 1 };
    waiting.servers.two.finish_ops(vec![finished]).await.expect("stored");
    waiting.poll().await;
    assert_eq!(waiting.progress(waiting.op), None);
    assert!(changes.has_changed().expect("the dispatcher has the sender"));
    changes.borrow_and_update();
    waiting.poll().await;
    assert!(!changes.has_changed().expect("the dispatcher has the sender"), "it is told once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_up_makes_the_next_poll_due_at_once() {
    let mut waiting = waiting().await;
    for wake in [Wake::Cancelled, Wake::Everything] {
        waiting.servers.work.cluster.poll_at = Some(waiting.servers.work.clock.now() + PATIENCE);
        waiting.servers.work.woken(wake.clone());
        assert!(waiting.servers.work.cluster.poll_at <= Some(waiting.servers.work.clock.now()), "{wake:?}");
    }
}

/// Until the retry, the loop does not poll: it would only wake up again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overdue_poll_does_not_wake_the_loop_before_the_retry() {
    let mut waiting = waiting().await;
    let work = &mut waiting.servers.work;
    work.timers.clear();
    let now = work.clock.now();
    let (earlier, later) = (BootTime(now.0 - 1_000), now + RETRY);
    for (poll_at, retry_at, expected) in [
        (earlier, Some(later), later),
        (later, Some(earlier), earlier),
        (earlier, None, earlier),
        (later, None, later),
    ] {
        (work.cluster.poll_at, work.retry_at) = (Some(poll_at), retry_at);
        assert_eq!(work.wake_at(), Some(expected), "{poll_at:?} {retry_at:?}");
    }
}

/// The agent is away, so no session of it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_of_an_agent_that_was_revoked_elsewhere_while_it_was_away_end_with_the_reason() {
    for is_sent in [false, true] {
        let mut waiting = waiting().await;
        let (agent, op) = (waiting.fixture.agent.clone(), waiting.op);
        if is_sent {
            waiting.servers.work.ops.get_mut(&op).expect("open").open.progress = OpProgress::Sent(Epoch(1));
        }
        let two = &waiting.servers.two;
        let revoking = two.revoke_agents(vec![agent], "sold".to_owned(), 1, NewAudit::default());
        revoking.await.expect("revoked");
        waiting.servers.work.woken(Wake::Dismissed);
        waiting.servers.work.follow_cluster().await;
        waiting.servers.work.settle().await;
        let (_, rows) = waiting.servers.one.task_results(op.task).await.expect("read").expect("known");
        let message = rows[0].outcome.as_ref().map(|outcome| outcome.message.clone()).unwrap_or_default();
        assert!(message.contains(&revoked("sold")), "{is_sent}: {message}");
    }
}
