//! A few hundred simulated agents over the real link, for effects that one agent does not show.

use crate::{up, with_few_files};
use procfleet_sim::{Fleet, FleetPlan, Script, agents_for_files, take_all_files};
use procfleet_testkit::{Client, Op, Signal, Up, wait_for, wait_until};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const AGENTS: usize = 200;
/// For all of them on a small machine with other tests.
pub(crate) const GATHERING: Duration = Duration::from_secs(300);

fn first_ip() -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, 1)
}

pub(crate) fn plan(up: &Up, agents: usize, script: &str) -> FleetPlan {
    FleetPlan {
        servers: vec![up.link().parse().expect("the link's address")],
        token: None,
        agents,
        first_ip: IpAddr::V4(first_ip()),
        own_addresses: false,
        data: up.folder("fleet"),
        script: Script::from_json(script).expect("a good script"),
        seed: 7,
        spread: Duration::from_millis(200),
        trace: None,
        threads: 1,
    }
}

/// Joins them and waits until all have been there.
#[track_caller]
pub(crate) fn fleet(up: &Up, agents: usize, script: &str) -> Fleet {
    let token = up.token(&["--uses", &agents.to_string()]);
    let token = Some(token.parse().expect("a token"));
    let fleet = Fleet::start(FleetPlan { token, ..plan(up, agents, script) }).expect("the fleet starts");
    // Not all of them at the same moment: some may be there to break their connections.
    wait_until(GATHERING, "all have been connected", || {
        assert_eq!(fleet.trouble(), None);
        fleet.figures().sessions >= fleet.figures().agents
    });
    fleet
}

#[track_caller]
pub(crate) fn wait_until_connected(fleet: &Fleet) {
    wait_until(GATHERING, "the fleet is connected", || {
        assert_eq!(fleet.trouble(), None);
        fleet.figures().connected == fleet.figures().agents
    });
}

/// Sends an op to this many agents and returns its task.
#[track_caller]
pub(crate) fn operate(up: &Up, agents: usize, op: Op) -> String {
    let mut body = up.proc("web").starts("./start.sh").body(op);
    let host = |number| Ipv4Addr::from_bits(first_ip().to_bits() + number);
    let hosts = (0..u32::try_from(agents).expect("few")).map(host);
    body["hosts"] = hosts.map(|ip| json!({"ip": ip.to_string(), "bk_cloud_id": 0})).collect();
    up.client.operate(body)
}

/// Waits for every outcome, and says how many there are of each code.
#[track_caller]
pub(crate) fn outcomes(up: &Up, agents: usize, task: &str) -> Vec<(u64, usize)> {
    let codes = wait_for(GATHERING, "every op has an outcome", || {
        let results = up.client.results_now(task);
        assert_eq!(results.len(), agents);
        let code = |result: &Value| result["error_code"].as_u64().expect("a code");
        let codes: Vec<u64> = results.values().map(code).collect();
        (!codes.contains(&115)).then_some(codes)
    });
    let mut counts = std::collections::BTreeMap::new();
    codes.into_iter().for_each(|code| *counts.entry(code).or_insert(0) += 1);
    counts.into_iter().collect()
}

/// It joins with a token and needs none to come back; its procs are seen as those of any agent.
#[test]
fn a_simulated_fleet_is_a_fleet() {
    let up = up();
    let started = fleet(&up, AGENTS, "{}");
    let task = operate(&up, AGENTS, Op::Start);
    assert_eq!(outcomes(&up, AGENTS, &task), [(0, AGENTS)]);
    let again = operate(&up, AGENTS, Op::Start);
    assert_eq!(outcomes(&up, AGENTS, &again), [(828, AGENTS)], "they run already");
    wait_until(GATHERING, "all outcomes are confirmed", || started.figures().confirmed == 2 * AGENTS as u64);
    let figures = started.figures();
    assert_eq!((figures.begun, figures.ended, figures.repeats), (400, 400, 0), "{figures}");
    let procs = up.client.data(&format!("/api/v1/procs?namespace={}", up.namespace));
    let rows = procs.as_array().expect("a list");
    assert_eq!(rows.iter().filter(|row| row["state"] == "running").count(), AGENTS);
    drop(started);

    let back = Fleet::start(plan(&up, AGENTS, "{}")).expect("it knows its keys");
    wait_until_connected(&back);
    let one_more = FleetPlan { first_ip: IpAddr::V4([10, 8, 0, 1].into()), ..plan(&up, 1, "{}") };
    let stranger = Fleet::start(one_more).expect("the fleet starts");
    let trouble = wait_for(GATHERING, "one that has not joined says so", || stranger.trouble());
    assert!(trouble.contains("there is no token"), "{trouble}");
}

/// With broken connections, repeated reports and slow agents, each op is begun once and has its outcome.
#[test]
fn no_op_is_lost_or_doubled_by_agents_in_trouble() {
    let up = up();
    let script = r#"{
        "take_ms": [0, 300],
        "end": [{"code": 0, "weight": 9}, {"code": 836, "message": "start: it died"}],
        "drop": {"received_percent": 5, "taken_percent": 5, "reported_percent": 5, "every_secs": 5, "away_ms": [0, 500]},
        "repeat_percent": 20,
        "slow": {"agents_percent": 5, "read_every_ms": 100}
    }"#;
    let fleet = fleet(&up, AGENTS, script);
    let tasks: Vec<String> = (0..4).map(|_| operate(&up, AGENTS, Op::Restart)).collect();
    // An op whose agent is away for more than 5 s is not sent. On a busy machine there are such.
    let mut sent = 0;
    for task in &tasks {
        let codes = outcomes(&up, AGENTS, task);
        let of = |code: u64| codes.iter().find(|(seen, _)| *seen == code).map_or(0, |(_, count)| *count);
        assert!(of(0) > AGENTS / 2 && of(0) + of(836) + of(117) == AGENTS, "{codes:?}");
        sent += of(0) + of(836);
    }
    let figures = fleet.figures();
    assert_eq!(figures.begun, sent as u64, "each once: {figures}");
    assert!(figures.drops > 0, "{figures}");
}

/// `kill -9` of the server in the middle of an op on all of them.
#[test]
fn all_agents_reconnect_after_the_server_was_killed() {
    let mut up = up();
    let fleet = fleet(&up, AGENTS, r#"{"take_ms": [0, 2000]}"#);
    let task = operate(&up, AGENTS, Op::Restart);
    up.kill_all();
    wait_until(GATHERING, "they have noticed", || fleet.figures().connected == 0);
    up.again_with_the_same_link();
    wait_until_connected(&fleet);
    assert_eq!(outcomes(&up, AGENTS, &task), [(0, AGENTS)]);
    assert_eq!(fleet.figures().begun, AGENTS as u64);

    // And once more after an orderly end, which the server announced to each agent.
    up.end(Signal::TERM);
    wait_until(GATHERING, "all agents got the announcement", || fleet.figures().drained == AGENTS as u64);
    up.again_with_the_same_link();
    wait_until_connected(&fleet);
    let task = operate(&up, AGENTS, Op::Restart);
    assert_eq!(outcomes(&up, AGENTS, &task), [(0, AGENTS)], "none is taken for absent");
}

/// Thousands of connections that never say who they are do not keep agents out, neither those that connect
/// nor new ones.
#[test]
fn agents_get_in_past_sockets_that_never_finish_their_handshake() {
    let up = up();
    let address = up.link().strip_prefix("https://").expect("https").to_owned();
    let few = fleet(&up, 20, "{}");
    let silent = Sockets::hold(&address, 5_000);
    let rest = FleetPlan {
        first_ip: IpAddr::V4([10, 7, 0, 1].into()),
        data: up.folder("rest"),
        ..plan(&up, 20, "{}")
    };
    let token = up.token(&["--uses", "20"]).parse().expect("a token");
    let rest = Fleet::start(FleetPlan { token: Some(token), ..rest }).expect("the fleet starts");
    wait_until_connected(&rest);
    assert_eq!(few.figures().connected, 20, "nor do they push anybody out");
    let task = operate(&up, 20, Op::Restart);
    assert_eq!(outcomes(&up, 20, &task), [(0, 20)]);
    drop(silent);
}

/// A server with more agents than file descriptors closes the connections of further agents, and goes on
/// serving callers and its store.
#[test]
fn agents_leave_file_descriptors_for_callers() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let up = Up::start(with_few_files(folder.path(), 300));
    let token = up.token(&["--uses", "200"]).parse().expect("a token");
    let fleet =
        Fleet::start(FleetPlan { token: Some(token), ..plan(&up, 200, "{}") }).expect("the fleet starts");
    // Of 300 descriptors, 150 are for callers and 32 for everything else.
    wait_until(GATHERING, "all places but the own agent's are taken", || fleet.figures().connected == 117);
    for _ in 0..10 {
        let client = Client::new(&up.client.url, &up.client.app_code, &up.client.app_secret);
        assert_eq!(client.page("/readyz").status, 200);
    }
    // The store can be written.
    up.token(&["--uses", "1"]);
}

/// Connections that are opened and say nothing, or half of something; as soon as one is closed there is
/// another.
struct Sockets {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sockets {
    fn hold(address: &str, count: usize) -> Sockets {
        let room = agents_for_files(take_all_files());
        assert!(room > count, "the test needs {count} files, and there is room for {room} (ulimit -Hn)");
        let (ending, address) = (Arc::new(AtomicBool::new(false)), address.to_owned());
        let (told, opened) = (ending.clone(), Arc::new(AtomicUsize::new(0)));
        let seen = opened.clone();
        let thread = std::thread::spawn(move || {
            let mut open = VecDeque::new();
            while !told.load(Ordering::Relaxed) {
                if open.len() == count {
                    open.pop_front();
                }
                // Where the queue is full, it waits there like everybody else.
                let Ok(mut stream) = TcpStream::connect(&address) else { continue };
                if open.len() % 2 == 1 {
                    let _ = stream.write_all(&[22, 3, 1, 2, 0]);
                }
                open.push_back(stream);
                seen.store(open.len(), Ordering::Relaxed);
            }
        });
        wait_until(GATHERING, "the sockets are open", || opened.load(Ordering::Relaxed) == count);
        Sockets { ending, thread: Some(thread) }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
