//! Peers that mean no good, or do not know what they do.

use crate::up;
use procfleet_core::code::Code;
use procfleet_core::op::{OpKind, Outcome};
use procfleet_proto::link::{Hello, MAX_FRAME, Report, Reports, agent_message, server_message::Body};
use procfleet_sim::{ManualPeer, Talk};
use procfleet_testkit::fuzz::Fuzz;
use procfleet_testkit::{Joined, Op, PATIENCE, Signal, Up, programs, wait_until};
use serde_json::{Value, json};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Connections that ask for nothing are let go after a while, and until then they do not take the agent's
/// place.
#[test]
fn idle_connections_are_closed() {
    let up = up();
    let address = up.client.url.strip_prefix("http://").expect("an http url").to_owned();
    let connect = || {
        let stream = TcpStream::connect(&address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("our own socket");
        stream
    };
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    let mut half = connect();
    half.write_all(b"POST /api/v2/proc/operate_proc_v2 HTTP/1.1\r\nHost: x\r\nContent-Le").expect("it reads");
    let mut stalled = connect();
    stalled
        .write_all(b"POST /api/v2/proc/operate_proc_v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        .expect("it reads");
    up.proc("meanwhile").starts(&programs::foreground()).op(Op::Start).assert_success();

    let mut answer = String::new();
    stalled.read_to_string(&mut answer).expect("it is answered and closed");
    assert!(answer.contains("the body broke off"), "{answer}");
    let mut rest = Vec::new();
    half.read_to_end(&mut rest).expect("it is closed");
    assert!(silent.iter_mut().all(|stream| matches!(stream.read(&mut [0; 64]), Ok(0))), "all are closed");
}

pub(crate) fn peer(up: &Up, ip: &str) -> ManualPeer {
    let token = up.token(&[]).parse().expect("a token");
    ManualPeer::join(up.link().parse().expect("the link's address"), &token, ip.parse().expect("an address"))
        .expect("it joins as any other")
}

/// A session that the server has welcomed.
#[track_caller]
pub(crate) fn welcome<'a>(peer: &'a ManualPeer, life: &str) -> Talk<'a> {
    let mut talk = peer.connect().expect("it is let in");
    talk.send(peer.hello(life).into_bytes());
    let said = talk.receive();
    assert!(matches!(said, Some(Body::Welcome(_))), "{said:?}");
    talk
}

/// As [`welcome`], with a changed hello.
#[track_caller]
pub(crate) fn welcome_as<'a>(peer: &'a ManualPeer, change: impl FnOnce(&mut Hello)) -> Talk<'a> {
    let mut talk = peer.connect().expect("it is let in");
    let agent_message::Body::Hello(mut hello) = peer.hello("one") else { panic!("a hello") };
    change(&mut hello);
    talk.send(agent_message::Body::Hello(hello).into_bytes());
    let said = talk.receive();
    assert!(matches!(said, Some(Body::Welcome(_))), "{said:?}");
    talk
}

pub(crate) fn cuts(up: &Up, reason: &str) -> u64 {
    let line = format!("procfleet_sessions_cut_total{{reason=\"{reason}\"}} ");
    let page = up.client.page("/metrics").text;
    let count = page.lines().find_map(|found| found.strip_prefix(&line)).map(|count| count.parse());
    count.transpose().expect("a number").unwrap_or_default()
}

#[track_caller]
fn check_cut(up: &Up, peer: &ManualPeer, reason: &str, misbehave: impl FnOnce(&mut Talk<'_>)) {
    let before = cuts(up, reason);
    let mut talk = welcome(peer, "one");
    misbehave(&mut talk);
    talk.rest();
    wait_until(PATIENCE, &format!("it is counted as {reason}"), || cuts(up, reason) == before + 1);
}

/// An agent that breaks the protocol is disconnected and counted. It may come back, and no other agent
/// notices.
#[test]
fn an_agent_that_breaks_the_protocol_is_cut_off_and_counted() {
    let up = up();
    let peer = peer(&up, "10.6.0.1");
    check_cut(&up, &peer, "protocol", |talk| talk.send(*b"\xff\xff\xff garbage \x00"));
    check_cut(&up, &peer, "protocol", |talk| talk.send(Vec::new()));
    check_cut(&up, &peer, "protocol", |talk| talk.send_text("{}"));
    check_cut(&up, &peer, "protocol", |talk| {
        let report = Report { op: "not an op".to_owned(), done: None };
        talk.send(agent_message::Body::Reports(Reports { reports: vec![report] }).into_bytes());
    });
    check_cut(&up, &peer, "oversized", |talk| talk.send(vec![0; MAX_FRAME + 1]));
    check_cut(&up, &peer, "refused", |talk| talk.send(peer.hello("one").into_bytes()));

    // An op of the first agent, reported by another.
    let proc = up.proc("here").with_pid_file().starts(&programs::gated_daemon());
    let task = proc.submit(Op::Start);
    let op = up.client.data(&format!("/api/v1/tasks/{}", task.id))["ops"][0]["op_id"].clone();
    let op = op.as_str().expect("an id").parse().expect("an op's id");
    let lie = Report::done(op, &Outcome::without_status(Code::Success, "a lie", OpKind::Start));
    check_cut(&up, &peer, "not_its_own", |talk| {
        talk.send(agent_message::Body::Reports(Reports { reports: vec![lie] }).into_bytes());
    });
    proc.open_gate(programs::GATE);
    task.outcome().assert_success();

    // A connection of an older epoch: the newer one wins, and the older hears why it ends.
    let mut older = welcome(&peer, "one");
    let newer = welcome(&peer, "one");
    let last = older.rest().pop();
    let words = "a newer connection of this agent has taken its place";
    assert!(matches!(&last, Some(Body::Refused(refused)) if refused.reason == words), "{last:?}");
    wait_until(PATIENCE, "it is counted", || cuts(&up, "replaced") == 1);
    drop(newer);

    // A message before the welcome is refused.
    let mut talk = peer.connect().expect("it is let in");
    talk.send(b"garbage".as_slice());
    assert!(!talk.rest().iter().any(|said| matches!(said, Body::Welcome(_))));
    let mut talk = peer.connect().expect("it is let in");
    let agent_message::Body::Hello(mut hello) = peer.hello("one") else { panic!("a hello") };
    hello.agent = "020000000000".to_owned();
    talk.send(agent_message::Body::Hello(hello).into_bytes());
    let said = talk.rest();
    assert!(
        matches!(&said[..], [Body::Refused(refused)] if refused.reason.contains("the certificate is for agent")),
        "{said:?}"
    );
    proc.op(Op::Stop).assert_success();
}

/// An agent sends random messages after its welcome, one after the other: the server goes on, and so do all
/// other agents.
#[test]
fn sessions_of_random_bytes_do_no_harm() {
    let up = up();
    let (server, peer) = (up.pid(), peer(&up, "10.6.0.4"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/tests/golden");
    let files =
        std::fs::read_dir(folder).expect("the golden files").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "hex")).collect();
    files.sort();
    let unhex = |text: String| -> Vec<u8> {
        let pairs = text.trim().as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex");
        pairs.map(byte).collect()
    };
    let frames: Vec<Vec<u8>> =
        files.iter().map(|path| unhex(std::fs::read_to_string(path).expect("a text"))).collect();
    let turn = Cell::new(0);
    Fuzz::cases(60).bytes(&frames, |nonsense| {
        let mut talk = welcome(&peer, "one");
        let good = frames[turn.replace(turn.get() + 1) % frames.len()].clone();
        talk.send(nonsense);
        talk.send(good);
        talk.send(nonsense);
        // The server reads all of it before it closes the connection.
        talk.send_text("enough");
        talk.rest();
    });
    assert_eq!(up.pid(), server, "it is the same server");
    assert!(!up.stderr().contains("panicked"), "nothing has broken");
    up.proc("meanwhile").starts(&programs::foreground()).op(Op::Start).assert_success();
}

#[track_caller]
fn row(up: &Up, ip: &str) -> Value {
    let agents = up.client.data("/api/v1/agents");
    agents.as_array().expect("a list").iter().find(|row| row["ip"] == ip).expect("it has joined").clone()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("our own folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        match entry.file_type().expect("its type") {
            kind if kind.is_dir() => copy(&entry.path(), &to.join(entry.file_name())),
            kind if kind.is_file() => {
                std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
            }
            _ => {}
        }
    }
}

/// The agent's folder was copied with the host's disk, and both copies run.
#[test]
fn two_agents_with_one_certificate_are_both_disconnected() {
    const IP: &str = "127.0.0.6";
    let up = up();
    let (data, copied) = (up.folder("first"), up.folder("copied"));
    let start = |data: &Path, token: Option<&str>| Joined::start(up.binary(), &up.link(), data, IP, token);
    let mut first = start(&data, Some(&up.token(&[])));
    first.wait_until_connected(&up, IP);
    let id = row(&up, IP)["bk_agent_id"].as_str().expect("an id").to_owned();
    // Restarts, orderly or not, do not count as clones.
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL] {
        first.end(signal);
        first = start(&data, None);
        first.wait_until_log_says("connected");
    }
    first.wait_until_connected(&up, IP);
    assert_eq!(row(&up, IP)["revoked_at"], 0);
    first.end(Signal::TERM);
    copy(&data, &copied);
    let first = start(&data, None);
    first.wait_until_log_says("connected");
    let second =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let began = second(SystemTime::now());
    // On one host the lives of agents differ by the second in which they began.
    wait_until(PATIENCE, "the next second has come", || second(SystemTime::now()) > began);
    let clone = start(&copied, None);
    wait_until(PATIENCE, "both are put aside", || row(&up, IP)["revoked_at"] != 0);
    let why = "its certificate is used in two places at once, both from 127.0.0.1";
    assert_eq!(row(&up, IP)["revoked_why"], why);
    for agent in [&first, &clone] {
        agent.wait_until_log_says(&format!("was revoked ({why})"));
    }
    wait_until(PATIENCE, "neither is connected", || row(&up, IP)["connected"] == false);
    let proc = up.proc("here").on_host(IP).starts(&programs::foreground());
    let outcome = proc.op(Op::Start);
    assert_eq!(outcome.code, 117);
    assert!(outcome.message.contains(&format!("its agent was revoked ({why})")), "{outcome:?}");
    let table = up.cli(&["agents", "--state", "revoked"]);
    assert!(table.stdout.lines().any(|line| line.contains(&id) && line.contains(why)), "{table:?}");
    let audit = up.cli(&["audit", "--action", "agent_clone", "--json"]);
    let audit: Value = serde_json::from_str(&audit.stdout).expect("--json prints JSON");
    assert_eq!((&audit[0]["subject"], &audit[0]["detail"]), (&json!(id), &json!(why)));
    assert_eq!(cuts(&up, "clone"), 1);
    drop((first, clone));

    let mut again = start(&up.folder("again"), Some(&up.token(&[])));
    again.wait_until_connected(&up, IP);
    proc.op(Op::Start).assert_success();
    proc.op(Op::Stop).assert_success();
}

/// Two hosts with one disk: each has a boot of its own, and neither waits for the other.
#[test]
fn a_clone_on_another_host_is_found_and_a_reboot_is_not_taken_for_one() {
    let up = up();
    let peer = peer(&up, "10.6.0.2");
    // Reboots: each takes the place of the one before, whose connection may hang half open.
    let half_open: Vec<Talk<'_>> = ["r1", "r2", "r3", "r4"].map(|life| welcome(&peer, life)).into();
    // A host that was set back to an earlier moment, memory and all.
    drop(welcome(&peer, "r3"));
    drop(welcome(&peer, "r5"));
    drop(half_open);
    assert_eq!(row(&up, "10.6.0.2")["revoked_at"], 0);

    let other = self::peer(&up, "10.6.0.3");
    let mut there = welcome(&other, "there");
    drop(welcome(&other, "here"));
    drop(welcome(&other, "there"));
    let mut here = other.connect().expect("it is let in");
    here.send(other.hello("here").into_bytes());
    let said = here.rest();
    assert!(
        matches!(&said[..], [Body::Refused(refused)] if refused.reason.contains("used in two places at once")),
        "{said:?}"
    );
    there.rest();
    assert_ne!(row(&up, "10.6.0.3")["revoked_at"], 0);
    assert_eq!(row(&up, "10.6.0.2")["revoked_at"], 0, "one bad host is one bad host");
}
