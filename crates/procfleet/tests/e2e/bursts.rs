//! Bursts of tasks: the number of open ops is bounded, and a caller beyond the bound gets a Retry-After.

use procfleet_testkit::{Op, PATIENCE, Proc, Up, connect_from, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};

const MULTI: &str = "/api/c/compapi/v2/gse/operate_proc_multi/";
/// How many ops each task of a burst has.
const EACH: usize = 5;

/// Procs whose start waits until there is a file `go` in the folder.
fn gated(up: &Up, burst: &str, tasks: usize) -> Vec<Vec<Proc>> {
    let go = up.folder("gate").join("go");
    let command = format!("while [ ! -e {} ]; do sleep 0.1; done; echo run >> runs", go.display());
    let proc =
        |task, number| up.proc(&format!("{burst}{task}-{number}")).starts(&command).policy("auto_type", 2);
    (0..tasks).map(|task| (0..EACH).map(|number| proc(task, number)).collect()).collect()
}

fn body(procs: &[Proc]) -> Value {
    json!({"proc_operate_req": procs.iter().map(|proc| proc.body(Op::Start)).collect::<Vec<_>>()})
}

fn call(up: &Up, body: &Value) -> (String, Value) {
    call_with(up, "", body)
}

/// Sends these header lines too. Returns the head and the JSON of the answer.
fn call_with(up: &Up, headers: &str, body: &Value) -> (String, Value) {
    let mut stream = connect_from("127.0.0.1", up.client.address());
    let body = body.to_string();
    let head = format!(
        "POST {MULTI} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}X-Bkapi-Authorization: {}\r\nContent-Length: {}\r\n\r\n",
        up.client.authorization(),
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is answered");
    let (head, text) = answer.split_once("\r\n\r\n").expect("it answers in HTTP");
    (head.to_owned(), serde_json::from_str(text).expect("JSON"))
}

fn task_count(up: &Up) -> usize {
    up.client.data("/api/v1/tasks?limit=1000").as_array().expect("a list").len()
}

#[test]
fn a_burst_beyond_the_bound_is_refused_whole_and_nothing_accepted_is_lost_or_doubled() {
    const TASKS: usize = 8;
    // Of 20 ops one app gets 15: three tasks.
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--max-open-ops", "20"]);
    let before = task_count(&up);
    let procs = gated(&up, "first", TASKS);
    let answers: Vec<(String, Value)> = std::thread::scope(|scope| {
        let calls: Vec<_> = procs.iter().map(|procs| scope.spawn(|| call(&up, &body(procs)))).collect();
        calls.into_iter().map(|call| call.join().expect("no panic")).collect()
    });
    let accepted: Vec<bool> = answers.iter().map(|(_, answer)| answer["code"] == 0).collect();
    assert_eq!(accepted.iter().filter(|accepted| **accepted).count(), 3, "{answers:?}");
    for (head, answer) in answers.iter().filter(|(_, answer)| answer["code"] != 0) {
        assert!(head.starts_with("HTTP/1.1 503") && head.contains("\r\nretry-after: 5"), "{head}");
        assert_eq!((&answer["result"], &answer["code"]), (&json!(false), &json!(1000121)), "{answer}");
        let message = answer["message"].as_str().expect("a text");
        let reason =
            "too many ops of this app, which may have three quarters of all, are open: 15 (at most 15";
        assert!(message.contains(reason), "{message}");
    }
    assert_eq!(task_count(&up), before + 3, "nothing of a refused task is stored");

    let large = gated(&up, "second", 2).into_iter().flatten().collect::<Vec<_>>();
    assert_eq!(call(&up, &body(&large)).1["code"], 1000121);
    std::fs::write(up.folder("gate").join("go"), "").expect("our own file");
    wait_until(PATIENCE * 3, "there is room again", || call(&up, &body(&large)).1["code"] == 0);
    assert_eq!(task_count(&up), before + 4);
    // The metric counts ops from their dispatch on, so it may still be 0.
    large.iter().for_each(|proc| proc.wait_for_runs(1));
    wait_until(PATIENCE * 3, "all ops have ended", || {
        up.client.page("/metrics").text.contains("procfleet_open_ops 0\n")
    });
    for (procs, accepted) in procs.iter().zip(accepted) {
        for proc in procs {
            assert_eq!(proc.runs(), usize::from(accepted), "{}", proc.name);
        }
    }
    assert!(large.iter().all(|proc| proc.runs() == 1));
}

/// The bound of the specs' bytes, with few ops: 1 MiB, of which one app gets three quarters.
#[test]
fn specs_beyond_the_bound_of_their_bytes_are_refused_until_others_have_ended() {
    // Five tasks have about 770,000 bytes.
    const FIT: usize = 5;
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--max-open-specs", "1"]);
    let before = task_count(&up);
    let large = |procs: &[Proc]| {
        let mut body = body(procs);
        for request in body["proc_operate_req"].as_array_mut().expect("a list") {
            request["spec"]["control"]["stop_cmd"] = json!(format!(": {}", "x".repeat(30_000)));
        }
        body
    };
    let procs = gated(&up, "bytes", FIT + 1);
    for task in &procs[..FIT] {
        let (_, answer) = call(&up, &large(task));
        assert_eq!(answer["code"], 0, "{answer}");
    }
    let last = large(&procs[FIT]);
    let (head, answer) = call(&up, &last);
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("\r\nretry-after: 5"), "{head}");
    assert_eq!(answer["code"], 1000121, "{answer}");
    let message = answer["message"].as_str().expect("a text");
    assert!(message.contains("1 MiB of specs"), "{message}");
    assert_eq!(task_count(&up), before + FIT, "nothing of a refused task is stored");
    let small = gated(&up, "small", 1).remove(0);
    let (_, answer) = call(&up, &body(&small));
    assert_eq!(answer["code"], 0, "small specs still fit: {answer}");

    std::fs::write(up.folder("gate").join("go"), "").expect("our own file");
    wait_until(PATIENCE * 3, "there is room again", || call(&up, &last).1["code"] == 0);
    procs.iter().flatten().chain(&small).for_each(|proc| proc.wait_for_runs(1));
}

#[test]
fn a_task_that_is_larger_than_the_bound_is_taken_when_nothing_else_is_open() {
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--max-open-ops", "3"]);
    std::fs::write(up.folder("gate").join("go"), "").expect("our own file");
    let procs = gated(&up, "alone", 1).remove(0);
    let (_, answer) = call(&up, &body(&procs));
    assert_eq!(answer["code"], 0, "{answer}");
    procs.iter().for_each(|proc| proc.wait_for_runs(1));
}

/// The server's largest use of memory so far, in MiB.
fn peak_mib(up: &Up) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", up.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a kernel with VmHWM");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") / 1024
}

/// Each proc of a call has its own spec: 200 MiB, from a body of 100 KiB.
#[test]
fn a_large_spec_for_many_procs_is_refused_before_it_is_copied() {
    let up = Up::start(env!("CARGO_BIN_EXE_procfleet"));
    let before = peak_mib(&up);
    let names: Vec<String> = (0..5_000).map(|number| format!("p{number}")).collect();
    let mut body = up.proc("p").body(Op::Start);
    body["names"] = json!(names);
    body["spec"]["control"]["start_cmd"] = json!("x".repeat(30_000));
    body["spec"]["control"]["stop_cmd"] = json!("x".repeat(15_000));
    for dry_run in [true, false] {
        body["dry_run"] = json!(dry_run);
        let refused = up.client.post("/api/v1/operate", body.clone());
        refused.assert_refused(1_000_811, &["spec: has ", "5001 processes", "Send fewer processes"]);
    }
    // Names and hosts multiply, too.
    let hosts: Vec<Value> = (0..50_000_u32)
        .map(|number| json!({"ip": std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string(), "bk_cloud_id": 0}))
        .collect();
    body["hosts"] = json!(hosts);
    up.client
        .post("/api/v1/operate", body.clone())
        .assert_refused(1_000_811, &["more than 100000 operations"]);
    assert!(peak_mib(&up) < before + 150, "{} MiB after {before} MiB", peak_mib(&up));

    // A few procs with a large spec, and many with a usual one.
    body["hosts"] = json!([{"ip": "127.0.0.1", "bk_cloud_id": 0}]);
    body["dry_run"] = json!(true);
    let counted = |body: &Value| {
        up.client.post("/api/v1/operate", body.clone()).data()["procs"].as_array().map(Vec::len)
    };
    let mut few = body.clone();
    few["names"] = json!(names[..1_000]);
    assert_eq!(counted(&few), Some(1_001));
    body["spec"]["control"]["start_cmd"] = json!("x".repeat(1_000));
    body["spec"]["control"]["stop_cmd"] = json!("x".repeat(1_000));
    assert_eq!(counted(&body), Some(5_001));
}

/// 50 long faults of one element, on 20,000 hosts: 600 MiB of reasons, from a body of 1 MiB.
#[test]
fn the_reason_of_a_refused_element_is_cut_where_many_hosts_have_it() {
    let up = Up::start(env!("CARGO_BIN_EXE_procfleet"));
    let good = up.proc("good").starts("true").policy("auto_type", 2);
    let before = peak_mib(&up);
    for (hosts, longest) in [(1_u32, 2_048), (20_000, 838)] {
        let mut bad = up.proc("bad").body(Op::Start);
        for number in 0..50 {
            bad["meta"]["labels"][format!("{number:0>590}")] = json!([]);
        }
        let ip = |number: u32| std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
        bad["hosts"] = (0..hosts).map(|number| json!({"ip": ip(number), "bk_cloud_id": 0})).collect();
        let body = json!({"proc_operate_req": [good.body(Op::Start), bad]});
        let task = up.client.post(MULTI, body).task();
        // The first page: all results of the larger task are more than the client of the tests reads.
        let page = up.client.data(&format!("/api/v1/tasks/{task}?state=failed&limit=1"));
        let refused = &page["ops"][0];
        assert_eq!(
            (&refused["target"], &refused["error_code"]),
            (&json!("0:10.0.0.0"), &json!(811)),
            "{refused}"
        );
        let message = refused["error_msg"].as_str().expect("a text");
        assert!(
            message.starts_with("proc_operate_req[1].meta.labels.000") && message.ends_with('…'),
            "{message}"
        );
        assert_eq!(message.len(), longest);
    }
    assert!(peak_mib(&up) < before + 300, "{} MiB after {before} MiB", peak_mib(&up));
}

/// They are never open, but the store keeps them.
#[test]
fn ops_without_an_agent_are_bounded_for_each_app() {
    const KEY: &str = "Idempotency-Key: nowhere-1\r\n";
    let up = Up::start(env!("CARGO_BIN_EXE_procfleet"));
    let good = up.proc("good").starts("echo run >> runs").policy("auto_type", 2);
    let to = |hosts: u32| {
        let ip = |number: u32| std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
        let mut bad = good.body(Op::Query);
        bad["hosts"] = (0..hosts).map(|number| json!({"ip": ip(number), "bk_cloud_id": 0})).collect();
        json!({"proc_operate_req": [bad]})
    };
    let (_, first) = call_with(&up, KEY, &to(100_000));
    assert_eq!(first["code"], 0, "{first}");
    for _ in 0..2 {
        wait_until(PATIENCE * 3, "it is accepted", || call(&up, &to(100_000)).1["code"] == 0);
    }
    let before = task_count(&up);
    let (head, answer) = call(&up, &to(100_000));
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("\r\nretry-after: "), "{head}");
    assert_eq!(answer["code"], 1000121, "{answer}");
    let message = answer["message"].as_str().expect("a text");
    assert!(message.contains("ended without reaching an agent"), "{message}");
    assert_eq!(task_count(&up), before, "nothing of a refused task is stored");
    let (_, repeat) = call_with(&up, KEY, &to(100_000));
    assert_eq!((&repeat["code"], &repeat["data"]), (&json!(0), &first["data"]));
    // Calls that reach an agent are not concerned.
    assert_eq!(call(&up, &body(std::slice::from_ref(&good))).1["code"], 0);
    good.wait_for_runs(1);
}

/// A repeat needs no capacity. A new request under the key is still refused as another request.
#[test]
fn a_repeat_under_its_key_gets_its_task_while_new_tasks_are_refused() {
    const KEY: &str = "Idempotency-Key: burst-1\r\n";
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--max-open-ops", "5"]);
    let procs = gated(&up, "keyed", 2);
    let (_, first) = call_with(&up, KEY, &body(&procs[0]));
    assert_eq!(first["code"], 0, "{first}");
    assert_eq!(call(&up, &body(&procs[1])).1["code"], 1000121);
    let (_, repeat) = call_with(&up, KEY, &body(&procs[0]));
    assert_eq!((&repeat["code"], &repeat["data"]), (&json!(0), &first["data"]));
    let (_, other) = call_with(&up, KEY, &body(&procs[1]));
    assert!(other["message"].as_str().is_some_and(|text| text.contains("another request")), "{other}");
    std::fs::write(up.folder("gate").join("go"), "").expect("our own file");
    procs[0].iter().for_each(|proc| proc.wait_for_runs(1));
}
