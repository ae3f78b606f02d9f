//! `procfleet ca`: the authority that agents and server know each other by, and its replacement.

use crate::output::{Format, OutputFlag};
use crate::{ConnectionFlags, Error, Surroundings, VerbExit};
use procfleet_proto::http::native::CaView;
use serde_json::json;

#[derive(Clone, Debug, clap::Subcommand)]
pub enum CaVerb {
    /// Show the CA, its successor, and who still needs the old one
    Show(CaShow),
    /// Make a new CA: both are trusted, agents renew onto the new one, and the old one is retired when none
    /// needs it
    Rotate(CaShow),
    /// Retire the old CA now
    Retire(Retire),
}

#[derive(Clone, Debug, clap::Args)]
pub struct CaShow {
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct Retire {
    /// Also if agents or join tokens still need it: they must join again, or be made anew
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl CaVerb {
    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let (answer, format) = match self {
            CaVerb::Show(CaShow { output, connection }) => {
                (connection.client()?.get("/api/v1/ca", &[])?, output.format())
            }
            CaVerb::Rotate(CaShow { output, connection }) => {
                (connection.client()?.post("/api/v1/ca/rotate", &json!({}))?, output.format())
            }
            CaVerb::Retire(Retire { force, output, connection }) => {
                let client = connection.client()?;
                (client.post("/api/v1/ca/retire", &json!({"force": force}))?, output.format())
            }
        };
        match format {
            Format::Json => around.json(&answer.data)?,
            Format::Text => {
                let view: CaView = answer.read()?;
                around.say(&format!(
                    "CA {}: {} agents, {} usable join tokens",
                    view.sha256, view.agents, view.tokens
                ))?;
                if let Some(next) = view.next_sha256 {
                    around.say(&format!(
                        "its successor is {next}; the old one is retired when nobody needs it"
                    ))?;
                }
            }
        }
        Ok(VerbExit::Done)
    }
}
