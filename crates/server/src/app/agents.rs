//! Agents: which there are, and which are here.

use super::{App, AppError};
use procfleet_core::id::Host;
use procfleet_core::task::Target;
use procfleet_proto::http::native::AgentRow;
use std::collections::HashSet;

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

/// The hosts whose agent is connected now.
pub async fn alive(app: &App, hosts: &[Host]) -> Result<HashSet<Host>, AppError> {
    let targets: Vec<Target> = hosts.iter().copied().map(Target::Host).collect();
    let agents = app.store.resolve(&targets).await?;
    let alive = hosts
        .iter()
        .zip(agents)
        .filter(|(_, agent)| agent.as_ref().is_some_and(|agent| app.presences.contains(agent)));
    Ok(alive.map(|(host, _)| *host).collect())
}
