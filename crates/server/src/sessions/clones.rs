//! Detects that two hosts use the certificate of one agent, and revokes the agent.
//!
//! The server cannot know which host is the right one: a new join token admits the right host again.
//! `core::clones` decides. The lives of agents are kept in memory only, because clones reconnect again and
//! again.

use super::Link;
use crate::dispatcher::{DispatcherMessage, revoked};
use crate::durably::durably;
use crate::secret;
use procfleet_core::boot_time::BootTime;
use procfleet_core::clones::{CloneVerdict, LifeId, Lives};
use procfleet_core::id::AgentId;
use procfleet_proto::link::Hello;
use procfleet_store::{NewAudit, StoreError};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::warn;

/// The actor in the audit log.
const LINK: &str = "procfleet-link";

#[derive(Clone, Debug, Default)]
pub struct Clones {
    lives: Arc<Mutex<HashMap<AgentId, Lives>>>,
}

impl Clones {
    fn connected(&self, agent: &AgentId, life: LifeId, from: IpAddr, now: BootTime) -> CloneVerdict {
        let mut all = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(agent.clone()).or_default().connected(life, from, now)
    }
}

/// Checks the hello of an agent for a clone. `Some(reason)`: there is a clone, and the agent was revoked.
pub(super) async fn revoke_if_cloned(
    link: &Link,
    agent: &AgentId,
    hello: &Hello,
    from: IpAddr,
) -> Result<Option<String>, StoreError> {
    let CloneVerdict::Two(addresses) = link.clones.connected(agent, life(hello), from, link.clock.now())
    else {
        return Ok(None);
    };
    let addresses = match addresses {
        [one, other] if one == other => format!("both from {one}"),
        [one, other] => format!("from {one} and {other}"),
    };
    let why = format!("its certificate is used in two places at once, {addresses}");
    warn!(%agent, %addresses, "two hosts use the certificate of one agent; the agent is revoked, enrol the right host again with a new token");
    let now = link.clock.wall();
    let audit = NewAudit {
        at: now,
        app: LINK.to_owned(),
        origin: from.to_string(),
        action: "agent_clone".to_owned(),
        subject: agent.to_string(),
        detail: why.clone(),
        ..NewAudit::default()
    };
    let (store, dispatcher, agent, refusal) =
        (link.store.clone(), link.dispatcher.clone(), agent.clone(), revoked(&why));
    let reason = refusal.clone();
    durably(async move {
        store.revoke_agents(vec![agent.clone()], why, now, audit).await?;
        dispatcher.send(DispatcherMessage::Dismissed { agent, reason }).await;
        Ok::<_, StoreError>(())
    })
    .await?;
    link.metrics.cut("clone");
    Ok(Some(refusal))
}

/// The boot id distinguishes hosts, the start time distinguishes the runs on one host. Hashed, because agents
/// may send texts of any length.
fn life(hello: &Hello) -> LifeId {
    let started_at = hello.host.as_ref().map_or(0, |facts| facts.started_at);
    let hash = secret::hash(format!("{started_at} {}", hello.boot_id).as_bytes());
    let (half, _) = hash.split_at(16);
    LifeId(u128::from_le_bytes(half.try_into().expect("half of 32 bytes are 16")))
}
