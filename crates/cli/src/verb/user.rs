//! `procfleet user`: the people that apps may act for. Scripts read a token from stdout, so nothing else goes
//! there.

use super::token::Ttl;
use crate::client::{ReplyData, path_segment};
use crate::output::{Format, OutputFlag, plain};
use crate::{ConnectionFlags, Error, Surroundings, VerbExit};
use procfleet_proto::http::users::{CreateUser, CreateUserToken, UserToken, UserView};
use serde_json::json;

#[derive(Clone, Debug, clap::Subcommand)]
pub enum User {
    /// Make a user
    Create(UserName),
    /// Show all users
    List(UserList),
    /// Make a token and print it: an app that sends it as bk_token acts as this user
    Token(UserTokenVerb),
    /// Let a user in no more, whatever token it shows
    Disable(UserName),
    /// Let a disabled user in again
    Enable(UserName),
    /// Take back all tokens of a user
    Revoke(UserName),
}

#[derive(Clone, Debug, clap::Args)]
pub struct UserName {
    /// The user's name: letters, digits and -_.@
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct UserList {
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct UserTokenVerb {
    /// The user's name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// How long the token can be used: 30s, 10m, 12h, 7d
    #[arg(long, default_value = "12h")]
    pub ttl: Ttl,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl User {
    pub(crate) fn output(&self) -> OutputFlag {
        match self {
            User::Create(named) | User::Disable(named) | User::Enable(named) | User::Revoke(named) => {
                named.output
            }
            User::List(list) => list.output,
            User::Token(token) => token.output,
        }
    }

    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        match self {
            User::Create(named) => {
                let wanted = CreateUser { name: named.name.clone() };
                let answer = named.connection.client()?.post("/api/v1/users", &wanted)?;
                show(around, &answer, named.output, one)?;
            }
            User::List(list) => {
                let answer = list.connection.client()?.get("/api/v1/users", &[])?;
                show(around, &answer, list.output, |answer| answer.read())?;
            }
            User::Token(token) => token.run(around)?,
            User::Disable(named) => show(around, &named.post("disable")?, named.output, one)?,
            User::Enable(named) => show(around, &named.post("enable")?, named.output, one)?,
            User::Revoke(named) => show(around, &named.post("revoke")?, named.output, one)?,
        }
        Ok(VerbExit::Done)
    }
}

impl UserName {
    fn post(&self, action: &str) -> Result<ReplyData, Error> {
        self.connection.client()?.post(&path(&self.name, action), &json!({}))
    }
}

impl UserTokenVerb {
    fn run(&self, around: &mut Surroundings<'_>) -> Result<(), Error> {
        let wanted = CreateUserToken { ttl_secs: self.ttl.secs };
        let answer = self.connection.client()?.post(&path(&self.name, "token"), &wanted)?;
        match self.output.format() {
            Format::Json => around.json(&answer.data),
            Format::Text => {
                let made: UserToken = answer.read()?;
                around.say(&plain(&made.token))?;
                let until = around.moment(made.expires_at);
                around.note(&format!(
                    "a bk_token of user {}, until {until}; it is shown only this once",
                    plain(&made.name)
                ));
                Ok(())
            }
        }
    }
}

fn path(name: &str, action: &str) -> String {
    format!("/api/v1/users/{}/{action}", path_segment(name))
}

fn one(answer: &ReplyData) -> Result<Vec<UserView>, Error> {
    Ok(vec![answer.read()?])
}

fn show(
    around: &mut Surroundings<'_>,
    answer: &ReplyData,
    output: OutputFlag,
    rows: impl FnOnce(&ReplyData) -> Result<Vec<UserView>, Error>,
) -> Result<(), Error> {
    match output.format() {
        Format::Json => around.json(&answer.data),
        Format::Text => {
            let rows = rows(answer)?.into_iter().map(|user| cells(user, around)).collect();
            around.table(["USER", "STATE", "TOKENS", "CREATED"], rows, "no users")
        }
    }
}

fn cells(user: UserView, around: &Surroundings<'_>) -> [String; 4] {
    let state = if user.disabled { "disabled" } else { "enabled" };
    [user.name, state.to_owned(), user.tokens.to_string(), around.moment(user.created_at)]
}
