//! Query parameters of procfleet's own API: limits and filters. A whole number may come as a text.
//!
//! An unknown filter is refused: a misspelt one would show everything.

use super::cursor::{AgentCursor, AgentOrder, LONGEST_CURSOR, ProcCursor, ProcOrder};
use super::fault::Faults;
use super::manage::read;
use super::native::ProcState;
use super::operate::MOST_TERMS;
use super::read::{Reader, RequestBody};
use procfleet_core::id::{BusinessId, CloudId, Host, TaskId};
use procfleet_core::select::Term;
use std::time::Duration;

const LONGEST_NAME: usize = 256;
/// Maximum number of rows of one call.
const MOST_ROWS: i64 = 1_000;
/// Maximum number of rows of agents, procs, or ops of a task, which are small.
const MOST_FLEET_ROWS: i64 = 10_000;
const DEFAULT_FLEET_ROWS: u32 = 1_000;
const LONGEST_SELECTION: usize = 8_192;
/// Maximum time of a long poll.
const LONGEST_WAIT_MS: i64 = 30_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcsQuery {
    pub namespace: Option<String>,
    /// May be a glob.
    pub name: Option<String>,
    pub host: Option<Host>,
    pub select: Vec<Term>,
    pub state: Option<ProcState>,
    /// Only procs with a problem.
    pub failed: bool,
    /// Only procs of agents that were not revoked.
    pub usable: bool,
    pub order: ProcOrder,
    pub after: Option<ProcCursor>,
    pub limit: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TasksQuery {
    pub state: Option<TaskProgress>,
    /// Only tasks in which an op failed.
    pub failed: bool,
    /// Only tasks that were made at this time or later; seconds since 1970, UTC.
    pub since: Option<i64>,
    /// Only tasks that are older than this one.
    pub after: Option<TaskId>,
    pub limit: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskProgress {
    Open,
    Ended,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// How long to wait for the task to change.
    pub wait: Duration,
    pub ops: OpFilter,
    /// Only ops on the selected hosts.
    pub select: Vec<Term>,
    /// Only ops after the one with this index.
    pub after: Option<u32>,
    pub limit: u32,
}

/// Which ops of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpFilter {
    #[default]
    All,
    Open,
    Ended,
    /// Ended neither with success nor because there was nothing to do.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsQuery {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub kind: Option<String>,
    pub host: Option<Host>,
    pub select: Vec<Term>,
    /// Only events of this time or later, by the clocks of their hosts; seconds since 1970, UTC.
    pub since: Option<i64>,
    /// `None`: the newest.
    pub after: Option<u64>,
    pub limit: u32,
    /// With `after`: how long to wait for one.
    pub wait: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditQuery {
    pub limit: u32,
    pub app: Option<String>,
    pub action: Option<String>,
    /// Only refused or denied calls.
    pub failed: bool,
    /// Only records of this time or later; seconds since 1970, UTC.
    pub since: Option<i64>,
}

/// The state of an agent, as a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentStateFilter {
    Connected,
    Away,
    Revoked,
}

impl AgentStateFilter {
    pub fn word(self) -> &'static str {
        match self {
            AgentStateFilter::Connected => "connected",
            AgentStateFilter::Away => "away",
            AgentStateFilter::Revoked => "revoked",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentsQuery {
    pub cloud: Option<CloudId>,
    pub business: Option<BusinessId>,
    /// It may be a glob.
    pub version: Option<String>,
    pub state: Option<AgentStateFilter>,
    /// Offline for at least this long.
    pub offline_secs: Option<i64>,
    pub select: Vec<Term>,
    pub order: AgentOrder,
    pub after: Option<AgentCursor>,
    pub limit: u32,
}

pub fn agents<'v>(body: impl Into<RequestBody<'v>>) -> Result<AgentsQuery, Faults> {
    let known =
        ["bk_cloud_id", "bk_biz_id", "version", "state", "offline_secs", "select", "sort", "after", "limit"];
    let small = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok());
    read(body.into(), &known, |reader, faults| {
        let cloud = reader.integer("bk_cloud_id", 0..=i64::from(u32::MAX), faults);
        let business = reader.integer("bk_biz_id", 1..=i64::from(u32::MAX), faults);
        let state = text(reader, "state", faults).and_then(|state| match state.as_str() {
            "connected" => Some(AgentStateFilter::Connected),
            "away" => Some(AgentStateFilter::Away),
            "revoked" => Some(AgentStateFilter::Revoked),
            other => {
                faults.add("state", format!("{other:?} is no state; there are connected, away and revoked"));
                None
            }
        });
        let order = one_of(reader, "sort", &AgentOrder::ALL, AgentOrder::word, faults).unwrap_or_default();
        AgentsQuery {
            cloud: small(cloud).map(CloudId),
            business: small(business).map(BusinessId),
            version: text(reader, "version", faults),
            state,
            offline_secs: reader.integer("offline_secs", 0..=i64::from(u32::MAX), faults),
            select: select(reader, faults),
            order,
            after: cursor(reader, faults, |text| AgentCursor::read(order, text)),
            limit: fleet_limit(reader, faults),
        }
    })
}

pub fn procs<'v>(body: impl Into<RequestBody<'v>>) -> Result<ProcsQuery, Faults> {
    let known =
        ["namespace", "name", "host", "select", "state", "failed", "usable", "sort", "after", "limit"];
    read(body.into(), &known, |reader, faults| {
        let order = one_of(reader, "sort", &ProcOrder::ALL, ProcOrder::word, faults).unwrap_or_default();
        ProcsQuery {
            namespace: text(reader, "namespace", faults),
            name: text(reader, "name", faults),
            host: host(reader, faults),
            select: select(reader, faults),
            state: one_of(reader, "state", &ProcState::ALL, ProcState::word, faults),
            failed: reader.query_flag("failed", faults),
            usable: reader.query_flag("usable", faults),
            order,
            after: cursor(reader, faults, |text| ProcCursor::read(order, text)),
            limit: fleet_limit(reader, faults),
        }
    })
}

pub fn events<'v>(body: impl Into<RequestBody<'v>>) -> Result<EventsQuery, Faults> {
    let known = ["namespace", "name", "kind", "host", "select", "since", "after", "limit", "wait_ms"];
    read(body.into(), &known, |reader, faults| {
        let after = reader.integer("after", 0..=i64::MAX, faults);
        EventsQuery {
            namespace: text(reader, "namespace", faults),
            name: text(reader, "name", faults),
            kind: text(reader, "kind", faults),
            host: host(reader, faults),
            select: select(reader, faults),
            since: since(reader, faults),
            after: after.and_then(|number| u64::try_from(number).ok()),
            limit: limit(reader, 100, faults),
            wait: wait(reader, faults),
        }
    })
}

/// Tasks, the newest first.
pub fn tasks<'v>(body: impl Into<RequestBody<'v>>) -> Result<TasksQuery, Faults> {
    read(body.into(), &["state", "failed", "since", "after", "limit"], |reader, faults| {
        let states = [TaskProgress::Open, TaskProgress::Ended];
        let word = |state| match state {
            TaskProgress::Open => "open",
            TaskProgress::Ended => "ended",
        };
        TasksQuery {
            state: one_of(reader, "state", &states, word, faults),
            failed: reader.query_flag("failed", faults),
            since: since(reader, faults),
            after: cursor(reader, faults, |text| text.parse().ok()),
            limit: limit(reader, 20, faults),
        }
    })
}

/// A task with a page of its ops. A longer wait than the maximum is cut to the maximum.
pub fn task<'v>(body: impl Into<RequestBody<'v>>) -> Result<TaskQuery, Faults> {
    read(body.into(), &["wait_ms", "state", "select", "after", "limit"], |reader, faults| {
        let filters = [OpFilter::Open, OpFilter::Ended, OpFilter::Failed];
        let word = |filter| match filter {
            OpFilter::All => "",
            OpFilter::Open => "open",
            OpFilter::Ended => "ended",
            OpFilter::Failed => "failed",
        };
        TaskQuery {
            wait: wait(reader, faults),
            ops: one_of(reader, "state", &filters, word, faults).unwrap_or_default(),
            select: select(reader, faults),
            after: cursor(reader, faults, |text| text.parse().ok()),
            limit: fleet_limit(reader, faults),
        }
    })
}

/// A request with no fields but the login.
pub fn nothing<'v>(body: impl Into<RequestBody<'v>>) -> Result<(), Faults> {
    read(body.into(), &[], |_, _| ())
}

pub fn audit<'v>(body: impl Into<RequestBody<'v>>) -> Result<AuditQuery, Faults> {
    read(body.into(), &["limit", "app", "action", "failed", "since"], |reader, faults| AuditQuery {
        limit: limit(reader, 50, faults),
        app: text(reader, "app", faults),
        action: text(reader, "action", faults),
        failed: reader.query_flag("failed", faults),
        since: since(reader, faults),
    })
}

pub(super) fn text(reader: &Reader<'_>, field: &str, faults: &mut Faults) -> Option<String> {
    Some(reader.text(field, LONGEST_NAME, faults)).filter(|text| !text.is_empty())
}

pub(super) fn host(reader: &Reader<'_>, faults: &mut Faults) -> Option<Host> {
    match text(reader, "host", faults)?.parse() {
        Ok(host) => Some(host),
        Err(reason) => {
            faults.add("host", format!("{reason}"));
            None
        }
    }
}

pub(super) fn wait(reader: &Reader<'_>, faults: &mut Faults) -> Duration {
    let wait = reader.integer("wait_ms", 0..=i64::MAX, faults).unwrap_or_default();
    Duration::from_millis(u64::try_from(wait.min(LONGEST_WAIT_MS)).unwrap_or_default())
}

/// One of these, by its word.
fn one_of<T: Copy>(
    reader: &Reader<'_>,
    field: &str,
    known: &[T],
    word: impl Fn(T) -> &'static str,
    faults: &mut Faults,
) -> Option<T> {
    let given = text(reader, field, faults)?;
    let found = known.iter().copied().find(|one| word(*one) == given);
    if found.is_none() {
        let words: Vec<&str> = known.iter().map(|one| word(*one)).collect();
        faults.add(field, format!("{given:?} is not known; there are {}", words.join(", ")));
    }
    found
}

/// The terms of a selection, separated by commas.
fn select(reader: &Reader<'_>, faults: &mut Faults) -> Vec<Term> {
    let terms = reader.text("select", LONGEST_SELECTION, faults);
    let mut select = Vec::new();
    let terms: Vec<&str> = terms.split(',').map(str::trim).filter(|term| !term.is_empty()).collect();
    if terms.len() > MOST_TERMS {
        faults.add("select", format!("has {} terms, at most {MOST_TERMS} are allowed", terms.len()));
        return select;
    }
    for term in terms {
        match term.parse() {
            Ok(term) => select.push(term),
            Err(reason) => faults.add("select", format!("{reason}")),
        }
    }
    select
}

fn since(reader: &Reader<'_>, faults: &mut Faults) -> Option<i64> {
    reader.integer("since", 0..=i64::from(u32::MAX), faults)
}

fn cursor<T>(reader: &Reader<'_>, faults: &mut Faults, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let given = Some(reader.text("after", LONGEST_CURSOR, faults)).filter(|text| !text.is_empty())?;
    let parsed = parse(&given);
    if parsed.is_none() {
        let reason = "is not a cursor of this list in this order; give the `next` of the page before";
        faults.add("after", reason);
    }
    parsed
}

fn fleet_limit(reader: &Reader<'_>, faults: &mut Faults) -> u32 {
    let limit = reader.integer("limit", 1..=MOST_FLEET_ROWS, faults);
    limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(DEFAULT_FLEET_ROWS)
}

fn limit(reader: &Reader<'_>, default: u32, faults: &mut Faults) -> u32 {
    let limit = reader.integer("limit", 1..=MOST_ROWS, faults);
    limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_fault_of_a_filter_is_named() {
        let sent = json!({"bk_cloud_id": "x", "state": "gone", "select": "10.0.0.0/99,role=web,=", "limit": 0,
            "after": "a b", "sort": "size", "label": "x"});
        let faults_text = agents(&sent).expect_err("it has faults").to_string();
        for words in [
            "bk_cloud_id: ",
            "state: \"gone\" is no state",
            "number of bits",
            "has no key",
            "limit: is 0",
            "after: is not a cursor",
            "sort: \"size\" is not known; there are id, host, version, state, heard",
            "label: is not known",
        ] {
            assert!(faults_text.contains(words), "{words}: {faults_text}");
        }
        let sent = json!({"bk_cloud_id": "3", "bk_biz_id": 7, "state": "away", "offline_secs": "60", "select": "role=web, 10.0.*"});
        let read = agents(&sent).expect("good filters");
        assert_eq!(
            (read.cloud, read.business, read.state),
            (Some(CloudId(3)), Some(BusinessId(7)), Some(AgentStateFilter::Away))
        );
        assert_eq!((read.offline_secs, read.select.len(), read.limit), (Some(60), 2, 1_000));
    }

    #[test]
    fn numbers_may_be_texts() {
        for (sent, expected) in [
            (json!({}), Ok(20)),
            (json!({"limit": "5"}), Ok(5)),
            (json!({"limit": 5}), Ok(5)),
            (json!({"limit": ""}), Err("limit: must be an integer, not \"\"")),
            (json!({"limit": "0"}), Err("limit: is 0, must be from 1 to 1000")),
            (json!({"limit": "many"}), Err("limit: must be an integer, not \"many\"")),
            (
                json!({"limits": 5}),
                Err("limits: is not known here; there are state, failed, since, after, limit"),
            ),
            (json!({"bk_app_code": "a", "bk_username": "b"}), Ok(20)),
            (json!({"limit": true}), Err("limit: must be an integer, not a boolean")),
        ] {
            let limit = tasks(&sent).map(|query| query.limit).map_err(|faults| faults.to_string());
            assert_eq!(limit, expected.map_err(str::to_owned));
        }
        let wait = task(&json!({"wait_ms": "99999"})).map(|query| query.wait);
        assert_eq!(wait, Ok(Duration::from_secs(30)));
    }

    #[test]
    fn every_fault_of_a_list_is_named() {
        let sent = json!({"state": "dead", "failed": "maybe", "usable": "true", "sort": "pid", "after": "zz",
            "limit": "10001", "select": "=", "host": "x", "pid": 1});
        let faults_text = procs(&sent).expect_err("it has faults").to_string();
        for words in [
            "state: \"dead\" is not known; there are changing, gave_up, reloading",
            "failed: must be true or false",
            "sort: \"pid\" is not known; there are host, name, state, since",
            "after: is not a cursor of this list in this order",
            "limit: is 10001, must be from 1 to 10000",
            "select: ",
            "host: ",
            "pid: is not known here",
        ] {
            assert!(faults_text.contains(words), "{words}: {faults_text}");
        }
        let faults_text =
            tasks(&json!({"state": "x", "since": "y", "after": "z"})).expect_err("faults").to_string();
        for words in ["state: \"x\" is not known; there are open, ended", "since: ", "after: "] {
            assert!(faults_text.contains(words), "{words}: {faults_text}");
        }
        let faults_text =
            task(&json!({"state": "x", "select": "=", "after": "-1"})).expect_err("faults").to_string();
        for words in ["state: \"x\" is not known; there are open, ended, failed", "select: ", "after: "] {
            assert!(faults_text.contains(words), "{words}: {faults_text}");
        }
    }
}
