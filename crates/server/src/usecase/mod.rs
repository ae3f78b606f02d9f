//! The use cases, one file each; helpers that they share are in `support`. They know the store and the
//! dispatcher, and nothing of HTTP.

pub mod agents;
pub mod apps;
pub mod audit;
pub mod businesses;
pub mod ca;
pub mod cancel;
pub mod events;
pub mod logs;
pub mod operate;
pub mod process_groups;
pub mod procs;
pub mod registration;
pub mod results;
pub mod retry;
pub mod select;
pub mod servers;
pub mod specs;
pub mod status;
pub mod support;
pub mod task_state;
pub mod tasks;
pub mod tokens;
pub mod upgrade;
pub mod users;
pub mod webhooks;

use crate::backlog::{Backlog, Full};
use crate::ca_change::CaChangeError;
use crate::clock::Clock;
use crate::dispatcher::Dispatcher;
use crate::ended_ops::{EndedOpsLimitExceeded, EndedOpsLimiter};
use crate::events::EventNotifier;
use crate::login_service::LoginService;
use crate::metrics::Metrics;
use crate::peer::AddressBlock;
use crate::pki::{Ca, PkiError};
use crate::presences::Presences;
use crate::sessions::AgentQuestions;
use crate::workers::refusals::Refusals;
use crate::workers::webhooks::DeliveryErrors;
use procfleet_core::code::Code;
use procfleet_core::grants::{Denial, Rights};
use procfleet_core::id::{AgentId, TaskId};
use procfleet_core::op::OpKind;
use procfleet_program::panics::Caught;
use procfleet_proto::http::fault::Faults;
use procfleet_store::clock::WallMs;
use procfleet_store::{AgentRecord, ServerIntro, Store, StoreError};
use std::net::IpAddr;
use std::sync::Arc;
use support::access;
use tokio::task::JoinError;

/// The parts of the server that use cases share.
#[derive(Clone, Debug)]
pub struct Services {
    pub store: Store,
    pub dispatcher: Dispatcher,
    pub backlog: Backlog,
    pub ended_ops: EndedOpsLimiter,
    pub clock: Clock,
    pub presences: Presences,
    pub ca: Arc<Ca>,
    pub metrics: Arc<Metrics>,
    pub unfinished: registration::Unfinished,
    pub event_notifier: EventNotifier,
    pub delivery_errors: DeliveryErrors,
    pub questions: AgentQuestions,
    pub refusals: Refusals,
    /// `None`: only our own users' tokens are known.
    pub login_service: Option<LoginService>,
    /// Addresses from which the administrator's app is accepted; empty: any.
    pub admin_from: Arc<[AddressBlock]>,
    /// The port of the link, to which agents connect.
    pub link_port: u16,
    pub own: Arc<OwnServer>,
}

/// This server, as it presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnServer {
    pub intro: ServerIntro,
    pub started_at: WallMs,
}

/// Whether an agent is connected to any server, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FleetPresence {
    pub(crate) connected: bool,
    pub(crate) heard_at: WallMs,
    /// When it last connected or disconnected.
    pub(crate) since: WallMs,
}

impl Services {
    /// The sessions of this server are known best here: the store learns of their ends later.
    pub(crate) fn presence(&self, agent: &AgentRecord) -> FleetPresence {
        if self.presences.contains(&agent.agent) {
            let heard_at = self.presences.last_heard(&agent.agent).unwrap_or(agent.heard_at);
            return FleetPresence { connected: true, heard_at, since: agent.changed_at };
        }
        self.presence_elsewhere(&agent.agent, agent.connected, agent.changed_at, agent.heard_at)
    }

    /// For an agent that is not connected here, from what the store says about its last session.
    pub(crate) fn presence_elsewhere(
        &self,
        agent: &AgentId,
        connected: bool,
        changed_at: WallMs,
        heard_at: WallMs,
    ) -> FleetPresence {
        // A session that has ended here after the last change that the store knows.
        let absence = self.presences.absence(agent);
        if let Some(absence) =
            absence.filter(|absence| !self.store.membership().is_shared() || absence.since >= changed_at)
        {
            return FleetPresence { connected: false, heard_at: absence.heard_at, since: absence.since };
        }
        match connected && self.store.membership().is_shared() {
            // The agent's server is alive, and would have ended a session that is silent for half a minute.
            true => FleetPresence { connected, heard_at: self.clock.wall(), since: changed_at },
            false => FleetPresence { connected: false, heard_at, since: changed_at },
        }
    }
}

/// The caller of a request, after its login was checked.
#[derive(Clone, Debug)]
pub struct Caller {
    pub app: String,
    pub username: String,
    pub from: IpAddr,
    pub rights: Arc<Rights>,
}

impl Caller {
    /// A part of procfleet itself.
    pub fn ourselves(name: &str, from: IpAddr) -> Caller {
        let rights = Arc::new(Rights::Administrator);
        Caller { app: name.to_owned(), username: String::new(), from, rights }
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub data: T,
    /// The cursor of the next page; `None`: this is the last one.
    pub next: Option<String>,
    /// The number of rows of all pages. `None`: the caller did not ask for it.
    pub total: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("no task {0}")]
    NoTask(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The request cannot be carried out as it stands.
    #[error(transparent)]
    Faults(#[from] Faults),
    /// The caller may not do this.
    #[error("{reason}")]
    Denied {
        reason: String,
        /// The grants that the caller lacks; empty if no grant would allow it.
        missing: Vec<Denial>,
    },
    #[error("none of the agents is known")]
    NoSuchAgents,
    #[error("the key stands for another request, that of task {0}")]
    KeyTaken(TaskId),
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The agent did not answer, or could not.
    #[error("{reason}")]
    Unanswered { code: Code, reason: String },
    #[error("the disk of the data folder is full, and {} is not taken", .0.verb())]
    DiskFull(OpKind),
    #[error("too many ops are open")]
    Full(Full),
    #[error("too many ops ended at once")]
    EndedOpsLimitExceeded(EndedOpsLimitExceeded),
    #[error("the server is ending")]
    Ending,
    #[error(transparent)]
    Panicked(#[from] Caught),
}

impl From<CaChangeError> for AppError {
    fn from(error: CaChangeError) -> Self {
        match error {
            CaChangeError::Store(error) => error.into(),
            CaChangeError::Pki(error) => error.into(),
            CaChangeError::Ending(error) => error.into(),
            CaChangeError::Needed { agents, tokens } => {
                Faults::one("force", ca::needed(agents, tokens)).into()
            }
            CaChangeError::NoKeyAt { key, servers } => {
                let servers = servers.join(", ");
                let reason = format!(
                    "the key would be sealed under seal key {key}, which these servers cannot open: {servers}. Start them with \
                     this key among their --seal-key, and try again"
                );
                Faults::one("", reason).into()
            }
            CaChangeError::Unsettled => {
                Faults::one("", "other servers change the CA at the same time; try again").into()
            }
        }
    }
}

impl From<JoinError> for AppError {
    fn from(error: JoinError) -> Self {
        if error.is_panic() { AppError::Panicked(Caught) } else { AppError::Ending }
    }
}
