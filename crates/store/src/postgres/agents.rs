//! The inventory: which agent is on which host, and which connection of it is the last.
//!
//! Identity is in `agents`, the last session in `sessions`. A unit that needs both rows locks the session
//! first. A unit that retires or revokes an agent locks its row of `agents`, and so does a unit that relies
//! on the agent being enrolled.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{agent, business, from_json, hash, host, integer, mark_if_any, natural, to_json};
use super::conditions::Value;
use super::fault::PgFault;
use crate::{AgentRecord, Dismissal, FoundTarget, NewAudit, Revoked, ServerId, SessionRecord, StoreError};
use procfleet_core::grants::GrantScope;
use procfleet_core::request::Target;
use procfleet_core::{AgentId, BusinessId, Epoch, Host};
use std::collections::{BTreeMap, HashMap};
use tokio_postgres::Row;

/// Whether an agent is connected to a living server, of [`TABLES`].
macro_rules! present {
    () => {
        "(connected AND holder IN (SELECT id FROM servers WHERE state = 'up'))"
    };
}
pub(super) use present;

/// The columns that [`record`] reads, of [`TABLES`].
pub(super) const COLUMNS: &str = concat!(
    "agent_id, cloud_id, ip, certificate_sha256, version, enrolled_at, retired_at, ",
    present!(),
    ", changed_at, epoch, facts, business_id, certificate_expires_at, revoked_at, revoked_why, labels, changed_boot, \
     changed_boot_ms, CASE heard_at WHEN 0 THEN changed_at ELSE heard_at END"
);

/// Every agent has a session. The planner removes a LEFT JOIN of which no column is used.
pub(super) const TABLES: &str = "agents LEFT JOIN sessions USING (agent_id)";

impl PgStore {
    pub(crate) async fn agent(&self, wanted: &AgentId) -> Result<Option<AgentRecord>, StoreError> {
        const DOING: &str = "reading an agent";
        let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE agent_id = ?");
        let rows = self.prepared_rows(DOING, &sql, &[wanted.to_string().into()]).await?;
        Ok(self.converted(DOING, &rows, record)?.pop())
    }

    pub(crate) async fn agent_at(&self, host: Host) -> Result<Option<AgentRecord>, StoreError> {
        const DOING: &str = "reading the agent of a host";
        let sql =
            format!("SELECT {COLUMNS} FROM {TABLES} WHERE cloud_id = ? AND ip = ? AND retired_at IS NULL");
        let values = [Value::Int(i64::from(host.cloud.0)), host.ip.to_string().into()];
        let rows = self.prepared_rows(DOING, &sql, &values).await?;
        Ok(self.converted(DOING, &rows, record)?.pop())
    }

    pub(crate) async fn agents_with(
        &self,
        wanted: Vec<AgentId>,
    ) -> Result<HashMap<AgentId, AgentRecord>, StoreError> {
        const DOING: &str = "reading some agents";
        let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE agent_id = ANY(?) AND retired_at IS NULL");
        let rows = self.rows(DOING, &sql, &[ids(&wanted).into()]).await?;
        let records = self.converted(DOING, &rows, record)?;
        Ok(records.into_iter().map(|record| (record.agent.clone(), record)).collect())
    }

    pub(crate) async fn all_agents(&self) -> Result<Vec<AgentRecord>, StoreError> {
        const DOING: &str = "reading the agents";
        let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE retired_at IS NULL ORDER BY agent_id");
        let rows = self.rows(DOING, &sql, &[]).await?;
        self.converted(DOING, &rows, record)
    }

    pub(crate) async fn label_agents(
        &self,
        agents: Vec<AgentId>,
        set: BTreeMap<String, String>,
        remove: Vec<String>,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("labelling agents", (agents, set, remove, audit), |tx, (agents, set, remove, audit)| {
            Box::pin(async move {
                let sql = "SELECT agent_id, labels FROM agents WHERE agent_id = ANY($1) \
                               ORDER BY agent_id FOR NO KEY UPDATE";
                let statement = tx.prepare_cached(sql).await?;
                let rows = tx.query(&statement, &[&ids(agents)]).await?;
                let mut labelled: BTreeMap<AgentId, String> = BTreeMap::new();
                for row in &rows {
                    let mut labels = labels(row, 1)?;
                    labels.retain(|key, _| !remove.contains(key));
                    labels.extend(set.iter().map(|(key, value)| (key.clone(), value.clone())));
                    labelled.insert(agent(row, 0)?, to_json("an agent's labels", &labels)?);
                }
                if let Some(missing) = agents.iter().find(|agent| !labelled.contains_key(*agent)) {
                    return Err(StoreError::NoSuchAgent(missing.clone()).into());
                }
                let sql = "UPDATE agents SET labels = new.labels \
                               FROM unnest($1::text[], $2::text[]) AS new (agent_id, labels) \
                               WHERE agents.agent_id = new.agent_id";
                let statement = tx.prepare_cached(sql).await?;
                let (agents, labels): (Vec<&str>, Vec<&str>) =
                    labelled.iter().map(|(agent, labels)| (agent.as_str(), labels.as_str())).unzip();
                tx.execute(&statement, &[&agents, &labels]).await?;
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    pub(crate) async fn last_heard(&self, agents: Vec<AgentId>) -> Result<HashMap<AgentId, i64>, StoreError> {
        const DOING: &str = "reading when agents were heard";
        let sql = "SELECT agent_id, CASE heard_at WHEN 0 THEN changed_at ELSE heard_at END FROM sessions \
                   WHERE agent_id = ANY(?)";
        let rows = self.rows(DOING, sql, &[ids(&agents).into()]).await?;
        let heard = self.converted(DOING, &rows, |row| Ok((agent(row, 0)?, row.try_get(1)?)))?;
        Ok(heard.into_iter().collect())
    }

    pub(crate) async fn dismissals(
        &self,
        agents: Vec<AgentId>,
    ) -> Result<HashMap<AgentId, Dismissal>, StoreError> {
        const DOING: &str = "reading which agents were dismissed";
        // A forgotten agent is revoked and retired, and no other agent has joined for its host.
        let sql = "SELECT agent_id, revoked_at IS NOT NULL, revoked_why FROM agents \
                   WHERE agent_id = ANY(?) AND (retired_at IS NOT NULL OR revoked_at IS NOT NULL)";
        let rows = self.rows(DOING, sql, &[ids(&agents).into()]).await?;
        let found = self.converted(DOING, &rows, |row| {
            let why = match row.try_get(1)? {
                true => Dismissal::Revoked(row.try_get(2)?),
                false => Dismissal::Retired,
            };
            Ok((agent(row, 0)?, why))
        })?;
        Ok(found.into_iter().collect())
    }

    pub(crate) async fn later_sessions(
        &self,
        sessions: Vec<(AgentId, Epoch)>,
    ) -> Result<Vec<AgentId>, StoreError> {
        const DOING: &str = "looking for later sessions of agents";
        let sql = "SELECT last.agent_id FROM unnest(?::text[], ?::bigint[]) AS known (agent_id, epoch) \
                   CROSS JOIN LATERAL (SELECT agent_id, epoch FROM sessions WHERE agent_id = known.agent_id OFFSET 0) AS last \
                   WHERE last.epoch > known.epoch";
        let (agents, epochs): (Vec<String>, Vec<i64>) =
            sessions.into_iter().map(|(agent, epoch)| (agent.to_string(), integer(epoch.0))).unzip();
        let rows = self.rows(DOING, sql, &[agents.into(), Value::Ints(epochs)]).await?;
        self.converted(DOING, &rows, |row| agent(row, 0))
    }

    pub(crate) async fn sessions_of(
        &self,
        agents: Vec<AgentId>,
    ) -> Result<HashMap<AgentId, SessionRecord>, StoreError> {
        const DOING: &str = "reading sessions of agents";
        let sql = format!(
            "SELECT agent_id, epoch, {}, holder, changed_at, \
             CASE heard_at WHEN 0 THEN changed_at ELSE heard_at END FROM sessions WHERE agent_id = ANY(?)",
            present!()
        );
        let rows = self.rows(DOING, &sql, &[ids(&agents).into()]).await?;
        let found = self.converted(DOING, &rows, |row| {
            let session = SessionRecord {
                epoch: Epoch(natural(row.try_get(1)?)),
                connected: row.try_get(2)?,
                holder: ServerId(row.try_get(3)?),
                changed_at: row.try_get(4)?,
                heard_at: row.try_get(5)?,
            };
            Ok((agent(row, 0)?, session))
        })?;
        Ok(found.into_iter().collect())
    }

    pub(crate) async fn resolve(&self, targets: &[Target]) -> Result<Vec<Option<AgentId>>, StoreError> {
        let inventory = self.inventory(targets).await?;
        Ok(targets.iter().map(|target| inventory.resolve(target).map(|(agent, _)| agent)).collect())
    }

    pub(crate) async fn resolve_within(
        &self,
        targets: &[Target],
        businesses: &GrantScope<BusinessId>,
    ) -> Result<Vec<FoundTarget>, StoreError> {
        let inventory = self.inventory(targets).await?;
        let found = |target| match (inventory.resolve(target), businesses) {
            (None, _) => FoundTarget::Nowhere,
            (Some((agent, _)), GrantScope::All) => FoundTarget::Agent(agent),
            (Some((agent, own)), GrantScope::Only(some)) if some.contains(&own) => FoundTarget::Agent(agent),
            (Some(_), GrantScope::Only(_)) => FoundTarget::Outside,
        };
        Ok(targets.iter().map(found).collect())
    }

    /// Reads all agents that the targets may mean.
    async fn inventory(&self, targets: &[Target]) -> Result<Inventory, StoreError> {
        const DOING: &str = "resolving targets";
        let mut ids = Vec::new();
        let (mut clouds, mut ips) = (Vec::new(), Vec::new());
        for target in targets {
            if let Target::Agent(agent) = target {
                ids.push(agent.to_string());
            }
            if let Some(host) = host_of(target) {
                clouds.push(i64::from(host.cloud.0));
                ips.push(host.ip.to_string());
            }
        }
        let mut rows = Vec::new();
        if !ids.is_empty() {
            let sql = "SELECT agent_id, cloud_id, ip, business_id, retired_at IS NULL FROM agents WHERE agent_id = ANY(?)";
            rows.extend(self.prepared_rows(DOING, sql, &[ids.into()]).await?);
        }
        if !ips.is_empty() {
            let sql = "SELECT agent_id, cloud_id, ip, business_id, true FROM unnest(?, ?) AS wanted (cloud, address) \
                       JOIN agents ON cloud_id = cloud AND ip = address AND retired_at IS NULL";
            rows.extend(self.prepared_rows(DOING, sql, &[Value::Ints(clouds), ips.into()]).await?);
        }
        let mut inventory = Inventory::default();
        let found =
            |row: &Row| Ok((agent(row, 0)?, host(row, 1)?, business(row.try_get(3)?)?, row.try_get(4)?));
        for (agent, host, business, is_enrolled) in self.converted(DOING, &rows, found)? {
            if is_enrolled {
                inventory.by_host.insert(host, agent.clone());
                inventory.businesses.insert(agent, business);
            }
        }
        Ok(inventory)
    }
}

/// Agents that are not retired.
#[derive(Default)]
struct Inventory {
    by_host: HashMap<Host, AgentId>,
    businesses: HashMap<AgentId, BusinessId>,
}

impl Inventory {
    fn resolve(&self, target: &Target) -> Option<(AgentId, BusinessId)> {
        let agent = match target {
            Target::Agent(agent) if self.businesses.contains_key(agent) => agent,
            target => self.by_host.get(&host_of(target)?)?,
        };
        Some((agent.clone(), *self.businesses.get(agent)?))
    }
}

/// The host that a target names, if it is no agent's id.
fn host_of(target: &Target) -> Option<Host> {
    let host: Host = match target {
        Target::Host(host) | Target::SupplierHost(host, _) => *host,
        Target::Agent(agent) => agent.as_str().parse().ok()?,
        Target::Unusable(_) => return None,
    };
    Some(Host { ip: host.ip.to_canonical(), ..host })
}

/// Agents as values of a statement.
pub(super) fn ids(agents: &[AgentId]) -> Vec<String> {
    agents.iter().map(AgentId::to_string).collect()
}

fn labels(row: &Row, column: usize) -> Result<BTreeMap<String, String>, PgFault> {
    from_json("an agent's labels", row.try_get(column)?)
}

/// Reads [`COLUMNS`].
pub(super) fn record(row: &Row) -> Result<AgentRecord, PgFault> {
    Ok(AgentRecord {
        agent: agent(row, 0)?,
        host: host(row, 1)?,
        certificate_sha256: hash(row, 3)?,
        version: row.try_get(4)?,
        enrolled_at: row.try_get(5)?,
        retired_at: row.try_get(6)?,
        connected: row.try_get(7)?,
        changed_at: row.try_get(8)?,
        changed_mark: mark_if_any(row, 16)?,
        heard_at: row.try_get(18)?,
        epoch: Epoch(natural(row.try_get(9)?)),
        facts: row.try_get(10)?,
        business: business(row.try_get(11)?)?,
        certificate_expires_at: row.try_get(12)?,
        revoked: match row.try_get(13)? {
            Some(at) => Some(Revoked { at, why: row.try_get(14)? }),
            None => None,
        },
        labels: labels(row, 15)?,
    })
}
