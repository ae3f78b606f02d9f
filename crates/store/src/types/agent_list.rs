//! The agents that pass some filters, page by page.

use super::AgentRecord;
use procfleet_core::grants::GrantScope;
use procfleet_core::select::Term;
use procfleet_core::{AgentId, BusinessId, CloudId};
use procfleet_proto::http::cursor::AgentKey;

/// Which agents. `None` is any; retired agents are never among them. The default is no agent at all, as the
/// default of grants is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFilter {
    /// The businesses that the caller may use.
    pub within: GrantScope<BusinessId>,
    pub cloud: Option<CloudId>,
    pub business: Option<BusinessId>,
    /// It may be a glob.
    pub version: Option<String>,
    /// `connected`, `away` or `revoked`.
    pub state: Option<&'static str>,
    pub connected: ConnectedAgents,
    /// Away since this time or longer.
    pub away_since: Option<i64>,
    pub select: Vec<Term>,
    /// Only these.
    pub among: Option<Vec<AgentId>>,
    pub revoked: RevokedAgents,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectedAgents {
    #[default]
    Included,
    LeftOut,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RevokedAgents {
    #[default]
    Included,
    LeftOut,
}

/// One page of the agents that pass a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPage {
    pub agents: Vec<AgentRecord>,
    /// `None`: this is the last page.
    pub next: Option<AgentKey>,
}

impl AgentFilter {
    /// All agents of these businesses.
    pub fn of(within: &GrantScope<BusinessId>) -> AgentFilter {
        AgentFilter { within: within.clone(), ..AgentFilter::default() }
    }

    pub(crate) fn is_everything(&self) -> bool {
        *self == AgentFilter::of(&GrantScope::All)
    }

    /// The agents that a caller may use: those of its businesses that were not revoked.
    pub fn usable(within: &GrantScope<BusinessId>) -> AgentFilter {
        AgentFilter { revoked: RevokedAgents::LeftOut, ..AgentFilter::of(within) }
    }
}
