//! `procfleet-sim`: a simulated fleet from the command line.

use clap::Parser;
use procfleet_agent::config::ServerAddress;
use procfleet_sim::{
    DelayRange, Figures, Fleet, FleetPlan, Script, ScriptedEnd, agents_for_files, take_all_files,
};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const ABOUT: &str = "\
Thousands of agents in one process, each with a key, a certificate and a session of its own over procfleet's real link.

For tests, for benchmarks, and for finding the capacity of a server. To a server a simulated agent is an agent like any \
other: it joins with a token, takes ops, reports their outcomes, and reconnects when its connection breaks. Only its \
processes are simulated; a script says how they behave.";

const EXAMPLES: &str = r#"Examples:
  1,000 agents that carry out every op at once (the token is not on the command line, where other users could read it):
    PROCFLEET_TOKEN="$(procfleet token create --uses 1000)" \
      procfleet-sim --server https://127.0.0.1:48668 --agents 1000

  The same agents again, with slow ops, failures and broken connections:
    procfleet-sim --server https://127.0.0.1:48668 --agents 1000 --take 50-2000 --end 0=95 --end 836=5 --drop-every 60

The script (--script FILE), with all its fields:
  { "take_ms": [50, 2000],                          how long an op takes
    "end": [ {"code": 0, "weight": 95},             how it ends
             {"code": 836, "weight": 5, "message": "start: it died"} ],
    "drop": { "received_percent": 1,                percentage of ops that break the connection: after reading,
              "taken_percent": 1,                   after the op was confirmed,
              "reported_percent": 1,                after the report, before its acknowledgement
              "every_secs": 60,                     average lifetime of a connection without an op
              "away_ms": [0, 5000] },               pause before the agent connects again
    "repeat_percent": 5,                            percentage of reports that are sent twice
    "slow": { "agents_percent": 1, "read_every_ms": 1000 } }   agents that hardly read

Hosts are known to the server by cloud area and address, so each agent claims one: 10.0.0.1, 10.0.0.2 and so on (--first-ip);
the cloud area is the token's. Keys and certificates are kept in --data, and no token is needed to come back. Two fleets need
two folders and two ranges of addresses.

There is no journal: while the fleet runs, it neither forgets nor repeats an op, but when it ends, ops that were not reported are lost."#;

#[derive(Parser)]
#[command(name = "procfleet-sim", version, about = ABOUT, after_help = EXAMPLES)]
struct Args {
    /// The server's agent link, such as https://10.0.0.1:48668; several of one store are separated by commas
    #[arg(long, env = "PROCFLEET_SERVER", value_delimiter = ',', required = true)]
    server: Vec<ServerAddress>,
    /// A join token from `procfleet token create --uses N`; needed by agents that have not joined yet
    #[arg(long, env = "PROCFLEET_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// How many agents
    #[arg(long, default_value_t = 100, value_name = "N")]
    agents: usize,
    /// The address that the first agent claims; each further one has the next
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), value_name = "IP")]
    first_ip: IpAddr,
    /// Each agent connects from a loopback address of its own (127.x.y.z), if the servers are on this machine
    #[arg(long)]
    own_addresses: bool,
    /// Folder of the keys and certificates of the fleet
    #[arg(long, default_value = "./procfleet-sim-data", value_name = "FOLDER")]
    data: PathBuf,
    /// How processes and connections behave (JSON, see below); the flags that follow take precedence
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// How long an op takes, in milliseconds: N, or N-M
    #[arg(long, value_name = "MS")]
    take: Option<DelayRange>,
    /// How ops end: GSE's error code, and how often compared with the others; may be given several times
    #[arg(long, value_name = "CODE[=WEIGHT]")]
    end: Vec<ScriptedEnd>,
    /// Average lifetime of a connection in seconds, after which it breaks
    #[arg(long, value_name = "SECONDS")]
    drop_every: Option<f64>,
    /// Percentage of reports that are sent twice
    #[arg(long, value_name = "PERCENT")]
    repeat: Option<f64>,
    /// Seconds over which the first connects of joined agents are spread
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    spread: f64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many threads the fleet may keep busy
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Write when each op came, was reported and was confirmed (CSV; nanoseconds of the monotonic clock)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// End after this many seconds; otherwise at Ctrl-C
    #[arg(long = "for", value_name = "SECONDS")]
    for_secs: Option<f64>,
    /// Print the counters as JSON, one line after each change
    #[arg(long)]
    json: bool,
    /// Interval between two lines of counters
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    every: f64,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            procfleet_program::print_error(&reason);
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), String> {
    let files = take_all_files();
    let most = agents_for_files(files);
    if args.agents > most {
        let files = files.unwrap_or(u64::MAX);
        return Err(format!(
            "--agents: {} do not fit: this machine lets a process open {files} files, enough for {most} agents \
             (raise the hard limit: ulimit -Hn)",
            args.agents
        ));
    }
    let (every, for_secs) =
        (seconds("--every", args.every)?, args.for_secs.map(|secs| seconds("--for", secs)));
    let for_secs = for_secs.transpose()?;
    let json = args.json;
    let plan = plan(args)?;
    let (agents, first) = (plan.agents, plan.first_ip);
    if !json {
        print_note(&format!("{agents} agents from {first} on; the limit of open files allows {most}"));
    }
    let fleet = Fleet::start(plan).map_err(|error| with_cause(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let watched = runtime.map_err(|error| error.to_string())?.block_on(watch(&fleet, every, for_secs, json));
    print_note(&line(fleet.figures(), json));
    watched
}

/// A closed standard output does not end the fleet.
fn print_note(line: &str) {
    let _ = procfleet_program::print(format!("{line}\n"));
}

fn plan(args: Args) -> Result<FleetPlan, String> {
    let mut script = match &args.script {
        None => Script::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("--script: reading {}: {error}", path.display()))?;
            Script::from_json(&text).map_err(|error| format!("--script: {error}"))?
        }
    };
    if let Some(take) = args.take {
        script.take_ms = take;
    }
    if !args.end.is_empty() {
        script.end = args.end;
    }
    if let Some(every) = args.drop_every {
        script.drop.every_secs = every;
    }
    if let Some(repeat) = args.repeat {
        script.repeat_percent = repeat;
    }
    // Not parsed by clap, because clap repeats a bad value on the screen, and this value is a secret.
    let token = args.token.filter(|token| !token.is_empty()).map(|token| token.parse()).transpose();
    Ok(FleetPlan {
        servers: args.server,
        token: token.map_err(|error| format!("--token: {error}"))?,
        agents: args.agents,
        first_ip: args.first_ip,
        own_addresses: args.own_addresses,
        data: args.data,
        script,
        seed: args.seed,
        spread: seconds("--spread", args.spread)?,
        trace: args.trace,
        threads: args.threads,
    })
}

fn seconds(flag: &str, seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("{flag}: {seconds} is no length of time"))
}

/// Prints the counters whenever they have changed, until a signal comes.
async fn watch(fleet: &Fleet, every: Duration, for_secs: Option<Duration>, json: bool) -> Result<(), String> {
    let began = Instant::now();
    let mut printed = Figures::default();
    let mut ready = false;
    let stop = procfleet_program::signals::stop_requested();
    tokio::pin!(stop);
    loop {
        let figures = fleet.figures();
        if figures != printed {
            print_note(&line(figures, json));
            printed = figures;
        }
        if !ready && figures.connected == figures.agents {
            ready = true;
            if !json {
                print_note(&format!(
                    "procfleet-sim is ready: all are connected after {:.1?}",
                    began.elapsed()
                ));
            }
        }
        if let Some(trouble) = fleet.trouble() {
            return Err(trouble);
        }
        let left = for_secs.map(|whole| whole.saturating_sub(began.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = tokio::time::sleep(left.map_or(every, |left| left.min(every)).max(Duration::from_millis(10))) => {}
        }
    }
}

fn line(figures: Figures, json: bool) -> String {
    match json {
        true => serde_json::to_string(&figures).expect("numbers are JSON"),
        false => figures.to_string(),
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
