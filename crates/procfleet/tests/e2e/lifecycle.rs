//! `procfleet up`: its start, its end, and the processes that outlive it.

use crate::up;
use procfleet_testkit::{
    Op, PATIENCE, Proc, Program, Signal, Up, is_running, programs, start_time, wait_until,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn up_prints_its_address_and_a_first_command() {
    let up = up();
    let said = up.stdout();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].starts_with("procfleet is ready: http://127.0.0.1:"), "{said}");
    assert!(lines[1..].iter().all(|line| line.trim_start().starts_with("procfleet ")), "{said}");

    // Both commands work as they stand there.
    for line in &lines[1..] {
        let mut shell = Program::new("/bin/sh")
            .args(["-c", &format!("exec {line}").replace("exec   procfleet", "exec \"$PROCFLEET\"")])
            .env("PROCFLEET", up.binary())
            .current_dir(&up.folder("cli"));
        shell.start();
        let ended = shell.finish(PATIENCE);
        assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
    }
    let stopped = up.cli(&["kill", "hello"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
}

#[test]
fn admin_json_is_readable_by_its_owner_only() {
    let mut up = up();
    let path = up.data().join("admin.json");
    let mode = fs::metadata(&path).expect("up writes it").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let admin = up.admin();
    let fields: Vec<&str> = admin.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(fields, ["url", "bk_app_code", "bk_app_secret"]);
    assert!(
        admin["bk_app_secret"].as_str().is_some_and(|secret| secret.len() >= 32),
        "a secret nobody guesses"
    );
    assert!(!up.stderr().contains(admin["bk_app_secret"].as_str().expect("a text")), "it is not in the log");

    // It stays the same; only the address may change.
    up.end(Signal::TERM);
    up.again();
    assert_eq!(up.admin()["bk_app_secret"], admin["bk_app_secret"]);
    assert_eq!(fs::metadata(&path).expect("it stays").permissions().mode() & 0o777, 0o600);
}

/// Ends `up` with the signal while processes run, and takes them up again.
#[track_caller]
fn check_processes_outlive(signal: Signal) {
    let mut up = up();
    let procs = [
        up.proc("daemon").with_pid_file().starts(&programs::daemon()),
        up.proc("foreground").starts(&programs::foreground()),
        up.proc("below").starts(&programs::foreground_below_shell()),
    ];
    let tasks: Vec<_> = procs.iter().map(|proc| proc.submit(Op::Start)).collect();
    tasks.iter().for_each(|task| _ = task.outcome().assert_success());
    let pids: Vec<u32> = procs.iter().map(|proc| proc.pid().expect("it runs")).collect();
    let born: Vec<_> = pids.iter().map(|pid| start_time(*pid)).collect();

    assert_eq!(up.end(signal), Some(0), "{}", up.stderr());
    for (index, proc) in procs.iter().enumerate() {
        assert!(is_running(pids[index]), "{} outlives up", proc.name);
        assert_eq!(start_time(pids[index]), born[index]);
    }
    up.again();
    for (proc, pid) in procs.into_iter().zip(pids) {
        let proc = Proc { client: up.client.clone(), ..proc };
        let seen = proc.op(Op::Query);
        seen.assert_success().assert_hosted(true);
        assert_eq!((seen.pid(), proc.runs()), (Some(pid), 1), "{}", proc.name);
        proc.op(Op::Stop).assert_success();
        assert!(!is_running(pid));
    }
}

#[test]
fn ctrl_c_ends_up_and_no_managed_process() {
    check_processes_outlive(Signal::INT);
}

#[test]
fn sigterm_ends_up_and_no_managed_process() {
    check_processes_outlive(Signal::TERM);
}

/// Also in the middle of an op: the end does not wait for it, and its outcome comes with the next start.
#[test]
fn up_ends_in_time_in_the_middle_of_an_op() {
    let mut up = up();
    let proc = up.proc("long").with_pid_file().starts(&programs::daemon()).policy("start_check_secs", 600);
    let task = proc.submit(Op::Start);
    let pid = proc.pid_in_file();
    assert_eq!(up.end(Signal::TERM), Some(0));
    assert!(is_running(pid));
    up.again();
    let ended = up.client.outcome(&task.id);
    ended.assert(805, "interrupted").assert_says(&format!("is running now with pid {pid}"));
    assert_eq!(proc.runs(), 1);
}

/// Also while a caller waits for something.
#[test]
fn up_ends_in_time_while_calls_are_open() {
    let mut up = up();
    let proc = up.proc("long").with_pid_file().starts(&programs::daemon()).policy("start_check_secs", 600);
    let task = proc.submit(Op::Start);
    proc.wait_for_runs(1);
    let mut waiting =
        Program::new(up.binary()).args(["task", "watch", &task.id]).env("PROCFLEET_DATA", up.data());
    waiting.start();
    let open = format!("/proc/{}/fd", waiting.pid());
    wait_until(PATIENCE, "the call is on its way", || {
        let files =
            fs::read_dir(&open).into_iter().flatten().flatten().flat_map(|file| fs::read_link(file.path()));
        files.into_iter().any(|link| link.to_string_lossy().starts_with("socket:"))
    });
    assert_eq!(up.end(Signal::TERM), Some(0));
}

#[test]
fn a_second_up_on_the_same_folder_is_refused() {
    let up = up();
    let mut second = Program::new(up.binary())
        .args(["up", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--data"])
        .args([up.data()]);
    second.start();
    let ended = second.finish(PATIENCE);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let error = ended.stderr.lines().last().unwrap_or_default();
    assert!(error.starts_with("error: ") && error.contains(up.data().to_str().expect("plain")), "{error:?}");
    assert!(!ended.stdout.contains("ready"), "{ended:?}");
    // The first is not disturbed.
    assert_eq!(up.admin()["url"].as_str(), Some(up.client.url.as_str()));
    up.proc("fine").starts(&programs::foreground()).start();
}

#[test]
fn a_port_that_is_taken_is_named() {
    let up = up();
    let address = up.client.url.strip_prefix("http://").expect("an http url").to_owned();
    let mut second = Program::new(up.binary())
        .args(["up", "--listen", &address, "--link", "127.0.0.1:0", "--data"])
        .args([up.folder("other-data")]);
    second.start();
    let ended = second.finish(PATIENCE);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let error = ended.stderr.lines().last().unwrap_or_default();
    assert!(error.starts_with("error: ") && error.contains(&address), "{error:?}");
}

#[test]
fn health_readiness_and_metrics_are_served() {
    let up = up();
    assert_eq!(up.client.page("/healthz").status, 200);
    assert_eq!(up.client.page("/readyz").status, 200);
    up.proc("counted").starts(&programs::foreground()).start();
    let metrics = up.client.page("/metrics");
    assert_eq!(metrics.status, 200);
    let samples: Vec<&str> = metrics.text.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(!samples.is_empty());
    assert!(samples.iter().all(|line| line.starts_with("procfleet_")), "{}", metrics.text);
    assert!(samples.iter().any(|line| line.contains("operate_proc_v2")), "{}", metrics.text);
}

/// `up` starts its agent again as often as it dies.
#[test]
fn up_starts_its_agent_again() {
    let up = up();
    let mut seen = vec![up.agent_pid()];
    for round in 0..3 {
        up.take_agent_away();
        // An op that comes while it is away waits for it, for 5 s. A slow machine may need longer to start
        // another.
        let waits = up.proc(&format!("round-{round}")).starts(&programs::foreground()).submit(Op::Query);
        up.wait_for_agent();
        let outcome = waits.outcome();
        assert!(matches!(outcome.code, 0 | 117), "{outcome:?}");
        let next = up.agent_pid();
        assert!(!seen.contains(&next));
        seen.push(next);
    }
    assert_connected(&up);
}

#[track_caller]
fn assert_connected(up: &Up) {
    up.wait_for_agent();
    assert_eq!(
        up.client.data("/api/v1/agents").as_array().map(Vec::len),
        Some(1),
        "it is one agent all the time"
    );
}
