//! Several servers on one PostgreSQL database: any of them takes any call, and the others carry on when one
//! dies.

use crate::access::OTHER;
use crate::questions::agent_at;
use procfleet_testkit::{
    Client, Cluster, DatabaseProxy, Joined, Listening, Op, PATIENCE, Proc, Program, Signal, Up, is_running,
    kill, programs, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_procfleet");

pub(crate) fn first() -> (Up, String) {
    first_with(&[])
}

pub(crate) fn first_with(flags: &[&str]) -> (Up, String) {
    let url = Cluster::shared().database();
    (Up::start_with(BINARY, &[&["--store", &url, "--name", "one"], flags].concat()), url)
}

/// Another server of the store of `up`. It has no agents of its own.
pub(crate) struct OtherServer {
    pub(crate) program: Program,
    pub(crate) client: Client,
    pub(crate) data: PathBuf,
    _folder: TempDir,
}

impl OtherServer {
    pub(crate) fn start(up: &Up, url: &str) -> OtherServer {
        OtherServer::start_with(up, url, &[])
    }

    pub(crate) fn start_with(up: &Up, url: &str, flags: &[&str]) -> OtherServer {
        let folder = tempfile::tempdir().expect("a temp dir");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("our own folder");
        for file in ["ca.key.pem", "ca.cert.der", "seal.key", "admin.json"] {
            if up.data().join(file).exists() {
                fs::copy(up.data().join(file), data.join(file)).expect("our own file");
            }
        }
        let mut program = Program::new(BINARY)
            .args([
                "server",
                "--listen",
                "127.0.0.1:0",
                "--link",
                "127.0.0.1:0",
                "--store",
                url,
                "--name",
                "two",
            ])
            .args(["--data"])
            .args([&data])
            .args(flags);
        program.start();
        wait_until(PATIENCE, "the other server is up", || {
            assert!(program.is_running(), "{}", program.stderr());
            program.stderr().contains("server is up")
        });
        OtherServer { program, client: client(&data), data, _folder: folder }
    }

    /// The proc, asked for through this server.
    fn of(&self, proc: &Proc) -> Proc {
        Proc { client: self.client.clone(), ..proc.clone() }
    }
}

fn client(data: &Path) -> Client {
    let admin: Value =
        serde_json::from_slice(&fs::read(data.join("admin.json")).expect("a file")).expect("JSON");
    let text = |name: &str| admin[name].as_str().expect("a text").to_owned();
    Client::new(&text("url"), &text("bk_app_code"), &text("bk_app_secret"))
}

fn is_connected(client: &Client) -> bool {
    client.data("/api/v1/agents")[0]["connected"] == true
}

#[test]
fn a_call_to_any_server_reaches_the_agent_of_another() {
    let (up, url) = first();
    let other = OtherServer::start(&up, &url);
    assert!(is_connected(&other.client), "connected, if not to this server");
    let proc = up.proc("web").starts(&programs::foreground());
    let there = other.of(&proc);
    there.op(Op::Start).assert_success();
    let pid = proc.wait_for_program();
    // The result is the same wherever it is asked for.
    let mut query = proc.request.clone();
    query["op_type"] = json!(Op::Query as u32);
    let task = other.client.operate(query);
    assert_eq!(up.client.outcome(&task).pid(), Some(pid));
    assert_eq!(other.client.outcome(&task).pid(), Some(pid));
    let row = other.client.data(&format!("/api/v1/procs?namespace={}", up.namespace))[0].clone();
    assert_eq!((&row["fresh"], &row["pid"]), (&json!(true), &json!(pid)), "{row}");
    there.op(Op::Stop).assert_success();
    assert!(!is_running(pid));
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn a_cancellation_reaches_the_server_that_holds_the_agent() {
    let (up, url) = first();
    let other = OtherServer::start(&up, &url);
    let proc = up.proc("slow").starts(&programs::gate("go"));
    let task = proc.submit(Op::Start);
    wait_until(PATIENCE, "the command runs", || !proc.pids().is_empty());
    let cancelled = other.client.post(&format!("/api/v1/tasks/{}/cancel", task.id), json!({}));
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    let outcome = other.client.outcome(&task.id);
    outcome.assert_says("cancelled");
    proc.open_gate("go");
    proc.op(Op::Stop);
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn an_event_wakes_those_who_wait_at_another_server() {
    let (up, url) = first();
    let other = OtherServer::start(&up, &url);
    let proc = up.proc("web").starts(&programs::foreground());
    let pid = proc.start();
    let last = || other.client.data("/api/v1/events?limit=1")["last"].as_u64().expect("a number");
    wait_until(PATIENCE, "the start is an event", || last() > 0);
    let after = last();
    let seen = std::thread::scope(|scope| {
        let ask = || other.client.data(&format!("/api/v1/events?after={after}&wait_ms=20000"));
        let waiting = scope.spawn(ask);
        kill(pid, Signal::KILL);
        waiting.join().expect("an answer")
    });
    assert_eq!(seen["last"].as_u64().map(|last| last > after), Some(true), "{seen}");
    proc.op(Op::Stop);
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn an_agent_that_is_revoked_through_another_server_is_disconnected() {
    let (up, url) = first();
    let other = OtherServer::start(&up, &url);
    let agent = other.client.data("/api/v1/agents")[0]["bk_agent_id"].clone();
    let revoked = other.client.post("/api/v1/agents/revoke", json!({"agents": [agent], "reason": "stolen"}));
    assert_eq!(revoked.status, 200, "{revoked:?}");
    wait_until(PATIENCE, "its server has ended its session", || up.stderr().contains("agent disconnected"));
    wait_until(PATIENCE, "no server shows it as connected", || {
        !is_connected(&up.client) && !is_connected(&other.client)
    });
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn a_repeated_request_is_one_task_whichever_server_gets_it() {
    let (up, url) = first();
    let other = OtherServer::start(&up, &url);
    let mut request = up.proc("web").starts(&programs::foreground()).request;
    request["op_type"] = json!(Op::Query as u32);
    let path = "/api/c/compapi/v2/gse/operate_proc_v2/";
    let send = |client: &Client, key: &str, body: &Value| {
        client.post_with_headers(path, &[("Idempotency-Key", key)], body)
    };
    for round in 0..20 {
        let key = format!("round {round}");
        let (here, there) = std::thread::scope(|scope| {
            let here = scope.spawn(|| send(&up.client, &key, &request).task());
            let there = scope.spawn(|| send(&other.client, &key, &request).task());
            (here.join().expect("an answer"), there.join().expect("an answer"))
        });
        assert_eq!(here, there, "{key}");
    }
    Cluster::shared().assert_invariants(&url);
}

/// The server is stopped, not killed: its connections stay, and it answers nobody.
#[test]
fn the_ops_of_a_server_that_is_stopped_get_their_outcomes_from_another() {
    let (up, url) = first();
    let other = OtherServer::start(&up, &url);
    let proc = up.proc("web").starts(&programs::foreground());
    let pid = proc.start();
    kill(up.pid(), Signal::STOP);
    wait_until(PATIENCE, "it was declared dead", || {
        other.program.stderr().contains("a server was silent and was declared dead")
    });
    wait_until(PATIENCE, "its agent is away", || !is_connected(&other.client));
    // Its agent may come back within a minute, so the op waits.
    let task = other.of(&proc).submit(Op::Query);
    kill(up.pid(), Signal::CONT);
    // It goes on as a new server, and its agent connects again.
    wait_until(PATIENCE, "it is a new server", || up.stderr().contains("it goes on as a new server"));
    assert_eq!(other.client.outcome(&task.id).pid(), Some(pid));
    wait_until(PATIENCE, "its agent is back", || is_connected(&other.client));
    proc.op(Op::Stop).assert_success();
    Cluster::shared().assert_invariants(&url);
}

/// The connection on which a server listens stays open, and nothing arrives on it any more.
#[test]
fn an_op_reaches_the_server_whose_listener_has_become_silent() {
    let (up, url) = first();
    let proxy = DatabaseProxy::to(&url);
    let other = OtherServer::start(&up, proxy.url());
    let _agent = agent_at(&up, &other.client, "two");
    let shows = |wakes: &str| row(&up.client, "two")["wakeups"] == wakes;
    wait_until(PATIENCE, "it hears the database", || shows("notified"));
    let proc = up.proc("web").on_host(OTHER).starts(&programs::foreground());
    proxy.set_listening(Listening::Silent);
    // No server has noticed the silence yet.
    proc.op(Op::Start).assert_success();
    let pid = proc.wait_for_program();
    assert!(proxy.silenced() > 0, "a wake-up was lost");
    wait_until(PATIENCE, "it polls", || shows("polling"));
    assert!(other.program.stderr().contains("wake-ups of the database do not arrive"));
    proc.op(Op::Restart).assert_success();
    assert!(!is_running(pid));
    assert!(shows("polling"));
    proxy.set_listening(Listening::Works);
    wait_until(PATIENCE, "it hears the database again", || shows("notified"));
    assert!(other.program.stderr().contains("wake-ups of the database arrive"));
    proc.op(Op::Stop).assert_success();
    assert!(!up.stderr().contains("declared"), "{}", up.stderr());
    assert!(!other.program.stderr().contains("agent disconnected"), "{}", other.program.stderr());
    Cluster::shared().assert_invariants(&url);
}

/// The agents of each living server, by its name.
fn agents_of(client: &Client) -> std::collections::BTreeMap<String, u64> {
    let rows = client.data("/api/v1/servers").as_array().cloned().expect("a list");
    let up = rows.iter().filter(|row| row["state"] == "up" || row["state"] == "draining");
    up.map(|row| (row["name"].as_str().unwrap_or_default().to_owned(), row["agents"].as_u64().unwrap_or(0)))
        .collect()
}

#[test]
fn a_drained_server_sends_its_agents_to_the_others_and_gets_them_back_when_those_die() {
    let (up, url) = first();
    let mut other = OtherServer::start(&up, &url);
    let proc = up.proc("web").starts(&programs::foreground());
    let pid = proc.start();
    let drain = |client: &Client, name: &str, drain: bool| {
        client.post("/api/v1/servers/drain", json!({"name": name, "drain": drain}))
    };
    assert_eq!(drain(&other.client, "one", true).status, 200);
    wait_until(PATIENCE, "the agent is at the other server", || {
        agents_of(&up.client) == [("one".to_owned(), 0), ("two".to_owned(), 1)].into()
    });
    let last = drain(&up.client, "two", true);
    assert_ne!(last.body["code"], 0, "the last server cannot be drained: {last:?}");
    let query = proc.op(Op::Query);
    assert_eq!(query.pid(), Some(pid), "through the server that has no agents");

    // The others carry on: an op that was accepted while its agent had no server is carried out.
    other.program.end(Signal::KILL, PATIENCE);
    assert_eq!(drain(&up.client, "one", false).status, 200);
    let task = proc.submit(Op::Restart);
    up.client.outcome(&task.id).assert_success();
    assert!(!is_running(pid));
    wait_until(PATIENCE, "the dead server is known to be dead", || agents_of(&up.client).len() == 1);
    proc.op(Op::Stop).assert_success();
    Cluster::shared().assert_invariants(&url);
}

/// An agent of another host that has joined at the first server.
fn join(up: &Up) -> Joined {
    let token = up.token(&["--uses", "1"]);
    let mut agent = Joined::start(up.binary(), &up.link(), &up.folder("joined"), "127.0.0.2", Some(&token));
    agent.wait_until_connected(up, "127.0.0.2");
    agent
}

pub(crate) fn row(client: &Client, name: &str) -> Value {
    let rows = client.data("/api/v1/servers").as_array().cloned().expect("a list");
    rows.into_iter().find(|row| row["name"] == name).expect("a server of this name")
}

/// The agent learns of a server that is added later in the session that it has.
#[test]
fn an_agent_that_joined_before_a_server_was_added_goes_there_when_its_own_dies() {
    let (up, url) = first();
    let agent = join(&up);
    let other = OtherServer::start(&up, &url);
    let link = row(&other.client, "two")["url"].as_str().expect("a text").to_owned();
    wait_until(PATIENCE, "it knows the other server", || {
        let log = agent.stderr();
        log.lines().any(|line| line.contains("sent another list of servers") && line.contains(&link))
    });
    kill(up.pid(), Signal::KILL);
    wait_until(PATIENCE, "the first is dead", || row(&other.client, "one")["state"] == "dead");
    wait_until(PATIENCE, "the other has the agent", || row(&other.client, "two")["agents"] == 1);
    wait_until(PATIENCE, "and all leases", || {
        row(&other.client, "two")["leases"].as_array().map_or(0, Vec::len) == 5
    });
    assert_eq!(row(&other.client, "one")["leases"], json!([]));
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn the_agents_of_a_server_that_is_stopped_go_to_the_other_one() {
    let (up, url) = first();
    let mut other = OtherServer::start(&up, &url);
    let drained = up.cli(&["servers", "drain", "one"]);
    assert_eq!(drained.code, Some(0), "{drained:?}");
    assert!(drained.stdout.contains("draining"), "{drained:?}");
    wait_until(PATIENCE, "the agent is at the other server", || row(&up.client, "two")["agents"] == 1);
    let refused = up.cli(&["servers", "drain", "two"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is the last server that takes agents"), "{refused:?}");
    let undone = up.cli(&["servers", "drain", "one", "--undo"]);
    assert_eq!(undone.code, Some(0), "{undone:?}");
    let (ended, _) = other.program.end(Signal::TERM, PATIENCE);
    assert!(ended.success(), "{ended}");
    wait_until(PATIENCE, "the agent is back", || row(&up.client, "one")["agents"] == 1);
    assert_eq!(row(&up.client, "two")["state"], "left");
    let audit = up.client.data("/api/v1/audit?action=server_drain");
    let audit = audit.as_array().expect("a list").iter();
    let audit: Vec<String> = audit.map(|row| format!("{} {}", row["subject"], row["detail"])).collect();
    assert_eq!(audit, [r#""one" "take agents again""#, r#""one" "drain""#]);
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn bad_names_and_addresses_of_a_server_are_refused_with_their_reason() {
    for (flag, value, reason) in [
        ("--name", "a b", "' ' must not be in a server's name"),
        ("--name", "", "must not be empty"),
        ("--advertise", "http://s1.example:48668", "the link is https"),
        ("--advertise", "https://s1.example:0", "the port must be a number from 1 to 65535"),
        ("--advertise", "https://0.0.0.0:48668", "nobody can connect to the unspecified address"),
        ("--advertise", "https://[::]:48668", "nobody can connect to the unspecified address"),
        ("--advertise", "https://s1.example:48668/x", "expected https://HOST[:PORT]"),
    ] {
        let ended = Program::new(BINARY).args(["server", flag, value]).run();
        assert_eq!(ended.code, Some(2), "{value}: {ended:?}");
        assert!(ended.stderr.contains(reason) && ended.stderr.contains(flag), "{value}: {ended:?}");
    }
}
