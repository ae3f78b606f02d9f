//! `procfleet agents`: lists agents, and assigns, labels, revokes or deletes them.

use super::list::{self, FLEET_PAGE, ListedRows, PageFlags, Watching, host_order};
use super::operate::label;
use super::time_span::TimeSpan;
use crate::client::Client;
use crate::output::{Format, OutputFlag, age};
use crate::{ConnectionFlags, Console, Error, VerbExit};
use procfleet_core::id::BusinessId;
use procfleet_proto::http::cursor::{AgentCursor, AgentOrder};
use procfleet_proto::http::native::{AgentRow, AssignAgents, LabelAgents, RevokeAgents};
use serde_json::{Value, json};

#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Agents {
    #[command(subcommand)]
    pub change: Option<AgentChange>,
    /// Only agents of this cloud area
    #[arg(long, value_name = "N")]
    pub cloud: Option<u32>,
    /// Only agents of this business
    #[arg(long, value_name = "N")]
    pub business: Option<BusinessId>,
    /// Only agents of this version; * and ? are wildcards
    #[arg(long = "agent-version", value_name = "GLOB")]
    pub agent_version: Option<String>,
    /// Only agents in this state
    #[arg(long, value_name = "STATE", value_parser = ["connected", "away", "revoked"])]
    pub state: Option<String>,
    /// Only agents that have been away for at least this long, such as 10m or 2d
    #[arg(long, value_name = "TIME")]
    pub offline_for: Option<TimeSpan>,
    /// Only agents with this label; the value may be a glob; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// Only selected agents: addresses, ranges, blocks, globs, ids, labels; repeatable
    #[arg(long, value_name = "TERM")]
    pub select: Vec<String>,
    #[command(flatten)]
    pub page: PageFlags,
    /// Order of the rows, the same for each page [default: host]
    #[arg(long, value_name = "COLUMN", value_enum)]
    pub sort: Option<AgentSort>,
    #[command(flatten)]
    pub watching: Watching,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum AgentChange {
    /// Move agents to another business
    Assign(Box<Assign>),
    /// Set or remove labels of agents, by which they can be selected
    Label(Box<Label>),
    /// Revoke agents permanently: their hosts need a new join token to join again
    Revoke(Box<AgentRevoke>),
    /// Delete agents that will not come back, and their processes, from all lists
    Forget(Box<Forget>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AgentSort {
    Id,
    Host,
    Version,
    State,
    /// The most recently heard agents first
    Heard,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Forget {
    /// Agents by their ids, or hosts as CLOUD:IP; none of them may be connected
    #[arg(value_name = "AGENT_OR_HOST", required = true)]
    pub agents: Vec<String>,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Assign {
    /// Agents by their ids, or hosts as CLOUD:IP
    #[arg(value_name = "AGENT_OR_HOST", required = true)]
    pub agents: Vec<String>,
    /// New business of the agents
    #[arg(long, value_name = "N")]
    pub business: BusinessId,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Label {
    /// Agents by their ids, or hosts as CLOUD:IP
    #[arg(value_name = "AGENT_OR_HOST", required = true)]
    pub agents: Vec<String>,
    /// Label to set; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, required_unless_present = "remove")]
    pub set: Vec<(String, String)>,
    /// Key of a label to remove; repeatable
    #[arg(long, value_name = "KEY")]
    pub remove: Vec<String>,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct AgentRevoke {
    /// Agents by their ids, or hosts as CLOUD:IP
    #[arg(value_name = "AGENT_OR_HOST", required = true)]
    pub agents: Vec<String>,
    /// Reason, for the agent's log and the audit trail
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl Agents {
    pub(crate) fn output(&self) -> OutputFlag {
        match &self.change {
            None => self.output,
            Some(AgentChange::Assign(assign)) => assign.output,
            Some(AgentChange::Label(label)) => label.output,
            Some(AgentChange::Revoke(revoke)) => revoke.output,
            Some(AgentChange::Forget(forget)) => forget.output,
        }
    }

    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let answer = match &self.change {
            None => {
                let client = self.connection.client()?;
                return self.watching.repeat(console, |console| self.list(&client, console));
            }
            Some(AgentChange::Assign(assign)) => {
                let wanted = AssignAgents { agents: assign.agents.clone(), bk_biz_id: assign.business.0 };
                assign.connection.client()?.post("/api/v1/agents/assign", &wanted)?
            }
            Some(AgentChange::Label(label)) => {
                let wanted = LabelAgents {
                    agents: label.agents.clone(),
                    set: label.set.iter().cloned().collect(),
                    remove: label.remove.clone(),
                };
                label.connection.client()?.post("/api/v1/agents/label", &wanted)?
            }
            Some(AgentChange::Revoke(revoke)) => {
                let wanted = RevokeAgents { agents: revoke.agents.clone(), reason: revoke.reason.clone() };
                revoke.connection.client()?.post("/api/v1/agents/revoke", &wanted)?
            }
            Some(AgentChange::Forget(forget)) => {
                let wanted = json!({"agents": forget.agents});
                forget.connection.client()?.post("/api/v1/agents/forget", &wanted)?
            }
        };
        let mut rows: Vec<(Value, AgentRow)> = list::rows(&answer)?;
        rows.sort_by_cached_key(|(_, row)| host_order(row.bk_cloud_id, &row.ip));
        let (values, rows): (Vec<Value>, Vec<AgentRow>) = rows.into_iter().unzip();
        self.show(Value::Array(values), &rows, console)?;
        Ok(VerbExit::Done)
    }

    fn list(&self, client: &Client, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let mut query = self.filters();
        let sort = self.order()?;
        query.extend(sort.word().map(|word| ("sort", word.to_owned())));
        let listed = ListedRows::read(client, "/api/v1/agents", &query, &self.page, FLEET_PAGE)?;
        self.show(listed.json(), &listed.rows, console)?;
        listed.note_more(console);
        Ok(VerbExit::Done)
    }

    /// In earlier versions pages were ordered by id, and the cursor was the id of the last row. Continued in
    /// the order of hosts, such a page would leave agents out.
    fn order(&self) -> Result<AgentSort, Error> {
        let is_id = |after: &String| AgentCursor::read(AgentOrder::Host, after).is_none();
        match self.sort {
            Some(sort) => Ok(sort),
            None if self.page.after.as_ref().is_some_and(is_id) => Err(Error::Usage(
                "--after: an agent id continues a list in the order of ids; add --sort id to each page"
                    .to_owned(),
            )),
            None => Ok(AgentSort::Host),
        }
    }

    fn show(&self, json: Value, rows: &[AgentRow], console: &mut Console<'_>) -> Result<(), Error> {
        let now = console.now;
        match self.output().format() {
            Format::Json => console.json(&json),
            Format::Text => console.table(
                [
                    "AGENT",
                    "HOST",
                    "BUSINESS",
                    "VERSION",
                    "CONTAINMENT",
                    "STATE",
                    "SINCE",
                    "LAST HEARD",
                    "LABELS",
                ],
                rows.iter().map(|row| cells(row, now)).collect(),
                match self.filters().is_empty() && self.page.after.is_none() {
                    true => "no agent has joined yet: procfleet token create makes a token for one",
                    false => "no agent matches",
                },
            ),
        }
    }

    fn filters(&self) -> Vec<(&'static str, String)> {
        let select: Vec<&str> = self.select.iter().chain(&self.labels).map(String::as_str).collect();
        [
            ("bk_cloud_id", self.cloud.map(|cloud| cloud.to_string())),
            ("bk_biz_id", self.business.map(|business| business.to_string())),
            ("version", self.agent_version.clone()),
            ("state", self.state.clone()),
            ("offline_secs", self.offline_for.map(|time| time.secs.to_string())),
            ("select", Some(select.join(",")).filter(|select| !select.is_empty())),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

impl AgentSort {
    /// The value in the API; `None`: the default of the API.
    fn word(self) -> Option<&'static str> {
        match self {
            AgentSort::Id => None,
            AgentSort::Host => Some("host"),
            AgentSort::Version => Some("version"),
            AgentSort::State => Some("state"),
            AgentSort::Heard => Some("heard"),
        }
    }
}

fn state(row: &AgentRow) -> String {
    match (row.revoked_at, row.connected, row.revoked_why.as_str()) {
        (0, true, _) => "connected".to_owned(),
        (0, false, _) => "away".to_owned(),
        (_, _, "") => "revoked".to_owned(),
        (_, _, why) => format!("revoked ({why})"),
    }
}

fn cells(row: &AgentRow, now: i64) -> [String; 9] {
    [
        row.bk_agent_id.clone(),
        format!("{}:{}", row.bk_cloud_id, row.ip),
        format!("{} {}", row.bk_biz_id, row.bk_biz_name),
        row.version.clone(),
        if row.containment.is_empty() { "-".to_owned() } else { row.containment.clone() },
        state(row),
        age(row.since.max(row.revoked_at), now),
        age(row.heard_at, now),
        row.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(","),
    ]
}
