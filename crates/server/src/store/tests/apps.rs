//! Apps, settings, and what may be logged of them.

use super::*;

#[tokio::test]
async fn an_app_is_made_once() {
    let Fixture { folder: _folder, store } = fixture().await;
    assert_eq!(store.app("console").await.expect("no error"), None);
    store.create_app("console", SECRET, 1).await.expect("an app");
    let exists = store.create_app("console", [8; 32], 2).await.expect_err("there is one");
    assert_eq!(exists.to_string(), "there is already an app console");
    let expected = AppRow { code: "console".to_owned(), secret_hash: SECRET, disabled_at: None };
    assert_eq!(store.app("console").await.expect("no error"), Some(expected));
}

#[tokio::test]
async fn a_setting_keeps_its_first_value() {
    let Fixture { folder: _folder, store } = fixture().await;
    assert_eq!(store.setting("ca").await.expect("no error"), None);
    assert_eq!(store.put_setting_if_absent("ca", "one").await.expect("no error"), "one");
    assert_eq!(store.put_setting_if_absent("ca", "two").await.expect("no error"), "one");
    assert_eq!(store.setting("ca").await.expect("no error").as_deref(), Some("one"));
}

#[test]
fn hashes_stay_out_of_logs() {
    let app = AppRow { code: "console".to_owned(), secret_hash: SECRET, disabled_at: None };
    for shown in [format!("{app:?}"), format!("{:?}", token(1)), format!("{:?}", shown())] {
        assert!(!shown.contains("[7"), "{shown}");
    }
}
