//! `procfleet store copy` of a large store with live agents. The test reads both stores itself, because the
//! comparison of the copy is part of what is tested.

use crate::fleet::{GATHERING, fleet, operate, outcomes, plan, wait_until_connected};
use crate::store_copy::{copy, psql, remove_embedded_store};
use crate::up;
use procfleet_sim::Fleet;
use procfleet_testkit::{Cluster, Op, Signal, programs, wait_until};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use std::path::Path;

/// Live agents.
const AGENTS: usize = 48;
const PROCS: usize = 100_000;
const TASKS: usize = 1_000;

/// 1,000 hosts with 100 procs each, and as many tasks with 20 ops each, all ended. The server has ended.
fn fill(store: &Path) {
    let store = Connection::open(store).expect("the store");
    let sql = "
        BEGIN;
        CREATE TEMP TABLE n AS
        WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 999) SELECT n FROM n;
        INSERT INTO agents (agent_id, cloud_id, ip, host_order, business_id, certificate_sha256, version,
                            facts, enrolled_at, connected, changed_at, epoch)
        SELECT format('stored-%d', n), 7, format('10.20.%d.%d', n / 256, n % 256),
               format('000000074%08x', 0x0a140000 + n), 1, randomblob(32), '0.1.0',
               '{\"os\": \"\u{7cfb}\u{7edf}\"}', 1763239000000 + n, n % 2, 1763239000000 + n, n
        FROM n;
        INSERT INTO certificates (agent, sha256) SELECT agent_id, certificate_sha256 FROM agents WHERE cloud_id = 7;
        INSERT INTO procs (agent, namespace, name, revision, status_json, host_order, state, start_rank, failed)
        SELECT format('stored-%d', host.n), 'stored', format('proc-%d', proc.n), host.n * 100 + proc.n,
               status_json, format('000000074%08x', 0x0a140000 + host.n), state, -proc.n, proc.n % 2
        FROM n AS host JOIN n AS proc ON proc.n < 100
        JOIN (SELECT status_json, state FROM procs WHERE state = 'running' LIMIT 1);
        CREATE TEMP TABLE first AS SELECT * FROM tasks ORDER BY number LIMIT 1;
        INSERT INTO tasks (number, stamp, created_at, app, username, summary, requests_json, total, open,
                           succeeded, failed, boot, boot_ms)
        SELECT 1000 + n, stamp, created_at + n, app, format('user-%d', n), summary, requests_json, 20, 0, 19, 1,
               boot, boot_ms
        FROM n JOIN first;
        INSERT INTO ops (task, idx, request, cloud_id, ip, agent, start_by, deadline, code, message, content,
                         ended_at)
        SELECT 1000 + task.n, op.n, 0, 7, format('10.20.0.%d', op.n), format('stored-%d', op.n), 1, 2,
               iif(op.n = 3, 836, 0),
               iif(op.n = 3, format('start: line\n%d\t\u{8fdb}\u{7a0b} died', task.n), 'success'),
               content, 1763239000000 + task.n
        FROM n AS task JOIN n AS op ON op.n < 20
        JOIN (SELECT content FROM ops WHERE code = 0 LIMIT 1);
        INSERT INTO submissions (app, kind, key, request_hash, task, created_at)
        SELECT app, n % 2, format('key %d', n), randomblob(32), 1000 + n, created_at FROM n JOIN first;
        INSERT INTO events (agent, journal, journal_number, at, received_at, namespace, name, kind, message,
                            details, report_id, proc_name)
        SELECT format('stored-%d', host.n), 'journal', number.n, created_at, created_at + number.n,
               'stored', 'proc-0', 'exited', 'pid 7 was ended by signal 9', '{}', 0, 'proc-0'
        FROM n AS host JOIN n AS number ON number.n < 5 JOIN first;
        COMMIT;";
    store.execute_batch(sql).expect("the tables of the store");
}

/// A table of the copy, and where its rows are in the embedded store.
struct Table {
    name: String,
    /// Expressions of SQL in each engine, in the same order.
    sqlite: String,
    postgres: String,
}

impl Table {
    /// The columns of the copy that the embedded store has, too.
    fn of(url: &str, name: &str) -> Table {
        let sql = format!(
            "SELECT column_name || ' ' || data_type FROM information_schema.columns \
             WHERE table_schema = 'public' AND table_name = '{name}' ORDER BY ordinal_position"
        );
        let columns = psql(url, &sql);
        let columns = columns.lines().filter_map(|line| line.split_once(' '));
        // Servers write these columns about sessions; the embedded store has none of them.
        let of_servers = |column: &str| match name {
            "sessions" => column == "holder",
            "ops" => ["epoch", "connected"].contains(&column),
            _ => false,
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (column, data_type) in columns.filter(|(column, _)| !of_servers(column)) {
            theirs.push(match data_type {
                "bytea" => format!("upper(encode({column}, 'hex'))"),
                "boolean" => format!("{column}::int"),
                _ => column.to_owned(),
            });
            ours.push(match (name, column) {
                ("user_tokens", "user_name") => "user".to_owned(),
                ("tasks", "is_open") => "open > 0".to_owned(),
                ("idempotency_keys" | "request_ids", "app" | "created_at") => format!("submissions.{column}"),
                ("event_counter", "id") => "1".to_owned(),
                ("event_counter", "last") => "coalesce(max(seq), 0)".to_owned(),
                _ => column.to_owned(),
            });
        }
        let from = match name {
            "sessions" => "agents",
            "task_counts" => "tasks",
            "outcomes" => "ops WHERE code IS NOT NULL",
            "idempotency_keys" => "submissions JOIN tasks ON number = task WHERE kind = 0",
            "request_ids" => "submissions JOIN tasks ON number = task WHERE kind = 1",
            "event_counter" => "sqlite_sequence WHERE name = 'events'",
            same => same,
        };
        Table {
            name: name.to_owned(),
            sqlite: format!("SELECT {} FROM {from}", ours.join(", ")),
            postgres: format!("SELECT json_build_array({}) FROM {name}", theirs.join(", ")),
        }
    }

    fn rows_in_sqlite(&self, store: &Connection) -> Vec<String> {
        let mut statement =
            store.prepare(&self.sqlite).unwrap_or_else(|error| panic!("{}: {error}", self.sqlite));
        let columns = statement.column_count();
        let mut rows = statement.query([]).expect("readable");
        let mut found = Vec::new();
        while let Some(row) = rows.next().expect("readable") {
            let value = |column| match row.get_ref(column).expect("a column") {
                ValueRef::Null => Value::Null,
                ValueRef::Integer(number) => number.into(),
                ValueRef::Real(number) => number.into(),
                ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
                ValueRef::Blob(bytes) => {
                    bytes.iter().map(|byte| format!("{byte:02X}")).collect::<String>().into()
                }
            };
            found.push(Value::from_iter((0..columns).map(value)).to_string());
        }
        found.sort();
        found
    }

    fn rows_in_postgres(&self, url: &str) -> Vec<String> {
        let said = psql(url, &self.postgres);
        let value = |line: &str| serde_json::from_str::<Value>(line).expect("JSON").to_string();
        let mut rows: Vec<String> = said.lines().map(value).collect();
        rows.sort();
        rows
    }

    #[track_caller]
    fn assert_same_in_both(&self, store: &Connection, url: &str) -> usize {
        let (originals, copies) = (self.rows_in_sqlite(store), self.rows_in_postgres(url));
        let differing = originals.iter().zip(&copies).find(|(original, copied)| original != copied);
        assert_eq!(differing, None, "the table {}", self.name);
        assert_eq!(originals.len(), copies.len(), "the table {}", self.name);
        originals.len()
    }
}

/// The identity of each agent: id, host, time of joining, certificate.
const IDENTITIES: &str = "agent_id || ' ' || ip || ' ' || enrolled_at || ' '";

fn epochs(url: &str) -> Vec<i64> {
    let sql = "SELECT epoch FROM sessions JOIN agents USING (agent_id) WHERE cloud_id <> 7 ORDER BY ip";
    psql(url, sql).lines().map(|epoch| epoch.parse().expect("a number")).collect()
}

fn is_connected_again(url: &str, before: &[i64]) -> bool {
    epochs(url).iter().zip(before).all(|(epoch, before)| epoch > before)
}

#[test]
fn a_store_of_a_hundred_thousand_procs_is_copied_under_live_agents() {
    let mut up = up();
    let proc = up.proc("first").starts(&programs::foreground());
    let first = proc.submit(Op::Start).id;
    up.client.outcome(&first).assert_success();
    let pid = proc.wait_for_program();
    up.end(Signal::TERM);
    fill(&up.data().join("server.db"));
    up.again_with_the_same_link();
    drop(fleet(&up, AGENTS, "{}"));
    // They have no token. They know of a server that is not there yet, so none of them pauses for a minute
    // before it looks for a server again.
    let mut plan = plan(&up, AGENTS, "{}");
    plan.servers.push("https://127.0.0.1:9".parse().expect("an address"));
    let fleet = Fleet::start(plan).expect("the fleet starts");
    wait_until_connected(&fleet);

    // A rehearsal, while the agents work.
    let url = Cluster::shared().database();
    let running = operate(&up, AGENTS, Op::Restart);
    copy(&up, &url, "what it stores from now on is not in the copy");
    assert_eq!(outcomes(&up, AGENTS, &running), [(0, AGENTS)]);
    let stamp = first.split(':').nth(1).expect("a stamp");
    let stored = format!("GSETASK:{stamp}:1500");
    let results = up.client.results_now(&stored);
    assert_eq!(results.len(), 20);
    up.end(Signal::TERM);
    let copied = copy(&up, &url, "start a server with --store on this copy");

    let names: Vec<&str> = copied
        .stdout
        .lines()
        .filter(|line| line.contains("the same in both stores"))
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(copied.stdout.contains(&format!(": {} tables, ", names.len())), "{copied:?}");
    let path = up.data().join("server.db");
    let store = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).expect("the store");
    for name in &names {
        let rows = Table::of(&url, name).assert_same_in_both(&store, &url);
        let printed = format!("{name:<20} {rows:>9} rows, the same in both stores");
        assert!(copied.stdout.contains(&printed), "{printed}: {copied:?}");
        let at_least = match *name {
            "procs" => PROCS + AGENTS + 1,
            "tasks" | "task_counts" => TASKS + 2,
            "ops" | "outcomes" => TASKS * 20 + 1 + AGENTS,
            "events" => TASKS * 5,
            "idempotency_keys" | "request_ids" => TASKS / 2,
            "agents" | "sessions" | "certificates" => TASKS + AGENTS + 1,
            _ => 0,
        };
        assert!(rows >= at_least, "{name}: {rows}");
    }
    let sql = format!("SELECT {IDENTITIES} || hex(certificate_sha256) FROM agents ORDER BY agent_id");
    let mut statement = store.prepare(&sql).expect("the table of agents");
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("readable");
    let joined: Vec<String> = rows.collect::<Result<_, _>>().expect("readable");
    drop(statement);
    drop(store);
    remove_embedded_store(&up);

    let before = epochs(&url);
    assert_eq!(before.len(), AGENTS + 1);
    up.add_flags(&["--store", &url]);
    up.again_with_the_same_link();
    wait_until_connected(&fleet);
    wait_until(GATHERING, "every agent has a new session", || is_connected_again(&url, &before));
    let sql = format!(
        "SELECT {IDENTITIES} || upper(encode(certificate_sha256, 'hex')) FROM agents ORDER BY agent_id"
    );
    let now = psql(&url, &sql);
    assert_eq!(now.lines().collect::<Vec<_>>(), joined, "nobody has joined again");
    assert_eq!(up.client.results_now(&stored), results, "an old task answers the same");
    assert_eq!(psql(&url, "SELECT count(*) FROM procs WHERE namespace = 'stored'"), PROCS.to_string());
    let task = operate(&up, AGENTS, Op::Restart);
    assert_eq!(outcomes(&up, AGENTS, &task), [(0, AGENTS)]);
    let figures = fleet.figures();
    assert_eq!((figures.begun, figures.refusals), (2 * AGENTS as u64, 0), "{figures}");
    let proc = up.proc("first").starts(&programs::foreground());
    assert_eq!(proc.op(Op::Query).pid(), Some(pid), "the process went on");
    proc.op(Op::Stop).assert_success();
}
