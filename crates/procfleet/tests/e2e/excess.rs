//! Agents that send more than any agent should: their data is bounded and counted, and other agents are not
//! affected.

use crate::events::events_of;
use crate::hostile::{cuts, peer, welcome, welcome_as};
use crate::up;
use procfleet_core::id::ProcKey;
use procfleet_proto::link::{
    EventMessage, Events, GroupsMessage, LOG_BYTES, LogRead, ProcStateMessage, States, agent_message,
    server_message::Body,
};
use procfleet_proto::state::ProcReport;
use procfleet_sim::{ManualPeer, Talk};
use procfleet_testkit::{Joined, Op, PATIENCE, Signal, Up, programs, wait_for, wait_until};
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};

/// The counters of `/metrics` for agents that exceed their limits.
fn counted(up: &Up, counter: &str, what: &str) -> u64 {
    let line = format!("procfleet_agent_{counter}_total{{what=\"{what}\"}} ");
    let page = up.client.page("/metrics").text;
    let count = page.lines().find_map(|found| found.strip_prefix(&line)).map(|count| count.parse());
    count.transpose().expect("a number").unwrap_or_default()
}

fn count(up: &Up, sql: &str) -> u64 {
    let store = rusqlite::Connection::open(up.data().join("server.db")).expect("the store");
    let count: u32 = store.query_row(sql, [], |row| row.get(0)).expect(sql);
    count.into()
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("a time of this age")
}

pub(crate) fn event(number: u64, message: &str) -> EventMessage {
    EventMessage {
        journal: "0123456789abcdef".to_owned(),
        number,
        at: now_ms(),
        namespace: "flood".to_owned(),
        name: "p".to_owned(),
        kind: "exited".to_owned(),
        message: message.to_owned(),
        details: b"null".to_vec(),
        ..EventMessage::default()
    }
}

pub(crate) fn send_event(talk: &mut Talk<'_>, event: EventMessage) {
    talk.send(agent_message::Body::Events(Events { events: vec![event] }).into_bytes());
}

fn send_states(talk: &mut Talk<'_>, procs: Vec<ProcStateMessage>) {
    talk.send(agent_message::Body::States(States { procs, ..States::default() }).into_bytes());
}

fn state(name: &str, revision: u64, report: Option<&ProcReport>) -> ProcStateMessage {
    let proc = ProcKey { namespace: "flood".to_owned(), name: name.to_owned() };
    ProcStateMessage::new(&proc, revision, report)
}

#[test]
fn a_flood_of_events_is_bounded_counted_and_delays_no_other_agent() {
    const SENT: u64 = 300;
    let up = up();
    let peer = peer(&up, "10.6.1.1");
    let mut talk = welcome(&peer, "one");
    let large = "x".repeat(60 * 1024);
    for number in 1..=SENT {
        send_event(&mut talk, event(number, &large));
    }
    let stored = || count(&up, "SELECT count(*) FROM events WHERE namespace = 'flood'");
    wait_until(PATIENCE, "each was stored, is held, or was dropped", || {
        counted(&up, "dropped", "events") + stored() + 1 >= SENT
    });
    let dropped = counted(&up, "dropped", "events");
    assert!(dropped > 0 && counted(&up, "delayed", "events") > 0);
    assert!(counted(&up, "shortened", "events") >= 1, "the messages were too long");
    let bytes = count(&up, "SELECT max(length(CAST(message AS BLOB))) FROM events");
    assert_eq!(bytes, 8 * 1024, "a message is cut");
    let rows = up.client.data("/api/v1/events?namespace=flood&limit=10");
    let message = rows["events"][0]["message"].as_str().expect("a text");
    assert!(message.ends_with("x…"), "the cut is marked");
    let complaints = up.stderr().matches("an agent sends more than its limits allow").count();
    assert!((1..20).contains(&complaints), "{complaints} lines");

    // Coming back does not give it a new budget.
    drop(talk);
    let mut talk = welcome(&peer, "one");
    for number in SENT + 1..=SENT + 10 {
        send_event(&mut talk, event(number, &large));
    }
    wait_until(PATIENCE, "it is still dropped", || counted(&up, "dropped", "events") > dropped);

    let other = up.proc("other").starts(&programs::foreground());
    other.start();
    wait_until(PATIENCE, "another agent's event comes", || events_of(&up, &other).len() == 1);
    other.op(Op::Stop).assert_success();
}

#[test]
fn an_event_with_an_unknown_kind_or_an_impossible_time_is_stored_corrected() {
    let up = up();
    let peer = peer(&up, "10.6.1.2");
    let mut talk = welcome(&peer, "one");
    let began = now_ms();
    let year_9999 = 253_402_300_799_000;
    let sent = [
        EventMessage { kind: "exploded".to_owned(), ..event(1, "loudly") },
        EventMessage { at: year_9999, ..event(2, "late") },
        EventMessage { at: i64::MIN, details: b"{no json".to_vec(), ..event(3, "early") },
        EventMessage { kind: "k".repeat(30_000), ..event(4, "") },
    ];
    talk.send(agent_message::Body::Events(Events { events: sent.to_vec() }).into_bytes());
    let said = talk.receive();
    assert!(matches!(&said, Some(Body::EventsStored(stored)) if stored.up_to == 4), "{said:?}");
    let rows = up.client.data("/api/v1/events?namespace=flood");
    let rows = rows["events"].as_array().expect("a list");
    let at = |row: &Value| row["at"].as_i64().expect("a time");
    assert_eq!((&rows[0]["kind"], &rows[0]["message"]), (&"unknown".into(), &"exploded: loudly".into()));
    assert!((began..now_ms() + 301_000).contains(&at(&rows[1])), "{}", rows[1]);
    assert!((0..began).contains(&at(&rows[2])) && rows[2]["details"].is_null(), "{}", rows[2]);
    assert_eq!(rows[3]["kind"], "unknown");
    assert!(rows[3]["message"].as_str().is_some_and(|text| text.len() < 100), "{}", rows[3]);
    let metrics = up.client.page("/metrics").text;
    assert!(metrics.contains("procfleet_events_total{kind=\"unknown\"} 2"), "{metrics}");
    assert!(!metrics.contains("exploded") && !metrics.contains("kkk"), "labels are bounded: {metrics}");
}

/// The largest growth of the server's resident memory while `act` runs.
fn peak_growth_kib(pid: u32, act: impl FnOnce()) -> u64 {
    let kib = |field: &str| -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the kernel counts it");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    // Resets VmHWM.
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("our own process");
    let before = kib("VmRSS:");
    act();
    kib("VmHWM:").saturating_sub(before)
}

/// A tree of small values needs 150 times the memory of its text.
#[test]
fn listing_events_with_large_details_costs_the_server_little_memory() {
    const SENT: u64 = 200;
    // Twice for each byte: the rows of the store, and the answer. The rest is for buffers that grow.
    const BOUND_KIB: u64 = 48 * 1024;
    let up = up();
    let peer = peer(&up, "10.6.1.10");
    let mut talk = welcome(&peer, "one");
    let details = format!("[{}[]]", "[],".repeat(10_900));
    for number in 1..=SENT {
        let event = EventMessage { details: details.clone().into_bytes(), ..event(number, "exited") };
        send_event(&mut talk, event);
    }
    let stored = || count(&up, "SELECT count(*) FROM events WHERE namespace = 'flood'");
    wait_until(PATIENCE, "all are stored", || stored() == SENT);
    let login = [("X-Bkapi-Authorization", up.client.authorization())];
    let login = login.each_ref().map(|(name, value)| (*name, value.as_str()));
    let path = "/api/v1/events?namespace=flood&limit=1000";
    let mut text = String::new();
    let growth = peak_growth_kib(up.pid(), || text = up.client.send("GET", path, &login, b"").text);
    assert_eq!(text.matches(&format!("\"details\":{details}}}")).count(), 200, "they are as they were sent");
    assert!(growth < BOUND_KIB, "{growth} KiB for an answer of {} KiB", text.len() / 1024);
}

#[test]
fn an_agent_with_too_many_procs_is_throttled_and_still_served() {
    const SENT: u64 = 30_000;
    const STORED: u64 = 20_000;
    let up = up();
    let peer = peer(&up, "10.6.1.3");
    let mut talk = welcome(&peer, "one");
    let report = ProcReport::left_alone(String::new());
    let names: Vec<String> = (0..SENT).map(|number| format!("p{number}")).collect();
    for names in names.chunks(200) {
        send_states(&mut talk, names.iter().map(|name| state(name, 1, Some(&report))).collect());
    }
    wait_until(PATIENCE, "the others were dropped", || counted(&up, "dropped", "states") == SENT - STORED);
    assert_eq!(count(&up, "SELECT count(*) FROM procs WHERE namespace = 'flood'"), STORED);
    // Known procs are still kept up to date.
    let known = ProcReport::left_alone("news".to_owned());
    send_states(&mut talk, vec![state("p7", 2, Some(&known))]);
    let row = |name: &str| up.client.data(&format!("/api/v1/procs?namespace=flood&name={name}"))[0].clone();
    wait_until(PATIENCE, "the news has come", || row("p7")["note"] == "news");

    wait_until(PATIENCE, "it is read more slowly", || {
        send_states(&mut talk, names[..1_500].iter().map(|name| state(name, 3, None)).collect());
        counted(&up, "delayed", "messages") > 0
    });
    let mut last = ProcReport::left_alone("n".repeat(50_000));
    last.started_at = i64::MAX;
    send_states(&mut talk, vec![state("last", 4, Some(&last))]);
    let found =
        wait_for(PATIENCE, "its reports still arrive", || Some(row("last")).filter(|row| !row.is_null()));
    let note = found["note"].as_str().expect("a text");
    assert!(note.len() <= 8 * 1024 && note.ends_with("n…"), "{} bytes", note.len());
    let tomorrow = now_ms() / 1_000 + 86_500;
    assert!(found["started_at"].as_i64().is_some_and(|time| time < tomorrow), "{found}");
    assert_eq!(counted(&up, "shortened", "states"), 1);
    up.proc("meanwhile").starts(&programs::foreground()).op(Op::Start).assert_success();
}

#[test]
fn an_agent_that_exceeds_its_limits_is_disconnected_with_the_reason() {
    let up = up();
    let peer = peer(&up, "10.6.1.4");
    let check = |what: &str, message: agent_message::Body| {
        let before = cuts(&up, "oversized");
        let mut talk = welcome(&peer, "one");
        talk.send(message.into_bytes());
        let last = talk.rest().pop();
        let words = format!("it sent {what} that exceeds what any agent sends");
        assert!(matches!(&last, Some(Body::Refused(refused)) if refused.reason == words), "{last:?}");
        wait_until(PATIENCE, "it is counted", || cuts(&up, "oversized") == before + 1);
    };
    let events = |events: Vec<EventMessage>| agent_message::Body::Events(Events { events });
    let states = |states: States| agent_message::Body::States(states);
    let long = || "n".repeat(2_000);
    check("a list of events", events(vec![EventMessage::default(); 2_001]));
    check("a namespace", events(vec![EventMessage { namespace: long(), ..event(1, "") }]));
    check("a journal's name", events(vec![EventMessage { journal: long(), ..event(1, "") }]));
    let many = vec![state("p", 1, None); 2_001];
    check("a list of states", states(States { procs: many, ..States::default() }));
    let procs = vec![ProcStateMessage { report: vec![b' '; 57 * 1024 + 1], ..state("p", 1, None) }];
    check("a proc's state", states(States { procs, ..States::default() }));
    let groups = GroupsMessage { groups: vec![b' '; 25 * 1024], ..GroupsMessage::default() };
    check("a list of process groups", states(States { groups: vec![groups], ..States::default() }));
    assert_eq!(count(&up, "SELECT count(*) FROM events WHERE namespace = 'flood'"), 0);
}

#[test]
fn a_complete_list_in_several_messages_is_stored_as_one() {
    let up = up();
    let peer = peer(&up, "10.6.1.9");
    let mut talk = welcome(&peer, "one");
    let running = |padding: usize| {
        let mut state = state("p", 1, None);
        state.forgotten = false;
        state.report =
            format!("{}{{\"state\":\"running\",\"hosted\":true}}", " ".repeat(padding)).into_bytes();
        state
    };
    let named = |name: &str| ProcStateMessage { name: name.to_owned(), ..running(0) };
    let send = |talk: &mut Talk<'_>, (all, continues): (bool, bool), procs: Vec<ProcStateMessage>| {
        let states = States { all, continues, procs, ..States::default() };
        talk.send(agent_message::Body::States(states).into_bytes());
    };
    let stored = || {
        let store = rusqlite::Connection::open(up.data().join("server.db")).expect("the store");
        let sql = "SELECT name FROM procs WHERE namespace = 'flood' ORDER BY name";
        let mut rows = store.prepare(sql).expect(sql);
        let names = rows.query_map([], |row| row.get(0)).expect(sql);
        names.collect::<Result<Vec<String>, _>>().expect(sql)
    };
    send(&mut talk, (true, false), vec![named("a"), named("b")]);
    wait_until(PATIENCE, "both are stored", || stored() == ["a", "b"]);
    send(&mut talk, (true, true), vec![named("b")]);
    // Stored after the message before it was handled.
    send_event(&mut talk, event(1, "the first half was sent"));
    let events = || count(&up, "SELECT count(*) FROM events WHERE namespace = 'flood'");
    wait_until(PATIENCE, "the event is stored", || events() == 1);
    assert_eq!(stored(), ["a", "b"], "nothing is missing meanwhile");
    send(&mut talk, (false, false), vec![named("c")]);
    wait_until(PATIENCE, "the list is complete", || stored() == ["b", "c"]);

    // A list that is too long to be kept in memory is stored in parts.
    for number in 0..24 {
        let large = ProcStateMessage { name: format!("large-{number}"), ..running(50 * 1024) };
        send(&mut talk, (number == 0, true), vec![large]);
    }
    wait_until(PATIENCE, "the list is stored before it has ended", || stored().len() == 24);
    assert!(stored().iter().all(|name| name.starts_with("large-")));
}

#[test]
fn the_host_facts_of_an_agent_are_bounded() {
    let up = up();
    let peer = peer(&up, "10.6.1.5");
    let long = || "f".repeat(15_000);
    let talk = welcome_as(&peer, |hello| {
        hello.version = long();
        let facts = hello.host.as_mut().expect("facts");
        (facts.os, facts.architecture, facts.containment) = (long(), long(), long());
        (facts.cpus, facts.memory_mib, facts.started_at) = (u64::MAX, u64::MAX, i64::MAX);
    });
    drop(talk);
    let longest = "SELECT max(max(length(version), length(facts))) FROM agents";
    assert!(count(&up, longest) < 500, "{}", count(&up, longest));
    assert_eq!(up.client.get("/api/v1/agents").status, 200);

    let mut talk = peer.connect().expect("it is let in");
    let agent_message::Body::Hello(mut hello) = peer.hello("one") else { panic!("a hello") };
    hello.taken = vec!["x".to_owned(); 2_001];
    talk.send(agent_message::Body::Hello(hello).into_bytes());
    let said = talk.rest();
    assert!(
        matches!(&said[..], [Body::Refused(refused)] if refused.reason.contains("a list of ops")),
        "{said:?}"
    );
}

/// Answers one question about a log. The caller's answer: its code and message.
#[track_caller]
fn ask_and_answer(up: &Up, peer: &ManualPeer, ip: &str, answer: impl FnOnce(u64) -> LogRead) -> Value {
    let mut talk = welcome_as(peer, |hello| hello.reads_logs = true);
    let path = format!("/api/v1/logs?namespace=a&name=b&host=0:{ip}");
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| up.client.get(&path).body);
        let Some(Body::ReadLog(question)) = talk.receive() else { panic!("a question") };
        // An answer without a question is ignored.
        let unasked = LogRead { id: question.id + 1, bytes: b"lies\n".to_vec(), ..LogRead::default() };
        talk.send(agent_message::Body::LogRead(unasked).into_bytes());
        talk.send(agent_message::Body::LogRead(answer(question.id)).into_bytes());
        asking.join().expect("an answer")
    })
}

#[test]
fn an_answer_with_more_of_a_log_than_was_asked_for_is_refused() {
    const IP: &str = "10.6.1.6";
    let up = up();
    let peer = peer(&up, IP);
    let good = ask_and_answer(&up, &peer, IP, |id| {
        let bytes = b"one\ntwo\n".to_vec();
        LogRead { id, end: 8, bytes, ..LogRead::default() }
    });
    assert_eq!(good["data"]["lines"], serde_json::json!(["one", "two"]), "{good}");
    let before = cuts(&up, "oversized");
    let large = |id| LogRead { id, end: 1 << 20, bytes: vec![b'x'; LOG_BYTES + 1], ..LogRead::default() };
    let refused = ask_and_answer(&up, &peer, IP, large);
    assert_eq!(refused["result"], false, "{refused}");
    let far = |id| LogRead { id, begin: u64::MAX, end: u64::MAX, bytes: b"x".to_vec(), ..LogRead::default() };
    let refused = ask_and_answer(&up, &peer, IP, far);
    assert_eq!(refused["result"], false, "{refused}");
    wait_until(PATIENCE, "both are counted", || cuts(&up, "oversized") == before + 2);
    assert!(!up.stderr().contains("panicked"), "nothing has broken");
}

/// As many as an agent keeps: they wait on the host while the server is away.
#[test]
fn ten_thousand_events_that_waited_on_a_host_arrive_whole() {
    const IP: &str = "127.0.0.9";
    const WAITING: u32 = 10_000;
    let up = up();
    let data = up.folder("second");
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    agent.end(Signal::TERM);
    let journal = rusqlite::Connection::open(data.join("agent.db")).expect("the journal");
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
               INSERT INTO events (at, namespace, name, kind, message, details, report_id, proc_name, user) \
               SELECT ?2 + i, 'waited', 'p', 'restart_succeeded', 'event ' || i || ' of many, with some text ' \
               || 'about what happened to the process', '{\"restart_succeeded\":{\"pid\":' || i || '}}', 0, 'p', 'root' FROM n";
    journal.execute(sql, rusqlite::params![WAITING, now_ms() - 60_000]).expect("the agent's own table");
    drop(journal);
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, None);
    agent.wait_until_connected(&up, IP);
    let sql = "SELECT count(DISTINCT message) FROM events WHERE namespace = 'waited'";
    wait_until(PATIENCE, "all have come", || count(&up, sql) == u64::from(WAITING));
    assert_eq!(
        count(&up, "SELECT count(*) FROM events WHERE namespace = 'waited'"),
        u64::from(WAITING),
        "once each"
    );
    for counter in ["dropped", "delayed", "shortened"] {
        assert_eq!(counted(&up, counter, "events"), 0, "{counter}");
    }
}
