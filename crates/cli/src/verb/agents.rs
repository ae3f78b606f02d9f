//! `procfleet agents`: who has joined, and who is connected.

use crate::output::{Format, Output, age};
use crate::{Connection, Error, Exit, Surroundings};
use procfleet_proto::http::native::AgentRow;

#[derive(Clone, Debug, clap::Args)]
pub struct Agents {
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

impl Agents {
    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<Exit, Error> {
        let answer = self.connection.client()?.get("/api/v1/agents", &[])?;
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => {
                let rows: Vec<AgentRow> = answer.read()?;
                let now = around.now;
                around.table(
                    ["AGENT", "HOST", "VERSION", "STATE", "SINCE"],
                    rows.iter().map(|row| cells(row, now)).collect(),
                    "no agent has joined yet: procfleet token create makes a token for one",
                )?;
            }
        }
        Ok(Exit::Done)
    }
}

fn cells(row: &AgentRow, now: i64) -> [String; 5] {
    [
        row.bk_agent_id.clone(),
        format!("{}:{}", row.bk_cloud_id, row.ip),
        row.version.clone(),
        if row.connected { "connected" } else { "away" }.to_owned(),
        age(row.since, now),
    ]
}
