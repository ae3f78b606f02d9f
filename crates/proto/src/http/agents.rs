//! Agents as GSE's APIs show them: `get_agent_status`, `get_agent_info`, `list_agent_state`,
//! `list_agent_info`.

use super::batch::{NamedHost, read_hosts, settle};
use super::fault::Faults;
use super::keyed::Keyed;
use super::read::{Reader, RequestBody};
use crate::link::HostFacts;
use procfleet_core::id::{AgentId, Host};
use schemars::JsonSchema;
use serde::Serialize;

/// The run mode of an agent (not of a proxy).
const RUN_MODE: i32 = 1;
const UNKNOWN: i32 = -1;
const RUNNING: i32 = 2;

/// An agent with its details.
#[derive(Clone, Debug)]
pub struct AgentView {
    pub agent: AgentId,
    pub host: Host,
    pub version: String,
    pub connected: bool,
    /// Time of the last message, heartbeats included; seconds since 1970, UTC.
    pub heard_at: i64,
    /// `None`: the agent has never connected.
    pub facts: Option<HostFacts>,
}

/// `hosts: [{ip, bk_cloud_id}]`
pub fn by_hosts<'v>(body: impl Into<RequestBody<'v>>) -> Result<Vec<NamedHost>, Faults> {
    let mut faults = Faults::default();
    let Some(reader) = Reader::root(body, &mut faults) else { return Err(faults) };
    reader.require_filled_list("hosts", &mut faults);
    let hosts = read_hosts(reader.elements("hosts", &mut faults), &mut faults);
    if faults.is_empty() { Ok(hosts) } else { Err(faults) }
}

/// `agent_id_list: [..]`. An invalid id belongs to no agent.
pub fn by_ids<'v>(body: impl Into<RequestBody<'v>>) -> Result<Vec<AgentId>, Faults> {
    let mut faults = Faults::default();
    let Some(reader) = Reader::root(body, &mut faults) else { return Err(faults) };
    reader.require_filled_list("agent_id_list", &mut faults);
    let ids = reader.each_text("agent_id_list", &mut faults).into_iter().map(|(path, text)| {
        let mut own = Faults::default();
        let id = text.and_then(|text| text.parse::<AgentId>().map_err(|reason| reason.to_string()));
        let id = id.map_err(|reason| own.add(path, reason)).ok();
        (id, own)
    });
    let ids = settle(ids.collect(), &mut faults);
    if faults.is_empty() { Ok(ids) } else { Err(faults) }
}

/// One value of `get_agent_status`, by host; also for unknown hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AgentAlive {
    pub ip: String,
    pub bk_cloud_id: u32,
    /// 0 or 1.
    pub bk_agent_alive: u8,
}

/// One value of `get_agent_info`, by host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AgentInfo {
    pub ip: String,
    pub version: String,
    pub bk_cloud_id: u32,
    /// Agents have no proxy between them and the server, so no parent.
    pub parent_ip: String,
    pub parent_port: u16,
}

/// One element of `list_agent_state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AgentState {
    pub bk_agent_id: String,
    pub bk_cloud_id: u32,
    pub version: String,
    pub run_mode: i32,
    pub status_code: i32,
    pub report_time: i64,
}

/// One element of `list_agent_info`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AgentDetails {
    #[serde(flatten)]
    pub state: AgentState,
    pub bk_host_ip: String,
    pub bk_os_type: String,
    pub bk_cpu_architecture: String,
    pub parent_ip: String,
    pub parent_port: u16,
    /// Not measured. Present for callers that require the fields.
    pub cpu_rate: f64,
    pub mem_rate: f64,
    pub conn_cycle_time: u64,
    pub cpu_num: u64,
    pub mem_size: u64,
    pub start_time: i64,
    pub last_work_time: i64,
    pub status: String,
    pub last_status: String,
    pub last_status_code: i32,
    pub remark: String,
}

/// With the host as the caller named it, even if it is invalid.
pub fn alive_row(named: &NamedHost, find: impl Fn(&Host) -> Option<AgentView>) -> AgentAlive {
    let alive = named.host.as_ref().and_then(find).is_some_and(|agent| agent.connected);
    AgentAlive { ip: named.ip.clone(), bk_cloud_id: named.cloud, bk_agent_alive: u8::from(alive) }
}

pub fn alive(hosts: &[NamedHost], find: impl Fn(&Host) -> Option<AgentView>) -> Keyed<AgentAlive> {
    hosts.iter().map(|named| (named.name.clone(), alive_row(named, &find))).collect()
}

pub fn info(hosts: &[NamedHost], find: impl Fn(&Host) -> Option<AgentView>) -> Keyed<AgentInfo> {
    let rows = hosts.iter().map(|named| {
        let agent = named.host.as_ref().and_then(&find);
        let row = AgentInfo {
            ip: named.ip.clone(),
            version: agent.map(|agent| agent.version).unwrap_or_default(),
            bk_cloud_id: named.cloud,
            parent_ip: String::new(),
            parent_port: 0,
        };
        (named.name.clone(), row)
    });
    rows.collect()
}

/// `asked`: the id in the request. Callers look it up in the answer, also if it is `cloud:ip`.
pub fn state(asked: &AgentId, agent: &AgentView) -> AgentState {
    AgentState {
        bk_agent_id: asked.to_string(),
        bk_cloud_id: agent.host.cloud.0,
        version: agent.version.clone(),
        run_mode: RUN_MODE,
        status_code: status_code(agent),
        report_time: agent.heard_at,
    }
}

pub fn details(asked: &AgentId, agent: &AgentView) -> AgentDetails {
    let facts = agent.facts.clone().unwrap_or_default();
    let status = if agent.connected { "running" } else { "unknown" };
    AgentDetails {
        state: state(asked, agent),
        bk_host_ip: agent.host.ip.to_string(),
        bk_os_type: facts.os,
        bk_cpu_architecture: facts.architecture,
        parent_ip: String::new(),
        parent_port: 0,
        cpu_rate: 0.0,
        mem_rate: 0.0,
        conn_cycle_time: 0,
        cpu_num: facts.cpus,
        mem_size: facts.memory_mib,
        start_time: facts.started_at,
        last_work_time: agent.heard_at,
        status: status.to_owned(),
        last_status: status.to_owned(),
        last_status_code: status_code(agent),
        remark: String::new(),
    }
}

fn status_code(agent: &AgentView) -> i32 {
    if agent.connected { RUNNING } else { UNKNOWN }
}
