//! What each agent said last about its procs. The status is the caller's own JSON; it is not looked into.

use super::agents::require;
use super::columns::{agent, integer, natural};
use super::{Fault, Store, StoreError};
use procfleet_core::{AgentId, ProcKey};
use rusqlite::{Connection, ToSql, params};

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

impl Store {
    /// Takes over what is newer than the stored status, and forgets what is gone. The agent must be enrolled.
    pub async fn put_procs(
        &self,
        agent: &AgentId,
        procs: Vec<ProcRecord>,
        gone: Vec<ProcKey>,
    ) -> Result<(), StoreError> {
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

    /// Takes over an agent's full list: what is not in it is forgotten, and its revisions hold even where they
    /// are lower, because an agent that lost its journal counts from the beginning.
    pub async fn replace_procs(&self, agent: &AgentId, procs: Vec<ProcRecord>) -> Result<(), StoreError> {
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
}

fn upsert(db: &Connection, agent: &AgentId, procs: &[ProcRecord]) -> Result<(), Fault> {
    let sql = "INSERT INTO procs (agent, namespace, name, revision, status_json) VALUES (?, ?, ?, ?, ?) \
               ON CONFLICT (agent, namespace, name) DO UPDATE \
               SET revision = excluded.revision, status_json = excluded.status_json \
               WHERE excluded.revision > revision";
    let mut statement = db.prepare_cached(sql)?;
    for ProcRecord { proc, revision, status } in procs {
        statement.execute(params![agent.as_str(), proc.namespace, proc.name, integer(*revision), status])?;
    }
    Ok(())
}
