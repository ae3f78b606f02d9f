//! The process groups of each namespace, as the agents report them.

use super::PgStore;
use super::columns::{agent, from_json, integer, plain, to_json};
use super::conditions::Value;
use super::fault::PgFault;
use super::procs::lock_session;
use crate::limits;
use crate::{GroupsRecord, StoreError};
use deadpool_postgres::Transaction;
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
        let arguments = (agent.clone(), epoch, plain_namespaces(groups));
        self.write("storing changed process groups", arguments, |tx, (agent, epoch, groups)| {
            Box::pin(async move {
                lock_session(tx, agent, *epoch).await?;
                let stored =
                    tx.prepare_cached("SELECT namespace FROM process_groups WHERE agent = $1").await?;
                let rows = tx.query(&stored, &[&agent.as_str()]).await?;
                let known = rows.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<&str>, _>>()?;
                let report = GroupsReport::new(groups, known);
                let sql = "DELETE FROM process_groups WHERE agent = $1 AND namespace = ANY($2)";
                let delete = tx.prepare_cached(sql).await?;
                tx.execute(&delete, &[&agent.as_str(), &Vec::from_iter(&report.cleared)]).await?;
                upsert(tx, agent, &report, "excluded.revision > process_groups.revision").await?;
                Ok(report.left_out)
            })
        })
        .await
    }

    pub(crate) async fn replace_process_groups(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        groups: Vec<GroupsRecord>,
    ) -> Result<usize, StoreError> {
        let arguments = (agent.clone(), epoch, plain_namespaces(groups));
        self.write("storing an agent's process groups", arguments, |tx, (agent, epoch, groups)| {
            Box::pin(async move {
                lock_session(tx, agent, *epoch).await?;
                let report = GroupsReport::new(groups, HashSet::new());
                let sql = "DELETE FROM process_groups WHERE agent = $1 AND namespace <> ALL($2)";
                let delete = tx.prepare_cached(sql).await?;
                tx.execute(&delete, &[&agent.as_str(), &Vec::from_iter(report.set.keys())]).await?;
                let changed = "(excluded.revision, excluded.groups_json) \
                               IS DISTINCT FROM (process_groups.revision, process_groups.groups_json)";
                upsert(tx, agent, &report, changed).await?;
                Ok(report.left_out)
            })
        })
        .await
    }

    pub(crate) async fn process_groups(
        &self,
        namespace: &str,
    ) -> Result<HashMap<AgentId, Vec<ProcessGroup>>, StoreError> {
        const DOING: &str = "reading process groups";
        let sql = "SELECT agent, groups_json FROM process_groups WHERE namespace = ?";
        let rows = self.rows(DOING, sql, &[Value::Text(plain(namespace))]).await?;
        let found = self.converted(DOING, &rows, |row| {
            Ok((agent(row, 0)?, from_json("process groups", row.try_get(1)?)?))
        })?;
        Ok(found.into_iter().collect())
    }
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
