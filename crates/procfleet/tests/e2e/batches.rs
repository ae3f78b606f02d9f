//! Batches with invalid elements: only these are rejected, and the others are carried out.

use crate::up;
use procfleet_testkit::{Op, PATIENCE, Proc, Up, is_running, programs, wait_for, wait_until};
use serde_json::{Map, Value, json};

const GSE: &str = "/api/c/compapi/v2/gse";
const JOB: &str = "/api/c/compapi/v2/job";

fn runs_once(up: &Up, name: &str) -> Proc {
    up.proc(name).policy("auto_type", 2).starts(&programs::exits(0))
}

fn multi(elements: &[Value]) -> Value {
    json!({"proc_operate_req": elements})
}

/// The results when all have ended.
#[track_caller]
fn results(up: &Up, task: &str) -> Map<String, Value> {
    wait_for(PATIENCE * 3, "the task ends", || {
        let now = up.client.results_now(task);
        now.values().all(|result| result["error_code"] != 115).then_some(now)
    })
}

#[track_caller]
fn check(results: &Map<String, Value>, expected: &[(&str, u64, &str)]) {
    let mut keys: Vec<&str> = expected.iter().map(|(key, _, _)| *key).collect();
    keys.sort_unstable();
    let mut found: Vec<&str> = results.keys().map(String::as_str).collect();
    found.sort_unstable();
    assert_eq!(found, keys);
    for (key, code, words) in expected {
        let result = &results[*key];
        let said = result["error_msg"].as_str().expect("a message is a text");
        assert!(result["error_code"] == *code && said.contains(words), "{key}: {result}");
        // Callers parse the content of failures, too.
        let content: Value = serde_json::from_str(result["content"].as_str().expect("a text")).expect("JSON");
        assert!(content["value"].is_array() || content["process"].is_array(), "{key}: {result}");
    }
}

#[test]
fn one_process_twice_in_a_batch_is_answered_once_under_its_key() {
    let up = up();
    let (twice, other) = (runs_once(&up, "twice"), runs_once(&up, "other"));
    let start = twice.body(Op::Start);
    let body = multi(&[start.clone(), other.body(Op::Start), start]);
    let answer = up.client.post(&format!("{GSE}/operate_proc_multi/"), body);
    assert_eq!(answer.body["message"], "success", "{}", answer.body);
    check(&results(&up, &answer.task()), &[(&twice.key(), 0, "success"), (&other.key(), 0, "success")]);
    assert_eq!((twice.runs(), other.runs()), (1, 1));
}

#[test]
fn two_requests_for_one_key_refuse_only_the_later_one() {
    let up = up();
    let (twice, other) = (up.proc("twice").starts(&programs::foreground()), runs_once(&up, "other"));
    let body = multi(&[twice.body(Op::Start), twice.body(Op::Stop), other.body(Op::Start)]);
    let answer = up.client.post(&format!("{GSE}/operate_proc_multi/"), body);
    let said = answer.body["message"].as_str().expect("a text").to_owned();
    assert!(said.contains("proc_operate_req[1]: refused: proc_operate_req[0]"), "{said}");
    let task = answer.task();
    let results = results(&up, &task);
    check(&results, &[(&twice.key(), 811, "proc_operate_req[0]"), (&other.key(), 0, "success")]);
    // The first of the two was carried out, and both are in the list of the task's operations.
    assert!(twice.pid().is_some_and(is_running), "it was started, and not stopped");
    let view = up.client.data(&format!("/api/v1/tasks/{task}"));
    let codes: Vec<&Value> =
        view["ops"].as_array().expect("a list").iter().map(|op| &op["error_code"]).collect();
    assert_eq!(codes, [&json!(0), &json!(0), &json!(811)], "{view}");
    // A refused element is not a failure of a host, so a retry does not repeat it.
    let retry = up.client.post(&format!("/api/v1/tasks/{task}/retry"), json!({}));
    retry.assert_refused(1_000_811, &["nothing to try again"]);
    twice.op(Op::Stop).assert_success();
}

#[test]
fn an_odd_element_of_a_batch_is_refused_for_itself() {
    let up = up();
    let fine = runs_once(&up, "fine");
    let named = |name: &str| runs_once(&up, name).body(Op::Start);
    let (mut no_user, mut no_op, mut no_ip, mut no_name) =
        (named("no-user"), named("no-op"), named("no-ip"), named("no-name"));
    no_user["spec"]["identity"]["user"] = json!("");
    no_op["op_type"] = json!(6);
    no_ip["hosts"][0]["ip"] = json!("");
    no_name["meta"]["name"] = json!("");
    let body = multi(&[no_user, no_op, json!("nothing"), fine.body(Op::Start), no_ip, no_name]);
    let answer = up.client.post(&format!("{GSE}/operate_proc_multi/"), body.clone());
    let said = answer.body["message"].as_str().expect("a text").to_owned();
    for words in [
        "proc_operate_req[0].spec.identity.user: refused for itself",
        "proc_operate_req[1].op_type: refused for itself",
        "proc_operate_req[2]: refused for itself: must be an object",
    ] {
        assert!(said.contains(words), "{words:?} is not in {said:?}");
    }
    let namespace = &up.namespace;
    let key = |name: &str| format!("0:127.0.0.1:{namespace}:{name}");
    let expected = [
        (key("no-user"), 811, "spec.identity.user: must not be empty"),
        (key("no-op"), 832, "6 is no operation"),
        (key("fine"), 0, "success"),
        (format!("0::{namespace}:no-ip"), 117, "hosts[0].ip: must not be empty"),
    ];
    let expected: Vec<(&str, u64, &str)> =
        expected.iter().map(|(key, code, words)| (key.as_str(), *code, *words)).collect();
    check(&results(&up, &answer.task()), &expected);
    assert_eq!((fine.runs(), runs_once(&up, "no-op").runs()), (1, 0));

    // Where nothing can be carried out, the call is refused as a whole, and all faults are named.
    let mut elements = body["proc_operate_req"].as_array().expect("a list").clone();
    elements.remove(3);
    let answer = up.client.post(&format!("{GSE}/operate_proc_multi/"), multi(&elements));
    answer.assert_refused(
        1_000_811,
        &["proc_operate_req[0].spec", "proc_operate_req[1].op_type", "proc_operate_req[4].meta.name"],
    );
}

#[test]
fn an_odd_host_is_refused_for_itself() {
    let up = up();
    let proc = runs_once(&up, "hosts");
    let hosts = json!([{"ip": "127.0.0.1", "bk_cloud_id": 0}, {"ip": "", "bk_cloud_id": 3}, {"ip": "x y", "bk_cloud_id": 0},
        null, {"ip": "127.0.0.1"}]);
    let mut body = proc.body(Op::Start);
    body["hosts"] = hosts.clone();
    let namespace = &up.namespace;
    let expected = [
        (proc.key(), 0, "success"),
        (format!("3::{namespace}:hosts"), 117, "hosts[1].ip: must not be empty"),
        (format!("0:x y:{namespace}:hosts"), 117, "is not an IP address"),
        (format!(":127.0.0.1:{namespace}:hosts"), 117, "bk_cloud_id: is required"),
    ];
    let expected: Vec<(&str, u64, &str)> =
        expected.iter().map(|(key, code, words)| (key.as_str(), *code, *words)).collect();
    check(&results(&up, &up.client.operate(body)), &expected);

    // Agents by their ids: those that CMDB does not know have an empty one.
    let mut body = proc.body(Op::Start);
    body["agent_id_list"] = json!(["", "0:127.0.0.1", 5]);
    let task = up.client.operate(body);
    let (nobody, here) = (format!(":{namespace}:hosts"), proc.key());
    check(&results(&up, &task), &[(&nobody, 117, "agent_id_list[0]: is empty"), (&here, 0, "success")]);

    // A caller that asks for many is answered for the valid ones.
    let meta = &proc.request["meta"];
    wait_until(PATIENCE, "the process is known", || {
        let status =
            up.client.post(&format!("{GSE}/get_proc_status_v2/"), json!({"meta": meta, "hosts": hosts}));
        status.data()["proc_infos"].as_array().is_some_and(|infos| infos.len() == 1)
    });
    let alive = up.client.post(&format!("{GSE}/get_agent_status/"), json!({"hosts": hosts})).data();
    let shown: Vec<(&str, &Value)> = alive
        .as_object()
        .expect("an object")
        .iter()
        .map(|(key, row)| (&**key, &row["bk_agent_alive"]))
        .collect();
    assert_eq!(alive["0:127.0.0.1"]["bk_agent_alive"], 1, "{shown:?}");
    assert_eq!(alive["3:"], json!({"ip": "", "bk_cloud_id": 3, "bk_agent_alive": 0}));
    assert_eq!(shown.len(), 4);
    let info = up.client.post(&format!("{GSE}/get_agent_info/"), json!({"hosts": hosts})).data();
    assert_eq!((&info["3:"]["version"], info["0:127.0.0.1"]["version"] == ""), (&json!(""), false));
    let states = json!({"agent_id_list": ["", "0:127.0.0.1", "a b"]});
    let states = up.client.post("/api/v2/cluster/list_agent_state", states).data();
    assert_eq!(states.as_array().map(Vec::len), Some(1), "{states}");
}

#[test]
fn an_odd_element_of_jobs_lists_is_refused_for_itself() {
    let up = up();
    let info = |name: &str, hosts: Value| {
        let folder = up.folder(&format!("job/{name}"));
        json!({"setup_path": folder, "proc_name": name, "pid_path": format!("{}/{name}.pid", folder.display()),
            "account": procfleet_testkit::account(), "type": 2, "start_cmd": "true", "value_key": name, "ip_list": hosts})
    };
    let here = json!([{"ip": "127.0.0.1", "bk_cloud_id": 0}, {"ip": "", "bk_cloud_id": 0}]);
    let mut no_path = info("no-path", here.clone());
    no_path["type"] = json!("x");
    let infos = json!([info("fine", here.clone()), no_path, info("fine", here.clone())]);
    let body = json!({"bk_biz_id": 1, "op_type": 0, "process_infos": infos});
    let answer = up.client.post(&format!("{JOB}/operate_process/"), body);
    assert_eq!(answer.body["result"], true, "{}", answer.body);
    let said = answer.body["message"].as_str().expect("a text");
    assert!(said.contains("process_infos[1].type: refused for itself"), "{said}");
    let task = answer.body["data"]["bk_gse_taskid"].as_str().expect("a task").to_owned();
    let ask = || {
        let body = json!({"bk_biz_id": 1, "bk_gse_taskid": task});
        up.client.post(&format!("{JOB}/get_proc_result/"), body).body["data"].clone()
    };
    let done = wait_for(PATIENCE * 3, "the task ends", || Some(ask()).filter(|data| data["status"] == 0));
    let codes: Vec<(&str, &Value)> = done["result"]
        .as_object()
        .expect("an object")
        .iter()
        .map(|(key, result)| (&**key, &result["error_code"]))
        .collect();
    for (key, code) in
        [("fine:0:127.0.0.1", 0), ("fine:0:", 117), ("no-path:0:127.0.0.1", 811), ("no-path:0:", 811)]
    {
        assert!(codes.contains(&(key, &json!(code))), "{key}: {codes:?}");
    }
    assert_eq!(codes.len(), 4, "{codes:?}");
}

/// A caller that does not know an agent's id asks for `cloud:ip`, and looks for that name in the answer.
#[test]
fn agents_and_processes_are_answered_by_the_id_that_was_asked_for() {
    let up = up();
    let proc = up.proc("labelled").starts(&programs::foreground());
    proc.start();
    let agents = up.client.data("/api/v1/agents");
    let id = agents[0]["bk_agent_id"].as_str().expect("an id").to_owned();
    let asked = json!(["0:127.0.0.1", id]);
    for api in ["list_agent_state", "list_agent_info"] {
        let body = json!({"agent_id_list": asked});
        let rows = up.client.post(&format!("/api/v2/cluster/{api}"), body).data();
        let ids: Vec<&Value> =
            rows.as_array().expect("a list").iter().map(|row| &row["bk_agent_id"]).collect();
        assert_eq!(json!(ids), asked, "{api}");
    }
    // The labels of a query do not exclude what its name finds.
    let meta =
        json!({"namespace": up.namespace, "name": "labelled", "labels": {"proc_name": "other", "more": "x"}});
    let body = json!({"meta": meta, "agent_id_list": asked});
    let infos = wait_for(PATIENCE, "the process is known", || {
        let answer = up.client.post(&format!("{GSE}/get_proc_status_v2/"), body.clone());
        let infos = answer.data()["proc_infos"].as_array().expect("a list").clone();
        (infos.len() == 2).then_some(infos)
    });
    let ids: Vec<&Value> = infos.iter().map(|info| &info["bk_agent_id"]).collect();
    assert_eq!(json!(ids), asked);
    let hosts = json!([{"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_supplier_id": 0}]);
    let answer = up.client.post(&format!("{GSE}/get_proc_status/"), json!({"meta": meta, "hosts": hosts}));
    assert_eq!(answer.data()["proc_infos"][0]["meta"]["name"], "labelled");
    proc.op(Op::Stop).assert_success();
}
