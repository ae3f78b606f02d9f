//! Status queries: answered from the states that the agents have pushed. A query causes no work on the
//! agents.

use super::{AppError, Caller, Services, access};
use procfleet_core::id::{AgentId, Host};
use procfleet_core::request::Target;
use procfleet_proto::http::status::{ProcInfoPage, ProcInfos, ProcTarget, StatusQuery, SyncQuery, proc_info};
use procfleet_proto::state::ProcReport;
use procfleet_store::{FoundTarget, ProcRecord};
use std::collections::{HashMap, HashSet};
use tracing::warn;

/// `get_proc_status` and `get_proc_status_v2`: the known procs, in the order of the targets. A host of
/// another business counts as one without procs. A host is answered once, under the first of
/// its suppliers in the query, or once by its agent's id and once by `cloud:ip`: these have many spellings,
/// and each answer may have 48 KiB.
pub async fn of_targets(
    services: &Services,
    caller: &Caller,
    query: StatusQuery,
) -> Result<ProcInfos, AppError> {
    access::permit_namespace(caller, &query.proc.namespace)?;
    let agents = services.store.resolve_within(&query.targets, caller.rights.businesses()).await?;
    let agents: Vec<Option<AgentId>> = agents.into_iter().map(FoundTarget::agent).collect();
    let there = services.store.proc_on(agents.iter().flatten().cloned().collect(), &query.proc).await?;
    let found: HashMap<AgentId, (Host, ProcRecord)> =
        there.into_iter().map(|(agent, host, record)| (agent, (host, record))).collect();
    let heard = LastHeardTimes::of(services, found.keys()).await?;
    let mut answered = HashSet::new();
    let infos = query.targets.iter().zip(&agents).filter_map(|(target, agent)| {
        let agent = agent.as_ref()?;
        let by_own_id = matches!(target, Target::Agent(asked) if asked == agent);
        if !answered.insert((agent, by_own_id)) {
            return None;
        }
        let supplier = target.supplier();
        let (host, record) = found.get(agent)?;
        let report = heard.confirmed(agent, read(caller, &heard, agent, record)?);
        let agent = match target {
            Target::Agent(asked) => asked,
            Target::Host(_) | Target::SupplierHost(..) | Target::Unusable(_) => agent,
        };
        let target = ProcTarget { proc: &record.proc, host: *host, supplier, agent };
        Some(proc_info(target, &report))
    });
    Ok(ProcInfos { proc_infos: infos.collect() })
}

/// `sync_proc_status`: all procs of a namespace, page by page.
pub async fn of_namespace(
    services: &Services,
    caller: &Caller,
    query: SyncQuery,
) -> Result<ProcInfoPage, AppError> {
    access::permit_namespace(caller, &query.namespace)?;
    let start = u64::try_from(query.start).unwrap_or(u64::MAX);
    let limit = u32::try_from(query.limit).unwrap_or(u32::MAX);
    let page = services.store.proc_page(&query.namespace, caller.rights.businesses(), start, limit).await?;
    let heard = LastHeardTimes::of(services, page.procs.iter().map(|(agent, _, _)| agent)).await?;
    let infos = page.procs.iter().filter_map(|(agent, host, record)| {
        let target = ProcTarget { proc: &record.proc, host: *host, supplier: 0, agent };
        Some(proc_info(target, &heard.confirmed(agent, read(caller, &heard, agent, record)?)))
    });
    Ok(ProcInfoPage { count: page.count, proc_infos: infos.collect() })
}

/// Which agents are connected, to this server or another, and the times of their last messages.
pub(super) struct LastHeardTimes {
    heard: HashMap<AgentId, i64>,
    connected: HashSet<AgentId>,
}

impl LastHeardTimes {
    pub(super) async fn of<'a>(
        services: &Services,
        agents: impl Iterator<Item = &'a AgentId>,
    ) -> Result<LastHeardTimes, AppError> {
        let (mut heard, mut away, mut connected) = (HashMap::new(), HashSet::new(), HashSet::new());
        let shared = services.store.membership().is_shared();
        for agent in agents {
            let is_here = services.presences.contains(agent);
            if is_here {
                connected.insert(agent.clone());
            }
            match services.presences.last_heard(agent) {
                Some(at) if is_here || !shared => drop(heard.insert(agent.clone(), at)),
                Some(_) | None => drop(away.insert(agent.clone())),
            }
        }
        let away: Vec<AgentId> = away.into_iter().collect();
        if shared {
            for (agent, session) in services.store.sessions_of(away).await? {
                let presence = services.presence_elsewhere(
                    &agent,
                    session.connected,
                    session.changed_at,
                    session.heard_at,
                );
                heard.insert(agent.clone(), presence.heard_at);
                if presence.connected {
                    connected.insert(agent);
                }
            }
        } else if !away.is_empty() {
            heard.extend(services.store.last_heard(away).await?);
        }
        Ok(LastHeardTimes { heard, connected })
    }

    pub(super) fn is_connected(&self, agent: &AgentId) -> bool {
        self.connected.contains(agent)
    }

    /// Sets `reported_at` to the time when the agent was last heard: agents report changes only, so each
    /// message confirms the last report. It is server time, because callers compare it with now and the
    /// host's clock may be wrong.
    pub(super) fn confirmed(&self, agent: &AgentId, report: ProcReport) -> ProcReport {
        let heard_at = self.heard.get(agent).map(|heard| heard / 1000);
        ProcReport { reported_at: heard_at.unwrap_or(report.reported_at), ..report }
    }
}

/// The last report of the agent; while the agent is away, with a note about that. For a process whose account
/// the caller may not use, all fields are left out that may contain output of the process or its commands.
pub(super) fn read(
    caller: &Caller,
    heard: &LastHeardTimes,
    agent: &AgentId,
    record: &ProcRecord,
) -> Option<ProcReport> {
    let mut report: ProcReport = match serde_json::from_str(&record.status) {
        Ok(report) => report,
        Err(error) => {
            warn!(%agent, proc = %record.proc, %error, "a stored state cannot be read; the proc is left out of the answer");
            return None;
        }
    };
    if !access::may_see_output_of(caller, &report.user) {
        (report.note, report.version, report.health) = Default::default();
    }
    if !heard.is_connected(agent) && report.note.is_empty() {
        report.note = "its agent is not connected; this is what it said last".to_owned();
    }
    Some(report)
}
