//! The client verbs, as a person or a script uses them.

use crate::up;
use procfleet_testkit::{
    Finished, Need, Op, PATIENCE, Program, Up, account, is_running, need, programs, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};

/// An account of every Debian.
const NOBODY: u32 = 65_534;

#[track_caller]
fn json_of(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

#[track_caller]
fn assert_exit(finished: &Finished, code: i32) {
    assert_eq!(finished.code, Some(code), "{finished:?}");
}

/// `procfleet start web ...` for a program that daemonises.
#[track_caller]
fn start_web(up: &Up, more: &[&str]) -> Finished {
    let proc = up.proc("web");
    let folder = proc.folder.to_str().expect("a plain path").to_owned();
    let (user, command) = (account(), programs::daemon());
    let flags = [
        "start",
        "web",
        "--namespace",
        &up.namespace,
        "--host",
        "0:127.0.0.1",
        "--cmd",
        &command,
        "--pid-file",
        "web.pid",
        "--setup-path",
        &folder,
        "--user",
        &user,
        "--start-check-secs",
        "1",
        "--stop-check-secs",
        "2",
        "--reload-cmd",
        "true",
    ];
    up.cli(&[&flags, more].concat())
}

/// The one row of `procfleet ps --json`, as soon as it is so.
#[track_caller]
fn row_when(up: &Up, is_so: impl Fn(&Value) -> bool) -> Value {
    wait_for(PATIENCE, "ps shows it", || {
        let rows = json_of(&up.cli(&["ps", "--json", "--namespace", &up.namespace, "--name", "web"]));
        assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
        Some(rows[0].clone()).filter(&is_so)
    })
}

#[test]
fn a_process_is_run_by_flags_alone() {
    let up = up();
    let ns = up.namespace.as_str();
    let web = |verb: &str| up.cli(&[verb, "web", "--namespace", ns]);
    let started = start_web(&up, &["--label", "team=shop"]);
    assert_exit(&started, 0);
    assert!(started.stdout.contains("start") && started.stderr.contains("GSETASK:"), "{started:?}");

    let row = row_when(&up, |row| row["state"] == "running");
    assert_eq!((&row["name"], &row["namespace"], &row["hosted"]), (&json!("web"), &json!(ns), &json!(true)));
    assert_eq!((&row["ip"], &row["labels"]["team"]), (&json!("127.0.0.1"), &json!("shop")));
    let pid = row["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it has a pid");
    let table = up.cli(&["ps"]);
    assert_exit(&table, 0);
    assert!(table.stdout.contains("running") && table.stdout.contains(&pid.to_string()), "{table:?}");

    let status = web("status");
    assert_exit(&status, 0);
    assert!(status.stdout.contains("running") && status.stdout.contains(&pid.to_string()), "{status:?}");

    let again = start_web(&up, &["--strict"]);
    assert_exit(&again, 1);
    assert!(again.stdout.contains("828") && again.stdout.contains("already running"), "{again:?}");

    // From here on the agent knows the spec.
    for verb in ["reload", "unhost", "host", "restart"] {
        assert_exit(&web(verb), 0);
    }
    let second = row_when(&up, |row| row["state"] == "running" && row["pid"] != pid)["pid"].clone();
    assert!(second.is_u64());
    assert_exit(&web("stop"), 0);
    assert!(!is_running(pid));
    assert_exit(&web("stop"), 0);
    assert!(web("status").stdout.contains("stopped"));
    assert_exit(&web("start"), 0);
    assert_exit(&web("kill"), 0);
}

#[test]
fn a_process_is_run_by_a_file() {
    let up = up();
    let proc = up.proc("filed").with_pid_file().starts(&programs::daemon());
    let spec = up.folder("cli").join("spec.json");
    fs::write(&spec, proc.request["spec"].to_string()).expect("our own folder");
    let by_spec = up.cli(&["start", "filed", "--namespace", &up.namespace, "-f", "spec.json"]);
    assert_exit(&by_spec, 0);
    let pid = proc.pid().expect("it runs");

    // A whole request may be read from stdin; flags take precedence.
    let request = proc.body(Op::Start).to_string();
    let by_request = up.cli_with_stdin(&["stop", "filed", "-f", "-"], &request);
    assert_exit(&by_request, 0);
    assert!(!is_running(pid));

    for (text, words) in [("{", "is not JSON"), ("[]", "not a JSON object"), ("{}", "neither")] {
        let refused = up.cli_with_stdin(&["start", "filed", "-f", "-"], text);
        assert_exit(&refused, 2);
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
}

#[test]
fn tasks_are_shown_listed_and_watched() {
    let up = up();
    let asked = start_web(&up, &["--no-wait"]);
    assert_exit(&asked, 0);
    let task = asked.stdout.trim().to_owned();
    assert!(task.starts_with("GSETASK:"), "{asked:?}");
    let watched = up.cli(&["task", "watch", &task]);
    assert_exit(&watched, 0);
    assert!(watched.stderr.contains("ok") || watched.stdout.contains("ok"), "{watched:?}");
    let shown = json_of(&up.cli(&["task", "show", &task, "--json"]));
    assert_eq!((&shown["task_id"], &shown["counts"]["succeeded"]), (&json!(task), &json!(1)));
    assert_eq!((&shown["ops"][0]["kind"], &shown["ops"][0]["error_code"]), (&json!("start"), &json!(0)));
    let shown = up.cli(&["task", "show", &task]);
    assert!(shown.stdout.contains("0:127.0.0.1") && shown.stdout.contains("web"), "{shown:?}");

    let failed = start_web(&up, &["--no-wait", "--json"]);
    let failed = json_of(&failed)["task_id"].as_str().expect("a task id").to_owned();
    assert_exit(&up.cli(&["task", "watch", &failed]), 0);
    assert_exit(&up.cli(&["task", "watch", &failed, "--strict"]), 1);
    // The question what became of it is answered all the same.
    assert_exit(&up.cli(&["task", "show", &failed]), 0);

    let listed = json_of(&up.cli(&["task", "list", "--json"]));
    let ids: Vec<&Value> = listed.as_array().expect("a list").iter().map(|row| &row["task_id"]).collect();
    assert_eq!(ids, [&json!(failed), &json!(task)], "the newest first");
    let table = up.cli(&["task", "list", "--limit", "1"]);
    assert!(table.stdout.contains(&failed) && !table.stdout.contains(&task), "{table:?}");
}

#[test]
fn a_wait_that_takes_too_long_ends_and_the_task_goes_on() {
    let up = up();
    let proc = up.proc("slow").starts(&programs::foreground()).policy("start_check_secs", 600);
    let body = proc.body(Op::Start).to_string();
    let cut = up.cli_with_stdin(&["start", "slow", "-f", "-", "--timeout", "1"], &body);
    assert_exit(&cut, 1);
    assert!(cut.stderr.contains("task watch GSETASK:"), "{cut:?}");
    wait_until(PATIENCE, "it was started all the same", || proc.pid().is_some());
}

#[test]
fn agents_and_the_audit_are_shown() {
    let up = up();
    let agents = json_of(&up.cli(&["agents", "--json"]));
    assert_eq!((&agents[0]["ip"], &agents[0]["connected"]), (&json!("127.0.0.1"), &json!(true)));
    let table = up.cli(&["agents"]);
    assert_exit(&table, 0);
    assert!(table.stdout.contains("connected") && table.stdout.contains("0:127.0.0.1"), "{table:?}");
    up.token(&["--ttl", "10m", "--uses", "3"]);
    let audit = json_of(&up.cli(&["audit", "--json"]));
    assert!(audit.as_array().expect("a list").iter().any(|row| row["action"] == "token_create"), "{audit}");
}

#[test]
fn the_exit_code_says_what_went_wrong() {
    let up = up();
    // 2: the command line cannot be carried out.
    for line in [
        vec!["start"],
        vec!["no-such-verb"],
        vec!["start", "web", "--host", "nonsense"],
        vec!["start", "web", "-f", "/nowhere/spec.json"],
        vec!["task", "show", "nonsense"],
        vec!["token", "create", "--ttl", "0s"],
        vec!["ps", "--url", "not-a-url", "--app-code", "nobody", "--app-secret", "hush-hush"],
    ] {
        assert_exit(&up.cli(&line), 2);
    }
    // 5: the server cannot be reached, or refuses the login.
    let nobody = ["--app-code", "nobody", "--app-secret", "hush-hush"];
    let away = up.cli(&[&["ps", "--url", "http://127.0.0.1:1"], &nobody[..]].concat());
    assert_exit(&away, 5);
    assert!(away.stderr.contains("cannot reach http://127.0.0.1:1"), "{away:?}");
    let denied = up.cli(&[&["ps", "--url", &up.client.url], &nobody[..]].concat());
    assert_exit(&denied, 5);
    assert!(denied.stderr.contains("1306403") && !denied.stderr.contains("hush-hush"), "{denied:?}");
    let nowhere = up.cli(&["ps", "--data", "/nowhere"]);
    assert_exit(&nowhere, 5);
    assert!(nowhere.stderr.contains("/nowhere/admin.json"), "{nowhere:?}");
    // 1: an op failed, or the server refused the request.
    let unknown = up.cli(&["stop", "nothing", "--namespace", &up.namespace]);
    assert_exit(&unknown, 1);
    assert!(unknown.stderr.contains("801") || unknown.stdout.contains("801"), "{unknown:?}");
    let no_host = up.cli(&["stop", "nothing", "--host", "9:10.9.9.9"]);
    assert_exit(&no_host, 1);
    let limited = up.cli(&["app", "create", "limited"]);
    let login = ["--url", &up.client.url, "--app-code", "limited", "--app-secret", limited.stdout.trim_end()];
    let no_grant = up.cli(&[&["token", "list"], &login[..]].concat());
    assert_exit(&no_grant, 1);
    assert!(
        no_grant.stderr.contains("the server refused: app") && no_grant.stderr.contains("1306403"),
        "{no_grant:?}"
    );
    let no_task = up.cli(&["task", "show", "GSETASK:20190813145456:8"]);
    assert_exit(&no_task, 1);
    assert!(no_task.stderr.contains("GSETASK:20190813145456:8"), "{no_task:?}");
    // 0: nothing is wrong with nothing.
    assert_exit(&up.cli(&["ps", "--name", "nothing"]), 0);
}

/// Flags, then the environment, then admin.json.
#[test]
fn credentials_come_from_flags_environment_or_file() {
    let up = up();
    let (url, code, secret) = (&up.client.url, &up.client.app_code, &up.client.app_secret);
    let bare = || Program::new(up.binary()).current_dir(&up.folder("cli"));
    let flags = ["ps", "--url", url, "--app-code", code, "--app-secret", secret];
    assert_exit(&bare().args(flags).run(), 0);
    let environment = bare().args(["ps"]).env("PROCFLEET_URL", url);
    let environment = environment.env("PROCFLEET_APP_CODE", code).env("PROCFLEET_APP_SECRET", secret);
    assert_exit(&environment.run(), 0);
    assert_exit(&bare().args(["ps", "--data"]).args([up.data()]).run(), 0);
    assert_exit(&bare().args(["ps"]).run(), 5);
}

/// The client is called in a folder of another account, with an admin.json that names another server.
#[test]
fn a_secret_is_not_sent_to_the_server_of_another_source() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a port");
    elsewhere.set_nonblocking(true).expect("our own socket");
    let url = format!("http://{}", elsewhere.local_addr().expect("it is bound"));
    let folder = tempfile::tempdir().expect("a temp dir");
    let data = folder.path().join("procfleet-data");
    fs::create_dir(&data).expect("our own folder");
    let (file, text) =
        (data.join("admin.json"), json!({"url": url, "bk_app_code": "a", "bk_app_secret": "b"}));
    fs::write(&file, text.to_string()).expect("our own file");
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("our own file");
    mode(0o600);
    let ps = || Program::new(env!("CARGO_BIN_EXE_procfleet")).current_dir(folder.path()).args(["ps"]);
    let check = |program: Program, words: &[&str]| {
        let refused = program.run();
        assert_exit(&refused, 5);
        words.iter().for_each(|words| assert!(refused.stderr.contains(words), "{words:?}: {refused:?}"));
        assert!(!refused.stderr.contains("hush-hush"), "{refused:?}");
    };
    let environment = || ps().env("PROCFLEET_APP_CODE", "ops").env("PROCFLEET_APP_SECRET", "hush-hush");
    let half = "PROCFLEET_APP_CODE and PROCFLEET_APP_SECRET without PROCFLEET_URL";
    check(environment(), &[half, "procfleet-data/admin.json"]);
    check(ps().env("PROCFLEET_URL", &url), &["PROCFLEET_URL without PROCFLEET_APP_CODE"]);
    let flags = environment().args(["--url", &url]);
    check(flags, &["--url without --app-code and --app-secret", "the environment"]);
    let flags = ps().args(["--app-code", "ops", "--app-secret", "hush-hush"]);
    check(flags, &["--app-code and --app-secret without --url", "procfleet-data/admin.json"]);

    // A file that another account may have written is not read at all.
    mode(0o644);
    check(ps(), &["procfleet-data/admin.json is not used: others may read or write it (mode 0644)"]);
    mode(0o600);
    if need(Need::Root, chown(&file, Some(NOBODY), None)).is_some() {
        check(ps(), &["procfleet-data/admin.json is not used: it belongs to nobody"]);
        chown(&data, Some(NOBODY), None).expect("root may");
        check(ps(), &["is not used: the folder", "belongs to nobody"]);
    }
    let heard = elsewhere.accept().expect_err("nobody has called");
    assert_eq!(heard.kind(), ErrorKind::WouldBlock);
}
