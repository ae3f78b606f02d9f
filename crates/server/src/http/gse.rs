//! GSE's process APIs, under every path that its callers use.

use super::call::{Call, serve};
use super::error::CallError;
use crate::app::{App, agents, operate, results};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use procfleet_proto::http::{agent_status, operate as operate_shape, result as result_shape};
use serde_json::{Value, json};

/// The old gateway, the new one, the new one's own paths, and the path that two callers fall back to.
const PROC_PREFIXES: [&str; 4] = [
    "/api/c/compapi/v2/gse",
    "/api/bk-gse/prod/api/v2/proc",
    "/api/v2/proc",
    "/api/c/compapi/v2/gse/api/v2/proc",
];

#[derive(Clone, Copy)]
enum Api {
    OperateProcV2,
    OperateProcMulti,
    GetProcOperateResultV2,
    GetAgentStatus,
}

impl Api {
    const ALL: [Api; 4] =
        [Api::OperateProcV2, Api::OperateProcMulti, Api::GetProcOperateResultV2, Api::GetAgentStatus];

    fn name(self) -> &'static str {
        match self {
            Api::OperateProcV2 => "operate_proc_v2",
            Api::OperateProcMulti => "operate_proc_multi",
            Api::GetProcOperateResultV2 => "get_proc_operate_result_v2",
            Api::GetAgentStatus => "get_agent_status",
        }
    }

    async fn act(self, call: Call) -> Result<Value, CallError> {
        let Call { app, caller, body, .. } = call;
        match self {
            Api::OperateProcV2 => {
                let task =
                    operate::submit(&app, &caller, self.name(), operate_shape::operate_proc_v2(&body)?)
                        .await?;
                Ok(json!({"task_id": task.to_string()}))
            }
            Api::OperateProcMulti => {
                let task =
                    operate::submit(&app, &caller, self.name(), operate_shape::operate_proc_multi(&body)?)
                        .await?;
                Ok(json!({"task_id": task.to_string()}))
            }
            Api::GetProcOperateResultV2 => {
                let task = result_shape::get_proc_operate_result(&body)?;
                Ok(results::by_key(&app, &task).await?)
            }
            Api::GetAgentStatus => {
                let hosts = agent_status::get_agent_status(&body)?;
                let alive = agents::alive(&app, &hosts).await?;
                Ok(agent_status::answer(&hosts, |host| alive.contains(host)))
            }
        }
    }
}

pub(super) fn routes() -> Router<App> {
    let mut router = Router::new();
    for prefix in PROC_PREFIXES {
        for api in Api::ALL {
            let handler = any(move |State(app): State<App>, request: Request| handle(app, api, request));
            let path = format!("{prefix}/{}", api.name());
            router = router.route(&format!("{path}/"), handler.clone()).route(&path, handler);
        }
    }
    router
}

async fn handle(app: App, api: Api, request: Request) -> Response {
    serve(app, api.name(), request, |call| api.act(call)).await
}
