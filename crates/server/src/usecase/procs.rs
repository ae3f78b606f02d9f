//! Procs, as their agents last described them.

use super::status::{LastHeardTimes, read};
use super::{AppError, Caller, Page, Services};
use procfleet_core::grants::{GrantScope, Rights};
use procfleet_proto::http::native::{ProcRow, ProcState};
use procfleet_proto::http::query::ProcsQuery;
use procfleet_store::{AgentFilter, FailedProcs, ProcFilter, RevokedAgents};

/// One page of the procs that the caller may see: of its businesses and its namespaces.
pub async fn list(
    services: &Services,
    caller: &Caller,
    query: ProcsQuery,
) -> Result<Page<Vec<ProcRow>>, AppError> {
    let ProcsQuery { namespace, name, host, select, state, failed, usable, order, after, limit } = query;
    let revoked = if usable { RevokedAgents::LeftOut } else { RevokedAgents::Included };
    let filter = ProcFilter {
        agents: AgentFilter { select, revoked, ..AgentFilter::of(caller.rights.businesses()) },
        within: match &*caller.rights {
            Rights::Administrator => GrantScope::All,
            Rights::Granted(grants) => grants.namespaces.clone(),
        },
        namespace,
        name,
        host,
        state: state.map(ProcState::word),
        failed: failed.then(|| FailedProcs { accounts: caller.rights.accounts().clone() }),
    };
    let page = services.store.list_procs(filter, order, after, limit).await?;
    let heard = LastHeardTimes::of(services, page.procs.iter().map(|(agent, _, _)| agent)).await?;
    let mut rows = Vec::with_capacity(page.procs.len());
    for (agent, host, record) in page.procs {
        let Some(report) = read(caller, &heard, &agent, &record) else { continue };
        let report = heard.confirmed(&agent, report);
        rows.push(ProcRow {
            bk_cloud_id: host.cloud.0,
            ip: host.ip.to_string(),
            fresh: heard.is_connected(&agent),
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
    Ok(Page { data: rows, next: page.next.map(|cursor| cursor.text()), total: Some(page.total) })
}
