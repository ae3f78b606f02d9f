//! The agents that pass some filters, page by page.

use super::agents::{COLUMNS, record};
use super::columns::{host_order, integer, natural};
use super::conditions::Conditions;
use super::{QueryFault, SqliteStore};
use crate::{AgentFilter, AgentPage, ConnectedAgents, RevokedAgents, StoreError};
use procfleet_core::Host;
use procfleet_core::select::Term;
use procfleet_proto::http::cursor::{AgentCursor, AgentKey, AgentOrder};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

impl SqliteStore {
    pub(crate) async fn list_agents(
        &self,
        filter: AgentFilter,
        order: AgentOrder,
        after: Option<AgentCursor>,
        limit: u32,
    ) -> Result<AgentPage, StoreError> {
        self.read("reading a page of agents", move |db| {
            let (sql, values) = page(&filter, order, after.as_ref(), limit);
            let mut statement = db.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(values))?;
            let mut agents = Vec::new();
            let mut last = None;
            let mut more = false;
            while let Some(row) = rows.next()? {
                more = agents.len() >= limit as usize;
                if more {
                    break;
                }
                let agent = record(row)?;
                let (state, heard_rank): (String, i64) = (row.get(19)?, row.get(20)?);
                last = Some(AgentKey {
                    order,
                    agent: agent.agent.clone(),
                    host: agent.host,
                    version: agent.version.clone(),
                    state,
                    heard_at: -heard_rank,
                });
                agents.push(agent);
            }
            Ok(AgentPage { agents, next: last.filter(|_| more) })
        })
        .await
    }

    pub(crate) async fn count_agents(&self, filter: AgentFilter) -> Result<u64, StoreError> {
        self.read("counting agents", move |db| count(db, &filter)).await
    }

    pub(crate) async fn hosts_of_agents(
        &self,
        filter: AgentFilter,
        limit: usize,
    ) -> Result<Vec<Host>, StoreError> {
        self.read("reading the hosts of agents", move |db| {
            let conditions = conditions(&filter);
            let sql = format!(
                "SELECT cloud_id, ip FROM agents INDEXED BY agents_in_host_order {} ORDER BY host_order LIMIT ?",
                conditions.sql()
            );
            let values = conditions.into_values([Value::from(integer(limit as u64))]);
            let mut statement = db.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(values))?;
            let mut hosts = Vec::new();
            while let Some(row) = rows.next()? {
                hosts.push(super::columns::host(row, 0)?);
            }
            Ok(hosts)
        })
        .await
    }

    pub(crate) async fn terms_without_agents(
        &self,
        filter: AgentFilter,
        terms: Vec<Term>,
    ) -> Result<Vec<usize>, StoreError> {
        self.read("looking for selected agents", move |db| {
            let mut none = Vec::new();
            for (index, term) in terms.iter().enumerate() {
                let mut conditions = conditions(&filter);
                conditions.term(term);
                let sql = format!("SELECT 1 FROM agents {}", conditions.sql());
                if !db.prepare(&sql)?.exists(params_from_iter(conditions.values()))? {
                    none.push(index);
                }
            }
            Ok(none)
        })
        .await
    }
}

fn count(db: &Connection, filter: &AgentFilter) -> Result<u64, QueryFault> {
    let conditions = conditions(filter);
    let sql = format!("SELECT count(*) FROM agents {}", conditions.sql());
    Ok(natural(db.prepare(&sql)?.query_row(params_from_iter(conditions.values()), |row| row.get(0))?))
}

/// The statement of a page, with one row more than the page has.
pub(super) fn page(
    filter: &AgentFilter,
    order: AgentOrder,
    after: Option<&AgentCursor>,
    limit: u32,
) -> (String, Vec<Value>) {
    // Named, because without statistics SQLite may prefer to sort what a filter finds.
    let (index, key) = match order {
        AgentOrder::Id => ("NOT INDEXED", "agent_id"),
        AgentOrder::Host => ("INDEXED BY agents_in_host_order", "host_order"),
        AgentOrder::Version => ("INDEXED BY agents_by_version", "version, host_order"),
        AgentOrder::State => ("INDEXED BY agents_by_state", "state, host_order"),
        AgentOrder::Heard => ("INDEXED BY agents_by_heard", "heard_rank, agent_id"),
    };
    let mut conditions = conditions(filter);
    let beyond: Vec<Value> = match after {
        None => Vec::new(),
        Some(AgentCursor::Id(agent)) => vec![agent.to_string().into()],
        Some(AgentCursor::Key(after)) => {
            let host: Value = host_order(after.host).into();
            match order {
                AgentOrder::Id => vec![after.agent.to_string().into()],
                AgentOrder::Host => vec![host],
                AgentOrder::Version => vec![after.version.clone().into(), host],
                AgentOrder::State => vec![after.state.clone().into(), host],
                AgentOrder::Heard => vec![(-after.heard_at).into(), after.agent.to_string().into()],
            }
        }
    };
    if !beyond.is_empty() {
        let placeholders = vec!["?"; beyond.len()].join(", ");
        conditions.add(format!("({key}) > ({placeholders})"), beyond);
    }
    let sql = format!(
        "SELECT {COLUMNS}, state, heard_rank FROM agents {index} {} ORDER BY {key} LIMIT ?",
        conditions.sql()
    );
    (sql, conditions.into_values([Value::from(i64::from(limit) + 1)]))
}

pub(super) fn conditions(filter: &AgentFilter) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.always("retired_at IS NULL");
    if filter.revoked == RevokedAgents::LeftOut {
        conditions.always("revoked_at IS NULL");
    }
    conditions.businesses("business_id", &filter.within);
    conditions.equals("cloud_id", filter.cloud.map(|cloud| i64::from(cloud.0)));
    conditions.equals("business_id", filter.business.map(|business| i64::from(business.0)));
    conditions.matches("version", filter.version.as_deref());
    conditions.equals("state", filter.state.map(str::to_owned));
    if filter.connected == ConnectedAgents::LeftOut {
        conditions.always("NOT present");
    }
    if let Some(since) = filter.away_since {
        conditions.add("NOT present AND changed_at <= ?", [since]);
    }
    if let Some(among) = &filter.among {
        let list = serde_json::json!(among).to_string();
        conditions.add("agent_id IN (SELECT value FROM json_each(?))", [list]);
    }
    conditions.select(&filter.select);
    conditions
}
