//! Fields of a spec other than its commands, as callers and processes see them.

use crate::up;
use procfleet_testkit::{Need, Op, PATIENCE, Proc, account, has, is_running, programs, wait_for, wait_until};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

/// Its entry in the answer of `get_proc_status_v2`.
#[track_caller]
fn info(proc: &Proc) -> Value {
    let body =
        json!({"meta": {"namespace": proc.namespace, "name": proc.name}, "hosts": proc.request["hosts"]});
    proc.client.post("/api/c/compapi/v2/gse/get_proc_status_v2/", body).data()["proc_infos"][0].clone()
}

#[test]
fn commands_get_the_spec_in_their_environment() {
    let up = up();
    let proc = up
        .proc("informed")
        .with_pid_file()
        .identity("config_path", "/etc/web.conf")
        .starts(&format!("env > seen; {}", programs::daemon()));
    proc.start();
    let seen = proc.read("seen");
    let value = |name: &str| seen.lines().find_map(|line| line.strip_prefix(&format!("PROCFLEET_{name}=")));
    let folder = proc.folder.to_str().expect("a plain path");
    let pid_path = format!("{folder}/web.pid");
    for (name, expected) in [
        ("NAMESPACE", Some(proc.namespace.as_str())),
        ("NAME", Some("informed")),
        ("PROC_NAME", Some("web")),
        ("SETUP_PATH", Some(folder)),
        ("PID_PATH", Some(pid_path.as_str())),
        ("CONFIG_PATH", Some("/etc/web.conf")),
        ("INSTANCE", Some("1")),
        ("LOG_PATH", None),
        ("CONTACT", None),
        ("REPORT_ID", None),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
}

#[test]
fn version_and_health_show_in_every_status() {
    let up = up();
    let proc = up
        .proc("asked")
        .starts(&programs::foreground())
        .control("version_cmd", "echo run >> asked; cat version")
        .control("health_cmd", "test -e web && echo fine")
        .control("reload_cmd", "echo 2.0 > version");
    let line = "web version: web/1.2.19 (stable)";
    std::fs::write(proc.folder.join("version"), format!("{line}\nbuilt today\n")).expect("our own folder");
    let pid = proc.start();
    let seen = |line: &str, word: &str, health: &str| {
        wait_until(PATIENCE, &format!("version {line:?} and health {health:?} are seen"), || {
            let seen = proc.op(Op::Query);
            seen.instance()["version"] == line && seen.instance()["health"] == health
        });
        wait_until(PATIENCE, "the server knows them too", || {
            let rows = up.client.data(&format!("/api/v1/procs?name={}", proc.name));
            let row = &rows[0];
            info(&proc)["version"] == word && row["version"] == line && row["health"] == health
        });
    };
    seen(line, "1.2.19", "healthy: fine");
    proc.op(Op::Reload).assert_success();
    seen("2.0", "2.0", "healthy: fine");
    assert_eq!((proc.pid(), proc.runs()), (Some(pid), 1), "the probes are not the process");
    // An agent that comes back asks again.
    let asked = proc.read("asked").lines().count();
    up.kill_agent();
    seen("2.0", "2.0", "healthy: fine");
    wait_until(PATIENCE, "it was asked again", || proc.read("asked").lines().count() > asked);
    proc.op(Op::Stop).assert_success();
    seen("2.0", "2.0", "");
    assert!(!is_running(pid));
}

/// The first failure shows at once; only three in a row are an event.
#[test]
fn the_last_answer_about_health_shows_at_once() {
    let up = up();
    let proc = up
        .proc("ill")
        .starts(&format!("rm -f asked; {}", programs::foreground()))
        .control("health_cmd", "echo run >> asked; echo failure $(wc -l < asked); exit 1");
    let asked = || proc.read("asked").lines().count();
    // The second check follows 30 s after the first. A loaded machine may need another process to be that
    // quick.
    wait_until(PATIENCE * 3, "the first failure shows before the second check", || {
        proc.op(Op::Restart).assert_success();
        let shown = wait_for(PATIENCE, "a failure shows", || {
            let health = proc.op(Op::Query).instance()["health"].clone();
            health.as_str().filter(|health| !health.is_empty()).map(str::to_owned)
        });
        let events = format!("/api/v1/events?namespace={}&kind=unhealthy", proc.namespace);
        let events = up.client.data(&events)["events"].clone();
        assert!(asked() >= 3 || events == json!([]), "an event before the third failure: {events}");
        shown == "unhealthy: failure 1"
    });
}

/// A probe that hangs holds up nothing: no op, and not the agent's end.
#[test]
fn a_probe_that_hangs_does_not_block_ops() {
    let mut up = up();
    let hanging = "echo $$ > hanging; exec sleep 1000";
    let proc = up.proc("hanging").starts(&programs::foreground()).control("health_cmd", hanging);
    let pid = proc.start();
    let hung = |other: u32| {
        let pid = || proc.read("hanging").trim().parse::<u32>().ok();
        wait_for(PATIENCE, "the probe hangs", || pid().filter(|pid| *pid != other && is_running(*pid)))
    };
    let first = wait_for(PATIENCE, "a query is answered while a probe hangs", || {
        let probe = hung(0);
        assert_eq!(proc.op(Op::Query).pid(), Some(pid));
        is_running(probe).then_some(probe)
    });
    proc.op(Op::Restart).assert_success();
    wait_until(PATIENCE, "it is broken off", || !is_running(first));
    let second = hung(first);
    assert_eq!(up.end(procfleet_testkit::Signal::TERM), Some(0));
    wait_until(PATIENCE, "the probe ends with its agent", || !is_running(second));
    assert_eq!(proc.program_pids().len(), 1, "the process does not");
}

#[test]
fn a_config_that_differs_is_named() {
    let up = up();
    let proc = up.proc("configured").starts(&programs::foreground());
    let path = proc.folder.join("web.conf");
    let mut proc = proc;
    proc.request["spec"]["configmap"] =
        json!([{"path": path, "md5": "B1946AC92492D2347C6235B4D2611184"}, {"path": "", "md5": ""}]);
    std::fs::write(&path, "hello\n").expect("our own folder");
    let pid = proc.start();
    assert_eq!(proc.row_with_pid(pid)["note"], "");
    std::fs::write(&path, "goodbye\n").expect("our own folder");
    // A query checks the file again.
    assert_eq!(proc.pid(), Some(pid));
    let row = wait_for(PATIENCE, "the row says what is wrong", || {
        proc.row().filter(|row| row["note"].as_str().is_some_and(|note| note.contains("has md5 ")))
    });
    assert_eq!(row["state"], "running");
    assert!(info(&proc)["message"].as_str().is_some_and(|m| m.contains("expected b1946ac9")), "{row}");
    std::fs::remove_file(&path).expect("it is there");
    proc.op(Op::Query).assert_success();
    wait_until(PATIENCE, "the row says that it is gone", || {
        proc.row().is_some_and(|row| row["note"].as_str().is_some_and(|note| note.contains("does not exist")))
    });
    std::fs::write(&path, "hello\n").expect("our own folder");
    proc.op(Op::Query).assert_success();
    wait_until(PATIENCE, "all is well", || proc.row().is_some_and(|row| row["note"] == ""));
    let told = wait_for(PATIENCE, "both are events", || {
        let path = format!("/api/v1/events?namespace={}&kind=config_drift", proc.namespace);
        let events = up.client.data(&path)["events"].as_array().expect("a list").clone();
        (events.len() == 2).then_some(events)
    });
    assert!(
        told[1]["message"].as_str().is_some_and(|message| message.contains("does not exist")),
        "{told:?}"
    );
    // Without an md5 it is watched for existence and change: as it was when the process was started.
    proc.request["spec"]["configmap"] = json!([{"path": path}, {}]);
    std::fs::write(&path, "third\n").expect("our own folder");
    proc.op(Op::Restart).assert_success();
    let note_contains = |words: &str| {
        wait_until(PATIENCE, words, || {
            proc.op(Op::Query).assert_success();
            proc.row().is_some_and(|row| row["note"].as_str().is_some_and(|note| note.contains(words)))
        });
    };
    wait_until(PATIENCE, "all is well", || proc.row().is_some_and(|row| row["note"] == ""));
    std::fs::write(&path, "fourth\n").expect("our own folder");
    note_contains("has changed since the process was started");
    std::fs::remove_file(&path).expect("it is there");
    note_contains("does not exist");
    std::fs::write(&path, "third\n").expect("our own folder");
    proc.op(Op::Query).assert_success();
    wait_until(PATIENCE, "it is as it was", || proc.row().is_some_and(|row| row["note"] == ""));
    let bad = json!([{"path": "web.conf", "md5": "x"}]);
    proc.request["spec"]["configmap"] = bad;
    let refused = up.client.post("/api/c/compapi/v2/gse/operate_proc_v2/", proc.body(Op::Start));
    assert_eq!(refused.body["result"], false);
    let message = refused.body["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("spec.configmap[0].path") && message.contains("spec.configmap[0].md5"),
        "{message}"
    );
}

/// The agent is root. A caller that is granted an account must not learn more than that account may read.
#[test]
fn a_config_that_the_account_may_not_read_is_not_compared() {
    if !has(Need::Root, account() == "root") {
        return;
    }
    let up = up();
    let secret = up.folder("secrets").join("secret.conf");
    std::fs::write(&secret, "hello\n").expect("our own folder");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("our own file");
    let mut proc = up
        .proc("guessing")
        .identity("user", "nobody")
        .starts("exec ./web 1000")
        .policy("start_check_secs", 1);
    for guess in ["b1946ac92492d2347c6235b4d2611184", "00000000000000000000000000000000"] {
        proc.request["spec"]["configmap"] = json!([{"path": secret, "md5": guess}]);
        proc.op(Op::Restart).assert_success();
        let expected = format!("config {} may not be read by user \"nobody\"", secret.display());
        wait_until(PATIENCE, "the note is the same for every guess", || {
            proc.row().is_some_and(|row| row["note"] == expected)
        });
    }
}

/// A file that is too large is not read at all.
#[test]
fn a_config_that_is_too_large_is_not_read() {
    let up = up();
    let mut proc = up.proc("endless").starts(&programs::foreground());
    let path = proc.folder.join("web.conf");
    let file = std::fs::File::create(&path).expect("our own folder");
    file.set_len(1 << 40).expect("a sparse file");
    proc.request["spec"]["configmap"] = json!([{"path": path, "md5": "b1946ac92492d2347c6235b4d2611184"}]);
    proc.start();
    wait_until(PATIENCE, "the note says that it is not read", || {
        proc.row()
            .is_some_and(|row| row["note"].as_str().is_some_and(|note| note.contains("too large to check")))
    });
    // It is read when it has a size for it.
    file.set_len(0).expect("our own file");
    std::fs::write(&path, "hello\n").expect("our own folder");
    proc.op(Op::Query).assert_success();
    wait_until(PATIENCE, "all is well", || proc.row().is_some_and(|row| row["note"] == ""));
}

/// The hosting file of GSE's agent, which platforms read on the host.
#[test]
fn the_hosting_file_lists_hosted_procs() {
    let mut up = up();
    let path = up.data().join("agent/etc/.proc");
    let listed = || -> Vec<Value> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let file: Value = serde_json::from_str(&text).unwrap_or_default();
        file["proc"].as_array().cloned().unwrap_or_default()
    };
    let procs = ["one", "two"].map(|name| up.proc(name).starts(&programs::foreground()));
    let tasks = procs.each_ref().map(|proc| proc.submit(Op::Start));
    tasks.iter().for_each(|task| _ = task.outcome().assert_success());
    wait_until(PATIENCE, "both are listed", || listed().len() == 2);
    let entry = listed().remove(0);
    assert_eq!(entry["valuekey"], format!("{}:one", procs[0].namespace));
    assert_eq!(
        (&entry["operateType"], &entry["type"], &entry["procName"]),
        (&json!(0), &json!(1), &json!("web"))
    );
    assert_eq!(entry["setupPath"], json!(procs[0].folder));
    procs[1].op(Op::Stop).assert_success();
    procs[0].op(Op::Restart).assert_success();
    wait_until(PATIENCE, "one is left, and was restarted", || {
        listed().iter().map(|entry| entry["operateType"].clone()).collect::<Vec<_>>() == [json!(7)]
    });
    let before = listed();
    up.kill_agent();
    procs[0].op(Op::Query).assert_success();
    assert_eq!(listed(), before, "it is the same for the next agent");
    // A change just before the end is in the file, too.
    procs[0].op(Op::Unhost).assert_success();
    up.end(procfleet_testkit::Signal::TERM);
    assert_eq!(listed(), Vec::<Value>::new());
}

/// A path that cannot be used is named in the outcome and the status, and the process is started all the
/// same.
#[test]
fn odd_paths_are_warned_of_and_have_a_fallback() {
    let up = up();
    let folder = up.folder("odd-logs");
    std::fs::write(folder.join("file"), "").expect("our own folder");
    for (log_path, says) in [
        (folder.join("file"), "is no folder"),
        (folder.join("missing"), "is no folder"),
        ("logs".into(), "is not an absolute path"),
    ] {
        let log_path = log_path.to_str().expect("a plain path");
        let proc = up.proc("odd").identity("log_path", log_path).starts(&programs::foreground());
        proc.op(Op::Start)
            .assert_success()
            .assert_says(says)
            .assert_says("its output is in the agent's folder");
        let row = proc.row_with_pid(proc.pid().expect("it runs"));
        assert!(row["note"].as_str().is_some_and(|note| note.contains(says)), "{row}");
        proc.op(Op::Kill).assert_success();
    }
    let proc = up
        .proc("relative")
        .identity("pid_path", "web.pid")
        .identity("config_path", "etc/web.conf")
        .identity("log_path", "logs")
        .starts(&programs::foreground());
    let accepted = up.client.post("/api/c/compapi/v2/gse/operate_proc_v2/", proc.body(Op::Start));
    for field in ["pid_path", "config_path", "log_path"] {
        let warning = format!("warning: spec.identity.{field}: is not an absolute path");
        let message = accepted.body["message"].as_str().expect("a text");
        assert!(message.contains(&warning), "{message}");
    }
    wait_until(PATIENCE, "it is found by its name", || proc.op(Op::Query).pid().is_some());
}

#[test]
fn a_process_writes_to_the_folder_for_its_logs() {
    let up = up();
    let folder = up.folder("logs");
    let command = format!("echo hello; {}", programs::foreground());
    let proc =
        up.proc("logging").identity("log_path", folder.to_str().expect("a plain path")).starts(&command);
    let pid = proc.start();
    let log = || std::fs::read_to_string(folder.join("logging.log")).unwrap_or_default();
    assert_eq!((log().as_str(), proc.row_with_pid(pid)["note"].as_str()), ("hello\n", Some("")));
    proc.op(Op::Restart).assert_success();
    assert_eq!(log(), "hello\nhello\n");
    // A folder that cannot be made is a warning and nothing worse.
    let lost = proc.clone().identity("log_path", "/proc/no/such/");
    lost.op(Op::Restart).assert_success().assert_says("success; warning: log_path \"/proc/no/such\"");
    let row = lost.row_with_pid(lost.pid().expect("it runs"));
    assert!(row["note"].as_str().is_some_and(|note| note.starts_with("log_path \"/proc/no/such\"")), "{row}");
    let failing = proc.starts("echo no port left; exit 3");
    failing.op(Op::Stop).assert_success();
    failing.op(Op::Start).assert(65535, "Script exit code non-zero").assert_says("[no port left]");
    assert_eq!(log(), "hello\nhello\nno port left\n");
}
