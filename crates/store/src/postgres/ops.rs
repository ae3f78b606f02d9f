//! Ops: read while they are open, and ended once, with their task's counts always in step.

use super::PgStore;
use super::columns::{
    agent_if_any, from_json, integer, mark_if_any, natural, plain, small, target, to_json, unreadable,
};
use super::fault::PgFault;
use crate::clock::ClockReading;
use crate::{Applied, Finished, OpenOpRow, RequestHead, StoreError};
use deadpool_postgres::Transaction;
use procfleet_core::{AgentId, Code, OpId, TaskId};
use std::collections::{HashMap, HashSet};
use tokio_postgres::Row;

impl PgStore {
    pub(crate) async fn open_tasks(&self) -> Result<Vec<TaskId>, StoreError> {
        const DOING: &str = "reading the open tasks";
        let rows = self.rows(DOING, OPEN_TASKS, &[]).await?;
        self.converted(DOING, &rows, task_id)
    }

    pub(crate) async fn open_ops(&self) -> Result<Vec<OpenOpRow>, StoreError> {
        self.read("reading the open ops", (), |tx, ()| {
            Box::pin(async move {
                let rows = tx.query(OPEN_TASKS, &[]).await?;
                let ids = rows.iter().map(task_id).collect::<Result<Vec<_>, _>>()?;
                read_open(tx, &ids).await
            })
        })
        .await
    }

    pub(crate) async fn task_ops(&self, id: TaskId) -> Result<Vec<OpenOpRow>, StoreError> {
        self.tasks_ops(vec![id]).await
    }

    pub(crate) async fn tasks_ops(&self, ids: Vec<TaskId>) -> Result<Vec<OpenOpRow>, StoreError> {
        self.read("reading the open ops of tasks", ids, |tx, ids| Box::pin(read_open(tx, ids))).await
    }

    pub(crate) async fn finish_ops(&self, finished: Vec<Finished>) -> Result<Vec<Applied>, StoreError> {
        const DOING: &str = "ending ops";
        if finished.is_empty() {
            return Ok(Vec::new());
        }
        let batch = Batch::new(finished).map_err(|fault| fault.during(DOING))?;
        self.write(DOING, batch, |tx, batch| Box::pin(batch.apply(tx))).await
    }
}

const OPEN_TASKS: &str = "SELECT number, stamp FROM tasks WHERE is_open ORDER BY number";

fn task_id(row: &Row) -> Result<TaskId, PgFault> {
    Ok(TaskId { number: natural(row.try_get(0)?), stamp: natural(row.try_get(1)?) })
}

/// The tasks in the order of `ids`, the ops of each by their index.
async fn read_open(tx: &Transaction<'_>, ids: &[TaskId]) -> Result<Vec<OpenOpRow>, PgFault> {
    let numbers: Vec<i64> = ids.iter().map(|id| integer(id.number)).collect();
    let sql = "SELECT number, stamp, created_at, requests_json, cancelled_at IS NOT NULL, boot, boot_ms FROM tasks \
               WHERE number = ANY($1)";
    let statement = tx.prepare_cached(sql).await?;
    let mut tasks = HashMap::with_capacity(ids.len());
    for row in tx.query(&statement, &[&numbers]).await? {
        let id = TaskId { number: natural(row.try_get(0)?), stamp: natural(row.try_get(1)?) };
        let accepted = ClockReading { wall: row.try_get(2)?, mark: mark_if_any(&row, 5)? };
        let requests: Vec<RequestHead> = from_json("a task's requests", row.try_get(3)?)?;
        let cancelled: bool = row.try_get(4)?;
        tasks.insert(id, (accepted, requests, cancelled));
    }
    let sql = "SELECT ops.task, ops.idx, request, cloud_id, ip, supplier_id, agent_named, agent, start_by, deadline \
               FROM ops LEFT JOIN outcomes ON outcomes.task = ops.task AND outcomes.idx = ops.idx \
               WHERE ops.task = ANY($1) AND code IS NULL ORDER BY array_position($1, ops.task), ops.idx";
    let statement = tx.prepare_cached(sql).await?;
    let known: HashMap<u64, TaskId> = ids.iter().map(|id| (id.number, *id)).collect();
    let mut found = Vec::new();
    for row in tx.query(&statement, &[&numbers]).await? {
        let Some(id) = known.get(&natural(row.try_get(0)?)) else { continue };
        // A number with another stamp is another store's.
        let Some((accepted, requests, cancelled)) = tasks.get(id) else { continue };
        let index = small("a request's index", row.try_get(2)?)?;
        let request = usize::try_from(index).ok().and_then(|index| requests.get(index));
        let request =
            request.ok_or_else(|| unreadable("an op", &format_args!("it has no request {index}")))?;
        found.push(OpenOpRow {
            op: OpId { task: *id, index: small("an op's index", row.try_get(1)?)? },
            kind: request.kind,
            proc: request.proc.clone(),
            spec: request.spec.clone(),
            accounts: request.accounts.clone(),
            target: target(&row, 3)?,
            agent: agent_if_any(&row, 7)?,
            accepted: *accepted,
            start_by: row.try_get(8)?,
            deadline: row.try_get(9)?,
            cancelled: *cancelled,
        });
    }
    Ok(found)
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
}

const INPUT: &str = "unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bigint[]) \
                     WITH ORDINALITY AS i (task, stamp, idx, agent, code, message, content, at, ordinal)";

impl Batch {
    fn new(finished: Vec<Finished>) -> Result<Batch, PgFault> {
        let mut batch = Batch::default();
        for Finished { op, agent, outcome, at } in finished {
            batch.task.push(integer(op.task.number));
            batch.stamp.push(integer(op.task.stamp));
            batch.index.push(i64::from(op.index));
            batch.agent.push(agent.as_ref().map(AgentId::to_string));
            batch.code.push(i64::from(outcome.code.number()));
            batch.message.push(plain(&outcome.message));
            batch.content.push(to_json("an outcome's content", &outcome.content)?);
            batch.at.push(at);
        }
        Ok(batch)
    }

    async fn apply(&self, tx: &Transaction<'_>) -> Result<Vec<Applied>, PgFault> {
        let new = self.insert(tx).await?;
        if new.len() == self.task.len() {
            return Ok(vec![Applied::Now; new.len()]);
        }
        let late = self.keep_late(tx).await?;
        let mut applied = self.why_not(tx).await?;
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
    /// counts are locked in order first, so that batches of several servers never deadlock.
    async fn insert(&self, tx: &Transaction<'_>) -> Result<HashSet<i64>, PgFault> {
        let sql = format!(
            "WITH input AS MATERIALIZED (SELECT * FROM {INPUT}), \
             locked AS MATERIALIZED (SELECT number FROM task_counts WHERE number IN (SELECT task FROM input) \
                ORDER BY number FOR UPDATE), \
             valid AS MATERIALIZED (SELECT DISTINCT ON (i.task, i.idx) i.task, i.idx, i.code, i.message, i.content, i.at, i.ordinal \
                FROM input AS i JOIN locked ON locked.number = i.task \
                JOIN tasks ON tasks.number = i.task AND tasks.stamp = i.stamp \
                JOIN ops ON ops.task = i.task AND ops.idx = i.idx \
                WHERE i.agent IS NULL OR ops.agent = i.agent ORDER BY i.task, i.idx, i.ordinal), \
             new AS (INSERT INTO outcomes (task, idx, code, message, content, ended_at) \
                SELECT task, idx, code, message, content, at FROM valid ON CONFLICT DO NOTHING RETURNING task, idx, code), \
             counted AS (UPDATE task_counts SET open = open - ended, succeeded = succeeded + well, failed = failed + ended - well \
                FROM (SELECT task, count(*) AS ended, count(*) FILTER (WHERE code = $9) AS well FROM new GROUP BY task) AS sums \
                WHERE number = task RETURNING number, open), \
             closed AS (UPDATE tasks SET is_open = false FROM counted WHERE tasks.number = counted.number AND counted.open = 0) \
             SELECT ordinal FROM valid JOIN new USING (task, idx)"
        );
        let statement = tx.prepare_cached(&sql).await?;
        let success = i64::from(Code::Success.number());
        let Batch { task, stamp, index, agent, code, message, content, at } = self;
        let rows =
            tx.query(&statement, &[task, stamp, index, agent, code, message, content, at, &success]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Keeps what agents say of ops that ended otherwise. Returns the ordinals of those that were kept; the
    /// others say what is known, for the second time.
    async fn keep_late(&self, tx: &Transaction<'_>) -> Result<HashSet<i64>, PgFault> {
        let sql = format!(
            "WITH late AS MATERIALIZED (SELECT DISTINCT ON (i.task, i.idx) i.task, i.idx, i.code, i.message, i.at, i.ordinal \
                FROM {INPUT} JOIN tasks ON tasks.number = i.task AND tasks.stamp = i.stamp \
                JOIN ops ON ops.task = i.task AND ops.idx = i.idx AND ops.agent = i.agent \
                JOIN outcomes AS o ON o.task = i.task AND o.idx = i.idx \
                WHERE i.content IS NOT NULL AND (o.code != i.code OR o.message != i.message) \
                ORDER BY i.task, i.idx, i.ordinal), \
             kept AS (INSERT INTO late_reports (task, idx, code, message, at) SELECT task, idx, code, message, at FROM late \
                ON CONFLICT DO NOTHING RETURNING task, idx) \
             SELECT ordinal FROM late JOIN kept USING (task, idx)"
        );
        let statement = tx.prepare_cached(&sql).await?;
        let Batch { task, stamp, index, agent, code, message, content, at } = self;
        let rows = tx.query(&statement, &[task, stamp, index, agent, code, message, content, at]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Why ops could not be ended. Whose they are comes first: another agent learns nothing about them.
    async fn why_not(&self, tx: &Transaction<'_>) -> Result<Vec<Applied>, PgFault> {
        let sql = "SELECT i.agent IS NULL OR ops.agent IS NOT DISTINCT FROM i.agent, ops.task IS NOT NULL \
                   FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) \
                   WITH ORDINALITY AS i (task, stamp, idx, agent, ordinal) \
                   LEFT JOIN tasks ON tasks.number = i.task AND tasks.stamp = i.stamp \
                   LEFT JOIN ops ON ops.task = tasks.number AND ops.idx = i.idx ORDER BY i.ordinal";
        let statement = tx.prepare_cached(sql).await?;
        let Batch { task, stamp, index, agent, .. } = self;
        let rows = tx.query(&statement, &[task, stamp, index, agent]).await?;
        let applied = |row: &Row| -> Result<Applied, PgFault> {
            Ok(match (row.try_get(1)?, row.try_get(0)?) {
                (false, _) => Applied::Unknown,
                (true, false) => Applied::NotYours,
                (true, true) => Applied::Already,
            })
        };
        rows.iter().map(applied).collect()
    }
}
