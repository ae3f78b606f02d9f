//! Heartbeats of this server, and the takeover from servers whose heartbeats have stopped.
//!
//! ```text
//! enter --> row `up` --beat, twice a second--> row stays `up`
//!                  \--leave---------------------> `left`    its agents are unheld, its leases free
//!                   \--silent for TAKEOVER------> `fenced`  by another server; the same
//! ```
//!
//! A row never returns to `up`: a fenced server enters with a new row. Every change that a server makes locks
//! its row and checks that it is up, so a server that was stopped for a while can change nothing after others
//! have taken over from it. Beats have a connection of their own, so that a busy pool delays none.
//!
//! A lease belongs to a row of `servers`, and is free when that row is not up. It moves only then, so the
//! check of the server's row fences all work that is done under leases, too.
//!
//! A database that went back in time (see `history`) has a prefix of the changes of all servers. So the last
//! beat that it has of a server says which changes of that server it has, too.

use super::columns::natural;
use super::connect::{Database, OwnConnection};
use super::fault::PgFault;
use super::history::{DatabaseHistory, HistoryCheck, RecordedHistory};
use super::schema;
use crate::StoreError;
use crate::clock::boot_now;
use crate::membership::{Lease, LivingServer, Membership, ServerId, ServerIntro, WakeMode};
use deadpool_postgres::{Object, Transaction};
use procfleet_core::BootTime;
use procfleet_core::membership::{ConfirmedBeats, PeerBeats, TRUST};
use procfleet_core::store_clock::{ClockRole, ClockSample, Clocked, JUMP, StoreClock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_postgres::{Client, GenericClient};

const BEAT: Duration = Duration::from_millis(500);
/// A database that needs longer for a beat is away. Opening a connection included.
const PATIENCE: Duration = Duration::from_millis(1_200);

/// For the begin of a generation, which is about 40 round trips.
const RECORD: Duration = Duration::from_secs(10);

/// For taking over from a silent server, and for a correction of the store's time.
const TAKE_OVER: Duration = Duration::from_secs(10);

/// Rows of ended runs that are kept for operators.
const KEPT_ROWS: i64 = 100;
/// How long the ends of servers are kept: two days.
const KEPT_ENDS_MS: i64 = 2 * 86_400_000;

/// Handle of the heartbeat task. Heartbeats stop when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Beats {
    state: watch::Receiver<DatabaseState>,
    task: Arc<HeartbeatTask>,
}

/// Aborts the heartbeat task on drop.
#[derive(Debug)]
struct HeartbeatTask(AbortHandle);

impl Drop for HeartbeatTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The end of the last outage of the database. A connection that was opened earlier may be half-open: its
/// primary was stopped or its machine is gone, and a standby was promoted.
#[derive(Clone, Debug, Default)]
pub(super) struct Outages(watch::Sender<Option<Instant>>);

impl Outages {
    fn end(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// Whether there was an outage since.
    pub(super) fn since(&self, time: Instant) -> bool {
        self.0.borrow().is_some_and(|ended| time < ended)
    }

    /// Completes `time` after the end of the next outage. Subscribes in this call and not at the first poll
    /// of the future, so an outage that ends in between counts.
    pub(super) fn wait_until_over_for(&self, time: Duration) -> impl Future<Output = ()> {
        let mut ends = self.0.subscribe();
        async move {
            // The sender is borrowed, so this does not fail.
            let _ = ends.changed().await;
            tokio::time::sleep(time).await;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DatabaseState {
    Available,
    /// The database does not answer, for this reason.
    Unavailable(String),
    /// A newer server has upgraded the store beyond this one: its schema, and the newest that this one knows.
    Newer(i64),
}

/// Makes a row for this server. Servers of this machine whose processes are gone are fenced at once.
/// A server that enters again keeps its drain flag; only the operator or a restart clears the flag.
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
            let sql = "UPDATE servers SET state = 'fenced' WHERE id = $1 AND state = 'up' RETURNING id";
            client.execute(noting_the_end(sql).as_str(), &[&id]).await?;
            tracing::info!(server = id, "a server of this machine that has ended was declared dead");
        }
    }
    take_leases(client, own).await?;
    // Servers of the version before do not note the ends of servers.
    let sql = "INSERT INTO server_ends (server, ended_at) \
               SELECT id, (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM servers WHERE state <> 'up' \
               ON CONFLICT DO NOTHING";
    client.execute(sql, &[]).await?;
    // A session of a server without a row counts as one of a dead server.
    client.execute("DELETE FROM servers WHERE state <> 'up' AND id < $1", &[&(own.0 - KEPT_ROWS)]).await?;
    // For a day, they protect agents from being replaced (see `join`), however often servers restart. The end
    // of a server that has a row stays, because without it the agents of the server would count as connected.
    let sql = "DELETE FROM server_ends WHERE ended_at < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1 \
               AND NOT EXISTS (SELECT 1 FROM servers WHERE id = server)";
    client.execute(sql, &[&KEPT_ENDS_MS]).await?;
    Ok(own)
}

/// Takes all free leases in one statement, so that a server that stops in the middle holds no lock.
async fn take_leases(client: &impl GenericClient, own: ServerId) -> Result<(), PgFault> {
    let sql = "UPDATE leases SET server = $1, term = term + 1 \
               WHERE NOT EXISTS (SELECT 1 FROM servers WHERE id = leases.server AND state = 'up') \
               AND EXISTS (SELECT 1 FROM servers WHERE id = $1 AND state = 'up')";
    client.execute(sql, &[&own.0]).await?;
    Ok(())
}

/// For every change: this run of the server is up, and stays so until the commit.
pub(super) async fn check_not_fenced(tx: &Transaction<'_>, run: ServerId) -> Result<(), PgFault> {
    let statement =
        tx.prepare_cached("SELECT 1 FROM servers WHERE id = $1 AND state = 'up' FOR SHARE").await?;
    match tx.query_opt(&statement, &[&run.0]).await? {
        Some(_) => Ok(()),
        None => Err(StoreError::Fenced.into()),
    }
}

impl Beats {
    /// Starts the task whose heartbeats keep the row that [`enter`] has inserted in the state `up`.
    pub(super) fn keep(
        membership: Membership,
        history: DatabaseHistory,
        database: Database,
        outages: Outages,
        beating: OwnConnection,
    ) -> Beats {
        let (sender, state) = watch::channel(DatabaseState::Available);
        let renewal = BeatTask {
            membership,
            history,
            database,
            state: sender,
            outages,
            client: Some(beating),
            opening: JoinSet::new(),
            unadopted: None,
            confirmed: ConfirmedBeats::default(),
            loss_check: LossCheck::NotDue,
            peers: PeerBeats::default(),
            looked_at: boot_now(),
            clock: StoreClock::default(),
            takeover: None,
            takeover_fails: Arc::default(),
        };
        let task = tokio::spawn(renewal.run()).abort_handle();
        Beats { state, task: Arc::new(HeartbeatTask(task)) }
    }

    /// Why the database cannot be used now.
    pub(super) fn unavailable(&self) -> Option<String> {
        match &*self.state.borrow() {
            DatabaseState::Available => None,
            DatabaseState::Unavailable(reason) => Some(reason.clone()),
            DatabaseState::Newer(_) => Some("a newer server has upgraded the store".to_owned()),
        }
    }

    /// Returns at once if it is away already.
    pub(super) async fn wait_until_unavailable(&self) -> String {
        let mut state = self.state.clone();
        loop {
            if let Some(reason) = self.unavailable() {
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

/// Completes an UPDATE that returns the ids of servers that have ended.
fn noting_the_end(update: &str) -> String {
    format!(
        "WITH ended AS ({update}) INSERT INTO server_ends (server, ended_at) \
         SELECT id, (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM ended ON CONFLICT DO NOTHING"
    )
}

/// Lets others take over at once. The database may be away by now, which costs them their wait.
pub(super) async fn leave(connection: &Object, run: ServerId) -> Result<(), PgFault> {
    let sql = "UPDATE servers SET state = 'left' WHERE id = $1 AND state = 'up' RETURNING id";
    connection.execute(noting_the_end(sql).as_str(), &[&run.0]).await?;
    Ok(())
}

/// The task behind [`Beats`].
struct BeatTask {
    membership: Membership,
    history: DatabaseHistory,
    database: Database,
    state: watch::Sender<DatabaseState>,
    outages: Outages,
    client: Option<OwnConnection>,
    /// The next `client`, while there is none.
    opening: JoinSet<Result<(OwnConnection, RecordedHistory), PgFault>>,
    /// The history of `client`, as long as the loss that it means is not published.
    unadopted: Option<String>,
    confirmed: ConfirmedBeats,
    loss_check: LossCheck,
    peers: PeerBeats<ServerId>,
    looked_at: BootTime,
    clock: StoreClock,
    /// Fencing waits for changes of the fenced server that are under way, so it must not delay the beats.
    takeover: Option<JoinHandle<()>>,
    /// The last takeover has failed. The first failure of a row is logged.
    takeover_fails: Arc<AtomicBool>,
}

/// Whether to check which changes of this server the database has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossCheck {
    NotDue,
    /// The database went back in time. Its last beat of this server is to be read, before another one
    /// replaces it.
    Due,
    /// The database does not know this server, which has to enter again.
    AllLost,
}

/// The result of one beat.
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
                Ok(Ok(Beat::Confirmed)) => DatabaseState::Available,
                Ok(Ok(Beat::Fenced)) => match tokio::time::timeout(PATIENCE, self.enter_again()).await {
                    Ok(Ok(())) => DatabaseState::Available,
                    Ok(Err(fault)) => DatabaseState::Unavailable(fault.reason()),
                    Err(_) => DatabaseState::Unavailable(silence()),
                },
                Ok(Ok(Beat::Newer(found))) => DatabaseState::Newer(found),
                Ok(Err(fault)) => DatabaseState::Unavailable(fault.reason()),
                Err(_) => DatabaseState::Unavailable(silence()),
            };
            if now != DatabaseState::Available {
                self.client = None;
            }
            if publish(&self.state, now) == Changed::Back {
                self.outages.end();
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// A beat that is cut off leaves the opening of a connection under way for the next one: a generation may
    /// take longer to begin than a beat may take.
    async fn client(&mut self) -> Result<&Client, PgFault> {
        if self.client.as_ref().is_none_or(|client| client.is_closed()) {
            if self.opening.is_empty() {
                self.opening.spawn(open(self.database.clone(), self.history.clone()));
            }
            let opened = self.opening.join_next().await.expect("a task was just spawned");
            let (client, recorded) =
                opened.map_err(|error| StoreError::from_join("connecting to the database", &error))??;
            if recorded.check == HistoryCheck::Other {
                self.loss_check = LossCheck::Due;
                self.unadopted = Some(recorded.history);
            }
            self.client = Some(client);
        }
        Ok(self.client.as_deref().expect("it was just made"))
    }

    /// The pool may use the database that went back, because all parts of the server can see the loss.
    fn adopt(&mut self) {
        if let Some(history) = self.unadopted.take() {
            self.history.adopt(history);
        }
    }

    async fn beat(&mut self) -> Result<Beat, PgFault> {
        let (run, load, mode) = (self.membership.run(), self.membership.load(), self.membership.wake_mode());
        self.client().await?;
        self.look_for_loss(run).await?;
        // Not `client()`, which might reconnect: a new connection may lead to a database that went back in
        // time after the check above.
        let client = self.client.as_deref().expect("it was just used");
        let sent_at = boot_now();
        // Beats have rows of their own: those of `servers` are locked by every change under way.
        let sql = "WITH own AS (UPDATE beats SET beat = beat + 1, agents = $2, open_ops = $3, polling = $4 \
                   FROM servers WHERE beats.server = $1 AND servers.id = $1 AND state = 'up' RETURNING drains, beat) \
                   SELECT (SELECT drains FROM own), \
                   (extract(epoch FROM clock_timestamp()) * 1000)::bigint + shift_ms, version, oldest_server, shift_ms, \
                   (SELECT beat FROM own) FROM store_clock, schema_version";
        let (agents, open_ops) = (clamped(load.agents), clamped(load.open_ops));
        let polling = mode == WakeMode::Polling;
        let row = client.query_one(sql, &[&run.0, &agents, &open_ops, &polling]).await?;
        let (store_ms, shift_ms) = (row.try_get(1)?, row.try_get(4)?);
        let sample = ClockSample { sent_at, received_at: boot_now(), store_ms, shift_ms };
        let oldest: i64 = row.try_get(3)?;
        if oldest > schema::known() {
            return Ok(Beat::Newer(row.try_get(2)?));
        }
        let Some(drains) = row.try_get::<_, Option<bool>>(0)? else { return Ok(Beat::Fenced) };
        self.membership.own().confirm(sent_at);
        self.confirmed.confirm(natural(row.try_get(5)?), sent_at);
        self.follow_clock(sample);
        self.look(run, drains).await?;
        Ok(Beat::Confirmed)
    }

    /// After the database went back in time: tells which changes of this server it may have lost.
    async fn look_for_loss(&mut self, run: ServerId) -> Result<(), PgFault> {
        if self.loss_check != LossCheck::Due {
            return Ok(());
        }
        let client = self.client.as_deref().expect("the check is due since there is a connection");
        let sql = "SELECT beat FROM beats JOIN servers ON id = server WHERE server = $1 AND state = 'up'";
        let row = client.query_opt(sql, &[&run.0]).await?;
        let last = row.map(|row| row.try_get(0)).transpose()?.map(natural);
        let safe_until = self.confirmed.went_back_to(last);
        self.loss_check = match last {
            Some(_) => {
                self.membership.publish(|view| view.loss = view.loss.again(safe_until));
                self.adopt();
                LossCheck::NotDue
            }
            None => LossCheck::AllLost,
        };
        Ok(())
    }

    /// Looks at the other servers and the leases.
    async fn look(&mut self, run: ServerId, drains: bool) -> Result<(), PgFault> {
        let client = self.client.as_deref().expect("it was just used");
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
                beats.push((id, natural(beat)));
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
            self.takeover = Some(tokio::spawn(take_over(
                self.database.clone(),
                run,
                silent,
                self.takeover_fails.clone(),
            )));
        }
        self.membership.publish(|view| {
            view.run = run;
            view.leases = leases;
            // Not a count, because ids have gaps: it grows whenever a server ends, also one never seen alive.
            view.ended = newest - i64::try_from(alive.len()).unwrap_or(0);
            view.alive = alive;
            view.drains = drains;
        });
        Ok(())
    }

    fn follow_clock(&mut self, sample: ClockSample) {
        let role = match self.membership.has(Lease::Clock) {
            true => ClockRole::Corrects,
            false => ClockRole::Follows,
        };
        match self.clock.observe(sample, role) {
            Clocked::Fits => {}
            Clocked::Odd => tracing::debug!("the database's clock does not fit; looking again"),
            Clocked::Jumped(by_ms) => {
                let busy = self.takeover.as_ref().is_some_and(|task| !task.is_finished());
                if role == ClockRole::Corrects && !busy {
                    tracing::error!(
                        by_ms,
                        "the database's clock has jumped; the store's time goes on as before, by a correction that is stored. Check the clocks of the database's machines"
                    );
                    let (database, run) = (self.database.clone(), self.membership.run());
                    let jump = ClockJump { by_ms, offset: self.clock.offset().unwrap_or_default() };
                    self.takeover = Some(tokio::spawn(shift_clock(database, run, jump)));
                }
            }
            Clocked::Adopted(by_ms) => tracing::error!(
                by_ms,
                "the database's clock has jumped and no server could correct it; deadlines of open ops move with it. Check the clocks of the database's machines"
            ),
        }
        self.membership.set_clock_jumps(self.clock.jumps());
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
        self.confirmed = ConfirmedBeats::default();
        let is_lost = self.loss_check == LossCheck::AllLost;
        match is_lost {
            true => tracing::error!(
                server = run.0,
                "the database failed over or was restored, and does not know this server; its sessions end, and it goes on as a new server. Recent changes may be lost: check the tasks accepted last"
            ),
            false => tracing::error!(
                server = run.0,
                "other servers have declared this one dead while it did not reach the database; its sessions end, and it goes on as a new server. Check the network between this server and the database"
            ),
        }
        self.membership.publish(|view| {
            view.run = run;
            view.leases.clear();
            if is_lost {
                view.loss = view.loss.again(BootTime(0));
            }
        });
        if is_lost {
            self.loss_check = LossCheck::NotDue;
            self.adopt();
        }
        Ok(())
    }
}

/// A connection for beats. The history is recorded before the first beat: until then the pool refuses
/// connections, and a server that enters could get an id that was assigned in the lost time.
async fn open(
    database: Database,
    history: DatabaseHistory,
) -> Result<(OwnConnection, RecordedHistory), PgFault> {
    let connecting = tokio::time::timeout(PATIENCE, database.connect());
    let mut client = connecting.await.map_err(|_| PgFault::Connection(silence()))??;
    let recorded = answered_within(RECORD, history.record(&mut client)).await?;
    Ok((client, recorded))
}

fn clamped(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn silence() -> String {
    format!("the database has not answered for {} ms", PATIENCE.as_millis())
}

/// Declares silent servers dead and takes the leases that are free. What fails is tried again with the next
/// look.
async fn take_over(
    database: Database,
    run: ServerId,
    silent: Vec<(ServerId, u64)>,
    is_failing: Arc<AtomicBool>,
) {
    let taken = async {
        let client = database.connect().await?;
        // Fencing waits for the changes of the fenced server.
        client.batch_execute("SET lock_timeout = '2s'; SET statement_timeout = '5s'").await?;
        for (id, beat) in silent {
            let sql = "UPDATE servers SET state = 'fenced' FROM beats \
                       WHERE servers.id = $1 AND beats.server = $1 AND state = 'up' AND beat = $2 RETURNING id";
            let beat = clamped(beat);
            if client.execute(noting_the_end(sql).as_str(), &[&id.0, &beat]).await? > 0 {
                tracing::warn!(
                    server = id.0,
                    "a server was silent and was declared dead; others take over its agents"
                );
            }
        }
        take_leases(&*client, run).await
    };
    let taken = answered_within(TAKE_OVER, taken).await;
    let was_failing = is_failing.swap(taken.is_err(), Ordering::Relaxed);
    if let Err(fault) = taken
        && !was_failing
    {
        tracing::warn!(
            reason = fault.reason(),
            "cannot take over from a dead server; its agents' ops wait, and the takeover is tried again at each beat. Check for long transactions in the database"
        );
    }
}

/// A jump of the database's clock that is to be corrected.
#[derive(Clone, Copy, Debug)]
struct ClockJump {
    by_ms: i64,
    /// Offset that is added to a boot time to get the store's time, as if there were no jump.
    offset: i64,
}

/// Changes nothing if the store's time is not off by this jump any longer: it was corrected after the sample
/// was taken, or the clock was set once more.
async fn shift_clock(database: Database, run: ServerId, ClockJump { by_ms, offset }: ClockJump) {
    let shifted = async {
        let client = database.connect().await?;
        let sql = "UPDATE store_clock SET shift_ms = shift_ms - $2 \
                   WHERE EXISTS (SELECT 1 FROM leases WHERE name = 'clock' AND server = $1) \
                   AND abs((extract(epoch FROM clock_timestamp()) * 1000)::bigint + shift_ms - $2 - $3) <= $4";
        let expected = clamped(boot_now().0).saturating_add(offset);
        let tolerance = i64::try_from(JUMP.as_millis()).unwrap_or(i64::MAX);
        client.execute(sql, &[&run.0, &by_ms, &expected, &tolerance]).await?;
        Ok::<(), PgFault>(())
    };
    if let Err(fault) = answered_within(TAKE_OVER, shifted).await {
        tracing::warn!(reason = fault.reason(), "correcting the store's time failed; trying again");
    }
}

/// A database that says nothing must not keep its caller for ever.
pub(super) async fn answered_within<T>(
    time: Duration,
    work: impl Future<Output = Result<T, PgFault>>,
) -> Result<T, PgFault> {
    let silence = || PgFault::Connection(format!("the database has not answered for {} s", time.as_secs()));
    tokio::time::timeout(time, work).await.unwrap_or_else(|_| Err(silence()))
}

/// Whether the database came back with this beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changed {
    /// The database was away and answers again.
    Back,
    Otherwise,
}

fn publish(state: &watch::Sender<DatabaseState>, now: DatabaseState) -> Changed {
    let is_back =
        now == DatabaseState::Available && matches!(&*state.borrow(), DatabaseState::Unavailable(_));
    state.send_if_modified(|known| {
        match (&*known, &now) {
            (DatabaseState::Available, DatabaseState::Unavailable(reason)) => tracing::error!(
                reason,
                "the database does not answer; calls are refused until it is back; check the database and the network between"
            ),
            (DatabaseState::Unavailable(_), DatabaseState::Available) => {
                tracing::info!("the database answers again");
            }
            (
                DatabaseState::Available | DatabaseState::Unavailable(_),
                DatabaseState::Newer(found),
            ) => tracing::error!(
                found,
                known = schema::known(),
                "a newer server has upgraded the store; this server ends. Upgrade it"
            ),
            (DatabaseState::Newer(_), _)
            | (DatabaseState::Available, DatabaseState::Available)
            | (DatabaseState::Unavailable(_), DatabaseState::Unavailable(_)) => {}
        }
        let changed = std::mem::discriminant(known) != std::mem::discriminant(&now);
        *known = now;
        changed
    });
    match is_back {
        true => Changed::Back,
        false => Changed::Otherwise,
    }
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

    /// Whether the process belonged to this machine and pid namespace, and has ended.
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
    use super::super::PgStore;
    use super::*;
    use procfleet_testkit::Cluster;

    /// A server may still have a sample from before its correction when the correction is stored.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_jump_is_corrected_once() {
        const HOUR: i64 = 3_600_000;
        let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
        let url = url.parse().expect("a url");
        let store = PgStore::open(&url).await.expect("it opens");
        let (membership, database) = (store.membership(), Database::of(&url).expect("a url"));
        let offset = membership.store_offset().expect("a shared store") - HOUR;
        for _ in 0..2 {
            shift_clock(database.clone(), membership.run(), ClockJump { by_ms: HOUR, offset }).await;
        }
        let client = database.connect().await.expect("a connection");
        let row = client.query_one("SELECT shift_ms FROM store_clock", &[]).await.expect("a row");
        assert_eq!(row.get::<_, i64>(0), -HOUR);
    }

    /// Otherwise a unit could wait for ever at a connection to a database that another one has replaced.
    #[tokio::test(start_paused = true)]
    async fn an_outage_that_ends_before_the_first_poll_counts() {
        let outages = Outages::default();
        let over = outages.wait_until_over_for(Duration::from_secs(5));
        outages.end();
        tokio::time::timeout(Duration::from_secs(60), over).await.expect("it has ended");
        let next = outages.wait_until_over_for(Duration::from_secs(5));
        tokio::time::timeout(Duration::from_secs(60), next).await.expect_err("no other one has ended");
    }

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
