//! Process groups: set on the hosts while the caller waits, kept there, and heeded.

use crate::events::events_of;
use crate::limits::memory_share;
use crate::up;
use procfleet_testkit::{Answer, Client, Op, PATIENCE, Signal, Up, wait_for, wait_until};
use serde_json::{Value, json};

const GSE: &str = "/api/c/compapi/v2/gse";

fn group(id: &str, cpu: f64) -> Value {
    json!({"id": id, "resource": {"cpu_pool_limit": cpu, "mem_pool_limit": 0.0, "cpu_pool_weight": 0, "mem_pool_weight": 1}})
}

fn host(ip: &str) -> Value {
    json!({"ip": ip, "bk_cloud_id": 0, "bk_supplier_id": 2})
}

#[track_caller]
fn set(client: &Client, namespace: &str, hosts: Value, groups: Value) -> Answer {
    let meta = json!({"namespace": namespace, "name": "", "labels": {}});
    let body = json!({"meta": meta, "hosts": hosts, "spec": {"process_group": groups}});
    client.post_with_header(&format!("{GSE}/set_process_group_info/"), &body)
}

#[track_caller]
fn get(client: &Client, namespace: &str) -> Vec<Value> {
    let body = json!({"meta": {"namespace": namespace}, "hosts": [host("127.0.0.1"), host("127.0.0.9")]});
    let data = client.post_with_header(&format!("{GSE}/get_process_group_info/"), &body).data();
    data["process_group_infos"].as_array().expect("a list").clone()
}

fn ids(infos: &[Value]) -> Vec<&str> {
    infos.iter().map(|info| info["id"].as_str().expect("an id")).collect()
}

#[track_caller]
fn set_here(up: &Up, groups: Value) {
    let data = set(&up.client, &up.namespace, json!([host("127.0.0.1")]), groups).data();
    let result = json!({"error_code": 0, "error_msg": "success", "content": ""});
    assert_eq!(data, json!({format!("0:2:127.0.0.1:{}", up.namespace): result}));
}

#[test]
fn groups_are_set_shown_replaced_and_cleared() {
    let up = up();
    assert_eq!(get(&up.client, &up.namespace), Vec::<Value>::new());
    // A change is visible as soon as it is answered, each time.
    for round in 0..20 {
        let names = [format!("a{round}"), format!("b{round}")];
        set_here(&up, json!([group(&names[0], 20.5), group(&names[1], 0.0)]));
        assert_eq!(ids(&get(&up.client, &up.namespace)), names);
    }
    let infos = get(&up.client, &up.namespace);
    let mut expected = group("a19", 20.5);
    expected["meta"] = json!({"namespace": up.namespace, "name": "", "labels": {}});
    expected["host"] = host("127.0.0.1");
    assert_eq!(infos[0], expected);
    assert_eq!(get(&up.client, "another"), Vec::<Value>::new(), "each namespace has its own");
    set_here(&up, json!([]));
    assert_eq!(get(&up.client, &up.namespace), Vec::<Value>::new());

    // An unknown host fails alone.
    let hosts = json!([host("127.0.0.9"), host("127.0.0.1")]);
    let data = set(&up.client, &up.namespace, hosts, json!([group("x", 1.0)])).data();
    let code = |ip: &str| data[format!("0:2:{ip}:{}", up.namespace)]["error_code"].clone();
    assert_eq!((code("127.0.0.9"), code("127.0.0.1")), (json!(117), json!(0)), "{data}");
    assert_eq!(ids(&get(&up.client, &up.namespace)), ["x"]);

    let faulty =
        set(&up.client, "n", json!([{"ip": "127.0.0.1", "bk_cloud_id": 0}]), json!([group("", 101.0)]));
    let places =
        ["hosts[0].bk_supplier_id", "process_group[0].id", "process_group[0].resource.cpu_pool_limit"];
    faulty.assert_refused(1_000_811, &places);
    let procs = up.client.data("/api/v1/procs");
    assert_eq!(procs, json!([]), "a group is no process");
    let task = up.client.data("/api/v1/tasks?limit=1")[0].clone();
    let summary = task["summary"].as_str().unwrap_or_default();
    assert_eq!(summary, format!("group {} on 2 hosts", up.namespace));
}

#[test]
fn groups_outlive_the_programs_and_go_with_the_agents_data() {
    let mut up = up();
    set_here(&up, json!([group("kept", 5.0)]));
    up.kill_agent();
    assert_eq!(ids(&get(&up.client, &up.namespace)), ["kept"], "the agent has them still");
    up.end(Signal::TERM);
    up.again();
    up.wait_for_agent();
    assert_eq!(ids(&get(&up.client, &up.namespace)), ["kept"]);
    up.kill_all();
    up.again();
    assert_eq!(ids(&get(&up.client, &up.namespace)), ["kept"], "no report of it came since");

    // The agent's journal is lost, and its groups are no longer reported.
    up.end(Signal::TERM);
    for file in ["agent.db", "agent.db-wal", "agent.db-shm"] {
        let _ = std::fs::remove_file(up.data().join("agent").join(file));
    }
    let folder = up.data().join("agent");
    let repaired = up.cli(&["agent", "repair", "--data", folder.to_str().expect("a plain path")]);
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    up.again();
    wait_until(PATIENCE, "the groups are gone", || get(&up.client, &up.namespace).is_empty());
}

#[test]
fn groups_need_a_grant_and_all_accounts() {
    let up = up();
    let secret = up.cli(&["app", "create", "web"]).stdout;
    let app = up.client.as_app("web", secret.trim_end());
    let here = || json!([host("127.0.0.1")]);
    let groups = || json!([group("x", 1.0)]);
    let denied = set(&app, "web1", here(), groups());
    denied.assert_refused(1_306_403, &["namespace \"web1\"", "op group", "all accounts"]);
    let granted =
        up.cli(&["app", "grant", "web", "--namespace", "web*", "--op", "group", "--account", "www"]);
    assert_eq!(granted.code, Some(0), "{granted:?}");
    set(&app, "web1", here(), groups()).assert_refused(1_306_403, &["all accounts"]);
    let granted = up.cli(&["app", "grant", "web", "--account", "*"]);
    assert_eq!(granted.code, Some(0), "{granted:?}");
    let outside = set(&app, "web1", here(), groups()).data();
    assert_eq!(outside["0:2:127.0.0.1:web1"]["error_code"], 837, "{outside}");
    let granted = up.cli(&["app", "grant", "web", "--business", "1"]);
    assert_eq!(granted.code, Some(0), "{granted:?}");
    assert_eq!(set(&app, "web1", here(), groups()).data()["0:2:127.0.0.1:web1"]["error_code"], 0);
    assert_eq!(ids(&get(&app, "web1")), ["x"]);
    let body = json!({"meta": {"namespace": "db"}, "hosts": here()});
    let denied = app.post_with_header(&format!("{GSE}/get_process_group_info/"), &body);
    denied.assert_refused(1_306_403, &["namespace \"db\""]);
}

/// Two processes of a namespace use more memory together than its group allows, and the larger one is ended
/// for it. The group was set in an earlier life of the agent.
#[test]
fn a_namespace_that_uses_too_much_loses_its_largest_process() {
    let up = up();
    // The child has the memory: it waits for the end of a line that has none.
    let eats = |mebibytes: u64| {
        let bytes = mebibytes << 20;
        format!("echo run >> runs; (head -c {bytes} /dev/zero; exec ./web 1000) | tail -n 1")
    };
    let heavy = up.proc("heavy").policy("start_interval", 1).starts(&eats(120));
    let light = up.proc("light").starts(&eats(20));
    let mut limit = group("pool", 0.0);
    limit["resource"]["mem_pool_limit"] = json!(memory_share(90.0));
    set_here(&up, json!([limit]));
    up.kill_agent();
    let (first, modest) = (heavy.start(), light.start());
    let event = wait_for(PATIENCE, "the heavy one is found to be too much", || {
        events_of(&up, &heavy).into_iter().find(|event| event["kind"] == "group_over_limit")
    });
    // Else it would be ended again when it has come back.
    set_here(&up, json!([]));
    let details = &event["details"]["group_over_limit"];
    assert_eq!((&details["pool"], &details["group"]), (&json!("mem"), &json!("pool")), "{event}");
    assert_eq!((&details["victims"], &details["pid"]), (&json!(["heavy"]), &json!(first)), "{event}");
    assert_eq!(details["sums"].as_array().map(Vec::len), Some(3), "{event}");
    let message = event["message"].as_str().expect("a message");
    assert!(message.contains("exceeded a limit: mem ") && message.contains("of group pool"), "{message}");
    let row = wait_for(PATIENCE, "it comes back", || {
        heavy.row().filter(|row| row["state"] == "running" && row["pid"] != first)
    });
    assert!(
        row["note"].as_str().is_some_and(|note| note.contains("its namespace exceeded a limit")),
        "{row}"
    );
    assert_eq!((heavy.runs(), light.runs(), light.pid()), (2, 1, Some(modest)), "the light one goes on");
    let metrics = up.client.page("/metrics").text;
    assert!(metrics.contains("procfleet_events_total{kind=\"group_over_limit\"} 1"), "{metrics}");
    for proc in [heavy, light] {
        proc.op(Op::Kill).assert_success();
    }
}
