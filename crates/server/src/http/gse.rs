//! GSE's process and agent APIs, of both generations, under every path that their callers use.

use super::call::{Call, CallFamily, Reply};
use super::error::CallError;
use super::idempotency;
use super::routes::{Routes, enveloped};
use crate::usecase::results::KeyStyle;
use crate::usecase::{agents, process_groups, registration, results, status, task_state, upgrade};
use procfleet_core::grants::GrantScope;
use procfleet_proto::http::agents::{AgentAlive, AgentDetails, AgentInfo, AgentState};
use procfleet_proto::http::document::{self, Method};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::groups::GroupInfos;
use procfleet_proto::http::keyed::Keyed;
use procfleet_proto::http::operate::{self as operate_shape, OperateCall, Suppliers, TaskAccepted};
use procfleet_proto::http::result::Results;
use procfleet_proto::http::status::{ProcInfoPage, ProcInfos};
use procfleet_proto::http::task_state::TaskState;
use procfleet_proto::http::upgrade::Upgraded;
use procfleet_proto::http::{
    agents as agents_shape, groups as groups_shape, result as result_shape, status as status_shape,
};
use procfleet_proto::http::{task_state as task_state_shape, upgrade as upgrade_shape};
use serde::Serialize;

/// The old gateway; the new one; the new one's own paths; and the path that two callers fall back to.
const PROC_PREFIXES: [&str; 4] = [
    "/api/c/compapi/v2/gse",
    "/api/bk-gse/prod/api/v2/proc",
    "/api/v2/proc",
    "/api/c/compapi/v2/gse/api/v2/proc",
];
/// Where the new gateway has its agent APIs.
const CLUSTER_PREFIXES: [&str; 3] =
    ["/api/bk-gse/prod/api/v2/cluster", "/api/v2/cluster", "/api/c/compapi/v2/gse/api/v2/cluster"];
/// And its task APIs.
const TASK_PREFIXES: [&str; 3] =
    ["/api/bk-gse/prod/api/v2/task", "/api/v2/task", "/api/c/compapi/v2/gse/api/v2/task"];

#[derive(Clone, Copy)]
enum GseApi {
    OperateProc,
    OperateProcV2,
    OperateProcMulti,
    GetProcOperateResult,
    GetProcOperateResultV2,
    RegisterProcInfo,
    UpdateProcInfo,
    UnregisterProcInfo,
    SetProcessGroupInfo,
    GetProcessGroupInfo,
    GetProcStatus,
    GetProcStatusV2,
    SyncProcStatus,
    GetAgentStatus,
    GetAgentInfo,
    UpgradeToAgentId,
    GetTaskState,
    ListAgentState,
    ListAgentInfo,
}

impl GseApi {
    const PROC: [GseApi; 16] = [
        GseApi::OperateProc,
        GseApi::OperateProcV2,
        GseApi::OperateProcMulti,
        GseApi::GetProcOperateResult,
        GseApi::GetProcOperateResultV2,
        GseApi::RegisterProcInfo,
        GseApi::UpdateProcInfo,
        GseApi::UnregisterProcInfo,
        GseApi::SetProcessGroupInfo,
        GseApi::GetProcessGroupInfo,
        GseApi::GetProcStatus,
        GseApi::GetProcStatusV2,
        GseApi::SyncProcStatus,
        GseApi::GetAgentStatus,
        GseApi::GetAgentInfo,
        GseApi::UpgradeToAgentId,
    ];
    const TASK: [GseApi; 1] = [GseApi::GetTaskState];
    const CLUSTER: [GseApi; 2] = [GseApi::ListAgentState, GseApi::ListAgentInfo];

    fn name(self) -> &'static str {
        match self {
            GseApi::OperateProc => "operate_proc",
            GseApi::OperateProcV2 => "operate_proc_v2",
            GseApi::OperateProcMulti => "operate_proc_multi",
            GseApi::GetProcOperateResult => "get_proc_operate_result",
            GseApi::GetProcOperateResultV2 => "get_proc_operate_result_v2",
            GseApi::RegisterProcInfo => "register_proc_info",
            GseApi::UpdateProcInfo => "update_proc_info",
            GseApi::UnregisterProcInfo => "unregister_proc_info",
            GseApi::SetProcessGroupInfo => "set_process_group_info",
            GseApi::GetProcessGroupInfo => "get_process_group_info",
            GseApi::GetProcStatus => "get_proc_status",
            GseApi::GetProcStatusV2 => "get_proc_status_v2",
            GseApi::SyncProcStatus => "sync_proc_status",
            GseApi::GetAgentStatus => "get_agent_status",
            GseApi::GetAgentInfo => "get_agent_info",
            GseApi::UpgradeToAgentId => "upgrade_to_agent_id",
            GseApi::GetTaskState => "get_task_state",
            GseApi::ListAgentState => "list_agent_state",
            GseApi::ListAgentInfo => "list_agent_info",
        }
    }

    /// What the document says of its answer; `act` gives nothing else.
    fn answer(self) -> document::AnswerEntry {
        match self {
            GseApi::OperateProc | GseApi::OperateProcV2 | GseApi::OperateProcMulti => {
                enveloped::<TaskAccepted>()
            }
            GseApi::GetProcOperateResult
            | GseApi::GetProcOperateResultV2
            | GseApi::RegisterProcInfo
            | GseApi::UpdateProcInfo
            | GseApi::UnregisterProcInfo
            | GseApi::SetProcessGroupInfo => enveloped::<Results>(),
            GseApi::GetProcessGroupInfo => enveloped::<GroupInfos>(),
            GseApi::GetProcStatus | GseApi::GetProcStatusV2 => enveloped::<ProcInfos>(),
            GseApi::SyncProcStatus => enveloped::<ProcInfoPage>(),
            GseApi::GetAgentStatus => enveloped::<Keyed<AgentAlive>>(),
            GseApi::GetAgentInfo => enveloped::<Keyed<AgentInfo>>(),
            GseApi::UpgradeToAgentId => enveloped::<Upgraded>(),
            GseApi::GetTaskState => enveloped::<TaskState>(),
            GseApi::ListAgentState => enveloped::<Vec<AgentState>>(),
            GseApi::ListAgentInfo => enveloped::<Vec<AgentDetails>>(),
        }
    }

    /// What makes a task or changes something comes by POST alone.
    fn method(self) -> Method {
        match self {
            GseApi::OperateProc
            | GseApi::OperateProcV2
            | GseApi::OperateProcMulti
            | GseApi::RegisterProcInfo
            | GseApi::UpdateProcInfo
            | GseApi::UnregisterProcInfo
            | GseApi::SetProcessGroupInfo
            | GseApi::UpgradeToAgentId => Method::Post,
            GseApi::GetProcOperateResult
            | GseApi::GetProcOperateResultV2
            | GseApi::GetProcessGroupInfo
            | GseApi::GetProcStatus
            | GseApi::GetProcStatusV2
            | GseApi::SyncProcStatus
            | GseApi::GetAgentStatus
            | GseApi::GetAgentInfo
            | GseApi::GetTaskState
            | GseApi::ListAgentState
            | GseApi::ListAgentInfo => Method::PostOrGet,
        }
    }

    async fn act(self, call: Call) -> Result<Reply<GseData>, CallError> {
        let Call { services, caller, body, headers, .. } = call;
        let data = match self {
            GseApi::OperateProc | GseApi::OperateProcV2 | GseApi::OperateProcMulti => {
                let asked = match self {
                    GseApi::OperateProc => operate_shape::operate_proc(&body),
                    GseApi::OperateProcMulti => operate_shape::operate_proc_multi(&body),
                    _ => operate_shape::operate_proc_v2(&body),
                };
                let (OperateCall { requests, warnings }, key) =
                    Faults::of_both(asked, idempotency::key(&headers))?;
                let task =
                    idempotency::submit(&services, &caller, self.name(), requests, &GrantScope::All, key)
                        .await?;
                let data = GseData::Accepted(TaskAccepted { task_id: task.to_string() });
                return Ok(Reply { data, warnings });
            }
            GseApi::RegisterProcInfo | GseApi::UpdateProcInfo | GseApi::UnregisterProcInfo => {
                let OperateCall { requests, warnings } = match self {
                    GseApi::RegisterProcInfo => operate_shape::register_proc_info(&body)?,
                    GseApi::UnregisterProcInfo => operate_shape::unregister_proc_info(&body)?,
                    _ => operate_shape::update_proc_info(&body)?,
                };
                let results = registration::carry_out(&services, &caller, self.name(), requests).await?;
                return Ok(Reply { data: GseData::Results(results), warnings });
            }
            GseApi::SetProcessGroupInfo => {
                let requests = groups_shape::set_process_group_info(&body)?;
                GseData::Results(registration::carry_out(&services, &caller, self.name(), requests).await?)
            }
            GseApi::GetProcessGroupInfo => {
                let query = groups_shape::get_process_group_info(&body)?;
                GseData::Groups(process_groups::of_targets(&services, &caller, query).await?)
            }
            GseApi::GetProcOperateResult => {
                let task = result_shape::get_proc_operate_result(&body)?;
                GseData::Results(results::by_key(&services, &caller, &task, KeyStyle::First).await?)
            }
            GseApi::GetProcOperateResultV2 => {
                let task = result_shape::get_proc_operate_result(&body)?;
                GseData::Results(results::by_key(&services, &caller, &task, KeyStyle::Second).await?)
            }
            GseApi::GetProcStatus => {
                let query = status_shape::get_proc_status(&body, Suppliers::Required)?;
                GseData::Procs(status::of_targets(&services, &caller, query).await?)
            }
            GseApi::GetProcStatusV2 => {
                let query = status_shape::get_proc_status(&body, Suppliers::None)?;
                GseData::Procs(status::of_targets(&services, &caller, query).await?)
            }
            GseApi::SyncProcStatus => {
                let query = status_shape::sync_proc_status(&body)?;
                GseData::ProcPage(status::of_namespace(&services, &caller, query).await?)
            }
            GseApi::GetAgentStatus | GseApi::GetAgentInfo => {
                let hosts = agents_shape::by_hosts(&body)?;
                let known = agents::at_hosts(&services, &caller, &hosts, &GrantScope::All).await?;
                let find = |host: &_| known.get(host).cloned();
                match self {
                    GseApi::GetAgentInfo => GseData::AgentInfo(agents_shape::info(&hosts, find)),
                    _ => GseData::AgentsAlive(agents_shape::alive(&hosts, find)),
                }
            }
            GseApi::UpgradeToAgentId => {
                let hosts = upgrade_shape::upgrade_to_agent_id(&body)?;
                GseData::Upgraded(upgrade::to_agent_id(&services, &caller, hosts).await?)
            }
            GseApi::GetTaskState => {
                let query = task_state_shape::get_task_state(&body)?;
                GseData::TaskState(task_state::of_task(&services, &caller, query).await?)
            }
            GseApi::ListAgentState => {
                let known = agents::with_ids(&services, &caller, agents_shape::by_ids(&body)?).await?;
                GseData::AgentStates(known.iter().map(|(id, agent)| agents_shape::state(id, agent)).collect())
            }
            GseApi::ListAgentInfo => {
                let known = agents::with_ids(&services, &caller, agents_shape::by_ids(&body)?).await?;
                GseData::AgentDetails(
                    known.iter().map(|(id, agent)| agents_shape::details(id, agent)).collect(),
                )
            }
        };
        Ok(data.into())
    }
}

/// The `data` of an answer.
#[derive(Serialize)]
#[serde(untagged)]
enum GseData {
    Accepted(TaskAccepted),
    Results(Results),
    Procs(ProcInfos),
    ProcPage(ProcInfoPage),
    AgentsAlive(Keyed<AgentAlive>),
    AgentInfo(Keyed<AgentInfo>),
    AgentStates(Vec<AgentState>),
    AgentDetails(Vec<AgentDetails>),
    Groups(GroupInfos),
    Upgraded(Upgraded),
    TaskState(TaskState),
}

pub(super) fn routes() -> Routes {
    let proc = PROC_PREFIXES.iter().flat_map(|prefix| GseApi::PROC.map(|api| (prefix, api)));
    let cluster = CLUSTER_PREFIXES.iter().flat_map(|prefix| GseApi::CLUSTER.map(|api| (prefix, api)));
    let task = TASK_PREFIXES.iter().flat_map(|prefix| GseApi::TASK.map(|api| (prefix, api)));
    let mut routes = Routes::default();
    for (prefix, api) in proc.chain(cluster).chain(task) {
        for end in ["/", ""] {
            let path = format!("{prefix}/{}{end}", api.name());
            let act = move |call| api.act(call);
            routes = routes.blueking(CallFamily::Gse, api.name(), api.method(), &path, api.answer(), act);
        }
    }
    routes
}
