//! The inventory: which agent is on which host, and which connection of it is the last.
//!
//! Identity is in `agents`, the last session in `sessions`. A unit that needs both rows locks the session
//! first. A unit that retires or revokes an agent locks its row of `agents`, and so does a unit that relies
//! on the agent being enrolled.

use super::PgStore;
use super::audit::insert_audit;
use super::ca;
use super::columns::{agent, business, from_json, hash, host, mark_if_any, natural, plain, to_json};
use super::conditions::Value;
use super::fault::PgFault;
use super::line::{self, ChangeGroup, ChangeReply, LineChange};
use super::tokens;
use crate::order::host_order;
use crate::types::Belonging;
use crate::{
    AGENT_REPLACED, AgentRecord, Dismissal, FoundTarget, JoinTokenRefusal, JoinedAgent, JoiningAgent, LINK,
    NewAudit, Replaces, Revoked, ServerId, SessionRecord, StoreError, TokenUse,
};
use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;
use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::request::Target;
use procfleet_core::{AgentId, BusinessId, Epoch, Host};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
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
    pub(crate) async fn join(
        &self,
        token: TokenUse,
        joining: JoiningAgent,
        now: i64,
    ) -> Result<Result<JoinedAgent, JoinTokenRefusal>, StoreError> {
        self.write_in_line(|inner| &inner.joins, Join { token, joining, now }).await
    }

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
        let sql = "SELECT agent_id, retired_at IS NOT NULL, revoked_why FROM agents \
                   WHERE agent_id = ANY(?) AND (retired_at IS NOT NULL OR revoked_at IS NOT NULL)";
        let rows = self.rows(DOING, sql, &[ids(&agents).into()]).await?;
        let found = self.converted(DOING, &rows, |row| {
            Ok((
                agent(row, 0)?,
                if row.try_get(1)? { Dismissal::Retired } else { Dismissal::Revoked(row.try_get(2)?) },
            ))
        })?;
        Ok(found.into_iter().collect())
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

/// An agent that wants to be enrolled.
#[derive(Debug)]
pub(super) struct Join {
    token: TokenUse,
    joining: JoiningAgent,
    now: i64,
}

impl LineChange for Join {
    type Answer = Result<JoinedAgent, JoinTokenRefusal>;
    const DOING: &'static str = "enrolling an agent";

    fn agent(&self) -> &AgentId {
        &self.joining.agent
    }

    /// A join takes several statements, and others wait for the token meanwhile.
    fn bytes(&self) -> usize {
        line::BYTES / 50
    }

    /// A unit of many joins locks the sessions of agents that are replaced in no order. A deadlock costs a
    /// repetition.
    fn carry_out<'a>(
        tx: &'a Transaction<'a>,
        group: &'a ChangeGroup<Self>,
    ) -> BoxFuture<'a, Result<Vec<ChangeReply<Self>>, PgFault>> {
        Box::pin(async move {
            let mut replies = Vec::with_capacity(group.changes.len());
            for Join { token, joining, now } in &group.changes {
                replies.push(ChangeReply::Answer(Ok(enroll(tx, token, joining, *now).await?)));
            }
            Ok(replies)
        })
    }
}

/// Locks the token, then the session and the row of the host's agent.
///
/// Of two units for one host without an agent, the second violates the unique index of hosts and is repeated.
/// The same happens to a unit that has waited for the lock of an agent which is retired by then.
async fn enroll(
    tx: &Transaction<'_>,
    token: &TokenUse,
    joining: &JoiningAgent,
    now: i64,
) -> Result<Result<JoinedAgent, JoinTokenRefusal>, PgFault> {
    let mut audit = NewAudit {
        at: now,
        app: LINK.to_owned(),
        origin: joining.from.to_string(),
        action: "agent_join".to_owned(),
        subject: joining.agent.to_string(),
        ..NewAudit::default()
    };
    // Before the token, as a change of the CA locks them.
    ca::check_signing(tx, &joining.certificate).await?;
    let allowed = match tokens::lock(tx, token, now).await? {
        Ok(belonging) => {
            let occupant = lock_occupant(tx, belonging.host(joining.ip), now).await?;
            permit(occupant.as_ref(), &belonging, joining.ip).map(|()| (belonging, occupant))
        }
        Err(refusal) => Err(refusal),
    };
    let (belonging, occupant) = match allowed {
        Ok(allowed) => allowed,
        Err(refusal) => {
            audit.code = Code::NotAllowed.external();
            audit.detail = format!("{} with token {}: {refusal}", joining.ip, token.id);
            insert_audit(tx, &audit).await?;
            return Ok(Err(refusal));
        }
    };
    tokens::spend(tx, token).await?;
    let host = belonging.host(joining.ip);
    audit.detail = format!("{host} with token {}, business {}", token.id, belonging.business);
    let Some(Occupant { agent: old, labels, .. }) = occupant else {
        insert_new(tx, joining, &belonging, "{}", now).await?;
        insert_audit(tx, &audit).await?;
        return Ok(Ok(JoinedAgent { host, retired: Vec::new() }));
    };
    retire(tx, &old, now).await?;
    // Labels are said of the host, which is the same.
    insert_new(tx, joining, &belonging, &labels, now).await?;
    audit.detail.push_str(&format!(", instead of {old}"));
    tell_takeover(tx, joining, host, &old, &token.id, &audit).await?;
    Ok(Ok(JoinedAgent { host, retired: vec![old] }))
}

/// How long an agent may be away before any token lets another take its place.
const LOST_AFTER_MS: i64 = 86_400_000;

/// An agent that went before this time is lost.
pub(super) fn lost_before(now: i64) -> i64 {
    now.saturating_sub(LOST_AFTER_MS)
}

/// The agent that a host has.
pub(super) struct Occupant {
    agent: AgentId,
    business: BusinessId,
    is_well: bool,
    /// As stored.
    labels: String,
}

/// Reads four columns: agent, business, whether it is well, labels.
pub(super) fn occupant(row: &Row, column: usize) -> Result<Occupant, PgFault> {
    Ok(Occupant {
        agent: agent(row, column)?,
        business: business(row.try_get(column + 1)?)?,
        is_well: row.try_get(column + 2)?,
        labels: row.try_get(column + 3)?,
    })
}

/// Locks the session and then the row of the agent that a host has.
async fn lock_occupant(tx: &Transaction<'_>, host: Host, now: i64) -> Result<Option<Occupant>, PgFault> {
    let sql = "WITH own AS MATERIALIZED ( \
                   SELECT sessions.agent_id, epoch, connected, changed_at \
                   FROM agents JOIN sessions ON sessions.agent_id = agents.agent_id \
                   WHERE cloud_id = $1 AND ip = $2 AND retired_at IS NULL FOR UPDATE OF sessions \
               ) \
               SELECT agents.agent_id, business_id, \
               epoch > 0 AND revoked_at IS NULL AND (connected OR changed_at > $3), labels, retired_at IS NULL \
               FROM own JOIN agents ON agents.agent_id = own.agent_id FOR NO KEY UPDATE OF agents";
    let statement = tx.prepare_cached(sql).await?;
    let (cloud, ip) = (i64::from(host.cloud.0), host.ip.to_string());
    match tx.query_opt(&statement, &[&cloud, &ip, &lost_before(now)]).await? {
        Some(row) if row.try_get(4)? => occupant(&row, 0).map(Some),
        // Retired while this unit waited for its session.
        Some(_) | None => Ok(None),
    }
}

/// The holder of a token chooses the host that it joins as. It must not take a host from another business,
/// nor replace a live agent unless the token was made for that.
pub(super) fn permit(
    occupant: Option<&Occupant>,
    belonging: &Belonging,
    ip: IpAddr,
) -> Result<(), JoinTokenRefusal> {
    let Some(occupant) = occupant else { return Ok(()) };
    if occupant.business != belonging.business {
        return Err(JoinTokenRefusal::HostOf(occupant.business));
    }
    match belonging.replaces {
        Replaces::LostAgents if occupant.is_well => Err(JoinTokenRefusal::HostInUse(belonging.host(ip))),
        Replaces::LostAgents | Replaces::AnyAgent => Ok(()),
    }
}

/// Tells of an agent that has taken the place of another: in the audit trail, before the record of the join,
/// and in an event, for whoever listens. The event comes last, because its number locks the counter.
async fn tell_takeover(
    tx: &Transaction<'_>,
    joining: &JoiningAgent,
    host: Host,
    old: &AgentId,
    token: &str,
    join: &NewAudit,
) -> Result<(), PgFault> {
    let (new, old, from) = (joining.agent.as_str(), old.as_str(), joining.from);
    let message = format!("agent {new} has joined in place of {old}, from {from} with token {token}");
    let details =
        serde_json::json!({"agent_replaced": {"new": new, "old": [old], "from": from, "token": token}});
    let replace = NewAudit {
        action: "agent_replace".to_owned(),
        subject: host.to_string(),
        detail: message.clone(),
        ..join.clone()
    };
    insert_audit(tx, &replace).await?;
    insert_audit(tx, join).await?;
    let sql = "WITH n AS (UPDATE event_counter SET last = last + 1 WHERE id = 1 RETURNING last) \
               INSERT INTO events (number, agent, journal, journal_number, at, received_at, namespace, name, kind, \
               message, details, report_id, proc_name, account) \
               SELECT n.last, $1, 'takeover', 1, $2, $2, '', '', $3, $4, $5, 0, '', '' FROM n";
    let statement = tx.prepare_cached(sql).await?;
    let (message, details) = (plain(&message), details.to_string());
    tx.execute(&statement, &[&new, &join.at, &AGENT_REPLACED, &message, &details]).await?;
    Ok(())
}

/// Retires an agent whose rows are locked, and deletes what it reported about its procs: nobody would correct
/// it.
async fn retire(tx: &Transaction<'_>, agent: &AgentId, now: i64) -> Result<(), PgFault> {
    let sql = "WITH ended AS ( \
                   UPDATE sessions SET changed_at = CASE WHEN connected THEN $2 ELSE changed_at END, \
                   connected = false WHERE agent_id = $1 \
               ), no_procs AS (DELETE FROM procs WHERE agent = $1), \
               no_groups AS (DELETE FROM process_groups WHERE agent = $1), \
               no_certificates AS (DELETE FROM certificates WHERE agent = $1) \
               UPDATE agents SET retired_at = $2 WHERE agent_id = $1";
    let statement = tx.prepare_cached(sql).await?;
    tx.execute(&statement, &[&agent.as_str(), &now]).await?;
    Ok(())
}

async fn insert_new(
    tx: &Transaction<'_>,
    joining: &JoiningAgent,
    to: &Belonging,
    labels: &str,
    now: i64,
) -> Result<(), PgFault> {
    match insert(tx, joining, to, labels, now).await? {
        true => Ok(()),
        false => Err(StoreError::Exists { what: "an agent", key: joining.agent.to_string() }.into()),
    }
}

/// Inserts an agent with its session and its certificate. False: there is an agent with this id.
pub(super) async fn insert(
    tx: &Transaction<'_>,
    joining: &JoiningAgent,
    to: &Belonging,
    labels: &str,
    now: i64,
) -> Result<bool, PgFault> {
    let sql = "WITH new AS ( \
                   INSERT INTO agents (agent_id, cloud_id, ip, host_order, business_id, certificate_sha256, \
                   certificate_ca, certificate_expires_at, version, labels, enrolled_at) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
                   ON CONFLICT (agent_id) DO NOTHING RETURNING agent_id \
               ), session AS ( \
                   INSERT INTO sessions (agent_id, epoch, connected, changed_at) \
                   SELECT agent_id, 0, false, $11 FROM new \
               ), certificate AS ( \
                   INSERT INTO certificates (agent, sha256, ca_sha256, issued_at, expires_at) \
                   SELECT agent_id, $6, $7, $12, $8 FROM new \
               ) \
               SELECT agent_id FROM new";
    let statement = tx.prepare_cached(sql).await?;
    let host = to.host(joining.ip);
    let certificate = &joining.certificate;
    let row = tx
        .query_opt(
            &statement,
            &[
                &joining.agent.as_str(),
                &i64::from(host.cloud.0),
                &host.ip.to_string(),
                &host_order(host),
                &i64::from(to.business.0),
                &certificate.sha256.as_slice(),
                &certificate.ca.as_ref().map(<[u8; 32]>::as_slice),
                &certificate.expires_at,
                &plain(&joining.version),
                &labels,
                &now,
                &certificate.issued_at,
            ],
        )
        .await?;
    Ok(row.is_some())
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
