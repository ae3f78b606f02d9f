//! Agents that send more than any agent should: their data is bounded and counted, and other agents are not
//! affected.

use crate::access::{app, grant};
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
use procfleet_testkit::{Joined, Op, PATIENCE, Signal, Up, account, programs, wait_for, wait_until};
use serde_json::{Value, json};
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
        let words = format!("the agent sent {what} above the limit of this server");
        assert!(matches!(&last, Some(Body::Refused(refused)) if refused.reason == words), "{last:?}");
        wait_until(PATIENCE, "it is counted", || cuts(&up, "oversized") == before + 1);
    };
    let events = |events: Vec<EventMessage>| agent_message::Body::Events(Events { events });
    let states = |states: States| agent_message::Body::States(states);
    check("a list of events", events(vec![EventMessage::default(); 2_001]));
    let journal = "j".repeat(2_000);
    check("a journal's name", events(vec![EventMessage { journal, ..event(1, "") }]));
    let many = vec![state("p", 1, None); 2_001];
    check("a list of states", states(States { procs: many, ..States::default() }));
    assert_eq!(count(&up, "SELECT count(*) FROM events WHERE namespace = 'flood'"), 0);
}

/// Agents of earlier versions send them in each session, so ending the session would keep the host away.
#[test]
fn an_item_that_is_too_large_is_dropped_and_counted_and_the_session_goes_on() {
    let up = up();
    let peer = peer(&up, "10.6.1.10");
    let mut talk = welcome(&peer, "one");
    let before = cuts(&up, "oversized");
    let long = "n".repeat(2_000);
    let report = ProcReport::left_alone(String::new());
    let large = ProcStateMessage { report: vec![b' '; 57 * 1024], ..state("large", 1, Some(&report)) };
    send_states(&mut talk, vec![state(&long, 1, Some(&report)), state("beside", 1, Some(&report))]);
    send_states(&mut talk, vec![large]);
    let groups = GroupsMessage { groups: vec![b' '; 25 * 1024], ..GroupsMessage::default() };
    talk.send(agent_message::Body::States(States { groups: vec![groups], ..States::default() }).into_bytes());
    let events = vec![
        EventMessage { name: long.clone(), ..event(1, "") },
        event(2, "kept"),
        EventMessage { namespace: long, ..event(3, "") },
    ];
    talk.send(agent_message::Body::Events(Events { events }).into_bytes());
    let said = talk.receive();
    assert!(matches!(&said, Some(Body::EventsStored(stored)) if stored.up_to == 3), "{said:?}");
    for (what, expected) in [("states", 2), ("groups", 1), ("events", 2)] {
        assert_eq!(counted(&up, "dropped", what), expected, "{what}");
    }
    assert_eq!(count(&up, "SELECT count(*) FROM procs WHERE namespace = 'flood' AND name = 'beside'"), 1);
    assert_eq!(count(&up, "SELECT count(*) FROM events WHERE namespace = 'flood'"), 1);
    assert_eq!(cuts(&up, "oversized"), before);

    // Junk costs as much as anything else: its sender is read more slowly.
    let junk = ProcStateMessage { report: vec![b' '; 57 * 1024], ..state("junk", 1, Some(&report)) };
    wait_until(PATIENCE, "it is read more slowly", || {
        for _ in 0..20 {
            send_states(&mut talk, vec![junk.clone()]);
        }
        counted(&up, "delayed", "messages") > 0
    });
    assert_eq!(cuts(&up, "oversized"), before);
}

/// An app with rights on one host must not be able to keep the host's agent away from its server.
#[test]
fn no_call_of_an_app_makes_its_agent_exceed_the_limits_of_the_link() {
    const OPERATE: &str = "/api/v1/operate";
    let up = up();
    let namespace = up.namespace.as_str();
    let good = up.proc("good").starts(&programs::foreground());
    let label = |name: &str, bytes: usize| json!({name: "v".repeat(bytes)});
    let body = |name: &str, op_type: u32| {
        let mut body = up.proc(name).starts(&programs::foreground()).request.clone();
        body["op_type"] = json!(op_type);
        body
    };
    let limited = app(&up, "limited", &[]);
    grant(
        &up,
        &limited,
        &["--business", "1", "--namespace", namespace, "--op", "*", "--account", &account()],
    );
    let ended = |body: Value| limited.outcome(&limited.post(OPERATE, body).task());

    // Names.
    for (name, words) in [
        ("n".repeat(2_000), "names[0]: has 2000 characters, at most 256 are allowed"),
        ("two\nlines".to_owned(), "names[0]: contains a control character"),
        ("nul\0".to_owned(), "names[0]: contains a control character"),
        (String::new(), "names[0]: must not be empty"),
    ] {
        let mut named = body("named", 0);
        named["names"] = json!([name]);
        limited.post(OPERATE, named).assert_refused(1_000_811, &[words]);
    }

    // Labels that grow with each call.
    let mut labelled = body("labelled", 3);
    labelled["change"] = json!(["labels", "user"]);
    labelled["meta"]["labels"] = label("a", 40 * 1024);
    ended(labelled.clone()).assert_success();
    labelled["meta"]["labels"] = label("b", 40 * 1024);
    ended(labelled).assert(811, "host was not begun: with the changed labels, user the spec has ");

    // Labels and a note that are each within their limits: JSON has six bytes for a control character.
    let noted = up.proc("noted").starts("head -c 3000 /dev/zero | tr '\\0' '\\001'; exit 1");
    let mut body_of_noted = noted.policy("start_retries", 1).policy("start_interval", 1).request.clone();
    body_of_noted["meta"]["labels"] = label("a", 46 * 1024);
    body_of_noted["op_type"] = json!(3);
    ended(body_of_noted);
    let row = |name: &str| {
        let rows = up.client.data(&format!("/api/v1/procs?namespace={namespace}&name={name}"));
        Some(rows[0].clone()).filter(|row| !row.is_null())
    };
    let noted = wait_for(PATIENCE, "its failure is noted", || {
        row("noted").filter(|row| row["note"].as_str().is_some_and(|note| note.contains("\u{1}")))
    });
    assert!(noted["note"].as_str().is_some_and(|note| note.contains("the labels are left out")), "{noted}");

    // A list of changes that is much longer than the spec.
    let mut repeated = body("repeated", 3);
    repeated["change"] = json!(vec!["user"; 10_000]);
    ended(repeated).assert_success();

    // An administrator's part: so many accounts that an op with all of them does not fit a frame.
    let accounts: Vec<String> = (0..2_000).map(|number| format!("account-{number:032}")).collect();
    up.client.post("/api/v1/apps/limited/grant", json!({"accounts": accounts})).data();
    ended(body("granted", 0)).assert(811, "start was not sent to 0:127.0.0.1: the spec and the OS accounts ");

    let is_well = || {
        assert_eq!(cuts(&up, "oversized"), 0);
        good.op(Op::Query).assert_success();
        let rows = up.client.data(&format!("/api/v1/procs?namespace={namespace}"));
        rows.as_array().expect("a list").len()
    };
    good.start();
    wait_until(PATIENCE, "all procs are known", || is_well() == 4);
    let log = up.stderr();
    assert!(!log.contains("above the limit of this server") && !log.contains("exceed the limits"), "{log}");
    up.kill_agent();
    wait_until(PATIENCE, "all procs are known again", || is_well() == 4);
    good.op(Op::Stop).assert_success();
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
