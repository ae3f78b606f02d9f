//! GSE's first generation: processes are registered, then operated by name; keys name a supplier.

use crate::up;
use procfleet_testkit::{Op, PATIENCE, Proc, Signal, Up, is_running, kill, programs, wait_for, wait_until};
use serde_json::{Value, json};

const GSE: &str = "/api/c/compapi/v2/gse";

/// The body of `register_proc_info`: the spec of a proc, by supplier, with limits, and the policy under its
/// old name.
fn info(proc: &Proc) -> Value {
    let mut body = proc.body(Op::Start);
    let fields = body.as_object_mut().expect("an object");
    fields.remove("op_type");
    fields.insert("hosts".to_owned(), json!([{"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_supplier_id": 2}]));
    let spec = fields["spec"].as_object_mut().expect("an object");
    let policy = spec.remove("alive_monitor_policy").expect("a policy");
    spec.insert("monitor_policy".to_owned(), policy);
    spec.insert("resource".to_owned(), json!({"cpu": 10.0, "mem": 10.0, "fd": 10000, "disk": 100, "net": 0}));
    body
}

/// As [`info`], without the spec.
fn name(proc: &Proc) -> Value {
    let mut body = info(proc);
    body.as_object_mut().expect("an object").remove("spec");
    body
}

fn call(up: &Up, api: &str, body: Value) -> Value {
    up.client.post(&format!("{GSE}/{api}/"), body).data()
}

fn key(proc: &Proc) -> String {
    proc.key().replacen("0:", "0:2:", 1)
}

/// The one result of a call that is answered at once.
fn result(up: &Up, proc: &Proc, api: &str, body: Value) -> (u64, String) {
    let data = call(up, api, body);
    assert_eq!(data.as_object().map(|all| all.keys().cloned().collect::<Vec<_>>()), Some(vec![key(proc)]));
    let said = &data[key(proc)];
    assert_eq!(said["content"], "", "as the document shows it");
    (said["error_code"].as_u64().expect("a code"), said["error_msg"].as_str().expect("a message").to_owned())
}

fn operate(up: &Up, proc: &Proc, op_type: u32) -> Value {
    let mut body = name(proc);
    body["op_type"] = json!(op_type);
    let task = up.client.post(&format!("{GSE}/operate_proc/"), body).task();
    wait_for(PATIENCE, "an outcome", || {
        let data = call(up, "get_proc_operate_result", json!({"task_id": task}));
        let said = data[key(proc)].clone();
        assert!(said.is_object(), "the key of the first generation: {data}");
        (said["error_code"] != 115).then_some(said)
    })
}

#[test]
fn a_process_is_registered_operated_by_name_and_unregistered() {
    let up = up();
    let proc = up.proc("old").starts(&programs::foreground());
    assert_eq!(operate(&up, &proc, 0)["error_code"], 801, "nobody has registered it");

    assert_eq!(result(&up, &proc, "register_proc_info", info(&proc)), (0, "success".to_owned()));
    let again = result(&up, &proc, "register_proc_info", info(&proc));
    assert_eq!(again, (850, "Fail to register, for the process info already exists.".to_owned()));
    assert_eq!(result(&up, &proc, "update_proc_info", info(&proc)).0, 0);

    assert_eq!(operate(&up, &proc, 0)["error_code"], 0);
    let pid = proc.pid().expect("it runs");
    assert_eq!(operate(&up, &proc, 1)["error_code"], 0);
    assert!(!is_running(pid));
    assert_eq!(operate(&up, &proc, 0)["error_code"], 0);
    let pid = proc.pid().expect("it runs");

    assert_eq!(result(&up, &proc, "unregister_proc_info", name(&proc)).0, 0);
    assert!(is_running(pid), "it is forgotten and goes on");
    assert_eq!(result(&up, &proc, "unregister_proc_info", name(&proc)).0, 829);
    assert_eq!(operate(&up, &proc, 1)["error_code"], 801);
    wait_until(PATIENCE, "it is no longer listed", || proc.row().is_none());
    kill(pid, Signal::KILL);
}

#[test]
fn an_update_takes_effect_at_the_next_start() {
    let up = up();
    let proc = up.proc("changing").starts("exit 3");
    assert_eq!(result(&up, &proc, "update_proc_info", info(&proc)).0, 0, "it need not be registered");
    assert_eq!(operate(&up, &proc, 0)["error_code"], 65535);
    let mended = up.proc("changing").starts(&programs::foreground());
    assert_eq!(result(&up, &mended, "update_proc_info", info(&mended)).0, 0);
    assert_eq!(operate(&up, &mended, 0)["error_code"], 0);
}

/// `disk` and `net` are reserved: they are accepted with a warning that they have no effect.
#[test]
fn reserved_limits_are_answered_with_a_warning() {
    let up = up();
    let proc = up.proc("reserved").starts(&programs::foreground());
    let said = |api: &str, body: Value| {
        let answer = up.client.post(&format!("{GSE}/{api}/"), body);
        answer.data();
        answer.body["message"].as_str().expect("a message").to_owned()
    };
    let mut body = info(&proc);
    body["spec"]["resource"] = json!({"cpu": 10.0, "mem": 10.0, "fd": 10000, "disk": 0, "net": 0});
    assert_eq!(said("register_proc_info", body.clone()), "success");
    body["spec"]["resource"]["disk"] = json!(100);
    let disk = "success; warning: spec.resource.disk: reserved, no limit is enforced (100 was sent)";
    assert_eq!(said("update_proc_info", body.clone()), disk);
    let mut query = proc.body(Op::Query);
    query["spec"]["resource"] = json!({"net": 7});
    let net = "success; warning: spec.resource.net: reserved, no limit is enforced (7 was sent)";
    assert_eq!(said("operate_proc_v2", query), net);
}

#[test]
fn a_request_names_its_missing_fields() {
    let up = up();
    let proc = up.proc("faulty").starts(&programs::foreground());
    let mut body = info(&proc);
    body["hosts"][0].as_object_mut().expect("an object").remove("bk_supplier_id");
    body["spec"].as_object_mut().expect("an object").remove("resource");
    let answer = up.client.post(&format!("{GSE}/register_proc_info/"), body);
    answer.assert_refused(1_000_811, &["hosts[0].bk_supplier_id: is required", "spec.resource: is required"]);
    let answer = up.client.post(&format!("{GSE}/update_proc_info/"), name(&proc));
    answer.assert_refused(1_000_811, &["spec: is required"]);
    let page = json!({"meta": {"namespace": "x"}, "page": {"start": 0, "limit": 1001}});
    up.client.post(&format!("{GSE}/sync_proc_status/"), page).assert_refused(1_000_811, &["page.limit"]);
}

#[test]
fn status_comes_from_the_states_that_agents_push() {
    let up = up();
    let proc = up.proc("seen").starts(&programs::foreground()).policy("start_interval", 600);
    let pid = proc.start();
    let ask = || {
        let infos =
            call(&up, "get_proc_status_v2", proc.body(procfleet_testkit::Op::Query))["proc_infos"].clone();
        infos.as_array().filter(|infos| infos.len() == 1).map(|infos| infos[0].clone())
    };
    let seen = wait_for(PATIENCE, "it is seen running", || ask().filter(|info| info["status"] == 1));
    assert_eq!((&seen["flag"], &seen["isauto"], &seen["pid"]), (&json!(1), &json!(true), &json!(pid)));
    assert_eq!(seen["host"]["ip"], "127.0.0.1");
    assert!(seen["bk_agent_id"].as_str().is_some_and(|id| id == seen["host"]["bk_agent_id"]));
    let old = call(&up, "get_proc_status", name(&proc))["proc_infos"][0].clone();
    assert_eq!((&old["host"]["bk_supplier_id"], &old["pid"]), (&json!(2), &json!(pid)));

    // It had not lived long, so it is not restarted at once: its death is to be seen.
    kill(pid, Signal::KILL);
    wait_until(PATIENCE, "its death is seen", || {
        ask().is_some_and(|info| info["status"] == 2 && info["pid"] == -1)
    });

    let page = |start: u32| {
        let body = json!({"meta": {"namespace": up.namespace}, "page": {"start": start, "limit": 1}});
        call(&up, "sync_proc_status", body)
    };
    assert_eq!((&page(0)["count"], page(0)["proc_infos"].as_array().map(Vec::len)), (&json!(1), Some(1)));
    assert_eq!(page(1)["proc_infos"], json!([]));
    let nobody =
        json!({"meta": {"namespace": "x", "name": "y"}, "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}]});
    assert_eq!(call(&up, "get_proc_status_v2", nobody)["proc_infos"], json!([]));
}

/// One answer may have 48 KiB of labels, so naming its host again must not repeat the answer.
#[test]
fn a_host_that_a_query_repeats_is_answered_once() {
    let up = up();
    let proc = up.proc("seen").starts(&programs::foreground());
    let pid = proc.start();
    proc.row_with_pid(pid);
    let meta = json!({"namespace": up.namespace, "name": "seen"});
    let id = up.client.data("/api/v1/agents")[0]["bk_agent_id"].as_str().expect("an id").to_owned();
    let host = |supplier: u32| json!({"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_supplier_id": supplier});
    let group = json!([{"id": "g", "resource": {"cpu_pool_limit": 0.0, "mem_pool_limit": 0.0, "cpu_pool_weight": 0, "mem_pool_weight": 0}}]);
    call(
        &up,
        "set_process_group_info",
        json!({"meta": meta, "hosts": [host(0)], "spec": {"process_group": group}}),
    );
    let hosts =
        json!([host(3), host(3), host(4), {"ip": "127.0.0.9", "bk_cloud_id": 0, "bk_supplier_id": 3}]);
    let ids = json!([id, id, "0:127.0.0.1", "00:127.0.0.1", "0:127.0.0.1"]);
    let (here, ids_once) = (json!(["127.0.0.1"]), json!([id, "0:127.0.0.1"]));
    for (api, targets, list, field, expected) in [
        ("get_proc_status", json!({"hosts": hosts}), "proc_infos", "ip", &here),
        ("get_proc_status", json!({"hosts": hosts}), "proc_infos", "bk_supplier_id", &json!([3])),
        ("get_proc_status_v2", json!({"hosts": hosts}), "proc_infos", "ip", &here),
        ("get_proc_status_v2", json!({"agent_id_list": ids}), "proc_infos", "bk_agent_id", &ids_once),
        (
            "get_process_group_info",
            json!({"hosts": hosts}),
            "process_group_infos",
            "bk_supplier_id",
            &json!([3]),
        ),
    ] {
        let mut body = targets;
        body["meta"] = meta.clone();
        let data = call(&up, api, body);
        let infos = data[list].as_array().expect("a list");
        let found: Vec<&Value> = infos.iter().map(|info| &info["host"][field]).collect();
        assert_eq!(json!(found), *expected, "{api}: {data}");
    }
}

#[test]
fn agents_are_listed_by_id_and_by_host() {
    let up = up();
    let id = up.client.data("/api/v1/agents")[0]["bk_agent_id"].as_str().expect("an id").to_owned();
    for prefix in
        ["/api/bk-gse/prod/api/v2/cluster", "/api/v2/cluster", "/api/c/compapi/v2/gse/api/v2/cluster"]
    {
        let ids = json!({"agent_id_list": [id, "nobody"]});
        let states = up.client.post(&format!("{prefix}/list_agent_state"), ids.clone()).data();
        assert_eq!(states.as_array().map(Vec::len), Some(1), "{states}");
        assert_eq!((&states[0]["bk_agent_id"], &states[0]["status_code"]), (&json!(id), &json!(2)));
        let infos = up.client.post(&format!("{prefix}/list_agent_info/"), ids).data();
        assert_eq!(
            (&infos[0]["bk_host_ip"], &infos[0]["bk_os_type"]),
            (&json!("127.0.0.1"), &json!("linux"))
        );
        let unknown =
            up.client.post(&format!("{prefix}/list_agent_state"), json!({"agent_id_list": ["nobody"]}));
        unknown.assert_refused(1_011_003, &["no agent is known"]);
    }
    let hosts =
        json!({"hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}, {"ip": "127.0.0.9", "bk_cloud_id": 0}]});
    let infos = call(&up, "get_agent_info", hosts);
    assert!(infos["0:127.0.0.1"]["version"].as_str().is_some_and(|version| !version.is_empty()), "{infos}");
    assert_eq!(infos["0:127.0.0.9"]["version"], "");
}
