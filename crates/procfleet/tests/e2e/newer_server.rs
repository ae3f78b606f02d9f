//! A server that is newer than the agent, as in the middle of an upgrade.

use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{Epoch, OpId, ProcKey};
use procfleet_core::op::OpKind;
use procfleet_proto::link::{Op, OutcomeMessage, Renewed, Welcome, agent_message, server_message::Body};
use procfleet_sim::{ManualServer, ManualSession};
use procfleet_testkit::Joined;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Field 4000 of a message, with two bytes; no version has it yet.
const NEW_MESSAGE: [u8; 6] = [0x82, 0xfa, 0x01, 2, b'h', b'i'];
const EPOCH: Epoch = Epoch(1);

pub(crate) fn join(server: &ManualServer, data: &Path) -> Joined {
    let address = server.address().expect("an address").to_string();
    let token = server.token().to_string();
    Joined::start(Path::new(env!("CARGO_BIN_EXE_procfleet")), &address, data, "127.0.0.1", Some(&token))
}

pub(crate) fn welcome() -> Welcome {
    Welcome { epoch: EPOCH.0, heartbeat_ms: 60_000, limits_accounts: true, ..Welcome::default() }
}

pub(crate) fn op(number: u32, kind: OpKind) -> Op {
    let id: OpId = format!("20261116120000-{number}-0").parse().expect("an op id");
    let proc = ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() };
    Op::new(id, EPOCH, &proc, kind, Duration::from_secs(600), None, &GrantScope::All)
}

/// The outcomes of this many ops, by the op's id.
#[track_caller]
fn outcomes(session: &mut ManualSession<'_>, number: usize) -> BTreeMap<String, OutcomeMessage> {
    let mut done = BTreeMap::new();
    while done.len() < number {
        let said = session.receive().expect("the session goes on");
        if let agent_message::Body::Reports(reports) = said {
            done.extend(reports.reports.into_iter().filter_map(|report| Some((report.op, report.done?))));
        }
    }
    done
}

#[test]
fn unknown_messages_and_ops_of_a_newer_server_do_not_end_the_session() {
    let server = ManualServer::open().expect("a server");
    let data = tempfile::tempdir().expect("a folder");
    let _agent = join(&server, data.path());
    let mut session = server.accept().expect("a session");
    let said = session.receive();
    assert!(matches!(said, Some(agent_message::Body::Hello(_))), "{said:?}");
    // Before the welcome, and in the session.
    session.send(NEW_MESSAGE);
    session.send(Body::Welcome(welcome()).into_bytes());
    let unknown_kind = Op { kind: 77, ..op(1, OpKind::Stop) };
    let unknown_spec =
        Op { spec: br#"{"identity":"of the next version"}"#.to_vec(), ..op(2, OpKind::Register) };
    let without_accounts = Op { accounts: None, ..op(3, OpKind::Stop) };
    let known = op(4, OpKind::Query);
    let ids = [&unknown_kind, &unknown_spec, &without_accounts, &known].map(|op| op.id.clone());
    session.send(Body::Op(unknown_kind).into_bytes());
    session.send(NEW_MESSAGE);
    session.send(Body::Op(unknown_spec).into_bytes());
    session.send(Body::Op(without_accounts).into_bytes());
    session.send(Body::Op(known).into_bytes());

    let done = outcomes(&mut session, 4);
    let [unknown_kind, unknown_spec, without_accounts, known] = ids.map(|id| done[&id].clone());
    assert_eq!(unknown_kind.code, Code::UnknownOp.number(), "{unknown_kind:?}");
    assert!(unknown_kind.message.contains("unknown operation 77"), "{unknown_kind:?}");
    assert_eq!(unknown_spec.code, Code::ArgsInvalid.number(), "{unknown_spec:?}");
    assert_eq!(without_accounts.code, Code::ArgsInvalid.number(), "{without_accounts:?}");
    assert!(without_accounts.message.contains("accounts"), "{without_accounts:?}");
    // A query of a proc that the agent does not know is carried out, and says so.
    assert!(!known.message.contains("cannot carry out"), "{known:?}");
}

#[test]
fn an_unknown_message_does_not_break_the_renewal_of_an_expired_certificate() {
    let server = ManualServer::open().expect("a server");
    let data = tempfile::tempdir().expect("a folder");
    let _agent = join(&server, data.path());
    let mut session = server.accept().expect("a session");
    let said = session.receive();
    assert!(matches!(said, Some(agent_message::Body::Hello(_))), "{said:?}");
    // In place of a welcome: the certificate has expired, and only its renewal is accepted.
    session.send(Body::Renewed(Renewed::default()).into_bytes());
    let said = session.receive();
    let Some(agent_message::Body::Renew(request)) = said else { panic!("{said:?}") };
    session.send(NEW_MESSAGE);
    let (certificate, cas) = server.renewal(&request.csr).expect("a certificate");
    session.send(Body::Renewed(Renewed { certificate, cas, renew_in_ms: 86_400_000 }).into_bytes());
    let said = session.receive();
    assert!(
        matches!(&said, Some(agent_message::Body::Renew(kept)) if !kept.kept.is_empty()),
        "the agent confirms that it has stored the certificate: {said:?}"
    );
}
