//! Query parameters of procfleet's own API: limits and filters. A whole number may come as a text.
//!
//! An unknown filter is refused: a misspelt one would show everything.

use super::fault::Faults;
use super::manage::read;
use super::read::{Reader, RequestBody};
use procfleet_core::id::{AgentId, BusinessId, CloudId, Host};
use procfleet_core::select::Term;
use std::time::Duration;

const LONGEST_NAME: usize = 256;
/// The most rows that one call gets.
const MOST_ROWS: i64 = 1_000;
/// As the list of agents has no default limit, this only keeps nonsense out.
const MOST_AGENTS: i64 = 100_000;
const LONGEST_SELECTION: usize = 8_192;
/// The longest that a caller may wait for something to change.
const LONGEST_WAIT_MS: i64 = 30_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcsQuery {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub host: Option<Host>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsQuery {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub kind: Option<String>,
    pub host: Option<Host>,
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
}

/// How an agent stands, as people filter by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentStanding {
    Connected,
    Away,
    Revoked,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentsQuery {
    pub cloud: Option<CloudId>,
    pub business: Option<BusinessId>,
    /// It may be a glob.
    pub version: Option<String>,
    pub state: Option<AgentStanding>,
    /// Offline for at least this long.
    pub offline_secs: Option<i64>,
    pub select: Vec<Term>,
    /// Those whose ids come after this one.
    pub after: Option<AgentId>,
    /// `None`: all.
    pub limit: Option<usize>,
}

pub fn agents<'v>(body: impl Into<RequestBody<'v>>) -> Result<AgentsQuery, Faults> {
    let known = ["bk_cloud_id", "bk_biz_id", "version", "state", "offline_secs", "select", "after", "limit"];
    let small = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok());
    read(body.into(), &known, |reader, faults| {
        let cloud = reader.integer("bk_cloud_id", 0..=i64::from(u32::MAX), faults);
        let business = reader.integer("bk_biz_id", 1..=i64::from(u32::MAX), faults);
        let state = text(reader, "state", faults).and_then(|state| match state.as_str() {
            "connected" => Some(AgentStanding::Connected),
            "away" => Some(AgentStanding::Away),
            "revoked" => Some(AgentStanding::Revoked),
            other => {
                faults.add("state", format!("{other:?} is no state; there are connected, away and revoked"));
                None
            }
        });
        let terms = reader.text("select", LONGEST_SELECTION, faults);
        let mut select = Vec::new();
        for term in terms.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            match term.parse() {
                Ok(term) => select.push(term),
                Err(reason) => faults.add("select", format!("{reason}")),
            }
        }
        let after = text(reader, "after", faults).and_then(|after| match after.parse() {
            Ok(after) => Some(after),
            Err(reason) => {
                faults.add("after", format!("{reason}"));
                None
            }
        });
        let limit = reader.integer("limit", 1..=MOST_AGENTS, faults);
        AgentsQuery {
            cloud: small(cloud).map(CloudId),
            business: small(business).map(BusinessId),
            version: text(reader, "version", faults),
            state,
            offline_secs: reader.integer("offline_secs", 0..=i64::from(u32::MAX), faults),
            select,
            after,
            limit: limit.and_then(|limit| usize::try_from(limit).ok()),
        }
    })
}

pub fn procs<'v>(body: impl Into<RequestBody<'v>>) -> Result<ProcsQuery, Faults> {
    read(body.into(), &["namespace", "name", "host"], |reader, faults| ProcsQuery {
        namespace: text(reader, "namespace", faults),
        name: text(reader, "name", faults),
        host: host(reader, faults),
    })
}

pub fn events<'v>(body: impl Into<RequestBody<'v>>) -> Result<EventsQuery, Faults> {
    let known = ["namespace", "name", "kind", "host", "after", "limit", "wait_ms"];
    read(body.into(), &known, |reader, faults| {
        let after = reader.integer("after", 0..=i64::MAX, faults);
        EventsQuery {
            namespace: text(reader, "namespace", faults),
            name: text(reader, "name", faults),
            kind: text(reader, "kind", faults),
            host: host(reader, faults),
            after: after.and_then(|number| u64::try_from(number).ok()),
            limit: limit(reader, 100, faults),
            wait: wait(reader, faults),
        }
    })
}

/// How many tasks, the newest first.
pub fn tasks<'v>(body: impl Into<RequestBody<'v>>) -> Result<u32, Faults> {
    read(body.into(), &["limit"], |reader, faults| limit(reader, 20, faults))
}

/// How long to wait for the task to change. Longer than the longest is the longest.
pub fn task<'v>(body: impl Into<RequestBody<'v>>) -> Result<Duration, Faults> {
    read(body.into(), &["wait_ms"], wait)
}

/// A request with no fields but the login.
pub fn nothing<'v>(body: impl Into<RequestBody<'v>>) -> Result<(), Faults> {
    read(body.into(), &[], |_, _| ())
}

pub fn audit<'v>(body: impl Into<RequestBody<'v>>) -> Result<AuditQuery, Faults> {
    read(body.into(), &["limit", "app", "action"], |reader, faults| AuditQuery {
        limit: limit(reader, 50, faults),
        app: text(reader, "app", faults),
        action: text(reader, "action", faults),
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
            "after": "a b", "label": "x"});
        let said = agents(&sent).expect_err("it has faults").to_string();
        for words in [
            "bk_cloud_id: ",
            "state: \"gone\" is no state",
            "number of bits",
            "has no key",
            "limit: is 0",
            "after: ",
            "label: is not known",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let sent = json!({"bk_cloud_id": "3", "bk_biz_id": 7, "state": "away", "offline_secs": "60", "select": "role=web, 10.0.*"});
        let read = agents(&sent).expect("good filters");
        assert_eq!(
            (read.cloud, read.business, read.state),
            (Some(CloudId(3)), Some(BusinessId(7)), Some(AgentStanding::Away))
        );
        assert_eq!((read.offline_secs, read.select.len(), read.limit), (Some(60), 2, None));
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
            (json!({"limits": 5}), Err("limits: is not known here; there are limit")),
            (json!({"bk_app_code": "a", "bk_username": "b"}), Ok(20)),
            (json!({"limit": true}), Err("limit: must be an integer, not a boolean")),
        ] {
            assert_eq!(tasks(&sent).map_err(|faults| faults.to_string()), expected.map_err(str::to_owned));
        }
        assert_eq!(task(&json!({"wait_ms": "99999"})), Ok(Duration::from_secs(30)));
    }
}
