//! The client verbs: what `procfleet ps`, `procfleet start` and their siblings do.
//!
//! Each verb is one file in `verb/`: it asks the server through `client` and prints through
//! [`Surroundings`]. This crate reads neither argv nor the environment (clap does, for the thin binary) and never
//! exits: [`run`] answers with an [`Exit`]. It knows the server only by its public API.

mod client;
mod connection;
mod error;
mod output;
mod verb;
mod wait;

pub use connection::{Connection, Secret};
pub use error::Error;
pub use output::{Output, Pace, Progress, Surroundings};
pub use verb::{
    agents::Agents, app::App, audit::Audit, business::Business, ca::Ca, events::Events, logs::Logs,
    operate::Operate, ps::Ps, task::Task, token::Token, user::User, webhook::Webhook,
};
pub use wait::Waiting;

use procfleet_core::op::OpKind;

#[derive(Clone, Debug, clap::Subcommand)]
pub enum Verb {
    /// Show the processes of the fleet
    Ps(Ps),
    /// Start a process and keep it running from then on
    Start(Box<Operate>),
    /// Stop a process and leave it stopped
    Stop(Box<Operate>),
    /// Restart a process
    Restart(Box<Operate>),
    /// Let a process read its configuration again
    Reload(Box<Operate>),
    /// End a process by force and leave it stopped
    Kill(Box<Operate>),
    /// Keep a process running from now on (托管)
    Host(Box<Operate>),
    /// Leave a process alone from now on; it goes on running
    Unhost(Box<Operate>),
    /// Ask the hosts how a process is doing at this moment
    Status(Box<Operate>),
    /// Show what a process wrote
    Logs(Logs),
    /// Show what became of the tasks
    #[command(subcommand)]
    Task(Task),
    /// Show the agents, assign them to a business, or revoke them
    Agents(Agents),
    /// Make join tokens for new agents
    #[command(subcommand)]
    Token(Token),
    /// Manage the apps that may call the API, and what each may use
    #[command(subcommand)]
    App(Box<App>),
    /// Manage the users that apps may act for, and their tokens (bk_token)
    #[command(subcommand)]
    User(User),
    /// Manage the businesses that agents belong to
    #[command(subcommand)]
    Business(Business),
    /// Show or replace the CA that agents and server know each other by
    #[command(subcommand)]
    Ca(Ca),
    /// Show what happened to processes without anybody asking for it
    Events(Events),
    /// Manage the urls that events are sent to
    #[command(subcommand)]
    Webhook(Webhook),
    /// Show who did what
    Audit(Audit),
}

/// How a verb ended, as scripts see it.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All of it went well.
    Done = 0,
    /// Some op failed or is still open, or the server refused the request.
    Failed = 1,
    /// The command line cannot be carried out as it stands.
    Usage = 2,
    /// The server cannot be reached, or it does not let us in.
    Unreachable = 3,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}

/// Carries a verb out with the process's own stdin, stdout and stderr.
pub fn run(verb: Verb) -> Exit {
    let (mut input, mut out, mut err) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    run_in(verb, &mut Surroundings::of_process(&mut input, &mut out, &mut err))
}

/// Carries a verb out in the given surroundings; tests use it to see what is printed.
pub fn run_in(verb: Verb, around: &mut Surroundings<'_>) -> Exit {
    carry_out(verb, around).unwrap_or_else(|error| {
        around.note(&format!("error: {error}"));
        error.exit()
    })
}

fn carry_out(verb: Verb, around: &mut Surroundings<'_>) -> Result<Exit, Error> {
    match verb {
        Verb::Ps(ps) => ps.run(around),
        Verb::Start(operate) => operate.run(OpKind::Start, around),
        Verb::Stop(operate) => operate.run(OpKind::Stop, around),
        Verb::Restart(operate) => operate.run(OpKind::Restart, around),
        Verb::Reload(operate) => operate.run(OpKind::Reload, around),
        Verb::Kill(operate) => operate.run(OpKind::Kill, around),
        Verb::Host(operate) => operate.run(OpKind::Host, around),
        Verb::Unhost(operate) => operate.run(OpKind::Unhost, around),
        Verb::Status(operate) => operate.run(OpKind::Query, around),
        Verb::Logs(logs) => logs.run(around),
        Verb::Task(task) => task.run(around),
        Verb::Agents(agents) => agents.run(around),
        Verb::Token(token) => token.run(around),
        Verb::App(app) => app.run(around),
        Verb::User(user) => user.run(around),
        Verb::Business(business) => business.run(around),
        Verb::Ca(ca) => ca.run(around),
        Verb::Events(events) => events.run(around),
        Verb::Webhook(webhook) => webhook.run(around),
        Verb::Audit(audit) => audit.run(around),
    }
}
