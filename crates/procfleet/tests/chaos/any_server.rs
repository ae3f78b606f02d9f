//! Calls to whichever server comes next. A call that finds its server dead, silent or without a database goes
//! to another one, with the same key.

use procfleet_testkit::{Answer, Client};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of so many submissions is sent to two servers at the same moment.
const SENT_TWICE: usize = 4;

#[derive(Clone, Debug)]
pub(crate) struct AnyServer {
    clients: Vec<Client>,
    calls: Arc<AtomicUsize>,
}

impl AnyServer {
    pub(crate) fn new(clients: Vec<Client>) -> AnyServer {
        AnyServer { clients, calls: Arc::default() }
    }

    /// Calls to this server only.
    pub(crate) fn only(&self, server: usize) -> AnyServer {
        AnyServer::new(vec![self.clients[server].clone()])
    }

    pub(crate) fn try_get(&self, path: &str) -> Result<Answer, String> {
        self.next().0.try_get(path)
    }

    pub(crate) fn try_post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<Answer, String> {
        self.next().0.try_post(path, headers, body)
    }

    /// Under a key: with several servers, two of them get some requests at once. A second task would be one
    /// that nobody sent.
    pub(crate) fn try_submit(&self, path: &str, key: &str, body: &Value) -> Result<Answer, String> {
        let headers = [("Idempotency-Key", key)];
        let (client, number) = self.next();
        if self.clients.len() == 1 || number % SENT_TWICE != 0 {
            return client.try_post(path, &headers, body);
        }
        let (other, _) = self.next();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| other.try_post(path, &headers, body));
            let first = client.try_post(path, &headers, body);
            second.join().expect("a call does not panic")?;
            first
        })
    }

    fn next(&self) -> (&Client, usize) {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        (&self.clients[number % self.clients.len()], number)
    }
}
