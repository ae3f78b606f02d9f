//! `procfleet webhook`: who is told of events as they come.

use crate::output::{Format, Output};
use crate::{Connection, Error, Exit, Surroundings};
use procfleet_proto::http::events::WebhookRow;
use serde_json::json;

#[derive(Clone, Debug, clap::Subcommand)]
pub enum Webhook {
    /// Send every event from now on to a url, as GSE sends its own
    Create(Create),
    /// Show the webhooks, and whether their receivers take events
    List(List),
    /// Stop sending events to a url
    Remove(Remove),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Create {
    /// Who is to be told
    #[arg(value_name = "URL")]
    pub receiver: String,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Debug, clap::Args)]
pub struct List {
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Remove {
    /// Its number, as `webhook list` shows it
    #[arg(value_name = "ID")]
    pub id: u64,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

impl Webhook {
    pub(crate) fn output(&self) -> Output {
        match self {
            Webhook::Create(create) => create.output,
            Webhook::List(list) => list.output,
            Webhook::Remove(remove) => remove.output,
        }
    }

    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<Exit, Error> {
        let (answer, format) = match self {
            Webhook::Create(Create { receiver, output, connection }) => {
                (connection.client()?.post("/api/v1/webhooks", &json!({"url": receiver}))?, output.format())
            }
            Webhook::List(List { output, connection }) => {
                (connection.client()?.get("/api/v1/webhooks", &[])?, output.format())
            }
            Webhook::Remove(Remove { id, output, connection }) => {
                let path = format!("/api/v1/webhooks/{id}/remove");
                (connection.client()?.post(&path, &json!({}))?, output.format())
            }
        };
        match (format, self) {
            (Format::Json, _) => around.json(&answer.data)?,
            (Format::Text, Webhook::Create(_)) => show(around, vec![answer.read()?])?,
            (Format::Text, Webhook::List(_) | Webhook::Remove(_)) => show(around, answer.read()?)?,
        }
        Ok(Exit::Done)
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
