//! A connection pooler between the store and PostgreSQL.

use super::*;
use procfleet_testkit::{PoolMode, Pooler};
use tokio_postgres::NoTls;

/// Lets the pooler open so many connections to the database, which are idle afterwards.
async fn warm_up(url: &str, connections: usize) {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the pooler");
        tokio::spawn(connection);
        client.simple_query("BEGIN").await.expect("a transaction, which has a connection of its own");
        clients.push(client);
    }
    for client in clients {
        client.simple_query("COMMIT").await.expect("committed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_is_refused_unless_every_connection_has_a_session() {
    for (mode, warm, is_usable) in [
        (PoolMode::Transaction, 0, false),
        (PoolMode::Transaction, 3, false),
        (PoolMode::TransactionInTurn, 0, false),
        (PoolMode::TransactionInTurn, 1, false),
        (PoolMode::TransactionInTurn, 2, false),
        (PoolMode::TransactionInTurn, 3, false),
        (PoolMode::TransactionInTurn, 4, false),
        (PoolMode::Session, 0, true),
    ] {
        let start = move || {
            let pooler = Pooler::start(Cluster::shared(), mode);
            let url = pooler.url(&Cluster::shared().database());
            (pooler, url)
        };
        let (_pooler, url) = tokio::task::spawn_blocking(start).await.expect("a pooler");
        warm_up(&url, warm).await;
        let opened = Store::connect(&url.parse().expect("a url")).await;
        match (is_usable, opened) {
            (true, Ok(store)) => {
                store.create_task(new_task(&["a"])).await.expect("a task");
                store.close().await.expect("closed");
            }
            (false, Err(StoreError::Pooler { .. })) => {}
            (_, opened) => panic!("{mode:?} with {warm} connections: {opened:?}"),
        }
    }
}
