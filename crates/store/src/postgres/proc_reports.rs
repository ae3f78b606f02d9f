//! Stores what agents report about their procs. The status is JSON that the store does not read.
//!
//! A unit locks the sessions of its agents first, so reports of one agent come one after the other, and what
//! a unit has read of an agent's procs holds until its commit. Keys are looked up one by one in scalar
//! subqueries: a join would let the planner compare every reported proc with every stored one. Statements on
//! `procs` are planned each time: a plan that was made while the table was almost empty scans all of it, and
//! would stay until PostgreSQL has analysed the table again.

use super::PgStore;
use super::columns::{agent as agent_id, integer, natural, plain};
use super::fault::PgFault;
use super::group_commit::{ChangeGroup, ChangeReply, GroupChange, Locks};
use super::procs::plain_key;
use crate::limits;
use crate::{ProcRecord, StoreError};
use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;
use procfleet_core::{AgentId, Epoch, ProcKey};
use ring::digest::{SHA256, digest};
use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use tokio_postgres::types::{ToSql, Type};

impl PgStore {
    pub(crate) async fn put_procs(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        procs: Vec<ProcRecord>,
        gone: Vec<ProcKey>,
    ) -> Result<usize, StoreError> {
        let gone = gone.into_iter().map(plain_key).collect();
        let report = AgentProcs {
            agent: agent.clone(),
            epoch,
            procs: newest(procs),
            others: OtherProcs::Keep { gone },
        };
        self.write_grouped(|inner| &inner.proc_reports, report).await
    }

    pub(crate) async fn replace_procs(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        procs: Vec<ProcRecord>,
    ) -> Result<usize, StoreError> {
        let report =
            AgentProcs { agent: agent.clone(), epoch, procs: newest(procs), others: OtherProcs::Delete };
        self.write_grouped(|inner| &inner.proc_reports, report).await
    }
}

/// A report of one agent.
#[derive(Debug)]
pub(super) struct AgentProcs {
    agent: AgentId,
    epoch: Epoch,
    procs: Vec<ProcRecord>,
    others: OtherProcs,
}

/// The agent's stored procs that are not in `procs`.
#[derive(Debug)]
enum OtherProcs {
    /// All but those that are gone.
    Keep {
        gone: Vec<ProcKey>,
    },
    Delete,
}

impl GroupChange for AgentProcs {
    type Answer = usize;
    const DOING: &'static str = "storing an agent's procs";

    fn agent(&self) -> &AgentId {
        &self.agent
    }

    fn bytes(&self) -> usize {
        const KEY: usize = 100;
        let gone = match &self.others {
            OtherProcs::Keep { gone } => gone.len(),
            OtherProcs::Delete => 0,
        };
        self.procs.iter().map(|record| record.status.len() + KEY).sum::<usize>() + gone * KEY
    }

    fn carry_out<'a>(
        tx: &'a Transaction<'a>,
        group: &'a ChangeGroup<Self>,
    ) -> BoxFuture<'a, Result<Vec<ChangeReply<Self>>, PgFault>> {
        Box::pin(store(tx, group))
    }
}

async fn store(
    tx: &Transaction<'_>,
    group: &ChangeGroup<AgentProcs>,
) -> Result<Vec<ChangeReply<AgentProcs>>, PgFault> {
    let sessions = group.changes.iter().map(|report| (&report.agent, report.epoch)).collect();
    let locked = lock_sessions(tx, sessions, group.locks).await?;
    let held = || {
        group
            .changes
            .iter()
            .zip(&locked)
            .filter(|(_, lock)| matches!(lock, SessionLock::Held))
            .map(|(report, _)| report)
    };
    let mut gone: Vec<(&AgentId, &ProcKey)> = Vec::new();
    for report in held() {
        if let OtherProcs::Keep { gone: keys } = &report.others {
            gone.extend(keys.iter().map(|key| (&report.agent, key)));
        }
    }
    delete(tx, &gone).await?;
    let stays = |report: &&AgentProcs| matches!(report.others, OtherProcs::Keep { .. });
    let rest = update(tx, held().filter(stays).collect()).await?;
    let mut changes = Changes::of(tx, rest).await?;
    let replaced = Changes::of_all(tx, held().filter(|report| !stays(report)).collect()).await?;
    delete(tx, &replaced.gone).await?;
    changes.procs.extend(replaced.procs);
    changes.excess.extend(replaced.excess);
    upsert(tx, changes.procs).await?;
    let replies = group.changes.iter().zip(locked).map(|(report, lock)| match lock {
        SessionLock::Held => ChangeReply::Answer(Ok(changes.excess.get(&report.agent).copied().unwrap_or(0))),
        SessionLock::Refused(error) => ChangeReply::Answer(Err(error)),
        SessionLock::Skipped => ChangeReply::Alone,
    });
    Ok(replies.collect())
}

/// The rows that reports change.
#[derive(Default)]
struct Changes<'a> {
    procs: Vec<(&'a AgentId, &'a ProcRecord)>,
    gone: Vec<(&'a AgentId, ProcKey)>,
    /// Number of procs of each agent for which it has no room left.
    excess: HashMap<&'a AgentId, usize>,
}

impl<'a> Changes<'a> {
    /// Of reports beside which the other procs stay.
    async fn of(tx: &Transaction<'_>, reports: Vec<&'a AgentProcs>) -> Result<Changes<'a>, PgFault> {
        let mut changes = Changes::default();
        let known = known_revisions(tx, &reports).await?;
        let usage = StoredUsage::beside_stored(tx, &reports, &known).await?;
        let mut known = known.into_iter();
        for report in reports {
            let known: Vec<Option<i64>> = known.by_ref().take(report.procs.len()).collect();
            let excess = usage.excess(report, &known);
            let changed = report.procs.iter().zip(known).filter(|(record, known)| {
                known.is_none_or(|known| known < integer(record.revision)) && !excess.contains(&record.proc)
            });
            changes.procs.extend(changed.map(|(record, _)| (&report.agent, record)));
            changes.excess.insert(&report.agent, excess.len());
        }
        Ok(changes)
    }

    /// Of reports that hold all procs of their agents.
    async fn of_all(tx: &Transaction<'_>, reports: Vec<&'a AgentProcs>) -> Result<Changes<'a>, PgFault> {
        let mut changes = Changes::default();
        let mut all_stored = stored(tx, &reports).await?;
        for report in reports {
            let mut excess = excess_of_large(&report.procs, 0);
            excess.extend(report.procs.iter().skip(limits::PROCS).map(|record| &record.proc));
            let mut stored = all_stored.remove(&report.agent).unwrap_or_default();
            for record in report.procs.iter().filter(|record| !excess.contains(&record.proc)) {
                if stored.remove(&record.proc).is_none_or(|stored| stored != Stored::of(record)) {
                    changes.procs.push((&report.agent, record));
                }
            }
            changes.gone.extend(stored.into_keys().map(|proc| (&report.agent, proc)));
            changes.excess.insert(&report.agent, excess.len());
        }
        Ok(changes)
    }
}

/// Whether a report may be stored.
pub(super) enum SessionLock {
    /// The agent is not retired and its last session is this one, until the commit.
    Held,
    Refused(StoreError),
    /// Others have locked it, or there is no such agent.
    Skipped,
}

/// Locks the last sessions of agents.
pub(super) async fn lock_sessions(
    tx: &Transaction<'_>,
    sessions: Vec<(&AgentId, Epoch)>,
    locks: Locks,
) -> Result<Vec<SessionLock>, PgFault> {
    // Both rows: the session is first in the order of locks, and only a lock sees the newest `retired_at`.
    // One after the other, because the planner may read both tables for a join.
    let skip = locks.clause();
    let sql = format!(
        "SELECT agent_id, epoch FROM sessions WHERE agent_id = ANY($1) ORDER BY agent_id FOR NO KEY UPDATE {skip}"
    );
    let statement = tx.prepare_cached(&sql).await?;
    let agents: Vec<&str> = sessions.iter().map(|(agent, _)| agent.as_str()).collect();
    let mut epochs: HashMap<AgentId, u64> = HashMap::with_capacity(sessions.len());
    for row in tx.query(&statement, &[&agents]).await? {
        epochs.insert(agent_id(&row, 0)?, natural(row.try_get(1)?));
    }
    let enrolled = lock_enrolled(tx, epochs.keys(), locks).await?;
    let lock = |(agent, epoch): (&AgentId, Epoch)| match (epochs.get(agent), enrolled.get(agent)) {
        (Some(last), Some(true)) if *last == epoch.0 => SessionLock::Held,
        (Some(_), Some(true)) => SessionLock::Refused(StoreError::OldSession(agent.clone())),
        (None, _) | (_, None) if locks == Locks::Skip => SessionLock::Skipped,
        (_, _) => SessionLock::Refused(StoreError::NoSuchAgent(agent.clone())),
    };
    Ok(sessions.into_iter().map(lock).collect())
}

/// Locks rows of agents, and returns whether each is not retired.
pub(super) async fn lock_enrolled(
    tx: &Transaction<'_>,
    agents: impl Iterator<Item = &AgentId>,
    locks: Locks,
) -> Result<HashMap<AgentId, bool>, PgFault> {
    // No condition: the indexes of agents that are not retired would be eligible with it.
    let sql = format!(
        "SELECT agent_id, retired_at IS NULL FROM agents WHERE agent_id = ANY($1) ORDER BY agent_id FOR NO KEY UPDATE {}",
        locks.clause()
    );
    let statement = tx.prepare_cached(&sql).await?;
    let agents: Vec<&str> = agents.map(AgentId::as_str).collect();
    let rows = tx.query(&statement, &[&agents]).await?;
    rows.iter().map(|row| Ok((agent_id(row, 0)?, row.try_get(1)?))).collect()
}

/// One record for each proc, the one with the highest revision. A statement cannot write a row twice.
fn newest(procs: Vec<ProcRecord>) -> Vec<ProcRecord> {
    let mut newest: Vec<ProcRecord> = Vec::with_capacity(procs.len());
    let mut indexes = HashMap::with_capacity(procs.len());
    for mut record in procs {
        record.proc = plain_key(record.proc);
        record.listing.state = plain(&record.listing.state);
        if record.status.contains('\0') {
            record.status = plain(&record.status);
        }
        match indexes.entry(record.proc.clone()) {
            Entry::Vacant(index) => {
                index.insert(newest.len());
                newest.push(record);
            }
            Entry::Occupied(index) => {
                let known = &mut newest[*index.get()];
                if record.revision > known.revision {
                    *known = record;
                }
            }
        }
    }
    newest
}

/// The stored revision of each proc of all reports, `None` where there is none.
async fn known_revisions(tx: &Transaction<'_>, reports: &[&AgentProcs]) -> Result<Vec<Option<i64>>, PgFault> {
    let keys = Keys::of(
        reports.iter().flat_map(|report| report.procs.iter().map(|record| (&report.agent, &record.proc))),
    );
    if keys.agents.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT (SELECT procs.revision FROM procs WHERE procs.agent = reported.agent \
               AND procs.namespace = reported.namespace AND procs.name = reported.name) \
               FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY \
               AS reported (agent, namespace, name, place) ORDER BY place";
    let rows = tx.query_typed(sql, &keys.values()).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// The stored procs of agents, for those whose reports may exceed their limits. Only new procs and large
/// states cost a look at the stored ones.
struct StoredUsage {
    procs: HashMap<AgentId, u64>,
    large_bytes: HashMap<AgentId, u64>,
}

impl StoredUsage {
    async fn beside_stored(
        tx: &Transaction<'_>,
        reports: &[&AgentProcs],
        known: &[Option<i64>],
    ) -> Result<StoredUsage, PgFault> {
        let large = reports.iter().filter(|report| report.procs.iter().any(is_large));
        let large: Vec<&str> = large.map(|report| report.agent.as_str()).collect();
        let agents = reports.iter().flat_map(|report| report.procs.iter().map(|_| report.agent.as_str()));
        let with_new: HashSet<&str> =
            agents.zip(known).filter(|(_, known)| known.is_none()).map(|(agent, _)| agent).collect();
        let sql = format!(
            "SELECT agent, coalesce(sum(octet_length(status_json)), 0)::bigint FROM procs \
             WHERE agent = ANY($1) AND octet_length(status_json) > {} GROUP BY agent",
            limits::LARGE_STATE
        );
        let large_bytes = numbers(tx, &sql, large).await?;
        let sql = "SELECT agent, count(*) FROM procs WHERE agent = ANY($1) GROUP BY agent";
        Ok(StoredUsage { procs: numbers(tx, sql, with_new.into_iter().collect()).await?, large_bytes })
    }

    /// The procs of a report for which there is no room.
    fn excess<'a>(&self, report: &'a AgentProcs, known: &[Option<i64>]) -> HashSet<&'a ProcKey> {
        let mut excess =
            excess_of_large(&report.procs, self.large_bytes.get(&report.agent).copied().unwrap_or(0));
        let stored = self.procs.get(&report.agent).copied().unwrap_or(0);
        let room = limits::PROCS.saturating_sub(usize::try_from(stored).unwrap_or(usize::MAX));
        let new = report.procs.iter().zip(known).filter(|(_, known)| known.is_none());
        excess.extend(new.map(|(record, _)| &record.proc).skip(room));
        excess
    }
}

/// A number of each agent that has one.
async fn numbers(
    tx: &Transaction<'_>,
    sql: &str,
    agents: Vec<&str>,
) -> Result<HashMap<AgentId, u64>, PgFault> {
    if agents.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = tx.query_typed(sql, &[(&agents, Type::TEXT_ARRAY)]).await?;
    rows.iter().map(|row| Ok((agent_id(row, 0)?, natural(row.try_get(1)?)))).collect()
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

/// The stored procs of each agent.
async fn stored(
    tx: &Transaction<'_>,
    reports: &[&AgentProcs],
) -> Result<HashMap<AgentId, HashMap<ProcKey, Stored>>, PgFault> {
    let mut found: HashMap<AgentId, HashMap<ProcKey, Stored>> = HashMap::new();
    if reports.is_empty() {
        return Ok(found);
    }
    let sql = "SELECT agent, namespace, name, revision, sha256(convert_to(status_json, 'UTF8')), state, start_rank, failed \
               FROM procs WHERE agent = ANY($1)";
    let agents: Vec<&str> = reports.iter().map(|report| report.agent.as_str()).collect();
    for row in tx.query_typed(sql, &[(&agents, Type::TEXT_ARRAY)]).await? {
        let stored = Stored {
            revision: row.try_get(3)?,
            status_sha256: row.try_get(4)?,
            state: row.try_get(5)?,
            start_rank: row.try_get(6)?,
            failed: row.try_get(7)?,
        };
        let proc = ProcKey { namespace: row.try_get(1)?, name: row.try_get(2)? };
        found.entry(agent_id(&row, 0)?).or_default().insert(proc, stored);
    }
    Ok(found)
}

async fn delete(tx: &Transaction<'_>, gone: &[(&AgentId, impl Borrow<ProcKey>)]) -> Result<(), PgFault> {
    if gone.is_empty() {
        return Ok(());
    }
    // The agents are locked, so no row moves between the lookup and its deletion.
    let sql = "DELETE FROM procs WHERE ctid = ANY(ARRAY( \
               SELECT (SELECT procs.ctid FROM procs WHERE procs.agent = gone.agent \
               AND procs.namespace = gone.namespace AND procs.name = gone.name) \
               FROM unnest($1::text[], $2::text[], $3::text[]) AS gone (agent, namespace, name)))";
    let keys = Keys::of(gone.iter().map(|(agent, proc)| (*agent, proc.borrow())));
    tx.query_typed(sql, &keys.values()).await?;
    Ok(())
}

/// Updates stored procs whose reported revision is higher: the fast path. Returns the reports that were not
/// written completely, because a proc is new, large or not newer. Storing them again is idempotent.
async fn update<'a>(
    tx: &Transaction<'_>,
    reports: Vec<&'a AgentProcs>,
) -> Result<Vec<&'a AgentProcs>, PgFault> {
    let small = |report: &&'a AgentProcs| {
        let AgentProcs { agent, procs, .. } = *report;
        procs.iter().filter(|record| !is_large(record)).map(move |record| (agent, record))
    };
    let procs: Vec<(&AgentId, &ProcRecord)> = reports.iter().flat_map(small).collect();
    if procs.is_empty() {
        return Ok(reports);
    }
    let sql = "UPDATE procs SET revision = found.revision, status_json = found.status_json, state = found.state, \
               start_rank = found.start_rank, failed = found.failed \
               FROM (SELECT reported.*, (SELECT stored.ctid FROM procs AS stored WHERE stored.agent = reported.agent \
               AND stored.namespace = reported.namespace AND stored.name = reported.name) AS stored_ctid \
               FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::boolean[]) \
               AS reported (agent, namespace, name, revision, status_json, state, start_rank, failed) OFFSET 0) AS found \
               WHERE procs.ctid = found.stored_ctid AND procs.revision < found.revision RETURNING procs.agent";
    let mut written: HashMap<AgentId, usize> = HashMap::with_capacity(reports.len());
    for row in tx.query_typed(sql, &Columns::of(&procs).values()).await? {
        *written.entry(agent_id(&row, 0)?).or_default() += 1;
    }
    let is_written = |report: &&AgentProcs| written.get(&report.agent) == Some(&report.procs.len());
    Ok(reports.into_iter().filter(|report| !is_written(report)).collect())
}

/// Writes all of them, whatever is stored.
async fn upsert(tx: &Transaction<'_>, mut procs: Vec<(&AgentId, &ProcRecord)>) -> Result<(), PgFault> {
    if procs.is_empty() {
        return Ok(());
    }
    procs.sort_unstable_by_key(|(agent, record)| (*agent, &record.proc));
    let sql = "INSERT INTO procs (agent, namespace, name, revision, status_json, state, start_rank, failed, host_order) \
               SELECT agent, namespace, name, revision, status_json, state, start_rank, failed, \
               (SELECT host_order FROM agents WHERE agent_id = reported.agent) \
               FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::boolean[]) \
               AS reported (agent, namespace, name, revision, status_json, state, start_rank, failed) \
               ON CONFLICT (agent, namespace, name) DO UPDATE \
               SET revision = excluded.revision, status_json = excluded.status_json, state = excluded.state, \
               start_rank = excluded.start_rank, failed = excluded.failed";
    tx.query_typed(sql, &Columns::of(&procs).values()).await?;
    Ok(())
}

/// Procs as columns, for `unnest`.
struct Columns<'a> {
    keys: Keys<'a>,
    revisions: Vec<i64>,
    statuses: Vec<&'a str>,
    states: Vec<&'a str>,
    start_ranks: Vec<i64>,
    failed: Vec<bool>,
}

impl<'a> Columns<'a> {
    fn of(procs: &[(&'a AgentId, &'a ProcRecord)]) -> Columns<'a> {
        let records = || procs.iter().map(|(_, record)| record);
        Columns {
            keys: Keys::of(procs.iter().map(|(agent, record)| (*agent, &record.proc))),
            revisions: records().map(|record| integer(record.revision)).collect(),
            statuses: records().map(|record| record.status.as_str()).collect(),
            states: records().map(|record| record.listing.state.as_str()).collect(),
            start_ranks: records().map(|record| record.listing.started_at.saturating_neg()).collect(),
            failed: records().map(|record| record.listing.failed).collect(),
        }
    }

    /// Agents, namespaces, names, revisions, statuses, states, start ranks, failed.
    fn values(&self) -> Vec<TypedValue<'_>> {
        let Columns { keys, revisions, statuses, states, start_ranks, failed } = self;
        let mut values = keys.values();
        values.push((revisions, Type::INT8_ARRAY));
        values.push((statuses, Type::TEXT_ARRAY));
        values.push((states, Type::TEXT_ARRAY));
        values.push((start_ranks, Type::INT8_ARRAY));
        values.push((failed, Type::BOOL_ARRAY));
        values
    }
}

/// Keys as columns, for `unnest`.
#[derive(Default)]
struct Keys<'a> {
    agents: Vec<&'a str>,
    namespaces: Vec<&'a str>,
    names: Vec<&'a str>,
}

impl<'a> Keys<'a> {
    fn of(procs: impl Iterator<Item = (&'a AgentId, &'a ProcKey)>) -> Keys<'a> {
        let mut keys = Keys::default();
        for (agent, proc) in procs {
            keys.agents.push(agent.as_str());
            keys.namespaces.push(&proc.namespace);
            keys.names.push(&proc.name);
        }
        keys
    }

    /// Agents, namespaces, names.
    fn values(&self) -> Vec<TypedValue<'_>> {
        let Keys { agents, namespaces, names } = self;
        vec![(agents, Type::TEXT_ARRAY), (namespaces, Type::TEXT_ARRAY), (names, Type::TEXT_ARRAY)]
    }
}

type TypedValue<'a> = (&'a (dyn ToSql + Sync), Type);
