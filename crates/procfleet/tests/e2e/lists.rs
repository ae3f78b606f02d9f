//! The verbs that list things: filters, order, times, watching; and agents that are forgotten.

use crate::up;
use procfleet_testkit::{Joined, Op, PATIENCE, Program, Signal, Up, programs, wait_until};
use serde_json::{Value, json};

#[track_caller]
fn cli(up: &Up, args: &[&str]) -> Value {
    let done = up.cli(&[args, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).expect("--json prints JSON")
}

#[track_caller]
fn column(rows: &Value, field: &str) -> Vec<String> {
    let text = |row: &Value| row[field].as_str().unwrap_or_default().to_owned();
    rows.as_array().expect("a list").iter().map(text).collect()
}

#[test]
fn processes_are_filtered_and_ordered() {
    let up = up();
    let ns = up.namespace.as_str();
    let runs = up.proc("runs").starts(&programs::foreground());
    runs.start();
    let stopped = up.proc("also-stopped").starts(&programs::foreground());
    stopped.start();
    stopped.op(Op::Stop).assert_success();
    let fails = up.proc("fails").starts("exit 1").policy("start_retries", 1).policy("start_interval", 1);
    fails.op(Op::Host);
    fails.row_when(PATIENCE, "gave_up");
    stopped.row_when(PATIENCE, "stopped");
    let ps = |more: &[&str]| column(&cli(&up, &[&["ps", "--namespace", ns], more].concat()), "name");
    assert_eq!(ps(&["--state", "running"]), ["runs"]);
    assert_eq!(ps(&["--state", "gave-up"]), ["fails"]);
    assert_eq!(ps(&["--failed"]), ["fails"]);
    assert_eq!(ps(&["--sort", "name"]), ["also-stopped", "fails", "runs"]);
    assert_eq!(ps(&["--sort", "name", "--limit", "1"]), ["also-stopped"]);
    assert_eq!(ps(&["--select", "127.0.0.1", "--state", "stopped"]), ["also-stopped"]);
    assert!(ps(&["--select", "10.9.9.9"]).is_empty());

    // Tasks, events and the audit, filtered by failure and by time.
    let failed = cli(&up, &["task", "list", "--failed"]);
    assert_eq!(failed.as_array().map(Vec::len), Some(1), "{failed}");
    let id = failed[0]["task_id"].as_str().expect("an id");
    let shown = cli(&up, &["task", "show", id, "--failed"]);
    assert_eq!(shown["ops"].as_array().map(Vec::len), Some(1), "{shown}");
    assert!(cli(&up, &["task", "list", "--state", "open"]).as_array().is_some_and(Vec::is_empty));
    assert_eq!(column(&cli(&up, &["task", "list", "--since", "1d", "--limit", "2"]), "task_id").len(), 2);
    let events =
        cli(&up, &["events", "--namespace", ns, "--since", "1d", "--select", "127.0.0.1", "--limit", "1"]);
    assert_eq!(events["events"].as_array().map(Vec::len), Some(1), "{events}");
    let none = cli(&up, &["events", "--namespace", ns, "--select", "10.9.9.9"]);
    assert_eq!(none["events"], json!([]));
    up.client.as_app("nobody", "wrong").get("/api/v1/procs");
    wait_until(PATIENCE, "the refusal is recorded", || {
        let audit = cli(&up, &["audit", "--failed", "--since", "1h"]);
        let rows = audit.as_array().expect("a list");
        !rows.is_empty() && rows.iter().all(|row| row["code"] != 0)
    });
    runs.op(Op::Kill).assert_success();
}

#[test]
fn times_are_local_unless_utc_is_wanted() {
    let up = up();
    up.token(&[]);
    let audit = |flags: &[&str]| {
        let mut program = Program::new(up.binary()).args([&["audit", "--limit", "1"], flags].concat());
        program = program.env("PROCFLEET_DATA", up.data()).env("TZ", "UTC-8").current_dir(&up.folder("cli"));
        program.run().stdout
    };
    assert!(audit(&[]).contains("+08:00"), "{}", audit(&[]));
    assert!(audit(&["--utc"]).contains("Z  ") && !audit(&["--utc"]).contains("+08:00"));
    assert!(!audit(&[]).contains('\u{1b}'), "no colours without a terminal");
}

#[test]
fn a_watched_list_is_printed_until_its_reader_closes() {
    let up = up();
    let mut watching =
        Program::new(up.binary()).args(["agents", "--watch", "1"]).env("PROCFLEET_DATA", up.data());
    watching.start();
    wait_until(PATIENCE, "it was shown twice", || watching.stdout().matches("connected").count() >= 2);
    watching.end(Signal::TERM, PATIENCE);
}

#[test]
fn an_agent_that_is_away_can_be_forgotten() {
    let up = up();
    let token = up.token(&["--uses", "2"]);
    // As texts these two addresses have the opposite order.
    let [near, ip] = ["127.0.0.2", "127.0.0.10"];
    let start = |ip: &str| Joined::start(up.binary(), &up.link(), &up.folder(ip), ip, Some(&token));
    let (mut gone, mut other) = (start(ip), start(near));
    gone.wait_until_connected(&up, ip);
    other.wait_until_connected(&up, near);
    let listed = column(&cli(&up, &["agents"]), "ip");
    assert_eq!(listed, ["127.0.0.1", near, ip], "in the order of addresses");
    let refused = up.cli(&["agents", "forget", "0:127.0.0.10"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is connected; only one that is away can be forgotten"), "{refused:?}");
    gone.end(Signal::TERM);
    wait_until(PATIENCE, "it has gone", || {
        cli(&up, &["agents", "--state", "away"]).as_array().is_some_and(|rows| rows.len() == 1)
    });
    assert_eq!(column(&cli(&up, &["agents", "forget", "0:127.0.0.10"]), "ip"), [ip]);
    assert_eq!(column(&cli(&up, &["agents"]), "ip"), ["127.0.0.1", near]);
    assert_eq!(cli(&up, &["audit", "--action", "agents_forget"]).as_array().map(Vec::len), Some(1));
    let unknown = up.cli(&["stop", "x", "--host", ip]);
    assert!(unknown.stdout.contains("failed (117)"), "{unknown:?}");
    // Only an administrator may forget an agent.
    let secret = cli(&up, &["app", "create", "other"])["secret"].as_str().expect("a secret").to_owned();
    let other = up.client.as_app("other", &secret);
    let body = json!({"agents": ["0:127.0.0.1"]});
    other.post("/api/v1/agents/forget", body).assert_refused(1_306_403, &["administrators only"]);
}
