//! The client verbs: `procfleet ps`, `procfleet start` and so on.
//!
//! Each verb is one file in `verb/`: it calls the server through `client` and prints through
//! [`Console`]. This crate reads neither argv nor the environment (clap does, for the binary) and never
//! exits: [`run`] returns a [`VerbExit`]. It uses only the public API of the server.

mod admin_file;
mod client;
mod connection;
mod error;
mod login;
mod output;
mod tls;
mod tunnel;
mod verb;
mod wait;

pub use connection::ConnectionFlags;
pub use error::Error;
pub use login::Secret;
pub use output::{Colors, Console, OutputFlag, PollPace, ProgressDisplay, Prompts, When};
pub use verb::{
    agents::Agents,
    app::AppVerb,
    audit::Audit,
    business::BusinessVerb,
    ca::CaVerb,
    events::EventsVerb,
    logs::Logs,
    operate::{IsRunning, Operate, OperateWithoutSpec},
    ps::Ps,
    servers::Servers,
    show::Show,
    task::TaskVerb,
    token::TokenVerb,
    user::User,
    webhook::WebhookVerb,
};
pub use wait::WaitMode;

use procfleet_core::op::OpKind;

/// Help about the exit status of a verb that changes something.
const EXITS: &str = "\
Outcomes go to standard output, progress and errors to standard error.

Exit status:
  0  every operation succeeded, or had nothing to do: start of a running process (828), stop or kill of a
     stopped one (829); with --strict these fail
  1  an operation failed or is still open, or the server refused the request
  2  the command line cannot be carried out as it stands
  5  the server cannot be reached, or refuses the login";

/// Help about the exit statuses of all verbs, in short.
pub const ALL_EXITS: &str = "\
Exit status of the verbs:
  0  done
  1  an operation failed or is still open, or the server refused the request
  2  the command line cannot be carried out as it stands
  3  (status, is-running) the process is stopped on one of the hosts
  4  (status, is-running) the process is not known there, or a host did not answer
  5  the server cannot be reached, or refuses the login";

/// Help about the exit status of a verb that queries a process.
const STATUS_EXITS: &str = "\
Exit status:
  0  it is running on every selected host
  3  it is stopped on one of them
  4  it is not known there, or a host did not answer
  1  the server refused the request
  2  the command line cannot be carried out as it stands
  5  the server cannot be reached, or refuses the login";

/// Help about a flag that lists have, and logs have not.
const LOGS_WITHOUT_SINCE: &str = "\
There is no --since: a line of a log has no time except the one that the program prints. To find out when
something happened: procfleet events --since 1h --name NAME";

#[derive(Clone, Debug, clap::Subcommand)]
pub enum Verb {
    /// Show the processes of the fleet
    Ps(Ps),
    /// Start a process and keep it running
    #[command(after_help = EXITS)]
    Start(Box<Operate>),
    /// Stop a process and leave it stopped
    #[command(after_help = EXITS)]
    Stop(Box<Operate>),
    /// Restart a process
    #[command(after_help = EXITS)]
    Restart(Box<Operate>),
    /// Reload the configuration of a process
    #[command(after_help = EXITS)]
    Reload(Box<Operate>),
    /// Kill a process and leave it stopped
    #[command(after_help = EXITS)]
    Kill(Box<Operate>),
    /// Host a process: the agent keeps it running (托管)
    #[command(after_help = EXITS)]
    Host(Box<Operate>),
    /// Unhost a process: the agent leaves it alone, and it keeps running
    #[command(after_help = EXITS)]
    Unhost(Box<Operate>),
    /// Delete the stored spec of a process; the process keeps running
    #[command(after_help = EXITS)]
    Unregister(Box<OperateWithoutSpec>),
    /// Query the current state of a process on its hosts
    #[command(after_help = STATUS_EXITS)]
    Status(Box<Operate>),
    /// Check whether a process is running, for scripts
    #[command(after_help = STATUS_EXITS)]
    IsRunning(Box<IsRunning>),
    /// Show the stored spec of a process, in the format of start --file
    Show(Box<Show>),
    /// Show the output of a process
    #[command(after_help = LOGS_WITHOUT_SINCE)]
    Logs(Logs),
    /// List tasks, show, cancel or retry one
    #[command(subcommand)]
    Task(TaskVerb),
    /// List agents, assign them to a business, label, revoke or delete them
    Agents(Agents),
    /// List the servers of the fleet, or drain one
    Servers(Servers),
    /// Manage join tokens for new agents
    #[command(subcommand)]
    Token(TokenVerb),
    /// Manage the apps that may call the API, and their grants
    #[command(subcommand)]
    App(Box<AppVerb>),
    /// Manage the users on whose behalf apps act, and their tokens (bk_token)
    #[command(subcommand)]
    User(User),
    /// Manage the businesses that agents belong to
    #[command(subcommand)]
    Business(BusinessVerb),
    /// Show, rotate or retire the CA of agents and server
    #[command(subcommand)]
    Ca(CaVerb),
    /// Show events of processes: exits, restarts, exceeded limits
    Events(EventsVerb),
    /// Manage the URLs that receive events
    #[command(subcommand)]
    Webhook(WebhookVerb),
    /// Show the audit trail
    Audit(Audit),
}

impl Verb {
    /// How the results are shown.
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
            Verb::Servers(servers) => Some(servers.output()),
            Verb::Token(token) => Some(token.output()),
            Verb::User(user) => Some(user.output()),
            // These verbs print no times, and no state that is coloured.
            Verb::App(_) | Verb::Business(_) | Verb::Ca(_) => None,
            Verb::Events(events) => Some(events.output),
            Verb::Webhook(webhook) => Some(webhook.output()),
            Verb::Audit(audit) => Some(audit.output),
        }
    }
}

/// The exit status of a verb.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbExit {
    /// Success.
    Done = 0,
    /// An op failed or is still open, or the server refused the request.
    Failed = 1,
    /// The command line is invalid.
    Usage = 2,
    /// (`status`, `is-running`) A process is stopped; the same number as of `systemctl status`.
    Stopped = 3,
    /// (`status`, `is-running`) The process is unknown, or its host did not answer.
    Unknown = 4,
    /// The server cannot be reached, or refuses the login.
    Unreachable = 5,
}

impl From<VerbExit> for std::process::ExitCode {
    fn from(exit: VerbExit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}

/// Runs a verb with the stdin, stdout and stderr of this process.
pub fn run(verb: Verb) -> VerbExit {
    let (mut input, mut out, mut err) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    run_in(verb, &mut Console::of_process(&mut input, &mut out, &mut err))
}

/// Runs a verb with the given console, so that tests see the output.
pub fn run_in(verb: Verb, console: &mut Console<'_>) -> VerbExit {
    if let Some(output) = verb.output() {
        console.apply_flags(output);
    }
    carry_out(verb, console).unwrap_or_else(|error| {
        console.note(&format!("error: {error}"));
        error.exit()
    })
}

fn carry_out(verb: Verb, console: &mut Console<'_>) -> Result<VerbExit, Error> {
    match verb {
        Verb::Ps(ps) => ps.run(console),
        Verb::Start(operate) => operate.run(OpKind::Start, console),
        Verb::Stop(operate) => operate.run(OpKind::Stop, console),
        Verb::Restart(operate) => operate.run(OpKind::Restart, console),
        Verb::Reload(operate) => operate.run(OpKind::Reload, console),
        Verb::Kill(operate) => operate.run(OpKind::Kill, console),
        Verb::Host(operate) => operate.run(OpKind::Host, console),
        Verb::Unhost(operate) => operate.run(OpKind::Unhost, console),
        Verb::Unregister(plain) => plain.run(OpKind::Unregister, console),
        Verb::Status(operate) => operate.run(OpKind::Query, console),
        Verb::IsRunning(asked) => asked.run(console),
        Verb::Show(show) => show.run(console),
        Verb::Logs(logs) => logs.run(console),
        Verb::Task(task) => task.run(console),
        Verb::Agents(agents) => agents.run(console),
        Verb::Servers(servers) => servers.run(console),
        Verb::Token(token) => token.run(console),
        Verb::App(app) => app.run(console),
        Verb::User(user) => user.run(console),
        Verb::Business(business) => business.run(console),
        Verb::Ca(ca) => ca.run(console),
        Verb::Events(events) => events.run(console),
        Verb::Webhook(webhook) => webhook.run(console),
        Verb::Audit(audit) => audit.run(console),
    }
}
