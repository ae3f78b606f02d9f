//! Agents that connect, each with the epoch of its new session, and agents that disconnect.

use super::PgStore;
use super::columns::{agent as agent_id, integer, natural, plain};
use super::fault::PgFault;
use super::group_commit::{ChangeGroup, ChangeReply, GroupChange, Locks};
use crate::clock::{ClockReading, WallMs};
use crate::{ServerId, StoreError};
use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;
use procfleet_core::{AgentId, Epoch};
use std::collections::{HashMap, HashSet};

impl PgStore {
    pub(crate) async fn agent_connected(
        &self,
        agent: &AgentId,
        version: &str,
        facts: &str,
        at: i64,
        highest: Epoch,
    ) -> Result<Epoch, StoreError> {
        let connect = Connect {
            agent: agent.clone(),
            version: plain(version),
            facts: plain(facts),
            at,
            highest,
            holder: self.membership().run(),
        };
        self.write_grouped(|inner| &inner.connects, connect).await
    }

    pub(crate) async fn agent_disconnected(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        at: ClockReading,
        heard: WallMs,
    ) -> Result<(), StoreError> {
        let disconnect = Disconnect { agent: agent.clone(), epoch, at, heard };
        self.write_grouped(|inner| &inner.disconnects, disconnect).await
    }
}

/// An agent that has connected to this server.
#[derive(Debug)]
pub(super) struct Connect {
    agent: AgentId,
    version: String,
    facts: String,
    at: i64,
    /// The highest epoch that the agent knows.
    highest: Epoch,
    holder: ServerId,
}

impl GroupChange for Connect {
    type Answer = Epoch;
    const DOING: &'static str = "noting that an agent connected";

    fn agent(&self) -> &AgentId {
        &self.agent
    }

    fn bytes(&self) -> usize {
        self.facts.len()
    }

    fn carry_out<'a>(
        tx: &'a Transaction<'a>,
        group: &'a ChangeGroup<Self>,
    ) -> BoxFuture<'a, Result<Vec<ChangeReply<Self>>, PgFault>> {
        Box::pin(store(tx, group))
    }
}

async fn store(
    tx: &Transaction<'_>,
    group: &ChangeGroup<Connect>,
) -> Result<Vec<ChangeReply<Connect>>, PgFault> {
    let locked = lock(tx, group.changes.iter().map(|connect| &connect.agent), group.locks).await?;
    let connects: Vec<&Connect> =
        group.changes.iter().filter(|connect| locked.contains(&connect.agent)).collect();
    let agents: Vec<&str> = connects.iter().map(|connect| connect.agent.as_str()).collect();
    // An UPDATE … FROM agents would not see that an agent was retired or revoked while it waited for the
    // session. The lock of the agent's row does, and holds until the commit. No condition: other indexes of
    // agents would be eligible with one.
    let sql = "SELECT agent_id, retired_at IS NULL AND revoked_at IS NULL FROM agents WHERE agent_id = ANY($1) \
               ORDER BY agent_id FOR NO KEY UPDATE";
    let statement = tx.prepare_cached(sql).await?;
    let mut living: HashSet<AgentId> = HashSet::with_capacity(agents.len());
    for row in tx.query(&statement, &[&agents]).await? {
        if row.try_get(1)? {
            living.insert(agent_id(&row, 0)?);
        }
    }
    let connects: Vec<&Connect> =
        connects.into_iter().filter(|connect| living.contains(&connect.agent)).collect();
    let sql = "WITH connected AS MATERIALIZED ( \
                   SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) \
                   AS connected (agent, version, facts, at, highest, holder) \
               ), told AS ( \
                   UPDATE agents SET version = connected.version, facts = connected.facts FROM connected \
                   WHERE agent_id = agent \
                   AND (agents.version, agents.facts) IS DISTINCT FROM (connected.version, connected.facts) \
               ) \
               UPDATE sessions SET epoch = greatest(epoch, highest) + 1, holder = connected.holder, connected = true, \
               changed_at = at, heard_at = at FROM connected WHERE agent_id = agent RETURNING agent_id, epoch";
    let statement = tx.prepare_cached(sql).await?;
    let agents: Vec<&str> = connects.iter().map(|connect| connect.agent.as_str()).collect();
    let versions: Vec<&str> = connects.iter().map(|connect| connect.version.as_str()).collect();
    let facts: Vec<&str> = connects.iter().map(|connect| connect.facts.as_str()).collect();
    let times: Vec<i64> = connects.iter().map(|connect| connect.at).collect();
    let highest: Vec<i64> = connects.iter().map(|connect| integer(connect.highest.0)).collect();
    let holders: Vec<i64> = connects.iter().map(|connect| connect.holder.0).collect();
    let rows = tx.query(&statement, &[&agents, &versions, &facts, &times, &highest, &holders]).await?;
    let mut epochs: HashMap<AgentId, Epoch> = HashMap::with_capacity(rows.len());
    for row in &rows {
        epochs.insert(agent_id(row, 0)?, Epoch(natural(row.try_get(1)?)));
    }
    let reply = |connect: &Connect| match epochs.get(&connect.agent) {
        Some(epoch) => ChangeReply::Answer(Ok(*epoch)),
        None if group.locks == Locks::Skip && !locked.contains(&connect.agent) => ChangeReply::Alone,
        None => ChangeReply::Answer(Err(StoreError::NoSuchAgent(connect.agent.clone()))),
    };
    Ok(group.changes.iter().map(reply).collect())
}

/// An agent whose session has ended.
#[derive(Debug)]
pub(super) struct Disconnect {
    agent: AgentId,
    epoch: Epoch,
    at: ClockReading,
    heard: WallMs,
}

impl GroupChange for Disconnect {
    type Answer = ();
    const DOING: &'static str = "noting that an agent disconnected";

    fn agent(&self) -> &AgentId {
        &self.agent
    }

    fn bytes(&self) -> usize {
        0
    }

    fn carry_out<'a>(
        tx: &'a Transaction<'a>,
        group: &'a ChangeGroup<Self>,
    ) -> BoxFuture<'a, Result<Vec<ChangeReply<Self>>, PgFault>> {
        Box::pin(end_sessions(tx, group))
    }
}

/// Ends the sessions that are still the last ones of their agents.
async fn end_sessions(
    tx: &Transaction<'_>,
    group: &ChangeGroup<Disconnect>,
) -> Result<Vec<ChangeReply<Disconnect>>, PgFault> {
    let locked = lock(tx, group.changes.iter().map(|ended| &ended.agent), group.locks).await?;
    let ended: Vec<&Disconnect> =
        group.changes.iter().filter(|ended| locked.contains(&ended.agent)).collect();
    let sql = "UPDATE sessions SET connected = false, changed_at = at, changed_boot = boot, changed_boot_ms = boot_ms, \
               heard_at = heard \
               FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) \
               AS ended (agent, ended_epoch, at, boot, boot_ms, heard) \
               WHERE agent_id = agent AND epoch = ended_epoch AND connected";
    let statement = tx.prepare_cached(sql).await?;
    let agents: Vec<&str> = ended.iter().map(|ended| ended.agent.as_str()).collect();
    let epochs: Vec<i64> = ended.iter().map(|ended| integer(ended.epoch.0)).collect();
    let times: Vec<i64> = ended.iter().map(|ended| ended.at.wall).collect();
    let boots: Vec<Option<i64>> = ended.iter().map(|ended| ended.at.mark.map(|mark| mark.boot.0)).collect();
    let moments: Vec<Option<i64>> =
        ended.iter().map(|ended| ended.at.mark.map(|mark| integer(mark.moment.0))).collect();
    let heard: Vec<i64> = ended.iter().map(|ended| ended.heard).collect();
    tx.execute(&statement, &[&agents, &epochs, &times, &boots, &moments, &heard]).await?;
    let reply = |ended: &Disconnect| match group.locks == Locks::Skip && !locked.contains(&ended.agent) {
        true => ChangeReply::Alone,
        false => ChangeReply::Answer(Ok(())),
    };
    Ok(group.changes.iter().map(reply).collect())
}

/// Locks the sessions of agents, and returns which.
async fn lock(
    tx: &Transaction<'_>,
    agents: impl Iterator<Item = &AgentId>,
    locks: Locks,
) -> Result<HashSet<AgentId>, PgFault> {
    let skip = locks.clause();
    let sql =
        format!("SELECT agent_id FROM sessions WHERE agent_id = ANY($1) ORDER BY agent_id FOR UPDATE {skip}");
    let statement = tx.prepare_cached(&sql).await?;
    let agents: Vec<&str> = agents.map(AgentId::as_str).collect();
    let rows = tx.query(&statement, &[&agents]).await?;
    rows.iter().map(|row| agent_id(row, 0)).collect()
}
