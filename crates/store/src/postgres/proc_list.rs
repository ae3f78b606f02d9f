//! The procs that pass some filters, page by page, and the procs that a request means.

use super::PgStore;
use super::agent_list;
use super::agents::present;
use super::columns::{agent, host, integer, plain};
use super::conditions::{Conditions, Value};
use super::procs::{located, plain_key, total};
use crate::order::host_order;
use crate::{FailedProcs, ProcFilter, ProcListPage, StoreError};
use procfleet_core::grants::GrantScope;
use procfleet_core::{AgentId, Host, ProcKey};
use procfleet_proto::http::cursor::{ProcCursor, ProcOrder};
use std::collections::HashSet;

/// The OS account in a status. Agents send the status, and one status that PostgreSQL cannot parse would make
/// the whole list fail. So escapes that are no character (NUL, halves of a surrogate pair) are replaced, and
/// a text that may be nested too deeply has no account, which hides the proc.
const ACCOUNT: &str = r"CASE WHEN length(status_json) - length(translate(status_json, '[{', '')) < 5000
    THEN regexp_replace(status_json, '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\\ufffd', 'g')::json ->> 'user' END";

impl PgStore {
    pub(crate) async fn list_procs(
        &self,
        filter: ProcFilter,
        order: ProcOrder,
        after: Option<ProcCursor>,
        limit: u32,
    ) -> Result<ProcListPage, StoreError> {
        let conditions = conditions(&filter);
        let page = page(conditions.clone(), order, after.as_ref(), limit);
        let arguments = (conditions, page, order, limit);
        self.read("reading a list of procs", arguments, |tx, (conditions, (sql, values), order, limit)| {
            Box::pin(async move {
                let count = format!("SELECT count(*) FROM procs {}", conditions.filter());
                let total = total(&PgStore::rows_in(tx, &count, conditions.values()).await?)?;
                let rows = PgStore::rows_in(tx, sql, values).await?;
                let limit = *limit as usize;
                let procs = rows.iter().take(limit).map(located).collect::<Result<Vec<_>, _>>()?;
                let next = procs.last().filter(|_| rows.len() > limit).map(|(_, host, record)| ProcCursor {
                    order: *order,
                    host: *host,
                    namespace: record.proc.namespace.clone(),
                    name: record.proc.name.clone(),
                    state: record.listing.state.clone(),
                    started_at: record.listing.started_at,
                });
                Ok(ProcListPage { procs, next, total })
            })
        })
        .await
    }

    pub(crate) async fn find_procs(
        &self,
        filter: ProcFilter,
        limit: usize,
    ) -> Result<Vec<(AgentId, Host, String)>, StoreError> {
        const DOING: &str = "looking for procs";
        let conditions = conditions(&filter);
        let sql = format!(
            "WITH found AS MATERIALIZED (SELECT agent, host_order, name FROM procs {} LIMIT ?) \
             SELECT agent, cloud_id, ip, name FROM found JOIN agents ON agent_id = agent \
             ORDER BY found.host_order, name",
            conditions.filter()
        );
        let values = conditions.into_values([Value::Int(integer(limit as u64))]);
        let rows = self.rows(DOING, &sql, &values).await?;
        self.converted(DOING, &rows, |row| Ok((agent(row, 0)?, host(row, 1)?, row.try_get(3)?)))
    }

    pub(crate) async fn known_procs(
        &self,
        asked: Vec<(AgentId, ProcKey)>,
    ) -> Result<HashSet<(AgentId, ProcKey)>, StoreError> {
        const DOING: &str = "looking for known procs";
        // OFFSET 0: each is looked up in the index, and nothing is joined.
        let sql = "SELECT ordinal FROM unnest(?, ?, ?) WITH ORDINALITY AS asked (agent, namespace, name, ordinal) \
                   WHERE EXISTS (SELECT 1 FROM procs WHERE procs.agent = asked.agent \
                   AND procs.namespace = asked.namespace AND procs.name = asked.name OFFSET 0)";
        let agents = asked.iter().map(|(agent, _)| agent.to_string()).collect();
        let (namespaces, names) = asked
            .iter()
            .map(|(_, proc)| plain_key(proc.clone()))
            .map(|proc| (proc.namespace, proc.name))
            .unzip();
        let values = [Value::Texts(agents), Value::Texts(namespaces), Value::Texts(names)];
        let rows = self.rows(DOING, sql, &values).await?;
        let ordinals = self.converted(DOING, &rows, |row| Ok(row.try_get(0)?))?;
        let ordinals: HashSet<i64> = ordinals.into_iter().collect();
        let known = (1..).zip(asked).filter(|(ordinal, _)| ordinals.contains(ordinal));
        Ok(known.map(|(_, asked)| asked).collect())
    }
}

/// The statement of a page, with one row more than the page has.
fn page(
    mut conditions: Conditions,
    order: ProcOrder,
    after: Option<&ProcCursor>,
    limit: u32,
) -> (String, Vec<Value>) {
    let key: &[&str] = match order {
        ProcOrder::Host => &["host_order", "namespace", "name"],
        ProcOrder::Name => &["namespace", "name", "host_order"],
        ProcOrder::State => &["state", "host_order", "namespace", "name"],
        // Without an index: see migrations/0003_procs_in_place.sql. 100,000 procs take about 60 ms.
        ProcOrder::Since => &["start_rank", "host_order", "namespace", "name"],
    };
    let of_procs = key.iter().map(|column| format!("procs.{column}")).collect::<Vec<_>>().join(", ");
    let key = key.join(", ");
    if let Some(ProcCursor { host, namespace, name, state, started_at, .. }) = after {
        let host = Value::Text(host_order(*host));
        let [namespace, name, state] = [namespace, name, state].map(|text| Value::Text(plain(text)));
        let beyond = match order {
            ProcOrder::Host => vec![host, namespace, name],
            ProcOrder::Name => vec![namespace, name, host],
            ProcOrder::State => vec![state, host, namespace, name],
            ProcOrder::Since => vec![Value::Int(started_at.saturating_neg()), host, namespace, name],
        };
        conditions.add(format!("({key}) > ({})", vec!["?"; beyond.len()].join(", ")), beyond);
    }
    // Most orders find the page in an index alone; the other columns are read for its own rows only.
    let sql = format!(
        "WITH page AS MATERIALIZED (SELECT agent, namespace, name FROM procs {} ORDER BY {key} LIMIT ?) \
         SELECT agent, cloud_id, ip, namespace, name, revision, status_json, state, start_rank, failed \
         FROM page JOIN procs USING (agent, namespace, name) JOIN agents ON agent_id = agent \
         ORDER BY {of_procs}",
        conditions.filter()
    );
    (sql, conditions.into_values([Value::Int(i64::from(limit) + 1)]))
}

fn conditions(filter: &ProcFilter) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.namespaces("namespace", &filter.within);
    conditions.equals("namespace", filter.namespace.as_deref().map(plain));
    conditions.matches("name", filter.name.as_deref().map(plain).as_deref());
    conditions.equals("host_order", filter.host.map(host_order));
    conditions.equals("state", filter.state.map(str::to_owned));
    if let Some(FailedProcs { accounts }) = &filter.failed {
        // The note of a proc says so while its agent is away.
        let away = concat!("EXISTS (SELECT 1 FROM sessions WHERE agent_id = agent AND NOT ", present!(), ")");
        match accounts {
            GrantScope::All => conditions.always(&format!("(failed OR {away})")),
            GrantScope::Only(some) => conditions.add(
                format!("(state = 'gave_up' OR {away} OR failed AND coalesce({ACCOUNT}, '') = ANY(?))"),
                [some.iter().map(|account| plain(account)).collect::<Vec<String>>()],
            ),
        }
    }
    // Procs of retired agents are deleted, so any agent is every agent.
    if !filter.agents.is_everything() {
        let agents = "SELECT agent_id FROM agents JOIN sessions USING (agent_id)";
        conditions.within("agent", agents, agent_list::conditions(&filter.agents));
    }
    conditions
}
