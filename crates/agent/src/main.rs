//! `procfleet-agent`: the agent alone, without a line of server code.

use clap::Parser;
use std::process::ExitCode;

/// procfleet's agent: carries out operations on this host and keeps hosted processes alive.
#[derive(Parser)]
#[command(name = "procfleet-agent", version, about)]
struct Main {
    #[command(flatten)]
    args: procfleet_agent::program::Args,
}

fn main() -> ExitCode {
    procfleet_program::signals::block_signals();
    procfleet_agent::program::main(Main::parse().args)
}
