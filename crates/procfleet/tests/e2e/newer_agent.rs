//! An agent that is newer than the server, as in the middle of an upgrade.

use crate::hostile::{cuts, peer};
use crate::up;
use procfleet_core::code::Code;
use procfleet_core::op::{OpKind, Outcome};
use procfleet_proto::link::{Report, Reports, agent_message, server_message::Body};
use procfleet_testkit::Op;

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
    let said = talk.hear();
    assert!(matches!(said, Some(Body::Welcome(_))), "{said:?}");
    talk.send(NEW_FIELD);

    let proc = up.proc("there").on_host("10.6.2.1").starts("exec sleep 1000");
    let task = proc.submit(Op::Start);
    let op = loop {
        match talk.hear() {
            Some(Body::Op(op)) => break op.id.parse().expect("an op's id"),
            Some(_) => {}
            None => panic!("the session has ended"),
        }
    };
    let mut report =
        Report::done(op, &Outcome::without_agent(Code::PostCheck, "of the next version", OpKind::Start));
    report.done.as_mut().expect("an outcome").code = 4_242;
    talk.send(agent_message::Body::Reports(Reports { reports: vec![report] }).into_bytes());

    let outcome = task.outcome();
    assert_eq!(outcome.code, u64::from(Code::SystemError.number()), "{outcome:?}");
    assert!(
        outcome.message.contains("4242") && outcome.message.contains("of the next version"),
        "{outcome:?}"
    );
    // The same session takes the next op.
    proc.submit(Op::Stop);
    let next = std::iter::from_fn(|| talk.hear()).find(|said| matches!(said, Body::Op(_)));
    assert!(next.is_some(), "the session goes on");
    assert_eq!(cuts(&up, "protocol"), 0);
}
