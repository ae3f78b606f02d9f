//! The procs that pass some filters, page by page, and the procs that a request means.

use super::{AgentFilter, ProcRecord};
use procfleet_core::grants::{GrantScope, Pattern};
use procfleet_core::{AgentId, Host};
use procfleet_proto::http::cursor::ProcCursor;

/// Which procs. `None` is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcFilter {
    /// Only on these agents.
    pub agents: AgentFilter,
    /// The namespaces that the caller may use.
    pub within: GrantScope<Pattern>,
    pub namespace: Option<String>,
    /// It may be a glob.
    pub name: Option<String>,
    pub host: Option<Host>,
    pub state: Option<&'static str>,
    pub failed: Option<FailedProcs>,
}

/// Only procs that gave up, are unhealthy or have a note, as far as the caller may know it: the note and the
/// health of a proc may hold its output, which only callers see that may use its OS account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedProcs {
    pub accounts: GrantScope<String>,
}

/// One page of the procs that pass a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcListPage {
    pub procs: Vec<(AgentId, Host, ProcRecord)>,
    /// `None`: this is the last page.
    pub next: Option<ProcCursor>,
    /// Of all pages.
    pub total: u64,
}
