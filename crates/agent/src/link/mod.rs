//! The session with a server: ops in, reports and states out. When it ends, `core` chooses the next server.

mod socket;

use self::socket::LinkSocket;
use crate::VERSION;
use crate::config::{AgentSettings, ServerAddress};
use crate::identity::Credentials;
use crate::journal::{Journal, JournalError};
use crate::log_query;
use crate::outbox::Outbox;
use crate::random;
use crate::renewal::Renewal;
use crate::specs;
use crate::states::{StateChanges, StateReports};
use crate::supervisor::Supervisor;
use crate::tls::{self, ConnectError};
use procfleet_core::batch_size::BatchSize;
use procfleet_core::code::Code;
use procfleet_core::id::{Epoch, NameFault, OpId};
use procfleet_core::op::{OpKind, Outcome};
use procfleet_core::server_choice::{DrainedTo, LinkResult, NextServer, ServerChoice};
use procfleet_failpoint::{Point, hit};
use procfleet_program::panics;
use procfleet_proto::link::{
    BATCH, BadMessage, Drain, Events, Hello, LINK_PATH, LogRead, OmittedAccounts, OpOrder, ReadLog, ReadSpec,
    Reports, SpecRead, States as StatesMessage, agent_message, server_message::Body,
};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Error as WsError;
use tracing::{debug, info, warn};

/// Maximum number of ops in a hello, so that it fits a frame. Others are sent once more, and recognised.
const TAKEN_NAMED: usize = 1_000;
/// Maximum size of one message of events; smaller on a slow link. The next message is sent when the server
/// has stored the last one.
const EVENTS_BYTES: usize = 40 * 1024;
/// Maximum number of concurrent queries for logs and specs. The server asks fewer.
const QUESTIONS: usize = 16;
/// Maximum number of servers in a welcome; the rest is ignored.
const SERVERS: usize = 256;
/// How long a session waits for its epoch and its servers to be durable.
const KEEP: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the server refused the session: {0}")]
    Refused(String),
    #[error("the server asked the agent to reconnect")]
    Drained(Drain),
    #[error("the server sent something that is not of this protocol")]
    Protocol(#[from] BadMessage),
    #[error("the connection broke")]
    Broken(#[source] Box<WsError>),
    #[error("the server closed the connection")]
    Closed,
    #[error("the server has been silent for {0:?}")]
    Silent(Duration),
    #[error("the certificate had expired and was renewed")]
    Renewed,
    #[error("the certificate has expired and could not be renewed: {0}")]
    NotRenewed(String),
}

impl From<WsError> for LinkEnd {
    fn from(error: WsError) -> LinkEnd {
        LinkEnd::Broken(Box::new(error))
    }
}

impl LinkEnd {
    /// What this means for the choice of the next server.
    fn result(&self, phase: SessionPhase) -> LinkResult {
        match (self, phase) {
            (LinkEnd::Drained(drain), _) => LinkResult::Drained {
                after: Duration::from_millis(drain.after_ms),
                spread: Duration::from_millis(drain.spread_ms),
                next: if drain.elsewhere { DrainedTo::AnotherServer } else { DrainedTo::AnyServer },
            },
            (LinkEnd::Renewed, _) => LinkResult::Renewed,
            // In the middle of a session, the server may only be unable to store something. If the refusal is
            // about the agent, the next session does not open.
            (LinkEnd::Refused(_), SessionPhase::Greeting) => LinkResult::Refused,
            (_, SessionPhase::Greeting) => LinkResult::Failed,
            (_, SessionPhase::Open) => LinkResult::Lost,
        }
    }
}

/// How far a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionPhase {
    /// There is no welcome yet.
    Greeting,
    Open,
}

/// Connects, and reconnects whenever the session ends.
pub(crate) async fn stay_connected(
    config: &AgentSettings,
    credentials: &Credentials,
    journal: &Journal,
    supervisor: &Supervisor,
    outbox: &Outbox,
    states: &StateReports,
) {
    let LinkMemory { listed, highest_epoch } = LinkMemory::read(journal, &config.servers).await;
    let mut servers = ServerChoice::new(config.servers.clone(), listed);
    let now = || supervisor.context().now();
    let highest_epoch = &Cell::new(highest_epoch);
    let lost_lines_reported = &Cell::new(0);
    let mut next = servers.next(now(), random::draw());
    loop {
        let session = LinkSession {
            config,
            server: &next.server,
            credentials,
            journal,
            supervisor,
            outbox,
            states,
            highest_epoch,
            lost_lines_reported,
        };
        let mut phase = SessionPhase::Greeting;
        let end = session.run(&mut servers, &mut phase).await;
        let ended = next.server;
        servers.ended(&ended, end.result(phase), now(), random::draw());
        next = servers.next(now(), random::draw());
        log_end(&ended, &end, &next);
        tokio::time::sleep(next.wait).await;
    }
}

fn log_end(server: &ServerAddress, end: &LinkEnd, NextServer { server: next, wait: pause }: &NextServer) {
    match end {
        LinkEnd::Drained(_) => {
            info!(%server, ?pause, %next, "the server asked this agent to reconnect: the server is stopping, has too many agents, or may have lost reports");
        }
        LinkEnd::Renewed => info!("renewed an expired certificate; reconnecting"),
        end => warn!(
            %server,
            error = end as &dyn std::error::Error,
            ?pause,
            %next,
            "session with the server failed; reconnecting"
        ),
    }
}

/// State of the link that outlives the agent.
struct LinkMemory {
    /// The servers of the last welcome.
    listed: Vec<ServerAddress>,
    highest_epoch: Epoch,
}

impl LinkMemory {
    /// Without a readable journal, both are empty: the agent still connects.
    async fn read(journal: &Journal, configured: &[ServerAddress]) -> LinkMemory {
        let read = async { Ok((journal.servers(configured).await?, journal.highest_epoch().await?)) };
        let read: Result<_, JournalError> = read.await;
        let (listed, highest_epoch) = read.unwrap_or_else(|failure| {
            warn!(
                error = &failure as &dyn std::error::Error,
                "cannot read the servers and the highest epoch from the journal; using the servers of the command line, and no epoch"
            );
            (Vec::new(), Epoch(0))
        });
        LinkMemory { listed, highest_epoch }
    }
}

struct LinkSession<'a> {
    config: &'a AgentSettings,
    server: &'a ServerAddress,
    credentials: &'a Credentials,
    journal: &'a Journal,
    supervisor: &'a Supervisor,
    outbox: &'a Outbox,
    states: &'a StateReports,
    /// Of all sessions, also of those before the agent's start.
    highest_epoch: &'a Cell<Epoch>,
    /// Number of lost log lines that the server knows of.
    lost_lines_reported: &'a Cell<u64>,
}

impl LinkSession<'_> {
    async fn run(&self, servers: &mut ServerChoice, phase: &mut SessionPhase) -> LinkEnd {
        match self.serve(servers, phase).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn serve(
        &self,
        servers: &mut ServerChoice,
        phase: &mut SessionPhase,
    ) -> Result<std::convert::Infallible, LinkEnd> {
        let identity = self.credentials.present();
        let tls = tls::with_identity(&identity)?;
        let proxy = self.config.proxy.as_ref();
        let mut socket = LinkSocket::new(tls::connect(self.server, proxy, LINK_PATH, tls).await?);
        let taken = self.supervisor.taken();
        let taken = taken.into_iter().take(TAKEN_NAMED).map(|op| op.to_string()).collect();
        let hello = Hello {
            agent: identity.agent.to_string(),
            boot_id: self.supervisor.boot_id().0.clone(),
            version: VERSION.to_owned(),
            taken,
            host: Some(self.supervisor.facts()),
            renews: true,
            cancels: true,
            reads_logs: true,
            changes_specs: true,
            limits_accounts: true,
            ip: self.config.ip.map(|ip| ip.to_string()).unwrap_or_default(),
            highest_epoch: self.highest_epoch.get().0,
        };
        socket.send(agent_message::Body::Hello(hello)).await?;
        let mut welcome = match socket.answer().await? {
            Body::Welcome(welcome) => welcome,
            Body::Refused(refused) => return Err(LinkEnd::Refused(refused.reason)),
            Body::Renewed(_) => return self.renew_expired(&mut socket).await,
            _ => return Err(LinkEnd::Protocol(BadMessage::Empty)),
        };
        *phase = SessionPhase::Open;
        socket.expect_heartbeat(welcome.heartbeat_ms);
        servers.welcomed(self.server);
        let mut renewal = Renewal::due_in(welcome.renew_in_ms, Instant::now());
        let epoch = Epoch(welcome.epoch);
        info!(epoch = epoch.0, server = %self.server, "connected");
        self.keep_epoch(epoch).await;
        self.keep_servers(servers, std::mem::take(&mut welcome.servers)).await;
        self.outbox.rewind();
        let (mut revision, all) = self.states.all();
        self.feed_states(&mut socket, true, all).await?;

        let omitted = OmittedAccounts::of(&welcome);
        let mut questions = OpenQuestions { answering: JoinSet::new(), omitted };
        let mut batch = BatchSize::up_to(EVENTS_BYTES);
        let mut events = match welcome.takes_events {
            true => EventSending::Due,
            false => EventSending::Never,
        };
        loop {
            loop {
                // Taken before the states and sent after them: a caller that has an outcome must see its
                // effect.
                let reports = self.outbox.next_batch(Instant::now());
                let (latest, changed) = self.states.since(revision);
                revision = latest;
                self.feed_states(&mut socket, false, changed).await?;
                if reports.is_empty() {
                    socket.flush().await?;
                    break;
                }
                // With the states in one write: a server with a whole fleet reads half as often.
                socket.send(agent_message::Body::Reports(Reports { reports })).await?;
                hit(Point::AgentReportSent);
            }
            // After the outcomes, and one message at a time, as the answers to questions: on a slow link an
            // outcome waits for at most one of them.
            if events == EventSending::Due {
                events = self.send_events(&mut socket, batch.bytes()).await?;
                continue;
            }
            let silent_at = socket.silent_at();
            tokio::select! {
                // Messages of the server first: an acknowledgement saves a repeat, and a stop must not wait.
                // Then its silence, which must be noticed however busy the agent is.
                biased;
                body = socket.next() => {
                    let body = body?;
                    match body {
                        Body::EventsStored(stored) => {
                            if let EventSending::Awaited { sent } = events {
                                batch.answered_after(sent.elapsed());
                            }
                            self.journal.forget_events(stored.up_to).await;
                            events = EventSending::Due;
                        }
                        Body::Renewed(renewed) => {
                            if let Some(kept) = renewal.take(self.credentials, renewed, Instant::now()) {
                                socket.send(kept).await?;
                            }
                        }
                        Body::ReadLog(question) => questions.take_log(self.supervisor, question),
                        Body::ReadSpec(question) => {
                            questions.take_spec(self.supervisor, self.journal, question);
                        }
                        Body::ServerList(list) => self.keep_servers(servers, list.servers).await,
                        body => self.handle(epoch, omitted, body).await?,
                    }
                }
                // Pings may have arrived since the timer was set.
                () = tokio::time::sleep_until(silent_at.into()) => if socket.silent_at() <= Instant::now() {
                    return Err(socket.silence());
                },
                answer = questions.next() => socket.send(answer).await?,
                () = self.outbox.changed() => {}
                () = self.states.changed() => {}
                () = sleep_until(renewal.wake_at()) => if let Some(request) = renewal.ask(Instant::now()) {
                    socket.send(request).await?;
                },
                () = self.journal.events_changed(), if events == EventSending::Done => events = EventSending::Due,
            }
        }
    }

    /// The journal writes in order, so the epoch is durable before any op of the session.
    async fn keep_epoch(&self, epoch: Epoch) {
        if epoch > self.highest_epoch.get() {
            self.highest_epoch.set(epoch);
            keep("the epoch of the session", self.journal.accept_epoch(epoch)).await;
        }
    }

    /// Replaces the known servers by those that the server names, if there is a usable one among them.
    async fn keep_servers(&self, servers: &mut ServerChoice, texts: Vec<String>) {
        let (listed, bad) = ServerAddress::read_each(texts.iter().take(SERVERS).map(String::as_str));
        for (text, reason) in bad {
            warn!(text, %reason, "ignored an address in the server's list of servers");
        }
        if servers.replace(listed.clone()) {
            let list = listed.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            info!(servers = list, "the server sent another list of servers");
            keep("the list of servers", self.journal.store_servers(&self.config.servers, &listed)).await;
        }
    }

    /// Writes the states, but does not flush the last message.
    async fn feed_states(
        &self,
        socket: &mut LinkSocket,
        all: bool,
        changes: StateChanges,
    ) -> Result<(), LinkEnd> {
        let mut messages = states_messages(all, changes);
        if let Some(mut last) = messages.pop() {
            for message in messages {
                socket.send(agent_message::Body::States(message)).await?;
            }
            // Only with other changes: an agent that loses its log must not report each line.
            let lost = procfleet_program::log_lines_dropped();
            last.log_lines_dropped = lost.saturating_sub(self.lost_lines_reported.get());
            socket.feed(agent_message::Body::States(last)).await?;
            self.lost_lines_reported.set(lost);
        }
        Ok(())
    }

    /// Renews an expired certificate, in a session for nothing else.
    async fn renew_expired(&self, socket: &mut LinkSocket) -> Result<std::convert::Infallible, LinkEnd> {
        let mut renewal = Renewal::due_in(Some(0), Instant::now());
        let failed = |reason: &str| LinkEnd::NotRenewed(reason.to_owned());
        let request = renewal.ask(Instant::now()).ok_or_else(|| failed("no key could be made"))?;
        socket.send(request).await?;
        match socket.answer().await? {
            Body::Renewed(renewed) => {
                let kept = renewal.take(self.credentials, renewed, Instant::now());
                let kept = kept.ok_or_else(|| failed("the new one could not be kept"))?;
                socket.send(kept).await?;
                Err(LinkEnd::Renewed)
            }
            Body::Refused(refused) => Err(LinkEnd::Refused(refused.reason)),
            _ => Err(LinkEnd::Protocol(BadMessage::Empty)),
        }
    }

    async fn send_events(&self, socket: &mut LinkSocket, bytes: usize) -> Result<EventSending, LinkEnd> {
        let events = match self.journal.oldest_events(bytes).await {
            Ok(events) => events,
            Err(failure) => {
                warn!(
                    error = &failure as &dyn std::error::Error,
                    "cannot read events from the journal; retrying"
                );
                return Ok(EventSending::Done);
            }
        };
        if events.is_empty() {
            return Ok(EventSending::Done);
        }
        let sent = Instant::now();
        socket.send(agent_message::Body::Events(Events { events })).await?;
        Ok(EventSending::Awaited { sent })
    }

    async fn handle(&self, epoch: Epoch, omitted: OmittedAccounts, body: Body) -> Result<(), LinkEnd> {
        match body {
            Body::Op(op) => {
                hit(Point::AgentOpReceived);
                let id: OpId = op.id.parse().map_err(BadMessage::from)?;
                if op.epoch != epoch.0 {
                    warn!(op = %id, "ignored an op of another session");
                    return Ok(());
                }
                let kind = op.kind;
                match OpOrder::read(op, omitted) {
                    Ok(order) => match order.proc.check() {
                        Ok(()) => self.supervisor.order(order).await,
                        Err((field, fault)) => self.outbox.done(id, badly_named(order.kind, field, fault)),
                    },
                    // The op was not run, so it need not be journalled: a repeat gets the same answer.
                    Err(fault) => self.outbox.done(id, not_understood(kind, &fault)),
                }
                Ok(())
            }
            Body::Ack(ack) => {
                hit(Point::AgentAckReceived);
                let ops: Vec<_> = ack.ops.iter().filter_map(|op| op.parse().ok()).collect();
                self.outbox.confirmed(&ops);
                self.journal.confirm(ops).await;
                hit(Point::AgentAckWritten);
                Ok(())
            }
            Body::Cancel(cancel) => {
                self.supervisor.cancel(cancel.ops.iter().filter_map(|op| op.parse().ok()).collect()).await;
                Ok(())
            }
            Body::Drain(drain) => Err(LinkEnd::Drained(drain)),
            Body::Refused(refused) => Err(LinkEnd::Refused(refused.reason)),
            Body::Welcome(_)
            | Body::Enrolled(_)
            | Body::EventsStored(_)
            | Body::Renewed(_)
            | Body::ReadLog(_)
            | Body::ReadSpec(_)
            | Body::ServerList(_) => {
                debug!("ignored a message that is not expected in this state");
                Ok(())
            }
        }
    }
}

/// The outcome of an op that this version cannot read. Only this op ends; the session goes on.
fn not_understood(kind: u32, fault: &BadMessage) -> Outcome {
    let code = match fault {
        BadMessage::Kind(_) => Code::UnknownOp,
        _ => Code::ArgsInvalid,
    };
    // Without the cause: the text of a JSON error may repeat a value of the spec.
    let message = format!(
        "this agent, version {VERSION}, cannot carry out the op: the server sent {fault}; upgrade the agent; \
         nothing was done"
    );
    warn!(%message, "refused an op of a newer protocol version");
    Outcome::without_status(code, message, OpKind::from_number(kind.into()).unwrap_or(OpKind::Start))
}

/// The outcome of an op on a proc that this agent could not report.
fn badly_named(kind: OpKind, field: &str, fault: NameFault) -> Outcome {
    let message =
        format!("{} was not begun: the {field} of the process {fault}; nothing was done", kind.verb());
    warn!(%message, "refused an op");
    Outcome::without_status(Code::BadRequest, message, kind)
}

/// Questions that are being answered. They end with the session; the server answers its callers then.
struct OpenQuestions {
    answering: JoinSet<agent_message::Body>,
    omitted: OmittedAccounts,
}

impl OpenQuestions {
    fn take_log(&mut self, supervisor: &Supervisor, question: ReadLog) {
        if let Some(message) = self.busy() {
            let busy = LogRead { id: question.id, code: Code::Busy.number(), message, ..LogRead::default() };
            self.answering.spawn(async move { agent_message::Body::LogRead(busy) });
        } else {
            let (context, id, omitted) = (supervisor.context(), question.id, self.omitted);
            self.answering.spawn(async move {
                let answer = panics::catch(log_query::answer(context, question, omitted)).await;
                agent_message::Body::LogRead(answer.unwrap_or_else(|caught| LogRead {
                    id,
                    code: Code::SystemError.number(),
                    message: format!("reading the log: {caught}"),
                    ..LogRead::default()
                }))
            });
        }
    }

    fn take_spec(&mut self, supervisor: &Supervisor, journal: &Journal, question: ReadSpec) {
        if let Some(message) = self.busy() {
            let busy = SpecRead { id: question.id, code: Code::Busy.number(), message, spec: Vec::new() };
            self.answering.spawn(async move { agent_message::Body::SpecRead(busy) });
        } else {
            let (context, journal, id, omitted) =
                (supervisor.context(), journal.clone(), question.id, self.omitted);
            self.answering.spawn(async move {
                let answer = panics::catch(specs::answer(context, journal, question, omitted)).await;
                agent_message::Body::SpecRead(answer.unwrap_or_else(|caught| SpecRead {
                    id,
                    code: Code::SystemError.number(),
                    message: format!("reading the spec: {caught}"),
                    spec: Vec::new(),
                }))
            });
        }
    }

    fn busy(&self) -> Option<String> {
        let full = self.answering.len() >= QUESTIONS;
        full.then(|| "too many ask this host for logs and specs at once; ask again".to_owned())
    }

    /// The next answer; never, if there is none.
    async fn next(&mut self) -> agent_message::Body {
        loop {
            match self.answering.join_next().await {
                Some(Ok(answer)) => return answer,
                Some(Err(error)) => {
                    warn!(%error, "a query for a log or spec panicked; it is answered with a system error")
                }
                None => std::future::pending().await,
            }
        }
    }
}

/// State of sending events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventSending {
    /// The server does not accept events.
    Never,
    /// There may be events to send.
    Due,
    /// Events were sent and are not stored yet. No others are sent until then (back-pressure).
    Awaited {
        sent: Instant,
    },
    Done,
}

/// Waits until this is in the journal. A disk that is full or hangs must not keep the agent away: then it is
/// remembered until the agent ends.
async fn keep(what: &str, write: impl Future<Output = Result<(), JournalError>>) {
    match tokio::time::timeout(KEEP, write).await {
        Ok(Ok(())) => {}
        Ok(Err(failure)) => {
            warn!(what, error = &failure as &dyn std::error::Error, "cannot store the state of the link")
        }
        Err(_) => warn!(what, "the disk is slow; the session begins before the state of the link is stored"),
    }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// States in messages of up to [`BATCH`] bytes. With `all` they are one complete list.
fn states_messages(all: bool, changes: StateChanges) -> Vec<StatesMessage> {
    let mut messages = Vec::new();
    let mut message = StatesMessage { all, ..StatesMessage::default() };
    let mut bytes = 0;
    let mut make_room = |message: &mut StatesMessage, more: usize| {
        if bytes + more > BATCH && bytes > 0 {
            message.continues = all;
            messages.push(std::mem::take(message));
            bytes = 0;
        }
        bytes += more;
    };
    for state in changes.procs {
        make_room(&mut message, state.report.len() + state.namespace.len() + state.name.len() + 32);
        message.procs.push(state);
    }
    for groups in changes.groups {
        make_room(&mut message, groups.groups.len() + groups.namespace.len() + 32);
        message.groups.push(groups);
    }
    if message != StatesMessage::default() {
        messages.push(message);
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::id::{ProcKey, TaskId};
    use procfleet_proto::link::{GroupsMessage, MAX_FRAME, Op, ProcStateMessage};

    const OMITTED: OmittedAccounts = OmittedAccounts::MeanEverybody;

    #[test]
    fn a_complete_list_continues_up_to_its_last_message() {
        let state = |number: u64| ProcStateMessage {
            namespace: "web".to_owned(),
            name: number.to_string(),
            revision: number,
            report: vec![b' '; 300],
            ..ProcStateMessage::default()
        };
        let groups = GroupsMessage { namespace: "web".to_owned(), ..GroupsMessage::default() };
        let changes = || StateChanges { procs: (0..60).map(state).collect(), groups: vec![groups.clone()] };
        let list = states_messages(true, changes());
        let flags: Vec<(bool, bool)> = list.iter().map(|message| (message.all, message.continues)).collect();
        assert_eq!(flags, [(true, true), (false, true), (false, false)]);
        assert_eq!(list.iter().map(|message| message.procs.len()).sum::<usize>(), 60);
        assert_eq!(list[2].groups, std::slice::from_ref(&groups));
        let frame = |message: StatesMessage| agent_message::Body::States(message).into_bytes().len();
        assert!(list.into_iter().all(|message| frame(message) < MAX_FRAME));

        assert!(states_messages(false, changes()).iter().all(|message| !message.all && !message.continues));
        let nothing = states_messages(true, StateChanges::default());
        assert_eq!(nothing, [StatesMessage { all: true, ..StatesMessage::default() }]);
        assert_eq!(states_messages(false, StateChanges::default()), []);
    }

    #[test]
    fn an_op_of_a_newer_server_is_answered_for_itself() {
        let op = Op { id: "20261116120000-1-0".to_owned(), kind: 77, ..Op::default() };
        let fault = OpOrder::read(op.clone(), OMITTED).expect_err("no operation has this number");
        let outcome = not_understood(77, &fault);
        assert_eq!(outcome.code, Code::UnknownOp);
        assert!(outcome.message.contains("unknown operation 77"), "{}", outcome.message);

        let spec = br#"{"identity": "of the next version"}"#.to_vec();
        let op = Op { kind: OpKind::Start.number(), spec, ..op };
        let fault = OpOrder::read(op.clone(), OMITTED).expect_err("no such spec");
        let outcome = not_understood(0, &fault);
        assert_eq!(outcome.code, Code::ArgsInvalid);
        assert!(outcome.message.contains("sent a bad spec;"), "{}", outcome.message);

        let fault = OpOrder::read(Op { spec: Vec::new(), ..op }, OmittedAccounts::AreRefused);
        let outcome = not_understood(0, &fault.expect_err("accounts are required"));
        assert_eq!(outcome.code, Code::ArgsInvalid);
        assert!(outcome.message.contains("does not state the accounts"), "{}", outcome.message);
    }

    #[test]
    fn an_op_on_a_proc_with_a_bad_name_is_refused_with_the_reason() {
        let refused = |namespace: &str, name: &str| {
            let proc = ProcKey { namespace: namespace.to_owned(), name: name.to_owned() };
            let (field, fault) = proc.check().expect_err("a bad name");
            badly_named(OpKind::Start, field, fault)
        };
        let long = "n".repeat(2_000);
        for (outcome, words) in [
            (refused("web", &long), "the name of the process has 2000 bytes, at most 1085 are allowed"),
            (
                refused(&long, "nginx"),
                "the namespace of the process has 2000 bytes, at most 1085 are allowed",
            ),
            (refused("web", "a\nb"), "the name of the process contains a control character"),
        ] {
            assert_eq!(outcome.code, Code::BadRequest);
            assert_eq!(outcome.message, format!("start was not begun: {words}; nothing was done"));
        }
    }

    #[test]
    fn the_end_of_a_session_decides_about_the_next_server() {
        let drain = |elsewhere| LinkEnd::Drained(Drain { after_ms: 500, spread_ms: 2_000, elsewhere });
        let drained = |next| {
            let (after, spread) = (Duration::from_millis(500), Duration::from_secs(2));
            LinkResult::Drained { after, spread, next }
        };
        let refused = || LinkEnd::Refused("revoked".to_owned());
        for (end, phase, expected) in [
            (LinkEnd::Closed, SessionPhase::Greeting, LinkResult::Failed),
            (LinkEnd::Closed, SessionPhase::Open, LinkResult::Lost),
            (LinkEnd::Silent(Duration::ZERO), SessionPhase::Greeting, LinkResult::Failed),
            (LinkEnd::Silent(Duration::ZERO), SessionPhase::Open, LinkResult::Lost),
            (refused(), SessionPhase::Greeting, LinkResult::Refused),
            (refused(), SessionPhase::Open, LinkResult::Lost),
            (drain(false), SessionPhase::Open, drained(DrainedTo::AnyServer)),
            (drain(true), SessionPhase::Open, drained(DrainedTo::AnotherServer)),
            (LinkEnd::Renewed, SessionPhase::Greeting, LinkResult::Renewed),
            (LinkEnd::NotRenewed(String::new()), SessionPhase::Greeting, LinkResult::Failed),
        ] {
            assert_eq!(end.result(phase), expected, "{end:?} {phase:?}");
        }
    }

    /// A hello that is too large would be refused, and the next one too.
    #[test]
    fn the_largest_hello_fits_a_frame() {
        let op = OpId { task: TaskId { stamp: 99_999_999_999_999, number: u64::MAX }, index: u32::MAX };
        let hello = Hello {
            agent: "a".repeat(64),
            boot_id: "b".repeat(64),
            version: VERSION.to_owned(),
            taken: vec![op.to_string(); TAKEN_NAMED],
            host: None,
            renews: true,
            cancels: true,
            reads_logs: true,
            changes_specs: true,
            limits_accounts: true,
            ip: "f".repeat(39),
            highest_epoch: u64::MAX,
        };
        assert!(agent_message::Body::Hello(hello).into_bytes().len() < MAX_FRAME - 4 * 1024);
    }
}
