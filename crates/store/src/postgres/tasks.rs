//! Tasks: created once together with their ops, and read back.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{
    agent_if_any, count, from_json, integer, natural, parsed, plain, small, target, to_json, unreadable,
};
use super::conditions::{Conditions, Value};
use super::fault::PgFault;
use super::partitions;
use crate::{
    LateReport, NewAudit, NewTask, OpRecord, StoreError, TaskCounts, TaskFilter, TaskListPage, TaskPage,
    TaskRecord,
};
use deadpool_postgres::Transaction;
use procfleet_core::request::Target;
use procfleet_core::select::Term;
use procfleet_core::{AgentId, Code, OpId, OpKind, Outcome, TaskId};
use procfleet_proto::http::query::{OpFilter, TaskProgress};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

const COLUMNS: &str = "number, stamp, created_at, app, username, summary, total, open, succeeded, failed, requests_json, \
                       cancelled_at, retry_of";

impl PgStore {
    pub(crate) async fn create_task(&self, task: NewTask) -> Result<TaskId, StoreError> {
        const DOING: &str = "creating a task";
        let requests = requests_json(&task).map_err(|fault| fault.during(DOING))?;
        let id = self.next_id(DOING, &task).await?;
        self.write_task(DOING, id, (id, task, requests), |tx, (id, task, requests)| {
            Box::pin(async move {
                insert(tx, *id, task, requests).await?;
                Ok(*id)
            })
        })
        .await
    }

    /// A new id of the day of the task. No other task ever gets it. It is taken before the unit, so that an
    /// error can name the task.
    pub(super) async fn next_id(&self, doing: &'static str, task: &NewTask) -> Result<TaskId, StoreError> {
        let rows = self.prepared_rows(doing, "SELECT nextval('task_sequence')", &[]).await?;
        let numbers = self.converted(doing, &rows, |row| Ok(row.try_get::<_, i64>(0)?))?;
        let number = partitions::base(task.created_at) + numbers[0];
        Ok(TaskId { stamp: task.stamp, number: natural(number) })
    }

    pub(crate) async fn task(&self, id: TaskId) -> Result<Option<TaskRecord>, StoreError> {
        const DOING: &str = "reading a task";
        let rows = self.rows(DOING, &task_sql(), &task_values(id)).await?;
        rows.first().map(with_requests).transpose().map_err(|fault| fault.during(DOING))
    }

    pub(crate) async fn cancel_task(&self, id: TaskId, at: i64, audit: NewAudit) -> Result<bool, StoreError> {
        self.write("cancelling a task", (id, at, audit), |tx, (id, at, audit)| {
            Box::pin(async move {
                let sql = "UPDATE tasks SET cancelled_at = $1 \
                           WHERE number = $2 AND stamp = $3 AND is_open AND cancelled_at IS NULL";
                let statement = tx.prepare_cached(sql).await?;
                let new = tx.execute(&statement, &[at, &integer(id.number), &integer(id.stamp)]).await? > 0;
                if new {
                    insert_audit(tx, audit).await?;
                }
                Ok(new)
            })
        })
        .await
    }

    pub(crate) async fn task_results(
        &self,
        id: TaskId,
    ) -> Result<Option<(TaskRecord, Vec<OpRecord>)>, StoreError> {
        self.read("reading a task's results", id, |tx, id| {
            Box::pin(async move {
                let Some(record) = task(tx, *id).await? else { return Ok(None) };
                let mut conditions = Conditions::default();
                conditions.equals("ops.task", Some(integer(id.number)));
                let mut ops = ops(tx, *id, conditions, i64::MAX).await?;
                add_late_reports(tx, *id, &mut ops).await?;
                Ok(Some((record, ops)))
            })
        })
        .await
    }

    pub(crate) async fn task_page(
        &self,
        id: TaskId,
        filter: OpFilter,
        select: Vec<Term>,
        after: Option<u32>,
        limit: u32,
    ) -> Result<Option<TaskPage>, StoreError> {
        const DOING: &str = "reading a page of a task's results";
        let arguments = (id, filter, select, after, limit);
        self.read(DOING, arguments, |tx, (id, filter, select, after, limit)| {
            let (id, filter, after, limit) = (*id, *filter, *after, *limit);
            Box::pin(async move {
                let Some(task) = task(tx, id).await? else { return Ok(None) };
                let mut conditions = op_conditions(&task, filter, select);
                let total = match filter {
                    OpFilter::All if select.is_empty() => task.counts.total,
                    OpFilter::Open if select.is_empty() => task.counts.open,
                    OpFilter::Ended if select.is_empty() => {
                        task.counts.total.saturating_sub(task.counts.open)
                    }
                    OpFilter::All | OpFilter::Open | OpFilter::Ended | OpFilter::Failed => {
                        let sql = format!("SELECT count(*) FROM {OPS} {}", conditions.filter());
                        let rows = PgStore::rows_in(tx, &sql, conditions.values()).await?;
                        count(&rows)?
                    }
                };
                if let Some(after) = after {
                    conditions.add("ops.idx > ?", [i64::from(after)]);
                }
                let mut ops = ops(tx, id, conditions, i64::from(limit) + 1).await?;
                let more = ops.len() > limit as usize;
                ops.truncate(limit as usize);
                add_late_reports(tx, id, &mut ops).await?;
                let next = ops.last().filter(|_| more).map(|op| op.op.index);
                Ok(Some(TaskPage { task, ops, next, total }))
            })
        })
        .await
    }

    pub(crate) async fn list_tasks(
        &self,
        filter: TaskFilter,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<TaskListPage, StoreError> {
        let arguments = (filter, after, limit);
        self.read("reading a list of tasks", arguments, |tx, (filter, after, limit)| {
            Box::pin(async move {
                let mut conditions = conditions(filter);
                let sql = format!("SELECT count(*) FROM {TASKS} {}", conditions.filter());
                let total = count(&PgStore::rows_in(tx, &sql, conditions.values()).await?)?;
                if let Some(after) = after {
                    conditions.add("number < ?", [integer(after.number)]);
                }
                let sql = format!(
                    "SELECT {COLUMNS} FROM {TASKS} {} ORDER BY number DESC LIMIT ?",
                    conditions.filter()
                );
                let values = conditions.into_values([Value::Int(i64::from(*limit) + 1)]);
                let rows = PgStore::rows_in(tx, &sql, &values).await?;
                let mut tasks =
                    rows.iter().map(|row| record(row, Vec::new())).collect::<Result<Vec<_>, _>>()?;
                let more = tasks.len() > *limit as usize;
                tasks.truncate(*limit as usize);
                let next = tasks.last().filter(|_| more).map(|task| task.id);
                Ok(TaskListPage { tasks, next, total })
            })
        })
        .await
    }
}

const TASKS: &str = "tasks JOIN task_counts USING (number)";
/// OFFSET 0 makes the outcome of each op a lookup by its whole key: the planner expects few outcomes of a
/// task, and would read all of them for each op.
const OPS: &str = "ops LEFT JOIN LATERAL (SELECT code, message, content, ended_at FROM outcomes \
                   WHERE outcomes.task = ops.task AND outcomes.idx = ops.idx OFFSET 0) AS its_outcome ON true";

/// The task, its ops and its audit record.
pub(super) async fn insert(
    tx: &Transaction<'_>,
    id: TaskId,
    task: &NewTask,
    requests: &str,
) -> Result<(), PgFault> {
    let number = integer(id.number);
    insert_task(tx, number, task, requests).await?;
    insert_ops(tx, number, task).await?;
    if let Some(mut entry) = task.audit.clone() {
        if entry.subject.is_empty() {
            entry.subject = id.to_string();
        }
        insert_audit(tx, &entry).await?;
    }
    Ok(())
}

pub(super) fn requests_json(task: &NewTask) -> Result<String, PgFault> {
    // An op without its request could never be carried out, nor read again.
    if let Some(op) =
        task.ops.iter().find(|op| usize::try_from(op.request).unwrap_or(usize::MAX) >= task.requests.len())
    {
        let reason = format!("request {} of {}", op.request, task.requests.len());
        return Err(PgFault::Unwritable { what: "an op", reason });
    }
    to_json("requests", &task.requests)
}

async fn insert_task(
    tx: &Transaction<'_>,
    number: i64,
    task: &NewTask,
    requests: &str,
) -> Result<(), PgFault> {
    let sql = "WITH task AS (INSERT INTO tasks (number, stamp, created_at, app, username, summary, requests_json, total, \
               retry_of, boot, boot_ms, is_open) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)) \
               INSERT INTO task_counts (number, open, succeeded, failed) VALUES ($1, $13, $14, $15)";
    let total = integer(task.ops.len() as u64);
    let (mut succeeded, mut failed) = (0_i64, 0_i64);
    for outcome in task.ops.iter().filter_map(|op| op.ended.as_ref()) {
        *if outcome.code == Code::Success { &mut succeeded } else { &mut failed } += 1;
    }
    let open = total - succeeded - failed;
    let statement = tx.prepare_cached(sql).await?;
    tx.execute(
        &statement,
        &[
            &number,
            &integer(task.stamp),
            &task.created_at,
            &plain(&task.app),
            &plain(&task.username),
            &plain(&task.summary),
            &requests,
            &total,
            &task.retry_of.map(|of| of.to_string()),
            &task.mark.map(|mark| mark.boot.0),
            &task.mark.map(|mark| integer(mark.moment.0)),
            &(open > 0),
            &open,
            &succeeded,
            &failed,
        ],
    )
    .await?;
    Ok(())
}

/// The columns of many ops, for `unnest`.
#[derive(Default)]
struct OpColumns {
    request: Vec<i64>,
    cloud: Vec<Option<i64>>,
    ip: Vec<Option<String>>,
    supplier: Vec<Option<i64>>,
    named: Vec<Option<String>>,
    agent: Vec<Option<String>>,
    start_by: Vec<i64>,
    deadline: Vec<i64>,
}

async fn insert_ops(tx: &Transaction<'_>, number: i64, task: &NewTask) -> Result<(), PgFault> {
    let mut columns = OpColumns::default();
    for op in &task.ops {
        let host = op.target.host();
        let (supplier, named) = match &op.target {
            Target::Host(_) => (None, None),
            Target::SupplierHost(_, supplier) => (Some(*supplier), None),
            Target::Agent(agent) => (None, Some(agent.to_string())),
            Target::Unusable(unusable) => (unusable.supplier, Some(plain(&unusable.name))),
        };
        columns.request.push(i64::from(op.request));
        columns.cloud.push(host.map(|host| i64::from(host.cloud.0)));
        columns.ip.push(host.map(|host| host.ip.to_string()));
        columns.supplier.push(supplier.map(i64::from));
        columns.named.push(named);
        columns.agent.push(op.agent.as_ref().map(AgentId::to_string));
        columns.start_by.push(op.start_by);
        columns.deadline.push(op.deadline);
    }
    let sql = "INSERT INTO ops (task, idx, request, cloud_id, ip, supplier_id, agent_named, agent, start_by, deadline, \
               epoch, connected) \
               SELECT $1, i.ordinal - 1, i.request, i.cloud, i.ip, i.supplier, i.named, i.agent, i.start_by, i.deadline, \
               s.epoch, s.connected \
               FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bigint[], $9::bigint[]) \
               WITH ORDINALITY AS i (request, cloud, ip, supplier, named, agent, start_by, deadline, ordinal) \
               LEFT JOIN sessions AS s ON s.agent_id = i.agent";
    let statement = tx.prepare_cached(sql).await?;
    let OpColumns { request, cloud, ip, supplier, named, agent, start_by, deadline } = &columns;
    tx.execute(&statement, &[&number, request, cloud, ip, supplier, named, agent, start_by, deadline])
        .await
        .map_err(|error| match error.code() {
            // PostgreSQL has no code of its own for a missing partition.
            Some(&SqlState::CHECK_VIOLATION) => PgFault::NoPartition(number),
            _ => PgFault::Sql(error),
        })?;
    insert_ended(tx, number, task).await
}

/// The outcomes of ops that were decided without their host.
async fn insert_ended(tx: &Transaction<'_>, number: i64, task: &NewTask) -> Result<(), PgFault> {
    let (mut index, mut code) = (Vec::new(), Vec::new());
    let (mut message, mut content) = (Vec::new(), Vec::new());
    for (position, op) in (0_i64..).zip(&task.ops) {
        let Some(outcome) = op.ended.as_deref() else { continue };
        index.push(position);
        code.push(i64::from(outcome.code.number()));
        message.push(plain(&outcome.message));
        content.push(to_json("an outcome's content", &outcome.content)?);
    }
    if index.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO outcomes (task, idx, code, message, content, ended_at) \
               SELECT $1, i.idx, i.code, i.message, i.content, $6 \
               FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[]) AS i (idx, code, message, content)";
    let statement = tx.prepare_cached(sql).await?;
    tx.execute(&statement, &[&number, &index, &code, &message, &content, &task.created_at]).await?;
    Ok(())
}

/// Only if the stamp is right too: the number alone may be another store's.
fn task_sql() -> String {
    format!("SELECT {COLUMNS} FROM {TASKS} WHERE number = ? AND stamp = ?")
}

fn task_values(id: TaskId) -> [Value; 2] {
    [Value::Int(integer(id.number)), Value::Int(integer(id.stamp))]
}

async fn task(tx: &Transaction<'_>, id: TaskId) -> Result<Option<TaskRecord>, PgFault> {
    let rows = PgStore::rows_in(tx, &task_sql(), &task_values(id)).await?;
    rows.first().map(with_requests).transpose()
}

fn with_requests(row: &Row) -> Result<TaskRecord, PgFault> {
    record(row, from_json("a task's requests", row.try_get(10)?)?)
}

fn record(row: &Row, requests: Vec<crate::RequestHead>) -> Result<TaskRecord, PgFault> {
    let retry_of: Option<&str> = row.try_get(12)?;
    Ok(TaskRecord {
        id: TaskId { number: natural(row.try_get(0)?), stamp: natural(row.try_get(1)?) },
        created_at: row.try_get(2)?,
        app: row.try_get(3)?,
        username: row.try_get(4)?,
        summary: row.try_get(5)?,
        requests,
        counts: TaskCounts {
            total: natural(row.try_get(6)?),
            open: natural(row.try_get(7)?),
            succeeded: natural(row.try_get(8)?),
            failed: natural(row.try_get(9)?),
        },
        cancelled_at: row.try_get(11)?,
        retry_of: retry_of.map(|text| parsed("a task id", text)).transpose()?,
    })
}

async fn ops(
    tx: &Transaction<'_>,
    task: TaskId,
    conditions: Conditions,
    limit: i64,
) -> Result<Vec<OpRecord>, PgFault> {
    let sql = format!(
        "SELECT ops.idx, request, cloud_id, ip, supplier_id, agent_named, agent, ended_at, code, message, content \
         FROM {OPS} {} ORDER BY ops.idx LIMIT ?",
        conditions.filter()
    );
    let rows = PgStore::rows_in(tx, &sql, &conditions.into_values([Value::Int(limit)])).await?;
    rows.iter().map(|row| op_record(task, row)).collect()
}

fn op_record(task: TaskId, row: &Row) -> Result<OpRecord, PgFault> {
    let code: Option<i64> = row.try_get(8)?;
    let outcome = match code {
        None => None,
        Some(number) => Some(Outcome {
            code: read_code(number)?,
            message: row.try_get(9)?,
            content: from_json("an outcome's content", row.try_get(10)?)?,
        }),
    };
    Ok(OpRecord {
        op: OpId { task, index: small("an op's index", row.try_get(0)?)? },
        request: small("a request's index", row.try_get(1)?)?,
        target: target(row, 2)?,
        agent: agent_if_any(row, 6)?,
        outcome,
        ended_at: row.try_get(7)?,
        late: None,
    })
}

fn read_code(number: i64) -> Result<Code, PgFault> {
    let code = u32::try_from(number).ok().and_then(Code::from_number);
    code.ok_or_else(|| unreadable("an error code", &number))
}

async fn add_late_reports(tx: &Transaction<'_>, id: TaskId, ops: &mut [OpRecord]) -> Result<(), PgFault> {
    let (Some(first), Some(last)) = (ops.first(), ops.last()) else { return Ok(()) };
    let sql = "SELECT idx, code, message, at FROM late_reports WHERE task = ? AND idx BETWEEN ? AND ?";
    let values = [integer(id.number), i64::from(first.op.index), i64::from(last.op.index)].map(Value::Int);
    for row in PgStore::rows_in(tx, sql, &values).await? {
        let index = small("an op's index", row.try_get(0)?)?;
        let late =
            LateReport { code: read_code(row.try_get(1)?)?, message: row.try_get(2)?, at: row.try_get(3)? };
        if let Ok(position) = ops.binary_search_by_key(&index, |op| op.op.index) {
            ops[position].late = Some(late);
        }
    }
    Ok(())
}

fn op_conditions(task: &TaskRecord, filter: OpFilter, select: &[Term]) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.equals("ops.task", Some(integer(task.id.number)));
    if !select.is_empty() {
        let mut selected = Conditions::default();
        selected.select(select);
        conditions.within("agent", "SELECT agent_id FROM agents", selected);
    }
    match filter {
        OpFilter::All => {}
        OpFilter::Open => conditions.always("code IS NULL"),
        OpFilter::Ended => conditions.always("code IS NOT NULL"),
        OpFilter::Failed => {
            conditions.add("code != ?", [i64::from(Code::Success.number())]);
            // Nothing had to be done: that is a success to people.
            for (code, kinds) in [
                (Code::AlreadyRunning, [OpKind::Start].as_slice()),
                (Code::NotRunning, [OpKind::Stop, OpKind::Kill].as_slice()),
            ] {
                let asked = (0_i64..).zip(&task.requests).filter(|(_, head)| kinds.contains(&head.kind));
                let asked: Vec<i64> = asked.map(|(index, _)| index).collect();
                conditions.add(
                    "NOT (code = ? AND request = ANY(?))",
                    [Value::Int(i64::from(code.number())), Value::Ints(asked)],
                );
            }
        }
    }
    conditions
}

fn conditions(filter: &TaskFilter) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.equals("app", filter.app.clone());
    match filter.state {
        None => {}
        Some(TaskProgress::Open) => conditions.always("is_open"),
        Some(TaskProgress::Ended) => conditions.always("NOT is_open"),
    }
    if filter.failed {
        conditions.always("failed > 0");
    }
    if let Some(since) = filter.since {
        conditions.add("created_at >= ?", [since]);
    }
    conditions
}
