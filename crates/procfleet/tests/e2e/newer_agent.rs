//! An agent that is newer than the server, as in the middle of an upgrade.

use crate::hostile::{cuts, peer, welcome};
use crate::up;
use procfleet_core::code::Code;
use procfleet_core::id::OpId;
use procfleet_core::op::{OpKind, Outcome};
use procfleet_proto::link::{
    GroupsMessage, ProcStateMessage, Report, Reports, States, agent_message, server_message::Body,
};
use procfleet_sim::Talk;
use procfleet_testkit::Op;
use serde_json::json;

/// Field 4000 of a message, with two bytes; no version has it yet.
const NEW_FIELD: [u8; 6] = [0x82, 0xfa, 0x01, 2, b'h', b'i'];

/// The first field of an agent's message is its hello; protobuf merges a second one into the first.
fn with_new_field_in_hello(hello: agent_message::Body) -> Vec<u8> {
    let length = u8::try_from(NEW_FIELD.len()).expect("a few bytes");
    [hello.into_bytes(), vec![0x0a, length], NEW_FIELD.to_vec()].concat()
}

#[test]
fn unknown_messages_fields_and_codes_of_a_newer_agent_do_not_end_its_session() {
    let up = up();
    let peer = peer(&up, "10.6.2.1");
    let mut talk = peer.connect().expect("the agent has joined");
    talk.send(with_new_field_in_hello(peer.hello("one")));
    let said = talk.receive();
    assert!(matches!(said, Some(Body::Welcome(_))), "{said:?}");
    talk.send(NEW_FIELD);

    let proc = up.proc("there").on_host("10.6.2.1").starts("exec sleep 1000");
    let task = proc.submit(Op::Start);
    let op = next_op(&mut talk);
    let mut report =
        Report::done(op, &Outcome::without_status(Code::PostCheck, "of the next version", OpKind::Start));
    report.done.as_mut().expect("an outcome").code = 4_242;
    talk.send(agent_message::Body::Reports(Reports { reports: vec![report] }).into_bytes());

    let outcome = task.outcome();
    assert_eq!(outcome.code, u64::from(Code::SystemError.number()), "{outcome:?}");
    assert!(
        outcome.message.contains("4242") && outcome.message.contains("of the next version"),
        "{outcome:?}"
    );
    // The session also takes the next op.
    proc.submit(Op::Stop);
    next_op(&mut talk);
    assert_eq!(cuts(&up, "protocol"), 0);
}

#[test]
fn unknown_content_states_and_groups_of_a_newer_agent_do_not_end_its_session() {
    let up = up();
    let peer = peer(&up, "10.6.2.2");
    let mut talk = welcome(&peer, "one");
    let proc = up.proc("there").on_host("10.6.2.2").starts("exec sleep 1000");
    let task = proc.submit(Op::Start);
    let op = next_op(&mut talk);

    let state = |name: &str, report: &str| ProcStateMessage {
        namespace: "newer".to_owned(),
        name: name.to_owned(),
        revision: 1,
        report: report.as_bytes().to_vec(),
        forgotten: false,
    };
    let procs = vec![
        state("unknown-state", r#"{"state":"hibernating","hosted":true,"pid":7}"#),
        state("unknown-form", r#"{"state":"running","hosted":true,"pid":8,"note":["of","parts"]}"#),
        state("known", r#"{"state":"running","hosted":true,"pid":9}"#),
    ];
    let mut groups = GroupsMessage::new("newer", 1, &[]);
    groups.groups = br#"[{"id":"gse","cpu_pool_limit":"a fifth"}]"#.to_vec();
    let states = States { all: true, procs, groups: vec![groups], ..States::default() };
    talk.send(agent_message::Body::States(states).into_bytes());
    let mut report = Report::done(op, &Outcome::without_status(Code::Success, "archived", OpKind::Start));
    report.done.as_mut().expect("an outcome").content = br#"{"archive":{"files":3}}"#.to_vec();
    talk.send(agent_message::Body::Reports(Reports { reports: vec![report] }).into_bytes());

    let outcome = task.outcome();
    assert_eq!(outcome.code, u64::from(Code::SystemError.number()), "{outcome:?}");
    assert!(
        outcome.message.contains("content of a kind") && outcome.message.contains("archived"),
        "{outcome:?}"
    );
    let rows = up.client.data("/api/v1/procs?namespace=newer");
    let row = |name: &str| {
        let mut rows = rows.as_array().expect("a list").iter();
        rows.find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} in {rows:?}")).clone()
    };
    assert_eq!(row("known")["state"], "running");
    assert_eq!(
        (&row("unknown-state")["state"], &row("unknown-state")["pid"]),
        (&json!("unknown"), &json!(7))
    );
    let unreadable = row("unknown-form");
    assert_eq!((&unreadable["state"], &unreadable["hosted"]), (&json!("unknown"), &json!(true)));
    assert!(
        unreadable["note"].as_str().is_some_and(|note| note.contains("upgrade the server")),
        "{unreadable}"
    );
    assert!(up.stderr().contains("upgrade the server"), "the log names it");
    // The same session takes the next op.
    proc.submit(Op::Stop);
    next_op(&mut talk);
    assert_eq!(cuts(&up, "protocol"), 0);
}

#[track_caller]
fn next_op(talk: &mut Talk<'_>) -> OpId {
    loop {
        match talk.receive() {
            Some(Body::Op(op)) => return op.id.parse().expect("an op's id"),
            Some(_) => {}
            None => panic!("the session has ended"),
        }
    }
}
