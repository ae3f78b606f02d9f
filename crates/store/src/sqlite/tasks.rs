//! Tasks: made once together with their ops, and read back.

use super::audit::insert_audit;
use super::columns::{
    agent_if_any, from_json, integer, natural, optional_text, parsed, small, target, text, to_json,
    unreadable,
};
use super::conditions::Conditions;
use super::{QueryFault, SqliteStore};
use crate::{
    LateReport, NewAudit, NewTask, OpRecord, RequestHead, StoreError, TaskCounts, TaskFilter, TaskListPage,
    TaskPage, TaskRecord,
};
use procfleet_core::request::Target;
use procfleet_core::select::Term;
use procfleet_core::{AgentId, Code, OpId, OpKind, Outcome, TaskId};
use procfleet_proto::http::query::{OpFilter, TaskProgress};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params, params_from_iter};

const COLUMNS: &str = "number, stamp, created_at, app, username, summary, total, open, succeeded, failed, requests_json, cancelled_at, retry_of";

impl SqliteStore {
    pub(crate) async fn create_task(&self, task: NewTask) -> Result<TaskId, StoreError> {
        const DOING: &str = "creating a task";
        // Outside the writer thread, which all changes share.
        let requests = requests_json(&task).map_err(|fault| fault.during(DOING))?;
        self.write(DOING, move |db| insert(db, &task, &requests)).await
    }

    pub(crate) async fn task(&self, id: TaskId) -> Result<Option<TaskRecord>, StoreError> {
        self.read("reading a task", move |db| task(db, id)).await
    }

    pub(crate) async fn cancel_task(&self, id: TaskId, at: i64, audit: NewAudit) -> Result<bool, StoreError> {
        self.write("cancelling a task", move |db| {
            let sql = "UPDATE tasks SET cancelled_at = ? \
                       WHERE number = ? AND stamp = ? AND open > 0 AND cancelled_at IS NULL";
            let values = params![at, integer(id.number), integer(id.stamp)];
            let new = db.prepare_cached(sql)?.execute(values)? > 0;
            if new {
                insert_audit(db, &audit)?;
            }
            Ok(new)
        })
        .await
    }

    pub(crate) async fn task_results(
        &self,
        id: TaskId,
    ) -> Result<Option<(TaskRecord, Vec<OpRecord>)>, StoreError> {
        self.read("reading a task's results", move |db| {
            let Some(record) = task(db, id)? else { return Ok(None) };
            let mut conditions = Conditions::default();
            conditions.equals("task", Some(integer(id.number)));
            let mut ops = ops(db, id, conditions, None)?;
            add_late_reports(db, id, &mut ops)?;
            Ok(Some((record, ops)))
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
        self.read("reading a page of a task's results", move |db| {
            let Some(task) = task(db, id)? else { return Ok(None) };
            let mut conditions = op_conditions(&task, filter, &select);
            let sql = format!("SELECT count(*) FROM ops {}", conditions.sql());
            let total = match filter {
                OpFilter::All if select.is_empty() => integer(task.counts.total),
                OpFilter::Open if select.is_empty() => integer(task.counts.open),
                OpFilter::Ended if select.is_empty() => {
                    integer(task.counts.total.saturating_sub(task.counts.open))
                }
                OpFilter::All | OpFilter::Open | OpFilter::Ended | OpFilter::Failed => {
                    db.prepare(&sql)?.query_row(params_from_iter(conditions.values()), |row| row.get(0))?
                }
            };
            if let Some(after) = after {
                conditions.add("idx > ?", [i64::from(after)]);
            }
            let mut ops = ops(db, id, conditions, Some(limit.saturating_add(1)))?;
            let more = ops.len() > limit as usize;
            ops.truncate(limit as usize);
            add_late_reports(db, id, &mut ops)?;
            let next = ops.last().filter(|_| more).map(|op| op.op.index);
            Ok(Some(TaskPage { task, ops, next, total: natural(total) }))
        })
        .await
    }

    pub(crate) async fn list_tasks(
        &self,
        filter: TaskFilter,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<TaskListPage, StoreError> {
        self.read("reading a list of tasks", move |db| {
            let mut conditions = conditions(&filter, db)?;
            let sql = format!("SELECT count(*) FROM tasks {}", conditions.sql());
            let total: i64 =
                db.prepare(&sql)?.query_row(params_from_iter(conditions.values()), |row| row.get(0))?;
            if let Some(after) = after {
                conditions.add("number < ?", [integer(after.number)]);
            }
            let sql =
                format!("SELECT {COLUMNS} FROM tasks {} ORDER BY number DESC LIMIT ?", conditions.sql());
            let values = conditions.into_values([Value::from(i64::from(limit) + 1)]);
            let mut statement = db.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(values))?;
            let mut tasks = Vec::new();
            while let Some(row) = rows.next()? {
                tasks.push(task_record(row, Vec::new())?);
            }
            let more = tasks.len() > limit as usize;
            tasks.truncate(limit as usize);
            let next = tasks.last().filter(|_| more).map(|task| task.id);
            Ok(TaskListPage { tasks, next, total: natural(total) })
        })
        .await
    }
}

/// The task, its ops and its audit record.
pub(super) fn insert(db: &Connection, task: &NewTask, requests: &str) -> Result<TaskId, QueryFault> {
    let id = insert_task(db, task, requests)?;
    insert_ops(db, id, task)?;
    if let Some(mut entry) = task.audit.clone() {
        if entry.subject.is_empty() {
            entry.subject = id.to_string();
        }
        insert_audit(db, &entry)?;
    }
    Ok(id)
}

pub(super) fn requests_json(task: &NewTask) -> Result<String, QueryFault> {
    // An op without its request could never be carried out, nor read again.
    if let Some(op) =
        task.ops.iter().find(|op| usize::try_from(op.request).unwrap_or(usize::MAX) >= task.requests.len())
    {
        let reason = format!("request {} of {}", op.request, task.requests.len());
        return Err(QueryFault::Unwritable { what: "an op", reason });
    }
    to_json("requests", &task.requests)
}

fn insert_task(db: &Connection, task: &NewTask, requests: &str) -> Result<TaskId, QueryFault> {
    let sql = "INSERT INTO tasks (stamp, created_at, app, username, summary, requests_json, total, open, \
               succeeded, failed, retry_of, boot, boot_ms) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7 - ?8 - ?9, ?8, ?9, ?10, ?11, ?12)";
    let total = i64::try_from(task.ops.len()).unwrap_or(i64::MAX);
    let (mut succeeded, mut failed) = (0_i64, 0_i64);
    for outcome in task.ops.iter().filter_map(|op| op.ended.as_ref()) {
        *if outcome.code == Code::Success { &mut succeeded } else { &mut failed } += 1;
    }
    db.prepare_cached(sql)?.execute(params![
        integer(task.stamp),
        task.created_at,
        task.app,
        task.username,
        task.summary,
        requests,
        total,
        succeeded,
        failed,
        task.retry_of.map(|of| of.to_string()),
        task.mark.map(|mark| mark.boot.0),
        task.mark.map(|mark| integer(mark.moment.0))
    ])?;
    Ok(TaskId { stamp: task.stamp, number: natural(db.last_insert_rowid()) })
}

fn insert_ops(db: &Connection, id: TaskId, task: &NewTask) -> Result<(), QueryFault> {
    let sql = "INSERT INTO ops (task, idx, request, cloud_id, ip, supplier_id, agent_named, agent, start_by, deadline, \
               code, message, content, ended_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let mut statement = db.prepare_cached(sql)?;
    let number = integer(id.number);
    for (index, op) in (0_u32..).zip(&task.ops) {
        let host = op.target.host();
        let (cloud, ip) = (host.map(|host| host.cloud.0), host.map(|host| host.ip.to_string()));
        let (supplier, named) = match &op.target {
            Target::Host(_) => (None, None),
            Target::SupplierHost(_, supplier) => (Some(*supplier), None),
            Target::Agent(agent) => (None, Some(agent.as_str())),
            Target::Unusable(unusable) => (unusable.supplier, Some(unusable.name.as_str())),
        };
        let agent = op.agent.as_ref().map(AgentId::as_str);
        let ended = op.ended.as_deref();
        let content = ended.map(|outcome| to_json("an outcome's content", &outcome.content)).transpose()?;
        statement.execute(params![
            number,
            index,
            op.request,
            cloud,
            ip,
            supplier,
            named,
            agent,
            op.start_by,
            op.deadline,
            ended.map(|outcome| outcome.code.number()),
            ended.map(|outcome| &outcome.message),
            content,
            ended.map(|_| task.created_at)
        ])?;
    }
    Ok(())
}

/// Only if the stamp is right too: the number alone may be another store's.
fn task(db: &Connection, id: TaskId) -> Result<Option<TaskRecord>, QueryFault> {
    let sql = format!("SELECT {COLUMNS} FROM tasks WHERE number = ? AND stamp = ?");
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query([integer(id.number), integer(id.stamp)])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let requests = from_json("a task's requests", text(row, 10)?)?;
    task_record(row, requests).map(Some)
}

fn ops(
    db: &Connection,
    task: TaskId,
    conditions: Conditions,
    limit: Option<u32>,
) -> Result<Vec<OpRecord>, QueryFault> {
    let sql = format!(
        "SELECT idx, request, cloud_id, ip, supplier_id, agent_named, agent, ended_at, code, message, content \
         FROM ops {} ORDER BY idx LIMIT ?",
        conditions.sql()
    );
    // Negative: no limit.
    let values = conditions.into_values([Value::from(limit.map_or(-1, i64::from))]);
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let mut ops = Vec::new();
    while let Some(row) = rows.next()? {
        ops.push(op_record(task, row)?);
    }
    Ok(ops)
}

fn op_conditions(task: &TaskRecord, filter: OpFilter, select: &[Term]) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.equals("task", Some(integer(task.id.number)));
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
                let asked = task.requests.iter().enumerate().filter(|(_, head)| kinds.contains(&head.kind));
                let asked: Vec<usize> = asked.map(|(index, _)| index).collect();
                let list = Value::from(serde_json::json!(asked).to_string());
                conditions.add(
                    "NOT (code = ? AND request IN (SELECT value FROM json_each(?)))",
                    [Value::from(i64::from(code.number())), list],
                );
            }
        }
    }
    conditions
}

fn task_record(row: &Row<'_>, requests: Vec<RequestHead>) -> Result<TaskRecord, QueryFault> {
    Ok(TaskRecord {
        id: TaskId { number: natural(row.get(0)?), stamp: natural(row.get(1)?) },
        created_at: row.get(2)?,
        app: row.get(3)?,
        username: row.get(4)?,
        summary: row.get(5)?,
        requests,
        counts: TaskCounts {
            total: natural(row.get(6)?),
            open: natural(row.get(7)?),
            succeeded: natural(row.get(8)?),
            failed: natural(row.get(9)?),
        },
        cancelled_at: row.get(11)?,
        retry_of: optional_text(row, 12)?.map(|text| parsed("a task id", text)).transpose()?,
    })
}

fn op_record(task: TaskId, row: &Row<'_>) -> Result<OpRecord, QueryFault> {
    Ok(OpRecord {
        op: OpId { task, index: small("an op's index", row.get(0)?)? },
        request: small("a request's place", row.get(1)?)?,
        target: target(row, 2)?,
        agent: agent_if_any(row, 6)?,
        ended_at: row.get(7)?,
        outcome: outcome(row, 8)?,
        late: None,
    })
}

/// A separate query, because few tasks have late reports.
fn add_late_reports(db: &Connection, task: TaskId, ops: &mut [OpRecord]) -> Result<(), QueryFault> {
    let mut statement =
        db.prepare_cached("SELECT idx, code, message, at FROM late_reports WHERE task = ? ORDER BY idx")?;
    let mut rows = statement.query([integer(task.number)])?;
    while let Some(row) = rows.next()? {
        let index: u32 = small("an op's index", row.get(0)?)?;
        if let Ok(place) = ops.binary_search_by_key(&index, |op| op.op.index) {
            let late = LateReport { code: code(row.get(1)?)?, message: row.get(2)?, at: row.get(3)? };
            ops[place].late = Some(late);
        }
    }
    Ok(())
}

fn code(number: i64) -> Result<Code, QueryFault> {
    let code = u32::try_from(number).ok().and_then(Code::from_number);
    code.ok_or_else(|| unreadable("an error code", &format_args!("{number} is not known")))
}

/// An outcome in three columns: code, message, content.
fn outcome(row: &Row<'_>, column: usize) -> Result<Option<Outcome>, QueryFault> {
    let Some(number) = row.get::<_, Option<i64>>(column)? else { return Ok(None) };
    let code = code(number)?;
    let message = optional_text(row, column + 1)?.unwrap_or_default().to_owned();
    let content = from_json("an outcome's content", text(row, column + 2)?)?;
    Ok(Some(Outcome { code, message, content }))
}

fn conditions(filter: &TaskFilter, db: &Connection) -> Result<Conditions, QueryFault> {
    let mut conditions = Conditions::default();
    conditions.equals("app", filter.app.clone());
    match filter.state {
        None => {}
        Some(TaskProgress::Open) => conditions.always("open > 0"),
        Some(TaskProgress::Ended) => conditions.always("open = 0"),
    }
    if filter.failed {
        conditions.always("failed > 0");
    }
    if let Some(since) = filter.since {
        // The first of them by number, so that older tasks need not be read. Two questions, because each
        // has an index of its own.
        let sql = "SELECT min(number) FROM tasks INDEXED BY tasks_ended WHERE open = 0 AND created_at >= ?";
        let ended: Option<i64> = db.prepare_cached(sql)?.query_row([since], |row| row.get(0))?;
        let sql = "SELECT min(number) FROM tasks INDEXED BY tasks_open WHERE open > 0 AND created_at >= ?";
        let open: Option<i64> = db.prepare_cached(sql)?.query_row([since], |row| row.get(0))?;
        let first = ended.into_iter().chain(open).min().unwrap_or(i64::MAX);
        conditions.add("number >= ? AND created_at >= ?", [first, since]);
    }
    Ok(conditions)
}
