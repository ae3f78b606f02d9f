//! `procfleet token`: join tokens for new agents. Scripts read a new one from stdout, so nothing else goes
//! there.

use super::common::CommonFlags;
use super::time_span::TimeSpan;
use crate::client::ReplyData;
use crate::output::{OutputFlag, plain};
use crate::{Console, Error, VerbExit};
use procfleet_core::id::BusinessId;
use procfleet_proto::http::native::{CreateToken, CreatedToken, TokenRow};

#[derive(Clone, Debug, clap::Subcommand)]
pub enum TokenVerb {
    /// Create a join token and print it
    Create(TokenCreate),
    /// List the join tokens, without their secrets
    List(CommonFlags),
    /// Revoke a join token; agents that have joined with it stay
    Revoke(TokenRevoke),
}

#[derive(Clone, Debug, clap::Args)]
pub struct TokenRevoke {
    /// Id of the token, as `token list` shows it: the second part of the token
    #[arg(value_name = "ID", value_parser = token_id)]
    pub id: String,
    #[command(flatten)]
    pub common: CommonFlags,
}

/// Accepts an id, or a whole token; the secret of the token is not sent.
fn token_id(text: &str) -> Result<String, String> {
    let id = match text.split('-').collect::<Vec<_>>().as_slice() {
        ["pf1", id, ..] => (*id).to_owned(),
        _ => text.to_owned(),
    };
    match !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(id),
        false => Err("expected the id of a token, as `procfleet token list` shows it".to_owned()),
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct TokenCreate {
    /// Cloud area of the agents
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cloud_id: u32,
    /// Business of the agents
    #[arg(long, value_name = "N", default_value_t = BusinessId::DEFAULT)]
    pub business: BusinessId,
    /// Lifetime of the token: 30s, 10m, 1h, 7d; at most 30d
    #[arg(long, default_value = "1h")]
    pub ttl: TimeSpan,
    /// Number of agents that may join with the token, at most 100000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub uses: u32,
    /// Allow an agent to replace one of the same host that is connected or was within the last day, for
    /// example after the host was reinstalled
    #[arg(long)]
    pub replace: bool,
    #[command(flatten)]
    pub common: CommonFlags,
}

impl TokenVerb {
    pub(crate) fn output(&self) -> OutputFlag {
        match self {
            TokenVerb::Create(TokenCreate { common, .. })
            | TokenVerb::List(common)
            | TokenVerb::Revoke(TokenRevoke { common, .. }) => common.output,
        }
    }

    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        match self {
            TokenVerb::Create(create) => {
                let answer = create.common.post("/api/v1/tokens", &create.request())?;
                create.common.show(console, &answer, show_created)
            }
            TokenVerb::List(common) => {
                let answer = common.get("/api/v1/tokens")?;
                common.show(console, &answer, |console, answer| show(console, answer.read()?))
            }
            TokenVerb::Revoke(TokenRevoke { id, common }) => {
                let answer = common.post_empty(&format!("/api/v1/tokens/{id}/revoke"))?;
                common.show(console, &answer, |console, answer| show(console, vec![answer.read()?]))
            }
        }
    }
}

fn show(console: &mut Console<'_>, rows: Vec<TokenRow>) -> Result<(), Error> {
    let mut cells = Vec::new();
    for row in rows {
        cells.push([
            row.id,
            row.state.replace('_', " "),
            row.bk_cloud_id.to_string(),
            row.bk_biz_id.to_string(),
            row.uses_left.to_string(),
            if row.replace { "any agent" } else { "lost agents" }.to_owned(),
            console.moment(row.created_at),
            console.moment(row.expires_at),
        ]);
    }
    console.table(
        ["ID", "STATE", "CLOUD", "BUSINESS", "USES LEFT", "REPLACES", "MADE", "UNTIL"],
        cells,
        "there are no join tokens",
    )
}

impl TokenCreate {
    fn request(&self) -> CreateToken {
        CreateToken {
            bk_cloud_id: self.cloud_id,
            bk_biz_id: self.business.0,
            ttl_secs: self.ttl.secs,
            uses: self.uses,
            replace: self.replace,
        }
    }
}

fn show_created(console: &mut Console<'_>, answer: &ReplyData) -> Result<(), Error> {
    let made: CreatedToken = answer.read()?;
    console.print_line(&plain(&made.token))?;
    let agents = if made.uses == 1 { "1 agent".to_owned() } else { format!("{} agents", made.uses) };
    console.note(&format!(
        "for {agents} of cloud area {} and business {}, until {}; it is shown only this once",
        made.bk_cloud_id,
        made.bk_biz_id,
        console.moment(made.expires_at)
    ));
    let port = made.link_port.map_or("PORT".to_owned(), |port| port.to_string());
    console.note(&format!(
        "on the new host: write it to a file, and procfleet agent --server https://SERVER:{port} --token-file FILE"
    ));
    Ok(())
}
