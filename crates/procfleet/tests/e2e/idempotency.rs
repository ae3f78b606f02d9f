//! A repeated call is one task and one run.

use crate::up;
use procfleet_testkit::{Client, Op, Proc, Up, programs};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;

const V2: &str = "/api/c/compapi/v2/gse/operate_proc_v2/";
const KEY: &str = "Idempotency-Key";
const REQUEST_ID: &str = "X-Bkapi-Request-Id";

/// A proc whose every start leaves a line behind.
fn counted(up: &Up, name: &str) -> Proc {
    up.proc(name).policy("auto_type", 2).starts(&programs::exits(0))
}

/// The ids of the tasks that were made for a proc, oldest first.
#[track_caller]
fn tasks(client: &Client, proc: &Proc) -> Vec<String> {
    let about = format!(" {}:{} ", proc.namespace, proc.name);
    let rows = client.data("/api/v1/tasks?limit=1000");
    let rows = rows.as_array().expect("tasks are a list").iter().rev();
    rows.filter(|row| row["summary"].as_str().is_some_and(|text| text.contains(&about)))
        .map(|row| row["task_id"].as_str().expect("an id").to_owned())
        .collect()
}

#[track_caller]
fn check_one_run(client: &Client, proc: &Proc, task: &str) {
    client.outcome(task).assert_success();
    assert_eq!((tasks(client, proc), proc.runs()), (vec![task.to_owned()], 1), "{}", proc.name);
}

#[test]
fn a_repeated_key_gets_the_same_task_and_one_run() {
    let up = up();
    let proc = counted(&up, "once");
    let body = proc.body(Op::Start);
    let send = |body: &Value| up.client.post_with_headers(V2, &[(KEY, "deploy 42")], body);
    let task = send(&body).task();
    assert_eq!(send(&body).task(), task);
    up.client.outcome(&task).assert_success();
    assert_eq!(send(&body).task(), task, "it has ended, and is the answer still");

    // Neither the login nor the order of the fields nor what means the same is part of the request.
    let mut logged_in = json!({"bk_username": "somebody", "bk_app_code": up.client.app_code});
    // An absent op_type means 0.
    for (name, value) in body.as_object().expect("an object").iter().rev().filter(|(n, _)| *n != "op_type") {
        logged_in[name] = value.clone();
    }
    assert_eq!(send(&logged_in).task(), task);
    check_one_run(&up.client, &proc, &task);
    let audit = up.client.data("/api/v1/audit");
    let audit = audit.as_array().expect("a list").iter().filter(|row| row["subject"] == task.as_str());
    assert_eq!(audit.count(), 1);
}

#[test]
fn a_key_with_another_request_is_refused_and_nothing_is_run() {
    let up = up();
    let (one, other) = (counted(&up, "one"), counted(&up, "other"));
    let key = [(KEY, "k")];
    let task = up.client.post_with_headers(V2, &key, &one.body(Op::Start)).task();
    let check = |path: &str, body: &Value| {
        let refused = up.client.post_with_headers(path, &key, body);
        refused.assert_refused(1_000_811, &["Idempotency-Key", &task, "another request"]);
    };
    check(V2, &other.body(Op::Start));
    check(V2, &one.body(Op::Stop));
    check(V2, &one.clone().policy("op_timeout", 21).body(Op::Start));
    check("/api/v2/proc/operate_proc_multi", &json!({"proc_operate_req": [one.body(Op::Start)]}));
    check_one_run(&up.client, &one, &task);
    assert_eq!((tasks(&up.client, &other), other.runs()), (vec![], 0));
}

#[test]
fn every_call_that_makes_a_task_takes_a_key() {
    let up = up();
    let proc = counted(&up, "multi");
    let multi = json!({"proc_operate_req": [proc.body(Op::Start)]});
    let mut first = proc.clone().without_spec().body(Op::Query);
    first["hosts"] = json!([{"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_supplier_id": 0}]);
    let check = |path: &str, key: &str, body: &Value| {
        let send = || up.client.post_with_headers(path, &[(KEY, key)], body).task();
        let task = send();
        assert_eq!(send(), task, "{path}");
        task
    };
    let task = check("/api/v2/proc/operate_proc_multi", "multi", &multi);
    check_one_run(&up.client, &proc, &task);
    check("/api/c/compapi/v2/gse/operate_proc/", "first", &first);
    // The path by which it comes is not part of it.
    let again = up.client.post_with_headers(
        "/api/bk-gse/prod/api/v2/proc/operate_proc_multi",
        &[(KEY, "multi")],
        &multi,
    );
    assert_eq!(again.task(), task);
}

#[test]
fn twenty_calls_at_once_make_one_task() {
    let up = up();
    for (header, name) in [(KEY, "by-key"), (REQUEST_ID, "by-id")] {
        let proc = counted(&up, name);
        let body = proc.body(Op::Start);
        let mut ids: Vec<String> = std::thread::scope(|scope| {
            let send = || up.client.post_with_headers(V2, &[(header, "k")], &body).task();
            let calls: Vec<_> = (0..20).map(|_| scope.spawn(send)).collect();
            calls.into_iter().map(|call| call.join().expect("it is answered")).collect()
        });
        ids.sort_unstable();
        ids.dedup();
        let [task] = &ids[..] else { panic!("{ids:?}") };
        check_one_run(&up.client, &proc, task);
    }
}

#[test]
fn a_request_id_gets_the_same_task_for_the_same_request() {
    let up = up();
    let (one, other) = (counted(&up, "one"), counted(&up, "other"));
    let send = |headers: &[(&str, &str)], proc: &Proc| {
        up.client.post_with_headers(V2, headers, &proc.body(Op::Start)).task()
    };
    let id: &[(&str, &str)] = &[(REQUEST_ID, "5f1c7e")];
    let task = send(id, &one);
    // One request to a platform leads to many different ones from it, and they have one request id.
    let other_task = send(id, &other);
    assert_eq!((send(id, &one), send(id, &other)), (task.clone(), other_task.clone()));
    check_one_run(&up.client, &one, &task);
    check_one_run(&up.client, &other, &other_task);

    // A key of the caller's own decides alone.
    let keyed = send(&[(REQUEST_ID, "5f1c7e"), (KEY, "k")], &one);
    assert_ne!(keyed, task);
    assert_eq!(send(&[(REQUEST_ID, "other"), (KEY, "k")], &one), keyed);
    up.client.outcome(&keyed).assert_success();
    assert_eq!(one.runs(), 2);
}

/// A platform that serves one request may start a process, stop it and start it again, all under one request
/// id.
#[test]
fn a_request_id_that_comes_again_after_another_operation_is_a_new_task() {
    let up = up();
    let proc = up.proc("again").starts(&programs::foreground());
    let other = counted(&up, "other");
    let id: &[(&str, &str)] = &[(REQUEST_ID, "5f1c7e")];
    let send = |op: Op, proc: &Proc| up.client.post_with_headers(V2, id, &proc.body(op)).task();
    let first = send(Op::Start, &proc);
    up.client.outcome(&first).assert_success();
    // Neither a query nor what concerns another process makes a repeat anything else.
    up.client.outcome(&send(Op::Query, &proc)).assert_success();
    up.client.outcome(&send(Op::Start, &other)).assert_success();
    assert_eq!(send(Op::Start, &proc), first);

    let stop = send(Op::Stop, &proc);
    up.client.outcome(&stop).assert_success();
    let second = send(Op::Start, &proc);
    assert_ne!(second, first, "it was stopped in between");
    up.client.outcome(&second).assert_success();
    assert!(proc.pid().is_some(), "it runs again");
    assert_eq!(send(Op::Start, &proc), second, "and this is a repeat again");
    // A stop without an id, also by another caller, counts as another operation in between.
    proc.op(Op::Stop).assert_success();
    let third = send(Op::Start, &proc);
    assert!(third != first && third != second);
    up.client.outcome(&third).assert_success();
    proc.op(Op::Stop).assert_success();
}

/// Two platforms that count their calls from 1 do not meet.
#[test]
fn a_key_belongs_to_its_app() {
    let up = up();
    let made = up.cli(&["app", "create", "platform", "--trusted", "--json"]);
    let app: Value = serde_json::from_str(&made.stdout).unwrap_or_else(|error| panic!("{error}: {made:?}"));
    let secret = app["secret"].as_str().unwrap_or_else(|| panic!("no secret in {made:?}"));
    let granted = up.cli(&["app", "grant", "platform", "--all"]);
    assert_eq!(granted.code, Some(0), "{granted:?}");
    let platform = Client::new(&up.client.url, "platform", secret);
    let proc = counted(&up, "shared");
    let send = |client: &Client| client.post_with_headers(V2, &[(KEY, "1")], &proc.body(Op::Start)).task();
    let (ours, theirs) = (send(&up.client), send(&platform));
    assert_ne!(ours, theirs);
    assert_eq!((send(&up.client), send(&platform)), (ours.clone(), theirs.clone()));
    assert_eq!(tasks(&up.client, &proc), [ours, theirs]);
}

#[test]
fn without_a_key_each_call_is_a_task() {
    let up = up();
    let proc = counted(&up, "twice");
    let ids = [(); 2].map(|()| up.client.post_with_header(V2, &proc.body(Op::Start)).task());
    ids.iter().for_each(|task| _ = up.client.outcome(task).assert_success());
    assert_eq!((tasks(&up.client, &proc).len(), proc.runs()), (2, 2));
}

#[test]
fn a_key_that_cannot_be_remembered_is_refused() {
    let up = up();
    let proc = counted(&up, "refused");
    let body = proc.body(Op::Start);
    let check = |headers: &[(&str, &str)], words: &[&str]| {
        up.client.post_with_headers(V2, headers, &body).assert_refused(1_000_811, words);
    };
    check(&[(KEY, &"x".repeat(256))], &["Idempotency-Key: has 256 characters, at most 255 are allowed"]);
    check(&[(REQUEST_ID, &"x".repeat(256))], &["X-Bkapi-Request-Id: has 256 characters"]);
    check(&[(KEY, "")], &["Idempotency-Key: is empty"]);
    check(&[(KEY, "a\tb")], &["Idempotency-Key: contains '\\t'"]);
    check(&[(KEY, "a"), (KEY, "b")], &["Idempotency-Key: is sent 2 times"]);
    // Together with all that is wrong with the body.
    let refused = up.client.post_with_headers(V2, &[(KEY, "")], &json!({"op_type": 0}));
    refused.assert_refused(1_000_811, &["Idempotency-Key: is empty", "meta"]);
    assert_eq!((tasks(&up.client, &proc), proc.runs()), (vec![], 0));

    let longest = "x".repeat(255);
    let send = || up.client.post_with_headers(V2, &[(KEY, &longest)], &body).task();
    assert_eq!(send(), send());
}

#[test]
fn a_key_survives_the_death_of_everything() {
    let mut up = up();
    for round in 0..3 {
        let (name, key) = (format!("killed-{round}"), format!("key-{round}"));
        let proc = counted(&up, &name);
        let send = |up: &Up| up.client.post_with_headers(V2, &[(KEY, &key)], &proc.body(Op::Start));
        let task = send(&up).task();
        up.kill_all();
        up.again();
        assert_eq!(send(&up).task(), task);
        let ended = up.client.outcome(&task);
        assert!(matches!(ended.code, 0 | 805), "{ended:?}");
        assert_eq!(send(&up).task(), task);
        assert_eq!(tasks(&up.client, &proc), [task]);
        assert!(proc.runs() <= 1, "{ended:?}: {}", proc.runs());
        let other = counted(&up, "other").body(Op::Start);
        let refused = up.client.post_with_headers(V2, &[(KEY, &key)], &other);
        refused.assert_refused(1_000_811, &["Idempotency-Key"]);
    }
}

/// The caller never learns whether its call arrived; so it sends it again.
#[test]
fn a_call_that_was_never_answered_can_be_sent_again() {
    let mut up = up();
    for round in 0..6 {
        let (name, key) = (format!("unanswered-{round}"), format!("key-{round}"));
        let proc = counted(&up, &name);
        let body = proc.body(Op::Start);
        let address = up.client.url.strip_prefix("http://").expect("an http url").to_owned();
        let text = body.to_string();
        let call = format!(
            "POST {V2} HTTP/1.1\r\nHost: {address}\r\nX-Bkapi-Authorization: {}\r\n{KEY}: {key}\r\n\
             Content-Length: {}\r\n\r\n{text}",
            up.client.authorization(),
            text.len()
        );
        let (most, last) = call.as_bytes().split_at(call.len() - 1);
        let mut stream = TcpStream::connect(&address).expect("the server listens");
        stream.write_all(most).expect("the server reads");
        // The server may be gone already.
        let mut send = || _ = stream.write_all(last);
        if round % 2 == 0 {
            send();
            up.kill_all();
        } else {
            std::thread::scope(|scope| {
                scope.spawn(send);
                up.kill_all();
            });
        }
        up.again();
        let arrived = tasks(&up.client, &proc);
        let task = up.client.post_with_headers(V2, &[(KEY, &key)], &body).task();
        eprintln!("round {round}: before the kill {arrived:?}, after it {task}");
        assert!(arrived.iter().all(|arrived| *arrived == task), "{arrived:?} {task}");
        let ended = up.client.outcome(&task);
        match ended.code {
            0 => assert_eq!(proc.runs(), 1),
            _ => assert!(ended.code == 805 && proc.runs() <= 1, "{ended:?}: {}", proc.runs()),
        }
        assert_eq!(tasks(&up.client, &proc), [task]);
    }
}
