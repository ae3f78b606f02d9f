//! Which server an agent connects to next, and when.
//!
//! An agent knows the servers of the last welcome, and those of its command line as the last resort. It
//! connects to a random one, so that agents spread evenly over the servers. A server that failed, closed a
//! session or sent the agent elsewhere is avoided for [`AVOIDED`]:
//!
//! ```text
//! there is a listed server without failures that is not avoided      a random one of them, at once
//! else: there is one of the command line that is not avoided         a random one of them, at once
//! else: there is a listed server that is not avoided                 a random one of them, at once
//! else                                                               the one whose back-off is over first, then
//! ```
//!
//! An agent behind a TCP proxy may not reach the servers of the list at all, so after their first failures
//! they come last.
//!
//! Each server has a back-off of its own: exponential, with full jitter, up to [`LONGEST_OF_ONE`] if it is
//! the only one, and up to [`LONGEST_OF_SEVERAL`] otherwise. Three ends of a session delay the next attempt
//! to any server: a session that was open is followed by a short random pause, because thousands of agents
//! lose a server at the same moment (thundering herd); a drain says itself how long; and a refusal is
//! followed by the long back-off, because all servers of a fleet know the same agents.

use crate::boot_time::BootTime;
use crate::server_address::ServerAddress;
use std::time::Duration;

/// How long a server is avoided after a failure, if there is another one.
pub const AVOIDED: Duration = Duration::from_secs(60);
/// The first ceiling of a back-off; it doubles with each failure.
const FIRST: Duration = Duration::from_secs(1);
/// The highest ceiling for the only server, and for refused sessions.
pub const LONGEST_OF_ONE: Duration = Duration::from_secs(60);
/// The highest ceiling for one of several servers.
pub const LONGEST_OF_SEVERAL: Duration = Duration::from_secs(10);
/// The pause after a session that was open, if there are several servers: up to this.
pub const SPREAD: Duration = Duration::from_secs(2);

/// A random number of the caller, all values equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw(pub u32);

impl Draw {
    /// A random part of `whole`, up to all of it.
    pub fn part_of(self, whole: Duration) -> Duration {
        whole.mul_f64(f64::from(self.0) / f64::from(u32::MAX))
    }

    /// A random index below `count`, which is not 0.
    fn below(self, count: usize) -> usize {
        let index = (u64::from(self.0) * count as u64) >> 32;
        usize::try_from(index).unwrap_or_default()
    }
}

/// Exponential back-off with full jitter, after so many failures of the only server.
pub fn back_off(failures: u32, draw: Draw) -> Duration {
    draw.part_of(ceiling(failures, LONGEST_OF_ONE))
}

fn ceiling(failures: u32, longest: Duration) -> Duration {
    (FIRST * 2u32.saturating_pow(failures.min(10))).min(longest)
}

/// The addresses in random order.
pub fn shuffled(servers: &[ServerAddress], mut draw: impl FnMut() -> Draw) -> Vec<ServerAddress> {
    let mut order = servers.to_vec();
    for last in (1..order.len()).rev() {
        order.swap(last, draw().below(last + 1));
    }
    order
}

/// How an attempt to connect, or the session after it, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkResult {
    /// There was no session: the server could not be reached, did not answer, or broke the protocol.
    Failed,
    /// The session was open. The server closed it, or fell silent.
    Lost,
    /// The server does not accept this agent.
    Refused,
    /// The server asked the agent to reconnect after `after` and a random part of `spread`.
    Drained { after: Duration, spread: Duration, next: DrainedTo },
    /// The session was for a new certificate, and has served its purpose.
    Renewed,
}

/// Where a drained agent reconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainedTo {
    AnyServer,
    AnotherServer,
}

/// The next attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextServer {
    pub server: ServerAddress,
    pub wait: Duration,
}

/// The servers that an agent knows, and its memory of their failures.
#[derive(Clone, Debug)]
pub struct ServerChoice {
    configured: Vec<ServerAddress>,
    servers: Vec<KnownServer>,
    /// Refused sessions since the last welcome.
    refusals: u32,
    /// No attempt to any server before this time.
    not_before: Option<BootTime>,
}

#[derive(Clone, Debug)]
struct KnownServer {
    address: ServerAddress,
    rank: Rank,
    /// Failures since its last welcome.
    failures: u32,
    avoided: Option<Avoided>,
}

/// The servers of the first rank are tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    Listed,
    LastResort,
}

#[derive(Clone, Copy, Debug)]
struct Avoided {
    until: BootTime,
    /// When it may be tried if all servers are avoided.
    retry_at: BootTime,
}

impl ServerChoice {
    /// `listed`: from the last welcome; empty if there was none. `configured`: from the command line, at
    /// least one.
    pub fn new(configured: Vec<ServerAddress>, listed: Vec<ServerAddress>) -> ServerChoice {
        let mut choice = ServerChoice { configured, servers: Vec::new(), refusals: 0, not_before: None };
        choice.set_servers(listed);
        choice
    }

    /// The next server, and how long to wait before the attempt.
    pub fn next(&self, now: BootTime, draw: Draw) -> NextServer {
        let at = self.not_before.map_or(now, |earliest| earliest.max(now));
        let begin = |server: &KnownServer| server.avoided.map_or(at, |avoided| avoided.retry_at.max(at));
        let not_avoided = |is_candidate: fn(&KnownServer) -> bool| {
            let servers = self.servers.iter().filter(|server| is_candidate(server) && !server.is_avoided(at));
            let servers: Vec<&KnownServer> = servers.collect();
            (!servers.is_empty()).then_some((at, servers))
        };
        let all_avoided = || {
            let first = self.servers.iter().map(begin).min().unwrap_or(at);
            (first, self.servers.iter().filter(|server| begin(server) == first).collect())
        };
        let (at, candidates) = not_avoided(|server| server.rank == Rank::Listed && server.failures == 0)
            .or_else(|| not_avoided(|server| server.rank == Rank::LastResort))
            .or_else(|| not_avoided(|server| server.rank == Rank::Listed))
            .unwrap_or_else(all_avoided);
        let server = candidates[draw.below(candidates.len())].address.clone();
        NextServer { server, wait: at.since(now) }
    }

    /// A session with this server is open.
    pub fn welcomed(&mut self, server: &ServerAddress) {
        (self.refusals, self.not_before) = (0, None);
        if let Some(known) = self.known(server) {
            (known.failures, known.avoided) = (0, None);
        }
    }

    /// The attempt to connect to this server, or the session with it, has ended.
    pub fn ended(&mut self, server: &ServerAddress, result: LinkResult, now: BootTime, draw: Draw) {
        let several = self.servers.len() > 1;
        let longest = if several { LONGEST_OF_SEVERAL } else { LONGEST_OF_ONE };
        let avoid = |known: &mut KnownServer, retry_at: BootTime| {
            known.avoided = Some(Avoided { until: now + AVOIDED, retry_at });
        };
        let fail = |known: &mut KnownServer| {
            avoid(known, now + draw.part_of(ceiling(known.failures, longest)));
        };
        self.not_before = None;
        match result {
            LinkResult::Failed => {
                if let Some(known) = self.known(server) {
                    known.failures = known.failures.saturating_add(1);
                    fail(known);
                }
            }
            LinkResult::Lost => {
                self.not_before = several.then(|| now + draw.part_of(SPREAD));
                if let Some(known) = self.known(server) {
                    fail(known);
                }
            }
            LinkResult::Refused => {
                self.refusals = self.refusals.saturating_add(1);
                let at = now + back_off(self.refusals, draw);
                self.not_before = Some(at);
                if let Some(known) = self.known(server) {
                    avoid(known, at);
                }
            }
            LinkResult::Drained { after, spread, next } => {
                let at = now + after + draw.part_of(spread);
                self.not_before = Some(at);
                if let (DrainedTo::AnotherServer, Some(known)) = (next, self.known(server)) {
                    avoid(known, at);
                }
            }
            LinkResult::Renewed => {}
        }
    }

    /// Replaces the list of the last welcome. Servers that stay keep their memory. An empty list changes
    /// nothing. Returns whether the list has changed.
    pub fn replace(&mut self, listed: Vec<ServerAddress>) -> bool {
        let is_same =
            listed.len() == self.listed().count() && self.listed().all(|known| listed.contains(known));
        if listed.is_empty() || is_same {
            return false;
        }
        self.set_servers(listed);
        true
    }

    fn listed(&self) -> impl Iterator<Item = &ServerAddress> {
        let is_listed = |server: &&KnownServer| server.rank == Rank::Listed;
        self.servers.iter().filter(is_listed).map(|server| &server.address)
    }

    fn set_servers(&mut self, listed: Vec<ServerAddress>) {
        let last_resort = self.configured.iter().filter(|address| !listed.contains(address)).cloned();
        let last_resort: Vec<_> = last_resort.map(|address| (address, Rank::LastResort)).collect();
        let listed = listed.into_iter().map(|address| (address, Rank::Listed));
        let servers = listed.chain(last_resort).map(|(address, rank)| {
            let known = self.servers.iter().find(|known| known.address == address);
            let (failures, avoided) = known.map_or((0, None), |known| (known.failures, known.avoided));
            KnownServer { address, rank, failures, avoided }
        });
        self.servers = servers.collect();
    }

    fn known(&mut self, server: &ServerAddress) -> Option<&mut KnownServer> {
        self.servers.iter_mut().find(|known| known.address == *server)
    }
}

impl KnownServer {
    fn is_avoided(&self, at: BootTime) -> bool {
        self.avoided.is_some_and(|avoided| avoided.until > at)
    }
}

#[cfg(test)]
mod tests;
