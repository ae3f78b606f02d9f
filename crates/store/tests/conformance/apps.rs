//! Apps, their grants, and what the log may show of them.

use super::*;
use procfleet_core::grants::{Dimension, Grants};

fn row(code: &str) -> AppRow {
    AppRow {
        code: code.to_owned(),
        secret_hash: SECRET,
        trust: AppTrust::Itself,
        created_at: 1,
        disabled_at: None,
        grants: Grants::default(),
    }
}

fn grants(words: &[(Dimension, &str)]) -> Grants {
    let mut grants = Grants::default();
    words.iter().for_each(|(dimension, text)| grants.add(*dimension, text).expect("a grant"));
    grants
}

fn note(action: &str) -> NewAudit {
    NewAudit { action: action.to_owned(), app: "admin".to_owned(), ..NewAudit::default() }
}

async fn actions(store: &Store, filter: AuditFilter) -> Vec<String> {
    let rows = store.list_audit(10, filter).await.expect("no error").records;
    rows.into_iter().map(|row| row.entry.action).collect()
}

on_each_engine!(an_app_is_made_once);
async fn an_app_is_made_once(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    assert_eq!(store.app("console").await.expect("no error"), None);
    store.create_app(new_app("console"), Some(note("one"))).await.expect("an app");
    let again = NewApp { secret_hash: [8; 32], ..new_app("console") };
    let exists = store.create_app(again, Some(note("two"))).await.expect_err("there is one");
    assert_eq!(exists.to_string(), "there is already an app console");
    assert_eq!(store.app("console").await.expect("no error"), Some(row("console")));
    assert_eq!(actions(&store, AuditFilter::default()).await, ["one"], "what failed left no record");
}

on_each_engine!(an_app_is_changed_together_with_its_record);
async fn an_app_is_changed_together_with_its_record(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    store.create_app(NewApp { trust: AppTrust::Users, ..new_app("b") }, None).await.expect("an app");
    store.create_app(new_app("a"), None).await.expect("an app");
    let change = async |change: AppChange| {
        store.change_app("b", change, note("change")).await.expect("changed");
        store.app("b").await.expect("no error").expect("there is one")
    };
    let as_made = AppRow { trust: AppTrust::Users, ..row("b") };
    let rotated = AppRow { secret_hash: [8; 32], ..as_made };
    assert_eq!(change(AppChange::Secret([8; 32])).await, rotated);
    let disabled = AppRow { disabled_at: Some(5), ..rotated.clone() };
    assert_eq!(change(AppChange::Disable(5)).await, disabled);
    assert_eq!(change(AppChange::Disable(6)).await, disabled, "it keeps the first moment");
    assert_eq!(change(AppChange::Enable).await, rotated);
    assert_eq!(store.apps().await.expect("no error"), [row("a"), rotated]);
    assert_eq!(actions(&store, AuditFilter::default()).await, ["change"; 4]);

    let nobody = store.change_app("c", AppChange::Enable, note("vain")).await.expect_err("no such app");
    assert_eq!(nobody.to_string(), "there is no app c");
    assert_eq!(actions(&store, AuditFilter::default()).await.len(), 4);
}

on_each_engine!(grants_come_and_go);
async fn grants_come_and_go(engine: TestEngine) {
    let Fixture { folder, store } = engine.fixture().await;
    store.create_app(new_app("a"), None).await.expect("an app");
    store.create_app(new_app("b"), None).await.expect("an app");
    let change = async |store: &Store, change: GrantChange| {
        store.change_grants("a", change, note("grants")).await.expect("no error")
    };
    let (web, start) = (grants(&[(Dimension::Namespace, "web*")]), grants(&[(Dimension::Op, "start")]));
    let both = web.clone().with(start.clone());
    assert_eq!(change(&store, GrantChange::Grant(web.clone())).await, Ok(web.clone()));
    assert_eq!(change(&store, GrantChange::Grant(start.clone())).await, Ok(both.clone()));
    assert_eq!(change(&store, GrantChange::Grant(start.clone())).await, Ok(both.clone()));
    store.close().await.expect("closed");
    let store = engine.reopen(&folder).await.expect("it opens again");
    assert_eq!(store.app("a").await.expect("no error").expect("an app").grants, both);
    assert_eq!(store.app("b").await.expect("no error").expect("an app").grants, Grants::default());

    // Nothing is changed and nothing recorded where it would go on by another grant.
    let narrower = GrantChange::Revoke(grants(&[(Dimension::Namespace, "web1")]));
    assert!(change(&store, narrower).await.is_err());
    assert_eq!(actions(&store, AuditFilter::default()).await, ["grants"; 3]);
    assert_eq!(change(&store, GrantChange::Revoke(web)).await, Ok(start));
    assert_eq!(change(&store, GrantChange::Revoke(Grants::everything())).await, Ok(Grants::default()));
    let nobody = store.change_grants("c", GrantChange::Grant(both), note("vain")).await;
    assert!(matches!(nobody, Err(StoreError::Missing { .. })), "{nobody:?}");
}

on_each_engine!(the_audit_is_searched);
async fn the_audit_is_searched(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    for (at, app, action, code) in [(10, "a", "x", 0), (20, "b", "x", 7), (30, "a", "y", 0)] {
        let entry = NewAudit { at, app: app.to_owned(), code, ..note(action) };
        store.audit(entry).await.expect("written");
    }
    // A refusal that was repeated until later.
    let refused = NewAudit { at: 5, app: "b".to_owned(), code: 9, ..note("z") };
    let counted = AuditCount { row: None, times: 3, last_at: 25 };
    store.count_audit(vec![(refused, counted)]).await.expect("written");
    let check = async |filter: AuditFilter, expected: &[&str]| {
        let page = store.list_audit(10, filter.clone()).await.expect("no error");
        assert_eq!(page.total, expected.len() as u64, "{filter:?}");
        assert_eq!(actions(&store, filter.clone()).await, expected, "{filter:?}");
    };
    let all = AuditFilter::default;
    let by = |app: &str| AuditFilter { app: Some(app.to_owned()), ..all() };
    let doing = |action: &str, filter: AuditFilter| AuditFilter { action: Some(action.to_owned()), ..filter };
    let since = |since: i64, filter: AuditFilter| AuditFilter { since: Some(since), ..filter };
    check(all(), &["z", "y", "x", "x"]).await;
    check(by("a"), &["y", "x"]).await;
    check(doing("x", all()), &["x", "x"]).await;
    check(doing("y", by("b")), &[]).await;
    check(AuditFilter { failed: true, ..all() }, &["z", "x"]).await;
    check(AuditFilter { failed: true, ..by("a") }, &[]).await;
    check(since(10, all()), &["z", "y", "x", "x"]).await;
    check(since(11, all()), &["z", "y", "x"]).await;
    check(since(25, all()), &["z", "y"]).await;
    check(since(26, all()), &["y"]).await;
    check(since(31, all()), &[]).await;
    check(since(11, doing("x", by("b"))), &["x"]).await;
    check(AuditFilter { failed: true, ..since(21, all()) }, &["z"]).await;
}

#[test]
fn hashes_stay_out_of_logs() {
    let shown = [
        format!("{:?}", row("console")),
        format!("{:?}", new_app("console")),
        format!("{:?}", AppChange::Secret(SECRET)),
        format!("{:?}", token(1)),
        format!("{:?}", shown()),
    ];
    shown.iter().for_each(|shown| assert!(!shown.contains("[7"), "{shown}"));
}
