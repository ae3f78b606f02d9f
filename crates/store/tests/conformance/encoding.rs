//! Databases that cannot represent every text.

use super::*;

/// Returns the URL of a new database.
async fn database(name: &'static str, encoding: &'static str) -> String {
    let create = move || {
        let sql = format!(
            "CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        );
        Cluster::shared().psql("postgres", &sql).expect("a database");
        Cluster::shared().url(name)
    };
    tokio::task::spawn_blocking(create).await.expect("a database")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_not_utf8_is_refused_for_a_server_and_for_a_copy() {
    let folder = tempfile::tempdir().expect("a temp folder");
    let original = path(&folder);
    Store::open(&original).await.expect("a store").close().await.expect("closed");
    for (name, encoding) in [("latin1", "LATIN1"), ("sql_ascii", "SQL_ASCII")] {
        let url: StoreUrl = database(name, encoding).await.parse().expect("a url");
        let opened = Store::connect(&url).await.map(drop);
        let copied = copy(CopySource::Store(original.clone()), &url, |_| {}).await.map(drop);
        for refused in [opened, copied] {
            let error = refused.expect_err("refused");
            let StoreError::Encoding { encoding: named, .. } = &error else { panic!("{error:?}") };
            assert_eq!(named, encoding);
            assert!(error.needs_operator(), "a restart would not help");
        }
        let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
        let tables = move || Cluster::shared().psql(name, tables).expect("readable");
        assert_eq!(tokio::task::spawn_blocking(tables).await.expect("an answer"), "0");
    }
    let url = database("utf8", "UTF8").await.parse().expect("a url");
    Store::connect(&url).await.expect("it opens");
}
