//! Events: changes of processes without an op are reported from the host to the receivers, once each.

use crate::excess::{event, send_event};
use crate::hostile::{peer, welcome};
use crate::up;
use procfleet_testkit::{
    Joined, Op, PATIENCE, Proc, Signal, Up, kill, let_pass, programs, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const IP: &str = "127.0.0.2";

pub(crate) fn events_of(up: &Up, proc: &Proc) -> Vec<Value> {
    let path = format!("/api/v1/events?namespace={}&name={}", proc.namespace, proc.name);
    up.client.data(&path)["events"].as_array().expect("a list").clone()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().expect("a kind")).collect()
}

/// Kills the process when its restart is due at once (`start_interval` is 1 s), and waits for its successor.
#[track_caller]
fn kill_and_replace(proc: &Proc) -> u32 {
    let pid = proc.wait_for_program();
    let_pass(Duration::from_millis(1_200));
    kill(pid, Signal::KILL);
    wait_for(PATIENCE, "there is a replacement", || proc.program_pid().filter(|other| *other != pid));
    pid
}

#[test]
fn a_death_and_a_restart_are_one_event_each_with_the_reason() {
    let up = up();
    let proc = up.proc("told").starts(&programs::foreground());
    proc.start();
    let pid = kill_and_replace(&proc);
    let events = wait_for(PATIENCE, "both events are there", || {
        let events = events_of(&up, &proc);
        (kinds(&events) == ["started", "exited", "restart_succeeded"]).then_some(events)
    });
    assert_eq!(events[0]["details"]["started"]["pid"], pid);
    assert_eq!(events[1]["message"], format!("pid {pid} was ended by signal 9"));
    assert_eq!(events[1]["details"]["exited"]["pid"], pid);
    assert_eq!((&events[0]["ip"], &events[0]["bk_cloud_id"]), (&json!("127.0.0.1"), &json!(0)));
    let shown = up.cli(&["events", "--namespace", &proc.namespace, "--kind", "exited"]);
    assert!(shown.stdout.contains("exited: pid") && shown.stdout.lines().count() == 1, "{shown:?}");
    let metrics = up.client.page("/metrics").text;
    assert!(metrics.contains("procfleet_events_total{kind=\"exited\"} 1"), "{metrics}");
    assert!(metrics.contains("procfleet_exits_total{how=\"signal\"} 1"), "{metrics}");
    // A stop is not an event, because a caller asked for it.
    proc.op(Op::Stop).assert_success();
    assert_eq!(kinds(&events_of(&up, &proc)), ["started", "exited", "restart_succeeded"]);
}

#[test]
fn a_long_poll_waits_for_the_next_event() {
    let up = up();
    let proc = up.proc("awaited").starts(&programs::foreground());
    proc.start();
    wait_until(PATIENCE, "the start is an event", || kinds(&events_of(&up, &proc)) == ["started"]);
    let last = up.client.data("/api/v1/events?limit=1")["last"].as_u64().expect("a number");
    // A question is answered without an event after its time.
    let ask = || up.client.data(&format!("/api/v1/events?after={last}&wait_ms=20000"));
    let told = || Some(ask()).filter(|view| view["events"].as_array().is_some_and(|told| !told.is_empty()));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| wait_for(PATIENCE, "the question is answered with an event", told));
        kill_and_replace(&proc);
        let view = asked.join().expect("an answer");
        assert_eq!(view["events"][0]["kind"], "exited", "{view}");
        assert!(view["last"].as_u64() > Some(last));
    });
    let bad = up.client.get("/api/v1/events?after=x");
    bad.assert_refused(1000811, &["after"]);
}

#[test]
fn events_wait_on_the_host_while_the_server_is_away() {
    let mut up = up();
    let data = up.folder("second");
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let proc = up.proc("far").on_host(IP).starts(&programs::foreground());
    proc.start();
    up.end(Signal::KILL);
    kill_and_replace(&proc);
    agent.wait_until_log_says("restart_succeeded");
    // The agent ends, too, and comes back: its journal still has the events.
    agent.end(Signal::KILL);
    up.again_with_the_same_link();
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, None);
    agent.wait_until_connected(&up, IP);
    wait_until(PATIENCE, "the events have come, once each", || {
        kinds(&events_of(&up, &proc)) == ["started", "exited", "restart_succeeded"]
    });
    Proc { client: up.client.clone(), ..proc }.op(Op::Kill).assert_success();
}

/// A receiver of webhooks: answers each delivery with the next of these statuses, and then with 200.
fn receiver(statuses: &'static [u16]) -> (String, Receiver<(String, Value)>) {
    let mut statuses = statuses.iter();
    receiver_that(move |_| statuses.next().copied().unwrap_or(200))
}

/// A receiver of webhooks that answers each body with this status.
fn receiver_that(
    mut answer: impl FnMut(&Value) -> u16 + Send + 'static,
) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let request = read_request(&mut stream);
            let status = answer(&request.1);
            let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
            if tell.send(request).is_err() {
                return;
            }
        }
    });
    (address, told)
}

/// Its head and its body.
pub(crate) fn read_request(stream: &mut TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if length.is_some_and(|length| body.len() >= length) {
                return (head.to_owned(), serde_json::from_str(body).expect("JSON"));
            }
        }
        let count = stream.read(&mut part).expect("the rest of the request");
        assert!(count > 0, "the request breaks off: {text}");
        bytes.extend_from_slice(&part[..count]);
    }
}

#[test]
fn a_webhook_gets_every_event_until_it_has_taken_it() {
    let up = up();
    let (address, deliveries) = receiver(&[302, 503]);
    let url = format!("http://ops:s3cret@{address}/events?key=k3y&to=all");
    let shown = format!("http://{address}/***");
    let mut proc = up.proc("hooked").starts(&programs::foreground());
    proc.request["spec"]["warn_report_policy"] = json!({"report_id": 4711});
    proc.start();
    wait_until(PATIENCE, "the start is an event", || kinds(&events_of(&up, &proc)) == ["started"]);
    let made = up.cli(&["webhook", "create", &url]);
    assert!(made.code == Some(0) && made.stdout.contains(&shown), "{made:?}");
    up.client.post("/api/v1/webhooks", json!({"url": url})).assert_refused(1000811, &["already"]);
    for url in ["ftp://x", "nonsense", "http://", "http://:80/", "http://127.0.0.1:99999/", "http://[::1]:0/"]
    {
        up.client.post("/api/v1/webhooks", json!({"url": url})).assert_refused(1000811, &["url"]);
    }
    let pid = kill_and_replace(&proc);
    let (head, first) = deliveries.recv_timeout(PATIENCE).expect("a delivery");
    // The receiver gets the whole URL, with its secrets.
    assert!(head.starts_with("POST /events?key=k3y&to=all HTTP/1.1"), "{head}");
    assert!(head.to_lowercase().contains("authorization: basic b3bzonmzy3jlda=="), "{head}");
    assert_eq!(first["data_id"], 4711, "the spec's own alarm: {first}");
    let event = &first["data"][0];
    assert_eq!(event["event_name"], "process_exited");
    assert_eq!(event["event"]["content"], format!("pid {pid} was ended by signal 9"));
    assert_eq!(event["target"], "127.0.0.1|0");
    assert_eq!(event["dimension"]["process_index"], format!("{}:{}", proc.namespace, proc.name));
    let mut taken: Vec<Value> = Vec::new();
    let (_, second) = deliveries.recv_timeout(PATIENCE).expect("another try");
    assert_eq!(second["data"][0], *event, "the same event, with the same id");
    while taken.len() < 2 {
        let (_, delivery) = deliveries.recv_timeout(PATIENCE).expect("and another");
        taken.extend(delivery["data"].as_array().expect("events").clone());
    }
    let names: Vec<&Value> = taken.iter().map(|event| &event["event_name"]).collect();
    assert_eq!(names, ["process_exited", "process_restart_success"], "each once");
    assert!(!up.stderr().contains("k3y") && !up.stderr().contains("s3cret"), "a secret is in the log");
    let list = wait_for(PATIENCE, "no op waits", || {
        let rows = up.client.data("/api/v1/webhooks");
        (rows[0]["waiting"] == 0 && rows[0]["trouble"] == "").then_some(rows)
    });
    assert_eq!(list[0]["url"], shown);
    let audit = up.cli(&["audit"]).stdout;
    assert!(audit.contains(&shown) && !audit.contains("s3cret") && !audit.contains("k3y"), "{audit}");
    let removed = up.cli(&["webhook", "remove", &list[0]["id"].to_string()]);
    assert!(removed.stderr.contains("there are no webhooks"), "{removed:?}");
    up.client.post("/api/v1/webhooks/99/remove", json!({})).assert_refused(1000811, &["webhook 99"]);
}

/// Their messages need six bytes for each of theirs in JSON. nginx accepts 1 MiB by default.
#[test]
fn a_webhook_with_a_limit_of_size_gets_all_events() {
    const EVENTS: usize = 60;
    let up = up();
    let limited = |body: &Value| if body.to_string().len() > 1 << 20 { 413 } else { 200 };
    let (address, deliveries) = receiver_that(limited);
    up.client.post("/api/v1/webhooks", json!({"url": format!("http://{address}/")})).data();
    let peer = peer(&up, "10.6.1.11");
    let mut talk = welcome(&peer, "one");
    let large = "\u{1}".repeat(8 * 1024);
    (1..=EVENTS as u64).for_each(|number| send_event(&mut talk, event(number, &large)));
    let mut taken: Vec<Value> = Vec::new();
    while taken.len() < EVENTS {
        let (_, delivery) = deliveries.recv_timeout(PATIENCE).expect("a delivery");
        taken.extend(delivery["data"].as_array().expect("events").clone());
    }
    let ids: Vec<&str> = taken.iter().filter_map(|event| event["dimension"]["event_id"].as_str()).collect();
    let expected: Vec<String> = (1..=EVENTS).map(|number| format!("0123456789abcdef-{number}")).collect();
    assert_eq!(ids, expected, "once each, in order");
}

/// Requests are halved until the event is alone.
#[test]
fn a_webhook_gets_the_events_before_one_that_it_refuses() {
    let up = up();
    let is_bad = |event: &Value| event["event"]["content"] == "bad";
    let refuses = move |body: &Value| {
        if body["data"].as_array().expect("events").iter().any(is_bad) { 400 } else { 200 }
    };
    let (address, deliveries) = receiver_that(refuses);
    let peer = peer(&up, "10.6.1.12");
    let mut talk = welcome(&peer, "one");
    up.client.post("/api/v1/webhooks", json!({"url": format!("http://{address}/")})).data();
    for (number, message) in (1..).zip(["one", "two", "bad", "four"]) {
        send_event(&mut talk, event(number, message));
    }
    let mut alone = 0;
    let mut taken: Vec<String> = Vec::new();
    while alone == 0 {
        let (_, delivery) = deliveries.recv_timeout(PATIENCE).expect("a delivery");
        let events = delivery["data"].as_array().expect("events");
        match events.iter().any(is_bad) {
            false => taken.extend(events.iter().map(|event| event["event"]["content"].to_string())),
            true => alone += usize::from(events.len() == 1),
        }
    }
    assert_eq!(taken, ["\"one\"", "\"two\""], "those before it");
    let trouble = || up.client.data("/api/v1/webhooks")[0]["trouble"] == "http status: 400";
    wait_until(PATIENCE, "the trouble is shown", trouble);
}
