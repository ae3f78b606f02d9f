//! Businesses, sets of them, and their agents. Only administrators manage them.

use super::support::store_fault::as_fault;
use super::{AppError, Caller, Services, agents, audit};
use procfleet_core::id::{AgentId, BusinessId};
use procfleet_core::request::Target;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::native::{AgentRow, BusinessRow, BusinessSetRow};
use procfleet_store::{Business, BusinessSet};
use std::collections::BTreeSet;

pub async fn create(
    services: &Services,
    caller: &Caller,
    wanted: BusinessRow,
) -> Result<BusinessRow, AppError> {
    let new = Business { id: BusinessId(wanted.bk_biz_id), name: wanted.bk_biz_name.clone() };
    let detail = wanted.bk_biz_name.clone();
    let record = audit::entry(services, caller, "business_create", &new.id.to_string(), detail);
    services.store.create_business(new, record).await.map_err(as_fault)?;
    Ok(wanted)
}

pub async fn list(services: &Services) -> Result<Vec<BusinessRow>, AppError> {
    let row = |business: Business| BusinessRow { bk_biz_id: business.id.0, bk_biz_name: business.name };
    Ok(services.store.businesses().await?.into_iter().map(row).collect())
}

pub async fn create_set(
    services: &Services,
    caller: &Caller,
    wanted: BusinessSetRow,
) -> Result<BusinessSetRow, AppError> {
    let businesses: Vec<BusinessId> = wanted.bk_biz_ids.iter().copied().map(BusinessId).collect();
    let with_paths = businesses.iter().enumerate().map(|(index, id)| (format!("bk_biz_ids[{index}]"), *id));
    require(services, with_paths).await?;
    let listed: Vec<String> = businesses.iter().map(BusinessId::to_string).collect();
    let detail = format!("{}: {}", wanted.bk_biz_set_name, listed.join(", "));
    let subject = wanted.bk_biz_set_id.to_string();
    let record = audit::entry(services, caller, "business_set_create", &subject, detail);
    let new = BusinessSet { id: wanted.bk_biz_set_id, name: wanted.bk_biz_set_name.clone(), businesses };
    services.store.create_business_set(new, record).await.map_err(as_fault)?;
    Ok(wanted)
}

pub async fn list_sets(services: &Services) -> Result<Vec<BusinessSetRow>, AppError> {
    let row = |set: BusinessSet| BusinessSetRow {
        bk_biz_set_id: set.id,
        bk_biz_set_name: set.name,
        bk_biz_ids: set.businesses.into_iter().map(|id| id.0).collect(),
    };
    Ok(services.store.business_sets().await?.into_iter().map(row).collect())
}

/// Assigns all of the agents, or none. Returns their rows.
pub async fn assign(
    services: &Services,
    caller: &Caller,
    named: Vec<AgentId>,
    to: BusinessId,
) -> Result<Vec<AgentRow>, AppError> {
    let targets: Vec<Target> = named.iter().cloned().map(Target::Agent).collect();
    let found = services.store.resolve(&targets).await?;
    let known: BTreeSet<BusinessId> = services.store.businesses().await?.into_iter().map(|b| b.id).collect();
    let mut faults = Faults::default();
    if !known.contains(&to) {
        faults.add("bk_biz_id", format!("there is no business {to}"));
    }
    for (index, (name, found)) in named.iter().zip(&found).enumerate() {
        if found.is_none() {
            faults.add(format!("agents[{index}]"), format!("there is no agent or host {name}"));
        }
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let agents: BTreeSet<AgentId> = found.into_iter().flatten().collect();
    let listed: Vec<&str> = agents.iter().map(AgentId::as_str).collect();
    let record =
        audit::entry(services, caller, "agents_assign", &format!("business {to}"), listed.join(", "));
    services.store.assign(agents.iter().cloned().collect(), to, record).await.map_err(as_fault)?;
    agents::rows_of(services, &agents).await
}

/// Checks that all businesses exist; each is given with its path in the request.
pub(super) async fn require(
    services: &Services,
    named: impl Iterator<Item = (String, BusinessId)>,
) -> Result<(), AppError> {
    let known: BTreeSet<BusinessId> = services.store.businesses().await?.into_iter().map(|b| b.id).collect();
    let mut faults = Faults::default();
    for (path, id) in named {
        if !known.contains(&id) {
            faults.add(path, format!("there is no business {id}"));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.into()) }
}
