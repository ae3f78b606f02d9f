//! Agents: which there are, and which are here.

use super::select::candidate;
use super::{AppError, Caller, Services, access, audit};
use crate::clock::WallMs;
use crate::dispatcher::{DispatcherMessage, revoked};
use crate::durably::durably;
use crate::store::{AgentRecord, FORGOTTEN, FoundTarget};
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{AgentId, BusinessId, Host};
use procfleet_core::request::Target;
use procfleet_core::select::{glob, means};
use procfleet_proto::http::agents::AgentView;
use procfleet_proto::http::batch::NamedHost;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::manage::LabelChange;
use procfleet_proto::http::native::AgentRow;
use procfleet_proto::http::query::{AgentStanding, AgentsQuery};
use procfleet_proto::link::HostFacts;
use std::collections::{BTreeSet, HashMap};

/// Those of the caller's businesses that pass all filters, by id.
pub async fn list(
    services: &Services,
    caller: &Caller,
    query: AgentsQuery,
) -> Result<Vec<AgentRow>, AppError> {
    let agents = services.store.agents().await?;
    let names: HashMap<BusinessId, String> =
        services.store.businesses().await?.into_iter().map(|business| (business.id, business.name)).collect();
    let now = services.clock.wall();
    let seen = agents.into_iter().filter(|agent| {
        caller.rights.businesses().allows(&agent.business)
            && passes(&query, agent, services.presences.contains(&agent.agent), now)
    });
    let rows = seen.take(query.limit.unwrap_or(usize::MAX)).map(|agent| AgentRow {
        connected: services.presences.contains(&agent.agent),
        heard_at: last_heard(services, &agent) / 1000,
        bk_agent_id: agent.agent.to_string(),
        bk_cloud_id: agent.host.cloud.0,
        ip: agent.host.ip.to_string(),
        containment: facts(&agent).map(|facts| facts.containment).unwrap_or_default(),
        version: agent.version,
        since: agent.changed_at / 1000,
        enrolled_at: agent.enrolled_at / 1000,
        bk_biz_id: agent.business.0,
        bk_biz_name: names.get(&agent.business).cloned().unwrap_or_default(),
        certificate_expires_at: agent.certificate_expires_at.unwrap_or_default() / 1000,
        revoked_at: agent.revoked.as_ref().map_or(0, |revoked| revoked.at / 1000),
        revoked_why: agent.revoked.map(|revoked| revoked.why).unwrap_or_default(),
        labels: agent.labels,
    });
    Ok(rows.collect())
}

/// While it is connected its session knows, and after that the store.
fn last_heard(services: &Services, agent: &AgentRecord) -> WallMs {
    services.presences.last_heard(&agent.agent).unwrap_or(agent.heard_at)
}

/// `None`: it has never connected.
fn facts(agent: &AgentRecord) -> Option<HostFacts> {
    serde_json::from_str(&agent.facts).unwrap_or_default()
}

fn passes(query: &AgentsQuery, agent: &AgentRecord, connected: bool, now: WallMs) -> bool {
    let AgentsQuery { cloud, business, version, state, offline_secs, select, after, limit: _ } = query;
    let state_now = match (&agent.revoked, connected) {
        (Some(_), _) => AgentStanding::Revoked,
        (None, true) => AgentStanding::Connected,
        (None, false) => AgentStanding::Away,
    };
    let offline =
        |secs: &i64| !connected && now.saturating_sub(agent.changed_at) >= secs.saturating_mul(1000);
    cloud.is_none_or(|cloud| cloud == agent.host.cloud)
        && business.is_none_or(|business| business == agent.business)
        && version.as_ref().is_none_or(|version| glob(version, &agent.version))
        && state.is_none_or(|state| state == state_now)
        && offline_secs.as_ref().is_none_or(offline)
        && means(select, &candidate(agent))
        && after.as_ref().is_none_or(|after| agent.agent > *after)
}

/// Changes what is said of the hosts of these agents. Answers with their rows.
pub async fn label(
    services: &Services,
    caller: &Caller,
    change: LabelChange,
) -> Result<Vec<AgentRow>, AppError> {
    let LabelChange { agents: named, set, remove } = change;
    let agents = all_of(services, &named).await?;
    let listed: Vec<&str> = agents.iter().map(AgentId::as_str).collect();
    let said = set.iter().map(|(key, value)| format!("{key}={value}"));
    let said: Vec<String> = said.chain(remove.iter().map(|key| format!("without {key}"))).collect();
    let detail = format!("{}: {}", said.join(", "), listed.join(", "));
    let record = audit::entry(services, caller, "agents_label", &format!("{} agents", listed.len()), detail);
    services.store.label_agents(agents.iter().cloned().collect(), set, remove, record).await?;
    let rows = list(services, caller, AgentsQuery::default()).await?;
    Ok(rows.into_iter().filter(|row| listed.contains(&row.bk_agent_id.as_str())).collect())
}

/// All of the agents, or none: they are cut off, and only a new token lets their hosts in again. Answers with
/// their rows.
pub async fn revoke(
    services: &Services,
    caller: &Caller,
    named: Vec<AgentId>,
    why: String,
) -> Result<Vec<AgentRow>, AppError> {
    let agents = all_of(services, &named).await?;
    let listed: Vec<&str> = agents.iter().map(AgentId::as_str).collect();
    let subject = match listed.as_slice() {
        [one] => (*one).to_owned(),
        many => format!("{} agents", many.len()),
    };
    let detail = [listed.join(", "), why.clone()].into_iter().filter(|part| !part.is_empty());
    let record =
        audit::entry(services, caller, "agents_revoke", &subject, detail.collect::<Vec<_>>().join(": "));
    let now = services.clock.wall();
    let (store, dispatcher) = (services.store.clone(), services.dispatcher.clone());
    let revoking: Vec<AgentId> = agents.iter().cloned().collect();
    durably(async move {
        store.revoke_agents(revoking.clone(), why.clone(), now, record).await?;
        for agent in revoking {
            dispatcher.send(DispatcherMessage::Dismissed { agent, reason: revoked(&why) }).await;
        }
        Ok::<_, AppError>(())
    })
    .await?;
    let rows = list(services, caller, AgentsQuery::default()).await?;
    Ok(rows.into_iter().filter(|row| listed.contains(&row.bk_agent_id.as_str())).collect())
}

/// All of the agents, or none: those that are away and will not come back. They are listed no more. Answers
/// with their last rows.
pub async fn forget(
    services: &Services,
    caller: &Caller,
    named: Vec<AgentId>,
) -> Result<Vec<AgentRow>, AppError> {
    let agents = all_of(services, &named).await?;
    let mut faults = Faults::default();
    for agent in agents.iter().filter(|agent| services.presences.contains(agent)) {
        faults.add("agents", format!("agent {agent} is connected; only one that is away can be forgotten"));
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let listed: Vec<&str> = agents.iter().map(AgentId::as_str).collect();
    let rows = list(services, caller, AgentsQuery::default()).await?;
    let rows = rows.into_iter().filter(|row| listed.contains(&row.bk_agent_id.as_str())).collect();
    let (subject, detail) = (format!("{} agents", listed.len()), listed.join(", "));
    let record = audit::entry(services, caller, "agents_forget", &subject, detail);
    let (store, dispatcher, now) =
        (services.store.clone(), services.dispatcher.clone(), services.clock.wall());
    let forgetting: Vec<AgentId> = agents.iter().cloned().collect();
    durably(async move {
        store.forget_agents(forgetting.clone(), now, record).await?;
        for agent in forgetting {
            dispatcher.send(DispatcherMessage::Dismissed { agent, reason: revoked(FORGOTTEN) }).await;
        }
        Ok::<_, AppError>(())
    })
    .await?;
    Ok(rows)
}

/// The agents that are named by their ids or hosts; every one that is not known is a fault.
pub(super) async fn all_of(services: &Services, named: &[AgentId]) -> Result<BTreeSet<AgentId>, AppError> {
    let targets: Vec<Target> = named.iter().cloned().map(Target::Agent).collect();
    let found = services.store.resolve(&targets).await?;
    let mut faults = Faults::default();
    for (place, (name, found)) in named.iter().zip(&found).enumerate() {
        if found.is_none() {
            faults.add(format!("agents[{place}]"), format!("there is no agent or host {name}"));
        }
    }
    if faults.is_empty() { Ok(found.into_iter().flatten().collect()) } else { Err(faults.into()) }
}

/// Those of the hosts that have an agent, as far as the caller may see, within the businesses that it asks
/// about.
pub async fn at_hosts(
    services: &Services,
    caller: &Caller,
    hosts: &[NamedHost],
    within: &GrantScope<BusinessId>,
) -> Result<HashMap<Host, AgentView>, AppError> {
    access::permit(caller, &[], within)?;
    let hosts: Vec<Host> = hosts.iter().filter_map(|named| named.host).collect();
    let targets: Vec<Target> = hosts.iter().copied().map(Target::Host).collect();
    let agents = found(services, &caller.rights.businesses_within(within), &targets).await?;
    Ok(hosts.into_iter().zip(agents).filter_map(|(host, agent)| Some((host, agent?))).collect())
}

/// Those of the ids that are known to the caller, in their order, each with the id by which it was asked for.
pub async fn with_ids(
    services: &Services,
    caller: &Caller,
    ids: Vec<AgentId>,
) -> Result<Vec<(AgentId, AgentView)>, AppError> {
    let targets: Vec<Target> = ids.iter().cloned().map(Target::Agent).collect();
    let agents = found(services, caller.rights.businesses(), &targets).await?;
    let known: Vec<_> = ids.into_iter().zip(agents).filter_map(|(id, agent)| Some((id, agent?))).collect();
    if known.is_empty() { Err(AppError::NoSuchAgents) } else { Ok(known) }
}

async fn found(
    services: &Services,
    within: &GrantScope<BusinessId>,
    targets: &[Target],
) -> Result<Vec<Option<AgentView>>, AppError> {
    let resolved = services.store.resolve_within(targets, within).await?;
    let records: HashMap<AgentId, AgentRecord> =
        services.store.agents().await?.into_iter().map(|agent| (agent.agent.clone(), agent)).collect();
    let view = |found: FoundTarget| {
        let record = records.get(&found.agent()?)?;
        Some(AgentView {
            agent: record.agent.clone(),
            host: record.host,
            version: record.version.clone(),
            connected: services.presences.contains(&record.agent),
            heard_at: last_heard(services, record) / 1000,
            facts: facts(record),
        })
    };
    Ok(resolved.into_iter().map(view).collect())
}
