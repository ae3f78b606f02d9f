//! `procfleet user`: the users on whose behalf apps act. Scripts read a token from stdout, so nothing else
//! goes there.

use super::common::CommonFlags;
use super::time_span::TimeSpan;
use crate::client::{ReplyData, path_segment};
use crate::output::{OutputFlag, plain};
use crate::{Console, Error, VerbExit};
use procfleet_proto::http::users::{CreateUser, CreateUserToken, UserToken, UserView};

#[derive(Clone, Debug, clap::Subcommand)]
pub enum User {
    /// Create a user
    Create(UserName),
    /// List all users
    List(CommonFlags),
    /// Create a token and print it; an app that sends it as bk_token acts as this user
    Token(UserTokenVerb),
    /// Disable a user; all of its tokens stop working
    Disable(UserName),
    /// Enable a disabled user; its tokens that have not expired work again
    Enable(UserName),
    /// Revoke all tokens of a user
    Revoke(UserName),
}

#[derive(Clone, Debug, clap::Args)]
pub struct UserName {
    /// Name of the user: letters, digits and -_.@
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub common: CommonFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct UserTokenVerb {
    /// Name of the user
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Lifetime of the token: 30s, 10m, 12h, 7d; at most 366d
    #[arg(long, default_value = "12h")]
    pub ttl: TimeSpan,
    #[command(flatten)]
    pub common: CommonFlags,
}

impl User {
    pub(crate) fn output(&self) -> OutputFlag {
        match self {
            User::Create(named) | User::Disable(named) | User::Enable(named) | User::Revoke(named) => {
                named.common.output
            }
            User::List(common) => common.output,
            User::Token(token) => token.common.output,
        }
    }

    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        match self {
            User::Create(UserName { name, common }) => {
                let answer = common.post("/api/v1/users", &CreateUser { name: name.clone() })?;
                common.show(console, &answer, show_one)
            }
            User::List(common) => {
                let answer = common.get("/api/v1/users")?;
                common.show(console, &answer, |console, answer| show(console, answer.read()?))
            }
            User::Token(UserTokenVerb { name, ttl, common }) => {
                let answer = common.post(&path(name, "token"), &CreateUserToken { ttl_secs: ttl.secs })?;
                common.show(console, &answer, show_token)
            }
            User::Disable(named) => named.act("disable", console),
            User::Enable(named) => named.act("enable", console),
            User::Revoke(named) => named.act("revoke", console),
        }
    }
}

impl UserName {
    fn act(&self, action: &str, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let answer = self.common.post_empty(&path(&self.name, action))?;
        self.common.show(console, &answer, show_one)
    }
}

fn path(name: &str, action: &str) -> String {
    format!("/api/v1/users/{}/{action}", path_segment(name))
}

fn show_token(console: &mut Console<'_>, answer: &ReplyData) -> Result<(), Error> {
    let made: UserToken = answer.read()?;
    console.print_line(&plain(&made.token))?;
    let until = console.moment(made.expires_at);
    let name = plain(&made.name);
    console.note(&format!("a bk_token of user {name}, until {until}; it is shown only this once"));
    Ok(())
}

fn show_one(console: &mut Console<'_>, answer: &ReplyData) -> Result<(), Error> {
    show(console, vec![answer.read()?])
}

fn show(console: &mut Console<'_>, users: Vec<UserView>) -> Result<(), Error> {
    let rows = users.into_iter().map(|user| cells(user, console)).collect();
    console.table(["USER", "STATE", "TOKENS", "CREATED"], rows, "no users")
}

fn cells(user: UserView, console: &Console<'_>) -> [String; 4] {
    let state = if user.disabled { "disabled" } else { "enabled" };
    [user.name, state.to_owned(), user.tokens.to_string(), console.moment(user.created_at)]
}
