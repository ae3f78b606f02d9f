//! Agents that are sent to other servers: two servers on one PostgreSQL database, of which the test plays the
//! sessions and the passing of time.

use super::*;
use crate::dispatcher::sessions::NewSession;
use procfleet_core::boot_time::BootTime;
use procfleet_core::rebalance::{SETTLED, STABLE};
use procfleet_proto::link::Drain;
use procfleet_store::{DrainOutcome, MembershipView, ServerIntro, StoreUrl};
use procfleet_testkit::Cluster as PostgresCluster;

/// The message that sends an agent to another server.
const AWAY: Drain = Drain { after_ms: 0, spread_ms: 2_000, elsewhere: true };

pub(super) struct TwoServers {
    pub(super) work: Work,
    pub(super) one: Store,
    pub(super) two: Store,
    pub(super) url: StoreUrl,
}

fn intro(name: &str) -> ServerIntro {
    let advertise = format!("https://{name}.example:48668");
    ServerIntro { name: name.to_owned(), advertise, ..ServerIntro::default() }
}

fn agent(number: usize) -> AgentId {
    format!("{number:012}").parse().expect("an agent id")
}

/// A dispatcher of the first server.
pub(super) async fn two_servers() -> TwoServers {
    let url = PostgresCluster::shared().database().parse().expect("a url");
    let one = Store::connect(&url).await.expect("a first server");
    let two = Store::connect(&url).await.expect("a second server");
    one.introduce(intro("s1")).await.expect("known");
    two.introduce(intro("s2")).await.expect("known");
    let metrics = Arc::new(Metrics::new());
    let presences = Presences::new(metrics.clone());
    let backlog = Backlog::new(Load { ops: 1_000, bytes: 1_000_000 });
    let clock = Clock::of_store(one.membership());
    let changes = watch::channel(0).0;
    let work = Work::load(one.clone(), clock, presences, metrics, backlog, changes, RESTART_GRACE);
    let servers = TwoServers { work: work.await.expect("it loads"), one, two, url };
    servers.until("they know each other", |view| view.alive.len() == 2).await;
    servers
}

impl TwoServers {
    pub(super) async fn until(&self, what: &str, is_so: impl FnMut(&MembershipView) -> bool) {
        let mut view = self.one.membership().view();
        let waited = tokio::time::timeout(PATIENCE, view.wait_for(is_so)).await;
        assert!(waited.is_ok(), "waited in vain: {what}");
    }

    async fn drain(&self, name: &str, drains: bool) {
        let audit = procfleet_store::NewAudit::default();
        let outcome = self.one.drain_server(name, drains, audit).await.expect("no error");
        assert_eq!(outcome, DrainOutcome::Done);
        self.until("it knows", |view| view.drains == drains).await;
    }

    /// A session that is old enough to be ended.
    fn connect(&mut self, number: usize) -> SessionReceiver {
        let (sender, receiver, _) = SessionSender::for_session();
        let session = NewSession {
            agent: agent(number),
            term: self.one.membership().term(),
            epoch: Epoch(1),
            sender,
            taken: Vec::new(),
            heard: LastHeard::at(0),
            capabilities: ALL_CAPABILITIES,
        };
        self.work.admit(session);
        let now = self.work.clock.now();
        self.set_begin(number, now - SETTLED);
        receiver
    }

    fn set_begin(&mut self, number: usize, since: BootTime) {
        self.work.sessions.get_mut(&agent(number)).expect("a session").began = since;
    }

    /// Lets an agent have an op under way.
    fn occupy(&mut self, number: usize) {
        let task = TaskId { stamp: 1, number: 1 };
        self.work.by_agent.insert(agent(number), [OpId { task, index: 0 }].into());
    }

    /// Begins the next group of agents now.
    async fn group(&mut self) {
        self.work.cluster.rebalance_at = self.work.clock.now();
        self.work.follow_cluster().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_drains_sends_its_agents_away_and_decides_until_they_are() {
    let mut servers = two_servers().await;
    let mut receivers = [1, 2].map(|number| servers.connect(number));
    servers.group().await;
    assert_eq!(receivers.each_mut().map(SessionReceiver::try_recv), [None, None], "nobody drains");

    servers.drain("s1", true).await;
    let mut late = servers.connect(3);
    let now = servers.work.clock.now();
    servers.set_begin(3, now + PATIENCE);
    for expected in [Some(Body::Drain(AWAY)), None] {
        servers.group().await;
        let told = receivers.each_mut().map(SessionReceiver::try_recv);
        assert_eq!(told, [expected.clone(), expected], "each is told once");
        assert_eq!(late.try_recv(), None, "it has just come");
    }
    // It stays while it drains, and is told later.
    servers.set_begin(3, now - SETTLED);
    servers.group().await;
    assert_eq!(late.try_recv(), Some(Body::Drain(AWAY)));
    // Sessions that have not ended go on as before.
    assert_eq!(servers.work.sessions.len(), 3);
    servers.work.take(DispatcherMessage::Gone { agent: agent(1), epoch: Epoch(1) });
    let back_by = servers.work.back_by[&agent(1)];
    assert!(back_by >= now + RESTART_GRACE, "it is on its way: {back_by:?} {now:?}");

    servers.drain("s1", false).await;
    let mut again = servers.connect(1);
    servers.group().await;
    assert_eq!(again.try_recv(), None, "it takes agents again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_stay_at_a_server_that_drains_if_no_other_takes_them() {
    let mut servers = two_servers().await;
    let mut receiver = servers.connect(1);
    servers.drain("s1", true).await;
    servers.two.clone().close().await.expect("closed");
    servers.until("the other has left", |view| view.takers().next().is_none()).await;
    servers.group().await;
    assert_eq!(receiver.try_recv(), None);
    servers.work.leave();
    let Some(Body::Drain(farewell)) = receiver.try_recv() else { panic!("no farewell") };
    assert!(!farewell.elsewhere, "there is no other server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_many_agents_sheds_them_when_the_servers_are_stable() {
    const AGENTS: usize = 130;
    let mut servers = two_servers().await;
    let mut receivers: Vec<_> = (0..AGENTS).map(|number| servers.connect(number)).collect();
    // All but two have ops under way.
    (2..AGENTS).for_each(|number| servers.occupy(number));
    servers.work.cluster.set_load(AGENTS, 0);
    servers
        .until("the figures are in the store", |view| {
            view.alive.values().map(|server| server.agents).sum::<u64>() == AGENTS as u64
        })
        .await;
    let mut told = || -> Vec<usize> {
        let drained = |(number, receiver): (usize, &mut SessionReceiver)| receiver.try_recv().map(|_| number);
        receivers.iter_mut().enumerate().filter_map(drained).collect()
    };
    servers.group().await;
    assert_eq!(told(), Vec::<usize>::new(), "servers have just come");

    // 130 agents on two servers: 128 are not too many. One in 200 is sent away each second, but at least one.
    let mut shed = Vec::new();
    for expected in [1, 1, 0] {
        servers.work.cluster.alive_since = servers.work.clock.now() - STABLE;
        servers.group().await;
        let group = told();
        assert_eq!(group.len(), expected, "{group:?}");
        shed.extend(group);
    }
    shed.sort_unstable();
    assert_eq!(shed, [0, 1], "those with ops under way are last");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_of_a_server_that_stops_go_to_another_one() {
    let mut servers = two_servers().await;
    let mut receiver = servers.connect(1);
    servers.work.leave();
    let farewell = Drain { after_ms: 0, spread_ms: 2_000, elsewhere: true };
    assert_eq!(receiver.try_recv(), Some(Body::Drain(farewell)));
    assert_eq!(receiver.recv().await, None, "its session ends");
}
