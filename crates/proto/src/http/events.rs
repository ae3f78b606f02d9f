//! Events: procfleet's own list, and GSE's format for webhooks.

use procfleet_core::id::{AgentId, Host, ProcKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// GSE's number for process events; a spec may name another one (`warn_report_policy.report_id`).
const DATA_ID: i64 = 1_100_008;

/// `GET /api/v1/events` (query: `after`, `limit`, `wait_ms`, `namespace`, `name`, `host`, `kind`).
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventsView {
    pub events: Vec<EventRow>,
    /// Pass this number as `after` to get the following events.
    pub last: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventRow {
    /// Increases in the order in which events arrive.
    pub number: u64,
    /// By the host's clock; milliseconds since 1970, UTC.
    pub at: i64,
    pub received_at: i64,
    pub bk_agent_id: String,
    pub bk_cloud_id: u32,
    pub ip: String,
    pub namespace: String,
    pub name: String,
    /// `exited`, `restart_succeeded`, `gave_up`, ...
    pub kind: String,
    pub message: String,
    /// The properties of the event.
    // Not parsed: as a tree, hostile JSON needs 150 times its size.
    pub details: Box<RawValue>,
}

/// One row of `GET /api/v1/webhooks`, and the answer to `POST`, whose body has only the url.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WebhookRow {
    pub id: u64,
    /// As [`without_secrets`] shows it.
    pub url: String,
    /// Seconds since 1970, UTC.
    pub created_at: i64,
    /// Number of events that wait for delivery.
    pub waiting: u64,
    /// Why the last try failed; empty if it did not.
    pub trouble: String,
}

/// A url as it may be shown: scheme and host. Account, path, query and fragment may hold secrets and are
/// shown as `***`.
pub fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let rest = if rest.is_empty() || rest == "/" { rest } else { "/***" };
    let scheme = if url.contains("://") { format!("{scheme}://") } else { String::new() };
    format!("{scheme}{host}{rest}")
}

/// An event in GSE's format.
#[derive(Clone, Copy, Debug)]
pub struct DeliveredEvent<'a> {
    pub agent: &'a AgentId,
    pub host: Host,
    pub proc: &'a ProcKey,
    pub proc_name: &'a str,
    pub kind: &'a str,
    pub message: &'a str,
    /// Milliseconds since 1970.
    pub at: i64,
    pub report_id: i64,
    /// Equal for all attempts to deliver it.
    pub id: &'a str,
}

/// The body of one delivery: events of one data id.
pub fn delivery<'a>(data_id: i64, events: impl Iterator<Item = DeliveredEvent<'a>>) -> Value {
    json!({"data_id": data_id, "data": events.map(element).collect::<Vec<_>>()})
}

/// Bytes of an event in the body of a delivery.
pub fn delivered_size(event: DeliveredEvent<'_>) -> usize {
    element(event).to_string().len() + ",".len()
}

/// The data id of an event.
pub fn data_id(report_id: i64) -> i64 {
    if report_id > 0 { report_id } else { DATA_ID }
}

fn element(event: DeliveredEvent<'_>) -> Value {
    json!({
        "event_name": event_name(event.kind),
        "event": {"content": event.message},
        "target": format!("{}|{}", event.host.ip, event.host.cloud),
        "timestamp": event.at,
        "dimension": {
            "bk_target_cloud_id": event.host.cloud.to_string(),
            "bk_target_ip": event.host.ip.to_string(),
            "bk_agent_id": event.agent.as_str(),
            "process_group_id": event.proc.namespace,
            "process_index": event.proc.to_string(),
            "process_name": if event.proc_name.is_empty() { &event.proc.name } else { event.proc_name },
            "event_id": event.id,
        },
    })
}

/// GSE's event name, or ours in the same style if GSE has none.
fn event_name(kind: &str) -> String {
    match kind {
        "restart_succeeded" => "process_restart_success".to_owned(),
        "restart_failed" => "process_restart_failed".to_owned(),
        "gave_up" => "process_cancel_restart".to_owned(),
        "over_limit" => "process_resource_limit_exceed".to_owned(),
        // An event of the host, not of a process.
        "agent_replaced" => kind.to_owned(),
        "group_over_limit" => "process_group_resource_limit_exceed".to_owned(),
        other => format!("process_{other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        let rows = [
            ("http://alarms.example.com", "http://alarms.example.com"),
            ("http://alarms.example.com/", "http://alarms.example.com/"),
            ("http://alarms.example.com:8080/procfleet", "http://alarms.example.com:8080/***"),
            ("https://ops:s3cret@alarms.example.com/a?b=c#d", "https://alarms.example.com/***"),
            ("https://ops:a:b@c@[::1]:8080", "https://[::1]:8080"),
            ("https://t0ken@alarms.example.com/", "https://alarms.example.com/"),
            ("https://alarms.example.com/a@b:c", "https://alarms.example.com/***"),
            ("https://alarms.example.com?key=1", "https://alarms.example.com/***"),
            ("https://alarms.example.com#key", "https://alarms.example.com/***"),
        ];
        for (url, shown) in rows {
            assert_eq!(without_secrets(url), shown);
        }
    }

    /// The example that a reader of GSE's events gives (reference, 4.5), and what we add to it.
    #[test]
    fn an_event_has_gses_shape() {
        let agent: AgentId = "a1".parse().expect("an agent id");
        let proc = ProcKey { namespace: "nodeman".to_owned(), name: "bkmonitorbeat".to_owned() };
        let event = DeliveredEvent {
            agent: &agent,
            host: "0:127.0.0.1".parse().expect("a host"),
            proc: &proc,
            proc_name: "bkmonitorbeat",
            kind: "restart_succeeded",
            message: "it was started again as pid 7",
            at: 1_618_382_611_690,
            report_id: 0,
            id: "j-4",
        };
        let expected = json!({"data_id": 1_100_008, "data": [{
            "event_name": "process_restart_success",
            "event": {"content": "it was started again as pid 7"},
            "target": "127.0.0.1|0",
            "timestamp": 1_618_382_611_690_i64,
            "dimension": {
                "bk_target_cloud_id": "0",
                "bk_target_ip": "127.0.0.1",
                "bk_agent_id": "a1",
                "process_group_id": "nodeman",
                "process_index": "nodeman:bkmonitorbeat",
                "process_name": "bkmonitorbeat",
                "event_id": "j-4",
            },
        }]});
        assert_eq!(delivery(data_id(event.report_id), [event].into_iter()), expected);
        assert_eq!(data_id(77), 77, "the spec's own alarm");
    }
}
