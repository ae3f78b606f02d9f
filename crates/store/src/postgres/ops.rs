//! Ops: read while they are open, and ended once, with their task's counts always in step.

use super::columns::{
    agent_if_any, from_json, integer, mark_if_any, natural, plain, small, target, to_json, unreadable,
};
use super::fault::PgFault;
use super::{PgStore, agents};
use crate::clock::ClockReading;
use crate::{
    Applied, Dismissal, EndedBy, Finished, Lease, OpScope, OpenOpRow, OpenTask, RequestHead, SentBefore,
    ServerId, StoreError,
};
use deadpool_postgres::Transaction;
use procfleet_core::{AgentId, Code, Epoch, OpId, TaskId};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

impl PgStore {
    pub(crate) async fn open_tasks(&self) -> Result<Vec<OpenTask>, StoreError> {
        const DOING: &str = "reading the open tasks";
        let sql = "SELECT number, stamp, open, cancelled_at IS NOT NULL FROM tasks JOIN task_counts USING (number) \
                   WHERE is_open ORDER BY number";
        let rows = self.rows(DOING, sql, &[]).await?;
        self.converted(DOING, &rows, |row| {
            Ok(OpenTask { id: task_id(row)?, open: natural(row.try_get(2)?), cancelled: row.try_get(3)? })
        })
    }

    pub(crate) async fn open_ops(&self, scope: OpScope) -> Result<Vec<OpenOpRow>, StoreError> {
        // Only the holder of the lease `unheld` reads the ops of agents without a living server.
        let reader = OpReader { run: self.membership().run(), unheld: self.membership().has(Lease::Unheld) };
        self.read("reading open ops", (scope, reader), |tx, (scope, reader)| {
            Box::pin(async move {
                match scope {
                    OpScope::Tasks(ids) => reader.read(tx, ids, None).await,
                    OpScope::Agents(agents) => {
                        let ids = open_task_ids(tx).await?;
                        reader.read(tx, &ids, Some(agents)).await
                    }
                    OpScope::All => {
                        let ids = open_task_ids(tx).await?;
                        reader.read(tx, &ids, None).await
                    }
                }
            })
        })
        .await
    }

    pub(crate) async fn finish_ops(&self, finished: Vec<Finished>) -> Result<Vec<Applied>, StoreError> {
        const DOING: &str = "ending ops";
        if finished.is_empty() {
            return Ok(Vec::new());
        }
        let run = self.membership().run();
        let batch = Batch::new(finished).map_err(|fault| fault.during(DOING))?;
        self.write(DOING, (batch, run), |tx, (batch, run)| Box::pin(batch.apply_fenced(tx, *run))).await
    }
}

fn task_id(row: &Row) -> Result<TaskId, PgFault> {
    Ok(TaskId { number: natural(row.try_get(0)?), stamp: natural(row.try_get(1)?) })
}

async fn open_task_ids(tx: &Transaction<'_>) -> Result<Vec<TaskId>, PgFault> {
    let rows = tx.query("SELECT number, stamp FROM tasks WHERE is_open ORDER BY number", &[]).await?;
    rows.iter().map(task_id).collect()
}

/// A server that reads the ops which it has to decide about.
struct OpReader {
    run: ServerId,
    unheld: bool,
}

impl OpReader {
    /// The tasks in the order of `ids`, the ops of each by their index; of these agents only, if there are
    /// any.
    async fn read(
        &self,
        tx: &Transaction<'_>,
        ids: &[TaskId],
        agents: Option<&Vec<AgentId>>,
    ) -> Result<Vec<OpenOpRow>, PgFault> {
        let numbers: Vec<i64> = ids.iter().map(|id| integer(id.number)).collect();
        // An op of an earlier generation may have been sent in the time that was lost.
        let sql = "SELECT number, stamp, created_at, requests_json, cancelled_at IS NOT NULL, boot, boot_ms, \
               created_at > (SELECT coalesce(max(began_at), -1) FROM generations) FROM tasks WHERE number = ANY($1)";
        let statement = tx.prepare_cached(sql).await?;
        let mut tasks = HashMap::with_capacity(ids.len());
        for row in tx.query(&statement, &[&numbers]).await? {
            let id = TaskId { number: natural(row.try_get(0)?), stamp: natural(row.try_get(1)?) };
            let accepted = ClockReading { wall: row.try_get(2)?, mark: mark_if_any(&row, 5)? };
            let requests: Vec<Arc<RequestHead>> = from_json("a task's requests", row.try_get(3)?)?;
            let (cancelled, is_of_generation): (bool, bool) = (row.try_get(4)?, row.try_get(7)?);
            tasks.insert(id, (accepted, requests, cancelled, is_of_generation));
        }
        // An op was not sent before if no session can have sent it: the agent had none when the op was
        // accepted, or the session of that time is this server's own, which knows what it has sent. OFFSET 0
        // lets the planner begin with the ops: there are more sessions of this server than open ops.
        let sql = format!(
            "SELECT ops.task, ops.idx, request, ops.cloud_id, ops.ip, supplier_id, agent_named, agent, start_by, deadline, \
               s.epoch, coalesce((ops.epoch = s.epoch AND (NOT ops.connected OR s.holder = $2)) \
                  OR (ops.epoch + 1 = s.epoch AND NOT ops.connected AND s.holder = $2), false), \
               retired_at IS NOT NULL, revoked_at IS NOT NULL, revoked_why, s.holder \
               FROM ops LEFT JOIN LATERAL (SELECT epoch, holder FROM sessions WHERE agent_id = ops.agent OFFSET 0) AS s ON true \
               LEFT JOIN agents ON agents.agent_id = ops.agent \
               WHERE ops.task = ANY($1) AND NOT EXISTS (SELECT 1 FROM outcomes \
                  WHERE outcomes.task = ops.task AND outcomes.idx = ops.idx OFFSET 0) {} AND (s.holder = $2 OR ($3 AND (s.holder IS NULL \
                  OR NOT EXISTS (SELECT 1 FROM servers WHERE id = s.holder AND state = 'up')))) \
               ORDER BY array_position($1, ops.task), ops.idx",
            if agents.is_some() { "AND ops.agent = ANY($4)" } else { "" }
        );
        let statement = tx.prepare_cached(&sql).await?;
        let names = agents.map(|agents| agents::ids(agents));
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&numbers, &self.run.0, &self.unheld];
        if let Some(names) = &names {
            values.push(names);
        }
        let known: HashMap<u64, TaskId> = ids.iter().map(|id| (id.number, *id)).collect();
        let mut found = Vec::new();
        for row in tx.query(&statement, &values).await? {
            let Some(id) = known.get(&natural(row.try_get(0)?)) else { continue };
            // A number with another stamp is another store's.
            let Some((accepted, requests, cancelled, is_of_generation)) = tasks.get(id) else { continue };
            let index = small("a request's index", row.try_get(2)?)?;
            let request = usize::try_from(index).ok().and_then(|index| requests.get(index));
            let request =
                request.ok_or_else(|| unreadable("an op", &format_args!("it has no request {index}")))?;
            found.push(OpenOpRow {
                op: OpId { task: *id, index: small("an op's index", row.try_get(1)?)? },
                request: request.clone(),
                target: target(&row, 3)?,
                agent: agent_if_any(&row, 7)?,
                accepted: *accepted,
                start_by: row.try_get(8)?,
                deadline: row.try_get(9)?,
                cancelled: *cancelled,
                sent: match *is_of_generation && row.try_get(11)? {
                    true => SentBefore::No,
                    false => SentBefore::Maybe,
                },
                epoch: row.try_get::<_, Option<i64>>(10)?.map(|epoch| Epoch(natural(epoch))),
                holder: row.try_get::<_, Option<i64>>(15)?.map(ServerId),
                dismissal: dismissal(&row, 12)?,
            });
        }
        Ok(found)
    }
}

/// Reads three columns: retired, revoked, why. A forgotten agent is revoked and retired, and no other agent
/// has joined for its host.
fn dismissal(row: &Row, column: usize) -> Result<Option<Dismissal>, PgFault> {
    Ok(match (row.try_get(column)?, row.try_get(column + 1)?) {
        (_, true) => Some(Dismissal::Revoked(row.try_get(column + 2)?)),
        (true, false) => Some(Dismissal::Retired),
        (false, false) => None,
    })
}

/// Many outcomes as columns, for `unnest`.
#[derive(Default)]
struct Batch {
    task: Vec<i64>,
    stamp: Vec<i64>,
    index: Vec<i64>,
    agent: Vec<Option<String>>,
    code: Vec<i64>,
    message: Vec<String>,
    content: Vec<String>,
    at: Vec<i64>,
    /// For decisions of a server: the agent and the session that it has decided about.
    fence: Vec<Option<(String, i64)>>,
}

const INPUT: &str = "unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bigint[]) \
                     WITH ORDINALITY AS i (task, stamp, idx, agent, code, message, content, at, ordinal)";

/// The task, the op and the outcome of each row of [`INPUT`]. OFFSET 0 makes each a lookup by the whole key:
/// the planner expects few ops of a task, and would read all of them for each row.
const ITS_TASK: &str =
    "CROSS JOIN LATERAL (SELECT stamp FROM tasks WHERE number = i.task OFFSET 0) AS its_task";
const ITS_OP: &str =
    "CROSS JOIN LATERAL (SELECT agent FROM ops WHERE task = i.task AND idx = i.idx OFFSET 0) AS its_op";
const ITS_OUTCOME: &str = "CROSS JOIN LATERAL (SELECT code, message FROM outcomes WHERE task = i.task AND idx = i.idx OFFSET 0) \
                           AS its_outcome";

impl Batch {
    fn new(finished: Vec<Finished>) -> Result<Batch, PgFault> {
        let mut batch = Batch::default();
        for Finished { op, by, outcome, at } in finished {
            batch.task.push(integer(op.task.number));
            batch.stamp.push(integer(op.task.stamp));
            batch.index.push(i64::from(op.index));
            let (agent, fence) = match by {
                EndedBy::Agent(agent) => (Some(agent.to_string()), None),
                EndedBy::Server(None) => (None, None),
                EndedBy::Server(Some((agent, epoch))) => (None, Some((agent.to_string(), integer(epoch.0)))),
            };
            batch.agent.push(agent);
            batch.fence.push(fence);
            batch.code.push(i64::from(outcome.code.number()));
            batch.message.push(plain(&outcome.message));
            batch.content.push(to_json("an outcome's content", &outcome.content)?);
            batch.at.push(at);
        }
        Ok(batch)
    }

    /// Applies all but the decisions of this server that came too late: the agent has begun another session,
    /// or its session is another living server's.
    async fn apply_fenced(&self, tx: &Transaction<'_>, run: ServerId) -> Result<Vec<Applied>, PgFault> {
        let late = self.superseded(tx, run).await?;
        if late.is_empty() {
            return self.apply(tx).await;
        }
        let mut applied = self.without(&late).apply(tx).await?.into_iter();
        let all = (0..self.task.len()).map(|index| match late.contains(&index) {
            true => Applied::Superseded,
            false => applied.next().unwrap_or(Applied::Unknown),
        });
        Ok(all.collect())
    }

    /// Locks the sessions that were decided about, in order. A connect of such an agent waits until this unit
    /// has ended, and then sees its outcomes; a plain read of the epoch would not exclude that both happen.
    async fn superseded(&self, tx: &Transaction<'_>, run: ServerId) -> Result<HashSet<usize>, PgFault> {
        let agents: BTreeSet<&str> = self.fence.iter().flatten().map(|(agent, _)| agent.as_str()).collect();
        if agents.is_empty() {
            return Ok(HashSet::new());
        }
        let agents: Vec<&str> = agents.into_iter().collect();
        let sql = "SELECT agent_id, epoch, holder FROM sessions WHERE agent_id = ANY($1) ORDER BY agent_id FOR SHARE";
        let statement = tx.prepare_cached(sql).await?;
        let mut sessions = HashMap::new();
        for row in tx.query(&statement, &[&agents]).await? {
            let (agent, epoch, holder): (String, i64, i64) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            sessions.insert(agent, (epoch, holder));
        }
        // A server that is not up never is again, and the lease moves only when this server is not up.
        let rows = tx.query("SELECT id FROM servers WHERE state = 'up'", &[]).await?;
        let alive = rows.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<i64>, _>>()?;
        let sql = "SELECT 1 FROM leases WHERE name = 'unheld' AND server = $1";
        let has_unheld = tx.query_opt(sql, &[&run.0]).await?.is_some();
        let is_late = |fence: &(String, i64)| match sessions.get(&fence.0) {
            Some((epoch, holder)) => {
                let own = *holder == run.0 || (has_unheld && !alive.contains(holder));
                *epoch != fence.1 || !own
            }
            None => true,
        };
        let late = self.fence.iter().enumerate();
        Ok(late.filter(|(_, fence)| fence.as_ref().is_some_and(is_late)).map(|(index, _)| index).collect())
    }

    fn without(&self, left_out: &HashSet<usize>) -> Batch {
        let mut rest = Batch::default();
        for index in (0..self.task.len()).filter(|index| !left_out.contains(index)) {
            rest.task.push(self.task[index]);
            rest.stamp.push(self.stamp[index]);
            rest.index.push(self.index[index]);
            rest.agent.push(self.agent[index].clone());
            rest.code.push(self.code[index]);
            rest.message.push(self.message[index].clone());
            rest.content.push(self.content[index].clone());
            rest.at.push(self.at[index]);
        }
        rest
    }

    async fn apply(&self, tx: &Transaction<'_>) -> Result<Vec<Applied>, PgFault> {
        if self.task.is_empty() {
            return Ok(Vec::new());
        }
        let new = self.insert(tx).await?;
        if new.len() == self.task.len() {
            return Ok(vec![Applied::Now; new.len()]);
        }
        let late = self.keep_late(tx).await?;
        let mut applied = self.classify_unapplied(tx).await?;
        for (ordinal, applied) in (1_i64..).zip(&mut applied) {
            if new.contains(&ordinal) {
                *applied = Applied::Now;
            } else if *applied == Applied::Already && late.contains(&ordinal) {
                *applied = Applied::Late;
            }
        }
        Ok(applied)
    }

    /// Stores the first outcome of each op and counts it. Returns the ordinals of those that were stored. The
    /// counts are locked in order first, so that batches of several servers never deadlock. The ordinals are
    /// looked up by CASE and IN, which build a hash table; the planner, which expects one row, would compare
    /// each row of a join with each.
    async fn insert(&self, tx: &Transaction<'_>) -> Result<HashSet<i64>, PgFault> {
        let sql = format!(
            "WITH input AS MATERIALIZED (SELECT * FROM {INPUT}), \
             locked AS MATERIALIZED (SELECT number FROM task_counts WHERE number IN (SELECT task FROM input) \
                ORDER BY number FOR UPDATE), \
             valid AS MATERIALIZED (SELECT DISTINCT ON (i.task, i.idx) i.task, i.idx, i.code, i.message, i.content, i.at, i.ordinal \
                FROM input AS i {ITS_TASK} {ITS_OP} \
                WHERE CASE WHEN i.task IN (SELECT number FROM locked) THEN i.stamp = its_task.stamp END \
                AND (i.agent IS NULL OR its_op.agent = i.agent) ORDER BY i.task, i.idx, i.ordinal), \
             new AS (INSERT INTO outcomes (task, idx, code, message, content, ended_at) \
                SELECT task, idx, code, message, content, at FROM valid ON CONFLICT DO NOTHING RETURNING task, idx, code), \
             counted AS (UPDATE task_counts SET open = open - ended, succeeded = succeeded + well, failed = failed + ended - well \
                FROM (SELECT task, count(*) AS ended, count(*) FILTER (WHERE code = $9) AS well FROM new GROUP BY task) AS sums \
                WHERE number = task RETURNING number, open), \
             closed AS (UPDATE tasks SET is_open = false FROM counted WHERE tasks.number = counted.number AND counted.open = 0) \
             SELECT CASE WHEN (task, idx) IN (SELECT task, idx FROM new) THEN ordinal END FROM valid"
        );
        let statement = tx.prepare_cached(&sql).await?;
        let success = i64::from(Code::Success.number());
        let Batch { task, stamp, index, agent, code, message, content, at, .. } = self;
        let rows =
            tx.query(&statement, &[task, stamp, index, agent, code, message, content, at, &success]).await?;
        ordinals(&rows)
    }

    /// Stores the first report of each op that contradicts its stored outcome. Returns the ordinals of the
    /// stored reports; the other reports repeat the outcome.
    async fn keep_late(&self, tx: &Transaction<'_>) -> Result<HashSet<i64>, PgFault> {
        let sql = format!(
            "WITH late AS MATERIALIZED (SELECT DISTINCT ON (i.task, i.idx) i.task, i.idx, i.code, i.message, i.at, i.ordinal \
                FROM {INPUT} {ITS_TASK} {ITS_OP} {ITS_OUTCOME} \
                WHERE i.stamp = its_task.stamp AND i.agent = its_op.agent AND i.content IS NOT NULL \
                AND (its_outcome.code != i.code OR its_outcome.message != i.message) \
                ORDER BY i.task, i.idx, i.ordinal), \
             kept AS (INSERT INTO late_reports (task, idx, code, message, at) SELECT task, idx, code, message, at FROM late \
                ON CONFLICT DO NOTHING RETURNING task, idx) \
             SELECT CASE WHEN (task, idx) IN (SELECT task, idx FROM kept) THEN ordinal END FROM late"
        );
        let statement = tx.prepare_cached(&sql).await?;
        let Batch { task, stamp, index, agent, code, message, content, at, .. } = self;
        let rows = tx.query(&statement, &[task, stamp, index, agent, code, message, content, at]).await?;
        ordinals(&rows)
    }

    /// Classifies reports that stored no outcome. `NotYours` is decided first, so that an agent learns
    /// nothing about ops of other agents.
    async fn classify_unapplied(&self, tx: &Transaction<'_>) -> Result<Vec<Applied>, PgFault> {
        let sql = format!(
            "SELECT i.agent IS NULL OR its_op.agent IS NOT DISTINCT FROM i.agent, i.ordinal \
             FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) \
             WITH ORDINALITY AS i (task, stamp, idx, agent, ordinal) {ITS_TASK} {ITS_OP} WHERE i.stamp = its_task.stamp"
        );
        let statement = tx.prepare_cached(&sql).await?;
        let Batch { task, stamp, index, agent, .. } = self;
        let rows = tx.query(&statement, &[task, stamp, index, agent]).await?;
        let mut applied = vec![Applied::Unknown; task.len()];
        for row in &rows {
            let ordinal: i64 = row.try_get(1)?;
            let place = usize::try_from(ordinal - 1).ok().and_then(|index| applied.get_mut(index));
            let place = place.ok_or_else(|| unreadable("an ordinal", &ordinal))?;
            *place = if row.try_get(0)? { Applied::Already } else { Applied::NotYours };
        }
        Ok(applied)
    }
}

/// Reads one column; it is null for those that were not stored.
fn ordinals(rows: &[Row]) -> Result<HashSet<i64>, PgFault> {
    rows.iter().filter_map(|row| row.try_get(0).map_err(PgFault::from).transpose()).collect()
}
