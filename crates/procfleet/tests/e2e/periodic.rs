//! `auto_type` 0: commands that run on time, one at a time, whatever becomes of the agent.

use crate::events::events_of;
use crate::{at_once, up};
use procfleet_testkit::{Op, PATIENCE, Proc, is_running, let_pass, programs, wait_for, wait_until};
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// Writes down that it begins and ends, and when.
fn run_of(secs: &str) -> String {
    format!("echo begin $(date +%s%N) >> log; ./web {secs}; echo end $(date +%s%N) >> log")
}

/// As [`run_of`], but it does not end before [`open`] was called.
fn gated_run() -> String {
    "echo begin $(date +%s%N) >> log; while [ ! -e gate ]; do ./web 0.05; done; echo end >> log".to_owned()
}

fn open(proc: &Proc) {
    fs::write(proc.folder.join("gate"), "").expect("its own folder");
}

fn close(proc: &Proc) {
    fs::remove_file(proc.folder.join("gate")).expect("its own folder");
}

fn every(proc: Proc, secs: u32) -> Proc {
    proc.policy("auto_type", 0).policy("cycle_time", secs).policy("op_timeout", 3_600)
}

/// When each run began, in milliseconds since 1970.
fn beginnings(proc: &Proc) -> Vec<u64> {
    let log = proc.read("log");
    let nanos = log.lines().filter_map(|line| line.strip_prefix("begin ")?.parse::<u64>().ok());
    nanos.map(|nanos| nanos / 1_000_000).collect()
}

#[track_caller]
fn wait_for_beginnings(proc: &Proc, count: usize) -> Vec<u64> {
    wait_for(PATIENCE, &format!("{} has begun {count} times", proc.name), || {
        Some(beginnings(proc)).filter(|seen| seen.len() >= count)
    })
}

/// A run ends before the next begins.
#[track_caller]
fn check_one_at_a_time(proc: &Proc) {
    let log = proc.read("log");
    let words: Vec<&str> = log.lines().filter_map(|line| line.split(' ').next()).collect();
    for (index, word) in words.iter().enumerate() {
        assert_eq!(*word, ["begin", "end"][index % 2], "{}: {words:?}", proc.name);
    }
}

/// A loaded machine may begin a run late, so the pause between two runs says nothing. The number of runs
/// since the schedule began does.
#[track_caller]
fn check_not_early(proc: &Proc, began: Instant, cycle: Duration) {
    let (runs, elapsed) = (beginnings(proc).len(), began.elapsed());
    let cycles = u32::try_from(runs - 1).expect("a few runs");
    assert!(elapsed >= cycle * cycles, "{}: {runs} runs in {elapsed:?}", proc.name);
}

#[test]
fn a_proc_that_runs_every_second_runs_until_it_is_stopped() {
    let up = up();
    let ruled = up.proc("rule").policy("auto_type", 0).policy("crontab_rule", "* * * * * *");
    let procs = [every(up.proc("cycle"), 1), ruled].map(|proc| proc.starts(&run_of("0.1")));
    at_once(procs, |proc| {
        let began = Instant::now();
        proc.op(Op::Host).assert_success().assert_hosted(true);
        wait_for_beginnings(proc, 5);
        check_not_early(proc, began, Duration::from_secs(1));
        assert_eq!(proc.row().expect("it is known")["hosted"], true);
        proc.op(Op::Stop).assert_success().assert_hosted(false);
        let stopped = beginnings(proc).len();
        let_pass(Duration::from_millis(2_500));
        assert_eq!(beginnings(proc).len(), stopped, "{}", proc.name);
        check_one_at_a_time(proc);
        proc.op(Op::Stop).assert(829, "no need to stop").assert_hosted(false);
    });
}

#[test]
fn a_slow_run_is_not_overtaken_by_the_next() {
    let up = up();
    let proc = every(up.proc("slow"), 1).starts(&gated_run());
    proc.op(Op::Host).assert_success();
    wait_for_beginnings(&proc, 1);
    // The run is the process.
    let pid = wait_for(PATIENCE, "a run is under way", || proc.pid());
    proc.op(Op::Start).assert(828, "no need to start");
    // Two runs are due meanwhile.
    let_pass(Duration::from_millis(2_500));
    assert_eq!(beginnings(&proc).len(), 1);
    open(&proc);
    wait_for_beginnings(&proc, 3);
    wait_until(PATIENCE, "the missed run is an event", || {
        events_of(&up, &proc).iter().any(|event| event["kind"] == "run_missed")
    });
    assert!(!is_running(pid), "each run has its own process");
    // Unhosted, the run goes on to its end, and no other run follows.
    close(&proc);
    let ends = || proc.read("log").matches("end").count();
    wait_until(PATIENCE, "another run is under way", || beginnings(&proc).len() > ends());
    proc.op(Op::Unhost).assert_success().assert_hosted(false);
    let begun = beginnings(&proc).len();
    open(&proc);
    wait_until(PATIENCE, "the run has ended", || ends() == begun);
    let_pass(Duration::from_millis(1_500));
    assert_eq!(beginnings(&proc).len(), begun);
    check_one_at_a_time(&proc);
}

#[test]
fn the_start_of_a_periodic_proc_answers_its_first_run() {
    let up = up();
    let proc = |name: &str| every(up.proc(name), 3600);
    let ends = proc("ends").starts(&programs::exits(0));
    ends.op(Op::Start).assert_success().assert_hosted(true);
    assert_eq!((ends.runs(), ends.pid()), (1, None));

    let fails = proc("fails").starts(&programs::exits(3));
    fails
        .op(Op::Start)
        .assert(65535, "Script exit code non-zero")
        .assert_says("said on stderr")
        .assert_hosted(false);

    let long = proc("long").starts(&run_of("1000"));
    long.op(Op::Start).assert_success().assert_hosted(true);
    let pid = long.pid().expect("it goes on");
    long.op(Op::Restart).assert_success().assert_hosted(true);
    wait_until(PATIENCE, "the first run has ended", || !is_running(pid));
    assert_eq!((beginnings(&long).len(), long.program_pids().len()), (2, 1));
    long.op(Op::Kill).assert_success().assert_hosted(false);
    assert_eq!(long.pids(), Vec::<u32>::new());
}

/// A failure is an event, and changes nothing about the next run.
#[test]
fn a_failed_run_is_followed_by_the_next() {
    let up = up();
    let proc = every(up.proc("failing"), 1).policy("start_retries", 1).starts(&programs::exits(3));
    proc.op(Op::Host).assert_success().assert_hosted(true);
    proc.wait_for_runs(5);
    let row = proc.row().expect("it is known");
    assert_eq!((&row["hosted"], &row["note"]), (&json!(true), &json!("")));
    let events = wait_for(PATIENCE, "there is an event", || {
        Some(events_of(&up, &proc)).filter(|told| !told.is_empty())
    });
    let told = events[0]["message"].as_str().expect("a message");
    assert!(told.starts_with("a scheduled run failed: Script exit code non-zero"), "{told}");
    assert!(told.ends_with("said on stderr] (start_cmd exited with status 3)"), "{told}");
    assert!(events.iter().all(|event| event["kind"] == "run_failed"), "{events:?}");
}

/// A hung run must not block the schedule, and the event of a missed run must not wait for its end.
#[test]
fn a_hung_run_is_ended_at_op_timeout_and_a_missed_run_is_an_event_at_once() {
    let up = up();
    let hangs =
        |name, cycle, limit| every(up.proc(name), cycle).policy("op_timeout", limit).starts(&gated_run());
    let procs = [hangs("hung", 3, 1), hangs("slow", 1, 3_600)];
    at_once(procs, |proc| {
        let began = Instant::now();
        proc.op(Op::Host).assert_success();
        let event = |kind: &str| {
            let told = events_of(&up, proc).into_iter().find(|event| event["kind"] == kind)?;
            Some(told["message"].as_str().expect("a message").to_owned())
        };
        if proc.name == "slow" {
            wait_for(PATIENCE, "the missed run is an event", || event("run_missed"));
            assert_eq!(beginnings(proc).len(), 1, "the run goes on");
            assert_eq!(proc.read("log").matches("end").count(), 0);
        } else {
            let told = wait_for(PATIENCE, "the hung run is an event", || event("run_failed"));
            let words = "a scheduled run failed: start_cmd did not end within 1 s (op_timeout) and was ended";
            assert!(told.starts_with(words), "{told}");
            wait_for_beginnings(proc, 3);
            check_not_early(proc, began, Duration::from_secs(3));
            assert_eq!(proc.row().expect("it is known")["hosted"], true);
        }
        proc.op(Op::Stop).assert_hosted(false);
        wait_until(PATIENCE, "nothing is left of its runs", || proc.pids().is_empty());
    });
}

#[test]
fn a_killed_agent_repeats_no_run_and_goes_on_with_the_schedule() {
    let up = up();
    let proc = every(up.proc("kept"), 4).starts(&gated_run());
    let began = Instant::now();
    proc.op(Op::Host).assert_success();
    wait_for_beginnings(&proc, 1);
    let pid = wait_for(PATIENCE, "a run is under way", || proc.pid());
    up.kill_agent();
    let seen = proc.op(Op::Query);
    seen.assert_success().assert_hosted(true);
    assert_eq!((seen.pid(), beginnings(&proc).len()), (Some(pid), 1), "the same run");
    open(&proc);
    wait_for_beginnings(&proc, 3);
    check_not_early(&proc, began, Duration::from_secs(4));
    check_one_at_a_time(&proc);
}

/// A process that a run leaves behind is the result of its work, and does not count as a run.
#[test]
fn the_leftovers_of_a_periodic_run_are_kept() {
    let up = up();
    let proc = every(up.proc("watchdog"), 1).with_pid_file();
    let proc = proc.starts(&format!(
        "{}; kill -0 $(cat web.pid) || {{ {}; }}",
        "echo look >> looks",
        programs::daemon()
    ));
    proc.op(Op::Host).assert_success();
    let daemon = proc.pid_in_file();
    let looks = || proc.read("looks").lines().count();
    wait_until(PATIENCE, "it has looked three times", || looks() >= 3);
    up.kill_agent();
    let before = looks();
    wait_until(PATIENCE, "it looks on after the agent's return", || looks() >= before + 3);
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    assert!(is_running(daemon) && proc.runs() == 1, "one daemon, and it goes on");
    proc.op(Op::Kill).assert(829, "no need to kill");
    wait_until(PATIENCE, "a kill ends all of it", || !is_running(daemon));
}

#[test]
fn an_impossible_schedule_is_refused() {
    let up = up();
    let refused = |fields: &[(&str, serde_json::Value)], says: &str| {
        let proc =
            fields.iter().fold(up.proc("bad"), |proc, (field, value)| proc.policy(field, value.clone()));
        let answer = up.client.post("/api/v2/proc/operate_proc_v2", proc.body(Op::Host));
        answer.assert_refused(1000811, &[says]);
    };
    refused(
        &[("auto_type", json!(0))],
        "auto_type: is 0 (periodic), which needs crontab_rule, or cycle_time",
    );
    refused(
        &[("auto_type", json!(0)), ("crontab_rule", json!("61 * * * *"))],
        "crontab_rule: \"61 * * * *\" is no rule",
    );
    refused(
        &[("auto_type", json!(0)), ("crotab_rule", json!("@daily")), ("cycle_time", json!(5))],
        "cannot be combined",
    );
}
