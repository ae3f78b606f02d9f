//! JOB's APIs: processes that are started by scripts or by commands, hosted and unhosted, within a scope.

use crate::access::{DENIED, OTHER, app, done, grant, granted_app, shop_agent};
use crate::hostile::cuts;
use crate::up;
use procfleet_testkit::{
    Answer, Client, Op, PATIENCE, Signal, Up, account, is_running, kill, pids_marked, programs, wait_for,
    wait_until,
};
use serde_json::{Map, Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const JOB: &str = "/api/c/compapi/v2/job";
const JOB_V3: &str = "/api/c/compapi/v2/jobv3";
const ILLEGAL: u64 = 1_241_002;

/// The `data` of a call that succeeds in JOB's way.
#[track_caller]
fn data(answer: &Answer) -> Value {
    let Answer { status, body } = answer;
    assert_eq!((*status, &body["result"], &body["code"]), (200, &json!(true), &json!(0)), "{body}");
    assert_eq!((&body["message"], body.get("permission")), (&json!(""), Some(&Value::Null)), "{body}");
    body["data"].clone()
}

#[track_caller]
fn task(answer: &Answer) -> String {
    data(answer)["bk_gse_taskid"].as_str().expect("a task id is a text").to_owned()
}

#[track_caller]
fn results_now(client: &Client, task: &str) -> Value {
    data(&client.post(&format!("{JOB}/get_proc_result/"), json!({"bk_biz_id": 1, "bk_gse_taskid": task})))
}

/// The results of a task, by key, when all of its ops have ended.
#[track_caller]
fn results(client: &Client, task: &str) -> Map<String, Value> {
    wait_for(PATIENCE * 3, &format!("task {task} ends"), || {
        let now = results_now(client, task);
        let results = now["result"].as_object().expect("results are an object").clone();
        let open = results.values().any(|result| result["error_code"] == 115);
        assert_eq!(now["status"], if open { 115 } else { 0 }, "{now}");
        (!open).then_some(results)
    })
}

/// A process in a folder of its own, with the program that sleeps.
struct Script<'u> {
    up: &'u Up,
    folder: PathBuf,
    /// More of its element of `process_infos`.
    info: Value,
}

impl<'u> Script<'u> {
    fn new(up: &'u Up, name: &str) -> Script<'u> {
        let folder = up.folder(&format!("job/{name}"));
        symlink("/bin/sleep", folder.join(programs::NAME)).expect("our own folder");
        Script { up, folder, info: json!({}) }
    }

    fn with(mut self, fields: Value) -> Script<'u> {
        for (name, value) in fields.as_object().expect("an object") {
            self.info[name] = value.clone();
        }
        self
    }

    fn script(self, name: &str, text: &str) -> Script<'u> {
        let path = self.folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("our own folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own file");
        self
    }

    fn body(&self, op_type: u32) -> Value {
        let mut info = json!({
            "setup_path": self.folder, "proc_name": programs::NAME, "pid_path": self.folder, "account": account(),
            "ip_list": [{"bk_cloud_id": 0, "ip": "127.0.0.1"}],
        });
        for (name, value) in self.info.as_object().expect("an object") {
            info[name] = value.clone();
        }
        json!({"bk_biz_id": 1, "op_type": op_type, "process_infos": [info]})
    }

    /// `value_key`, or else its path.
    fn key(&self) -> String {
        match self.info["value_key"].as_str() {
            Some(key) => key.to_owned(),
            None => path(&self.folder.join(programs::NAME)),
        }
    }

    #[track_caller]
    fn submit(&self, api: &str, op_type: u32) -> String {
        task(&self.up.client.post(&format!("{api}/"), self.body(op_type)))
    }

    /// Carries it out, and gives its one result.
    #[track_caller]
    fn run(&self, api: &str, op_type: u32) -> Value {
        let results = results(&self.up.client, &self.submit(api, op_type));
        let key = format!("{}:0:127.0.0.1", self.key());
        assert_eq!(results.keys().collect::<Vec<_>>(), [&key]);
        results[&key].clone()
    }

    #[track_caller]
    fn check(&self, api: &str, op_type: u32, code: u32) -> Value {
        let result = self.run(api, op_type);
        assert_eq!(result["error_code"], code, "{api} {op_type}: {result}");
        result
    }

    /// The pid that a query shows.
    #[track_caller]
    fn pid(&self, api: &str) -> Option<u32> {
        let seen = self.check(api, 2, 0)["content"]["process"][0]["instance"][0].clone();
        assert_eq!(seen["processName"], programs::NAME, "{seen}");
        assert!(seen["freeVMem"].is_string() && seen["utime"].is_string(), "{seen}");
        u32::try_from(seen["pid"].as_i64().expect("a pid is a number")).ok()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }

    /// The pids that run and were started for it.
    fn pids(&self) -> Vec<u32> {
        pids_marked(&format!("job:{}", self.key()))
    }
}

fn path(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

fn operate_proc() -> String {
    format!("{JOB}/operate_proc")
}

fn operate_process() -> String {
    format!("{JOB}/operate_process")
}

fn manage_proc() -> String {
    format!("{JOB_V3}/manage_proc")
}

#[test]
fn scripts_beside_the_program_start_and_end_it() {
    let up = up();
    // The folder of the pid file is enough; the script stays in the foreground, or does not.
    let proc = Script::new(&up, "scripted")
        .script("start.sh", "echo start \"$@\" >> calls; echo $$ > web.pid; exec ./web 1000")
        .script("stop.sh", "echo stop \"$@\" >> calls; kill $(cat web.pid)")
        .script("reload.sh", "echo reload \"$@\" >> calls")
        .script(
            "restart.sh",
            "echo restart \"$@\" >> calls; kill $(cat web.pid); ./web 1000 >/dev/null 2>&1 & echo $! > web.pid",
        );
    let api = operate_proc();
    assert_eq!(proc.pid(&api), None, "it is not running");
    let started = proc.check(&api, 0, 0);
    let value = &started["content"]["value"][0];
    assert_eq!((&value["procName"], &value["isAuto"]), (&json!(programs::NAME), &json!(true)));
    assert_eq!(value["setupPath"], path(&proc.folder));
    let first = proc.pid(&api).expect("it runs");
    assert!(proc.pids().contains(&first), "its mark bears the whole name");
    proc.check(&api, 0, 828);
    proc.check(&api, 8, 0);
    assert_eq!(proc.pid(&api), Some(first));
    proc.check(&api, 7, 0);
    let second = proc.pid(&api).expect("it runs");
    assert_ne!(first, second);
    let stopped = proc.check(&api, 1, 0);
    assert_eq!(stopped["content"]["value"][0]["isAuto"], false);
    assert!(!is_running(second));
    proc.check(&api, 1, 829);
    proc.check(&api, 9, 829);
    assert_eq!(proc.read("calls"), "start web\nreload web\nrestart web\nstop web\n");
    let row = &up.client.data("/api/v1/procs?namespace=job")[0];
    assert_eq!((&row["name"], &row["state"]), (&json!(proc.key()), &json!("stopped")), "{row}");
    // The CLI names it as anything else.
    let shown = up.cli(&["status", &proc.key(), "--namespace", "job", "--host", "0:127.0.0.1"]);
    assert_eq!(shown.code, Some(3), "stopped: {shown:?}");
    assert!(shown.stdout.contains(&proc.key()) && shown.stdout.contains("stopped"), "{shown:?}");
}

#[test]
fn missing_scripts_paths_and_accounts_are_named_in_the_outcome() {
    let up = up();
    let bare = Script::new(&up, "bare");
    let said = bare.check(&operate_proc(), 0, 65535);
    assert!(said["error_msg"].as_str().is_some_and(|text| text.contains("start.sh")), "{said}");
    assert_eq!(said["content"]["value"].as_array().map(Vec::len), Some(1));
    let nowhere = Script::new(&up, "nowhere").with(json!({"setup_path": "/nonexistent/folder"}));
    let results = results(&up.client, &nowhere.submit(&operate_proc(), 0));
    let said = &results["/nonexistent/folder/web:0:127.0.0.1"];
    assert!(said["error_msg"].as_str().is_some_and(|text| text.contains("/nonexistent/folder")), "{said}");
    assert_ne!(said["error_code"], 0);
    let nobody = Script::new(&up, "nobody").with(json!({"account": "nobody-of-that-name"}));
    nobody.script("start.sh", "true").check(&operate_proc(), 0, 122);
    let windows = Script::new(&up, "windows").with(json!({"cmd_shell_ext": "bat"}));
    let key = format!("{}\\web:0:127.0.0.1", path(&windows.folder));
    let said = self::results(&up.client, &windows.submit(&operate_proc(), 0))[&key].clone();
    assert!(
        said["error_msg"].as_str().is_some_and(|text| text.contains("bat") && text.contains("Windows")),
        "{said}"
    );
    // A host without an agent is that host's outcome.
    let away = Script::new(&up, "away").with(json!({"ip_list": [{"bk_cloud_id": 0, "ip": "10.9.9.9"}]}));
    let key = format!("{}:0:10.9.9.9", away.key());
    let results = self::results(&up.client, &away.submit(&operate_proc(), 0));
    assert_eq!(results[&key]["error_code"], 117, "{results:?}");
}

#[test]
fn a_proc_name_cannot_inject_a_command() {
    let up = up();
    let proc = Script::new(&up, "names").script("start.sh", "echo \"$#:$1\" >> told; exit 3");
    let names = [
        "web; touch harm",
        "web & touch harm",
        "$(touch harm)",
        "`touch harm`",
        "'; touch harm; '",
        "\\'; touch harm; \\'",
        "\"; touch harm; \"",
        "web > harm",
        "web || touch harm",
        "$IFS *",
        "-n",
        "~",
        "#web",
        "进程 '1'",
        &"x".repeat(256),
    ];
    let mut body = proc.body(0);
    let element = body["process_infos"][0].clone();
    let elements = names.iter().map(|name| {
        let mut element = element.clone();
        element["proc_name"] = json!(name);
        element
    });
    body["process_infos"] = elements.collect();
    let results = results(&up.client, &task(&up.client.post(&operate_proc(), body)));
    assert_eq!(results.len(), names.len());
    for (key, result) in &results {
        assert_eq!(result["error_code"], 65535, "{key}: {result}");
    }
    let mut told: Vec<String> = proc.read("told").lines().map(str::to_owned).collect();
    told.sort();
    let mut expected: Vec<String> = names.iter().map(|name| format!("1:{name}")).collect();
    expected.sort();
    assert_eq!(told, expected);
    assert!(!proc.folder.join("harm").exists());
    // Slashes and long names do not affect the files that the agent keeps for each proc.
    let outputs = fs::read_dir(up.data().join("agent/output")).expect("the agent's own folder").flatten();
    let is_its_own = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    let outputs: Vec<_> = outputs.filter(|entry| !is_its_own(entry)).collect();
    assert!(outputs.iter().all(|entry| entry.path().is_dir()), "{outputs:?}");
    assert_eq!(outputs.len(), names.len(), "{outputs:?}");
}

#[test]
fn operate_process_runs_the_callers_commands() {
    let up = up();
    let key = format!("C:\\jobs/{}:web", up.namespace);
    let proc = Script::new(&up, "commands").with(json!({
        "value_key": key,
        "start_cmd": format!("env > environment; {}", programs::daemon()),
        "stop_cmd": "echo stopped >> calls; kill $(cat web.pid)",
        "kill_cmd": "kill -9 $(cat web.pid)",
        "start_check_begin_time": 1, "op_timeout": 10, "contact": "ann", "func_id": "12", "instance_id": "7",
        "cfg_path": "/etc/web.conf", "log_path": "/var/log/web", "cpu_lmt": 90, "mem_lmt": 90,
    }));
    let api = operate_process();
    let value = proc.check(&api, 0, 0)["content"]["value"][0].clone();
    assert_eq!((&value["funcID"], &value["instanceID"]), (&json!("12"), &json!("7")));
    for fact in [
        "CONTACT=ann",
        "FUNC_ID=12",
        "CONFIG_PATH=/etc/web.conf",
        "LOG_PATH=/var/log/web",
        &format!("NAME={key}"),
    ] {
        let line = format!("PROCFLEET_{fact}");
        assert!(proc.read("environment").lines().any(|known| known == line), "{line} is not known");
    }
    let pid = proc.pid(&api).expect("it runs");
    assert_eq!(proc.pids(), [pid], "its mark bears the whole name");
    proc.check(&api, 8, 827);
    // It is hosted: it comes back.
    kill(pid, Signal::KILL);
    let again = wait_for(PATIENCE * 2, "it is started again", || {
        let seen = up.client.data("/api/v1/procs?namespace=job")[0]["pid"].as_u64();
        seen.and_then(|seen| u32::try_from(seen).ok()).filter(|seen| *seen != pid && is_running(*seen))
    });
    proc.check(&api, 4, 0);
    proc.check(&api, 1, 0);
    assert!(!is_running(again));
    assert_eq!(proc.read("calls"), "stopped\n");
    proc.check(&api, 0, 0);
    proc.check(&api, 9, 0);
    assert_eq!(proc.pid(&api), None);

    let once = Script::new(&up, "once").with(json!({"type": 2, "start_cmd": "echo ran >> calls"}));
    // Its run is over when the answer comes, so it is no longer hosted; start and host say the same.
    assert_eq!(once.check(&api, 0, 0)["content"]["value"][0]["isAuto"], false);
    assert_eq!(once.read("calls"), "ran\n");
    assert_eq!(once.check(&api, 3, 0)["content"]["value"][0]["isAuto"], false);
    assert_eq!(once.read("calls"), "ran\nran\n");
    let failing = Script::new(&up, "failing").with(json!({"type": 2, "start_cmd": "exit 3"}));
    assert_eq!(failing.check(&api, 3, 65535)["content"]["value"][0]["isAuto"], false);
    assert_eq!(failing.check(&api, 2, 0)["content"]["process"][0]["instance"][0]["isAuto"], false);
    let several = json!({
        "start_cmd": "exec ./web 1000", "instance_num": 2, "start_check_begin_time": 1, "pid_path": "/nonexistent/",
        "op_timeout": 10,
    });
    let several = Script::new(&up, "several").with(several);
    several.check(&api, 0, 0);
    let seen = several.check(&api, 2, 0)["content"]["process"][0]["instance"].clone();
    let pids: Vec<i64> =
        seen.as_array().expect("a list").iter().filter_map(|one| one["pid"].as_i64()).collect();
    assert!(pids.len() == 2 && pids[0] > 0 && pids[1] > 0 && pids[0] != pids[1], "{seen}");
    several.check(&api, 1, 0);
    let cycle = json!({"type": 0, "cycle_time": 3600, "start_cmd": "echo ran >> calls"});
    Script::new(&up, "periodic").with(cycle).submit(&api, 0);
}

#[test]
fn processes_are_hosted_and_unhosted() {
    let up = up();
    let api = manage_proc();
    let scope = |mut body: Value| {
        body.as_object_mut().expect("an object").remove("bk_biz_id");
        body["bk_scope_type"] = json!("biz");
        body["bk_scope_id"] = json!("1");
        task(&up.client.post(&api, body))
    };
    let proc = Script::new(&up, "hosted").with(json!({
        "proc_owner": "ann", "type": 1, "start_cmd": programs::foreground(), "start_check_begin_time": 1,
        "pid_path": null,
    }));
    results(&up.client, &scope(proc.body(1)));
    // Only manage_proc does without a pid file.
    let seen = || up.client.data("/api/v1/procs?namespace=job")[0].clone();
    let running = || seen()["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let first = wait_for(PATIENCE, "it was started, for it was not running", running);
    assert_eq!(seen()["hosted"], true);
    kill(first, Signal::KILL);
    let second = wait_for(PATIENCE * 2, "it is started again", || running().filter(|pid| *pid != first));
    results(&up.client, &scope(proc.body(2)));
    assert!(is_running(second), "it is left alone");
    wait_until(PATIENCE, "it is reported", || seen()["hosted"] == false);
    kill(second, Signal::KILL);
    wait_until(PATIENCE, "its end is an event", || seen()["state"] == "stopped");
    assert!(proc.pids().is_empty(), "nobody starts it again");
    assert_eq!(proc.read(programs::RUNS).lines().count(), 2);

    // Without a folder the commands run in the root, and the name is the key.
    let key = format!("nowhere/{}:web", up.namespace);
    let start = format!("exec {} 1000", path(&proc.folder.join(programs::NAME)));
    let bare = Script::new(&up, "anywhere").with(json!({
        "proc_owner": "ann", "type": 1, "start_cmd": start, "start_check_begin_time": 1, "pid_path": null,
        "setup_path": null, "value_key": key,
    }));
    bare.check(&api, 1, 0);
    // Hosting is answered before the process has become its program, which has no environment meanwhile.
    let pid = wait_for(PATIENCE, "it has one process", || match bare.pids()[..] {
        [pid] => Some(pid),
        _ => None,
    });
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).expect("it runs"), Path::new("/"));
    bare.check(&api, 2, 0);
    kill(pid, Signal::KILL);
}

#[test]
fn a_scope_says_whose_hosts_are_meant() {
    let up = up();
    let mut agent = shop_agent(&up);
    done(up.cli(&["business", "set-create", "2", "all", "--business", "7", "--business", "1"]));
    let proc = Script::new(&up, "scoped").script("start.sh", "exit 3");
    let both = json!([{"bk_cloud_id": 0, "ip": OTHER}, {"bk_cloud_id": 0, "ip": "127.0.0.1"}]);
    let body = |scope: Value| {
        let mut body = proc.body(0);
        body["process_infos"][0]["ip_list"] = both.clone();
        body.as_object_mut().expect("an object").remove("bk_biz_id");
        body.as_object_mut().expect("an object").extend(scope.as_object().expect("an object").clone());
        body
    };
    let (other, here) = (format!("{}:0:{OTHER}", proc.key()), format!("{}:0:127.0.0.1", proc.key()));
    let codes = |scope: Value| {
        let task = task(&up.client.post(&operate_proc(), body(scope)));
        let results = results(&up.client, &task);
        assert_eq!(results.len(), 2);
        (results[&other]["error_code"].as_u64(), results[&here]["error_code"].as_u64())
    };
    let (ran, outside) = (Some(65535), Some(837));
    assert_eq!(codes(json!({"bk_biz_id": 1})), (outside, ran));
    assert_eq!(codes(json!({"bk_biz_id": 7})), (ran, outside));
    assert_eq!(codes(json!({"bk_scope_type": "biz", "bk_scope_id": "7"})), (ran, outside));
    assert_eq!(codes(json!({"bk_scope_type": "biz_set", "bk_scope_id": 2})), (ran, ran));
    let task = task(&up.client.post(&operate_proc(), body(json!({"bk_biz_id": 1}))));
    let now = &results_now(&up.client, &task)["result"][&other];
    assert_eq!(now["error_msg"], "0:127.0.0.2 is outside the scope of the request", "at once");
    assert_eq!(now["content"]["value"].as_array().map(Vec::len), Some(1));

    let alive = |client: &Client, scope: Value| {
        let mut body = json!({"ip_list": both});
        body.as_object_mut().expect("an object").extend(scope.as_object().expect("an object").clone());
        client.post(&format!("{JOB}/get_agent_status/"), body)
    };
    let rows = |first: u32, second: u32| {
        json!([
            {"bk_cloud_id": 0, "ip": OTHER, "bk_agent_alive": first},
            {"bk_cloud_id": 0, "ip": "127.0.0.1", "bk_agent_alive": second},
        ])
    };
    assert_eq!(data(&alive(&up.client, json!({"bk_biz_id": 1}))), rows(0, 1));
    assert_eq!(data(&alive(&up.client, json!({"bk_biz_id": 7}))), rows(1, 0));
    let set = json!({"bk_scope_type": "biz_set", "bk_scope_id": "2"});
    assert_eq!(data(&alive(&up.client, set.clone())), rows(1, 1));

    // Scopes that do not exist.
    for (scope, words) in [
        (json!({"bk_biz_id": 9}), "bk_biz_id: there is no business 9"),
        (json!({"bk_scope_type": "biz", "bk_scope_id": "9"}), "bk_scope_id: there is no business 9"),
        (json!({"bk_scope_type": "biz_set", "bk_scope_id": "9"}), "bk_scope_id: there is no business set 9"),
    ] {
        up.client.post(&operate_proc(), body(scope.clone())).assert_refused(ILLEGAL, &[words]);
        alive(&up.client, scope).assert_refused(ILLEGAL, &[words]);
    }

    // A missing grant is denied, whether its object exists or not, and all missing grants are named.
    let web = app(&up, "web", &[]);
    let user = format!("account {:?}", account());
    let denied = ["business 7", "namespace \"job\"", "op start", &user];
    web.post(&operate_proc(), body(json!({"bk_biz_id": 7}))).assert_refused(DENIED, &denied);
    grant(&up, &web, &["--business", "1", "--namespace", "job", "--op", "start", "--account", &account()]);
    for (scope, words) in [
        (json!({"bk_biz_id": 7}), "app \"web\" may not use business 7"),
        (json!({"bk_biz_id": 9}), "app \"web\" may not use business 9"),
        (set, "app \"web\" may not use business 7"),
    ] {
        let refused = web.post(&operate_proc(), body(scope.clone()));
        refused.assert_refused(DENIED, &[words]);
        let missing = &refused.body["permission"]["actions"];
        assert_eq!(missing.as_array().map(Vec::len), Some(1), "{refused:?}");
        assert_eq!(
            (&missing[0]["id"], &refused.body["permission"]["system_id"]),
            (&json!("use_business"), &json!("procfleet"))
        );
        let business = &missing[0]["related_resource_types"][0]["instances"][0][0];
        assert!(
            words.ends_with(&format!("business {}", business["id"].as_str().expect("a text"))),
            "{refused:?}"
        );
        alive(&web, scope.clone()).assert_refused(DENIED, &[words]);
        let mut ask = scope;
        ask["bk_gse_taskid"] = json!(task);
        web.post(&format!("{JOB}/get_proc_result"), ask).assert_refused(DENIED, &[words]);
    }
    let own = self::task(&web.post(&operate_proc(), body(json!({"bk_biz_id": 1}))));
    assert_eq!(results(&web, &own)[&other]["error_code"], 837);
    web.post(&operate_proc(), {
        let mut body = body(json!({"bk_biz_id": 1}));
        body["process_infos"][0]["account"] = json!(null);
        body["op_type"] = json!(9);
        body
    })
    .assert_refused(DENIED, &["op kill"]);
    assert!(agent.is_running());
}

/// The app may use both businesses; the scope is what keeps the call of one away from hosts of the other.
#[test]
fn a_retry_stays_within_the_scope_of_its_task() {
    let up = up();
    let mut agent = shop_agent(&up);
    let web = granted_app(&up, "web");
    let proc = Script::new(&up, "again").script("start.sh", "echo run >> runs; exit 3");
    let body = |business: u32| {
        let mut body = proc.body(0);
        body["bk_biz_id"] = json!(business);
        body
    };
    let retry = |task: &str| {
        let accepted = web.post(&format!("/api/v1/tasks/{task}/retry"), json!({})).data();
        accepted["task_id"].as_str().expect("a text").to_owned()
    };
    let key = format!("{}:0:127.0.0.1", proc.key());
    let outcome = |task: &str| {
        let result = results(&web, task)[&key].clone();
        (result["error_code"].as_u64(), result["error_msg"].as_str().expect("a text").to_owned())
    };
    let outside = (Some(837), "0:127.0.0.1 is outside the scope of the request".to_owned());
    let first = task(&web.post(&operate_proc(), body(7)));
    let second = retry(&first);
    let third = retry(&second);
    for task in [&first, &second, &third] {
        assert_eq!(outcome(task), outside, "{task}");
    }
    assert_eq!(proc.read("runs"), "");

    let own = task(&web.post(&operate_proc(), body(1)));
    assert_eq!(outcome(&own).0, Some(65535));
    assert_eq!(outcome(&retry(&own)).0, Some(65535));
    assert_eq!(proc.read("runs"), "run\nrun\n", "within its scope it is tried again");
    // The grants of now count, too.
    done(up.cli(&["app", "revoke", "web", "--all"]));
    grant(&up, &web, &["--business", "1", "--namespace", "*", "--op", "*", "--account", "*"]);
    let denied = web.post(&format!("/api/v1/tasks/{first}/retry"), json!({}));
    denied.assert_refused(DENIED, &["business 7"]);
    assert!(agent.is_running());
}

#[test]
fn the_job_apis_are_served_on_every_path() {
    let up = up();
    let proc = Script::new(&up, "paths").script("start.sh", "exit 3");
    let made = proc.submit(&operate_proc(), 0);
    let results = results(&up.client, &made);
    let query = format!("bk_biz_id=1&bk_gse_taskid={}", made.replace(':', "%3A"));
    for prefix in
        [JOB, JOB_V3, "/api/job/v2/job-execute", "/api/job/v3/job-execute", "/esb/api/v2", "/esb/api/v3"]
    {
        for slash in ["", "/"] {
            let body = json!({"bk_scope_type": "biz", "bk_scope_id": "1", "bk_gse_taskid": made});
            let posted = data(&up.client.post(&format!("{prefix}/get_proc_result{slash}"), body));
            assert_eq!((&posted["status"], &posted["result"]), (&json!(0), &json!(results)));
            let got = data(&up.client.get(&format!("{prefix}/get_proc_result{slash}?{query}")));
            assert_eq!(got, posted);
            for api in ["operate_proc", "operate_process", "manage_proc", "get_agent_status"] {
                let empty = up.client.post(&format!("{prefix}/{api}{slash}"), json!({}));
                empty.assert_refused(ILLEGAL, &["bk_biz_id: is required (or bk_scope_type and bk_scope_id)"]);
            }
        }
    }
    let hosts = "%5B%7B%22bk_cloud_id%22%3A0%2C%22ip%22%3A%22127.0.0.1%22%7D%5D";
    let alive = data(&up.client.get(&format!("{JOB}/get_agent_status?bk_biz_id=1&ip_list={hosts}")));
    assert_eq!(alive, json!([{"bk_cloud_id": 0, "ip": "127.0.0.1", "bk_agent_alive": 1}]));
}

#[test]
fn errors_have_jobs_numbers() {
    let up = up();
    let ask = |body: Value| up.client.post(&format!("{JOB}/get_proc_result"), body);
    let unknown = "GSETASK:20180315180551:1000";
    let refused = ask(json!({"bk_biz_id": 1, "bk_gse_taskid": unknown}));
    refused.assert_refused(1_000_806, &[unknown]);
    assert_eq!((refused.body.get("permission"), &refused.body["data"]), (Some(&Value::Null), &Value::Null));
    ask(json!({"bk_biz_id": 1})).assert_refused(ILLEGAL, &["bk_gse_taskid: is required"]);
    let proc = Script::new(&up, "faulty");
    let mut body = proc.body(5);
    body["process_infos"][0]["ip_list"] = json!([]);
    let faults = ["op_type: 5 is no operation", "process_infos[0].ip_list: must not be empty"];
    up.client.post(&operate_proc(), body).assert_refused(ILLEGAL, &faults);
    up.client.post(&operate_process(), proc.body(6)).assert_refused(ILLEGAL, &["op_type: 6 is no operation"]);
    up.client.post(&manage_proc(), proc.body(3)).assert_refused(ILLEGAL, &["there are 1 host and 2 unhost"]);
    let headers = [("Content-Type", "application/json")];
    up.client.raw(&operate_proc(), &headers, b"{\"bk_biz_id\"").answer().assert_refused(ILLEGAL, &["JSON"]);
    let stranger = up.client.as_app("procfleet-admin", "wrong");
    stranger.post(&operate_proc(), proc.body(0)).assert_refused(DENIED, &["bk_app_secret"]);

    // An app cannot read another app's task, through either API.
    let made = proc.submit(&operate_proc(), 2);
    let other = granted_app(&up, "other");
    let hidden =
        other.post(&format!("{JOB}/get_proc_result"), json!({"bk_biz_id": 1, "bk_gse_taskid": made}));
    hidden.assert_refused(1_000_806, &[&made]);
    // The record calls the API by its whole name.
    let audit = up.client.data("/api/v1/audit");
    assert!(
        audit.as_array().is_some_and(|rows| rows.iter().any(|row| row["action"] == "job.operate_proc")),
        "{audit}"
    );
}

#[test]
fn a_call_is_accepted_once() {
    let up = up();
    let proc = Script::new(&up, "repeated").script("start.sh", "echo run >> runs; exit 3");
    let send = |key: &str, body: &Value| {
        up.client.post_with_headers(&operate_proc(), &[("Idempotency-Key", key)], body)
    };
    let first = task(&send("k", &proc.body(0)));
    assert_eq!(task(&send("k", &proc.body(0))), first);
    results(&up.client, &first);
    assert_eq!(proc.read("runs"), "run\n");
    done(up.cli(&["business", "create", "7", "shop"]));
    let mut elsewhere = proc.body(0);
    elsewhere["bk_biz_id"] = json!(7);
    send("k", &elsewhere).assert_refused(ILLEGAL, &["Idempotency-Key", &first]);
    let mut both = proc.body(0);
    both["op_type"] = Value::Null;
    send("", &both).assert_refused(ILLEGAL, &["op_type: is required", "Idempotency-Key: is empty"]);
}

#[test]
fn each_api_shows_tasks_of_the_other_api() {
    let up = up();
    let proc = Script::new(&up, "seen").script("start.sh", "exit 3");
    let made = proc.submit(&operate_proc(), 0);
    results(&up.client, &made);
    let second = up.client.results(&made);
    assert_eq!(second[0].0, format!("0:127.0.0.1:job:{}", proc.key()));
    second[0].1.assert(65535, "");
    let gse = up.proc("gse");
    let made = gse.submit(Op::Query).id;
    let seen = results(&up.client, &made);
    let key = format!("{}:gse:0:127.0.0.1", up.namespace);
    assert_eq!(seen.keys().collect::<Vec<_>>(), [&key]);
    assert_eq!(seen[&key]["content"]["process"][0]["procname"], programs::NAME);
}

/// A path may have 4,096 characters. With such a name the agent would lose each of its sessions.
#[test]
fn a_process_with_a_very_long_key_is_operated_under_a_prefix_and_a_hash_of_it() {
    let up = up();
    let long = "k".repeat(4_000);
    let with_key = |name: &str, key: &str| {
        let commands = json!({"value_key": key, "type": 1, "start_cmd": programs::daemon(), "stop_cmd": "kill $(cat web.pid)"});
        Script::new(&up, name).with(commands)
    };
    let (proc, other) = (with_key("long", &long), with_key("longer", &format!("{long}2")));
    let outcome = |proc: &Script<'_>, op_type: u32| {
        let results = results(&up.client, &proc.submit(&operate_process(), op_type));
        assert_eq!(results.len(), 1, "{results:?}");
        let (name, result) = results.into_iter().next().expect("one");
        (name, result["error_code"].as_u64().expect("a code"))
    };
    let (name, code) = outcome(&proc, 0);
    let (prefix, hash) = name.split_once("…sha256:").expect("a hashed name");
    assert_eq!((prefix, code), (&long[..1_000], 0), "{name}");
    assert_eq!(hash.strip_suffix(":0:127.0.0.1").map(str::len), Some(64), "{name}");
    up.kill_agent();
    assert_eq!(outcome(&proc, 2), (name.clone(), 0), "the same process after a restart of the agent");
    let rows = up.client.data("/api/v1/procs?namespace=job");
    assert_eq!(format!("{}:0:127.0.0.1", rows[0]["name"].as_str().expect("a name")), name);
    assert_ne!(outcome(&other, 2).0, name, "another long key is another process");
    assert_eq!(outcome(&proc, 1), (name, 0));
    assert_eq!(cuts(&up, "oversized"), 0);
}
