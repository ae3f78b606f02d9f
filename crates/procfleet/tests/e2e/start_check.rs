//! `start_check_secs` is when a start is judged, by the process that is alive then.

use crate::events::events_of;
use crate::{at_once, up, with_longer_checks};
use procfleet_testkit::{Op, PATIENCE, Program, is_running, programs, wait_until};
use serde_json::json;
use std::fs;
use std::time::Duration;

/// Ends its first process and starts another one, as self-updaters and wrappers do.
fn comes_again(writes_pid_file: bool) -> String {
    let note = if writes_pid_file { "echo $$ > web.pid.new; mv web.pid.new web.pid; " } else { "" };
    let web = |secs: &str| format!("sh -c \"{note}exec ./web {secs}\"").replace('$', "\\$");
    format!(
        "echo run >> runs; (setsid sh -c '{}; sleep 0.3; {}' </dev/null >/dev/null 2>&1 &)",
        web("0.5"),
        web("1000")
    )
}

/// The pid at the end of the check differs from the first one, and the start succeeds.
#[test]
fn a_process_that_is_back_before_the_end_of_the_check_was_started() {
    let up = up();
    let procs = [
        up.proc("with-pid-file").with_pid_file().starts(&comes_again(true)),
        up.proc("by-name").starts(&comes_again(false)),
        // The command stays at work and starts its process twice.
        up.proc("wrapper").starts("echo run >> runs; ./web 0.5; ./web 1000; true"),
    ];
    at_once(procs, |proc| {
        with_longer_checks(|secs| {
            let _ = fs::remove_file(proc.folder.join(programs::RUNS));
            let (outcome, took) = proc.clone().policy("start_check_secs", secs).timed(Op::Start);
            assert!(took >= Duration::from_secs(secs), "{}: {took:?}", proc.name);
            if outcome.code != 0 {
                return None;
            }
            outcome.assert_success().assert_hosted(true);
            Some(())
        });
        let pid = proc.pid().expect("what was started runs");
        assert_eq!(proc.program_pids(), [pid], "{}", proc.name);
        proc.op(Op::Start).assert(828, "no need to start the process web(").assert_hosted(true);
        proc.op(Op::Kill).assert_success();
        assert!(!is_running(pid), "{}", proc.name);
        assert_eq!(proc.runs(), 1, "{}", proc.name);
    });
}

/// The command only tells another launcher to start the process, which appears outside the command's process
/// tree.
#[test]
fn a_process_that_another_launcher_brings_was_started() {
    let up = up();
    let procs = [up.proc("with-pid-file").with_pid_file(), up.proc("by-name")];
    at_once(procs, |proc| {
        let wanted = proc.folder.join("wanted");
        let web = with_longer_checks(|secs| {
            let proc = proc.clone().starts("touch wanted").policy("start_check_secs", secs);
            let _ = fs::remove_file(&wanted);
            let task = proc.submit(Op::Start);
            wait_until(PATIENCE, "the command has run", || wanted.exists());
            let program = Program::new(proc.folder.join(programs::NAME));
            let mut web = program.args(["1000"]).current_dir(&proc.folder);
            web.start();
            let pid_file = proc.folder.join(programs::PID_FILE);
            fs::write(pid_file, format!("{}\n", web.pid())).expect("our own folder");
            let outcome = task.outcome();
            if outcome.code != 0 {
                return None;
            }
            outcome.assert_success().assert_hosted(true);
            Some(web)
        });
        assert_eq!(proc.op(Op::Query).pid(), Some(web.pid()), "{}", proc.name);
        proc.op(Op::Kill).assert_success();
    });
}

/// The command was the process itself and has ended with all it started, so the check ends early.
#[test]
fn a_start_fails_early_if_its_command_was_the_process() {
    let up = up();
    let script = "#!/bin/sh\necho run >> runs\nuntil test -e go; do sleep 0.05; done\necho said\n";
    let proc = up.proc("itself").script("web.sh", script).starts("exec ./web.sh");
    let proc = proc.policy("start_check_secs", 600);
    let task = proc.submit(Op::Start);
    wait_until(PATIENCE, "the process was seen", || proc.row().is_some_and(|row| row["pid"].is_u64()));
    fs::write(proc.folder.join("go"), "").expect("our own folder");
    let outcome = task.outcome();
    outcome.assert(836, "start process (web) failed, for post-check status not alive").assert_hosted(false);
    outcome.assert_says("start_cmd was the process itself").assert_says("said");
    assert_eq!((proc.pid(), proc.runs()), (None, 1));
}

/// Another process may appear until the end of the check, so the failure is not reported earlier.
#[test]
fn a_start_whose_process_dies_fails_at_the_end_of_its_check() {
    let up = up();
    let short = "(setsid sh -c 'echo $$ > web.pid.new; mv web.pid.new web.pid; exec ./web 0.5' </dev/null >/dev/null 2>&1 &)";
    let procs = [
        up.proc("dies").with_pid_file().starts(short),
        up.proc("dies-by-name").starts("(setsid ./web 0.5 </dev/null >/dev/null 2>&1 &)"),
        up.proc("never-comes").with_pid_file().starts("true"),
        up.proc("never-comes-by-name").starts("true"),
    ];
    at_once(procs, |proc| {
        with_longer_checks(|secs| {
            let (outcome, took) = proc.clone().policy("start_check_secs", secs).timed(Op::Start);
            assert!(took >= Duration::from_secs(secs), "{}: {took:?}", proc.name);
            if outcome.code == 0 {
                // The process began so late that it was alive at the end of its check.
                proc.op(Op::Kill);
                return None;
            }
            outcome
                .assert(836, "start process (web) failed, for post-check status not alive")
                .assert_hosted(false);
            Some(())
        });
        assert_eq!(proc.pid(), None, "{}", proc.name);
    });
}

/// Its start has been answered by then, so the failure is an event. The process goes on.
#[test]
fn a_command_that_fails_after_its_start_has_succeeded_is_an_event() {
    let up = up();
    let fails = |start: &str| format!("{start}; {}; echo said in the end; exit 3", programs::gate("go"));
    let procs = [
        up.proc("with-pid-file").with_pid_file().starts(&fails(&programs::daemon())),
        up.proc("by-name").starts(&fails(&programs::silent_daemon())),
    ];
    at_once(procs, |proc| {
        let kinds = || -> Vec<String> {
            events_of(&up, proc)
                .iter()
                .map(|event| event["kind"].as_str().expect("a kind").to_owned())
                .collect()
        };
        let pid = proc.start();
        proc.open_gate("go");
        wait_until(PATIENCE, "the failure is an event", || kinds() == ["started", "command_failed"]);
        let event = events_of(&up, proc).pop().expect("two events");
        assert_eq!(
            event["message"],
            "start_cmd exited with status 3 after the start had succeeded; output: [said in the end]"
        );
        let details = &event["details"]["command_failed"];
        assert_eq!((&details["command"], &details["op"]), (&json!("start_cmd"), &json!("start")), "{event}");
        assert_eq!(proc.pid(), Some(pid), "{}", proc.name);
        let shown = up.cli(&["events", "--name", &proc.name, "--kind", "command_failed"]);
        assert!(shown.stdout.contains("command_failed: start_cmd exited with status 3"), "{shown:?}");

        // The agent ends the command with the process, which is no failure.
        fs::remove_file(proc.folder.join("go")).expect("the gate");
        proc.op(Op::Restart).assert_success();
        assert!(!is_running(pid), "{}", proc.name);
        proc.op(Op::Stop).assert_success();
        assert!(proc.pids().is_empty(), "{}: {:?}", proc.name, proc.pids());
        proc.start();
        wait_until(PATIENCE, "each start is an event, and nothing else", || {
            kinds() == ["started", "command_failed", "started", "started"]
        });
        proc.op(Op::Kill).assert_success();
        assert!(proc.pids().is_empty(), "{}: {:?}", proc.name, proc.pids());
    });
}
