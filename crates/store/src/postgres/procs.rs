//! The last report of each agent about its procs. The status is JSON that the store does not read.
//!
//! A unit locks the agent's session first, so reports of one agent come one after the other, and what a unit
//! has read of the agent's procs holds until its commit. Keys are looked up one by one in scalar subqueries:
//! a join would let the planner compare every reported proc with every stored one.

use super::PgStore;
use super::columns::{agent, host, integer, natural, plain};
use super::conditions::{Conditions, Value};
use super::fault::PgFault;
use crate::limits;
use crate::{ProcListing, ProcPage, ProcRecord, StoreError};
use deadpool_postgres::Transaction;
use procfleet_core::grants::GrantScope;
use procfleet_core::{AgentId, BusinessId, Epoch, Host, ProcKey};
use ring::digest::{SHA256, digest};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use tokio_postgres::Row;

impl PgStore {
    pub(crate) async fn put_procs(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        procs: Vec<ProcRecord>,
        gone: Vec<ProcKey>,
    ) -> Result<usize, StoreError> {
        let gone: Vec<ProcKey> = gone.into_iter().map(plain_key).collect();
        let arguments = (agent.clone(), epoch, newest(procs), gone);
        self.write("storing changed procs", arguments, |tx, (agent, epoch, procs, gone)| {
            Box::pin(async move {
                lock_session(tx, agent, *epoch).await?;
                delete(tx, agent, &gone.iter().collect::<Vec<_>>()).await?;
                let known = known_revisions(tx, agent, procs).await?;
                let excess = excess_beside_stored(tx, agent, procs, &known).await?;
                let changed = procs.iter().zip(known).filter(|(record, known)| {
                    known.is_none_or(|known| known < integer(record.revision))
                        && !excess.contains(&record.proc)
                });
                upsert(tx, agent, changed.map(|(record, _)| record).collect()).await?;
                Ok(excess.len())
            })
        })
        .await
    }

    pub(crate) async fn replace_procs(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        procs: Vec<ProcRecord>,
    ) -> Result<usize, StoreError> {
        let arguments = (agent.clone(), epoch, newest(procs));
        self.write("storing an agent's procs", arguments, |tx, (agent, epoch, procs)| {
            Box::pin(async move {
                lock_session(tx, agent, *epoch).await?;
                let mut excess = excess_of_large(procs, 0);
                excess.extend(procs.iter().skip(limits::PROCS).map(|record| &record.proc));
                let mut stored = stored(tx, agent).await?;
                let mut changed = Vec::new();
                for record in procs.iter().filter(|record| !excess.contains(&record.proc)) {
                    if stored.remove(&record.proc).is_none_or(|stored| stored != Stored::of(record)) {
                        changed.push(record);
                    }
                }
                // What is left is not in the list.
                delete(tx, agent, &stored.keys().collect::<Vec<_>>()).await?;
                upsert(tx, agent, changed).await?;
                Ok(excess.len())
            })
        })
        .await
    }

    pub(crate) async fn proc_on(
        &self,
        agents: Vec<AgentId>,
        proc: &ProcKey,
    ) -> Result<Vec<(AgentId, Host, ProcRecord)>, StoreError> {
        const DOING: &str = "reading a proc on some agents";
        let ProcKey { namespace, name } = plain_key(proc.clone());
        let sql = "SELECT agent, cloud_id, ip, revision, status_json, state, start_rank, failed \
                   FROM procs JOIN agents ON agent_id = agent \
                   WHERE agent = ANY(?) AND namespace = ? AND name = ? AND retired_at IS NULL";
        let ids = agents.iter().map(AgentId::to_string).collect();
        let values = [Value::Texts(ids), Value::Text(namespace), Value::Text(name)];
        let rows = self.rows(DOING, sql, &values).await?;
        let found = self.converted(DOING, &rows, |row| {
            let (revision, status) = (natural(row.try_get(3)?), row.try_get(4)?);
            let record = ProcRecord { proc: proc.clone(), revision, status, listing: listing(row, 5)? };
            Ok((agent(row, 0)?, (host(row, 1)?, record)))
        })?;
        let found: HashMap<AgentId, (Host, ProcRecord)> = found.into_iter().collect();
        let in_order = agents.into_iter().filter_map(|agent| {
            let (host, record) = found.get(&agent)?.clone();
            Some((agent, host, record))
        });
        Ok(in_order.collect())
    }

    pub(crate) async fn proc_page(
        &self,
        namespace: &str,
        within: &GrantScope<BusinessId>,
        start: u64,
        limit: u32,
    ) -> Result<ProcPage, StoreError> {
        let mut conditions = Conditions::default();
        conditions.equals("namespace", Some(plain(namespace)));
        if matches!(within, GrantScope::Only(_)) {
            let mut inner = Conditions::default();
            inner.businesses("business_id", within);
            conditions.within("agent", "SELECT agent_id FROM agents", inner);
        }
        let arguments = (conditions, start, limit);
        self.read("reading a page of procs", arguments, |tx, (conditions, start, limit)| {
            Box::pin(async move {
                let sql = format!("SELECT count(*) FROM procs {}", conditions.filter());
                let count = total(&PgStore::rows_in(tx, &sql, conditions.values()).await?)?;
                // The page is found in the index alone; only its own procs are read.
                let sql = format!(
                    "WITH page AS MATERIALIZED (SELECT agent, namespace, name FROM procs {} \
                     ORDER BY agent, name LIMIT ? OFFSET ?) \
                     SELECT agent, cloud_id, ip, namespace, name, revision, status_json, state, start_rank, failed \
                     FROM page JOIN procs USING (agent, namespace, name) JOIN agents ON agent_id = agent \
                     WHERE retired_at IS NULL ORDER BY agent, name",
                    conditions.filter()
                );
                let bounds = [Value::Int(i64::from(*limit)), Value::Int(integer(*start))];
                let rows = PgStore::rows_in(tx, &sql, &conditions.clone().into_values(bounds)).await?;
                let procs = rows.iter().map(located).collect::<Result<_, _>>()?;
                Ok(ProcPage { count, procs })
            })
        })
        .await
    }
}

/// Locks an agent that is not retired and whose last session is this one. Both stay so until the commit.
pub(super) async fn lock_session(tx: &Transaction<'_>, agent: &AgentId, epoch: Epoch) -> Result<(), PgFault> {
    // Both rows: the session is first in the order of locks, and only a lock sees the newest `retired_at`,
    // which is no condition, because an index of agents by host would be eligible with it.
    let sql = "SELECT retired_at IS NULL, epoch FROM sessions JOIN agents USING (agent_id) \
               WHERE agent_id = $1 FOR NO KEY UPDATE";
    let statement = tx.prepare_cached(sql).await?;
    let row = tx.query_opt(&statement, &[&agent.as_str()]).await?;
    let row = row.ok_or_else(|| StoreError::NoSuchAgent(agent.clone()))?;
    if !row.try_get::<_, bool>(0)? {
        return Err(StoreError::NoSuchAgent(agent.clone()).into());
    }
    if natural(row.try_get(1)?) != epoch.0 {
        return Err(StoreError::OldSession(agent.clone()).into());
    }
    Ok(())
}

/// A proc with its agent and host in ten columns: agent, cloud id, ip, namespace, name, revision, status,
/// and those of [`listing`].
pub(super) fn located(row: &Row) -> Result<(AgentId, Host, ProcRecord), PgFault> {
    let proc = ProcKey { namespace: row.try_get(3)?, name: row.try_get(4)? };
    let (revision, status) = (natural(row.try_get(5)?), row.try_get(6)?);
    let record = ProcRecord { proc, revision, status, listing: listing(row, 7)? };
    Ok((agent(row, 0)?, host(row, 1)?, record))
}

/// The number that a `count(*)` found.
pub(super) fn total(rows: &[Row]) -> Result<u64, PgFault> {
    let count: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?;
    Ok(natural(count.unwrap_or(0)))
}

pub(super) fn plain_key(key: ProcKey) -> ProcKey {
    ProcKey { namespace: plain(&key.namespace), name: plain(&key.name) }
}

/// A listing in three columns: state, start rank, failed.
fn listing(row: &Row, column: usize) -> Result<ProcListing, PgFault> {
    let start_rank: i64 = row.try_get(column + 1)?;
    let (state, failed) = (row.try_get(column)?, row.try_get(column + 2)?);
    Ok(ProcListing { state, started_at: start_rank.saturating_neg(), failed })
}

/// One record for each proc, the one with the highest revision. A statement cannot write a row twice.
fn newest(procs: Vec<ProcRecord>) -> Vec<ProcRecord> {
    let mut newest: Vec<ProcRecord> = Vec::with_capacity(procs.len());
    let mut places = HashMap::with_capacity(procs.len());
    for mut record in procs {
        record.proc = plain_key(record.proc);
        record.listing.state = plain(&record.listing.state);
        if record.status.contains('\0') {
            record.status = plain(&record.status);
        }
        match places.entry(record.proc.clone()) {
            Entry::Vacant(place) => {
                place.insert(newest.len());
                newest.push(record);
            }
            Entry::Occupied(place) => {
                let known = &mut newest[*place.get()];
                if record.revision > known.revision {
                    *known = record;
                }
            }
        }
    }
    newest
}

/// The stored revision of each proc, `None` where there is none.
async fn known_revisions(
    tx: &Transaction<'_>,
    agent: &AgentId,
    procs: &[ProcRecord],
) -> Result<Vec<Option<i64>>, PgFault> {
    if procs.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT (SELECT procs.revision FROM procs WHERE procs.agent = $1 \
               AND procs.namespace = reported.namespace AND procs.name = reported.name) \
               FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS reported (namespace, name, place) \
               ORDER BY place";
    let statement = tx.prepare_cached(sql).await?;
    let (namespaces, names) = keys(procs.iter().map(|record| &record.proc));
    let rows = tx.query(&statement, &[&agent.as_str(), &namespaces, &names]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Those for which the agent has no room left. Only new procs and large states cost a look at the stored
/// ones.
async fn excess_beside_stored<'a>(
    tx: &Transaction<'_>,
    agent: &AgentId,
    procs: &'a [ProcRecord],
    known: &[Option<i64>],
) -> Result<HashSet<&'a ProcKey>, PgFault> {
    let mut excess = HashSet::new();
    if procs.iter().any(is_large) {
        let sql = "SELECT coalesce(sum(octet_length(status_json)), 0)::bigint FROM procs \
                   WHERE agent = $1 AND octet_length(status_json) > $2::bigint";
        let statement = tx.prepare_cached(sql).await?;
        let large = integer(limits::LARGE_STATE as u64);
        let stored = tx.query_one(&statement, &[&agent.as_str(), &large]).await?;
        excess = excess_of_large(procs, natural(stored.try_get(0)?));
    }
    let new = procs.iter().zip(known).filter(|(_, known)| known.is_none()).map(|(record, _)| &record.proc);
    if new.clone().next().is_some() {
        let statement = tx.prepare_cached("SELECT count(*) FROM procs WHERE agent = $1").await?;
        let stored: i64 = tx.query_one(&statement, &[&agent.as_str()]).await?.try_get(0)?;
        let room = limits::PROCS.saturating_sub(usize::try_from(stored).unwrap_or(usize::MAX));
        excess.extend(new.skip(room));
    }
    Ok(excess)
}

/// `bytes`: of the large states that are stored.
fn excess_of_large(procs: &[ProcRecord], mut bytes: u64) -> HashSet<&ProcKey> {
    let mut excess = HashSet::new();
    for record in procs.iter().filter(|record| is_large(record)) {
        bytes += record.status.len() as u64;
        if bytes > limits::LARGE_STATES as u64 {
            excess.insert(&record.proc);
        }
    }
    excess
}

fn is_large(record: &ProcRecord) -> bool {
    record.status.len() > limits::LARGE_STATE
}

/// A stored proc, with a digest in place of its status, so that an unchanged list costs little to compare.
#[derive(PartialEq)]
struct Stored {
    revision: i64,
    status_sha256: Vec<u8>,
    state: String,
    start_rank: i64,
    failed: bool,
}

impl Stored {
    fn of(record: &ProcRecord) -> Stored {
        Stored {
            revision: integer(record.revision),
            status_sha256: digest(&SHA256, record.status.as_bytes()).as_ref().to_vec(),
            state: record.listing.state.clone(),
            start_rank: record.listing.started_at.saturating_neg(),
            failed: record.listing.failed,
        }
    }
}

async fn stored(tx: &Transaction<'_>, agent: &AgentId) -> Result<HashMap<ProcKey, Stored>, PgFault> {
    let sql = "SELECT namespace, name, revision, sha256(convert_to(status_json, 'UTF8')), state, start_rank, failed \
               FROM procs WHERE agent = $1";
    let statement = tx.prepare_cached(sql).await?;
    let rows = tx.query(&statement, &[&agent.as_str()]).await?;
    let row = |row: &Row| {
        let stored = Stored {
            revision: row.try_get(2)?,
            status_sha256: row.try_get(3)?,
            state: row.try_get(4)?,
            start_rank: row.try_get(5)?,
            failed: row.try_get(6)?,
        };
        Ok((ProcKey { namespace: row.try_get(0)?, name: row.try_get(1)? }, stored))
    };
    rows.iter().map(row).collect()
}

async fn delete(tx: &Transaction<'_>, agent: &AgentId, gone: &[&ProcKey]) -> Result<(), PgFault> {
    if gone.is_empty() {
        return Ok(());
    }
    // The agent is locked, so no row moves between the lookup and its deletion.
    let sql = "DELETE FROM procs WHERE agent = $1 AND ctid = ANY(ARRAY( \
               SELECT (SELECT procs.ctid FROM procs WHERE procs.agent = $1 \
               AND procs.namespace = gone.namespace AND procs.name = gone.name) \
               FROM unnest($2::text[], $3::text[]) AS gone (namespace, name)))";
    let statement = tx.prepare_cached(sql).await?;
    let (namespaces, names) = keys(gone.iter().copied());
    tx.execute(&statement, &[&agent.as_str(), &namespaces, &names]).await?;
    Ok(())
}

/// Writes all of them, whatever is stored.
async fn upsert(tx: &Transaction<'_>, agent: &AgentId, mut procs: Vec<&ProcRecord>) -> Result<(), PgFault> {
    if procs.is_empty() {
        return Ok(());
    }
    procs.sort_unstable_by_key(|record| &record.proc);
    let sql = "INSERT INTO procs (agent, namespace, name, revision, status_json, state, start_rank, failed, host_order) \
               SELECT $1, namespace, name, revision, status_json, state, start_rank, failed, \
               (SELECT host_order FROM agents WHERE agent_id = $1) \
               FROM unnest($2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::boolean[]) \
               AS reported (namespace, name, revision, status_json, state, start_rank, failed) \
               ON CONFLICT (agent, namespace, name) DO UPDATE \
               SET revision = excluded.revision, status_json = excluded.status_json, state = excluded.state, \
               start_rank = excluded.start_rank, failed = excluded.failed";
    let statement = tx.prepare_cached(sql).await?;
    let (namespaces, names) = keys(procs.iter().map(|record| &record.proc));
    let revisions: Vec<i64> = procs.iter().map(|record| integer(record.revision)).collect();
    let statuses: Vec<&str> = procs.iter().map(|record| record.status.as_str()).collect();
    let states: Vec<&str> = procs.iter().map(|record| record.listing.state.as_str()).collect();
    let start_ranks: Vec<i64> =
        procs.iter().map(|record| record.listing.started_at.saturating_neg()).collect();
    let failed: Vec<bool> = procs.iter().map(|record| record.listing.failed).collect();
    let agent = agent.as_str();
    tx.execute(
        &statement,
        &[&agent, &namespaces, &names, &revisions, &statuses, &states, &start_ranks, &failed],
    )
    .await?;
    Ok(())
}

/// Namespaces and names.
fn keys<'a>(procs: impl Iterator<Item = &'a ProcKey>) -> (Vec<&'a str>, Vec<&'a str>) {
    procs.map(|proc| (proc.namespace.as_str(), proc.name.as_str())).unzip()
}
