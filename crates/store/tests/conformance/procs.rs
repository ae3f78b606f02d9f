//! Procs as the agents report them.

use super::*;
use procfleet_core::grants::GrantScope;
use procfleet_proto::http::cursor::ProcOrder;
use procfleet_store::limits;

/// By agent.
async fn all(store: &Store) -> Vec<ProcRecord> {
    let page = store.list_procs(every_proc(), ProcOrder::Host, None, 1_000_000).await.expect("no error");
    let mut procs = page.procs;
    procs.sort_by(|(one, _, _), (other, _, _)| one.cmp(other));
    procs.into_iter().map(|(_, _, record)| record).collect()
}

on_each_engine!(an_older_status_never_replaces_a_newer_one);
async fn an_older_status_never_replaces_a_newer_one(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    let check = async |records: Vec<ProcRecord>, expected: ProcRecord| {
        store.put_procs(&agent("a"), NEVER_CONNECTED, records, Vec::new()).await.expect("stored");
        assert_eq!(all(&store).await, [expected]);
    };
    check(vec![said("nginx", 5, "five")], said("nginx", 5, "five")).await;
    check(vec![said("nginx", 4, "four")], said("nginx", 5, "five")).await;
    check(vec![said("nginx", 5, "again")], said("nginx", 5, "five")).await;
    check(vec![said("nginx", 7, "seven"), said("nginx", 6, "six")], said("nginx", 7, "seven")).await;
    check(vec![said("nginx", u64::MAX, "max")], said("nginx", i64::MAX.unsigned_abs(), "max")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proc_is_found_after_others_have_moved_its_row() {
    let Fixture { folder, store } = TestEngine::Postgres.with_agents(&["a"]).await;
    let other = TestEngine::Postgres.reopen(&folder).await.expect("a second server");
    let put = async |store: &Store, records: &[ProcRecord], gone: &[&str]| {
        let gone = gone.iter().copied().map(proc).collect();
        store.put_procs(&agent("a"), NEVER_CONNECTED, records.to_vec(), gone).await.expect("stored");
    };
    let first = [said("nginx", 1, "n1"), said("redis", 1, "r1")];
    put(&store, &first, &[]).await;
    put(&other, &[said("redis", 2, "r2")], &[]).await;
    put(&store, &[said("redis", 3, "r3")], &[]).await;
    assert_eq!(all(&store).await, [said("nginx", 1, "n1"), said("redis", 3, "r3")]);

    put(&other, &[], &["nginx"]).await;
    administrator(&folder).await.batch_execute("VACUUM FULL procs").await.expect("rewritten");
    let last = [said("nginx", 4, "n4"), said("redis", 4, "r4")];
    put(&store, &last, &[]).await;
    assert_eq!(all(&store).await, last);
}

on_each_engine!(a_full_list_replaces_all_of_one_agent);
async fn a_full_list_replaces_all_of_one_agent(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b"]).await;
    store
        .put_procs(
            &agent("a"),
            NEVER_CONNECTED,
            vec![said("nginx", 5, "5"), said("redis", 6, "6")],
            Vec::new(),
        )
        .await
        .expect("stored");
    store
        .put_procs(&agent("b"), NEVER_CONNECTED, vec![said("other", 9, "9")], Vec::new())
        .await
        .expect("stored");
    store.replace_procs(&agent("a"), NEVER_CONNECTED, vec![said("nginx", 1, "1")]).await.expect("stored");
    assert_eq!(all(&store).await, [said("nginx", 1, "1"), said("other", 9, "9")]);
    store.replace_procs(&agent("a"), NEVER_CONNECTED, Vec::new()).await.expect("stored");
    assert_eq!(all(&store).await, [said("other", 9, "9")]);
}

on_each_engine!(a_namespace_is_read_page_by_page);
async fn a_namespace_is_read_page_by_page(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["b", "a"]).await;
    let elsewhere = ProcKey { namespace: "db".to_owned(), name: "x".to_owned() };
    for name in ["b", "a"] {
        let other = ProcRecord { proc: elsewhere.clone(), ..said("x", 1, "") };
        let records = vec![said("z", 3, "z"), said("x", 1, "x"), other, said("y", 2, "y")];
        store.put_procs(&agent(name), NEVER_CONNECTED, records, Vec::new()).await.expect("stored");
    }
    let check = async |namespace: &str, start: u64, limit: u32, count: u64, expected: &[&str]| {
        let page = store.proc_page(namespace, &GrantScope::All, start, limit).await.expect("no error");
        let found = page.procs.iter().map(|(agent, host, record)| format!("{agent} {host} {}", record.proc));
        assert_eq!((page.count, found.collect::<Vec<_>>().join(", ")), (count, expected.join(", ")));
    };
    let all = [
        "a 3:10.0.0.2 web:x",
        "a 3:10.0.0.2 web:y",
        "a 3:10.0.0.2 web:z",
        "b 3:10.0.0.1 web:x",
        "b 3:10.0.0.1 web:y",
        "b 3:10.0.0.1 web:z",
    ];
    check("web", 0, 100, 6, &all).await;
    check("web", 0, 2, 6, &all[..2]).await;
    check("web", 2, 2, 6, &all[2..4]).await;
    check("web", 4, 5, 6, &all[4..]).await;
    check("web", 6, 5, 6, &[]).await;
    check("web", u64::MAX, 5, 6, &[]).await;
    check("db", 1, 1, 2, &["b 3:10.0.0.1 db:x"]).await;
    check("none", 0, 5, 0, &[]).await;

    let page = store.proc_page("web", &GrantScope::All, 2, 1).await.expect("no error");
    assert_eq!(page.procs[0].2, said("z", 3, "z"));
}

on_each_engine!(an_agent_above_its_number_of_procs_keeps_those_that_it_has);
async fn an_agent_above_its_number_of_procs_keeps_those_that_it_has(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b"]).await;
    let most = limits::PROCS;
    let many = (0..most + 5).map(|number| said(&format!("p{number}"), 1, "1")).collect();
    assert_eq!(store.replace_procs(&agent("a"), NEVER_CONNECTED, many).await.expect("stored"), 5);
    assert_eq!(all(&store).await.len(), most);
    let mixed = vec![said("new", 2, "2"), said("p0", 2, "2")];
    assert_eq!(
        store.put_procs(&agent("a"), NEVER_CONNECTED, mixed.clone(), Vec::new()).await.expect("stored"),
        1
    );
    assert!(all(&store).await.contains(&said("p0", 2, "2")), "what is known is still updated");
    assert_eq!(
        store.put_procs(&agent("b"), NEVER_CONNECTED, mixed.clone(), Vec::new()).await.expect("stored"),
        0,
        "another agent"
    );
    let gone = vec![proc("p1")];
    assert_eq!(
        store.put_procs(&agent("a"), NEVER_CONNECTED, mixed, gone).await.expect("stored"),
        0,
        "there is room again"
    );
}

on_each_engine!(large_states_of_one_agent_are_bounded_together);
async fn large_states_of_one_agent_are_bounded_together(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    let size = limits::LARGE_STATES / 4;
    let large = |name: &str| said(name, 1, &"x".repeat(size));
    let some = vec![large("p1"), large("p2"), large("p3")];
    assert_eq!(store.put_procs(&agent("a"), NEVER_CONNECTED, some, Vec::new()).await.expect("stored"), 0);
    let more = vec![large("p4"), large("p5"), said("small", 1, "1")];
    assert_eq!(store.put_procs(&agent("a"), NEVER_CONNECTED, more, Vec::new()).await.expect("stored"), 1);
    let mut names: Vec<String> = all(&store).await.into_iter().map(|record| record.proc.name).collect();
    names.sort();
    assert_eq!(names, ["p1", "p2", "p3", "p4", "small"]);
}
