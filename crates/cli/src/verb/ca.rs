//! `procfleet ca`: the certificate authority of agents and server, and its rotation.

use super::common::CommonFlags;
use crate::client::ReplyData;
use crate::{Console, Error, VerbExit};
use procfleet_proto::http::native::CaView;
use serde_json::json;

#[derive(Clone, Debug, clap::Subcommand)]
pub enum CaVerb {
    /// Show the CA, its successor, and how many agents and tokens need the old CA
    Show(CommonFlags),
    /// Create a new CA; both are trusted, agents renew their certificates, and the old CA is retired when
    /// no agent or token needs it
    Rotate(CommonFlags),
    /// Retire the old CA now
    Retire(Retire),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Retire {
    /// Retire it even if agents or join tokens need it; those agents must join again with new tokens
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub common: CommonFlags,
}

impl CaVerb {
    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        match self {
            CaVerb::Show(common) => common.show(console, &common.get("/api/v1/ca")?, show),
            CaVerb::Rotate(common) => common.show(console, &common.post_empty("/api/v1/ca/rotate")?, show),
            CaVerb::Retire(Retire { force, common }) => {
                let answer = common.post("/api/v1/ca/retire", &json!({"force": force}))?;
                common.show(console, &answer, show)
            }
        }
    }
}

fn show(console: &mut Console<'_>, answer: &ReplyData) -> Result<(), Error> {
    let view: CaView = answer.read()?;
    console.print_line(&format!(
        "CA {}: {} agents, {} usable join tokens",
        view.sha256, view.agents, view.tokens
    ))?;
    if let Some(next) = view.next_sha256 {
        console
            .print_line(&format!("its successor is {next}; the old one is retired when nobody needs it"))?;
    }
    Ok(())
}
