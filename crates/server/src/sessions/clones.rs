//! Agents whose certificate is used in two places at once: they are put aside, both of them, as if they had
//! been revoked.
//!
//! Which of the two is the right one, nobody here can know: a new token lets the right host in again.
//! `core::clones` decides; here the lives of agents are remembered, in memory only, for two that are there
//! come back again and again.

use super::listener::Link;
use crate::dispatcher::{DispatcherMessage, revoked};
use crate::secret;
use crate::store::{NewAudit, StoreError};
use procfleet_core::boot_time::BootTime;
use procfleet_core::clones::{CloneVerdict, LifeId, Lives};
use procfleet_core::id::AgentId;
use procfleet_proto::link::Hello;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::warn;

/// Whom the audit names where no app asked.
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

/// Looks whether the agent that says this hello is there twice. `Some`: it is, it was put aside, and this is
/// what is said of it.
pub(super) async fn put_aside(
    link: &Link,
    agent: &AgentId,
    hello: &Hello,
    from: IpAddr,
) -> Result<Option<String>, StoreError> {
    let CloneVerdict::Two(places) = link.clones.connected(agent, life(hello), from, link.clock.now()) else {
        return Ok(None);
    };
    let places = match places {
        [one, other] if one == other => format!("both from {one}"),
        [one, other] => format!("from {one} and {other}"),
    };
    let why = format!("its certificate is used in two places at once, {places}");
    warn!(%agent, %places, "an agent's certificate is used in two places at once; both are put aside");
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
    let (store, dispatcher, agent, said) =
        (link.store.clone(), link.dispatcher.clone(), agent.clone(), revoked(&why));
    let reason = said.clone();
    // In a task of its own: a peer that hangs up must not keep the dispatcher from hearing of it.
    let done = tokio::spawn(async move {
        store.revoke_agents(vec![agent.clone()], why, now, audit).await?;
        dispatcher.send(DispatcherMessage::Dismissed { agent, reason }).await;
        Ok::<_, StoreError>(())
    });
    done.await.map_err(|_| StoreError::Closed)??;
    link.metrics.cut("clone");
    Ok(Some(said))
}

/// The boot tells hosts apart, and the time the runs on one host. What an agent says is of any length, and is
/// kept in sixteen bytes.
fn life(hello: &Hello) -> LifeId {
    let started_at = hello.host.as_ref().map_or(0, |facts| facts.started_at);
    let hash = secret::hash(format!("{started_at} {}", hello.boot_id).as_bytes());
    let (half, _) = hash.split_at(16);
    LifeId(u128::from_le_bytes(half.try_into().expect("half of 32 bytes are 16")))
}
