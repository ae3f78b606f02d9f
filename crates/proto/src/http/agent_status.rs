//! `gse.get_agent_status`.

use super::fault::Faults;
use super::operate::read_hosts;
use super::read::Reader;
use procfleet_core::id::Host;
use serde_json::{Map, Value, json};

pub fn get_agent_status(body: &Value) -> Result<Vec<Host>, Faults> {
    let mut faults = Faults::default();
    let hosts = Reader::root(body, &mut faults).map(|r| read_hosts(&r, &mut faults)).unwrap_or_default();
    if faults.is_empty() { Ok(hosts) } else { Err(faults) }
}

/// `{"0:10.0.0.1": {"ip", "bk_cloud_id", "bk_agent_alive": 0 or 1}}`
pub fn answer(hosts: &[Host], alive: impl Fn(&Host) -> bool) -> Value {
    let rows = hosts.iter().map(|host| {
        let row = json!({
            "ip": host.ip.to_string(),
            "bk_cloud_id": host.cloud.0,
            "bk_agent_alive": u8::from(alive(host)),
        });
        (host.to_string(), row)
    });
    Value::Object(rows.collect::<Map<_, _>>())
}
