//! `procfleet webhook`: the URLs that receive events.

use super::common::CommonFlags;
use crate::output::OutputFlag;
use crate::{Console, Error, VerbExit};
use procfleet_proto::http::events::WebhookRow;
use serde_json::json;

#[derive(Clone, Debug, clap::Subcommand)]
pub enum WebhookVerb {
    /// Send every new event to a URL, in the format of GSE
    Create(WebhookCreate),
    /// List the webhooks, with waiting events and delivery errors
    List(CommonFlags),
    /// Remove a webhook
    Remove(Remove),
}

#[derive(Clone, Debug, clap::Args)]
pub struct WebhookCreate {
    /// URL that receives the events
    #[arg(value_name = "URL")]
    pub receiver: String,
    #[command(flatten)]
    pub common: CommonFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Remove {
    /// Number of the webhook, as `webhook list` shows it
    #[arg(value_name = "ID")]
    pub id: u64,
    #[command(flatten)]
    pub common: CommonFlags,
}

impl WebhookVerb {
    pub(crate) fn output(&self) -> OutputFlag {
        match self {
            WebhookVerb::Create(WebhookCreate { common, .. })
            | WebhookVerb::List(common)
            | WebhookVerb::Remove(Remove { common, .. }) => common.output,
        }
    }

    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        match self {
            WebhookVerb::Create(WebhookCreate { receiver, common }) => {
                let answer = common.post("/api/v1/webhooks", &json!({"url": receiver}))?;
                common.show(console, &answer, |console, answer| show(console, vec![answer.read()?]))
            }
            WebhookVerb::List(common) => {
                let answer = common.get("/api/v1/webhooks")?;
                common.show(console, &answer, |console, answer| show(console, answer.read()?))
            }
            WebhookVerb::Remove(Remove { id, common }) => {
                let answer = common.post_empty(&format!("/api/v1/webhooks/{id}/remove"))?;
                common.show(console, &answer, |console, answer| show(console, answer.read()?))
            }
        }
    }
}

fn show(console: &mut Console<'_>, rows: Vec<WebhookRow>) -> Result<(), Error> {
    let cells = |row: WebhookRow| {
        let since = console.moment(row.created_at);
        [row.id.to_string(), row.url, since, row.waiting.to_string(), row.trouble]
    };
    let rows = rows.into_iter().map(cells).collect();
    console.table(["ID", "URL", "SINCE", "WAITING", "TROUBLE"], rows, "there are no webhooks")
}
