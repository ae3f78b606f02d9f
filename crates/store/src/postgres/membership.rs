//! The server's right to use the store, and whether the database answers.
//!
//! One server uses a PostgreSQL store at a time. It advances a beat in the store twice a
//! second on a connection of its own, so that a busy pool cannot cost it the right. No clock is compared
//! between machines: a server that starts takes over only after it has seen the same beat for
//! [`TAKEOVER`] by its own clock, or at once when the last server has left in order or its process is gone
//! from this machine. Taking over advances the term, and every change locks the term's row and compares it:
//! a server that was stopped in the meantime can change nothing any more.

use super::fault::{PgFault, chain};
use super::url::Connector;
use crate::{DriverError, StoreError};
use deadpool_postgres::{Object, Transaction};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::{Client, Config};

const BEAT: Duration = Duration::from_millis(500);
/// A database that needs longer for a beat is away. Opening a connection included.
const PATIENCE: Duration = Duration::from_millis(1_200);
/// How long another server must be silent before its place is taken.
const TAKEOVER: Duration = Duration::from_secs(15);
/// How long the term of another server is awaited: its changes under way end within this time.
const LOOK: Duration = Duration::from_millis(500);

/// The right to change the store, until another server takes over.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    term: i64,
    state: watch::Receiver<MembershipState>,
    task: Arc<RenewTask>,
}

/// Ends with the last handle of the store.
#[derive(Debug)]
struct RenewTask(AbortHandle);

impl Drop for RenewTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MembershipState {
    Well,
    /// The database does not answer, for this reason.
    Away(String),
    /// Another server has taken over.
    Fenced,
}

/// The row of the server that uses the store.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    term: i64,
    beat: i64,
    /// `None`: it has left in order, or there was none.
    process: Option<String>,
}

/// Enters the store as its server, or says that another one uses it.
pub(super) async fn enter(connection: &mut Object, name: &str) -> Result<i64, StoreError> {
    const DOING: &str = "entering the store";
    let failed = |fault: PgFault| fault.during(DOING);
    let in_use = || StoreError::InUse { store: name.to_owned() };
    let first = look(connection).await.map_err(failed)?;
    if first.process.as_deref().is_some_and(|process| !ProcessId::is_gone(process)) {
        tracing::info!(
            store = name,
            wait_secs = TAKEOVER.as_secs(),
            "another server has used the store; waiting to see whether it is alive"
        );
        let until = Instant::now() + TAKEOVER;
        while Instant::now() < until {
            tokio::time::sleep(LOOK).await;
            let now = look(connection).await.map_err(failed)?;
            if now != first {
                return Err(in_use());
            }
        }
    }
    let sql = "UPDATE servers SET term = term + 1, process = $3 FROM beats \
               WHERE servers.id = 1 AND beats.id = 1 AND term = $1 AND beat = $2 RETURNING term";
    let process = ProcessId::own();
    let taken = connection.query_opt(sql, &[&first.term, &first.beat, &process]).await;
    match taken.map_err(|error| failed(error.into()))? {
        Some(row) => Ok(row.try_get(0).map_err(|error| failed(PgFault::Sql(error)))?),
        None => Err(in_use()),
    }
}

async fn look(connection: &Object) -> Result<Holder, PgFault> {
    let row = connection
        .query_one("SELECT term, beat, process FROM servers JOIN beats USING (id) WHERE id = 1", &[])
        .await?;
    Ok(Holder { term: row.try_get(0)?, beat: row.try_get(1)?, process: row.try_get(2)? })
}

/// For every change: the term is still ours, and stays so until the commit.
pub(super) async fn hold(tx: &Transaction<'_>, term: i64) -> Result<(), PgFault> {
    let statement = tx.prepare_cached("SELECT 1 FROM servers WHERE id = 1 AND term = $1 FOR SHARE").await?;
    match tx.query_opt(&statement, &[&term]).await? {
        Some(_) => Ok(()),
        None => Err(StoreError::Fenced.into()),
    }
}

impl Membership {
    /// Keeps the right that [`enter`] has gained.
    pub(super) fn keep(term: i64, config: Config, connector: Connector) -> Membership {
        let (sender, state) = watch::channel(MembershipState::Well);
        let task = tokio::spawn(renew(term, config, connector, sender)).abort_handle();
        Membership { term, state, task: Arc::new(RenewTask(task)) }
    }

    pub(super) fn term(&self) -> i64 {
        self.term
    }

    /// Why the database cannot be used now.
    pub(super) fn away(&self) -> Option<String> {
        match &*self.state.borrow() {
            MembershipState::Well => None,
            MembershipState::Away(reason) => Some(reason.clone()),
            MembershipState::Fenced => Some(StoreError::Fenced.to_string()),
        }
    }

    /// Returns at once if it is away already.
    pub(super) async fn wait_until_away(&self) -> String {
        let mut state = self.state.clone();
        loop {
            if let Some(reason) = self.away() {
                return reason;
            }
            if state.changed().await.is_err() {
                // The store is being closed.
                return std::future::pending().await;
            }
        }
    }

    pub(super) async fn wait_until_fenced(&self) {
        let mut state = self.state.clone();
        if state.wait_for(|state| *state == MembershipState::Fenced).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// No beat follows.
    pub(super) fn stop(&self) {
        self.task.0.abort();
    }
}

/// Lets the next server start at once. The database may be away by now, which costs the next one its wait.
pub(super) async fn leave(connection: &Object, term: i64) -> Result<(), StoreError> {
    let sql = "UPDATE servers SET process = NULL WHERE id = 1 AND term = $1";
    let left = connection.execute(sql, &[&term]).await;
    left.map_err(|source| StoreError::Database {
        doing: "leaving the store",
        source: DriverError::new(source),
    })?;
    Ok(())
}

async fn renew(term: i64, config: Config, connector: Connector, state: watch::Sender<MembershipState>) {
    let mut client: Option<Client> = None;
    loop {
        let beat = tokio::time::timeout(PATIENCE, beat(term, &config, &connector, &mut client)).await;
        let now = match beat {
            Ok(Ok(true)) => MembershipState::Well,
            Ok(Ok(false)) => MembershipState::Fenced,
            Ok(Err(error)) => MembershipState::Away(chain(&error)),
            Err(_) => MembershipState::Away(format!(
                "the database has not answered for {} ms",
                PATIENCE.as_millis()
            )),
        };
        if now != MembershipState::Well {
            client = None;
        }
        let fenced = now == MembershipState::Fenced;
        publish(&state, now);
        if fenced {
            return;
        }
        tokio::time::sleep(BEAT).await;
    }
}

/// False: another server has taken over.
async fn beat(
    term: i64,
    config: &Config,
    connector: &Connector,
    client: &mut Option<Client>,
) -> Result<bool, tokio_postgres::Error> {
    let client = match client {
        Some(client) if !client.is_closed() => client,
        _ => {
            let (new, connection) = config.connect(connector.clone()).await?;
            // It ends with its client, and its errors are those of the client's calls.
            tokio::spawn(async move {
                let _ = connection.await;
            });
            client.insert(new)
        }
    };
    // Beats have a row of their own: that of the term is locked by every change under way.
    let sql =
        "UPDATE beats SET beat = beat + 1 FROM servers WHERE beats.id = 1 AND servers.id = 1 AND term = $1";
    Ok(client.execute(sql, &[&term]).await? > 0)
}

fn publish(state: &watch::Sender<MembershipState>, now: MembershipState) {
    state.send_if_modified(|known| {
        match (&*known, &now) {
            (MembershipState::Well, MembershipState::Away(reason)) => tracing::error!(
                reason,
                "the database does not answer; calls are refused until it is back; check the database and the network between"
            ),
            (MembershipState::Away(_), MembershipState::Well) => tracing::info!("the database answers again"),
            (_, MembershipState::Fenced) => tracing::error!(
                "another server has taken over the store while this one did not reach the database; this server ends"
            ),
            (MembershipState::Well, MembershipState::Well) | (MembershipState::Away(_), MembershipState::Away(_)) | (MembershipState::Fenced, _) => {}
        }
        let changed = std::mem::discriminant(known) != std::mem::discriminant(&now);
        *known = now;
        changed
    });
}

/// A process of this machine: boot, pid namespace, pid and start time. None of them means anything on another
/// machine or in another container.
struct ProcessId;

impl ProcessId {
    fn own() -> String {
        ProcessId::of("self").unwrap_or_default()
    }

    fn of(process: &str) -> Option<String> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let pid = stat.split(' ').next()?;
        // The name in parentheses may have spaces in it.
        let rest = stat.rsplit_once(") ")?.1;
        // A zombie has ended, and only waits for its parent.
        if rest.starts_with(['Z', 'X']) {
            return None;
        }
        let start = rest.split(' ').nth(19)?;
        Some(format!("{} {} {pid} {start}", boot.trim(), namespace.display()))
    }

    /// Whether this was a process of this machine and namespace, and is none any more.
    fn is_gone(process: &str) -> bool {
        let parts: Vec<&str> = process.split(' ').collect();
        let (Some(own), [boot, namespace, pid, _]) = (ProcessId::of("self"), parts.as_slice()) else {
            return false;
        };
        own.starts_with(&format!("{boot} {namespace} ")) && ProcessId::of(pid).as_deref() != Some(process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_of_this_machine_and_namespace_is_known_to_be_gone() {
        let own = ProcessId::own();
        let parts: Vec<&str> = own.split(' ').collect();
        let [boot, namespace, pid, start] = parts[..] else { panic!("{own}") };
        for (process, gone) in [
            (own.clone(), false),
            (format!("{boot} {namespace} {pid} 1{start}"), true),
            (format!("{boot} {namespace} 4194305 {start}"), true),
            (format!("other {namespace} {pid} 1{start}"), false),
            (format!("{boot} pid:[1] {pid} 1{start}"), false),
            (String::new(), false),
        ] {
            assert_eq!(ProcessId::is_gone(&process), gone, "{process}");
        }
    }
}
