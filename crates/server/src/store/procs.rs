//! What each agent said last about its procs. The status is the caller's own JSON; it is not looked into.

use super::agents::require;
use super::columns::{agent, host, integer, natural};
use super::{QueryFault, Store, StoreError};
use crate::agent_limits;
use procfleet_core::grants::GrantScope;
use procfleet_core::{AgentId, BusinessId, Host, ProcKey};
use rusqlite::{Connection, ToSql, params};
use std::collections::HashSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcRecord {
    pub proc: ProcKey,
    /// It grows with every change on the agent; what is older than the stored one is ignored.
    pub revision: u64,
    /// JSON.
    pub status: String,
}

/// `None` is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcFilter {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub agent: Option<AgentId>,
}

/// Some of a namespace's procs, with the hosts that they are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcPage {
    /// Of the whole namespace.
    pub count: u64,
    pub procs: Vec<(AgentId, Host, ProcRecord)>,
}

impl Store {
    /// Takes over what is newer than the stored status, and forgets what is gone. The agent must be enrolled.
    /// Returns how many procs were left out because the agent has too many.
    pub async fn put_procs(
        &self,
        agent: &AgentId,
        procs: Vec<ProcRecord>,
        gone: Vec<ProcKey>,
    ) -> Result<usize, StoreError> {
        let agent = agent.clone();
        self.write("storing changed procs", move |db| {
            require(db, &agent)?;
            let sql = "DELETE FROM procs WHERE agent = ? AND namespace = ? AND name = ?";
            let mut delete = db.prepare_cached(sql)?;
            for proc in &gone {
                delete.execute([agent.as_str(), &proc.namespace, &proc.name])?;
            }
            upsert(db, &agent, &procs)
        })
        .await
    }

    /// Takes over an agent's full list: what is not in it is forgotten, and its revisions hold even where
    /// they are lower, because an agent that lost its journal counts from the beginning. Returns how many
    /// were left out, as `put_procs`.
    pub async fn replace_procs(&self, agent: &AgentId, procs: Vec<ProcRecord>) -> Result<usize, StoreError> {
        let agent = agent.clone();
        self.write("storing an agent's procs", move |db| {
            require(db, &agent)?;
            db.prepare_cached("DELETE FROM procs WHERE agent = ?")?.execute([agent.as_str()])?;
            upsert(db, &agent, &procs)
        })
        .await
    }

    /// Ordered by agent, namespace and name.
    pub async fn procs(&self, filter: ProcFilter) -> Result<Vec<(AgentId, ProcRecord)>, StoreError> {
        self.read("reading procs", move |db| {
            let conditions = [
                ("agent = ?", filter.agent.as_ref().map(AgentId::as_str)),
                ("namespace = ?", filter.namespace.as_deref()),
                ("name = ?", filter.name.as_deref()),
            ];
            let (clauses, values): (Vec<&str>, Vec<&str>) =
                conditions.iter().filter_map(|(clause, value)| value.map(|value| (*clause, value))).unzip();
            let only =
                if clauses.is_empty() { String::new() } else { format!("WHERE {}", clauses.join(" AND ")) };
            let sql = format!(
                "SELECT agent, namespace, name, revision, status_json FROM procs {only} \
                 ORDER BY agent, namespace, name"
            );
            let mut statement = db.prepare_cached(&sql)?;
            let values: Vec<&dyn ToSql> = values.iter().map(|value| value as &dyn ToSql).collect();
            let mut rows = statement.query(values.as_slice())?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let proc = ProcKey { namespace: row.get(1)?, name: row.get(2)? };
                let revision = natural(row.get(3)?);
                found.push((agent(row, 0)?, ProcRecord { proc, revision, status: row.get(4)? }));
            }
            Ok(found)
        })
        .await
    }

    /// One proc on each of these agents, with the host that it is on, as far as there is one. It reads no
    /// more than these, however many agents there are.
    pub async fn proc_on(
        &self,
        agents: Vec<AgentId>,
        proc: &ProcKey,
    ) -> Result<Vec<(AgentId, Host, ProcRecord)>, StoreError> {
        let proc = proc.clone();
        self.read("reading a proc on some agents", move |db| {
            let sql = "SELECT cloud_id, ip, revision, status_json FROM procs JOIN agents ON agent_id = agent \
                       WHERE agent = ? AND namespace = ? AND name = ? AND retired_at IS NULL";
            let mut statement = db.prepare_cached(sql)?;
            let mut found = Vec::new();
            for agent in agents {
                let mut rows = statement.query([agent.as_str(), &proc.namespace, &proc.name])?;
                if let Some(row) = rows.next()? {
                    let (revision, status) = (natural(row.get(2)?), row.get(3)?);
                    let record = ProcRecord { proc: proc.clone(), revision, status };
                    let host = host(row, 0)?;
                    drop(rows);
                    found.push((agent, host, record));
                }
            }
            Ok(found)
        })
        .await
    }

    /// So many of a namespace's procs in these businesses after the first `start`, ordered by agent and name.
    pub async fn proc_page(
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
                 SELECT agent, cloud_id, ip, name, revision, status_json \
                 FROM page JOIN procs USING (agent, namespace, name) JOIN agents ON agent_id = agent \
                 WHERE retired_at IS NULL ORDER BY agent, name"
            );
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query(params![namespace, businesses, limit, integer(start)])?;
            let mut procs = Vec::new();
            while let Some(row) = rows.next()? {
                let proc = ProcKey { namespace: namespace.clone(), name: row.get(3)? };
                let record = ProcRecord { proc, revision: natural(row.get(4)?), status: row.get(5)? };
                procs.push((agent(row, 0)?, host(row, 1)?, record));
            }
            Ok(ProcPage { count: natural(count), procs })
        })
        .await
    }
}

fn upsert(db: &Connection, agent: &AgentId, procs: &[ProcRecord]) -> Result<usize, QueryFault> {
    let excess = excess(db, agent, procs)?;
    let sql = "INSERT INTO procs (agent, namespace, name, revision, status_json) VALUES (?, ?, ?, ?, ?) \
               ON CONFLICT (agent, namespace, name) DO UPDATE \
               SET revision = excluded.revision, status_json = excluded.status_json \
               WHERE excluded.revision > revision";
    let mut statement = db.prepare_cached(sql)?;
    for ProcRecord { proc, revision, status } in procs.iter().filter(|record| !excess.contains(&record.proc))
    {
        statement.execute(params![agent.as_str(), proc.namespace, proc.name, integer(*revision), status])?;
    }
    Ok(excess.len())
}

/// Those for which the agent has no room left. An agent within its limits pays for one count in an index.
fn excess<'a>(
    db: &Connection,
    agent: &AgentId,
    procs: &'a [ProcRecord],
) -> Result<HashSet<&'a ProcKey>, QueryFault> {
    let mut excess = HashSet::new();
    let is_large = |record: &&ProcRecord| record.status.len() > agent_limits::LARGE_STATE;
    if procs.iter().any(|record| is_large(&record)) {
        let sql = "SELECT coalesce(sum(length(CAST(status_json AS BLOB))), 0) FROM procs \
                   WHERE agent = ?1 AND length(CAST(status_json AS BLOB)) > ?2";
        let large = integer(agent_limits::LARGE_STATE as u64);
        let stored = db.prepare_cached(sql)?.query_row(params![agent.as_str(), large], |row| row.get(0))?;
        let mut bytes = natural(stored);
        for record in procs.iter().filter(is_large) {
            bytes += record.status.len() as u64;
            if bytes > agent_limits::LARGE_STATES as u64 {
                excess.insert(&record.proc);
            }
        }
    }
    let sql = "SELECT count(*) FROM procs WHERE agent = ?";
    let stored = db.prepare_cached(sql)?.query_row([agent.as_str()], |row| row.get(0))?;
    let mut count = natural(stored);
    if count + procs.len() as u64 > agent_limits::PROCS as u64 {
        let mut known =
            db.prepare_cached("SELECT 1 FROM procs WHERE agent = ? AND namespace = ? AND name = ?")?;
        for ProcRecord { proc, .. } in procs {
            if known.exists([agent.as_str(), &proc.namespace, &proc.name])? {
                continue;
            }
            count += 1;
            if count > agent_limits::PROCS as u64 {
                excess.insert(proc);
            }
        }
    }
    Ok(excess)
}
