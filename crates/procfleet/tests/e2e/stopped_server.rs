//! A server that is stopped (SIGSTOP) or loses its lease while it delivers webhooks or numbers events. The
//! others do not wait for that server, and repeat only the delivery that was under way.

use crate::access::OTHER;
use crate::events::read_request;
use crate::postgres::name;
use crate::questions::agent_at;
use crate::several_servers::{OtherServer, first, row};
use crate::silence::Stopped;
use procfleet_testkit::{
    Client, Cluster, Op, PATIENCE, Proc, Signal, Up, kill, programs, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A hosted proc, asked for through this server.
fn start(up: &Up, client: &Client, name: &str, host: &str, report_id: u32) -> (Proc, u32) {
    let mut proc = up.proc(name).on_host(host).starts(&programs::foreground());
    proc.request["spec"]["warn_report_policy"] = json!({"report_id": report_id});
    let proc = Proc { client: client.clone(), ..proc };
    let pid = proc.start();
    wait_until(PATIENCE, "the start is an event", || kinds(client, &proc) == ["started"]);
    (proc, pid)
}

fn kinds(client: &Client, proc: &Proc) -> Vec<String> {
    let path = format!("/api/v1/events?namespace={}&name={}", proc.namespace, proc.name);
    let events = client.data(&path)["events"].as_array().expect("a list").clone();
    events.iter().map(|event| event["kind"].as_str().expect("a kind").to_owned()).collect()
}

fn has_restarted(client: &Client, proc: &Proc) -> bool {
    kinds(client, proc) == ["started", "exited", "restart_succeeded"]
}

fn psql(url: &str, sql: &str) -> String {
    Cluster::shared().psql(name(url), sql).expect("psql works")
}

/// How the receiver treats the next delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Refuse,
    /// Takes it, and answers when the test says so. The next ones are taken.
    Hold,
    Take,
}

/// A receiver of webhooks.
struct Receiver {
    address: String,
    inner: Arc<(Mutex<Received>, Condvar)>,
}

#[derive(Debug)]
struct Received {
    manner: Manner,
    /// The ids of the events of the delivery that is, or was, held.
    held: Option<Vec<String>>,
    is_released: bool,
    /// The ids of the events of all deliveries that were not refused.
    taken: Vec<String>,
}

impl Receiver {
    fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let received = Received { manner: Manner::Refuse, held: None, is_released: false, taken: Vec::new() };
        let inner = Arc::new((Mutex::new(received), Condvar::new()));
        let shared = inner.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.expect("a connection"), shared.clone());
                std::thread::spawn(move || answer(stream, &shared.0, &shared.1));
            }
        });
        Receiver { address, inner }
    }

    fn received(&self) -> MutexGuard<'_, Received> {
        self.inner.0.lock().expect("no panic")
    }

    fn release(&self) {
        self.received().is_released = true;
        self.inner.1.notify_all();
    }
}

fn answer(mut stream: TcpStream, received: &Mutex<Received>, released: &Condvar) {
    let (_, delivery) = read_request(&mut stream);
    let events = delivery["data"].as_array().expect("events").iter();
    let id = |event: &Value| event["dimension"]["event_id"].as_str().expect("an id").to_owned();
    let ids: Vec<String> = events.map(id).collect();
    let mut received = received.lock().expect("no panic");
    if received.manner != Manner::Refuse {
        received.taken.extend(ids.clone());
    }
    let status = match received.manner {
        Manner::Refuse => 503,
        Manner::Take => 200,
        Manner::Hold => {
            received.manner = Manner::Take;
            received.held = Some(ids);
            received = released.wait_while(received, |received| !received.is_released).expect("no panic");
            200
        }
    };
    drop(received);
    let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(answer.as_bytes());
}

fn delivers(client: &Client, server: &str) -> bool {
    row(client, server)["leases"].as_array().expect("a list").contains(&json!("webhooks"))
}

fn webhook(client: &Client) -> Value {
    client.data("/api/v1/webhooks")[0].clone()
}

/// How the server that delivers loses its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Stopped,
    /// It runs on, as a server does that alone has lost the database.
    DeclaredDead,
}

#[test]
fn webhooks_go_on_when_the_server_that_delivers_is_stopped() {
    check_deliveries(Loss::Stopped);
}

#[test]
fn a_server_that_was_declared_dead_does_not_go_on_with_its_deliveries() {
    check_deliveries(Loss::DeclaredDead);
}

/// Every event comes once. Only the delivery that was under way at the loss may come twice.
fn check_deliveries(loss: Loss) {
    let (mut up, url) = first();
    let other = OtherServer::start(&up, &url);
    let _agent = agent_at(&up, &other.client, "two");
    assert!(delivers(&other.client, "one"));
    // Two data ids, so that the events are several deliveries.
    let (one, one_pid) = start(&up, &other.client, "a", OTHER, 4711);
    let (two, two_pid) = start(&up, &other.client, "b", OTHER, 4712);
    let receiver = Receiver::start();
    let made = other.client.post("/api/v1/webhooks", json!({"url": format!("http://{}/", receiver.address)}));
    assert_eq!(made.status, 200, "{made:?}");
    kill(one_pid, Signal::KILL);
    kill(two_pid, Signal::KILL);
    wait_until(PATIENCE, "both are events", || {
        has_restarted(&other.client, &one) && has_restarted(&other.client, &two)
    });
    wait_until(PATIENCE, "the server that delivers says why events wait", || {
        webhook(&up.client)["trouble"] == "http status: 503"
    });
    let trouble = webhook(&other.client)["trouble"].clone();
    assert!(trouble.as_str().is_some_and(|text| text.contains("server one delivers")), "{trouble}");

    receiver.received().manner = Manner::Hold;
    let held = wait_for(PATIENCE, "a delivery is under way", || receiver.received().held.clone());
    let stopped = match loss {
        Loss::Stopped => Some(Stopped::stop(up.pid())),
        Loss::DeclaredDead => {
            // The second change keeps the next run of the same server from taking the lease first.
            psql(
                &url,
                "UPDATE servers SET state = 'fenced' WHERE name = 'one' AND state = 'up'; \
                 UPDATE leases SET term = term + 1, server = (SELECT id FROM servers WHERE name = 'two') \
                 WHERE name = 'webhooks'",
            );
            None
        }
    };
    wait_until(PATIENCE, "the other server delivers", || delivers(&other.client, "two"));
    if loss == Loss::DeclaredDead {
        wait_until(PATIENCE, "it knows that it does not deliver any more", || {
            webhook(&up.client)["trouble"] != "http status: 503"
        });
    }
    let is_done = |client: &Client| {
        let webhook = webhook(client);
        webhook["waiting"] == 0 && webhook["trouble"] == ""
    };
    wait_until(PATIENCE, "everything is delivered", || is_done(&other.client));
    // A server that runs could go on with its next delivery now.
    receiver.release();
    drop(stopped);
    wait_until(PATIENCE, "it is a new server", || up.stderr().contains("it goes on as a new server"));
    wait_until(PATIENCE, "it shows what the other one has delivered", || is_done(&up.client));
    // A server ends after its last delivery.
    up.end(Signal::TERM);

    let mut times: HashMap<String, u32> = HashMap::new();
    for id in &receiver.received().taken {
        *times.entry(id.clone()).or_default() += 1;
    }
    assert_eq!(times.len(), 4, "a death and a restart of each: {times:?}");
    for (id, times) in &times {
        assert!(*times == 1 || (*times == 2 && held.contains(id)), "{id} came {times} times; held: {held:?}");
    }
    assert_eq!(psql(&url, "SELECT delivered = (SELECT max(number) FROM events) FROM webhooks"), "t");
    for proc in [one, two] {
        proc.op(Op::Stop).assert_success();
    }
    Cluster::shared().assert_invariants(&url);
}

/// The server has the counter of events and its own row locked, and cannot commit.
#[test]
fn a_server_that_stops_while_it_numbers_events_holds_nobody_up() {
    let (up, url) = first();
    let other = OtherServer::start(&up, &url);
    let _agent = agent_at(&up, &other.client, "two");
    wait_until(PATIENCE, "each server has an agent", || {
        row(&other.client, "one")["agents"] == 1 && row(&other.client, "two")["agents"] == 1
    });
    let (here, here_pid) = start(&up, &other.client, "here", "127.0.0.1", 1);
    let (there, there_pid) = start(&up, &other.client, "there", OTHER, 1);
    // A server that stores an event waits for a lock that the test holds.
    psql(
        &url,
        "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS \
         $$ BEGIN PERFORM pg_advisory_xact_lock_shared(77); RETURN NEW; END $$; \
         CREATE TRIGGER gate BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION gate()",
    );
    let keeper = std::thread::spawn({
        let url = url.clone();
        move || Cluster::shared().psql(name(&url), "SELECT pg_advisory_lock(77); SELECT pg_sleep(3600)")
    });
    let ours = "database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                AND locktype = 'advisory' AND objid = 77";
    wait_until(PATIENCE, "the gate is shut", || {
        psql(&url, &format!("SELECT count(*) FROM pg_locks WHERE granted AND {ours}")) == "1"
    });
    kill(here_pid, Signal::KILL);
    let backend = wait_for(PATIENCE, "the first server stands at the gate", || {
        Some(psql(&url, &format!("SELECT pid FROM pg_locks WHERE NOT granted AND {ours}")))
            .filter(|pid| !pid.is_empty())
    });
    let stopped = Stopped::stop(up.pid());
    psql(
        &url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
         AND query LIKE '%pg_sleep(3600)%' AND pid <> pg_backend_pid()",
    );
    keeper.join().expect("no panic").expect_err("its connection was ended");
    let state = format!("SELECT state FROM pg_stat_activity WHERE pid = {backend}");
    wait_until(PATIENCE, "the database waits for the server, or has given up", || {
        ["idle in transaction", "idle in transaction (aborted)", ""].contains(&psql(&url, &state).as_str())
    });
    kill(there_pid, Signal::KILL);
    wait_until(PATIENCE, "the other server stores its events", || has_restarted(&other.client, &there));
    wait_until(PATIENCE, "the transaction is gone", || psql(&url, &state).is_empty());
    drop(stopped);
    wait_until(PATIENCE, "the events of the first agent have come, once each", || {
        has_restarted(&other.client, &here)
    });
    for proc in [here, there] {
        proc.op(Op::Stop).assert_success();
    }
    Cluster::shared().assert_invariants(&url);
}
