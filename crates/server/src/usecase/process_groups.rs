//! `get_process_group_info`: the process groups that the agents have reported. They are set by an op of the
//! first generation, see `registration`.

use super::{AppError, Caller, Services, access};
use procfleet_core::AgentId;
use procfleet_proto::http::groups::{GroupInfos, GroupQuery, group_info};
use procfleet_store::FoundTarget;
use std::collections::HashSet;

/// In the order of the targets. A host without groups, or of another business, has none in the answer. A host
/// with several suppliers in the query is answered once, under the first.
pub async fn of_targets(
    services: &Services,
    caller: &Caller,
    query: GroupQuery,
) -> Result<GroupInfos, AppError> {
    access::permit_namespace(caller, &query.namespace)?;
    let found = services.store.resolve_within(&query.targets, caller.rights.businesses()).await?;
    let agents: Vec<Option<AgentId>> = found.into_iter().map(FoundTarget::agent).collect();
    let asked = agents.iter().flatten().cloned().collect();
    let known = services.store.process_groups(&query.namespace, asked).await?;
    let (mut infos, mut answered) = (Vec::new(), HashSet::new());
    for (target, agent) in query.targets.iter().zip(agents) {
        let (Some(agent), Some(host)) = (agent, target.host()) else { continue };
        if !answered.insert(agent.clone()) {
            continue;
        }
        let supplier = target.supplier();
        for group in known.get(&agent).into_iter().flatten() {
            infos.push(group_info(&query.namespace, host, supplier, group));
        }
    }
    Ok(GroupInfos { process_group_infos: infos })
}
