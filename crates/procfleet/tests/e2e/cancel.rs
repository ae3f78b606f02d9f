//! Tasks that are cancelled, and tasks that are retried where they failed.

use crate::up;
use procfleet_testkit::{Joined, Op, PATIENCE, Signal, Up, programs, wait_for, wait_until};
use serde_json::{Value, json};

#[track_caller]
fn cli(up: &Up, args: &[&str]) -> Value {
    let done = up.cli(&[args, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).expect("--json prints JSON")
}

#[test]
fn cancel_drops_waiting_ops_and_does_not_wait_for_running_ones() {
    let up = up();
    let proc = up.proc("slow").with_pid_file().starts(&programs::gated_daemon());
    let under_way = proc.submit(Op::Start);
    proc.wait_for_runs(1);
    let waiting = proc.submit(Op::Restart);
    let seen = |task: &str| up.client.data(&format!("/api/v1/tasks/{task}"));

    let cancelled = cli(&up, &["task", "cancel", &waiting.id]);
    assert!(cancelled["cancelled_at"].as_i64().is_some_and(|at| at > 0), "{cancelled}");
    waiting.outcome().assert(826, "cancelled: restart had not begun, and nothing was done");
    assert!(!under_way.has_ended(), "the other task is another matter");

    cli(&up, &["task", "cancel", &under_way.id]);
    under_way.outcome().assert(826, "cancelled: start was under way; what it has begun goes on");
    assert_eq!(proc.read(programs::PID_FILE), "", "it was not waited for");
    // An op that has begun runs to its end, once.
    proc.open_gate(programs::GATE);
    let row = proc.row_when(PATIENCE, "running");
    assert_eq!((&row["hosted"], proc.runs()), (&json!(true), 1));
    assert_eq!(seen(&under_way.id)["counts"], json!({"total": 1, "open": 0, "succeeded": 0, "failed": 1}));
    proc.op(Op::Stop).assert_success();

    // A repeated or late cancel is not an error; nothing changes, and nothing is recorded twice.
    let before = seen(&waiting.id);
    assert_eq!(cli(&up, &["task", "cancel", &waiting.id])["cancelled_at"], before["cancelled_at"]);
    assert_eq!(seen(&waiting.id), before);
    let ended = proc.submit(Op::Query);
    ended.outcome();
    assert_eq!(cli(&up, &["task", "cancel", &ended.id])["cancelled_at"], 0);
    assert!(up.cli(&["task", "cancel", &ended.id]).stdout.contains("had ended already"));
    assert!(up.cli(&["task", "show", &waiting.id]).stderr.contains("cancelled at "));
    let audit = cli(&up, &["audit", "--action", "task_cancel"]);
    let subjects: Vec<&Value> = audit.as_array().expect("a list").iter().map(|row| &row["subject"]).collect();
    assert_eq!(subjects, [&json!(under_way.id), &json!(waiting.id)]);
}

#[test]
fn an_op_that_waits_for_an_absent_host_ends_when_it_is_cancelled() {
    const IP: &str = "127.0.0.7";
    let up = up();
    // Unlike the agent of `up`, this agent is not started again.
    let mut joined = Joined::start(up.binary(), &up.link(), &up.folder("second"), IP, Some(&up.token(&[])));
    joined.wait_until_connected(&up, IP);
    joined.end(Signal::KILL);
    let proc = up.proc("there").on_host(IP).starts(&programs::foreground());
    let task = proc.submit(Op::Start);
    up.client.post(&format!("/api/v1/tasks/{}/cancel", task.id), json!({})).data();
    let outcome = task.outcome();
    // If more than 5 s went by before the cancel, the op has ended by itself.
    let is_cancelled = outcome.code == 826 && outcome.message.starts_with("cancelled");
    assert!(is_cancelled || outcome.code == 117, "{outcome:?}");
    assert_eq!(proc.runs(), 0);
}

#[test]
fn a_retry_repeats_only_the_failed_ops() {
    let up = up();
    let proc = up.proc("here").starts(&programs::foreground());
    let mut body = proc.body(Op::Start);
    body["hosts"] = json!([{"ip": "127.0.0.1", "bk_cloud_id": 0}, {"ip": "127.0.0.9", "bk_cloud_id": 0}]);
    let task = up.client.operate(body);
    let results = up.client.results(&task);
    assert_eq!(results.iter().map(|(_, outcome)| outcome.code).collect::<Vec<_>>(), [0, 117]);

    let done = up.cli(&["task", "retry", &task, "--json"]);
    assert_eq!(done.code, Some(1), "the host is not there this time either: {done:?}");
    let again: Value = serde_json::from_str(&done.stdout).expect("--json prints JSON");
    let targets: Vec<&Value> = again["ops"].as_array().expect("ops").iter().map(|op| &op["target"]).collect();
    assert_eq!((targets, &again["retry_of"]), (vec![&json!("0:127.0.0.9")], &json!(task)));
    assert_eq!(again["summary"], format!("start {}:here on 0:127.0.0.9", up.namespace));
    assert_eq!(proc.runs(), 1, "the other one was left alone");
    let id = again["task_id"].as_str().expect("an id");
    let show = up.cli(&["task", "show", id]);
    assert!(show.stderr.contains(&format!("tries {task} again where it failed")), "{show:?}");
    let audit = cli(&up, &["audit", "--action", "task_retry"]);
    assert_eq!(audit[0]["subject"], id);
    assert!(audit[0]["detail"].as_str().is_some_and(|detail| detail.contains(&task)), "{audit}");

    // Each call is a task of its own, unless it comes under a key.
    let path = format!("/api/v1/tasks/{task}/retry");
    let under = |key: &str| up.client.post_with_headers(&path, &[("Idempotency-Key", key)], &json!({}));
    let once = under("again 1").task();
    assert_eq!(under("again 1").task(), once);
    let by_hand = up.cli(&["task", "retry", &task, "--idempotency-key", "again 1", "--no-wait"]);
    assert_eq!(by_hand.stdout.trim(), once, "{by_hand:?}");
    assert_ne!(under("again 2").task(), once);
    up.client.results(&once);
    let path = format!("/api/v1/tasks/{once}/retry");
    let other = up.client.post_with_headers(&path, &[("Idempotency-Key", "again 1")], &json!({}));
    other.assert_refused(1_000_811, &["Idempotency-Key", &once, "another request"]);
    under("").assert_refused(1_000_811, &["Idempotency-Key: is empty"]);

    let good = proc.submit(Op::Query);
    good.outcome();
    let retry = |task: &str| up.client.post(&format!("/api/v1/tasks/{task}/retry"), json!({}));
    retry(&good.id).assert_refused(1_000_811, &["task_id: none of its operations has failed"]);
    let gated = up.proc("slow").with_pid_file().starts(&programs::gated_daemon());
    let slow = gated.submit(Op::Start);
    retry(&slow.id).assert_refused(1_000_811, &["task_id: 1 of its operations are still open"]);
    gated.open_gate(programs::GATE);
    slow.outcome();
    retry("GSETASK:20190813145456:7").assert_refused(1_000_806, &["no such task"]);
    up.client
        .post(&format!("/api/v1/tasks/{task}/retry"), json!({"hosts": []}))
        .assert_refused(1_000_811, &["hosts: is not known here"]);
}

fn wait_until_away(up: &Up, ip: &str) {
    wait_until(PATIENCE, "it is away", || {
        let agents = up.client.data("/api/v1/agents?state=away");
        agents.as_array().is_some_and(|rows| rows.iter().any(|row| row["ip"] == ip))
    });
}

/// The op had already ended for the server. A report that its host sends afterwards is kept.
#[test]
fn a_report_that_comes_too_late_is_kept_and_marked() {
    const IP: &str = "127.0.0.7";
    let up = up();
    let data = up.folder("second");
    let start = |token: Option<&str>| Joined::start(up.binary(), &up.link(), &data, IP, token);
    let mut joined = start(Some(&up.token(&[])));
    joined.wait_until_connected(&up, IP);
    let proc = up.proc("slow").on_host(IP).with_pid_file().starts(&programs::slow_daemon(5));
    let task = proc.submit(Op::Start);
    proc.wait_for_runs(1);
    joined.end(Signal::KILL);
    wait_until_away(&up, IP);
    let path = format!("/api/v1/tasks/{}", task.id);
    up.client.post(&format!("{path}/cancel"), json!({})).data();
    let outcome = task.outcome();
    assert_eq!(outcome.code, 826, "{outcome:?}");
    let mut joined = start(None);
    joined.wait_until_connected(&up, IP);
    let late = wait_for(PATIENCE, "its agent has reported the outcome", || {
        let op = up.client.data(&path)["ops"][0].clone();
        (op["late_at"] != 0).then_some(op)
    });
    assert_eq!((&late["error_code"], &late["late_code"]), (&json!(826), &json!(805)), "{late}");
    assert!(late["late_msg"].as_str().is_some_and(|text| text.contains("interrupted")), "{late}");
    assert_eq!(task.outcome().code, 826, "the outcome stays what it was");
    let shown = up.cli(&["task", "show", &task.id]);
    assert!(shown.stdout.contains("reported late, at "), "{shown:?}");
    let metrics = up.client.page("/metrics").text;
    assert!(metrics.contains("procfleet_late_reports_total 1"), "{metrics}");
}

/// The agent had journalled the op and was killed before its turn came. It must not begin the op after the
/// cancel.
#[test]
fn an_op_that_was_cancelled_while_its_agent_was_away_never_begins() {
    const IP: &str = "127.0.0.8";
    let up = up();
    let data = up.folder("second");
    let start = |token: Option<&str>| Joined::start(up.binary(), &up.link(), &data, IP, token);
    let mut joined = start(Some(&up.token(&[])));
    joined.wait_until_connected(&up, IP);
    let proc = up.proc("slow").on_host(IP).with_pid_file().starts(&programs::gated_daemon());
    let under_way = proc.submit(Op::Start);
    proc.wait_for_runs(1);
    let (unwanted, wanted) = (proc.submit(Op::Restart), proc.submit(Op::Unhost));
    wait_until(PATIENCE, "it has taken all of them", || joined.stderr().matches("op accepted").count() == 3);
    assert!(!under_way.has_ended() && !unwanted.has_ended() && !wanted.has_ended());
    joined.end(Signal::KILL);
    proc.open_gate(programs::GATE);
    wait_until_away(&up, IP);
    let path = format!("/api/v1/tasks/{}", unwanted.id);
    up.client.post(&format!("{path}/cancel"), json!({})).data();
    assert_eq!(unwanted.outcome().code, 826);
    let mut joined = start(None);
    joined.wait_until_connected(&up, IP);
    under_way.outcome().assert(805, "interrupted");
    wanted.outcome().assert_success().assert_hosted(false);
    let seen = up.client.data(&path)["ops"][0].clone();
    assert_eq!((&seen["error_code"], proc.runs()), (&json!(826), 1), "{seen}");
    proc.op(Op::Kill);
}
