//! procfleet: one program, and here only the choice of which part of it to be.

mod server;
mod up;

use clap::{Parser, Subcommand};
use procfleet_agent::program;
use procfleet_server::ServerError;
use std::io::Write;
use std::process::ExitCode;

/// What was stored cannot be used: somebody has to look, and starting again would not help (sysexits.h).
const NEEDS_SOMEBODY: u8 = 78;

/// Runs processes on a fleet of hosts, and keeps them alive.
#[derive(Parser)]
#[command(name = "procfleet", version, about, propagate_version = true)]
struct Main {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything on this machine: a server, and an agent for this host
    Up(up::Args),
    /// The server: API, and the link for agents
    Server(server::Args),
    /// The agent: carries out operations on this host and keeps hosted processes alive
    Agent(program::Args),
    /// Print the API's document (OpenAPI 3.1), as /api/openapi.json has it
    Openapi,
    #[command(flatten)]
    Client(procfleet_cli::Verb),
}

fn main() -> ExitCode {
    let done = match Main::parse().command {
        Command::Up(args) => up::run(args),
        Command::Server(args) => server::run(args),
        Command::Agent(args) => return program::main(args),
        Command::Openapi => print_document(),
        Command::Client(verb) => return procfleet_cli::run(verb).into(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            let somebody = error.downcast_ref::<ServerError>().is_some_and(ServerError::needs_somebody);
            if somebody { ExitCode::from(NEEDS_SOMEBODY) } else { ExitCode::FAILURE }
        }
    }
}

fn print_document() -> anyhow::Result<()> {
    std::io::stdout().write_all(procfleet_server::http::document::text().as_bytes())?;
    Ok(())
}
