//! Users and their tokens.

use super::*;

fn note(action: &str) -> NewAudit {
    NewAudit { action: action.to_owned(), ..NewAudit::default() }
}

fn token(user: &str, hash: u8, created_at: i64, expires_at: i64) -> NewUserToken {
    NewUserToken { user: user.to_owned(), token_hash: [hash; 32], created_at, expires_at }
}

on_each_engine!(a_token_is_its_users_until_it_expires_or_is_taken_back);
async fn a_token_is_its_users_until_it_expires_or_is_taken_back(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let holder = async |hash: u8, now: i64| store.token_holder([hash; 32], now).await.expect("no error");
    let ann = || "ann".to_owned();
    store.create_user("ann", 1, note("create")).await.expect("a user");
    store.create_user("bob", 1, note("create")).await.expect("a user");
    store.create_user_token(token("ann", 1, 5, 10), note("token")).await.expect("a token");
    store.create_user_token(token("bob", 2, 5, 10), note("token")).await.expect("a token");
    assert_eq!(holder(1, 9).await, TokenHolder::Valid(ann()));
    assert_eq!(holder(1, 10).await, TokenHolder::Expired(ann()));
    assert_eq!(holder(3, 9).await, TokenHolder::Unknown);

    store.change_user("ann", UserChange::Disable(6), note("disable")).await.expect("changed");
    store.change_user("ann", UserChange::Disable(7), note("disable")).await.expect("changed");
    assert_eq!(holder(1, 9).await, TokenHolder::Disabled(ann()));
    let seen = store.user("ann", 9).await.expect("no error");
    let expected = UserRow { name: ann(), created_at: 1, disabled_at: Some(6), tokens: 1 };
    assert_eq!(seen, Some(expected), "it keeps the first moment");
    store.change_user("ann", UserChange::Enable, note("enable")).await.expect("changed");
    assert_eq!(holder(1, 9).await, TokenHolder::Valid(ann()));
    store.change_user("ann", UserChange::RevokeTokens, note("revoke")).await.expect("changed");
    assert_eq!(holder(1, 9).await, TokenHolder::Unknown);
    assert_eq!(holder(2, 9).await, TokenHolder::Valid("bob".to_owned()), "only hers were taken back");
    let tokens: Vec<u64> = store.users(9).await.expect("no error").iter().map(|user| user.tokens).collect();
    assert_eq!(tokens, [0, 1]);
    assert_eq!(store.list_audit(20, AuditFilter::default()).await.expect("no error").records.len(), 8);
}

on_each_engine!(tokens_that_expired_long_ago_are_deleted_with_the_next_token);
async fn tokens_that_expired_long_ago_are_deleted_with_the_next_token(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let week = 7 * 86_400_000;
    store.create_user("ann", 1, note("")).await.expect("a user");
    store.create_user_token(token("ann", 1, 0, 10), note("")).await.expect("a token");
    store.create_user_token(token("ann", 2, week, week + 5), note("")).await.expect("a token");
    let ann = || "ann".to_owned();
    assert_eq!(store.token_holder([1; 32], week).await.expect("no error"), TokenHolder::Expired(ann()));
    store.create_user_token(token("ann", 3, week + 11, week + 20), note("")).await.expect("a token");
    assert_eq!(store.token_holder([1; 32], week + 11).await.expect("no error"), TokenHolder::Unknown);
    assert_eq!(store.token_holder([2; 32], week + 11).await.expect("no error"), TokenHolder::Expired(ann()));
}

on_each_engine!(a_failed_change_leaves_no_audit_record);
async fn a_failed_change_leaves_no_audit_record(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    store.create_user("ann", 1, note("create")).await.expect("a user");
    let again = store.create_user("ann", 2, note("again")).await.expect_err("there is one");
    assert_eq!(again.to_string(), "there is already a user ann");
    let nobody = store.create_user_token(token("bob", 1, 1, 2), note("token")).await.expect_err("no bob");
    assert_eq!(nobody.to_string(), "there is no user bob");
    store.change_user("bob", UserChange::Enable, note("enable")).await.expect_err("no bob");
    let actions: Vec<String> = store
        .list_audit(9, AuditFilter::default())
        .await
        .expect("no error")
        .records
        .into_iter()
        .map(|row| row.entry.action)
        .collect();
    assert_eq!(actions, ["create"]);
    let shown = format!("{:?}", token("ann", 42, 1, 2));
    assert!(!shown.contains("42"), "{shown}");
}
