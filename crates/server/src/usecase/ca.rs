//! The CA and its successor: show, rotate, retire, and seal their keys again.

use super::{AppError, Caller, Services, audit};
use crate::ca_change;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::native::{CaSeal, CaView};
use procfleet_proto::link::token::hex;
use procfleet_store::{CaPins, NewAudit, OldCa};
use tracing::info;

pub async fn show(services: &Services) -> Result<CaView, AppError> {
    ca_change::catch_up(&services.store, &services.ca).await?;
    let CaPins { current, next } = services.ca.pins();
    Ok(CaView {
        sha256: hex(&current),
        next_sha256: next.map(|pin| hex(&pin)),
        agents: services.store.agents_of_ca(current).await?,
        tokens: services.store.usable_tokens(services.clock.wall()).await?,
        agent_certificate_secs: services.ca.life().as_secs(),
        seal: seal(services).await?,
    })
}

/// `None`: the keys are files.
async fn seal(services: &Services) -> Result<Option<CaSeal>, AppError> {
    let (Some(sealer), Some(stored)) = (services.ca.sealer(), services.store.stored_cas().await?) else {
        return Ok(None);
    };
    let key = sealer.keys().first().to_string();
    let others = ca_change::under_other_keys(&stored, &key);
    let under_other_keys = others.len() as u64;
    let mut other_keys: Vec<String> = others.into_iter().map(|(_, id)| id).collect();
    other_keys.sort();
    other_keys.dedup();
    let servers = services.store.seal_keys_of_servers().await?.into_iter();
    let without = servers.filter(|(_, keys)| !keys.contains(&key)).map(|(server, _)| server);
    Ok(Some(CaSeal { under_other_keys, other_keys, servers_without_key: without.collect(), key }))
}

/// Adds a successor, which signs all certificates from now on. Idempotent: there is at most one successor.
pub async fn rotate(services: &Services, caller: &Caller) -> Result<CaView, AppError> {
    let before = show(services).await?;
    let detail = format!("instead of {}, which {} agents use", before.sha256, before.agents);
    let record = audit::entry(services, caller, "ca_rotate", "", detail);
    let of = services.ca.pin();
    let rotating = ca_change::rotate(services.store.clone(), services.ca.clone(), of, move |pins| NewAudit {
        subject: hex(&pins.next.unwrap_or_default()),
        ..record.clone()
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
    let of = services.ca.pin();
    let mut faults = Faults::default();
    if before.next_sha256.is_none() {
        faults.add(
            "",
            "the CA has no successor that could take its place; make one first (procfleet ca rotate)",
        );
    } else if force == Force::No && before.agents + before.tokens > 0 {
        faults.add("force", needed(before.agents, before.tokens));
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let detail = format!("{} agents and {} tokens were left", before.agents, before.tokens);
    let record = audit::entry(services, caller, "ca_retire", &before.sha256, detail);
    let at = services.clock.wall();
    let old = match force {
        Force::No => OldCa::RetireIfUnneeded { at },
        Force::Yes => OldCa::Retire { at },
    };
    let (store, ca) = (services.store.clone(), services.ca.clone());
    if ca_change::retire(store, ca, of, old, move |_| record.clone()).await?.is_some() {
        info!(retired = before.sha256, "the CA was retired");
    }
    show(services).await
}

/// Seals the keys of the CAs in the store again, under the first seal key of this server. Idempotent.
pub async fn reseal(services: &Services, caller: &Caller) -> Result<CaView, AppError> {
    let Some(sealer) = services.ca.sealer() else {
        return Err(
            Faults::one("", "the CA's keys are files in the data folder, which are not sealed").into()
        );
    };
    let key = sealer.keys().first().to_string();
    let record = audit::entry(services, caller, "ca_reseal", &key, String::new());
    let resealing = ca_change::reseal(services.store.clone(), services.ca.clone(), move |count| NewAudit {
        detail: format!("{count} keys were sealed under other keys"),
        ..record.clone()
    });
    if let Some(sealed @ 1..) = resealing.await? {
        info!(sealed, key, "the keys of the CAs were sealed again");
    }
    show(services).await
}

/// Why the CA is not retired without force.
pub(super) fn needed(agents: u64, tokens: u64) -> String {
    format!(
        "{agents} agents have not renewed their certificates yet, and {tokens} join tokens name the old CA; all of \
         them would be refused. Wait until they have renewed, or use force"
    )
}
