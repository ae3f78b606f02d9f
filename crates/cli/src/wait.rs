//! Waits for a task: polls until no op is open, and prints each op as it ends.
//!
//! Ending the client ends only the waiting. The task continues, and `procfleet task watch` waits for it
//! again.

use crate::VerbExit;
use crate::client::{Client, ReplyData, path_segment};
use crate::error::Error;
use crate::output::{
    Colors, Console, Format, OutputFlag, PollPace, ProgressDisplay, Prompts, plain, plain_lines,
};
use indicatif::{ProgressBar, ProgressStyle};
use procfleet_core::code::Code;
use procfleet_core::op::OpKind;
use procfleet_proto::http::native::{OpRow, TaskView};
use serde_json::Value;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How long the server may hold a long poll.
const LONG_POLL: Duration = Duration::from_secs(1);
/// Maximum number of ops in one answer.
const OPS_PAGE: u32 = 10_000;
/// Maximum number of failures that are printed beside a progress bar; `task show` lists all.
const FAILURES_BESIDE_BAR: usize = 20;

/// Whether a verb waits for the outcomes of its task.
#[derive(Clone, Debug, clap::Args)]
pub struct WaitMode {
    /// Print the task's id and do not wait for the outcomes
    #[arg(long)]
    pub no_wait: bool,
    /// Maximum time to wait; the task continues
    #[arg(long, value_name = "SECS", default_value_t = 600, conflicts_with = "no_wait")]
    pub timeout: u64,
    /// Fail also where nothing had to be done: start of a running process (828), stop or kill of a stopped
    /// one (829)
    #[arg(long)]
    pub strict: bool,
}

impl WaitMode {
    /// Reports an accepted task, and waits for it. `None`: the caller does not wait.
    pub(crate) fn follow(
        &self,
        client: &Client,
        accepted: &ReplyData,
        task_id: &str,
        output: &OutputFlag,
        console: &mut Console<'_>,
    ) -> Result<Option<WatchedTask>, Error> {
        if self.no_wait {
            match output.format() {
                Format::Json => console.json(&accepted.data)?,
                Format::Text => console.print_line(&plain(task_id))?,
            }
            return Ok(None);
        }
        console.note(&format!("task {}", plain(task_id)));
        wait(client, task_id, self.timeout, output.format(), console).map(Some)
    }
}

/// The last known state of a task.
pub(crate) struct WatchedTask {
    pub(crate) data: Value,
    pub(crate) view: TaskView,
    /// The cursor of the ops that follow; `None`: there are none.
    pub(crate) next: Option<String>,
    /// How many ops there are on all pages.
    pub(crate) total: Option<u64>,
}

impl WatchedTask {
    /// Reads further pages until this many ops are read, or all.
    fn read_on(
        &mut self,
        client: &Client,
        filters: &[(&'static str, String)],
        wanted: usize,
    ) -> Result<(), Error> {
        while self.view.ops.len() < wanted {
            let Some(after) = self.next.take() else { return Ok(()) };
            let left = (wanted - self.view.ops.len()).min(OPS_PAGE as usize);
            let mut query: Vec<(&'static str, String)> =
                filters.iter().filter(|(field, _)| *field != "after").cloned().collect();
            query.extend([("limit", left.to_string()), ("after", after)]);
            let mut more = watched(client.get(&path(&self.view.task.task_id), &query)?)?;
            let (ops, others) = (self.data["ops"].as_array_mut(), more.data["ops"].as_array_mut());
            if let (Some(ops), Some(others)) = (ops, others) {
                ops.append(others);
            }
            self.view.ops.append(&mut more.view.ops);
            self.next = more.next;
        }
        Ok(())
    }

    pub(crate) fn exit(&self, strict: bool) -> VerbExit {
        let well = |op: &OpRow| match op_end(op) {
            OpEnd::Ok => true,
            OpEnd::AlreadySo(_) => !strict,
            OpEnd::Open | OpEnd::Failed => false,
        };
        let all_well = self.view.task.counts.open == 0 && self.view.ops.iter().all(well);
        if all_well { VerbExit::Done } else { VerbExit::Failed }
    }

    pub(crate) fn has_all_ops(&self) -> bool {
        self.view.ops.len() as u64 >= self.view.task.counts.total
    }

    /// `start web:nginx: 3 ok, 1 failed`.
    pub(crate) fn summary(&self) -> String {
        let count = |wanted: OpEnd| self.view.ops.iter().filter(|op| op_end(op) == wanted).count() as u64;
        let counts = self.view.task.counts;
        let parts = match self.has_all_ops() {
            true => vec![
                (count(OpEnd::Ok), "ok"),
                (count(OpEnd::AlreadySo(ALREADY_RUNNING)), ALREADY_RUNNING),
                (count(OpEnd::AlreadySo(NOT_RUNNING)), NOT_RUNNING),
                (count(OpEnd::Failed), "failed"),
                (count(OpEnd::Open), "open"),
            ],
            // Ops that had nothing to do are counted as failed by the server.
            false => vec![(counts.succeeded, "ok"), (counts.failed, "failed"), (counts.open, "open")],
        };
        let counts: Vec<String> = parts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let counts = if counts.is_empty() { "nothing to do".to_owned() } else { counts.join(", ") };
        format!("{}: {counts}", plain(&self.view.task.summary))
    }
}

/// How an op ended, as people and scripts see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpEnd {
    Open,
    Ok,
    /// The process was already in the requested state, and nothing was done.
    AlreadySo(&'static str),
    Failed,
}

const ALREADY_RUNNING: &str = "already running";
const NOT_RUNNING: &str = "not running";

pub(crate) fn op_end(op: &OpRow) -> OpEnd {
    let kind = OpKind::ALL.into_iter().find(|kind| kind.verb() == op.kind);
    match (Code::from_number(op.error_code), kind) {
        (Some(Code::Handling), _) => OpEnd::Open,
        (Some(Code::Success), _) => OpEnd::Ok,
        (Some(Code::AlreadyRunning), Some(OpKind::Start)) => OpEnd::AlreadySo(ALREADY_RUNNING),
        (Some(Code::NotRunning), Some(OpKind::Stop | OpKind::Kill)) => OpEnd::AlreadySo(NOT_RUNNING),
        (Some(_) | None, _) => OpEnd::Failed,
    }
}

/// A task with up to `limit` ops that pass the filters. `None`: one page.
pub(crate) fn show(
    client: &Client,
    task_id: &str,
    filters: &[(&'static str, String)],
    limit: Option<u32>,
) -> Result<WatchedTask, Error> {
    let mut query = filters.to_vec();
    query.extend(limit.map(|limit| ("limit", limit.min(OPS_PAGE).to_string())));
    let mut seen = watched(client.get(&path(task_id), &query)?)?;
    seen.read_on(client, filters, limit.map_or(0, |limit| limit as usize))?;
    Ok(seen)
}

/// Waits until no op is open, at most this many seconds. Returns the last state seen.
pub(crate) fn wait(
    client: &Client,
    task_id: &str,
    timeout: u64,
    format: Format,
    console: &mut Console<'_>,
) -> Result<WatchedTask, Error> {
    let mut printer = OutcomePrinter::new(console.progress, format);
    let seen = wait_for(client, task_id, Duration::from_secs(timeout), &mut printer, console)?;
    if seen.view.task.counts.open > 0 {
        console.note(&format!("not finished after {timeout} s; {}", still_running(task_id)));
    }
    Ok(seen)
}

/// Like [`wait`], without output.
pub(crate) fn wait_silently(
    client: &Client,
    task_id: &str,
    timeout: u64,
    pace: PollPace,
) -> Result<WatchedTask, Error> {
    let (mut input, mut out, mut err) = (std::io::empty(), std::io::sink(), std::io::sink());
    let mut nobody = Console {
        input: &mut input,
        out: &mut out,
        err: &mut err,
        progress: ProgressDisplay::Lines,
        prompts: Prompts::Forbidden,
        colors: Colors::Plain,
        zone: jiff::tz::TimeZone::UTC,
        now: 0,
        pace,
    };
    wait(client, task_id, timeout, Format::Text, &mut nobody)
}

fn wait_for(
    client: &Client,
    task_id: &str,
    timeout: Duration,
    printer: &mut OutcomePrinter,
    console: &mut Console<'_>,
) -> Result<WatchedTask, Error> {
    let began = Instant::now();
    let mut failed_tries = 0;
    loop {
        let asked = Instant::now();
        let left = timeout.saturating_sub(began.elapsed());
        let hold = left.min(LONG_POLL);
        match client.get(&path(task_id), &[("wait_ms", hold.as_millis().to_string())]) {
            Ok(answer) => {
                failed_tries = 0;
                let mut seen = watched(answer)?;
                seen.read_on(client, &[], usize::MAX)?;
                printer.print_outcomes(&seen.view, console)?;
                if seen.view.task.counts.open == 0 || left.is_zero() {
                    printer.finish(&seen.view, console);
                    return Ok(seen);
                }
                pause(console.pace.between.saturating_sub(asked.elapsed()));
            }
            // The task is safe in the store: a server that restarts is worth waiting for.
            Err(fault @ (Error::Unreachable { .. } | Error::Proxy { .. } | Error::Interrupted { .. })) => {
                if failed_tries >= console.pace.tries || left.is_zero() {
                    printer.clear();
                    console.note(&still_running(task_id));
                    return Err(fault);
                }
                if failed_tries == 0 {
                    printer.beside(&format!("{fault}; trying again"), console);
                }
                failed_tries += 1;
                pause(console.pace.pause);
            }
            Err(fault) => {
                printer.clear();
                return Err(fault);
            }
        }
    }
}

/// The hint for a user who stops waiting.
fn still_running(task_id: &str) -> String {
    format!("the task goes on; to wait for it again: procfleet task watch {}", plain(task_id))
}

fn path(task_id: &str) -> String {
    format!("/api/v1/tasks/{}", path_segment(task_id))
}

fn watched(answer: ReplyData) -> Result<WatchedTask, Error> {
    Ok(WatchedTask { view: answer.read()?, data: answer.data, next: answer.next, total: answer.total })
}

pub(crate) fn is_open(op: &OpRow) -> bool {
    op.error_code == Code::Handling.number()
}

/// Remembers the reported ops, so that each is reported once. Outcomes go to standard output, unless that has
/// one JSON document; progress goes to standard error.
struct OutcomePrinter {
    bar: Option<ProgressBar>,
    format: Format,
    printed: HashSet<String>,
    failures: usize,
}

impl OutcomePrinter {
    fn new(progress: ProgressDisplay, format: Format) -> OutcomePrinter {
        let bar = match progress {
            ProgressDisplay::Bar => Some(
                ProgressBar::new(0).with_style(
                    ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}")
                        .expect("a good template"),
                ),
            ),
            ProgressDisplay::Lines => None,
        };
        OutcomePrinter { bar, format, printed: HashSet::new(), failures: 0 }
    }

    fn print_outcomes(&mut self, view: &TaskView, console: &mut Console<'_>) -> Result<(), Error> {
        if let Some(bar) = &self.bar {
            let counts = view.task.counts;
            bar.set_message(plain(&view.task.summary));
            bar.set_length(counts.total);
            bar.set_position(counts.total.saturating_sub(counts.open));
        }
        for op in view.ops.iter().filter(|op| !is_open(op)) {
            if !self.printed.insert(op.op_id.clone()) {
                continue;
            }
            let query = op.kind == OpKind::Query.verb();
            let failed = op_end(op) == OpEnd::Failed;
            self.failures += usize::from(failed);
            let shown = match self.bar {
                Some(_) => failed && self.failures <= FAILURES_BESIDE_BAR,
                // The result of a successful query is in the table that follows.
                None => failed || !query,
            };
            match (shown, self.format) {
                (false, _) => {}
                // The table has the rows; the reason of an unknown state is printed to stderr.
                (true, Format::Text) if query => self.beside(&line(op), console),
                (true, Format::Text) => match &self.bar {
                    Some(bar) => bar.suspend(|| console.print_line(&line(op)))?,
                    None => console.print_line(&line(op))?,
                },
                (true, Format::Json) => self.beside(&line(op), console),
            }
        }
        Ok(())
    }

    fn beside(&self, text: &str, console: &mut Console<'_>) {
        match &self.bar {
            Some(bar) => bar.suspend(|| console.note(text)),
            None => console.note(text),
        }
    }

    fn finish(&self, view: &TaskView, console: &mut Console<'_>) {
        self.clear();
        if self.bar.is_some() && self.failures > FAILURES_BESIDE_BAR {
            let more = self.failures - FAILURES_BESIDE_BAR;
            console.note(&format!("and {more} more: procfleet task show {}", plain(&view.task.task_id)));
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `0:127.0.0.1 web:nginx start: ok`.
fn line(op: &OpRow) -> String {
    let head = plain(&format!("{} {}:{} {}", op.target, op.namespace, op.name, op.kind));
    let word = match op_end(op) {
        OpEnd::Ok => return format!("{head}: ok"),
        OpEnd::AlreadySo(word) => word,
        OpEnd::Open | OpEnd::Failed => "failed",
    };
    format!("{head}: {word} ({}): {}", op.error_code, plain_lines(&op.error_msg))
}

/// The server answers when something has changed; this only keeps a client from asking too often.
#[expect(clippy::disallowed_methods, reason = "a client has nothing to do between two questions")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
