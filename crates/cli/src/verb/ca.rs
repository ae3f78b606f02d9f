//! `procfleet ca`: the certificate authority of agents and server, and its rotation.

use super::common::CommonFlags;
use crate::client::ReplyData;
use crate::{Console, Error, VerbExit};
use procfleet_proto::http::native::{CaSeal, CaView};
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
    /// Seal the CA's private keys in the store again, under the first --seal-key of the server
    ///
    /// To replace a seal key: start all servers with --seal-key NEW,OLD, run this, and start them with
    /// --seal-key NEW when no key is left under another seal key.
    Reseal(CommonFlags),
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
            CaVerb::Reseal(common) => common.show(console, &common.post_empty("/api/v1/ca/reseal")?, show),
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
    if let Some(seal) = view.seal {
        let CaSeal { key, under_other_keys, other_keys, servers_without_key } = seal;
        let left = match under_other_keys {
            0 => "no private key is sealed under another key".to_owned(),
            1 => format!("1 private key is sealed under another key: {}", other_keys.join(", ")),
            count => format!("{count} private keys are sealed under other keys: {}", other_keys.join(", ")),
        };
        console.print_line(&format!("sealed under seal key {key}; {left}"))?;
        if !servers_without_key.is_empty() {
            console
                .print_line(&format!("servers without seal key {key}: {}", servers_without_key.join(", ")))?;
        }
    }
    Ok(())
}
