//! The dispatcher on a real store, with sessions that a test plays.

use super::*;
use crate::backlog::Load;
use crate::session_channel::{CutReason, SessionReceiver};
use procfleet_core::code::Code;
use procfleet_core::dispatch::WINDOW;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{BusinessId, CloudId, Host, ProcKey};
use procfleet_core::op::OpKind;
use procfleet_core::request::Target;
use procfleet_core::spec::Spec;
use procfleet_proto::link::{Ack, Cancel, server_message::Body};
use procfleet_store::clock::{ClockMark, ClockReading, WallMs};
use procfleet_store::{
    CertificateRecord, JoiningAgent, NewOp, NewTask, NewToken, OpScope, Replaces, RequestHead, ServerId,
    TokenUse,
};
use std::future::pending;
use tempfile::TempDir;

mod loss;
mod poll;
mod rebalance;
mod takeover;
mod values;

const PATIENCE: Duration = Duration::from_secs(120);
const SECRET: [u8; 32] = [7; 32];
/// An agent of this version.
const ALL_CAPABILITIES: AgentCapabilities =
    AgentCapabilities { cancels: true, changes: true, limits_accounts: true };
const HOUR: i64 = 3_600_000;

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
    let agent = enrol(&store).await;
    let boot = store.enter_boot(Some("a".to_owned())).await.expect("noted");
    Fixture { store, clock: Clock::start(boot), agent, _folder: folder }
}

async fn enrol(store: &Store) -> AgentId {
    let agent: AgentId = "020000000000".parse().expect("an agent id");
    let token = NewToken {
        id: "t".to_owned(),
        secret_hash: SECRET,
        ca: None,
        cloud: CloudId(0),
        business: BusinessId::DEFAULT,
        created_at: 0,
        expires_at: 1_000,
        uses: 1,
        replaces: Replaces::LostAgents,
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
    agent
}

impl Fixture {
    /// A task of queries that was accepted `ago`, whose ops had to begin `begin` and must end `end` from now.
    async fn task(&self, ops: usize, ago: i64, begin: i64, end: i64) -> Vec<OpId> {
        self.task_with(ops, ago, begin, end, 0).await
    }

    /// As `task`, accepted while the wall clock was `ahead` milliseconds ahead of its present setting.
    async fn task_with(&self, ops: usize, ago: i64, begin: i64, end: i64, ahead: i64) -> Vec<OpId> {
        self.task_of(None, ops, ago, begin, end, ahead).await
    }

    async fn task_of(
        &self,
        spec: Option<Spec>,
        ops: usize,
        ago: i64,
        begin: i64,
        end: i64,
        ahead: i64,
    ) -> Vec<OpId> {
        let task = self.new_task(spec, ops, ago, begin, end, ahead);
        let task = self.store.create_task(task).await.expect("a task");
        (0..ops).map(|index| OpId { task, index: u32::try_from(index).expect("few ops") }).collect()
    }

    fn new_task(
        &self,
        spec: Option<Spec>,
        ops: usize,
        ago: i64,
        begin: i64,
        end: i64,
        ahead: i64,
    ) -> NewTask {
        let accepted = self.ago(ago, ahead);
        let now = accepted.wall + ago;
        let op = NewOp {
            request: 0,
            target: Target::Host(Host { cloud: CloudId(0), ip: [10, 0, 0, 1].into() }),
            agent: Some(self.agent.clone()),
            start_by: now + begin,
            deadline: now + end,
            ended: None,
        };
        let proc = ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() };
        NewTask {
            stamp: self.clock.stamp(),
            created_at: accepted.wall,
            mark: accepted.mark,
            app: "console".to_owned(),
            username: "admin".to_owned(),
            summary: "query web:nginx".to_owned(),
            requests: vec![RequestHead {
                proc,
                kind: OpKind::Query,
                spec: spec.map(Arc::new),
                accounts: GrantScope::All,
                within: GrantScope::All,
            }],
            ops: vec![op; ops],
            retry_of: None,
            audit: None,
        }
    }

    /// The reading of the clocks `millis` ago.
    fn ago(&self, millis: i64, ahead: i64) -> ClockReading {
        let now = self.clock.reading();
        let earlier = Duration::from_millis(millis.unsigned_abs());
        let mark = now.mark.map(|mark| ClockMark { moment: mark.moment - earlier, ..mark });
        ClockReading { wall: now.wall - millis + ahead, mark }
    }

    /// A dispatcher that was started long ago.
    async fn dispatcher(&self) -> Dispatcher {
        self.dispatcher_with(Duration::ZERO).await
    }

    async fn dispatcher_with(&self, grace: Duration) -> Dispatcher {
        self.dispatcher_and_presences(grace).await.0
    }

    async fn dispatcher_and_presences(&self, grace: Duration) -> (Dispatcher, Presences) {
        let metrics = Arc::new(Metrics::new());
        let presences = Presences::new(metrics.clone());
        let backlog = Backlog::new(Load { ops: 1_000, bytes: 1_000_000 });
        let prepared =
            Dispatcher::prepare(self.store.clone(), self.clock, presences.clone(), metrics, backlog, grace)
                .await;
        let (dispatcher, work) = prepared.expect("it loads");
        tokio::spawn(work);
        (dispatcher, presences)
    }

    /// Connects the agent, with no op in its journal.
    async fn connect(&self, dispatcher: &Dispatcher) -> (Epoch, SessionReceiver) {
        self.connect_heard(dispatcher, LastHeard::at(0)).await
    }

    async fn connect_heard(&self, dispatcher: &Dispatcher, heard: LastHeard) -> (Epoch, SessionReceiver) {
        let wall = self.clock.wall();
        let epoch = self
            .store
            .agent_connected(&self.agent, "0.1.0", "null", wall, Epoch(0))
            .await
            .expect("connected");
        let (sender, orders, _) = SessionSender::for_session();
        let message = DispatcherMessage::Connected {
            term: ServerTerm::default(),
            agent: self.agent.clone(),
            epoch,
            sender,
            taken: Vec::new(),
            heard,
            capabilities: ALL_CAPABILITIES,
        };
        assert!(dispatcher.send(message).await);
        (epoch, orders)
    }

    async fn wait_until_ended(&self, dispatcher: &Dispatcher, task: TaskId) {
        let mut changed = dispatcher.changed();
        let ended = async {
            while self
                .store
                .open_ops(OpScope::All)
                .await
                .expect("no error")
                .iter()
                .any(|row| row.op.task == task)
            {
                changed.changed().await.expect("the dispatcher goes on");
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("all of its ops end");
    }
}

async fn next_op(receiver: &mut SessionReceiver) -> OpId {
    match tokio::time::timeout(PATIENCE, receiver.recv()).await.expect("an order comes") {
        Some(Body::Op(op)) => op.id.parse().expect("an op id"),
        other => panic!("{other:?}"),
    }
}

/// The agent may have carried out the op while the server was down: only the agent knows.
#[tokio::test]
async fn an_op_that_an_ended_server_may_have_sent_is_asked_for_again() {
    for orderly in [false, true] {
        let fixture = fixture().await;
        let began = fixture.clock.wall() - 100_000;
        let epoch = fixture
            .store
            .agent_connected(&fixture.agent, "0.1.0", "null", began, Epoch(0))
            .await
            .expect("on");
        let ops = fixture.task(1, 90_000, -30_000, 60_000).await;
        if orderly {
            let gone = fixture.ago(80_000, 0);
            fixture.store.agent_disconnected(&fixture.agent, epoch, gone, gone.wall).await.expect("off");
        }
        let dispatcher = fixture.dispatcher().await;
        let (epoch, mut orders) = fixture.connect(&dispatcher).await;
        assert_eq!(next_op(&mut orders).await, ops[0], "orderly: {orderly}");
        let outcome = Outcome::without_status(Code::Success, "it was done".to_owned(), OpKind::Query);
        let reports = vec![(ops[0], Some(outcome))];
        dispatcher.report(&fixture.agent, epoch, reports, 100).await;
        fixture.wait_until_ended(&dispatcher, ops[0].task).await;
        let acked = tokio::time::timeout(PATIENCE, orders.recv()).await.expect("an answer comes");
        assert!(matches!(acked, Some(Body::Ack(_))), "orderly: {orderly}: {acked:?}");
    }
}

/// The wall clock is set while the server is down: deadlines go by the boot-time clock.
#[tokio::test]
async fn a_wall_clock_that_was_set_ends_nothing_and_keeps_nothing_open() {
    for ahead in [-HOUR, HOUR] {
        let fixture = fixture().await;
        let began = fixture.clock.wall() - 100_000;
        let epoch = fixture
            .store
            .agent_connected(&fixture.agent, "0.1.0", "null", began, Epoch(0))
            .await
            .expect("on");
        let open = fixture.task_with(1, 90_000, -30_000, 60_000, ahead).await;
        let overdue = fixture.task_with(1, 90_000, -30_000, -1_000, ahead).await;
        // The clock was set after the op was sent and before the agent left: by wall time it left first, or
        // an hour later.
        fixture
            .store
            .agent_disconnected(&fixture.agent, epoch, fixture.ago(80_000, 0), 0)
            .await
            .expect("off");
        let never_sent = fixture.task_with(1, 70_000, 30_000, 60_000, ahead).await;
        let dispatcher = fixture.dispatcher().await;
        fixture.wait_until_ended(&dispatcher, overdue[0].task).await;
        fixture.wait_until_ended(&dispatcher, never_sent[0].task).await;
        let newer = fixture.task_with(1, 0, 30_000, 60_000, ahead).await;
        dispatcher.send(DispatcherMessage::TaskCreated(newer[0].task)).await;
        let (_, mut orders) = fixture.connect(&dispatcher).await;
        assert_eq!(next_op(&mut orders).await, open[0], "{ahead}");
        assert_eq!(next_op(&mut orders).await, newer[0], "{ahead}");
        for (task, code) in [(overdue[0].task, Code::Timeout), (never_sent[0].task, Code::NoAgent)] {
            let (_, rows) = fixture.store.task_results(task).await.expect("no error").expect("known");
            assert_eq!(code_of(&rows[0]), Some(code), "{ahead}");
        }
    }
}

#[tokio::test]
async fn ops_that_are_open_at_the_start_end_without_any_message() {
    let fixture = fixture().await;
    let never_sent = fixture.task(1, 60_000, 30_000, 60_000).await;
    let overdue = fixture.task(1, 90_000, -30_000, -1_000).await;
    let dispatcher = fixture.dispatcher().await;
    fixture.wait_until_ended(&dispatcher, never_sent[0].task).await;
    fixture.wait_until_ended(&dispatcher, overdue[0].task).await;
}

/// An agent that cannot take ops (its disk is full) gets later ones once the earlier ones have ended.
#[tokio::test]
async fn ops_that_end_unconfirmed_free_capacity_for_others() {
    let fixture = fixture().await;
    let dispatcher = fixture.dispatcher().await;
    let (_, mut orders) = fixture.connect(&dispatcher).await;
    let lost = fixture.task(WINDOW, 0, 500, 1_000).await;
    dispatcher.send(DispatcherMessage::TaskCreated(lost[0].task)).await;
    for op in &lost {
        assert_eq!(next_op(&mut orders).await, *op);
    }
    let waiting = fixture.task(WINDOW + 1, 0, 30_000, 60_000).await;
    dispatcher.send(DispatcherMessage::TaskCreated(waiting[0].task)).await;
    fixture.wait_until_ended(&dispatcher, lost[0].task).await;
    for op in &waiting[..WINDOW] {
        assert_eq!(next_op(&mut orders).await, *op);
    }
}

fn code_of(row: &procfleet_store::OpRecord) -> Option<Code> {
    row.outcome.as_ref().map(|outcome| outcome.code)
}

async fn cancel(fixture: &Fixture, dispatcher: &Dispatcher, task: TaskId) {
    let audit = procfleet_store::NewAudit::default();
    assert!(fixture.store.cancel_task(task, fixture.clock.wall(), audit).await.expect("no error"));
    dispatcher.send(DispatcherMessage::Cancelled(task)).await;
}

#[tokio::test]
async fn a_cancelled_op_that_was_sent_is_asked_about_and_ends_with_what_its_agent_says() {
    let fixture = fixture().await;
    let dispatcher = fixture.dispatcher().await;
    let (epoch, mut orders) = fixture.connect(&dispatcher).await;
    let ops = fixture.task(1, 0, 30_000, 60_000).await;
    dispatcher.send(DispatcherMessage::TaskCreated(ops[0].task)).await;
    assert_eq!(next_op(&mut orders).await, ops[0]);
    cancel(&fixture, &dispatcher, ops[0].task).await;
    let asked = tokio::time::timeout(PATIENCE, orders.recv()).await.expect("a message");
    assert_eq!(asked, Some(Body::Cancel(Cancel { ops: vec![ops[0].to_string()] })));
    let done = Outcome::without_status(Code::Success, "it was quicker".to_owned(), OpKind::Query);
    let reports = vec![(ops[0], Some(done))];
    dispatcher.report(&fixture.agent, epoch, reports, 100).await;
    fixture.wait_until_ended(&dispatcher, ops[0].task).await;
    let (task, rows) = fixture.store.task_results(ops[0].task).await.expect("no error").expect("known");
    assert_eq!(code_of(&rows[0]), Some(Code::Success), "one outcome, and that of the host");
    assert!(task.cancelled_at.is_some());
}

/// The cancellation is in the store, so it survives a restart of the server.
#[tokio::test]
async fn a_cancelled_op_that_was_not_sent_ends_without_its_agent() {
    let fixture = fixture().await;
    let dispatcher = fixture.dispatcher().await;
    let ops = fixture.task(2, 0, 30_000, 60_000).await;
    let audit = procfleet_store::NewAudit::default();
    fixture.store.cancel_task(ops[0].task, fixture.clock.wall(), audit).await.expect("no error");
    dispatcher.stop().await;
    let dispatcher = fixture.dispatcher().await;
    fixture.wait_until_ended(&dispatcher, ops[0].task).await;
    let (_, rows) = fixture.store.task_results(ops[0].task).await.expect("no error").expect("known");
    assert_eq!(rows.iter().map(code_of).collect::<Vec<_>>(), [Some(Code::Cancelled); 2]);
}

/// The agent must not begin ops that ended while it was away.
#[tokio::test]
async fn an_agent_that_reconnects_gets_a_cancel_for_its_ops_that_have_ended() {
    let fixture = fixture().await;
    let dispatcher = fixture.dispatcher().await;
    let ops = fixture.task(2, 0, 30_000, 60_000).await;
    dispatcher.send(DispatcherMessage::TaskCreated(ops[0].task)).await;
    cancel(&fixture, &dispatcher, ops[0].task).await;
    fixture.wait_until_ended(&dispatcher, ops[0].task).await;
    let wall = fixture.clock.wall();
    let epoch = fixture
        .store
        .agent_connected(&fixture.agent, "0.1.0", "null", wall, Epoch(0))
        .await
        .expect("connected");
    let (sender, mut orders, _cut) = SessionSender::for_session();
    let agent = fixture.agent.clone();
    dispatcher
        .send(DispatcherMessage::Connected {
            term: ServerTerm::default(),
            agent,
            epoch,
            sender,
            taken: vec![ops[1]],
            heard: LastHeard::at(0),
            capabilities: ALL_CAPABILITIES,
        })
        .await;
    let message = tokio::time::timeout(PATIENCE, orders.recv()).await.expect("a message");
    assert_eq!(message, Some(Body::Cancel(Cancel { ops: vec![ops[1].to_string()] })));
}

#[tokio::test]
async fn a_dismissed_agent_gets_the_reason_and_its_ops_end() {
    let fixture = fixture().await;
    let dispatcher = fixture.dispatcher().await;
    let (_, mut orders) = fixture.connect(&dispatcher).await;
    let ops = fixture.task(1, 0, 30_000, 60_000).await;
    dispatcher.send(DispatcherMessage::TaskCreated(ops[0].task)).await;
    assert_eq!(next_op(&mut orders).await, ops[0]);
    let reason = "was revoked".to_owned();
    dispatcher.send(DispatcherMessage::Dismissed { agent: fixture.agent.clone(), reason }).await;
    let message = tokio::time::timeout(PATIENCE, orders.recv()).await.expect("a message");
    assert!(matches!(message, Some(Body::Refused(refused)) if refused.reason.ends_with("was revoked")));
    assert_eq!(orders.recv().await, None, "and cut off");
    fixture.wait_until_ended(&dispatcher, ops[0].task).await;
    // A session that was accepted before the dismissal is refused, too.
    let (_, mut orders) = fixture.connect(&dispatcher).await;
    assert!(matches!(orders.recv().await, Some(Body::Refused(_))));
    assert_eq!(orders.recv().await, None);
}

/// The session stores its end only after the dispatcher has removed it: until then, nobody else knows when
/// the agent was last heard.
#[tokio::test]
async fn an_agent_that_has_left_was_last_heard_in_its_session() {
    const HEARD: WallMs = 1_000;
    let fixture = fixture().await;
    let (dispatcher, presences) = fixture.dispatcher_and_presences(Duration::ZERO).await;
    let before = fixture.clock.wall();
    for reason in ["gone", "dismissed", "forgotten"] {
        let agent = fixture.agent.clone();
        let message = match reason {
            "gone" => {
                let (epoch, _) = fixture.connect_heard(&dispatcher, LastHeard::at(HEARD)).await;
                DispatcherMessage::Gone { agent, epoch }
            }
            "dismissed" => {
                fixture.connect_heard(&dispatcher, LastHeard::at(HEARD)).await;
                DispatcherMessage::Dismissed { agent, reason: reason.to_owned() }
            }
            _ => DispatcherMessage::Dismissed { agent, reason: reason.to_owned() },
        };
        dispatcher.send(message).await;
        // An answer to a later message: the dispatcher has handled the one above.
        let ops = fixture.task(1, 0, -30_000, -1_000).await;
        dispatcher.send(DispatcherMessage::TaskCreated(ops[0].task)).await;
        fixture.wait_until_ended(&dispatcher, ops[0].task).await;
        assert!(!presences.contains(&fixture.agent), "{reason}");
        let absence = presences.absence(&fixture.agent);
        match reason {
            "forgotten" => assert_eq!(absence, None),
            _ => {
                assert_eq!(presences.last_heard(&fixture.agent), Some(HEARD), "{reason}");
                assert!(absence.is_some_and(|absence| absence.since >= before), "{reason}: {absence:?}");
            }
        }
    }
}

/// Agents may take a while to reconnect after a restart of the server: their ops wait.
#[tokio::test]
async fn ops_of_absent_agents_wait_for_the_grace_after_the_start() {
    let fixture = fixture().await;
    let ops = fixture.task(1, 60_000, 30_000, 60_000).await;
    let dispatcher = fixture.dispatcher_with(Duration::from_secs(30)).await;
    let newer = fixture.task(1, 10_000, 30_000, 60_000).await;
    dispatcher.send(DispatcherMessage::TaskCreated(newer[0].task)).await;
    let overdue = fixture.task(1, 90_000, -30_000, -1_000).await;
    dispatcher.send(DispatcherMessage::TaskCreated(overdue[0].task)).await;
    fixture.wait_until_ended(&dispatcher, overdue[0].task).await;
    let (_, mut orders) = fixture.connect(&dispatcher).await;
    assert_eq!(next_op(&mut orders).await, ops[0]);
    assert_eq!(next_op(&mut orders).await, newer[0]);
}

#[tokio::test]
async fn an_agent_that_does_not_read_is_cut_and_gets_all_ops_after_it_reconnects() {
    let fixture = fixture().await;
    let dispatcher = fixture.dispatcher().await;
    let wall = fixture.clock.wall();
    let epoch =
        fixture.store.agent_connected(&fixture.agent, "0.1.0", "null", wall, Epoch(0)).await.expect("on");
    let (sender, orders, cut) = SessionSender::for_session();
    while sender.try_send(Body::Ack(Ack::default())).is_ok() {}
    let message = DispatcherMessage::Connected {
        term: ServerTerm::default(),
        agent: fixture.agent.clone(),
        epoch,
        sender,
        taken: Vec::new(),
        heard: LastHeard::at(0),
        capabilities: ALL_CAPABILITIES,
    };
    assert!(dispatcher.send(message).await);
    let ops = fixture.task(2, 0, 30_000, 60_000).await;
    dispatcher.send(DispatcherMessage::TaskCreated(ops[0].task)).await;
    let reason = tokio::time::timeout(PATIENCE, cut.during(pending::<()>())).await.expect("it is cut");
    assert_eq!(reason, Err(CutReason::Slow));
    drop(orders);
    let (_, mut orders) = fixture.connect(&dispatcher).await;
    assert_eq!(next_op(&mut orders).await, ops[0]);
    assert_eq!(next_op(&mut orders).await, ops[1]);
}

/// If the disk takes no writes, results queue on the agents (back-pressure).
#[tokio::test]
async fn reports_that_wait_to_be_written_are_bounded_in_bytes() {
    let fixture = fixture().await;
    let dispatcher = fixture.dispatcher().await;
    let (epoch, _orders) = fixture.connect(&dispatcher).await;
    let report = || {
        let op = OpId { task: TaskId { stamp: 1, number: 999_999 }, index: 0 };
        vec![(op, Some(Outcome::without_status(Code::Success, "done", OpKind::Query)))]
    };
    for _ in 0..4 {
        let reporting = dispatcher.report(&fixture.agent, epoch, report(), REPORT_BYTES);
        assert!(tokio::time::timeout(PATIENCE, reporting).await.expect("a commit frees capacity"));
    }
    let bytes = u32::try_from(REPORT_BYTES).expect("it fits");
    drop(
        tokio::time::timeout(PATIENCE, dispatcher.report_bytes.acquire_many(bytes))
            .await
            .expect("all is written"),
    );
    fixture.store.clone().close().await.expect("it closes");
    dispatcher.report(&fixture.agent, epoch, report(), REPORT_BYTES).await;
    let one_more = dispatcher.report(&fixture.agent, epoch, report(), 1);
    assert!(futures_util::FutureExt::now_or_never(one_more).is_none(), "it waits");
}

#[tokio::test]
async fn an_agent_that_reports_the_op_of_another_is_cut() {
    let fixture = fixture().await;
    let dispatcher = fixture.dispatcher().await;
    let ops = fixture.task(1, 0, 30_000, 60_000).await;
    dispatcher.send(DispatcherMessage::TaskCreated(ops[0].task)).await;
    let (sender, _orders, cut) = SessionSender::for_session();
    let liar: AgentId = "020000000001".parse().expect("an agent id");
    let message = DispatcherMessage::Connected {
        term: ServerTerm::default(),
        agent: liar.clone(),
        epoch: Epoch(1),
        sender,
        taken: Vec::new(),
        heard: LastHeard::at(0),
        capabilities: ALL_CAPABILITIES,
    };
    assert!(dispatcher.send(message).await);
    let outcome = Outcome::without_status(Code::Success, "it was done", OpKind::Query);
    dispatcher.report(&liar, Epoch(1), vec![(ops[0], Some(outcome))], 100).await;
    let reason = tokio::time::timeout(PATIENCE, cut.during(pending::<()>())).await.expect("it is cut");
    assert_eq!(reason, Err(CutReason::NotItsOwn));
    let open = fixture.store.open_ops(OpScope::All).await.expect("no error");
    assert_eq!(open.len(), 1, "the op is as open as before");
}

/// An agent of an earlier version would replace the whole spec.
#[tokio::test]
async fn a_change_of_single_fields_is_not_sent_to_an_agent_that_cannot() {
    let fixture = fixture().await;
    let dispatcher = fixture.dispatcher().await;
    let wall = fixture.clock.wall();
    let epoch = fixture
        .store
        .agent_connected(&fixture.agent, "0.1.0", "null", wall, Epoch(0))
        .await
        .expect("connected");
    let (sender, mut orders, _cut) = SessionSender::for_session();
    let (agent, capabilities) =
        (fixture.agent.clone(), AgentCapabilities { changes: false, ..ALL_CAPABILITIES });
    let heard = LastHeard::at(0);
    dispatcher
        .send(DispatcherMessage::Connected {
            term: ServerTerm::default(),
            agent,
            epoch,
            sender,
            taken: Vec::new(),
            heard,
            capabilities,
        })
        .await;
    let change = Spec { change: vec!["op_timeout".to_owned()], ..Spec::default() };
    let refused = fixture.task_of(Some(change), 1, 0, 30_000, 60_000, 0).await;
    let sent = fixture.task_of(Some(Spec::default()), 1, 0, 30_000, 60_000, 0).await;
    dispatcher.send(DispatcherMessage::TaskCreated(refused[0].task)).await;
    dispatcher.send(DispatcherMessage::TaskCreated(sent[0].task)).await;
    assert_eq!(next_op(&mut orders).await, sent[0], "a whole spec is sent, and nothing before it");
    fixture.wait_until_ended(&dispatcher, refused[0].task).await;
    let (_, ops) = fixture.store.task_results(refused[0].task).await.expect("no error").expect("known");
    let outcome = ops[0].outcome.as_ref().expect("it has ended");
    assert_eq!(outcome.code, Code::ArgsInvalid, "{outcome:?}");
}

/// The ops of its agents wait for them: they may come back, or report elsewhere.
#[tokio::test]
async fn a_server_that_is_cut_off_sends_its_agents_away_and_decides_nothing_about_their_ops() {
    let fixture = fixture().await;
    let (dispatcher, presences) = fixture.dispatcher_and_presences(Duration::ZERO).await;
    let ops = fixture.task(1, 0, 30_000, 60_000).await;
    let epoch =
        fixture.store.agent_connected(&fixture.agent, "0.1.0", "null", 0, Epoch(0)).await.expect("connected");
    let (sender, mut orders, cut) = SessionSender::for_session();
    let message = DispatcherMessage::Connected {
        term: ServerTerm::default(),
        agent: fixture.agent.clone(),
        epoch,
        sender,
        taken: Vec::new(),
        heard: LastHeard::at(0),
        capabilities: ALL_CAPABILITIES,
    };
    dispatcher.send(message).await;
    dispatcher.send(DispatcherMessage::TaskCreated(ops[0].task)).await;
    assert_eq!(next_op(&mut orders).await, ops[0]);
    dispatcher.send(DispatcherMessage::CutOff).await;
    let reason = tokio::time::timeout(PATIENCE, cut.during(pending::<()>())).await.expect("it is cut");
    assert_eq!(reason, Err(CutReason::CutOff));
    assert!(!presences.contains(&fixture.agent));
    // The agent is back, with the same op.
    let (_, mut orders) = fixture.connect(&dispatcher).await;
    assert_eq!(next_op(&mut orders).await, ops[0]);
}
