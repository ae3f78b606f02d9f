//! `get_process_group_info`: the process groups that the agents have reported. They are set by an op of the
//! first generation, see `registration`.

use super::{AppError, Caller, Services, access};
use procfleet_proto::http::groups::{GroupInfos, GroupQuery, group_info};

/// In the order of the targets. A host without groups, or of another business, has none in the answer.
pub async fn of_targets(
    services: &Services,
    caller: &Caller,
    query: GroupQuery,
) -> Result<GroupInfos, AppError> {
    access::permit_namespace(caller, &query.namespace)?;
    let agents = services.store.resolve_within(&query.targets, caller.rights.businesses()).await?;
    let known = services.store.process_groups(&query.namespace).await?;
    let mut infos = Vec::new();
    for (target, found) in query.targets.iter().zip(agents) {
        let (Some(agent), Some(host)) = (found.agent(), target.host()) else { continue };
        let supplier = target.supplier();
        for group in known.get(&agent).into_iter().flatten() {
            infos.push(group_info(&query.namespace, host, supplier, group));
        }
    }
    Ok(GroupInfos { process_group_infos: infos })
}
