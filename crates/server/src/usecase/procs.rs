//! Procs, as their agents last described them.

use super::status::{Heard, read};
use super::{AppError, Caller, Services};
use crate::store::{FoundTarget, ProcFilter};
use procfleet_core::id::{AgentId, Host};
use procfleet_core::request::Target;
use procfleet_proto::http::native::ProcRow;
use std::collections::HashMap;

/// Those that the caller may see: of its businesses and its namespaces.
pub async fn list(
    services: &Services,
    caller: &Caller,
    namespace: Option<String>,
    name: Option<String>,
    host: Option<Host>,
) -> Result<Vec<ProcRow>, AppError> {
    let agent = match host {
        None => None,
        Some(host) => {
            let found =
                services.store.resolve_within(&[Target::Host(host)], caller.rights.businesses()).await?;
            match found.into_iter().next().and_then(FoundTarget::agent) {
                Some(agent) => Some(agent),
                None => return Ok(Vec::new()),
            }
        }
    };
    let agents = services.store.agents().await?.into_iter();
    let seen = agents.filter(|agent| caller.rights.businesses().allows(&agent.business));
    let hosts: HashMap<AgentId, Host> = seen.map(|agent| (agent.agent, agent.host)).collect();
    let mut rows = Vec::new();
    let procs = services.store.procs(ProcFilter { namespace, name, agent }).await?;
    let heard =
        Heard::of(services, procs.iter().map(|(agent, _)| agent).filter(|agent| hosts.contains_key(agent)))
            .await?;
    for (agent, record) in procs {
        let Some(host) = hosts.get(&agent) else { continue };
        if !caller.rights.allows_namespace(&record.proc.namespace) {
            continue;
        }
        let Some(report) = read(services, caller, &agent, &record) else { continue };
        let report = heard.confirmed(&agent, report);
        rows.push(ProcRow {
            bk_cloud_id: host.cloud.0,
            ip: host.ip.to_string(),
            fresh: services.presences.contains(&agent),
            state: report.state_now(),
            bk_agent_id: agent.to_string(),
            namespace: record.proc.namespace,
            name: record.proc.name,
            labels: report.labels,
            hosted: report.hosted,
            pid: report.pid,
            note: report.note,
            version: report.version,
            health: report.health,
            started_at: report.started_at,
            reported_at: report.reported_at,
        });
    }
    Ok(rows)
}
