//! The API as GSE's callers know it: paths, logins, names of fields, keys of results.

use crate::up;
use procfleet_testkit::{Op, Outcome, Up, programs};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const PREFIXES: [&str; 4] = [
    "/api/c/compapi/v2/gse",
    "/api/bk-gse/prod/api/v2/proc",
    "/api/v2/proc",
    "/api/c/compapi/v2/gse/api/v2/proc",
];

/// A request that succeeds at once, whatever runs: to leave alone what is not hosted.
fn unhost(up: &Up, name: &str) -> Value {
    up.proc(name).starts(&programs::foreground()).body(Op::Unhost)
}

#[track_caller]
fn key_of(results: &[(String, Outcome)]) -> &str {
    assert_eq!(results.len(), 1, "{results:?}");
    results[0].1.assert_success();
    &results[0].0
}

#[test]
fn every_path_with_and_without_a_slash() {
    let up = up();
    let mut serial = 0;
    for prefix in PREFIXES {
        for slash in ["", "/"] {
            serial += 1;
            let body = unhost(&up, &format!("p{serial}"));
            let task = up.client.post(&format!("{prefix}/operate_proc_v2{slash}"), body.clone()).task();
            let results = up.client.results(&task);
            assert_eq!(key_of(&results), format!("0:127.0.0.1:{}:p{serial}", up.namespace));
            let path = format!("{prefix}/get_proc_operate_result_v2{slash}");
            let same = up.client.post(&path, json!({"task_id": task})).data();
            assert_eq!(same.as_object().expect("an object").keys().collect::<Vec<_>>(), [key_of(&results)]);
            let many = json!({"proc_operate_req": [body]});
            let task = up.client.post(&format!("{prefix}/operate_proc_multi{slash}"), many).task();
            assert_eq!(key_of(&up.client.results(&task)), key_of(&results));
        }
    }
}

#[test]
fn the_content_type_does_not_matter() {
    let up = up();
    let mut body = unhost(&up, "typed");
    body["bk_app_code"] = json!(up.client.app_code);
    body["bk_app_secret"] = json!(up.client.app_secret);
    body["bk_username"] = json!("admin");
    let none: &[(&str, &str)] = &[];
    for headers in [
        none,
        &[("Content-Type", "application/json")],
        &[("Content-Type", "text/plain")],
        &[("Content-Type", "application/x-www-form-urlencoded")],
        &[("Content-Type", "nonsense")],
    ] {
        let raw =
            up.client.raw("/api/c/compapi/v2/gse/operate_proc_v2/", headers, body.to_string().as_bytes());
        up.client.outcome(&raw.answer().task()).assert_success();
    }
}

#[test]
fn the_login_may_be_in_the_header() {
    let up = up();
    let task = up.client.post_with_header("/api/v2/proc/operate_proc_v2", &unhost(&up, "header")).task();
    up.client.outcome(&task).assert_success();
    let list = up.client.data("/api/v1/tasks");
    assert_eq!(
        (&list[0]["bk_app_code"], &list[0]["bk_username"]),
        (&json!(up.client.app_code), &json!("admin"))
    );

    // The header wins where it is present.
    let mut body = unhost(&up, "header");
    body["bk_app_code"] = json!(up.client.app_code);
    body["bk_app_secret"] = json!(up.client.app_secret);
    let mut stranger = up.client.clone();
    stranger.app_secret = "wrong".to_owned();
    stranger.post_with_header("/api/v2/proc/operate_proc_v2", &body).assert_refused(1306403, &[]);
    let garbled = [("X-Bkapi-Authorization", "not json")];
    let raw = up.client.raw("/api/v2/proc/operate_proc_v2", &garbled, body.to_string().as_bytes());
    raw.answer().assert_refused(1306403, &["X-Bkapi-Authorization"]);
}

#[test]
fn every_answer_is_in_the_envelope() {
    let up = up();
    let answer = up.client.post("/api/v2/proc/operate_proc_v2", unhost(&up, "framed"));
    let fields: Vec<&str> = answer.body.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(fields, ["result", "code", "message", "data", "request_id"]);
    assert!(answer.body["request_id"].as_str().is_some_and(|id| !id.is_empty()));
    let refused = up.client.post("/api/v2/proc/operate_proc_v2", json!({}));
    let fields: Vec<&str> = refused.body.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(fields, ["result", "code", "message", "data", "request_id"]);

    // A request that is not a call has a request id, too: the caller's own, or a new one.
    for (method, path, status) in
        [("POST", "/api/v9/nothing", 404), ("GET", "/", 404), ("DELETE", "/api/v1/agents", 405)]
    {
        let answer = up.client.send(method, path, &[], b"").answer();
        assert_eq!(answer.status, status, "{method} {path}");
        let made = answer.body["request_id"].as_str().expect("a text").to_owned();
        assert!(!made.is_empty(), "{method} {path}: {}", answer.body);
        let own = up.client.send(method, path, &[("X-Bkapi-Request-Id", "7c2f")], b"").answer();
        assert_eq!(own.body["request_id"], "7c2f", "{method} {path}");
    }
}

/// Every habit of real callers in one request: it is accepted and works.
#[test]
fn unusual_but_common_requests_are_accepted() {
    let up = up();
    type Habit = (&'static str, fn(&mut Value));
    let habits: &[Habit] = &[
        ("monitor-policy", |body| {
            let spec = body["spec"].as_object_mut().expect("an object");
            let policy = spec.remove("alive_monitor_policy").expect("it is there");
            spec.insert("monitor_policy".to_owned(), policy);
        }),
        ("integer-labels", |body| {
            body["meta"]["labels"] = json!({"bk_process_id": 1234, "ok": true, "none": null})
        }),
        ("null-labels", |body| body["meta"]["labels"] = Value::Null),
        ("no-op-type", |body| _ = body.as_object_mut().expect("an object").remove("op_type")),
        ("op-type-as-text", |body| body["op_type"] = json!("0")),
        ("unknown-fields", |body| {
            body["no_request"] = json!(true);
            body["nodeman_spec"] = json!({"deep": [1, 2, {"er": null}]});
            body["bk_supplier_account"] = json!("0");
            body["spec"]["identity"]["surprise"] = json!(1);
            body["hosts"][0]["bk_supplier_id"] = json!(0);
        }),
        ("crotab", |body| {
            body["spec"]["alive_monitor_policy"]["crotab_rule"] = json!("");
            body["spec"]["alive_monitor_policy"]["crontab_rule"] = json!("");
        }),
        ("reserved", |body| {
            body["spec"]["warn_report_policy"] = json!({"report_id": 0});
            body["spec"]["configmap"] = json!([{"path": "", "md5": ""}]);
            body["spec"]["resource"] = json!({"cpu": 10.0, "mem": 0});
        }),
        ("null-times", |body| {
            body["spec"]["alive_monitor_policy"]["op_timeout"] = Value::Null;
            body["spec"]["alive_monitor_policy"]["stop_check_secs"] = Value::Null;
            body["spec"]["alive_monitor_policy"]["start_retries"] = Value::Null;
        }),
        ("zero-times", |body| {
            body["spec"]["alive_monitor_policy"]["op_timeout"] = json!(0);
            body["spec"]["alive_monitor_policy"]["stop_check_secs"] = json!(0);
            body["spec"]["alive_monitor_policy"]["start_interval"] = json!(0);
        }),
        ("host-twice", |body| body["hosts"] = json!([body["hosts"][0], body["hosts"][0]])),
    ];
    let sent: Vec<_> = habits
        .iter()
        .map(|(name, change)| {
            let proc = up.proc(name).starts(&programs::foreground());
            let mut body = proc.body(Op::Start);
            change(&mut body);
            (proc, up.client.operate(body))
        })
        .collect();
    for (proc, task) in sent {
        let outcome = up.client.outcome(&task);
        outcome.assert_success().assert_hosted(true);
        assert!(proc.pid().is_some(), "{}", proc.name);
    }
    let labels = up.client.data(&format!("/api/v1/procs?namespace={}&name=integer-labels", up.namespace));
    assert_eq!(labels[0]["labels"]["bk_process_id"], "1234");
}

/// A zero is "not set": a start with `start_check_secs` 0 is checked for the default time, 5 s.
#[test]
fn zero_seconds_are_the_default() {
    let up = up();
    let proc = up
        .proc("default")
        .starts(&programs::foreground())
        .policy("start_check_secs", 0)
        .policy("op_timeout", 0);
    let (outcome, took) = proc.timed(Op::Start);
    outcome.assert_success();
    assert!(took >= Duration::from_secs(5), "{took:?}");
}

#[test]
fn agents_may_be_named_by_their_ids() {
    let up = up();
    let agents = up.client.data("/api/v1/agents");
    let agent = agents[0]["bk_agent_id"].as_str().expect("an id is a text");
    let mut body = unhost(&up, "by-id");
    body["agent_id_list"] = json!([agent]);
    // Ignored where there are agents; it need not even be right.
    body["hosts"] = json!([{"ip": "10.9.9.9", "bk_cloud_id": 9}]);
    let task = up.client.operate(body.clone());
    assert_eq!(key_of(&up.client.results(&task)), format!("{agent}:{}:by-id", up.namespace));

    body["op_type"] = json!(2);
    let task = up.client.operate(body.clone());
    let (key, outcome) = up.client.results(&task).remove(0);
    assert_eq!(
        (key, outcome.content["bk_agent_id"].as_str()),
        (format!("{agent}:{}:by-id", up.namespace), Some(agent))
    );

    body["agent_id_list"] = json!([agent, "no-such-agent"]);
    let task = up.client.operate(body);
    let results = up.client.results(&task);
    let codes: Vec<u64> = results.iter().map(|(_, outcome)| outcome.code).collect();
    assert_eq!(codes, [0, 117]);
    assert_eq!(results[1].0, format!("no-such-agent:{}:by-id", up.namespace));
    results[1].1.assert_hosted(false);
}

#[test]
fn many_procs_in_one_task() {
    let up = up();
    let (one, two) =
        (up.proc("one").starts(&programs::foreground()), up.proc("two").starts(&programs::exits(3)));
    let body = json!({"proc_operate_req": [one.body(Op::Start), two.body(Op::Start)]});
    let task = up.client.post("/api/v2/proc/operate_proc_multi", body).task();
    let now = up.client.results_now(&task);
    assert_eq!(now.keys().collect::<Vec<_>>(), [&one.key(), &two.key()]);
    assert_eq!(now[&one.key()], json!({"error_code": 115, "error_msg": "handling", "content": ""}));
    let results = up.client.results(&task);
    let ended: Vec<_> = results.iter().map(|(key, outcome)| (key.as_str(), outcome.code)).collect();
    assert_eq!(ended, [(one.key().as_str(), 0), (two.key().as_str(), 65535)]);
    results[1].1.assert_hosted(false);
}

/// One unknown host does not affect the other host.
#[test]
fn an_unknown_host_fails_alone() {
    let up = up();
    let proc = up.proc("two-hosts").starts(&programs::foreground());
    for op in [Op::Start, Op::Query] {
        let mut body = proc.body(op);
        body["hosts"] =
            json!([{"ip": "10.99.99.99", "bk_cloud_id": 7}, {"ip": "127.0.0.1", "bk_cloud_id": 0}]);
        let task = up.client.operate(body);
        let results = up.client.results(&task);
        let unknown = format!("7:10.99.99.99:{}:two-hosts", up.namespace);
        let keys: Vec<&str> = results.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, [unknown.as_str(), &proc.key()]);
        results[0].1.assert(117, "Can not find Agent by ip 7:10.99.99.99").assert_hosted(false);
        results[1].1.assert_success().assert_hosted(true);
        if op == Op::Query {
            assert_eq!(results[0].1.pid(), None);
        }
    }
}

#[test]
fn the_agents_status_is_1_or_0() {
    let up = up();
    let hosts =
        json!({"hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}, {"ip": "10.0.0.1", "bk_cloud_id": 3}]});
    for path in ["/api/c/compapi/v2/gse/get_agent_status/", "/api/c/compapi/v2/gse/get_agent_status"] {
        let data = up.client.post(path, hosts.clone()).data();
        assert_eq!(
            data,
            json!({
                "0:127.0.0.1": {"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_agent_alive": 1},
                "3:10.0.0.1": {"ip": "10.0.0.1", "bk_cloud_id": 3, "bk_agent_alive": 0},
            })
        );
    }
    let path = "/api/c/compapi/v2/gse/get_agent_status/";
    up.client.post(path, json!({})).assert_refused(1000811, &["hosts"]);
}

/// Everything that a caller reads of a status.
#[test]
fn the_content_of_a_query() {
    let up = up();
    let proc = up.proc("content").with_pid_file().starts(&programs::daemon());
    let fields = [
        "cmdline",
        "processName",
        "version",
        "health",
        "isAuto",
        "cpuUsage",
        "cpuUsageAve",
        "phyMemUsage",
        "usePhyMem",
        "diskSize",
        "pid",
        "startTime",
        "stat",
        "utime",
        "stime",
        "threadCount",
        "elapsedTime",
        "register_time",
        "last_start_time",
        "report_time",
    ];
    let pid = proc.start();
    let seen = proc.op(Op::Query);
    let outer: Vec<&str> = seen.content.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(outer, ["ip", "bk_agent_id", "utctime", "utctime2", "timezone", "process"]);
    let instance = seen.instance();
    assert_eq!(instance.as_object().expect("an object").keys().collect::<Vec<_>>(), fields);
    assert_eq!((&instance["pid"], &instance["processName"]), (&json!(pid), &json!("content")));
    assert_eq!(seen.content["process"][0]["procname"], "content");
    assert!(instance["cmdline"].as_str().is_some_and(|line| line.contains("web")), "{instance}");
    assert!(instance["usePhyMem"].as_u64().is_some_and(|kib| kib > 0), "{instance}");
    assert_eq!((&instance["stat"], &instance["threadCount"]), (&json!("S"), &json!(1)));
    for time in ["register_time", "last_start_time", "report_time"] {
        assert!(instance[time].as_i64().is_some_and(|at| at > 1_600_000_000), "{time}: {instance}");
    }
    assert!(instance["startTime"].as_str().is_some_and(|time| !time.is_empty()));

    proc.op(Op::Stop).assert_success();
    let seen = proc.op(Op::Query);
    let instance = seen.instance();
    assert_eq!(instance.as_object().expect("an object").keys().collect::<Vec<_>>(), fields);
    assert_eq!(
        (&instance["pid"], &instance["stat"], &instance["startTime"]),
        (&json!(-1), &json!(""), &json!(""))
    );
}

/// A repeated question gets the same answer.
#[test]
fn results_stay_the_same_when_read_again() {
    let up = up();
    let task = up.client.operate(unhost(&up, "stays"));
    let first = up.client.results(&task);
    let again = up.client.results(&task);
    assert_eq!(format!("{first:?}"), format!("{again:?}"));
}

/// The result may be asked for by GET, with the fields in the query.
#[test]
fn results_can_be_read_by_get() {
    let up = up();
    let task = up.client.operate(unhost(&up, "got"));
    let first = up.client.results(&task);
    let path = format!("/api/c/compapi/v2/gse/get_proc_operate_result_v2/?task_id={task}");
    let data = up.client.get(&path).data();
    assert_eq!(data.as_object().expect("an object").keys().collect::<Vec<_>>(), [key_of(&first)]);
    let login = format!(
        "&bk_app_code={}&bk_app_secret={}&bk_username=admin",
        up.client.app_code, up.client.app_secret
    );
    let page = up.client.page(&format!("{path}{login}"));
    assert_eq!(page.answer().data(), data);
}

/// Under another method than POST nothing is done, and the answer is in the envelope of the API.
#[test]
fn operations_are_accepted_by_post_only() {
    let up = up();
    let (login, body) = (up.client.authorization(), unhost(&up, "posted").to_string());
    let headers = [("X-Bkapi-Authorization", login.as_str()), ("X-Bkapi-Request-Id", "mine")];
    let gse = [
        "operate_proc",
        "operate_proc_v2",
        "operate_proc_multi",
        "register_proc_info",
        "update_proc_info",
        "unregister_proc_info",
        "set_process_group_info",
        "upgrade_to_agent_id",
    ];
    let job = ["operate_proc", "operate_process", "manage_proc"];
    let gse = gse.iter().flat_map(|api| PREFIXES.map(|prefix| (format!("{prefix}/{api}"), false)));
    let job = job.iter().flat_map(|api| {
        ["/api/c/compapi/v2/job", "/api/c/compapi/v2/jobv3", "/esb/api/v3"]
            .map(|prefix| (format!("{prefix}/{api}/"), true))
    });
    for (path, is_job) in gse.chain(job) {
        for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let answer = up.client.send(method, &path, &headers, body.as_bytes()).answer();
            assert_eq!(
                (answer.status, &answer.body["result"], &answer.body["code"], &answer.body["request_id"]),
                (405, &json!(false), &json!(1306404), &json!("mine")),
                "{method} {path}"
            );
            assert_eq!(answer.body.get("permission").is_some(), is_job, "{method} {path}: {answer:?}");
            assert_eq!(answer.body["message"], format!("{path} does not take {method}"));
        }
    }
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS"] {
        let query = up.client.send(method, "/api/v2/proc/get_proc_status_v2", &headers, body.as_bytes());
        assert_eq!(query.status, 405, "{method}");
    }
    assert_eq!(up.client.data("/api/v1/tasks"), json!([]));
    assert_eq!(up.client.data("/api/v1/procs"), json!([]));
}

/// BlueKing's SDK puts the login into the query of a GET, whether there is a body or not. It is written down
/// nowhere.
#[test]
fn a_login_in_the_query_of_a_get_is_accepted_and_never_logged() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let talkative = folder.path().join("procfleet");
    let program = env!("CARGO_BIN_EXE_procfleet");
    let script = format!("#!/bin/sh\nexport PROCFLEET_LOG=trace\nexec {program} \"$@\"\n");
    std::fs::write(&talkative, script).expect("a file");
    std::fs::set_permissions(&talkative, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    let up = Up::start(&talkative);
    let (code, secret) = (&up.client.app_code, &up.client.app_secret);
    let hosts = json!({"hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}]}).to_string();
    let path = "/api/c/compapi/v2/gse/get_agent_status/";
    let ask = |query: &str, body: &str| {
        up.client.send("GET", &format!("{path}?{query}"), &[], body.as_bytes()).answer()
    };
    let login = format!("bk_app_code={code}&bk_app_secret={secret}&bk_username=admin");
    let in_query = "hosts=%5B%7B%22ip%22%3A%22127.0.0.1%22%2C%22bk_cloud_id%22%3A0%7D%5D";
    ask(&format!("{login}&{in_query}"), "").data();
    ask(&login, &hosts).data();
    ask(&format!("{login}&bk_ticket=hush-ticket&{in_query}"), "").data();
    let wrong = format!("bk_app_code={code}&bk_app_secret=hush-secret");
    ask(&wrong, &hosts).assert_refused(1306403, &["bk_app_code or bk_app_secret is wrong"]);
    let token = format!("bk_app_code={code}&bk_app_secret={secret}&bk_token=hush-token");
    ask(&token, &hosts).assert_refused(1306402, &[]);
    ask(&format!("{login}&task_id=1"), "{").assert_refused(1000112, &[]);
    up.client.send("PUT", &format!("{path}?{login}"), &[], b"");
    up.client.send("GET", &format!("/nowhere?{login}"), &[], b"");
    let audit = up.client.data("/api/v1/audit").to_string();
    let metrics = up.client.page("/metrics").text;
    assert!(up.stderr().contains("a call was refused"), "the log says something of them");
    for (output, text) in [("log", up.stderr()), ("audit", audit), ("metrics", metrics)] {
        for word in [secret.as_str(), "hush-secret", "hush-token", "hush-ticket"] {
            assert!(!text.contains(word), "{word} is in the {output}");
        }
    }
}

/// However often a host is named in one request, it is one op.
#[test]
fn a_host_that_is_named_twice_gets_one_op() {
    let up = up();
    let mut body = unhost(&up, "twice");
    let host = json!({"ip": "127.0.0.1", "bk_cloud_id": 0});
    let ops = |task: &str| up.client.data(&format!("/api/v1/tasks/{task}"))["ops"].as_array().map(Vec::len);
    body["hosts"] = json!([host, {"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_supplier_id": 0}, host]);
    assert_eq!(ops(&up.client.operate(body.clone())), Some(1));
    body["hosts"] =
        json!([{"ip": "fd00::1", "bk_cloud_id": 0}, {"ip": "fd00:0:0:0::0001", "bk_cloud_id": 0}]);
    assert_eq!(ops(&up.client.operate(body.clone())), Some(1));
    let task = up.client.post("/api/v2/proc/operate_proc_multi", json!({"proc_operate_req": [body]})).task();
    assert_eq!(ops(&task), Some(1));
    let agent = up.client.data("/api/v1/agents")[0]["bk_agent_id"].clone();
    body["agent_id_list"] = json!([agent, agent]);
    assert_eq!(ops(&up.client.operate(body)), Some(1));
}

/// The server tells what it serves: for programs, and for people in their language.
#[test]
fn the_document_is_served() {
    let up = up();
    let page = up.client.page("/api/openapi.json");
    let document: Value = serde_json::from_str(&page.text).expect("the document is JSON");
    assert_eq!((page.status, document["openapi"].as_str()), (200, Some("3.1.1")));
    assert!(document["paths"]["/api/c/compapi/v2/gse/operate_proc_v2/"]["post"].is_object());
    for (wanted, first) in [("zh-CN,zh;q=0.9", "<html lang=\"zh\">"), ("en-GB, zh", "<html lang=\"en\">")] {
        let page = up.client.send("GET", "/docs", &[("Accept-Language", wanted)], b"");
        assert_eq!(page.status, 200);
        assert!(page.text.contains(first), "{wanted}: {first} is not there");
        for word in ["id=\"operate_proc_v2\"", "alive_monitor_policy", "进程操作", "Operate a process"] {
            assert!(page.text.contains(word), "{word} is not there");
        }
        for danger in ["<script", "src=", "<link", "@import", "url("] {
            assert!(!page.text.contains(danger), "the page asks for something else: {danger}");
        }
    }
}
