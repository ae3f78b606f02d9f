//! The process groups of each namespace, as the agents report them.

use super::PgStore;
use super::agents::ids;
use super::columns::{agent, from_json, integer, plain, to_json};
use super::conditions::Value;
use super::fault::PgFault;
use super::group_commit::{ChangeGroup, ChangeReply, GroupChange};
use super::proc_reports::{SessionLock, lock_sessions};
use crate::limits;
use crate::{GroupsRecord, StoreError};
use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;
use procfleet_core::spec::ProcessGroup;
use procfleet_core::{AgentId, Epoch};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

impl PgStore {
    pub(crate) async fn put_process_groups(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        groups: Vec<GroupsRecord>,
    ) -> Result<usize, StoreError> {
        let report = AgentGroups::new(agent, epoch, groups, Others::Stay);
        self.write_grouped(|inner| &inner.group_reports, report).await
    }

    pub(crate) async fn replace_process_groups(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        groups: Vec<GroupsRecord>,
    ) -> Result<usize, StoreError> {
        let report = AgentGroups::new(agent, epoch, groups, Others::Go);
        self.write_grouped(|inner| &inner.group_reports, report).await
    }

    pub(crate) async fn process_groups(
        &self,
        namespace: &str,
        agents: Vec<AgentId>,
    ) -> Result<HashMap<AgentId, Vec<ProcessGroup>>, StoreError> {
        const DOING: &str = "reading process groups";
        let sql = "SELECT agent, groups_json FROM process_groups WHERE agent = ANY(?) AND namespace = ?";
        let rows = self.rows(DOING, sql, &[ids(&agents).into(), Value::Text(plain(namespace))]).await?;
        let found = self.converted(DOING, &rows, |row| {
            Ok((agent(row, 0)?, from_json("process groups", row.try_get(1)?)?))
        })?;
        Ok(found.into_iter().collect())
    }
}

/// A report of one agent.
#[derive(Debug)]
pub(super) struct AgentGroups {
    agent: AgentId,
    epoch: Epoch,
    groups: Vec<GroupsRecord>,
    others: Others,
}

/// The agent's stored namespaces that are not in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Stay,
    Go,
}

impl AgentGroups {
    fn new(agent: &AgentId, epoch: Epoch, groups: Vec<GroupsRecord>, others: Others) -> AgentGroups {
        AgentGroups { agent: agent.clone(), epoch, groups: plain_namespaces(groups), others }
    }

    /// Stores it. The session is locked.
    async fn store(&self, tx: &Transaction<'_>) -> Result<usize, PgFault> {
        let agent = self.agent.as_str();
        match self.others {
            Others::Stay => {
                let stored =
                    tx.prepare_cached("SELECT namespace FROM process_groups WHERE agent = $1").await?;
                let rows = tx.query(&stored, &[&agent]).await?;
                let known = rows.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<&str>, _>>()?;
                let report = GroupsReport::new(&self.groups, known);
                let sql = "DELETE FROM process_groups WHERE agent = $1 AND namespace = ANY($2)";
                let delete = tx.prepare_cached(sql).await?;
                tx.execute(&delete, &[&agent, &Vec::from_iter(&report.cleared)]).await?;
                upsert(tx, &self.agent, &report, "excluded.revision > process_groups.revision").await?;
                Ok(report.left_out)
            }
            Others::Go => {
                let report = GroupsReport::new(&self.groups, HashSet::new());
                let sql = "DELETE FROM process_groups WHERE agent = $1 AND namespace <> ALL($2)";
                let delete = tx.prepare_cached(sql).await?;
                tx.execute(&delete, &[&agent, &Vec::from_iter(report.set.keys())]).await?;
                let changed = "(excluded.revision, excluded.groups_json) \
                               IS DISTINCT FROM (process_groups.revision, process_groups.groups_json)";
                upsert(tx, &self.agent, &report, changed).await?;
                Ok(report.left_out)
            }
        }
    }
}

impl GroupChange for AgentGroups {
    type Answer = usize;
    const DOING: &'static str = "storing an agent's process groups";

    fn agent(&self) -> &AgentId {
        &self.agent
    }

    fn bytes(&self) -> usize {
        const GROUP: usize = 200;
        self.groups.iter().map(|record| (record.groups.len() + 1) * GROUP).sum()
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
    group: &ChangeGroup<AgentGroups>,
) -> Result<Vec<ChangeReply<AgentGroups>>, PgFault> {
    let sessions = group.changes.iter().map(|report| (&report.agent, report.epoch)).collect();
    let locked = lock_sessions(tx, sessions, group.locks).await?;
    let mut replies = Vec::with_capacity(locked.len());
    // Most agents report at each connect that they have no groups. Their rows are deleted together.
    let mut without: Vec<&str> = Vec::new();
    for (report, lock) in group.changes.iter().zip(locked) {
        replies.push(match lock {
            SessionLock::Held if report.others == Others::Go && report.groups.is_empty() => {
                without.push(report.agent.as_str());
                ChangeReply::Answer(Ok(0))
            }
            SessionLock::Held => ChangeReply::Answer(Ok(report.store(tx).await?)),
            SessionLock::Refused(error) => ChangeReply::Answer(Err(error)),
            SessionLock::Skipped => ChangeReply::Alone,
        });
    }
    if !without.is_empty() {
        let delete = tx.prepare_cached("DELETE FROM process_groups WHERE agent = ANY($1)").await?;
        tx.execute(&delete, &[&without]).await?;
    }
    Ok(replies)
}

/// What is left to do after all records of a report, taken in order. `cleared` comes before `set`.
#[derive(Default)]
struct GroupsReport<'a> {
    cleared: BTreeSet<&'a str>,
    set: BTreeMap<&'a str, &'a GroupsRecord>,
    /// Number of namespaces for which the agent has no room left.
    left_out: usize,
}

impl<'a> GroupsReport<'a> {
    /// `known`: the namespaces that are stored.
    fn new(groups: &'a [GroupsRecord], mut known: HashSet<&'a str>) -> GroupsReport<'a> {
        let mut report = GroupsReport::default();
        let mut count = known.len();
        for record in groups {
            let namespace = record.namespace.as_str();
            if record.groups.is_empty() {
                known.remove(namespace);
                report.set.remove(namespace);
                report.cleared.insert(namespace);
                continue;
            }
            if !known.contains(namespace) {
                if count >= limits::GROUP_NAMESPACES {
                    report.left_out += 1;
                    continue;
                }
                count += 1;
                known.insert(namespace);
            }
            let newest = report.set.entry(namespace).or_insert(record);
            if record.revision > newest.revision {
                *newest = record;
            }
        }
        report
    }
}

fn plain_namespaces(groups: Vec<GroupsRecord>) -> Vec<GroupsRecord> {
    groups.into_iter().map(|record| GroupsRecord { namespace: plain(&record.namespace), ..record }).collect()
}

/// `condition`: when a stored row is overwritten.
async fn upsert(
    tx: &Transaction<'_>,
    agent: &AgentId,
    report: &GroupsReport<'_>,
    condition: &str,
) -> Result<(), PgFault> {
    if report.set.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "INSERT INTO process_groups (agent, namespace, revision, groups_json) \
         SELECT $1, namespace, revision, groups_json \
         FROM unnest($2::text[], $3::bigint[], $4::text[]) AS reported (namespace, revision, groups_json) \
         ON CONFLICT (agent, namespace) DO UPDATE \
         SET revision = excluded.revision, groups_json = excluded.groups_json WHERE {condition}"
    );
    let statement = tx.prepare_cached(&sql).await?;
    let namespaces = Vec::from_iter(report.set.keys());
    let revisions: Vec<i64> = report.set.values().map(|record| integer(record.revision)).collect();
    let texts = report
        .set
        .values()
        .map(|record| to_json("process groups", &record.groups))
        .collect::<Result<Vec<String>, _>>()?;
    tx.execute(&statement, &[&agent.as_str(), &namespaces, &revisions, &texts]).await?;
    Ok(())
}
