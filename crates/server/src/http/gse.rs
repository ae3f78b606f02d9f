//! GSE's process and agent APIs, of both generations, under every path that their callers use.

use super::call::{Call, Family, Reply};
use super::error::CallError;
use super::idempotency;
use super::routes::{Routes, enveloped};
use crate::app::results::KeyStyle;
use crate::app::{agents, process_groups, registration, results, status, task_state, upgrade};
use procfleet_core::access::Scope;
use procfleet_proto::http::agents::{AgentAlive, AgentDetails, AgentInfo, AgentState};
use procfleet_proto::http::document::{self, Method};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::groups::GroupInfos;
use procfleet_proto::http::keyed::Keyed;
use procfleet_proto::http::operate::{self as operate_shape, Accepted, Asked, Suppliers};
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
enum Api {
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

impl Api {
    const PROC: [Api; 16] = [
        Api::OperateProc,
        Api::OperateProcV2,
        Api::OperateProcMulti,
        Api::GetProcOperateResult,
        Api::GetProcOperateResultV2,
        Api::RegisterProcInfo,
        Api::UpdateProcInfo,
        Api::UnregisterProcInfo,
        Api::SetProcessGroupInfo,
        Api::GetProcessGroupInfo,
        Api::GetProcStatus,
        Api::GetProcStatusV2,
        Api::SyncProcStatus,
        Api::GetAgentStatus,
        Api::GetAgentInfo,
        Api::UpgradeToAgentId,
    ];
    const TASK: [Api; 1] = [Api::GetTaskState];
    const CLUSTER: [Api; 2] = [Api::ListAgentState, Api::ListAgentInfo];

    fn name(self) -> &'static str {
        match self {
            Api::OperateProc => "operate_proc",
            Api::OperateProcV2 => "operate_proc_v2",
            Api::OperateProcMulti => "operate_proc_multi",
            Api::GetProcOperateResult => "get_proc_operate_result",
            Api::GetProcOperateResultV2 => "get_proc_operate_result_v2",
            Api::RegisterProcInfo => "register_proc_info",
            Api::UpdateProcInfo => "update_proc_info",
            Api::UnregisterProcInfo => "unregister_proc_info",
            Api::SetProcessGroupInfo => "set_process_group_info",
            Api::GetProcessGroupInfo => "get_process_group_info",
            Api::GetProcStatus => "get_proc_status",
            Api::GetProcStatusV2 => "get_proc_status_v2",
            Api::SyncProcStatus => "sync_proc_status",
            Api::GetAgentStatus => "get_agent_status",
            Api::GetAgentInfo => "get_agent_info",
            Api::UpgradeToAgentId => "upgrade_to_agent_id",
            Api::GetTaskState => "get_task_state",
            Api::ListAgentState => "list_agent_state",
            Api::ListAgentInfo => "list_agent_info",
        }
    }

    /// What the document says of its answer; `act` gives nothing else.
    fn answer(self) -> document::Answer {
        match self {
            Api::OperateProc | Api::OperateProcV2 | Api::OperateProcMulti => enveloped::<Accepted>(),
            Api::GetProcOperateResult
            | Api::GetProcOperateResultV2
            | Api::RegisterProcInfo
            | Api::UpdateProcInfo
            | Api::UnregisterProcInfo
            | Api::SetProcessGroupInfo => enveloped::<Results>(),
            Api::GetProcessGroupInfo => enveloped::<GroupInfos>(),
            Api::GetProcStatus | Api::GetProcStatusV2 => enveloped::<ProcInfos>(),
            Api::SyncProcStatus => enveloped::<ProcInfoPage>(),
            Api::GetAgentStatus => enveloped::<Keyed<AgentAlive>>(),
            Api::GetAgentInfo => enveloped::<Keyed<AgentInfo>>(),
            Api::UpgradeToAgentId => enveloped::<Upgraded>(),
            Api::GetTaskState => enveloped::<TaskState>(),
            Api::ListAgentState => enveloped::<Vec<AgentState>>(),
            Api::ListAgentInfo => enveloped::<Vec<AgentDetails>>(),
        }
    }

    /// What makes a task or changes something comes by POST alone.
    fn method(self) -> Method {
        match self {
            Api::OperateProc
            | Api::OperateProcV2
            | Api::OperateProcMulti
            | Api::RegisterProcInfo
            | Api::UpdateProcInfo
            | Api::UnregisterProcInfo
            | Api::SetProcessGroupInfo
            | Api::UpgradeToAgentId => Method::Post,
            Api::GetProcOperateResult
            | Api::GetProcOperateResultV2
            | Api::GetProcessGroupInfo
            | Api::GetProcStatus
            | Api::GetProcStatusV2
            | Api::SyncProcStatus
            | Api::GetAgentStatus
            | Api::GetAgentInfo
            | Api::GetTaskState
            | Api::ListAgentState
            | Api::ListAgentInfo => Method::PostOrGet,
        }
    }

    async fn act(self, call: Call) -> Result<Reply<Answer>, CallError> {
        let Call { app, caller, body, headers, .. } = call;
        let data = match self {
            Api::OperateProc | Api::OperateProcV2 | Api::OperateProcMulti => {
                let asked = match self {
                    Api::OperateProc => operate_shape::operate_proc(&body),
                    Api::OperateProcMulti => operate_shape::operate_proc_multi(&body),
                    _ => operate_shape::operate_proc_v2(&body),
                };
                let (Asked { requests, warnings }, key) = Faults::of_both(asked, idempotency::key(&headers))?;
                let task =
                    idempotency::submit(&app, &caller, self.name(), requests, &Scope::All, key).await?;
                let data = Answer::Accepted(Accepted { task_id: task.to_string() });
                return Ok(Reply { data, warnings });
            }
            Api::RegisterProcInfo | Api::UpdateProcInfo | Api::UnregisterProcInfo => {
                let Asked { requests, warnings } = match self {
                    Api::RegisterProcInfo => operate_shape::register_proc_info(&body)?,
                    Api::UnregisterProcInfo => operate_shape::unregister_proc_info(&body)?,
                    _ => operate_shape::update_proc_info(&body)?,
                };
                let results = registration::carry_out(&app, &caller, self.name(), requests).await?;
                return Ok(Reply { data: Answer::Results(results), warnings });
            }
            Api::SetProcessGroupInfo => {
                let requests = groups_shape::set_process_group_info(&body)?;
                Answer::Results(registration::carry_out(&app, &caller, self.name(), requests).await?)
            }
            Api::GetProcessGroupInfo => {
                let query = groups_shape::get_process_group_info(&body)?;
                Answer::Groups(process_groups::of_targets(&app, &caller, query).await?)
            }
            Api::GetProcOperateResult => {
                let task = result_shape::get_proc_operate_result(&body)?;
                Answer::Results(results::by_key(&app, &caller, &task, KeyStyle::First).await?)
            }
            Api::GetProcOperateResultV2 => {
                let task = result_shape::get_proc_operate_result(&body)?;
                Answer::Results(results::by_key(&app, &caller, &task, KeyStyle::Second).await?)
            }
            Api::GetProcStatus => {
                let query = status_shape::get_proc_status(&body, Suppliers::Required)?;
                Answer::Procs(status::of_targets(&app, &caller, query).await?)
            }
            Api::GetProcStatusV2 => {
                let query = status_shape::get_proc_status(&body, Suppliers::None)?;
                Answer::Procs(status::of_targets(&app, &caller, query).await?)
            }
            Api::SyncProcStatus => {
                let query = status_shape::sync_proc_status(&body)?;
                Answer::ProcPage(status::of_namespace(&app, &caller, query).await?)
            }
            Api::GetAgentStatus | Api::GetAgentInfo => {
                let hosts = agents_shape::by_hosts(&body)?;
                let known = agents::at_hosts(&app, &caller, &hosts, &Scope::All).await?;
                let find = |host: &_| known.get(host).cloned();
                match self {
                    Api::GetAgentInfo => Answer::AgentInfo(agents_shape::info(&hosts, find)),
                    _ => Answer::AgentsAlive(agents_shape::alive(&hosts, find)),
                }
            }
            Api::UpgradeToAgentId => {
                let hosts = upgrade_shape::upgrade_to_agent_id(&body)?;
                Answer::Upgraded(upgrade::to_agent_id(&app, &caller, hosts).await?)
            }
            Api::GetTaskState => {
                let query = task_state_shape::get_task_state(&body)?;
                Answer::TaskState(task_state::of_task(&app, &caller, query).await?)
            }
            Api::ListAgentState => {
                let known = agents::with_ids(&app, &caller, agents_shape::by_ids(&body)?).await?;
                Answer::AgentStates(known.iter().map(|(id, agent)| agents_shape::state(id, agent)).collect())
            }
            Api::ListAgentInfo => {
                let known = agents::with_ids(&app, &caller, agents_shape::by_ids(&body)?).await?;
                Answer::AgentDetails(
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
enum Answer {
    Accepted(Accepted),
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
    let proc = PROC_PREFIXES.iter().flat_map(|prefix| Api::PROC.map(|api| (prefix, api)));
    let cluster = CLUSTER_PREFIXES.iter().flat_map(|prefix| Api::CLUSTER.map(|api| (prefix, api)));
    let task = TASK_PREFIXES.iter().flat_map(|prefix| Api::TASK.map(|api| (prefix, api)));
    let mut routes = Routes::default();
    for (prefix, api) in proc.chain(cluster).chain(task) {
        for end in ["/", ""] {
            let path = format!("{prefix}/{}{end}", api.name());
            let act = move |call| api.act(call);
            routes = routes.blueking(Family::Gse, api.name(), api.method(), &path, api.answer(), act);
        }
    }
    routes
}
