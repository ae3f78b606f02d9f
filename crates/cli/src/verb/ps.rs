//! `procfleet ps`: the processes as the server knows them. It causes no work on any host; `status` does.

use super::list::{FLEET_PAGE, ListedRows, PageFlags, Watching};
use super::targets::host;
use crate::client::Client;
use crate::output::{Format, OutputFlag, age, yes_no};
use crate::{ConnectionFlags, Console, Error, VerbExit};
use procfleet_core::id::Host;
use procfleet_proto::http::native::{ProcRow, ProcState};

#[derive(Clone, Debug, clap::Args)]
pub struct Ps {
    /// Only the processes of this namespace
    #[arg(long, value_name = "NS")]
    pub namespace: Option<String>,
    /// Only the processes of this name; * and ? are wildcards
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only the processes of this host, as CLOUD:IP, or IP for cloud area 0
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub host: Option<Host>,
    /// Only the processes on selected hosts: addresses, ranges, blocks, globs, ids, labels; repeatable
    #[arg(long, value_name = "TERM")]
    pub select: Vec<String>,
    /// Only the processes in this state
    #[arg(long, value_name = "STATE", value_parser = STATES)]
    pub state: Option<String>,
    /// Only the processes with a problem: given up, unhealthy, or with a note
    #[arg(long)]
    pub failed: bool,
    /// Order of the rows
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t)]
    pub sort: ProcSort,
    #[command(flatten)]
    pub page: PageFlags,
    #[command(flatten)]
    pub watching: Watching,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ProcSort {
    #[default]
    Host,
    Name,
    State,
    /// The most recently started processes first
    Since,
}

const STATES: [&str; 9] = [
    "running",
    "stopped",
    "starting",
    "stopping",
    "restarting",
    "reloading",
    "changing",
    "gave-up",
    "unknown",
];

impl Ps {
    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let client = self.connection.client()?;
        self.watching.repeat(console, |console| self.show(&client, console))
    }

    fn show(&self, client: &Client, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let query: Vec<(&'static str, String)> = [
            ("namespace", self.namespace.clone()),
            ("name", self.name.clone()),
            ("host", self.host.map(|host| host.to_string())),
            ("select", (!self.select.is_empty()).then(|| self.select.join(","))),
            ("state", self.state.as_ref().map(|state| state.replace('-', "_"))),
            ("failed", self.failed.then(|| "true".to_owned())),
            ("sort", self.sort.word().map(str::to_owned)),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect();
        let listed: ListedRows<ProcRow> =
            ListedRows::read(client, "/api/v1/procs", &query, &self.page, FLEET_PAGE)?;
        match self.output.format() {
            Format::Json => console.json(&listed.json())?,
            Format::Text => {
                let now = console.now;
                console.table(
                    ["HOST", "NAMESPACE", "NAME", "STATE", "HOSTED", "PID", "SINCE", "NOTE"],
                    listed.rows.iter().map(|row| cells(row, now)).collect(),
                    "no processes",
                )?;
            }
        }
        listed.note_more(console);
        Ok(VerbExit::Done)
    }
}

impl ProcSort {
    /// The value in the API; `None`: the default of the API.
    fn word(self) -> Option<&'static str> {
        match self {
            ProcSort::Host => None,
            ProcSort::Name => Some("name"),
            ProcSort::State => Some("state"),
            ProcSort::Since => Some("since"),
        }
    }
}

fn word(state: ProcState) -> &'static str {
    match state {
        ProcState::Running => "running",
        ProcState::Stopped => "stopped",
        ProcState::Starting => "starting",
        ProcState::Stopping => "stopping",
        ProcState::Restarting => "restarting",
        ProcState::Reloading => "reloading",
        ProcState::Changing => "changing",
        ProcState::GaveUp => "gave up",
        ProcState::Unknown => "unknown",
    }
}

fn cells(row: &ProcRow, now: i64) -> [String; 8] {
    let state = word(row.state);
    // The row has the time of the last start only, which says nothing about a process that is gone.
    let since = match row.pid {
        Some(_) => age(row.started_at, now),
        None => String::new(),
    };
    let (doubt, away) = match row.fresh {
        true => ("", String::new()),
        false => ("?", format!("agent away, last heard {} ago", age(row.reported_at, now))),
    };
    let health = row.health.unhealthy_reason().map(|_| row.health.to_string()).unwrap_or_default();
    let notes: Vec<&str> =
        [away.as_str(), &row.note, &health].into_iter().filter(|note| !note.is_empty()).collect();
    [
        format!("{}:{}", row.bk_cloud_id, row.ip),
        row.namespace.clone(),
        row.name.clone(),
        format!("{state}{doubt}"),
        yes_no(row.hosted),
        row.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        since,
        notes.join("; "),
    ]
}
