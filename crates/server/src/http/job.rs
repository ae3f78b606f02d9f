//! JOB's process and agent APIs, under every path that their callers use.

use super::call::{Call, Reply};
use super::error::CallError;
use super::family::CallFamily;
use super::idempotency;
use super::routes::{Routes, job_enveloped};
use crate::usecase::support::scope;
use crate::usecase::{agents, operate, results};
use procfleet_proto::http::agents::AgentAlive;
use procfleet_proto::http::document::{self, Method};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::job::{self as shape, JobAccepted, JobResults};
use serde::Serialize;

/// The paths of both versions of the gateway, its paths to JOB, and JOB's own paths.
const PREFIXES: [&str; 6] = [
    "/api/c/compapi/v2/job",
    "/api/c/compapi/v2/jobv3",
    "/api/job/v2/job-execute",
    "/api/job/v3/job-execute",
    "/esb/api/v2",
    "/esb/api/v3",
];

#[derive(Clone, Copy)]
enum JobApi {
    OperateProc,
    OperateProcess,
    ManageProc,
    GetProcResult,
    GetAgentStatus,
}

impl JobApi {
    const ALL: [JobApi; 5] = [
        JobApi::OperateProc,
        JobApi::OperateProcess,
        JobApi::ManageProc,
        JobApi::GetProcResult,
        JobApi::GetAgentStatus,
    ];

    /// With the component as a prefix, because GSE has APIs of the same names.
    fn name(self) -> &'static str {
        match self {
            JobApi::OperateProc => "job.operate_proc",
            JobApi::OperateProcess => "job.operate_process",
            JobApi::ManageProc => "job.manage_proc",
            JobApi::GetProcResult => "job.get_proc_result",
            JobApi::GetAgentStatus => "job.get_agent_status",
        }
    }

    fn path(self) -> &'static str {
        self.name().trim_start_matches("job.")
    }

    /// The type of the answer in the API's document; must match what `act` returns.
    fn answer(self) -> document::AnswerEntry {
        match self {
            JobApi::OperateProc | JobApi::OperateProcess | JobApi::ManageProc => {
                job_enveloped::<JobAccepted>()
            }
            JobApi::GetProcResult => job_enveloped::<JobResults>(),
            JobApi::GetAgentStatus => job_enveloped::<Vec<AgentAlive>>(),
        }
    }

    /// APIs that create a task accept POST only.
    fn method(self) -> Method {
        match self {
            JobApi::OperateProc | JobApi::OperateProcess | JobApi::ManageProc => Method::Post,
            JobApi::GetProcResult | JobApi::GetAgentStatus => Method::PostOrGet,
        }
    }

    async fn act(self, call: Call) -> Result<Reply<JobData>, CallError> {
        let Call { services, caller, body, headers, .. } = call;
        match self {
            JobApi::OperateProc | JobApi::OperateProcess | JobApi::ManageProc => {
                let read = match self {
                    JobApi::OperateProc => shape::operate_proc(&body),
                    JobApi::ManageProc => shape::manage_proc(&body),
                    _ => shape::operate_process(&body),
                };
                let (asked, key) = Faults::of_both(read, idempotency::key(&headers))?;
                let within = scope::businesses(&services, &caller, asked.scope).await?;
                let task =
                    operate::submit(&services, &caller, self.name(), asked.requests, &within, key).await?;
                let data = JobData::Accepted(JobAccepted { bk_gse_taskid: task.to_string() });
                Ok(Reply { warnings: asked.warnings, ..Reply::from(data) })
            }
            JobApi::GetProcResult => {
                let (named, task) = shape::get_proc_result(&body)?;
                let within = scope::businesses(&services, &caller, named).await?;
                Ok(JobData::Results(results::by_job_key(&services, &caller, &task, &within).await?).into())
            }
            JobApi::GetAgentStatus => {
                let (named, hosts) = shape::get_agent_status(&body)?;
                let within = scope::businesses(&services, &caller, named).await?;
                let known = agents::at_hosts(&services, &caller, &hosts, &within).await?;
                Ok(JobData::AgentsAlive(shape::alive(&hosts, |host| known.get(host).cloned())).into())
            }
        }
    }
}

/// The `data` of an answer.
#[derive(Serialize)]
#[serde(untagged)]
enum JobData {
    Accepted(JobAccepted),
    Results(JobResults),
    AgentsAlive(Vec<AgentAlive>),
}

pub(super) fn routes() -> Routes {
    let mut routes = Routes::default();
    for (prefix, api) in PREFIXES.iter().flat_map(|prefix| JobApi::ALL.map(|api| (prefix, api))) {
        for end in ["/", ""] {
            let path = format!("{prefix}/{}{end}", api.path());
            let act = move |call| api.act(call);
            routes = routes.blueking(CallFamily::Job, api.name(), api.method(), &path, api.answer(), act);
        }
    }
    routes
}
