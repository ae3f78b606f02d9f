//! What can happen next in a state of the fleet.

use crate::Fleet;
use crate::protections::Protection;
use crate::world::{BackBy, Beat, Faults, Link, OPS, Phase, ServerState, World};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Accept(u8),
    Connect(u8, u8),
    Receive(u8),
    Report(u8),
    Notice(u8),
    Start(u8),
    // What servers and the time do by themselves.
    Welcome(u8),
    Look(u8),
    Turn(u8),
    Check(u8),
    Commit(u8),
    Gone(u8, u8, u8),
    Minute,
    Later,
    // Faults.
    GiveUp(u8),
    Break(u8),
    Cut(u8),
    Pause(u8),
    Crash(u8),
    Stop(u8),
}

impl Step {
    /// Whether it happens sooner or later if it can: not so what agents, callers and operators do.
    pub(crate) fn is_certain(self) -> bool {
        match self {
            Step::Welcome(_)
            | Step::Look(_)
            | Step::Turn(_)
            | Step::Check(_)
            | Step::Commit(_)
            | Step::Gone(..)
            | Step::Minute
            | Step::Later => true,
            Step::Accept(_)
            | Step::Connect(..)
            | Step::Receive(_)
            | Step::Report(_)
            | Step::Notice(_)
            | Step::Start(_)
            | Step::GiveUp(_)
            | Step::Break(_)
            | Step::Cut(_)
            | Step::Pause(_)
            | Step::Crash(_)
            | Step::Stop(_) => false,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Accept(op) => write!(f, "op {op} is accepted"),
            Step::Connect(agent, server) => {
                write!(f, "agent {agent} says hello, and server {server} stores the session")
            }
            Step::Receive(op) => write!(f, "op {op} arrives at its agent"),
            Step::Report(op) => write!(f, "the agent of op {op} reports it"),
            Step::Notice(agent) => write!(f, "agent {agent} notices that its session has ended"),
            Step::Start(server) => write!(f, "server {server} starts"),
            Step::Welcome(agent) => write!(f, "agent {agent} is welcomed, and the dispatcher is told"),
            Step::Look(server) => {
                write!(f, "server {server} beats, looks at the other and takes over if it must")
            }
            Step::Turn(server) => write!(f, "server {server} reads, decides and sends"),
            Step::Check(server) => write!(f, "server {server} compares the sessions of its decisions"),
            Step::Commit(server) => write!(f, "server {server} writes outcomes"),
            Step::Gone(server, agent, epoch) => {
                write!(f, "server {server} notices that session {epoch} of agent {agent} has ended")
            }
            Step::Minute => write!(f, "a minute passes"),
            Step::Later => write!(f, "the next deadline of the ops passes"),
            Step::GiveUp(agent) => {
                write!(f, "FAULT: the connection of agent {agent} breaks before its welcome")
            }
            Step::Break(agent) => {
                write!(f, "FAULT: the connection of agent {agent} breaks; its server does not notice")
            }
            Step::Cut(agent) => {
                write!(f, "FAULT: the connection of agent {agent} breaks; the agent does not notice")
            }
            Step::Pause(server) => write!(f, "FAULT: beats of server {server} do not get through"),
            Step::Crash(server) => write!(f, "FAULT: server {server} crashes"),
            Step::Stop(server) => write!(f, "FAULT: server {server} stops with a farewell"),
        }
    }
}

impl Fleet {
    /// All steps that may change the world.
    pub(crate) fn steps(&self, world: &World, steps: &mut Vec<Step>) {
        if (0..self.ops).all(|op| self.is_over(world, op)) {
            return;
        }
        for op in 0..self.ops {
            self.steps_of_op(world, op, steps);
        }
        for agent in 0..self.agents {
            self.steps_of_agent(world, agent, steps);
        }
        for server in 0..world.servers.len() {
            self.steps_of_server(world, server, steps);
        }
        steps.push(Step::Minute);
        let are_accepted = world.store.ops.iter().take(self.ops).all(|op| op.accepted.is_some());
        if are_accepted && world.phase != Phase::Overdue {
            steps.push(Step::Later);
        }
    }

    fn steps_of_op(&self, world: &World, op: usize, steps: &mut Vec<Step>) {
        let (agent, name) = (self.agent_of(op), byte(op));
        // Ops of one agent differ in nothing but their number.
        let is_next = op == 0 || self.agents > 1 || world.store.ops[op - 1].accepted.is_some();
        if world.store.ops[op].accepted.is_none() && is_next {
            steps.push(Step::Accept(name));
        }
        if world.agents[agent].frames[op] {
            steps.push(Step::Receive(name));
        }
        if let Link::Open { server, .. } = world.agents[agent].link
            && world.is_served(agent)
            && world.journal[op].runs > 0
            && !world.journal[op].is_acknowledged
            && !world.servers[usize::from(server)].ops[op].has_report
        {
            steps.push(Step::Report(name));
        }
    }

    fn steps_of_agent(&self, world: &World, agent: usize, steps: &mut Vec<Step>) {
        let (left, name) = (world.left, byte(agent));
        match world.agents[agent].link {
            Link::Away => {
                if world.store.sessions[agent].epoch < self.sessions {
                    let running = (0..world.servers.len()).filter(|server| world.servers[*server].is_running);
                    steps.extend(running.map(|server| Step::Connect(name, byte(server))));
                }
            }
            Link::Stored { .. } => {
                steps.push(Step::Welcome(name));
                if left.has(left.breaks) {
                    steps.push(Step::GiveUp(name));
                }
            }
            Link::Open { .. } if !world.is_served(agent) => steps.push(Step::Notice(name)),
            Link::Open { .. } => {
                if left.has(left.breaks) {
                    steps.push(Step::Break(name));
                    steps.push(Step::Cut(name));
                }
            }
        }
    }

    fn steps_of_server(&self, world: &World, server: usize, steps: &mut Vec<Step>) {
        let (own, left, name) = (&world.servers[server], world.left, byte(server));
        if !own.is_running {
            steps.push(Step::Start(name));
            return;
        }
        steps.extend([Step::Look(name), Step::Turn(name)]);
        if own.ops.iter().any(|entry| entry.verdict.is_some() || entry.has_report) {
            steps.push(Step::Commit(name));
            if !self.protections.has(Protection::RowLock) {
                steps.push(Step::Check(name));
            }
        }
        for agent in 0..self.agents {
            let held = &own.agents[agent];
            let known = [held.session, held.connecting].into_iter().filter(|epoch| *epoch != 0);
            let ended = known
                .filter(|epoch| world.agents[agent].link != (Link::Open { server: name, epoch: *epoch }));
            steps.extend(ended.map(|epoch| Step::Gone(name, byte(agent), epoch)));
        }
        if left.has(left.pauses) && own.beat == Beat::Fresh {
            steps.push(Step::Pause(name));
        }
        if left.has(left.ends) {
            steps.extend([Step::Crash(name), Step::Stop(name)]);
        }
    }

    /// The world after a step. `None`: the step changes nothing.
    pub(crate) fn next(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        self.apply(&mut next, step);
        self.normalize(&mut next);
        (next != *world).then_some(next)
    }

    fn apply(&self, world: &mut World, step: Step) {
        match step {
            Step::Accept(op) => {
                let session = &world.store.sessions[self.agent_of(op.into())];
                world.store.ops[usize::from(op)].accepted = Some((session.epoch, session.connected));
            }
            Step::Connect(agent, server) => self.connect(world, agent.into(), server.into()),
            Step::Receive(op) => self.receive(world, op.into()),
            Step::Report(op) => self.report(world, op.into()),
            Step::Notice(agent) => world.agents[usize::from(agent)].leave(),
            Step::Start(server) => self.start(world, server.into()),
            Step::Welcome(agent) => self.welcome(world, agent.into()),
            Step::Look(server) => self.look(world, server.into()),
            Step::Turn(server) => self.turn(world, server.into()),
            Step::Check(server) => self.check(world, server.into()),
            Step::Commit(server) => self.commit(world, server.into()),
            Step::Gone(server, agent, epoch) => self.gone(world, server.into(), agent.into(), epoch),
            Step::Minute => minute(world),
            Step::Later => {
                world.phase = match world.phase {
                    Phase::MayBegin => Phase::TooLateToBegin,
                    Phase::TooLateToBegin | Phase::Overdue => Phase::Overdue,
                }
            }
            Step::GiveUp(agent) => {
                world.left.spend(|left| &mut left.breaks);
                self.give_up(world, agent.into());
            }
            Step::Break(agent) => {
                world.left.spend(|left| &mut left.breaks);
                world.agents[usize::from(agent)].leave();
            }
            Step::Cut(agent) => {
                world.left.spend(|left| &mut left.breaks);
                if let Link::Open { server, epoch } = world.agents[usize::from(agent)].link {
                    self.gone(world, server.into(), agent.into(), epoch);
                }
            }
            Step::Pause(server) => {
                world.left.spend(|left| &mut left.pauses);
                world.servers[usize::from(server)].beat = Beat::Old;
            }
            Step::Crash(server) => {
                world.left.spend(|left| &mut left.ends);
                world.servers[usize::from(server)] = ServerState::not_running();
            }
            Step::Stop(server) => {
                world.left.spend(|left| &mut left.ends);
                self.stop(world, server.into());
            }
        }
    }

    /// States that differ in nothing that can still matter become one.
    fn normalize(&self, world: &mut World) {
        for agent in 0..self.agents {
            let is_waiting = match world.agents[agent].link {
                Link::Away => false,
                Link::Stored { server, .. } => !world.servers[usize::from(server)].is_running,
                // Without a message on its way, it is the same whether it has noticed.
                Link::Open { .. } => !world.is_served(agent) && world.agents[agent].frames == [false; OPS],
            };
            if is_waiting {
                world.agents[agent].leave();
            }
        }
        for server in world.servers.iter_mut().filter(|server| server.is_running) {
            for agent in 0..self.agents {
                let mut ops = (0..self.ops).filter(|op| self.agent_of(*op) == agent);
                let held = &mut server.agents[agent];
                if ops.all(|op| server.ops[op].progress.is_none()) {
                    held.epoch = 0;
                }
                // With the store's word about dead servers, an agent that is away has no other time of grace.
                if held.session == 0
                    && held.back_by.is_none()
                    && !server.waits
                    && self.protections.has(Protection::GraceFromStore)
                {
                    held.back_by = Some(BackBy::Passed);
                }
            }
        }
        for op in 0..self.ops {
            if self.is_over(world, op) {
                world.store.ops[op].accepted = Some((0, false));
                for server in world.servers.iter_mut().filter(|server| server.is_running) {
                    server.ops[op].is_known = true;
                }
            }
        }
        if world.left.all == 0 {
            world.left = Faults { ends: 0, pauses: 0, breaks: 0, all: 0 };
        }
    }

    /// Whether nobody will do anything about the op any more.
    pub(crate) fn is_over(&self, world: &World, op: usize) -> bool {
        let is_reported = world.journal[op].runs == 0 || world.journal[op].is_acknowledged;
        world.store.ops[op].outcome.is_some()
            && is_reported
            && !world.agents[self.agent_of(op)].frames[op]
            && world.servers.iter().all(|server| {
                let entry = &server.ops[op];
                entry.progress.is_none() && entry.verdict.is_none() && !entry.has_report
            })
    }
}

impl Faults {
    fn has(self, kind: u8) -> bool {
        kind > 0 && self.all > 0
    }

    fn spend(&mut self, kind: fn(&mut Faults) -> &mut u8) {
        *kind(self) -= 1;
        self.all -= 1;
    }
}

/// All times of grace that have begun are over.
fn minute(world: &mut World) {
    for server in &mut world.servers {
        server.waits = false;
        for held in &mut server.agents {
            held.back_by = held.back_by.map(|_| BackBy::Passed);
        }
    }
    for session in &mut world.store.sessions {
        session.is_orphaned = false;
    }
}

fn byte(index: usize) -> u8 {
    u8::try_from(index).expect("there are two of each")
}
