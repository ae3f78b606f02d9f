//! Agents as GSE's APIs show them: `get_agent_status`, `get_agent_info`, `list_agent_state`, `list_agent_info`.

use super::fault::Faults;
use super::operate::read_hosts;
use super::read::Reader;
use crate::link::HostFacts;
use procfleet_core::id::{AgentId, Host};
use serde_json::{Map, Value, json};

/// One that is an agent, and not a proxy.
const RUN_MODE: i32 = 1;
const UNKNOWN: i32 = -1;
const RUNNING: i32 = 2;

/// An agent and what is known of it.
#[derive(Clone, Debug)]
pub struct AgentView {
    pub agent: AgentId,
    pub host: Host,
    pub version: String,
    pub connected: bool,
    /// When it last connected or disconnected; seconds since 1970, UTC.
    pub changed_at: i64,
    /// `None`: it has never connected.
    pub facts: Option<HostFacts>,
}

/// `hosts: [{ip, bk_cloud_id}]`
pub fn by_hosts(body: &Value) -> Result<Vec<Host>, Faults> {
    let mut faults = Faults::default();
    let hosts = Reader::root(body, &mut faults).map(|r| read_hosts(&r, &mut faults)).unwrap_or_default();
    if faults.is_empty() { Ok(hosts) } else { Err(faults) }
}

/// `agent_id_list: [..]`
pub fn by_ids(body: &Value) -> Result<Vec<AgentId>, Faults> {
    let mut faults = Faults::default();
    let Some(reader) = Reader::root(body, &mut faults) else { return Err(faults) };
    let mut ids = Vec::new();
    for (path, text) in reader.texts("agent_id_list", &mut faults) {
        match text.parse() {
            Ok(id) => ids.push(id),
            Err(reason) => faults.add(path, format!("{reason}")),
        }
    }
    if ids.is_empty() && faults.is_empty() {
        faults.add("agent_id_list", "is required and must not be empty");
    }
    if faults.is_empty() { Ok(ids) } else { Err(faults) }
}

/// `get_agent_status`: `{"0:10.0.0.1": {"ip", "bk_cloud_id", "bk_agent_alive": 0 or 1}}`, also for unknown hosts.
pub fn alive(hosts: &[Host], find: impl Fn(&Host) -> Option<AgentView>) -> Value {
    let rows = hosts.iter().map(|host| {
        let row = json!({
            "ip": host.ip.to_string(),
            "bk_cloud_id": host.cloud.0,
            "bk_agent_alive": u8::from(find(host).is_some_and(|agent| agent.connected)),
        });
        (host.to_string(), row)
    });
    Value::Object(rows.collect::<Map<_, _>>())
}

/// `get_agent_info`: the version by host. Agents have no proxy between them and the server, so no parent.
pub fn info(hosts: &[Host], find: impl Fn(&Host) -> Option<AgentView>) -> Value {
    let rows = hosts.iter().map(|host| {
        let row = json!({
            "ip": host.ip.to_string(),
            "version": find(host).map(|agent| agent.version).unwrap_or_default(),
            "bk_cloud_id": host.cloud.0,
            "parent_ip": "",
            "parent_port": 0,
        });
        (host.to_string(), row)
    });
    Value::Object(rows.collect::<Map<_, _>>())
}

/// One element of `list_agent_state`.
pub fn state(agent: &AgentView) -> Value {
    json!({
        "bk_agent_id": agent.agent.as_str(),
        "bk_cloud_id": agent.host.cloud.0,
        "version": agent.version,
        "run_mode": RUN_MODE,
        "status_code": status_code(agent),
        "report_time": agent.changed_at,
    })
}

/// One element of `list_agent_info`.
pub fn list_info(agent: &AgentView) -> Value {
    let facts = agent.facts.clone().unwrap_or_default();
    let status = if agent.connected { "running" } else { "unknown" };
    let mut all = state(agent);
    let more = json!({
        "bk_host_ip": agent.host.ip.to_string(),
        "bk_os_type": facts.os,
        "bk_cpu_architecture": facts.architecture,
        "parent_ip": "",
        "parent_port": 0,
        // Not measured. They are there for callers that index; others read the same from an absent field.
        "cpu_rate": 0.0,
        "mem_rate": 0.0,
        "conn_cycle_time": 0,
        "cpu_num": facts.cpus,
        "mem_size": facts.memory_mib,
        "start_time": facts.started_at,
        "last_work_time": agent.changed_at,
        "status": status,
        "last_status": status,
        "last_status_code": status_code(agent),
        "remark": "",
    });
    if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
        all.extend(more);
    }
    all
}

fn status_code(agent: &AgentView) -> i32 {
    if agent.connected { RUNNING } else { UNKNOWN }
}
