//! The inventory: which agent is on which host, and which connection of it is the last.

use super::audit::insert_audit;
use super::businesses::business;
use super::columns::{agent, from_json, host, host_order, integer, mark_if_any, natural, text, to_json};
use super::{QueryFault, SqliteStore};
use crate::clock::{ClockReading, WallMs};
use crate::{AgentRecord, Dismissal, FoundTarget, NewAudit, Revoked, ServerId, SessionRecord, StoreError};
use procfleet_core::grants::GrantScope;
use procfleet_core::request::Target;
use procfleet_core::{AgentId, BusinessId, CloudId, Epoch, Host};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::{BTreeMap, HashMap};

pub(super) const COLUMNS: &str = "agent_id, cloud_id, ip, certificate_sha256, version, enrolled_at, retired_at, connected, \
                       changed_at, epoch, facts, business_id, certificate_expires_at, revoked_at, revoked_why, labels, \
                       changed_boot, changed_boot_ms, iif(heard_at = 0, changed_at, heard_at)";

impl SqliteStore {
    pub(crate) async fn agent(&self, wanted: &AgentId) -> Result<Option<AgentRecord>, StoreError> {
        let wanted = wanted.clone();
        self.read("reading an agent", move |db| one(db, &wanted)).await
    }

    pub(crate) async fn agent_at(&self, host: Host) -> Result<Option<AgentRecord>, StoreError> {
        self.read("reading the agent of a host", move |db| {
            let sql =
                format!("SELECT {COLUMNS} FROM agents WHERE cloud_id = ? AND ip = ? AND retired_at IS NULL");
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query(params![host.cloud.0, host.ip.to_string()])?;
            rows.next()?.map(record).transpose()
        })
        .await
    }

    pub(crate) async fn agents_with(
        &self,
        wanted: Vec<AgentId>,
    ) -> Result<HashMap<AgentId, AgentRecord>, StoreError> {
        self.read("reading some agents", move |db| {
            let mut found = HashMap::with_capacity(wanted.len());
            for agent in wanted {
                if let Some(record) = one(db, &agent)?.filter(|record| record.retired_at.is_none()) {
                    found.insert(agent, record);
                }
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn all_agents(&self) -> Result<Vec<AgentRecord>, StoreError> {
        self.read("reading the agents", |db| {
            let sql = format!("SELECT {COLUMNS} FROM agents WHERE retired_at IS NULL ORDER BY agent_id");
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query([])?;
            let mut records = Vec::new();
            while let Some(row) = rows.next()? {
                records.push(record(row)?);
            }
            Ok(records)
        })
        .await
    }

    pub(crate) async fn label_agents(
        &self,
        agents: Vec<AgentId>,
        set: BTreeMap<String, String>,
        remove: Vec<String>,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("labelling agents", move |db| {
            for agent in &agents {
                let Some(mut record) = one(db, agent)? else {
                    return Err(StoreError::NoSuchAgent(agent.clone()).into());
                };
                record.labels.retain(|key, _| !remove.contains(key));
                record.labels.extend(set.clone());
                let labels = to_json("an agent's labels", &record.labels)?;
                db.prepare_cached("UPDATE agents SET labels = ? WHERE agent_id = ?")?
                    .execute(params![labels, agent.as_str()])?;
            }
            insert_audit(db, &audit)
        })
        .await
    }

    pub(crate) async fn agent_connected(
        &self,
        agent: &AgentId,
        version: &str,
        facts: &str,
        at: i64,
        highest: Epoch,
    ) -> Result<Epoch, StoreError> {
        let (agent, version, facts) = (agent.clone(), version.to_owned(), facts.to_owned());
        self.write("noting that an agent connected", move |db| {
            let sql = "UPDATE agents SET epoch = max(epoch, ?5) + 1, connected = 1, present = 1, version = ?1, facts = ?2, changed_at = ?3, \
                       heard_at = ?3 WHERE agent_id = ?4 AND retired_at IS NULL AND revoked_at IS NULL RETURNING epoch";
            let epoch = db
                .prepare_cached(sql)?
                .query_row(params![version, facts, at, agent.as_str(), integer(highest.0)], |row| row.get(0))
                .optional()?
                .ok_or(StoreError::NoSuchAgent(agent))?;
            Ok(Epoch(natural(epoch)))
        })
        .await
    }

    pub(crate) async fn last_heard(&self, agents: Vec<AgentId>) -> Result<HashMap<AgentId, i64>, StoreError> {
        self.read("reading when agents were heard", move |db| {
            let sql = "SELECT iif(heard_at = 0, changed_at, heard_at) FROM agents WHERE agent_id = ?";
            let mut statement = db.prepare_cached(sql)?;
            let mut heard = HashMap::with_capacity(agents.len());
            for agent in agents {
                let at = statement.query_row([agent.as_str()], |row| row.get(0)).optional()?;
                heard.extend(at.map(|at| (agent, at)));
            }
            Ok(heard)
        })
        .await
    }

    pub(crate) async fn dismissals(
        &self,
        agents: Vec<AgentId>,
    ) -> Result<HashMap<AgentId, Dismissal>, StoreError> {
        self.read("reading which agents were dismissed", move |db| {
            // A forgotten agent is revoked and retired, and no other agent has joined for its host.
            let sql = "SELECT revoked_at IS NOT NULL, revoked_why FROM agents \
                       WHERE agent_id = ? AND (retired_at IS NOT NULL OR revoked_at IS NOT NULL)";
            let mut statement = db.prepare_cached(sql)?;
            let mut found = HashMap::new();
            for agent in agents {
                let mut rows = statement.query([agent.as_str()])?;
                if let Some(row) = rows.next()? {
                    let why = match row.get(0)? {
                        true => Dismissal::Revoked(row.get(1)?),
                        false => Dismissal::Retired,
                    };
                    drop(rows);
                    found.insert(agent, why);
                }
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn later_sessions(
        &self,
        sessions: Vec<(AgentId, Epoch)>,
    ) -> Result<Vec<AgentId>, StoreError> {
        self.read("looking for later sessions of agents", move |db| {
            let mut statement = db.prepare_cached("SELECT 1 FROM agents WHERE agent_id = ? AND epoch > ?")?;
            let mut found = Vec::new();
            for (agent, epoch) in sessions {
                if statement.exists((agent.as_str(), integer(epoch.0)))? {
                    found.push(agent);
                }
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn sessions_of(
        &self,
        agents: Vec<AgentId>,
    ) -> Result<HashMap<AgentId, SessionRecord>, StoreError> {
        self.read("reading sessions of agents", move |db| {
            let sql = "SELECT epoch, present, changed_at, iif(heard_at = 0, changed_at, heard_at) FROM agents \
                       WHERE agent_id = ?";
            let mut statement = db.prepare_cached(sql)?;
            let mut found = HashMap::new();
            for agent in agents {
                let read = |row: &Row<'_>| {
                    Ok(SessionRecord {
                        epoch: Epoch(natural(row.get(0)?)),
                        connected: row.get(1)?,
                        holder: ServerId::default(),
                        changed_at: row.get(2)?,
                        heard_at: row.get(3)?,
                    })
                };
                if let Some(session) = statement.query_row([agent.as_str()], read).optional()? {
                    found.insert(agent, session);
                }
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn agent_disconnected(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        at: ClockReading,
        heard: WallMs,
    ) -> Result<(), StoreError> {
        let agent = agent.clone();
        self.write("noting that an agent disconnected", move |db| {
            let sql = "UPDATE agents SET connected = 0, present = 0, changed_at = ?, changed_boot = ?, changed_boot_ms = ?, \
                       heard_at = ? WHERE agent_id = ? AND epoch = ? AND connected = 1";
            let (boot, moment) = (at.mark.map(|mark| mark.boot.0), at.mark.map(|mark| integer(mark.moment.0)));
            let values = params![at.wall, boot, moment, heard, agent.as_str(), integer(epoch.0)];
            db.prepare_cached(sql)?.execute(values)?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn resolve(&self, targets: &[Target]) -> Result<Vec<Option<AgentId>>, StoreError> {
        let targets = targets.to_vec();
        self.read("resolving targets", move |db| {
            let mut resolver = Resolver::new(db)?;
            targets.into_iter().map(|target| resolver.resolve(target)).collect()
        })
        .await
    }

    pub(crate) async fn resolve_within(
        &self,
        targets: &[Target],
        businesses: &GrantScope<BusinessId>,
    ) -> Result<Vec<FoundTarget>, StoreError> {
        let (targets, businesses) = (targets.to_vec(), businesses.clone());
        self.read("resolving targets", move |db| {
            let mut resolver = Resolver::new(db)?;
            let mut belongs = db.prepare_cached("SELECT business_id FROM agents WHERE agent_id = ?")?;
            let mut found = |target| match (resolver.resolve(target)?, &businesses) {
                (None, _) => Ok(FoundTarget::Nowhere),
                (Some(agent), GrantScope::All) => Ok(FoundTarget::Agent(agent)),
                (Some(agent), GrantScope::Only(some)) => {
                    let own = business(belongs.query_row([agent.as_str()], |row| row.get(0))?)?;
                    Ok(if some.contains(&own) { FoundTarget::Agent(agent) } else { FoundTarget::Outside })
                }
            };
            targets.into_iter().map(&mut found).collect()
        })
        .await
    }
}

struct Resolver<'db> {
    by_host: rusqlite::CachedStatement<'db>,
    by_id: rusqlite::CachedStatement<'db>,
}

impl<'db> Resolver<'db> {
    fn new(db: &'db Connection) -> Result<Self, QueryFault> {
        Ok(Resolver {
            by_host: db.prepare_cached(
                "SELECT agent_id FROM agents WHERE cloud_id = ? AND ip = ? AND retired_at IS NULL",
            )?,
            by_id: db.prepare_cached("SELECT 1 FROM agents WHERE agent_id = ? AND retired_at IS NULL")?,
        })
    }

    fn resolve(&mut self, target: Target) -> Result<Option<AgentId>, QueryFault> {
        match target {
            Target::Host(host) | Target::SupplierHost(host, _) => self.host(host),
            Target::Agent(id) if self.by_id.exists([id.as_str()])? => Ok(Some(id)),
            Target::Agent(id) => id.as_str().parse().map_or(Ok(None), |host| self.host(host)),
            Target::Unusable(_) => Ok(None),
        }
    }

    fn host(&mut self, host: Host) -> Result<Option<AgentId>, QueryFault> {
        let mut rows = self.by_host.query(params![host.cloud.0, host.ip.to_canonical().to_string()])?;
        rows.next()?.map(|row| agent(row, 0)).transpose()
    }
}

pub(super) fn one(db: &Connection, wanted: &AgentId) -> Result<Option<AgentRecord>, QueryFault> {
    let sql = format!("SELECT {COLUMNS} FROM agents WHERE agent_id = ?");
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query([wanted.as_str()])?;
    rows.next()?.map(record).transpose()
}

/// Fails unless the agent is enrolled, and was not replaced since.
pub(super) fn require(db: &Connection, agent: &AgentId) -> Result<(), QueryFault> {
    let sql = "SELECT 1 FROM agents WHERE agent_id = ? AND retired_at IS NULL";
    match db.prepare_cached(sql)?.exists([agent.as_str()])? {
        true => Ok(()),
        false => Err(StoreError::NoSuchAgent(agent.clone()).into()),
    }
}

/// Fails unless the agent is enrolled, and this is its last session.
pub(super) fn require_session(db: &Connection, agent: &AgentId, epoch: Epoch) -> Result<(), QueryFault> {
    let sql = "SELECT epoch FROM agents WHERE agent_id = ? AND retired_at IS NULL";
    let found = db.prepare_cached(sql)?.query_row([agent.as_str()], |row| row.get(0)).optional()?;
    match found.map(natural) {
        Some(last) if last == epoch.0 => Ok(()),
        Some(_) => Err(StoreError::OldSession(agent.clone()).into()),
        None => Err(StoreError::NoSuchAgent(agent.clone()).into()),
    }
}

/// Completes the migration that adds the column: the order of addresses is beyond SQL.
pub(super) fn fill_host_order(db: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT agent_id, cloud_id, ip FROM agents WHERE host_order = '' AND retired_at IS NULL";
    let mut missing = db.prepare(sql)?;
    let rows = missing.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, u32>(1)?, row.get::<_, String>(2)?))
    })?;
    let rows: Vec<(String, u32, String)> = rows.collect::<rusqlite::Result<_>>()?;
    let mut update = db.prepare("UPDATE agents SET host_order = ? WHERE agent_id = ?")?;
    for (agent, cloud, ip) in &rows {
        // An address that cannot be read is reported by whoever reads the agent.
        if let Ok(ip) = ip.parse() {
            update.execute([&host_order(Host { cloud: CloudId(*cloud), ip }), agent])?;
        }
    }
    if !rows.is_empty() {
        let sql = "UPDATE procs SET host_order = (SELECT host_order FROM agents WHERE agent_id = agent) \
                   WHERE host_order = ''";
        db.execute(sql, [])?;
    }
    Ok(())
}

/// No agent is connected to a server that starts.
pub(super) fn forget_presence(db: &Connection) -> rusqlite::Result<()> {
    let sql = "UPDATE agents SET present = 0, cut_off_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE present";
    db.execute(sql, [])?;
    Ok(())
}

pub(super) fn record(row: &Row<'_>) -> Result<AgentRecord, QueryFault> {
    Ok(AgentRecord {
        agent: agent(row, 0)?,
        host: host(row, 1)?,
        certificate_sha256: row.get(3)?,
        version: row.get(4)?,
        enrolled_at: row.get(5)?,
        retired_at: row.get(6)?,
        connected: row.get(7)?,
        changed_at: row.get(8)?,
        changed_mark: mark_if_any(row, 16)?,
        heard_at: row.get(18)?,
        epoch: Epoch(natural(row.get(9)?)),
        facts: row.get(10)?,
        business: business(row.get(11)?)?,
        certificate_expires_at: row.get(12)?,
        revoked: match row.get(13)? {
            Some(at) => Some(Revoked { at, why: row.get(14)? }),
            None => None,
        },
        labels: from_json("an agent's labels", text(row, 15)?)?,
    })
}
