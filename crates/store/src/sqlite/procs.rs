//! The last report of each agent about its procs. The status is JSON that the store does not read.

use super::agents::require_session;
use super::columns::{agent, host, integer, natural};
use super::{QueryFault, SqliteStore};
use crate::limits;
use crate::{ProcListing, ProcPage, ProcRecord, StoreError};
use procfleet_core::grants::GrantScope;
use procfleet_core::{AgentId, BusinessId, Epoch, Host, ProcKey};
use rusqlite::{Connection, Row, ToSql, params};
use std::collections::HashSet;

impl SqliteStore {
    pub(crate) async fn put_procs(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        procs: Vec<ProcRecord>,
        gone: Vec<ProcKey>,
    ) -> Result<usize, StoreError> {
        let agent = agent.clone();
        self.write("storing changed procs", move |db| {
            require_session(db, &agent, epoch)?;
            let sql = "DELETE FROM procs WHERE agent = ? AND namespace = ? AND name = ?";
            let mut delete = db.prepare_cached(sql)?;
            for proc in &gone {
                delete.execute([agent.as_str(), &proc.namespace, &proc.name])?;
            }
            upsert(db, &agent, &procs)
        })
        .await
    }

    pub(crate) async fn replace_procs(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        procs: Vec<ProcRecord>,
    ) -> Result<usize, StoreError> {
        let agent = agent.clone();
        self.write("storing an agent's procs", move |db| {
            require_session(db, &agent, epoch)?;
            db.prepare_cached("DELETE FROM procs WHERE agent = ?")?.execute([agent.as_str()])?;
            let oversized = oversized(db, &agent, &procs)?;
            let others = procs.iter().filter(|record| !oversized.contains(&record.proc));
            Ok(oversized.len() + insert(db, &agent, others.collect())?)
        })
        .await
    }

    pub(crate) async fn proc_on(
        &self,
        agents: Vec<AgentId>,
        proc: &ProcKey,
    ) -> Result<Vec<(AgentId, Host, ProcRecord)>, StoreError> {
        let proc = proc.clone();
        self.read("reading a proc on some agents", move |db| {
            let sql = "SELECT cloud_id, ip, revision, status_json, procs.state, start_rank, failed \
                       FROM procs JOIN agents ON agent_id = agent \
                       WHERE agent = ? AND namespace = ? AND name = ? AND retired_at IS NULL";
            let mut statement = db.prepare_cached(sql)?;
            let mut found = Vec::new();
            for agent in agents {
                let mut rows = statement.query([agent.as_str(), &proc.namespace, &proc.name])?;
                if let Some(row) = rows.next()? {
                    let (revision, status) = (natural(row.get(2)?), row.get(3)?);
                    let listing = listing(row, 4)?;
                    let record = ProcRecord { proc: proc.clone(), revision, status, listing };
                    let host = host(row, 0)?;
                    drop(rows);
                    found.push((agent, host, record));
                }
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn proc_page(
        &self,
        namespace: &str,
        within: &GrantScope<BusinessId>,
        start: u64,
        limit: u32,
    ) -> Result<ProcPage, StoreError> {
        let namespace = namespace.to_owned();
        // The list is one value of the statement: a text, whatever its length.
        let (within, businesses) = match within {
            GrantScope::All => ("?2 = ''", String::new()),
            GrantScope::Only(some) => (
                "agent IN (SELECT agent_id FROM agents WHERE business_id IN (SELECT value FROM json_each(?2)))",
                format!("[{}]", some.iter().map(BusinessId::to_string).collect::<Vec<_>>().join(",")),
            ),
        };
        self.read("reading a page of procs", move |db| {
            let sql = format!("SELECT count(*) FROM procs WHERE namespace = ?1 AND {within}");
            let count = db.prepare_cached(&sql)?.query_row([&namespace, &businesses], |row| row.get(0))?;
            // The page is found in the index alone; only its own procs are read.
            let sql = format!(
                "WITH page AS MATERIALIZED (SELECT agent, namespace, name FROM procs \
                 WHERE namespace = ?1 AND {within} ORDER BY agent, name LIMIT ?3 OFFSET ?4) \
                 SELECT agent, cloud_id, ip, name, revision, status_json, procs.state, start_rank, failed \
                 FROM page JOIN procs USING (agent, namespace, name) JOIN agents ON agent_id = agent \
                 WHERE retired_at IS NULL ORDER BY agent, name"
            );
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query(params![namespace, businesses, limit, integer(start)])?;
            let mut procs = Vec::new();
            while let Some(row) = rows.next()? {
                let proc = ProcKey { namespace: namespace.clone(), name: row.get(3)? };
                let (revision, status, listing) = (natural(row.get(4)?), row.get(5)?, listing(row, 6)?);
                let record = ProcRecord { proc, revision, status, listing };
                procs.push((agent(row, 0)?, host(row, 1)?, record));
            }
            Ok(ProcPage { count: natural(count), procs })
        })
        .await
    }
}

/// A listing in three columns: state, start rank, failed.
pub(super) fn listing(row: &Row<'_>, column: usize) -> Result<ProcListing, QueryFault> {
    let start_rank: i64 = row.get(column + 1)?;
    let (state, failed) = (row.get(column)?, row.get(column + 2)?);
    Ok(ProcListing { state, started_at: start_rank.saturating_neg(), failed })
}

/// Returns how many were not stored, because the agent has too many.
fn upsert(db: &Connection, agent: &AgentId, procs: &[ProcRecord]) -> Result<usize, QueryFault> {
    // Most reports change neither state nor start, and this way they touch no index.
    let sql = "UPDATE procs SET revision = ?4, status_json = ?5 \
               WHERE agent = ?1 AND namespace = ?2 AND name = ?3 AND revision < ?4 \
               AND state = ?6 AND start_rank = ?7 AND failed = ?8";
    let mut update = db.prepare_cached(sql)?;
    let sql = "UPDATE procs SET revision = ?4, status_json = ?5, state = ?6, start_rank = ?7, failed = ?8 \
               WHERE agent = ?1 AND namespace = ?2 AND name = ?3 AND revision < ?4";
    let mut update_listing = db.prepare_cached(sql)?;
    let oversized = oversized(db, agent, procs)?;
    let mut others = Vec::new();
    for record in procs.iter().filter(|record| !oversized.contains(&record.proc)) {
        let columns = ProcValues::of(agent, record);
        if update.execute(columns.values())? == 0 && update_listing.execute(columns.values())? == 0 {
            others.push(record);
        }
    }
    Ok(oversized.len() + insert(db, agent, others)?)
}

/// The values of a row of `procs`.
struct ProcValues<'a> {
    agent: &'a str,
    record: &'a ProcRecord,
    revision: i64,
    start_rank: i64,
}

impl<'a> ProcValues<'a> {
    fn of(agent: &'a AgentId, record: &'a ProcRecord) -> ProcValues<'a> {
        let start_rank = record.listing.started_at.saturating_neg();
        ProcValues { agent: agent.as_str(), record, revision: integer(record.revision), start_rank }
    }

    fn values(&self) -> [&dyn ToSql; 8] {
        let ProcRecord { proc: ProcKey { namespace, name }, status, listing, .. } = self.record;
        [
            &self.agent,
            namespace,
            name,
            &self.revision,
            status,
            &listing.state,
            &self.start_rank,
            &listing.failed,
        ]
    }
}

/// Inserts procs that are not stored yet, up to [`limits::PROCS`] for the agent. Returns how many exceeded
/// that limit. Of two records of one proc the newer one stays.
fn insert(db: &Connection, agent: &AgentId, procs: Vec<&ProcRecord>) -> Result<usize, QueryFault> {
    if procs.is_empty() {
        return Ok(0);
    }
    let sql = "SELECT count(*) FROM procs WHERE agent = ?";
    let stored = db.prepare_cached(sql)?.query_row([agent.as_str()], |row| row.get(0))?;
    let mut room = (limits::PROCS as u64).saturating_sub(natural(stored));
    let sql = "INSERT INTO procs (agent, namespace, name, revision, status_json, state, start_rank, failed, host_order) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, (SELECT host_order FROM agents WHERE agent_id = ?1)) \
         ON CONFLICT (agent, namespace, name) DO UPDATE \
         SET revision = excluded.revision, status_json = excluded.status_json, state = excluded.state, \
         start_rank = excluded.start_rank, failed = excluded.failed WHERE excluded.revision > revision";
    let mut insert = db.prepare_cached(sql)?;
    let mut known =
        db.prepare_cached("SELECT 1 FROM procs WHERE agent = ? AND namespace = ? AND name = ?")?;
    let mut excess = 0;
    for record in procs {
        if room > 0 {
            room -= insert.execute(ProcValues::of(agent, record).values())? as u64;
        } else if !known.exists([agent.as_str(), &record.proc.namespace, &record.proc.name])? {
            excess += 1;
        }
    }
    Ok(excess)
}

/// The procs whose states would exceed [`limits::LARGE_STATES`], the agent's limit for all large states.
fn oversized<'a>(
    db: &Connection,
    agent: &AgentId,
    procs: &'a [ProcRecord],
) -> Result<HashSet<&'a ProcKey>, QueryFault> {
    let mut excess = HashSet::new();
    let is_large = |record: &&ProcRecord| record.status.len() > limits::LARGE_STATE;
    if procs.iter().any(|record| is_large(&record)) {
        let sql = "SELECT coalesce(sum(length(CAST(status_json AS BLOB))), 0) FROM procs \
                   WHERE agent = ?1 AND length(CAST(status_json AS BLOB)) > ?2";
        let large = integer(limits::LARGE_STATE as u64);
        let stored = db.prepare_cached(sql)?.query_row(params![agent.as_str(), large], |row| row.get(0))?;
        let mut bytes = natural(stored);
        for record in procs.iter().filter(is_large) {
            bytes += record.status.len() as u64;
            if bytes > limits::LARGE_STATES as u64 {
                excess.insert(&record.proc);
            }
        }
    }
    Ok(excess)
}
