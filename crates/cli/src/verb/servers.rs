//! `procfleet servers`: lists the servers of the fleet, and drains one.

use super::common::CommonFlags;
use super::list::Watching;
use crate::client::{Client, ReplyData};
use crate::output::{Format, OutputFlag, age};
use crate::{ConnectionFlags, Console, Error, VerbExit};
use procfleet_proto::http::servers::{DrainServer, ServerRow};

#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Servers {
    #[command(subcommand)]
    pub change: Option<ServerChange>,
    #[command(flatten)]
    pub watching: Watching,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum ServerChange {
    /// Drain a server before its upgrade: its agents move to the other servers. The server's restart ends the
    /// drain
    Drain(Box<DrainFlags>),
}

#[derive(Clone, Debug, clap::Args)]
pub struct DrainFlags {
    /// Name of the server, as `procfleet servers` shows it
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Let the server take agents again
    #[arg(long)]
    pub undo: bool,
    #[command(flatten)]
    pub common: CommonFlags,
}

impl Servers {
    pub(crate) fn output(&self) -> OutputFlag {
        match &self.change {
            None => self.output,
            Some(ServerChange::Drain(drain)) => drain.common.output,
        }
    }

    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        match &self.change {
            None => {
                let client = self.connection.client()?;
                self.watching.repeat(console, |console| self.list(&client, console))
            }
            Some(ServerChange::Drain(drain)) => {
                let wanted = DrainServer { name: drain.name.clone(), drain: !drain.undo };
                let answer = drain.common.post("/api/v1/servers/drain", &wanted)?;
                drain.common.show(console, &answer, show)
            }
        }
    }

    fn list(&self, client: &Client, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let answer = client.get("/api/v1/servers", &[])?;
        match self.output.format() {
            Format::Json => console.json(&answer.data)?,
            Format::Text => show(console, &answer)?,
        }
        Ok(VerbExit::Done)
    }
}

fn show(console: &mut Console<'_>, answer: &ReplyData) -> Result<(), Error> {
    let rows: Vec<ServerRow> = answer.read()?;
    let now = console.now;
    let rows = rows.into_iter().map(|row| cells(row, now)).collect();
    let header = ["NAME", "STATE", "VERSION", "SINCE", "AGENTS", "OPEN OPS", "LEASES", "WAKE-UPS", "URL"];
    console.table(header, rows, "there are no servers")
}

fn cells(row: ServerRow, now: i64) -> [String; 9] {
    let is_alive = matches!(row.state.as_str(), "up" | "draining");
    // A server that has ended has no figures.
    let if_alive = |text: String| if is_alive { text } else { String::new() };
    [
        if row.answering { format!("{} *", row.name) } else { row.name },
        row.state,
        row.version,
        if_alive(age(row.started_at, now)),
        if_alive(row.agents.to_string()),
        if_alive(row.open_ops.to_string()),
        row.leases.join(","),
        if_alive(row.wakeups),
        row.url,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_server_that_has_ended_are_left_out() {
        let row = |state: &str, leases: &[&str]| ServerRow {
            name: "s1".to_owned(),
            state: state.to_owned(),
            url: String::new(),
            version: "0.1.0".to_owned(),
            started_at: 1_000,
            agents: 7,
            open_ops: 2,
            leases: leases.iter().map(|lease| (*lease).to_owned()).collect(),
            wakeups: "polling".to_owned(),
            answering: state == "up",
        };
        for (state, leases, expected) in [
            ("up", &["unheld", "webhooks"][..], "s1 *|up|0.1.0|60s|7|2|unheld,webhooks|polling|"),
            ("draining", &[], "s1|draining|0.1.0|60s|7|2||polling|"),
            ("left", &[], "s1|left|0.1.0||||||"),
            ("dead", &[], "s1|dead|0.1.0||||||"),
        ] {
            assert_eq!(cells(row(state, leases), 1_060).join("|"), expected);
        }
    }
}
