//! How a task stands as a whole: `get_task_state`.

use crate::up;
use procfleet_testkit::{Op, PATIENCE, programs, wait_for};
use serde_json::{Value, json};

const PREFIXES: [&str; 3] =
    ["/api/bk-gse/prod/api/v2/task", "/api/v2/task", "/api/c/compapi/v2/gse/api/v2/task"];

#[test]
fn a_task_state_is_reported_for_each_agent() {
    let up = up();
    let agent = up.client.data("/api/v1/agents")[0]["bk_agent_id"].as_str().expect("an id").to_owned();
    let state = |body: Value| up.client.post("/api/v2/task/get_task_state", body);
    let ended = |task: &str| {
        wait_for(PATIENCE, "the task has ended", || {
            let result = state(json!({"task_id": task})).data()["result"].clone();
            (result["state"] != "executing").then_some(result)
        })
    };

    let slow = up.proc("slow").with_pid_file().starts(&programs::gated_daemon());
    let task = slow.submit(Op::Start).id;
    let data = state(json!({"task_id": task, "agent_id_list": []})).data();
    assert_eq!((&data["task_id"], &data["result"]["state"]), (&json!(task), &json!("executing")));
    assert_eq!(data["result"]["pending_agents"], json!([agent]));
    slow.open_gate(programs::GATE);
    let result = ended(&task);
    assert_eq!(
        result,
        json!({
            "state": "successed", "successed_agents": [agent], "timeout_agents": [], "failed_agents": [],
            "pending_agents": [], "offline_agents": [], "restarted_agents": [],
            "counts": {"total": 1, "open": 0, "succeeded": 1, "failed": 0},
        })
    );
    for prefix in PREFIXES {
        for slash in ["", "/"] {
            let path = format!("{prefix}/get_task_state{slash}");
            assert_eq!(up.client.post(&path, json!({"task_id": task})).data()["result"], result, "{path}");
        }
    }

    // A start that fails there, and one for an unknown host.
    let mut body = up.proc("failing").starts("exit 3").body(Op::Start);
    let unknown = json!({"ip": "127.0.0.9", "bk_cloud_id": 0});
    body["hosts"].as_array_mut().expect("a list").push(unknown);
    let task = up.client.operate(body);
    let result = ended(&task);
    assert_eq!(
        (&result["state"], &result["failed_agents"], &result["offline_agents"]),
        (&json!("failed"), &json!([agent]), &json!(["0:127.0.0.9"])),
        "{result}"
    );
    assert_eq!(result["counts"], json!({"total": 2, "open": 0, "succeeded": 0, "failed": 2}));
    let one = state(json!({"task_id": task, "agent_id_list": [agent]})).data()["result"].clone();
    assert_eq!((&one["failed_agents"], &one["offline_agents"]), (&json!([agent]), &json!([])));

    let none = state(json!({"task_id": task, "agent_id_list": ["nobody"]}));
    none.assert_refused(1_000_811, &["agent_id_list: names no agent of this task"]);
    let nobodys = "GSETASK:20190813145456:999";
    state(json!({"task_id": nobodys})).assert_refused(1_000_806, &[nobodys]);
    state(json!({"task_id": "x"})).assert_refused(1_000_806, &["\"x\""]);
    state(json!({})).assert_refused(1_000_811, &["task_id: is required"]);

    let secret = up.cli(&["app", "create", "web"]).stdout;
    let other = up.client.as_app("web", secret.trim_end());
    let answer = other.post_with_header("/api/v2/task/get_task_state", &json!({"task_id": task}));
    answer.assert_refused(1_000_806, &[&task]);
}
