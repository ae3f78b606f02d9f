//! An agent behind a link of a few KB a second: logs come in small pages, and outcomes do not wait behind
//! them.

use crate::{newer_server, up};
use procfleet_core::code::Code;
use procfleet_core::op::OpKind;
use procfleet_core::spec::Spec;
use procfleet_proto::link::{EventMessage, EventsStored, Welcome, agent_message, server_message::Body};
use procfleet_proto::link::{Op as LinkOp, OutcomeMessage};
use procfleet_sim::{ManualServer, ManualSession};
use procfleet_testkit::{Joined, Op, PATIENCE, Proc, SlowProxy, Up, account, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};

const IP: &str = "127.0.0.2";
const LINE: &str = "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789";

fn join(up: &Up, proxy: &SlowProxy) -> Joined {
    let mut agent = Joined::start(up.binary(), &proxy.url(), &up.folder("far"), IP, Some(&up.token(&[])));
    agent.wait_until_connected(up, IP);
    agent
}

/// A proc that has written this many lines.
fn talker(up: &Up, lines: u32) -> Proc {
    let command =
        format!("awk 'BEGIN {{ for (i = 1; i <= {lines}; i++) print i, \"{LINE}\" }}'; exec ./web 1000");
    let proc = up.proc("talks").on_host(IP).starts(&command);
    proc.start();
    proc
}

#[test]
fn logs_are_read_over_a_slow_link() {
    let up = up();
    let proxy = SlowProxy::to(&up.link());
    let _agent = join(&up, &proxy);
    let proc = talker(&up, 600);
    // One page of the largest size takes longer than an agent has for its answer.
    proxy.slow_down(3 * 1024);
    let read = up.cli(&["logs", &proc.name, "--namespace", &proc.namespace, "--lines", "10000"]);
    let expected: String = (1..=600).map(|number| format!("{number} {LINE}\n")).collect();
    assert!(read.code == Some(0) && read.stdout == expected, "{read:?}");
}

#[test]
fn outcomes_go_before_logs_on_a_slow_link() {
    /// Allowance for data that is on its way already, and for the delay of the test. The readers ask for much
    /// more.
    const AHEAD: u64 = 120 * 1024;
    let up = up();
    let proxy = SlowProxy::to(&up.link());
    let _agent = join(&up, &proxy);
    let proc = talker(&up, 4_000);
    let question =
        format!("/api/v1/logs?namespace={}&name={}&host=0:{IP}&lines=10000", proc.namespace, proc.name);
    proxy.slow_down(8 * 1024);
    let begun = proxy.passed();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    // An answer that does not come in time is not what is tested here.
                    let _ = up.client.try_get(&question);
                }
            });
        }
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(PATIENCE, "the link is busy", || proxy.passed() > begun + 64 * 1024);
            for _ in 0..3 {
                let before = proxy.passed();
                proc.op(Op::Query).assert_success();
                let waited = proxy.passed() - before;
                assert!(waited < AHEAD, "{waited} bytes went before the outcome");
            }
        }));
        done.store(true, Ordering::SeqCst);
        proxy.slow_down(0);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// What an agent has sent in a session: its outcomes, and its events, message by message.
#[derive(Default)]
struct Received {
    outcomes: Vec<OutcomeMessage>,
    events: Vec<Vec<EventMessage>>,
}

impl Received {
    #[track_caller]
    fn receive_until(&mut self, session: &mut ManualSession<'_>, is_enough: impl Fn(&Received) -> bool) {
        while !is_enough(self) {
            match session.receive().expect("the session goes on") {
                agent_message::Body::Reports(reports) => {
                    self.outcomes.extend(reports.reports.into_iter().filter_map(|report| report.done));
                }
                agent_message::Body::Events(events) => self.events.push(events.events),
                _ => {}
            }
        }
    }
}

/// Events wait until the server has stored the last message of them, and outcomes do not: an outcome waits
/// for at most one message of events, however slowly the server confirms it.
#[test]
fn outcomes_go_before_events_that_are_not_confirmed() {
    let server = ManualServer::open().expect("a server");
    let data = tempfile::tempdir().expect("a folder");
    let _agent = newer_server::join(&server, data.path());
    let mut session = server.accept().expect("a session");
    let said = session.receive();
    assert!(matches!(said, Some(agent_message::Body::Hello(_))), "{said:?}");
    let welcome = Welcome { takes_events: true, ..newer_server::welcome() };
    session.send(Body::Welcome(welcome).into_bytes());
    let mut spec = Spec::default();
    spec.identity.setup_path = data.path().to_str().expect("a plain path").to_owned();
    (spec.identity.user, spec.identity.proc_name) = (account(), "sleep".to_owned());
    spec.control.start_cmd = "exec sleep 300".to_owned();
    let op = |number: u32, kind: OpKind, proc: &str| {
        let spec = serde_json::to_vec(&spec).expect("it is JSON");
        Body::Op(LinkOp { name: proc.to_owned(), spec, ..newer_server::op(number, kind) }).into_bytes()
    };
    let procs = ["first", "second", "third"];

    let mut received = Received::default();
    // Each start is an event.
    session.send(op(1, OpKind::Start, procs[0]));
    received
        .receive_until(&mut session, |received| received.outcomes.len() == 1 && received.events.len() == 1);
    session.send(op(2, OpKind::Start, procs[1]));
    session.send(op(3, OpKind::Start, procs[2]));
    received.receive_until(&mut session, |received| received.outcomes.len() == 3);
    assert_eq!(received.events.len(), 1, "the next events wait: {:?}", received.events);
    let last = received.events[0].last().expect("an event").clone();
    session.send(Body::EventsStored(EventsStored { journal: last.journal, up_to: last.number }).into_bytes());
    received.receive_until(&mut session, |received| received.events.len() == 2);
    let named: Vec<&str> = received.events.iter().flatten().map(|event| event.name.as_str()).collect();
    assert!(procs.iter().all(|proc| named.contains(proc)), "{named:?}");

    (4..).zip(procs).for_each(|(number, proc)| session.send(op(number, OpKind::Kill, proc)));
    received.receive_until(&mut session, |received| received.outcomes.len() == 6);
    assert!(received.outcomes.iter().all(|outcome| outcome.code == Code::Success.number()));
}
