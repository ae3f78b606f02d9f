//! Old records are deleted, and nothing else is.

use crate::up;
use procfleet_testkit::{Client, Op, PATIENCE, Program, Signal, Up, programs, wait_for, wait_until};
use serde_json::json;

const V2: &str = "/api/c/compapi/v2/gse/operate_proc_v2/";
const RESULT: &str = "/api/c/compapi/v2/gse/get_proc_operate_result_v2/";

/// As if the days had gone by since the task was made. The server has ended meanwhile.
fn let_days_go_by(up: &Up, task: &str, days: i64) {
    let number: i64 = task.rsplit(':').next().expect("a number").parse().expect("a number");
    let store = rusqlite::Connection::open(up.data().join("server.db")).expect("the store");
    let ago = days * 86_400_000;
    let changed = store
        .execute("UPDATE tasks SET created_at = created_at - ?1 WHERE number = ?2", [ago, number])
        .expect("the task can be changed");
    assert_eq!(changed, 1);
    let sql = "UPDATE audit SET at = at - ?1 WHERE subject = ?2";
    store.execute(sql, rusqlite::params![ago, task]).expect("its audit record too");
}

/// As if the days had gone by since the event came.
fn let_event_age(up: &Up, number: i64, days: i64) {
    let store = rusqlite::Connection::open(up.data().join("server.db")).expect("the store");
    let sql = "UPDATE events SET received_at = received_at - ?1 WHERE number = ?2";
    assert_eq!(store.execute(sql, [days * 86_400_000, number]).expect("the event can be changed"), 1);
}

/// The numbers of the events of a namespace, the oldest first.
fn events(client: &Client, namespace: &str) -> Vec<i64> {
    let events = client.data(&format!("/api/v1/events?after=0&namespace={namespace}"));
    let events = events["events"].as_array().expect("a list").iter();
    events.map(|event| event["number"].as_i64().expect("a number")).collect()
}

fn is_unknown(client: &Client, task: &str) -> bool {
    let answer = client.post(RESULT, json!({"task_id": task}));
    let unknown = answer.body["code"] == 1_000_806;
    if unknown {
        answer.assert_refused(1_000_806, &[task]);
    }
    unknown
}

fn is_audited(client: &Client, task: &str) -> bool {
    let rows = client.data("/api/v1/audit?limit=1000");
    rows.as_array().expect("a list").iter().any(|row| row["subject"] == task)
}

#[test]
fn results_and_events_are_kept_for_thirty_days() {
    let mut up = up();
    let proc = up.proc("kept").with_pid_file().starts(&programs::daemon());
    let keyed = |client: &Client| {
        client.post_with_headers(V2, &[("Idempotency-Key", "k")], &proc.body(Op::Start)).task()
    };
    let old = keyed(&up.client);
    up.client.outcome(&old).assert_success();
    let pid = proc.pid_in_file();
    let younger = up.client.operate(proc.body(Op::Query));
    up.client.outcome(&younger).assert_success();
    let other = up.proc("other").with_pid_file().starts(&programs::daemon());
    other.start();
    let namespace = up.namespace.clone();
    wait_until(PATIENCE, "each start is an event", || events(&up.client, &namespace).len() == 2);
    let starts = events(&up.client, &namespace);
    up.end(Signal::TERM);
    let_days_go_by(&up, &old, 31);
    let_days_go_by(&up, &younger, 29);
    let_event_age(&up, starts[0], 31);
    let_event_age(&up, starts[1], 29);
    up.again();
    wait_until(PATIENCE, "the old task is forgotten", || is_unknown(&up.client, &old));
    wait_until(PATIENCE, "its audit record too", || !is_audited(&up.client, &old));
    wait_until(PATIENCE, "and the old event", || events(&up.client, &namespace).first() == Some(&starts[1]));
    up.client.outcome(&younger).assert_success();
    assert!(is_audited(&up.client, &younger));
    let metrics = up.client.page("/metrics").text;
    assert!(metrics.contains("procfleet_tasks_deleted_total 1\n"), "{metrics}");

    // Its process is none of it, and its key is free.
    let again = keyed(&up.client);
    assert_ne!(again, old);
    up.client.outcome(&again).assert(828, "no need to start the process");
    assert_eq!((proc.pid_in_file(), proc.runs()), (pid, 1));
}

#[test]
fn the_retention_period_is_a_setting() {
    let mut up = up();
    let task = up.client.operate(up.proc("short").starts(&programs::foreground()).body(Op::Query));
    up.client.results(&task);
    up.end(Signal::TERM);
    let_days_go_by(&up, &task, 3);
    let server = |arguments: &[&str], keep_days: &str| {
        Program::new(up.binary())
            .args(["server", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0"])
            .args(arguments)
            .env("PROCFLEET_DATA", up.data())
            .env("PROCFLEET_KEEP_DAYS", keep_days)
    };
    for bad in ["0", "3651", "-1", "a week"] {
        let refused = server(&[], bad).run();
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("--keep-days <DAYS>"), "{refused:?}");
    }
    let help = server(&["--help"], "30").run().stdout;
    assert!(help.contains("--keep-days") && help.contains("[default: 30]"), "{help}");

    // An argument wins over the environment.
    let mut server = server(&["--keep-days", "2"], "10");
    server.start();
    let url = wait_for(PATIENCE, "the server is ready", || {
        let said = server.stdout();
        said.split(' ').find(|word| word.starts_with("http://")).map(str::to_owned)
    });
    let client = Client::new(&url, &up.client.app_code, &up.client.app_secret);
    wait_until(PATIENCE, "the old task is forgotten", || is_unknown(&client, &task));
    // It ends in good order, whatever it is doing.
    let (status, _) = server.end(Signal::TERM, PATIENCE);
    assert!(status.success(), "{status}");
}
