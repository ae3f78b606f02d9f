//! Questions (logs and specs) to agents of another server, and a server that alone has lost the database.

use crate::access::{DENIED, OTHER, done, granted_app};
use crate::hostile::peer;
use crate::postgres::{give_back, name, take_away};
use crate::several_servers::{OtherServer, first, first_with, row};
use crate::up;
use procfleet_proto::peer::PEER_PATH;
use procfleet_sim::ShownCertificate;
use procfleet_testkit::{
    Client, Cluster, DatabaseProxy, Joined, Op, PATIENCE, Proc, Program, Signal, Up, Way, account,
    is_running, kill, programs, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const BINARY: &str = env!("CARGO_BIN_EXE_procfleet");
const NO_AGENT: u64 = 1_000_117;
const NOT_ALLOWED: u64 = 1_000_837;

/// An agent of another host, in a session at the server `at`.
pub(crate) fn agent_at(up: &Up, at: &Client, server: &str) -> Joined {
    let link = row(at, server)["url"].as_str().expect("a text").to_owned();
    let mut agent = Joined::start(up.binary(), &link, &up.folder("other"), OTHER, Some(&up.token(&[])));
    agent.wait_until_connected(up, OTHER);
    agent
}

pub(crate) fn question(proc: &Proc, more: &str) -> String {
    format!("/api/v1/logs?namespace={}&name={}{more}", proc.namespace, proc.name)
}

/// A client verb at the server with this data folder.
fn cli(data: &Path, args: &[&str]) -> Program {
    Program::new(BINARY).args(args).env("PROCFLEET_DATA", data)
}

fn follow(data: &Path, proc: &Proc) -> Program {
    let mut follow = cli(data, &["logs", &proc.name, "--namespace", &proc.namespace, "--follow"]);
    follow.start();
    follow
}

/// Writes a line, and another when there is a file `go`.
fn talks(first: &str, second: &str) -> String {
    format!("echo {first}; (until test -e go; do sleep 0.05; done; echo {second}) & exec ./web 1000")
}

#[test]
fn logs_and_specs_are_read_through_any_server() {
    let (up, url) = first();
    let second = OtherServer::start(&up, &url);
    let proc = up.proc("talks").starts(&talks("one", "two"));
    proc.start();
    for client in [&up.client, &second.client] {
        assert_eq!(client.data(&question(&proc, ""))["lines"], json!(["one"]), "{}", client.url);
    }
    let followed = follow(&second.data, &proc);
    wait_until(PATIENCE, "the first line is shown", || followed.stdout() == "one\n");
    fs::write(proc.folder.join("go"), "").expect("our own folder");
    wait_until(PATIENCE, "the second line is shown", || followed.stdout() == "one\ntwo\n");

    let spec = ["show", &proc.name, "--namespace", &proc.namespace];
    let (here, there) = (up.cli(&spec), cli(&second.data, &spec).run());
    assert!(done(here).stdout == there.stdout && there.stdout.contains("echo one"), "{there:?}");

    // A page of more than one message of the agent.
    let many = up.proc("many").starts(
        "i=0; while [ $i -lt 4000 ]; do echo a line with the number $i; i=$((i+1)); done; exec ./web 1000",
    );
    many.start();
    let lines = |client: &Client| client.data(&question(&many, "&lines=4000"))["lines"].clone();
    let shown = lines(&second.client);
    assert_eq!(shown.as_array().map(Vec::len), Some(4_000));
    assert_eq!(shown, lines(&up.client));

    // An error of the agent is the same through both.
    let unknown = up.proc("unknown");
    let errors =
        [&up.client, &second.client].map(|client| client.get(&question(&unknown, "&host=0:127.0.0.1")).body);
    assert!(errors[0]["message"] == errors[1]["message"] && errors[1]["code"] == 1_000_104, "{errors:?}");
    Cluster::shared().assert_invariants(&url);
}

/// Servers and agents follow a new CA without a restart, and trust each other under it.
#[test]
fn questions_and_agents_go_on_between_servers_under_a_new_ca() {
    let life = ["--agent-cert-secs", "20"];
    let (up, url) = first_with(&life);
    let mut second = OtherServer::start_with(&up, &url, &life);
    let agent = agent_at(&up, &second.client, "two");
    let proc = up.proc("talks").on_host(OTHER).starts("echo one; exec ./web 1000");
    proc.start();
    let ca = |data: &Path, verb: &str| -> Value {
        let shown = done(cli(data, &["ca", verb, "--json"]).run());
        serde_json::from_str(&shown.stdout).expect("JSON")
    };
    let next = ca(&up.data(), "rotate")["next_sha256"].clone();
    wait_until(PATIENCE, "the old CA is retired", || ca(&second.data, "show")["sha256"] == next);
    assert_eq!(agent.stderr().matches("connected epoch=").count(), 1, "the session went on");
    assert_eq!(up.client.data(&question(&proc, ""))["lines"], json!(["one"]));

    second.program.end(Signal::KILL, PATIENCE);
    wait_until(PATIENCE, "its agent is at the first server", || row(&up.client, "one")["agents"] == 2);
    proc.op(Op::Stop).assert_success();
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn rights_are_the_same_at_a_server_that_asks_another() {
    let (up, url) = first();
    let second = OtherServer::start(&up, &url);
    let proc = up.proc("talks").starts(&talks("one", "two"));
    proc.start();
    let app = granted_app(&up, "reader");
    let there = second.client.as_app(&app.app_code, &app.app_secret);
    assert_eq!(there.data(&question(&proc, ""))["lines"], json!(["one"]));
    let spec = format!("/api/v1/specs?namespace={}&name={}", proc.namespace, proc.name);
    assert_eq!(there.get(&spec).status, 200);

    // The account is checked on the host, by what the question carries.
    done(up.cli(&["app", "revoke", "reader", "--account", "*"]));
    done(up.cli(&["app", "grant", "reader", "--account", "somebody"]));
    there.get(&question(&proc, "")).assert_refused(NOT_ALLOWED, &[&account()]);
    there.get(&spec).assert_refused(NOT_ALLOWED, &[&account()]);
    // The operation is checked by the server that is called.
    done(up.cli(&["app", "grant", "reader", "--account", &account()]));
    assert_eq!(there.data(&question(&proc, ""))["lines"], json!(["one"]));
    done(up.cli(&["app", "revoke", "reader", "--op", "*"]));
    done(up.cli(&["app", "grant", "reader", "--op", "start"]));
    there.get(&question(&proc, "")).assert_refused(DENIED, &["query"]);
    second.client.as_app("reader", "wrong").get(&question(&proc, "")).assert_refused(DENIED, &[]);
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn an_agent_is_found_after_it_has_moved_to_another_server() {
    let (up, url) = first();
    let second = OtherServer::start(&up, &url);
    let proc = up.proc("talks").starts(&talks("one", "two"));
    proc.start();
    // At the server that has the agent first, and then has not.
    let followed = follow(&up.data(), &proc);
    wait_until(PATIENCE, "the first line is shown", || followed.stdout() == "one\n");
    for (from, to) in [("one", "two"), ("two", "one")] {
        done(up.cli(&["servers", "drain", from]));
        wait_until(PATIENCE, "the agent has moved", || row(&up.client, to)["agents"] == 1);
        done(up.cli(&["servers", "drain", from, "--undo"]));
        for client in [&second.client, &up.client] {
            assert_eq!(client.data(&question(&proc, ""))["lines"], json!(["one"]), "{to} {}", client.url);
        }
    }
    fs::write(proc.folder.join("go"), "").expect("our own folder");
    wait_until(PATIENCE, "the second line is shown", || followed.stdout() == "one\ntwo\n");
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn a_server_that_cannot_be_asked_is_named() {
    let (up, url) = first();
    let mut second = OtherServer::start(&up, &url);
    let agent = agent_at(&up, &second.client, "two");
    let proc = up.proc("talks").on_host(OTHER).starts(&talks("one", "two"));
    proc.start();
    assert_eq!(up.client.data(&question(&proc, ""))["lines"], json!(["one"]));
    let link = row(&up.client, "two")["url"].as_str().expect("a text").to_owned();
    // A living agent would go to the first server at once.
    kill(agent.pid(), Signal::STOP);
    second.program.end(Signal::KILL, PATIENCE);
    // Until the others have declared it dead, the store says that it holds the agent.
    let refused = up.client.get(&question(&proc, ""));
    refused.assert_refused(NO_AGENT, &[OTHER]);
    let message = refused.body["message"].as_str().expect("a text");
    let address = link.trim_start_matches("https://");
    assert!(message.contains(address) || message.contains("not connected"), "{message}");
    wait_until(PATIENCE, "its agent counts as away", || {
        let message = up.client.get(&question(&proc, "")).body["message"].clone();
        message.as_str().is_some_and(|message| message.contains("not connected"))
    });
    kill(agent.pid(), Signal::CONT);
    wait_until(PATIENCE, "the log is read through the other server", || {
        up.client.get(&question(&proc, "")).body["data"]["lines"] == json!(["one"])
    });
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn only_servers_get_in_where_servers_do() {
    let (shared, _) = first();
    for up in [&shared, &up()] {
        let agent = peer(up, "10.6.0.1");
        let refused = agent.connect_at(PEER_PATH).expect_err("it is refused").to_string();
        assert!(refused.contains("403") && refused.contains("for servers of this fleet"), "{refused}");
        // By the name of servers: the handshake fails, or there is no such name.
        for shown in [ShownCertificate::Agents, ShownCertificate::None] {
            let refused = agent.enter_as_server(shown).expect_err("it is refused").to_string();
            assert!(refused.contains("TLS with"), "{shown:?}: {refused}");
        }
        agent.connect().expect("the path for agents is open");
    }
}

#[test]
fn a_server_that_alone_has_lost_the_database_sends_its_agents_away() {
    let (up, url) = first();
    let proxy = DatabaseProxy::to(&url);
    let second = OtherServer::start(&up, proxy.url());
    let agent = agent_at(&up, &second.client, "two");
    wait_until(PATIENCE, "each server has an agent", || {
        row(&up.client, "one")["agents"] == 1 && row(&up.client, "two")["agents"] == 1
    });
    proxy.set(Way::Cut);
    agent.wait_until_log_says("this server does not reach the database, and others do");
    wait_until(PATIENCE, "the first one has both", || row(&up.client, "one")["agents"] == 2);
    assert!(!up.stderr().contains("agent disconnected"), "its own agent stays: {}", up.stderr());
    Cluster::shared().assert_invariants(&url);
}

/// Nothing arrives from the database any more, and no connection is closed. What was sent arrives later.
#[test]
fn a_server_that_was_cut_off_silently_comes_back_as_a_new_one() {
    let (up, url) = first();
    let proxy = DatabaseProxy::to(&url);
    let second = OtherServer::start(&up, proxy.url());
    let mut agent = agent_at(&up, &second.client, "two");
    let proc = up.proc("web").on_host(OTHER).starts(&programs::foreground());
    let there = Proc { client: second.client.clone(), ..proc.clone() };
    let pid = there.start();
    let first_run = row(&up.client, "two");
    assert_eq!(first_run["state"], "up");

    proxy.set(Way::Stalled);
    agent.wait_until_log_says("this server does not reach the database, and others do");
    wait_until(PATIENCE, "the first one has both", || row(&up.client, "one")["agents"] == 2);
    wait_until(PATIENCE, "the second one is dead", || row(&up.client, "two")["state"] == "dead");
    assert_eq!(second.client.page("/readyz").status, 503);
    // Accepted while it is cut off, and carried out through the other server.
    proc.op(Op::Restart).assert_success();
    assert!(!is_running(pid));
    let successor = proc.wait_for_program();

    proxy.set(Way::Open);
    wait_until(PATIENCE, "it goes on as a new server", || {
        second.client.page("/readyz").status == 200 && row(&up.client, "two")["state"] == "up"
    });
    assert!(second.program.stderr().contains("declared"), "{}", second.program.stderr());
    assert_eq!(proc.program_pid(), Some(successor), "nothing was done twice");
    there.op(Op::Stop).assert_success();
    assert!(!is_running(successor));
    assert!(agent.is_running());
    Cluster::shared().assert_invariants(&url);
}

#[test]
fn a_database_that_is_away_for_all_servers_moves_no_agent() {
    let (up, url) = first();
    let second = OtherServer::start(&up, &url);
    let _agent = agent_at(&up, &second.client, "two");
    take_away(name(&url));
    wait_until(PATIENCE, "both servers have asked each other", || {
        let stays = "no other server reaches the database either; agents stay connected";
        up.stderr().contains(stays) && second.program.stderr().contains(stays)
    });
    give_back(name(&url));
    for client in [&up.client, &second.client] {
        wait_until(PATIENCE, "the server is ready", || client.page("/readyz").status == 200);
    }
    let proc = up.proc("talks").on_host(OTHER).starts(&talks("one", "two"));
    proc.start();
    assert_eq!(up.client.data(&question(&proc, ""))["lines"], json!(["one"]));
    for log in [up.stderr(), second.program.stderr()] {
        assert!(!log.contains("agent disconnected"), "{log}");
    }
    proc.op(Op::Kill).assert_success();
    Cluster::shared().assert_invariants(&url);
}
