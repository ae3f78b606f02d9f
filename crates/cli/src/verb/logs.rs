//! `procfleet logs`: the output of a process, read from its host.
//!
//! Without `--follow` it ends where the log ended when it was first asked for, however fast the process
//! writes. With it, each instance is followed by its own thread, and the main thread prints, so that lines
//! never mix.

use super::list::{FLEET_PAGE, ListedRows, PageFlags, target_order};
use super::targets::host;
use crate::client::Client;
use crate::output::{Format, OutputFlag, PollPace};
use crate::{ConnectionFlags, Console, Error, VerbExit};
use nix::sys::signal::{SigSet, Signal};
use procfleet_core::code::Code;
use procfleet_core::id::{AgentId, Host, ProcKey};
use procfleet_proto::http::logs::LogsView;
use procfleet_proto::http::native::ProcRow;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// How long the server may hold a long poll.
const LONG_POLL: Duration = Duration::from_secs(20);
/// Maximum number of lines in one answer.
const MOST_LINES: u32 = 10_000;
/// Maximum number of logs that one command reads. With --follow each has a thread.
const MOST_SOURCES: u32 = 1_000;
/// Number of agents in one request.
const AGENTS: usize = 100;
/// Number of answers that may wait to be printed.
const WAITING: usize = 16;

#[derive(Clone, Debug, clap::Args)]
pub struct Logs {
    /// Name of the process in its namespace
    pub name: String,
    /// Namespace of the process
    #[arg(long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    /// Host, as CLOUD:IP, or IP for cloud area 0; repeatable. Without a target: every host that has the
    /// process
    #[arg(long = "host", value_name = "HOST", value_parser = host, conflicts_with = "agents")]
    pub hosts: Vec<Host>,
    /// Host by its agent id; repeatable
    #[arg(long = "agent", value_name = "ID")]
    pub agents: Vec<AgentId>,
    /// Only selected hosts: addresses, ranges, blocks, globs, ids, labels; repeatable
    #[arg(long, value_name = "TERM", conflicts_with_all = ["hosts", "agents"])]
    pub select: Vec<String>,
    /// Only this instance of the process
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub instance: Option<u32>,
    /// Number of the newest lines to show
    #[arg(long, short = 'n', visible_alias = "limit", value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub lines: u32,
    /// Follow: keep showing new lines
    #[arg(long, short)]
    pub follow: bool,
    /// Print control characters unchanged, such as colours
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

/// One log to read: an instance on a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogSource {
    /// `host` or `agent`, and its id. `None`: the server finds the only host.
    at: Option<(&'static str, String)>,
    instance: u32,
}

/// A message of a thread that follows a log.
enum FollowMessage {
    Read {
        source: usize,
        view: Box<LogsView>,
    },
    /// A note for stderr.
    Note {
        source: usize,
        text: String,
    },
    Failed(Error),
    /// Ctrl-C.
    Stop,
}

impl Logs {
    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let client = self.connection.client()?;
        let sources = self.sources(&client)?;
        match self.follow {
            true => self.follow(&client, &sources, console),
            false => self.show(&client, &sources, console),
        }
    }

    /// Every instance that the server knows on the named targets, and the targets without one: an
    /// unregistered process may have left its output.
    fn sources(&self, client: &Client) -> Result<Vec<LogSource>, Error> {
        let named: Vec<(&'static str, String)> = match self.agents.is_empty() {
            true => self.hosts.iter().map(|host| ("host", host.to_string())).collect(),
            false => self.agents.iter().map(|agent| ("agent", agent.to_string())).collect(),
        };
        let rows = self.procs(client, &named)?;
        let wanted = ProcKey { namespace: self.namespace.clone(), name: self.name.clone() };
        let found: Vec<(String, String, u32)> = rows
            .iter()
            .filter_map(|row| {
                let key = ProcKey { namespace: row.namespace.clone(), name: row.name.clone() };
                let instance = match key.whole() {
                    _ if key == wanted => 1,
                    (whole, number) if whole == wanted => number,
                    _ => return None,
                };
                let host = format!("{}:{}", row.bk_cloud_id, row.ip);
                (self.instance.is_none_or(|only| only == instance))
                    .then(|| (host, row.bk_agent_id.clone(), instance))
            })
            .collect();
        let mut sources = BTreeSet::new();
        if named.is_empty() {
            sources.extend(
                found.iter().map(|(host, _, n)| LogSource { at: Some(("host", host.clone())), instance: *n }),
            );
        }
        for (kind, target) in &named {
            let here = found.iter().filter(|(host, agent, _)| host == target || agent == target);
            let instances: BTreeSet<u32> = here.map(|(_, _, instance)| *instance).collect();
            let instances =
                if instances.is_empty() { BTreeSet::from([self.instance.unwrap_or(1)]) } else { instances };
            let at = Some((*kind, target.clone()));
            sources.extend(instances.into_iter().map(|instance| LogSource { at: at.clone(), instance }));
        }
        if sources.is_empty() && !self.select.is_empty() {
            return Err(Error::Usage("no selected host is known to have the process".to_owned()));
        }
        if sources.is_empty() {
            sources.insert(LogSource { at: None, instance: self.instance.unwrap_or(1) });
        }
        let mut sources: Vec<LogSource> = sources.into_iter().collect();
        sources.sort_by_cached_key(|source| {
            (source.at.as_ref().map(|(_, target)| target_order(target)), source.instance)
        });
        Ok(sources)
    }

    /// The process and its instances on the selected hosts. A revoked host does not answer, so it is asked
    /// only if it is named.
    fn procs(&self, client: &Client, named: &[(&'static str, String)]) -> Result<Vec<ProcRow>, Error> {
        let questions: Vec<(&'static str, String)> = match (named, self.agents.as_slice()) {
            ([], _) if self.select.is_empty() => vec![("usable", "true".to_owned())],
            ([], _) => vec![("select", self.select.join(","))],
            (named, []) => named.to_vec(),
            // The text of a selection has a maximum length.
            (_, agents) => agents.chunks(AGENTS).map(|some| ("select", join(some))).collect(),
        };
        let mut rows = Vec::new();
        for question in questions {
            for name in [self.name.clone(), format!("{}#*", self.name)] {
                let mut filters =
                    vec![("namespace", self.namespace.clone()), ("name", name), question.clone()];
                if named.is_empty() && question.0 != "usable" {
                    filters.push(("usable", "true".to_owned()));
                }
                let page = PageFlags { limit: Some(MOST_SOURCES), after: None };
                let listed: ListedRows<ProcRow> =
                    ListedRows::read(client, "/api/v1/procs", &filters, &page, FLEET_PAGE)?;
                rows.extend(listed.rows);
                let total = listed.total.unwrap_or_default();
                if total > u64::from(MOST_SOURCES) || rows.len() > MOST_SOURCES as usize {
                    return Err(Error::Usage(format!(
                        "{} has {} logs on the selected hosts, and at most {MOST_SOURCES} are read: name fewer with \
                         --host or --select",
                        self.name,
                        total.max(rows.len() as u64)
                    )));
                }
            }
        }
        Ok(rows)
    }

    fn show(
        &self,
        client: &Client,
        sources: &[LogSource],
        console: &mut Console<'_>,
    ) -> Result<VerbExit, Error> {
        each(sources, console, |source, label, console| self.read_all(client, source, label, console))
    }

    /// False: there is nobody left to print for.
    fn read_all(
        &self,
        client: &Client,
        source: &LogSource,
        label: &str,
        console: &mut Console<'_>,
    ) -> Result<bool, Error> {
        let mut view = self.ask(client, source, None)?;
        if !view.note.is_empty() {
            console.note(&format!("{label}{}", view.note));
        }
        let (end, mut left) = (offset(&view.end), self.lines as usize);
        loop {
            if !self.print(&view, label, console)? {
                return Ok(false);
            }
            left = left.saturating_sub(view.lines.len());
            let reached = offset(&view.cursor);
            if left == 0 || reached >= end || view.lines.is_empty() {
                break;
            }
            view = self.ask(client, source, Some((view.cursor.clone(), Duration::ZERO)))?;
            view.lines.truncate(left);
        }
        if left > 0 && !view.rest.is_empty() && self.output.format() == Format::Text {
            return say(console, &format!("{label}{}", self.shown(&view.rest)));
        }
        Ok(true)
    }

    fn follow(
        &self,
        client: &Client,
        sources: &[LogSource],
        console: &mut Console<'_>,
    ) -> Result<VerbExit, Error> {
        let (sender, messages) = sync_channel(WAITING);
        let interrupt = SigSet::from(Signal::SIGINT);
        // Blocked before there are threads, so that only the waiting thread gets the signal.
        let blocked = interrupt.thread_block().is_ok();
        if blocked {
            let sender = sender.clone();
            std::thread::spawn(move || {
                if interrupt.wait().is_ok() {
                    let _ = sender.send(FollowMessage::Stop);
                }
            });
        }
        // A host that is away may come back, so the error is ignored; an invalid request ends the command.
        let mut first = Vec::new();
        for source in sources {
            first.push(match self.ask(client, source, None) {
                Ok(view) => Some(view),
                Err(fault) if is_passing(&fault) => None,
                Err(fault) => return Err(fault),
            });
        }
        for (number, (source, first)) in sources.iter().zip(first).enumerate() {
            let (logs, client, source, sender) =
                (self.clone(), client.clone(), source.clone(), sender.clone());
            let pace = console.pace;
            std::thread::spawn(move || logs.follow_one(&client, number, &source, first, pace, &sender));
        }
        drop(sender);
        loop {
            match messages.recv() {
                Ok(FollowMessage::Read { source, view }) => {
                    let label = label(sources, source);
                    if view.skipped_bytes > 0 {
                        console
                            .note(&format!("{label}{} bytes were rotated away unread", view.skipped_bytes));
                    }
                    if !self.print(&view, &label, console)? {
                        return Ok(VerbExit::Done);
                    }
                }
                Ok(FollowMessage::Note { source, text }) => {
                    let label = label(sources, source);
                    console.note(&format!("{label}{text}"));
                }
                Ok(FollowMessage::Failed(fault)) => return Err(fault),
                Ok(FollowMessage::Stop) | Err(_) => return Ok(VerbExit::Done),
            }
        }
    }

    fn follow_one(
        &self,
        client: &Client,
        number: usize,
        source: &LogSource,
        first: Option<LogsView>,
        pace: PollPace,
        sender: &SyncSender<FollowMessage>,
    ) {
        let mut cursor = None;
        let mut next = first.map(Ok);
        let mut troubled = false;
        loop {
            let since = cursor.clone().map(|cursor| (cursor, LONG_POLL));
            let message = match next.take().unwrap_or_else(|| self.ask(client, source, since)) {
                Ok(view) => {
                    troubled = false;
                    cursor = Some(view.cursor.clone());
                    Some(FollowMessage::Read { source: number, view: Box::new(view) })
                }
                // No line is missed, because the request names the last line seen.
                Err(fault) if is_passing(&fault) => {
                    let note = (!troubled).then(|| FollowMessage::Note {
                        source: number,
                        text: format!("{fault}; waiting for it"),
                    });
                    troubled = true;
                    crate::wait::pause(pace.pause);
                    note
                }
                Err(fault) => {
                    let _ = sender.send(FollowMessage::Failed(fault));
                    return;
                }
            };
            if message.is_some_and(|message| sender.send(message).is_err()) {
                return;
            }
        }
    }

    fn ask(
        &self,
        client: &Client,
        source: &LogSource,
        since: Option<(String, Duration)>,
    ) -> Result<LogsView, Error> {
        let mut query = vec![
            ("namespace", self.namespace.clone()),
            ("name", self.name.clone()),
            ("instance", source.instance.to_string()),
        ];
        query.extend(source.at.clone());
        match since {
            None => query.push(("lines", self.lines.to_string())),
            Some((cursor, wait)) => query.extend([
                ("lines", MOST_LINES.to_string()),
                ("since", cursor),
                ("wait_ms", wait.as_millis().to_string()),
            ]),
        }
        client.get("/api/v1/logs", &query)?.read()
    }

    /// False: there is nobody left to print for.
    fn print(&self, view: &LogsView, label: &str, console: &mut Console<'_>) -> Result<bool, Error> {
        if self.output.format() == Format::Json {
            return say(console, &serde_json::to_string(view).unwrap_or_default());
        }
        if view.lines.is_empty() {
            return Ok(true);
        }
        let lines: Vec<String> =
            view.lines.iter().map(|line| format!("{label}{}", self.shown(line))).collect();
        say(console, &lines.join("\n"))
    }

    /// Escape sequences in a process's output must not move the reader's cursor.
    fn shown(&self, line: &str) -> String {
        match self.raw {
            true => line.to_owned(),
            false => line.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect(),
        }
    }
}

/// Calls `act` for one log after the other, until it returns that the output is closed.
fn each(
    sources: &[LogSource],
    console: &mut Console<'_>,
    mut act: impl FnMut(&LogSource, &str, &mut Console<'_>) -> Result<bool, Error>,
) -> Result<VerbExit, Error> {
    let mut exit = VerbExit::Done;
    for (number, source) in sources.iter().enumerate() {
        let label = label(sources, number);
        match act(source, &label, console) {
            Ok(true) => {}
            Ok(false) => return Ok(exit),
            // A host that is away does not affect the others.
            Err(fault @ Error::Refused { .. }) if sources.len() > 1 => {
                console.note(&format!("{label}error: {fault}"));
                exit = VerbExit::Failed;
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(exit)
}

/// The prefix of each line if there are several logs.
fn label(sources: &[LogSource], number: usize) -> String {
    if sources.len() < 2 {
        return String::new();
    }
    let LogSource { at, instance } = &sources[number];
    let several_targets = sources.iter().any(|source| source.at != *at);
    let several_instances = sources.iter().any(|source| source.instance != *instance);
    let target = at.as_ref().filter(|_| several_targets).map(|(_, target)| target.clone());
    let instance = several_instances.then(|| format!("#{instance}"));
    let parts: Vec<String> = target.into_iter().chain(instance).collect();
    format!("[{}] ", parts.join(" "))
}

/// Whether the error may be transient: a server or an agent that restarts.
fn is_passing(fault: &Error) -> bool {
    match fault {
        Error::Unreachable { .. } | Error::Proxy { .. } | Error::Interrupted { .. } => true,
        Error::Refused { code, .. } => {
            [Code::NoAgent, Code::Timeout, Code::Busy].map(Code::external).contains(code)
        }
        Error::Usage(_)
        | Error::NoCredentials { .. }
        | Error::IncompleteLogin { .. }
        | Error::Untrusted { .. }
        | Error::OutcomeUnknown { .. }
        | Error::UnexpectedAnswer { .. }
        | Error::Denied { .. }
        | Error::Output(_) => false,
    }
}

fn join(agents: &[AgentId]) -> String {
    agents.iter().map(AgentId::as_str).collect::<Vec<_>>().join(",")
}

fn offset(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

/// False: the output is closed.
fn say(console: &mut Console<'_>, text: &str) -> Result<bool, Error> {
    match writeln!(console.out, "{text}").and_then(|()| console.out.flush()) {
        Ok(()) => Ok(true),
        Err(fault) if fault.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(fault) => Err(Error::Output(fault)),
    }
}
