//! The operations, as a caller of GSE's API sees them.

use crate::{at_once, up};
use procfleet_testkit::{Op, PATIENCE, Signal, is_running, kill, let_pass, programs, wait_for};
use serde_json::json;
use std::time::Duration;

/// The way of the README: the request of seed 000, by the old gateway's path.
#[test]
fn a_process_is_started_queried_reloaded_and_stopped() {
    let up = up();
    let proc = up
        .proc("proc-test")
        .with_pid_file()
        .starts(&programs::gated_daemon())
        .control("reload_cmd", "echo reloaded > reloaded");
    let task = proc.submit(Op::Start);
    let parts: Vec<&str> = task.id.split(':').collect();
    assert_eq!(parts.len(), 3, "{}", task.id);
    assert_eq!(parts[0], "GSETASK");
    assert!(parts[1].len() == 14 && parts[1..].iter().all(|part| part.parse::<u64>().is_ok()), "{}", task.id);

    let now = up.client.results_now(&task.id);
    assert_eq!(now.keys().collect::<Vec<_>>(), [&proc.key()]);
    assert_eq!(now[&proc.key()], json!({"error_code": 115, "error_msg": "handling", "content": ""}));
    proc.open_gate(programs::GATE);

    let started = task.outcome();
    started.assert_success().assert_hosted(true);
    assert_eq!(
        started.content,
        json!({"value": [{"procName": "web", "setupPath": proc.folder, "funcID": "", "instanceID": "",
               "result": "success", "isAuto": true}]})
    );

    let seen = proc.op(Op::Query);
    seen.assert_success().assert_hosted(true);
    let pid = seen.pid().expect("it runs");
    assert_eq!(pid, proc.pid_in_file());
    assert_eq!(seen.content["process"][0]["procname"], "proc-test");
    assert_eq!(seen.instance()["processName"], "proc-test");
    assert_eq!(seen.content["ip"], "127.0.0.1");

    proc.op(Op::Start)
        .assert(828, "no need to start the process web(proc-test) repeatedly that is already running");
    assert_eq!(proc.runs(), 1, "what runs is not started again");

    proc.op(Op::Reload).assert_success().assert_hosted(true);
    assert_eq!(proc.read("reloaded"), "reloaded\n");
    assert_eq!(proc.pid(), Some(pid));

    proc.op(Op::Stop).assert_success().assert_hosted(false);
    assert!(!is_running(pid));
    let seen = proc.op(Op::Query);
    seen.assert_success().assert_hosted(false);
    assert_eq!(seen.instance()["pid"], -1);
    proc.op(Op::Stop)
        .assert(829, "no need to stop the process(web) that is not running")
        .assert_hosted(false);
}

/// A restart leaves hosting as it was: here there was none.
#[test]
fn a_restart_of_a_stopped_proc_starts_it_unhosted() {
    let up = up();
    let proc = up.proc("restarted").with_pid_file().starts(&programs::daemon());
    proc.op(Op::Restart).assert_success().assert_hosted(false);
    let pid = proc.pid().expect("it runs");
    proc.op(Op::Restart).assert_success().assert_hosted(false);
    assert!(!is_running(pid));
    let second = proc.pid().expect("it runs");
    kill(second, Signal::KILL);
    proc.row_when(PATIENCE, "stopped");
    assert_eq!((proc.pid(), proc.runs()), (None, 2));
}

/// A start with another spec does not replace a running process, but hosting does.
#[test]
fn the_spec_is_replaced_by_hosting_and_not_by_a_refused_start() {
    let up = up();
    let proc = up
        .proc("spec")
        .with_pid_file()
        .starts(&programs::daemon())
        .control("reload_cmd", "echo old >> reloads");
    let pid = proc.start();
    let new = proc.clone().control("reload_cmd", "echo new >> reloads");
    let stored = proc.clone().without_spec();
    new.op(Op::Start).assert(828, "no need to start");
    stored.op(Op::Reload).assert_success();
    new.op(Op::Host).assert_success().assert_hosted(true);
    stored.op(Op::Reload).assert_success();
    assert_eq!((proc.read("reloads").as_str(), proc.pid()), ("old\nnew\n", Some(pid)));
}

/// A query does not wait for the operation that is under way.
#[test]
fn a_query_is_answered_while_a_start_is_checked() {
    let up = up();
    let proc = up.proc("asked").with_pid_file().starts(&programs::daemon()).policy("start_check_secs", 600);
    let start = proc.submit(Op::Start);
    let pid = proc.pid_in_file();
    let seen = wait_for(PATIENCE, "the query sees it", || {
        Some(proc.op(Op::Query)).filter(|seen| seen.pid() == Some(pid))
    });
    seen.assert_success().assert_hosted(false);
    assert!(!start.has_ended());
    assert_eq!(proc.row().expect("it has a row")["state"], "starting");
    proc.op(Op::Kill).assert_success();
    start.outcome().assert(826, "start was cancelled");
}

/// The process is gone: how its stop command ended does not matter.
#[test]
fn a_stop_is_judged_by_the_process_and_not_by_its_command() {
    let up = up();
    let proc = up.proc("judged").with_pid_file().starts(&programs::daemon());
    proc.start();
    proc.clone()
        .control("stop_cmd", "kill $(cat web.pid); exit 5")
        .op(Op::Stop)
        .assert_success()
        .assert_hosted(false);
    let pid = proc.start();
    let lazy = proc.clone().control("stop_cmd", "echo not today; exit 0").policy("stop_check_secs", 1);
    lazy.op(Op::Stop).assert(836, "stop process (web) failed").assert_says("not today").assert_hosted(true);
    let failing = proc.clone().control("stop_cmd", "echo no way >&2; exit 6").policy("stop_check_secs", 1);
    failing
        .op(Op::Stop)
        .assert(836, "stop")
        .assert_says("no way")
        .assert_says("status 6")
        .assert_hosted(true);
    let lazy = proc.clone().control("kill_cmd", "true").policy("stop_check_secs", 1);
    lazy.op(Op::Kill).assert(836, "kill process (web) failed").assert_hosted(true);
    assert_eq!((proc.pid(), proc.runs()), (Some(pid), 2));
}

/// A command that hangs is ended after `op_timeout`, and only the command.
#[test]
fn commands_that_hang_are_ended() {
    let up = up();
    let proc = up.proc("hanging").with_pid_file().starts(&programs::daemon());
    let pid = proc.start();
    let proc = proc.policy("op_timeout", 4).policy("stop_check_secs", 1);
    let proc =
        proc.control("reload_cmd", "echo reloading; exec sleep 900").control("stop_cmd", "exec sleep 901");
    proc.op(Op::Reload)
        .assert(822, "reload_cmd did not end within 4 s")
        .assert_says("reloading")
        .assert_hosted(true);
    proc.op(Op::Stop).assert(836, "stop process (web) failed").assert_says("stop_cmd").assert_hosted(true);
    assert_eq!(
        (proc.pid(), proc.pids()),
        (Some(pid), vec![pid]),
        "the commands are gone, the process is not"
    );
}

/// `op_timeout` is for commands; a process that stays in the foreground is none once it is known.
#[test]
fn a_foreground_process_outlives_op_timeout() {
    let up = up();
    let procs = [("longer-check", 6), ("equal-check", 3)].map(|(name, check)| {
        let proc = up.proc(name).starts(&programs::foreground());
        proc.policy("op_timeout", 3).policy("start_check_secs", check)
    });
    at_once(procs, |proc| {
        let pid = proc.start();
        let_pass(Duration::from_millis(3_500));
        assert_eq!((proc.pid(), proc.runs()), (Some(pid), 1), "{}", proc.name);
    });
}

/// The window begins when the process is first seen or when the command has ended, whichever is later: a
/// process that dies right after a slow command was never started.
#[test]
fn a_process_that_dies_right_after_a_slow_command_was_not_started() {
    let up = up();
    let slow = programs::slow_daemon_that_dies(3);
    let proc = |name: &str| {
        let proc = up.proc(name).with_pid_file().policy("start_check_secs", 5);
        proc.script("web.sh", &format!("#!/bin/sh\n{slow}\n"))
    };
    let procs = [
        proc("started").starts(&slow),
        // Its control script is called as the process is.
        proc("scripted").starts("./web.sh start"),
        proc("hosted").starts(&slow),
        proc("restarted").starts(&slow),
        proc("own-command").starts(&programs::daemon()),
        // Nothing but its name tells the process from the start command.
        proc("by-name").identity("pid_path", "").starts("sleep 3; ./web 0.7 &"),
        proc("by-name-scripted")
            .identity("pid_path", "")
            .script("start.sh", "#!/bin/sh\nsleep 3; ./web 0.7 &\n")
            .starts("./start.sh"),
    ];
    at_once(procs, |proc| {
        let mut proc = proc.clone();
        let (op, verb) = match proc.name.as_str() {
            "hosted" => (Op::Host, "host"),
            "restarted" | "own-command" => (Op::Restart, "restart"),
            _ => (Op::Start, "start"),
        };
        if proc.name == "own-command" {
            proc.start();
            proc = proc.control("restart_cmd", &format!("kill $(cat web.pid); {slow}"));
        }
        proc.op(op).assert(836, &format!("{verb} process (web) failed, for post-check status not alive"));
        // A hosted process is tried again.
        if op == Op::Start {
            assert_eq!(proc.pid(), None, "{}", proc.name);
        }
        proc.op(Op::Kill);
    });
}

/// A hosted process that ends by itself, even well, is started again.
#[test]
fn a_hosted_process_that_ends_well_is_started_again() {
    let up = up();
    // The third stays, so that there is one to kill.
    let command = "echo run >> runs; test $(wc -l < runs) -lt 3 || exec ./web 1000; ./web 4; exit 0";
    let proc = up.proc("ends").starts(command).policy("start_retries", 1_000);
    proc.op(Op::Start).assert_success().assert_hosted(true);
    proc.wait_for_runs(3);
    proc.op(Op::Kill).assert(0, "").assert_hosted(false);
}

/// Names are the caller's business: they make neither paths nor commands.
#[test]
fn odd_names_work() {
    let up = up();
    let long = "長".repeat(256);
    let names = [
        "a b",
        "a:b",
        "a%3Ab",
        "../../up",
        "/",
        ".",
        "$(touch pwned)",
        "'\"`;&|",
        "Ünïcödé-进程",
        "a=b",
        &long,
    ];
    let procs: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let mut proc = up.proc(&format!("odd-{index}")).starts(&programs::foreground());
            proc.request["meta"]["name"] = json!(name);
            (*name, proc)
        })
        .collect();
    let tasks: Vec<_> = procs.iter().map(|(_, proc)| proc.submit(Op::Start)).collect();
    for ((name, proc), task) in procs.iter().zip(tasks) {
        let results = up.client.results(&task.id);
        assert_eq!(results[0].0, format!("0:127.0.0.1:{}:{name}", up.namespace));
        results[0].1.assert_success().assert_hosted(true);
        let seen = proc.op(Op::Query);
        assert!(seen.pid().is_some(), "{name}");
        assert_eq!(seen.instance()["processName"], **name);
        assert_eq!(std::fs::exists(proc.folder.join("pwned")).ok(), Some(false));
    }
    let rows = up.client.data(&format!("/api/v1/procs?namespace={}", up.namespace));
    let mut pids: Vec<u64> =
        rows.as_array().expect("a list").iter().filter_map(|row| row["pid"].as_u64()).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), names.len(), "each has a process of its own");
    for (name, proc) in &procs {
        proc.op(Op::Kill).assert_success();
        assert_eq!(proc.op(Op::Query).pid(), None, "{name}");
    }
}

/// Names that only differ in where the colon stands are different procs.
#[test]
fn a_colon_does_not_move_between_namespace_and_name() {
    let up = up();
    let mut one = up.proc("one").starts(&programs::foreground());
    let mut two = up.proc("two").starts(&programs::foreground());
    one.request["meta"] = json!({"namespace": format!("{}:a", up.namespace), "name": "b"});
    two.request["meta"] = json!({"namespace": up.namespace, "name": "a:b"});
    one.op(Op::Start).assert_success();
    assert_eq!(two.op(Op::Query).pid(), None);
    two.op(Op::Start).assert_success();
    two.op(Op::Kill).assert_success();
    assert!(one.op(Op::Query).pid().is_some());
    one.op(Op::Kill).assert_success();
}

/// People read what is under way, and GSE's callers see the process as soon as it was seen.
#[test]
fn a_row_shows_which_op_is_running() {
    let up = up();
    let proc = up
        .proc("slow")
        .with_pid_file()
        .starts(&programs::gated_daemon())
        .control("stop_cmd", &format!("{}; kill $(cat web.pid)", programs::gate("stopping")))
        .control("reload_cmd", &programs::gate("reloading"))
        .control(
            "restart_cmd",
            &format!("{}; kill $(cat web.pid); {}", programs::gate("restarting"), programs::daemon()),
        )
        .policy("start_check_secs", 8);
    let start = proc.submit(Op::Start);
    proc.row_when(PATIENCE, "starting");
    proc.open_gate(programs::GATE);
    let pid = proc.pid_in_file();
    let query = json!({"meta": proc.request["meta"], "hosts": proc.request["hosts"]});
    let info = wait_for(PATIENCE, "GSE's status shows the process", || {
        let answer = up.client.post("/api/v2/proc/get_proc_status_v2", query.clone());
        let info = answer.data()["proc_infos"][0].clone();
        (info["pid"] == pid).then_some(info)
    });
    assert_eq!(info["status"], 1, "{info}");
    // Unless the machine was so slow that the check is over, this was seen while it was made.
    if !start.has_ended() {
        assert_eq!(info["isauto"], false, "{info}");
    }
    start.outcome().assert_success();
    for (op, state) in [(Op::Reload, "reloading"), (Op::Restart, "restarting"), (Op::Stop, "stopping")] {
        let task = proc.submit(op);
        proc.row_when(PATIENCE, state);
        proc.open_gate(state);
        task.outcome().assert_success();
    }
    proc.row_when(PATIENCE, "stopped");
}

/// GSE's callers see a process with its pid as soon as it was seen alive, not only when its check is over.
#[test]
fn a_foreground_process_is_shown_while_its_start_is_checked() {
    let up = up();
    let proc = up.proc("shown").starts(&programs::foreground()).policy("start_check_secs", 120);
    let start = proc.submit(Op::Start);
    let query = json!({"meta": proc.request["meta"], "hosts": proc.request["hosts"]});
    let info = wait_for(PATIENCE * 3, "GSE's status shows the process", || {
        let answer = up.client.post("/api/v2/proc/get_proc_status_v2", query.clone());
        let info = answer.data()["proc_infos"][0].clone();
        (info["status"] == 1).then_some(info)
    });
    assert!(!start.has_ended(), "the check is not over: {info}");
    let pid = info["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid");
    assert_eq!(proc.program_pid(), Some(pid), "{info}");
    proc.row_when(PATIENCE, "starting");
    proc.op(Op::Kill).assert_success();
    start.outcome().assert(826, "start was cancelled");
}
