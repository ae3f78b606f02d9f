//! `procfleet task`: what became of the calls that were accepted.

use super::list::{self, MOST_ROWS, Watching, target_order};
use super::token::Ttl;
use crate::client::{Client, path_segment};
use crate::output::{Format, OutputFlag, age, plain};
use crate::wait::{self, How, WaitMode, WatchedTask, how};
use crate::{ConnectionFlags, Error, Surroundings, VerbExit};
use procfleet_core::id::TaskId;
use procfleet_proto::http::native::{OpRow, TaskRow};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct AcceptedTask {
    task_id: String,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum TaskVerb {
    /// Show a task and its ops as they are now
    Show(ShownTask),
    /// Wait until a task has ended
    Watch(TaskWatch),
    /// Cancel a task: what has not begun does not begin, and nobody waits for the rest
    Cancel(TaskShow),
    /// Try a task again on the hosts where it failed, as a new task
    Retry(Retry),
    /// Show the newest tasks
    List(TaskList),
}

#[derive(Clone, Debug, clap::Args)]
pub struct ShownTask {
    /// Only the operations that failed
    #[arg(long)]
    pub failed: bool,
    #[command(flatten)]
    pub show: TaskShow,
}

#[derive(Clone, Debug, clap::Args)]
pub struct TaskShow {
    /// The task, as GSETASK:YYYYMMDDHHMMSS:N
    #[arg(value_name = "ID")]
    pub task: TaskId,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct TaskWatch {
    /// The task, as GSETASK:YYYYMMDDHHMMSS:N
    #[arg(value_name = "ID")]
    pub task: TaskId,
    /// Wait no longer than this
    #[arg(long, value_name = "SECS", default_value_t = 600)]
    pub timeout: u64,
    /// Fail also where nothing had to be done: start of a running process (828), stop or kill of a stopped
    /// one (829)
    #[arg(long)]
    pub strict: bool,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Retry {
    /// The task, as GSETASK:YYYYMMDDHHMMSS:N
    #[arg(value_name = "ID")]
    pub task: TaskId,
    #[command(flatten)]
    pub waiting: WaitMode,
    /// The same retry under the same key is one task, however often it is sent
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct TaskList {
    /// How many of the newest tasks to show
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    /// Only those in which an operation failed
    #[arg(long)]
    pub failed: bool,
    /// Only those that are so
    #[arg(long, value_name = "STATE", value_parser = ["open", "ended"])]
    pub state: Option<String>,
    /// Only those of the last so long, such as 10m or 2d
    #[arg(long, value_name = "TIME")]
    pub since: Option<Ttl>,
    #[command(flatten)]
    pub watching: Watching,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl TaskVerb {
    pub(crate) fn output(&self) -> OutputFlag {
        match self {
            TaskVerb::Show(shown) => shown.show.output,
            TaskVerb::Cancel(show) => show.output,
            TaskVerb::Watch(watch) => watch.output,
            TaskVerb::Retry(retry) => retry.output,
            TaskVerb::List(list) => list.output,
        }
    }

    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        match self {
            TaskVerb::Show(shown) => shown.run(around),
            TaskVerb::Watch(watch) => watch.run(around),
            TaskVerb::Cancel(cancel) => cancel.cancel(around),
            TaskVerb::Retry(retry) => retry.run(around),
            TaskVerb::List(list) => list.run(around),
        }
    }
}

impl ShownTask {
    fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let TaskShow { task, output, connection } = &self.show;
        let mut seen = wait::show(&connection.client()?, &task.to_string())?;
        if self.failed {
            seen.keep(|op| how(op) == How::Failed);
        }
        match output.format() {
            Format::Json => around.json(&seen.data)?,
            Format::Text => describe(&seen, around)?,
        }
        // The question was answered; how the ops ended is what `watch` exits with.
        Ok(VerbExit::Done)
    }
}

impl TaskShow {
    fn cancel(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let task_id = self.task.to_string();
        let path = format!("/api/v1/tasks/{}/cancel", path_segment(&task_id));
        let answer = self.connection.client()?.post(&path, &json!({}))?;
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => {
                let task: TaskRow = answer.read()?;
                let open = task.counts.open;
                around.say(&match task.cancelled_at {
                    0 => format!("{task_id} had ended already"),
                    _ => {
                        format!("{task_id} is cancelled; {open} of its operations are on their way to an end")
                    }
                })?;
            }
        }
        Ok(VerbExit::Done)
    }
}

impl Retry {
    fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let path = format!("/api/v1/tasks/{}/retry", path_segment(&self.task.to_string()));
        let client = self.connection.client()?;
        let answer = client.post_once(&path, &json!({}), self.idempotency_key.as_deref())?;
        let AcceptedTask { task_id } = answer.read()?;
        match self.waiting.follow(&client, &answer, &task_id, &self.output, around)? {
            Some(seen) => conclude(&seen, self.waiting.strict, &self.output, around),
            None => Ok(VerbExit::Done),
        }
    }
}

impl TaskWatch {
    fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let task_id = self.task.to_string();
        let client = self.connection.client()?;
        let seen = wait::wait(&client, &task_id, self.timeout, self.output.format(), around)?;
        conclude(&seen, self.strict, &self.output, around)
    }
}

/// How a task ended that was waited for.
fn conclude(
    seen: &WatchedTask,
    strict: bool,
    output: &OutputFlag,
    around: &mut Surroundings<'_>,
) -> Result<VerbExit, Error> {
    match output.format() {
        Format::Json => around.json(&seen.data)?,
        Format::Text => around.say(&seen.summary())?,
    }
    Ok(seen.exit(strict))
}

impl TaskList {
    fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let client = self.connection.client()?;
        self.watching.repeat(around, |around| self.show(&client, around))
    }

    fn show(&self, client: &Client, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let filtered = self.failed || self.state.is_some() || self.since.is_some();
        let asked = if filtered { MOST_ROWS } else { self.limit };
        let answer = client.get("/api/v1/tasks", &[("limit", asked.to_string())])?;
        let mut rows: Vec<(Value, TaskRow)> = list::rows(&answer)?;
        let now = around.now;
        rows.retain(|(_, row)| self.wants(row, now));
        rows.truncate(self.limit as usize);
        match self.output.format() {
            Format::Json => around.json(&list::json(&rows))?,
            Format::Text => around.table(
                ["TASK", "AGE", "USER", "APP", "WHAT", "TOTAL", "OPEN", "OK", "FAILED"],
                rows.into_iter().map(|(_, row)| list_cells(row, now)).collect(),
                "no tasks",
            )?,
        }
        Ok(VerbExit::Done)
    }

    fn wants(&self, row: &TaskRow, now: i64) -> bool {
        let state = if row.counts.open > 0 { "open" } else { "ended" };
        (!self.failed || row.counts.failed > 0)
            && self.state.as_ref().is_none_or(|wanted| wanted == state)
            && self.since.is_none_or(|time| time.includes(row.created_at, now))
    }
}

fn describe(seen: &WatchedTask, around: &mut Surroundings<'_>) -> Result<(), Error> {
    let task = &seen.view.task;
    around.say(&seen.summary())?;
    let by = plain(&format!("by {} ({})", task.bk_username, task.bk_app_code));
    let at = around.moment(task.created_at);
    around.note(&format!("{by} at {at}"));
    if !task.retry_of.is_empty() {
        around.note(&format!("tries {} again where it failed", plain(&task.retry_of)));
    }
    if task.cancelled_at != 0 {
        let at = around.moment(task.cancelled_at);
        around.note(&format!("cancelled at {at}"));
    }
    let mut ops: Vec<&OpRow> = seen.view.ops.iter().collect();
    ops.sort_by_cached_key(|op| (target_order(&op.target), op.namespace.clone(), op.name.clone()));
    let rows = ops.into_iter().map(|op| op_cells(op, around)).collect();
    around.table(
        ["TARGET", "NAMESPACE", "NAME", "OP", "STATE", "CODE", "MESSAGE"],
        rows,
        "the task has no ops",
    )
}

fn op_cells(op: &OpRow, around: &Surroundings<'_>) -> [String; 7] {
    let state = match how(op) {
        How::Open => "open",
        How::Ok => "ok",
        How::AlreadySo(word) => word,
        How::Failed => "failed",
    };
    [
        op.target.clone(),
        op.namespace.clone(),
        op.name.clone(),
        op.kind.clone(),
        state.to_owned(),
        op.error_code.to_string(),
        match op.late_at {
            0 => op.error_msg.clone(),
            at => {
                let (code, message, at) = (op.late_code, &op.late_msg, around.moment(at));
                format!("{}; reported late, at {at}: {code} {message}", op.error_msg)
            }
        },
    ]
}

fn list_cells(row: TaskRow, now: i64) -> [String; 9] {
    [
        row.task_id,
        age(row.created_at, now),
        row.bk_username,
        row.bk_app_code,
        row.summary,
        row.counts.total.to_string(),
        row.counts.open.to_string(),
        row.counts.succeeded.to_string(),
        row.counts.failed.to_string(),
    ]
}
