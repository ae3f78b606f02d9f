//! Ops: read while they are open, and ended once, with their task's counts always in step.

use super::columns::{
    agent_if_any, from_json, integer, mark_if_any, natural, small, target, text, to_json, unreadable,
};
use super::{QueryFault, SqliteStore};
use crate::clock::ClockReading;
use crate::{Applied, Finished, OpenOpRow, RequestHead, StoreError};
use procfleet_core::{AgentId, Code, OpId, Outcome, TaskId};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

impl SqliteStore {
    pub(crate) async fn open_tasks(&self) -> Result<Vec<TaskId>, StoreError> {
        self.read("reading the open tasks", open_tasks).await
    }

    pub(crate) async fn open_ops(&self) -> Result<Vec<OpenOpRow>, StoreError> {
        self.read("reading the open ops", |db| {
            let mut found = Vec::new();
            for id in open_tasks(db)? {
                read_open(db, id, &mut found)?;
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn task_ops(&self, id: TaskId) -> Result<Vec<OpenOpRow>, StoreError> {
        self.tasks_ops(vec![id]).await
    }

    pub(crate) async fn tasks_ops(&self, ids: Vec<TaskId>) -> Result<Vec<OpenOpRow>, StoreError> {
        self.read("reading the open ops of tasks", move |db| {
            let mut found = Vec::new();
            for id in ids {
                read_open(db, id, &mut found)?;
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn finish_ops(&self, finished: Vec<Finished>) -> Result<Vec<Applied>, StoreError> {
        const DOING: &str = "ending ops";
        // Before the writer's turn: it is the one thing that everybody waits for.
        let endings = finished.into_iter().map(StoredOutcome::new).collect::<Result<Vec<_>, _>>();
        let endings = endings.map_err(|fault| fault.during(DOING))?;
        self.write(DOING, move |db| {
            let mut finisher = Finisher::new(db)?;
            let applied =
                endings.iter().map(|ending| finisher.apply(ending)).collect::<Result<Vec<_>, _>>()?;
            finisher.count()?;
            Ok(applied)
        })
        .await
    }
}

fn open_tasks(db: &Connection) -> Result<Vec<TaskId>, QueryFault> {
    let sql = "SELECT number, stamp FROM tasks INDEXED BY tasks_open WHERE open > 0 ORDER BY number";
    let mut tasks = db.prepare_cached(sql)?;
    let mut rows = tasks.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(TaskId { number: natural(row.get(0)?), stamp: natural(row.get(1)?) });
    }
    Ok(found)
}

fn read_open(db: &Connection, id: TaskId, found: &mut Vec<OpenOpRow>) -> Result<(), QueryFault> {
    let sql = "SELECT created_at, requests_json, cancelled_at IS NOT NULL, boot, boot_ms FROM tasks \
               WHERE number = ? AND stamp = ?";
    let mut tasks = db.prepare_cached(sql)?;
    let mut rows = tasks.query([integer(id.number), integer(id.stamp)])?;
    let Some(row) = rows.next()? else { return Ok(()) };
    let (accepted, cancelled) = (ClockReading { wall: row.get(0)?, mark: mark_if_any(row, 3)? }, row.get(2)?);
    let requests: Vec<RequestHead> = from_json("a task's requests", text(row, 1)?)?;

    let sql = "SELECT idx, request, cloud_id, ip, supplier_id, agent_named, agent, start_by, deadline FROM ops \
               WHERE task = ? AND code IS NULL ORDER BY idx";
    let mut ops = db.prepare_cached(sql)?;
    let mut rows = ops.query([integer(id.number)])?;
    while let Some(row) = rows.next()? {
        let place = small("a request's place", row.get(1)?)?;
        let request = usize::try_from(place).ok().and_then(|place| requests.get(place));
        let request =
            request.ok_or_else(|| unreadable("an op", &format_args!("it has no request {place}")))?;
        found.push(OpenOpRow {
            op: OpId { task: id, index: small("an op's index", row.get(0)?)? },
            kind: request.kind,
            proc: request.proc.clone(),
            spec: request.spec.clone(),
            accounts: request.accounts.clone(),
            target: target(row, 2)?,
            agent: agent_if_any(row, 6)?,
            accepted,
            start_by: row.get(7)?,
            deadline: row.get(8)?,
            cancelled,
        });
    }
    Ok(())
}

/// A [`Finished`] in the form that it is stored in.
struct StoredOutcome {
    op: OpId,
    agent: Option<AgentId>,
    code: Code,
    message: String,
    content: String,
    at: i64,
}

impl StoredOutcome {
    fn new(finished: Finished) -> Result<StoredOutcome, QueryFault> {
        let Finished { op, agent, outcome: Outcome { code, message, content }, at } = finished;
        let content = to_json("an outcome's content", &content)?;
        Ok(StoredOutcome { op, agent, code, message, content, at })
    }
}

/// Ends ops one after the other and counts them; the tasks' counts are written once at the end.
struct Finisher<'db> {
    db: &'db Connection,
    end: CachedStatement<'db>,
    tasks: BTreeMap<u64, Touched>,
}

/// A task that has ops in the batch.
struct Touched {
    /// `None`: there is no such task.
    stamp: Option<u64>,
    succeeded: i64,
    failed: i64,
}

impl<'db> Finisher<'db> {
    fn new(db: &'db Connection) -> Result<Self, QueryFault> {
        let sql = "UPDATE ops SET code = ?1, message = ?2, content = ?3, ended_at = ?4 \
                   WHERE task = ?5 AND idx = ?6 AND code IS NULL AND (?7 IS NULL OR agent = ?7)";
        Ok(Finisher { db, end: db.prepare_cached(sql)?, tasks: BTreeMap::new() })
    }

    fn apply(&mut self, ending: &StoredOutcome) -> Result<Applied, QueryFault> {
        let StoredOutcome { op, agent, code, message, content, at } = ending;
        let (db, number, agent) = (self.db, op.task.number, agent.as_ref().map(AgentId::as_str));
        let task = match self.tasks.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(Touched { stamp: stamp_of(db, number)?, succeeded: 0, failed: 0 })
            }
        };
        if task.stamp != Some(op.task.stamp) {
            return Ok(Applied::Unknown);
        }
        let values = params![code.number(), message, content, at, integer(number), op.index, agent];
        if self.end.execute(values)? == 0 {
            return match why_not(db, *op, agent)? {
                Applied::Already if agent.is_some() && keep_late(db, ending)? => Ok(Applied::Late),
                other => Ok(other),
            };
        }
        match code {
            Code::Success => task.succeeded += 1,
            // Every other code is a failure, and `Code` is a long list.
            _ => task.failed += 1,
        }
        Ok(Applied::Now)
    }

    fn count(self) -> Result<(), QueryFault> {
        let sql = "UPDATE tasks SET open = open - ?1 - ?2, succeeded = succeeded + ?1, failed = failed + ?2 \
                   WHERE number = ?3";
        let mut update = self.db.prepare_cached(sql)?;
        for (number, Touched { stamp: _, succeeded, failed }) in self.tasks {
            if succeeded + failed > 0 {
                update.execute(params![succeeded, failed, integer(number)])?;
            }
        }
        Ok(())
    }
}

/// Keeps what an agent says of an op that ended otherwise. False: it says what is known, for the second time.
fn keep_late(db: &Connection, ending: &StoredOutcome) -> Result<bool, QueryFault> {
    let sql = "INSERT INTO late_reports (task, idx, code, message, at) SELECT ?1, ?2, ?3, ?4, ?5 FROM ops \
               WHERE task = ?1 AND idx = ?2 AND (code != ?3 OR message != ?4) ON CONFLICT DO NOTHING";
    let StoredOutcome { op, code, message, at, .. } = ending;
    let values = params![integer(op.task.number), op.index, code.number(), message, at];
    Ok(db.prepare_cached(sql)?.execute(values)? > 0)
}

fn stamp_of(db: &Connection, number: u64) -> Result<Option<u64>, QueryFault> {
    let mut statement = db.prepare_cached("SELECT stamp FROM tasks WHERE number = ?")?;
    let stamp: Option<i64> = statement.query_row([integer(number)], |row| row.get(0)).optional()?;
    Ok(stamp.map(natural))
}

/// Why an op could not be ended. Whose it is comes first: another agent learns nothing about it.
fn why_not(db: &Connection, op: OpId, agent: Option<&str>) -> Result<Applied, QueryFault> {
    let sql = "SELECT ?3 IS NULL OR agent IS ?3 FROM ops WHERE task = ?1 AND idx = ?2";
    let mut statement = db.prepare_cached(sql)?;
    let yours: Option<bool> = statement
        .query_row(params![integer(op.task.number), op.index, agent], |row| row.get(0))
        .optional()?;
    Ok(match yours {
        None => Applied::Unknown,
        Some(false) => Applied::NotYours,
        Some(true) => Applied::Already,
    })
}
