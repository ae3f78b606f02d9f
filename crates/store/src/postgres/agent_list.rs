//! The agents that pass some filters, page by page.
//!
//! Pages by id and by host follow an index. The other orders sort what passes the filters, because sessions
//! have no index besides their key.

use super::PgStore;
use super::agents::{COLUMNS, TABLES, ids, present, record};
use super::columns::{host, integer, plain, small};
use super::conditions::{Conditions, Value};
use crate::order::host_order;
use crate::{AgentFilter, AgentPage, ConnectedAgents, RevokedAgents, StoreError};
use procfleet_core::Host;
use procfleet_core::select::Term;
use procfleet_proto::http::cursor::{AgentCursor, AgentKey, AgentOrder};

/// In the order of bytes, as the columns.
const STATE: &str = concat!(
    "(CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN ",
    present!(),
    " THEN 'connected' ELSE 'away' END) COLLATE \"C\""
);

/// Negative, so that the agents that were heard last come first.
const HEARD_RANK: &str = "-(CASE heard_at WHEN 0 THEN changed_at ELSE heard_at END)";

/// Terms that one statement looks for. A statement has at most 65,535 values.
const TERMS: usize = 100;

impl PgStore {
    pub(crate) async fn list_agents(
        &self,
        filter: AgentFilter,
        order: AgentOrder,
        after: Option<AgentCursor>,
        limit: u32,
    ) -> Result<AgentPage, StoreError> {
        const DOING: &str = "reading a page of agents";
        let (sql, values) = page(&filter, order, after.as_ref(), limit);
        let mut rows = self.rows(DOING, &sql, &values).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let listed = self.converted(DOING, &rows, |row| {
            let (state, heard_rank): (String, i64) = (row.try_get(19)?, row.try_get(20)?);
            Ok((record(row)?, state, -heard_rank))
        })?;
        let next = listed.last().filter(|_| more).map(|(agent, state, heard_at)| AgentKey {
            order,
            agent: agent.agent.clone(),
            host: agent.host,
            version: agent.version.clone(),
            state: state.clone(),
            heard_at: *heard_at,
        });
        let agents = listed.into_iter().map(|(agent, ..)| agent).collect();
        Ok(AgentPage { agents, next })
    }

    pub(crate) async fn count_agents(&self, filter: AgentFilter) -> Result<u64, StoreError> {
        let conditions = conditions(&filter);
        let sql = format!("SELECT count(*) FROM {TABLES} {}", conditions.filter());
        self.count("counting agents", &sql, conditions.values()).await
    }

    pub(crate) async fn hosts_of_agents(
        &self,
        filter: AgentFilter,
        limit: usize,
    ) -> Result<Vec<Host>, StoreError> {
        const DOING: &str = "reading the hosts of agents";
        let conditions = conditions(&filter);
        let sql =
            format!("SELECT cloud_id, ip FROM {TABLES} {} ORDER BY host_order LIMIT ?", conditions.filter());
        let values = conditions.into_values([Value::Int(integer(limit as u64))]);
        let rows = self.rows(DOING, &sql, &values).await?;
        self.converted(DOING, &rows, |row| host(row, 0))
    }

    pub(crate) async fn terms_without_agents(
        &self,
        filter: AgentFilter,
        terms: Vec<Term>,
    ) -> Result<Vec<usize>, StoreError> {
        self.read("looking for selected agents", (filter, terms), |tx, (filter, terms)| {
            Box::pin(async move {
                let mut none = Vec::new();
                for (part, terms) in terms.chunks(TERMS).enumerate() {
                    let (sql, values) = without_agents(filter, terms);
                    for row in PgStore::rows_in(tx, &sql, &values).await? {
                        none.push(part * TERMS + small("an index", row.try_get(0)?)? as usize);
                    }
                }
                none.sort_unstable();
                Ok(none)
            })
        })
        .await
    }
}

/// The indexes of the terms that mean no agent.
fn without_agents(filter: &AgentFilter, terms: &[Term]) -> (String, Vec<Value>) {
    let mut selects = Vec::with_capacity(terms.len());
    let mut values = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        let mut conditions = conditions(filter);
        conditions.term(term);
        let filter = conditions.filter();
        selects.push(format!("SELECT {index}::bigint WHERE NOT EXISTS (SELECT 1 FROM {TABLES} {filter})"));
        values.extend(conditions.into_values([]));
    }
    (selects.join(" UNION ALL "), values)
}

/// The statement of a page, with one row more than the page has.
fn page(
    filter: &AgentFilter,
    order: AgentOrder,
    after: Option<&AgentCursor>,
    limit: u32,
) -> (String, Vec<Value>) {
    let key = match order {
        AgentOrder::Id => "agent_id".to_owned(),
        AgentOrder::Host => "host_order".to_owned(),
        AgentOrder::Version => "version, host_order".to_owned(),
        AgentOrder::State => format!("{STATE}, host_order"),
        AgentOrder::Heard => format!("{HEARD_RANK}, agent_id"),
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
                AgentOrder::Version => vec![plain(&after.version).into(), host],
                AgentOrder::State => vec![plain(&after.state).into(), host],
                AgentOrder::Heard => {
                    vec![after.heard_at.saturating_neg().into(), after.agent.to_string().into()]
                }
            }
        }
    };
    if !beyond.is_empty() {
        let placeholders = vec!["?"; beyond.len()].join(", ");
        conditions.add(format!("({key}) > ({placeholders})"), beyond);
    }
    let sql = format!(
        "SELECT {COLUMNS}, {STATE}, {HEARD_RANK} FROM {TABLES} {} ORDER BY {key} LIMIT ?",
        conditions.filter()
    );
    (sql, conditions.into_values([Value::Int(i64::from(limit) + 1)]))
}

/// The columns are those of [`TABLES`].
pub(super) fn conditions(filter: &AgentFilter) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.always("retired_at IS NULL");
    if filter.revoked == RevokedAgents::LeftOut {
        conditions.always("revoked_at IS NULL");
    }
    conditions.businesses("business_id", &filter.within);
    conditions.equals("cloud_id", filter.cloud.map(|cloud| i64::from(cloud.0)));
    conditions.equals("business_id", filter.business.map(|business| i64::from(business.0)));
    conditions.matches("version", filter.version.as_deref().map(plain).as_deref());
    conditions.equals(STATE, filter.state.map(str::to_owned));
    if filter.connected == ConnectedAgents::LeftOut {
        conditions.always(concat!("NOT ", present!()));
    }
    if let Some(since) = filter.away_since {
        conditions.add(concat!("NOT ", present!(), " AND changed_at <= ?"), [since]);
    }
    if let Some(among) = &filter.among {
        conditions.add("agent_id = ANY(?)", [ids(among)]);
    }
    conditions.select(&filter.select);
    conditions
}
