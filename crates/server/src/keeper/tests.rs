//! The keeper on a real store, with sessions that a test plays.

use super::*;
use crate::store::{CertificateRecord, JoiningAgent, NewOp, NewTask, NewToken, RequestHead, TokenUse};
use procfleet_core::code::Code;
use procfleet_core::id::{BusinessId, CloudId, Host};
use procfleet_core::op::OpKind;
use procfleet_core::task::Target;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);
const SECRET: [u8; 32] = [7; 32];

struct Fixture {
    store: Store,
    clock: Clock,
    agent: AgentId,
    _folder: TempDir,
}

/// A store that knows one agent.
async fn fixture() -> Fixture {
    let folder = tempfile::tempdir().expect("a temp folder");
    let store = Store::open(&folder.path().join("server.db")).await.expect("a new store");
    let agent: AgentId = "020000000000".parse().expect("an agent id");
    let token = NewToken {
        id: "t".to_owned(),
        secret_hash: SECRET,
        cloud: CloudId(0),
        business: BusinessId::DEFAULT,
        created_at: 0,
        expires_at: 1_000,
        uses: 1,
        audit: None,
    };
    store.create_token(token).await.expect("a token");
    let shown = TokenUse { id: "t".to_owned(), secret_hash: SECRET };
    let joining = JoiningAgent {
        agent: agent.clone(),
        ip: [10, 0, 0, 1].into(),
        certificate: CertificateRecord { sha256: [9; 32], ca: None, issued_at: None, expires_at: None },
        version: "0.1.0".to_owned(),
        from: [10, 0, 0, 1].into(),
    };
    store.join(shown, joining, 500).await.expect("no error").expect("joined");
    Fixture { store, clock: Clock::start(), agent, _folder: folder }
}

impl Fixture {
    /// A task of queries that was accepted `ago`, whose ops had to begin `begin` and must end `end` from now.
    async fn task(&self, ops: usize, ago: i64, begin: i64, end: i64) -> Vec<OpId> {
        let now = self.clock.wall();
        let op = NewOp {
            request: 0,
            target: Target::Host(Host { cloud: CloudId(0), ip: [10, 0, 0, 1].into() }),
            agent: Some(self.agent.clone()),
            start_by: now + begin,
            deadline: now + end,
            ended: None,
        };
        let proc = ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() };
        let task = NewTask {
            stamp: self.clock.stamp(),
            created_at: now - ago,
            app: "console".to_owned(),
            username: "admin".to_owned(),
            summary: "query web:nginx".to_owned(),
            requests: vec![RequestHead { proc, kind: OpKind::Query, spec: None }],
            ops: vec![op; ops],
            audit: None,
        };
        let task = self.store.create_task(task).await.expect("a task");
        (0..ops).map(|index| OpId { task, index: u32::try_from(index).expect("few ops") }).collect()
    }

    async fn keeper(&self) -> Keeper {
        let metrics = Arc::new(Metrics::new());
        let presences = Presences::new(metrics.clone());
        Keeper::start(self.store.clone(), self.clock, presences, metrics).await.expect("it loads").0
    }

    /// The agent connects, and says that it has taken nothing.
    async fn connect(&self, keeper: &Keeper) -> (Epoch, mpsc::Receiver<Body>) {
        let wall = self.clock.wall();
        let epoch = self.store.agent_connected(&self.agent, "0.1.0", "null", wall).await.expect("connected");
        let (outbox, orders) = mpsc::channel(256);
        let note = Note::Connected { agent: self.agent.clone(), epoch, outbox, taken: Vec::new() };
        assert!(keeper.tell(note).await);
        (epoch, orders)
    }

    async fn wait_until_ended(&self, keeper: &Keeper, task: TaskId) {
        let mut changed = keeper.changed();
        let ended = async {
            while self.store.open_ops().await.expect("no error").iter().any(|row| row.op.task == task) {
                changed.changed().await.expect("the keeper goes on");
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("all of its ops end");
    }
}

async fn next_op(orders: &mut mpsc::Receiver<Body>) -> OpId {
    match tokio::time::timeout(PATIENCE, orders.recv()).await.expect("an order comes") {
        Some(Body::Op(op)) => op.id.parse().expect("an op id"),
        other => panic!("{other:?}"),
    }
}

/// The agent may have carried it out while there was no server: only it can say.
#[tokio::test]
async fn an_op_that_an_ended_server_may_have_sent_is_asked_for_again() {
    for orderly in [false, true] {
        let fixture = fixture().await;
        let began = fixture.clock.wall() - 100_000;
        let epoch = fixture.store.agent_connected(&fixture.agent, "0.1.0", "null", began).await.expect("on");
        let ops = fixture.task(1, 90_000, -30_000, 60_000).await;
        if orderly {
            let gone = fixture.clock.wall() - 80_000;
            fixture.store.agent_disconnected(&fixture.agent, epoch, gone).await.expect("off");
        }
        let keeper = fixture.keeper().await;
        let (epoch, mut orders) = fixture.connect(&keeper).await;
        assert_eq!(next_op(&mut orders).await, ops[0], "orderly: {orderly}");
        let outcome = Outcome::without_agent(Code::Success, "it was done".to_owned(), OpKind::Query);
        let reports = vec![(ops[0], Some(outcome))];
        keeper.tell(Note::Reports { agent: fixture.agent.clone(), epoch, reports }).await;
        fixture.wait_until_ended(&keeper, ops[0].task).await;
        let acked = tokio::time::timeout(PATIENCE, orders.recv()).await.expect("an answer comes");
        assert!(matches!(acked, Some(Body::Ack(_))), "orderly: {orderly}: {acked:?}");
    }
}

/// Nothing needs to happen for it: no agent, no call.
#[tokio::test]
async fn what_was_open_at_the_start_ends_by_itself() {
    let fixture = fixture().await;
    let never_sent = fixture.task(1, 60_000, 30_000, 60_000).await;
    let overdue = fixture.task(1, 90_000, -30_000, -1_000).await;
    let keeper = fixture.keeper().await;
    fixture.wait_until_ended(&keeper, never_sent[0].task).await;
    fixture.wait_until_ended(&keeper, overdue[0].task).await;
}

/// An agent that could not take what it was sent (its disk is full) is not out of reach for ever.
#[tokio::test]
async fn ops_that_end_unconfirmed_make_room_for_others() {
    let fixture = fixture().await;
    let keeper = fixture.keeper().await;
    let (_, mut orders) = fixture.connect(&keeper).await;
    let lost = fixture.task(WINDOW, 0, 500, 1_000).await;
    keeper.tell(Note::TaskCreated(lost[0].task)).await;
    for op in &lost {
        assert_eq!(next_op(&mut orders).await, *op);
    }
    let waiting = fixture.task(WINDOW + 1, 0, 30_000, 60_000).await;
    keeper.tell(Note::TaskCreated(waiting[0].task)).await;
    fixture.wait_until_ended(&keeper, lost[0].task).await;
    for op in &waiting[..WINDOW] {
        assert_eq!(next_op(&mut orders).await, *op);
    }
}
