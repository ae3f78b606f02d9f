//! Orders of the lists that are read page by page, and the cursors between their pages (keyset pagination).
//!
//! A cursor is the sort key of the last row of a page, so rows that come or go between two calls neither
//! repeat nor hide others. To callers it is an opaque text.

use procfleet_core::id::{AgentId, Host};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// More than the longest key needs in hexadecimal.
pub(super) const LONGEST_CURSOR: usize = 8_192;

/// The order of the list of procs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcOrder {
    /// Host, namespace, name.
    #[default]
    Host,
    /// Namespace, name, host.
    Name,
    /// State, then as `Host`.
    State,
    /// The procs that were started last come first; then as `Host`.
    Since,
}

impl ProcOrder {
    pub const ALL: [ProcOrder; 4] = [ProcOrder::Host, ProcOrder::Name, ProcOrder::State, ProcOrder::Since];

    pub fn word(self) -> &'static str {
        match self {
            ProcOrder::Host => "host",
            ProcOrder::Name => "name",
            ProcOrder::State => "state",
            ProcOrder::Since => "since",
        }
    }
}

/// The sort key of the last row of a page of procs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcCursor {
    pub order: ProcOrder,
    pub host: Host,
    pub namespace: String,
    pub name: String,
    pub state: String,
    pub started_at: i64,
}

/// The order of the list of agents. Equal agents are ordered by their hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentOrder {
    #[default]
    Id,
    Host,
    Version,
    State,
    /// The agents with the latest messages come first.
    Heard,
}

impl AgentOrder {
    pub const ALL: [AgentOrder; 5] =
        [AgentOrder::Id, AgentOrder::Host, AgentOrder::Version, AgentOrder::State, AgentOrder::Heard];

    pub fn word(self) -> &'static str {
        match self {
            AgentOrder::Id => "id",
            AgentOrder::Host => "host",
            AgentOrder::Version => "version",
            AgentOrder::State => "state",
            AgentOrder::Heard => "heard",
        }
    }
}

/// The sort key of the last row of a page of agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentCursor {
    /// In the order of ids the cursor is the id, as in earlier versions.
    Id(AgentId),
    Key(AgentKey),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentKey {
    pub order: AgentOrder,
    pub agent: AgentId,
    pub host: Host,
    pub version: String,
    pub state: String,
    /// Milliseconds since 1970, UTC.
    pub heard_at: i64,
}

impl ProcCursor {
    /// `None`: the text is not a cursor of this order.
    pub fn read(order: ProcOrder, text: &str) -> Option<ProcCursor> {
        decode(text).filter(|cursor: &ProcCursor| cursor.order == order)
    }

    pub fn text(&self) -> String {
        encode(self)
    }
}

impl AgentCursor {
    /// `None`: the text is not a cursor of this order.
    pub fn read(order: AgentOrder, text: &str) -> Option<AgentCursor> {
        match order {
            AgentOrder::Id => text.parse().ok().map(AgentCursor::Id),
            AgentOrder::Host | AgentOrder::Version | AgentOrder::State | AgentOrder::Heard => {
                decode(text).filter(|key: &AgentKey| key.order == order).map(AgentCursor::Key)
            }
        }
    }

    pub fn of(key: AgentKey) -> AgentCursor {
        match key.order {
            AgentOrder::Id => AgentCursor::Id(key.agent),
            AgentOrder::Host | AgentOrder::Version | AgentOrder::State | AgentOrder::Heard => {
                AgentCursor::Key(key)
            }
        }
    }

    pub fn text(&self) -> String {
        match self {
            AgentCursor::Id(agent) => agent.to_string(),
            AgentCursor::Key(key) => encode(key),
        }
    }
}

/// In hexadecimal: it needs no escapes, neither in a url nor in a shell.
fn encode(key: &impl Serialize) -> String {
    let json = serde_json::to_vec(key).expect("a key has only text keys, so it is JSON");
    json.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode<T: DeserializeOwned>(text: &str) -> Option<T> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let bytes: Option<Vec<u8>> =
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect();
    serde_json::from_slice(&bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_good_for_its_own_order_only() {
        let cursor = ProcCursor {
            order: ProcOrder::Name,
            host: "3:10.0.0.1".parse().expect("a host"),
            namespace: "web".to_owned(),
            name: "nginx \u{6258}".to_owned(),
            state: "running".to_owned(),
            started_at: 5,
        };
        let text = cursor.text();
        assert!(text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
        assert_eq!(ProcCursor::read(ProcOrder::Name, &text), Some(cursor));
        assert_eq!(ProcCursor::read(ProcOrder::Host, &text), None);
        for odd in ["x", "7", "7b7d", "\u{6258}\u{7ba1}", &text[2..]] {
            assert_eq!(ProcCursor::read(ProcOrder::Name, odd), None, "{odd}");
        }
        let id = AgentCursor::read(AgentOrder::Id, "agent-1").expect("an id");
        assert_eq!((id.text().as_str(), AgentCursor::read(AgentOrder::Host, "agent-1")), ("agent-1", None));
    }
}
