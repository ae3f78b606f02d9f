//! The beats of this server, and what it does about servers that have none any more.
//!
//! ```text
//! enter --> row `up` --beat, twice a second--> row stays `up`
//!                  \--leave---------------------> `left`    its agents are unheld, its leases free
//!                   \--silent for TAKEOVER------> `fenced`  by another server; the same
//! ```
//!
//! A row that is not `up` never is again: a server that was fenced enters anew, with another row. Every
//! change that a server makes locks its row and checks that it is up, so a server that was stopped for a
//! while can change nothing after others have taken over from it. Beats have a connection of their own, so
//! that a busy pool cannot cost a server its place.
//!
//! A lease belongs to a row of `servers`, and is free when that row is not up. It moves only then, so the
//! check of the server's row fences all work that is done under leases, too.

use super::fault::PgFault;
use super::schema;
use super::url::Connector;
use crate::clock::boot_now;
use crate::membership::{Lease, LivingServer, Membership, ServerId, ServerIntro, WakeMode};
use crate::{DriverError, StoreError};
use deadpool_postgres::{Object, Transaction};
use procfleet_core::BootTime;
use procfleet_core::membership::{PeerBeats, TRUST};
use procfleet_core::store_clock::{ClockSample, Clocked, StoreClock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::{Client, Config, GenericClient};

const BEAT: Duration = Duration::from_millis(500);
/// A database that needs longer for a beat is away. Opening a connection included.
const PATIENCE: Duration = Duration::from_millis(1_200);

/// Rows of ended runs that are kept for operators.
const KEPT_ROWS: i64 = 100;

/// Keeps the place of this server in the store.
#[derive(Clone, Debug)]
pub(super) struct Beats {
    state: watch::Receiver<DatabaseState>,
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
enum DatabaseState {
    Well,
    /// The database does not answer, for this reason.
    Away(String),
    /// A newer server has upgraded the store beyond this one: its schema, and the newest that this one knows.
    Newer(i64),
}

/// Makes a row for this server. Servers of this machine whose processes are gone are fenced at once.
/// A server that enters again drains as before: only its operator, or its end, ends that.
pub(super) async fn enter(client: &impl GenericClient, membership: &Membership) -> Result<ServerId, PgFault> {
    let sql = "WITH new AS (INSERT INTO servers (name, advertise, version, process, state, started_at) \
               VALUES ($1, $2, $3, $4, 'up', (extract(epoch FROM clock_timestamp()) * 1000)::bigint) RETURNING id) \
               INSERT INTO beats (server, beat, drains) SELECT id, 1, $5 FROM new RETURNING server";
    let process = ProcessId::own();
    let ServerIntro { name, advertise, version } = &membership.intro();
    let drains = membership.view().borrow().drains;
    let row = client.query_one(sql, &[name, advertise, version, &process, &drains]).await?;
    let own = ServerId(row.try_get(0)?);
    let others =
        client.query("SELECT id, process FROM servers WHERE state = 'up' AND id <> $1", &[&own.0]).await?;
    for row in others {
        let (id, process): (i64, &str) = (row.try_get(0)?, row.try_get(1)?);
        if ProcessId::is_gone(process) {
            client
                .execute("UPDATE servers SET state = 'fenced' WHERE id = $1 AND state = 'up'", &[&id])
                .await?;
            tracing::info!(server = id, "a server of this machine that has ended was declared dead");
        }
    }
    take_leases(client, own).await?;
    // A session of a server without a row counts as one of a dead server.
    client.execute("DELETE FROM servers WHERE state <> 'up' AND id < $1", &[&(own.0 - KEPT_ROWS)]).await?;
    Ok(own)
}

/// Takes all leases that are free. One statement: a server that stops in the middle holds nothing up.
async fn take_leases(client: &impl GenericClient, own: ServerId) -> Result<(), PgFault> {
    let sql = "UPDATE leases SET server = $1, term = term + 1 \
               WHERE NOT EXISTS (SELECT 1 FROM servers WHERE id = leases.server AND state = 'up') \
               AND EXISTS (SELECT 1 FROM servers WHERE id = $1 AND state = 'up')";
    client.execute(sql, &[&own.0]).await?;
    Ok(())
}

/// For every change: this run of the server is up, and stays so until the commit.
pub(super) async fn hold(tx: &Transaction<'_>, run: ServerId) -> Result<(), PgFault> {
    let statement =
        tx.prepare_cached("SELECT 1 FROM servers WHERE id = $1 AND state = 'up' FOR SHARE").await?;
    match tx.query_opt(&statement, &[&run.0]).await? {
        Some(_) => Ok(()),
        None => Err(StoreError::Fenced.into()),
    }
}

impl Beats {
    /// Keeps the place that [`enter`] has made.
    pub(super) fn keep(membership: Membership, config: Config, connector: Connector) -> Beats {
        let (sender, state) = watch::channel(DatabaseState::Well);
        let renewal = BeatTask {
            membership,
            config,
            connector,
            state: sender,
            client: None,
            peers: PeerBeats::default(),
            looked_at: boot_now(),
            clock: StoreClock::default(),
            takeover: None,
        };
        let task = tokio::spawn(renewal.run()).abort_handle();
        Beats { state, task: Arc::new(RenewTask(task)) }
    }

    /// Why the database cannot be used now.
    pub(super) fn away(&self) -> Option<String> {
        match &*self.state.borrow() {
            DatabaseState::Well => None,
            DatabaseState::Away(reason) => Some(reason.clone()),
            DatabaseState::Newer(_) => Some("a newer server has upgraded the store".to_owned()),
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

    /// Returns the schema of a store that has become too new for this server.
    pub(super) async fn wait_until_newer(&self) -> i64 {
        let mut state = self.state.clone();
        loop {
            if let DatabaseState::Newer(found) = *state.borrow_and_update() {
                return found;
            }
            if state.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// No beat follows.
    pub(super) fn stop(&self) {
        self.task.0.abort();
    }
}

/// Lets others take over at once. The database may be away by now, which costs them their wait.
pub(super) async fn leave(connection: &Object, run: ServerId) -> Result<(), StoreError> {
    let sql = "UPDATE servers SET state = 'left' WHERE id = $1 AND state = 'up'";
    let left = connection.execute(sql, &[&run.0]).await;
    left.map_err(|source| StoreError::Database {
        doing: "leaving the store",
        source: DriverError::new(source),
    })?;
    Ok(())
}

/// The task behind [`Beats`].
struct BeatTask {
    membership: Membership,
    config: Config,
    connector: Connector,
    state: watch::Sender<DatabaseState>,
    client: Option<Client>,
    peers: PeerBeats<ServerId>,
    looked_at: BootTime,
    clock: StoreClock,
    /// Fencing waits for changes of the fenced server that are under way, so it must not delay the beats.
    takeover: Option<JoinHandle<()>>,
}

/// What one beat has found.
enum Beat {
    Confirmed,
    /// Another server has declared this one dead.
    Fenced,
    Newer(i64),
}

impl BeatTask {
    async fn run(mut self) {
        loop {
            let beat = tokio::time::timeout(PATIENCE, self.beat()).await;
            let now = match beat {
                Ok(Ok(Beat::Confirmed)) => DatabaseState::Well,
                Ok(Ok(Beat::Fenced)) => match tokio::time::timeout(PATIENCE, self.enter_again()).await {
                    Ok(Ok(())) => DatabaseState::Well,
                    Ok(Err(fault)) => DatabaseState::Away(fault.reason()),
                    Err(_) => DatabaseState::Away(silence()),
                },
                Ok(Ok(Beat::Newer(found))) => DatabaseState::Newer(found),
                Ok(Err(fault)) => DatabaseState::Away(fault.reason()),
                Err(_) => DatabaseState::Away(silence()),
            };
            if now != DatabaseState::Well {
                self.client = None;
            }
            publish(&self.state, now);
            tokio::time::sleep(BEAT).await;
        }
    }

    async fn client(&mut self) -> Result<&Client, PgFault> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            self.client = Some(connect(&self.config, &self.connector).await?);
        }
        Ok(self.client.as_ref().expect("it was just made"))
    }

    async fn beat(&mut self) -> Result<Beat, PgFault> {
        let (run, load, mode) = (self.membership.run(), self.membership.load(), self.membership.wake_mode());
        let client = self.client().await?;
        let sent_at = boot_now();
        // Beats have rows of their own: those of `servers` are locked by every change under way.
        let sql = "WITH own AS (UPDATE beats SET beat = beat + 1, agents = $2, open_ops = $3, polling = $4 \
                   FROM servers WHERE beats.server = $1 AND servers.id = $1 AND state = 'up' RETURNING drains) \
                   SELECT (SELECT drains FROM own), \
                   (extract(epoch FROM clock_timestamp()) * 1000)::bigint + shift_ms, version, oldest_server \
                   FROM store_clock, schema_version";
        let (agents, open_ops) = (clamped(load.agents), clamped(load.open_ops));
        let polling = mode == WakeMode::Polling;
        let row = client.query_one(sql, &[&run.0, &agents, &open_ops, &polling]).await?;
        let sample = ClockSample { sent_at, received_at: boot_now(), store_ms: row.try_get(1)? };
        let oldest: i64 = row.try_get(3)?;
        if oldest > schema::known() {
            return Ok(Beat::Newer(row.try_get(2)?));
        }
        let Some(drains) = row.try_get::<_, Option<bool>>(0)? else { return Ok(Beat::Fenced) };
        self.membership.own().confirm(sent_at);
        self.follow_clock(sample);
        self.look(run, drains).await?;
        Ok(Beat::Confirmed)
    }

    /// Looks at the other servers and the leases.
    async fn look(&mut self, run: ServerId, drains: bool) -> Result<(), PgFault> {
        let client = self.client().await?;
        let servers = client
            .query(
                "SELECT id, beat, advertise, agents, drains, (SELECT max(id) FROM servers) \
                 FROM servers JOIN beats ON server = id WHERE state = 'up'",
                &[],
            )
            .await?;
        let sql = "SELECT name, server, EXISTS (SELECT 1 FROM servers WHERE id = leases.server AND state = 'up') FROM leases";
        let rows = client.query(sql, &[]).await?;
        let (mut alive, mut beats, mut newest) = (BTreeMap::new(), Vec::new(), 0);
        for row in servers {
            let (id, beat): (ServerId, i64) = (ServerId(row.try_get(0)?), row.try_get(1)?);
            let agents: i64 = row.try_get(3)?;
            let server = LivingServer {
                url: row.try_get(2)?,
                agents: u64::try_from(agents).unwrap_or(0),
                drains: row.try_get(4)?,
            };
            alive.insert(id, server);
            newest = row.try_get(5)?;
            if id != run {
                beats.push((id, u64::try_from(beat).unwrap_or(0)));
            }
        }
        let mut free = false;
        let mut leases = std::collections::BTreeSet::new();
        for row in rows {
            let (name, server): (&str, i64) = (row.try_get(0)?, row.try_get(1)?);
            if server == run.0 {
                leases.extend(Lease::named(name));
            } else {
                free |= !row.try_get::<_, bool>(2)?;
            }
        }
        let now = boot_now();
        // This server did not look for long enough to miss beats of the others.
        if now.since(self.looked_at) >= TRUST {
            self.peers.forget();
        }
        self.looked_at = now;
        let silent = self.peers.observe(now, &beats);
        if (free || !silent.is_empty()) && self.takeover.as_ref().is_none_or(JoinHandle::is_finished) {
            let (config, connector) = (self.config.clone(), self.connector.clone());
            self.takeover = Some(tokio::spawn(take_over(config, connector, run, silent)));
        }
        self.membership.publish(|view| {
            view.run = run;
            view.leases = leases;
            // Servers are numbered, so those that are not up have ended.
            view.ended = newest - i64::try_from(alive.len()).unwrap_or(0);
            view.alive = alive;
            view.drains = drains;
        });
        Ok(())
    }

    fn follow_clock(&mut self, sample: ClockSample) {
        match self.clock.observe(sample) {
            Clocked::Fits => {}
            Clocked::Odd => tracing::debug!("the database's clock does not fit; looking again"),
            Clocked::Jumped(by_ms) => {
                let busy = self.takeover.as_ref().is_some_and(|task| !task.is_finished());
                if self.membership.has(Lease::Clock) && !busy {
                    tracing::error!(
                        by_ms,
                        "the database's clock has jumped; the store's time goes on as before, by a correction that is stored. Check the clocks of the database's machines"
                    );
                    let (config, connector) = (self.config.clone(), self.connector.clone());
                    let run = self.membership.run();
                    self.takeover = Some(tokio::spawn(shift_clock(config, connector, run, by_ms)));
                }
            }
            Clocked::Adopted(by_ms) => tracing::error!(
                by_ms,
                "the database's clock has jumped and no server could correct it; deadlines of open ops move with it. Check the clocks of the database's machines"
            ),
        }
        if let Some(offset) = self.clock.offset() {
            self.membership.set_offset(offset);
        }
    }

    /// This run was declared dead: its sessions and decisions are void. Goes on as a new server.
    async fn enter_again(&mut self) -> Result<(), PgFault> {
        self.membership.own().lose();
        let old = self.membership.run();
        let membership = self.membership.clone();
        let client = self.client().await?;
        let run = enter(client, &membership).await?;
        client.execute("UPDATE server_seal_keys SET run = $1 WHERE run = $2", &[&run.0, &old.0]).await?;
        tracing::error!(
            server = run.0,
            "other servers have declared this one dead while it did not reach the database; its sessions end, and it goes on as a new server"
        );
        self.membership.publish(|view| {
            view.run = run;
            view.leases.clear();
        });
        Ok(())
    }
}

fn clamped(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn silence() -> String {
    format!("the database has not answered for {} ms", PATIENCE.as_millis())
}

/// Declares silent servers dead and takes the leases that are free. What fails is tried again with the next
/// look.
async fn take_over(config: Config, connector: Connector, run: ServerId, silent: Vec<(ServerId, u64)>) {
    let taken = async {
        let client = connect(&config, &connector).await?;
        client.batch_execute("SET lock_timeout = '2s'; SET statement_timeout = '5s'").await?;
        for (id, beat) in silent {
            let sql = "UPDATE servers SET state = 'fenced' FROM beats \
                       WHERE servers.id = $1 AND beats.server = $1 AND state = 'up' AND beat = $2";
            let beat = clamped(beat);
            if client.execute(sql, &[&id.0, &beat]).await? > 0 {
                tracing::warn!(
                    server = id.0,
                    "a server was silent and was declared dead; others take over its agents"
                );
            }
        }
        take_leases(&client, run).await
    };
    if let Err(fault) = taken.await {
        tracing::debug!(reason = fault.reason(), "taking over from a silent server failed; trying again");
    }
}

async fn shift_clock(config: Config, connector: Connector, run: ServerId, by_ms: i64) {
    let shifted = async {
        let client = connect(&config, &connector).await?;
        let sql = "UPDATE store_clock SET shift_ms = shift_ms - $2 \
                   WHERE EXISTS (SELECT 1 FROM leases WHERE name = 'clock' AND server = $1)";
        client.execute(sql, &[&run.0, &by_ms]).await?;
        Ok::<(), PgFault>(())
    };
    if let Err(fault) = shifted.await {
        tracing::warn!(reason = fault.reason(), "correcting the store's time failed; trying again");
    }
}

/// A connection outside the pool. It ends with its client.
pub(super) async fn connect(config: &Config, connector: &Connector) -> Result<Client, PgFault> {
    let (client, connection) = config.connect(connector.clone()).await?;
    // Its errors are those of the client's calls.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}

fn publish(state: &watch::Sender<DatabaseState>, now: DatabaseState) {
    state.send_if_modified(|known| {
        match (&*known, &now) {
            (DatabaseState::Well, DatabaseState::Away(reason)) => tracing::error!(
                reason,
                "the database does not answer; calls are refused until it is back; check the database and the network between"
            ),
            (DatabaseState::Away(_), DatabaseState::Well) => tracing::info!("the database answers again"),
            (DatabaseState::Well | DatabaseState::Away(_), DatabaseState::Newer(found)) => tracing::error!(
                found,
                known = schema::known(),
                "a newer server has upgraded the store; this server ends. Upgrade it"
            ),
            (DatabaseState::Newer(_), _)
            | (DatabaseState::Well, DatabaseState::Well)
            | (DatabaseState::Away(_), DatabaseState::Away(_)) => {}
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
