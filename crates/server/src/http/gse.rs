//! GSE's process and agent APIs, of both generations, under every path that their callers use.

use super::call::{Call, Reply};
use super::error::CallError;
use super::family::CallFamily;
use super::idempotency;
use super::routes::{Routes, enveloped};
use crate::usecase::results::KeyStyle;
use crate::usecase::{agents, operate, process_groups, registration, results, status, task_state, upgrade};
use procfleet_core::grants::GrantScope;
use procfleet_proto::http::agents::{AgentAlive, AgentDetails, AgentInfo, AgentState};
use procfleet_proto::http::batch::Suppliers;
use procfleet_proto::http::document::Method;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::groups::GroupInfos;
use procfleet_proto::http::keyed::Keyed;
use procfleet_proto::http::operate::{self as operate_shape, OperateCall, TaskAccepted};
use procfleet_proto::http::result::Results;
use procfleet_proto::http::status::{ProcInfoPage, ProcInfos};
use procfleet_proto::http::task_state::TaskState;
use procfleet_proto::http::upgrade::Upgraded;
use procfleet_proto::http::{
    agents as agents_shape, groups as groups_shape, result as result_shape, status as status_shape,
};
use procfleet_proto::http::{task_state as task_state_shape, upgrade as upgrade_shape};
use schemars::JsonSchema;
use serde::Serialize;

/// The old gateway; the new one; the new one's own paths; and the path that two callers fall back to.
const PROC_PREFIXES: [&str; 4] = [
    "/api/c/compapi/v2/gse",
    "/api/bk-gse/prod/api/v2/proc",
    "/api/v2/proc",
    "/api/c/compapi/v2/gse/api/v2/proc",
];
/// The paths of the new gateway's agent APIs.
const CLUSTER_PREFIXES: [&str; 3] =
    ["/api/bk-gse/prod/api/v2/cluster", "/api/v2/cluster", "/api/c/compapi/v2/gse/api/v2/cluster"];
/// The paths of the new gateway's task APIs.
const TASK_PREFIXES: [&str; 3] =
    ["/api/bk-gse/prod/api/v2/task", "/api/v2/task", "/api/c/compapi/v2/gse/api/v2/task"];

/// Adds an API to the routes, below a prefix.
type AddBelow = Box<dyn Fn(Routes, &str) -> Routes>;

/// The APIs: name, method and handler. The handler's return type makes the schema of the answer. An API that
/// makes a task or changes something takes POST alone.
pub(super) fn routes() -> Routes {
    use Method::{Post, PostOrGet};
    let proc: Vec<AddBelow> = vec![
        api("operate_proc", Post, operate_proc),
        api("operate_proc_v2", Post, operate_proc_v2),
        api("operate_proc_multi", Post, operate_proc_multi),
        api("get_proc_operate_result", PostOrGet, get_proc_operate_result),
        api("get_proc_operate_result_v2", PostOrGet, get_proc_operate_result_v2),
        api("register_proc_info", Post, register_proc_info),
        api("update_proc_info", Post, update_proc_info),
        api("unregister_proc_info", Post, unregister_proc_info),
        api("set_process_group_info", Post, set_process_group_info),
        api("get_process_group_info", PostOrGet, get_process_group_info),
        api("get_proc_status", PostOrGet, get_proc_status),
        api("get_proc_status_v2", PostOrGet, get_proc_status_v2),
        api("sync_proc_status", PostOrGet, sync_proc_status),
        api("get_agent_status", PostOrGet, get_agent_status),
        api("get_agent_info", PostOrGet, get_agent_info),
        api("upgrade_to_agent_id", Post, upgrade_to_agent_id),
    ];
    let cluster: Vec<AddBelow> = vec![
        api("list_agent_state", PostOrGet, list_agent_state),
        api("list_agent_info", PostOrGet, list_agent_info),
    ];
    let task: Vec<AddBelow> = vec![api("get_task_state", PostOrGet, get_task_state)];
    let mut routes = Routes::default();
    for (prefixes, apis) in
        [(&PROC_PREFIXES[..], proc), (&CLUSTER_PREFIXES[..], cluster), (&TASK_PREFIXES[..], task)]
    {
        for prefix in prefixes {
            routes = apis.iter().fold(routes, |routes, add| add(routes, prefix));
        }
    }
    routes
}

/// One API, with and without a slash at the end of its path.
fn api<T, F>(
    name: &'static str,
    method: Method,
    act: impl Fn(Call) -> F + Clone + Send + Sync + 'static,
) -> AddBelow
where
    T: Serialize + JsonSchema + Send + 'static,
    F: Future<Output = Result<Reply<T>, CallError>> + Send + 'static,
{
    Box::new(move |routes, prefix| {
        ["/", ""].iter().fold(routes, |routes, end| {
            let path = format!("{prefix}/{name}{end}");
            routes.blueking(CallFamily::Gse, name, method, &path, enveloped::<T>(), act.clone())
        })
    })
}

async fn operate_proc(call: Call) -> Result<Reply<TaskAccepted>, CallError> {
    let asked = operate_shape::operate_proc(&call.body);
    submit(call, asked).await
}

async fn operate_proc_v2(call: Call) -> Result<Reply<TaskAccepted>, CallError> {
    let asked = operate_shape::operate_proc_v2(&call.body);
    submit(call, asked).await
}

async fn operate_proc_multi(call: Call) -> Result<Reply<TaskAccepted>, CallError> {
    let asked = operate_shape::operate_proc_multi(&call.body);
    submit(call, asked).await
}

async fn submit(call: Call, asked: Result<OperateCall, Faults>) -> Result<Reply<TaskAccepted>, CallError> {
    let (OperateCall { requests, warnings }, key) = Faults::of_both(asked, idempotency::key(&call.headers))?;
    let submitting = operate::submit(&call.services, &call.caller, call.api, requests, &GrantScope::All, key);
    let data = TaskAccepted { task_id: submitting.await?.to_string() };
    Ok(Reply { warnings, ..Reply::from(data) })
}

async fn get_proc_operate_result(call: Call) -> Result<Reply<Results>, CallError> {
    let task = result_shape::get_proc_operate_result(&call.body)?;
    Ok(results::by_key(&call.services, &call.caller, &task, KeyStyle::First).await?.into())
}

async fn get_proc_operate_result_v2(call: Call) -> Result<Reply<Results>, CallError> {
    let task = result_shape::get_proc_operate_result(&call.body)?;
    Ok(results::by_key(&call.services, &call.caller, &task, KeyStyle::Second).await?.into())
}

async fn register_proc_info(call: Call) -> Result<Reply<Results>, CallError> {
    let asked = operate_shape::register_proc_info(&call.body)?;
    carry_out(call, asked).await
}

async fn update_proc_info(call: Call) -> Result<Reply<Results>, CallError> {
    let asked = operate_shape::update_proc_info(&call.body)?;
    carry_out(call, asked).await
}

async fn unregister_proc_info(call: Call) -> Result<Reply<Results>, CallError> {
    let asked = operate_shape::unregister_proc_info(&call.body)?;
    carry_out(call, asked).await
}

async fn carry_out(call: Call, asked: OperateCall) -> Result<Reply<Results>, CallError> {
    let OperateCall { requests, warnings } = asked;
    let data = registration::carry_out(&call.services, &call.caller, call.api, requests).await?;
    Ok(Reply { warnings, ..Reply::from(data) })
}

async fn set_process_group_info(call: Call) -> Result<Reply<Results>, CallError> {
    let requests = groups_shape::set_process_group_info(&call.body)?;
    Ok(registration::carry_out(&call.services, &call.caller, call.api, requests).await?.into())
}

async fn get_process_group_info(call: Call) -> Result<Reply<GroupInfos>, CallError> {
    let query = groups_shape::get_process_group_info(&call.body)?;
    Ok(process_groups::of_targets(&call.services, &call.caller, query).await?.into())
}

async fn get_proc_status(call: Call) -> Result<Reply<ProcInfos>, CallError> {
    let query = status_shape::get_proc_status(&call.body, Suppliers::Required)?;
    Ok(status::of_targets(&call.services, &call.caller, query).await?.into())
}

async fn get_proc_status_v2(call: Call) -> Result<Reply<ProcInfos>, CallError> {
    let query = status_shape::get_proc_status(&call.body, Suppliers::None)?;
    Ok(status::of_targets(&call.services, &call.caller, query).await?.into())
}

async fn sync_proc_status(call: Call) -> Result<Reply<ProcInfoPage>, CallError> {
    let query = status_shape::sync_proc_status(&call.body)?;
    Ok(status::of_namespace(&call.services, &call.caller, query).await?.into())
}

async fn get_agent_status(call: Call) -> Result<Reply<Keyed<AgentAlive>>, CallError> {
    let hosts = agents_shape::by_hosts(&call.body)?;
    let known = agents::at_hosts(&call.services, &call.caller, &hosts, &GrantScope::All).await?;
    Ok(agents_shape::alive(&hosts, |host| known.get(host).cloned()).into())
}

async fn get_agent_info(call: Call) -> Result<Reply<Keyed<AgentInfo>>, CallError> {
    let hosts = agents_shape::by_hosts(&call.body)?;
    let known = agents::at_hosts(&call.services, &call.caller, &hosts, &GrantScope::All).await?;
    Ok(agents_shape::info(&hosts, |host| known.get(host).cloned()).into())
}

async fn upgrade_to_agent_id(call: Call) -> Result<Reply<Upgraded>, CallError> {
    let hosts = upgrade_shape::upgrade_to_agent_id(&call.body)?;
    Ok(upgrade::to_agent_id(&call.services, &call.caller, hosts).await?.into())
}

async fn get_task_state(call: Call) -> Result<Reply<TaskState>, CallError> {
    let query = task_state_shape::get_task_state(&call.body)?;
    Ok(task_state::of_task(&call.services, &call.caller, query).await?.into())
}

async fn list_agent_state(call: Call) -> Result<Reply<Vec<AgentState>>, CallError> {
    let known = agents::with_ids(&call.services, &call.caller, agents_shape::by_ids(&call.body)?).await?;
    let states: Vec<AgentState> = known.iter().map(|(id, agent)| agents_shape::state(id, agent)).collect();
    Ok(states.into())
}

async fn list_agent_info(call: Call) -> Result<Reply<Vec<AgentDetails>>, CallError> {
    let known = agents::with_ids(&call.services, &call.caller, agents_shape::by_ids(&call.body)?).await?;
    let details: Vec<AgentDetails> =
        known.iter().map(|(id, agent)| agents_shape::details(id, agent)).collect();
    Ok(details.into())
}
