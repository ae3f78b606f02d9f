//! The agents that pass some filters, page by page.

use super::agents::{COLUMNS, record};
use super::columns::{host_order, integer, natural};
use super::conditions::Conditions;
use super::{AgentRecord, QueryFault, Store, StoreError};
use procfleet_core::grants::GrantScope;
use procfleet_core::select::Term;
use procfleet_core::{AgentId, BusinessId, CloudId, Host};
use procfleet_proto::http::cursor::{AgentCursor, AgentKey, AgentOrder};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

/// Which agents. `None` is any; retired agents are never among them. The default is no agent at all, as the
/// default of grants is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFilter {
    /// The businesses that the caller may use.
    pub within: GrantScope<BusinessId>,
    pub cloud: Option<CloudId>,
    pub business: Option<BusinessId>,
    /// It may be a glob.
    pub version: Option<String>,
    /// `connected`, `away` or `revoked`.
    pub state: Option<&'static str>,
    pub connected: ConnectedAgents,
    /// Away since this time or longer.
    pub away_since: Option<i64>,
    pub select: Vec<Term>,
    /// Only these.
    pub among: Option<Vec<AgentId>>,
    pub revoked: RevokedAgents,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectedAgents {
    #[default]
    Included,
    LeftOut,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RevokedAgents {
    #[default]
    Included,
    LeftOut,
}

/// One page of the agents that pass a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPage {
    pub agents: Vec<AgentRecord>,
    /// `None`: this is the last page.
    pub next: Option<AgentKey>,
}

impl AgentFilter {
    /// All agents of these businesses.
    pub fn of(within: &GrantScope<BusinessId>) -> AgentFilter {
        AgentFilter { within: within.clone(), ..AgentFilter::default() }
    }

    pub(super) fn is_everything(&self) -> bool {
        *self == AgentFilter::of(&GrantScope::All)
    }

    /// The agents that a caller may use: those of its businesses that were not revoked.
    pub fn usable(within: &GrantScope<BusinessId>) -> AgentFilter {
        AgentFilter { revoked: RevokedAgents::LeftOut, ..AgentFilter::of(within) }
    }

    pub(super) fn conditions(&self) -> Conditions {
        let mut conditions = Conditions::default();
        conditions.always("retired_at IS NULL");
        if self.revoked == RevokedAgents::LeftOut {
            conditions.always("revoked_at IS NULL");
        }
        conditions.businesses("business_id", &self.within);
        conditions.equals("cloud_id", self.cloud.map(|cloud| i64::from(cloud.0)));
        conditions.equals("business_id", self.business.map(|business| i64::from(business.0)));
        conditions.matches("version", self.version.as_deref());
        conditions.equals("state", self.state.map(str::to_owned));
        if self.connected == ConnectedAgents::LeftOut {
            conditions.always("NOT present");
        }
        if let Some(since) = self.away_since {
            conditions.add("NOT present AND changed_at <= ?", [since]);
        }
        if let Some(among) = &self.among {
            let list = serde_json::json!(among).to_string();
            conditions.add("agent_id IN (SELECT value FROM json_each(?))", [list]);
        }
        conditions.select(&self.select);
        conditions
    }
}

impl Store {
    /// At most `limit` agents after the cursor. It reads few more rows, unless the filter leaves most out.
    pub async fn list_agents(
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

    pub async fn count_agents(&self, filter: AgentFilter) -> Result<u64, StoreError> {
        self.read("counting agents", move |db| count(db, &filter)).await
    }

    /// The hosts of the agents that pass the filter, in their order, at most so many.
    pub async fn hosts_of_agents(&self, filter: AgentFilter, limit: usize) -> Result<Vec<Host>, StoreError> {
        self.read("reading the hosts of agents", move |db| {
            let conditions = filter.conditions();
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

    /// Which of the terms mean no agent that passes the filter.
    pub async fn terms_without_agents(
        &self,
        filter: AgentFilter,
        terms: Vec<Term>,
    ) -> Result<Vec<usize>, StoreError> {
        self.read("looking for selected agents", move |db| {
            let mut none = Vec::new();
            for (index, term) in terms.iter().enumerate() {
                let mut conditions = filter.conditions();
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
    let conditions = filter.conditions();
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
    let mut conditions = filter.conditions();
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
        let places = vec!["?"; beyond.len()].join(", ");
        conditions.add(format!("({key}) > ({places})"), beyond);
    }
    let sql = format!(
        "SELECT {COLUMNS}, state, heard_rank FROM agents {index} {} ORDER BY {key} LIMIT ?",
        conditions.sql()
    );
    (sql, conditions.into_values([Value::from(i64::from(limit) + 1)]))
}
