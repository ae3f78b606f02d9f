//! Every message between servers, as bytes that stay the same for ever.

#[path = "support/golden.rs"]
mod support;

use procfleet_core::grants::GrantScope;
use procfleet_proto::link::{BadMessage, LogRead, ReadLog, ReadSpec, SpecRead};
use procfleet_proto::peer::{
    AgentUnanswered, AskAgent, AskAlive, NotHere, PeerAlive, PeerBusy, PeerRefused, WhyUnanswered, ask_agent,
    decode_answer, decode_question, peer_answer, peer_question,
};
use std::time::Duration;
use support::golden;

fn read_log() -> ReadLog {
    ReadLog {
        namespace: "web".to_owned(),
        name: "nginx".to_owned(),
        at: Some(7),
        lines: 100,
        most: 4_096,
        wait_ms: 20_000,
        beyond: 7,
        accounts: Some((&GrantScope::Only(["www".to_owned()].into())).into()),
        ..ReadLog::default()
    }
}

fn read_spec() -> ReadSpec {
    ReadSpec {
        namespace: "web".to_owned(),
        name: "nginx".to_owned(),
        accounts: Some((&GrantScope::All).into()),
        ..ReadSpec::default()
    }
}

fn ask(question: ask_agent::Question) -> AskAgent {
    AskAgent { agent: "a1".to_owned(), epoch: 9, question: Some(question) }
}

#[test]
fn questions_match_their_golden_files() {
    use peer_question::Body;
    let rows = [
        ("peer_ask_log", Body::AskAgent(ask(ask_agent::Question::ReadLog(read_log())))),
        ("peer_ask_spec", Body::AskAgent(ask(ask_agent::Question::ReadSpec(read_spec())))),
        ("peer_ask_alive", Body::AskAlive(AskAlive {})),
    ];
    for (name, body) in rows {
        let within = Duration::from_millis(12_345);
        let bytes = golden(name, &body.clone().into_bytes(within));
        assert_eq!(decode_question(&bytes).expect(name), (body, within), "{name}");
    }
}

#[test]
fn answers_match_their_golden_files() {
    use peer_answer::Body;
    let log = LogRead { begin: 7, bytes: b"line\n".to_vec(), end: 12, ..LogRead::default() };
    let refused = SpecRead { code: 837, message: "not yours".to_owned(), ..SpecRead::default() };
    let unanswered = |why: WhyUnanswered| Body::Unanswered(AgentUnanswered { why: why.into() });
    let rows = [
        ("peer_log_read", Body::LogRead(log)),
        ("peer_spec_read", Body::SpecRead(refused)),
        ("peer_not_here", Body::NotHere(NotHere {})),
        ("peer_busy", Body::Busy(PeerBusy {})),
        ("peer_unanswered_too_old", unanswered(WhyUnanswered::TooOld)),
        ("peer_unanswered_unchecked", unanswered(WhyUnanswered::Unchecked)),
        ("peer_unanswered_silent", unanswered(WhyUnanswered::Silent)),
        ("peer_alive", Body::Alive(PeerAlive { may_act: true })),
        ("peer_refused", Body::Refused(PeerRefused { reason: "not now".to_owned() })),
    ];
    for (name, body) in rows {
        let bytes = golden(name, &body.clone().into_bytes());
        assert_eq!(decode_answer(&bytes).expect(name), body, "{name}");
    }
}

/// A newer server may ask and answer with fields and kinds that this version does not know.
#[test]
fn messages_of_a_newer_server_are_told_from_garbage() {
    // Field 15 of a message, with two bytes.
    let newer = [0x7a, 2, 1, 2];
    assert!(matches!(decode_question(&newer), Err(BadMessage::Unknown)));
    assert!(matches!(decode_answer(&newer), Err(BadMessage::Unknown)));
    let known = peer_answer::Body::Busy(PeerBusy {});
    let longer = [known.clone().into_bytes(), newer.to_vec()].concat();
    assert_eq!(decode_answer(&longer).expect("a known kind"), known);
    let newer_why = AgentUnanswered { why: 99 };
    assert_eq!(newer_why.why(), WhyUnanswered::Other);
    for garbage in [&[][..], b"\xff\xff\xff", b"GET / HTTP/1.1"] {
        assert!(matches!(decode_question(garbage), Err(BadMessage::Empty | BadMessage::Frame(_))));
        assert!(matches!(decode_answer(garbage), Err(BadMessage::Empty | BadMessage::Frame(_))));
    }
}

#[test]
fn a_question_that_omits_its_accounts_is_not_one_of_everybody() {
    use ask_agent::Question;
    for (question, good) in [
        (Some(Question::ReadLog(read_log())), true),
        (Some(Question::ReadLog(ReadLog { accounts: None, ..read_log() })), false),
        (
            Some(Question::ReadLog(ReadLog {
                accounts: Some((&GrantScope::default()).into()),
                ..read_log()
            })),
            true,
        ),
        (Some(Question::ReadSpec(read_spec())), true),
        (Some(Question::ReadSpec(ReadSpec { accounts: None, ..read_spec() })), false),
        (None, false),
    ] {
        let ask = AskAgent { question: question.clone(), ..AskAgent::default() };
        assert_eq!(ask.limited_question().is_ok(), good, "{question:?}");
    }
}
