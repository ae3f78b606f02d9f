//! `procfleet ps`: the processes as the server knows them. It causes no work on any host; `status` does.

use super::targets::host;
use crate::output::{Format, Output, age, yes_no};
use crate::{Connection, Error, Exit, Surroundings};
use procfleet_core::id::Host;
use procfleet_proto::http::native::{ProcRow, ProcState};

#[derive(Clone, Debug, clap::Args)]
pub struct Ps {
    /// Only the processes of this namespace
    #[arg(long, value_name = "NS")]
    pub namespace: Option<String>,
    /// Only the processes of this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only the processes of this host, as CLOUD:IP, or IP for cloud area 0
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub host: Option<Host>,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

impl Ps {
    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<Exit, Error> {
        let query: Vec<(&str, String)> = [
            ("namespace", self.namespace.clone()),
            ("name", self.name.clone()),
            ("host", self.host.map(|host| host.to_string())),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect();
        let answer = self.connection.client()?.get("/api/v1/procs", &query)?;
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => {
                let rows: Vec<ProcRow> = answer.read()?;
                let now = around.now;
                around.table(
                    ["HOST", "NAMESPACE", "NAME", "STATE", "HOSTED", "PID", "SINCE", "NOTE"],
                    rows.iter().map(|row| cells(row, now)).collect(),
                    "no processes",
                )?;
            }
        }
        Ok(Exit::Done)
    }
}

fn cells(row: &ProcRow, now: i64) -> [String; 8] {
    let state = match row.state {
        ProcState::Running => "running",
        ProcState::Stopped => "stopped",
        ProcState::Starting => "starting",
        ProcState::Stopping => "stopping",
        ProcState::Restarting => "restarting",
        ProcState::Reloading => "reloading",
        ProcState::Changing => "changing",
        ProcState::GaveUp => "gave up",
    };
    // The row has the time of the last start only, which says nothing about a process that is gone.
    let since = match row.pid {
        Some(_) => age(row.started_at, now),
        None => String::new(),
    };
    let (doubt, away) = match row.fresh {
        true => ("", String::new()),
        false => ("?", format!("agent away, last heard {} ago", age(row.reported_at, now))),
    };
    let health = if row.health.starts_with("unhealthy") { row.health.as_str() } else { "" };
    let notes: Vec<&str> = [&away, &row.note, health].into_iter().filter(|note| !note.is_empty()).collect();
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
