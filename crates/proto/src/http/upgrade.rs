//! `upgrade_to_agent_id`: hosts, and the agent id that each is to be addressed by from now on.
//!
//! The node manager calls it when it moves hosts from GSE's first generation, which identifies a host by its
//! address, to the second, which uses the agent's id. Procs that were stored under the address must then be
//! found under the id. The answer's `data` is `{"success": ["0:127.0.0.1"], "failed": []}`.

use super::batch::{NamedHost, ReadElement, settle};
use super::fault::Faults;
use super::read::{Reader, RequestBody};
use procfleet_core::id::AgentId;
use schemars::JsonSchema;
use serde::Serialize;

/// A host and the id that the caller has for it; `None`: that can be no id.
pub type Wanted = (NamedHost, Option<AgentId>);

pub fn upgrade_to_agent_id<'v>(body: impl Into<RequestBody<'v>>) -> Result<Vec<Wanted>, Faults> {
    let mut faults = Faults::default();
    let Some(reader) = Reader::root(body, &mut faults) else { return Err(faults) };
    reader.require_filled_list("hosts", &mut faults);
    let elements = reader.elements("hosts", &mut faults).into_iter().map(read_wanted).collect();
    let hosts = settle(elements, &mut faults);
    if faults.is_empty() { Ok(hosts) } else { Err(faults) }
}

fn read_wanted(element: Result<Reader<'_>, Faults>) -> ReadElement<Wanted> {
    let element = match element {
        Ok(element) => element,
        Err(own) => return (None, own),
    };
    let mut own = Faults::default();
    let host = NamedHost::read(&element, &mut own);
    let id = element.required_text("bk_agent_id", AgentId::MAX_LEN, &mut own);
    let agent = id.parse::<AgentId>();
    // Missing and too long values were already reported.
    if let Err(reason) = &agent
        && !id.is_empty()
        && id.len() <= AgentId::MAX_LEN
    {
        own.add(element.path("bk_agent_id"), reason.to_string());
    }
    (Some((host, agent.ok())), own)
}

/// The hosts by whether they are addressed by the ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Upgraded {
    pub success: Vec<String>,
    pub failed: Vec<String>,
}

/// The answer's data, from each host and whether it is addressed by the id.
pub fn render(hosts: impl IntoIterator<Item = (NamedHost, bool)>) -> Upgraded {
    let (mut success, mut failed) = (Vec::new(), Vec::new());
    for (host, so) in hosts {
        if so { &mut success } else { &mut failed }.push(host.name);
    }
    Upgraded { success, failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_fault_is_named() {
        let body =
            json!({"hosts": [{"ip": "10.0.0.1", "bk_cloud_id": 0}, {"ip": "x", "bk_agent_id": "a b"}]});
        let faults_text = upgrade_to_agent_id(&body).expect_err("faults").to_string();
        for word in [
            "hosts[0].bk_agent_id: is required",
            "hosts[1].ip: \"x\" is not",
            "hosts[1].bk_cloud_id: is required",
            "hosts[1].bk_agent_id: contains",
        ] {
            assert!(faults_text.contains(word), "{word:?} is not in {faults_text:?}");
        }
        let faults_text = upgrade_to_agent_id(&json!({})).expect_err("faults").to_string();
        assert_eq!(faults_text, "hosts: is required and must not be empty");
    }

    #[test]
    fn hosts_are_named_as_in_results() {
        let body = json!({"hosts": [{"ip": "10.0.0.1", "bk_cloud_id": 0, "bk_agent_id": "a"}]});
        let hosts = upgrade_to_agent_id(&body).expect("fine");
        let answer = render(hosts.into_iter().map(|(host, _)| (host, true)));
        assert_eq!(json!(answer), json!({"success": ["0:10.0.0.1"], "failed": []}));
    }
}
