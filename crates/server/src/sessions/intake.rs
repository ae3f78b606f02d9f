//! Messages from agents: checked against the limits of [`agent_limits`] and the agent's budget, then stored
//! or sent to the dispatcher.
//!
//! Events above the budget are held: one message, in memory, while the session continues. So are all events
//! while the server's disk is full: the store's reserve is for stops, kills and outcomes. The agent sends its
//! next events when these are confirmed, so an agent of ours only waits and loses nothing. Further events
//! while some are held come from a peer that does not wait; they are dropped and counted. Other messages
//! above the budget cause back-pressure: the session does not read for a while, but still writes ops and
//! pings. So does a message that cannot be stored while the database is away.

use super::Link;
use super::budget::{AgentBudget, cost_of};
use super::certificates;
use super::questions::AgentAnswer;
use super::session_end::SessionEnd;
use crate::agent_limits::{self, Bounded, DroppedStates};
use crate::events;
use crate::metrics::Sent;
use crate::presences::LastHeard;
use crate::secret;
use crate::session_channel::CutReason;
use procfleet_core::id::{AgentId, Epoch, ProcKey};
use procfleet_core::spec::ProcessGroup;
use procfleet_failpoint::{Point, hit};
use procfleet_proto::link::{
    BadMessage, Done, EventMessage, EventsStored, GroupsMessage, Report, Reports, States, agent_message,
    server_message::Body,
};
use procfleet_store::{GroupsRecord, NewEvent, ProcListing, ProcRecord, StoreError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;

/// Cost of a certificate request in addition to its bytes: signing takes longer than storing a state.
const SIGNING: usize = 100;
/// Longest pause, so that an agent never takes the server for a silent one.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Pause before events that wait for free disk space are looked at again.
const SPACE_AGAIN: Duration = Duration::from_secs(2);
/// Pause before a message is stored again, and its jitter: ten thousand sessions wait for the same database.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// Messages that a session has received and not handled yet.
#[derive(Debug)]
pub(super) struct Intake {
    budget: AgentBudget,
    last_heard: LastHeard,
    held: Option<DeferredEvents>,
    list: Option<UnfinishedList>,
    /// Reports that could not be stored while the database was away, and when to try again. The session reads
    /// nothing meanwhile.
    unstored: Option<(ToStore, Instant)>,
    /// Nothing is read before this time.
    paused_until: Option<Instant>,
}

/// One message of events that waits in memory.
#[derive(Debug)]
struct DeferredEvents {
    events: WaitingEvents,
    due: Instant,
}

#[derive(Debug)]
enum WaitingEvents {
    /// The agent's budget does not cover them yet, or the disk is full.
    Received(Vec<EventMessage>),
    /// The store has no space for them.
    Counted(ToStore),
}

/// Content of a message, ready for the store. Storing it twice has the effect of storing it once.
#[derive(Clone, Debug)]
enum ToStore {
    States(NewStates),
    Events { events: Vec<NewEvent>, confirmation: EventsStored },
}

/// The states of one message, or of the messages of one complete list.
#[derive(Clone, Debug)]
struct NewStates {
    /// The agent has no other procs and groups.
    all: bool,
    procs: Vec<ProcRecord>,
    forgotten: Vec<ProcKey>,
    groups: Vec<GroupsRecord>,
}

/// The beginning of a complete list of states.
#[derive(Debug)]
struct UnfinishedList {
    states: NewStates,
    /// Bytes of its texts and groups.
    heap: usize,
}

/// Memory of a complete list of states that is stored at once: 1,000 procs and more. Of a longer list the
/// beginning is stored as the complete list, and then the rest: until then, some procs of the agent are
/// missing in the store.
const WHOLE_LIST: usize = 1024 * 1024;
/// Overhead of the allocator for one text.
const ALLOCATION: usize = 16;

impl NewStates {
    /// Memory of the texts and groups. Their size on the wire says little: an empty state has a few bytes
    /// there.
    fn heap(&self) -> usize {
        let text = |text: &String| text.capacity() + ALLOCATION;
        let procs = self.procs.iter().map(|ProcRecord { proc, status, listing, .. }| {
            text(&proc.namespace) + text(&proc.name) + text(status) + text(&listing.state)
        });
        let groups = self.groups.iter().map(|GroupsRecord { namespace, groups, .. }| {
            let ids: usize = groups.iter().map(|group| text(&group.id)).sum();
            text(namespace) + ALLOCATION + groups.capacity() * size_of::<ProcessGroup>() + ids
        });
        procs.sum::<usize>() + groups.sum::<usize>()
    }
}

impl UnfinishedList {
    fn bytes(&self) -> usize {
        let NewStates { procs, groups, .. } = &self.states;
        self.heap + procs.capacity() * size_of::<ProcRecord>() + groups.capacity() * size_of::<GroupsRecord>()
    }
}

/// The states to store now; `None` if their list continues.
fn add_to_list(
    unfinished: &mut Option<UnfinishedList>,
    mut states: NewStates,
    continues: bool,
) -> Option<NewStates> {
    let mut list = match unfinished.take() {
        Some(mut list) if !states.all => {
            list.heap += states.heap();
            list.states.procs.append(&mut states.procs);
            list.states.groups.append(&mut states.groups);
            list
        }
        Some(_) | None => UnfinishedList { heap: states.heap(), states },
    };
    if list.states.all {
        // A proc that is not in a complete list is forgotten anyway.
        list.states.forgotten = Vec::new();
    }
    if continues && list.states.all && list.bytes() <= WHOLE_LIST {
        *unfinished = Some(list);
        return None;
    }
    Some(list.states)
}

impl Intake {
    /// The session of an agent in debt begins with a pause, so that the agent gains nothing by reconnecting.
    pub(super) fn begin(link: &Link, agent: &AgentId, last_heard: LastHeard) -> Intake {
        let budget = link.budgets.of(agent, link.clock.now());
        let mut intake =
            Intake { budget, last_heard, held: None, list: None, unstored: None, paused_until: None };
        intake.spend(link, agent, 0);
        intake
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused_until.is_some() || self.unstored.is_some()
    }

    /// When [`Intake::resume`] is to be called.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let due = self.held.as_ref().map(|held| held.due);
        let again = self.unstored.as_ref().map(|(_, again)| *again);
        [due, again, self.paused_until].into_iter().flatten().min()
    }

    /// Ends a pause that is over, and stores what can be stored now: the message that failed, then held
    /// events that the budget covers.
    pub(super) async fn resume(
        &mut self,
        link: &Link,
        agent: &AgentId,
        epoch: Epoch,
    ) -> Result<Option<Body>, SessionEnd> {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| *until > now);
        if let Some((message, _)) = self.unstored.take_if(|(_, again)| *again <= now) {
            return self.store(link, agent, epoch, message).await;
        }
        match self.held.take_if(|held| held.due <= now) {
            Some(held) => match held.events {
                WaitingEvents::Received(events) => self.take_events(link, agent, epoch, events).await,
                WaitingEvents::Counted(events) => self.store(link, agent, epoch, events).await,
            },
            None => Ok(None),
        }
    }

    /// Handles one message of an agent after its welcome; some are answered at once.
    pub(super) async fn handle(
        &mut self,
        link: &Link,
        agent: &AgentId,
        epoch: Epoch,
        body: agent_message::Body,
        size: usize,
    ) -> Result<Option<Body>, SessionEnd> {
        let items = match &body {
            // Events have a separate budget.
            agent_message::Body::Events(_) => 0,
            agent_message::Body::Reports(reports) => reports.reports.len(),
            agent_message::Body::States(states) => states.procs.len() + states.groups.len(),
            agent_message::Body::Renew(_) => SIGNING,
            agent_message::Body::LogRead(_) | agent_message::Body::SpecRead(_) => 1,
            agent_message::Body::Hello(_) | agent_message::Body::Enroll(_) => {
                return Err(SessionEnd::Refused("a session has one hello and no enrolment".to_owned()));
            }
        };
        if items > 0 {
            self.spend(link, agent, items.min(agent_limits::ITEMS).max(cost_of(size)));
        }
        match body {
            agent_message::Body::Reports(reports) => take_reports(link, agent, epoch, reports, size).await,
            agent_message::Body::States(states) => {
                let continues = states.continues;
                let states = read_states(link, agent, &self.budget, states)?;
                match add_to_list(&mut self.list, states, continues) {
                    Some(states) => self.store(link, agent, epoch, ToStore::States(states)).await,
                    None => Ok(None),
                }
            }
            agent_message::Body::Events(events) => {
                agent_limits::check_events(&events)?;
                match self.held {
                    None => self.take_events(link, agent, epoch, events.events).await,
                    Some(_) => {
                        link.metrics.dropped(Sent::Events, events.events.len());
                        log_excess(link, agent, &self.budget, "events were dropped");
                        Ok(None)
                    }
                }
            }
            agent_message::Body::Renew(request) => {
                agent_limits::check_signing_request(&request.csr)?;
                certificates::renew(link, agent, request).await
            }
            agent_message::Body::LogRead(answer) => {
                link.questions.answered(agent, epoch, AgentAnswer::Log(answer))?;
                Ok(None)
            }
            agent_message::Body::SpecRead(answer) => {
                link.questions.answered(agent, epoch, AgentAnswer::Spec(answer))?;
                Ok(None)
            }
            agent_message::Body::Hello(_) | agent_message::Body::Enroll(_) => Ok(None),
        }
    }

    /// A message of a kind that this server does not know. It is ignored but charged, so that a flood of them
    /// is slowed down like any other.
    pub(super) fn skip(&mut self, link: &Link, agent: &AgentId, size: usize) {
        self.spend(link, agent, cost_of(size));
    }

    fn spend(&mut self, link: &Link, agent: &AgentId, cost: usize) {
        let pause = self.budget.spend_message(cost, link.clock.now()).min(LONGEST_PAUSE);
        if !pause.is_zero() {
            link.metrics.delayed(Sent::Messages);
            log_excess(link, agent, &self.budget, "messages of the agent are read more slowly");
            self.paused_until = Some(Instant::now() + pause);
        }
    }

    async fn take_events(
        &mut self,
        link: &Link,
        agent: &AgentId,
        epoch: Epoch,
        events: Vec<EventMessage>,
    ) -> Result<Option<Body>, SessionEnd> {
        if link.store.is_disk_full() {
            self.hold(link, WaitingEvents::Received(events), SPACE_AGAIN);
            return Ok(None);
        }
        let cost = events.iter().map(|event| cost_of(event.size())).sum();
        match self.budget.spend_events(cost, link.clock.now()) {
            Ok(()) => match read_events(link, agent, &self.budget, events) {
                Some(events) => self.store(link, agent, epoch, events).await,
                None => Ok(None),
            },
            Err(wait) => {
                log_excess(link, agent, &self.budget, "events of the agent are delayed");
                self.hold(link, WaitingEvents::Received(events), wait);
                Ok(None)
            }
        }
    }

    fn hold(&mut self, link: &Link, events: WaitingEvents, wait: Duration) {
        link.metrics.delayed(Sent::Events);
        self.held = Some(DeferredEvents { events, due: Instant::now() + wait });
    }

    /// Stores a message and confirms it. The session goes on while the database is away: if it ended, all
    /// agents would reconnect and send all their states when the database is back.
    async fn store(
        &mut self,
        link: &Link,
        agent: &AgentId,
        epoch: Epoch,
        message: ToStore,
    ) -> Result<Option<Body>, SessionEnd> {
        let may_wait = link.store.membership().is_shared() || matches!(message, ToStore::Events { .. });
        let kept = may_wait.then(|| message.clone());
        let (stored, what) = match message {
            ToStore::States(states) => {
                let stored = store_states(link, agent, epoch, states).await;
                if stored.is_ok() {
                    self.last_heard.states_stored(link.clock.now());
                }
                if let Ok(1..) = stored {
                    let consequence = "the agent has too many procs or groups; new ones are not stored";
                    log_excess(link, agent, &self.budget, consequence);
                }
                (stored.map(|_| None), "states")
            }
            ToStore::Events { events, confirmation } => {
                (store_events(link, agent, events, confirmation).await, "events")
            }
        };
        match (stored, kept) {
            (Err(StoreError::Unavailable { .. } | StoreError::Uncertain { .. }), Some(message)) => {
                let jitter = STORE_AGAIN.mul_f64(f64::from(secret::random::<1>()[0]) / 255.0);
                self.unstored = Some((message, Instant::now() + STORE_AGAIN + jitter));
                Ok(None)
            }
            (Err(StoreError::NoSpace { .. }), Some(events)) => {
                self.hold(link, WaitingEvents::Counted(events), SPACE_AGAIN);
                Ok(None)
            }
            (Err(StoreError::OldSession(_)), _) => Err(SessionEnd::Cut(CutReason::Replaced)),
            (Err(error), _) => {
                // After the next connect the agent sends its events again, and all of its states.
                warn!(
                    error = &error as &dyn std::error::Error,
                    what, "storing a message failed; the session ends, and the agent sends it again"
                );
                Err(SessionEnd::Refused(format!("the server cannot store {what} now")))
            }
            (Ok(answer), _) => Ok(answer),
        }
    }
}

/// Logs one line per agent and minute.
fn log_excess(link: &Link, agent: &AgentId, budget: &AgentBudget, consequence: &'static str) {
    if budget.may_log(link.clock.now()) {
        warn!(
            %agent,
            consequence,
            "an agent sends more than its limits allow; if this goes on, look at its host, or revoke the agent"
        );
    }
}

async fn take_reports(
    link: &Link,
    agent: &AgentId,
    epoch: Epoch,
    reports: Reports,
    size: usize,
) -> Result<Option<Body>, SessionEnd> {
    if reports.reports.len() > agent_limits::ITEMS {
        return Err(agent_limits::OversizedMessage("a list of outcomes").into());
    }
    let mut reports =
        reports.reports.into_iter().map(Report::try_into).collect::<Result<Vec<Done>, BadMessage>>()?;
    let outcomes = reports.iter_mut().filter_map(|(_, outcome)| outcome.as_mut());
    let shortened = outcomes.map(agent_limits::bound_outcome).filter(|was_cut| *was_cut).count();
    link.metrics.shortened(Sent::Outcomes, shortened);
    hit(Point::ServerReportReceived);
    link.dispatcher.report(agent, epoch, reports, size).await;
    Ok(None)
}

fn read_states(
    link: &Link,
    agent: &AgentId,
    budget: &AgentBudget,
    mut states: States,
) -> Result<NewStates, SessionEnd> {
    let excess = agent_limits::bound_states(&mut states)?;
    if excess != DroppedStates::default() {
        link.metrics.dropped(Sent::States, excess.states);
        link.metrics.dropped(Sent::Groups, excess.groups);
        log_excess(link, agent, budget, "states that are too large were dropped");
    }
    if states.log_lines_dropped > 0 {
        // The agent reports this number: the limit keeps a false one from making the sum useless.
        let lines = states.log_lines_dropped.min(agent_limits::LOG_LINES_DROPPED);
        link.metrics.agent_log_lines_dropped.inc_by(lines);
        if budget.may_log(link.clock.now()) {
            warn!(%agent, lines, "an agent has lost lines of its log; look at the disk or the journald of its host");
        }
    }
    let now = link.clock.wall() / 1_000;
    let (mut records, mut forgotten) = (Vec::new(), Vec::new());
    let mut shortened = 0;
    for state in states.procs {
        // A state in a newer format must not end the session: the agent would send it again in the next one.
        let (report, is_newer) = match state.report() {
            Err(fault) if fault.is_of_a_newer_peer() => (Some(state.unreadable_report()), true),
            report => (report?, false),
        };
        let proc = ProcKey { namespace: state.namespace, name: state.name };
        if is_newer && budget.may_log(link.clock.now()) {
            warn!(%agent, %proc, "the agent is newer and reports a state that this server cannot read; upgrade the server");
        }
        let Some(mut report) = report else {
            forgotten.push(proc);
            continue;
        };
        let bounded = agent_limits::bound_state(&mut report, now);
        shortened += usize::from(bounded == Bounded::Cut);
        let status = match bounded {
            // The text as sent, because a newer agent's may have fields that this server does not know.
            Bounded::AsSent if !is_newer => String::from_utf8_lossy(&state.report).into_owned(),
            Bounded::AsSent | Bounded::Clamped | Bounded::Cut => {
                serde_json::to_string(&report).expect("a report has only text keys, so it is JSON")
            }
        };
        let listing = ProcListing {
            state: report.state_now().word().to_owned(),
            started_at: report.started_at,
            failed: report.is_failed(),
        };
        records.push(ProcRecord { proc, revision: state.revision, status, listing });
    }
    link.metrics.shortened(Sent::States, shortened);
    let mut groups = Vec::with_capacity(states.groups.len());
    for message in states.groups {
        let of_namespace = match message.groups() {
            Err(fault) if fault.is_of_a_newer_peer() => {
                if budget.may_log(link.clock.now()) {
                    let namespace = &message.namespace;
                    warn!(%agent, namespace, "the agent is newer and reports process groups that this server cannot read; they are not stored; upgrade the server");
                }
                continue;
            }
            groups => groups?,
        };
        let GroupsMessage { namespace, revision, .. } = message;
        groups.push(GroupsRecord { namespace, revision, groups: of_namespace });
    }
    Ok(NewStates { all: states.all, procs: records, forgotten, groups })
}

/// Returns how many procs and groups were not stored, because the agent has too many.
async fn store_states(
    link: &Link,
    agent: &AgentId,
    epoch: Epoch,
    states: NewStates,
) -> Result<usize, StoreError> {
    let NewStates { all, procs: records, forgotten, groups } = states;
    let procs = async {
        match all {
            true => link.store.replace_procs(agent, epoch, records).await,
            false if records.is_empty() && forgotten.is_empty() => Ok(0),
            false => link.store.put_procs(agent, epoch, records, forgotten).await,
        }
    };
    let groups = async {
        match all {
            true => link.store.replace_process_groups(agent, epoch, groups).await,
            false if groups.is_empty() => Ok(0),
            false => link.store.put_process_groups(agent, epoch, groups).await,
        }
    };
    let (procs, groups) = match link.store.membership().is_shared() {
        // Each locks the agent's session, and would wait for the other.
        true => (procs.await, groups.await),
        // Together, so that they share a commit.
        false => tokio::join!(procs, groups),
    };
    let (procs, groups) = (procs?, groups?);
    link.metrics.dropped(Sent::States, procs);
    link.metrics.dropped(Sent::Groups, groups);
    Ok(procs + groups)
}

/// `None`: the message has none.
fn read_events(
    link: &Link,
    agent: &AgentId,
    budget: &AgentBudget,
    mut events: Vec<EventMessage>,
) -> Option<ToStore> {
    let last = events.last()?;
    let confirmation = EventsStored { journal: last.journal.clone(), up_to: last.number };
    let sent = events.len();
    // Dropped ones are confirmed, too: the agent would send them again for ever.
    events.retain(agent_limits::is_stored);
    if events.len() < sent {
        link.metrics.dropped(Sent::Events, sent - events.len());
        log_excess(link, agent, budget, "events with too long a name were dropped");
    }
    let now = link.clock.wall();
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let times =
        (now.saturating_sub(millis(link.keep)).max(0), now.saturating_add(millis(agent_limits::EVENT_AHEAD)));
    let (mut new, mut shortened) = (Vec::with_capacity(events.len()), 0);
    for mut event in events {
        shortened += usize::from(agent_limits::bound_event(&mut event, times));
        new.push(NewEvent {
            journal: event.journal,
            journal_number: event.number,
            at: event.at,
            proc: ProcKey { namespace: event.namespace, name: event.name },
            kind: event.kind,
            message: event.message,
            details: String::from_utf8_lossy(&event.details).into_owned(),
            report_id: event.report_id,
            proc_name: event.proc_name,
            account: event.user,
        });
    }
    link.metrics.shortened(Sent::Events, shortened);
    Some(ToStore::Events { events: new, confirmation })
}

async fn store_events(
    link: &Link,
    agent: &AgentId,
    events: Vec<NewEvent>,
    confirmation: EventsStored,
) -> Result<Option<Body>, StoreError> {
    let now = link.clock.wall();
    events::store_events(&link.store, &link.metrics, &link.event_notifier, agent, events, now).await?;
    Ok(Some(Body::EventsStored(confirmation)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc(name: &str, status: &str) -> ProcRecord {
        let proc = ProcKey { namespace: "web".to_owned(), name: name.to_owned() };
        ProcRecord { proc, revision: 1, status: status.to_owned(), listing: ProcListing::default() }
    }

    fn states(all: bool, procs: Vec<ProcRecord>, forgotten: usize) -> NewStates {
        let forgotten = vec![ProcKey { namespace: "web".to_owned(), name: "gone".to_owned() }; forgotten];
        NewStates { all, procs, forgotten, groups: Vec::new() }
    }

    fn names(stored: Option<NewStates>) -> Option<Vec<String>> {
        stored.map(|states| states.procs.into_iter().map(|record| record.proc.name).collect())
    }

    #[test]
    fn a_complete_list_is_stored_at_its_end() {
        let mut list = None;
        assert_eq!(
            names(add_to_list(&mut list, states(false, vec![proc("a", "")], 0), false)),
            Some(vec!["a".to_owned()])
        );
        assert_eq!(names(add_to_list(&mut list, states(true, vec![proc("b", "")], 0), true)), None);
        assert_eq!(
            names(add_to_list(&mut list, states(true, vec![proc("c", "")], 0), true)),
            None,
            "a new list"
        );
        let stored = add_to_list(&mut list, states(false, vec![proc("d", "")], 0), false).expect("the end");
        assert!(stored.all && list.is_none());
        assert_eq!(names(Some(stored)), Some(vec!["c".to_owned(), "d".to_owned()]));
        let changed = add_to_list(&mut list, states(false, Vec::new(), 2), true).expect("no complete list");
        assert_eq!(changed.forgotten.len(), 2);
    }

    /// An agent that never ends its list keeps this much of the server's memory.
    #[test]
    fn an_unfinished_list_is_bounded_by_the_memory_that_it_occupies() {
        let check = |all_of_them: fn(usize) -> NewStates, ends: bool| {
            let mut list = None;
            for message in 0..100 {
                let stored =
                    add_to_list(&mut list, NewStates { all: message == 0, ..all_of_them(message) }, true);
                if let Some(stored) = stored {
                    assert!(ends && stored.all && list.is_none(), "after {message} messages");
                    return;
                }
                let list = list.as_ref().expect("it is kept");
                assert!(list.bytes() <= WHOLE_LIST && list.states.forgotten.capacity() == 0);
            }
            assert!(!ends);
        };
        // Few bytes on the wire each.
        check(|_| states(false, vec![proc("", ""); 1_000], 0), true);
        check(|_| states(false, vec![proc("a", &"s".repeat(50_000))], 0), true);
        check(|_| states(false, vec![proc("a", &"s".repeat(500)); 10], 0), false);
        check(|_| states(false, Vec::new(), 2_000), false);
        let groups = |_| {
            let groups = vec![ProcessGroup::default(); 1_000];
            let record = GroupsRecord { namespace: "web".to_owned(), revision: 1, groups };
            NewStates { groups: vec![record], ..states(false, Vec::new(), 0) }
        };
        check(groups, true);
    }
}
