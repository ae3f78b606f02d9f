//! The procs that pass some filters, page by page, and the procs that a request means.

use super::SqliteStore;
use super::agent_list;
use super::columns::{agent, host, host_order, integer, natural};
use super::conditions::{Conditions, is_glob};
use super::procs::listing;
use crate::{FailedProcs, ProcFilter, ProcListPage, ProcRecord, StoreError};
use procfleet_core::grants::GrantScope;
use procfleet_core::{AgentId, Host, ProcKey};
use procfleet_proto::http::cursor::{ProcCursor, ProcOrder};
use rusqlite::params_from_iter;
use rusqlite::types::Value;
use std::collections::HashSet;

impl SqliteStore {
    pub(crate) async fn list_procs(
        &self,
        filter: ProcFilter,
        order: ProcOrder,
        after: Option<ProcCursor>,
        limit: u32,
    ) -> Result<ProcListPage, StoreError> {
        self.read("reading a list of procs", move |db| {
            let conditions = conditions(&filter);
            let sql = format!("SELECT count(*) FROM procs {}", conditions.sql());
            let total =
                db.prepare(&sql)?.query_row(params_from_iter(conditions.values()), |row| row.get(0))?;
            let (sql, values) = page(&filter, order, after.as_ref(), limit);
            let mut statement = db.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(values))?;
            let mut procs: Vec<(AgentId, Host, ProcRecord)> = Vec::new();
            let mut more = false;
            while let Some(row) = rows.next()? {
                more = procs.len() >= limit as usize;
                if more {
                    break;
                }
                let proc = ProcKey { namespace: row.get(3)?, name: row.get(4)? };
                let (revision, status, listing) = (natural(row.get(5)?), row.get(6)?, listing(row, 7)?);
                let record = ProcRecord { proc, revision, status, listing };
                procs.push((agent(row, 0)?, host(row, 1)?, record));
            }
            let next = procs.last().filter(|_| more).map(|(_, host, record)| ProcCursor {
                order,
                host: *host,
                namespace: record.proc.namespace.clone(),
                name: record.proc.name.clone(),
                state: record.listing.state.clone(),
                started_at: record.listing.started_at,
            });
            Ok(ProcListPage { procs, next, total: natural(total) })
        })
        .await
    }

    pub(crate) async fn find_procs(
        &self,
        filter: ProcFilter,
        limit: usize,
    ) -> Result<Vec<(AgentId, Host, String)>, StoreError> {
        self.read("looking for procs", move |db| {
            let conditions = conditions(&filter);
            // The rows are found in the index alone, whatever the size of their statuses.
            let sql = format!(
                "WITH found AS MATERIALIZED (SELECT agent, host_order, name FROM procs {} LIMIT ?) \
                 SELECT agent, cloud_id, ip, name FROM found JOIN agents ON agent_id = agent \
                 ORDER BY found.host_order, name",
                conditions.sql()
            );
            let values = conditions.into_values([Value::from(integer(limit as u64))]);
            let mut statement = db.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(values))?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                found.push((agent(row, 0)?, host(row, 1)?, row.get(3)?));
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn known_procs(
        &self,
        asked: Vec<(AgentId, ProcKey)>,
    ) -> Result<HashSet<(AgentId, ProcKey)>, StoreError> {
        self.read("looking for known procs", move |db| {
            let sql = "SELECT 1 FROM procs WHERE agent = ? AND namespace = ? AND name = ?";
            let mut statement = db.prepare_cached(sql)?;
            let mut known = HashSet::new();
            for (agent, proc) in asked {
                if statement.exists([agent.as_str(), &proc.namespace, &proc.name])? {
                    known.insert((agent, proc));
                }
            }
            Ok(known)
        })
        .await
    }
}

/// The statement of a page, with one row more than the page has.
pub(super) fn page(
    filter: &ProcFilter,
    order: ProcOrder,
    after: Option<&ProcCursor>,
    limit: u32,
) -> (String, Vec<Value>) {
    let key: &[&str] = match order {
        ProcOrder::Host => &["host_order", "namespace", "name"],
        ProcOrder::Name => &["namespace", "name", "host_order"],
        ProcOrder::State => &["state", "host_order", "namespace", "name"],
        ProcOrder::Since => &["start_rank", "host_order", "namespace", "name"],
    };
    let of_procs = key.iter().map(|column| format!("procs.{column}")).collect::<Vec<_>>().join(", ");
    let key = key.join(", ");
    let mut conditions = conditions(filter);
    if let Some(ProcCursor { host, namespace, name, state, started_at, .. }) = after {
        let host: Value = host_order(*host).into();
        let (namespace, name): (Value, Value) = (namespace.clone().into(), name.clone().into());
        let beyond: Vec<Value> = match order {
            ProcOrder::Host => vec![host, namespace, name],
            ProcOrder::Name => vec![namespace, name, host],
            ProcOrder::State => vec![state.clone().into(), host, namespace, name],
            ProcOrder::Since => vec![started_at.saturating_neg().into(), host, namespace, name],
        };
        conditions.add(format!("({key}) > ({})", vec!["?"; beyond.len()].join(", ")), beyond);
    }
    // The page is found in the index, and only its own rows are read from the table.
    let sql = format!(
        "WITH page AS MATERIALIZED (SELECT agent, namespace, name FROM procs INDEXED BY {} {} ORDER BY {key} LIMIT ?) \
         SELECT agent, cloud_id, ip, namespace, name, revision, status_json, procs.state, start_rank, failed \
         FROM page CROSS JOIN procs USING (agent, namespace, name) CROSS JOIN agents ON agent_id = agent \
         ORDER BY {of_procs}",
        index(filter, order),
        conditions.sql()
    );
    (sql, conditions.into_values([Value::from(i64::from(limit) + 1)]))
}

fn conditions(filter: &ProcFilter) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.namespaces("namespace", &filter.within);
    conditions.equals("namespace", filter.namespace.clone());
    conditions.matches("name", filter.name.as_deref());
    conditions.equals("host_order", filter.host.map(host_order));
    conditions.equals("state", filter.state.map(str::to_owned));
    if let Some(FailedProcs { accounts }) = &filter.failed {
        // The note of a proc says so while its agent is away.
        let away = "agent IN (SELECT agent_id FROM agents WHERE NOT present AND retired_at IS NULL)";
        match accounts {
            GrantScope::All => conditions.always(&format!("(failed OR {away})")),
            GrantScope::Only(some) => conditions.add(
                format!(
                    "(state = 'gave_up' OR {away} OR failed AND coalesce(status_json ->> '$.user', '') IN \
                     (SELECT value FROM json_each(?)))"
                ),
                [serde_json::json!(some).to_string()],
            ),
        }
    }
    // Procs of retired agents are deleted, so any agent is every agent.
    if !filter.agents.is_everything() {
        conditions.within("agent", "SELECT agent_id FROM agents", agent_list::conditions(&filter.agents));
    }
    conditions
}

/// The index that has the rows in this order. Named, because without statistics SQLite may prefer to sort
/// what a filter finds, which reads all of it.
fn index(filter: &ProcFilter, order: ProcOrder) -> &'static str {
    let is_exact = filter.name.as_deref().is_some_and(|name| !is_glob(name));
    match (order, &filter.namespace) {
        (ProcOrder::Host, Some(_)) if is_exact => "procs_by_name",
        (ProcOrder::Host, _) if filter.state.is_some() => "procs_by_state",
        (ProcOrder::Host, Some(_)) => "procs_by_namespace_and_host",
        (ProcOrder::Host, None) => "procs_by_host",
        (ProcOrder::Name, _) => "procs_by_name",
        (ProcOrder::State, _) => "procs_by_state",
        (ProcOrder::Since, _) => "procs_by_start",
    }
}
