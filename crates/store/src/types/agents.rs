//! Agents: which one is on which host, and its last session.

use super::CertificateRecord;
use crate::clock::ClockMark;
use procfleet_core::{AgentId, BusinessId, Epoch, Host};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Whom the audit names where an agent acts and no app asked.
pub const LINK: &str = "procfleet-link";

/// The kind of the event that tells of a takeover.
pub const AGENT_REPLACED: &str = "agent_replaced";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRecord {
    pub agent: AgentId,
    pub host: Host,
    pub certificate_sha256: [u8; 32],
    pub version: String,
    pub enrolled_at: i64,
    /// `Some`: another agent has joined for its host, or an administrator has forgotten the agent.
    pub retired_at: Option<i64>,
    pub connected: bool,
    /// When it last connected or disconnected.
    pub changed_at: i64,
    /// When it disconnected, by the boot-time clock.
    pub changed_mark: Option<ClockMark>,
    /// When it was last heard, as far as its sessions have ended; else when it connected.
    pub heard_at: i64,
    pub epoch: Epoch,
    /// Facts about the host, as JSON that the store does not read.
    pub facts: String,
    pub business: BusinessId,
    /// The end of the certificate that it uses. `None`: not recorded.
    pub certificate_expires_at: Option<i64>,
    /// `Some`: revoked by an administrator.
    pub revoked: Option<Revoked>,
    /// The labels that operators gave the host.
    pub labels: BTreeMap<String, String>,
}

/// The last session of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    pub epoch: Epoch,
    /// Whether it is connected to a living server.
    pub connected: bool,
    /// The server of the session.
    pub holder: crate::ServerId,
    /// When it last connected or disconnected.
    pub changed_at: i64,
    /// As [`AgentRecord::heard_at`].
    pub heard_at: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    pub at: i64,
    /// The administrator's reason.
    pub why: String,
}

/// An agent that shows a join token. The token says which cloud area and business it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoiningAgent {
    pub agent: AgentId,
    pub ip: IpAddr,
    pub certificate: CertificateRecord,
    pub version: String,
    /// Where it called from.
    pub from: IpAddr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedAgent {
    pub host: Host,
    /// The agents that were on this host before; they may not come back.
    pub retired: Vec<AgentId>,
}

/// A target, as seen by a caller with grants for some businesses only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundTarget {
    Agent(AgentId),
    /// There is an agent, and it belongs to another business.
    Outside,
    Nowhere,
}

impl FoundTarget {
    /// For queries, a target outside the businesses is the same as an unknown one.
    pub fn agent(self) -> Option<AgentId> {
        match self {
            FoundTarget::Agent(agent) => Some(agent),
            FoundTarget::Outside | FoundTarget::Nowhere => None,
        }
    }
}
