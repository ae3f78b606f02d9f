//! The units of work on the store, each atomic: `crates/store/src/postgres/{membership,agents,ops,tasks}.rs`.

use crate::Fleet;
use crate::protections::{Protection, Protections};
use crate::situations::Situation;
use crate::world::{Ending, Peer, Run, Session, StoreRows, Verdict, World};

/// A server's own run was declared dead, so the unit changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fenced;

/// Whether a server other than the reader may have sent an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentBefore {
    No,
    Maybe,
}

impl StoreRows {
    /// `hold`: every change locks the row of its server and checks that it is up.
    pub(crate) fn hold(&self, server: usize, protections: Protections) -> Result<(), Fenced> {
        match self.is_up[server] || !protections.has(Protection::Term) {
            true => Ok(()),
            false => Err(Fenced),
        }
    }

    pub(crate) fn is_alive(&self, run: Run) -> bool {
        matches!(run, Run::Last(server) if self.is_up[usize::from(server)])
    }

    /// `agent_connected`.
    pub(crate) fn connect(&mut self, agent: usize, server: usize) -> Session {
        let session = &mut self.sessions[agent];
        session.epoch += 1;
        session.holder = last_run(server);
        session.connected = true;
        session.is_orphaned = false;
        session.epoch
    }

    /// `agent_disconnected`.
    pub(crate) fn disconnect(&mut self, agent: usize, epoch: Session) {
        let session = &mut self.sessions[agent];
        if session.epoch == epoch {
            session.connected = false;
        }
    }

    /// Whether `OpReader::read` returns an op, and whether the op was sent before. `unheld`: the reader
    /// decides about agents of dead servers.
    pub(crate) fn read(
        &self,
        server: usize,
        unheld: bool,
        op: usize,
        agent: usize,
        protections: Protections,
    ) -> Option<SentBefore> {
        let row = &self.ops[op];
        let (epoch, connected) = row.accepted.filter(|_| row.outcome.is_none())?;
        let session = &self.sessions[agent];
        let is_own = session.holder == last_run(server);
        if !is_own && (!unheld || self.is_alive(session.holder)) {
            return None;
        }
        let was_not_sent = (epoch == session.epoch && (!connected || is_own))
            || (epoch + 1 == session.epoch && !connected && is_own);
        match was_not_sent || !protections.has(Protection::SentBefore) {
            true => Some(SentBefore::No),
            false => Some(SentBefore::Maybe),
        }
    }

    /// `superseded`: whether a decision of this server comes too late.
    pub(crate) fn is_superseded(
        &self,
        server: usize,
        agent: usize,
        verdict: Verdict,
        protections: Protections,
    ) -> bool {
        let session = &self.sessions[agent];
        let is_own = session.holder == last_run(server)
            || (self.unheld == last_run(server) && !self.is_alive(session.holder));
        let is_last = session.epoch == verdict.epoch || !protections.has(Protection::Epoch);
        !is_own || !is_last
    }

    /// `take_leases`, for a server whose run is up.
    fn take_lease(&mut self, server: usize) {
        if self.is_up[server] && !self.is_alive(self.unheld) {
            self.unheld = last_run(server);
        }
    }
}

impl Fleet {
    /// Stores an outcome, unless there is one.
    pub(crate) fn end(&self, store: &mut StoreRows, op: usize, says: Ending, is_no_agent: bool) {
        let is_orphaned = store.sessions[self.agent_of(op)].is_orphaned;
        let row = &mut store.ops[op];
        match row.outcome {
            None => {
                row.outcome = Some(says);
                row.is_hasty = is_no_agent && is_orphaned;
            }
            Some(_) if self.protections.has(Protection::FirstWins) => {
                self.situations.note(Situation::LateOutcome);
            }
            Some(_) => {
                row.outcome = Some(says);
                row.is_contradicted = true;
            }
        }
    }
}

impl World {
    /// Declares the last run of a server dead.
    pub(crate) fn fence(&mut self, server: usize) {
        if !self.store.is_up[server] {
            return;
        }
        self.store.is_up[server] = false;
        for session in &mut self.store.sessions {
            session.is_orphaned |= session.connected && session.holder == last_run(server);
        }
        self.servers[1 - server].missed_death = true;
    }

    /// `enter`: a new run of a server. What belonged to its last run belongs to nobody.
    pub(crate) fn enter(&mut self, server: usize) {
        self.fence(server);
        let last = last_run(server);
        for session in self.store.sessions.iter_mut().filter(|session| session.holder == last) {
            session.holder = Run::Earlier;
        }
        if self.store.unheld == last {
            self.store.unheld = Run::Earlier;
        }
        self.store.is_up[server] = true;
        let other = &mut self.servers[1 - server];
        if other.peer == Some(Peer::LastRun) {
            other.peer = Some(Peer::EarlierRun);
        }
        self.store.take_lease(server);
    }

    /// `take_over`. `is_silent`: the other server, by core's rule.
    pub(crate) fn take_over(&mut self, server: usize, is_silent: bool) {
        if is_silent {
            self.fence(1 - server);
        }
        self.store.take_lease(server);
    }
}

pub(crate) fn last_run(server: usize) -> Run {
    Run::Last(u8::from(server == 1))
}
