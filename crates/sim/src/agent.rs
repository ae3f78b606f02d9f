//! One simulated agent: its sessions one after the other, and its state between them.

use crate::connect::Source;
use crate::figures::{FleetCounters, count, uncount};
use crate::procs::Procs;
use crate::random::Random;
use crate::script::Script;
use crate::trace::{Times, Trace, now_ns};
use futures_util::{FutureExt, SinkExt, StreamExt};
use procfleet_agent::config::ServerAddress;
use procfleet_agent::identity::AgentIdentity;
use procfleet_agent::tls::{self, ConnectError, Socket};
use procfleet_core::boot_time::BootTime;
use procfleet_core::code::Code;
use procfleet_core::id::{Epoch, OpId, ProcKey};
use procfleet_core::op::{OpKind, Outcome};
use procfleet_core::server_choice::{DrainedTo, LinkResult, NextServer, ServerChoice};
use procfleet_proto::link::{
    BATCH, BadMessage, Drain, Hello, HostFacts, LINK_PATH, Op, ProcStateMessage, Report, Reports, SpecRead,
    States, agent_message, decode_server, server_message::Body,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

const WELCOME: Duration = Duration::from_secs(25);
/// As the real agent: an outcome that is not confirmed is sent again.
const REPEAT: Duration = Duration::from_secs(10);
/// How many confirmed ops are remembered, so that a repeated op is recognised.
const REMEMBERED: usize = 32;
/// How many messages that have arrived already are read before anything is answered.
const READ_AHEAD: usize = 64;

/// State that all agents of the fleet share.
pub(crate) struct FleetShared {
    pub(crate) servers: Vec<ServerAddress>,
    pub(crate) began: Instant,
    pub(crate) script: Script,
    pub(crate) counters: FleetCounters,
    pub(crate) trace: Option<Trace>,
    pub(crate) held: watch::Sender<Held>,
}

/// Actions that the agents of a fleet suspend for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Nothing,
    /// Agents without a session do not connect. Sessions go on.
    Connects,
    /// Agents do not read in their sessions.
    Reads,
}

/// Why a session ended or was not established.
#[derive(Debug, thiserror::Error)]
enum SimSessionEnd {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the server refused the session: {0}")]
    Refused(String),
    #[error("the server is ending, or has too many agents")]
    Drained(Drain),
    #[error("the server sent a message that is not part of the protocol")]
    Protocol(#[from] BadMessage),
    #[error("the connection broke")]
    Broken(#[source] Box<WsError>),
    #[error("the server closed the connection, or was silent")]
    Closed,
    #[error("the script broke the connection")]
    Dropped,
}

impl From<WsError> for SimSessionEnd {
    fn from(error: WsError) -> SimSessionEnd {
        SimSessionEnd::Broken(Box::new(error))
    }
}

pub(crate) struct Agent {
    shared: Arc<FleetShared>,
    identity: AgentIdentity,
    source: Source,
    random: Random,
    boot_id: String,
    started_at: i64,
    slow: bool,
    procs: Procs,
    /// States that the server has not got yet.
    states: Vec<ProcStateMessage>,
    ops: BTreeMap<OpId, UnconfirmedOp>,
    confirmed: VecDeque<OpId>,
    servers: ServerChoice,
    highest_epoch: u64,
}

/// An op that is not confirmed.
enum UnconfirmedOp {
    Running { due: Instant, kind: OpKind, proc: ProcKey, received: u64, reported: bool },
    Ended { report: Box<Report>, sent: Option<Instant>, times: Times },
}

impl Agent {
    pub(crate) fn new(
        shared: Arc<FleetShared>,
        identity: AgentIdentity,
        source: Source,
        mut random: Random,
    ) -> Agent {
        let boot_id = format!("sim-{:016x}", random.bytes());
        let slow = random.percent(shared.script.slow.agents_percent);
        let servers = ServerChoice::new(shared.servers.clone(), Vec::new());
        Agent {
            shared,
            identity,
            source,
            random,
            boot_id,
            started_at: wall_secs(),
            slow,
            procs: Procs::default(),
            states: Vec::new(),
            ops: BTreeMap::new(),
            confirmed: VecDeque::new(),
            servers,
            highest_epoch: 0,
        }
    }

    /// Connects, and reconnects whenever the session ends. It chooses servers and pauses as a real agent
    /// does.
    pub(crate) async fn live(mut self) {
        let shared = self.shared.clone();
        let counters = &shared.counters;
        let now = || BootTime(u64::try_from(shared.began.elapsed().as_millis()).unwrap_or(u64::MAX));
        loop {
            let NextServer { server, wait } = self.servers.next(now(), self.random.draw());
            tokio::time::sleep(wait).await;
            // Fails only if the sender is gone, which is here.
            let _ = shared.held.subscribe().wait_for(|held| *held != Held::Connects).await;
            let mut welcomed = false;
            let end = match self.session(&server, &mut welcomed).await {
                Ok(never) => match never {},
                Err(end) => end,
            };
            if welcomed {
                uncount(&counters.connected);
            } else {
                count(&counters.failures);
            }
            let result = match end {
                SimSessionEnd::Drained(drain) => {
                    count(&counters.drained);
                    LinkResult::Drained {
                        after: Duration::from_millis(drain.after_ms),
                        spread: Duration::from_millis(drain.spread_ms),
                        next: if drain.elsewhere { DrainedTo::AnotherServer } else { DrainedTo::AnyServer },
                    }
                }
                SimSessionEnd::Dropped => {
                    count(&counters.drops);
                    tokio::time::sleep(shared.script.drop.away_ms.choose(&mut self.random)).await;
                    continue;
                }
                SimSessionEnd::Refused(_) => {
                    count(&counters.refusals);
                    if welcomed { LinkResult::Lost } else { LinkResult::Refused }
                }
                SimSessionEnd::Connect(_)
                | SimSessionEnd::Protocol(_)
                | SimSessionEnd::Broken(_)
                | SimSessionEnd::Closed => {
                    if welcomed {
                        LinkResult::Lost
                    } else {
                        LinkResult::Failed
                    }
                }
            };
            self.servers.ended(&server, result, now(), self.random.draw());
        }
    }

    fn keep_servers(&mut self, texts: &[String]) {
        self.servers.replace(ServerAddress::read_each(texts.iter().map(String::as_str)).0);
    }

    async fn session(
        &mut self,
        server: &ServerAddress,
        welcomed: &mut bool,
    ) -> Result<std::convert::Infallible, SimSessionEnd> {
        let tls = tls::with_identity(&self.identity)?;
        let mut socket = Box::pin(self.source.connect(server, LINK_PATH, tls)).await?;
        let (epoch, silence_limit) = Box::pin(self.greet(&mut socket)).await?;
        *welcomed = true;
        self.servers.welcomed(server);
        count(&self.shared.counters.sessions);
        count(&self.shared.counters.connected);
        self.rewind();
        let all = States { all: true, procs: self.procs.all(wall_secs()), ..States::default() };
        send(&mut socket, agent_message::Body::States(all)).await?;

        let mut silent_at = Instant::now() + silence_limit;
        let mut read_at = Instant::now();
        let drop_at = self.drop_at();
        let mut held = self.shared.held.subscribe();
        loop {
            let reads = *held.borrow_and_update() != Held::Reads;
            self.end_due();
            self.report(&mut socket).await?;
            let now = Instant::now();
            if drop_at.is_some_and(|at| now >= at) {
                return Err(SimSessionEnd::Dropped);
            }
            let wake = self.next_wake().into_iter().chain(drop_at).chain([silent_at]).min();
            let wake = wake.expect("there is always the server's silence to wait for");
            // A slow agent pauses between two messages.
            let wake = if read_at > now { wake.min(read_at) } else { wake };
            tokio::select! {
                biased;
                message = socket.next(), if reads && read_at <= now => {
                    silent_at = Instant::now() + silence_limit;
                    self.handle(&mut socket, epoch, message).await?;
                    if self.slow {
                        read_at = Instant::now() + Duration::from_millis(self.shared.script.slow.read_every_ms);
                        continue;
                    }
                    for _ in 0..READ_AHEAD {
                        let Some(message) = socket.next().now_or_never() else { break };
                        self.handle(&mut socket, epoch, message).await?;
                    }
                }
                Ok(()) = held.changed() => {}
                () = tokio::time::sleep_until(wake) => {
                    if Instant::now() >= silent_at {
                        return Err(SimSessionEnd::Closed);
                    }
                }
            }
        }
    }

    async fn greet(&mut self, socket: &mut Socket) -> Result<(Epoch, Duration), SimSessionEnd> {
        let hello = Hello {
            agent: self.identity.agent.to_string(),
            boot_id: self.boot_id.clone(),
            version: procfleet_agent::VERSION.to_owned(),
            taken: self.running().map(OpId::to_string).collect(),
            host: Some(HostFacts {
                os: "linux".to_owned(),
                architecture: "simulated".to_owned(),
                cpus: 2,
                memory_mib: 4_096,
                containment: "tree".to_owned(),
                started_at: self.started_at,
            }),
            // The certificate is valid for longer than any simulation, so it is not renewed.
            renews: false,
            cancels: false,
            // Simulated processes have no output.
            reads_logs: false,
            // A simulated agent stores no specs, so a change of single fields cannot lose any.
            changes_specs: true,
            // Simulated processes have no account.
            limits_accounts: true,
            ip: String::new(),
            highest_epoch: self.highest_epoch,
        };
        send(socket, agent_message::Body::Hello(hello)).await?;
        let answer = tokio::time::timeout(WELCOME, first(socket)).await.map_err(|_| SimSessionEnd::Closed)?;
        match answer? {
            Body::Welcome(welcome) => {
                self.highest_epoch = self.highest_epoch.max(welcome.epoch);
                self.keep_servers(&welcome.servers);
                // As the real agent.
                let silence_limit = Duration::from_millis(welcome.heartbeat_ms.clamp(1_000, 600_000)) * 5 / 2;
                Ok((Epoch(welcome.epoch), silence_limit))
            }
            Body::Refused(refused) => Err(SimSessionEnd::Refused(refused.reason)),
            // The first message must be a welcome or a refusal.
            _ => Err(SimSessionEnd::Protocol(BadMessage::Empty)),
        }
    }

    async fn handle(
        &mut self,
        socket: &mut Socket,
        epoch: Epoch,
        message: Option<Result<Message, WsError>>,
    ) -> Result<(), SimSessionEnd> {
        let body = match message {
            None | Some(Ok(Message::Close(_))) => return Err(SimSessionEnd::Closed),
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(Message::Binary(bytes))) => match decode_server(&bytes) {
                Err(BadMessage::Unknown) => return Ok(()),
                body => body?,
            },
            // Pings are answered by the library when the socket is next flushed.
            Some(Ok(_)) => return Ok(socket.flush().await?),
        };
        match body {
            Body::Op(op) => self.take(epoch, op),
            Body::Ack(ack) => {
                for op in ack.ops.iter().filter_map(|op| op.parse().ok()) {
                    self.forget(op);
                }
                Ok(())
            }
            Body::Drain(drain) => Err(SimSessionEnd::Drained(drain)),
            Body::ServerList(list) => {
                self.keep_servers(&list.servers);
                Ok(())
            }
            Body::Refused(refused) => Err(SimSessionEnd::Refused(refused.reason)),
            Body::ReadSpec(question) => {
                let message = "a simulated agent stores no specs".to_owned();
                let (id, code) = (question.id, Code::NoSpec.number());
                let answer = SpecRead { id, code, message, spec: Vec::new() };
                send(socket, agent_message::Body::SpecRead(answer)).await
            }
            // A simulated agent has no events, and ignores further messages of a newer server.
            _ => Ok(()),
        }
    }

    fn take(&mut self, epoch: Epoch, order: Op) -> Result<(), SimSessionEnd> {
        let op: OpId = order.id.parse().map_err(BadMessage::from)?;
        if order.epoch != epoch.0 {
            return Ok(());
        }
        let counters = &self.shared.counters;
        match self.ops.get_mut(&op) {
            Some(UnconfirmedOp::Running { reported, .. }) => {
                *reported = false;
                count(&counters.repeats);
                return Ok(());
            }
            Some(UnconfirmedOp::Ended { sent, .. }) => {
                *sent = None;
                count(&counters.repeats);
                return Ok(());
            }
            None if self.confirmed.contains(&op) => {
                count(&counters.repeats);
                return Ok(());
            }
            None => {}
        }
        if self.random.percent(self.shared.script.drop.received_percent) {
            return Err(SimSessionEnd::Dropped);
        }
        let received = now_ns();
        count(&counters.begun);
        let Some(kind) = OpKind::from_number(u64::from(order.kind)) else {
            let reason = format!("a simulated agent does not know operation {}", order.kind);
            let outcome = Outcome::without_status(Code::UnknownOp, reason, OpKind::Start);
            let report = Box::new(Report::done(op, &outcome));
            let times = Times { received, reported: 0 };
            self.ops.insert(op, UnconfirmedOp::Ended { report, sent: None, times });
            count(&counters.ended);
            return Ok(());
        };
        let proc = ProcKey { namespace: order.namespace, name: order.name };
        let due = Instant::now() + self.shared.script.take(&mut self.random);
        self.ops.insert(op, UnconfirmedOp::Running { due, kind, proc, received, reported: false });
        Ok(())
    }

    /// Ends the ops whose time has come.
    fn end_due(&mut self) {
        let now = Instant::now();
        for (op, known) in &mut self.ops {
            let UnconfirmedOp::Running { due, kind, proc, received, .. } = &*known else { continue };
            if *due > now {
                continue;
            }
            let ending = self.shared.script.ending(&mut self.random);
            let (outcome, state) = self.procs.carry_out(*kind, proc, ending, wall_secs());
            self.states.extend(state);
            count(&self.shared.counters.ended);
            let times = Times { received: *received, reported: 0 };
            let report = Box::new(Report::done(*op, &outcome));
            *known = UnconfirmedOp::Ended { report, sent: None, times };
        }
    }

    /// Sends states first, so that a caller that has an outcome can see its effect.
    async fn report(&mut self, socket: &mut Socket) -> Result<(), SimSessionEnd> {
        loop {
            let (now, at) = (Instant::now(), now_ns());
            let mut reports = Vec::new();
            let mut bytes = 0;
            let mut drop_after = false;
            for (op, known) in &mut self.ops {
                if bytes >= BATCH {
                    break;
                }
                match known {
                    UnconfirmedOp::Running { reported, .. } if !*reported => {
                        *reported = true;
                        drop_after |= self.random.percent(self.shared.script.drop.taken_percent);
                        reports.push(Report::taken(*op));
                        bytes += 64;
                    }
                    UnconfirmedOp::Ended { report, sent, times }
                        if sent.is_none_or(|sent| now >= sent + REPEAT) =>
                    {
                        *sent = Some(now);
                        times.reported = at;
                        drop_after |= self.random.percent(self.shared.script.drop.reported_percent);
                        reports.push(Report::clone(report));
                        bytes += report.size();
                    }
                    UnconfirmedOp::Running { .. } | UnconfirmedOp::Ended { .. } => {}
                }
            }
            if !self.states.is_empty() {
                let states = States { procs: std::mem::take(&mut self.states), ..States::default() };
                socket.feed(message(agent_message::Body::States(states))).await?;
            }
            if reports.is_empty() {
                return Ok(socket.flush().await?);
            }
            if self.random.percent(self.shared.script.repeat_percent) {
                let again = Reports { reports: reports.clone() };
                send(socket, agent_message::Body::Reports(again)).await?;
            }
            send(socket, agent_message::Body::Reports(Reports { reports })).await?;
            if drop_after {
                return Err(SimSessionEnd::Dropped);
            }
        }
    }

    fn forget(&mut self, op: OpId) {
        let Some(UnconfirmedOp::Ended { times, .. }) = self.ops.remove(&op) else { return };
        if let Some(trace) = &self.shared.trace {
            trace.confirmed(op, times);
        }
        count(&self.shared.counters.confirmed);
        if self.confirmed.len() == REMEMBERED {
            self.confirmed.pop_front();
        }
        self.confirmed.push_back(op);
    }

    /// A new session gets every unconfirmed outcome again, and its hello names the running ops.
    fn rewind(&mut self) {
        self.states.clear();
        for known in self.ops.values_mut() {
            match known {
                UnconfirmedOp::Running { reported, .. } => *reported = true,
                UnconfirmedOp::Ended { sent, .. } => *sent = None,
            }
        }
    }

    fn running(&self) -> impl Iterator<Item = &OpId> {
        self.ops.iter().filter(|(_, known)| matches!(known, UnconfirmedOp::Running { .. })).map(|(op, _)| op)
    }

    fn next_wake(&self) -> Option<Instant> {
        let moments = self.ops.values().filter_map(|known| match known {
            UnconfirmedOp::Running { due, .. } => Some(*due),
            UnconfirmedOp::Ended { sent, .. } => sent.map(|sent| sent + REPEAT),
        });
        moments.min()
    }

    /// When this connection is to break; the times are exponentially distributed.
    fn drop_at(&mut self) -> Option<Instant> {
        let every = self.shared.script.drop.every_secs;
        let after = -every * (1.0 - self.random.part()).ln();
        (every > 0.0).then(|| Instant::now() + Duration::from_secs_f64(after.min(86_400.0)))
    }
}

/// The first message of a kind that this version knows.
async fn first(socket: &mut Socket) -> Result<Body, SimSessionEnd> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Binary(bytes))) => match decode_server(&bytes) {
                Err(BadMessage::Unknown) => {}
                body => return Ok(body?),
            },
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(_)) | None => return Err(SimSessionEnd::Closed),
        }
    }
}

async fn send(socket: &mut Socket, body: agent_message::Body) -> Result<(), SimSessionEnd> {
    Ok(socket.send(message(body)).await?)
}

fn message(body: agent_message::Body) -> Message {
    Message::Binary(body.into_bytes().into())
}

fn wall_secs() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
