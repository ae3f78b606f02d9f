//! Events of procs, and webhooks that receive them.

use procfleet_core::grants::{GrantScope, Pattern};
use procfleet_core::select::Term;
use procfleet_core::{AgentId, Host, ProcKey};

/// An event as its agent reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    pub journal: String,
    pub journal_number: u64,
    /// By the host's clock.
    pub at: i64,
    pub proc: ProcKey,
    pub kind: String,
    pub message: String,
    /// JSON.
    pub details: String,
    pub report_id: i64,
    pub proc_name: String,
    /// The OS account of the spec at that time. Empty: unknown.
    pub account: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    pub number: u64,
    pub agent: AgentId,
    pub host: Host,
    pub received_at: i64,
    pub event: NewEvent,
}

/// `None` matches any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFilter {
    /// The namespaces that the caller may see.
    pub within: GrantScope<Pattern>,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub kind: Option<String>,
    pub agent: Option<AgentId>,
    /// Only on the agents that this selection means; retired agents are among them.
    pub select: Vec<Term>,
    /// Only events of this time or later, by the clocks of their hosts.
    pub since: Option<i64>,
}

impl Default for EventFilter {
    /// All events, for the server itself.
    fn default() -> Self {
        EventFilter {
            within: GrantScope::All,
            namespace: None,
            name: None,
            kind: None,
            agent: None,
            select: Vec::new(),
            since: None,
        }
    }
}

/// A page of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPage {
    /// The newest ones, up to this number.
    Newest(u32),
    /// The first ones after this event number.
    After(u64, u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub id: u64,
    pub url: String,
    pub created_at: i64,
    pub delivered: u64,
}
