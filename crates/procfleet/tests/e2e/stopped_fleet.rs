//! A server with hundreds of agents is stopped (SIGSTOP), with ops at every stage, and goes on after another
//! server has taken over.

use crate::fleet::{GATHERING, plan};
use crate::postgres::name;
use crate::several_servers::{OtherServer, first, row};
use crate::silence::Stopped;
use procfleet_sim::{Fleet, FleetPlan, Held};
use procfleet_testkit::{Client, Cluster, Op, PATIENCE, Up, let_pass, wait_for, wait_until};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const OPERATE: &str = "/api/c/compapi/v2/gse/operate_proc_v2/";
const OPERATE_MULTI: &str = "/api/c/compapi/v2/gse/operate_proc_multi/";
/// Of each of the two fleets.
const AGENTS: u8 = 150;
/// How many ops an agent is given at a time.
const WINDOW: usize = 64;
/// Ops of a busy agent: a full window, and 200 more in its backlog.
const BUSY_OPS: usize = WINDOW + 200;
/// How many agents of each kind are busy.
const BUSY: usize = 4;
const LIGHT_OPS: usize = 3;

/// The first message after ops is that they were taken: an agent's states would have to be stored before its
/// later messages are read.
const STEADY: &str = r#"{"take_ms": [500, 600]}"#;
/// Agents that break their connections, and so leave the stopped server before it goes on. They get ops while
/// the server is stopped.
const RESTLESS: &str = r#"{"take_ms": [0, 100], "drop": {"every_secs": 12, "away_ms": [0, 500]}}"#;

/// A fleet whose hosts are in 10.SECOND.0.0.
struct Hosts {
    fleet: Fleet,
    second: u8,
    trace: PathBuf,
}

impl Hosts {
    /// Joins them, and waits until all have been connected.
    fn join(up: &Up, other: &OtherServer, second: u8, script: &str) -> Hosts {
        let token = up.token(&["--uses", &AGENTS.to_string()]);
        let links = [up.link(), row(&other.client, "two")["url"].as_str().expect("a text").to_owned()];
        let data = up.folder(&format!("fleet-{second}"));
        let trace = data.join("trace");
        let plan = FleetPlan {
            servers: links.iter().map(|link| link.parse().expect("an address")).collect(),
            token: Some(token.parse().expect("a token")),
            first_ip: [10, second, 0, 1].into(),
            data,
            trace: Some(trace.clone()),
            ..plan(up, AGENTS.into(), script)
        };
        let fleet = Fleet::start(plan).expect("the fleet starts");
        wait_until(GATHERING, "all have been connected", || {
            assert_eq!(fleet.trouble(), None);
            fleet.figures().sessions >= AGENTS.into()
        });
        Hosts { fleet, second, trace }
    }

    fn addresses(&self) -> impl Iterator<Item = String> {
        (1..=AGENTS).map(|last| format!("10.{}.0.{last}", self.second))
    }

    /// The ops that its agents have been sent, repeated ones included.
    fn received(&self) -> u64 {
        self.fleet.figures().begun + self.fleet.figures().repeats
    }

    /// A condition of SQL for its agents.
    fn condition(&self) -> String {
        format!("ip LIKE '10.{}.%'", self.second)
    }
}

fn psql(url: &str, sql: &str) -> String {
    Cluster::shared().psql(name(url), sql).expect("psql works")
}

fn number(url: &str, sql: &str) -> u64 {
    psql(url, sql).parse().unwrap_or_else(|error| panic!("{error}: {sql}"))
}

/// Submits until the server accepts it: on a busy machine the database may be away for a moment.
fn accepted(client: &Client, path: &str, body: &Value) {
    static KEYS: AtomicU32 = AtomicU32::new(0);
    let key = format!("key {}", KEYS.fetch_add(1, Ordering::Relaxed));
    wait_until(PATIENCE, "the task is accepted", || {
        let answer = client.try_post(path, &[("Idempotency-Key", &key)], body);
        answer.is_ok_and(|answer| answer.status == 200 && !answer.task().is_empty())
    });
}

/// How many ops a server has given to agents.
fn sent(client: &Client) -> u64 {
    let metrics = client.page("/metrics").text;
    let count = metrics.lines().find_map(|line| line.strip_prefix("procfleet_ops_sent_total "));
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{metrics}"))
}

/// Waits until the number does not change any more, and returns it.
fn wait_for_rest(count: impl Fn() -> u64) -> u64 {
    wait_for(PATIENCE, "a number does not change", || {
        let before = count();
        let_pass(Duration::from_secs(1));
        (count() == before).then_some(before)
    })
}

/// A connection that has the table of the servers locked.
struct LockKeeper {
    url: String,
    thread: JoinHandle<Result<String, String>>,
}

fn keep_servers_locked(url: &str) -> LockKeeper {
    let database = name(url).to_owned();
    let lock = "BEGIN; LOCK TABLE servers IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(3600)";
    let thread = std::thread::spawn(move || Cluster::shared().psql(&database, lock));
    let locks = "SELECT count(*) FROM pg_locks WHERE relation = 'servers'::regclass AND granted \
                 AND mode = 'AccessExclusiveLock'";
    wait_until(PATIENCE, "the table is locked", || number(url, locks) == 1);
    LockKeeper { url: url.to_owned(), thread }
}

impl LockKeeper {
    fn release(self) {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
                   AND query LIKE '%pg_sleep(3600)%' AND pid <> pg_backend_pid()";
        psql(&self.url, end);
        self.thread.join().expect("no panic").expect_err("its connection was ended");
    }
}

/// Busy agents of the server.
fn busy(url: &str, server: &str, hosts: &Hosts) -> Vec<String> {
    let sql = format!(
        "SELECT ip FROM agents JOIN sessions USING (agent_id) WHERE holder = {server} AND {} LIMIT {BUSY}",
        hosts.condition()
    );
    psql(url, &sql).lines().map(str::to_owned).collect()
}

#[test]
fn a_server_that_was_stopped_sends_no_op_before_it_has_its_place_again() {
    let (up, url) = first();
    let other = OtherServer::start(&up, &url);
    let steady = Hosts::join(&up, &other, 9, STEADY);
    let restless = Hosts::join(&up, &other, 8, RESTLESS);
    let [one, two] = ["one", "two"]
        .map(|name| psql(&url, &format!("SELECT id FROM servers WHERE name = '{name}' AND state = 'up'")));

    let template = up.proc("web").starts("./start.sh").body(Op::Restart);
    let request = |name: String, hosts: &[String]| {
        let mut body = template.clone();
        body["meta"]["name"] = json!(name);
        body["hosts"] = hosts.iter().map(|ip| json!({"ip": ip, "bk_cloud_id": 0})).collect();
        body
    };
    let submit = |busy: &[String], all: Vec<String>| {
        let requests: Vec<Value> =
            (0..BUSY_OPS).map(|number| request(format!("busy-{number}"), busy)).collect();
        accepted(&other.client, OPERATE_MULTI, &json!({"proc_operate_req": requests}));
        for number in 0..LIGHT_OPS {
            accepted(&other.client, OPERATE, &request(format!("light-{number}"), &all));
        }
    };
    // Ops stay unconfirmed: nobody reads them before the server is stopped.
    steady.fleet.hold(Held::Reads);
    let busy = [busy(&url, &one, &steady), busy(&url, &two, &steady)].concat();
    submit(&busy, steady.addresses().collect());
    // The windows of its busy agents are full. The server is stopped when it has nothing to send: a write
    // that is under way cannot be taken back.
    wait_until(PATIENCE, "the first server has sent ops", || sent(&up.client) >= (BUSY * WINDOW) as u64);
    wait_for_rest(|| sent(&up.client));
    let stopped = Stopped::stop(up.pid());
    steady.fleet.hold(Held::Nothing);
    let most_open = "SELECT max(open) FROM (SELECT count(*) AS open FROM ops LEFT JOIN outcomes USING (task, idx) \
                     JOIN sessions ON agent_id = agent WHERE code IS NULL AND holder = ";
    let most_open = number(&url, &format!("{most_open}{one} GROUP BY agent) AS of_agents"));
    assert!(most_open > WINDOW as u64, "the stopped server has a backlog: {most_open}");
    let busy_later: Vec<String> = restless.addresses().take(BUSY).collect();
    submit(&busy_later, restless.addresses().collect());

    wait_until(PATIENCE, "it was declared dead", || {
        other.program.stderr().contains("a server was silent and was declared dead")
    });
    // From now on the steady agents get ops only in the sessions that they have.
    steady.fleet.hold(Held::Connects);
    let of_two = format!("holder = {two} AND agents.{}", steady.condition());
    wait_until(GATHERING, "the agents of the other server have nothing to do", || {
        let open = "SELECT count(*) FROM ops LEFT JOIN outcomes USING (task, idx) \
                    JOIN sessions ON agent_id = agent JOIN agents USING (agent_id) WHERE code IS NULL AND ";
        number(&url, &format!("{open}{of_two}")) == 0
    });
    // They have read all ops that were sent.
    let received = wait_for_rest(|| steady.received());
    let sessions = "SELECT count(*) FROM sessions JOIN agents USING (agent_id) WHERE connected AND ";
    let at_two = number(&url, &format!("{sessions}{of_two}"));
    // For a while the server that goes on cannot learn that it was declared dead. Its agents have confirmed
    // the ops of their windows, so the server has ops to send.
    let keeper = keep_servers_locked(&url);
    drop(stopped);
    let_pass(Duration::from_secs(1));
    assert_eq!(steady.received(), received, "ops of a server that has had no beat confirmed for long");
    keeper.release();
    wait_until(PATIENCE, "it is a new server", || up.stderr().contains("it goes on as a new server"));
    wait_until(PATIENCE, "its old sessions have ended", || steady.fleet.figures().connected <= at_two);
    assert_eq!(steady.received(), received, "ops of a server that others had declared dead");
    steady.fleet.hold(Held::Nothing);

    let open = "SELECT count(*) FROM ops LEFT JOIN outcomes USING (task, idx) WHERE code IS NULL";
    wait_until(GATHERING, "every op has an outcome", || number(&url, open) == 0);
    let all = usize::from(AGENTS) * 2 * LIGHT_OPS + (busy.len() + busy_later.len()) * BUSY_OPS;
    check_runs(&url, [steady, restless], all);
    Cluster::shared().assert_invariants(&url);
}

/// Each op has one outcome, and was run as often as its outcome says.
fn check_runs(url: &str, hosts: [Hosts; 2], ops: usize) {
    let mut runs: HashMap<String, usize> = HashMap::new();
    for hosts in hosts {
        wait_until(GATHERING, "all outcomes are confirmed", || {
            let figures = hosts.fleet.figures();
            figures.confirmed == figures.begun
        });
        // Dropping the fleet writes its trace to the end.
        drop(hosts.fleet);
        let trace = fs::read_to_string(&hosts.trace).expect("a trace");
        for op in trace.lines().skip(1).filter_map(|line| line.split(',').next()) {
            *runs.entry(op.to_owned()).or_default() += 1;
        }
    }
    let sql = "SELECT lpad(stamp::text, 14, '0') || '-' || task || '-' || idx || ' ' || code \
               FROM outcomes JOIN tasks ON number = task";
    let outcomes = psql(url, sql);
    assert_eq!(outcomes.lines().count(), ops);
    for outcome in outcomes.lines() {
        let (op, code) = outcome.split_once(' ').expect("two words");
        let runs = runs.remove(op).unwrap_or(0);
        let is_true = match code {
            "0" => runs == 1,
            // On a busy machine: the agent was away for a minute, or the op was not begun in time.
            "117" => runs == 0,
            "120" => runs <= 1,
            _ => false,
        };
        assert!(is_true, "{op} ended with {code} and was run {runs} times");
    }
    assert!(runs.is_empty(), "without an outcome: {runs:?}");
}
