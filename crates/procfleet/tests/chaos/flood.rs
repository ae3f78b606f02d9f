//! A hostile agent: it sends events and states as fast as the server reads them, and comes back when the
//! connection ends.

use crate::world::World;
use procfleet_core::id::ProcKey;
use procfleet_proto::link::{EventMessage, Events, ProcStateMessage, States, agent_message::Body};
use procfleet_proto::state::ProcReport;
use procfleet_sim::{ManualPeer, Talk};
use procfleet_testkit::let_pass;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 6, 1, 1));
const NAMESPACE: &str = "flood";
const EVENT_BYTES: usize = 60 * 1024;
const STATES_EACH: u64 = 200;
/// Messages of either kind that are sent on one connection.
const MESSAGES: u64 = 200;
/// How soon it connects again.
const AGAIN: Duration = Duration::from_millis(100);

/// It ends when it is dropped, which waits for the server to read or to end.
#[derive(Debug)]
pub(crate) struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    pub(crate) fn start(world: &World) -> Flood {
        let server = format!("https://{}", world.servers[0].link).parse().expect("an address");
        let token = world.token(1).parse().expect("a token");
        let peer = ManualPeer::join(server, &token, IP).expect("it joins as any other agent");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            while !stopped.load(Ordering::SeqCst) {
                match peer.connect() {
                    Ok(talk) => flood(&peer, talk, &mut number, &stopped),
                    Err(_) => let_pass(AGAIN),
                }
            }
        });
        Flood { stop, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn flood(peer: &ManualPeer, mut talk: Talk<'_>, number: &mut u64, stop: &AtomicBool) {
    talk.send(peer.hello("one").into_bytes());
    let message = "x".repeat(EVENT_BYTES);
    let report = ProcReport::left_alone(String::new());
    for _ in 0..MESSAGES {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        *number += 1;
        let event = EventMessage {
            journal: "0123456789abcdef".to_owned(),
            number: *number,
            namespace: NAMESPACE.to_owned(),
            name: "p".to_owned(),
            kind: "exited".to_owned(),
            message: message.clone(),
            details: b"null".to_vec(),
            ..EventMessage::default()
        };
        talk.send(Body::Events(Events { events: vec![event] }).into_bytes());
        let state = |index: u64| {
            let name = format!("p{}", *number * STATES_EACH + index);
            let proc = ProcKey { namespace: NAMESPACE.to_owned(), name };
            ProcStateMessage::new(&proc, 1, Some(&report))
        };
        let procs = (0..STATES_EACH).map(state).collect();
        talk.send(Body::States(States { procs, ..States::default() }).into_bytes());
    }
}
