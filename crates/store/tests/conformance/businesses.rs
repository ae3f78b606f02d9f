//! Businesses, their agents, and who finds which.

use super::*;
use procfleet_core::grants::GrantScope;
use std::collections::BTreeSet;

fn note() -> NewAudit {
    NewAudit { action: "business".to_owned(), ..NewAudit::default() }
}

fn business(id: u32, name: &str) -> Business {
    Business { id: BusinessId(id), name: name.to_owned() }
}

fn only(ids: &[u32]) -> GrantScope<BusinessId> {
    GrantScope::Only(ids.iter().copied().map(BusinessId).collect::<BTreeSet<_>>())
}

on_each_engine!(there_is_one_from_the_beginning_and_others_are_made_once);
async fn there_is_one_from_the_beginning_and_others_are_made_once(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    assert_eq!(store.businesses().await.expect("no error"), [business(1, "default")]);
    store.create_business(business(7, "shop"), note()).await.expect("made");
    for taken in [business(7, "other"), business(8, "shop"), business(1, "mine")] {
        let refused = store.create_business(taken, note()).await;
        assert!(matches!(refused, Err(StoreError::Exists { .. })), "{refused:?}");
    }
    assert_eq!(store.businesses().await.expect("no error"), [business(1, "default"), business(7, "shop")]);
    assert_eq!(store.list_audit(10, AuditFilter::default()).await.expect("no error").records.len(), 1);
}

on_each_engine!(sets_hold_businesses_that_exist);
async fn sets_hold_businesses_that_exist(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    store.create_business(business(7, "shop"), note()).await.expect("made");
    let set = |id: u32, businesses: &[u32]| BusinessSet {
        id,
        name: format!("set {id}"),
        businesses: businesses.iter().copied().map(BusinessId).collect(),
    };
    store.create_business_set(set(2, &[7, 1]), note()).await.expect("made");
    let missing = store.create_business_set(set(3, &[1, 9]), note()).await.expect_err("there is no 9");
    assert_eq!(missing.to_string(), "there is no business 9");
    let twice = store.create_business_set(set(2, &[1]), note()).await;
    assert!(matches!(twice, Err(StoreError::Exists { .. })), "{twice:?}");
    assert_eq!(store.business_sets().await.expect("no error"), [set(2, &[1, 7])]);
}

on_each_engine!(agents_belong_where_their_token_says_until_they_are_assigned);
async fn agents_belong_where_their_token_says_until_they_are_assigned(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b"]).await;
    store.create_business(business(7, "shop"), note()).await.expect("made");
    let shop = NewToken { id: "t2".to_owned(), business: BusinessId(7), ..token(5) };
    store.create_token(shop).await.expect("a token");
    let shown = TokenUse { id: "t2".to_owned(), secret_hash: SECRET };
    store.join(shown, joining("c", 3), 1_500).await.expect("no error").expect("joined");
    let belong = async || {
        let agents = store.all_agents().await.expect("no error");
        agents.into_iter().map(|agent| agent.business.0).collect::<Vec<_>>()
    };
    assert_eq!(belong().await, [1, 1, 7]);
    store.assign(vec![agent("a"), agent("c")], BusinessId(7), note()).await.expect("assigned");
    assert_eq!(belong().await, [7, 1, 7]);

    // All or none.
    let nobody = store.assign(vec![agent("b"), agent("x")], BusinessId(7), note()).await;
    assert!(matches!(nobody, Err(StoreError::NoSuchAgent(_))), "{nobody:?}");
    let nowhere = store.assign(vec![agent("b")], BusinessId(9), note()).await;
    assert!(matches!(nowhere, Err(StoreError::Missing { .. })), "{nowhere:?}");
    assert_eq!(belong().await, [7, 1, 7]);
    let nowhere = NewToken { id: "t3".to_owned(), business: BusinessId(9), ..token(5) };
    assert!(store.create_token(nowhere).await.is_err(), "a token of no business");
}

on_each_engine!(agents_outside_the_business_are_not_found);
async fn agents_outside_the_business_are_not_found(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b"]).await;
    store.create_business(business(7, "shop"), note()).await.expect("made");
    store.assign(vec![agent("b")], BusinessId(7), note()).await.expect("assigned");
    let targets = [Target::Host(host(1)), Target::Agent(agent("b")), Target::Host(host(9))];
    let (a, b) = (FoundTarget::Agent(agent("a")), FoundTarget::Agent(agent("b")));
    for (scope, expected) in [
        (GrantScope::All, [a.clone(), b.clone(), FoundTarget::Nowhere]),
        (only(&[1, 7]), [a.clone(), b.clone(), FoundTarget::Nowhere]),
        (only(&[1]), [a, FoundTarget::Outside, FoundTarget::Nowhere]),
        (only(&[7]), [FoundTarget::Outside, b, FoundTarget::Nowhere]),
        (only(&[]), [FoundTarget::Outside, FoundTarget::Outside, FoundTarget::Nowhere]),
    ] {
        assert_eq!(store.resolve_within(&targets, &scope).await.expect("no error"), expected, "{scope:?}");
    }

    let status = said("nginx", 1, "{}");
    for name in ["a", "b"] {
        store
            .put_procs(&agent(name), NEVER_CONNECTED, vec![status.clone()], Vec::new())
            .await
            .expect("stored");
    }
    for (scope, count) in [(GrantScope::All, 2), (only(&[1, 7]), 2), (only(&[7]), 1), (only(&[]), 0)] {
        let page = store.proc_page("web", &scope, 0, 10).await.expect("no error");
        assert_eq!(
            (page.count, page.procs.len()),
            (count, usize::try_from(count).expect("few")),
            "{scope:?}"
        );
    }
}

on_each_engine!(an_op_may_have_ended_before_it_began);
async fn an_op_may_have_ended_before_it_began(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b"]).await;
    let mut new = new_task(&["a", "b"]);
    let outcome = Outcome::without_status(Code::NotAllowed, "outside", OpKind::Start);
    (new.ops[1].agent, new.ops[1].ended) = (None, Some(Box::new(outcome.clone())));
    let id = store.create_task(new).await.expect("a task");
    let (record, ops) = store.task_results(id).await.expect("no error").expect("the task");
    assert_eq!(record.counts, TaskCounts { total: 2, open: 1, succeeded: 0, failed: 1 });
    assert_eq!((ops[0].outcome.as_ref(), ops[0].ended_at), (None, None));
    assert_eq!((ops[1].outcome.as_ref(), ops[1].ended_at), (Some(&outcome), Some(1_000)));
    let open = store.open_ops(OpScope::All).await.expect("no error");
    assert_eq!(open.iter().map(|row| row.op).collect::<Vec<_>>(), [op(id, 0)]);

    let applied = store.finish_ops(vec![finished(op(id, 1), None, Code::Success)]).await.expect("applied");
    assert_eq!(applied, [Applied::Already]);
}

on_each_engine!(tasks_are_listed_by_app);
async fn tasks_are_listed_by_app(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let mine = store.create_task(new_task(&["a"])).await.expect("a task");
    store.create_task(NewTask { app: "other".to_owned(), ..new_task(&["a"]) }).await.expect("a task");
    let of_console = TaskFilter { app: Some("console".to_owned()), ..TaskFilter::default() };
    let listed = store.list_tasks(of_console, None, 5).await.expect("no error");
    let ids: Vec<TaskId> = listed.tasks.iter().map(|task| task.id).collect();
    assert_eq!((ids, listed.total, listed.next), (vec![mine], 1, None));
    assert_eq!(newest(&store, 5).await.len(), 2);
}
