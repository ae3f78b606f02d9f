//! `spec.resource`: processes that use too much are ended, with all that belongs to them.

use crate::events::events_of;
use crate::{at_once, up};
use procfleet_testkit::{Op, PATIENCE, Proc, is_running, let_pass, wait_for, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

fn limited(mut proc: Proc, field: &str, limit: impl Into<Value>) -> Proc {
    proc.request["spec"]["resource"] = json!({ field: limit.into() });
    proc
}

/// This number of mebibytes as per cent of the host's memory.
pub(crate) fn memory_share(mebibytes: f64) -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("the machine has memory");
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("it says how much");
    let total: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    mebibytes * 1024.0 * 100.0 / total
}

/// The one event that tells of it.
#[track_caller]
fn told(up: &procfleet_testkit::Up, proc: &Proc) -> String {
    let event = wait_for(PATIENCE, &format!("{} is found over its limit", proc.name), || {
        events_of(up, proc).into_iter().find(|event| event["kind"] == "over_limit")
    });
    event["message"].as_str().expect("a message").to_owned()
}

#[test]
fn a_process_that_uses_too_much_is_ended_and_comes_back_if_it_is_hosted() {
    let up = up();
    let busy = limited(up.proc("busy"), "cpu", 2)
        .identity("proc_name", "spin")
        .script("spin", "#!/bin/sh\necho $$ > spin.pid\nwhile :; do :; done\n")
        .control("stop_cmd", "echo stopped >> stops; kill $(cat spin.pid)")
        .starts("echo run >> runs; exec ./spin");
    // The child has the memory: it waits for the end of a line that has none.
    let hungry = limited(up.proc("hungry"), "mem", memory_share(60.0))
        .starts("echo run >> runs; (head -c 125829120 /dev/zero; exec ./web 1000) | tail -n 1");
    // Ten open files, and it leaves SIGTERM unheeded.
    let greedy = limited(up.proc("greedy"), "fd", 8).starts(
        "echo run >> runs; trap '' TERM; exec 3</dev/null 4<&3 5<&3 6<&3 7<&3 8<&3 9<&3; exec ./web 1000",
    );
    let modest = limited(up.proc("modest"), "cpu", 90).starts("echo run >> runs; exec ./web 1000");
    at_once([busy, hungry, greedy, modest], |proc| {
        let first = proc.start();
        let is_modest = proc.name == "modest";
        if is_modest {
            // As long as the others take.
            let_pass(Duration::from_secs(18));
            // All that there is to tell is its start.
            assert_eq!((proc.pid(), proc.runs(), events_of(&up, proc).len()), (Some(first), 1, 1));
            return;
        }
        let message = told(&up, proc);
        let what = match proc.name.as_str() {
            "busy" => "used too much: cpu ",
            "hungry" => "used too much: mem ",
            _ => "used too much: 10, 10, 10 open files (limit 8)",
        };
        assert!(message.starts_with(&format!("pid {first} and what belongs to it")), "{message}");
        assert!(message.contains(what), "{message}");
        wait_until(PATIENCE, "all of it has ended", || !is_running(first));
        let second = wait_for(PATIENCE, "it comes back", || {
            proc.row().filter(|row| row["state"] == "running" && row["pid"] != first)
        });
        assert!(second["note"].as_str().is_some_and(|note| note.contains(what)), "{second}");
        assert_eq!((proc.runs(), &second["hosted"]), (2, &json!(true)));
        assert_eq!(
            proc.read("stops").lines().count(),
            usize::from(proc.name == "busy"),
            "its stop_cmd was run"
        );
        proc.op(Op::Kill).assert_success();
    });
}

/// The list shows the usage of a process with all its descendants.
#[test]
fn the_list_shows_what_the_whole_tree_uses() {
    let up = up();
    let proc = limited(up.proc("tree"), "mem", 99)
        .starts("(head -c 125829120 /dev/zero; exec ./web 1000) | tail -n 1");
    proc.start();
    let enough = memory_share(100.0);
    wait_until(PATIENCE, "its child's memory is counted", || {
        let status = up.client.post("/api/c/compapi/v2/gse/get_proc_status_v2/", proc.body(Op::Query)).data();
        status["proc_infos"][0]["mem_usage"].as_f64().is_some_and(|used| used > enough - 0.1)
    });
}

/// Keeps ten open files, which is more than the limit, and is over from its beginning.
const GREEDY: &str = "exec 3</dev/null 4<&3 5<&3 6<&3 7<&3 8<&3 9<&3; exec ./web 1000";

/// Hosting (托管) is both: restart and limits. Operators unhost a process to work on it by hand.
#[test]
fn an_unhosted_process_is_left_alone_by_its_limits() {
    let up = up();
    let greedy = |name| limited(up.proc(name), "fd", 8).starts(GREEDY).policy("limit_samples", 2);
    let (alone, hosted) = (greedy("alone"), greedy("hosted"));
    let pid = alone.start();
    alone.op(Op::Unhost).assert_success().assert_hosted(false);
    // It is sampled in the same rounds as the other, and was there first.
    let other = hosted.start();
    told(&up, &hosted);
    wait_until(PATIENCE, "the hosted one has ended", || !is_running(other));
    let kinds: Vec<Value> = events_of(&up, &alone).iter().map(|event| event["kind"].clone()).collect();
    assert_eq!((alone.pid(), kinds), (Some(pid), vec![json!("started")]));
    alone.op(Op::Host).assert_success().assert_hosted(true);
    told(&up, &alone);
    wait_until(PATIENCE, "hosted again, it is ended", || !is_running(pid));
    alone.op(Op::Kill);
    hosted.op(Op::Kill);
}

#[test]
fn limits_hold_for_a_run_once_and_while_a_start_is_checked() {
    let up = up();
    let greedy = |name| {
        let proc = limited(up.proc(name), "fd", 8).policy("limit_samples", 2).policy("op_timeout", 600);
        proc.starts(&format!("echo run >> runs; {GREEDY}"))
    };
    let once = greedy("once").policy("auto_type", 2);
    let checked = greedy("checked").policy("start_check_secs", 600);
    at_once([once, checked], |proc| {
        let outcome = proc.op(Op::Start);
        outcome.assert(836, "start process (web) failed").assert_hosted(false);
        outcome.assert_says("used too much: 10, 10 open files (limit 8)");
        told(&up, proc);
        assert_eq!((proc.pids(), proc.pid(), proc.runs()), (vec![], None, 1), "{}", proc.name);
        let row = proc.row_when(PATIENCE, "stopped");
        assert!(row["note"].as_str().is_some_and(|note| note.contains("used too much")), "{row}");
    });
    // A run within its limits succeeds.
    let modest = limited(up.proc("modest"), "fd", 1000).policy("auto_type", 2).starts("./web 0.1");
    modest.op(Op::Start).assert_success();
}
