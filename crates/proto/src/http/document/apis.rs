//! The table of APIs: the code that reads the requests of each, and its other properties.

use super::words::Words;
use crate::http::batch::Suppliers;
use crate::http::fault::Faults;
use crate::http::job::HOSTING;
use crate::http::operate::{self, OP_TYPES};
use crate::http::read::RequestBody;
use crate::http::{
    agents, groups, job, logs, manage, query, result, servers, status, task_state, upgrade, users,
};
use serde_json::{Value, json};
use std::fmt::Debug;

/// An API as the document has it.
#[derive(Debug)]
pub struct ApiEntry {
    pub name: &'static str,
    pub family: Family,
    /// Runs the code that reads its requests; `None`: the API has no request.
    pub read: Option<ReadCall>,
    /// A field whose value decides which others are read, and its values.
    pub varies: Option<(&'static str, &'static [i64])>,
    pub body: FieldLocation,
    pub repeats: Repeats,
}

/// Reads a request, or records the fields that it would read; the result can be shown.
pub type ReadCall = fn(RequestBody<'_>) -> Result<Box<dyn Debug>, Faults>;

/// The location of a request's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldLocation {
    InBody,
    /// In the body or in the query: callers use both.
    InQueryToo,
}

/// Whether a repeated call with the same idempotency key is one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    Each,
    ByKey,
}

/// The order is that in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    SecondGeneration,
    FirstGeneration,
    Job,
    Native,
    Admin,
    Operations,
}

impl Family {
    pub const ALL: [Family; 6] = [
        Family::SecondGeneration,
        Family::FirstGeneration,
        Family::Job,
        Family::Native,
        Family::Admin,
        Family::Operations,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Family::SecondGeneration => "gse-v2",
            Family::FirstGeneration => "gse-v1",
            Family::Job => "job",
            Family::Native => "native",
            Family::Admin => "admin",
            Family::Operations => "operations",
        }
    }

    pub(super) fn tag(self, words: &mut Words) -> Value {
        let mut tag = json!({"name": self.name()});
        words.title(&mut tag, self.name());
        tag
    }
}

pub fn find(name: &str) -> Option<&'static ApiEntry> {
    APIS.iter().find(|api| api.name == name)
}

const fn api(name: &'static str, family: Family, read: ReadCall) -> ApiEntry {
    ApiEntry {
        name,
        family,
        read: Some(read),
        varies: None,
        body: FieldLocation::InBody,
        repeats: Repeats::Each,
    }
}

/// An API without a request.
const fn plain(name: &'static str, family: Family) -> ApiEntry {
    ApiEntry { name, family, read: None, varies: None, body: FieldLocation::InBody, repeats: Repeats::Each }
}

impl ApiEntry {
    const fn in_query_too(mut self) -> ApiEntry {
        self.body = FieldLocation::InQueryToo;
        self
    }

    /// Makes a task that hosts or unhosts.
    const fn hosts(mut self) -> ApiEntry {
        self.varies = Some(("op_type", &HOSTING));
        self.repeats = Repeats::ByKey;
        self
    }

    /// Makes a task, always of the same kind.
    const fn once(mut self) -> ApiEntry {
        self.repeats = Repeats::ByKey;
        self
    }

    /// Makes a task with one of the eight operations.
    const fn operates(mut self) -> ApiEntry {
        self.varies = Some(("op_type", &OP_TYPES));
        self.repeats = Repeats::ByKey;
        self
    }
}

macro_rules! reads {
    ($read:expr) => {
        |source: RequestBody<'_>| $read(source).map(|asked| Box::new(asked) as Box<dyn Debug>)
    };
}

use Family::{Admin, FirstGeneration as V1, Job, Native, Operations, SecondGeneration as V2};

pub const APIS: &[ApiEntry] = &[
    api("operate_proc_v2", V2, reads!(operate::operate_proc_v2)).operates(),
    api("operate_proc_multi", V2, reads!(operate::operate_proc_multi)).operates(),
    api("get_proc_operate_result_v2", V2, reads!(result::get_proc_operate_result)).in_query_too(),
    api("get_proc_status_v2", V2, reads!(|r| status::get_proc_status(r, Suppliers::None))).in_query_too(),
    api("sync_proc_status", V2, reads!(status::sync_proc_status)).in_query_too(),
    api("update_proc_info", V2, reads!(operate::update_proc_info)),
    api("list_agent_state", V2, reads!(agents::by_ids)).in_query_too(),
    api("list_agent_info", V2, reads!(agents::by_ids)).in_query_too(),
    api("get_task_state", V2, reads!(task_state::get_task_state)).in_query_too(),
    api("upgrade_to_agent_id", V2, reads!(upgrade::upgrade_to_agent_id)),
    api("register_proc_info", V1, reads!(operate::register_proc_info)),
    api("unregister_proc_info", V1, reads!(operate::unregister_proc_info)),
    api("operate_proc", V1, reads!(operate::operate_proc)).operates(),
    api("get_proc_operate_result", V1, reads!(result::get_proc_operate_result)).in_query_too(),
    api("get_proc_status", V1, reads!(|r| status::get_proc_status(r, Suppliers::Required))).in_query_too(),
    api("set_process_group_info", V1, reads!(groups::set_process_group_info)),
    api("get_process_group_info", V1, reads!(groups::get_process_group_info)).in_query_too(),
    api("get_agent_status", V1, reads!(agents::by_hosts)).in_query_too(),
    api("get_agent_info", V1, reads!(agents::by_hosts)).in_query_too(),
    api("job.operate_proc", Job, reads!(job::operate_proc)).operates(),
    api("job.operate_process", Job, reads!(job::operate_process)).operates(),
    api("job.manage_proc", Job, reads!(job::manage_proc)).hosts(),
    api("job.get_proc_result", Job, reads!(job::get_proc_result)).in_query_too(),
    api("job.get_agent_status", Job, reads!(job::get_agent_status)).in_query_too(),
    api("agents", Native, reads!(query::agents)),
    api("operate", Native, reads!(operate::operate_selected)).operates(),
    api("procs", Native, reads!(query::procs)),
    api("tasks", Native, reads!(query::tasks)),
    api("task", Native, reads!(query::task)),
    api("task_cancel", Native, reads!(query::nothing)),
    api("task_retry", Native, reads!(query::nothing)).once(),
    api("events", Native, reads!(query::events)),
    api("spec", Native, reads!(logs::spec)),
    api("logs", Native, reads!(logs::logs)),
    plain("app_list", Admin),
    api("app_create", Admin, reads!(manage::create_app)),
    plain("app_show", Admin),
    plain("app_rotate", Admin),
    plain("app_disable", Admin),
    plain("app_enable", Admin),
    api("app_grant", Admin, reads!(manage::change_grants)),
    api("app_revoke", Admin, reads!(manage::change_grants)),
    plain("user_list", Admin),
    api("user_create", Admin, reads!(users::create_user)),
    api("user_token", Admin, reads!(users::create_user_token)),
    plain("user_disable", Admin),
    plain("user_enable", Admin),
    plain("user_revoke", Admin),
    plain("token_list", Admin),
    plain("token_revoke", Admin),
    api("token_create", Admin, reads!(manage::create_token)),
    api("agents_assign", Admin, reads!(manage::assign_agents)),
    api("agents_revoke", Admin, reads!(manage::revoke_agents)),
    api("agents_forget", Admin, reads!(manage::forget_agents)),
    api("agents_label", Admin, reads!(manage::label_agents)),
    plain("ca_show", Admin),
    plain("ca_rotate", Admin),
    api("ca_retire", Admin, reads!(manage::retire_ca)),
    plain("ca_reseal", Admin),
    plain("server_list", Admin),
    api("server_drain", Admin, reads!(servers::drain_server)),
    plain("business_list", Admin),
    api("business_create", Admin, reads!(manage::create_business)),
    plain("business_set_list", Admin),
    api("business_set_create", Admin, reads!(manage::create_business_set)),
    api("audit", Admin, reads!(query::audit)),
    plain("webhook_list", Admin),
    api("webhook_create", Admin, reads!(manage::create_webhook)),
    plain("webhook_remove", Admin),
    plain("openapi", Operations),
    plain("docs", Operations),
    plain("healthz", Operations),
    plain("readyz", Operations),
    plain("metrics", Operations),
];
