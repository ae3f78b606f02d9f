//! `procfleet task`: accepted calls and their outcomes.

use super::list::{ListedRows, PageFlags, TASK_PAGE, Watching, note_more, target_order};
use super::operate::{ASK_ABOVE, confirmed};
use super::time_span::TimeSpan;
use crate::client::{Client, path_segment};
use crate::output::{Format, OutputFlag, Prompts, age, plain};
use crate::wait::{self, OpEnd, WaitMode, WatchedTask, op_end};
use crate::{ConnectionFlags, Console, Error, VerbExit};
use procfleet_core::id::TaskId;
use procfleet_proto::http::native::{OpRow, TaskRow};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeSet;

#[derive(Deserialize)]
struct AcceptedTask {
    task_id: String,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum TaskVerb {
    /// Show a task and its operations
    Show(ShownTask),
    /// Wait until a task has ended
    #[command(after_help = crate::EXITS)]
    Watch(TaskWatch),
    /// Cancel a task: operations that have not begun are not started, and the server stops waiting for the
    /// others
    Cancel(TaskShow),
    /// Retry a task on the hosts where it failed, as a new task
    #[command(after_help = crate::EXITS)]
    Retry(Retry),
    /// Show the newest tasks
    List(TaskList),
}

#[derive(Clone, Debug, clap::Args)]
pub struct ShownTask {
    /// Only the operations that failed
    #[arg(long, conflicts_with = "state")]
    pub failed: bool,
    /// Only the operations in this state
    #[arg(long, value_name = "STATE", value_parser = ["open", "ended", "failed"])]
    pub state: Option<String>,
    /// Only the operations on selected hosts: addresses, ranges, blocks, globs, ids, labels; repeatable
    #[arg(long, value_name = "TERM")]
    pub select: Vec<String>,
    #[command(flatten)]
    pub page: PageFlags,
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
    /// Maximum time to wait
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
    /// Do not ask for confirmation; implied without a terminal
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub waiting: WaitMode,
    /// Idempotency key: a repeated retry with the same key is one task
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct TaskList {
    /// Number of the newest tasks to show
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Only tasks that are older than this one
    #[arg(long, value_name = "ID")]
    pub after: Option<TaskId>,
    /// Only tasks with a failed operation
    #[arg(long)]
    pub failed: bool,
    /// Only tasks in this state
    #[arg(long, value_name = "STATE", value_parser = ["open", "ended"])]
    pub state: Option<String>,
    /// Only tasks of this last period, such as 10m or 2d
    #[arg(long, value_name = "TIME")]
    pub since: Option<TimeSpan>,
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

    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        match self {
            TaskVerb::Show(shown) => shown.run(console),
            TaskVerb::Watch(watch) => watch.run(console),
            TaskVerb::Cancel(cancel) => cancel.cancel(console),
            TaskVerb::Retry(retry) => retry.run(console),
            TaskVerb::List(list) => list.run(console),
        }
    }
}

impl ShownTask {
    fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let TaskShow { task, output, connection } = &self.show;
        let state = if self.failed { Some("failed".to_owned()) } else { self.state.clone() };
        let select = (!self.select.is_empty()).then(|| self.select.join(","));
        let filters: Vec<(&'static str, String)> =
            [("state", state), ("select", select), ("after", self.page.after.clone())]
                .into_iter()
                .filter_map(|(field, value)| Some((field, value?)))
                .collect();
        let seen = wait::show(&connection.client()?, &task.to_string(), &filters, self.page.limit)?;
        match output.format() {
            Format::Json => console.json(&seen.data)?,
            Format::Text => describe(&seen, console)?,
        }
        note_more(seen.view.ops.len(), seen.next.as_deref(), seen.total, console);
        // Success, because the question was answered. Only `watch` exits with the outcomes of the ops.
        Ok(VerbExit::Done)
    }
}

impl TaskShow {
    fn cancel(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let task_id = self.task.to_string();
        let path = format!("/api/v1/tasks/{}/cancel", path_segment(&task_id));
        let answer = self.connection.client()?.post(&path, &json!({}))?;
        match self.output.format() {
            Format::Json => console.json(&answer.data)?,
            Format::Text => {
                let task: TaskRow = answer.read()?;
                let open = task.counts.open;
                console.print_line(&match task.cancelled_at {
                    0 => format!("{task_id} had ended already"),
                    _ => format!(
                        "{task_id} is cancelled; {open} of its operations are still open and end soon"
                    ),
                })?;
            }
        }
        Ok(VerbExit::Done)
    }
}

impl Retry {
    fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let path = format!("/api/v1/tasks/{}/retry", path_segment(&self.task.to_string()));
        let client = self.connection.client()?;
        if !self.confirm(&client, console)? {
            console.note("nothing was sent");
            return Ok(VerbExit::Failed);
        }
        let answer = client.post_once(&path, &json!({}), self.idempotency_key.as_deref())?;
        let AcceptedTask { task_id } = answer.read()?;
        match self.waiting.follow(&client, &answer, &task_id, &self.output, console)? {
            Some(seen) => conclude(&seen, self.waiting.strict, &self.output, console),
            None => Ok(VerbExit::Done),
        }
    }
}

impl Retry {
    /// Prompts for confirmation if there is a person and many hosts match.
    fn confirm(&self, client: &Client, console: &mut Console<'_>) -> Result<bool, Error> {
        if self.yes || console.prompts == Prompts::Forbidden {
            return Ok(true);
        }
        let failed = [("state", "failed".to_owned())];
        let seen = wait::show(client, &self.task.to_string(), &failed, None)?;
        let hosts: BTreeSet<&str> = seen.view.ops.iter().map(|op| op.target.as_str()).collect();
        if hosts.len() as u64 <= ASK_ABOVE {
            return Ok(true);
        }
        let count = seen.total.unwrap_or(seen.view.ops.len() as u64);
        confirmed(&format!("{count} operations failed; try them again? [y/N] "), console)
    }
}

impl TaskWatch {
    fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let task_id = self.task.to_string();
        let client = self.connection.client()?;
        let seen = wait::wait(&client, &task_id, self.timeout, self.output.format(), console)?;
        conclude(&seen, self.strict, &self.output, console)
    }
}

/// Prints how an awaited task ended.
fn conclude(
    seen: &WatchedTask,
    strict: bool,
    output: &OutputFlag,
    console: &mut Console<'_>,
) -> Result<VerbExit, Error> {
    match output.format() {
        Format::Json => console.json(&seen.data)?,
        Format::Text => console.print_line(&seen.summary())?,
    }
    Ok(seen.exit(strict))
}

impl TaskList {
    fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let client = self.connection.client()?;
        self.watching.repeat(console, |console| self.show(&client, console))
    }

    fn show(&self, client: &Client, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let now = console.now;
        let filters: Vec<(&'static str, String)> = [
            ("failed", self.failed.then(|| "true".to_owned())),
            ("state", self.state.clone()),
            ("since", self.since.map(|time| time.ago(now).to_string())),
        ]
        .into_iter()
        .filter_map(|(field, value)| Some((field, value?)))
        .collect();
        let page = PageFlags { limit: Some(self.limit), after: self.after.map(|task| task.to_string()) };
        let listed: ListedRows<TaskRow> =
            ListedRows::read(client, "/api/v1/tasks", &filters, &page, TASK_PAGE)?;
        match self.output.format() {
            Format::Json => console.json(&listed.json())?,
            Format::Text => console.table(
                ["TASK", "AGE", "USER", "APP", "WHAT", "TOTAL", "OPEN", "OK", "FAILED"],
                listed.rows.iter().map(|row| list_cells(row.clone(), now)).collect(),
                "no tasks",
            )?,
        }
        listed.note_more(console);
        Ok(VerbExit::Done)
    }
}

fn describe(seen: &WatchedTask, console: &mut Console<'_>) -> Result<(), Error> {
    let task = &seen.view.task;
    console.print_line(&seen.summary())?;
    let by = plain(&format!("by {} ({})", task.bk_username, task.bk_app_code));
    let at = console.moment(task.created_at);
    console.note(&format!("{by} at {at}"));
    if !task.retry_of.is_empty() {
        console.note(&format!("tries {} again where it failed", plain(&task.retry_of)));
    }
    if task.cancelled_at != 0 {
        let at = console.moment(task.cancelled_at);
        console.note(&format!("cancelled at {at}"));
    }
    let mut ops: Vec<&OpRow> = seen.view.ops.iter().collect();
    // A part of the ops stays in the order of its pages.
    if seen.has_all_ops() {
        ops.sort_by_cached_key(|op| (target_order(&op.target), op.namespace.clone(), op.name.clone()));
    }
    let rows = ops.into_iter().map(|op| op_cells(op, console)).collect();
    console.table(["TARGET", "NAMESPACE", "NAME", "OP", "STATE", "CODE", "MESSAGE"], rows, "no operations")
}

fn op_cells(op: &OpRow, console: &Console<'_>) -> [String; 7] {
    let state = match op_end(op) {
        OpEnd::Open => "open",
        OpEnd::Ok => "ok",
        OpEnd::AlreadySo(word) => word,
        OpEnd::Failed => "failed",
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
                let (code, message, at) = (op.late_code, &op.late_msg, console.moment(at));
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
