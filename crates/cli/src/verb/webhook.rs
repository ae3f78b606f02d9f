//! `procfleet webhook`: who is told of events as they come.

use crate::output::{Format, OutputFlag};
use crate::{ConnectionFlags, Error, Surroundings, VerbExit};
use procfleet_proto::http::events::WebhookRow;
use serde_json::json;

#[derive(Clone, Debug, clap::Subcommand)]
pub enum WebhookVerb {
    /// Send every event from now on to a url, as GSE sends its own
    Create(WebhookCreate),
    /// Show the webhooks, and whether their receivers take events
    List(WebhookList),
    /// Stop sending events to a url
    Remove(Remove),
}

#[derive(Clone, Debug, clap::Args)]
pub struct WebhookCreate {
    /// Who is to be told
    #[arg(value_name = "URL")]
    pub receiver: String,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct WebhookList {
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Remove {
    /// Its number, as `webhook list` shows it
    #[arg(value_name = "ID")]
    pub id: u64,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl WebhookVerb {
    pub(crate) fn output(&self) -> OutputFlag {
        match self {
            WebhookVerb::Create(create) => create.output,
            WebhookVerb::List(list) => list.output,
            WebhookVerb::Remove(remove) => remove.output,
        }
    }

    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let (answer, format) = match self {
            WebhookVerb::Create(WebhookCreate { receiver, output, connection }) => {
                (connection.client()?.post("/api/v1/webhooks", &json!({"url": receiver}))?, output.format())
            }
            WebhookVerb::List(WebhookList { output, connection }) => {
                (connection.client()?.get("/api/v1/webhooks", &[])?, output.format())
            }
            WebhookVerb::Remove(Remove { id, output, connection }) => {
                let path = format!("/api/v1/webhooks/{id}/remove");
                (connection.client()?.post(&path, &json!({}))?, output.format())
            }
        };
        match (format, self) {
            (Format::Json, _) => around.json(&answer.data)?,
            (Format::Text, WebhookVerb::Create(_)) => show(around, vec![answer.read()?])?,
            (Format::Text, WebhookVerb::List(_) | WebhookVerb::Remove(_)) => show(around, answer.read()?)?,
        }
        Ok(VerbExit::Done)
    }
}

fn show(around: &mut Surroundings<'_>, rows: Vec<WebhookRow>) -> Result<(), Error> {
    let cells = |row: WebhookRow| {
        let since = around.moment(row.created_at);
        [row.id.to_string(), row.url, since, row.waiting.to_string(), row.trouble]
    };
    let rows = rows.into_iter().map(cells).collect();
    around.table(["ID", "URL", "SINCE", "WAITING", "TROUBLE"], rows, "there are no webhooks")
}
