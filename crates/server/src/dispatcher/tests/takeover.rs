//! What a server still knows about an agent that was at another server meanwhile: two servers on one
//! PostgreSQL database.

use super::rebalance::{TwoServers, two_servers};
use super::*;
use procfleet_core::dispatch::OpProgress;

use procfleet_store::{EndedBy, Finished, Wake};

/// The first server, an agent that has left it, and an op that waits for the agent.
pub(super) struct Waiting {
    pub(super) servers: TwoServers,
    pub(super) fixture: Fixture,
    pub(super) op: OpId,
}

pub(super) async fn waiting() -> Waiting {
    let servers = two_servers().await;
    let (store, clock) = (servers.one.clone(), servers.work.clock);
    let agent = enrol(&store).await;
    let fixture = Fixture { store, clock, agent, _folder: tempfile::tempdir().expect("a temp folder") };
    let mut waiting =
        Waiting { servers, op: OpId { task: TaskId { stamp: 1, number: 1 }, index: 0 }, fixture };
    let epoch = waiting.connect().await;
    let agent = waiting.fixture.agent.clone();
    let (at, heard) = (waiting.fixture.clock.reading(), waiting.fixture.clock.wall());
    waiting.servers.one.agent_disconnected(&agent, epoch, at, heard).await.expect("noted");
    waiting.servers.work.take(DispatcherMessage::Gone { agent, epoch });
    waiting.op = waiting.accept().await;
    waiting.servers.work.unread.push(waiting.op.task);
    waiting.servers.work.read_tasks().await;
    assert_eq!(waiting.progress(waiting.op), Some(OpProgress::Waiting));
    waiting
}

impl Waiting {
    pub(super) async fn accept(&self) -> OpId {
        self.fixture.task(1, 0, 30_000, 60_000).await[0]
    }

    /// The agent connects to the first server.
    async fn connect(&mut self) -> Epoch {
        let epoch = self.connect_to(&self.servers.one).await;
        self.announce(self.servers.one.membership().term(), epoch, LastHeard::at(0));
        self.servers.work.follow_cluster().await;
        assert!(self.servers.work.sessions.contains_key(&self.fixture.agent));
        epoch
    }

    /// Tells the dispatcher of a session.
    pub(super) fn announce(&mut self, term: ServerTerm, epoch: Epoch, heard: LastHeard) -> SessionReceiver {
        let (sender, receiver, _) = SessionSender::for_session();
        let agent = self.fixture.agent.clone();
        let (taken, capabilities) = (Vec::new(), ALL_CAPABILITIES);
        let connected =
            DispatcherMessage::Connected { agent, term, epoch, sender, taken, heard, capabilities };
        self.servers.work.take(connected);
        receiver
    }

    /// An op of a task that the dispatcher has read before: only the agent's connect, or a death, lets it
    /// read the op.
    async fn accept_known(&mut self) -> OpId {
        let op = self.accept().await;
        self.servers.work.cluster.learn(op.task);
        op
    }

    pub(super) async fn connect_to(&self, store: &Store) -> Epoch {
        let (agent, wall) = (&self.fixture.agent, self.fixture.clock.wall());
        store.agent_connected(agent, "0.1.0", "null", wall, Epoch(0)).await.expect("connected")
    }

    pub(super) fn progress(&self, op: OpId) -> Option<OpProgress> {
        self.servers.work.ops.get(&op).map(|entry| entry.open.progress)
    }
}

/// Sent in a session that is not known.
pub(super) const MAYBE: Option<OpProgress> = Some(OpProgress::Sent(Epoch(0)));

/// The new op shows the agent's last session to this server. With that session as its fence, a decision about
/// the old op would be accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_op_that_a_dead_server_may_have_sent_does_not_count_as_unsent() {
    let mut waiting = waiting().await;
    let epoch = waiting.connect_to(&waiting.servers.two).await;
    let later = waiting.accept().await;
    waiting.servers.two.clone().close().await.expect("closed");
    waiting.servers.until("the other has left", |view| view.alive.len() == 1).await;
    waiting.servers.work.follow_cluster().await;
    let agent = &waiting.fixture.agent;
    assert_eq!(waiting.servers.work.cluster.fence(agent, None), Some((agent.clone(), epoch)));
    assert_eq!([waiting.op, later].map(|op| waiting.progress(op)), [MAYBE, MAYBE]);
    assert!(!waiting.servers.work.back_by.contains_key(agent), "it has left another server since");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_comes_back_may_have_got_its_ops_elsewhere_only_if_it_was_there() {
    for (was_elsewhere, expected) in [(false, Some(OpProgress::Waiting)), (true, MAYBE)] {
        let mut waiting = waiting().await;
        if was_elsewhere {
            waiting.connect_to(&waiting.servers.two).await;
        }
        waiting.connect().await;
        assert_eq!(waiting.progress(waiting.op), expected, "{was_elsewhere}");
    }
}

/// Otherwise the agent would have a session for ever in which no op is sent, if its later session ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_when_its_agent_has_begun_a_later_one_at_another_server() {
    let mut waiting = waiting().await;
    let epoch = waiting.connect().await;
    for (is_elsewhere, stays) in [(false, true), (true, false)] {
        if is_elsewhere {
            let later = waiting.connect_to(&waiting.servers.two).await;
            assert!(later > epoch);
        }
        waiting.servers.work.woken(Wake::Dismissed);
        waiting.servers.work.follow_cluster().await;
        let agent = &waiting.fixture.agent;
        assert_eq!(waiting.servers.work.sessions.contains_key(agent), stays, "{is_elsewhere}");
    }
    // It comes back.
    let again = waiting.connect().await;
    waiting.servers.work.woken(Wake::Dismissed);
    waiting.servers.work.follow_cluster().await;
    assert_eq!(waiting.servers.work.sessions[&waiting.fixture.agent].epoch, again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_of_an_agent_that_left_before_they_were_read_are_read() {
    let mut waiting = waiting().await;
    let term = waiting.servers.one.membership().term();
    for is_announced in [true, false] {
        let epoch = waiting.connect_to(&waiting.servers.one).await;
        let op = waiting.accept_known().await;
        if is_announced {
            waiting.announce(term, epoch, LastHeard::at(0));
        }
        waiting.servers.work.take(DispatcherMessage::Gone { agent: waiting.fixture.agent.clone(), epoch });
        waiting.servers.work.follow_cluster().await;
        assert!(waiting.progress(op).is_some(), "{is_announced}");
        assert!(!waiting.servers.work.sessions.contains_key(&waiting.fixture.agent));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_an_earlier_term_is_not_admitted() {
    let mut waiting = waiting().await;
    let term = waiting.servers.one.membership().term();
    let earlier_run = ServerTerm { run: ServerId(0), ..term };
    // Its session may be lost, so the agent connects again.
    let before_a_loss = term;
    for (term, is_sent_back) in [(earlier_run, false), (before_a_loss, true)] {
        let epoch = waiting.connect_to(&waiting.servers.one).await;
        if is_sent_back {
            waiting.servers.work.cluster.losses += 1;
        }
        let mut orders = waiting.announce(term, epoch, LastHeard::at(0));
        waiting.servers.work.end_sessions_of_other_terms();
        assert_eq!(matches!(orders.try_recv(), Some(Body::Drain(_))), is_sent_back, "{term:?}");
        assert!(waiting.servers.work.cluster.connecting.is_empty());
    }
}

/// The third server came and went between two looks of the dispatcher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ops_of_a_server_that_was_never_seen_alive_are_read_after_its_end() {
    let mut waiting = waiting().await;
    waiting.servers.work.follow_cluster().await;
    let three = Store::connect(&waiting.servers.url).await.expect("a third server");
    waiting.connect_to(&three).await;
    let op = waiting.accept_known().await;
    three.close().await.expect("closed");
    let before = waiting.servers.work.verdicts_from;
    waiting.servers.until("its end is seen", |view| view.ended == 1 && view.alive.len() == 2).await;
    waiting.servers.work.follow_cluster().await;
    assert!(waiting.progress(op).is_some());
    assert!(waiting.servers.work.verdicts_from > before, "its agents have time to come back");
}

/// The op is read before the dispatcher has looked at the servers again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_of_a_server_that_has_just_died_have_time_to_come_back() {
    let mut waiting = waiting().await;
    waiting.connect_to(&waiting.servers.two).await;
    waiting.servers.work.follow_cluster().await;
    waiting.servers.two.clone().close().await.expect("closed");
    let op = waiting.accept().await;
    let now = waiting.servers.work.clock.now();
    waiting.servers.work.verdicts_from = now;
    waiting.servers.work.unread.push(op.task);
    waiting.servers.work.read_tasks().await;
    assert!(waiting.progress(op).is_some(), "it is this server's to decide about");
    assert!(waiting.servers.work.verdicts_from >= now + RESTART_GRACE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_that_ended_elsewhere_are_forgotten_when_their_agent_connects() {
    let mut waiting = waiting().await;
    let by = EndedBy::Agent(waiting.fixture.agent.clone());
    let finished = Finished {
        op: waiting.op,
        by,
        outcome: Outcome::without_status(Code::Success, "done", OpKind::Query),
        at: 1,
    };
    waiting.servers.two.finish_ops(vec![finished]).await.expect("stored");
    waiting.connect().await;
    assert_eq!(waiting.progress(waiting.op), None);
}

/// On either engine: the write of a decision has failed, and is to be repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_that_is_not_written_is_dropped_when_the_agent_connects() {
    let fixture = fixture().await;
    let metrics = Arc::new(Metrics::new());
    let presences = Presences::new(metrics.clone());
    let backlog = Backlog::new(Load { ops: 1_000, bytes: 1_000_000 });
    let (store, changes) = (fixture.store.clone(), watch::channel(0).0);
    let work = Work::load(store, fixture.clock, presences, metrics, backlog, changes, Duration::ZERO);
    let mut work = work.await.expect("it loads");
    let ops = fixture.task(1, 10_000, 30_000, 60_000).await;
    work.unread.push(ops[0].task);
    work.read_tasks().await;
    work.decide_due();
    assert_eq!(work.finished.iter().map(|finished| finished.op).collect::<Vec<_>>(), ops, "it is away");
    let wall = fixture.clock.wall();
    let epoch = fixture.store.agent_connected(&fixture.agent, "0.1.0", "null", wall, Epoch(0)).await;
    let (sender, mut orders, _cut) = SessionSender::for_session();
    work.take(DispatcherMessage::Connected {
        agent: fixture.agent.clone(),
        term: ServerTerm::default(),
        epoch: epoch.expect("connected"),
        sender,
        taken: Vec::new(),
        heard: LastHeard::at(0),
        capabilities: ALL_CAPABILITIES,
    });
    work.settle().await;
    assert!(matches!(orders.try_recv(), Some(Body::Op(_))), "the agent has it");
    let open = fixture.store.open_ops(OpScope::All).await.expect("read");
    assert_eq!(open.len(), 1, "and it is open");
}
