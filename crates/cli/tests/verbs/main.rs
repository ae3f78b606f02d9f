//! The verbs from the command line to the exit, against a server of canned answers.

mod errors;
mod help;
mod manage;
mod operate;
mod proxy;
mod server;
mod show;

use clap::Parser;
use procfleet_cli::{Colors, Console, PollPace, ProgressDisplay, Prompts, Verb, VerbExit, run_in};
use server::Server;
use std::time::Duration;

/// As the thin binary does it.
#[derive(Debug, Parser)]
struct Main {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(flatten)]
    Client(Verb),
}

const SECRET: &str = "s3cret-of-the-app";
/// Ages are relative to this time.
const NOW: i64 = 1_000_000;

#[derive(Debug)]
struct Ran {
    exit: VerbExit,
    out: String,
    err: String,
}

/// Runs a line such as `ps --name x` against a server; the login is added to it, and must come with each
/// request.
fn run(server: &Server, line: &str) -> Ran {
    let ran = run_with_input(&server.url(), line, "");
    for request in server.seen() {
        let login = serde_json::json!({"bk_app_code": "ops", "bk_app_secret": SECRET, "bk_username": "ann"});
        assert_eq!(request.login, login, "{}", request.line);
    }
    ran
}

fn run_with_input(url: &str, line: &str, input: &str) -> Ran {
    run_as(Prompts::Forbidden, url, line, input)
}

/// With a person at the terminal, or without.
fn run_as(prompts: Prompts, url: &str, line: &str, input: &str) -> Ran {
    run_at(prompts, Colors::Plain, url, line, input)
}

/// With a terminal for the results, or without.
fn run_at(prompts: Prompts, colors: Colors, url: &str, line: &str, input: &str) -> Ran {
    let words = ["procfleet"].into_iter().chain(line.split_whitespace()).chain([
        "--url",
        url,
        "--app-code",
        "ops",
        "--app-secret",
        SECRET,
        "--username",
        "ann",
    ]);
    let Command::Client(verb) = Main::try_parse_from(words).expect(line).command;
    assert!(!format!("{verb:?}").contains(SECRET), "the secret shows in Debug");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = run_in(
        verb,
        &mut Console {
            input: &mut input.as_bytes(),
            out: &mut out,
            err: &mut err,
            progress: ProgressDisplay::Lines,
            prompts,
            colors,
            zone: jiff::tz::TimeZone::UTC,
            now: NOW,
            pace: PollPace { between: Duration::ZERO, pause: Duration::ZERO, tries: 3 },
        },
    );
    let ran =
        Ran { exit, out: String::from_utf8(out).expect("text"), err: String::from_utf8(err).expect("text") };
    assert!(!ran.out.contains(SECRET) && !ran.err.contains(SECRET), "the secret is printed: {ran:?}");
    ran
}

#[test]
fn the_command_line_is_well_formed() {
    <Main as clap::CommandFactory>::command().debug_assert();
}

#[test]
fn exits_have_their_numbers() {
    let exits = [
        VerbExit::Done,
        VerbExit::Failed,
        VerbExit::Usage,
        VerbExit::Stopped,
        VerbExit::Unknown,
        VerbExit::Unreachable,
    ];
    assert_eq!(exits.map(|exit| exit as u8), [0, 1, 2, 3, 4, 5]);
}
