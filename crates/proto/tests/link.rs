//! Every message of the link, as bytes that stay the same for ever.
//!
//! `golden/NAME.hex` is what this protocol's first version sent. A peer of that version must always be
//! understood, so a file is never changed; a new message or field gets a new file.

use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{Epoch, OpId, ProcKey};
use procfleet_core::op::{Content, OpKind, Outcome};
use procfleet_core::spec::{Identity, ProcessGroup, Spec, Weight};
use procfleet_proto::http::native::ProcState;
use procfleet_proto::link::token::hex;
use procfleet_proto::link::{
    AccountList, Ack, Cancel, Drain, Enroll, Enrolled, EventMessage, Events, EventsStored, GroupsMessage,
    Hello, HostFacts, LogRead, Op, OpOrder, ProcStateMessage, ReadLog, ReadSpec, Refused, Renew, Renewed,
    Report, Reports, SpecRead, States, Welcome, agent_message, decode_agent, decode_server, server_message,
};
use procfleet_proto::state::ProcReport;
use std::path::PathBuf;
use std::time::Duration;

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

fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.hex"));
    let Ok(text) = std::fs::read_to_string(&path) else {
        panic!(
            "{name} has no golden file; if the message is new, add {} with:
{}",
            path.display(),
            hex(bytes)
        );
    };
    assert_eq!(text.trim(), hex(bytes), "{name}: what we send has changed");
    let digits = text.trim().as_bytes();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex"))
        .collect()
}

#[test]
fn what_agents_say() {
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
        health: String::new(),
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
                groups: Vec::new(),
                log_lines_dropped: 0,
            }),
        ),
        ("states_log_lines_dropped", Body::States(States { log_lines_dropped: 300, ..States::default() })),
        (
            "states_groups",
            Body::States(States {
                all: false,
                procs: Vec::new(),
                groups: vec![GroupsMessage::new("web", 9, &[group()]), GroupsMessage::new("db", 10, &[])],
                log_lines_dropped: 0,
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
fn what_servers_say() {
    use server_message::Body;
    // The text of the first version; what is in a spec today is another matter.
    let spec = include_bytes!("golden/spec.json").trim_ascii();
    let rows = [
        (
            "welcome",
            Body::Welcome(Welcome {
                epoch: 3,
                server_time: 1_700_000_000_000,
                heartbeat_ms: 30_000,
                takes_events: false,
                renew_in_ms: None,
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
            }),
        ),
        (
            "read_spec",
            Body::ReadSpec(ReadSpec {
                id: 3,
                namespace: "web".to_owned(),
                name: "nginx".to_owned(),
                accounts: vec!["www".to_owned()],
                only_accounts: None,
            }),
        ),
        (
            "read_spec_accounts",
            Body::ReadSpec(ReadSpec {
                id: 3,
                only_accounts: Some(AccountList { names: vec!["www".to_owned()] }),
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
                accounts: vec!["www".to_owned()],
                only_accounts: None,
            }),
        ),
        (
            "read_log_accounts",
            Body::ReadLog(ReadLog {
                id: 3,
                only_accounts: Some(AccountList { names: vec!["www".to_owned()] }),
                ..ReadLog::default()
            }),
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
        (
            "op",
            Body::Op(Op::new(
                op_id(),
                Epoch(3),
                &proc(),
                OpKind::Restart,
                Duration::from_secs(60),
                Some(spec),
                &GrantScope::All,
            )),
        ),
        ("ack", Body::Ack(Ack { ops: vec![op_id().to_string()] })),
        ("drain", Body::Drain(Drain { after_ms: 500, spread_ms: 2_000 })),
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
fn a_spec_of_the_first_version_means_what_it_meant() {
    let old: Spec = serde_json::from_slice(include_bytes!("golden/spec.json")).expect("readable");
    assert_eq!(old, spec());
}

#[test]
fn orders_and_outcomes_come_through_whole() {
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
    let order = OpOrder::try_from(op).expect("an order");
    assert_eq!(
        (order.op, order.epoch, order.kind, order.spec),
        (op_id(), Epoch(3), OpKind::Kill, Some(spec()))
    );
    for accounts in [GrantScope::All, GrantScope::default(), GrantScope::Only(["www".to_owned()].into())] {
        let op = Op::new(op_id(), Epoch(3), &proc(), OpKind::Kill, Duration::ZERO, None, &accounts);
        assert_eq!(OpOrder::try_from(op).expect("an order").accounts, accounts, "nobody is not everybody");
    }
    for accounts in [GrantScope::All, GrantScope::default(), GrantScope::Only(["www".to_owned()].into())] {
        let only_accounts = AccountList::of(&accounts);
        let log = ReadLog { only_accounts: only_accounts.clone(), ..ReadLog::default() };
        let spec = ReadSpec { only_accounts, ..ReadSpec::default() };
        assert_eq!(log.readers_accounts(), accounts, "nobody is not everybody");
        assert_eq!(spec.readers_accounts(), accounts, "nobody is not everybody");
    }
    let (op, done): (OpId, Option<Outcome>) = Report::done(op_id(), &outcome()).try_into().expect("a report");
    assert_eq!((op, done), (op_id(), Some(outcome())));
}

#[test]
fn nonsense_is_an_error_and_never_a_panic() {
    for bytes in [&b""[..], b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"hello world", &[0x08; 40]] {
        assert!(decode_agent(bytes).is_err());
        assert!(decode_server(bytes).is_err());
    }
    let mut op = Op::new(op_id(), Epoch(3), &proc(), OpKind::Kill, Duration::ZERO, None, &GrantScope::All);
    op.kind = 5;
    assert!(OpOrder::try_from(op.clone()).is_err());
    (op.kind, op.spec) = (0, b"{".to_vec());
    assert!(OpOrder::try_from(op.clone()).is_err());
    (op.spec, op.id) = (Vec::new(), "x".to_owned());
    assert!(OpOrder::try_from(op).is_err());
}
