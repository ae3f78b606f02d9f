//! JOB's process and agent APIs, under every path that their callers use.

use super::call::{Call, Family, Reply};
use super::error::CallError;
use super::idempotency;
use super::routes::{Routes, job_enveloped};
use crate::app::{agents, results, scope};
use procfleet_proto::http::agents::AgentAlive;
use procfleet_proto::http::document::{self, Method};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::job::{self as shape, Accepted, JobResults};
use serde::Serialize;

/// The gateway in both of its versions; where it finds JOB; and JOB's own paths.
const PREFIXES: [&str; 6] = [
    "/api/c/compapi/v2/job",
    "/api/c/compapi/v2/jobv3",
    "/api/job/v2/job-execute",
    "/api/job/v3/job-execute",
    "/esb/api/v2",
    "/esb/api/v3",
];

#[derive(Clone, Copy)]
enum Api {
    OperateProc,
    OperateProcess,
    ManageProc,
    GetProcResult,
    GetAgentStatus,
}

impl Api {
    const ALL: [Api; 5] =
        [Api::OperateProc, Api::OperateProcess, Api::ManageProc, Api::GetProcResult, Api::GetAgentStatus];

    /// With the component before it, for GSE has APIs of the same names.
    fn name(self) -> &'static str {
        match self {
            Api::OperateProc => "job.operate_proc",
            Api::OperateProcess => "job.operate_process",
            Api::ManageProc => "job.manage_proc",
            Api::GetProcResult => "job.get_proc_result",
            Api::GetAgentStatus => "job.get_agent_status",
        }
    }

    fn path(self) -> &'static str {
        self.name().trim_start_matches("job.")
    }

    /// What the document says of its answer; `act` gives nothing else.
    fn answer(self) -> document::Answer {
        match self {
            Api::OperateProc | Api::OperateProcess | Api::ManageProc => job_enveloped::<Accepted>(),
            Api::GetProcResult => job_enveloped::<JobResults>(),
            Api::GetAgentStatus => job_enveloped::<Vec<AgentAlive>>(),
        }
    }

    /// What makes a task comes by POST alone.
    fn method(self) -> Method {
        match self {
            Api::OperateProc | Api::OperateProcess | Api::ManageProc => Method::Post,
            Api::GetProcResult | Api::GetAgentStatus => Method::PostOrGet,
        }
    }

    async fn act(self, call: Call) -> Result<Reply<Answer>, CallError> {
        let Call { app, caller, body, headers, .. } = call;
        match self {
            Api::OperateProc | Api::OperateProcess | Api::ManageProc => {
                let read = match self {
                    Api::OperateProc => shape::operate_proc(&body),
                    Api::ManageProc => shape::manage_proc(&body),
                    _ => shape::operate_process(&body),
                };
                let (asked, key) = Faults::of_both(read, idempotency::key(&headers))?;
                let within = scope::businesses(&app, &caller, asked.scope).await?;
                let task =
                    idempotency::submit(&app, &caller, self.name(), asked.requests, &within, key).await?;
                let data = Answer::Accepted(Accepted { bk_gse_taskid: task.to_string() });
                Ok(Reply { data, warnings: asked.warnings })
            }
            Api::GetProcResult => {
                let (named, task) = shape::get_proc_result(&body)?;
                let within = scope::businesses(&app, &caller, named).await?;
                Ok(Answer::Results(results::by_job_key(&app, &caller, &task, &within).await?).into())
            }
            Api::GetAgentStatus => {
                let (named, hosts) = shape::get_agent_status(&body)?;
                let within = scope::businesses(&app, &caller, named).await?;
                let known = agents::at_hosts(&app, &caller, &hosts, &within).await?;
                Ok(Answer::AgentsAlive(shape::alive(&hosts, |host| known.get(host).cloned())).into())
            }
        }
    }
}

/// The `data` of an answer.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Accepted(Accepted),
    Results(JobResults),
    AgentsAlive(Vec<AgentAlive>),
}

pub(super) fn routes() -> Routes {
    let mut routes = Routes::default();
    for (prefix, api) in PREFIXES.iter().flat_map(|prefix| Api::ALL.map(|api| (prefix, api))) {
        for end in ["/", ""] {
            let path = format!("{prefix}/{}{end}", api.path());
            let act = move |call| api.act(call);
            routes = routes.blueking(Family::Job, api.name(), api.method(), &path, api.answer(), act);
        }
    }
    routes
}
