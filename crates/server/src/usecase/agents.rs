//! Agents: lists them, and labels, revokes and forgets them.

use super::{AppError, Caller, Page, Services, access, audit};
use crate::dispatcher::{DispatcherMessage, revoked};
use crate::durably::durably;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{AgentId, BusinessId, CloudId, Host};
use procfleet_core::request::Target;
use procfleet_proto::http::agents::AgentView;
use procfleet_proto::http::batch::NamedHost;
use procfleet_proto::http::cursor::{AgentCursor, AgentKey, AgentOrder};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::manage::LabelChange;
use procfleet_proto::http::native::AgentRow;
use procfleet_proto::http::query::{AgentStateFilter, AgentsQuery};
use procfleet_proto::link::HostFacts;
use procfleet_store::clock::WallMs;
use procfleet_store::{AgentFilter, AgentPage, AgentRecord, ConnectedAgents, FORGOTTEN, FoundTarget};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One page of the agents of the caller's businesses that pass all filters.
pub async fn list(
    services: &Services,
    caller: &Caller,
    query: AgentsQuery,
) -> Result<Page<Vec<AgentRow>>, AppError> {
    let AgentsQuery { cloud, business, version, state, offline_secs, select, order, after, limit } = query;
    let now = services.clock.wall();
    let filter = AgentFilter {
        cloud,
        business,
        version,
        state: state.map(AgentStateFilter::word),
        away_since: offline_secs.map(|secs| now.saturating_sub(secs.saturating_mul(1000))),
        select,
        ..AgentFilter::of(caller.rights.businesses())
    };
    let total = services.store.count_agents(filter.clone()).await?;
    let page = match order {
        AgentOrder::Heard => heard_last(services, filter, after, limit).await?,
        AgentOrder::Id | AgentOrder::Host | AgentOrder::Version | AgentOrder::State => {
            services.store.list_agents(filter, order, after, limit).await?
        }
    };
    // The store learns of a session slightly before or after the dispatcher does. A list that is filtered by
    // state must not show an agent in another state.
    let as_asked = |agent: &AgentRecord| {
        let connected = services.presence(agent).connected;
        (offline_secs.is_none() || !connected)
            && state.is_none_or(|state| match state {
                AgentStateFilter::Connected => connected,
                AgentStateFilter::Away => !connected,
                AgentStateFilter::Revoked => true,
            })
    };
    let agents = page.agents.into_iter().filter(as_asked).collect();
    let next = page.next.map(|key| AgentCursor::of(key).text());
    Ok(Page { data: rows(services, agents).await?, next, total: Some(total) })
}

/// Minimum number of agents in one lookup.
const CHUNK: usize = 1_000;

/// A page in the order of the last message. For connected agents the sessions know the time, for the others
/// the store does, so a page is merged from both.
async fn heard_last(
    services: &Services,
    filter: AgentFilter,
    after: Option<AgentCursor>,
    limit: u32,
) -> Result<AgentPage, AppError> {
    let most = limit as usize + 1;
    let beyond = match &after {
        Some(AgentCursor::Key(key)) => Some((Reverse(key.heard_at), key.agent.clone())),
        Some(AgentCursor::Id(_)) | None => None,
    };
    let heard = services.presences.all_heard().into_iter();
    let mut connected: Vec<(Reverse<WallMs>, AgentId)> = heard
        .map(|(heard, agent)| (Reverse(heard), agent))
        .filter(|key| beyond.as_ref().is_none_or(|beyond| key > beyond))
        .collect();
    connected.sort_unstable();
    let mut found: Vec<(WallMs, AgentRecord)> = Vec::new();
    if filter.state.is_some_and(|state| state != AgentStateFilter::Connected.word()) {
        connected.clear();
    }
    for some in connected.chunks(most.max(CHUNK)) {
        let among = Some(some.iter().map(|(_, agent)| agent.clone()).collect());
        let here = AgentFilter { among, ..filter.clone() };
        let page = services.store.list_agents(here, AgentOrder::Id, None, u32::MAX - 1).await?;
        let mut records: HashMap<AgentId, AgentRecord> =
            page.agents.into_iter().map(|agent| (agent.agent.clone(), agent)).collect();
        found.extend(
            some.iter().filter_map(|(heard, agent)| records.remove(agent).map(|record| (heard.0, record))),
        );
        if found.len() >= most {
            break;
        }
    }
    // Agents of other servers stand where the store has them: their last messages are known there only.
    let away = match services.store.membership().is_shared() {
        true => filter,
        false => AgentFilter { connected: ConnectedAgents::LeftOut, ..filter },
    };
    let away = services.store.list_agents(away, AgentOrder::Heard, after, limit).await?;
    let is_away = |agent: &AgentRecord| !services.presences.contains(&agent.agent);
    found.extend(away.agents.into_iter().filter(is_away).map(|agent| (agent.heard_at, agent)));
    found.sort_by(|(heard, agent), (other, another)| {
        other.cmp(heard).then_with(|| agent.agent.cmp(&another.agent))
    });
    let more = found.len() >= most || away.next.is_some();
    found.truncate(limit as usize);
    let next = found.last().filter(|_| more).map(|(heard_at, agent)| AgentKey {
        order: AgentOrder::Heard,
        agent: agent.agent.clone(),
        host: agent.host,
        version: agent.version.clone(),
        state: String::new(),
        heard_at: *heard_at,
    });
    Ok(AgentPage { agents: found.into_iter().map(|(_, agent)| agent).collect(), next })
}

async fn rows(services: &Services, agents: Vec<AgentRecord>) -> Result<Vec<AgentRow>, AppError> {
    let names: HashMap<BusinessId, String> =
        services.store.businesses().await?.into_iter().map(|business| (business.id, business.name)).collect();
    let rows = agents.into_iter().map(|agent| (services.presence(&agent), agent)).map(|(presence, agent)| {
        AgentRow {
            connected: presence.connected,
            heard_at: presence.heard_at / 1000,
            bk_agent_id: agent.agent.to_string(),
            bk_cloud_id: agent.host.cloud.0,
            ip: agent.host.ip.to_string(),
            containment: facts(&agent).map(|facts| facts.containment).unwrap_or_default(),
            version: agent.version,
            since: presence.since / 1000,
            enrolled_at: agent.enrolled_at / 1000,
            bk_biz_id: agent.business.0,
            bk_biz_name: names.get(&agent.business).cloned().unwrap_or_default(),
            certificate_expires_at: agent.certificate_expires_at.unwrap_or_default() / 1000,
            revoked_at: agent.revoked.as_ref().map_or(0, |revoked| revoked.at / 1000),
            revoked_why: agent.revoked.map(|revoked| revoked.why).unwrap_or_default(),
            labels: agent.labels,
        }
    });
    Ok(rows.collect())
}

/// The rows of these agents, by id.
pub(super) async fn rows_of(
    services: &Services,
    agents: &BTreeSet<AgentId>,
) -> Result<Vec<AgentRow>, AppError> {
    let found = services.store.agents_with(agents.iter().cloned().collect()).await?;
    let found: BTreeMap<AgentId, AgentRecord> = found.into_iter().collect();
    rows(services, found.into_values().collect()).await
}

/// `None`: the agent has never connected.
fn facts(agent: &AgentRecord) -> Option<HostFacts> {
    serde_json::from_str(&agent.facts).unwrap_or_default()
}

/// Changes the labels of these agents. Returns their rows.
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
    rows_of(services, &agents).await
}

/// Revokes all of the agents, or none: their sessions end, and only a new token admits their hosts again.
/// Returns their rows.
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
    rows_of(services, &agents).await
}

/// Removes agents that are away and will not come back from all lists: all of the named agents, or none.
/// Returns their last rows.
pub async fn forget(
    services: &Services,
    caller: &Caller,
    named: Vec<AgentId>,
) -> Result<Vec<AgentRow>, AppError> {
    let agents = all_of(services, &named).await?;
    let mut faults = Faults::default();
    let records = services.store.agents_with(agents.iter().cloned().collect()).await?;
    let is_connected =
        |agent: &&AgentId| records.get(*agent).is_some_and(|agent| services.presence(agent).connected);
    for agent in agents.iter().filter(is_connected) {
        faults.add("agents", format!("agent {agent} is connected; only one that is away can be forgotten"));
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let listed: Vec<&str> = agents.iter().map(AgentId::as_str).collect();
    let rows = rows_of(services, &agents).await?;
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

/// The agents with these ids or hosts; each unknown one is a fault.
pub(super) async fn all_of(services: &Services, named: &[AgentId]) -> Result<BTreeSet<AgentId>, AppError> {
    let targets: Vec<Target> = named.iter().cloned().map(target).collect();
    let found = services.store.resolve(&targets).await?;
    let mut faults = Faults::default();
    for (index, (name, found)) in named.iter().zip(&found).enumerate() {
        if found.is_none() {
            faults.add(format!("agents[{index}]"), format!("there is no agent or host {name}"));
        }
    }
    if faults.is_empty() { Ok(found.into_iter().flatten().collect()) } else { Err(faults.into()) }
}

/// An address alone is a host of cloud area 0. The store knows ids and `CLOUD:IP`.
fn target(name: AgentId) -> Target {
    match name.as_str().parse() {
        Ok(ip) => Target::Host(Host { cloud: CloudId(0), ip }),
        Err(_) => Target::Agent(name),
    }
}

/// The agents of these hosts that the caller may see, within the businesses of the request.
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

/// The agents with these ids that the caller may see, in order, each with the requested id.
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
    let resolved: Vec<Option<AgentId>> = resolved.into_iter().map(FoundTarget::agent).collect();
    let records = services.store.agents_with(resolved.iter().flatten().cloned().collect()).await?;
    let view = |found: Option<AgentId>| {
        let record = records.get(&found?)?;
        Some(AgentView {
            agent: record.agent.clone(),
            host: record.host,
            version: record.version.clone(),
            connected: services.presence(record).connected,
            heard_at: services.presence(record).heard_at / 1000,
            facts: facts(record),
        })
    };
    Ok(resolved.into_iter().map(view).collect())
}
