//! What a server still knows about an agent that was at another server meanwhile: two servers on one
//! PostgreSQL database.

use super::rebalance::{TwoServers, two_servers};
use super::*;
use crate::dispatcher::sessions::NewSession;
use procfleet_core::dispatch::OpProgress;

/// The first server, an agent that has left it, and an op that waits for the agent.
struct Waiting {
    servers: TwoServers,
    fixture: Fixture,
    op: OpId,
}

async fn waiting() -> Waiting {
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
    async fn accept(&self) -> OpId {
        self.fixture.task(1, 0, 30_000, 60_000).await[0]
    }

    /// The agent connects to the first server.
    async fn connect(&mut self) -> Epoch {
        let epoch = self.connect_to(&self.servers.one).await;
        let (sender, _, _) = SessionSender::for_session();
        let session = NewSession {
            agent: self.fixture.agent.clone(),
            epoch,
            sender,
            taken: Vec::new(),
            heard: LastHeard::at(0),
            capabilities: ALL_CAPABILITIES,
        };
        self.servers.work.cluster.connecting.push(session);
        self.servers.work.follow_cluster().await;
        assert!(self.servers.work.sessions.contains_key(&self.fixture.agent));
        epoch
    }

    async fn connect_to(&self, store: &Store) -> Epoch {
        let (agent, wall) = (&self.fixture.agent, self.fixture.clock.wall());
        store.agent_connected(agent, "0.1.0", "null", wall, Epoch(0)).await.expect("connected")
    }

    fn progress(&self, op: OpId) -> Option<OpProgress> {
        self.servers.work.ops.get(&op).map(|entry| entry.open.progress)
    }
}

/// Sent in a session that is not known.
const MAYBE: Option<OpProgress> = Some(OpProgress::Sent(Epoch(0)));

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
    assert_eq!(waiting.servers.work.cluster.fence(agent), Some((agent.clone(), epoch)));
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
