//! All agents of a simulated fleet, in their own runtime.

use crate::agent::{Agent, FleetShared, Held};
use crate::connect::Source;
use crate::enroll::{SimEnrollError, enroll};
use crate::figures::{Figures, FleetCounters};
use crate::identities::Identities;
use crate::random::Random;
use crate::script::{BadScript, Script};
use crate::trace::Trace;
use procfleet_agent::config::ServerAddress;
use procfleet_agent::identity::AgentIdentity;
use procfleet_agent::tls::ConnectError;
use procfleet_proto::link::token::JoinToken;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// Maximum number of concurrent enrolments: each costs the server a signature and a commit.
const JOINING: usize = 64;
const JOIN_AGAIN: Duration = Duration::from_secs(2);
const FLUSH: Duration = Duration::from_millis(50);

/// The settings of a fleet.
#[derive(Clone, Debug)]
pub struct FleetPlan {
    /// The servers of one store, at least one; each agent chooses at random.
    pub servers: Vec<ServerAddress>,
    /// Needed by agents that have not joined yet.
    pub token: Option<JoinToken>,
    pub agents: usize,
    /// The address that the first agent reports; each further agent has the next one. The server identifies
    /// hosts by them.
    pub first_ip: IpAddr,
    /// Each agent connects from a loopback address of its own; the servers are on this machine.
    pub own_addresses: bool,
    /// The folder of keys and certificates.
    pub data: PathBuf,
    pub script: Script,
    /// Seed of all random choices.
    pub seed: u64,
    /// The first connects are spread over this.
    pub spread: Duration,
    /// The file for the times of each op.
    pub trace: Option<PathBuf>,
    /// How many threads the fleet may keep busy.
    pub threads: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("the address space ends before {agents} addresses from {first} on")]
    Addresses { first: IpAddr, agents: usize },
    #[error("the script is invalid: {0}")]
    Script(#[from] BadScript),
    #[error("{doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("starting the runtime")]
    Runtime(#[source] io::Error),
}

/// A fleet that runs. When it is dropped, all connections end as if every host had lost its power.
pub struct Fleet {
    shared: Arc<FleetShared>,
    agents: usize,
    trouble: Arc<Mutex<Option<String>>>,
    /// `None` only while it is being dropped.
    runtime: Option<Runtime>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("figures", &self.figures()).finish_non_exhaustive()
    }
}

impl Fleet {
    pub fn start(plan: FleetPlan) -> Result<Fleet, FleetError> {
        plan.script.check()?;
        let last = plan.agents.saturating_sub(1);
        nth_ip(plan.first_ip, last)
            .ok_or(FleetError::Addresses { first: plan.first_ip, agents: plan.agents })?;
        let file = |doing, path: &PathBuf| {
            let path = path.clone();
            move |source| FleetError::File { doing, path, source }
        };
        let identities = Identities::open(&plan.data).map_err(file("opening the fleet in", &plan.data))?;
        let trace = plan.trace.as_ref().map(|path| Trace::create(path).map_err(file("creating", path)));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(plan.threads.max(1))
            .enable_all()
            .build()
            .map_err(FleetError::Runtime)?;
        let shared = Arc::new(FleetShared {
            servers: plan.servers.clone(),
            began: Instant::now(),
            script: plan.script.clone(),
            counters: FleetCounters::default(),
            trace: trace.transpose()?,
            held: watch::channel(Held::Nothing).0,
        });
        let (agents, trouble) = (plan.agents, Arc::default());
        runtime.spawn(run(plan, shared.clone(), identities, Arc::clone(&trouble)));
        Ok(Fleet { shared, agents, trouble, runtime: Some(runtime) })
    }

    pub fn figures(&self) -> Figures {
        self.shared.counters.read(self.agents as u64)
    }

    /// Instead of what was held before.
    pub fn hold(&self, held: Held) {
        self.shared.held.send_replace(held);
    }

    /// Why some agents cannot join, in the words of the first of them. They do not try again.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        if let Some(trace) = &self.shared.trace {
            trace.flush();
        }
    }
}

async fn run(
    plan: FleetPlan,
    shared: Arc<FleetShared>,
    identities: Identities,
    trouble: Arc<Mutex<Option<String>>>,
) {
    let joining = Arc::new(Semaphore::new(JOINING));
    let (plan, identities) = (Arc::new(plan), Arc::new(identities));
    for index in 0..plan.agents {
        let ip = nth_ip(plan.first_ip, index).expect("the last one was checked");
        let (plan, shared, identities) = (plan.clone(), shared.clone(), identities.clone());
        let (joining, trouble) = (joining.clone(), trouble.clone());
        tokio::spawn(async move {
            let mut random = Random::new(plan.seed, index);
            let identity = match identities.take(ip) {
                Some(identity) => {
                    tokio::time::sleep(plan.spread.mul_f64(random.part())).await;
                    Ok(identity)
                }
                None => Box::pin(join(&plan, &identities, &joining, ip)).await,
            };
            match identity {
                Ok(identity) => {
                    let source = if plan.own_addresses { Source::loopback(ip) } else { Source::Any };
                    Agent::new(shared, identity, source, random).live().await;
                }
                Err(reason) => {
                    let mut trouble = trouble.lock().unwrap_or_else(PoisonError::into_inner);
                    trouble.get_or_insert_with(|| format!("{ip}: {reason}"));
                }
            }
        });
    }
    loop {
        tokio::time::sleep(FLUSH).await;
        if let Some(trace) = &shared.trace {
            trace.flush();
        }
    }
}

/// Waits for a server that is not there yet; gives up when it refuses.
async fn join(
    plan: &FleetPlan,
    identities: &Identities,
    joining: &Semaphore,
    ip: IpAddr,
) -> Result<AgentIdentity, String> {
    let _place = joining.acquire().await.map_err(|error| error.to_string())?;
    let mut servers = plan.servers.iter().cycle();
    loop {
        let server = servers.next().expect("there is at least one server");
        match enroll(server, plan.token.as_ref(), ip).await {
            Ok(identity) => {
                identities.keep(ip, &identity).map_err(|error| format!("keeping its key: {error}"))?;
                return Ok(identity);
            }
            Err(SimEnrollError::Connect(ConnectError::Tcp(..) | ConnectError::Silent(..))) => {
                tokio::time::sleep(JOIN_AGAIN).await;
            }
            // A server whose handshake slots are all taken evicts the slowest peer.
            Err(SimEnrollError::Connect(ConnectError::Tls(_, error))) if is_broken(&error) => {
                tokio::time::sleep(JOIN_AGAIN).await;
            }
            Err(error) => return Err(chain(&error)),
        }
    }
}

/// The connection ended in the middle of the handshake, without a refusal.
fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn nth_ip(first: IpAddr, index: usize) -> Option<IpAddr> {
    match first {
        IpAddr::V4(first) => {
            let bits = first.to_bits().checked_add(u32::try_from(index).ok()?)?;
            Some(Ipv4Addr::from_bits(bits).into())
        }
        IpAddr::V6(first) => {
            let bits = first.to_bits().checked_add(u128::try_from(index).ok()?)?;
            Some(Ipv6Addr::from_bits(bits).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_consecutive_up_to_the_last_one() {
        for (first, index, expected) in [
            ("10.0.0.1", 0, Some("10.0.0.1")),
            ("10.0.0.1", 255, Some("10.0.1.0")),
            ("255.255.255.255", 1, None),
            ("fd00::ffff", 1, Some("fd00::1:0")),
        ] {
            let nth = nth_ip(first.parse().expect("an address"), index);
            assert_eq!(nth.map(|ip| ip.to_string()).as_deref(), expected, "{first} {index}");
        }
    }
}
