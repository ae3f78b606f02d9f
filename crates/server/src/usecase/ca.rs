//! The CA and its successor: show, rotate, retire.

use super::{AppError, Caller, Services, audit};
use crate::ca_change;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::native::CaView;
use procfleet_proto::link::token::hex;
use tracing::info;

pub async fn show(services: &Services) -> Result<CaView, AppError> {
    Ok(CaView {
        sha256: hex(&services.ca.pin()),
        next_sha256: services.ca.next_pin().map(|pin| hex(&pin)),
        agents: services.store.agents_of_ca(services.ca.pin()).await?,
        tokens: services.store.usable_tokens(services.clock.wall()).await?,
        agent_certificate_secs: services.ca.life().as_secs(),
    })
}

/// Adds a successor, which signs all certificates from now on. Idempotent: there is at most one successor.
pub async fn rotate(services: &Services, caller: &Caller) -> Result<CaView, AppError> {
    let before = show(services).await?;
    let detail = format!("instead of {}, which {} agents use", before.sha256, before.agents);
    let mut record = audit::entry(services, caller, "ca_rotate", "", detail);
    let rotating = ca_change::rotate(services.store.clone(), services.ca.clone(), |pins| {
        record.subject = hex(&pins.next.unwrap_or_default());
        record
    });
    if let Some(pins) = rotating.await? {
        info!(next = hex(&pins.next.unwrap_or_default()), "the CA has a successor");
    }
    show(services).await
}

/// Whether to retire a CA that agents or join tokens still use; they are refused from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    No,
    Yes,
}

/// The successor replaces the CA. Without force only if no agent and no join token needs the old CA.
pub async fn retire(services: &Services, caller: &Caller, force: Force) -> Result<CaView, AppError> {
    let before = show(services).await?;
    let mut faults = Faults::default();
    if before.next_sha256.is_none() {
        faults.add(
            "",
            "the CA has no successor that could take its place; make one first (procfleet ca rotate)",
        );
    } else if force == Force::No && before.agents + before.tokens > 0 {
        let reason = format!(
            "{} agents have not renewed their certificates yet, and {} join tokens name the old CA; they would be let \
             in no more. Wait, or force it",
            before.agents, before.tokens
        );
        faults.add("force", reason);
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let detail = format!("{} agents and {} tokens were left", before.agents, before.tokens);
    let record = audit::entry(services, caller, "ca_retire", &before.sha256, detail);
    let until = services.clock.wall();
    let retiring = ca_change::retire(services.store.clone(), services.ca.clone(), until, |_| record);
    if retiring.await?.is_some() {
        info!(retired = before.sha256, "the CA was retired");
    }
    show(services).await
}
