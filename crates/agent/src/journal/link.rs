//! What the link needs after a restart: the highest epoch, and the servers of the last welcome.
//!
//! Both are rows of `meta`, which earlier versions ignore.

use super::{Journal, JournalError, json};
use procfleet_core::id::Epoch;
use procfleet_core::server_address::ServerAddress;
use rusqlite::{Connection, OptionalExtension, params};
use tracing::warn;

const HIGHEST_EPOCH: &str = "highest_epoch";
const SERVERS: &str = "servers";

/// The list of the last welcome, and the servers of the command line at that time.
#[derive(serde::Serialize, serde::Deserialize)]
struct StoredServers {
    configured: Vec<String>,
    listed: Vec<String>,
}

impl Journal {
    /// The highest epoch that was ever accepted; 0 if there was none.
    pub(crate) async fn highest_epoch(&self) -> Result<Epoch, JournalError> {
        self.run(|t| Ok(Epoch(read_epoch(t)?))).await
    }

    /// Records the epoch of a session, unless a higher one is recorded.
    pub(crate) async fn accept_epoch(&self, epoch: Epoch) -> Result<(), JournalError> {
        self.run(move |t| match read_epoch(t)? {
            highest if highest >= epoch.0 => Ok(()),
            _ => write(t, HIGHEST_EPOCH, &epoch.0.to_string()),
        })
        .await
    }

    /// The servers of the last welcome; none if there are none, or if the command line has changed since: an
    /// operator who moves an agent to other servers must not find it at the old ones.
    pub(crate) async fn servers(
        &self,
        configured: &[ServerAddress],
    ) -> Result<Vec<ServerAddress>, JournalError> {
        let text = self.run(|t| read(t, SERVERS)).await?;
        let Some(text) = text else { return Ok(Vec::new()) };
        let Ok(stored) = serde_json::from_str::<StoredServers>(&text) else {
            warn!("cannot read the list of servers in the journal; using those of the command line");
            return Ok(Vec::new());
        };
        let is_same = stored.configured.len() == configured.len()
            && configured.iter().all(|server| stored.configured.contains(&server.to_string()));
        let listed = if is_same { stored.listed } else { Vec::new() };
        Ok(ServerAddress::read_each(listed.iter().map(String::as_str)).0)
    }

    pub(crate) async fn store_servers(
        &self,
        configured: &[ServerAddress],
        listed: &[ServerAddress],
    ) -> Result<(), JournalError> {
        let texts = |servers: &[ServerAddress]| servers.iter().map(ToString::to_string).collect();
        let stored = StoredServers { configured: texts(configured), listed: texts(listed) };
        self.run(move |t| write(t, SERVERS, &json(&stored))).await
    }

    /// For an agent that joins anew: servers and epochs of its earlier fleet mean nothing in the next one.
    pub(crate) async fn forget_fleet(&self) -> Result<(), JournalError> {
        self.run(|t| {
            t.execute("DELETE FROM meta WHERE key IN (?1, ?2)", params![HIGHEST_EPOCH, SERVERS]).map(|_| ())
        })
        .await
    }
}

fn read_epoch(t: &Connection) -> rusqlite::Result<u64> {
    Ok(read(t, HIGHEST_EPOCH)?.and_then(|text| text.parse().ok()).unwrap_or(0))
}

fn read(t: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    t.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

fn write(t: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    t.execute("INSERT OR REPLACE INTO meta VALUES (?1, ?2)", [key, value]).map(|_| ())
}
