//! `get_proc_status`, `get_proc_status_v2` and `sync_proc_status`: the last reports of the agents about their
//! procs.

use super::batch::{Suppliers, read_query_targets};
use super::fault::Faults;
use super::operate::read_meta;
use super::read::{Reader, RequestBody};
use crate::state::ProcReport;
use procfleet_core::id::{AgentId, Host, ProcKey};
use procfleet_core::request::Target;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum number of procs on one page.
const LARGEST_PAGE: i64 = 1_000;

/// One proc on some hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    pub proc: ProcKey,
    pub targets: Vec<Target>,
}

/// All procs of a namespace, a page at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncQuery {
    pub namespace: String,
    pub start: usize,
    pub limit: usize,
}

pub fn get_proc_status<'v>(
    body: impl Into<RequestBody<'v>>,
    suppliers: Suppliers,
) -> Result<StatusQuery, Faults> {
    let mut faults = Faults::default();
    let Some(reader) = Reader::root(body, &mut faults) else { return Err(faults) };
    // Labels do not filter: nodeman starts a process without labels and queries it with labels.
    let (proc, _labels) = read_meta(&reader, &mut faults);
    let targets = read_query_targets(&reader, suppliers, &mut faults);
    if faults.is_empty() { Ok(StatusQuery { proc, targets }) } else { Err(faults) }
}

pub fn sync_proc_status<'v>(body: impl Into<RequestBody<'v>>) -> Result<SyncQuery, Faults> {
    let mut faults = Faults::default();
    let Some(reader) = Reader::root(body, &mut faults) else { return Err(faults) };
    let namespace =
        reader.object("meta", &mut faults).map(|meta| meta.required_text("namespace", 256, &mut faults));
    let page = reader.object("page", &mut faults);
    let mut number = |field: &str, least: i64, most: i64| {
        let page = page.as_ref()?;
        page.require(field, &mut faults);
        page.integer(field, least..=most, &mut faults).and_then(|n| usize::try_from(n).ok())
    };
    let (start, limit) = (number("start", 0, i64::MAX), number("limit", 1, LARGEST_PAGE));
    match (namespace, start, limit) {
        (Some(namespace), Some(start), Some(limit)) if faults.is_empty() => {
            Ok(SyncQuery { namespace, start, limit })
        }
        _ => Err(faults),
    }
}

/// A proc and its host.
#[derive(Clone, Copy, Debug)]
pub struct ProcTarget<'a> {
    pub proc: &'a ProcKey,
    pub host: Host,
    /// As the caller named it; 0 if it did not.
    pub supplier: u32,
    /// The agent's id, or the text by which the caller named the agent (which may be `cloud:ip`).
    pub agent: &'a AgentId,
}

/// `get_proc_status` and `get_proc_status_v2`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ProcInfos {
    pub proc_infos: Vec<ProcInfo>,
}

/// `sync_proc_status`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ProcInfoPage {
    /// Number of procs on all pages.
    pub count: u64,
    pub proc_infos: Vec<ProcInfo>,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ProcInfo {
    pub meta: ProcMeta,
    pub host: ProcHost,
    pub bk_agent_id: String,
    /// The wanted state: 1 running, 2 stopped. Unregistered procs are omitted.
    pub flag: u8,
    /// The state that was seen, in the same numbers.
    pub status: u8,
    pub isauto: bool,
    pub message: String,
    pub pid: i64,
    pub version: String,
    pub register_time: i64,
    pub last_start_time: i64,
    pub report_time: i64,
    pub cpu_usage: f64,
    pub mem_usage: f64,
    pub fd: u64,
    pub disk: u64,
    pub net: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProcMeta {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProcHost {
    pub ip: String,
    pub bk_cloud_id: u32,
    pub bk_supplier_id: u32,
    pub bk_agent_id: String,
}

/// The first word with a digit, of the characters that nodeman accepts in a version (`^[a-zA-Z0-9.-]+$`).
fn version_word(line: &str) -> String {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '-'));
    let version = words.map(|word| word.trim_matches(['.', '-']));
    version
        .into_iter()
        .find(|word| word.contains(|c: char| c.is_ascii_digit()))
        .unwrap_or_default()
        .to_owned()
}

/// One element of `proc_infos`.
pub fn proc_info(target: ProcTarget<'_>, report: &ProcReport) -> ProcInfo {
    let (running, stopped) = (1, 2);
    let wanted = if report.hosted || report.pid.is_some() { running } else { stopped };
    ProcInfo {
        meta: ProcMeta {
            namespace: target.proc.namespace.clone(),
            name: target.proc.name.clone(),
            labels: report.labels.clone(),
        },
        host: ProcHost {
            ip: target.host.ip.to_string(),
            bk_cloud_id: target.host.cloud.0,
            bk_supplier_id: target.supplier,
            bk_agent_id: target.agent.to_string(),
        },
        bk_agent_id: target.agent.to_string(),
        flag: wanted,
        status: if report.pid.is_some() { running } else { stopped },
        isauto: report.hosted,
        message: report.note.clone(),
        pid: report.pid.map_or(-1, i64::from),
        version: version_word(&report.version),
        register_time: report.registered_at,
        last_start_time: report.started_at,
        report_time: report.reported_at,
        cpu_usage: report.cpu_usage,
        mem_usage: report.mem_usage,
        fd: report.fd,
        disk: 0,
        net: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::MOST_OPS;
    use super::*;
    use serde_json::{Value, json};

    fn targets(count: usize, body: impl Fn(usize) -> Value, list: &str) -> Result<usize, String> {
        let elements: Vec<Value> = (0..count).map(body).collect();
        let body = json!({"meta": {"namespace": "n", "name": "p"}, list: elements});
        let read = get_proc_status(&body, Suppliers::None);
        read.map(|query| query.targets.len()).map_err(|faults| faults.to_string())
    }

    #[test]
    fn repeated_targets_count_once_and_others_have_a_bound() {
        let host = |cloud: usize| json!({"ip": "10.0.0.1", "bk_cloud_id": cloud});
        let agent = |number: usize| json!(format!("a{number}"));
        let bound =
            |list| Err(format!("{list}: names 100001 targets, at most 100000 are allowed in one call"));
        assert_eq!(targets(MOST_OPS + 1, |_| host(0), "hosts"), Ok(1));
        assert_eq!(targets(MOST_OPS + 1, |n| host(n % MOST_OPS), "hosts"), Ok(MOST_OPS));
        assert_eq!(targets(MOST_OPS + 1, host, "hosts"), bound("hosts"));
        assert_eq!(targets(MOST_OPS + 1, |_| agent(0), "agent_id_list"), Ok(1));
        assert_eq!(targets(MOST_OPS + 1, agent, "agent_id_list"), bound("agent_id_list"));
    }

    #[test]
    fn the_version_of_a_status_is_the_first_word_with_a_digit() {
        for (line, expected) in [
            ("1.2.19", "1.2.19"),
            ("nginx version: nginx/1.18.0 (Ubuntu)", "1.18.0"),
            ("go version go1.22.1 linux/amd64", "go1.22.1"),
            ("version: v2.0-rc1.", "v2.0-rc1"),
            ("1.2_3", "1.2"),
            ("(unknown)", ""),
            ("\u{957f}", ""),
            ("", ""),
        ] {
            assert_eq!(version_word(line), expected, "{line:?}");
        }
    }
}
