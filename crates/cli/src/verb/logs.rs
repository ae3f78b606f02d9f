//! `procfleet logs`: what a process wrote, read from its host.
//!
//! Without `--follow` it ends where the log ended when it was first asked for, however fast the process
//! writes. With it, each instance is followed by a thread of its own, and this one prints what they bring, so
//! that lines never mix.

use super::list::{FLEET_PAGE, ListedRows, PageFlags, target_order};
use super::targets::host;
use crate::client::Client;
use crate::output::{Format, OutputFlag, PollPace};
use crate::{ConnectionFlags, Error, Surroundings, VerbExit};
use nix::sys::signal::{SigSet, Signal};
use procfleet_core::code::Code;
use procfleet_core::id::{AgentId, Host, ProcKey};
use procfleet_proto::http::logs::LogsView;
use procfleet_proto::http::native::ProcRow;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// How long the server may hold one question back while nothing happens.
const LONG_POLL: Duration = Duration::from_secs(20);
/// The most that one answer may have.
const MOST_LINES: u32 = 10_000;
/// The most logs that one command reads. With --follow each of them has a thread.
const MOST_SOURCES: u32 = 1_000;
/// How many agents one question names.
const AGENTS: usize = 100;
/// How many answers may wait to be printed.
const WAITING: usize = 16;

#[derive(Clone, Debug, clap::Args)]
pub struct Logs {
    /// The process's name in its namespace
    pub name: String,
    /// The group of processes it belongs to
    #[arg(long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    /// A host to read it from, as CLOUD:IP, or IP for cloud area 0; give it again for more. With no target:
    /// every host that has the process
    #[arg(long = "host", value_name = "HOST", value_parser = host, conflicts_with = "agents")]
    pub hosts: Vec<Host>,
    /// An agent to read it from, by its id; give it again for more
    #[arg(long = "agent", value_name = "ID")]
    pub agents: Vec<AgentId>,
    /// Only hosts that are meant: addresses, ranges, blocks, globs, ids, labels; give it again for more
    #[arg(long, value_name = "TERM", conflicts_with_all = ["hosts", "agents"])]
    pub select: Vec<String>,
    /// Only this instance of the process
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub instance: Option<u32>,
    /// How many of the newest lines to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub lines: u32,
    /// Go on showing lines as they come
    #[arg(long, short)]
    pub follow: bool,
    /// Print control characters as they are, such as colours
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

/// One log to read: an instance at a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogSource {
    /// `host` or `agent`, and which; nothing: the server finds the only one.
    at: Option<(&'static str, String)>,
    instance: u32,
}

/// A message of a thread that follows a log.
enum FollowNews {
    Read {
        source: usize,
        view: Box<LogsView>,
    },
    /// Something beside the lines, for the person.
    Told {
        source: usize,
        text: String,
    },
    Failed(Error),
    /// Ctrl-C.
    Stop,
}

impl Logs {
    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let client = self.connection.client()?;
        let sources = self.sources(&client)?;
        match self.follow {
            true => self.follow(&client, &sources, around),
            false => self.show(&client, &sources, around),
        }
    }

    /// Every instance that the server knows of at the named places. What it does not know may still have left
    /// its output.
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
        for (kind, place) in &named {
            let here = found.iter().filter(|(host, agent, _)| host == place || agent == place);
            let instances: BTreeSet<u32> = here.map(|(_, _, instance)| *instance).collect();
            let instances =
                if instances.is_empty() { BTreeSet::from([self.instance.unwrap_or(1)]) } else { instances };
            let at = Some((*kind, place.clone()));
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
            (source.at.as_ref().map(|(_, place)| target_order(place)), source.instance)
        });
        Ok(sources)
    }

    /// The process and its instances, on the hosts that are meant. A revoked host answers nothing, so it is
    /// not asked unless it is named.
    fn procs(&self, client: &Client, named: &[(&'static str, String)]) -> Result<Vec<ProcRow>, Error> {
        let questions: Vec<(&'static str, String)> = match (named, self.agents.as_slice()) {
            ([], _) if self.select.is_empty() => vec![("usable", "true".to_owned())],
            ([], _) => vec![("select", self.select.join(","))],
            (named, []) => named.to_vec(),
            // A selection has a longest text.
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
                        "{} has {} logs on the hosts that are meant, and at most {MOST_SOURCES} are read: name fewer with \
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
        around: &mut Surroundings<'_>,
    ) -> Result<VerbExit, Error> {
        each(sources, around, |source, label, around| self.read_all(client, source, label, around))
    }

    /// False: there is nobody left to print for.
    fn read_all(
        &self,
        client: &Client,
        source: &LogSource,
        label: &str,
        around: &mut Surroundings<'_>,
    ) -> Result<bool, Error> {
        let mut view = self.ask(client, source, None)?;
        if !view.note.is_empty() {
            around.note(&format!("{label}{}", view.note));
        }
        let (end, mut left) = (place(&view.end), self.lines as usize);
        loop {
            if !self.print(&view, label, around)? {
                return Ok(false);
            }
            left = left.saturating_sub(view.lines.len());
            let reached = place(&view.cursor);
            if left == 0 || reached >= end || view.lines.is_empty() {
                break;
            }
            view = self.ask(client, source, Some((view.cursor.clone(), Duration::ZERO)))?;
            view.lines.truncate(left);
        }
        if left > 0 && !view.rest.is_empty() && self.output.format() == Format::Text {
            return say(around, &format!("{label}{}", self.shown(&view.rest)));
        }
        Ok(true)
    }

    fn follow(
        &self,
        client: &Client,
        sources: &[LogSource],
        around: &mut Surroundings<'_>,
    ) -> Result<VerbExit, Error> {
        let (tell, news) = sync_channel(WAITING);
        let interrupt = SigSet::from(Signal::SIGINT);
        // Before there are threads: all of them leave the signal to the one that waits for it.
        let blocked = interrupt.thread_block().is_ok();
        if blocked {
            let tell = tell.clone();
            std::thread::spawn(move || {
                if interrupt.wait().is_ok() {
                    let _ = tell.send(FollowNews::Stop);
                }
            });
        }
        // A host that is away now may be back in a moment; a question that is wrong stays wrong.
        let mut first = Vec::new();
        for source in sources {
            first.push(match self.ask(client, source, None) {
                Ok(view) => Some(view),
                Err(fault) if is_passing(&fault) => None,
                Err(fault) => return Err(fault),
            });
        }
        for (number, (source, first)) in sources.iter().zip(first).enumerate() {
            let (logs, client, source, tell) = (self.clone(), client.clone(), source.clone(), tell.clone());
            let pace = around.pace;
            std::thread::spawn(move || logs.follow_one(&client, number, &source, first, pace, &tell));
        }
        drop(tell);
        loop {
            match news.recv() {
                Ok(FollowNews::Read { source, view }) => {
                    let label = label(sources, source);
                    if view.skipped_bytes > 0 {
                        around.note(&format!("{label}{} bytes were rotated away unread", view.skipped_bytes));
                    }
                    if !self.print(&view, &label, around)? {
                        return Ok(VerbExit::Done);
                    }
                }
                Ok(FollowNews::Told { source, text }) => {
                    let label = label(sources, source);
                    around.note(&format!("{label}{text}"));
                }
                Ok(FollowNews::Failed(fault)) => return Err(fault),
                Ok(FollowNews::Stop) | Err(_) => return Ok(VerbExit::Done),
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
        tell: &SyncSender<FollowNews>,
    ) {
        let mut cursor = None;
        let mut next = first.map(Ok);
        let mut troubled = false;
        loop {
            let since = cursor.clone().map(|cursor| (cursor, LONG_POLL));
            let news = match next.take().unwrap_or_else(|| self.ask(client, source, since)) {
                Ok(view) => {
                    troubled = false;
                    cursor = Some(view.cursor.clone());
                    Some(FollowNews::Read { source: number, view: Box::new(view) })
                }
                // Nothing is missed, for the question names the last line that was seen.
                Err(fault) if is_passing(&fault) => {
                    let told = (!troubled).then(|| FollowNews::Told {
                        source: number,
                        text: format!("{fault}; waiting for it"),
                    });
                    troubled = true;
                    crate::wait::pause(pace.pause);
                    told
                }
                Err(fault) => {
                    let _ = tell.send(FollowNews::Failed(fault));
                    return;
                }
            };
            if news.is_some_and(|news| tell.send(news).is_err()) {
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
    fn print(&self, view: &LogsView, label: &str, around: &mut Surroundings<'_>) -> Result<bool, Error> {
        if self.output.format() == Format::Json {
            return say(around, &serde_json::to_string(view).unwrap_or_default());
        }
        if view.lines.is_empty() {
            return Ok(true);
        }
        let lines: Vec<String> =
            view.lines.iter().map(|line| format!("{label}{}", self.shown(line))).collect();
        say(around, &lines.join("\n"))
    }

    /// Escape sequences in a process's output must not move the reader's cursor.
    fn shown(&self, line: &str) -> String {
        match self.raw {
            true => line.to_owned(),
            false => line.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect(),
        }
    }
}

/// Does something with one log after the other, until it answers that nobody is left to do it for.
fn each(
    sources: &[LogSource],
    around: &mut Surroundings<'_>,
    mut act: impl FnMut(&LogSource, &str, &mut Surroundings<'_>) -> Result<bool, Error>,
) -> Result<VerbExit, Error> {
    let mut exit = VerbExit::Done;
    for (number, source) in sources.iter().enumerate() {
        let label = label(sources, number);
        match act(source, &label, around) {
            Ok(true) => {}
            Ok(false) => return Ok(exit),
            // One host that is away spoils nothing for the others.
            Err(fault @ Error::Refused { .. }) if sources.len() > 1 => {
                around.note(&format!("{label}error: {fault}"));
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
    let several_places = sources.iter().any(|source| source.at != *at);
    let several_instances = sources.iter().any(|source| source.instance != *instance);
    let place = at.as_ref().filter(|_| several_places).map(|(_, place)| place.clone());
    let instance = several_instances.then(|| format!("#{instance}"));
    let parts: Vec<String> = place.into_iter().chain(instance).collect();
    format!("[{}] ", parts.join(" "))
}

/// Worth waiting for: a server or an agent that restarts.
fn is_passing(fault: &Error) -> bool {
    match fault {
        Error::Unreachable { .. } | Error::Interrupted { .. } => true,
        Error::Refused { code, .. } => {
            [Code::NoAgent, Code::Timeout, Code::Busy].map(Code::external).contains(code)
        }
        Error::Usage(_)
        | Error::NoCredentials { .. }
        | Error::HalfOfALogin { .. }
        | Error::Untrusted { .. }
        | Error::Undecided { .. }
        | Error::Stranger { .. }
        | Error::Denied { .. }
        | Error::Output(_) => false,
    }
}

fn join(agents: &[AgentId]) -> String {
    agents.iter().map(AgentId::as_str).collect::<Vec<_>>().join(",")
}

fn place(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

/// False: whoever read it has left, and need not be told more.
fn say(around: &mut Surroundings<'_>, text: &str) -> Result<bool, Error> {
    match writeln!(around.out, "{text}").and_then(|()| around.out.flush()) {
        Ok(()) => Ok(true),
        Err(fault) if fault.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(fault) => Err(Error::Output(fault)),
    }
}
