//! Agents: which there are, and which are here.

use super::{App, AppError};
use crate::store::AgentRecord;
use procfleet_core::id::{AgentId, Host};
use procfleet_core::task::Target;
use procfleet_proto::http::agents::AgentView;
use procfleet_proto::http::native::AgentRow;
use std::collections::HashMap;

pub async fn list(app: &App) -> Result<Vec<AgentRow>, AppError> {
    let agents = app.store.agents().await?;
    let rows = agents.into_iter().map(|agent| AgentRow {
        connected: app.presences.contains(&agent.agent),
        bk_agent_id: agent.agent.to_string(),
        bk_cloud_id: agent.host.cloud.0,
        ip: agent.host.ip.to_string(),
        version: agent.version,
        since: agent.changed_at / 1000,
        enrolled_at: agent.enrolled_at / 1000,
    });
    Ok(rows.collect())
}

/// Those of the hosts that have an agent.
pub async fn at_hosts(app: &App, hosts: &[Host]) -> Result<HashMap<Host, AgentView>, AppError> {
    let targets: Vec<Target> = hosts.iter().copied().map(Target::Host).collect();
    let agents = found(app, &targets).await?;
    Ok(hosts.iter().zip(agents).filter_map(|(host, agent)| Some((*host, agent?))).collect())
}

/// Those of the ids that are known, in their order.
pub async fn with_ids(app: &App, ids: Vec<AgentId>) -> Result<Vec<AgentView>, AppError> {
    let targets: Vec<Target> = ids.into_iter().map(Target::Agent).collect();
    let known: Vec<AgentView> = found(app, &targets).await?.into_iter().flatten().collect();
    if known.is_empty() { Err(AppError::NoSuchAgents) } else { Ok(known) }
}

async fn found(app: &App, targets: &[Target]) -> Result<Vec<Option<AgentView>>, AppError> {
    let resolved = app.store.resolve(targets).await?;
    let records: HashMap<AgentId, AgentRecord> =
        app.store.agents().await?.into_iter().map(|agent| (agent.agent.clone(), agent)).collect();
    let view = |agent: Option<AgentId>| {
        let record = records.get(&agent?)?;
        Some(AgentView {
            agent: record.agent.clone(),
            host: record.host,
            version: record.version.clone(),
            connected: app.presences.contains(&record.agent),
            changed_at: record.changed_at / 1000,
            facts: serde_json::from_str(&record.facts).unwrap_or_default(),
        })
    };
    Ok(resolved.into_iter().map(view).collect())
}
