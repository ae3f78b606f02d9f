//! Certificates over the years: renewed in time and over the session, renewed late, revoked, and of a new CA.
//! Their years are seconds here.

use procfleet_testkit::{Joined, Op, PATIENCE, Proc, Signal, Up, is_running, programs, wait_for, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const IP: &str = "127.0.0.2";

/// Lifetime of agents' certificates in seconds.
fn up_with(secs: &str) -> Up {
    Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--agent-cert-secs", secs])
}

fn join(up: &Up, data: &Path, token: Option<&str>) -> Joined {
    Joined::start(up.binary(), &up.link(), data, IP, token)
}

#[track_caller]
fn agent(up: &Up, ip: &str) -> Value {
    let agents = up.client.data("/api/v1/agents");
    let found = agents.as_array().expect("a list").iter().find(|agent| agent["ip"] == ip).cloned();
    found.expect("it has joined")
}

#[track_caller]
fn cli(up: &Up, args: &[&str]) -> Value {
    let done = up.cli(&[args, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).expect("--json prints JSON")
}

fn renewals(agent: &Joined) -> usize {
    agent.stderr().matches("certificate renewed").count()
}

/// The key and the certificate that it would come back with.
fn kept(data: &Path) -> Vec<u8> {
    fs::read(data.join("agent.renewed.json")).unwrap_or_default()
}

#[test]
fn certificates_rotate_while_an_op_runs() {
    let up = up_with("6");
    let data = up.folder("second");
    let mut joined = join(&up, &data, Some(&up.token(&[])));
    joined.wait_until_connected(&up, IP);
    let first = fs::read(data.join("agent.cert.der")).expect("it has joined");
    let proc = up.proc("long").on_host(IP).with_pid_file().starts(&programs::gated_daemon());
    let task = proc.submit(Op::Start);
    wait_until(PATIENCE, "two renewals", || renewals(&joined) >= 2);
    assert!(!task.has_ended(), "the op is still under way");
    proc.open_gate(programs::GATE);
    task.outcome().assert_success();
    wait_until(PATIENCE, "three renewals", || renewals(&joined) >= 3);
    assert_eq!(joined.stderr().matches("connected epoch=").count(), 1, "all in one session");
    assert_eq!(proc.program_pids().len(), 1, "it was started once");

    // By now the first one is long over, and the agent comes back with its latest.
    joined.end(Signal::TERM);
    assert_eq!(fs::read(data.join("agent.cert.der")).ok(), Some(first));
    let latest = kept(&data);
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(data.join("agent.renewed.json")).expect("renewed").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut back = join(&up, &data, None);
    back.wait_until_connected(&up, IP);
    wait_until(PATIENCE, "it goes on renewing", || kept(&data) != latest);
    proc.op(Op::Kill).assert_success();
}

/// An agent whose certificate has expired may renew it, and nothing else, before it gets a session.
#[test]
fn an_agent_whose_certificate_has_expired_renews_it_and_comes_back() {
    let up = up_with("2");
    let data = up.folder("second");
    let mut joined = join(&up, &data, Some(&up.token(&[])));
    joined.wait_until_connected(&up, IP);
    joined.end(Signal::KILL);
    let expires = agent(&up, IP)["certificate_expires_at"].as_u64().expect("a time");
    wait_until(PATIENCE, "its certificate has expired", || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        // A renewal that was on its way is good for one life more.
        now.as_secs() > expires + 2
    });
    let mut back = join(&up, &data, None);
    back.wait_until_log_says("renewed an expired certificate");
    back.wait_until_connected(&up, IP);
    up.proc("here").on_host(IP).starts(&programs::foreground()).start();
}

#[test]
fn a_revoked_agent_is_cut_off_at_once_and_only_a_token_brings_its_host_back() {
    let up = up_with("2");
    let data = up.folder("second");
    let mut joined = join(&up, &data, Some(&up.token(&[])));
    joined.wait_until_connected(&up, IP);
    let id = agent(&up, IP)["bk_agent_id"].as_str().expect("an id").to_owned();
    let proc = up.proc("here").on_host(IP).with_pid_file().starts(&programs::daemon());
    let pid = proc.start();
    let slow = up.proc("slow").on_host(IP).with_pid_file().starts(&programs::slow_daemon(30));
    let slow = slow.policy("op_timeout", 60);
    let under_way = slow.submit(Op::Start);
    slow.wait_for_runs(1);

    let rows = cli(&up, &["agents", "revoke", &id, "--reason", "its disk was stolen"]);
    assert_eq!(
        (&rows[0]["bk_agent_id"], &rows[0]["revoked_why"]),
        (&json!(id), &json!("its disk was stolen"))
    );
    wait_until(PATIENCE, "it is cut off", || agent(&up, IP)["connected"] == false);
    joined.wait_until_log_says(&format!("agent {id} was revoked (its disk was stolen)"));
    assert!(is_running(pid), "its processes are not ours to end");
    under_way.outcome().assert(805, &format!(
        "0:{IP}: its agent was revoked (its disk was stolen); only a new token lets its host in again; whether the \
         operation was carried out is not known"
    ));
    // Later ops get the reason at once.
    let outcome = proc.op(Op::Query);
    assert_eq!(outcome.code, 117);
    assert!(outcome.message.contains("its agent was revoked (its disk was stolen)"), "{outcome:?}");
    let table = up.cli(&["agents"]);
    assert!(table.stdout.lines().any(|line| line.contains(&id) && line.contains("revoked")), "{table:?}");
    let audit = cli(&up, &["audit", "--action", "agents_revoke"]);
    assert_eq!((&audit[0]["subject"], &audit[0]["code"]), (&json!(id), &json!(0)));

    // It stays out, also when it tries again and when its certificate has expired; and after a restart of the
    // server.
    joined.end(Signal::TERM);
    let mut up = up;
    up.end(Signal::TERM);
    up.again_with_the_same_link();
    let mut again = join(&up, &data, None);
    again.wait_until_log_says("was revoked (its disk was stolen)");
    assert_eq!(agent(&up, IP)["connected"], false);
    again.end(Signal::TERM);
    let proc = Proc { client: up.client.clone(), ..proc };
    assert_eq!(proc.op(Op::Query).code, 117);

    // Revoking it again is not an error; an unknown agent cannot be revoked.
    cli(&up, &["agents", "revoke", &id]);
    let unknown = up.cli(&["agents", "revoke", &id, "nobody", "0:10.9.9.9"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    for words in
        ["agents[1]: there is no agent or host nobody", "agents[2]: there is no agent or host 0:10.9.9.9"]
    {
        assert!(unknown.stderr.contains(words), "{unknown:?}");
    }

    let mut new = join(&up, &up.folder("third"), Some(&up.token(&[])));
    new.wait_until_connected(&up, IP);
    let row = agent(&up, IP);
    assert_ne!(row["bk_agent_id"], json!(id));
    assert_eq!(row["revoked_at"], 0);
    proc.op(Op::Query).assert_success();
}

#[test]
fn a_host_that_joins_again_retires_its_old_agent_and_its_ops() {
    let up = up_with("3600");
    let mut old = join(&up, &up.folder("old"), Some(&up.token(&[])));
    old.wait_until_connected(&up, IP);
    let slow = up.proc("slow").on_host(IP).with_pid_file().starts(&programs::slow_daemon(30));
    let slow = slow.policy("op_timeout", 60);
    let under_way = slow.submit(Op::Start);
    slow.wait_for_runs(1);
    let mut new = join(&up, &up.folder("new"), Some(&up.token(&["--replace"])));
    new.wait_until_connected(&up, IP);
    let outcome = under_way.outcome();
    assert_eq!(outcome.code, 805);
    assert!(outcome.message.contains("its agent was retired: another agent has joined"), "{outcome:?}");
    old.wait_until_log_says("was retired: another agent has joined for its host");
    assert_eq!(slow.row(), None, "what it said of its procs has gone with it");
    up.proc("here").on_host(IP).starts(&programs::foreground()).start();
}

#[test]
fn a_new_ca_takes_over_without_a_gap() {
    let up = up_with("20");
    let (data, away) = (up.folder("second"), up.folder("third"));
    let mut joined = join(&up, &data, Some(&up.token(&["--uses", "1"])));
    joined.wait_until_connected(&up, IP);
    // This one is not there when the CA changes.
    let token = up.token(&["--uses", "1"]);
    let mut absent = Joined::start(up.binary(), &up.link(), &away, "127.0.0.3", Some(&token));
    absent.wait_until_connected(&up, "127.0.0.3");
    absent.end(Signal::TERM);

    let before = cli(&up, &["ca", "show"]);
    assert_eq!((&before["next_sha256"], &before["agents"]), (&Value::Null, &json!(3)));
    let early = up.cli(&["ca", "retire"]);
    assert!(early.stderr.contains("the CA has no successor"), "{early:?}");
    let rotating = cli(&up, &["ca", "rotate"]);
    assert_eq!(rotating["sha256"], before["sha256"]);
    let next = rotating["next_sha256"].clone();
    assert!(next.is_string());
    assert_eq!(cli(&up, &["ca", "rotate"])["next_sha256"], next, "one successor at a time");
    let left = wait_for(PATIENCE, "those that are there renew", || {
        Some(cli(&up, &["ca", "show"])).filter(|ca| ca["agents"] == 1)
    });
    assert_eq!(
        (&left["sha256"], &left["next_sha256"]),
        (&before["sha256"], &next),
        "the absent one needs it"
    );
    assert_eq!(joined.stderr().matches("connected epoch=").count(), 1, "the session went on");
    let refused = up.cli(&["ca", "retire"]);
    assert!(refused.stderr.contains("force: 1 agents have not renewed"), "{refused:?}");

    // A host may join meanwhile.
    let token = up.token(&["--uses", "1"]);
    let mut fourth = Joined::start(up.binary(), &up.link(), &up.folder("fourth"), "127.0.0.4", Some(&token));
    fourth.wait_until_connected(&up, "127.0.0.4");

    let mut absent = Joined::start(up.binary(), &up.link(), &away, "127.0.0.3", None);
    absent.wait_until_connected(&up, "127.0.0.3");
    let after = wait_for(PATIENCE, "the old CA is retired", || {
        Some(cli(&up, &["ca", "show"])).filter(|ca| ca["next_sha256"].is_null())
    });
    assert_eq!(after["sha256"], next);
    let audit = cli(&up, &["audit", "--action", "ca_retire"]);
    assert_eq!(audit.as_array().map(Vec::len), Some(1), "{audit}");
    assert_eq!(
        (&audit[0]["bk_app_code"], &audit[0]["subject"]),
        (&json!("procfleet-server"), &before["sha256"]),
        "the server has retired it by itself"
    );
    // All of them know the new one: they come back, and so does the server.
    let mut up = up;
    up.end(Signal::TERM);
    up.again_with_the_same_link();
    for (agent, ip) in [(&mut joined, IP), (&mut absent, "127.0.0.3"), (&mut fourth, "127.0.0.4")] {
        agent.wait_until_connected(&up, ip);
    }
    up.wait_for_agent();
    let mut late =
        Joined::start(up.binary(), &up.link(), &up.folder("fifth"), "127.0.0.5", Some(&up.token(&[])));
    late.wait_until_connected(&up, "127.0.0.5");
}

/// Retired by force, the old CA no longer admits the agents that still use it.
#[test]
fn a_ca_that_is_retired_by_force_invalidates_its_certificates() {
    let up = up_with("3600");
    let data = up.folder("second");
    let mut joined = join(&up, &data, Some(&up.token(&[])));
    joined.wait_until_connected(&up, IP);
    joined.end(Signal::TERM);
    cli(&up, &["ca", "rotate"]);
    up.token(&[]);
    assert_ne!(cli(&up, &["ca", "show"])["tokens"], 0);
    let retired = cli(&up, &["ca", "retire", "--force"]);
    assert_eq!(retired["next_sha256"], Value::Null);
    assert_eq!(retired["tokens"], 0, "a token of the retired CA lets nobody in");
    let lost = join(&up, &data, None);
    lost.wait_until_log_says("one side does not trust the other's certificate");
    let audit = cli(&up, &["audit", "--limit", "5"]);
    let actions: Vec<&str> =
        audit.as_array().expect("a list").iter().filter_map(|row| row["action"].as_str()).collect();
    assert!(actions.contains(&"ca_rotate") && actions.contains(&"ca_retire"), "{actions:?}");
    let mut again = join(&up, &up.folder("third"), Some(&up.token(&["--replace"])));
    again.wait_until_connected(&up, IP);
}
