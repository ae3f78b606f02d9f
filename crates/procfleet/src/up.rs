//! `procfleet up`: a server in this process, and an agent in a child process, restarted whenever it exits.
//!
//! The agent is a separate process, so that it exits and upgrades as on any other host. Its standard input is
//! a pipe: when this process is gone, the agent sees end-of-file and exits, too. Managed processes keep
//! running in either case.

use crate::{NEEDS_OPERATOR, memory};
use anyhow::{Context, Result};
use clap::ValueEnum;
use procfleet_agent::exec::Containment;
use procfleet_agent::program;
use procfleet_core::id::{BusinessId, CloudId, Host};
use procfleet_program::signals::{stop_requested_or_hangup, unblock_signals};
use procfleet_program::{LogArgs, announce as say};
use procfleet_proto::http::native::CreateToken;
use procfleet_server::usecase::{Caller, tokens};
use procfleet_server::{Server, files, reachable};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// How long the ready message waits for the agent. The server is up without it.
const AGENT_START_TIMEOUT: Duration = Duration::from_secs(15);
const AGENT_PAUSE: Duration = Duration::from_millis(300);
/// The pause before the restart of an agent that an operator has to repair (exit code 78).
const AGENT_PAUSE_FOR_OPERATOR: Duration = Duration::from_secs(10);
/// How long the agent may take to exit.
const AGENT_END: Duration = Duration::from_secs(2);

/// The pipe is held apart from the child, whose `wait` would close it.
struct LocalAgent {
    child: Child,
    stdin: Option<ChildStdin>,
}

#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    #[command(flatten)]
    server: crate::server::Args,
    /// IP address of this host: it is host 0:IP
    #[arg(long, env = "PROCFLEET_IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    ip: IpAddr,
    /// How to track the processes of a proc
    #[arg(long, env = "PROCFLEET_CONTAINMENT", value_enum, default_value_t)]
    containment: Containment,
    #[command(flatten)]
    output: program::OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.server.hide_password()?;
    let _log = args.server.log.init_tracing();
    let given = files::raise_limit();
    crate::server::runtime()?.block_on(up(args, given))
}

async fn up(args: Args, given: files::InheritedLimit) -> Result<()> {
    let (data, log) = (args.server.data.clone(), args.server.log.clone());
    let settings = args.server.try_into()?;
    let hangup = crate::server::hangup(&settings);
    let mut server = Server::start(settings).await?;
    // Before the ready message: after it, a signal must end the server in order.
    let stop = stop_requested_or_hangup(hangup);
    unblock_signals();
    server.add_part("the return of memory", memory::trim(server.services.backlog.clone()));
    let agent_data = data.join("agent");
    let host = Host { cloud: CloudId(0), ip: args.ip };
    let kept = &(args.containment, args.output, log);
    // Read now: after an upgrade of the agent, the file of this process has another name.
    let program = std::env::current_exe().context("finding this program")?;
    let mut agent = start_agent(&server, &program, &agent_data, host, kept, given).await?;
    tokio::pin!(stop);
    let mut is_told = tokio::select! {
        biased;
        () = &mut stop => true,
        () = announce(&server, host, &data) => false,
    };
    let failed = loop {
        if is_told {
            break None;
        }
        tokio::select! {
            biased;
            () = &mut stop => is_told = true,
            failed = server.failed() => break Some(failed.into()),
            ended = agent.child.wait() => {
                let code = ended.as_ref().ok().and_then(std::process::ExitStatus::code);
                let pause = if code == Some(i32::from(NEEDS_OPERATOR)) { AGENT_PAUSE_FOR_OPERATOR } else { AGENT_PAUSE };
                warn!(status = ?ended.ok(), "the agent has ended; starting it again");
                tokio::select! {
                    () = sleep(pause) => {}
                    () = &mut stop => {
                        is_told = true;
                        continue;
                    }
                }
                agent = start_agent(&server, &program, &agent_data, host, kept, given).await?;
            }
        }
    };
    // Closing its standard input asks the agent to end.
    drop(agent.stdin);
    let (_, ended) = tokio::join!(server.stop(), timeout(AGENT_END, agent.child.wait()));
    if ended.is_err() {
        warn!("the agent did not end in time and was killed; its processes keep running");
        let _ = agent.child.kill().await;
    }
    match failed {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the agent is our own program, and not one that it looks after"
)]
async fn start_agent(
    server: &Server,
    program: &Path,
    data: &Path,
    host: Host,
    (containment, output, log): &(Containment, program::OutputArgs, LogArgs),
    given: files::InheritedLimit,
) -> Result<LocalAgent> {
    let containment = containment.to_possible_value().context("naming the containment")?;
    let token = token_if_needed(server, data, host).await?;
    let mut command = Command::new(program);
    command
        .args(["agent", "--until-stdin-closes", "--server"])
        .arg(format!("https://{}", reachable(server.link)))
        .arg("--data")
        .arg(data)
        .arg("--ip")
        .arg(host.ip.to_string())
        .args(["--containment", containment.get_name()])
        .args(log.arguments().into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]))
        .args(["--log-size", &output.log_size.to_string(), "--log-keep", &output.log_keep.to_string()])
        .stdin(Stdio::piped())
        // The agent is on the server's host.
        .env_remove("PROCFLEET_PROXY")
        // Ctrl-C must reach this process only, which then ends the agent.
        .process_group(0);
    // The agent has no use for the database's password.
    command.env_remove(crate::store_argument::VARIABLE);
    match token {
        // Not as an argument, because every user of the host can read arguments.
        Some(token) => command.env("PROCFLEET_TOKEN", token),
        None => command.env_remove("PROCFLEET_TOKEN"),
    };
    // Managed processes inherit the agent's RLIMIT_NOFILE, which must be the usual one.
    let mut child = given.within(|| command.spawn()).context("starting the agent")?;
    info!(pid = child.id(), "agent started");
    Ok(LocalAgent { stdin: child.stdin.take(), child })
}

/// A join token, unless the agent has joined this server as this host.
async fn token_if_needed(server: &Server, data: &Path, host: Host) -> Result<Option<String>> {
    let id = data.join("agent.id");
    let mine = std::fs::read_to_string(&id).unwrap_or_default();
    let known = server.services.store.agent_at(host).await?;
    if known.as_ref().is_some_and(|known| known.agent.as_str() == mine.trim()) {
        return Ok(None);
    }
    if id.exists() {
        warn!("the agent in {} belongs to another server or host and joins again", data.display());
        std::fs::remove_file(&id).context("letting the agent join anew")?;
    }
    let caller = Caller::ourselves("procfleet-up", host.ip);
    // A replacement of a lost agent stays in the business of its host.
    let business = known.map_or(BusinessId::DEFAULT, |known| known.business).0;
    let wanted =
        CreateToken { bk_cloud_id: host.cloud.0, bk_biz_id: business, ttl_secs: 600, uses: 1, replace: true };
    Ok(Some(tokens::create(&server.services, &caller, wanted).await?.token))
}

/// Prints the ready message when server and agent are ready.
async fn announce(server: &Server, host: Host, data: &Path) {
    let connected = async {
        loop {
            if let Ok(Some(agent)) = server.services.store.agent_at(host).await
                && server.services.presences.contains(&agent.agent)
            {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    if timeout(AGENT_START_TIMEOUT, connected).await.is_err() {
        warn!("the agent has not connected yet; the log above may say why");
    }
    let url = &server.url;
    let data = data.display();
    say(&format!("procfleet is ready: {url} (this host is {host})"));
    say(&format!("  procfleet start hello --cmd 'exec sleep 1000' --proc-name sleep --data {data}"));
    say(&format!("  procfleet ps --data {data}"));
}
