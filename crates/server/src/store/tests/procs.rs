//! What agents said about their procs.

use super::*;

fn said(name: &str, revision: u64, status: &str) -> ProcRecord {
    ProcRecord { proc: proc(name), revision, status: status.to_owned() }
}

async fn all(store: &Store) -> Vec<ProcRecord> {
    store
        .procs(ProcFilter::default())
        .await
        .expect("no error")
        .into_iter()
        .map(|(_, record)| record)
        .collect()
}

#[tokio::test]
async fn an_older_status_never_replaces_a_newer_one() {
    let Fixture { folder: _folder, store } = fixture_with_agents(&["a"]).await;
    let check = async |records: Vec<ProcRecord>, expected: ProcRecord| {
        store.put_procs(&agent("a"), records, Vec::new()).await.expect("stored");
        assert_eq!(all(&store).await, [expected]);
    };
    check(vec![said("nginx", 5, "five")], said("nginx", 5, "five")).await;
    check(vec![said("nginx", 4, "four")], said("nginx", 5, "five")).await;
    check(vec![said("nginx", 5, "again")], said("nginx", 5, "five")).await;
    check(vec![said("nginx", 7, "seven"), said("nginx", 6, "six")], said("nginx", 7, "seven")).await;
    check(vec![said("nginx", u64::MAX, "max")], said("nginx", i64::MAX.unsigned_abs(), "max")).await;
}

#[tokio::test]
async fn a_full_list_replaces_all_of_one_agent() {
    let Fixture { folder: _folder, store } = fixture_with_agents(&["a", "b"]).await;
    store
        .put_procs(&agent("a"), vec![said("nginx", 5, "5"), said("redis", 6, "6")], Vec::new())
        .await
        .expect("stored");
    store.put_procs(&agent("b"), vec![said("other", 9, "9")], Vec::new()).await.expect("stored");
    store.replace_procs(&agent("a"), vec![said("nginx", 1, "1")]).await.expect("stored");
    assert_eq!(all(&store).await, [said("nginx", 1, "1"), said("other", 9, "9")]);
    store.replace_procs(&agent("a"), Vec::new()).await.expect("stored");
    assert_eq!(all(&store).await, [said("other", 9, "9")]);
}

#[tokio::test]
async fn procs_are_found_by_any_part_of_their_name() {
    let Fixture { folder: _folder, store } = fixture_with_agents(&["a", "b"]).await;
    for name in ["b", "a"] {
        store
            .put_procs(&agent(name), vec![said("y", 1, ""), said("x", 1, "")], Vec::new())
            .await
            .expect("stored");
    }
    let check = async |who: Option<&str>, namespace: Option<&str>, name: Option<&str>, expected: &[&str]| {
        let filter = ProcFilter {
            agent: who.map(agent),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
        };
        let found = store.procs(filter).await.expect("no error");
        let found: Vec<String> =
            found.iter().map(|(agent, record)| format!("{agent}:{}", record.proc)).collect();
        assert_eq!(found, expected);
    };
    check(None, None, None, &["a:web:x", "a:web:y", "b:web:x", "b:web:y"]).await;
    check(Some("b"), None, None, &["b:web:x", "b:web:y"]).await;
    check(None, Some("web"), Some("y"), &["a:web:y", "b:web:y"]).await;
    check(Some("a"), Some("web"), Some("y"), &["a:web:y"]).await;
    check(None, Some("db"), None, &[]).await;
    check(Some("nobody"), None, None, &[]).await;
}
