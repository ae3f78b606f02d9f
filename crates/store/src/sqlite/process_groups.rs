//! The process groups of each namespace, as the agents report them.

use super::agents::require_session;
use super::columns::{from_json, integer, natural, to_json};
use super::{QueryFault, SqliteStore};
use crate::limits;
use crate::{GroupsRecord, StoreError};
use procfleet_core::spec::ProcessGroup;
use procfleet_core::{AgentId, Epoch};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;

impl SqliteStore {
    pub(crate) async fn put_process_groups(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        groups: Vec<GroupsRecord>,
    ) -> Result<usize, StoreError> {
        let agent = agent.clone();
        self.write("storing changed process groups", move |db| {
            require_session(db, &agent, epoch)?;
            upsert(db, &agent, &groups)
        })
        .await
    }

    pub(crate) async fn replace_process_groups(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        groups: Vec<GroupsRecord>,
    ) -> Result<usize, StoreError> {
        let agent = agent.clone();
        self.write("storing an agent's process groups", move |db| {
            require_session(db, &agent, epoch)?;
            db.prepare_cached("DELETE FROM process_groups WHERE agent = ?")?.execute([agent.as_str()])?;
            upsert(db, &agent, &groups)
        })
        .await
    }

    pub(crate) async fn process_groups(
        &self,
        namespace: &str,
        agents: Vec<AgentId>,
    ) -> Result<HashMap<AgentId, Vec<ProcessGroup>>, StoreError> {
        let namespace = namespace.to_owned();
        self.read("reading process groups", move |db| {
            let sql = "SELECT groups_json FROM process_groups WHERE agent = ? AND namespace = ?";
            let mut statement = db.prepare_cached(sql)?;
            let mut found = HashMap::new();
            for agent in agents {
                let asked = [agent.as_str(), &namespace];
                let text: Option<String> = statement.query_row(asked, |row| row.get(0)).optional()?;
                if let Some(text) = text {
                    found.insert(agent, from_json("process groups", &text)?);
                }
            }
            Ok(found)
        })
        .await
    }
}

fn upsert(db: &Connection, agent: &AgentId, groups: &[GroupsRecord]) -> Result<usize, QueryFault> {
    let sql = "INSERT INTO process_groups (agent, namespace, revision, groups_json) VALUES (?, ?, ?, ?) \
               ON CONFLICT (agent, namespace) DO UPDATE \
               SET revision = excluded.revision, groups_json = excluded.groups_json \
               WHERE excluded.revision > revision";
    let mut set = db.prepare_cached(sql)?;
    let mut clear = db.prepare_cached("DELETE FROM process_groups WHERE agent = ? AND namespace = ?")?;
    let mut known = db.prepare_cached("SELECT 1 FROM process_groups WHERE agent = ? AND namespace = ?")?;
    let sql = "SELECT count(*) FROM process_groups WHERE agent = ?";
    let stored = db.prepare_cached(sql)?.query_row([agent.as_str()], |row| row.get(0))?;
    let (mut count, mut left_out) = (natural(stored), 0);
    for GroupsRecord { namespace, revision, groups } in groups {
        if !groups.is_empty() && !known.exists([agent.as_str(), namespace])? {
            if count >= limits::GROUP_NAMESPACES as u64 {
                left_out += 1;
                continue;
            }
            count += 1;
        }
        match groups.is_empty() {
            true => clear.execute([agent.as_str(), namespace])?,
            false => {
                let text = to_json("process groups", groups)?;
                set.execute(params![agent.as_str(), namespace, integer(*revision), text])?
            }
        };
    }
    Ok(left_out)
}
