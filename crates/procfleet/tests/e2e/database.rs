//! PostgreSQL itself fails: it says nothing, crashes, has no connection left, or is read-only. Each test has
//! a cluster of its own.

use crate::access::OTHER;
use crate::events::events_of;
use crate::postgres::{RESULT, name, server};
use crate::questions::agent_at;
use crate::several_servers::{OtherServer, row};
use procfleet_testkit::{
    Client, Cluster, Op, PATIENCE, Signal, Up, is_running, kill, let_pass, programs, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_procfleet");
const OPERATE: &str = "/api/c/compapi/v2/gse/operate_proc_v2/";
/// Every call gets its answer within 2 s; the rest is for a busy machine.
const ANSWER: Duration = Duration::from_secs(10);
/// Servers that wait for the database must not collect what they cannot store.
const GROWTH_KIB: u64 = 32 << 10;

fn on(url: &str) -> Up {
    Up::start_with(BINARY, &["--store", url, "--name", "one"])
}

/// A client with a connection of its own, which does not wait for ever.
fn impatient(client: &Client) -> Client {
    client.of_server(&client.url, ANSWER)
}

fn is_ready(client: &Client) -> bool {
    impatient(client).page("/readyz").status == 200
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// A query of a proc that does not exist.
fn query(up: &Up) -> Value {
    let mut request = up.proc("none").starts(&programs::foreground()).request;
    request["op_type"] = json!(Op::Query as u32);
    request
}

#[test]
fn a_database_that_says_nothing_delays_no_answer_and_moves_no_agent() {
    let cluster = Cluster::own(&[]);
    let url = cluster.database();
    let up = on(&url);
    let other = OtherServer::start(&up, &url);
    let agent = agent_at(&up, &other.client, "two");
    let proc = up.proc("web").starts(&programs::foreground());
    let pid = proc.start();
    let memory = || [resident_kib(up.pid()), resident_kib(other.program.pid())];
    let before = memory();
    let request = query(&up);
    cluster.stop();
    for client in [&up.client, &other.client] {
        wait_until(PATIENCE, "readiness says no", || !is_ready(client));
    }
    kill(pid, Signal::KILL);
    let successor = wait_for(PATIENCE, "there is a replacement", || {
        proc.program_pid().filter(|other| *other != pid && is_running(*other))
    });
    // Longer than a server that is silent has until others declare it dead.
    for _ in 0..20 {
        for client in [&up.client, &other.client] {
            assert_eq!(impatient(client).page("/healthz").status, 200);
            assert_eq!(impatient(client).page("/readyz").status, 503);
            let result = json!({"task_id": "GSETASK:20261115203000:1"});
            for (path, body) in [(RESULT, &result), (OPERATE, &request)] {
                let answer = impatient(client).try_post(path, &[], body).expect("an answer");
                assert_eq!(answer.status, 503, "{path}: {answer:?}");
            }
            let answer = impatient(client).try_get("/api/v1/agents").expect("an answer");
            assert_eq!(answer.status, 503, "{answer:?}");
        }
        let_pass(Duration::from_secs(1));
    }
    for (before, now) in before.into_iter().zip(memory()) {
        assert!(now <= before + GROWTH_KIB, "{before} KiB, {now} KiB now");
    }
    cluster.go_on();
    for client in [&up.client, &other.client] {
        wait_until(PATIENCE, "readiness says yes", || is_ready(client));
    }
    proc.row_with_pid(successor);
    wait_until(PATIENCE, "the events are stored", || {
        let events = events_of(&up, &proc);
        events.iter().any(|event| event["details"]["exited"]["pid"] == pid)
    });
    proc.op(Op::Stop).assert_success();
    for (log, place) in [(up.stderr(), "one"), (other.program.stderr(), "two")] {
        assert_eq!(log.matches("agent connected").count(), 1, "{place}: {log}");
        assert!(!log.contains("agent disconnected"), "{place}: {log}");
        assert!(!log.contains("declared"), "{place}: {log}");
    }
    assert_eq!(agent.stderr().matches("connected epoch=").count(), 1, "{OTHER}");
    cluster.assert_invariants(&url);
}

#[test]
fn a_server_ends_while_the_database_says_nothing() {
    let cluster = Cluster::own(&[]);
    let mut up = on(&cluster.database());
    cluster.stop();
    assert_eq!(up.end(Signal::TERM), Some(0));
    assert!(up.stderr().contains("server has ended"), "{}", up.stderr());
}

/// PostgreSQL ends all connections and recovers when one of its processes has crashed.
#[test]
fn a_crash_of_the_database_loses_no_task_and_makes_none_twice() {
    const CRASHES: usize = 10;
    let cluster = Cluster::own(&[]);
    let url = cluster.database();
    let up = on(&url);
    let request = query(&up);
    let stored = || -> usize {
        wait_for(PATIENCE, "the tasks are counted", || {
            cluster.psql(name(&url), "SELECT count(*) FROM tasks").ok()?.parse().ok()
        })
    };
    let before = stored();
    let crashes_are_over = AtomicBool::new(false);
    // Submits again under the same key until there is an answer.
    let accepted = |key: &str| -> String {
        wait_for(PATIENCE, "the task is accepted", || {
            let headers = [("Idempotency-Key", key)];
            let answer = impatient(&up.client).try_post(OPERATE, &headers, &request).expect("an answer");
            (answer.status == 200).then(|| answer.task())
        })
    };
    let tasks: BTreeMap<String, String> = std::thread::scope(|scope| {
        let submitting = scope.spawn(|| {
            let keys = (0..).map(|number| format!("key {number}"));
            let until_the_end = keys.take_while(|_| !crashes_are_over.load(Ordering::Relaxed));
            until_the_end.map(|key| (key.clone(), accepted(&key))).collect()
        });
        // A kill while PostgreSQL still ends all backends after the crash before is no crash of its own.
        while cluster.log().matches("terminated by signal 9").count() < CRASHES {
            cluster.kill_backend(name(&url));
        }
        wait_until(PATIENCE, "readiness says yes", || is_ready(&up.client));
        crashes_are_over.store(true, Ordering::Relaxed);
        submitting.join().expect("all were accepted")
    });
    for (key, task) in &tasks {
        assert_eq!(&accepted(key), task, "{key}");
        up.client.outcome(task).assert_success();
    }
    assert_eq!(stored() - before, tasks.len());
    let log = up.stderr();
    assert_eq!(log.matches("agent connected").count(), 1, "{log}");
    assert!(!log.contains("agent disconnected"), "{log}");
    cluster.assert_invariants(&url);
}

/// A connection of an ordinary account. `None`: PostgreSQL has no more.
fn take_connection(cluster: &Cluster) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.port())).expect("PostgreSQL listens");
    let parameters = b"user\0greedy\0database\0postgres\0\0";
    let length = u32::try_from(parameters.len() + 8).expect("it is short");
    let version = 3_u32 << 16;
    let start = [&length.to_be_bytes()[..], &version.to_be_bytes(), parameters].concat();
    stream.write_all(&start).expect("sent");
    // The database may refuse a connection before or after the login.
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head).expect("a message");
        let [kind, length @ ..] = head;
        let mut rest = vec![0; u32::from_be_bytes(length) as usize - length.len()];
        stream.read_exact(&mut rest).expect("all of the message");
        match kind {
            b'Z' => return Some(stream),
            b'E' => return None,
            _ => {}
        }
    }
}

#[test]
fn a_database_without_connections_costs_running_servers_nothing() {
    let cluster = Cluster::own(&["max_connections=40", "superuser_reserved_connections=3"]);
    let url = cluster.database();
    let database = name(&url).to_owned();
    // The administrator of the database has connections that the servers do not have.
    let sql = format!(
        "CREATE ROLE fleet LOGIN; CREATE ROLE greedy LOGIN; ALTER DATABASE {database} OWNER TO fleet"
    );
    cluster.psql("postgres", &sql).expect("two accounts");
    let url = url.replace("procfleet@", "fleet@");
    let up = on(&url);
    let other = OtherServer::start(&up, &url);
    let proc = up.proc("web").starts(&programs::foreground());
    let pid = proc.start();
    let taken: Vec<TcpStream> = std::iter::from_fn(|| take_connection(&cluster)).collect();
    assert!(!taken.is_empty());

    let folder = up.folder("third");
    let third = folder.join("data");
    std::fs::create_dir(&third).expect("our own folder");
    for file in ["seal.key", "admin.json"] {
        std::fs::copy(up.data().join(file), third.join(file)).expect("our own file");
    }
    let refused = server(&third, &url).finish(PATIENCE);
    // Not 78: systemd tries again.
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let reasons = ["too many clients", "connection slots are reserved"];
    assert!(reasons.iter().any(|reason| refused.stderr.contains(reason)), "{refused:?}");
    let request = query(&up);
    // More at once than the pool of a server has connections. A busy machine may refuse some of them, too,
    // but not because the database has no connections.
    std::thread::scope(|scope| {
        for client in [&up.client, &other.client].into_iter().cycle().take(40) {
            scope.spawn(|| {
                wait_until(PATIENCE, "the call is accepted", || {
                    let answer = impatient(client).try_post(OPERATE, &[], &request).expect("an answer");
                    let is_short = reasons.iter().any(|reason| answer.body.to_string().contains(reason));
                    assert!(!is_short, "{answer:?}");
                    answer.status == 200
                });
            });
        }
    });
    assert_eq!(proc.op(Op::Query).pid(), Some(pid));
    for name in ["one", "two"] {
        wait_until(PATIENCE, "the server is up", || row(&other.client, name)["state"] == "up");
    }

    drop(taken);
    let mut started = wait_for(PATIENCE, "a third server starts", || {
        let mut program = server(&third, &url);
        wait_until(PATIENCE, "it is up or has ended", || {
            program.stderr().contains("server is up") || !program.is_running()
        });
        program.is_running().then_some(program)
    });
    started.end(Signal::TERM, PATIENCE);
    for log in [up.stderr(), other.program.stderr()] {
        assert!(reasons.iter().all(|reason| !log.contains(reason)), "{log}");
    }
    cluster.assert_invariants(&url);
}

/// As a primary that was demoted and has only its old address.
#[test]
fn a_database_that_is_read_only_is_away_until_it_is_not() {
    let cluster = Cluster::own(&[]);
    let url = cluster.database();
    let up = on(&url);
    let proc = up.proc("web").starts(&programs::foreground());
    let pid = proc.start();
    let set = |value: &str| {
        for sql in
            [&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"), "SELECT pg_reload_conf()"]
        {
            cluster.psql("postgres", sql).expect("a setting");
        }
    };
    set("on");
    wait_until(PATIENCE, "readiness says no", || !is_ready(&up.client));
    let refused = impatient(&up.client).try_post(OPERATE, &[], &query(&up)).expect("an answer");
    assert_eq!(refused.status, 503, "{refused:?}");
    wait_until(PATIENCE, "the log says why", || up.stderr().contains("read-only transaction"));
    set("off");
    wait_until(PATIENCE, "readiness says yes", || is_ready(&up.client));
    proc.op(Op::Stop).assert_success();
    assert!(!is_running(pid));
    assert!(!up.stderr().contains("agent disconnected"), "{}", up.stderr());
    cluster.assert_invariants(&url);
}
