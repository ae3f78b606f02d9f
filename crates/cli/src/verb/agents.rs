//! `procfleet agents`: who has joined, who is connected, and whose they are.

use crate::output::{Format, Output, age};
use crate::{Connection, Error, Exit, Surroundings};
use procfleet_core::id::BusinessId;
use procfleet_proto::http::native::{AgentRow, AssignAgents, RevokeAgents};

#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Agents {
    #[command(subcommand)]
    pub change: Option<Change>,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum Change {
    /// Move agents to another business
    Assign(Box<Assign>),
    /// Cut agents off, for good: only a new join token lets their hosts in again
    Revoke(Box<Revoke>),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Assign {
    /// Agents by their ids, or hosts as CLOUD:IP
    #[arg(value_name = "AGENT_OR_HOST", required = true)]
    pub agents: Vec<String>,
    /// The business that they belong to from now on
    #[arg(long, value_name = "N")]
    pub business: BusinessId,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Revoke {
    /// Agents by their ids, or hosts as CLOUD:IP
    #[arg(value_name = "AGENT_OR_HOST", required = true)]
    pub agents: Vec<String>,
    /// Why, for the agent's log and for the audit
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

impl Agents {
    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<Exit, Error> {
        let (answer, output) = match &self.change {
            None => (self.connection.client()?.get("/api/v1/agents", &[])?, self.output),
            Some(Change::Assign(assign)) => {
                let wanted = AssignAgents { agents: assign.agents.clone(), bk_biz_id: assign.business.0 };
                let client = assign.connection.client()?;
                (client.post("/api/v1/agents/assign", &wanted)?, assign.output)
            }
            Some(Change::Revoke(revoke)) => {
                let wanted = RevokeAgents { agents: revoke.agents.clone(), reason: revoke.reason.clone() };
                let client = revoke.connection.client()?;
                (client.post("/api/v1/agents/revoke", &wanted)?, revoke.output)
            }
        };
        match output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => {
                let rows: Vec<AgentRow> = answer.read()?;
                let now = around.now;
                around.table(
                    ["AGENT", "HOST", "BUSINESS", "VERSION", "STATE", "SINCE"],
                    rows.iter().map(|row| cells(row, now)).collect(),
                    "no agent has joined yet: procfleet token create makes a token for one",
                )?;
            }
        }
        Ok(Exit::Done)
    }
}

fn cells(row: &AgentRow, now: i64) -> [String; 6] {
    [
        row.bk_agent_id.clone(),
        format!("{}:{}", row.bk_cloud_id, row.ip),
        format!("{} {}", row.bk_biz_id, row.bk_biz_name),
        row.version.clone(),
        match (row.revoked_at, row.connected) {
            (0, true) => "connected",
            (0, false) => "away",
            (_, _) => "revoked",
        }
        .to_owned(),
        age(row.since.max(row.revoked_at), now),
    ]
}
