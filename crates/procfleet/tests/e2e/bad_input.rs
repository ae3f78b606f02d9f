//! Invalid requests are refused with a message: all faults at once, and nothing is stored.

use crate::up;
use procfleet_testkit::{Op, Up, programs};
use serde_json::{Value, json};
use std::fs;

const OPERATE: &str = "/api/c/compapi/v2/gse/operate_proc_v2/";
const MULTI: &str = "/api/c/compapi/v2/gse/operate_proc_multi/";

/// A change that makes a request invalid, the code, and the words that the message must have.
type Row = (fn(&mut Value), u64, &'static [&'static str]);

fn remove(body: &mut Value, path: &[&str]) {
    let (last, above) = path.split_last().expect("a path");
    let parent = above.iter().fold(body, |value, field| &mut value[*field]);
    parent.as_object_mut().expect("an object").remove(*last).expect("it was there");
}

#[track_caller]
fn assert_nothing_stored(up: &Up) {
    assert_eq!(up.client.data("/api/v1/tasks"), json!([]));
    assert_eq!(up.client.data("/api/v1/procs"), json!([]));
}

const ROWS: &[Row] = &[
    // Missing.
    (|b| remove(b, &["meta"]), 1000811, &["meta: is required"]),
    (|b| remove(b, &["meta", "namespace"]), 1000811, &["meta.namespace: is required"]),
    (|b| remove(b, &["meta", "name"]), 1000811, &["meta.name: is required"]),
    (|b| remove(b, &["hosts"]), 1000811, &["hosts: is required"]),
    (|b| b["hosts"] = json!([]), 1000811, &["hosts"]),
    (|b| b["hosts"] = json!(null), 1000811, &["hosts"]),
    (|b| b["hosts"] = json!([{}]), 1000811, &["hosts[0].ip", "hosts[0].bk_cloud_id"]),
    (|b| remove(b, &["spec", "identity"]), 1000811, &["spec.identity"]),
    (|b| remove(b, &["spec", "control"]), 1000811, &["spec.control"]),
    (|b| remove(b, &["spec", "alive_monitor_policy"]), 1000811, &["monitor_policy"]),
    (|b| remove(b, &["spec", "identity", "proc_name"]), 1000811, &["spec.identity.proc_name"]),
    (|b| remove(b, &["spec", "identity", "setup_path"]), 1000811, &["spec.identity.setup_path"]),
    (|b| remove(b, &["spec", "identity", "pid_path"]), 1000811, &["spec.identity.pid_path"]),
    (|b| remove(b, &["spec", "identity", "user"]), 1000811, &["spec.identity.user"]),
    (|b| remove(b, &["spec", "alive_monitor_policy", "auto_type"]), 1000811, &["auto_type"]),
    (|b| b["spec"] = json!({}), 1000811, &["spec.identity", "spec.control", "monitor_policy"]),
    // Empty.
    (|b| b["meta"]["namespace"] = json!(""), 1000811, &["meta.namespace"]),
    (|b| b["meta"]["name"] = json!("  "), 1000811, &["meta.name"]),
    (|b| b["spec"]["identity"]["user"] = json!(""), 1000811, &["spec.identity.user"]),
    // Ill-typed.
    (|b| b["meta"] = json!([]), 1000811, &["meta: must be an object"]),
    (|b| b["meta"]["name"] = json!(7), 1000811, &["meta.name: must be a string"]),
    (|b| b["meta"]["labels"] = json!("x"), 1000811, &["meta.labels"]),
    (|b| b["meta"]["labels"] = json!({"a": []}), 1000811, &["meta.labels.a"]),
    (|b| b["hosts"] = json!({"ip": "127.0.0.1"}), 1000811, &["hosts: must be an array"]),
    (|b| b["hosts"] = json!(["127.0.0.1"]), 1000811, &["hosts[0]: must be an object"]),
    (|b| b["hosts"][0]["ip"] = json!(127), 1000811, &["hosts[0].ip"]),
    (|b| b["hosts"][0]["bk_cloud_id"] = json!("zero"), 1000811, &["hosts[0].bk_cloud_id"]),
    (|b| b["hosts"][0]["bk_cloud_id"] = json!(0.5), 1000811, &["hosts[0].bk_cloud_id"]),
    (|b| b["agent_id_list"] = json!([7]), 1000811, &["agent_id_list[0]"]),
    (|b| b["agent_id_list"] = json!("x"), 1000811, &["agent_id_list"]),
    (|b| b["op_type"] = json!("start"), 1000811, &["op_type"]),
    (|b| b["op_type"] = Value::Null, 1000811, &["op_type", "must not be null"]),
    (|b| b["op_type"] = json!(true), 1000811, &["op_type"]),
    (|b| b["op_type"] = json!(1.5), 1000811, &["op_type"]),
    (|b| b["spec"] = json!("x"), 1000811, &["spec: must be an object"]),
    (|b| b["spec"]["control"] = json!(["x"]), 1000811, &["spec.control: must be an object"]),
    (|b| b["spec"]["control"]["start_cmd"] = json!(["ls"]), 1000811, &["spec.control.start_cmd"]),
    (
        |b| b["spec"]["alive_monitor_policy"]["start_check_secs"] = json!("5 s"),
        1000811,
        &["start_check_secs"],
    ),
    (|b| b["spec"]["resource"] = json!({"cpu": "much"}), 1000811, &["spec.resource.cpu"]),
    (|b| b["spec"]["configmap"] = json!({}), 1000811, &["spec.configmap"]),
    // Out of range.
    (|b| b["hosts"][0]["ip"] = json!("999.0.0.1"), 1000811, &["hosts[0].ip", "999.0.0.1"]),
    (|b| b["hosts"][0]["ip"] = json!("localhost"), 1000811, &["hosts[0].ip", "localhost"]),
    (|b| b["hosts"][0]["bk_cloud_id"] = json!(-1), 1000811, &["hosts[0].bk_cloud_id", "-1"]),
    (|b| b["hosts"][0]["bk_cloud_id"] = json!(99_999_999_999_u64), 1000811, &["hosts[0].bk_cloud_id"]),
    (|b| b["hosts"][0]["bk_cloud_id"] = json!(u64::MAX), 1000811, &["hosts[0].bk_cloud_id"]),
    (|b| b["spec"]["alive_monitor_policy"]["auto_type"] = json!(3), 1000811, &["auto_type", "3"]),
    (
        |b| b["spec"]["alive_monitor_policy"]["start_check_secs"] = json!(-1),
        1000811,
        &["start_check_secs", "-1"],
    ),
    (
        |b| b["spec"]["alive_monitor_policy"]["stop_check_secs"] = json!(1e12 as i64),
        1000811,
        &["stop_check_secs"],
    ),
    (|b| b["spec"]["alive_monitor_policy"]["op_timeout"] = json!(i64::MAX), 1000811, &["op_timeout"]),
    (|b| b["spec"]["alive_monitor_policy"]["start_interval"] = json!(i64::MIN), 1000811, &["start_interval"]),
    (|b| b["spec"]["alive_monitor_policy"]["start_retries"] = json!(-4), 1000811, &["start_retries"]),
    (
        |b| b["spec"]["resource"] = json!({"cpu": -1, "mem": 101}),
        1000811,
        &["spec.resource.cpu", "spec.resource.mem"],
    ),
    (|b| b["meta"]["name"] = json!("x".repeat(10_000)), 1000811, &["meta.name"]),
    (|b| b["meta"]["name"] = json!("a\nb"), 1000811, &["meta.name"]),
    (|b| b["spec"]["control"]["start_cmd"] = json!("a\0b"), 1000811, &["spec.control.start_cmd"]),
    (
        |b| b["spec"]["control"]["start_cmd"] = json!("x".repeat(100_000)),
        1000811,
        &["spec.control.start_cmd"],
    ),
    (|b| b["agent_id_list"] = json!(["x".repeat(65)]), 1000811, &["agent_id_list[0]"]),
    // No such operation.
    (|b| b["op_type"] = json!(5), 1000832, &["op_type", "5"]),
    (|b| b["op_type"] = json!(6), 1000832, &["op_type", "6"]),
    (|b| b["op_type"] = json!(-1), 1000832, &["op_type", "-1"]),
    (|b| b["op_type"] = json!(10), 1000832, &["op_type", "10"]),
    // It is not the only fault.
    (
        |b| {
            b["op_type"] = json!(5);
            b["meta"]["name"] = json!("");
        },
        1000811,
        &["op_type", "meta.name"],
    ),
    // All at once.
    (
        |b| {
            *b = json!({
                "meta": {"name": 1},
                "op_type": "start",
                "hosts": [{"ip": "x", "bk_cloud_id": -1}, {"ip": "127.0.0.1"}],
                "spec": {
                    "identity": {"setup_path": 5},
                    "control": {"start_cmd": {}},
                    "alive_monitor_policy": {"auto_type": 9, "op_timeout": -1, "start_retries": "many"},
                },
            });
        },
        1000811,
        &[
            "meta.namespace",
            "meta.name",
            "op_type",
            "hosts[0].ip",
            "hosts[0].bk_cloud_id",
            "hosts[1].bk_cloud_id",
            "spec.identity.proc_name",
            "spec.identity.setup_path",
            "spec.identity.pid_path",
            "spec.identity.user",
            "spec.control.start_cmd",
            "auto_type",
            "op_timeout",
            "start_retries",
        ],
    ),
    (|b| *b = json!({}), 1000811, &["meta", "hosts"]),
];

#[test]
fn every_fault_of_a_request_is_named_at_once() {
    let up = up();
    let good = up.proc("good").starts(&programs::foreground()).body(Op::Start);
    for (spoil, code, words) in ROWS {
        let mut body = good.clone();
        spoil(&mut body);
        let answer = up.client.post(OPERATE, body.clone());
        answer.assert_refused(*code, words);
        // As an element of many it has its place in the list. Beside a good one it would be refused for
        // itself.
        let many = up.client.post(MULTI, json!({"proc_operate_req": [body, body]}));
        many.assert_refused(*code, words);
        many.assert_refused(*code, &["proc_operate_req[1]"]);
    }
    assert_nothing_stored(&up);
}

#[test]
fn operate_proc_multi_requires_a_list() {
    let up = up();
    for (body, words) in [
        (json!({}), "proc_operate_req"),
        (json!({"proc_operate_req": []}), "proc_operate_req"),
        (json!({"proc_operate_req": {}}), "proc_operate_req: must be an array"),
        (json!({"proc_operate_req": [1]}), "proc_operate_req[0]: must be an object"),
    ] {
        up.client.post(MULTI, body).assert_refused(1000811, &[words]);
    }
    assert_nothing_stored(&up);
}

#[test]
fn a_body_that_is_not_json_is_refused() {
    let up = up();
    let login = up.client.authorization();
    let headers = [("X-Bkapi-Authorization", login.as_str()), ("Content-Type", "application/json")];
    for (body, code) in [
        ("{", 1000112),
        ("not json", 1000112),
        ("{\"meta\": }", 1000112),
        ("{} trailing", 1000112),
        ("{\"meta\": \"\u{1}\"}", 1000112),
        ("[]", 1000811),
        ("7", 1000811),
        ("null", 1000811),
        ("\"text\"", 1000811),
        ("", 1000811),
    ] {
        let answer = up.client.raw(OPERATE, &headers, body.as_bytes()).answer();
        answer.assert_refused(code, &[]);
    }
    up.client.raw(OPERATE, &headers, b"{\"meta\": \"\xff\"}").answer().assert_refused(1000112, &[]);
    assert_nothing_stored(&up);
}

/// Refused without memory for all of it.
#[test]
fn a_body_of_50_mb_is_refused() {
    let up = up();
    let login = up.client.authorization();
    let headers = [("X-Bkapi-Authorization", login.as_str())];
    let before = most_memory_kib(&up);
    let mut body = b"{\"meta\": \"".to_vec();
    body.resize(50_000_000, b'x');
    let answer = up.client.raw(OPERATE, &headers, &body);
    answer.answer().assert_refused(1000121, &["too large"]);
    let grown = most_memory_kib(&up) - before;
    eprintln!("50 MB refused: {grown} KiB more at most");
    assert!(grown < 30_000, "{grown} KiB for a body that is refused");
    assert_serves(&up);
}

/// Anybody can send large bodies before a login is read: they are read a few at a time, and none is lost.
#[test]
fn large_bodies_at_once_share_bounded_memory() {
    let up = up();
    let before = most_memory_kib(&up);
    let mut body = b"{\"meta\": \"".to_vec();
    body.resize(30_000_000, b'x');
    body.extend_from_slice(b"\"}");
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| up.client.raw(OPERATE, &[], &body).answer().assert_refused(1306403, &[]));
        }
    });
    let grown = most_memory_kib(&up) - before;
    eprintln!("12 bodies of 30 MB at once: {grown} KiB more at most");
    assert!(grown < 350_000, "{grown} KiB");
    assert_serves(&up);
}

#[test]
fn json_that_is_nested_10_000_deep_is_refused() {
    let up = up();
    let login = up.client.authorization();
    let headers = [("X-Bkapi-Authorization", login.as_str())];
    for body in [
        "[".repeat(10_000),
        "{\"a\":".repeat(10_000),
        format!("{{\"meta\": {}{}}}", "[".repeat(10_000), "]".repeat(10_000)),
        format!("{{\"meta\": {}1{}}}", "{\"a\":".repeat(10_000), "}".repeat(10_000)),
    ] {
        let answer = up.client.raw(OPERATE, &headers, body.as_bytes()).answer();
        answer.assert_refused(1000112, &["recursion"]);
    }
    assert_serves(&up);
}

#[track_caller]
fn assert_serves(up: &Up) {
    assert_nothing_stored(up);
    let proc = up.proc("after").starts(&programs::foreground());
    proc.start();
}

fn most_memory_kib(up: &Up) -> i64 {
    let status = fs::read_to_string(format!("/proc/{}/status", up.pid())).expect("up runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel says how much");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

#[test]
fn a_wrong_secret_is_refused_and_audited() {
    let up = up();
    let good = up.proc("good").starts(&programs::foreground()).body(Op::Start);
    let login = |code: &str, secret: &str| {
        let mut body = good.clone();
        body["bk_app_code"] = json!(code);
        body["bk_app_secret"] = json!(secret);
        body["bk_username"] = json!("mallory");
        body
    };
    let admin = up.client.app_code.clone();
    let wrong = [(admin.as_str(), "wrong"), ("nobody", up.client.app_secret.as_str()), ("nobody", "wrong")];
    for (code, secret) in wrong {
        let answer = up.client.post_as_it_is(OPERATE, &login(code, secret));
        answer.assert_refused(1306403, &["bk_app_code or bk_app_secret is wrong"]);
        assert!(!answer.body.to_string().contains(&up.client.app_secret));
    }
    up.client.post_as_it_is(OPERATE, &good).assert_refused(1306403, &["bk_app_code", "bk_app_secret"]);
    let mut stranger = up.client.clone();
    stranger.app_secret = "wrong".to_owned();
    stranger.get("/api/v1/tasks").assert_refused(1306403, &[]);
    stranger.post_with_header(OPERATE, &good).assert_refused(1306403, &[]);

    let audit = up.client.data("/api/v1/audit");
    let audit = audit.as_array().expect("the audit is a list");
    for (code, _) in wrong {
        let found = audit.iter().any(|row| {
            row["bk_app_code"] == code
                && row["action"] == "operate_proc_v2"
                && row["code"] == 1306403
                && row["from"] == "127.0.0.1"
                && row["bk_username"] == "mallory"
        });
        assert!(found, "{code} is not in {audit:?}");
    }
    assert!(audit.iter().any(|row| row["action"] == "tasks" && row["code"] == 1306403), "{audit:?}");
    let text = serde_json::to_string(audit).expect("it was JSON");
    assert!(!text.contains(&up.client.app_secret), "no secret is in the audit");
    assert_nothing_stored(&up);
}

#[test]
fn an_unknown_task_is_named() {
    let up = up();
    for task in ["GSETASK:20190813145456:8", "GSETASK:S:202111161138323563236795:143", "x"] {
        let path = "/api/c/compapi/v2/gse/get_proc_operate_result_v2/";
        up.client.post(path, json!({"task_id": task})).assert_refused(1000806, &[task]);
    }
    for body in [json!({}), json!({"task_id": ""}), json!({"task_id": 7})] {
        let path = "/api/c/compapi/v2/gse/get_proc_operate_result_v2/";
        up.client.post(path, body).assert_refused(1000811, &["task_id"]);
    }
}

#[test]
fn an_unknown_api_is_named() {
    let up = up();
    for path in ["/api/c/compapi/v2/gse/no_such_api/", "/api/v1/nothing", "/nowhere"] {
        let answer = up.client.post(path, json!({}));
        assert_eq!(
            (answer.status, &answer.body["result"], &answer.body["code"]),
            (404, &json!(false), &json!(1306404))
        );
        assert!(answer.body["message"].as_str().is_some_and(|message| message.contains(path)), "{answer:?}");
    }
    let answer = up.client.send("PUT", "/api/v1/agents", &[], b"").answer();
    let expected = (405, &json!(1306404), &json!("/api/v1/agents does not take PUT"));
    assert_eq!((answer.status, &answer.body["code"], &answer.body["message"]), expected);
}

/// If the bad user were ignored, the call would count as the app's own, and the audit record would name no
/// user.
#[test]
fn a_login_that_is_not_a_string_is_refused() {
    let up = up();
    let hosts = json!({"hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}]});
    for (field, value) in [("bk_token", json!(5)), ("bk_token", json!(["x"])), ("bk_username", json!({}))] {
        let mut body = hosts.clone();
        body["bk_app_code"] = json!(up.client.app_code);
        body["bk_app_secret"] = json!(up.client.app_secret);
        body[field] = value;
        let answer = up.client.post_as_it_is("/api/c/compapi/v2/gse/get_agent_status/", &body);
        answer.assert_refused(1306403, &[&format!("{field} must be a string")]);
        body[field] = json!(null);
        up.client.post_as_it_is("/api/c/compapi/v2/gse/get_agent_status/", &body).data();
    }
}

/// A fault that only the host can judge is that host's outcome, with a message.
#[test]
fn a_spec_that_a_host_cannot_use_fails_on_that_host() {
    let up = up();
    let proc = |name: &str| up.proc(name).starts(&programs::foreground()).control("reload_cmd", "true");
    let missing = up.folder("there").join("not-there");
    let file = up.folder("there").join("file");
    fs::write(&file, "").expect("our own folder");
    let rows = [
        (
            proc("relative").identity("setup_path", "some/folder"),
            106,
            "setup_path \"some/folder\" is not an absolute path",
        ),
        (proc("missing").identity("setup_path", missing.to_str()), 104, "not-there\" does not exist"),
        (proc("file").identity("setup_path", file.to_str()), 104, "is not a directory"),
        (
            proc("user").identity("user", "no-such-user-here"),
            122,
            "user \"no-such-user-here\" does not exist",
        ),
    ];
    for (proc, code, words) in rows {
        for op in [Op::Start, Op::Host, Op::Restart] {
            proc.op(op).assert(code, "").assert_says(words);
        }
        // There is nothing to stop, and nothing to tell otherwise.
        proc.op(Op::Stop).assert(829, "no need to stop");
        assert_eq!(proc.pid(), None);
    }
    proc("well").start();
}

/// Without a spec the stored one is used; where there is none, the outcome says so.
#[test]
fn an_op_without_a_spec_needs_a_known_proc() {
    let up = up();
    let proc = up.proc("unknown").starts(&programs::foreground()).control("reload_cmd", "true");
    let bare = proc.clone().without_spec();
    for op in [Op::Start, Op::Stop, Op::Query, Op::Host, Op::Restart, Op::Reload, Op::Kill] {
        let outcome = bare.op(op);
        outcome.assert(801, "").assert_says("spec").assert_hosted(false);
    }
    let pid = proc.start();
    bare.op(Op::Reload).assert_success().assert_hosted(true);
    assert_eq!(bare.pid(), Some(pid));
    bare.op(Op::Stop).assert_success();
    bare.op(Op::Start).assert_success();
    bare.op(Op::Kill).assert_success();
}

/// Callers that only want the status fill in the name and leave the rest empty.
#[test]
fn a_query_needs_only_a_name() {
    let up = up();
    let proc = up.proc("asked").with_pid_file().starts(&programs::daemon());
    let mut asked = proc.clone();
    asked.request["spec"] = json!({
        "identity": {"proc_name": "web", "setup_path": "", "pid_path": "", "user": ""},
        "control": {},
        "monitor_policy": {},
    });
    asked.op(Op::Query).assert(801, "");
    let pid = proc.start();
    assert_eq!(asked.pid(), Some(pid));
}

/// GSE's callers send fields that procfleet does not read, so these are not a fault; but the answer names a
/// typo such as `strat_cmd`.
#[test]
fn a_typo_in_a_spec_is_named() {
    let up = up();
    let proc = up.proc("typo").policy("auto_type", 2).starts("true");
    let mut body = proc.body(Op::Start);
    body["spec"]["control"]["strat_cmd"] = json!("false");
    body["spec"]["alive_monitor_policy"]["start_chek_secs"] = json!(7);
    body["spec"]["control"]["contact"] = json!("somebody");
    body["nodeman_spec"] = json!({});
    let answer = up.client.post("/api/v2/proc/operate_proc_v2", body.clone());
    let said = answer.body["message"].as_str().expect("a text").to_owned();
    for words in [
        "spec.control.strat_cmd: unknown and not used; did you mean start_cmd?",
        "spec.alive_monitor_policy.start_chek_secs: unknown and not used; did you mean start_check_secs?",
    ] {
        assert!(said.contains(words), "{words:?} is not in {said:?}");
    }
    assert!(!said.contains("contact") && !said.contains("nodeman"), "{said}");
    up.client.outcome(&answer.task()).assert_success();
    // Our own API says so, too.
    let mut own = json!({"meta": body["meta"], "spec": body["spec"], "op_type": 0, "select": ["127.0.0.1"]});
    own["dry_run"] = json!(true);
    let own = up.client.post("/api/v1/operate", own);
    let said = own.body["message"].as_str().expect("a text");
    assert!(own.body["result"] == true && said.contains("did you mean start_cmd?"), "{}", own.body);

    // A file that a person wrote may have no unknown fields: all of them are refused, and nothing is sent.
    let file = up.folder("files").join("spec.json");
    std::fs::write(&file, body.to_string()).expect("our own file");
    let file = file.to_str().expect("text");
    let before = up.client.data("/api/v1/tasks?limit=1000").as_array().map(Vec::len);
    let refused = up.cli(&["start", "typo", "--namespace", &up.namespace, "--file", file]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for words in [
        "spec.control.strat_cmd is not known; did you mean start_cmd?",
        "start_chek_secs is not known; did you mean start_check_secs?",
        "spec.control.contact is not known",
        "nodeman_spec is not known",
    ] {
        assert!(refused.stderr.contains(words), "{words:?} is not in {refused:?}");
    }
    assert_eq!(up.client.data("/api/v1/tasks?limit=1000").as_array().map(Vec::len), before);
}
