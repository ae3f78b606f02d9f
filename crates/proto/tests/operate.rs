//! Reading `operate_proc_v2` and `operate_proc_multi`: valid requests, and all faults at once.

use procfleet_core::code::Code;
use procfleet_core::op::OpKind;
use procfleet_core::request::{Request, Target};
use procfleet_core::spec::{
    Detached, Instances, Kind, LimitSamples, OnUnhealthy, RestartPause, Schedule, Spec,
};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::operate;
use serde_json::{Value, json};
use std::time::Duration;

fn operate_proc_v2(body: &Value) -> Result<Vec<Request>, Faults> {
    operate::operate_proc_v2(body).map(|asked| asked.requests)
}

fn operate_proc_multi(body: &Value) -> Result<Vec<Request>, Faults> {
    operate::operate_proc_multi(body).map(|asked| asked.requests)
}

/// The example request of the API's own document.
fn seed() -> Value {
    json!({
        "meta": {"namespace": "gse", "name": "proc-test", "labels": {"proc_name": "proc-test"}},
        "op_type": 0,
        "hosts": [{"ip": "10.0.0.1", "bk_cloud_id": 1}],
        "spec": {
            "identity": {
                "index_key": "", "proc_name": "proc-test", "setup_path": "/data/gsetest/",
                "pid_path": "/data/gsetest/proc-test.pid", "config_path": "/data/gsetest/proc-test.conf",
                "log_path": "/data/gsetest/logs/", "user": "root"
            },
            "control": {
                "start_cmd": "./start.sh", "stop_cmd": "./stop.sh", "restart_cmd": "./restart.sh",
                "reload_cmd": "./reload.sh", "kill_cmd": "./kill.sh", "version_cmd": "./version.sh",
                "health_cmd": "./health.sh"
            },
            "alive_monitor_policy": {
                "auto_type": 1, "start_check_secs": 5, "stop_check_secs": 5, "start_retries": 3,
                "start_interval": 20, "crotab_rule": ""
            },
            "warn_report_policy": {"report_id": 0},
            "configmap": [{"path": "", "md5": ""}]
        }
    })
}

/// The seed request with one change; `Value::Null` is the same as absent, except for `op_type`.
fn seed_with(pointer: &str, value: Value) -> Value {
    let mut body = seed();
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer has a slash");
    body.pointer_mut(parent)
        .and_then(Value::as_object_mut)
        .expect("an object")
        .insert(field.to_owned(), value);
    body
}

#[test]
fn the_documents_own_example_is_read_whole() {
    let requests = operate_proc_v2(&seed()).expect("the example is good");
    let [request] = &requests[..] else { panic!("one request") };
    assert_eq!(request.kind, OpKind::Start);
    assert_eq!(request.proc.to_string(), "gse:proc-test");
    assert_eq!(request.targets[0].result_key(&request.proc), "1:10.0.0.1:gse:proc-test");
    let spec = request.spec.as_ref().expect("a spec");
    assert_eq!(spec.control.kill_cmd, "./kill.sh");
    assert_eq!(spec.identity.config_path, "/data/gsetest/proc-test.conf");
    assert_eq!(spec.policy.start_retries, 3);
    assert_eq!(spec.policy.start_interval, Duration::from_secs(20));
    assert_eq!(spec.policy.op_timeout, Duration::from_secs(60), "the default");
    assert_eq!(spec.labels["proc_name"], "proc-test");
    assert!(spec.configmap.is_empty(), "an empty entry is no file");
}

#[test]
fn requests_of_real_callers_are_accepted() {
    let spec = |body: &Value| operate_proc_v2(body).expect("accepted").remove(0).spec.expect("a spec");
    let labels = seed_with("/meta/labels", json!({"bk_process_id": 12, "on": true, "none": null}));
    assert_eq!(spec(&labels).labels["bk_process_id"], "12");

    for (field, value) in
        [("start_check_secs", json!(0)), ("op_timeout", Value::Null), ("stop_check_secs", json!(0))]
    {
        let policy = spec(&seed_with(&format!("/spec/alive_monitor_policy/{field}"), value)).policy;
        assert_eq!(
            (policy.start_check.as_secs(), policy.op_timeout.as_secs(), policy.stop_check.as_secs()),
            (5, 60, 5)
        );
    }

    let mut renamed = seed();
    let policy =
        renamed["spec"].as_object_mut().expect("an object").remove("alive_monitor_policy").expect("there");
    renamed["spec"]["monitor_policy"] = policy;
    assert_eq!(spec(&renamed).policy.start_retries, 3);

    let unknown = seed_with("/nodeman_spec", json!({"anything": [1, 2]}));
    assert_eq!(spec(&unknown).policy.kind, Kind::Resident);
    assert_eq!(spec(&seed_with("/spec/alive_monitor_policy/auto_type", json!(2))).policy.kind, Kind::Once);

    let files = seed_with("/spec/configmap", json!([{"path": "/etc/x", "md5": "A".repeat(32)}]));
    assert_eq!(spec(&files).configmap[0].md5, "a".repeat(32));

    assert_eq!(spec(&seed()).instances, Instances(1));
    assert_eq!(spec(&seed_with("/spec/instance_num", json!(3))).instances, Instances(3));

    let no_spec = seed_with("/spec", Value::Null);
    assert_eq!(operate_proc_v2(&no_spec).expect("accepted")[0].spec, None);

    let agents = seed_with("/agent_id_list", json!(["0200000007525400f355781710390005465c", "0:10.0.0.9"]));
    let targets = &operate_proc_v2(&agents).expect("accepted")[0].targets;
    assert!(
        matches!(&targets[..], [Target::Agent(_), Target::Agent(_)]),
        "hosts are ignored then: {targets:?}"
    );

    let mut query = seed_with("/op_type", json!(2));
    query["spec"] = json!({"identity": {"proc_name": "nginx", "setup_path": "", "pid_path": "", "user": ""}});
    assert_eq!(spec(&query).identity.proc_name, "nginx");
}

/// Each field of the policy, and the resulting schedule or fault.
#[test]
fn schedules_of_periodic_processes() {
    let read = |fields: &Value| {
        let mut body = seed();
        let policy = body["spec"]["alive_monitor_policy"].as_object_mut().expect("an object");
        policy.extend(fields.as_object().expect("an object").clone());
        operate_proc_v2(&body).map(|mut requests| requests.remove(0).spec.expect("a spec").policy.kind)
    };
    let every = |secs| Kind::Periodic(Schedule::Every(Duration::from_secs(secs)));
    let cron = |rule: &str| Kind::Periodic(Schedule::Cron(rule.to_owned()));
    for (fields, kind) in [
        (json!({"auto_type": 0, "cycle_time": 10}), every(10)),
        (json!({"auto_type": 0, "cycle_time": 31_536_000}), every(31_536_000)),
        (json!({"auto_type": 0, "crontab_rule": "*/5 * * * *"}), cron("*/5 * * * *")),
        (json!({"auto_type": 0, "crotab_rule": " @daily "}), cron("@daily")),
        (json!({"auto_type": 0, "crontab_rule": "@daily", "crotab_rule": "@daily"}), cron("@daily")),
        (
            json!({"auto_type": 0, "crontab_rule": "@daily", "crotab_rule": "", "cycle_time": 0}),
            cron("@daily"),
        ),
        // with another type they have no effect
        (json!({"auto_type": 1, "crontab_rule": "nonsense", "cycle_time": -7}), Kind::Resident),
        (json!({"auto_type": 2, "crontab_rule": "nonsense", "cycle_time": 7}), Kind::Once),
    ] {
        assert_eq!(read(&fields).ok(), Some(kind), "{fields}: {:?}", read(&fields));
    }
    let place = "spec.alive_monitor_policy";
    for (fields, fault) in [
        (json!({"auto_type": 0}), "auto_type: is 0 (periodic), which needs crontab_rule, or cycle_time"),
        (json!({"auto_type": 0, "cycle_time": 0}), "auto_type: is 0 (periodic), which needs"),
        (json!({"auto_type": 0, "cycle_time": -1}), "cycle_time: is -1, must be from 0 to 31536000"),
        (json!({"auto_type": 0, "cycle_time": "ten"}), "cycle_time: must be an integer, not \"ten\""),
        (json!({"auto_type": 0, "crontab_rule": "* * *"}), "crontab_rule: has 3 fields, must have five"),
        (json!({"auto_type": 0, "crotab_rule": "0 0 31 2 *"}), "crotab_rule: never matches"),
        (
            json!({"auto_type": 0, "crontab_rule": "@daily", "cycle_time": 5}),
            "crontab_rule: cannot be combined",
        ),
        (
            json!({"auto_type": 0, "crontab_rule": "@daily", "crotab_rule": "@hourly"}),
            "only one can be followed",
        ),
        (json!({"auto_type": 1, "crontab_rule": 5}), "crontab_rule: must be a string, not a number"),
        (json!({"auto_type": 1, "cycle_time": 5.5}), "cycle_time: must be an integer, not 5.5"),
    ] {
        let faults = read(&fields).expect_err(fault).to_string();
        assert!(faults.contains(fault) && faults.starts_with(place), "{fields}: {faults}");
        assert_eq!(faults.matches(place).count(), 1, "{fields}: {faults}");
    }
    // A query only wants to find it.
    let mut query = seed_with("/op_type", json!(2));
    query["spec"]["alive_monitor_policy"] = json!({"auto_type": 0});
    assert!(operate_proc_v2(&query).is_ok());
}

#[test]
fn every_fault_has_its_path_and_reason() {
    let rows: &[(&str, Value, &str)] = &[
        ("/meta", json!(null), "meta: is required"),
        ("/meta", json!("x"), "meta: must be an object, not a string"),
        ("/meta/namespace", json!(null), "meta.namespace: is required"),
        ("/meta/namespace", json!(" "), "meta.namespace: must not be empty"),
        ("/meta/name", json!(7), "meta.name: must be a string, not a number"),
        ("/meta/name", json!("a\nb"), "meta.name: contains a control character"),
        ("/meta/labels", json!([]), "meta.labels: must be an object, not an array"),
        ("/meta/labels", json!({"a": {}}), "meta.labels.a: must be a string, not an object"),
        ("/hosts", json!(null), "hosts: is required (or agent_id_list)"),
        ("/hosts", json!([]), "hosts: must not be empty"),
        ("/hosts", json!({}), "hosts: must be an array, not an object"),
        (
            "/hosts",
            json!([{"ip": "10.0.0.300", "bk_cloud_id": 0}]),
            "hosts[0].ip: \"10.0.0.300\" is not an IP address",
        ),
        ("/hosts", json!([{"ip": "10.0.0.3"}]), "hosts[0].bk_cloud_id: is required"),
        (
            "/hosts",
            json!([{"ip": "10.0.0.3", "bk_cloud_id": "zero"}]),
            "hosts[0].bk_cloud_id: must be an integer, not \"zero\"",
        ),
        (
            "/hosts",
            json!([{"ip": "10.0.0.3", "bk_cloud_id": -1}]),
            "hosts[0].bk_cloud_id: is -1, must be from 0 to 4294967295",
        ),
        (
            "/agent_id_list",
            json!(["a b"]),
            "agent_id_list[0]: contains ' '; letters, digits and -_.: are allowed",
        ),
        ("/agent_id_list", json!([7]), "agent_id_list[0]: must be a string, not a number"),
        ("/op_type", json!(null), "op_type: must not be null"),
        ("/op_type", json!(""), "op_type: must be an integer, not \"\""),
        ("/op_type", json!(true), "op_type: must be an integer, not a boolean"),
        ("/op_type", json!(1.5), "op_type: must be an integer, not 1.5"),
        ("/spec", json!([]), "spec: must be an object, not an array"),
        ("/spec/identity", json!(null), "spec.identity: is required"),
        ("/spec/identity/user", json!(""), "spec.identity.user: must not be empty"),
        ("/spec/identity/pid_path", json!(null), "spec.identity.pid_path: is required"),
        ("/spec/control", json!(null), "spec.control: is required"),
        ("/spec/control/start_cmd", json!(["x"]), "spec.control.start_cmd: must be a string, not an array"),
        ("/spec/alive_monitor_policy", json!(null), "spec.alive_monitor_policy: is required"),
        (
            "/spec/alive_monitor_policy/auto_type",
            json!(null),
            "spec.alive_monitor_policy.auto_type: is required",
        ),
        (
            "/spec/alive_monitor_policy/auto_type",
            json!(3),
            "spec.alive_monitor_policy.auto_type: is 3, must be from 0 to 2",
        ),
        (
            "/spec/alive_monitor_policy/op_timeout",
            json!(-1),
            "spec.alive_monitor_policy.op_timeout: is -1, must be from 0 to 86400",
        ),
        ("/spec/resource", json!({"cpu": 101.0}), "spec.resource.cpu: is 101, must be from 0 to 100"),
        ("/spec/resource", json!({"mem": "much"}), "spec.resource.mem: must be a number, not \"much\""),
        ("/spec/instance_num", json!(0), "spec.instance_num: is 0, must be from 1 to 64"),
        ("/spec/instance_num", json!(65), "spec.instance_num: is 65, must be from 1 to 64"),
        ("/spec/instance_num", json!("2.5"), "spec.instance_num: must be an integer, not \"2.5\""),
        ("/spec/instance_num", json!(1e300), "spec.instance_num: must be an integer, not 1e+300"),
        ("/spec/configmap", json!([{"path": 1}]), "spec.configmap[0].path: must be a string, not a number"),
        (
            "/spec/configmap",
            json!([{"path": "", "md5": ""}, {"path": "etc/x", "md5": "0".repeat(32)}]),
            "spec.configmap[1].path: \"etc/x\" is not an absolute path",
        ),
        (
            "/spec/configmap",
            json!([{"path": "/etc/x", "md5": "0".repeat(31)}]),
            "spec.configmap[0].md5: must be 32 hexadecimal digits",
        ),
        (
            "/spec/configmap",
            json!([{"path": "/etc/x", "md5": "g".repeat(32)}]),
            "spec.configmap[0].md5: must be 32 hexadecimal digits",
        ),
        ("/spec/configmap", json!([{"md5": "x"}]), "spec.configmap[0].md5: must be 32 hexadecimal digits"),
    ];
    for (pointer, value, expected) in rows {
        let faults = operate_proc_v2(&seed_with(pointer, value.clone())).expect_err(expected);
        assert!(faults.to_string().contains(expected), "{pointer}: {faults}");
        assert!(!faults.only_unknown_op());
    }
}

#[test]
fn integers_may_be_written_as_texts_and_as_whole_floating_point_numbers() {
    for five in [json!(5), json!(5.0), json!("5"), json!(" 5 "), json!(5e0)] {
        let mut body = seed_with("/hosts", json!([{"ip": "10.0.0.1", "bk_cloud_id": five}]));
        body["spec"]["alive_monitor_policy"]["op_timeout"] = five.clone();
        body["spec"]["alive_monitor_policy"]["start_retries"] = five.clone();
        body["spec"]["resource"] = json!({"cpu": five, "fd": five});
        body["spec"]["warn_report_policy"]["report_id"] = five.clone();
        let requests = operate_proc_v2(&body).unwrap_or_else(|faults| panic!("{five}: {faults}"));
        let spec = requests[0].spec.as_ref().expect("a spec");
        assert_eq!(
            requests[0].targets[0].result_key(&requests[0].proc),
            "5:10.0.0.1:gse:proc-test",
            "{five}"
        );
        assert_eq!(
            (spec.policy.op_timeout, spec.policy.start_retries),
            (Duration::from_secs(5), 5),
            "{five}"
        );
        assert_eq!(
            (spec.resource.cpu, spec.resource.fd, spec.report_id),
            (Some(5.0), Some(5), Some(5)),
            "{five}"
        );
    }
    for (op_type, kind) in
        [(json!("1"), OpKind::Stop), (json!(2.0), OpKind::Query), (json!("9"), OpKind::Kill)]
    {
        let requests = operate_proc_v2(&seed_with("/op_type", op_type)).expect("an operation");
        assert_eq!(requests[0].kind, kind);
    }
    // An absent op_type is 0, because a caller leaves zeros out.
    let mut absent = seed();
    absent.as_object_mut().expect("an object").remove("op_type");
    assert_eq!(operate_proc_v2(&absent).expect("a start")[0].kind, OpKind::Start);
}

#[test]
fn both_fields_of_a_config_file_are_optional() {
    let sent = json!([{"path": "/etc/a"}, {"path": "/etc/b", "md5": ""}, {}, {"md5": "0".repeat(32)}]);
    let asked = operate::operate_proc_v2(&seed_with("/spec/configmap", sent)).expect("accepted");
    let configmap = &asked.requests[0].spec.as_ref().expect("a spec").configmap;
    let read: Vec<(&str, &str)> =
        configmap.iter().map(|file| (file.path.as_str(), file.md5.as_str())).collect();
    assert_eq!(read, [("/etc/a", ""), ("/etc/b", "")]);
    assert_eq!(
        asked.warnings.to_string(),
        "; warning: spec.configmap[3].md5: not used: the entry has no path"
    );
}

#[test]
fn relative_paths_are_warned_of() {
    let mut body = seed();
    for (field, path) in [("pid_path", "x.pid"), ("config_path", "etc/x"), ("log_path", "logs/")] {
        body["spec"]["identity"][field] = json!(path);
    }
    let text = operate::operate_proc_v2(&body).expect("accepted").warnings.to_string();
    for field in ["pid_path", "config_path", "log_path"] {
        assert!(
            text.contains(&format!("; warning: spec.identity.{field}: is not an absolute path: ")),
            "{text}"
        );
    }
    assert_eq!(operate::operate_proc_v2(&seed()).expect("accepted").warnings.to_string(), "");
}

#[test]
fn null_does_not_stand_for_every_host_or_for_real() {
    let good = json!({"meta": {"namespace": "web", "name": "api"}, "op_type": 1, "dry_run": true, "select": ["all"]});
    for field in ["op_type", "select", "hosts", "agent_id_list", "dry_run"] {
        let mut body = good.clone();
        body[field] = Value::Null;
        let faults = operate::operate_selected(&body).expect_err(field).to_string();
        assert!(faults.contains(&format!("{field}: must not be null")), "{faults}");
    }
}

/// Each term, name and host of a selection costs the server much more than its bytes in the body.
#[test]
fn the_terms_names_and_hosts_of_a_selection_are_bounded() {
    let many = |count: usize, one: Value| Value::Array(vec![one; count]);
    let host = json!({"ip": "10.0.0.1", "bk_cloud_id": 0});
    for (field, most, one, reason) in [
        ("select", 900, json!("10.0.0.1"), "select: has 901 elements, at most 900 are allowed in one call"),
        ("names", 10_000, json!("api"), "names: has 10001 elements, at most 10000 are allowed in one call"),
        ("names", 99, json!("a*"), "names: has 101 names with * or ?, at most 100 are allowed in one call"),
        ("hosts", 100_000, host, "hosts: has 100001 elements, at most 100000 are allowed in one call"),
        (
            "agent_id_list",
            100_000,
            json!("a1"),
            "agent_id_list: has 100001 elements, at most 100000 are allowed in one call",
        ),
    ] {
        let mut body = json!({"meta": {"namespace": "web", "name": "web*"}, "op_type": 1});
        body[field] = many(most, one.clone());
        operate::operate_selected(&body).expect("as many as are allowed");
        body[field] = many(most + 1, one);
        let faults = operate::operate_selected(&body).expect_err(field).to_string();
        assert_eq!(faults, reason);
    }
    let query =
        |terms: usize| procfleet_proto::http::query::agents(&json!({"select": vec!["a1"; terms].join(",")}));
    assert_eq!(query(900).expect("as many as are allowed").select.len(), 900);
    let faults = query(901).expect_err("one more").to_string();
    assert_eq!(faults, "select: has 901 terms, at most 900 are allowed");
}

#[test]
fn each_name_of_a_selection_is_checked_like_the_first() {
    let body =
        |name: &str| json!({"meta": {"namespace": "web", "name": "api"}, "op_type": 1, "names": [name]});
    operate::operate_selected(&body(&"x".repeat(256))).expect("a name");
    for (name, reason) in [
        ("x".repeat(257).as_str(), "names[0]: has 257 characters, at most 256 are allowed"),
        ("a\nb", "names[0]: contains a control character"),
        (" ", "names[0]: must not be empty"),
    ] {
        let faults = operate::operate_selected(&body(name)).expect_err("a fault").to_string();
        assert_eq!(faults, reason);
    }
}

#[test]
fn every_name_of_a_call_is_checked() {
    let body = |names: Value| json!({"meta": {"namespace": "web", "name": "api"}, "op_type": 1, "names": names, "select": ["all"]});
    let long = "n".repeat(256);
    let good = operate::operate_selected(&body(json!(["b*", long, "c#2"]))).expect("good names");
    assert_eq!(good.names, ["b*", long.as_str(), "c#2"]);
    let bad = json!([&"n".repeat(257), "two\nlines", "nul\0", "", " "]);
    let faults = operate::operate_selected(&body(bad)).expect_err("bad names").to_string();
    for expected in [
        "names[0]: has 257 characters, at most 256 are allowed",
        "names[1]: contains a control character",
        "names[2]: contains a control character",
        "names[3]: must not be empty",
        "names[4]: must not be empty",
    ] {
        assert!(faults.contains(expected), "{expected} in {faults}");
    }
}

#[test]
fn a_repeated_field_of_change_counts_once_and_the_size_of_a_spec_includes_it() {
    let mut body = seed();
    body.as_object_mut().expect("an object").remove("hosts");
    body["change"] = json!(vec!["user"; 10_000]);
    let read = |body: &Value| operate::operate_selected(body).map(|call| call.request.spec.expect("a spec"));
    assert_eq!(read(&body).expect("accepted").change, ["user"]);

    // Without change, the spec has the largest size exactly.
    body["change"] = json!([]);
    body["meta"]["labels"] = json!({"l": ""});
    let size = serde_json::to_vec(&read(&body).expect("accepted")).expect("JSON").len();
    body["meta"]["labels"] = json!({"l": "v".repeat(Spec::LARGEST - size)});
    read(&body).expect("accepted");
    body["change"] = json!(["labels"]);
    let faults = read(&body).expect_err("too large").to_string();
    assert!(faults.contains("spec: has 49172 bytes, at most 49152 are allowed"), "{faults}");
}

#[test]
fn all_faults_come_at_once() {
    let body =
        json!({"meta": {"name": ""}, "op_type": 5, "hosts": [{}, {"ip": "x", "bk_cloud_id": 0}], "spec": {}});
    let faults = operate_proc_v2(&body).expect_err("it is all wrong");
    let text = faults.to_string();
    for place in [
        "meta.namespace:",
        "meta.name:",
        "op_type:",
        "hosts[0].ip:",
        "hosts[0].bk_cloud_id:",
        "hosts[1].ip:",
        "spec.identity:",
        "spec.control:",
        "spec.alive_monitor_policy:",
    ] {
        assert!(text.contains(place), "{place} in {text}");
    }
}

#[test]
fn an_unknown_operation_has_its_own_code() {
    for number in [5, 6, 10, -1] {
        let faults = operate_proc_v2(&seed_with("/op_type", json!(number))).expect_err("no such operation");
        assert!(faults.only_unknown_op(), "{faults}");
    }
}

#[test]
fn many_faults_are_cut_short() {
    let hosts: Vec<Value> = (0..200).map(|_| json!({"ip": "x", "bk_cloud_id": 0})).collect();
    let text = operate_proc_v2(&seed_with("/hosts", json!(hosts))).expect_err("bad hosts").to_string();
    assert!(text.ends_with("; and 150 more faults"), "{text}");
}

#[test]
fn one_key_means_one_op() {
    let twice = json!([{"ip": "10.0.0.1", "bk_cloud_id": 1}, {"ip": "10.0.0.1", "bk_cloud_id": 1}]);
    assert_eq!(operate_proc_v2(&seed_with("/hosts", twice)).expect("accepted")[0].targets.len(), 1);

    let multi =
        operate_proc_multi(&json!({"proc_operate_req": [seed(), seed_with("/meta/name", json!("other"))]}));
    assert_eq!(multi.expect("accepted").len(), 2);
    // A repeated request counts once.
    let same = operate_proc_multi(&json!({"proc_operate_req": [seed(), seed()]})).expect("accepted");
    assert_eq!((same.len(), same[0].targets.len()), (1, 1));
    // Of two different ones the later one is refused, and says why.
    let clash = operate_proc_multi(&json!({"proc_operate_req": [seed(), seed_with("/op_type", json!(1))]}));
    let clash = clash.expect("accepted");
    let refused = clash[1].refused.as_ref().expect("the later one is refused");
    assert_eq!((clash.len(), &clash[0].refused, refused.code), (2, &None, Code::BadRequest));
    assert!(
        refused.reason.contains("proc_operate_req[0] of the same call asks for 1:10.0.0.1:gse:proc-test too"),
        "{refused:?}"
    );
    for empty in [json!({}), json!({"proc_operate_req": []}), json!({"proc_operate_req": 1}), json!([])] {
        operate_proc_multi(&empty).expect_err("nothing to do");
    }
}

#[test]
fn a_spec_that_fits_no_frame_is_refused() {
    let long = "x".repeat(32_000);
    let mut body = seed_with("/spec/control/start_cmd", json!(long));
    body["spec"]["control"]["stop_cmd"] = json!(long);
    let text = operate_proc_v2(&body).expect_err("too large").to_string();
    assert!(text.starts_with("spec: has "), "{text}");
}

#[test]
fn reserved_fields_cause_a_warning() {
    let warnings = |body: &Value| operate::operate_proc_v2(body).expect("accepted").warnings.to_string();
    assert_eq!(warnings(&seed()), "");
    assert_eq!(warnings(&seed_with("/spec/resource", json!({"disk": 0, "net": 0, "fd": 10}))), "");
    assert_eq!(
        warnings(&seed_with("/spec/identity/index_key", json!("k"))),
        "; warning: spec.identity.index_key: reserved, the process is known by its namespace and name"
    );
    assert_eq!(
        warnings(&seed_with("/spec/resource", json!({"cpu": 10.0, "disk": 100, "net": 7}))),
        "; warning: spec.resource.disk: reserved, no limit is enforced (100 was sent)\
         ; warning: spec.resource.net: reserved, no limit is enforced (7 was sent)"
    );
    let element = |n: u32| {
        let mut one = seed_with("/spec/resource", json!({"disk": 1}));
        one["meta"]["name"] = json!(n.to_string());
        one
    };
    let many = json!({"proc_operate_req": (0..7).map(element).collect::<Vec<_>>()});
    let text = operate::operate_proc_multi(&many).expect("accepted").warnings.to_string();
    assert!(text.starts_with("; warning: proc_operate_req[0].spec.resource.disk: "), "{text}");
    assert!(text.ends_with("; and 2 more warnings"), "{text}");
}

#[test]
fn a_typo_in_a_spec_is_warned_of_and_other_extra_fields_are_not() {
    let mut body = seed();
    body["nodeman_spec"] = json!({"strat_cmd": "x"});
    body["spec"]["control"]["strat_cmd"] = json!("x");
    body["spec"]["control"]["owner"] = json!("x");
    body["spec"]["alive_monitor_policy"]["start_chek_secs"] = json!(5);
    body["spec"]["op_timeout"] = json!(5);
    let text = operate::operate_proc_v2(&body).expect("accepted").warnings.to_string();
    assert_eq!(
        text,
        "; warning: spec.control.strat_cmd: unknown and not used; did you mean start_cmd?\
         ; warning: spec.alive_monitor_policy.start_chek_secs: unknown and not used; did you mean start_check_secs?\
         ; warning: spec.op_timeout: unknown and not used; did you mean spec.alive_monitor_policy.op_timeout?"
    );
    let multi = json!({"proc_operate_req": [seed_with("/spec/identity/usr", json!("x"))]});
    let text = operate::operate_proc_multi(&multi).expect("accepted").warnings.to_string();
    assert!(
        text.contains("proc_operate_req[0].spec.identity.usr: unknown and not used; did you mean user?"),
        "{text}"
    );
}

#[test]
fn our_own_words_of_the_control() {
    let control = |fields: Value| {
        let mut body = seed();
        let control = body["spec"]["control"].as_object_mut().expect("an object");
        control.extend(fields.as_object().expect("an object").clone());
        operate_proc_v2(&body).map(|requests| requests[0].spec.clone().expect("a spec").control)
    };
    for (fields, stop, reload) in [
        (json!({}), 15, None),
        (json!({"stop_signal": "", "reload_signal": null}), 15, None),
        (json!({"stop_signal": 0, "reload_signal": "0"}), 15, None),
        (json!({"stop_signal": "SIGQUIT", "reload_signal": "hup"}), 3, Some(1)),
        (json!({"stop_signal": 9, "reload_signal": "10"}), 9, Some(10)),
    ] {
        let control = control(fields.clone()).expect("good fields");
        let read = (control.stop_signal.0.number(), control.reload_signal.map(|signal| signal.number()));
        assert_eq!(read, (stop, reload), "{fields}");
    }
    for (fields, told) in [
        (
            json!({"stop_signal": "TREM", "reload_signal": 64}),
            [
                "stop_signal: is \"TREM\", must be the name of a signal",
                "reload_signal: is \"64\", must be the name",
            ],
        ),
        (
            json!({"stop_signal": true, "reload_signal": -1}),
            ["stop_signal: must be a string or an integer", "reload_signal: is \"-1\", must be"],
        ),
        (
            json!({"stop_signal": "STOP", "reload_signal": "KILL"}),
            ["stop_signal: does not end a process", "reload_signal: cannot make a process read"],
        ),
        (
            json!({"stop_signal": "CHLD", "reload_signal": "KILL"}),
            ["stop_signal: does not end a process", "reload_signal: cannot make a process read"],
        ),
    ] {
        let faults = control(fields.clone()).expect_err("both are wrong").to_string();
        for told in told {
            assert!(faults.contains(&format!("spec.control.{told}")), "{fields}: {faults}");
        }
    }
}

#[test]
fn our_own_words_of_the_policy() {
    let policy = |fields: Value| {
        let mut body = seed();
        let policy = body["spec"]["alive_monitor_policy"].as_object_mut().expect("an object");
        policy.extend(fields.as_object().expect("an object").clone());
        let read = operate_proc_v2(&body);
        read.map(|requests| requests[0].spec.clone().expect("a spec").policy)
    };
    for (fields, samples, unhealthy, detached) in [
        (json!({}), 3, OnUnhealthy::Tell, Detached::End),
        (
            json!({"limit_samples": 0, "on_unhealthy": "", "detached": null}),
            3,
            OnUnhealthy::Tell,
            Detached::End,
        ),
        (
            json!({"limit_samples": 1000, "on_unhealthy": "restart", "detached": "keep"}),
            1000,
            OnUnhealthy::Restart,
            Detached::Keep,
        ),
        (
            json!({"limit_samples": 1, "on_unhealthy": "tell", "detached": "end"}),
            1,
            OnUnhealthy::Tell,
            Detached::End,
        ),
    ] {
        let policy = policy(fields.clone()).expect("good fields");
        assert_eq!(
            (policy.limit_samples, policy.on_unhealthy, policy.detached),
            (LimitSamples(samples), unhealthy, detached),
            "{fields}"
        );
    }
    for (word, read) in [
        (json!(null), RestartPause::Constant),
        (json!("constant"), RestartPause::Constant),
        (json!("growing"), RestartPause::Growing),
    ] {
        let policy = policy(json!({"restart_pause": word})).expect("a good field");
        assert_eq!(policy.restart_pause, read, "{word}");
    }
    let fault = policy(json!({"restart_pause": "random"})).expect_err("no such word").to_string();
    assert!(fault.contains(r#"restart_pause: is "random", must be "constant" or "growing""#), "{fault}");
    for (kill_after, read) in [(json!(null), None), (json!(0), None), (json!(7), Some(7))] {
        let policy = policy(json!({"kill_after": kill_after})).expect("a good field");
        assert_eq!(policy.kill_after.map(|after| after.as_secs()), read, "{kill_after}");
    }
    assert!(policy(json!({"kill_after": -1})).expect_err("too little").to_string().contains("kill_after"));
    let faults = policy(json!({"limit_samples": 1001, "on_unhealthy": "reboot", "detached": 1}))
        .expect_err("all of them are wrong");
    let told: Vec<String> = faults.to_string().split("; ").map(str::to_owned).collect();
    let place = "spec.alive_monitor_policy";
    assert_eq!(told.len(), 3, "{told:?}");
    for (field, reason) in [
        ("limit_samples", "1000"),
        ("on_unhealthy", r#"is "reboot", must be "tell" or "restart""#),
        ("detached", "must be"),
    ] {
        let named =
            told.iter().any(|fault| fault.contains(&format!("{place}.{field}")) && fault.contains(reason));
        assert!(named, "{field}: {told:?}");
    }
}
