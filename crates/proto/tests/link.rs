//! Every message of the link, as bytes that stay the same for ever.

#[path = "support/golden.rs"]
mod support;

use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{Epoch, OpId, ProcKey};
use procfleet_core::op::{Content, OpKind, Outcome};
use procfleet_core::spec::{Identity, ProcessGroup, Spec, Weight};
use procfleet_proto::http::native::ProcState;
use procfleet_proto::link::{
    Ack, Cancel, Drain, Enroll, Enrolled, EventMessage, Events, EventsStored, GroupsMessage, Hello,
    HostFacts, LogRead, OmittedAccounts, Op, OpOrder, ProcStateMessage, ReadLog, ReadSpec, Refused, Renew,
    Renewed, Report, Reports, ServerList, SpecRead, States, Welcome, agent_message, decode_agent,
    decode_server, server_message,
};
use procfleet_proto::state::ProcReport;
use std::time::Duration;
use support::golden;

fn op_id() -> OpId {
    "20190813145456-8-0".parse().expect("an op id")
}

fn proc() -> ProcKey {
    ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() }
}

fn spec() -> Spec {
    let identity = Identity { proc_name: "nginx".to_owned(), user: "root".to_owned(), ..Identity::default() };
    Spec { identity, ..Spec::default() }
}

fn group() -> ProcessGroup {
    ProcessGroup {
        id: "gse".to_owned(),
        cpu_pool_limit: Some(20.0),
        mem_pool_limit: None,
        cpu_pool_weight: Weight::Limit,
        mem_pool_weight: Weight::Usage,
    }
}

fn outcome() -> Outcome {
    let content =
        Content::Control { hosted: true, proc_name: "nginx".to_owned(), setup_path: "/usr/sbin".to_owned() };
    Outcome::new(Code::PostCheck, "start process (nginx) failed", content)
}

#[test]
fn messages_of_agents_match_their_golden_files() {
    use agent_message::Body;
    let report = ProcReport {
        doing: None,
        state: ProcState::Running,
        hosted: true,
        pid: Some(7),
        note: String::new(),
        labels: Default::default(),
        registered_at: 1,
        started_at: 2,
        reported_at: 3,
        cpu_usage: 1.5,
        mem_usage: 0.5,
        fd: 4,
        version: "1.2".to_owned(),
        health: Default::default(),
        user: String::new(),
    };
    let rows = [
        (
            "hello",
            Body::Hello(Hello {
                agent: "a1".to_owned(),
                boot_id: "b1".to_owned(),
                version: "0.1.0".to_owned(),
                taken: vec![op_id().to_string()],
                host: Some(HostFacts {
                    os: "linux".to_owned(),
                    architecture: "x86_64".to_owned(),
                    cpus: 2,
                    memory_mib: 1024,
                    started_at: 5,
                    containment: String::new(),
                }),
                renews: false,
                cancels: false,
                reads_logs: false,
                changes_specs: false,
                limits_accounts: false,
                ip: String::new(),
                highest_epoch: 0,
            }),
        ),
        (
            "hello_specs",
            Body::Hello(Hello { agent: "a1".to_owned(), changes_specs: true, ..Hello::default() }),
        ),
        (
            "spec_read",
            Body::SpecRead(SpecRead { id: 3, code: 0, message: "odd".to_owned(), spec: b"{}".to_vec() }),
        ),
        (
            "hello_accounts",
            Body::Hello(Hello { agent: "a1".to_owned(), limits_accounts: true, ..Hello::default() }),
        ),
        (
            "hello_ip",
            Body::Hello(Hello { agent: "a1".to_owned(), ip: "127.0.0.2".to_owned(), ..Hello::default() }),
        ),
        (
            "hello_epoch",
            Body::Hello(Hello { agent: "a1".to_owned(), highest_epoch: 300, ..Hello::default() }),
        ),
        (
            "hello_containment",
            Body::Hello(Hello {
                agent: "a1".to_owned(),
                host: Some(HostFacts { containment: "cgroup".to_owned(), ..HostFacts::default() }),
                ..Hello::default()
            }),
        ),
        ("hello_logs", Body::Hello(Hello { agent: "a1".to_owned(), reads_logs: true, ..Hello::default() })),
        (
            "log_read",
            Body::LogRead(LogRead {
                id: 3,
                code: 0,
                message: "odd".to_owned(),
                begin: 10,
                bytes: b"one\n\xff".to_vec(),
                end: 20,
                skipped: 4,
                file: "/var/log/web.log".to_owned(),
            }),
        ),
        (
            "hello_renews",
            Body::Hello(Hello {
                agent: "a1".to_owned(),
                boot_id: "b1".to_owned(),
                version: "0.2.0".to_owned(),
                taken: Vec::new(),
                host: None,
                renews: true,
                cancels: true,
                reads_logs: false,
                changes_specs: false,
                limits_accounts: false,
                ip: String::new(),
                highest_epoch: 0,
            }),
        ),
        ("renew", Body::Renew(Renew { csr: vec![1, 2], kept: Vec::new() })),
        ("renew_kept", Body::Renew(Renew { csr: Vec::new(), kept: vec![3; 32] })),
        (
            "reports",
            Body::Reports(Reports {
                reports: vec![Report::taken(op_id()), Report::done(op_id(), &outcome())],
            }),
        ),
        (
            "states",
            Body::States(States {
                all: true,
                procs: vec![ProcStateMessage::new(&proc(), 9, Some(&report))],
                ..States::default()
            }),
        ),
        ("states_continues", Body::States(States { all: true, continues: true, ..States::default() })),
        ("states_log_lines_dropped", Body::States(States { log_lines_dropped: 300, ..States::default() })),
        (
            "states_groups",
            Body::States(States {
                groups: vec![GroupsMessage::new("web", 9, &[group()]), GroupsMessage::new("db", 10, &[])],
                ..States::default()
            }),
        ),
        (
            "enroll",
            Body::Enroll(Enroll {
                token: "t".to_owned(),
                csr: vec![1, 2],
                ip: "10.0.0.1".to_owned(),
                version: "0.1.0".to_owned(),
            }),
        ),
        (
            "events",
            Body::Events(Events {
                events: vec![EventMessage {
                    journal: "j1".to_owned(),
                    number: 4,
                    at: 1_700_000_000_000,
                    namespace: "web".to_owned(),
                    name: "nginx".to_owned(),
                    kind: "exited".to_owned(),
                    message: "pid 7 was ended by signal 9".to_owned(),
                    details: br#"{"exited":{"pid":7,"exit":{"Signal":9}}}"#.to_vec(),
                    report_id: 11,
                    proc_name: "nginx".to_owned(),
                    user: String::new(),
                }],
            }),
        ),
        (
            "events_user",
            Body::Events(Events {
                events: vec![EventMessage { user: "www".to_owned(), ..EventMessage::default() }],
            }),
        ),
    ];
    for (name, body) in rows {
        let bytes = golden(name, &body.clone().into_bytes());
        assert_eq!(decode_agent(&bytes).expect("readable"), body);
    }
}

#[test]
fn messages_of_servers_match_their_golden_files() {
    use server_message::Body;
    // The text of the first version; today's spec has more fields.
    let spec = include_bytes!("golden/spec.json").trim_ascii();
    let op = Op::new(
        op_id(),
        Epoch(3),
        &proc(),
        OpKind::Restart,
        Duration::from_secs(60),
        Some(spec),
        &GrantScope::All,
    );
    let rows = [
        (
            "welcome",
            Body::Welcome(Welcome {
                epoch: 3,
                server_time: 1_700_000_000_000,
                heartbeat_ms: 30_000,
                takes_events: false,
                renew_in_ms: None,
                limits_accounts: false,
                servers: Vec::new(),
            }),
        ),
        (
            "welcome_events",
            Body::Welcome(Welcome {
                epoch: 3,
                server_time: 1_700_000_000_000,
                heartbeat_ms: 30_000,
                takes_events: true,
                renew_in_ms: None,
                limits_accounts: false,
                servers: Vec::new(),
            }),
        ),
        (
            "welcome_renew",
            Body::Welcome(Welcome {
                epoch: 3,
                server_time: 1_700_000_000_000,
                heartbeat_ms: 30_000,
                takes_events: true,
                renew_in_ms: Some(0),
                limits_accounts: false,
                servers: Vec::new(),
            }),
        ),
        (
            "welcome_accounts",
            Body::Welcome(Welcome { epoch: 3, limits_accounts: true, ..Welcome::default() }),
        ),
        (
            "welcome_servers",
            Body::Welcome(Welcome {
                epoch: 3,
                servers: vec!["https://s1.example:48668".to_owned(), "https://[::1]:7".to_owned()],
                ..Welcome::default()
            }),
        ),
        (
            "read_spec",
            Body::ReadSpec(ReadSpec {
                id: 3,
                namespace: "web".to_owned(),
                name: "nginx".to_owned(),
                earlier_accounts: vec!["www".to_owned()],
                accounts: None,
            }),
        ),
        (
            "read_spec_accounts",
            Body::ReadSpec(ReadSpec {
                id: 3,
                accounts: Some((&GrantScope::Only(["www".to_owned()].into())).into()),
                ..ReadSpec::default()
            }),
        ),
        (
            "read_spec_everybody",
            Body::ReadSpec(ReadSpec {
                id: 3,
                accounts: Some((&GrantScope::All).into()),
                ..ReadSpec::default()
            }),
        ),
        (
            "read_log",
            Body::ReadLog(ReadLog {
                id: 3,
                namespace: "web".to_owned(),
                name: "nginx#2".to_owned(),
                at: Some(0),
                lines: 100,
                most: 4_096,
                wait_ms: 30_000,
                beyond: 10,
                reopen: true,
                earlier_accounts: vec!["www".to_owned()],
                accounts: None,
            }),
        ),
        (
            "read_log_accounts",
            Body::ReadLog(ReadLog {
                id: 3,
                accounts: Some((&GrantScope::Only(["www".to_owned()].into())).into()),
                ..ReadLog::default()
            }),
        ),
        (
            "read_log_everybody",
            Body::ReadLog(ReadLog { id: 3, accounts: Some((&GrantScope::All).into()), ..ReadLog::default() }),
        ),
        (
            "op_accounts",
            Body::Op(Op::new(
                op_id(),
                Epoch(3),
                &proc(),
                OpKind::Stop,
                Duration::from_secs(60),
                None,
                &GrantScope::Only(["db".to_owned(), "www".to_owned()].into()),
            )),
        ),
        (
            "op_nobody",
            Body::Op(Op::new(
                op_id(),
                Epoch(3),
                &proc(),
                OpKind::Stop,
                Duration::from_secs(60),
                None,
                &GrantScope::default(),
            )),
        ),
        ("events_stored", Body::EventsStored(EventsStored { journal: "j1".to_owned(), up_to: 4 })),
        // A server of an earlier version omits the accounts to say "everybody".
        ("op", Body::Op(Op { accounts: None, ..op.clone() })),
        ("op_everybody", Body::Op(op)),
        ("ack", Body::Ack(Ack { ops: vec![op_id().to_string()] })),
        ("drain", Body::Drain(Drain { after_ms: 500, spread_ms: 2_000, elsewhere: false })),
        ("drain_elsewhere", Body::Drain(Drain { after_ms: 500, spread_ms: 2_000, elsewhere: true })),
        (
            "server_list",
            Body::ServerList(ServerList {
                servers: vec!["https://s1.example:48668".to_owned(), "https://[::1]:7".to_owned()],
            }),
        ),
        ("refused", Body::Refused(Refused { reason: "no".to_owned() })),
        (
            "enrolled",
            Body::Enrolled(Enrolled {
                agent: "a1".to_owned(),
                certificate: vec![1],
                ca: vec![2],
                more_cas: Vec::new(),
            }),
        ),
        (
            "enrolled_two_cas",
            Body::Enrolled(Enrolled {
                agent: "a1".to_owned(),
                certificate: vec![1],
                ca: vec![2],
                more_cas: vec![vec![3]],
            }),
        ),
        ("cancel", Body::Cancel(Cancel { ops: vec![op_id().to_string()] })),
        (
            "renewed",
            Body::Renewed(Renewed {
                certificate: vec![1],
                cas: vec![vec![2], vec![3]],
                renew_in_ms: 86_400_000,
            }),
        ),
        (
            "renewed_later",
            Body::Renewed(Renewed { certificate: Vec::new(), cas: Vec::new(), renew_in_ms: 5_000 }),
        ),
    ];
    for (name, body) in rows {
        let bytes = golden(name, &body.clone().into_bytes());
        assert_eq!(decode_server(&bytes).expect("readable"), body);
    }
}

#[test]
fn a_spec_of_the_first_version_is_still_understood() {
    let old: Spec = serde_json::from_slice(include_bytes!("golden/spec.json")).expect("readable");
    assert_eq!(old, spec());
}

#[test]
fn orders_and_outcomes_survive_a_round_trip() {
    let json = serde_json::to_vec(&spec()).expect("JSON");
    let op = Op::new(
        op_id(),
        Epoch(3),
        &proc(),
        OpKind::Kill,
        Duration::from_secs(60),
        Some(&json),
        &GrantScope::All,
    );
    let order = OpOrder::read(op, OmittedAccounts::AreRefused).expect("an order");
    assert_eq!(
        (order.op, order.epoch, order.kind, order.spec),
        (op_id(), Epoch(3), OpKind::Kill, Some(spec()))
    );
    let (op, done): (OpId, Option<Outcome>) = Report::done(op_id(), &outcome()).try_into().expect("a report");
    assert_eq!((op, done), (op_id(), Some(outcome())));
}

/// The accounts that an op, a question about a log and a question about a spec are limited to, after they
/// were sent.
fn accounts_received(messages: [server_message::Body; 3], omitted: OmittedAccounts) -> [Accounts; 3] {
    messages.map(|body| match decode_server(&body.into_bytes()).expect("readable") {
        server_message::Body::Op(op) => OpOrder::read(op, omitted).map(|order| order.accounts).ok(),
        server_message::Body::ReadLog(question) => question.readable_accounts(omitted).ok(),
        server_message::Body::ReadSpec(question) => question.readable_accounts(omitted).ok(),
        body => panic!("{body:?}"),
    })
}

/// `None`: the message is refused.
type Accounts = Option<GrantScope<String>>;

#[test]
fn nobody_and_everybody_cannot_be_confused_by_an_empty_list() {
    use server_message::Body;
    let op = |accounts| Op::new(op_id(), Epoch(3), &proc(), OpKind::Kill, Duration::ZERO, None, accounts);
    let all = GrantScope::All;
    let (nobody, some) = (GrantScope::default(), GrantScope::Only(["www".to_owned()].into()));
    for accounts in [&all, &nobody, &some] {
        let messages = [
            Body::Op(op(accounts)),
            Body::ReadLog(ReadLog { accounts: Some(accounts.into()), ..ReadLog::default() }),
            Body::ReadSpec(ReadSpec { accounts: Some(accounts.into()), ..ReadSpec::default() }),
        ];
        for omitted in [OmittedAccounts::AreRefused, OmittedAccounts::MeanEverybody] {
            let received = accounts_received(messages.clone(), omitted);
            assert_eq!(received, [(); 3].map(|()| Some(accounts.clone())));
        }
    }
    let omitting = [
        Body::Op(Op { accounts: None, ..op(&all) }),
        Body::ReadLog(ReadLog::default()),
        Body::ReadSpec(ReadSpec::default()),
    ];
    assert_eq!(accounts_received(omitting.clone(), OmittedAccounts::AreRefused), [None, None, None]);
    let everybody = [(); 3].map(|()| Some(all.clone()));
    assert_eq!(accounts_received(omitting, OmittedAccounts::MeanEverybody), everybody);
}

#[test]
fn an_outcome_of_a_newer_agent_is_a_system_error_that_names_what_is_unknown() {
    let mut report = Report::done(op_id(), &outcome());
    let done = report.done.as_mut().expect("an outcome");
    done.content = br#"{"archive":{"files":3}}"#.to_vec();
    let (_, outcome): (OpId, Option<Outcome>) = report.clone().try_into().expect("a report");
    let outcome = outcome.expect("an outcome");
    assert_eq!(outcome.code, Code::SystemError);
    let code = Code::PostCheck.number().to_string();
    for part in ["content of a kind", &code, "start process (nginx) failed"] {
        assert!(outcome.message.contains(part), "{part}: {}", outcome.message);
    }
    // Malformed JSON is not of a newer version.
    report.done.as_mut().expect("an outcome").content = b"{".to_vec();
    assert!(<(OpId, Option<Outcome>)>::try_from(report).is_err());
}

#[test]
fn a_state_of_a_newer_agent_keeps_what_every_version_knows() {
    let mut message = ProcStateMessage::new(&proc(), 9, None);
    message.forgotten = false;
    message.report = br#"{"state":"hibernating","hosted":true,"pid":7}"#.to_vec();
    let report = message.report().expect("readable").expect("a report");
    assert_eq!((report.state, report.hosted, report.pid), (ProcState::Unknown, true, Some(7)));

    message.report = br#"{"state":"running","hosted":true,"pid":7,"note":["of","parts"]}"#.to_vec();
    assert!(message.report().expect_err("a note is a text").is_of_a_newer_peer());
    let report = message.unreadable_report();
    assert_eq!((report.state, report.hosted, report.pid), (ProcState::Unknown, true, Some(7)));
    assert!(report.note.contains("upgrade the server"), "{}", report.note);
}

#[test]
fn nonsense_is_an_error_and_never_a_panic() {
    for bytes in [&b""[..], b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"hello world", &[0x08; 40]] {
        assert!(decode_agent(bytes).is_err());
        assert!(decode_server(bytes).is_err());
    }
    let mut op = Op::new(op_id(), Epoch(3), &proc(), OpKind::Kill, Duration::ZERO, None, &GrantScope::All);
    op.kind = 5;
    assert!(OpOrder::read(op.clone(), OmittedAccounts::AreRefused).is_err());
    (op.kind, op.spec) = (0, b"{".to_vec());
    assert!(OpOrder::read(op.clone(), OmittedAccounts::AreRefused).is_err());
    (op.spec, op.id) = (Vec::new(), "x".to_owned());
    assert!(OpOrder::read(op, OmittedAccounts::AreRefused).is_err());
}
