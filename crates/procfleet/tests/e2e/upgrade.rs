//! `upgrade_to_agent_id`: hosts and their agents' ids.

use crate::up;
use serde_json::json;

#[test]
fn a_host_is_addressed_by_its_agents_id() {
    let up = up();
    let agent = up.client.data("/api/v1/agents")[0]["bk_agent_id"].as_str().expect("an id").to_owned();
    let host = |ip: &str, id: &str| json!({"ip": ip, "bk_cloud_id": 0, "bk_agent_id": id});
    let path = "/api/bk-gse/prod/api/v2/proc/upgrade_to_agent_id";
    let hosts = json!({"hosts": [host("127.0.0.1", &agent), host("127.0.0.9", &agent)]});
    let answer = up.client.post(path, hosts.clone()).data();
    assert_eq!(answer, json!({"success": ["0:127.0.0.1"], "failed": ["0:127.0.0.9"]}));
    let others = json!({"hosts": [host("127.0.0.1", "another")]});
    assert_eq!(up.client.post(path, others).data(), json!({"success": [], "failed": ["0:127.0.0.1"]}));
    for path in [
        "/api/bk-gse/prod/api/v2/proc/upgrade_to_agent_id/",
        "/api/v2/proc/upgrade_to_agent_id",
        "/api/c/compapi/v2/gse/api/v2/proc/upgrade_to_agent_id/",
        "/api/c/compapi/v2/gse/upgrade_to_agent_id/",
    ] {
        assert_eq!(up.client.post(path, hosts.clone()).data(), answer, "{path}");
    }
    let faulty = json!({"hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}]});
    up.client.post(path, faulty).assert_refused(1_000_811, &["hosts[0].bk_agent_id: is required"]);

    // An app without grants sees no business, and so no host.
    let secret = up.cli(&["app", "create", "web"]).stdout;
    let other = up.client.as_app("web", secret.trim_end());
    let answer = other.post_with_header(path, &hosts).data();
    assert_eq!(answer, json!({"success": [], "failed": ["0:127.0.0.1", "0:127.0.0.9"]}));
}
