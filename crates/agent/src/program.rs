//! The agent as a program: its arguments, its log and its end. Both `procfleet agent` and `procfleet-agent`
//! are this.

use crate::AgentError;
use crate::config::{AgentFolder, AgentSettings, ServerAddress, read_policy};
use crate::exec::{Containment, Rotation, raise_nofile_limit};
use crate::lifecycle::reexec::{reexec, reexec_with_env};
use crate::lifecycle::signals::ignore_reopen_signal;
use crate::lifecycle::upgrade;
use clap::ValueEnum;
use procfleet_program::memory::configure_allocator;
use procfleet_program::signals::{stop_requested, unblock_signals};
use procfleet_program::systemd::quoted;
use procfleet_program::{EXIT_PANICKED, LogArgs, print_error, printed};
use procfleet_proto::link::token::JoinToken;
use procfleet_proto::tunnel::ProxyUrl;
use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<AgentVerb>,
    /// The agent links of the servers, such as https://10.0.0.1:48668,https://10.0.0.2:48668. The agent
    /// connects to any of them, learns of further ones from the server, and returns to these if none of those
    /// answers
    // Not parsed by clap, whose errors name only the first fault.
    #[arg(long, env = "PROCFLEET_SERVER", value_name = "URL", value_delimiter = ',', required = true)]
    server: Vec<String>,
    /// Reach the servers through this HTTP proxy (CONNECT): http://[USER:PASSWORD@]HOST:PORT. Use
    /// PROCFLEET_PROXY for a password, as for the token. HTTP_PROXY and the like have no effect
    // Not parsed by clap, whose errors would print the password.
    #[arg(long, env = "PROCFLEET_PROXY", value_name = "URL", hide_env_values = true)]
    proxy: Option<String>,
    /// A join token from `procfleet token create`; needed once. Arguments are visible to every user of the
    /// host while a program starts: prefer PROCFLEET_TOKEN or --token-file
    #[arg(long, env = "PROCFLEET_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file with the join token; needed once, and ignored if it is missing later
    #[arg(long, env = "PROCFLEET_TOKEN_FILE", value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    folder: AgentFolder,
    /// The address of this host; by default the one that the server sees
    #[arg(long, env = "PROCFLEET_IP")]
    ip: Option<IpAddr>,
    /// The policy of this host for the server (JSON); by default /etc/procfleet/policy.json, if it exists
    #[arg(long, env = "PROCFLEET_POLICY", value_name = "FILE")]
    policy: Option<PathBuf>,
    /// How the processes of a proc are tracked
    #[arg(long, env = "PROCFLEET_CONTAINMENT", value_enum, default_value_t)]
    containment: Containment,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Print a systemd unit that runs the agent with these arguments, and end
    #[arg(long)]
    print_systemd_unit: bool,
    /// End when standard input is closed (used by `procfleet up`)
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
    /// Fail points of the chaos test
    #[cfg(feature = "failpoints")]
    #[arg(long, env = "PROCFLEET_FAILPOINTS", hide = true, default_value = "")]
    failpoints: procfleet_failpoint::FailPlan,
}

/// Verbs for the agent itself, on its host.
#[derive(clap::Subcommand, Debug)]
pub enum AgentVerb {
    /// Replace the program of the running agent, without touching a process
    Upgrade(upgrade::Upgrade),
    /// Check whether this program can read the data of an agent
    Check(AgentFolder),
    /// Save the readable part of a damaged journal
    Repair(AgentFolder),
}

/// How an agent ends, if it does not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentEnding {
    Stop,
    /// The agent re-executes the file of its program.
    Reexec,
}

/// How much of the output of processes is kept.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OutputArgs {
    /// Rotate the log of a process when it holds more MiB than this
    #[arg(long, env = "PROCFLEET_LOG_SIZE", value_name = "MIB", default_value_t = 10.0, value_parser = mebibytes)]
    pub log_size: f64,
    /// How many rotated copies of a log to keep; with 0 old output is deleted
    #[arg(long, env = "PROCFLEET_LOG_KEEP", value_name = "N", default_value_t = Rotation::DEFAULT_KEEP,
        value_parser = clap::value_parser!(u64).range(0..=1_000))]
    pub log_keep: u64,
}

impl OutputArgs {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it was checked when it was read"
    )]
    fn rotation(self) -> Rotation {
        Rotation::new((self.log_size * 1024.0 * 1024.0) as u64, self.log_keep)
    }
}

fn mebibytes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(size) if (0.0625..=1_048_576.0).contains(&size) => Ok(size),
        Ok(_) | Err(_) => Err("must be a number of MiB from 0.0625 to 1048576".to_owned()),
    }
}

impl std::fmt::Debug for Args {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Args")
            .field("server", &self.server)
            .field("data", &self.folder.data)
            .finish_non_exhaustive()
    }
}

/// The journal or the configuration cannot be used, and a restart would not help (EX_CONFIG of sysexits.h).
const NEEDS_OPERATOR: u8 = 78;

/// How long a thread for blocking work is kept without work, with its stack and its part of the heap.
const BLOCKING_THREAD_IDLE: Duration = Duration::from_secs(1);

/// Runs the agent until a stop signal, or a verb. Call it with signals blocked (`block_signals`).
pub fn main(args: Args) -> ExitCode {
    if args.verb.is_some() {
        unblock_signals();
    }
    match &args.verb {
        None => {}
        Some(AgentVerb::Upgrade(wanted)) => return print_result(upgrade::upgrade(wanted)),
        Some(AgentVerb::Check(folder)) => return print_result(upgrade::check(&folder.data)),
        Some(AgentVerb::Repair(folder)) => return print_result(crate::repair(&folder.data)),
    }
    let way = match WayToServers::read(&args) {
        Ok(way) => way,
        Err(faults) => {
            print_error(&faults);
            return ExitCode::from(2);
        }
    };
    if args.print_systemd_unit {
        return print_systemd_unit(&args, &way);
    }
    if let Some((arguments, secrets)) = without_secrets(std::env::args_os()) {
        return failed(&reexec_with_env(&arguments, &secrets));
    }
    let log = args.log.init_tracing();
    #[cfg(feature = "failpoints")]
    procfleet_failpoint::follow(args.failpoints.clone());
    let until_stdin_closes = args.until_stdin_closes;
    // Not parsed by clap, whose errors would print the secret.
    let (given, option) = match (args.token, &args.token_file) {
        (Some(token), _) => (token, "--token".to_owned()),
        (None, Some(file)) => match std::fs::read_to_string(file) {
            Ok(token) => (token, format!("--token-file {}", file.display())),
            // A token file may be missing later: the token is needed only for joining.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (String::new(), String::new()),
            Err(error) => {
                print_error(&format!("--token-file {}: {error}", file.display()));
                return ExitCode::from(2);
            }
        },
        (None, None) => (String::new(), String::new()),
    };
    let given = Some(given.trim()).filter(|token| !token.is_empty());
    let token = match given.map(|token| token.parse::<JoinToken>()).transpose() {
        Ok(token) => token,
        Err(error) => {
            print_error(&format!("{option}: {error}"));
            return ExitCode::from(2);
        }
    };
    let allow = match read_policy(args.policy) {
        Ok(allow) => allow,
        Err(error) => return failed(&error),
    };
    // Read now: before a re-exec the file may have been renamed.
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(&error),
    };
    let WayToServers { servers, proxy } = way;
    let data = args.folder.data;
    let (ip, containment, rotation) = (args.ip, args.containment, args.output.rotation());
    let config = AgentSettings {
        servers,
        proxy,
        token,
        data,
        ip,
        allow,
        containment,
        rotation,
        program: program.clone(),
    };
    raise_nofile_limit();
    configure_allocator();
    // Orphans belong to the main thread; children of another thread are in another list
    // (`exec/watch/children.rs`).
    let agent = std::thread::Builder::new().name("agent".to_owned());
    let done = match agent.spawn(move || serve(config, until_stdin_closes)).map(|agent| agent.join()) {
        Ok(Ok(done)) => done,
        // The panic hook has logged it.
        Ok(Err(_)) => return ExitCode::from(EXIT_PANICKED),
        Err(error) => return failed(&error),
    };
    match done {
        Ok(AgentEnding::Stop) => ExitCode::SUCCESS,
        Ok(AgentEnding::Reexec) => {
            let arguments: Vec<_> = std::env::args_os().skip(1).collect();
            // Flushes the log: the next program does not know the waiting lines.
            drop(log);
            failed(&reexec(&program, &arguments))
        }
        Err(error) => {
            let code = failed(&error);
            match error {
                _ if error.needs_operator() => ExitCode::from(NEEDS_OPERATOR),
                AgentError::Panicked(_) | AgentError::Part(_) => ExitCode::from(EXIT_PANICKED),
                _ => code,
            }
        }
    }
}

/// Where the servers are, and how to reach them.
struct WayToServers {
    servers: Vec<ServerAddress>,
    proxy: Option<ProxyUrl>,
}

impl WayToServers {
    /// All faults at once.
    fn read(args: &Args) -> Result<WayToServers, String> {
        let servers = ServerAddress::read_all(args.server.iter().map(String::as_str));
        // An empty variable is none.
        let proxy = args.proxy.as_deref().map(str::trim).filter(|proxy| !proxy.is_empty());
        let proxy = proxy.map(str::parse::<ProxyUrl>).transpose();
        match (servers, proxy) {
            (Ok(servers), Ok(proxy)) => Ok(WayToServers { servers, proxy }),
            (servers, proxy) => {
                let servers = servers.err().map(|faults| format!("--server: {faults}"));
                let proxy = proxy.err().map(|fault| format!("--proxy: {fault}"));
                Err(servers.into_iter().chain(proxy).collect::<Vec<_>>().join("; "))
            }
        }
    }
}

/// Environment variables and their secret values.
type Secrets = Vec<(&'static str, OsString)>;

/// The arguments without a join token and a proxy's password, and these as environment variables: every user
/// of the host can read the arguments while the agent runs. `None`: there are no secrets.
fn without_secrets(arguments: impl Iterator<Item = OsString>) -> Option<(Vec<OsString>, Secrets)> {
    let (mut kept, mut secrets) = (Vec::new(), Vec::new());
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let (name, joined) = match argument.to_str().and_then(|text| text.split_once('=')) {
            Some((name, value)) => (name.into(), Some(OsString::from(value))),
            None => (argument.clone(), None),
        };
        let (variable, is_secret): (_, fn(&OsString) -> bool) = match name.as_encoded_bytes() {
            b"--token" => ("PROCFLEET_TOKEN", |_| true),
            b"--proxy" => ("PROCFLEET_PROXY", |value| value.as_encoded_bytes().contains(&b'@')),
            _ => {
                kept.push(argument);
                continue;
            }
        };
        let separate = if joined.is_none() { arguments.next() } else { None };
        match joined.as_ref().or(separate.as_ref()).filter(|value| is_secret(value)) {
            Some(value) => secrets.push((variable, value.clone())),
            None => kept.extend([argument].into_iter().chain(separate)),
        }
    }
    (!secrets.is_empty()).then_some((kept, secrets))
}

/// Runs the agent on one thread, which is enough and keeps it small.
fn serve(config: AgentSettings, until_stdin_closes: bool) -> Result<AgentEnding, AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Threads for files are needed for a moment, and then seldom.
        .thread_keep_alive(BLOCKING_THREAD_IDLE)
        .build()
        .map_err(AgentError::Runtime)?;
    // Installed early: SIGHUP may arrive before the agent is ready.
    let hangup = {
        let _within = runtime.enter();
        signal(SignalKind::hangup())
    };
    ignore_reopen_signal();
    unblock_signals();
    let stop = async move {
        tokio::select! {
            () = stop_requested() => AgentEnding::Stop,
            () = stdin_closed(), if until_stdin_closes => AgentEnding::Stop,
            () = reexec_requested(hangup) => AgentEnding::Reexec,
        }
    };
    let done = runtime.block_on(crate::run(config, stop));
    // Does not wait for the thread that reads standard input.
    runtime.shutdown_background();
    done
}

fn print_result<E: Error>(done: Result<String, E>) -> ExitCode {
    match done {
        Ok(text) => printed(&format!("{text}\n")),
        Err(error) => failed(&error),
    }
}

/// The token is not in it: a unit file is readable for all, and the token is needed only once. The password
/// of a proxy is needed at each start, and comes from a file.
fn print_systemd_unit(args: &Args, way: &WayToServers) -> ExitCode {
    let (program, data) = match (std::env::current_exe(), std::path::absolute(&args.folder.data)) {
        (Ok(program), Ok(data)) => (program, data),
        (Err(error), _) | (_, Err(error)) => return failed(&error),
    };
    let mut command = quoted(&program.to_string_lossy());
    if program.file_name().is_some_and(|name| name == "procfleet") {
        command.push_str(" agent");
    }
    let proxy = way.proxy.as_ref().filter(|proxy| !proxy.has_login());
    let containment = Some(args.containment).filter(|named| *named != Containment::default());
    let containment = containment.and_then(|named| named.to_possible_value());
    let rotation = args.output.rotation();
    let options = [
        Some(("--server", way.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))),
        proxy.map(|proxy| ("--proxy", proxy.to_string())),
        Some(("--data", data.to_string_lossy().into_owned())),
        args.ip.map(|ip| ("--ip", ip.to_string())),
        args.policy.as_ref().map(|policy| ("--policy", policy.to_string_lossy().into_owned())),
        containment.map(|named| ("--containment", named.get_name().to_owned())),
        (rotation != Rotation::default()).then(|| ("--log-size", args.output.log_size.to_string())),
        (rotation != Rotation::default()).then(|| ("--log-keep", args.output.log_keep.to_string())),
    ];
    for (name, value) in options.into_iter().flatten().chain(args.log.arguments()) {
        let _ = write!(command, " {name} {}", quoted(&value));
    }
    let unit = include_str!("agent.service").replace("@COMMAND@", &command);
    let has_login = way.proxy.as_ref().is_some_and(ProxyUrl::has_login);
    let environment = if has_login { include_str!("agent_proxy.service") } else { "" };
    printed(&unit.replace("ExecStart=", &format!("{environment}ExecStart=")))
}

fn failed(error: &dyn Error) -> ExitCode {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    print_error(&text);
    ExitCode::FAILURE
}

/// SIGHUP.
async fn reexec_requested(hangup: std::io::Result<Signal>) {
    match hangup {
        Ok(mut hangup) => {
            hangup.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}

async fn stdin_closed() {
    let mut stdin = tokio::io::stdin();
    let mut scrap = [0; 64];
    while !matches!(stdin.read(&mut scrap).await, Ok(0) | Err(_)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_taken_out_of_the_arguments() {
        let check = |arguments: &str, expected: Option<(&str, &str)>| {
            let left = without_secrets(arguments.split(' ').map(OsString::from));
            let left = left.map(|(kept, secrets)| {
                let secrets = secrets.iter().map(|(name, value)| format!("{name}={}", value.display()));
                let kept = kept.join(" ".as_ref()).into_string().expect("plain");
                (kept, secrets.collect::<Vec<_>>().join(" "))
            });
            let left = left.as_ref().map(|(kept, secrets)| (kept.as_str(), secrets.as_str()));
            assert_eq!(left, expected, "{arguments}");
        };
        check("procfleet agent --server x", None);
        check(
            "procfleet agent --token secret --server x",
            Some(("procfleet agent --server x", "PROCFLEET_TOKEN=secret")),
        );
        check(
            "procfleet agent --server x --token=secret",
            Some(("procfleet agent --server x", "PROCFLEET_TOKEN=secret")),
        );
        check("procfleet agent --token-file f", None);
        check("procfleet agent --token", None);
        check("procfleet agent --proxy http://h:1 --server=x", None);
        check("procfleet agent --proxy=http://h:1 --proxy-file x", None);
        check(
            "procfleet agent --proxy http://u:p@h:1 --ip y --token=t=u",
            Some(("procfleet agent --ip y", "PROCFLEET_PROXY=http://u:p@h:1 PROCFLEET_TOKEN=t=u")),
        );
        check(
            "procfleet agent --proxy=http://u:p@h:1 --server=x",
            Some(("procfleet agent --server=x", "PROCFLEET_PROXY=http://u:p@h:1")),
        );
    }
}
