//! What a server does: its beats and looks (`store/src/postgres/membership.rs`) and its dispatcher
//! (`server/src/dispatcher`). Decisions are those of core.

use crate::Fleet;
use crate::protections::Protection;
use crate::situations::Situation;
use crate::store::{SentBefore, last_run};
use crate::world::{
    AGENTS, BackBy, Beat, Ending, HeldAgent, Link, Peer, Phase, ServerState, Session, TableEntry, Verdict,
    World,
};
use procfleet_core::boot_time::BootTime;
use procfleet_core::code::Code;
use procfleet_core::dispatch::{self, Decision, OpProgress, OpenOp, Presence, RESTART_GRACE};
use procfleet_core::id::Epoch;
use procfleet_core::membership::{OwnBeat, PeerBeats, TAKEOVER, TRUST};
use procfleet_core::op::{OpKind, Outcome};
use std::time::Duration;

/// Any time will do, as all others are relative to it.
const NOW: BootTime = BootTime(1_000_000);

/// What a read of open ops is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Task(usize),
    Agent(usize),
    All,
}

impl Beat {
    fn age(self) -> Duration {
        match self {
            Beat::Fresh => Duration::ZERO,
            Beat::Unconfirmed => TRUST,
            Beat::Old => TAKEOVER,
        }
    }
}

/// Core's rule, for a server whose last confirmed beat has this age.
pub(crate) fn trusts_itself(age: Duration) -> bool {
    let mut own = OwnBeat::default();
    own.confirm(NOW - age);
    own.may_act(NOW)
}

/// Core's rule, for a beat that others have first seen so long ago.
pub(crate) fn is_silent(age: Duration) -> bool {
    let mut peers = PeerBeats::default();
    peers.observe(NOW - age, &[('p', 1)]);
    !peers.observe(NOW, &[('p', 1)]).is_empty()
}

impl ServerState {
    pub(crate) fn just_started() -> ServerState {
        ServerState {
            is_running: true,
            beat: Beat::Fresh,
            is_behind: false,
            peer: None,
            missed_death: false,
            has_unheld: false,
            reload: false,
            waits: true,
            agents: Default::default(),
            ops: Default::default(),
        }
    }

    pub(crate) fn not_running() -> ServerState {
        ServerState { is_running: false, beat: Beat::Old, waits: false, ..ServerState::just_started() }
    }
}

impl Fleet {
    /// Whether the server may send and decide.
    fn may_act(&self, own: &ServerState) -> bool {
        trusts_itself(own.beat.age()) || !self.protections.has(Protection::Trust)
    }

    /// A beat, and a look at the other server and the lease. It declares the other server dead if core says
    /// so, and takes the lease if it is free; the next look sees that.
    pub(crate) fn look(&self, world: &mut World, server: usize) {
        if !world.store.is_up[server] {
            return self.enter_again(world, server);
        }
        let peer_is_up = world.store.is_up[1 - server];
        let has_unheld = world.store.unheld == last_run(server);
        let counts_deaths = self.protections.has(Protection::EveryDeath);
        let own = &mut world.servers[server];
        own.beat = Beat::Fresh;
        let somebody_died = match own.peer {
            _ if counts_deaths => own.missed_death,
            None => false,
            Some(Peer::LastRun) => !peer_is_up,
            Some(Peer::EarlierRun) => true,
        };
        if has_unheld && (!own.has_unheld || somebody_died) {
            own.reload = true;
            own.waits |= self.protections.has(Protection::Grace);
        }
        own.missed_death = false;
        own.has_unheld = has_unheld;
        own.peer = (peer_is_up && !counts_deaths).then_some(Peer::LastRun);
        let is_silent = is_silent(world.servers[1 - server].beat.age());
        world.take_over(server, is_silent);
    }

    /// Another server has declared this one dead: its beats go on as a new run.
    fn enter_again(&self, world: &mut World, server: usize) {
        self.situations.note(Situation::BegunAnew);
        world.enter(server);
        for agent in &mut world.agents {
            if let Link::Stored { server: with, is_stale, .. } = &mut agent.link {
                *is_stale |= usize::from(*with) == server;
            }
        }
        let own = &mut world.servers[server];
        own.beat = Beat::Unconfirmed;
        own.has_unheld = false;
        own.is_behind = true;
        // Nothing is decided before the dispatcher begins anew, which forgets all of this.
        (own.reload, own.waits) = (false, false);
        for held in &mut own.agents {
            *held = HeldAgent { session: held.session, connecting: held.connecting, ..HeldAgent::default() };
        }
        for entry in &mut own.ops {
            entry.progress = None;
        }
    }

    /// The dispatcher learns of the new run. Its sessions and decisions are void.
    fn begin_anew(&self, own: &mut ServerState) {
        own.is_behind = false;
        own.reload = true;
        own.waits = self.protections.has(Protection::Grace);
        own.agents = Default::default();
        for entry in &mut own.ops {
            // Reports of agents are true, whoever writes them. The known tasks stay.
            *entry = TableEntry {
                has_report: entry.has_report,
                is_known: entry.is_known,
                ..TableEntry::default()
            };
        }
    }

    /// The process starts. It loads what it has to decide about.
    pub(crate) fn start(&self, world: &mut World, server: usize) {
        world.enter(server);
        let peer = (!self.protections.has(Protection::EveryDeath) && world.store.is_up[1 - server])
            .then_some(Peer::LastRun);
        world.servers[server] = ServerState {
            has_unheld: world.store.unheld == last_run(server),
            reload: true,
            waits: self.protections.has(Protection::Grace),
            peer,
            ..ServerState::just_started()
        };
    }

    /// One round of the dispatcher's loop: reads what is to be read, then decides. The commit comes later.
    pub(crate) fn turn(&self, world: &mut World, server: usize) {
        let own = &mut world.servers[server];
        if own.is_behind {
            self.begin_anew(own);
        }
        if trusts_itself(own.beat.age()) || !self.protections.has(Protection::ReadInTrust) {
            for agent in 0..self.agents {
                self.read_connected(world, server, agent);
            }
            if std::mem::take(&mut world.servers[server].reload) {
                self.read(world, server, Scope::All);
            }
            self.poll(world, server);
        }
        for op in 0..self.ops {
            self.decide(world, server, op);
        }
    }

    /// Reads the ops of an agent that has connected, and admits its session.
    fn read_connected(&self, world: &mut World, server: usize, agent: usize) {
        let held = &mut world.servers[server].agents[agent];
        if std::mem::take(&mut held.to_read) {
            if held.session == 0 {
                held.back_by = Some(BackBy::Passed);
            }
            self.read(world, server, Scope::Agent(agent));
        }
        let epoch = std::mem::take(&mut world.servers[server].agents[agent].connecting);
        if epoch == 0 {
            return;
        }
        self.read(world, server, Scope::Agent(agent));
        let held = &mut world.servers[server].agents[agent];
        held.session = epoch;
        held.epoch = match self.protections.has(Protection::Reread) {
            true => held.epoch.max(epoch),
            false => epoch,
        };
        held.back_by = None;
    }

    /// `open_ops` and `add_new`.
    fn read(&self, world: &mut World, server: usize, scope: Scope) {
        let World { store, servers, .. } = world;
        let own = &mut servers[server];
        let unheld = own.has_unheld && trusts_itself(own.beat.age());
        for op in 0..self.ops {
            let agent = self.agent_of(op);
            let is_asked_for = match scope {
                Scope::Task(task) => task == op,
                Scope::Agent(wanted) => wanted == agent,
                Scope::All => true,
            };
            if !is_asked_for {
                continue;
            }
            let row = store.read(server, unheld, op, agent, self.protections);
            let session = &store.sessions[agent];
            let (held, entry) = (&mut own.agents[agent], &mut own.ops[op]);
            let is_foreign = row.is_some() && session.holder != last_run(server);
            if is_foreign && self.protections.has(Protection::GraceFromStore) {
                let may_be_back = session.is_orphaned && self.protections.has(Protection::Grace);
                held.back_by = may_be_back.then_some(BackBy::Ahead);
            }
            let corrects = self.protections.has(Protection::Reread);
            if corrects {
                entry.verdict = None;
            }
            let Some(sent) = row else {
                if corrects {
                    entry.progress = None;
                }
                continue;
            };
            if corrects || entry.progress.is_none() {
                held.epoch = held.epoch.max(session.epoch);
            }
            entry.progress = match (sent, entry.progress) {
                (SentBefore::No, None) => Some(OpProgress::Waiting),
                (SentBefore::Maybe, None) => Some(OpProgress::Sent(Epoch(0))),
                (SentBefore::Maybe, Some(OpProgress::Waiting)) if corrects => {
                    Some(OpProgress::Sent(Epoch(0)))
                }
                (SentBefore::No | SentBefore::Maybe, Some(progress)) => Some(progress),
            };
        }
    }

    /// Looks at the open tasks: which have ended, and which are new.
    fn poll(&self, world: &mut World, server: usize) {
        for op in 0..self.ops {
            let row = &world.store.ops[op];
            let (is_accepted, has_ended) = (row.accepted.is_some(), row.outcome.is_some());
            let own = &mut world.servers[server];
            if has_ended {
                if own.ops[op].is_known {
                    self.forget(own, op);
                }
            } else if is_accepted && !own.ops[op].is_known {
                own.ops[op].is_known = true;
                self.read(world, server, Scope::Task(op));
            }
        }
    }

    /// Asks core about an op of the table, and does what core says.
    fn decide(&self, world: &mut World, server: usize, op: usize) {
        let agent = self.agent_of(op);
        let own = &world.servers[server];
        let Some(progress) = own.ops[op].progress.filter(|_| self.may_act(own)) else { return };
        let held = &own.agents[agent];
        match self.decision(world.phase, progress, held, own.waits) {
            Decision::Wait { .. } => {}
            Decision::Send => {
                let epoch = held.session;
                let other_sent =
                    matches!(world.servers[1 - server].ops[op].progress, Some(OpProgress::Sent(_)));
                if !world.store.is_up[1 - server] && other_sent {
                    self.situations.note(Situation::SentAfterTakeover);
                }
                world.servers[server].ops[op].progress = Some(OpProgress::Sent(Epoch(epoch.into())));
                if world.agents[agent].link == (Link::Open { server: crate::agent::number(server), epoch }) {
                    world.agents[agent].frames[op] = true;
                }
            }
            Decision::End(outcome) => {
                let verdict = Verdict {
                    says: meaning_of(&outcome),
                    is_no_agent: outcome.code == Code::NoAgent,
                    epoch: held.epoch,
                    is_checked: false,
                };
                let known = &mut world.servers[server].ops[op].verdict;
                if known.is_none_or(|known| known.epoch != verdict.epoch) {
                    *known = Some(verdict);
                }
            }
        }
    }

    /// What core says about an op of the table.
    fn decision(&self, phase: Phase, progress: OpProgress, held: &HeldAgent, waits: bool) -> Decision {
        let presence = match (held.session, held.back_by) {
            (0, Some(BackBy::Ahead)) => Presence::Away { back_by: NOW + RESTART_GRACE },
            (0, None) if waits => Presence::Away { back_by: NOW + RESTART_GRACE },
            (0, Some(BackBy::Passed) | None) => Presence::Away { back_by: NOW },
            (epoch, _) => Presence::Connected(Epoch(epoch.into())),
        };
        let (start_by, deadline) = match phase {
            Phase::MayBegin => (NOW + RESTART_GRACE, NOW + RESTART_GRACE * 2),
            Phase::TooLateToBegin => (NOW, NOW + RESTART_GRACE),
            Phase::Overdue => (NOW, NOW),
        };
        let accepted = NOW - RESTART_GRACE;
        let open = OpenOp { kind: OpKind::Start, accepted, start_by, deadline, progress };
        dispatch::decide(NOW, &open, presence, "host")
    }

    /// Without the row lock: the first half of a commit, which compares the sessions.
    pub(crate) fn check(&self, world: &mut World, server: usize) {
        if world.store.hold(server, self.protections).is_err() {
            return;
        }
        let World { store, servers, .. } = world;
        for (op, entry) in servers[server].ops.iter_mut().enumerate() {
            if let Some(verdict) = &mut entry.verdict {
                let is_late = store.is_superseded(server, self.agent_of(op), *verdict, self.protections);
                verdict.is_checked |= !is_late;
            }
        }
    }

    /// Writes the outcomes that wait, in one unit, and acknowledges the agents' reports.
    pub(crate) fn commit(&self, world: &mut World, server: usize) {
        if world.store.hold(server, self.protections).is_err() {
            return self.situations.note(Situation::FencedWrite);
        }
        if world.servers[server].is_behind {
            self.situations.note(Situation::WriteByNewRun);
        }
        for op in 0..self.ops {
            let World { store, servers, .. } = world;
            let other_sent = matches!(servers[1 - server].ops[op].progress, Some(OpProgress::Sent(_)));
            let own = &mut servers[server];
            if let Some(verdict) = own.ops[op].verdict.take() {
                let is_late = store.is_superseded(server, self.agent_of(op), verdict, self.protections);
                match is_late && !verdict.is_checked {
                    true => self.situations.note(Situation::SupersededVerdict),
                    false => {
                        if verdict.is_no_agent && store.sessions[self.agent_of(op)].holder != last_run(server)
                        {
                            self.situations.note(Situation::NotBackInTime);
                        }
                        self.end(store, op, verdict.says, verdict.is_no_agent);
                    }
                }
                self.forget(own, op);
            }
            if std::mem::take(&mut own.ops[op].has_report) {
                if other_sent && store.ops[op].outcome.is_none() {
                    self.situations.note(Situation::AnsweredByTheOther);
                }
                self.end(store, op, Ending::Reported, false);
                self.forget(own, op);
                self.acknowledge(world, server, op);
            }
        }
    }

    /// Sends an acknowledgement, which arrives if the session still stands.
    pub(crate) fn acknowledge(&self, world: &mut World, server: usize, op: usize) {
        let agent = self.agent_of(op);
        let epoch = world.servers[server].agents[agent].session;
        match world.agents[agent].link == (Link::Open { server: crate::agent::number(server), epoch }) {
            true => world.journal[op].is_acknowledged = true,
            false => self.situations.note(Situation::LostAcknowledgement),
        }
    }

    /// The session of an agent has ended, as the server sees it.
    pub(crate) fn gone(&self, world: &mut World, server: usize, agent: usize, epoch: Session) {
        let held = &mut world.servers[server].agents[agent];
        if held.connecting == epoch {
            held.connecting = 0;
            held.to_read |= self.protections.has(Protection::ReadAfterGone);
        }
        if held.session == epoch {
            held.session = 0;
            held.back_by = Some(BackBy::Passed);
        }
        if world.store.hold(server, self.protections).is_ok() {
            world.store.disconnect(agent, epoch);
        }
    }

    /// Removes an op from the table. The last op of an agent that is not connected takes its epoch along.
    fn forget(&self, own: &mut ServerState, op: usize) {
        if own.ops[op].progress.take().is_none() {
            return;
        }
        let agent = self.agent_of(op);
        let is_last =
            (0..self.ops).all(|other| self.agent_of(other) != agent || own.ops[other].progress.is_none());
        let held = &mut own.agents[agent];
        if is_last && held.session == 0 {
            held.epoch = 0;
        }
    }

    /// The server ends. With a farewell, it ends its sessions and lets others take over at once.
    pub(crate) fn stop(&self, world: &mut World, server: usize) {
        for agent in 0..AGENTS {
            let epoch = world.servers[server].agents[agent].session;
            if epoch != 0 {
                let session = &mut world.store.sessions[agent];
                // Its agent is on the way to another server.
                let is_orphaned = session.connected && session.epoch == epoch && world.store.is_up[server];
                session.is_orphaned |= is_orphaned;
                if world.store.hold(server, self.protections).is_ok() {
                    world.store.disconnect(agent, epoch);
                }
            }
        }
        world.fence(server);
        world.servers[server] = ServerState::not_running();
    }
}

/// What an outcome of core says about the op.
fn meaning_of(outcome: &Outcome) -> Ending {
    let denies = ["was never given the operation", "was not begun", "nothing was done", "is not connected"];
    match denies.iter().any(|words| outcome.message.contains(words)) {
        true => Ending::NothingWasDone,
        false => Ending::NotKnown,
    }
}
