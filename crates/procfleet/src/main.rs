//! procfleet: the binary. Parses the arguments and runs the server, the agent, the client or `up`.

mod generate;
mod memory;
mod server;
mod store;
mod store_argument;
mod unit;
#[cfg(feature = "agent")]
mod up;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use procfleet_program::signals::{block_signals, unblock_signals};
use procfleet_program::{EXIT_PANICKED, PartEnded, print_error};
use procfleet_server::ServerError;
use std::process::ExitCode;
use store_argument::BadArgument;

/// Stored data cannot be used; an operator has to act, and a restart does not help (sysexits.h).
const NEEDS_OPERATOR: u8 = 78;

/// The exit code of clap for arguments that cannot be used.
const BAD_ARGUMENT: u8 = 2;

/// Runs processes on a fleet of hosts and keeps them alive.
#[derive(Parser)]
#[command(name = "procfleet", version, about, propagate_version = true, after_help = procfleet_cli::ALL_EXITS)]
struct Main {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a server and an agent for this host
    #[cfg(feature = "agent")]
    Up(up::Args),
    /// Run the server: the API, and the link for agents
    Server(ServerProgram),
    /// Run the agent: carries out operations on this host and keeps hosted processes alive
    #[cfg(feature = "agent")]
    Agent(procfleet_agent::program::Args),
    /// Back up or restore the server's store, or copy it to PostgreSQL
    #[command(subcommand)]
    Store(store::StoreVerb),
    /// Print the API document (OpenAPI 3.1), as served under /api/openapi.json
    Openapi,
    /// Print a shell completion script
    Completions(generate::Completions),
    /// Print the manual page, or write all manual pages
    Man(generate::Man),
    #[command(flatten)]
    Client(procfleet_cli::Verb),
}

#[derive(clap::Args)]
struct ServerProgram {
    #[command(flatten)]
    server: server::Args,
    /// Print a systemd unit that runs the server with these arguments, and exit
    #[arg(long)]
    print_systemd_unit: bool,
}

fn main() -> ExitCode {
    block_signals();
    let matches = Main::command().get_matches();
    let main = Main::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match main.command {
        // These unblock signals when they have handlers.
        Command::Server(_) => {}
        #[cfg(feature = "agent")]
        Command::Up(_) | Command::Agent(_) => {}
        Command::Store(_)
        | Command::Openapi
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Client(_) => unblock_signals(),
    }
    let done = match main.command {
        #[cfg(feature = "agent")]
        Command::Up(args) => unless_panicked(|| up::run(args)),
        Command::Server(args) if args.print_systemd_unit => print_unit(&matches),
        Command::Server(args) => unless_panicked(|| server::run(args.server)),
        Command::Store(verb) => store::run(verb),
        #[cfg(feature = "agent")]
        Command::Agent(args) => return procfleet_agent::program::main(args),
        Command::Openapi => print_document(),
        Command::Completions(args) => generate::completions(&args, Main::command()),
        Command::Man(args) => generate::man(&args, Main::command()),
        Command::Client(verb) => return procfleet_cli::run(verb).into(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format!("{error:#}"));
            if error.is::<BadArgument>() {
                return ExitCode::from(BAD_ARGUMENT);
            }
            match error.downcast_ref::<ServerError>() {
                Some(error) if error.needs_operator() => ExitCode::from(NEEDS_OPERATOR),
                Some(error) if error.is_panic() => ExitCode::from(EXIT_PANICKED),
                Some(_) | None => ExitCode::FAILURE,
            }
        }
    }
}

/// The log has the place of a panic.
fn unless_panicked(run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let panicked = |_| Err(ServerError::Part(PartEnded::Panicked("the program")).into());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(panicked)
}

fn print_unit(matches: &clap::ArgMatches) -> anyhow::Result<()> {
    let main = Main::command();
    let command = main.find_subcommand("server").context("there is a server")?;
    unit::print(command, matches.subcommand_matches("server").context("the server was asked for")?)
}

fn print_document() -> anyhow::Result<()> {
    Ok(procfleet_program::print(procfleet_server::http::document::text())?)
}
