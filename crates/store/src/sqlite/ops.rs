//! Ops: read while they are open, and ended once, with their task's counts always in step.

use super::columns::{
    agent_if_any, from_json, integer, mark_if_any, natural, small, target, text, to_json, unreadable,
};
use super::{QueryFault, SqliteStore};
use crate::clock::ClockReading;
use crate::{
    Applied, Dismissal, EndedBy, Finished, OpScope, OpenOpRow, OpenTask, RequestHead, SentBefore, StoreError,
};
use procfleet_core::{AgentId, Code, OpId, Outcome, TaskId};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

impl SqliteStore {
    pub(crate) async fn open_tasks(&self) -> Result<Vec<OpenTask>, StoreError> {
        self.read("reading the open tasks", open_tasks).await
    }

    pub(crate) async fn open_ops(&self, scope: OpScope) -> Result<Vec<OpenOpRow>, StoreError> {
        self.read("reading open ops", move |db| {
            let ids = match &scope {
                OpScope::Tasks(ids) => ids.clone(),
                OpScope::Agents(_) | OpScope::All => {
                    open_tasks(db)?.into_iter().map(|task| task.id).collect()
                }
            };
            let mut found = Vec::new();
            for id in ids {
                read_open(db, id, &mut found)?;
            }
            match scope {
                OpScope::Tasks(_) => {}
                OpScope::Agents(agents) => {
                    found.retain(|row| row.agent.as_ref().is_some_and(|agent| agents.contains(agent)));
                }
                OpScope::All => conclude_from_sessions(db, &mut found)?,
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn finish_ops(&self, finished: Vec<Finished>) -> Result<Vec<Applied>, StoreError> {
        const DOING: &str = "ending ops";
        // Serialised outside the writer thread, which all changes share.
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

/// For a server that has just started. It does not know which ops were sent. An agent that was connected
/// after the op was accepted may have it, and even its outcome.
fn conclude_from_sessions(db: &Connection, rows: &mut [OpenOpRow]) -> Result<(), QueryFault> {
    let sql = "SELECT connected, changed_at, changed_boot, changed_boot_ms, retired_at IS NOT NULL, \
               revoked_at IS NOT NULL, revoked_why FROM agents WHERE agent_id = ?";
    let mut statement = db.prepare_cached(sql)?;
    for row in rows {
        let Some(agent) = &row.agent else { continue };
        let mut found = statement.query([agent.as_str()])?;
        let Some(agent) = found.next()? else {
            row.dismissal = Some(Dismissal::Retired);
            continue;
        };
        // Connected until the last server process ended.
        let is_connected: bool = agent.get(0)?;
        let gone = ClockReading { wall: agent.get(1)?, mark: mark_if_any(agent, 2)? };
        let retired: bool = agent.get(4)?;
        if !retired && (is_connected || !gone.is_before(row.accepted)) {
            row.sent = SentBefore::Maybe;
        }
        // A forgotten agent is revoked and retired, and no other agent has joined for its host.
        row.dismissal = match (agent.get(5)?, retired) {
            (true, _) => Some(Dismissal::Revoked(agent.get(6)?)),
            (false, true) => Some(Dismissal::Retired),
            (false, false) => None,
        };
    }
    Ok(())
}

fn open_tasks(db: &Connection) -> Result<Vec<OpenTask>, QueryFault> {
    let sql = "SELECT number, stamp, open, cancelled_at IS NOT NULL FROM tasks INDEXED BY tasks_open \
               WHERE open > 0 ORDER BY number";
    let mut tasks = db.prepare_cached(sql)?;
    let mut rows = tasks.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let id = TaskId { number: natural(row.get(0)?), stamp: natural(row.get(1)?) };
        found.push(OpenTask { id, open: natural(row.get(2)?), cancelled: row.get(3)? });
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
    let requests: Vec<Arc<RequestHead>> = from_json("a task's requests", text(row, 1)?)?;

    let sql = "SELECT idx, request, cloud_id, ip, supplier_id, agent_named, agent, start_by, deadline FROM ops \
               WHERE task = ? AND code IS NULL ORDER BY idx";
    let mut ops = db.prepare_cached(sql)?;
    let mut rows = ops.query([integer(id.number)])?;
    while let Some(row) = rows.next()? {
        let index = small("a request's index", row.get(1)?)?;
        let request = usize::try_from(index).ok().and_then(|index| requests.get(index));
        let request =
            request.ok_or_else(|| unreadable("an op", &format_args!("it has no request {index}")))?;
        found.push(OpenOpRow {
            op: OpId { task: id, index: small("an op's index", row.get(0)?)? },
            request: request.clone(),
            target: target(row, 2)?,
            agent: agent_if_any(row, 6)?,
            accepted,
            start_by: row.get(7)?,
            deadline: row.get(8)?,
            cancelled,
            sent: SentBefore::No,
            holder: None,
            epoch: None,
            dismissal: None,
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
        let Finished { op, by, outcome: Outcome { code, message, content }, at } = finished;
        let agent = match by {
            EndedBy::Agent(agent) => Some(agent),
            EndedBy::Server(_) => None,
        };
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
            return match classify_unapplied(db, *op, agent)? {
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

/// Stores the first report of an op that contradicts its stored outcome. False: the report repeats an
/// outcome.
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

/// Classifies a report that stored no outcome. `NotYours` is decided first, so that an agent learns nothing
/// about ops of other agents.
fn classify_unapplied(db: &Connection, op: OpId, agent: Option<&str>) -> Result<Applied, QueryFault> {
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
