//! A proc of several instances: one op for the caller, one process each on the host.

use crate::up;
use procfleet_testkit::{
    Op, Outcome, PATIENCE, Proc, Signal, is_running, kill, let_pass, programs, remember, start_time,
    wait_for, wait_until,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// Goes into the background and writes its pid into `PROCFLEET_PID_PATH`. Each run leaves the number of its
/// instance.
const DAEMON: &str = "echo $PROCFLEET_INSTANCE >> runs; \
    (setsid sh -c 'echo $$ > $PROCFLEET_PID_PATH.new; mv $PROCFLEET_PID_PATH.new $PROCFLEET_PID_PATH; exec ./web 1000' \
    </dev/null >/dev/null 2>&1 &); until test -s $PROCFLEET_PID_PATH; do sleep 0.01; done";
const FOREGROUND: &str = "echo $PROCFLEET_INSTANCE >> runs; exec ./web 1000";

fn with_instances(mut proc: Proc, count: u32) -> Proc {
    proc.request["spec"]["instance_num"] = json!(count);
    proc
}

/// One instance of it, addressed alone.
fn alone(proc: &Proc, instance: u32) -> Proc {
    let mut alone = proc.clone();
    alone.name = format!("{}#{instance}", proc.name);
    alone.request["meta"]["name"] = json!(alone.name);
    alone
}

/// The pids that a query lists, in its order.
#[track_caller]
fn listed(outcome: &Outcome) -> Vec<Option<u32>> {
    let instances = outcome.content["process"][0]["instance"].as_array().expect("a query lists instances");
    let pid = |instance: &serde_json::Value| instance["pid"].as_i64().expect("a pid is a number");
    instances.iter().map(|instance| u32::try_from(pid(instance)).ok().map(remember)).collect()
}

#[track_caller]
fn pids(proc: &Proc) -> Vec<Option<u32>> {
    let seen = proc.op(Op::Query);
    seen.assert_success();
    listed(&seen)
}

/// The pids of a proc all of whose instances run.
#[track_caller]
fn running(proc: &Proc) -> Vec<u32> {
    let pids = pids(proc);
    let running: Vec<u32> = pids.iter().flatten().copied().collect();
    assert_eq!(running.len(), pids.len(), "{pids:?}");
    assert_eq!(running.iter().collect::<BTreeSet<_>>().len(), pids.len(), "each is another: {pids:?}");
    running
}

/// Which instances were run, one character each, in no order.
fn runs(proc: &Proc) -> String {
    let mut runs: Vec<char> = proc.read(programs::RUNS).chars().filter(|c| !c.is_whitespace()).collect();
    runs.sort_unstable();
    runs.into_iter().collect()
}

#[track_caller]
fn check_all_operations(proc: Proc) {
    let proc = with_instances(proc, 3).control("reload_cmd", "echo $PROCFLEET_INSTANCE >> reloads");
    assert_eq!(pids(&proc), [None], "nobody knows more than one yet");
    proc.op(Op::Stop).assert(829, "no need to stop");
    proc.op(Op::Start).assert_success().assert_hosted(true);
    let first = running(&proc);
    assert_eq!((first.len(), runs(&proc).as_str()), (3, "123"));
    proc.op(Op::Start).assert(828, "no need to start the process web(").assert_hosted(true);
    assert_eq!((running(&proc), runs(&proc).as_str()), (first.clone(), "123"));

    // Each is looked after for itself.
    let second = proc.clone().without_spec();
    let_pass(Duration::from_millis(1_200));
    kill(first[1], Signal::KILL);
    wait_until(PATIENCE, "the second is replaced", || runs(&proc) == "1223");
    let replaced = wait_for(PATIENCE, "all three run", || {
        Some(pids(&second)).filter(|pids| pids.iter().all(Option::is_some) && pids[1] != Some(first[1]))
    });
    assert_eq!((replaced[0], replaced[2]), (Some(first[0]), Some(first[2])), "the others are left alone");

    // A caller that relies on the stored spec reaches all of them.
    second.op(Op::Reload).assert_success();
    wait_until(PATIENCE, "all have been reloaded", || proc.read("reloads").lines().count() == 3);
    second.op(Op::Restart).assert_success().assert_hosted(true);
    assert_eq!(runs(&proc), "1122233");
    let restarted = running(&second);
    assert!(replaced.iter().flatten().all(|old| !is_running(*old)));

    // One of them alone.
    alone(&second, 2).op(Op::Stop).assert_success().assert_hosted(false);
    assert_eq!(pids(&second), [Some(restarted[0]), None, Some(restarted[2])]);
    second.op(Op::Query).assert_success();
    proc.op(Op::Start).assert_success().assert_hosted(true);
    let again = running(&second);
    assert_eq!((again[0], again[2], runs(&proc).as_str()), (restarted[0], restarted[2], "11222233"));

    second.op(Op::Unhost).assert_success().assert_hosted(false);
    second.op(Op::Host).assert_success().assert_hosted(true);
    assert_eq!(running(&second), again);
    second.op(Op::Kill).assert_success().assert_hosted(false);
    assert!(again.iter().all(|pid| !is_running(*pid)));
    assert_eq!(pids(&second), [None, None, None]);
    second.op(Op::Stop).assert(829, "no need to stop");
    wait_until(PATIENCE, "nothing of it is left", || proc.pids().is_empty());
}

#[test]
fn every_operation_reaches_all_instances_of_a_daemon() {
    let up = up();
    check_all_operations(up.proc("daemons").with_pid_file().starts(DAEMON));
}

#[test]
fn every_operation_reaches_all_instances_in_the_foreground() {
    let up = up();
    check_all_operations(up.proc("foreground").starts(FOREGROUND));
}

#[test]
fn a_failing_instance_is_named_and_the_others_run() {
    let up = up();
    let command = format!("test $PROCFLEET_INSTANCE != 2 || {{ echo no port left; exit 3; }}; {FOREGROUND}");
    let proc = with_instances(up.proc("partly").starts(&command), 3);
    let failed = proc.op(Op::Start);
    failed.assert(65535, "instance 2: Script exit code non-zero").assert_says("no port left");
    let seen = pids(&proc);
    assert_eq!(seen.iter().flatten().count(), 2, "{seen:?}");
    // The list has a row for each.
    let rows = up.client.data(&format!("/api/v1/procs?namespace={}", proc.namespace));
    let names: Vec<&str> =
        rows.as_array().expect("a list").iter().filter_map(|r| r["name"].as_str()).collect();
    assert!(names.contains(&"partly") && names.contains(&"partly#3"), "{names:?}");
    proc.op(Op::Stop).assert_success();
    wait_until(PATIENCE, "nothing of it is left", || proc.pids().is_empty());
}

/// To ask for fewer ends nothing; the surplus goes on until it is stopped.
#[test]
fn a_smaller_number_ends_nothing_and_a_restart_reaches_all() {
    let up = up();
    let three = with_instances(up.proc("shrinking").with_pid_file().starts(DAEMON), 3);
    three.op(Op::Start).assert_success();
    let first = running(&three);
    let two = with_instances(three.clone(), 2);
    two.op(Op::Host).assert_success().assert_hosted(true);
    assert_eq!(running(&two), first);
    // Callers leave the number out when they restart: 1 is what they seem to say.
    with_instances(three.clone(), 1).op(Op::Restart).assert_success();
    let second = running(&two);
    assert!((0..3).all(|index| second[index] != first[index]), "{first:?} {second:?}");
    assert_eq!(runs(&two), "112233");
    two.op(Op::Stop).assert_success();
    wait_until(PATIENCE, "all are stopped", || two.pids().is_empty());
    let path = "/api/c/compapi/v2/gse/unregister_proc_info/";
    let mut body = two.request.clone();
    body["hosts"][0]["bk_supplier_id"] = json!(0);
    let said = up.client.post(path, body).data();
    assert!(said.to_string().contains("\"error_code\":0"), "{said}");
    two.op(Op::Start).assert_success();
    assert_eq!((running(&two).len(), runs(&two).as_str()), (2, "11122233"));
}

/// Scripts as people write them: they know one pid file, and nothing of instances.
const ONE_PID_FILE: &str = "(setsid sh -c 'echo $$ > web.pid.$$; mv web.pid.$$ web.pid; exec ./web 1000' </dev/null >/dev/null 2>&1 &); \
    until test -s web.pid; do sleep 0.01; done";

#[test]
fn scripts_that_know_one_pid_file_end_all_instances() {
    let up = up();
    let proc = |name: &str| {
        let proc = up.proc(name).with_pid_file().starts(ONE_PID_FILE);
        let proc = proc.control("stop_cmd", "kill $(cat web.pid)");
        with_instances(proc.control("kill_cmd", "kill -9 $(cat web.pid)"), 3)
    };
    let deaf = "(setsid sh -c 'trap \"\" TERM; echo $$ > web.pid.$$; mv web.pid.$$ web.pid; exec ./web 1000' \
        </dev/null >/dev/null 2>&1 &); until test -s web.pid; do sleep 0.01; done";
    let rows =
        [(proc("stopped"), Op::Stop), (proc("killed"), Op::Kill), (proc("deaf").starts(deaf), Op::Stop)];
    std::thread::scope(|scope| {
        for (proc, op) in &rows {
            scope.spawn(move || {
                proc.op(Op::Start).assert_success().assert_hosted(true);
                let first = running(proc);
                // Callers leave the number out.
                with_instances(proc.clone(), 1)
                    .op(*op)
                    .assert(0, "success")
                    .assert_hosted(*op == Op::Restart);
                assert!(!first.iter().any(|pid| is_running(*pid)), "{op:?} of {}: {first:?}", proc.name);
                assert_eq!(proc.pids(), [] as [u32; 0], "{op:?} of {}", proc.name);
            });
        }
    });
}

/// A proc of its own may be called like an instance of another.
#[test]
fn a_proc_named_like_an_instance_is_not_an_instance() {
    let up = up();
    let proc = with_instances(up.proc("web").starts(FOREGROUND), 1);
    let namesake = alone(&proc, 2).control("start_cmd", "echo $PROCFLEET_NAME >> names; exec ./web 1000");
    let tasks = [proc.submit(Op::Start), namesake.submit(Op::Start)];
    tasks.iter().for_each(|task| _ = task.outcome().assert_success());
    let (own, other) = (running(&proc), running(&namesake));
    assert_eq!((own.len(), other.len(), proc.read("names").as_str()), (1, 1, "web#2\n"));
    proc.op(Op::Stop).assert_success();
    assert!(!is_running(own[0]) && is_running(other[0]), "it is left alone");
    proc.op(Op::Kill).assert(829, "no need to kill");
    assert_eq!(running(&namesake), other);
}

/// One has been started and is being checked, the others have begun, and then the agent dies.
#[test]
fn the_agent_dies_in_the_middle_of_a_start() {
    let up = up();
    let command = format!(
        "touch begun.$PROCFLEET_INSTANCE; test $PROCFLEET_INSTANCE = 1 || {{ {}; }}; {DAEMON}",
        programs::gate(programs::GATE)
    );
    let proc = with_instances(up.proc("cut-off").with_pid_file().starts(&command), 3);
    let task = proc.clone().policy("start_check_secs", 60).submit(Op::Start);
    let first = proc.pid_in_file();
    wait_until(PATIENCE, "all three commands have begun", || {
        (1..=3).all(|instance| proc.folder.join(format!("begun.{instance}")).exists())
    });
    assert!(!task.has_ended());
    up.kill_agent();
    proc.open_gate(programs::GATE);
    let ended = task.outcome();
    ended.assert(805, "instance 1: interrupted").assert_says("(instances 2, 3 failed too)");
    // The commands go on by themselves, and the agent adopts the processes that they start.
    let in_file = |file: &str| proc.read(file).trim().parse::<u32>().ok();
    let files = [programs::PID_FILE, "web.pid.2", "web.pid.3"];
    wait_until(PATIENCE, "all three run", || {
        let written = files.map(in_file);
        written.iter().all(Option::is_some) && pids(&proc) == written
    });
    let pids = running(&proc);
    assert_eq!((pids[0], runs(&proc).as_str()), (first, "123"), "no command is repeated");
    up.kill_agent();
    assert_eq!(running(&proc), pids);
    assert_eq!(proc.client.outcome(&task.id).code, 805, "an outcome stands");
    proc.op(Op::Start).assert(828, "no need to start");
    proc.op(Op::Stop).assert_success();
    wait_until(PATIENCE, "nothing of it is left", || proc.pids().is_empty());
}

/// Some parts have ended when the agent dies, others wait: the op ends once, with all of them.
#[test]
fn the_agent_dies_when_some_instances_have_been_answered() {
    let up = up();
    let proc = with_instances(up.proc("half").with_pid_file().starts(DAEMON), 2);
    proc.op(Op::Start).assert_success();
    let before = running(&proc);
    // The second takes its time.
    let slow = "test $PROCFLEET_INSTANCE = 1 || { touch begun; sleep 50; }";
    let task = proc.clone().control("reload_cmd", slow).submit(Op::Reload);
    let stamp = task.id.strip_prefix("GSETASK:").expect("a task id").replace(':', "-");
    let answered = format!("op done op={stamp}-{} ", 1 << 20);
    wait_until(PATIENCE, "the first is answered and the second is not", || {
        up.stderr().contains(&answered) && proc.folder.join("begun").exists()
    });
    let born: Vec<_> = before.iter().map(|pid| start_time(*pid)).collect();
    up.kill_agent();
    let ended = task.outcome();
    ended.assert(805, "instance 2: interrupted");
    assert_eq!(running(&proc), before);
    assert_eq!(before.iter().map(|pid| start_time(*pid)).collect::<Vec<_>>(), born);
}
