//! The CA and its successor: what stands, and the two steps from one to the other.

use super::{AppError, Caller, Services, audit};
use crate::pki::PkiError;
use procfleet_program::panics;
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

/// Gives the CA a successor, which signs all certificates from now on. There is one at most: asking again
/// changes nothing.
pub async fn rotate(services: &Services, caller: &Caller) -> Result<CaView, AppError> {
    let ca = services.ca.clone();
    let made = blocking(move || ca.rotate()).await?;
    let view = show(services).await?;
    if made {
        let subject = view.next_sha256.clone().unwrap_or_default();
        info!(next = subject, "the CA has a successor");
        let detail = format!("instead of {}, which {} agents use", view.sha256, view.agents);
        services.store.audit(audit::entry(services, caller, "ca_rotate", &subject, detail)).await?;
    }
    Ok(view)
}

/// What still uses the CA is let in no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    No,
    Yes,
}

/// The successor takes the CA's place. Without force only if nobody needs the old one any more.
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
    let (ca, began) = (services.ca.clone(), services.clock.wall());
    if blocking(move || ca.retire()).await? {
        info!(retired = before.sha256, "the CA was retired");
        let detail = format!("{} agents and {} tokens were left", before.agents, before.tokens);
        let record = audit::entry(services, caller, "ca_retire", &before.sha256, detail);
        // A token names the CA by which its agent knows the server, and until now that was the retired one.
        services.store.revoke_tokens_until(began, record).await?;
    }
    show(services).await
}

async fn blocking<T: Send + 'static>(
    change: impl FnOnce() -> Result<T, PkiError> + Send + 'static,
) -> Result<T, AppError> {
    Ok(panics::block_for_request(change).await??)
}
