//! Reading JOB's APIs: the example of each document, defaults, and all faults at once.

use procfleet_core::code::Code;
use procfleet_core::id::{BusinessId, ProcKey};
use procfleet_core::op::{Content, Instance, OpKind, Outcome, ProcStatus};
use procfleet_core::request::{Request, Target};
use procfleet_core::spec::{Identity, Kind, Policy, Schedule, Shell, Spec};
use procfleet_proto::http::content::OpContext;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::job::{
    self, JobOpResult, NamedScope, Operation, ScopeOf, get_agent_status, get_proc_result, results,
};
use serde_json::{Value, json};
use std::time::Duration;

type Read = fn(&Value) -> Result<Operation, Faults>;

fn operate_proc(body: &Value) -> Result<Operation, Faults> {
    job::operate_proc(body)
}

fn operate_process(body: &Value) -> Result<Operation, Faults> {
    job::operate_process(body)
}

fn manage_proc(body: &Value) -> Result<Operation, Faults> {
    job::manage_proc(body)
}

/// The example request of `operate_proc`'s document.
fn by_scripts() -> Value {
    json!({
        "bk_app_code": "esb_test", "bk_app_secret": "xxx", "bk_token": "xxx",
        "bk_biz_id": 1,
        "op_type": 1,
        "process_infos": [{
            "setup_path": "/usr/local/xxx", "proc_name": "gseagent", "pid_path": "/usr/local/xxx",
            "account": "root", "cmd_shell_ext": "bat", "cpu_lmt": 50, "mem_lmt": 30,
            "ip_list": [{"bk_cloud_id": 0, "ip": "10.0.0.1"}]
        }]
    })
}

/// That of `operate_process`.
fn by_commands() -> Value {
    json!({
        "bk_app_code": "esb_test", "bk_app_secret": "xxx", "bk_token": "xxx",
        "bk_biz_id": 1,
        "op_type": 1,
        "process_infos": [{
            "setup_path": "/usr/local/xxx", "proc_name": "gseagent", "pid_path": "/usr/local/xxx",
            "account": "root", "contact": "root", "cpu_lmt": 50, "mem_lmt": 30,
            "ip_list": [{"bk_cloud_id": 0, "ip": "10.0.0.1"}]
        }]
    })
}

/// That of `manage_proc`.
fn to_host() -> Value {
    json!({
        "bk_app_code": "esb_test", "bk_app_secret": "xxx", "bk_token": "xxx",
        "bk_scope_type": "biz",
        "bk_scope_id": "1",
        "op_type": 1,
        "process_infos": [{
            "proc_name": "nginx", "proc_owner": "root", "setup_path": "/data/home/nginx/bin/",
            "cfg_path": "/data/etc/nginx.conf", "log_path": "/data/logs/nginx/",
            "pid_path": "/data/var/run/nginx/",
            "start_cmd": "echo start", "stop_cmd": "echo stop", "restart_cmd": "echo restart",
            "reload_cmd": "echo reload", "kill_cmd": "echo kill",
            "func_id": "", "instance_id": "", "value_key": "key_test",
            "type": 2, "cpu_lmt": 20, "mem_lmt": 30, "cycle_time": 10, "instance_num": 2,
            "start_check_begin_time": 5, "start_check_end_time": 5, "op_timeout": 5,
            "ip_list": [{"bk_cloud_id": 0, "ip": "10.0.0.1"}]
        }]
    })
}

/// The request with fields set, at the top or in its first element; `null` is the same as absent.
fn with(mut body: Value, top: Value, info: Value) -> Value {
    for (name, value) in top.as_object().expect("an object") {
        body[name] = value.clone();
    }
    for (name, value) in info.as_object().expect("an object") {
        body["process_infos"][0][name] = value.clone();
    }
    body
}

#[track_caller]
fn request(read: Read, body: &Value) -> Request {
    let operation = read(body).unwrap_or_else(|faults| panic!("{faults}: {body}"));
    let [request] = &operation.requests[..] else { panic!("one request: {operation:?}") };
    request.clone()
}

/// The spec of a start, or of hosting, with these fields changed.
#[track_caller]
fn spec(read: Read, body: Value, info: Value) -> Spec {
    request(read, &with(body, json!({}), info)).spec.expect("JOB's callers say all of it")
}

#[track_caller]
fn faults(read: Read, body: &Value) -> Vec<String> {
    let faults = read(body).expect_err(&format!("it is faulty: {body}"));
    faults.to_string().split("; ").map(str::to_owned).collect()
}

#[test]
fn operate_procs_example_is_read_whole() {
    let request = request(operate_proc, &by_scripts());
    assert_eq!(
        (request.kind, &request.proc),
        (OpKind::Stop, &ProcKey::of_job("/usr/local/xxx\\gseagent".into()))
    );
    let keys: Vec<String> = request.targets.iter().map(|target| target.job_key(&request.proc)).collect();
    assert_eq!(keys, ["/usr/local/xxx\\gseagent:0:10.0.0.1"]);
    let spec = request.spec.expect("a spec");
    let expected = Identity {
        proc_name: "gseagent".to_owned(),
        setup_path: "/usr/local/xxx".to_owned(),
        // It is the program's own folder.
        pid_path: "/usr/local/xxx/gseagent.pid".to_owned(),
        user: "root".to_owned(),
        ..Identity::default()
    };
    assert_eq!(spec.identity, expected);
    assert_eq!((spec.control.shell, &*spec.control.stop_cmd), (Shell::Bat, "stop.bat gseagent"));
    assert_eq!((spec.resource.cpu, spec.resource.mem, spec.resource.fd), (Some(50.0), Some(30.0), None));
    assert_eq!(spec.job.contact, "mapleleaf");
    let times = Policy { op_timeout: Duration::from_secs(10), ..Policy::default() };
    assert_eq!(spec.policy, times);
}

#[test]
fn operate_processs_example_is_read_whole() {
    let request = request(operate_process, &by_commands());
    assert_eq!(
        (request.kind, request.proc.to_string()),
        (OpKind::Stop, "job:/usr/local/xxx/gseagent".to_owned())
    );
    let spec = request.spec.expect("a spec");
    assert_eq!((&*spec.job.contact, &*spec.identity.user), ("root", "root"));
    assert_eq!((spec.resource.cpu, spec.resource.mem), (Some(50.0), Some(30.0)));
    assert_eq!((&spec.policy, spec.instances.0), (&Policy::default(), 1));
}

#[test]
fn manage_procs_example_is_read_whole() {
    let operation = manage_proc(&to_host()).expect("the example is good");
    assert_eq!(operation.scope, NamedScope { of: ScopeOf::Business(BusinessId(1)), field: "bk_scope_id" });
    let request = &operation.requests[0];
    assert_eq!((request.kind, request.proc.to_string()), (OpKind::Host, "job:key_test".to_owned()));
    let spec = request.spec.as_ref().expect("a spec");
    let expected = Identity {
        proc_name: "nginx".to_owned(),
        setup_path: "/data/home/nginx/bin/".to_owned(),
        pid_path: "/data/var/run/nginx/nginx.pid".to_owned(),
        config_path: "/data/etc/nginx.conf".to_owned(),
        log_path: "/data/logs/nginx/".to_owned(),
        user: "root".to_owned(),
        index_key: "key_test".to_owned(),
    };
    assert_eq!(spec.identity, expected);
    let control = &spec.control;
    let commands =
        [&control.start_cmd, &control.stop_cmd, &control.restart_cmd, &control.reload_cmd, &control.kill_cmd];
    assert_eq!(commands, ["echo start", "echo stop", "echo restart", "echo reload", "echo kill"]);
    assert_eq!((&*spec.job.contact, spec.instances.0), ("root", 2));
    assert_eq!((spec.resource.cpu, spec.resource.mem), (Some(20.0), Some(30.0)));
    let five = Duration::from_secs(5);
    let policy = Policy { kind: Kind::Once, start_check: five, op_timeout: five, ..Policy::default() };
    assert_eq!(spec.policy, policy, "with nothing between begin and end there is one moment to look at");

    let unhost =
        with(to_host(), json!({"op_type": 2}), json!({"start_cmd": null, "type": null, "cycle_time": null}));
    assert_eq!(self::request(manage_proc, &unhost).kind, OpKind::Unhost);
}

#[test]
fn every_operation_has_its_number() {
    let kind = |read: Read, body: Value, number: Value| {
        let body = with(body, json!({"op_type": number}), json!({}));
        read(&body).map(|operation| operation.requests[0].kind).map_err(|faults| faults.to_string())
    };
    for (number, expected) in [
        (0, OpKind::Start),
        (1, OpKind::Stop),
        (2, OpKind::Query),
        (3, OpKind::Host),
        (4, OpKind::Unhost),
        (7, OpKind::Restart),
        (8, OpKind::Reload),
        (9, OpKind::Kill),
    ] {
        assert_eq!(kind(operate_proc, by_scripts(), json!(number)), Ok(expected));
        assert_eq!(
            kind(operate_process, by_commands(), json!(number.to_string())),
            Ok(expected),
            "as in a query"
        );
    }
    let choices =
        "is no operation; there are 0 start, 1 stop, 2 query, 3 host, 4 unhost, 7 restart, 8 reload, 9 kill";
    for number in [-1, 5, 6, 10, 100] {
        let expected = Err(format!("op_type: {number} {choices}"));
        assert_eq!(kind(operate_proc, by_scripts(), json!(number)), expected);
        assert_eq!(kind(operate_process, by_commands(), json!(number)), expected);
    }
    assert_eq!(kind(operate_proc, by_scripts(), Value::Null), Err("op_type: is required".to_owned()));
    assert_eq!(
        kind(operate_proc, by_scripts(), json!("start")),
        Err("op_type: must be an integer, not \"start\"".to_owned())
    );

    for number in [0, 3, 4, 7, 9] {
        let expected =
            format!("op_type: {number} is no operation of manage_proc; there are 1 host and 2 unhost");
        assert_eq!(kind(manage_proc, to_host(), json!(number)), Err(expected));
    }
}

#[test]
fn a_scope_is_a_business_or_a_set() {
    let scope = |top: Value| {
        let mut body = with(by_scripts(), json!({"bk_biz_id": null}), json!({}));
        body.as_object_mut().expect("an object").extend(top.as_object().expect("an object").clone());
        operate_proc(&body).map(|operation| operation.scope).map_err(|faults| faults.to_string())
    };
    let business =
        |id: u32, field: &'static str| Ok(NamedScope { of: ScopeOf::Business(BusinessId(id)), field });
    let set = |id: u32| Ok(NamedScope { of: ScopeOf::Set(id), field: "bk_scope_id" });
    for (top, expected) in [
        (json!({"bk_biz_id": 2}), business(2, "bk_biz_id")),
        (json!({"bk_biz_id": "2"}), business(2, "bk_biz_id")),
        (json!({"bk_scope_type": "biz", "bk_scope_id": "2"}), business(2, "bk_scope_id")),
        (json!({"bk_scope_type": "biz", "bk_scope_id": 2}), business(2, "bk_scope_id")),
        (json!({"bk_scope_type": "biz_set", "bk_scope_id": "9"}), set(9)),
        (json!({"bk_biz_id": 2, "bk_scope_type": "biz", "bk_scope_id": "2"}), business(2, "bk_biz_id")),
        (json!({"bk_biz_id": 2, "bk_scope_type": null, "bk_scope_id": null}), business(2, "bk_biz_id")),
    ] {
        assert_eq!(scope(top.clone()), expected, "{top}");
    }
    let contradiction = "bk_biz_id: names business 2, and bk_scope_type with bk_scope_id name another scope";
    for (top, expected) in [
        (json!({}), "bk_biz_id: is required (or bk_scope_type and bk_scope_id)"),
        (json!({"bk_biz_id": 0}), "bk_biz_id: is 0, must be from 1 to 4294967295"),
        (json!({"bk_biz_id": -3}), "bk_biz_id: is -3, must be from 1 to 4294967295"),
        (json!({"bk_biz_id": "two"}), "bk_biz_id: must be an integer, not \"two\""),
        (json!({"bk_biz_id": 1.5}), "bk_biz_id: must be an integer, not 1.5"),
        (json!({"bk_scope_type": "biz"}), "bk_scope_id: is required"),
        (json!({"bk_scope_id": "1"}), "bk_scope_type: is required"),
        (
            json!({"bk_scope_type": "set", "bk_scope_id": "1"}),
            "bk_scope_type: is \"set\", must be \"biz\" or \"biz_set\"",
        ),
        (json!({"bk_scope_type": 1, "bk_scope_id": "1"}), "bk_scope_type: must be a string, not a number"),
        (json!({"bk_scope_type": "biz", "bk_scope_id": ""}), "bk_scope_id: must be an integer, not \"\""),
        (json!({"bk_biz_id": 2, "bk_scope_type": "biz", "bk_scope_id": "3"}), contradiction),
        (json!({"bk_biz_id": 2, "bk_scope_type": "biz_set", "bk_scope_id": "2"}), contradiction),
    ] {
        assert_eq!(scope(top.clone()), Err(expected.to_owned()), "{top}");
    }
}

#[test]
fn a_process_is_called_by_its_key_or_its_path() {
    let name = |read: Read, body: Value, info: Value| request(read, &with(body, json!({}), info)).proc.name;
    for (info, expected) in [
        (json!({"setup_path": "/a/b"}), "/a/b/gseagent"),
        (json!({"setup_path": "/a/b//"}), "/a/b/gseagent"),
        (json!({"setup_path": "/"}), "/gseagent"),
        (json!({"value_key": ""}), "/usr/local/xxx/gseagent"),
        (json!({"value_key": "  "}), "/usr/local/xxx/gseagent"),
        (json!({"value_key": "C:\\gse:1"}), "C:\\gse:1"),
    ] {
        assert_eq!(name(operate_process, by_commands(), info.clone()), expected, "{info}");
    }
    for (info, expected) in [
        (json!({"cmd_shell_ext": "sh", "setup_path": "/a/b/"}), "/a/b/gseagent"),
        (json!({"cmd_shell_ext": null}), "/usr/local/xxx/gseagent"),
        (json!({"cmd_shell_ext": "bat", "setup_path": "c:\\gse\\"}), "c:\\gse\\gseagent"),
        (json!({"cmd_shell_ext": "ps1", "setup_path": "c:\\gse"}), "c:\\gse\\gseagent"),
        (json!({"cmd_shell_ext": "sh", "value_key": "not in its document"}), "/usr/local/xxx/gseagent"),
    ] {
        assert_eq!(name(operate_proc, by_scripts(), info.clone()), expected, "{info}");
    }
    // Its document requires no folder.
    let bare = json!({"setup_path": null, "pid_path": null, "value_key": null});
    let bare = request(manage_proc, &with(to_host(), json!({}), bare));
    let identity = bare.spec.expect("a spec").identity;
    assert_eq!((&*bare.proc.name, &*identity.setup_path, &*identity.pid_path), ("nginx", "/", ""));
}

#[test]
fn a_pid_path_may_be_a_folder() {
    for (pid_path, expected) in [
        ("/var/run/x.pid", "/var/run/x.pid"),
        ("/var/run/", "/var/run/gseagent.pid"),
        ("/", "/gseagent.pid"),
        ("/usr/local/xxx", "/usr/local/xxx/gseagent.pid"),
        ("c:\\run\\", "c:\\run\\gseagent.pid"),
    ] {
        let spec = spec(operate_process, by_commands(), json!({"pid_path": pid_path}));
        assert_eq!(spec.identity.pid_path, expected);
    }
}

#[test]
fn scripts_get_the_name_as_argument() {
    for (shell, start, kind) in [
        (json!("sh"), "./start.sh gseagent", Shell::Sh),
        (Value::Null, "./start.sh gseagent", Shell::Sh),
        (json!(""), "./start.sh gseagent", Shell::Sh),
        (json!("bat"), "start.bat gseagent", Shell::Bat),
        (json!("ps1"), "./start.ps1 gseagent", Shell::Ps1),
    ] {
        let control = spec(operate_proc, by_scripts(), json!({"cmd_shell_ext": shell})).control;
        assert_eq!((&*control.start_cmd, control.shell), (start, kind));
        assert_eq!((control.kill_cmd.as_str(), control.version_cmd.as_str()), ("", ""));
    }
    let quoted =
        spec(operate_proc, by_scripts(), json!({"cmd_shell_ext": "sh", "proc_name": "a; rm -rf 'b'"}));
    assert_eq!(quoted.control.reload_cmd, r"./reload.sh 'a; rm -rf '\''b'\'''");
    let odd = with(by_scripts(), json!({}), json!({"proc_name": "%PATH%"}));
    let reason = "process_infos[0].proc_name: contains '%', which a bat script cannot be given as it is";
    assert_eq!(faults(operate_proc, &odd), [reason]);
    let unknown = with(by_scripts(), json!({}), json!({"cmd_shell_ext": "py"}));
    let reason = "process_infos[0].cmd_shell_ext: is \"py\", must be \"sh\", \"bat\" or \"ps1\"";
    assert_eq!(faults(operate_proc, &unknown), [reason]);
}

#[test]
fn limits_are_per_cents() {
    for (limit, cpu, mem) in [
        (Value::Null, None, None),
        (json!(0), None, None),
        (json!(1), Some(1.0), Some(1.0)),
        (json!(100), Some(100.0), Some(100.0)),
        // The defaults of JOB's own server.
        (json!(101), Some(50.0), Some(30.0)),
        (json!(-1), Some(50.0), Some(30.0)),
        (json!(1_000_000), Some(50.0), Some(30.0)),
    ] {
        let resource = spec(operate_proc, by_scripts(), json!({"cpu_lmt": limit, "mem_lmt": limit})).resource;
        assert_eq!((resource.cpu, resource.mem), (cpu, mem), "{limit}");
    }
    for (read, body) in [(operate_process as Read, by_commands()), (manage_proc, to_host())] {
        let none = spec(read, body.clone(), json!({"cpu_lmt": 0, "mem_lmt": null})).resource;
        assert_eq!((none.cpu, none.mem), (None, None));
        let odd = with(body, json!({}), json!({"cpu_lmt": 101, "mem_lmt": -1}));
        let expected = [
            "process_infos[0].cpu_lmt: is 101, must be from 0 to 100",
            "process_infos[0].mem_lmt: is -1, must be from 0 to 100",
        ];
        assert_eq!(faults(read, &odd), expected);
    }
}

#[test]
fn a_type_without_a_cycle_follows_the_document() {
    let every = |secs| Kind::Periodic(Schedule::Every(Duration::from_secs(secs)));
    let kind = |read: Read, body: Value, op: u32, number: Value, cycle: Value| {
        let body = with(body, json!({"op_type": op}), json!({"type": number, "cycle_time": cycle}));
        let read =
            read(&body).map(|operation| operation.requests[0].spec.clone().expect("a spec").policy.kind);
        read.map_err(|faults| faults.to_string())
    };
    let process = |op, number, cycle| kind(operate_process, by_commands(), op, number, cycle);
    let hosting = |op, number, cycle| kind(manage_proc, to_host(), op, number, cycle);
    let ends = "0 (periodic); type 1 is resident, and 2 runs once";
    let given = Err(format!("process_infos[0].cycle_time: is required, for type is {ends}"));
    let left_out =
        Err(format!("process_infos[0].cycle_time: is required, for type was left out, which is {ends}"));
    let none = Value::Null;
    assert_eq!(process(0, none.clone(), none.clone()), Ok(Kind::Resident));
    assert_eq!(process(0, none.clone(), json!(0)), Ok(Kind::Resident));
    assert_eq!(process(0, none.clone(), json!(30)), Ok(every(30)));
    assert_eq!(process(0, json!(0), json!(30)), Ok(every(30)));
    for op in [0, 3, 7] {
        assert_eq!(process(op, json!(0), none.clone()), given);
    }
    for op in [1, 2, 4, 8, 9] {
        assert_eq!(process(op, json!(0), none.clone()), Ok(Kind::Resident), "it does not matter to it");
    }
    assert_eq!(hosting(1, none.clone(), none.clone()), left_out);
    assert_eq!(hosting(1, json!(0), json!(0)), given);
    assert_eq!(hosting(1, none.clone(), json!(60)), Ok(every(60)));
    assert_eq!(hosting(2, none.clone(), none.clone()), Ok(Kind::Resident));
    for (read, body) in [(operate_process as Read, by_commands()), (manage_proc, to_host())] {
        let read = |op, number, cycle| kind(read, body.clone(), op, number, cycle);
        assert_eq!(read(1, json!(1), json!(30)), Ok(Kind::Resident));
        assert_eq!(read(1, json!(2), none.clone()), Ok(Kind::Once));
        assert_eq!(
            read(1, json!(3), none.clone()),
            Err("process_infos[0].type: is 3, must be from 0 to 2".to_owned())
        );
        let odd = Err("process_infos[0].cycle_time: must be an integer, not \"x\"".to_owned());
        assert_eq!(read(1, json!(0), json!("x")), odd);
    }
}

#[test]
fn numbers_may_be_written_as_texts() {
    for (read, body) in [(operate_process as Read, by_commands()), (manage_proc, to_host())] {
        let numbers = json!({
            "type": "0", "cycle_time": "30", "cpu_lmt": "20", "mem_lmt": 10.0, "instance_num": "2", "op_timeout": "7",
            "start_check_begin_time": "3", "start_check_end_time": "8", "func_id": 12, "instance_id": "34",
            "ip_list": [{"bk_cloud_id": "0", "ip": "10.0.0.1"}]
        });
        let request = request(read, &with(body, json!({}), numbers));
        let spec = request.spec.as_ref().expect("JOB's callers say all of it");
        assert_eq!(spec.policy.kind, Kind::Periodic(Schedule::Every(Duration::from_secs(30))));
        assert_eq!((spec.resource.cpu, spec.resource.mem, spec.instances.0), (Some(20.0), Some(10.0), 2));
        assert_eq!((spec.policy.check_begin.as_secs(), spec.policy.start_check.as_secs()), (3, 8));
        assert_eq!(spec.policy.op_timeout.as_secs(), 7);
        assert_eq!((spec.job.func_id.as_str(), spec.job.instance_id.as_str()), ("12", "34"));
        assert!(matches!(&request.targets[..], [Target::Host(host)] if host.to_string() == "0:10.0.0.1"));
    }
    let limits = spec(operate_proc, by_scripts(), json!({"cpu_lmt": "20", "mem_lmt": "101"})).resource;
    assert_eq!((limits.cpu, limits.mem), (Some(20.0), Some(30.0)));
}

#[test]
fn times_and_numbers_of_zero_are_left_out() {
    let times = |begin: u64, end: u64| {
        let info = json!({"start_check_begin_time": begin, "start_check_end_time": end});
        let policy = spec(operate_process, by_commands(), info).policy;
        (policy.check_begin.as_secs(), policy.start_check.as_secs())
    };
    for ((begin, end), expected) in [
        ((0, 0), (0, 5)),
        ((3, 0), (0, 3)),
        ((3, 3), (0, 3)),
        ((3, 2), (0, 3)),
        ((0, 8), (0, 8)),
        ((3, 8), (3, 8)),
    ] {
        assert_eq!(times(begin, end), expected, "from {begin} to {end}");
    }
    let zeros = json!({"op_timeout": 0, "instance_num": 0, "cycle_time": 0});
    for (read, body) in [(operate_process as Read, by_commands()), (manage_proc, to_host())] {
        let spec = spec(read, body.clone(), zeros.clone());
        assert_eq!((spec.policy.op_timeout.as_secs(), spec.instances.0), (60, 1));
        let spec = self::spec(read, body, json!({"op_timeout": 7, "instance_num": 64, "account": " "}));
        assert_eq!(
            (spec.policy.op_timeout.as_secs(), spec.instances.0, &*spec.identity.user),
            (7, 64, "root")
        );
    }
    let facts = json!({"contact": "ann", "func_id": "f", "instance_id": "i", "account": "app"});
    let spec = spec(operate_process, by_commands(), facts);
    let job = &spec.job;
    assert_eq!(
        (&*job.contact, &*job.func_id, &*job.instance_id, &*spec.identity.user),
        ("ann", "f", "i", "app")
    );
}

#[test]
fn all_faults_are_named_at_once() {
    let infos = |infos: Value| with(by_scripts(), json!({"process_infos": infos}), json!({}));
    for read in [operate_proc as Read, operate_process, manage_proc] {
        let top = |infos: Value| {
            let body = json!({"bk_biz_id": 1, "op_type": 1, "process_infos": infos});
            faults(read, &body)
        };
        assert_eq!(top(Value::Null), ["process_infos: is required"]);
        assert_eq!(top(json!([])), ["process_infos: must not be empty"]);
        assert_eq!(top(json!({})), ["process_infos: must be an array, not an object"]);
        assert_eq!(top(json!([1])), ["process_infos[0]: must be an object, not a number"]);
        assert_eq!(faults(read, &json!([])), ["must be an object, not an array"]);
        let nothing = faults(read, &json!({}));
        let expected = [
            "bk_biz_id: is required (or bk_scope_type and bk_scope_id)",
            "op_type: is required",
            "process_infos: is required",
        ];
        assert_eq!(nothing, expected);
    }
    assert_eq!(
        faults(operate_proc, &infos(json!([{}]))),
        [
            "process_infos[0].proc_name: is required",
            "process_infos[0].setup_path: is required",
            "process_infos[0].pid_path: is required",
            "process_infos[0].ip_list: is required",
        ]
    );
    assert_eq!(
        faults(
            operate_process,
            &infos(json!([{
                "proc_name": " ", "setup_path": "/a\nb", "pid_path": 1, "value_key": "a\u{7}", "start_cmd": [],
                "instance_num": 65, "op_timeout": -1, "start_check_end_time": 86_401, "contact": 5,
                "ip_list": [{"ip": "host", "bk_cloud_id": 0}, {"ip": "10.0.0.1"}, {"bk_cloud_id": -1}]
            }]))
        ),
        [
            "process_infos[0].proc_name: must not be empty",
            "process_infos[0].setup_path: contains a control character",
            "process_infos[0].pid_path: must be a string, not a number",
            "process_infos[0].contact: must be a string, not a number",
            "process_infos[0].value_key: contains a control character",
            "process_infos[0].start_cmd: must be a string, not an array",
            "process_infos[0].instance_num: is 65, must be from 0 to 64",
            "process_infos[0].start_check_end_time: is 86401, must be from 0 to 86400",
            "process_infos[0].op_timeout: is -1, must be from 0 to 86400",
            "process_infos[0].ip_list[0].ip: \"host\" is not an IP address",
            "process_infos[0].ip_list[1].bk_cloud_id: is required",
            "process_infos[0].ip_list[2].ip: is required",
            "process_infos[0].ip_list[2].bk_cloud_id: is -1, must be from 0 to 4294967295",
        ]
    );
    let body = with(to_host(), json!({}), json!({"proc_owner": null, "proc_name": null, "ip_list": []}));
    assert_eq!(
        faults(manage_proc, &body),
        [
            "process_infos[0].proc_name: is required",
            "process_infos[0].proc_owner: is required",
            "process_infos[0].ip_list: must not be empty",
        ]
    );
}

#[test]
fn two_elements_for_one_key_are_one_or_the_later_is_refused() {
    let mut body = by_commands();
    let again = body["process_infos"][0].clone();
    body["process_infos"].as_array_mut().expect("a list").push(again);
    assert_eq!(operate_process(&body).map(|operation| operation.requests.len()), Ok(1));
    body["process_infos"][1]["op_timeout"] = json!(77);
    let requests = operate_process(&body).expect("accepted").requests;
    let refused: Vec<bool> = requests.iter().map(|request| request.refused.is_some()).collect();
    assert_eq!(refused, [false, true]);
    let text = faults(operate_process, &with(body.clone(), json!({"op_type": null}), json!({})));
    assert_eq!(text, ["op_type: is required"]);
    // An invalid element is refused alone.
    let nameless = with(body.clone(), json!({}), json!({"proc_name": null, "value_key": null}));
    let operation = operate_process(&nameless).expect("accepted");
    assert!(operation.warnings.to_string().contains("process_infos[0].proc_name: refused for itself"));
    assert_eq!(operation.requests.len(), 1);
    // Two processes with the same path are distinguished by their keys.
    body["process_infos"][1]["value_key"] = json!("second");
    assert_eq!(operate_process(&body).map(|operation| operation.requests.len()), Ok(2));
    // A host that is named twice is meant once.
    let twice =
        json!({"ip_list": [{"bk_cloud_id": 0, "ip": "10.0.0.1"}, {"bk_cloud_id": 0, "ip": "10.0.0.1"}]});
    assert_eq!(request(operate_process, &with(by_commands(), json!({}), twice)).targets.len(), 1);
}

#[test]
fn results_and_agents_are_asked_for_within_a_scope() {
    let scope = NamedScope { of: ScopeOf::Business(BusinessId(1)), field: "bk_biz_id" };
    let task = "GSETASK:20180315180551:1000";
    let asked = get_proc_result(&json!({"bk_biz_id": "1", "bk_gse_taskid": task}));
    assert_eq!(asked, Ok((scope, task.to_owned())));
    let text = get_proc_result(&json!({})).map_err(|faults| faults.to_string());
    let expected = "bk_biz_id: is required (or bk_scope_type and bk_scope_id); bk_gse_taskid: is required";
    assert_eq!(text, Err(expected.to_owned()));
    let (asked, hosts) =
        get_agent_status(&json!({"bk_biz_id": 1, "ip_list": [{"bk_cloud_id": 2, "ip": "10.0.0.1"}]}))
            .expect("good");
    let hosts: Vec<_> = hosts.into_iter().map(|named| named.host).collect();
    assert_eq!((asked, hosts), (scope, vec!["2:10.0.0.1".parse().ok()]));
    let text = get_agent_status(&json!({"bk_biz_id": 1, "ip_list": []})).map_err(|faults| faults.to_string());
    assert_eq!(text, Err("ip_list: must not be empty".to_owned()));
}

#[test]
fn a_result_is_an_object_with_jobs_fields() {
    let proc = ProcKey::of_job("/usr/local/xxx/gseagent".to_owned());
    let target = Target::Host("0:10.0.0.1".parse().expect("a host"));
    let identity = Identity { proc_name: "gseagent".to_owned(), ..Identity::default() };
    let spec = Spec { identity, ..Spec::default() };
    let result = |kind, outcome: Option<&Outcome>, spec| {
        JobOpResult::new(OpContext { proc: &proc, kind, spec, target: &target, agent: None }, outcome)
    };
    let open = result(OpKind::Query, None, Some(&spec));
    assert_eq!((open.error_code, &*open.error_msg, json!(open.content)), (115, "handling", json!({})));

    let instance = Instance { pid: 5868, memory_kib: 10_412, ..Instance::default() };
    let status = ProcStatus { instance: Some(instance), ..ProcStatus::default() };
    let running = Outcome::new(Code::Success, "success", Content::Status(Box::new(status)));
    let done = result(OpKind::Query, Some(&running), Some(&spec));
    let content = json!(done.content);
    let process = &content["process"][0];
    let seen = &process["instance"][0];
    assert_eq!((&process["procname"], &seen["processName"]), (&json!("gseagent"), &json!("gseagent")));
    assert_eq!((&seen["pid"], &seen["freeVMem"], &seen["utime"]), (&json!(5868), &json!("0"), &json!("0")));
    for field in [
        "cmdline",
        "cpuUsage",
        "cpuUsageAve",
        "diskSize",
        "elapsedTime",
        "freeVMem",
        "phyMemUsage",
        "pid",
        "processName",
        "startTime",
        "stat",
        "stime",
        "threadCount",
        "usePhyMem",
        "utime",
    ] {
        assert!(!seen[field].is_null(), "{field} is missing: {seen}");
    }
    // The host has stored the names, so only the key is known here.
    let bare = result(OpKind::Query, Some(&running), None);
    assert_eq!(json!(bare.content)["process"][0]["procname"], "/usr/local/xxx/gseagent");

    let key = |n: u32| format!("k{n}:0:10.0.0.1");
    let all = json!(results([(key(1), done.clone()), (key(2), open)]));
    assert_eq!((&all["status"], all["result"].as_object().map(|all| all.len())), (&json!(115), Some(2)));
    assert_eq!(results([(key(1), done)]).status, 0);
    let shown = &all["result"][key(1)];
    assert_eq!(
        (&shown["error_code"], &shown["error_msg"], &shown["content"]),
        (&json!(0), &json!("success"), &content)
    );
}
