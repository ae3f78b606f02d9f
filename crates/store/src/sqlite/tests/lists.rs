//! What a page of a list costs, and lists after an upgrade of the schema.

use super::super::{agent_list, proc_list, schema};
use super::*;
use procfleet_proto::http::cursor::{AgentCursor, AgentOrder, ProcOrder};
use rusqlite::{StatementStatus, params_from_iter};

#[tokio::test]
async fn a_page_of_100_000_procs_reads_the_rows_of_the_page() {
    const LIMIT: u32 = 100;
    let Fixture { folder, store } = fixture_with_agents(&["a"]).await;
    store
        .write("filling the store", |db| {
            db.execute_batch(
                "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999) \
                 INSERT INTO agents (agent_id, cloud_id, ip, certificate_sha256, version, enrolled_at, connected, \
                 changed_at, epoch, business_id, host_order) \
                 SELECT printf('h%04d', i), 0, printf('10.1.%d.%d', i / 256, i % 256), zeroblob(32), '1', 0, 0, i, 0, 1, \
                 printf('0000000040a01%04x', i) FROM n; \
                 WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99) \
                 INSERT INTO procs (agent, namespace, name, revision, status_json, host_order, state, start_rank, failed) \
                 SELECT agent_id, 'ns' || (i % 4), printf('p%02d', i), 1, '{}', host_order, \
                 iif(i % 10 = 0, 'stopped', 'running'), -i, 0 FROM agents, n WHERE agent_id != 'a';",
            )?;
            Ok(())
        })
        .await
        .expect("filled");
    let first = store.list_procs(every_proc(), ProcOrder::Host, None, LIMIT).await.expect("no error");
    assert_eq!((first.procs.len(), first.total), (100, 100_000));

    let db = Connection::open(path(&folder)).expect("a database");
    let check = |what: &str, (sql, values): (String, Vec<rusqlite::types::Value>), index: &str| {
        let mut explain = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a statement");
        let plan = explain.query_map(params_from_iter(&values), |row| row.get::<_, String>(3));
        let plan: Vec<String> = plan.expect("a plan").map(|line| line.expect("a line")).collect();
        assert!(plan.iter().any(|line| line.contains(index)), "{what} does not use {index}: {plan:#?}");
        let mut statement = db.prepare(&sql).expect("a statement");
        let mut rows = statement.query(params_from_iter(&values)).expect("rows");
        let mut count: u32 = 0;
        while rows.next().expect("a row").is_some() {
            count += 1;
        }
        drop(rows);
        assert_eq!(count, LIMIT + 1, "{what}");
        // A scan of all rows would need at least five steps for each of them.
        let steps = statement.get_status(StatementStatus::VmStep);
        assert!(steps < 40_000, "{what} takes {steps} steps: {plan:#?}");
    };
    let namespace = || Some("ns1".to_owned());
    for (what, filter, order, index) in [
        ("by host", every_proc(), ProcOrder::Host, "procs_by_host"),
        ("by name", every_proc(), ProcOrder::Name, "procs_by_name"),
        ("by state", every_proc(), ProcOrder::State, "procs_by_state"),
        ("by start", every_proc(), ProcOrder::Since, "procs_by_start"),
        (
            "of a namespace",
            ProcFilter { namespace: namespace(), ..every_proc() },
            ProcOrder::Host,
            "procs_by_namespace_and_host",
        ),
        (
            "of one name",
            ProcFilter { namespace: namespace(), name: Some("p01".to_owned()), ..every_proc() },
            ProcOrder::Host,
            "procs_by_name",
        ),
        (
            "in a state",
            ProcFilter { state: Some("stopped"), ..every_proc() },
            ProcOrder::Host,
            "procs_by_state",
        ),
    ] {
        check(what, proc_list::page(&filter, order, None, LIMIT), index);
        // A page in the middle costs as much as the first.
        let half = store.list_procs(filter.clone(), order, None, 500).await.expect("no error").next;
        assert!(half.is_some(), "{what} has more");
        check(what, proc_list::page(&filter, order, half.as_ref(), LIMIT), index);
    }
    for (order, index) in [
        (AgentOrder::Id, "PRIMARY KEY"),
        (AgentOrder::Host, "agents_in_host_order"),
        (AgentOrder::Version, "agents_by_version"),
        (AgentOrder::State, "agents_by_state"),
        (AgentOrder::Heard, "agents_by_heard"),
    ] {
        let all = AgentFilter::of(&GrantScope::All);
        let half = store.list_agents(all.clone(), order, None, 500).await.expect("no error").next;
        let half = half.map(AgentCursor::of);
        check(order.word(), agent_list::page(&all, order, half.as_ref(), LIMIT), index);
    }
}

/// A store of the version before lists had columns of their own.
#[tokio::test]
async fn stored_procs_are_listed_after_the_upgrade() {
    let folder = tempfile::tempdir().expect("a temp folder");
    let db = Connection::open(path(&folder)).expect("a database");
    for migration in &schema::MIGRATIONS.0[..16] {
        db.execute_batch(migration).expect("applied");
    }
    let agent = |name: &str, ip: &str| {
        format!(
            "INSERT INTO agents (agent_id, cloud_id, ip, certificate_sha256, version, enrolled_at, connected, changed_at, \
             epoch, business_id) VALUES ('{name}', 0, '{ip}', x'{}', '1', 0, 0, 0, 0, 1);",
            "00".repeat(32)
        )
    };
    let proc = |agent: &str, name: &str, status: &str| {
        format!("INSERT INTO procs VALUES ('{agent}', 'web', '{name}', 1, '{status}');")
    };
    let rows = [
        agent("b", "10.0.0.10"),
        agent("a", "10.0.0.9"),
        agent("c", "fe80::1"),
        proc("b", "p", r#"{"state": "changing", "doing": "stopping", "started_at": 5}"#),
        proc("a", "p", r#"{"state": "running", "note": "over limit", "started_at": 7}"#),
        proc("c", "p", "not JSON"),
    ];
    db.execute_batch(&rows.concat()).expect("filled");
    db.pragma_update(None, "user_version", 16).expect("written");
    drop(db);

    let store = Store::open(&path(&folder)).await.expect("upgraded");
    let page = store.list_procs(every_proc(), ProcOrder::Host, None, 10).await.expect("no error");
    let found: Vec<(String, ProcListing)> =
        page.procs.into_iter().map(|(_, host, record)| (host.to_string(), record.listing)).collect();
    let listing = |state: &str, started_at: i64, failed: bool| ProcListing {
        state: state.to_owned(),
        started_at,
        failed,
    };
    assert_eq!(
        found,
        [
            ("0:10.0.0.9".to_owned(), listing("running", 7, true)),
            ("0:10.0.0.10".to_owned(), listing("stopping", 5, false)),
            ("0:fe80::1".to_owned(), listing("", 0, false)),
        ]
    );
}
