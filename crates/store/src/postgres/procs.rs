//! The last report of each agent about its procs, for those who read it. The status is JSON that the store
//! does not read.

use super::PgStore;
use super::columns::{agent, host, integer, natural, plain};
use super::conditions::{Conditions, Value};
use super::fault::PgFault;
use crate::{ProcListing, ProcPage, ProcRecord, StoreError};
use procfleet_core::grants::GrantScope;
use procfleet_core::{AgentId, BusinessId, Host, ProcKey};
use std::collections::HashMap;
use tokio_postgres::Row;

impl PgStore {
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
