//! The connected agents: sessions that come, go, are replaced or dismissed.

use super::{AgentCapabilities, Work};
use crate::presences::LastHeard;
use crate::session_channel::{CutReason, SessionSender};
use procfleet_core::boot_time::BootTime;
use procfleet_core::dispatch::{self, OpProgress};
use procfleet_core::id::{AgentId, Epoch, OpId};
use procfleet_core::rebalance;
use procfleet_proto::link::{Cancel, Drain, Refused, server_message::Body};
use procfleet_store::{EndedBy, ServerTerm};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tracing::{info, warn};

/// When the server stops, agents reconnect after this time plus a random part of a spread (jitter). The
/// spread is `SPREAD_EACH` for each agent, which a server with two cores can accept, within the bounds.
const COME_BACK: Duration = Duration::from_millis(500);
const SPREAD_EACH: Duration = Duration::from_millis(2);
const SPREAD: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// The highest spread if servers go on meanwhile: well below `RESTART_GRACE`, for which they wait before they
/// decide without an agent.
const SPREAD_ELSEWHERE: Duration = Duration::from_secs(30);

/// Agents that are sent away go within this time (jitter).
const SENT_AWAY_WITHIN: Duration = Duration::from_secs(2);

pub(super) struct Session {
    pub(super) epoch: Epoch,
    pub(super) sender: SessionSender,
    pub(super) capabilities: AgentCapabilities,
    /// Number of ops that were sent and not confirmed.
    pub(super) unconfirmed: usize,
    /// Ops beyond the window; sent as earlier ones are confirmed.
    pub(super) backlog: VecDeque<OpId>,
    pub(super) began: BootTime,
    /// The agent was asked to connect to another server.
    pub(super) sent_away: bool,
}

/// A session that the dispatcher is told of.
pub(super) struct NewSession {
    pub(super) agent: AgentId,
    /// The term in which this server has stored it.
    pub(super) term: ServerTerm,
    pub(super) epoch: Epoch,
    pub(super) sender: SessionSender,
    /// Ops that are in the agent's journal.
    pub(super) taken: Vec<OpId>,
    pub(super) heard: LastHeard,
    pub(super) capabilities: AgentCapabilities,
}

impl Work {
    /// Registers a session whose ops are in the table.
    pub(super) fn admit(&mut self, session: NewSession) {
        let NewSession { agent, term: _, epoch, sender, taken, heard, capabilities } = session;
        if self.connected(agent.clone(), epoch, sender, taken, capabilities) {
            self.presences.insert(agent, heard);
        }
    }

    /// Registers a session. False: the session was refused.
    pub(super) fn connected(
        &mut self,
        agent: AgentId,
        epoch: Epoch,
        sender: SessionSender,
        taken: Vec<OpId>,
        capabilities: AgentCapabilities,
    ) -> bool {
        if self.sessions.get(&agent).is_some_and(|session| session.epoch > epoch) {
            sender.cut(CutReason::Replaced);
            return false;
        }
        // The agent was dismissed while it connected.
        if let Some(reason) = self.dismissed.get(&agent) {
            let _ = sender.try_send(refusal(&agent, reason));
            return false;
        }
        let ended = taken.iter().filter(|op| !self.ops.contains_key(op)).map(OpId::to_string);
        let ended: Vec<String> = if capabilities.cancels { ended.collect() } else { Vec::new() };
        if !ended.is_empty() {
            // These ops ended while the agent was away; the agent must not begin them now.
            let _ = sender.try_send(Body::Cancel(Cancel { ops: ended }));
        }
        let session = Session {
            epoch,
            sender,
            capabilities,
            unconfirmed: 0,
            backlog: VecDeque::new(),
            began: self.clock.now(),
            sent_away: false,
        };
        if let Some(older) = self.sessions.insert(agent.clone(), session) {
            older.sender.cut(CutReason::Replaced);
        }
        self.back_by.remove(&agent);
        self.cluster.saw_epoch(&agent, epoch);
        self.drop_decisions(&agent);
        for op in taken {
            if let Some(entry) = self.ops.get_mut(&op).filter(|entry| entry.agent.as_ref() == Some(&agent)) {
                entry.open.progress = OpProgress::Taken(epoch);
            }
        }
        self.reconsider(&agent);
        true
    }

    /// Drops decisions about ops of an agent that could not be written yet. They were made without the agent,
    /// which will now be sent these ops.
    fn drop_decisions(&mut self, agent: &AgentId) {
        let Some(ops) = self.by_agent.get(agent) else { return };
        self.finished
            .retain(|finished| matches!(finished.by, EndedBy::Agent(_)) || !ops.contains(&finished.op));
    }

    /// Ends the session of a retired or revoked agent, and lets its ops end.
    pub(super) fn dismiss(&mut self, agent: AgentId, reason: String) {
        if let Some(session) = self.sessions.remove(&agent) {
            // Dropping the sender ends the connection after this message is written.
            let _ = session.sender.try_send(refusal(&agent, &reason));
            self.presences.leave(&agent, self.clock.wall());
        } else {
            self.presences.forget(&agent);
        }
        self.back_by.remove(&agent);
        self.reconsider(&agent);
        self.dismissed.insert(agent, reason);
    }

    /// Removes an agent's session and returns it.
    pub(super) fn gone(&mut self, agent: &AgentId) -> Option<Session> {
        let session = self.sessions.remove(agent);
        self.presences.leave(agent, self.clock.wall());
        let grace = match &session {
            // The agent is on its way to another server.
            Some(session) if session.sent_away => dispatch::RESTART_GRACE,
            Some(_) | None => dispatch::RECONNECT_GRACE,
        };
        self.back_by.insert(agent.clone(), self.clock.now() + grace);
        self.reconsider(agent);
        session
    }

    /// Ends an agent's session at once. The agent may reconnect and is sent everything again.
    pub(super) fn cut(&mut self, agent: &AgentId, reason: CutReason) {
        if let Some(session) = self.gone(agent) {
            warn!(%agent, %reason, "session of an agent was cut");
            session.sender.cut(reason);
        }
    }

    /// One op less is unconfirmed: the next one may be sent.
    pub(super) fn confirmed(&mut self, agent: &AgentId, epoch: Epoch) {
        let Some(session) = self.sessions.get_mut(agent).filter(|session| session.epoch == epoch) else {
            return;
        };
        session.unconfirmed = session.unconfirmed.saturating_sub(1);
        // Skip ops that have ended meanwhile.
        while let Some(op) = session.backlog.pop_front() {
            if self.ops.contains_key(&op) {
                self.dirty.insert(op);
                return;
            }
        }
        // Most sessions never need it again.
        session.backlog.shrink_to_fit();
    }

    /// Asks so many agents to connect to another server, those without ops under way first. Sessions that
    /// have just begun stay for a while: an agent that knows no other server comes back at once.
    pub(super) fn send_away(&mut self, count: usize) {
        let now = self.clock.now();
        let is_settled =
            |session: &Session| !session.sent_away && now.since(session.began) >= rebalance::SETTLED;
        let mut agents: Vec<(usize, &AgentId)> = self
            .sessions
            .iter()
            .filter(|(_, session)| is_settled(session))
            .map(|(agent, _)| (self.by_agent.get(agent).map_or(0, BTreeSet::len), agent))
            .collect();
        agents.sort_unstable();
        let chosen: Vec<AgentId> = agents.into_iter().take(count).map(|(_, agent)| agent.clone()).collect();
        if !chosen.is_empty() {
            info!(agents = chosen.len(), "agents are asked to connect to another server");
        }
        for agent in chosen {
            if let Some(session) = self.sessions.get_mut(&agent) {
                let drain = Drain { after_ms: 0, spread_ms: millis(SENT_AWAY_WITHIN), elsewhere: true };
                // An agent that does not read now is told later.
                session.sent_away = session.sender.try_send(Body::Drain(drain)).is_ok();
            }
        }
    }

    /// Ends the sessions of these agents, and of those that are connecting. The agents connect again within a
    /// spread, to any server.
    pub(super) fn ask_to_reconnect(&mut self, agents: Vec<AgentId>) {
        let connecting = std::mem::take(&mut self.cluster.connecting);
        let mut senders: Vec<SessionSender> = connecting.into_iter().map(|session| session.sender).collect();
        for agent in agents {
            if let Some(session) = self.sessions.remove(&agent) {
                self.presences.leave(&agent, self.clock.wall());
                senders.push(session.sender);
            }
        }
        send_back(senders);
    }

    /// Asks all agents to reconnect later, or to connect to another server, if there is one.
    pub(super) fn leave(&mut self) {
        let drain = farewell(self.sessions.len(), self.cluster.takers());
        for session in self.sessions.values() {
            let _ = session.sender.try_send(Body::Drain(drain.clone()));
        }
        self.sessions.clear();
    }
}

/// The last message of a server that ends. `takers`: the other servers that take its agents.
fn farewell(sessions: usize, takers: usize) -> Drain {
    let sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
    let spread = SPREAD_EACH.saturating_mul(sessions);
    let (after, spread) = match u32::try_from(takers).unwrap_or(u32::MAX) {
        0 => (COME_BACK, spread.clamp(SPREAD.0, SPREAD.1)),
        takers => (Duration::ZERO, (spread / takers).clamp(SPREAD.0, SPREAD_ELSEWHERE)),
    };
    Drain { after_ms: millis(after), spread_ms: millis(spread), elsewhere: takers > 0 }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn refusal(agent: &AgentId, reason: &str) -> Body {
    Body::Refused(Refused { reason: format!("agent {agent} {reason}") })
}

/// Ends sessions. Their agents connect again within a spread, to any server.
pub(super) fn send_back(senders: Vec<SessionSender>) {
    let count = u32::try_from(senders.len()).unwrap_or(u32::MAX);
    let spread = SPREAD_EACH.saturating_mul(count).clamp(SPREAD.0, SPREAD_ELSEWHERE);
    let drain = Drain { after_ms: 0, spread_ms: millis(spread), elsewhere: false };
    for sender in senders {
        // Dropping the sender ends the connection after this message is written. An agent that does not read
        // connects again, too.
        let _ = sender.try_send(Body::Drain(drain.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_of_a_server_that_ends_spread_over_time_or_over_the_others() {
        for (sessions, takers, after_ms, spread_ms, elsewhere) in [
            (0, 0, 500, 2_000, false),
            (10_000, 0, 500, 20_000, false),
            (100_000, 0, 500, 60_000, false),
            (10, 1, 0, 2_000, true),
            (10_000, 1, 0, 20_000, true),
            (10_000, 2, 0, 10_000, true),
            (100_000, 2, 0, 30_000, true),
        ] {
            let expected = Drain { after_ms, spread_ms, elsewhere };
            assert_eq!(farewell(sessions, takers), expected, "{sessions} {takers}");
        }
    }
}
