//! `procfleet start`, `stop`, `restart`, `reload`, `kill`, `host`, `unhost`, `unregister` and `status`: one
//! operation on any number of processes and hosts, and waiting for its outcomes. `request` builds the
//! request, and `status` prints a status.

use super::request::RequestFlags;
use super::spec_flags::SpecFlags;
use super::targets::{NAMESPACE_WITHOUT_FILE, Targets};
use super::{request, status};
use crate::client::{Client, ReplyData};
use crate::output::{Format, OutputFlag, Prompts, plain};
use crate::wait::{WaitMode, WatchedTask};
use crate::{ConnectionFlags, Console, Error, VerbExit};
use procfleet_core::code::Code;
use procfleet_core::op::OpKind;
use procfleet_proto::http::native::OperateAnswer;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::path::PathBuf;

const PATH: &str = "/api/v1/operate";
/// A person is asked to confirm an operation on more hosts than this.
pub(super) const ASK_ABOVE: u64 = 20;

#[derive(Clone, Debug, clap::Args)]
pub struct Operate {
    #[command(flatten)]
    pub targets: Targets,
    /// Only show the matching processes and hosts; send nothing to them
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation; implied without a terminal
    #[arg(long, short)]
    pub yes: bool,
    /// Request body or spec as JSON (- reads stdin); flags take precedence
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Label of the process; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    #[command(flatten)]
    pub waiting: WaitMode,
    /// Idempotency key: the same call with the same key creates one task
    #[arg(long, value_name = "KEY", conflicts_with = "dry_run")]
    pub idempotency_key: Option<String>,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub spec: SpecFlags,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

/// A change that needs no spec, such as `procfleet unregister`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("namespace", |namespace| namespace.help(NAMESPACE_WITHOUT_FILE)))]
pub struct OperateWithoutSpec {
    #[command(flatten)]
    pub targets: Targets,
    /// Only show the matching processes and hosts; send nothing to them
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation; implied without a terminal
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub waiting: WaitMode,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("namespace", |namespace| namespace.help(NAMESPACE_WITHOUT_FILE)))]
pub struct IsRunning {
    #[command(flatten)]
    pub targets: Targets,
    /// Print nothing; use the exit status
    #[arg(long, short)]
    pub quiet: bool,
    /// Maximum time to wait for the hosts
    #[arg(long, value_name = "SECS", default_value_t = 60)]
    pub timeout: u64,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl Operate {
    pub(crate) fn run(&self, kind: OpKind, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        // The command line is checked before the server is called.
        let file = self.file.as_deref().map(|path| request::read_file(path, console.input)).transpose()?;
        let body = request::body(self.request_flags(), kind, file)?;
        let call = OperateRun {
            kind,
            dry_run: self.dry_run,
            yes: self.yes,
            waiting: &self.waiting,
            key: self.idempotency_key.as_deref(),
            output: self.output,
        };
        let client = self.connection.client()?;
        let done = call.run(&client, body, console);
        unknown_if_no_host(kind, &self.targets, done, console)
    }

    pub(super) fn request_flags(&self) -> RequestFlags<'_> {
        RequestFlags { targets: &self.targets, labels: &self.labels, spec: &self.spec }
    }
}

impl OperateWithoutSpec {
    pub(crate) fn run(&self, kind: OpKind, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let mut body = Map::new();
        self.targets.write(&mut body)?;
        body.insert("op_type".to_owned(), json!(kind.number()));
        let OperateWithoutSpec { dry_run, yes, waiting, output, connection, .. } = self;
        let call = OperateRun { kind, dry_run: *dry_run, yes: *yes, waiting, key: None, output: *output };
        call.run(&connection.client()?, body, console)
    }
}

impl IsRunning {
    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let kind = OpKind::Query;
        let mut body = Map::new();
        self.targets.write(&mut body)?;
        body.insert("op_type".to_owned(), json!(kind.number()));
        let client = self.connection.client()?;
        let asked = || -> Result<VerbExit, Error> {
            let OperateAnswer { task_id, .. } = client.post(PATH, &body)?.read()?;
            Ok(status::exit(
                &crate::wait::wait_silently(&client, &task_id, self.timeout, console.pace)?.view.ops,
            ))
        };
        let asked = asked();
        let exit = unknown_if_no_host(kind, &self.targets, asked, console)?;
        if !self.quiet {
            console.print_line(match exit {
                VerbExit::Done => "running",
                VerbExit::Stopped => "stopped",
                VerbExit::Unknown | VerbExit::Failed | VerbExit::Usage | VerbExit::Unreachable => "unknown",
            })?;
        }
        Ok(exit)
    }
}

/// A process that no known host has is reported as unknown.
fn unknown_if_no_host(
    kind: OpKind,
    targets: &Targets,
    done: Result<VerbExit, Error>,
    console: &mut Console<'_>,
) -> Result<VerbExit, Error> {
    match done {
        Err(fault @ Error::Refused { code, .. })
            if kind == OpKind::Query && !targets.names_targets() && code == Code::BadRequest.external() =>
        {
            console.note(&format!("error: {fault}"));
            Ok(VerbExit::Unknown)
        }
        done => done,
    }
}

/// One call of `POST /api/v1/operate`, and its results.
struct OperateRun<'a> {
    kind: OpKind,
    dry_run: bool,
    yes: bool,
    waiting: &'a WaitMode,
    key: Option<&'a str>,
    output: OutputFlag,
}

impl OperateRun<'_> {
    fn run(
        &self,
        client: &Client,
        mut body: Map<String, Value>,
        console: &mut Console<'_>,
    ) -> Result<VerbExit, Error> {
        if self.dry_run {
            body.insert("dry_run".to_owned(), json!(true));
            let answer = client.post(PATH, &body)?;
            let matches: OperateAnswer = answer.read()?;
            match self.output.format() {
                Format::Json => console.json(&answer.data)?,
                Format::Text => show_matches(&matches, console)?,
            }
            return Ok(VerbExit::Done);
        }
        if !self.confirm(client, &body, console)? {
            console.note("nothing was sent");
            return Ok(VerbExit::Failed);
        }
        let answer = client.post_once(PATH, &body, self.key)?;
        let matches: OperateAnswer = answer.read()?;
        if matches.count > 1 {
            console.note(&match_summary(&matches));
        }
        self.follow(client, &answer, &matches.task_id, console)
    }

    /// Prompts for confirmation if there is a person and many hosts match.
    fn confirm(
        &self,
        client: &Client,
        body: &Map<String, Value>,
        console: &mut Console<'_>,
    ) -> Result<bool, Error> {
        if self.yes || console.prompts == Prompts::Forbidden || self.kind == OpKind::Query {
            return Ok(true);
        }
        let mut looking = body.clone();
        looking.insert("dry_run".to_owned(), json!(true));
        let matches: OperateAnswer = client.post(PATH, &looking)?.read()?;
        if matches.count <= ASK_ABOVE {
            return Ok(true);
        }
        confirmed(&format!("{}; {} them? [y/N] ", match_summary(&matches), self.kind.verb()), console)
    }

    /// Waits for the outcomes, unless the caller does not want to.
    fn follow(
        &self,
        client: &Client,
        answer: &ReplyData,
        task_id: &str,
        console: &mut Console<'_>,
    ) -> Result<VerbExit, Error> {
        match self.waiting.follow(client, answer, task_id, &self.output, console)? {
            Some(seen) => self.report(&seen, console),
            None => Ok(VerbExit::Done),
        }
    }

    fn report(&self, seen: &WatchedTask, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let query = self.kind == OpKind::Query;
        match self.output.format() {
            Format::Json => console.json(&seen.data)?,
            Format::Text if query => {
                let rows = status::rows(&seen.view.ops);
                console.table(status::HEADER, rows, "the task has no ops")?;
            }
            Format::Text => console.print_line(&seen.summary())?,
        }
        Ok(if query { status::exit(&seen.view.ops) } else { seen.exit(self.waiting.strict) })
    }
}

pub(super) fn confirmed(question: &str, console: &mut Console<'_>) -> Result<bool, Error> {
    console.ask(question)?;
    Ok(matches!(read_line(console.input).trim(), "y" | "Y" | "yes"))
}

fn match_summary(matches: &OperateAnswer) -> String {
    let hosts = if matches.count == 1 {
        "1 host matches".to_owned()
    } else {
        format!("{} hosts match", matches.count)
    };
    match matches.procs.as_slice() {
        [] | [_] => hosts,
        several => format!("{hosts}, with {} processes", several.len()),
    }
}

/// The hosts; if there are several processes, the hosts of each.
fn show_matches(matches: &OperateAnswer, console: &mut Console<'_>) -> Result<(), Error> {
    console.note(&format!("{}; nothing was sent", match_summary(matches)));
    match matches.procs.as_slice() {
        [] | [_] => matches.hosts.iter().try_for_each(|host| console.print_line(&plain(host))),
        several => several.iter().try_for_each(|proc| {
            let named = format!("{}:{}", proc.namespace, proc.name);
            proc.hosts.iter().try_for_each(|host| console.print_line(&plain(&format!("{host} {named}"))))
        }),
    }
}

/// Reads byte by byte: the input after the line belongs to others.
fn read_line(input: &mut dyn Read) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while matches!(input.read(&mut byte), Ok(1)) && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8_lossy(&line).into_owned()
}

pub(super) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("expected KEY=VALUE".to_owned()),
    }
}
