//! The session with the server: ops in, reports and states out; and the back-off between two sessions.

use crate::VERSION;
use crate::config::AgentSettings;
use crate::identity::Credentials;
use crate::journal::Journal;
use crate::log_query;
use crate::outbox::Outbox;
use crate::renewal::Renewal;
use crate::specs;
use crate::states::{StateChanges, StateReports};
use crate::supervisor::Supervisor;
use crate::tls::{self, ConnectError, Socket};
use futures_util::{SinkExt, StreamExt};
use procfleet_core::batch_size::BatchSize;
use procfleet_core::code::Code;
use procfleet_core::id::{Epoch, OpId};
use procfleet_core::op::{OpKind, Outcome};
use procfleet_failpoint::{Point, hit};
use procfleet_program::panics;
use procfleet_proto::link::{
    BadMessage, Events, Hello, LINK_PATH, LogRead, OmittedAccounts, OpOrder, ReadLog, ReadSpec, Reports,
    SpecRead, States as StatesMessage, agent_message, decode_server, server_message::Body,
};
use ring::rand::{SecureRandom, SystemRandom};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tracing::{debug, info, warn};

const WELCOME: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of ops in a hello, so that it fits a frame. Others are sent once more, and recognised.
const TAKEN_NAMED: usize = 1_000;
/// Maximum size of one message of states, so that it fits a frame.
const STATES_BYTES: usize = 40 * 1024;
/// Maximum size of one message of events; smaller on a slow link. The next message is sent when the server
/// has stored the last one.
const EVENTS_BYTES: usize = 40 * 1024;
/// Write timeout. A server that is stopped does not read, and the TCP buffers fill up.
const WRITE: Duration = Duration::from_secs(20);
/// Maximum number of concurrent queries for logs and specs. The server asks fewer.
const QUESTIONS: usize = 16;

#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the server refused the session: {0}")]
    Refused(String),
    #[error("the server is ending")]
    Drained { pause: Duration },
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

/// Connects, and reconnects whenever the session ends.
pub(crate) async fn stay_connected(
    config: &AgentSettings,
    credentials: &Credentials,
    journal: &Journal,
    supervisor: &Supervisor,
    outbox: &Outbox,
    states: &StateReports,
) {
    let mut failures = 0;
    let lost_lines_reported = Cell::new(0);
    loop {
        let lost_lines_reported = &lost_lines_reported;
        let session =
            LinkSession { config, credentials, journal, supervisor, outbox, states, lost_lines_reported };
        let mut welcomed = false;
        let end = session.run(&mut welcomed).await;
        failures = if welcomed { 0 } else { failures + 1 };
        let pause = match end {
            LinkEnd::Drained { pause } => {
                info!("server is shutting down; reconnecting in {pause:?}");
                pause
            }
            LinkEnd::Renewed => {
                info!("renewed an expired certificate; reconnecting");
                Duration::ZERO
            }
            end => {
                let pause = back_off(failures);
                warn!(
                    reason = &end as &dyn std::error::Error,
                    ?pause,
                    "session with the server failed; reconnecting"
                );
                pause
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Exponential back-off with full jitter, so that a fleet that lost its server does not reconnect all at once
/// (thundering herd).
pub fn back_off(failures: u32) -> Duration {
    let ceiling = (FIRST_PAUSE * 2u32.saturating_pow(failures.min(10))).min(LONGEST_PAUSE);
    random_part(ceiling)
}

fn random_part(whole: Duration) -> Duration {
    let mut bytes = [0; 4];
    // Without randomness the pause has its full length.
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => whole.mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)),
        Err(_) => whole,
    }
}

struct LinkSession<'a> {
    config: &'a AgentSettings,
    credentials: &'a Credentials,
    journal: &'a Journal,
    supervisor: &'a Supervisor,
    outbox: &'a Outbox,
    states: &'a StateReports,
    /// Number of lost log lines that the server knows of.
    lost_lines_reported: &'a Cell<u64>,
}

impl LinkSession<'_> {
    async fn run(&self, welcomed: &mut bool) -> LinkEnd {
        match self.serve(welcomed).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn serve(&self, welcomed: &mut bool) -> Result<std::convert::Infallible, LinkEnd> {
        let identity = self.credentials.present();
        let tls = tls::with_identity(&identity)?;
        let mut socket = tls::connect(&self.config.server, LINK_PATH, tls).await?;
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
        };
        send(&mut socket, agent_message::Body::Hello(hello)).await?;
        let welcome = match tokio::time::timeout(WELCOME, next(&mut socket)).await {
            Err(_) => return Err(LinkEnd::Silent(WELCOME)),
            Ok(body) => match body? {
                Body::Welcome(welcome) => welcome,
                Body::Refused(refused) => return Err(LinkEnd::Refused(refused.reason)),
                Body::Renewed(_) => return self.renew_expired(&mut socket).await,
                _ => return Err(LinkEnd::Protocol(BadMessage::Empty)),
            },
        };
        *welcomed = true;
        let mut renewal = Renewal::due_in(welcome.renew_in_ms, Instant::now());
        let epoch = Epoch(welcome.epoch);
        info!(epoch = epoch.0, "connected");
        self.outbox.rewind();
        let (mut revision, all) = self.states.all();
        self.send_states(&mut socket, true, all).await?;

        // The server pings. The session ends after a silence of three of its intervals.
        let silence_limit = Duration::from_millis(welcome.heartbeat_ms.clamp(1_000, 600_000)) * 3;
        let mut last_received = Instant::now();
        let omitted = OmittedAccounts::of(&welcome);
        let mut questions = OpenQuestions { answering: JoinSet::new(), omitted };
        let mut batch = BatchSize::up_to(EVENTS_BYTES);
        let mut events = match welcome.takes_events {
            true => EventSending::Due,
            false => EventSending::Never,
        };
        loop {
            if last_received.elapsed() > silence_limit {
                return Err(LinkEnd::Silent(last_received.elapsed()));
            }
            loop {
                // Taken before the states and sent after them: a caller that has an outcome must see its
                // effect.
                let reports = self.outbox.next_batch(Instant::now());
                let (latest, changed) = self.states.since(revision);
                revision = latest;
                self.send_states(&mut socket, false, changed).await?;
                if reports.is_empty() {
                    break;
                }
                send(&mut socket, agent_message::Body::Reports(Reports { reports })).await?;
                hit(Point::AgentReportSent);
            }
            // After the outcomes, and one message at a time, as the answers to questions: on a slow link an
            // outcome waits for at most one of them.
            if events == EventSending::Due {
                events = self.send_events(&mut socket, batch.bytes()).await?;
                continue;
            }
            tokio::select! {
                // Messages of the server first: an acknowledgement saves a repeat, and a stop must not wait.
                biased;
                message = socket.next() => {
                    last_received = Instant::now();
                    let body = match message {
                        None | Some(Ok(Message::Close(_))) => return Err(LinkEnd::Closed),
                        Some(Err(error)) => return Err(error.into()),
                        Some(Ok(Message::Binary(bytes))) => match decode_server(&bytes) {
                            Err(BadMessage::Unknown) => {
                                debug!("ignored a message of a newer protocol version");
                                continue;
                            }
                            body => body?,
                        },
                        // Pings are answered by the library when the socket is next written or read.
                        Some(Ok(_)) => { in_time(socket.flush()).await?; continue }
                    };
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
                                send(&mut socket, kept).await?;
                            }
                        }
                        Body::ReadLog(question) => questions.take_log(self.supervisor, question),
                        Body::ReadSpec(question) => {
                            questions.take_spec(self.supervisor, self.journal, question);
                        }
                        body => self.handle(epoch, omitted, body).await?,
                    }
                }
                answer = questions.next() => send(&mut socket, answer).await?,
                () = self.outbox.changed() => {}
                () = self.states.changed() => {}
                // A separate timer: without it, an idle agent would notice the silence only at its next
                // report.
                () = tokio::time::sleep_until((last_received + silence_limit).into()) => return Err(LinkEnd::Silent(last_received.elapsed())),
                () = sleep_until(renewal.wake_at()) => if let Some(request) = renewal.ask(Instant::now()) {
                    send(&mut socket, request).await?;
                },
                () = self.journal.events_changed(), if events == EventSending::Done => events = EventSending::Due,
            }
        }
    }

    async fn send_states(
        &self,
        socket: &mut Socket,
        all: bool,
        changes: StateChanges,
    ) -> Result<(), LinkEnd> {
        let mut batch = StatesMessage { all, ..StatesMessage::default() };
        let mut bytes = 0;
        for state in changes.procs {
            let size = state.report.len() + state.namespace.len() + state.name.len() + 32;
            flush_if_full(socket, &mut batch, &mut bytes, size).await?;
            batch.procs.push(state);
        }
        for groups in changes.groups {
            let size = groups.groups.len() + groups.namespace.len() + 32;
            flush_if_full(socket, &mut batch, &mut bytes, size).await?;
            batch.groups.push(groups);
        }
        if batch != StatesMessage::default() {
            // Only with other changes: an agent that loses its log must not report each line.
            let lost = procfleet_program::log_lines_dropped();
            batch.log_lines_dropped = lost.saturating_sub(self.lost_lines_reported.get());
            send(socket, agent_message::Body::States(batch)).await?;
            self.lost_lines_reported.set(lost);
        }
        Ok(())
    }

    /// Renews an expired certificate, in a session for nothing else.
    async fn renew_expired(&self, socket: &mut Socket) -> Result<std::convert::Infallible, LinkEnd> {
        let mut renewal = Renewal::due_in(Some(0), Instant::now());
        let failed = |reason: &str| LinkEnd::NotRenewed(reason.to_owned());
        let request = renewal.ask(Instant::now()).ok_or_else(|| failed("no key could be made"))?;
        send(socket, request).await?;
        let answer =
            tokio::time::timeout(WELCOME, next(socket)).await.map_err(|_| LinkEnd::Silent(WELCOME))??;
        match answer {
            Body::Renewed(renewed) => {
                let kept = renewal.take(self.credentials, renewed, Instant::now());
                let kept = kept.ok_or_else(|| failed("the new one could not be kept"))?;
                send(socket, kept).await?;
                Err(LinkEnd::Renewed)
            }
            Body::Refused(refused) => Err(LinkEnd::Refused(refused.reason)),
            _ => Err(LinkEnd::Protocol(BadMessage::Empty)),
        }
    }

    async fn send_events(&self, socket: &mut Socket, bytes: usize) -> Result<EventSending, LinkEnd> {
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
        send(socket, agent_message::Body::Events(Events { events })).await?;
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
                    Ok(order) => self.supervisor.order(order).await,
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
            Body::Drain(drain) => {
                let spread = random_part(Duration::from_millis(drain.spread_ms));
                Err(LinkEnd::Drained { pause: Duration::from_millis(drain.after_ms) + spread })
            }
            Body::Refused(refused) => Err(LinkEnd::Refused(refused.reason)),
            Body::Welcome(_)
            | Body::Enrolled(_)
            | Body::EventsStored(_)
            | Body::Renewed(_)
            | Body::ReadLog(_)
            | Body::ReadSpec(_) => {
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
    Outcome::without_agent(code, message, OpKind::from_number(kind.into()).unwrap_or(OpKind::Start))
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

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// The next message of a kind that this version knows.
async fn next(socket: &mut Socket) -> Result<Body, LinkEnd> {
    loop {
        match socket.next().await {
            None | Some(Ok(Message::Close(_))) => return Err(LinkEnd::Closed),
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(Message::Binary(bytes))) => match decode_server(&bytes) {
                Err(BadMessage::Unknown) => debug!("a message of a newer kind was ignored"),
                body => return Ok(body?),
            },
            Some(Ok(_)) => {}
        }
    }
}

async fn send(socket: &mut Socket, body: agent_message::Body) -> Result<(), LinkEnd> {
    in_time(socket.send(Message::Binary(body.into_bytes().into()))).await
}

/// A write with a timeout.
async fn in_time(write: impl Future<Output = Result<(), WsError>>) -> Result<(), LinkEnd> {
    match tokio::time::timeout(WRITE, write).await {
        Ok(written) => Ok(written?),
        Err(_) => Err(LinkEnd::Silent(WRITE)),
    }
}

/// Sends states in several messages if necessary; the first begins the complete list. Flushes if `more` bytes
/// would not fit.
async fn flush_if_full(
    socket: &mut Socket,
    batch: &mut StatesMessage,
    bytes: &mut usize,
    more: usize,
) -> Result<(), LinkEnd> {
    if *bytes + more > STATES_BYTES && *bytes > 0 {
        send(socket, agent_message::Body::States(std::mem::take(batch))).await?;
        *bytes = 0;
    }
    *bytes += more;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::id::TaskId;
    use procfleet_proto::link::{MAX_FRAME, Op};

    const OMITTED: OmittedAccounts = OmittedAccounts::MeanEverybody;

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
        };
        assert!(agent_message::Body::Hello(hello).into_bytes().len() < MAX_FRAME - 4 * 1024);
    }
}
