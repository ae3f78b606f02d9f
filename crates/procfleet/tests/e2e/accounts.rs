//! Apps that are limited to OS accounts, against what is really stored and running.

use crate::access::{DENIED, app, done, grant};
use crate::hostile::{peer, welcome_as};
use crate::up;
use procfleet_testkit::{
    Client, Need, Op, PATIENCE, Proc, Signal, Up, account, has, kill, programs, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const GSE: &str = "/api/c/compapi/v2/gse";
const OTHER: &str = "nobody";
const NOT_ALLOWED: u64 = 1_000_837;

/// The agent may start processes of other accounts only where it runs as root.
fn is_root() -> bool {
    has(Need::Root, account() == "root")
}

/// An app that may do everything as [`OTHER`].
#[track_caller]
fn limited(up: &Up) -> Client {
    let app = app(up, "limited", &[]);
    grant(up, &app, &["--business", "*", "--namespace", "*", "--op", "*", "--account", OTHER]);
    app
}

/// This proc as the app would send it.
fn as_other(proc: &Proc, app: &Client) -> Proc {
    let mut mine = proc.clone().identity("user", OTHER);
    mine.client = app.clone();
    mine
}

/// A folder in which every account may write.
fn open_to_all(proc: &Proc) {
    fs::set_permissions(&proc.folder, fs::Permissions::from_mode(0o777)).expect("our own folder");
}

fn log(proc: &Proc, more: &str) -> String {
    format!("/api/v1/logs?namespace={}&name={}{more}", proc.namespace, proc.name)
}

/// The outcome of a call of the first generation that answers at once.
#[track_caller]
fn registration(mine: &Proc, api: &str) -> u64 {
    let mut body = mine.request.clone();
    body["hosts"][0]["bk_supplier_id"] = json!(0);
    body["spec"]["resource"] = json!({"cpu": 0.0, "mem": 0.0});
    let data = mine.client.post(&format!("{GSE}/{api}/"), body).data();
    let results = data.as_object().expect("results by key");
    results.values().next().and_then(|result| result["error_code"].as_u64()).expect("a code")
}

#[test]
fn an_app_cannot_reach_processes_of_an_account_that_it_is_not_granted() {
    if !is_root() {
        return;
    }
    let up = up();
    let app = limited(&up);
    let theirs = up
        .proc("shared")
        .control("version_cmd", "echo 6.6.6-secret")
        .control("reload_cmd", "touch reloaded")
        .starts("echo a secret of root; exec ./web 1000");
    open_to_all(&theirs);
    let pid = theirs.start();
    let mine = as_other(&theirs, &app).starts("echo taken; exec ./web 1000");
    for op in [Op::Stop, Op::Kill, Op::Restart, Op::Reload, Op::Query, Op::Host, Op::Unhost, Op::Start] {
        let outcome = mine.op(op);
        outcome.assert(837, "").assert_says("user \"root\", which the app may not use");
        let told = format!("{} {}", outcome.message, outcome.content);
        assert!(!told.contains("secret") && !told.contains(&pid.to_string()), "{outcome:?}");
    }
    for api in ["register_proc_info", "update_proc_info"] {
        assert_eq!(registration(&mine, api), 837, "{api}");
    }
    // A stop that is tried again is refused again; and cancelled, it does nothing either.
    let task = mine.submit(Op::Stop);
    task.outcome().assert(837, "");
    let again = app.post(&format!("/api/v1/tasks/{}/retry", task.id), json!({})).data();
    let again = again["task_id"].as_str().expect("a task").to_owned();
    app.outcome(&again).assert(837, "");
    app.post(&format!("/api/v1/tasks/{again}/cancel"), json!({})).data();
    // Without a spec only the host knows the account.
    let bare = app.post(&format!("{GSE}/operate_proc_v2/"), mine.clone().without_spec().body(Op::Stop));
    bare.assert_refused(DENIED, &["all accounts"]);
    // The limits of a group would end root's process.
    let limits =
        json!({"cpu_pool_limit": 1.0, "mem_pool_limit": 1.0, "cpu_pool_weight": 0, "mem_pool_weight": 0});
    let group = json!({
        "meta": {"namespace": up.namespace, "name": "", "labels": {}},
        "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_supplier_id": 2}],
        "spec": {"process_group": [{"id": "g", "resource": limits}]},
    });
    app.post(&format!("{GSE}/set_process_group_info/"), group).assert_refused(DENIED, &["all accounts"]);
    app.get(&log(&mine, "")).assert_refused(NOT_ALLOWED, &["\"root\""]);
    assert_eq!(theirs.pid(), Some(pid), "it is as it was");
    assert!(theirs.read("reloaded").is_empty() && !theirs.folder.join("reloaded").exists());
    assert_eq!(theirs.row().expect("it is listed")["hosted"], true);

    // The app may see the state of the process, but not its output.
    wait_until(PATIENCE, "its version is known", || {
        theirs.row().is_some_and(|row| row["version"] == "6.6.6-secret")
    });
    let row = mine.row().expect("its state is no secret");
    assert_eq!((&row["state"], &row["pid"], &row["version"]), (&json!("running"), &json!(pid), &json!("")));
    let events = |client: &Client| -> Vec<Value> {
        let events = client.data(&format!("/api/v1/events?namespace={}", up.namespace));
        events["events"].as_array().expect("a list").clone()
    };
    wait_until(PATIENCE, "its start is an event", || !events(&up.client).is_empty());
    assert!(events(&up.client)[0]["message"].as_str().is_some_and(|said| said.contains(&pid.to_string())));
    let seen = &events(&app)[0];
    assert_eq!((&seen["kind"], &seen["details"]), (&json!("started"), &Value::Null));
    assert!(seen["message"].as_str().is_some_and(|said| said.starts_with("not shown")), "{seen}");

    // The output of root's run stays root's when the proc belongs to another account later.
    theirs.op(Op::Stop).assert_success();
    let handed_over = theirs.clone().identity("user", OTHER).starts("echo words of nobody; exec ./web 1000");
    handed_over.op(Op::Start).assert_success();
    let lines = |client: &Client, more: &str| client.data(&log(&mine, more))["lines"].clone();
    assert_eq!(lines(&up.client, ""), json!(["a secret of root", "words of nobody"]));
    assert_eq!(lines(&app, ""), json!(["words of nobody"]));
    assert_eq!(lines(&app, "&since=0"), json!(["words of nobody"]));
    assert_eq!(lines(&app, "&since=3&lines=100"), json!(["words of nobody"]));
    up.kill_agent();
    wait_until(PATIENCE, "the next agent answers", || app.get(&log(&mine, "")).body["code"] == 0);
    assert_eq!(lines(&app, "&since=0"), json!(["words of nobody"]), "the next agent knows it, too");
    mine.op(Op::Query).assert_success();
    mine.op(Op::Restart).assert_success();
    mine.op(Op::Stop).assert_success();
    // And back.
    theirs.op(Op::Start).assert_success();
    mine.op(Op::Kill).assert(837, "");
    app.get(&log(&mine, "&since=0")).assert_refused(NOT_ALLOWED, &["\"root\""]);
    done(up.cli(&["app", "grant", "limited", "--account", "root"]));
    assert_eq!(lines(&app, "&since=0").as_array().map(Vec::len), Some(4), "grants count as they are now");
    mine.op(Op::Kill).assert_success();
}

/// The specs say one thing and the process is another.
#[test]
fn a_process_of_another_account_is_not_taken_over_by_its_mark() {
    if !is_root() {
        return;
    }
    let up = up();
    let app = limited(&up);
    let theirs = up.proc("orphan").starts(&programs::foreground());
    open_to_all(&theirs);
    let pid = theirs.start();
    // The process goes on, and no spec of it is stored.
    let name = json!({"meta": {"namespace": up.namespace, "name": "orphan"},
                      "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_supplier_id": 0}]});
    up.client.post(&format!("{GSE}/unregister_proc_info/"), name).data();
    wait_until(PATIENCE, "it is no longer listed", || theirs.row().is_none());
    let mine = as_other(&theirs, &app);
    for op in [Op::Start, Op::Host, Op::Restart, Op::Stop, Op::Kill] {
        mine.op(op).assert(837, "").assert_says("runs as user \"root\"");
    }
    assert_eq!(registration(&mine, "register_proc_info"), 837);
    assert_eq!(theirs.program_pids(), [pid]);
    assert!(theirs.row().is_none(), "nothing is stored for it");
    kill(pid, Signal::KILL);
}

/// A stop also ends what earlier runs have left.
#[test]
fn leftovers_of_another_accounts_run_are_not_ended_for_a_limited_app() {
    if !is_root() {
        return;
    }
    let up = up();
    let app = limited(&up);
    let theirs = up.proc("handed").policy("detached", "keep");
    let theirs = theirs.starts("setsid ./web 1001 > /dev/null 2>&1 & exec ./web 1000");
    open_to_all(&theirs);
    let old = theirs.start();
    wait_until(PATIENCE, "both run", || theirs.program_pids().len() == 2);
    let left = theirs.program_pids().into_iter().find(|pid| *pid != old).expect("there are two");
    theirs.op(Op::Unhost).assert_success();
    kill(old, Signal::KILL);
    wait_until(PATIENCE, "the agent has noticed the death", || theirs.op(Op::Query).pid().is_none());
    theirs.clone().identity("user", OTHER).starts(&programs::foreground()).op(Op::Start).assert_success();
    let mine = as_other(&theirs, &app).starts(&programs::foreground()).policy("detached", "end");
    for op in [Op::Stop, Op::Kill, Op::Restart] {
        mine.op(op).assert(837, "").assert_says(&format!("pid {left}"));
    }
    assert!(procfleet_testkit::is_running(left));
    kill(left, Signal::KILL);
    wait_until(PATIENCE, "root's process is gone", || !procfleet_testkit::is_running(left));
    mine.op(Op::Stop).assert_success();
}

/// As a process that uses `sudo`: its children are ended with it, whatever their account.
#[test]
fn children_of_other_accounts_end_with_the_process_that_started_them() {
    if !is_root() {
        return;
    }
    let up = up();
    let app = app(&up, "limited", &[]);
    grant(&up, &app, &["--business", "*", "--namespace", "*", "--op", "*", "--account", "root"]);
    let as_nobody = format!("setpriv --reuid {OTHER} --clear-groups ./web 1001");
    let mut mine = up.proc("parent").starts(&format!("{as_nobody} > /dev/null 2>&1 & exec ./web 1000"));
    mine.client = app;
    let parent = mine.start();
    wait_until(PATIENCE, "both run", || mine.program_pids().len() == 2);
    let child = mine.program_pids().into_iter().find(|pid| *pid != parent).expect("there are two");
    let owner = |pid: u32| fs::metadata(format!("/proc/{pid}")).expect("it runs").uid();
    assert_ne!(owner(child), owner(parent));
    mine.op(Op::Stop).assert_success();
    wait_until(PATIENCE, "the child has ended, too", || !procfleet_testkit::is_running(child));
}

/// It would carry out what it does not check.
#[test]
fn an_agent_that_cannot_check_accounts_gets_no_op_of_a_limited_app() {
    let up = up();
    let app = limited(&up);
    let old = peer(&up, "10.6.0.7");
    let _session = welcome_as(&old, |hello| hello.limits_accounts = false);
    let mine = as_other(&up.proc("old").on_host("10.6.0.7").starts("true"), &app);
    mine.op(Op::Start).assert(837, "the app is limited to some OS accounts").assert_says("upgrade the agent");
    let _session = welcome_as(&old, |hello| (hello.limits_accounts, hello.reads_logs) = (false, true));
    app.get(&log(&mine, "&host=0:10.6.0.7")).assert_refused(NOT_ALLOWED, &["upgrade it"]);
}
