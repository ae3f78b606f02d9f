//! Process groups as the agents report them.

use super::*;
use procfleet_core::spec::ProcessGroup;
use procfleet_store::limits;

fn groups(namespace: &str, revision: u64, ids: &[&str]) -> GroupsRecord {
    let group = |id: &&str| ProcessGroup {
        id: (*id).to_owned(),
        cpu_pool_limit: Some(20.5),
        ..ProcessGroup::default()
    };
    GroupsRecord { namespace: namespace.to_owned(), revision, groups: ids.iter().map(group).collect() }
}

on_each_engine!(the_agents_word_counts);
async fn the_agents_word_counts(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b"]).await;
    let seen = async |namespace: &str| {
        let agents = vec![agent("a"), agent("b"), agent("b"), agent("unknown")];
        let found = store.process_groups(namespace, agents).await.expect("no error");
        let ids =
            |groups: &Vec<ProcessGroup>| groups.iter().map(|group| group.id.clone()).collect::<String>();
        let mut found: Vec<String> =
            found.iter().map(|(agent, groups)| format!("{agent}={}", ids(groups))).collect();
        found.sort();
        found.join(" ")
    };
    let put = async |agent_id: &str, record: GroupsRecord| {
        store.put_process_groups(&agent(agent_id), NEVER_CONNECTED, vec![record]).await.expect("stored");
    };
    put("a", groups("web", 2, &["x", "y"])).await;
    put("b", groups("web", 1, &["z"])).await;
    put("b", groups("db", 2, &["q"])).await;
    assert_eq!((seen("web").await, seen("db").await), ("a=xy b=z".to_owned(), "b=q".to_owned()));
    let of_a = store.process_groups("web", vec![agent("a")]).await.expect("no error");
    assert_eq!(Vec::from_iter(of_a.keys()), [&agent("a")], "nobody else's are read");
    assert!(store.process_groups("web", Vec::new()).await.expect("no error").is_empty());
    put("a", groups("web", 1, &["old"])).await;
    assert_eq!(seen("web").await, "a=xy b=z", "what is older is ignored");
    put("a", groups("web", 3, &[])).await;
    assert_eq!(seen("web").await, "b=z");
    // An agent that has lost its data begins with epoch 1 again.
    store
        .replace_process_groups(&agent("b"), NEVER_CONNECTED, vec![groups("web", 1, &["n"])])
        .await
        .expect("stored");
    assert_eq!((seen("web").await, seen("db").await), ("b=n".to_owned(), String::new()));

    store.join(shown(), joining("c", 2), 1_700).await.expect("no error").expect("joined");
    assert_eq!(seen("web").await, "", "they went with the agent");
    let late = store.put_process_groups(&agent("b"), NEVER_CONNECTED, vec![groups("web", 9, &["x"])]).await;
    assert!(matches!(late, Err(StoreError::NoSuchAgent(_))), "{late:?}");
}

on_each_engine!(an_agent_above_its_number_of_namespaces_keeps_those_that_it_has);
async fn an_agent_above_its_number_of_namespaces_keeps_those_that_it_has(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    let many = (0..limits::GROUP_NAMESPACES + 3).map(|number| groups(&format!("n{number}"), 1, &["x"]));
    assert_eq!(
        store.replace_process_groups(&agent("a"), NEVER_CONNECTED, many.collect()).await.expect("stored"),
        3
    );
    let mixed = vec![groups("new", 2, &["x"]), groups("n0", 2, &["y"])];
    assert_eq!(store.put_process_groups(&agent("a"), NEVER_CONNECTED, mixed).await.expect("stored"), 1);
    assert!(store.process_groups("new", vec![agent("a")]).await.expect("no error").is_empty());
    let known = store.process_groups("n0", vec![agent("a")]).await.expect("no error");
    assert_eq!(known[&agent("a")][0].id, "y", "what is known is still updated");
}
