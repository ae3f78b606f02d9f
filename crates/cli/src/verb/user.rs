//! `procfleet user`: the users on whose behalf apps act. Scripts read a token from stdout, so nothing else
//! goes there.

use super::common::CommonFlags;
use super::token::Ttl;
use crate::client::{ReplyData, path_segment};
use crate::output::{OutputFlag, plain};
use crate::{Error, Surroundings, VerbExit};
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
    /// Lifetime of the token: 30s, 10m, 12h, 7d
    #[arg(long, default_value = "12h")]
    pub ttl: Ttl,
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

    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        match self {
            User::Create(UserName { name, common }) => {
                let answer = common.post("/api/v1/users", &CreateUser { name: name.clone() })?;
                common.show(around, &answer, show_one)
            }
            User::List(common) => {
                let answer = common.get("/api/v1/users")?;
                common.show(around, &answer, |around, answer| show(around, answer.read()?))
            }
            User::Token(UserTokenVerb { name, ttl, common }) => {
                let answer = common.post(&path(name, "token"), &CreateUserToken { ttl_secs: ttl.secs })?;
                common.show(around, &answer, show_token)
            }
            User::Disable(named) => named.act("disable", around),
            User::Enable(named) => named.act("enable", around),
            User::Revoke(named) => named.act("revoke", around),
        }
    }
}

impl UserName {
    fn act(&self, action: &str, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let answer = self.common.post_empty(&path(&self.name, action))?;
        self.common.show(around, &answer, show_one)
    }
}

fn path(name: &str, action: &str) -> String {
    format!("/api/v1/users/{}/{action}", path_segment(name))
}

fn show_token(around: &mut Surroundings<'_>, answer: &ReplyData) -> Result<(), Error> {
    let made: UserToken = answer.read()?;
    around.say(&plain(&made.token))?;
    let until = around.moment(made.expires_at);
    let name = plain(&made.name);
    around.note(&format!("a bk_token of user {name}, until {until}; it is shown only this once"));
    Ok(())
}

fn show_one(around: &mut Surroundings<'_>, answer: &ReplyData) -> Result<(), Error> {
    show(around, vec![answer.read()?])
}

fn show(around: &mut Surroundings<'_>, users: Vec<UserView>) -> Result<(), Error> {
    let rows = users.into_iter().map(|user| cells(user, around)).collect();
    around.table(["USER", "STATE", "TOKENS", "CREATED"], rows, "no users")
}

fn cells(user: UserView, around: &Surroundings<'_>) -> [String; 4] {
    let state = if user.disabled { "disabled" } else { "enabled" };
    [user.name, state.to_owned(), user.tokens.to_string(), around.moment(user.created_at)]
}
