//! The client verbs: what `procfleet ps`, `procfleet start` and their siblings do.
//!
//! Each verb is one file in `verb/`: it asks the server through `client` and prints through [`Surroundings`].
//! This crate reads neither argv nor the environment (clap does, for the thin binary) and never exits:
//! [`run`] answers with a [`VerbExit`]. It knows the server only by its public API.

mod admin_file;
mod client;
mod connection;
mod error;
mod login;
mod output;
mod tls;
mod verb;
mod wait;

pub use connection::ConnectionFlags;
pub use error::Error;
pub use login::Secret;
pub use output::{Asks, Colors, OutputFlag, PollPace, ProgressDisplay, Surroundings, When};
pub use verb::{
    agents::Agents,
    app::AppVerb,
    audit::Audit,
    business::BusinessVerb,
    ca::CaVerb,
    events::EventsVerb,
    logs::Logs,
    operate::{IsRunning, Operate, Plain},
    ps::Ps,
    show::Show,
    task::TaskVerb,
    token::TokenVerb,
    user::User,
    webhook::WebhookVerb,
};
pub use wait::WaitMode;

use procfleet_core::op::OpKind;

/// What the exit status of a verb that changes something says.
const EXITS: &str = "\
Outcomes go to standard output, progress and errors to standard error.

Exit status:
  0  every operation succeeded, or had nothing to do: start of a running process (828), stop or kill of a
     stopped one (829); with --strict these fail
  1  an operation failed or is still open, or the server refused the request
  2  the command line cannot be carried out as it stands
  5  the server cannot be reached, or does not let us in";

/// What the exit status of a question about a process says.
const STATUS_EXITS: &str = "\
Exit status:
  0  it is running on every host that is meant
  3  it is stopped on one of them
  4  it is not known there, or a host did not answer
  1  the server refused the request
  2  the command line cannot be carried out as it stands
  5  the server cannot be reached, or does not let us in";

#[derive(Clone, Debug, clap::Subcommand)]
pub enum Verb {
    /// Show the processes of the fleet
    Ps(Ps),
    /// Start a process and keep it running from then on
    #[command(after_help = EXITS)]
    Start(Box<Operate>),
    /// Stop a process and leave it stopped
    #[command(after_help = EXITS)]
    Stop(Box<Operate>),
    /// Restart a process
    #[command(after_help = EXITS)]
    Restart(Box<Operate>),
    /// Let a process read its configuration again
    #[command(after_help = EXITS)]
    Reload(Box<Operate>),
    /// End a process by force and leave it stopped
    #[command(after_help = EXITS)]
    Kill(Box<Operate>),
    /// Keep a process running from now on (托管)
    #[command(after_help = EXITS)]
    Host(Box<Operate>),
    /// Leave a process alone from now on; it goes on running
    #[command(after_help = EXITS)]
    Unhost(Box<Operate>),
    /// Forget a process on its hosts; it goes on running, and nobody looks after it
    #[command(after_help = EXITS)]
    Unregister(Box<Plain>),
    /// Ask the hosts how a process is doing at this moment
    #[command(after_help = STATUS_EXITS)]
    Status(Box<Operate>),
    /// Say whether a process is running, for scripts
    #[command(after_help = STATUS_EXITS)]
    IsRunning(Box<IsRunning>),
    /// Show the stored spec of a process, as start --file takes it
    Show(Box<Show>),
    /// Show what a process wrote
    Logs(Logs),
    /// Show what became of the tasks
    #[command(subcommand)]
    Task(TaskVerb),
    /// Show the agents, assign them to a business, label, revoke or forget them
    Agents(Agents),
    /// Make join tokens for new agents
    #[command(subcommand)]
    Token(TokenVerb),
    /// Manage the apps that may call the API, and what each may use
    #[command(subcommand)]
    App(Box<AppVerb>),
    /// Manage the users that apps may act for, and their tokens (bk_token)
    #[command(subcommand)]
    User(User),
    /// Manage the businesses that agents belong to
    #[command(subcommand)]
    Business(BusinessVerb),
    /// Show or replace the CA that agents and server know each other by
    #[command(subcommand)]
    Ca(CaVerb),
    /// Show what happened to processes without anybody asking for it
    Events(EventsVerb),
    /// Manage the urls that events are sent to
    #[command(subcommand)]
    Webhook(WebhookVerb),
    /// Show who did what
    Audit(Audit),
}

impl Verb {
    /// How its results are to be shown.
    fn output(&self) -> Option<OutputFlag> {
        match self {
            Verb::Ps(ps) => Some(ps.output),
            Verb::Start(operate)
            | Verb::Stop(operate)
            | Verb::Restart(operate)
            | Verb::Reload(operate)
            | Verb::Kill(operate)
            | Verb::Host(operate)
            | Verb::Unhost(operate)
            | Verb::Status(operate) => Some(operate.output),
            Verb::Unregister(plain) => Some(plain.output),
            Verb::IsRunning(_) => None,
            Verb::Show(show) => Some(show.output),
            Verb::Logs(logs) => Some(logs.output),
            Verb::Task(task) => Some(task.output()),
            Verb::Agents(agents) => Some(agents.output()),
            Verb::Token(token) => Some(token.output()),
            Verb::User(user) => Some(user.output()),
            // They show neither times nor states.
            Verb::App(_) | Verb::Business(_) | Verb::Ca(_) => None,
            Verb::Events(events) => Some(events.output),
            Verb::Webhook(webhook) => Some(webhook.output()),
            Verb::Audit(audit) => Some(audit.output),
        }
    }
}

/// How a verb ended, as scripts see it.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbExit {
    /// All of it went well.
    Done = 0,
    /// Some op failed or is still open, or the server refused the request.
    Failed = 1,
    /// The command line cannot be carried out as it stands.
    Usage = 2,
    /// (`status`, `is-running`) A process is stopped, as `systemctl status` says it.
    Stopped = 3,
    /// (`status`, `is-running`) Nobody knows of the process, or its host did not answer.
    Unknown = 4,
    /// The server cannot be reached, or it does not let us in.
    Unreachable = 5,
}

impl From<VerbExit> for std::process::ExitCode {
    fn from(exit: VerbExit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}

/// Carries a verb out with the process's own stdin, stdout and stderr.
pub fn run(verb: Verb) -> VerbExit {
    let (mut input, mut out, mut err) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    run_in(verb, &mut Surroundings::of_process(&mut input, &mut out, &mut err))
}

/// Carries a verb out in the given surroundings; tests use it to see what is printed.
pub fn run_in(verb: Verb, around: &mut Surroundings<'_>) -> VerbExit {
    if let Some(output) = verb.output() {
        around.appear(output);
    }
    carry_out(verb, around).unwrap_or_else(|error| {
        around.note(&format!("error: {error}"));
        error.exit()
    })
}

fn carry_out(verb: Verb, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
    match verb {
        Verb::Ps(ps) => ps.run(around),
        Verb::Start(operate) => operate.run(OpKind::Start, around),
        Verb::Stop(operate) => operate.run(OpKind::Stop, around),
        Verb::Restart(operate) => operate.run(OpKind::Restart, around),
        Verb::Reload(operate) => operate.run(OpKind::Reload, around),
        Verb::Kill(operate) => operate.run(OpKind::Kill, around),
        Verb::Host(operate) => operate.run(OpKind::Host, around),
        Verb::Unhost(operate) => operate.run(OpKind::Unhost, around),
        Verb::Unregister(plain) => plain.run(OpKind::Unregister, around),
        Verb::Status(operate) => operate.run(OpKind::Query, around),
        Verb::IsRunning(asked) => asked.run(around),
        Verb::Show(show) => show.run(around),
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
